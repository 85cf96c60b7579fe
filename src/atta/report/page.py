"""Writes results as one HTML page: a single file that opens offline.

Numbers are formatted in the templates, and <data value="..."> keeps the exact number, so that a
page can be checked. Jinja escapes all text: no text from a file becomes markup.

The images whose confidence changed most are shown as thumbnails. The images are given, or read from
the folder that the record of the test images remembers. If that folder is missing or has changed,
the page says so and shows none.
"""

import json
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

from atta import __version__
from atta._base.display import listed, shortened
from atta._base.errors import InputError, require
from atta._base.files import whole_file
from atta.data.folder import Origin
from atta.data.image_set import ImageSet, data_uri
from atta.data.source import as_source
from atta.report.figures import comparison
from atta.report.figures.detail import (
    confidence_histogram,
    diagram,
    overlaid,
    per_class,
    risks,
    shares,
    weights,
)
from atta.report.figures.theme import ForScript, alt, theme
from atta.report.sections import CRITERIA, WORDS, Line, Section, sections_of
from atta.results.rows import Results, finite
from atta.results.table import Table
from atta.results.words import SENSE, digits, metric_name

with require("report", "a report"):
    from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
    from markupsafe import Markup
    from vl_convert import javascript_bundle

FOLDER = Path(__file__).parent / "templates"
BUDGET = 550_000
"""Characters of chart data after which no more charts are added, so that a page can be mailed."""
MOST, PICTURES, SIDE = 48, 200_000, 96
"""The most thumbnails of a page, the most characters of their data URIs, their longest edge."""


@dataclass(frozen=True)
class Tables:
    """Tables below the sections: the claims of the paper, and its published numbers with ours."""

    claims: Table | None = None
    published: Sequence[Table] = ()


def report(
    results: Results, *, title: str = "", images: Any = None, tables: Tables | None = None
) -> str:
    """Write results as one self-contained HTML page; equal results give equal pages.

    Args:
        results: What to report, such as what `compare` returns.
        title: The title of the page.
        images: The images of the dataset, or {dataset: images}, as they were given to `collect`.
            The page shows those whose confidence changed most. By default they are read from the
            folder that the record remembers; False shows none.
        tables: Tables to add below the sections.

    Returns:
        The HTML of the page.

    Raises:
        InputError: If there are no rows, or if the images do not fit the results.
    """
    if not results.rows:
        raise InputError("there are no rows to report")
    sections = sections_of(results)
    thumbs, notes = thumbnails(results, sections, images)
    charts = _draw(sections)
    kinds, shown = defaultdict[str, set[str]](set), defaultdict[str, set[int]](set)
    for section, kind, *line in (name.split("/") for name in charts):
        kinds[section].add(kind)
        shown[section].update(map(int, line))
    data = {
        "charts": charts,
        "themes": {"light": theme(), "dark": theme(dark=True)},
        "sections": {section.id: section.data(shown[section.id]) for section in sections},
        "thumbs": thumbs,
        "words": WORDS,
    }
    return _page().render(
        title=title or "Calibration report",
        sections=sections,
        kinds=kinds,
        shown=shown,
        notes=notes,
        tables=tables or Tables(),
        about=results.about,
        data=inlined(data),
        vega=_vega(),
        version=__version__,
    )


def write_report(
    results: Results,
    path: str | os.PathLike[str],
    *,
    title: str = "",
    images: Any = None,
    tables: Tables | None = None,
) -> Path:
    """Write the page of `report` to a file, and return its path; the arguments are the same."""
    text = report(results, title=title, images=images, tables=tables)
    with whole_file(path) as part:
        part.write_text(text, encoding="utf-8", newline="\n")
    return Path(path)


# ---- charts


def _draw(sections: Sequence[Section]) -> dict[str, Any]:
    """Return Vega-Lite specifications by "section/kind", or "section/kind/line" for one line.

    Every section is drawn, then its lines one rank at a time until the page is large enough.
    """
    ranks = zip_longest(*(section.order for section in sections))
    lines = [pair for rank in ranks for pair in zip(sections, rank, strict=True) if pair[1]]
    charts, size = dict[str, Any](), 0
    with alt.utils.schemapi.debug_mode(False):  # slow checks of charts, which the tests check
        for section, line in [*((section, None) for section in sections), *lines]:
            if line and size >= BUDGET:
                break
            for kind, chart in _of_line(line) if line else _of_section(section):
                spec = chart.to_dict(validate=False)
                del spec["config"], spec["$schema"]  # the page has its own themes
                charts[f"{section.id}/{kind}" + (f"/{line.index}" if line else "")] = spec
                size += len(json.dumps(spec))
    return charts


def _of_line(one: Line) -> Iterator[tuple[str, Any]]:
    """Draw the charts of a method by their kind, as far as its detail has what they show."""
    name, detail = one.label, one.detail
    if detail.get("bins"):
        yield "reliability", diagram(detail, name)
    if detail.get("histogram"):
        yield "histogram", confidence_histogram(detail, name, width=300)
    if detail.get("views"):
        yield "weights", weights(detail, f"Weights of the views: {name}")
        yield "shares", shares(detail, f"Shares of the views: {name}", width=300)
    if detail.get("per_class"):
        yield "per_class", per_class(detail, f"By predicted class: {name}", width=320)


def _of_section(section: Section) -> Iterator[tuple[str, Any]]:
    """Draw the charts that compare methods by their kind."""
    compared = {one.label: one.detail for one in (section.baseline, section.chosen)}
    if all(detail.get("bins") for detail in compared.values()):
        yield "overlay", overlaid(compared)
    if all(detail.get("risk") for detail in compared.values()):
        yield "risk", risks(compared)
    results, criterion = section.results, section.criterion
    if len(section.sizes) > 1:
        wanted = [metric for metric in section.metrics if metric in CRITERIA]
        yield "sizes", comparison.sizes(results, wanted)
    elif criterion and len(section.lines) > 1:
        title = f"Methods by {metric_name(criterion)}"
        yield "ranking", comparison.ranking(results, criterion, title=title, width=340)
        if "brier" in section.metrics and len({one.passes for one in section.lines} - {None}) > 1:
            title = "Brier score by passes"
            yield "cost", comparison.cost(section.cost, title=title, width=400)
    elif not criterion and "entropy" in section.metrics:
        yield "entropy", comparison.entropy(results)


# ---- thumbnails of the images whose confidence changed most


def thumbnails(
    results: Results, sections: Sequence[Section], images: Any = None
) -> tuple[dict[str, str], dict[str, str]]:
    """The thumbnails by "record/row of the record", and by section why there are none."""
    shown, notes, size = dict[str, str](), dict[str, str](), 0
    if images is False:
        return shown, notes
    given = _by_dataset(images, [section.dataset for section in sections])
    for section in sections:
        origin = results.known("records").get(section.tested, {})
        known = Origin.of(origin)
        # Without a digest of its files, nothing proves that the folder is the right one.
        source = given.get(section.dataset, known.files and known.folder)
        rows = [row for row in _changed(section) if f"{section.tested}/{row}" not in shown]
        if source is None or not rows:
            continue
        try:
            pictures = _thumbnails(source, origin, rows[: max(1, MOST // len(sections))])
        except (InputError, OSError) as error:
            if section.dataset in given:
                raise InputError(f"images of {section.dataset}: {error}") from None
            notes[section.id] = (
                f"No thumbnails: {error}. Pass images=... (--images) to say where the images are."
            )
            continue
        for row, uri in pictures.items():
            size += len(uri)
            if size <= PICTURES:
                shown[f"{section.tested}/{row}"] = uri
    return shown, notes


def _by_dataset(images: Any, datasets: Sequence[str]) -> Mapping[str, Any]:
    """The given images by dataset."""
    if images is None:
        return {}
    names = list(dict.fromkeys(datasets))
    if isinstance(images, Mapping):
        if images.keys() <= {*names}:
            return images
        got = ", ".join(map(str, images))
    elif len(names) == 1:
        return {names[0]: images}
    else:
        got = type(images).__name__
    raise InputError(f"images: expected {{name: images}} of {', '.join(names)}, got {got}")


def _changed(section: Section) -> list[int]:
    """The rows of the record that changed most; those that the page shows first come first."""
    changed = (image for one in section.order for image in one.detail.get("changed") or ())
    found = dict.fromkeys(image.get("image") for image in changed)
    return [row for row in found if isinstance(row, int)]


def _thumbnails(images: Any, origin: Mapping[str, Any], rows: Sequence[int]) -> dict[int, str]:
    """Thumbnails by row of the record with this origin."""
    count = origin.get("images")
    count = count if isinstance(count, int) else None
    if isinstance(images, str):
        images = Path(images)
    if isinstance(images, Path) and images.suffix == ".safetensors":
        images = ImageSet.load_file(images)
    ordered = sorted(rows)  # a source reads forward only
    if isinstance(images, Path | ImageSet):
        stored = Origin.of(origin).images(images, count).images
        there, pixels = len(stored), (stored[row] for row in ordered)
    else:
        source = as_source(images)
        there = source.count or count or 0
        pixels = (batch.pixels[0] for batch in source.read([row] for row in ordered))
    if count not in (None, there):
        raise InputError(f"expected the {count} images of the record, got {there}")
    if ordered[0] < 0 or ordered[-1] >= there:
        raise InputError(f"expected more images than row {ordered[-1]} of the record, got {there}")
    uris = {row: data_uri(image, SIDE) for row, image in zip(ordered, pixels, strict=True)}
    return {row: uris[row] for row in rows}


# ---- page


def inlined(data: Any) -> str:
    """JSON for a script element, which no text in it can end; null for nan and inf."""
    numbers = finite(data, lambda number: None)
    return ForScript(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode(numbers)


@cache
def _vega() -> str:
    """Vega, Vega-Lite and vega-embed as one script."""
    script = str(javascript_bundle("window.vegaEmbed = vegaEmbed;"))
    return script.replace("</script", r"<\/script").replace("<!--", r"<\!--")


@cache
def _page() -> Template:
    """The template of the page, with its filters."""
    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "called": metric_name,
        "better": SENSE.get,
        "tight": lambda text: Markup(re.sub(r"\s*\n\s*", "\n", text)),
        "digits": digits,
        "listed": listed,
        "shortened": shortened,
        "json": partial(json.dumps, indent=2, ensure_ascii=False, sort_keys=True, default=str),
    }
    return environment.get_template("page.html.jinja")
