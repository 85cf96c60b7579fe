"""Results as one page to hand on: a single HTML file that opens anywhere and asks no network for anything.

    Results ──► sections, one an experiment and dataset ──► verdict · table · charts ──┐
            └─► what was run · tables that are handed in ──────────────────────────────┴─► templates/ ──► report.html

Numbers are formatted at the very end, and the exact one stays beside its text as <data value="...">: a page can be checked.
All text is escaped where it is put in: nothing that a file says becomes markup.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from atta import __version__
from atta._base.errors import InputError, require
from atta._base.files import whole_file
from atta._base.html import listed, shortened
from atta.report.figures.comparison import cost, entropy, ranking, sizes
from atta.report.figures.detail import confidence_histogram, per_class, shares, weights
from atta.report.figures.reliability import overlaid, reliability_of
from atta.report.figures.theme import theme, unchecked
from atta.report.sections import CRITERIA, WORDS, Line, Section, packed, sections_of
from atta.report.thumbnails import thumbnails
from atta.results.rows import Results, finite
from atta.results.table import Table
from atta.results.words import SENSE, digits, metric_name

with require("report", "a report"):
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup
    from vl_convert import javascript_bundle

    from atta.report.verdict import exact, guarded, short, signed, verdict

FOLDER = Path(__file__).parent / "templates"
HEADINGS = {
    "weights": "Weights of the views",
    "shares": "Shares of the views",
    "per_class": "By predicted class",
}
"""Of charts that are otherwise titled by their method alone."""
BUDGET = 250_000
"""Characters of chart data, after which no more diagrams are offered: the page stays small enough to be mailed."""
Pictures: TypeAlias = Mapping[tuple[str, int], Mapping[str, str]]
"""By dataset and row of the tested images: data URIs, by what they show ("image", "flip", ...)."""


@dataclass(frozen=True)
class Tables:
    """What stands below the sections: what the paper claims, and what it published beside what was measured."""

    claims: Table | None = None
    published: Sequence[Table] = ()


def report(
    results: Results,
    *,
    title: str = "",
    images: Any = None,
    pictures: Pictures | None = None,
    tables: Tables | None = None,
) -> str:
    """Write results as one self-contained HTML page; the same results make the same page.

    `images` are the dataset's, or {dataset: images}, as they were given to `collect`: the page shows those whose confidence
    changed the most, as small pictures. Where the record remembers its folder they are found there; `images=False` leaves them
    out. `pictures` are such pictures, ready made, by dataset and row in `results.details`.
    """
    if not results.rows:
        raise InputError("there are no rows to report")
    sections = sections_of(results)
    thumbs, notes = thumbnails(results, sections, images)
    charts = Charts(sections)
    data = {
        **charts.data(),
        "sections": {section.id: section.data(charts.shown[section.id]) for section in sections},
        "pictures": _pictures(pictures or {}, sections),
        "thumbs": thumbs,
        "words": WORDS,
    }
    tables = tables or Tables()
    page = _environment().get_template("page.html.jinja")
    return page.render(
        title=title or "Calibration report",
        sections=sections,
        charts=charts,
        notes=notes,
        claims=tables.claims,
        published=tables.published,
        about=results.about,
        about_json=json.dumps(
            results.about, indent=2, ensure_ascii=False, sort_keys=True, default=str
        ),
        data=inlined(data),
        vega=_vega(),
        version=__version__,
    )


def write_report(results: Results, path: str | os.PathLike[str], **settings: Any) -> Path:
    """Write the page to a file, whole or not at all; the settings are those of `report`."""
    text = report(results, **settings)
    with whole_file(path) as part:
        part.write_text(text, encoding="utf-8", newline="\n")
    return Path(path)


# ---- the charts


class Charts:
    """The charts of a page by "section/kind/contender", as Vega-Lite specifications that share what they have in common."""

    def __init__(self, sections: Sequence[Section]) -> None:
        self.specs: dict[str, Any] = {}
        self.parts: list[Any] = []
        self.shown: dict[str, list[int]] = {section.id: [] for section in sections}
        """Of each section, the contenders that have diagrams."""
        self._places: dict[str, int] = {}
        self._size = 0
        for section in sections:
            for kind, draw in _of_all(section).items():
                self._add(f"{section.id}/{kind}", draw)
        # In turns, so that a page with more than it can hold still has the best of every section.
        for rank in range(max(len(section.contenders) for section in sections)):
            for section in sections:
                if rank < len(section.contenders) and self._size < BUDGET:
                    self._add_contender(section, section.order[rank])
        for shown in self.shown.values():
            shown.sort()

    def _add_contender(self, section: Section, i: int) -> None:
        drawn = _of_one(section.contenders[i])
        for kind, draw in drawn.items():
            self._add(f"{section.id}/{kind}/{i}", draw)
        if drawn:
            self.shown[section.id].append(i)

    def _add(self, key: str, draw: Callable[[], Any]) -> None:
        with unchecked():  # the charts are tested where they are drawn
            spec = draw().to_dict(validate=False)
        del spec["config"], spec["$schema"]
        if heading := HEADINGS.get(key.split("/")[1]):
            spec["title"]["text"] = [heading, *spec["title"]["text"]]
        datasets = spec.pop("datasets", {})
        text = json.dumps(spec)
        for n, name in enumerate(datasets):
            text = text.replace(name, f"data-{n}")
        sets = {f"data-{n}": packed(rows) for n, rows in enumerate(datasets.values())}
        self.specs[key] = [self._shared(json.loads(text)), sets]
        self._size += len(inlined(sets))

    def _shared(self, node: Any) -> Any:
        """Put every object into `parts`, once, and leave its place: axes and tooltips are the same in all charts."""
        if isinstance(node, list):
            return [self._shared(inner) for inner in node]
        if not isinstance(node, dict):
            return node
        node = {key: self._shared(inner) for key, inner in node.items()}
        text = json.dumps(node, sort_keys=True)
        if len(text) < 40:
            return node
        if text not in self._places:
            self._places[text] = len(self.parts)
            self.parts.append(node)
            self._size += len(text)
        return {"$": self._places[text]}

    def of(self, section: Section, *kinds: str) -> bool:
        """Tell whether a section has charts of one of these kinds."""
        return any(key.split("/")[:2] == [section.id, kind] for kind in kinds for key in self.specs)

    def data(self) -> dict[str, Any]:
        """All of it for the page, with the two looks of every chart."""
        looks = {"light": theme(), "dark": theme(dark=True)}
        return {"charts": self.specs, "parts": self.parts, "themes": looks}


def _of_one(one: Line) -> dict[str, Callable[[], Any]]:
    seen = {**one.detail, "method": one.label, "policy": "", "choice": ""}
    found: dict[str, Callable[[], Any]] = {}
    if seen.get("bins"):
        found["reliability"] = lambda: reliability_of(seen, title=one.label, width=300)
    if seen.get("histogram"):
        found["histogram"] = lambda: confidence_histogram([seen], width=300)
    if seen.get("views"):
        found["weights"] = lambda: weights(seen, title=one.label)
        found["shares"] = lambda: shares(seen, title=one.label, width=300)
    if seen.get("per_class"):
        found["per_class"] = lambda: per_class(seen, title=one.label, width=320)
    return found


def _of_all(section: Section) -> dict[str, Callable[[], Any]]:
    several = len(section.contenders) > 1
    counts = {row.validation for row in section.rows}
    found: dict[str, Callable[[], Any]] = {}
    looked = {
        one.label: one.detail
        for one in (section.contenders[i] for i in (section.baseline, section.chosen))
    }
    if all(detail.get("bins") for detail in looked.values()):
        found["beside"] = lambda: overlaid(looked, title="How often it is right")
    if len(counts) > 1:
        wanted = [metric for metric in section.metrics if metric in CRITERIA]
        found["sizes"] = lambda: sizes(section.rows, wanted)
        return found
    if section.criterion and several:
        metric = section.criterion
        found["ranking"] = lambda: ranking(
            section.rows,
            metric,
            intervals=section.intervals,
            title=f"Methods by {metric_name(metric)}",
            width=340,
        )
        if (
            "brier" in section.metrics
            and len({one.passes for one in section.contenders} - {None}) > 1
        ):
            found["cost"] = lambda: cost(_points(section), title="Brier score by passes", width=400)
    if not section.criterion and "entropy" in section.metrics:
        found["entropy"] = lambda: entropy(section.rows, intervals=section.intervals)
    return found


def _points(section: Section) -> list[dict[str, Any]]:
    """What each contender costs and gains; the policy stands beside a point, not in the name of its method."""
    points = [] if section.fewer is None else _points(section.fewer)
    for one, line in zip(section.contenders, section.cells, strict=True):
        found, spread = next(
            (cell["summary"], cell["spread"]) for cell in line if cell["metric"] == "brier"
        )
        if found and one.passes:
            policy = str(one.detail.get("policy", ""))
            half = math.nan if spread is None else spread
            points.append(
                {
                    "method": one.label.replace(f" · {policy}", "") if policy else one.label,
                    "policy": policy,
                    "passes": one.passes,
                    "value": found.mean,
                    "low": found.mean - half,
                    "high": found.mean + half,
                }
            )
    return points


# ---- the page


def _pictures(pictures: Pictures, sections: Sequence[Section]) -> dict[str, Mapping[str, str]]:
    """The pictures that the page shows, by "dataset/row"."""
    for (dataset, row), shown in pictures.items():
        for name, uri in shown.items():
            if not uri.startswith("data:image/"):
                raise InputError(
                    f"picture {name} of {dataset}, row {row}: expected a data URI of an image"
                )
    wanted = {
        (section.dataset, image["row"])
        for section in sections
        for one in section.contenders
        for image in one.detail.get("changed") or ()
    }
    return {
        f"{dataset}/{row}": dict(pictures[dataset, row])
        for dataset, row in sorted(wanted & set(pictures))
    }


def inlined(data: Any) -> str:
    """JSON that no part of can end the script element around it, or open a comment in it; null where there is no number."""
    text = json.dumps(
        finite(data, lambda number: None),
        ensure_ascii=False,
        separators=(",", ":"),
        allow_nan=False,
    )
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


@cache
def _vega() -> str:
    """Vega, Vega-Lite and vega-embed as one script."""
    return (
        str(javascript_bundle("window.vegaEmbed = vegaEmbed;"))
        .replace("</script", r"<\/script")
        .replace("<!--", r"<\!--")
    )


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "called": metric_name,
        "number": exact,
        "signed": signed,
        "guarded": guarded,
        "short": short,
        "verdict": verdict,
        "better": SENSE.get,
        "tight": lambda text: Markup(re.sub(r"\s*\n\s*", "\n", text)),
        "digits": digits,
        "listed": listed,
        "shortened": shortened,
    }
    return environment
