"""Writes results as one HTML page: a single file that opens offline.

Numbers are formatted in the templates, and <data value="..."> keeps the exact number, so that a
page can be checked. Jinja escapes all text: no text from a file becomes markup.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeAlias

from atta import __version__
from atta._base.display import listed, shortened
from atta._base.errors import InputError, require
from atta._base.files import whole_file
from atta.report.figures import comparison
from atta.report.figures.detail import confidence_histogram, per_class, risks, shares, weights
from atta.report.figures.reliability import diagram, overlaid
from atta.report.figures.theme import ForScript, alt, theme
from atta.report.sections import CRITERIA, WORDS, Line, Section, packed, sections_of
from atta.report.thumbnails import thumbnails
from atta.results.rows import Results, finite
from atta.results.table import Table
from atta.results.words import SENSE, digits, metric_name

with require("report", "a report"):
    from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
    from markupsafe import Markup
    from vl_convert import javascript_bundle

FOLDER = Path(__file__).parent / "templates"
BUDGET = 250_000
"""Characters of chart data after which no more charts are added, so that a page can be mailed."""
_Drawn: TypeAlias = Iterator[tuple[str, Any]]
"""Charts and their kinds."""


@dataclass(frozen=True)
class Tables:
    """Tables below the sections: the claims of the paper, and its published numbers with ours."""

    claims: Table | None = None
    published: Sequence[Table] = ()


def report(
    results: Results,
    *,
    title: str = "",
    images: Any = None,
    tables: Tables | None = None,
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
    data = {
        "charts": charts.specs,
        "parts": charts.parts,
        "themes": {"light": theme(), "dark": theme(dark=True)},
        "sections": {section.id: section.data(charts.shown[section.id]) for section in sections},
        "thumbs": thumbs,
        "words": WORDS,
    }
    return _page().render(
        title=title or "Calibration report",
        sections=sections,
        charts=charts,
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


@dataclass
class _Charts:
    """The charts of a page by "section/kind/line": Vega-Lite specifications with shared parts."""

    shown: dict[str, list[int]]
    """The lines that have charts, by section."""
    kinds: dict[str, set[str]]
    """The kinds of charts, by section."""
    specs: dict[str, Any] = field(default_factory=dict)
    parts: list[Any] = field(default_factory=list)
    size: int = 0
    places: dict[str, int] = field(default_factory=dict)

    def add(self, section: Section, drawn: _Drawn, line: str = "") -> bool:
        """Add charts; whether there are any."""
        found = False
        for kind, chart in drawn:
            spec = chart.to_dict(validate=False)
            del spec["config"], spec["$schema"]  # the page has its own themes
            datasets = spec.pop("datasets", {})
            text = json.dumps(spec)
            for n, name in enumerate(datasets):
                text = text.replace(name, f"data-{n}")
            sets = {f"data-{n}": packed(rows) for n, rows in enumerate(datasets.values())}
            self.specs[f"{section.id}/{kind}{line}"] = [self._shared(json.loads(text)), sets]
            self.size += len(inlined(sets))
            self.kinds[section.id].add(kind)
            found = True
        return found

    def _shared(self, node: Any) -> Any:
        """Move every object to `parts`, once: most axes and tooltips are the same in all charts."""
        if isinstance(node, list):
            return [self._shared(inner) for inner in node]
        if not isinstance(node, dict):
            return node
        node = {key: self._shared(inner) for key, inner in node.items()}
        text = json.dumps(node, sort_keys=True)
        if len(text) < 40:
            return node
        if text not in self.places:
            self.places[text] = len(self.parts)
            self.parts.append(node)
            self.size += len(text)
        return {"$": self.places[text]}


def _draw(sections: Sequence[Section]) -> _Charts:
    """Draw every section, then its lines one rank at a time until the page is large enough."""
    charts = _Charts({one.id: [] for one in sections}, {one.id: set() for one in sections})
    with alt.utils.schemapi.debug_mode(False):  # slow checks of charts, which the tests check
        for section in sections:
            charts.add(section, _of_section(section))
        for rank in range(max(len(section.lines) for section in sections)):
            for section in sections:
                if rank < len(section.lines) and charts.size < BUDGET:
                    line = section.order[rank]
                    if charts.add(section, _of_line(line), f"/{line.index}"):
                        charts.shown[section.id].append(line.index)
    for shown in charts.shown.values():
        shown.sort()
    return charts


_OF_LINE: dict[str, tuple[str, str, Callable[[Mapping[str, Any], str], Any]]] = {
    "reliability": ("bins", "", diagram),
    "histogram": ("histogram", "", partial(confidence_histogram, width=300)),
    "weights": ("views", "Weights of the views: ", weights),
    "shares": ("views", "Shares of the views: ", partial(shares, width=300)),
    "per_class": ("per_class", "By predicted class: ", partial(per_class, width=320)),
}
"""By kind of chart: the part of a detail that it shows, the start of its title, the function."""


def _of_line(one: Line) -> _Drawn:
    for kind, (part, title, draw) in _OF_LINE.items():
        if one.detail.get(part):
            yield kind, draw(one.detail, title + one.label)


def _of_section(section: Section) -> _Drawn:
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
            points = comparison.cost_points(section.cost)
            yield "cost", comparison.cost(points, title="Brier score by passes", width=400)
    elif not criterion and "entropy" in section.metrics:
        yield "entropy", comparison.entropy(results)


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
