"""Draws single methods: reliability, confidence, the weights and shares of their views, drift.

The functions draw probabilities, or entries of `Results.details`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch

from atta._base.errors import InputError
from atta._base.settings import Cells, Count, checked
from atta.metrics.binning import bins, reliability_bins, risk_curve, wilson
from atta.metrics.formulas import measurable
from atta.metrics.per_image import Array, LabelArray, as_tensor, per_image, validate
from atta.report.figures.theme import (
    BLUE,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    Datum,
    Detail,
    above,
    alt,
    between,
    chart_of,
    distinct,
    finished,
    grid,
    histogram,
    named_rows,
    names_of,
    number,
    titled,
    told_apart,
    tooltips,
    unit,
)

LABELLED = 40  # the most classes that have their names on an axis
SHORT = 20  # letters of a class name if there are more classes
WRITTEN = 12  # the most classes that have their weights written into the cells
OVER, UNDER = "over-confident", "under-confident"
_SHOWN = 30  # the most classes in a chart of gaps


def _of_title(title: str) -> str:
    """The title as part of a sentence, if there is one."""
    return f" of {title}" if title else ""


def _calibration(images: int, confidence: float, accuracy: float) -> Datum:
    """The numbers of a group of images: confidence, accuracy, and the gap between them."""
    return {
        "images": images,
        "confidence": confidence,
        "accuracy": accuracy,
        "gap": confidence - accuracy,
        "sense": OVER if confidence >= accuracy else UNDER,
    }


# ---- reliability ---------------------------------------------------------------------------------


@checked
def reliability(
    probs: Array,
    labels: LabelArray,
    *,
    bins: Cells = 15,
    title: str = "",
    simplex: bool = True,
    width: Count = 320,
    dark: bool = False,
) -> alt.TopLevelMixin:
    """Draw a reliability diagram: the accuracy in each bin of confidence.

    Use it to see where a classifier is over- or under-confident. Each bar shows the accuracy of a
    bin, its gap to the mean confidence, and the 95 % interval of the accuracy. The subtitle gives
    the ECE with the same bins. For several methods, use `compare_plot`.

    Args:
        probs: Predicted probabilities, images × classes.
        labels: The true class of each image.
        bins: How many bins of equal width divide the confidence. Empty bins are not drawn.
        title: The title of the chart, if any.
        simplex: Whether to refuse rows that do not sum to 1.
        width: The width and height of the diagram in pixels.
        dark: Whether to use colours for a dark background.

    Returns:
        An Altair chart. Notebooks display it; `chart.save("reliability.svg")` writes it to a file.

    Raises:
        InputError: If the probabilities or labels are invalid, or Altair is not installed.

    Example:
        >>> import torch
        >>> probs = torch.tensor([[0.9, 0.1], [0.7, 0.3], [0.4, 0.6]])
        >>> chart = reliability(probs, [0, 1, 1], title="V-ATTA")
        >>> chart.title.subtitle
        ['3 images · ECE 0.4000', 'confidence 0.733 · accuracy 0.667']
    """
    return finished(diagram(_measured(probs, labels, bins, simplex), title, width), dark)


@checked
def compare_plot(
    methods: Mapping[str, Array],
    labels: LabelArray,
    *,
    bins: Cells = 15,
    simplex: bool = True,
    columns: Count = 3,
    width: Count = 260,
    dark: bool = False,
) -> alt.TopLevelMixin:
    """Draw the reliability diagrams of several methods side by side, with the same axes.

    Use it to compare methods on the same images, such as a network before and after calibration.

    Args:
        methods: The predicted probabilities of each method, by its name.
        labels: The true class of each image.
        bins: How many bins of equal width divide the confidence. Empty bins are not drawn.
        simplex: Whether to refuse rows that do not sum to 1.
        columns: How many diagrams stand in a row.
        width: The width and height of each diagram in pixels.
        dark: Whether to use colours for a dark background.

    Returns:
        An Altair chart with one panel per method.

    Raises:
        InputError: If `methods` is not a mapping, if probabilities or labels are invalid, or if
            Altair is not installed.

    Example:
        >>> import torch
        >>> logits = torch.tensor([[2.0, 0.0], [1.0, 0.0], [0.0, 3.0]])
        >>> methods = {"vanilla": logits.softmax(-1), "softer": (logits / 2).softmax(-1)}
        >>> chart = compare_plot(methods, [0, 1, 1])
        >>> len(chart.concat)
        2
    """
    if not isinstance(methods, Mapping):
        raise InputError(
            f"compare_plot takes {{name: probs}}, got {type(methods).__name__}; "
            "for one set of probabilities use reliability(probs, labels)"
        )
    measured = {name: _measured(probs, labels, bins, simplex) for name, probs in methods.items()}
    return side_by_side(measured, columns, width, dark)


def _measured(probs: Array, labels: LabelArray, bins: int, simplex: bool) -> Detail:
    """The part of a detail that a reliability diagram shows."""
    p, y = validate(probs, labels)
    measurable(["accuracy"], labelled=y is not None)
    found = [(part.confidence, part.correct) for part in per_image(p, y, simplex=simplex)]
    confidence, correct = (torch.cat(column).cpu() for column in zip(*found, strict=True))
    return {
        "images": len(p),
        "accuracy": correct.mean().item(),
        "confidence": confidence.mean().item(),
        "bins": reliability_bins(confidence, correct, count=bins),
    }


def side_by_side(
    details: Mapping[str, Detail], columns: int, width: int = 260, dark: bool = False
) -> alt.TopLevelMixin:
    """Draw the diagrams of details by their names, with the same axes."""
    if not details:
        raise InputError("expected at least one method to draw, got none")
    # The larger offset makes room for the shared legend.
    panels = [diagram(detail, name, width, offset=16) for name, detail in details.items()]
    return finished(grid(panels, columns), dark)


def diagram(detail: Detail, title: str, width: int = 300, *, offset: int = 4) -> Any:
    """Draw the accuracy in each bin of a detail and, below it, how many images each bin has.

    Bars are the accuracy and its gap to the confidence; a dot on the diagonal has no gap.
    """
    rows = _bins(detail)
    base = chart_of(rows)
    span = base.encode(x=unit(alt.X, "from", labels=False), x2="to")
    middle = base.encode(x="confidence:Q")
    tips = tooltips("range", "images", "confidence", "accuracy", "interval", "gap")

    def area(field: str, to: Any) -> Any:
        fill = alt.Color(f"{field}:N", legend=above(offset))
        fill = fill.scale(domain=["accuracy", OVER, UNDER], range=[SKY, ORANGE, PURPLE])
        y = unit(alt.Y, "accuracy", "accuracy")
        return span.mark_rect().encode(y=y, y2=to, color=fill)

    gaps = alt.layer(
        area("bar", alt.datum(0)),
        area("sense", "confidence"),
        _diagonal(),
        middle.mark_rule(style="whisker").encode(y="low:Q", y2="high"),
        middle.mark_point(style="dot").encode(y="accuracy:Q"),
        span.mark_rect(opacity=0).encode(y=alt.datum(0), y2=alt.datum(1), tooltip=tips),
        width=width,
        height=width,
    )
    counts = base.mark_rect(style="count").encode(
        x=unit(alt.X, "from", "confidence"),
        x2="to",
        y=alt.Y("images:Q", title="images").axis(tickCount=2, format=",d"),
        y2=alt.datum(0),
        tooltip=tips,
    )
    both = alt.vconcat(gaps, counts.properties(width=width, height=max(40, width // 6)), spacing=8)
    notes = [
        f"{detail['images']:,} images · ECE {_ece(detail):.4f}",
        f"confidence {detail['confidence']:.3f} · accuracy {detail['accuracy']:.3f}",
    ]
    what = f"Reliability diagram{_of_title(title)}, {len(rows)} bins"
    return titled(both, width, title, notes, what)


def overlaid(details: Mapping[str, Detail]) -> Any:
    """Draw the accuracy at each confidence of one or two methods as lines in one small diagram.

    The first of two methods is grey. Larger dots stand for more images.
    """
    names = list(details)
    data = [{"method": name, **row} for name, detail in details.items() for row in _bins(detail)]
    colour = alt.Color("method:N", legend=above(symbolOpacity=1))
    base = chart_of(data).encode(
        x=unit(alt.X, "confidence", "confidence"),
        color=colour.scale(domain=names, range=[GREY, BLUE][-len(names) :]),
    )
    y = unit(alt.Y, "accuracy", "accuracy")
    dots = base.mark_point(filled=True, opacity=1).encode(
        y=y,
        size=alt.Size("images:Q", legend=None).scale(range=[12, 150], domainMin=0),
        shape=alt.Shape("method:N", legend=None),
        tooltip=tooltips("method", "range", "images", "confidence", "accuracy", "interval"),
    )
    chart = alt.layer(
        _diagonal(),
        base.mark_rule(opacity=0.45).encode(y="low:Q", y2="high"),
        base.mark_line(strokeWidth=1.5).encode(y=y),
        dots,
        width=230,
        height=230,
    )
    note = "ECE " + " → ".join(f"{_ece(detail):.4f}" for detail in details.values())
    what = f"Accuracy at each confidence of {' and '.join(names)}; on the dashed line both agree"
    return titled(chart, 230, "Accuracy at each confidence", [note], what)


def _diagonal() -> Any:
    """The line on which confidence and accuracy are equal."""
    ends: list[Datum] = [{"x": 0, "y": 0}, {"x": 1, "y": 1}]
    return chart_of(ends).mark_line(style="diagonal").encode(x="x:Q", y="y:Q")


def _ece(detail: Detail) -> float:
    """The expected calibration error of the bins of a detail."""
    return float(sum(row["images"] * abs(row["gap"]) for row in _bins(detail)) / detail["images"])


def _bins(detail: Detail) -> list[Datum]:
    """The bins that have images, and the texts that describe them."""
    found = detail["bins"]
    columns = (found[name] for name in ("counts", "confidence", "accuracy", "low", "high"))
    return [
        {
            "from": start,
            "to": end,
            "range": between(start, end),
            **_calibration(images, confidence, accuracy),
            "low": low,
            "high": high,
            "interval": f"{low:.3f} to {high:.3f}",
            "bar": "accuracy",  # the legend's name of the bars
        }
        for (start, end), images, confidence, accuracy, low, high in zip(
            pairwise(found["edges"]), *columns, strict=True
        )
        if images
    ]


# ---- confidence and risk -------------------------------------------------------------------------


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
    chart = histogram("images", counts, "confidence", width, tooltips("method", "range", "images"))
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
        {"method": name, **dict(zip(detail["risk"], point, strict=True))}
        for name, detail in details.items()
        for point in zip(*detail["risk"].values(), strict=True)
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


# ---- views and classes ---------------------------------------------------------------------------


def weights(detail: Detail, title: str) -> Any:
    """Draw the learned weights: kinds of view × classes, or one column for all classes."""
    views = detail["views"]
    kinds, classes = views["kinds"], len(views["weights"][0])
    names = ["all classes"] if classes == 1 else _class_names(detail, classes)
    if classes > LABELLED:  # the data repeats each name per kind of view, and names may be long
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
        f"Weights of {len(kinds)} kinds of view{_of_title(title)}, {classes} for each",
    )


def _weight_layers(data: list[Datum], names: list[str], largest: float) -> list[Any]:
    """Coloured cells and, for few classes, the weights as text in them."""
    classes, labelled = len(names), len(names) <= LABELLED
    title = None if classes == 1 else "class"
    upright = classes == 1 or max(map(len, names)) < 5
    x = alt.X("class:N", title=title if labelled else f"{classes:,} classes, in their order")
    x = x.scale(domain=names).axis(
        labels=labelled, ticks=labelled, labelAngle=0 if upright else -40, labelOverlap=False
    )
    base = chart_of(data).encode(x=x, y=named_rows("kind", data))
    colour = alt.Color("weight:Q", title="weight").scale(
        domain=[-largest, largest], domainMid=0, range="diverging", interpolate="rgb"
    )
    length = max(60, 26 * len(data) // classes)
    cells = base.mark_rect(style="grid" if labelled else "dense").encode(
        color=colour.legend(gradientLength=length, format=".2~f", tickCount=3),
        tooltip=tooltips("kind", "class", "weight"),
    )
    texts = base.mark_text(style="value").encode(text=alt.Text("weight:Q", format="+.2f"))
    return [cells, texts] if classes <= WRITTEN else [cells]


def shares(detail: Detail, title: str, width: int = 360) -> Any:
    """Draw the share of the views in each image, its limit, and how often the class guard acts."""
    views = detail["views"]
    limit = chart_of([{name: views[name] for name in ("limit", "mean_share")}])
    tips = tooltips("limit", "mean_share")
    rule = limit.mark_rule(style="guide").encode(x="limit:Q", tooltip=tips)
    note = (
        f"limit {views['limit']:.3f}, dashed; "
        f"the class guard holds {views['limited']:,} of {detail['images']:,} images below it; "
        f"mean share {views['mean_share']:.3f}"
    )
    tips = tooltips("range", "images", range="share in")
    bars = histogram("images", [("", views["shares"])], "share of the views", width, tips)
    return titled(bars + rule, width, title, [note], f"Shares of the views{_of_title(title)}")


def per_class(detail: Detail, title: str, width: int = 420) -> Any:
    """Draw confidence minus accuracy by predicted class with 95 % intervals, largest gaps only."""
    data = _class_gaps(detail)
    shown, rest = sorted(data[:_SHOWN], key=lambda row: -row["gap"]), data[_SHOWN:]
    notes = f"all {len(data)} predicted classes"
    if rest:
        notes = f"the {len(shown)} largest gaps of {len(data)} classes; "
        notes += f"the other {len(rest)} are within ±{abs(rest[0]['gap']):.3f}"
    if never := len(detail["per_class"]["counts"]) - len(data):
        notes += f"; {never} never predicted"
    base = chart_of(shown).encode(
        y=named_rows("class", shown),
        tooltip=tooltips("class", "images", "confidence", "accuracy", "gap", "interval"),
    )
    x = alt.X("gap:Q", title="confidence − accuracy")
    colour = alt.Color("sense:N", title=None, legend=above())
    bars = base.mark_bar(height={"band": 0.7}).encode(
        x=x.axis(format="+.3~f", tickCount=5, labelFlush=False),
        color=colour.scale(domain=[OVER, UNDER], range=[ORANGE, PURPLE]),
    )
    whiskers = base.mark_rule(style="whisker").encode(x="low:Q", x2="high")
    zero = chart_of([{"zero": 0}]).mark_rule(style="zero").encode(x="zero:Q")
    chart = alt.layer(bars, zero, whiskers, width=width, height=max(40, 20 * len(shown)))
    what = f"Confidence minus accuracy by predicted class{_of_title(title)}"
    return titled(chart, width, title, [notes], what)


def _class_gaps(detail: Detail) -> list[Datum]:
    """The classes that were predicted, largest gaps first."""
    found, data = detail["per_class"], list[Datum]()
    columns = (found[name] for name in ("counts", "confidence", "accuracy"))
    names = _class_names(detail, len(found["counts"]))
    for name, images, confidence, accuracy in zip(names, *columns, strict=True):
        if images:
            low, high = (confidence - end for end in reversed(wilson(float(images), accuracy)))
            row = _calibration(images, confidence, accuracy)
            interval = f"{low:+.3f} to {high:+.3f}"
            data.append({"class": name, **row, "low": low, "high": high, "interval": interval})
    return sorted(data, key=lambda row: -abs(row["gap"]))


def _class_names(detail: Detail, count: int) -> list[str]:
    """The names of the classes, or their numbers; duplicate names get their number appended."""
    found = (detail.get("per_class") or {}).get("names") or []
    return distinct([str(name) for name in (found if len(found) == count else range(count))])


# ---- drift ---------------------------------------------------------------------------------------

NEW, VALIDATION = "these images", "validation images"
_WIDTH = 420


def drift(found: Mapping[str, Any]) -> alt.TopLevelMixin:
    """Draw what `Drift.json` returns: histograms of confidence, and the estimated accuracy.

    Bars are these images; a line is the validation images, if their histogram was saved.
    """
    y = alt.Y("part:Q", title="share of images").axis(format=".0%", tickCount=4)
    shown, legend = [(NEW, found["seen_histogram"])], f"bars: {NEW}"
    if found["expected_histogram"]:
        shown.append((VALIDATION, found["expected_histogram"]))
        legend += f"; line: {VALIDATION}"
    tips = tooltips("method", "range", "part", method="images")
    chart = histogram("part", shown, "confidence", _WIDTH, tips, y)
    title = "Confidence and accuracy"
    above = titled(chart, _WIDTH, title, [found["sentence"], legend], title)
    both = alt.vconcat(above, _rates(found), spacing=24)
    return finished(both.properties(description=found["sentence"]))


def _rates(found: Mapping[str, Any]) -> Any:
    """Draw accuracy and mean confidence on both sets; the estimate has its interval."""
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
    colour = alt.Color("set:N", legend=None)
    base = chart_of(rows).encode(
        y=named_rows("name", rows),
        color=colour.scale(domain=[NEW, VALIDATION], range=[BLUE, VERMILION]),
    )
    points = base.mark_point(filled=True, size=70, opacity=1).encode(
        x=unit(alt.X, "rate"), tooltip=tooltips("name", "rate")
    )
    intervals = base.mark_rule(strokeWidth=2).encode(x="low:Q", x2="high:Q")
    texts = base.mark_text(dy=-11).encode(x="rate:Q", text=alt.Text("rate:Q", format=".0%"))
    return alt.layer(intervals, points, texts, width=_WIDTH, height=140)
