"""Every chart of the project, in Altair: functions of plain data that return charts. Only `picture` writes a file.

probabilities ──► reliability, compare_plot                                              ┐
detail        ──► reliability_of, confidence_histogram, weights, shares, per_class       ├─► chart ──► picture(chart, path)
rows          ──► ranking, sizes, entropy, cost                                          ┘

A detail is an entry of `Results.details` (`atta.details`), rows are those of `Results`. The data of a chart are the numbers
that came in, to the last bit; only what is printed is rounded. Names may hold anything, so they are values and never the
names of fields, which Vega would parse.

All that depends on light or dark lies in the chart's `config`, which is `theme(dark)`: a page may replace one by the other.
`width` is that of a panel in pixels; where there is one panel, it may be "container".
"""

from __future__ import annotations

import json
import math
import os
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, TypeAlias
from xml.sax.saxutils import quoteattr

import numpy as np
import torch
from torch import Tensor

from atta.errors import InputError
from atta.files import whole_file
from atta.images.views import Policy
from atta.metrics.binning import reliability_bins, wilson
from atta.metrics.scores import evaluate
from atta.metrics.terms import Array, LabelArray
from atta.results.rows import Interval, Results, Row, contender
from atta.results.words import CLASS_CHANGES, COST, DIRECTION, OOD_AUROC, RULE

MISSING = "the figures need altair: pip install 'atta[report]'"


class _Missing:
    """Stands for altair where it is not installed, and says so when a figure is asked for."""

    def __getattr__(self, name: str) -> Any:
        raise InputError(MISSING)


try:
    import altair as alt
except ImportError:
    alt = _Missing()  # type: ignore[assignment]

Detail: TypeAlias = Mapping[str, Any]
Width: TypeAlias = int | Literal["container"]
Datum: TypeAlias = dict[str, Any]

# Okabe and Ito's colours, which colour-blind people tell apart, less black and yellow, which dark and light swallow.
BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"
GREY = "#8A8A8A"
COLOURS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, GREY)
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross")
DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3])  # 7 colours, 5 shapes, 4 dashes: 140 methods before two look the same
FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif'
OVER, UNDER = "over-confident", "under-confident"
LABELLED = 40  # classes that have their names on an axis
WRITTEN = 12  # classes that have their weights in the cells
BETTER: Mapping[str, str | None] = {**DIRECTION, CLASS_CHANGES: "lower", OOD_AUROC: "higher"}


def theme(dark: bool = False) -> dict[str, Any]:
    """The config of every chart: fonts, sizes and all colours that depend on light or dark."""
    ink, soft, grid = ("#E6E6E6", "#B3B3B3", "#3A3A3A") if dark else ("#1F1F1F", "#5A5A5A", "#E2E2E2")
    middle = [BLUE, "#1E1E1E", "#B24E00"] if dark else ["#56B4E9", "#FFFFFF", "#F0A04B"]
    text = {"labelColor": soft, "titleColor": ink, "labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": 500}
    return {
        "background": "transparent",
        "font": FONT,
        "padding": 8,
        "view": {"stroke": None, "continuousWidth": 300, "continuousHeight": 300},
        "title": {
            **{"anchor": "start", "frame": "group", "fontSize": 15, "fontWeight": 600, "offset": 10, "color": ink},
            **{"subtitleFontSize": 12, "subtitleColor": soft, "subtitlePadding": 5, "subtitleLineHeight": 16},
        },
        "axis": {
            **text,
            **{"domainColor": soft, "tickColor": soft, "gridColor": grid, "labelLimit": 190, "titlePadding": 8},
            "labelOverlap": "greedy",
        },
        "legend": {**text, "labelLimit": 240, "symbolLimit": 0, "symbolStrokeWidth": 2, "titleLimit": 300},
        "header": {**text},
        "range": {"category": list(COLOURS), "diverging": middle},
        "style": {
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
        },
    }


# --- From probabilities: for notebooks ---------------------------------------------------------------------------------


def reliability(
    probs: Array,
    labels: LabelArray,
    *,
    bins: int = 15,
    title: str = "",
    simplex: bool = True,
    width: int = 320,
    dark: bool = False,
) -> alt.TopLevelMixin:
    """Draw a reliability diagram: the accuracy in each bin of confidence, its gap to the confidence, its 95 % interval.

    Bins are those of the ECE; one without images is not drawn. `simplex=False` takes rows that do not sum to 1.

    >>> reliability(calibrator(test.predictions), test.labels, title="V-ATTA")  # doctest: +SKIP
    """
    return _finished(_diagram(_looked_at(probs, labels, bins, simplex), title, width), dark)


def compare_plot(
    methods: Any,
    labels: LabelArray,
    *,
    bins: int = 15,
    simplex: bool = True,
    columns: int = 3,
    width: int = 260,
    dark: bool = False,
) -> alt.TopLevelMixin:
    """Draw the reliability diagrams of several methods on the same images side by side, with the same axes.

    `columns` of them stand in a row.

    >>> compare_plot({"vanilla": logits.softmax(-1), "v-atta": calibrator(predictions)}, labels)  # doctest: +SKIP
    """
    if not isinstance(methods, Mapping):
        raise InputError(
            f"compare_plot takes {{name: probs}}, got {type(methods).__name__}; for one set, reliability(probs, labels)"
        )
    looked = {name: _looked_at(probs, labels, bins, simplex) for name, probs in methods.items()}
    return _side_by_side(looked, columns, width, dark)


def _looked_at(probs: Array, labels: LabelArray, bins: int, simplex: bool) -> Detail:
    accuracy = evaluate(probs, labels, simplex=simplex, metrics=["accuracy"])["accuracy"]  # the door
    p, y = _tensor(probs).double(), _tensor(labels)
    confidence, correct = p.amax(1).clamp(0, 1), (p.argmax(1) == y).double()
    return {
        "images": len(p),
        "accuracy": accuracy,
        "confidence": confidence.mean().item(),
        "bins": reliability_bins(confidence, correct, count=bins),
    }


def _tensor(x: LabelArray) -> Tensor:
    return x.detach().cpu() if isinstance(x, Tensor) else torch.from_numpy(np.array(x, order="C"))


# --- From details ------------------------------------------------------------------------------------------------------


def reliability_of(
    detail: Detail, *, title: str | None = None, width: int = 320, dark: bool = False
) -> alt.TopLevelMixin:
    """Draw the reliability diagram of a detail."""
    return _finished(_diagram(detail, _title(detail, title), width), dark)


def reliabilities(
    details: Sequence[Detail], *, columns: int = 3, width: int = 260, dark: bool = False
) -> alt.TopLevelMixin:
    """Draw the reliability diagrams of several details side by side, with the same axes."""
    return _side_by_side(dict(zip(_names(details), details, strict=True)), columns, width, dark)


def _side_by_side(looked: Mapping[str, Detail], columns: int, width: int, dark: bool) -> alt.TopLevelMixin:
    if not looked:
        raise InputError("expected at least one method to draw, got none")
    panels = [_diagram(detail, name, width, apart=16) for name, detail in looked.items()]  # they share one legend
    return _finished(_grid(panels, columns), dark)


def _diagram(detail: Detail, title: str, width: int, *, apart: int = 4) -> Any:
    found = detail["bins"]
    if found is None:
        raise InputError("a reliability diagram needs labels, and these images have none")
    data = [
        {
            **{"from": a, "to": b, "images": n, "confidence": c, "accuracy": acc, "low": low, "high": high},
            **{"gap": c - acc, "range": f"({a:.3g}, {b:.3g}]", "interval": f"{low:.3f} to {high:.3f}"},
            **{"bar": "accuracy", "sense": OVER if c >= acc else UNDER},  # what the legend says
        }
        for a, b, n, c, acc, low, high in zip(
            found["edges"][:-1],
            found["edges"][1:],
            *(found[name] for name in ("counts", "confidence", "accuracy", "low", "high")),
            strict=True,
        )
        if n
    ]
    ece = sum(d["images"] * abs(d["gap"]) for d in data) / detail["images"]
    said = [
        f"{detail['images']:,} images · ECE {ece:.4f}",
        f"confidence {detail['confidence']:.3f} · accuracy {detail['accuracy']:.3f}",
    ]
    key = _above(apart)
    colour = alt.Scale(domain=["accuracy", OVER, UNDER], range=[SKY, ORANGE, PURPLE])
    tips = _tips(
        ("range", "confidence in"),
        ("images", "images", ",d"),
        ("confidence", "mean confidence", ".4f"),
        ("accuracy", "accuracy", ".4f"),
        ("interval", "its 95 % interval"),
        ("gap", "confidence − accuracy", "+.4f"),
    )
    span = {"x": _unit(alt.X, "from", labels=False), "x2": "to"}
    base = alt.Chart(_data(data))

    def coloured(field: str) -> alt.Color:
        return alt.Color(f"{field}:N", scale=colour, legend=key)

    bars = base.mark_rect().encode(
        **span, y=_unit(alt.Y, "accuracy", "accuracy"), y2=alt.datum(0), color=coloured("bar")
    )
    gaps = base.mark_rect().encode(
        **span, y=_unit(alt.Y, "accuracy", "accuracy"), y2="confidence", color=coloured("sense")
    )
    ends = [{"x": 0, "y": 0}, {"x": 1, "y": 1}]
    diagonal = alt.Chart(_data(ends)).mark_line(style="diagonal").encode(x="x:Q", y="y:Q")
    middle = base.encode(x="confidence:Q")
    whiskers = middle.mark_rule(style="whisker").encode(y="low:Q", y2="high")
    dots = middle.mark_point(style="dot").encode(y="accuracy:Q")
    hover = base.mark_rect(opacity=0).encode(**span, y=alt.datum(0), y2=alt.datum(1), tooltip=tips)
    upper = alt.layer(bars, gaps, diagonal, whiskers, dots, hover).properties(width=width, height=width)
    lower = (
        base.mark_rect(style="count")
        .encode(
            x=_unit(alt.X, "from", "confidence"),
            x2="to",
            y=alt.Y("images:Q", title="images", axis=alt.Axis(tickCount=2, format=",d")),
            y2=alt.datum(0),
            tooltip=tips,
        )
        .properties(width=width, height=max(40, width // 6))
    )
    return alt.vconcat(upper, lower, spacing=8).properties(
        title=_heading(title, said, width),
        description=f"Reliability diagram{_of(title)}: {len(data)} bins of {' · '.join(said)}.",
    )


def confidence_histogram(
    details: Sequence[Detail], *, log: bool = True, columns: int = 2, width: Width = 360, dark: bool = False
) -> alt.TopLevelMixin:
    """Draw how many images have which confidence: the first detail as a line over the bars of each other one.

    `log` counts on a logarithmic axis: a good network is nearly sure of nearly everything.
    """
    if not details:
        raise InputError("there is nothing to draw: expected at least one detail, got none")
    names = _names(details)
    before = (names[0], details[0])
    after = list(zip(names[1:], details[1:], strict=True))
    size = width if len(after) < 2 else _pixels(width)
    panels = [_histogram(before, pair, log, size) for pair in after] or [_histogram(None, before, log, size)]
    if len(panels) == 1:
        return _finished(panels[0], dark)
    return _finished(_grid(panels, columns), dark)


def _histogram(before: tuple[str, Detail] | None, after: tuple[str, Detail], log: bool, width: Width) -> Any:
    name, detail = after
    x, y = _unit(alt.X, "from", "confidence"), _counting("images", log)
    tips = _tips(("method", "method"), ("range", "confidence in"), ("images", "images", ",d"))
    layers: list[Any] = [
        alt.Chart(_data(_cells(detail["histogram"], name)))
        .mark_rect(color=SKY)
        .encode(x=x, x2="to", y=y, y2=alt.datum(0), tooltip=tips)
    ]
    if before:
        cells = _cells(before[1]["histogram"], before[0])
        # A step ends where the next begins: the last one needs its end said.
        cells.append({**cells[-1], "from": cells[-1]["to"]})
        line = alt.Chart(_data(cells)).mark_line(interpolate="step-after", color=VERMILION)
        layers.append(line.encode(x=x, y=y, tooltip=tips))
    said = [f"bars: {name}, mean {detail['confidence']:.3f}"]
    if before:
        said.append(f"line: {before[0]}, mean {before[1]['confidence']:.3f}")
    return alt.layer(*layers).properties(
        width=width,
        height=180,
        title=_heading(name, said, width),
        description=f"Histogram of the confidence of {detail['images']:,} images; {'; '.join(said)}.",
    )


def _cells(counts: Sequence[int], method: str = "") -> list[Datum]:
    """The cells of a histogram over [0, 1]."""
    edges = [i / len(counts) for i in range(len(counts) + 1)]
    return [
        {"from": a, "to": b, "images": n, "range": f"({a:.3g}, {b:.3g}]", **({"method": method} if method else {})}
        for a, b, n in zip(edges[:-1], edges[1:], counts, strict=True)
    ]


def weights(
    detail: Detail, *, title: str | None = None, width: Width | None = None, dark: bool = False
) -> alt.TopLevelMixin:
    """Draw the learned weights: kinds of view × classes, one column where all classes share them (V-ATTA)."""
    return _finished(_weights(detail, _title(detail, title), width), dark)


def _weights(detail: Detail, title: str, width: Width | None) -> Any:
    views = _views(detail)
    classes = len(views["weights"][0]) if views["weights"] else 0
    names = ["all classes"] if classes == 1 else _classes(detail, classes)
    data = [
        {"kind": kind, "class": name, "weight": weight}
        for kind, row in zip(views["kinds"], views["weights"], strict=True)
        for name, weight in zip(names, map(_number, row), strict=True)
    ]
    known = [d["weight"] for d in data if d["weight"] is not None]
    most = max(map(abs, known), default=0.0) or 1.0
    labelled = classes <= LABELLED
    across = alt.X(
        "class:N",
        title=None if classes == 1 else "class" if labelled else f"{classes:,} classes, in their order",
        scale=alt.Scale(domain=names),
        axis=alt.Axis(
            labels=labelled,
            ticks=labelled,
            labelAngle=0 if max(map(len, names)) < 5 or classes == 1 else -40,
            labelOverlap=False,
        ),
    )
    down = alt.Y("kind:N", title=None, scale=alt.Scale(domain=list(views["kinds"])))
    tips = _tips(("kind", "view"), ("class", "class"), ("weight", "weight", "+.4f"))
    base = alt.Chart(_data(data)).encode(x=across, y=down)
    cells = base.mark_rect(style="grid" if labelled else "dense").encode(
        color=alt.Color(
            "weight:Q",
            title="weight",
            scale=alt.Scale(domain=[-most, most], domainMid=0, range="diverging", interpolate="rgb"),
            legend=alt.Legend(gradientLength=max(60, 26 * len(views["kinds"])), format=".2~f", tickCount=3),
        ),
        tooltip=tips,
    )
    layers = [cells, base.mark_text(style="value").encode(text=alt.Text("weight:Q", format="+.2f"))]
    limit, span = f"limit {views['limit']:.3f}", (min(known, default=0.0), max(known, default=0.0))
    said = f"weights from {span[0]:+.3f} to {span[1]:+.3f}".replace("-", "−")
    size = width or (110 if classes == 1 else 46 * classes if classes <= WRITTEN else max(420, min(640, 22 * classes)))
    return alt.layer(*layers[: 2 if classes <= WRITTEN else 1]).properties(
        width=size,
        height=28 * len(views["kinds"]),
        title=_heading(title, [f"{limit} · {said}"], size if size == "container" else max(300, size)),
        description=f"Weights of {len(views['kinds'])} kinds of view{_of(title)}, {classes} for each: {said}, {limit}.",
    )


def shares(
    detail: Detail, *, log: bool = True, title: str | None = None, width: Width = 360, dark: bool = False
) -> alt.TopLevelMixin:
    """Draw the shares that images give their views, the limit, and how many images the class guard holds below it."""
    return _finished(_shares(detail, log, _title(detail, title), width), dark)


def _shares(detail: Detail, log: bool, title: str, width: Width) -> Any:
    views = _views(detail)
    bars = (
        alt.Chart(_data(_cells(views["shares"])))
        .mark_rect(color=SKY)
        .encode(
            x=_unit(alt.X, "from", "share of the views"),
            x2="to",
            y=_counting("images", log),
            y2=alt.datum(0),
            tooltip=_tips(("range", "share in"), ("images", "images", ",d")),
        )
    )
    limit = alt.Chart(_data([{"limit": views["limit"], "mean": views["mean_share"]}])).encode(
        x="limit:Q", tooltip=_tips(("limit", "limit", ".4f"), ("mean", "mean share", ".4f"))
    )
    held = f"the class guard holds {views['limited']:,} of {detail['images']:,} images below it"
    said = f"limit {views['limit']:.3f}, dashed; {held}; mean share {views['mean_share']:.3f}"
    return alt.layer(bars, limit.mark_rule(style="guide")).properties(
        width=width,
        height=180,
        title=_heading(title, [said], width),
        description=f"Shares of the views{_of(title)}: {said}.",
    )


def per_class(
    detail: Detail, *, most: int = 30, title: str | None = None, width: Width = 420, dark: bool = False
) -> alt.TopLevelMixin:
    """Draw confidence minus accuracy by predicted class, with 95 % intervals: the `most` classes of the largest gaps."""
    return _finished(_per_class(detail, most, _title(detail, title), width), dark)


def _per_class(detail: Detail, most: int, title: str, width: Width) -> Any:
    found = detail["per_class"]
    if found is None:
        raise InputError("accuracy by class needs labels, and these images have none")
    data = []
    for name, n, confidence, accuracy in zip(
        _classes(detail, len(found["counts"])), found["counts"], found["confidence"], found["accuracy"], strict=True
    ):
        if n:
            low, high = (confidence - end for end in reversed(wilson(float(n), accuracy)))
            sense = OVER if confidence >= accuracy else UNDER
            data.append(
                {
                    **{"class": name, "images": n, "confidence": confidence, "accuracy": accuracy, "sense": sense},
                    **{"gap": confidence - accuracy, "low": low, "high": high},
                    "interval": f"{low:+.3f} to {high:+.3f}",
                }
            )
    data.sort(key=lambda d: -abs(d["gap"]))
    shown, rest = sorted(data[:most], key=lambda d: -d["gap"]), data[most:]
    never = len(found["counts"]) - len(data)
    said = [
        f"the {len(shown)} largest gaps of {len(data)} classes; the other {len(rest)} are within "
        f"±{abs(rest[0]['gap']):.3f}"
        if rest
        else f"all {len(data)} predicted classes",
        *([f"{never} never predicted"] if never else []),
    ]
    base = alt.Chart(_data(shown)).encode(
        y=alt.Y("class:N", title=None, scale=alt.Scale(domain=[d["class"] for d in shown]), axis=_all_labels()),
        tooltip=_tips(
            ("class", "predicted class"),
            ("images", "images", ",d"),
            ("confidence", "mean confidence", ".4f"),
            ("accuracy", "accuracy", ".4f"),
            ("gap", "confidence − accuracy", "+.4f"),
            ("interval", "its 95 % interval"),
        ),
    )
    bars = base.mark_bar(height={"band": 0.7}).encode(
        x=alt.X("gap:Q", title="confidence − accuracy", axis=alt.Axis(format="+.3~f", tickCount=5, labelFlush=False)),
        color=alt.Color(
            "sense:N",
            title=None,
            scale=alt.Scale(domain=[OVER, UNDER], range=[ORANGE, PURPLE]),
            legend=_above(),
        ),
    )
    whiskers = base.mark_rule(style="whisker").encode(x="low:Q", x2="high")
    zero = alt.Chart(_data([{"zero": 0}])).mark_rule(style="zero").encode(x="zero:Q")
    return alt.layer(bars, zero, whiskers).properties(
        width=width,
        height=max(40, 20 * len(shown)),
        title=_heading(title, ["; ".join(said)], width),
        description=f"Confidence minus accuracy by predicted class{_of(title)}: {'; '.join(said)}.",
    )


# --- From rows ---------------------------------------------------------------------------------------------------------


def ranking(
    rows: Iterable[Row],
    metric: str = "brier",
    baseline: str = "vanilla",
    *,
    intervals: Iterable[Interval] = (),
    title: str | None = None,
    width: Width = 420,
    dark: bool = False,
) -> alt.TopLevelMixin:
    """Draw methods by a metric, the best first: the mean over splits and seeds, its 95 % interval, the baseline as a rule.

    One run has no interval over splits, but may have one over test images, among `intervals`. Rows of different datasets,
    sizes and so on are refused, as they are by `Results.pivot`.
    """
    data = _ranked(rows, metric, intervals)
    base = _by_method(data)
    x = alt.X(
        "value:Q", title=_sense(metric), scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=5, labelFlush=False)
    )
    layers = [
        base.mark_rule(style="measured", strokeWidth=2).encode(x="low:Q", x2="high"),
        base.mark_point(style="measured", filled=True, size=70).encode(x=x),
    ]
    rule = [d for d in data if d["method"] == baseline and d["value"] is not None]
    if rule:
        layers.insert(0, alt.Chart(_data(rule)).mark_rule(style="guide").encode(x="value:Q"))
    said = [f"dashed: {baseline}"] if rule else []
    return _bars(layers, data, metric, f"Methods by {metric}" if title is None else title, said, width, dark)


def entropy(
    rows: Iterable[Row],
    metric: str = "entropy",
    *,
    intervals: Iterable[Interval] = (),
    title: str | None = None,
    width: Width = 420,
    dark: bool = False,
) -> alt.TopLevelMixin:
    """Draw the entropy of each method on images of no known class, the highest first: there, doubt is right."""
    data = _ranked(rows, metric, intervals, higher=True)
    base = _by_method(data)
    layers = [
        base.mark_bar(color=SKY, height={"band": 0.7}).encode(
            x=alt.X("value:Q", title=f"{metric} (higher is better)", axis=alt.Axis(tickCount=6, labelFlush=False))
        ),
        base.mark_rule(style="whisker").encode(x="low:Q", x2="high"),
    ]
    own = f"{metric.replace('_', ' ').capitalize()} on foreign images"
    return _bars(layers, data, metric, own if title is None else title, [], width, dark)


def _ranked(rows: Iterable[Row], metric: str, intervals: Iterable[Interval], *, higher: bool = False) -> list[Datum]:
    """The methods, the best first; those whose number is none, such as nan, come last and are named without a mark."""
    found = _summaries(rows, metric, intervals)
    data = [d for d in found if d["value"] is not None]
    if not data:
        raise InputError(f"no {metric} of these rows is a finite number")
    data.sort(key=lambda d: d["value"], reverse=higher or BETTER.get(metric) == "higher")
    return data + [d for d in found if d["value"] is None]


def _by_method(data: list[Datum]) -> alt.Chart:
    names = [d["method"] for d in data]
    return alt.Chart(_data(data)).encode(
        y=alt.Y("method:N", title=None, scale=alt.Scale(domain=names), axis=_all_labels()), tooltip=_measured()
    )


def _bars(
    layers: list[Any], data: list[Datum], metric: str, title: str, said: list[str], width: Width, dark: bool
) -> alt.TopLevelMixin:
    runs = max(d["runs"] for d in data)
    over = " and its 95 % interval over test images" if any(d["low"] is not None for d in data) else ""
    said = [f"mean of {runs} runs and its 95 % interval" if runs > 1 else f"one run{over}", *said]
    first, *_, last = [d for d in data if d["value"] is not None] * 2
    chart = alt.layer(*layers).properties(
        width=width,
        height=max(40, 24 * len(data)),
        title=_heading(title, ["; ".join(said)], width),
        description=f"{metric} of {len(data)} methods, from {first['method']} ({first['value']:.4f}) to "
        f"{last['method']} ({last['value']:.4f}); {'; '.join(said)}.",
    )
    return _finished(chart, dark)


def sizes(
    rows: Iterable[Row],
    metrics: Sequence[str] = (),
    *,
    columns: int = 2,
    width: int = 300,
    dark: bool = False,
) -> alt.TopLevelMixin:
    """Draw metrics against the number of validation images, a line a method with its 95 % interval, a panel a metric.

    The metrics are all there are in the rows, or those named.
    """
    rows = _named([row for row in rows if row.validation])
    panels, names = [], list(dict.fromkeys(row.method for row in rows))
    apart = _told_apart(names)
    for metric in metrics or dict.fromkeys(row.metric for row in rows):
        found = [row for row in rows if row.metric == metric]
        counts = sorted({row.validation for row in found})
        data = [
            {"validation": n, **d}
            for n in counts
            for d in _summaries([row for row in found if row.validation == n], metric)
        ]
        base = alt.Chart(_data(data)).encode(
            x=alt.X(
                "validation:Q",
                title="validation images",
                scale=alt.Scale(type="log", nice=False),
                axis=alt.Axis(values=counts, format=",d", grid=False, labelFlush=False),
            ),
            color=apart["color"],
        )
        y = alt.Y("value:Q", title=_sense(metric), scale=alt.Scale(zero=False))
        band = base.mark_area(opacity=0.12).encode(y=alt.Y("low:Q", title=_sense(metric)), y2="high")
        lines = base.mark_line(strokeWidth=2).encode(y=y, strokeDash=apart["strokeDash"])
        points = base.mark_point(filled=True, size=50, opacity=1).encode(
            y=y, shape=apart["shape"], tooltip=[*_tips(("validation", "validation images", ",d")), *_measured()]
        )
        panels.append(
            alt.layer(band, lines, points).properties(
                width=width,
                height=width * 2 // 3,
                description=f"{metric} of {len(names)} methods at {', '.join(f'{n:,}' for n in counts)} validation images.",
            )
        )
    if not panels:
        raise InputError("there are no rows that say how many images were fitted on")
    return _finished(_grid(panels, columns), dark)


def cost(
    points: Sequence[Mapping[str, Any]],
    metric: str = "brier",
    *,
    title: str | None = None,
    width: Width = 460,
    dark: bool = False,
) -> alt.TopLevelMixin:
    """Draw a metric against what it costs: passes of the network an image, for each policy of views.

    A point has "policy", "passes", "method", "value" and, or None, "low" and "high": `cost_points` makes them from results.
    """
    data = [
        {**point, **{name: _number(point[name]) for name in ("value", "low", "high")}}
        for point in points
        if _number(point["value"]) is not None
    ]
    if not data:
        raise InputError(f"there is no {metric} of a method with a policy that was given to it: nothing to draw")
    names = list(dict.fromkeys(d["method"] for d in data))
    apart = _told_apart(names, orient="top", columns=max(1, _pixels(width, 600) // 140))
    x = alt.X(
        "passes:Q",
        title="passes of the network an image",
        scale=alt.Scale(type="log", base=2, nice=False, padding=36),
        axis=alt.Axis(values=sorted({d["passes"] for d in data}), format=",.2~f", grid=False, labelFlush=False),
    )
    y = alt.Y("value:Q", title=_sense(metric), scale=alt.Scale(zero=False))
    base = alt.Chart(_data(data)).encode(x=x, color=apart["color"])
    tips = _tips(("method", "method"), ("policy", "policy"), ("passes", "passes", ",.2~f"), ("value", "mean", ".5f"))
    layers = [
        base.mark_rule(strokeWidth=1.5).encode(y="low:Q", y2="high"),
        base.mark_point(filled=True, size=70, opacity=1).encode(y=y, shape=apart["shape"], tooltip=tips),
        alt.Chart(_data(_beside(data))).mark_text(style="note", align="left", dx=9).encode(x=x, y=y, text="policy:N"),
    ]
    best = min(data, key=lambda d: d["value"] * (-1 if BETTER.get(metric) == "higher" else 1))
    said = f"best: {best['method']} with {best['policy'] or 'no views'}, {best['passes']:g} passes, {best['value']:.4f}"
    own = f"{metric} by passes"
    return _finished(
        alt.layer(*layers).properties(
            width=width,
            height=260,
            title=_heading(own if title is None else title, [said], width),
            description=f"{metric} against passes of the network an image, {len(data)} points; {said}.",
        ),
        dark,
    )


def _beside(data: Sequence[Datum]) -> list[Datum]:
    """The names of the policies beside their points, those of points that nearly meet in one text; long ones nowhere."""
    values = [d["value"] for d in data]
    near = (max(values) - min(values)) / 18
    texts: list[Datum] = []
    for d in sorted(data, key=lambda d: (d["passes"], d["value"])):
        if not d["policy"] or len(d["policy"]) > 12:
            continue
        last = texts[-1] if texts else None
        if last and last["passes"] == d["passes"] and d["value"] - last["top"] < near:
            last["names"][d["policy"]] = None
            last["top"] = d["value"]
        else:
            texts.append({"passes": d["passes"], "value": d["value"], "top": d["value"], "names": {d["policy"]: None}})
    return [
        {"passes": t["passes"], "value": (t["value"] + t["top"]) / 2, "policy": ", ".join(t["names"])} for t in texts
    ]


def cost_points(results: Results, metric: str = "brier") -> list[Datum]:
    """The points of `cost`: of each method with each policy that was given, not chosen, the mean and its interval."""
    known = {(d["method"], d["policy"]): d["passes"] for d in results.details}
    points = []
    rows = [row for row in results if row.metric == metric and not row.choice]
    for method, policy in dict.fromkeys((row.method, row.policy) for row in rows):
        mine = [replace(row, policy="") for row in rows if (row.method, row.policy) == (method, policy)]
        (summary,) = _summaries(mine, metric)
        views = Policy.parse(policy).repeats.values() if policy else ()
        passes = known.get((method, policy), 1 + sum(views))
        points.append({"policy": policy, "passes": passes, **summary})
    return points


def _summaries(rows: Iterable[Row], metric: str, intervals: Iterable[Interval] = ()) -> list[Datum]:
    """The mean of a metric over splits and seeds, and its interval, by what a chart calls the method."""
    found = [row for row in rows if row.metric == metric]
    named = _named(found)
    if not named:
        raise InputError(f"there are no rows of {metric} to draw")
    table = Results(tuple(named)).pivot(("method",), ("metric",))  # which refuses to average what differs
    over_images = {contender(one): (one.low, one.high) for one in intervals if one.metric == metric and not one.against}
    of_one = {label.method: over_images.get(contender(row)) for row, label in zip(found, named, strict=True)}
    data = []
    for name, summary in zip(dict.fromkeys(row.method for row in named), table.numbers.values(), strict=True):
        half = summary.interval if summary.interval is not None else math.nan
        between = of_one[name] if summary.count == 1 else None
        low, high = map(_number, between or (summary.mean - half, summary.mean + half))
        interval = "one run" if low is None or high is None else f"{low:.5f} to {high:.5f}"
        number = {"value": _number(summary.mean), "low": low, "high": high}
        data.append({"method": name, **number, "runs": summary.count, "interval": interval})
    return data


# --- What the charts share ---------------------------------------------------------------------------------------------


def _finished(chart: Any, dark: bool) -> alt.TopLevelMixin:
    done: alt.TopLevelMixin = chart.configure(**theme(dark))
    return done


def _grid(panels: Sequence[Any], columns: int) -> Any:
    """Panels in rows of `columns`; what is said of each is said of all, since only the whole is read aloud."""
    description = " ".join(panel.description for panel in panels)
    return alt.concat(*panels, columns=min(columns, len(panels)), spacing=28).properties(description=description)


def _data(values: list[Datum]) -> alt.InlineData:
    return alt.InlineData(values=values)


def _tips(*fields: tuple[str, ...]) -> list[alt.Tooltip]:
    """Tooltips: the field, what it is called and, for a number, its format."""
    return [
        alt.Tooltip(f"{name}:Q", title=title, format=form[0]) if form else alt.Tooltip(f"{name}:N", title=title)
        for name, title, *form in fields
    ]


def _measured() -> list[alt.Tooltip]:
    return _tips(
        ("method", "method"), ("value", "mean", ".5f"), ("interval", "its 95 % interval"), ("runs", "runs", ",d")
    )


def _unit(channel: Any, field: str, title: str | None = None, *, labels: bool = True) -> Any:
    """A channel whose axis is [0, 1]."""
    axis = alt.Axis(values=[0, 0.2, 0.4, 0.6, 0.8, 1], format=".1f", labels=labels, ticks=labels, labelFlush=False)
    return channel(f"{field}:Q", title=title, scale=alt.Scale(domain=[0, 1]), axis=axis)


def _counting(field: str, log: bool) -> alt.Y:
    """An axis of counts; log(1 + count) has a place for none."""
    if not log:
        return alt.Y(f"{field}:Q", title="images", axis=alt.Axis(format=",d", tickCount=4))
    ticks = alt.Axis(values=[0, *(10**power for power in range(10))], format=",d")
    return alt.Y(f"{field}:Q", title="images (log scale)", scale=alt.Scale(type="symlog"), axis=ticks)


def _above(apart: int = 4) -> alt.Legend:
    return alt.Legend(orient="top", title=None, offset=apart)


def _all_labels() -> alt.Axis:
    return alt.Axis(labelOverlap=False, ticks=False, labelPadding=6)


def _told_apart(names: Sequence[str], **legend: Any) -> dict[str, Any]:
    """Each method its colour, shape and dash, in one legend."""
    key = alt.Legend(title=None, symbolOpacity=1, symbolSize=70, **legend)

    def ranged(given: Sequence[Any]) -> alt.Scale:
        return alt.Scale(domain=list(names), range=[given[i % len(given)] for i in range(len(names))])

    return {
        "color": alt.Color("method:N", scale=ranged(COLOURS), legend=key),
        "shape": alt.Shape("method:N", scale=ranged(SHAPES), legend=key),
        "strokeDash": alt.StrokeDash("method:N", scale=ranged(DASHES), legend=None),
    }


def _heading(title: str, lines: Sequence[str], width: Width) -> alt.Title:
    """A title and what is said below it, wrapped to the width: a chart does not wrap them itself."""
    letters = max(20, int(_pixels(width, 640) / 6))
    below = [part for line in lines for part in textwrap.wrap(line, letters)]
    above = textwrap.wrap(title, int(letters * 0.75))
    if not above:  # Vega shows nothing below an empty title
        return alt.Title(below, fontSize=12, fontWeight="normal")
    return alt.Title(above, subtitle=below)


def _pixels(width: Width, container: int = 300) -> int:
    return container if width == "container" else width


def _of(title: str) -> str:
    return f" of {title}" if title else ""


def _sense(metric: str) -> str:
    better = BETTER.get(metric)
    return f"{metric} ({better} is better)" if better else metric


def _number(value: Any) -> float | None:
    """A number that JSON can hold, or None; results.json has "nan" and so on for those it cannot."""
    return value if isinstance(value, int | float) and math.isfinite(value) else None


def _views(detail: Detail) -> Mapping[str, Any]:
    if detail["views"] is None:
        raise InputError(f"{detail.get('method', 'the method')} learns no weights of views: there is nothing to draw")
    views: Mapping[str, Any] = detail["views"]
    return views


def _classes(detail: Detail, count: int) -> list[str]:
    """The names of the classes, or their numbers; a name that occurs twice has its number beside it."""
    found = (detail.get("per_class") or {}).get("names") or []
    names = [str(name) for name in found] if len(found) == count else [str(i) for i in range(count)]
    times = Counter(names)
    return [f"{name} ({i})" if times[name] > 1 else name for i, name in enumerate(names)]


def _title(detail: Detail, title: str | None) -> str:
    if title is not None:
        return title
    (name,) = _names([detail])
    return " on ".join(filter(None, (name, detail.get("dataset", ""))))


def _names(details: Sequence[Detail]) -> list[str]:
    """What charts call details, none of them twice."""
    labels = _labels([(d.get("method", ""), d.get("policy", ""), d.get("choice", "")) for d in details])
    times = Counter(labels)
    return [f"{label} ({i})" if times[label] > 1 else label for i, label in enumerate(labels, 1)]


def _named(rows: Sequence[Row]) -> list[Row]:
    """The rows under what charts call their methods."""
    labels = _labels([(row.method, row.policy, row.choice) for row in rows])
    return [replace(row, method=label, policy="", choice="") for row, label in zip(rows, labels, strict=True)]


def _labels(whats: Sequence[tuple[str, str, str]]) -> list[str]:
    """What charts call (method, policy, choice): the method; its policy if it was given several; a rule not the paper's."""
    given: dict[str, set[str]] = {}
    for method, policy, choice in whats:
        given.setdefault(method, set()).update(() if choice else (policy,))
    return [
        " · ".join(
            filter(None, (method, choice if choice != RULE else "", "" if choice or len(given[method]) < 2 else policy))
        )
        for method, policy, choice in whats
    ]


# --- From results, by name ---------------------------------------------------------------------------------------------


def _each(part: str, what: str, draw: Callable[[Detail, str], Any]) -> Callable[..., Any]:
    """A panel for each detail that has the part to draw."""

    def drawn(results: Results, metric: str, dark: bool) -> alt.TopLevelMixin:
        found = [detail for detail in results.details if detail[part] is not None]
        if not found:
            raise InputError(f"there is nothing to draw: none of the {len(results.details)} details here has {what}")
        panels = [draw(detail, name) for detail, name in zip(found, _names(found), strict=True)]
        return _finished(panels[0] if len(panels) == 1 else _grid(panels, 2).resolve_scale(color="independent"), dark)

    return drawn


FIGURES: dict[str, Callable[..., Any]] = {
    "reliability": _each("bins", "labels", lambda detail, name: _diagram(detail, name, 300)),
    "confidence": lambda results, metric, dark: confidence_histogram(results.details, dark=dark),
    "weights": _each("views", "weights of views", lambda detail, name: _weights(detail, name, None)),
    "shares": _each("views", "shares of views", lambda detail, name: _shares(detail, True, name, 360)),
    "per-class": _each("per_class", "labels", lambda detail, name: _per_class(detail, 30, name, 420)),
    "ranking": lambda results, metric, dark: ranking(
        results, metric or "brier", intervals=results.intervals, dark=dark
    ),
    "entropy": lambda results, metric, dark: entropy(
        results, metric or "entropy", intervals=results.intervals, dark=dark
    ),
    "sizes": lambda results, metric, dark: sizes(results, [metric] if metric else (), dark=dark),
    "cost": lambda results, metric, dark: cost(cost_points(results, metric or "brier"), metric or "brier", dark=dark),
}
"""Figures of results, by name: functions of the results, a metric ("" for the usual one) and whether it is dark."""


def figure(name: str, results: Results, *, metric: str = "", dark: bool = False, **columns: Any) -> Any:
    """Draw one of FIGURES from results, of the rows and details whose columns have these values.

    >>> figure("reliability", Results.load("results.json"), method="v-atta")  # doctest: +SKIP
    """
    if name not in FIGURES:
        raise InputError(f"there is no figure {name!r}; expected one of {', '.join(FIGURES)}")
    wanted = {column: value for column, value in columns.items() if value not in (None, "", [], ())}
    if "experiment" not in wanted:
        results = _main(results, whole=name == "cost")
    chosen = results.where(**wanted)
    rows = chosen.rows
    allowed = {column: value if isinstance(value, list | tuple) else (value,) for column, value in wanted.items()}
    details = [d for d in results.details if all(d.get(column) in allowed[column] for column in allowed)]
    if not rows and not details:
        raise InputError(f"the results have nothing with {', '.join(f'{k} {v!r}' for k, v in wanted.items())}")
    for column in ("experiment", "dataset", *(() if name == "sizes" else ("validation",))):
        there = list(dict.fromkeys(getattr(row, column) for row in rows))
        if len(there) > 1:
            names = " or ".join(repr(one) for one in there)
            raise InputError(f"expected one {column} to draw, got {len(there)}; choose one: --{column} {names}")
    return FIGURES[name](replace(chosen, details=tuple(details)), metric, dark)


def _main(results: Results, *, whole: bool) -> Results:
    """Results without the experiments that only say what each pass buys; `whole` has these under the name they belong to."""

    def named(name: str) -> str | None:
        return name.removesuffix(COST) if whole else None if name.endswith(COST) else name

    rows = (replace(row, experiment=name) for row in results if (name := named(row.experiment)) is not None)
    seen = ({**d, "experiment": named(d["experiment"])} for d in results.details if "experiment" in d)
    once = {
        (r.experiment, r.dataset, r.method, r.policy, r.validation, r.split, r.seed, r.choice, r.metric): r
        for r in rows
    }
    details = tuple(d for d in seen if d["experiment"] is not None)
    sure = (replace(one, experiment=name) for one in results.intervals if (name := named(one.experiment)) is not None)
    return Results(tuple(once.values()), results.about, details, tuple(sure))


# --- Writing -----------------------------------------------------------------------------------------------------------


class _ForScript(json.JSONEncoder):
    """JSON that may stand in a <script>: no name in it can end that."""

    def encode(self, o: Any) -> str:
        return super().encode(o).replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


_FORMATS: dict[str, dict[str, Any]] = {
    "svg": {},
    "png": {"scale_factor": 2},
    "pdf": {},
    "json": {"json_kwds": {"indent": 1, "ensure_ascii": False, "allow_nan": False}},
    "html": {"inline": True, "json_kwds": {"cls": _ForScript}},
}


def picture(chart: alt.TopLevelMixin, path: str | os.PathLike[str]) -> Path:
    """Write a chart as .svg, .png, .pdf, .json (Vega-Lite) or .html (by itself, without a network), by its suffix.

    >>> picture(reliability(probs, labels), "reliability.svg")  # doctest: +SKIP
    """
    path = Path(path)
    kind = path.suffix.lower().removeprefix(".")
    if kind not in _FORMATS:
        raise InputError(f"expected a file that ends in .{', .'.join(_FORMATS)}, got {path.name!r}")
    if kind != "json" and find_spec("vl_convert") is None:  # altair is there, what draws for it is not
        raise InputError(MISSING.replace("altair", "vl-convert-python"))
    with whole_file(path) as part:
        chart.save(part, **{"format": kind, **_FORMATS[kind]})
        if kind == "svg":
            part.write_text(_read_aloud(part.read_text(encoding="utf-8"), chart), encoding="utf-8")
    return path


def _read_aloud(svg: str, chart: Any) -> str:
    """The picture with its description, which Vega gives to pages alone."""
    return svg.replace("<svg ", f'<svg role="img" aria-label={quoteattr(chart.description)} ', 1)
