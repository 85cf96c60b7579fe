"""Builds what charts share: data, tooltips, axes, legends, titles, and the names of methods.

The data of a chart are the exact numbers of the results; only printed text is rounded. Names from
files are values of fields and never names of fields, because Vega would parse those.
"""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

from atta.report.figures.theme import COLOURS, DASHES, SHAPES, SKY, VERMILION, alt
from atta.results.words import DRAWN, contender, labels

Detail: TypeAlias = Mapping[str, Any]
"""An entry of `Results.details`."""
Datum: TypeAlias = dict[str, Any]
OVER, UNDER = "over-confident", "under-confident"
_TOOLTIPS = {
    "method": ("method", ""),
    "policy": ("policy", ""),
    "passes": ("passes", ",.2~f"),
    "validation": ("validation images", ",d"),
    "value": ("mean", ".5f"),
    "runs": ("runs", ",d"),
    "range": ("confidence in", ""),
    "images": ("images", ",d"),
    "confidence": ("mean confidence", ".4f"),
    "accuracy": ("accuracy", ".4f"),
    "gap": ("confidence − accuracy", "+.4f"),
    "interval": ("its 95 % interval", ""),
    "class": ("class", ""),
    "kind": ("view", ""),
    "weight": ("weight", "+.4f"),
    "limit": ("limit", ".4f"),
    "mean_share": ("mean share", ".4f"),
    "set": ("images", ""),
    "part": ("share of images", ".1%"),
    "name": ("quantity", ""),
    "rate": ("value", ".1%"),
    "coverage": ("answered", ".1%"),
    "risk": ("risk", ".2%"),
    "low": ("its 95 % interval from", ".2%"),
    "high": ("to", ".2%"),
}
"""The title of each field in a tooltip, and its format if it is a number."""


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
        usual, form = _TOOLTIPS[name]
        title = titles.get(name, usual)
        found.append(
            alt.Tooltip(f"{name}:Q", title=title, format=form)
            if form
            else alt.Tooltip(f"{name}:N", title=title)
        )
    return found


def unit(channel: Any, field: str, title: str | None = None, *, labels: bool = True) -> Any:
    """A channel with an axis from 0 to 1."""
    axis = alt.Axis(
        values=[0, 0.2, 0.4, 0.6, 0.8, 1],
        format=".1f",
        labels=labels,
        ticks=labels,
        labelFlush=False,
    )
    return channel(f"{field}:Q", title=title, scale=alt.Scale(domain=[0, 1]), axis=axis)


def counting() -> alt.Y:
    """A logarithmic axis of image counts, log(1 + count), which can show 0."""
    ticks = alt.Axis(values=[0, *(10**power for power in range(10))], format=",d")
    return alt.Y("images:Q", title="images (log scale)", scale=alt.Scale(type="symlog"), axis=ticks)


def metric_axis(metric: str) -> alt.Y:
    """The axis of a metric that need not start at 0."""
    return alt.Y("value:Q", title=sense(metric), scale=alt.Scale(zero=False))


def named_rows(field: str, data: Sequence[Datum]) -> alt.Y:
    """An axis that names every row, in the order of the data."""
    names = list(dict.fromkeys(row[field] for row in data))
    axis = alt.Axis(labelOverlap=False, ticks=False, labelPadding=6, labelLimit=220)
    return alt.Y(f"{field}:N", title=None, scale=alt.Scale(domain=names), axis=axis)


def bins(field: str, values: Sequence[int | float], **more: str) -> list[Datum]:
    """The bins of a histogram over [0, 1], with equal widths."""
    found = []
    for i, value in enumerate(values):
        start, end = i / len(values), (i + 1) / len(values)
        text = f"({start:.3g}, {end:.3g}]"
        found.append({"from": start, "to": end, field: value, "range": text, **more})
    return found


def histogram(
    bars: list[Datum], line: list[Datum], title: str, y: alt.Y, tips: list[alt.Tooltip]
) -> list[Any]:
    """The layers of a histogram: bars and, unless it is empty, another histogram as a line."""
    x = unit(alt.X, "from", title)
    shared = {"x": x, "y": y, "tooltip": tips}
    layers = [chart_of(bars).mark_rect(color=SKY).encode(x2="to", y2=alt.datum(0), **shared)]
    if line:
        end = {**line[-1], "from": line[-1]["to"]}  # a step ends where the next one starts
        steps = chart_of([*line, end]).mark_line(interpolate="step-after", color=VERMILION)
        layers.append(steps.encode(**shared))
    return layers


def above(offset: int = 4, **more: Any) -> alt.Legend:
    """A legend above the chart."""
    return alt.Legend(orient="top", title=None, offset=offset, **more)


def told_apart(names: Sequence[str], **legend: Any) -> dict[str, Any]:
    """Channels that give each method its own colour, shape and dash, in one legend."""
    key = alt.Legend(title=None, symbolOpacity=1, symbolSize=70, **legend)

    def scale(values: Sequence[Any]) -> alt.Scale:
        used = [values[i % len(values)] for i in range(len(names))]
        return alt.Scale(domain=list(names), range=used)

    return {
        "color": alt.Color("method:N", scale=scale(COLOURS), legend=key),
        "shape": alt.Shape("method:N", scale=scale(SHAPES), legend=key),
        "strokeDash": alt.StrokeDash("method:N", scale=scale(DASHES), legend=None),
    }


def calibration(images: int, confidence: float, accuracy: float) -> Datum:
    """The numbers of a group of images: confidence, accuracy, and the gap between them."""
    sense = OVER if confidence >= accuracy else UNDER
    gap = confidence - accuracy
    found: Datum = {"images": images, "confidence": confidence, "accuracy": accuracy}
    return {**found, "gap": gap, "sense": sense}


def of_title(title: str) -> str:
    """The title as part of a sentence, if there is one."""
    return f" of {title}" if title else ""


def sense(metric: str) -> str:
    """A metric's name on an axis, and which direction is better."""
    better = DRAWN.get(metric)
    return f"{metric} ({better} is better)" if better else metric


def number(value: Any) -> float | None:
    """A finite number, or None: JSON has no nan or inf, and results.json stores them as text."""
    return value if isinstance(value, int | float) and math.isfinite(value) else None


def class_names(detail: Detail, count: int) -> list[str]:
    """The names of the classes, or their numbers; duplicate names get their number appended."""
    found = (detail.get("per_class") or {}).get("names") or []
    return _unique([str(name) for name in (found if len(found) == count else range(count))])


def names_of(details: Sequence[Detail]) -> list[str]:
    """The names of the methods of these details, all different."""
    keys = [
        contender(detail)._replace(experiment="", dataset="", validation=0) for detail in details
    ]
    named = labels(keys)
    return _unique([named[key] for key in keys], 1)


def _unique(names: Sequence[str], start: int = 0) -> list[str]:
    """Append its number to each name that occurs more than once."""
    times = Counter(names)
    return [f"{name} ({i})" if times[name] > 1 else name for i, name in enumerate(names, start)]
