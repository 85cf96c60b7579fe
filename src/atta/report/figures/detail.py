"""Draws one method in detail: its confidence, the weights and shares of its views, gaps by class.

Each function takes an entry of `Results.details`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from atta._base.errors import InputError
from atta._base.settings import Count, checked
from atta.metrics.binning import bins, risk_curve, wilson
from atta.metrics.per_image import Array, as_tensor
from atta.report.figures.theme import (
    BLUE,
    ORANGE,
    OVER,
    PURPLE,
    UNDER,
    VERMILION,
    Datum,
    Detail,
    above,
    alt,
    calibration,
    chart_of,
    class_names,
    finished,
    grid,
    histogram,
    named_rows,
    names_of,
    number,
    of_title,
    titled,
    told_apart,
    tooltips,
    unit,
)

LABELLED = 40  # the most classes that have their names on an axis
SHORT = 20  # letters of a class name if there are more classes
WRITTEN = 12  # the most classes that have their weights written into the cells
_SHOWN = 30  # the most classes in a chart of gaps


def confidence_histograms(details: Sequence[Detail]) -> Any:
    """Draw the confidence of the first detail as a line over the bars of each other detail."""
    if not details:
        raise InputError("there is nothing to draw: expected at least one detail, got none")
    first, *others = zip(names_of(details), details, strict=True)
    panels = [confidence_histogram(detail, name, before=first) for name, detail in others]
    return grid(panels or [confidence_histogram(first[1], first[0])], 2)


def confidence_histogram(
    detail: Detail, title: str, width: int = 360, *, before: tuple[str, Detail] | None = None
) -> Any:
    """Draw how many images have which confidence; `before` is another method, drawn as a line."""
    drawn = {"bars": (title, detail)} | ({"line": before} if before else {})
    counts = [(name, other["histogram"]) for name, other in drawn.values()]
    notes = [f"{how}: {name}, mean {of['confidence']:.3f}" for how, (name, of) in drawn.items()]
    layers = histogram("images", counts, "confidence", tooltips("method", "range", "images"))
    chart = alt.layer(*layers, width=width, height=180)
    what = f"Histogram of the confidence of {detail['images']:,} images"
    return titled(chart, width, title, notes, what)


@checked
def risk_plot(
    confidences: Mapping[str, Array], correct: Array, *, width: Count = 420, dark: bool = False
) -> alt.TopLevelMixin:
    """Draw risk against coverage: how many answers are wrong if so many images are answered.

    Use it to choose a risk for `classifier.at_risk`, or to compare methods.

    Args:
        confidences: What `classifier.confidence` says of labelled images, by the name of a method.
        correct: 1 or True for each image whose predicted class is the true one, else 0.
        width: The width of the chart in pixels.
        dark: Whether to use colours for a dark background.

    Returns:
        An Altair chart, with 95 % intervals as bands.

    Raises:
        InputError: If a confidence is not a number from 0 to 1 for each image.

    Example:
        >>> import torch
        >>> chart = risk_plot({"mine": torch.tensor([0.9, 0.8, 0.6])}, torch.tensor([1, 1, 0]))
        >>> chart.description
        'Risk against coverage of mine; bands: 95 % intervals.'
    """
    right = as_tensor(correct, "correct").double()
    curves = {}
    for name, confidence in confidences.items():
        bins(confidence, right)  # checks them
        curves[name] = {"risk": risk_curve(as_tensor(confidence, "confidence"), right)}
    return finished(risks(curves, width), dark)


def risks(details: Mapping[str, Detail], width: int = 300) -> Any:
    """Draw the risk at each coverage: how many answers are wrong if so many images are answered.

    The bands are 95 % intervals.
    """
    data = [
        {"method": name, **dict(zip(found, point, strict=True))}
        for name, detail in details.items()
        for found in [detail["risk"]]
        for point in zip(*found.values(), strict=True)
    ]
    axis = alt.Axis(format=".3~%", tickCount=5)
    base = chart_of(data).encode(
        x=alt.X("coverage:Q", title="part of the images that is answered", axis=axis),
        color=told_apart(list(details), orient="top")["color"],
    )
    y = alt.Y("risk:Q", title="risk: part of the answers that is wrong", axis=axis)
    band = base.mark_area(opacity=0.15).encode(y="low:Q", y2="high")
    tips = tooltips("method", "coverage", "risk", "low", "high")
    line = base.mark_line(strokeWidth=1.5, point={"size": 12}).encode(y=y, tooltip=tips)
    chart = alt.layer(band, line, width=width, height=230)
    what = f"Risk against coverage of {' and '.join(details)}"
    return titled(chart, width, "Risk against coverage", ["bands: 95 % intervals"], what)


def weights(detail: Detail, title: str) -> Any:
    """Draw the learned weights: kinds of view × classes, or one column for all classes."""
    views = detail["views"]
    kinds, classes = views["kinds"], len(views["weights"][0])
    names = ["all classes"] if classes == 1 else class_names(detail, classes)
    labelled = classes <= LABELLED
    if not labelled:  # the data repeats each name per kind of view, and names may be long
        names = [f"{i} {name[:SHORT]}" for i, name in enumerate(names)]
    data = [
        {"kind": kind, "class": name, "weight": number(weight)}
        for kind, row in zip(kinds, views["weights"], strict=True)
        for name, weight in zip(names, row, strict=True)
    ]
    known = [row["weight"] for row in data if row["weight"] is not None] or [0.0]
    layers = _weight_layers(data, names, max(map(abs, known)) or 1.0)
    if classes == 1:
        width = 110
    elif classes <= WRITTEN:
        width = 46 * classes
    else:
        width = max(420, min(640, 22 * classes))
    span = f"weights from {min(known):+.3f} to {max(known):+.3f}".replace("-", "−")
    return titled(
        alt.layer(*layers, width=width, height=28 * len(kinds)),
        max(300, width),
        title,
        [f"limit {views['limit']:.3f} · {span}"],
        f"Weights of {len(kinds)} kinds of view{of_title(title)}, {classes} for each",
    )


def _weight_layers(data: list[Datum], names: list[str], largest: float) -> list[Any]:
    """Coloured cells and, for few classes, the weights as text in them."""
    classes, labelled = len(names), len(names) <= LABELLED
    title = "class" if labelled else f"{classes:,} classes, in their order"
    upright = classes == 1 or max(map(len, names)) < 5
    ticks = alt.Axis(
        labels=labelled, ticks=labelled, labelAngle=0 if upright else -40, labelOverlap=False
    )
    base = chart_of(data).encode(
        x=alt.X(
            "class:N",
            title=None if classes == 1 else title,
            scale=alt.Scale(domain=names),
            axis=ticks,
        ),
        y=named_rows("kind", data),
    )
    gradient = max(60, 26 * len(data) // classes)
    scale = alt.Scale(domain=[-largest, largest], domainMid=0, range="diverging", interpolate="rgb")
    legend = alt.Legend(gradientLength=gradient, format=".2~f", tickCount=3)
    cells = base.mark_rect(style="grid" if labelled else "dense").encode(
        color=alt.Color("weight:Q", title="weight", scale=scale, legend=legend),
        tooltip=tooltips("kind", "class", "weight"),
    )
    texts = base.mark_text(style="value").encode(text=alt.Text("weight:Q", format="+.2f"))
    return [cells, texts] if classes <= WRITTEN else [cells]


def shares(detail: Detail, title: str, width: int = 360) -> Any:
    """Draw the share of the views in each image, its limit, and how often the class guard acts."""
    views = detail["views"]
    limit = chart_of([{name: views[name] for name in ("limit", "mean_share")}])
    rule = limit.mark_rule(style="guide").encode(
        x="limit:Q", tooltip=tooltips("limit", "mean_share")
    )
    notes = [
        f"limit {views['limit']:.3f}, dashed",
        f"the class guard holds {views['limited']:,} of {detail['images']:,} images below it",
        f"mean share {views['mean_share']:.3f}",
    ]
    tips = tooltips("range", "images", range="share in")
    bars = histogram("images", [("", views["shares"])], "share of the views", tips)
    chart = alt.layer(*bars, rule, width=width, height=180)
    what = f"Shares of the views{of_title(title)}"
    return titled(chart, width, title, ["; ".join(notes)], what)


def per_class(detail: Detail, title: str, width: int = 420) -> Any:
    """Draw confidence minus accuracy by predicted class with 95 % intervals, largest gaps only."""
    found = detail["per_class"]
    classes = len(found["counts"])
    data = _class_gaps(class_names(detail, classes), found)
    shown, rest = sorted(data[:_SHOWN], key=lambda row: -row["gap"]), data[_SHOWN:]
    notes = f"all {len(data)} predicted classes"
    if rest:
        notes = f"the {len(shown)} largest gaps of {len(data)} classes; "
        notes += f"the other {len(rest)} are within ±{abs(rest[0]['gap']):.3f}"
    if classes > len(data):
        notes += f"; {classes - len(data)} never predicted"
    base = chart_of(shown).encode(
        y=named_rows("class", shown),
        tooltip=tooltips("class", "images", "confidence", "accuracy", "gap", "interval"),
    )
    axis = alt.Axis(format="+.3~f", tickCount=5, labelFlush=False)
    colours = alt.Scale(domain=[OVER, UNDER], range=[ORANGE, PURPLE])
    bars = base.mark_bar(height={"band": 0.7}).encode(
        x=alt.X("gap:Q", title="confidence − accuracy", axis=axis),
        color=alt.Color("sense:N", title=None, scale=colours, legend=above()),
    )
    whiskers = base.mark_rule(style="whisker").encode(x="low:Q", x2="high")
    zero = chart_of([{"zero": 0}]).mark_rule(style="zero").encode(x="zero:Q")
    chart = alt.layer(bars, zero, whiskers, width=width, height=max(40, 20 * len(shown)))
    what = f"Confidence minus accuracy by predicted class{of_title(title)}"
    return titled(chart, width, title, [notes], what)


def _class_gaps(names: Sequence[str], found: Mapping[str, Any]) -> list[Datum]:
    """The classes that were predicted, largest gaps first."""
    data: list[Datum] = []
    columns = (found[name] for name in ("counts", "confidence", "accuracy"))
    for name, images, confidence, accuracy in zip(names, *columns, strict=True):
        if images:
            low, high = (confidence - end for end in reversed(wilson(float(images), accuracy)))
            row = calibration(images, confidence, accuracy)
            interval = f"{low:+.3f} to {high:+.3f}"
            data.append({"class": name, **row, "low": low, "high": high, "interval": interval})
    return sorted(data, key=lambda row: -abs(row["gap"]))


# ---- drift ---------------------------------------------------------------------------------------

NEW, VALIDATION = "these images", "validation images"
_WIDTH = 420


def drift(found: Mapping[str, Any]) -> alt.TopLevelMixin:
    """Draw what `Drift.json` returns: histograms of confidence, and the estimated accuracy.

    Bars are these images; a line is the validation images, if their histogram was saved.
    """
    y = alt.Y("part:Q", title="share of images", axis=alt.Axis(format=".0%", tickCount=4))
    parts = [(NEW, found["seen_histogram"]), (VALIDATION, found["expected_histogram"])]
    shown = [part for part in parts if part[1]]
    tips = tooltips("method", "range", "part", method="images")
    layers = histogram("part", shown, "confidence", tips, y)
    chart = alt.layer(*layers, width=_WIDTH, height=180)
    legend = "; ".join(
        f"{how}: {name}" for how, (name, _) in zip(("bars", "line"), shown, strict=False)
    )
    title = "Confidence and accuracy"
    above = titled(chart, _WIDTH, title, [found["sentence"], legend], title)
    both = alt.vconcat(above, _numbers(found), spacing=24)
    return finished(both.properties(description=found["sentence"]))


def _numbers(found: Mapping[str, Any]) -> Any:
    """Accuracy and mean confidence on both sets; the estimate has its interval."""
    rows: list[Datum] = [
        {"name": f"{what}, {images}", "rate": found[key], "set": images}
        for what, images, key in (
            ("accuracy", VALIDATION, "expected_accuracy"),
            ("estimated accuracy", NEW, "accuracy"),
            ("confidence", VALIDATION, "expected_confidence"),
            ("confidence", NEW, "seen_confidence"),
        )
    ]
    rows[1] |= {"low": found["low"], "high": found["high"]}
    colours = alt.Scale(domain=[NEW, VALIDATION], range=[BLUE, VERMILION])
    base = chart_of(rows).encode(
        y=named_rows("name", rows),
        color=alt.Color("set:N", scale=colours, legend=None),
    )
    points = base.mark_point(filled=True, size=70, opacity=1).encode(
        x=unit(alt.X, "rate"), tooltip=tooltips("name", "rate")
    )
    intervals = base.mark_rule(strokeWidth=2).encode(x="low:Q", x2="high:Q")
    texts = base.mark_text(dy=-11).encode(x="rate:Q", text=alt.Text("rate:Q", format=".0%"))
    return alt.layer(intervals, points, texts, width=_WIDTH, height=140)
