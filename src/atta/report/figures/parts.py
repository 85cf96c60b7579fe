"""What charts share: data, axes, legends, headings, and what details and rows are called in them.

The data of a chart are the numbers that came in, to the last bit; only what is printed is rounded. Names may hold anything, so
they are values and never the names of fields, which Vega would parse.
"""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from atta.report.figures.theme import COLOURS, DASHES, SHAPES, alt, finished
from atta.results.contenders import contender, labels
from atta.results.words import DRAWN

Detail: TypeAlias = Mapping[str, Any]
"""An entry of `Results.details`."""
Width: TypeAlias = int | Literal["container"]
"""That of a panel in pixels; where there is one panel, it may be "container"."""
Datum: TypeAlias = dict[str, Any]
OVER, UNDER = "over-confident", "under-confident"


def grid(panels: Sequence[Any], columns: int) -> Any:
    """Panels in rows of `columns`; what is said of each is said of all, since only the whole is read aloud."""
    description = " ".join(panel.description for panel in panels)
    return alt.concat(*panels, columns=min(columns, len(panels)), spacing=28).properties(
        description=description
    )


def inline(values: list[Datum]) -> alt.InlineData:
    """The data of a chart, in the chart."""
    return alt.InlineData(values=values)


def tooltips(*fields: tuple[str, ...]) -> list[alt.Tooltip]:
    """Tooltips: the field, what it is called and, for a number, its format."""
    return [
        alt.Tooltip(f"{name}:Q", title=title, format=form[0])
        if form
        else alt.Tooltip(f"{name}:N", title=title)
        for name, title, *form in fields
    ]


def measured() -> list[alt.Tooltip]:
    """Tooltips of a mean."""
    return tooltips(
        ("method", "method"),
        ("value", "mean", ".5f"),
        ("interval", "its 95 % interval"),
        ("runs", "runs", ",d"),
    )


def unit(channel: Any, field: str, title: str | None = None, *, labels: bool = True) -> Any:
    """A channel whose axis is [0, 1]."""
    axis = alt.Axis(
        values=[0, 0.2, 0.4, 0.6, 0.8, 1],
        format=".1f",
        labels=labels,
        ticks=labels,
        labelFlush=False,
    )
    return channel(f"{field}:Q", title=title, scale=alt.Scale(domain=[0, 1]), axis=axis)


def counting(field: str, log: bool) -> alt.Y:
    """An axis of counts; log(1 + count) has a place for none."""
    if not log:
        return alt.Y(f"{field}:Q", title="images", axis=alt.Axis(format=",d", tickCount=4))
    ticks = alt.Axis(values=[0, *(10**power for power in range(10))], format=",d")
    return alt.Y(
        f"{field}:Q", title="images (log scale)", scale=alt.Scale(type="symlog"), axis=ticks
    )


def above(apart: int = 4) -> alt.Legend:
    """A legend above the chart."""
    return alt.Legend(orient="top", title=None, offset=apart)


def all_labels() -> alt.Axis:
    """An axis that names everything on it."""
    return alt.Axis(labelOverlap=False, ticks=False, labelPadding=6)


def told_apart(names: Sequence[str], **legend: Any) -> dict[str, Any]:
    """Each method its colour, shape and dash, in one legend."""
    key = alt.Legend(title=None, symbolOpacity=1, symbolSize=70, **legend)

    def ranged(given: Sequence[Any]) -> alt.Scale:
        return alt.Scale(
            domain=list(names), range=[given[i % len(given)] for i in range(len(names))]
        )

    return {
        "color": alt.Color("method:N", scale=ranged(COLOURS), legend=key),
        "shape": alt.Shape("method:N", scale=ranged(SHAPES), legend=key),
        "strokeDash": alt.StrokeDash("method:N", scale=ranged(DASHES), legend=None),
    }


def heading(title: str, lines: Sequence[str], width: Width) -> alt.Title:
    """A title and what is said below it, wrapped to the width: a chart does not wrap them itself."""
    letters = max(20, int(pixels(width, 640) / 6))
    below = [part for line in lines for part in textwrap.wrap(line, letters)]
    above = textwrap.wrap(title, int(letters * 0.75))
    if not above:  # Vega shows nothing below an empty title
        return alt.Title(below, fontSize=12, fontWeight="normal")
    return alt.Title(above, subtitle=below)


def pixels(width: Width, container: int = 300) -> int:
    """A width in pixels; `container` is that of a container."""
    return container if width == "container" else width


def of_title(title: str) -> str:
    """The title within a sentence, if there is one."""
    return f" of {title}" if title else ""


def sense(metric: str) -> str:
    """What an axis calls a metric: its name and which way is better."""
    better = DRAWN.get(metric)
    return f"{metric} ({better} is better)" if better else metric


def number(value: Any) -> float | None:
    """A number that JSON can hold, or None; results.json has "nan" and so on for those it cannot."""
    return value if isinstance(value, int | float) and math.isfinite(value) else None


def class_names(detail: Detail, count: int) -> list[str]:
    """The names of the classes, or their numbers; a name that occurs twice has its number beside it."""
    found = (detail.get("per_class") or {}).get("names") or []
    names = [str(name) for name in found] if len(found) == count else [str(i) for i in range(count)]
    times = Counter(names)
    return [f"{name} ({i})" if times[name] > 1 else name for i, name in enumerate(names)]


def of_detail(panel: Callable[..., Any]) -> Callable[..., alt.TopLevelMixin]:
    """A panel as a chart of its own, `chart(detail, title=None, dark=False, width=...)`; the title is what is drawn on what."""

    def chart(
        detail: Detail, *, title: str | None = None, dark: bool = False, **settings: Any
    ) -> alt.TopLevelMixin:
        what = " on ".join(filter(None, (*names_of([detail]), detail.get("dataset", ""))))
        return finished(panel(detail, what if title is None else title, **settings), dark)

    return chart


def names_of(details: Sequence[Detail]) -> list[str]:
    """What charts call details, none of them twice."""
    keys = [
        contender(detail)._replace(experiment="", dataset="", validation=0) for detail in details
    ]
    named = labels(keys)
    found = [named[key] for key in keys]
    times = Counter(found)
    return [f"{name} ({i})" if times[name] > 1 else name for i, name in enumerate(found, 1)]
