"""Defines how charts look, and what they share: tooltips, axes, legends, titles, names, files.

Only this module imports altair. Everything that depends on light or dark mode is in the chart's
`config`, which is `theme(dark)`. A page can therefore replace one config by the other.

The data of a chart are the exact numbers of the results; only printed text is rounded. Names from
files are values of fields and never names of fields, because Vega would parse those.
"""

from __future__ import annotations

import json
import math
import os
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from itertools import cycle, islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from xml.sax.saxutils import quoteattr

from atta._base.errors import InputError, require
from atta._base.files import whole_file
from atta.results.words import contender, labels

if TYPE_CHECKING:
    import altair

    alt = altair
else:

    class _Altair:
        """Imports altair when a figure is first drawn: other code neither needs nor loads it."""

        def __getattr__(self, name: str) -> Any:
            with require("report", "a figure"):
                return getattr(import_module("altair"), name)

    alt = _Altair()

# The colours of Okabe and Ito, which colour-blind readers can tell apart. Black and yellow are left
# out because they are hard to see on dark and light backgrounds.
BLUE, VERMILION, GREEN = "#0072B2", "#D55E00", "#009E73"
PURPLE, ORANGE, SKY = "#CC79A7", "#E69F00", "#56B4E9"
GREY = "#8A8A8A"
# 7 colours, 5 shapes and 4 dashes distinguish 140 methods.
COLOURS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, GREY)
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross")
DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3])
FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif'


def theme(dark: bool = False) -> dict[str, Any]:
    """The config of every chart: fonts, sizes and all colours that depend on the mode."""
    ink, soft, grid = (
        ("#E6E6E6", "#B3B3B3", "#3A3A3A") if dark else ("#1F1F1F", "#5A5A5A", "#E2E2E2")
    )
    text = {
        "labelColor": soft,
        "titleColor": ink,
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": 500,
    }
    axis = {"domainColor": soft, "tickColor": soft, "gridColor": grid, "labelLimit": 190}
    legend = {"labelLimit": 240, "symbolLimit": 0, "symbolStrokeWidth": 2, "titleLimit": 300}
    return {
        "background": "transparent",
        "font": FONT,
        "padding": 8,
        "view": {"stroke": None, "continuousWidth": 300, "continuousHeight": 300},
        "title": {
            "anchor": "start",
            "frame": "group",
            "fontSize": 15,
            "fontWeight": 600,
            "offset": 10,
            "color": ink,
            "subtitleFontSize": 12,
            "subtitleColor": soft,
            "subtitlePadding": 5,
            "subtitleLineHeight": 16,
        },
        "axis": {**text, **axis, "titlePadding": 8, "labelOverlap": "greedy"},
        "legend": {**text, **legend},
        "range": {
            "diverging": [BLUE, "#1E1E1E", "#B24E00"] if dark else [SKY, "#FFFFFF", "#F0A04B"]
        },
        "style": _styles(dark, ink, soft, grid),
    }


def _styles(dark: bool, ink: str, soft: str, grid: str) -> dict[str, Any]:
    """The styles that marks refer to by name."""
    return {
        "diagonal": {"color": ink, "strokeDash": [4, 4], "strokeWidth": 1.5},
        "whisker": {"color": ink, "strokeWidth": 1.5},
        "dot": {"color": ink, "filled": True, "size": 26, "opacity": 1},
        "count": {"color": GREY},
        "guide": {"color": ink, "strokeDash": [6, 3], "strokeWidth": 1.5},
        "measured": {"color": SKY if dark else BLUE, "opacity": 1},
        "zero": {"color": soft, "strokeWidth": 1},
        "note": {"color": soft, "fontSize": 11},
        "value": {"color": ink, "fontSize": 11},
        "grid": {"stroke": grid, "strokeWidth": 0.5},
        "dense": {"strokeWidth": 0},
    }


def finished(chart: Any, dark: bool = False) -> alt.TopLevelMixin:
    """Apply the theme to a chart."""
    themed: alt.TopLevelMixin = chart.configure(**theme(dark))
    return themed


# ---- what charts share --------------------------------------------------------------------------

Detail = Mapping[str, Any]
"""An entry of `Results.details`."""
Datum = dict[str, Any]
_TITLES = {
    "validation": "validation images",
    "value": "mean",
    "range": "confidence in",
    "confidence": "mean confidence",
    "gap": "confidence − accuracy",
    "interval": "its 95 % interval",
    "kind": "view",
    "mean_share": "mean share",
    "set": "images",
    "part": "share of images",
    "name": "quantity",
    "rate": "value",
    "coverage": "answered",
    "low": "its 95 % interval from",
    "high": "to",
}
"""The titles of fields in tooltips, unless they are their names."""
_NUMBERS = {
    "passes": ",.2~f",
    "validation": ",d",
    "value": ".5f",
    "runs": ",d",
    "images": ",d",
    "confidence": ".4f",
    "accuracy": ".4f",
    "gap": "+.4f",
    "weight": "+.4f",
    "limit": ".4f",
    "mean_share": ".4f",
    "part": ".1%",
    "rate": ".1%",
    "coverage": ".1%",
    "risk": ".2%",
    "low": ".2%",
    "high": ".2%",
}
"""The formats of fields that are numbers."""


def chart_of(values: list[Datum]) -> alt.Chart:
    """A chart of these rows, which it contains, without marks."""
    return alt.Chart(alt.InlineData(values=values))


def grid(
    panels: Sequence[Any], columns: int, *, color: Literal["shared", "independent"] = "shared"
) -> Any:
    """Arrange panels in rows of `columns`; the description joins those of the panels."""
    if len(panels) == 1:
        return panels[0]
    description = " ".join(panel.description for panel in panels)
    joined = alt.concat(*panels, columns=min(columns, len(panels)), spacing=28)
    return joined.resolve_scale(color=color).properties(description=description)


def titled(chart: Any, width: int, title: str, notes: Sequence[str], what: str) -> Any:
    """Add a title, notes below it, and a description for screen readers: `what`, then the notes.

    Titles and notes are wrapped to the width, because Vega does not wrap text.
    """
    letters = max(20, width // 6)
    below = [line for note in notes for line in textwrap.wrap(note, letters)]
    above = textwrap.wrap(title, int(letters * 0.75))
    heading = (
        alt.Title(above, subtitle=below)
        if above
        else alt.Title(below, fontSize=12, fontWeight="normal")  # Vega hides a lone subtitle
    )
    return chart.properties(title=heading, description=f"{what}; {'; '.join(notes)}.")


def tooltips(*fields: str, **titles: str) -> list[alt.Tooltip]:
    """Tooltips of these fields; `titles` replaces the usual title of a field."""
    found = []
    for name in fields:
        tip = alt.Tooltip(f"{name}:N", title=(_TITLES | titles).get(name, name))
        if name in _NUMBERS:
            tip = tip.type("quantitative").format(_NUMBERS[name])
        found.append(tip)
    return found


def unit(channel: Any, field: str, title: str | None = None, *, labels: bool = True) -> Any:
    """A channel with an axis from 0 to 1."""
    ticks = [0, 0.2, 0.4, 0.6, 0.8, 1]
    axis = alt.Axis(values=ticks, format=".1f", labels=labels, ticks=labels, labelFlush=False)
    return channel(f"{field}:Q", title=title, axis=axis).scale(domain=[0, 1])


def named_rows(field: str, data: Sequence[Datum]) -> alt.Y:
    """An axis that names every row, in the order of the data."""
    names = list(dict.fromkeys(row[field] for row in data))
    rows = alt.Y(f"{field}:N", title=None).scale(domain=names)
    return rows.axis(labelOverlap=False, ticks=False, labelPadding=6, labelLimit=220)


def histogram(
    field: str,
    methods: Iterable[tuple[str, Sequence[int | float]]],
    title: str,
    width: int,
    tips: list[alt.Tooltip],
    y: alt.Y | None = None,
) -> Any:
    """Draw histograms over [0, 1] in equal bins: the first as bars, a second as a line.

    By default the values are numbers of images, on an axis of log(1 + images), which can show 0.
    """
    ticks = [0, *(10**power for power in range(10))]
    images = alt.Y("images:Q", title="images (log scale)").scale(type="symlog")
    y = y or images.axis(values=ticks, format=",d")
    layers: list[Any] = []
    for name, values in methods:
        edges = pairwise(i / len(values) for i in range(len(values) + 1))
        rows: list[Datum] = [
            {"from": start, "to": end, field: value, "range": between(start, end), "method": name}
            for (start, end), value in zip(edges, values, strict=True)
        ]
        if layers:  # a step ends where the next one starts
            rows.append({**rows[-1], "from": 1.0})
            marks = chart_of(rows).mark_line(interpolate="step-after", color=VERMILION)
        else:
            marks = chart_of(rows).mark_rect(color=SKY).encode(x2="to", y2=alt.datum(0))
        layers.append(marks.encode(x=unit(alt.X, "from", title), y=y, tooltip=tips))
    return alt.layer(*layers, width=width, height=180)


def between(start: float, end: float) -> str:
    """The name of a bin."""
    return f"({start:.3g}, {end:.3g}]"


def above(offset: int = 4, **more: Any) -> alt.Legend:
    """A legend above the chart."""
    return alt.Legend(orient="top", title=None, offset=offset, **more)


def told_apart(names: Sequence[str], **legend: Any) -> dict[str, Any]:
    """Channels that give each method its own colour, shape and dash, in one legend."""
    key = alt.Legend(title=None, symbolOpacity=1, symbolSize=70, **legend)

    def scale(values: Sequence[Any]) -> alt.Scale:
        return alt.Scale(domain=list(names), range=list(islice(cycle(values), len(names))))

    return {
        "color": alt.Color("method:N", scale=scale(COLOURS), legend=key),
        "shape": alt.Shape("method:N", scale=scale(SHAPES), legend=key),
        "strokeDash": alt.StrokeDash("method:N", scale=scale(DASHES), legend=None),
    }


def number(value: Any) -> float | None:
    """A finite number, or None: JSON has no nan or inf, and results.json stores them as text."""
    return value if isinstance(value, int | float) and math.isfinite(value) else None


def names_of(details: Sequence[Detail]) -> list[str]:
    """The names of the methods of these details, all different."""
    anywhere = {"experiment": "", "dataset": "", "validation": 0}
    keys = [contender({**detail, **anywhere}) for detail in details]
    named = labels(keys)
    return distinct([named[key] for key in keys], 1)


def distinct(names: Sequence[str], start: int = 0) -> list[str]:
    """Append its number to each name that occurs more than once."""
    times = Counter(names)
    return [f"{name} ({i})" if times[name] > 1 else name for i, name in enumerate(names, start)]


# ---- writing charts ------------------------------------------------------------------------------


class ForScript(json.JSONEncoder):
    """Encodes JSON for a <script> element, which no text in it can end."""

    def encode(self, o: Any) -> str:
        """Return a value as JSON."""
        text = super().encode(o)
        for character in "<>&\u2028\u2029":
            text = text.replace(character, f"\\u{ord(character):04x}")
        return text


_FORMATS: dict[str, dict[str, Any]] = {
    "svg": {},
    "png": {"scale_factor": 2},
    "pdf": {},
    "json": {"json_kwds": {"indent": 1, "ensure_ascii": False, "allow_nan": False}},
    "html": {"inline": True, "json_kwds": {"cls": ForScript}},
}


def picture(chart: alt.TopLevelMixin, path: str | os.PathLike[str]) -> Path:
    """Write a chart as .svg, .png, .pdf, .json (Vega-Lite) or .html (which works offline).

    >>> picture(reliability(probs, labels), "reliability.svg")  # doctest: +SKIP
    """
    path = Path(path)
    kind = path.suffix.lower().removeprefix(".")
    if kind not in _FORMATS:
        raise InputError(f"expected a file that ends in .{', .'.join(_FORMATS)}, got {path.name!r}")
    if kind != "json":
        with require("report", "a picture"):
            import_module("vl_convert")  # which altair draws with
    with whole_file(path) as part:
        chart.save(part, **{"format": kind, **_FORMATS[kind]})
        if kind == "svg":  # Vega writes no description into SVG files
            label = quoteattr(chart.description)  # type: ignore[attr-defined]
            text = part.read_text(encoding="utf-8")
            text = text.replace("<svg ", f'<svg role="img" aria-label={label} ', 1)
            part.write_text(text, encoding="utf-8")
    return path
