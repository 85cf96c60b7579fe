"""Reliability diagrams: the accuracy in each bin of confidence, from probabilities or from details."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from atta._base.errors import InputError
from atta._base.settings import Cells, Count, checked
from atta.metrics.binning import reliability_bins
from atta.metrics.per_image import Array, LabelArray, validate
from atta.metrics.scores import evaluate
from atta.report.figures import parts
from atta.report.figures.parts import OVER, UNDER, Datum, Detail
from atta.report.figures.theme import BLUE, GREY, ORANGE, PURPLE, SKY, alt, finished


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
    """Draw a reliability diagram: the accuracy in each bin of confidence, its gap to the confidence, its 95 % interval.

    Bins are those of the ECE; one without images is not drawn. `simplex=False` takes rows that do not sum to 1.

    >>> reliability(calibrator(test.predictions), test.labels, title="V-ATTA")  # doctest: +SKIP
    """
    return finished(diagram(_looked_at(probs, labels, bins, simplex), title, width), dark)


@checked
def compare_plot(
    methods: Any,
    labels: LabelArray,
    *,
    bins: Cells = 15,
    simplex: bool = True,
    columns: Count = 3,
    width: Count = 260,
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
    accuracy = evaluate(probs, labels, simplex=simplex, metrics=["accuracy"])[
        "accuracy"
    ]  # which checks
    given, y = validate(probs, labels)
    assert y is not None
    p, y = given.double().cpu(), y.cpu()
    confidence, correct = p.amax(1).clamp(0, 1), (p.argmax(1) == y).double()
    return {
        "images": len(p),
        "accuracy": accuracy,
        "confidence": confidence.mean().item(),
        "bins": reliability_bins(confidence, correct, count=bins),
    }


def reliabilities(
    details: Sequence[Detail], *, columns: int = 3, width: int = 260, dark: bool = False
) -> alt.TopLevelMixin:
    """Draw the reliability diagrams of several details side by side, with the same axes."""
    return _side_by_side(
        dict(zip(parts.names_of(details), details, strict=True)), columns, width, dark
    )


def _side_by_side(
    looked: Mapping[str, Detail], columns: int, width: int, dark: bool
) -> alt.TopLevelMixin:
    if not looked:
        raise InputError("expected at least one method to draw, got none")
    panels = [
        diagram(detail, name, width, apart=16) for name, detail in looked.items()
    ]  # they share one legend
    return finished(parts.grid(panels, columns), dark)


def diagram(detail: Detail, title: str, width: int = 320, *, apart: int = 4) -> Any:
    """The bins above, how many images they hold below; `apart` leaves room for a legend that several share."""
    if detail["bins"] is None:
        raise InputError("a reliability diagram needs labels, and these images have none")
    bins = _bins(detail["bins"])
    ece = sum(d["images"] * abs(d["gap"]) for d in bins) / detail["images"]
    said = [
        f"{detail['images']:,} images · ECE {ece:.4f}",
        f"confidence {detail['confidence']:.3f} · accuracy {detail['accuracy']:.3f}",
    ]
    tips = parts.tooltips(
        ("range", "confidence in"),
        ("images", "images", ",d"),
        ("confidence", "mean confidence", ".4f"),
        ("accuracy", "accuracy", ".4f"),
        ("interval", "its 95 % interval"),
        ("gap", "confidence − accuracy", "+.4f"),
    )
    base = alt.Chart(parts.inline(bins))
    upper = _gaps(base, tips, apart).properties(width=width, height=width)
    lower = (
        base.mark_rect(style="count")
        .encode(
            x=parts.unit(alt.X, "from", "confidence"),
            x2="to",
            y=alt.Y("images:Q", title="images", axis=alt.Axis(tickCount=2, format=",d")),
            y2=alt.datum(0),
            tooltip=tips,
        )
        .properties(width=width, height=max(40, width // 6))
    )
    return alt.vconcat(upper, lower, spacing=8).properties(
        title=parts.heading(title, said, width),
        description=f"Reliability diagram{parts.of_title(title)}: {len(bins)} bins of {' · '.join(said)}.",
    )


reliability_of = parts.of_detail(diagram)
"""The diagram of a detail."""


def overlaid(
    looked: Mapping[str, Detail], *, title: str = "", width: int = 230, dark: bool = False
) -> alt.TopLevelMixin:
    """Draw the accuracy at each confidence of one or two methods as lines in one small diagram: before in grey, then after.

    A dot is the larger the more images it stands for.
    """
    names = list(looked)
    bins = {name: _bins(detail["bins"]) for name, detail in looked.items()}
    data = [{"method": name, **one} for name, found in bins.items() for one in found]
    sums = {
        name: sum(d["images"] * abs(d["gap"]) for d in found) / looked[name]["images"]
        for name, found in bins.items()
    }
    said = "ECE " + " → ".join(f"{ece:.4f}" for ece in sums.values())
    colours = [GREY, BLUE][-len(names) :]
    key = alt.Legend(orient="top", title=None, offset=4, symbolOpacity=1)
    colour = alt.Color("method:N", scale=alt.Scale(domain=names, range=colours), legend=key)
    base = alt.Chart(parts.inline(data)).encode(
        x=parts.unit(alt.X, "confidence", "confidence"), color=colour
    )
    tips = parts.tooltips(
        ("method", "method"),
        ("range", "confidence in"),
        ("images", "images", ",d"),
        ("confidence", "mean confidence", ".4f"),
        ("accuracy", "accuracy", ".4f"),
        ("interval", "its 95 % interval"),
    )
    y = parts.unit(alt.Y, "accuracy", "accuracy")
    whiskers = base.mark_rule(opacity=0.45).encode(y="low:Q", y2="high")
    many = alt.Size("images:Q", scale=alt.Scale(range=[12, 150], domainMin=0), legend=None)
    dots = base.mark_point(filled=True, opacity=1).encode(
        y=y, size=many, shape=alt.Shape("method:N", legend=None), tooltip=tips
    )
    chart = alt.layer(
        _diagonal(), whiskers, base.mark_line(strokeWidth=1.5).encode(y=y), dots
    ).properties(
        width=width,
        height=width,
        title=parts.heading(title, [said], width),
        description=f"Accuracy at each confidence of {' and '.join(names)}: {said}. On the dashed line they are equal.",
    )
    return finished(chart, dark)


def _diagonal() -> Any:
    """Where confidence and accuracy are equal."""
    ends = [{"x": 0, "y": 0}, {"x": 1, "y": 1}]
    return alt.Chart(parts.inline(ends)).mark_line(style="diagonal").encode(x="x:Q", y="y:Q")


def _bins(found: Mapping[str, Any]) -> list[Datum]:
    """The bins that have images, and what is said of each."""
    return [
        {
            **{
                "from": a,
                "to": b,
                "images": n,
                "confidence": c,
                "accuracy": acc,
                "low": low,
                "high": high,
            },
            **{
                "gap": c - acc,
                "range": f"({a:.3g}, {b:.3g}]",
                "interval": f"{low:.3f} to {high:.3f}",
            },
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


def _gaps(base: alt.Chart, tips: list[alt.Tooltip], apart: int) -> Any:
    """The accuracy as bars, its gap to the confidence upon them, its interval, and where both would be equal."""
    key = parts.above(apart)
    colour = alt.Scale(domain=["accuracy", OVER, UNDER], range=[SKY, ORANGE, PURPLE])
    span = {"x": parts.unit(alt.X, "from", labels=False), "x2": "to"}

    def area(field: str, to: Any) -> Any:
        fill = alt.Color(f"{field}:N", scale=colour, legend=key)
        return base.mark_rect().encode(
            **span, y=parts.unit(alt.Y, "accuracy", "accuracy"), y2=to, color=fill
        )

    middle = base.encode(x="confidence:Q")
    whiskers = middle.mark_rule(style="whisker").encode(y="low:Q", y2="high")
    dots = middle.mark_point(style="dot").encode(y="accuracy:Q")
    hover = base.mark_rect(opacity=0).encode(**span, y=alt.datum(0), y2=alt.datum(1), tooltip=tips)
    return alt.layer(
        area("bar", alt.datum(0)), area("sense", "confidence"), _diagonal(), whiskers, dots, hover
    )
