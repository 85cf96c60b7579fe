"""Draws reliability diagrams: the accuracy in each bin of confidence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from atta._base.errors import InputError
from atta._base.settings import Cells, Count, checked
from atta.metrics.binning import reliability_bins
from atta.metrics.formulas import measurable
from atta.metrics.per_image import Array, LabelArray, per_image, validate
from atta.report.figures.theme import (
    BLUE,
    GREY,
    ORANGE,
    OVER,
    PURPLE,
    SKY,
    UNDER,
    Datum,
    Detail,
    above,
    alt,
    calibration,
    chart_of,
    finished,
    grid,
    of_title,
    titled,
    tooltips,
    unit,
)


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
    """Draw the bins of a detail and, below them, how many images each bin has."""
    bins = _bins(detail)
    base = chart_of(bins)
    tips = tooltips("range", "images", "confidence", "accuracy", "interval", "gap")
    counts = base.mark_rect(style="count").encode(
        x=unit(alt.X, "from", "confidence"),
        x2="to",
        y=alt.Y("images:Q", title="images", axis=alt.Axis(tickCount=2, format=",d")),
        y2=alt.datum(0),
        tooltip=tips,
    )
    both = alt.vconcat(
        _gaps(base, tips, offset).properties(width=width, height=width),
        counts.properties(width=width, height=max(40, width // 6)),
        spacing=8,
    )
    notes = [
        f"{detail['images']:,} images · ECE {_ece(detail):.4f}",
        f"confidence {detail['confidence']:.3f} · accuracy {detail['accuracy']:.3f}",
    ]
    what = f"Reliability diagram{of_title(title)}, {len(bins)} bins"
    return titled(both, width, title, notes, what)


def overlaid(details: Mapping[str, Detail]) -> Any:
    """Draw the accuracy at each confidence of one or two methods as lines in one small diagram.

    The first of two methods is grey. Larger dots stand for more images.
    """
    names = list(details)
    data = [{"method": name, **row} for name, detail in details.items() for row in _bins(detail)]
    colours = alt.Scale(domain=names, range=[GREY, BLUE][-len(names) :])
    legend = above(symbolOpacity=1)
    base = chart_of(data).encode(
        x=unit(alt.X, "confidence", "confidence"),
        color=alt.Color("method:N", scale=colours, legend=legend),
    )
    y = unit(alt.Y, "accuracy", "accuracy")
    area = alt.Scale(range=[12, 150], domainMin=0)
    dots = base.mark_point(filled=True, opacity=1).encode(
        y=y,
        size=alt.Size("images:Q", scale=area, legend=None),
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
            "range": f"({start:.3g}, {end:.3g}]",
            **calibration(images, confidence, accuracy),
            "low": low,
            "high": high,
            "interval": f"{low:.3f} to {high:.3f}",
            "bar": "accuracy",  # the legend's name of the bars
        }
        for start, end, images, confidence, accuracy, low, high in zip(
            found["edges"][:-1], found["edges"][1:], *columns, strict=True
        )
        if images
    ]


def _gaps(base: alt.Chart, tips: list[alt.Tooltip], offset: int) -> Any:
    """The accuracy as bars, its gap to the confidence, its interval, and the diagonal."""
    colours = alt.Scale(domain=["accuracy", OVER, UNDER], range=[SKY, ORANGE, PURPLE])
    span = base.encode(x=unit(alt.X, "from", labels=False), x2="to")

    def area(field: str, to: Any) -> Any:
        fill = alt.Color(f"{field}:N", scale=colours, legend=above(offset))
        y = unit(alt.Y, "accuracy", "accuracy")
        return span.mark_rect().encode(y=y, y2=to, color=fill)

    middle = base.encode(x="confidence:Q")
    return alt.layer(
        area("bar", alt.datum(0)),
        area("sense", "confidence"),
        _diagonal(),
        middle.mark_rule(style="whisker").encode(y="low:Q", y2="high"),
        middle.mark_point(style="dot").encode(y="accuracy:Q"),
        span.mark_rect(opacity=0).encode(y=alt.datum(0), y2=alt.datum(1), tooltip=tips),
    )
