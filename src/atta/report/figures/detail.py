"""What `experiments.details` saw of one method: its confidence, the weights and shares of its views, its gaps by class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from atta._base.errors import InputError
from atta.metrics.binning import wilson
from atta.report.figures import parts
from atta.report.figures.parts import OVER, UNDER, Datum, Detail, Width
from atta.report.figures.theme import ORANGE, PURPLE, SKY, VERMILION, alt, finished

LABELLED = 40  # classes that have their names on an axis
SHORT = 20  # letters of a class's name where there are many
WRITTEN = 12  # classes that have their weights in the cells


def confidence_histogram(
    details: Sequence[Detail],
    *,
    log: bool = True,
    columns: int = 2,
    width: Width = 360,
    dark: bool = False,
) -> alt.TopLevelMixin:
    """Draw how many images have which confidence: the first detail as a line over the bars of each other one.

    `log` counts on a logarithmic axis: a good network is nearly sure of nearly everything.
    """
    if not details:
        raise InputError("there is nothing to draw: expected at least one detail, got none")
    names = parts.names_of(details)
    before = (names[0], details[0])
    after = list(zip(names[1:], details[1:], strict=True))
    size = width if len(after) < 2 else parts.pixels(width)
    panels = [_histogram(before, pair, log, size) for pair in after] or [
        _histogram(None, before, log, size)
    ]
    return finished(panels[0] if len(panels) == 1 else parts.grid(panels, columns), dark)


def _histogram(
    before: tuple[str, Detail] | None, after: tuple[str, Detail], log: bool, width: Width
) -> Any:
    name, detail = after
    x, y = parts.unit(alt.X, "from", "confidence"), parts.counting("images", log)
    tips = parts.tooltips(
        ("method", "method"), ("range", "confidence in"), ("images", "images", ",d")
    )
    layers: list[Any] = [
        alt.Chart(parts.inline(_cells(detail["histogram"], name)))
        .mark_rect(color=SKY)
        .encode(x=x, x2="to", y=y, y2=alt.datum(0), tooltip=tips)
    ]
    if before:
        cells = _cells(before[1]["histogram"], before[0])
        # A step ends where the next begins: the last one needs its end said.
        cells.append({**cells[-1], "from": cells[-1]["to"]})
        line = alt.Chart(parts.inline(cells)).mark_line(interpolate="step-after", color=VERMILION)
        layers.append(line.encode(x=x, y=y, tooltip=tips))
    said = [f"bars: {name}, mean {detail['confidence']:.3f}"]
    if before:
        said.append(f"line: {before[0]}, mean {before[1]['confidence']:.3f}")
    return alt.layer(*layers).properties(
        width=width,
        height=180,
        title=parts.heading(name, said, width),
        description=f"Histogram of the confidence of {detail['images']:,} images; {'; '.join(said)}.",
    )


def _cells(counts: Sequence[int], method: str = "") -> list[Datum]:
    """The cells of a histogram over [0, 1]."""
    edges = [i / len(counts) for i in range(len(counts) + 1)]
    return [
        {
            "from": a,
            "to": b,
            "images": n,
            "range": f"({a:.3g}, {b:.3g}]",
            **({"method": method} if method else {}),
        }
        for a, b, n in zip(edges[:-1], edges[1:], counts, strict=True)
    ]


def weights_panel(detail: Detail, title: str, width: Width | None = None) -> Any:
    """Draw the learned weights: kinds of view × classes, one column where all classes share them (V-ATTA)."""
    views = _views(detail)
    classes = len(views["weights"][0]) if views["weights"] else 0
    names = ["all classes"] if classes == 1 else parts.class_names(detail, classes)
    if (
        classes > LABELLED
    ):  # each name stands in the data once a kind of view, and a thousand of them may be long
        names = [f"{i} {name[:SHORT]}" for i, name in enumerate(names)]
    data = [
        {"kind": kind, "class": name, "weight": weight}
        for kind, row in zip(views["kinds"], views["weights"], strict=True)
        for name, weight in zip(names, map(parts.number, row), strict=True)
    ]
    known = [d["weight"] for d in data if d["weight"] is not None]
    most = max(map(abs, known), default=0.0) or 1.0
    labelled = classes <= LABELLED
    across = alt.X(
        "class:N",
        title=None
        if classes == 1
        else "class"
        if labelled
        else f"{classes:,} classes, in their order",
        scale=alt.Scale(domain=names),
        axis=alt.Axis(
            labels=labelled,
            ticks=labelled,
            labelAngle=0 if max(map(len, names)) < 5 or classes == 1 else -40,
            labelOverlap=False,
        ),
    )
    down = alt.Y("kind:N", title=None, scale=alt.Scale(domain=list(views["kinds"])))
    tips = parts.tooltips(("kind", "view"), ("class", "class"), ("weight", "weight", "+.4f"))
    base = alt.Chart(parts.inline(data)).encode(x=across, y=down)
    cells = base.mark_rect(style="grid" if labelled else "dense").encode(
        color=alt.Color(
            "weight:Q",
            title="weight",
            scale=alt.Scale(
                domain=[-most, most], domainMid=0, range="diverging", interpolate="rgb"
            ),
            legend=alt.Legend(
                gradientLength=max(60, 26 * len(views["kinds"])), format=".2~f", tickCount=3
            ),
        ),
        tooltip=tips,
    )
    layers = [cells, base.mark_text(style="value").encode(text=alt.Text("weight:Q", format="+.2f"))]
    limit, span = f"limit {views['limit']:.3f}", (min(known, default=0.0), max(known, default=0.0))
    said = f"weights from {span[0]:+.3f} to {span[1]:+.3f}".replace("-", "−")
    size = width or (
        110
        if classes == 1
        else 46 * classes
        if classes <= WRITTEN
        else max(420, min(640, 22 * classes))
    )
    return alt.layer(*layers[: 2 if classes <= WRITTEN else 1]).properties(
        width=size,
        height=28 * len(views["kinds"]),
        title=parts.heading(
            title, [f"{limit} · {said}"], size if size == "container" else max(300, size)
        ),
        description=f"Weights of {len(views['kinds'])} kinds of view{parts.of_title(title)}, "
        f"{classes} for each: {said}, {limit}.",
    )


def shares_panel(detail: Detail, title: str, width: Width = 360, *, log: bool = True) -> Any:
    """Draw the shares that images give their views, the limit, and how many images the class guard holds below it."""
    views = _views(detail)
    bars = (
        alt.Chart(parts.inline(_cells(views["shares"])))
        .mark_rect(color=SKY)
        .encode(
            x=parts.unit(alt.X, "from", "share of the views"),
            x2="to",
            y=parts.counting("images", log),
            y2=alt.datum(0),
            tooltip=parts.tooltips(("range", "share in"), ("images", "images", ",d")),
        )
    )
    limit = alt.Chart(
        parts.inline([{"limit": views["limit"], "mean": views["mean_share"]}])
    ).encode(
        x="limit:Q",
        tooltip=parts.tooltips(("limit", "limit", ".4f"), ("mean", "mean share", ".4f")),
    )
    held = f"the class guard holds {views['limited']:,} of {detail['images']:,} images below it"
    said = f"limit {views['limit']:.3f}, dashed; {held}; mean share {views['mean_share']:.3f}"
    return alt.layer(bars, limit.mark_rule(style="guide")).properties(
        width=width,
        height=180,
        title=parts.heading(title, [said], width),
        description=f"Shares of the views{parts.of_title(title)}: {said}.",
    )


def per_class_panel(detail: Detail, title: str, width: Width = 420, *, most: int = 30) -> Any:
    """Draw confidence minus accuracy by predicted class, with 95 % intervals: the `most` classes of the largest gaps."""
    found = detail["per_class"]
    if found is None:
        raise InputError("accuracy by class needs labels, and these images have none")
    data = _class_gaps(parts.class_names(detail, len(found["counts"])), found)
    shown, rest = sorted(data[:most], key=lambda d: -d["gap"]), data[most:]
    never = len(found["counts"]) - len(data)
    said = [
        f"the {len(shown)} largest gaps of {len(data)} classes; the other {len(rest)} are within ±{abs(rest[0]['gap']):.3f}"
        if rest
        else f"all {len(data)} predicted classes",
        *([f"{never} never predicted"] if never else []),
    ]
    base = alt.Chart(parts.inline(shown)).encode(
        y=alt.Y(
            "class:N",
            title=None,
            scale=alt.Scale(domain=[d["class"] for d in shown]),
            axis=parts.all_labels(),
        ),
        tooltip=parts.tooltips(
            ("class", "predicted class"),
            ("images", "images", ",d"),
            ("confidence", "mean confidence", ".4f"),
            ("accuracy", "accuracy", ".4f"),
            ("gap", "confidence − accuracy", "+.4f"),
            ("interval", "its 95 % interval"),
        ),
    )
    bars = base.mark_bar(height={"band": 0.7}).encode(
        x=alt.X(
            "gap:Q",
            title="confidence − accuracy",
            axis=alt.Axis(format="+.3~f", tickCount=5, labelFlush=False),
        ),
        color=alt.Color(
            "sense:N",
            title=None,
            scale=alt.Scale(domain=[OVER, UNDER], range=[ORANGE, PURPLE]),
            legend=parts.above(),
        ),
    )
    whiskers = base.mark_rule(style="whisker").encode(x="low:Q", x2="high")
    zero = alt.Chart(parts.inline([{"zero": 0}])).mark_rule(style="zero").encode(x="zero:Q")
    return alt.layer(bars, zero, whiskers).properties(
        width=width,
        height=max(40, 20 * len(shown)),
        title=parts.heading(title, ["; ".join(said)], width),
        description=f"Confidence minus accuracy by predicted class{parts.of_title(title)}: {'; '.join(said)}.",
    )


weights, shares = parts.of_detail(weights_panel), parts.of_detail(shares_panel)
per_class = parts.of_detail(per_class_panel)


def _views(detail: Detail) -> Mapping[str, Any]:
    if detail["views"] is None:
        raise InputError(
            f"{detail.get('method', 'the method')} learns no weights of views: there is nothing to draw"
        )
    views: Mapping[str, Any] = detail["views"]
    return views


def _class_gaps(names: Sequence[str], found: Mapping[str, Any]) -> list[Datum]:
    """The classes that were predicted, the largest gaps first."""
    data: list[Datum] = []
    columns = (found[name] for name in ("counts", "confidence", "accuracy"))
    for name, n, confidence, accuracy in zip(names, *columns, strict=True):
        if n:
            low, high = (confidence - end for end in reversed(wilson(float(n), accuracy)))
            sense = OVER if confidence >= accuracy else UNDER
            data.append(
                {
                    **{
                        "class": name,
                        "images": n,
                        "confidence": confidence,
                        "accuracy": accuracy,
                        "sense": sense,
                    },
                    **{"gap": confidence - accuracy, "low": low, "high": high},
                    "interval": f"{low:+.3f} to {high:+.3f}",
                }
            )
    return sorted(data, key=lambda d: -abs(d["gap"]))
