"""Methods beside each other, from rows: by a metric, by the number of validation images, by what they cost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from atta._base.errors import InputError
from atta.data.views import Policy
from atta.report.figures import parts
from atta.report.figures.parts import Datum, Width
from atta.report.figures.theme import SKY, alt, finished
from atta.results.contenders import contender, labels, relabelled
from atta.results.rows import Interval, Results, Row
from atta.results.words import BASELINE, DRAWN


def ranking(
    rows: Iterable[Row],
    metric: str = "brier",
    baseline: str = BASELINE,
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
        "value:Q",
        title=parts.sense(metric),
        scale=alt.Scale(zero=False),
        axis=alt.Axis(tickCount=5, labelFlush=False),
    )
    layers = [
        base.mark_rule(style="measured", strokeWidth=2).encode(x="low:Q", x2="high"),
        base.mark_point(style="measured", filled=True, size=70).encode(x=x),
    ]
    rule = [d for d in data if d["method"] == baseline and d["value"] is not None]
    if rule:
        layers.insert(0, alt.Chart(parts.inline(rule)).mark_rule(style="guide").encode(x="value:Q"))
    said = [f"dashed: {baseline}"] if rule else []
    return _bars(
        layers, data, metric, f"Methods by {metric}" if title is None else title, said, width, dark
    )


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
            x=alt.X(
                "value:Q",
                title=f"{metric} (higher is better)",
                axis=alt.Axis(tickCount=6, labelFlush=False),
            )
        ),
        base.mark_rule(style="whisker").encode(x="low:Q", x2="high"),
    ]
    own = f"{metric.replace('_', ' ').capitalize()} on foreign images"
    return _bars(layers, data, metric, own if title is None else title, [], width, dark)


def _ranked(
    rows: Iterable[Row], metric: str, intervals: Iterable[Interval], *, higher: bool = False
) -> list[Datum]:
    """The methods, the best first; those whose number is none, such as nan, come last and are named without a mark."""
    found = _summaries(rows, metric, intervals)
    data = [d for d in found if d["value"] is not None]
    if not data:
        raise InputError(f"no {metric} of these rows is a finite number")
    data.sort(key=lambda d: d["value"], reverse=higher or DRAWN.get(metric) == "higher")
    return data + [d for d in found if d["value"] is None]


def _by_method(data: list[Datum]) -> alt.Chart:
    names = [d["method"] for d in data]
    return alt.Chart(parts.inline(data)).encode(
        y=alt.Y("method:N", title=None, scale=alt.Scale(domain=names), axis=parts.all_labels()),
        tooltip=parts.measured(),
    )


def _bars(
    layers: list[Any],
    data: list[Datum],
    metric: str,
    title: str,
    said: list[str],
    width: Width,
    dark: bool,
) -> alt.TopLevelMixin:
    runs = max(d["runs"] for d in data)
    over = (
        " and its 95 % interval over test images" if any(d["low"] is not None for d in data) else ""
    )
    said = [f"mean of {runs} runs and its 95 % interval" if runs > 1 else f"one run{over}", *said]
    first, *_, last = [d for d in data if d["value"] is not None] * 2
    chart = alt.layer(*layers).properties(
        width=width,
        height=max(40, 24 * len(data)),
        title=parts.heading(title, ["; ".join(said)], width),
        description=f"{metric} of {len(data)} methods, from {first['method']} ({first['value']:.4f}) to "
        f"{last['method']} ({last['value']:.4f}); {'; '.join(said)}.",
    )
    return finished(chart, dark)


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
    rows = relabelled(Results(tuple(row for row in rows if row.validation))).rows
    panels, names = [], list(dict.fromkeys(row.method for row in rows))
    apart = parts.told_apart(names)
    for metric in metrics or dict.fromkeys(row.metric for row in rows):
        found = [row for row in rows if row.metric == metric]
        counts = sorted({row.validation for row in found})
        data = [
            {"validation": n, **d}
            for n in counts
            for d in _summaries([row for row in found if row.validation == n], metric)
        ]
        base = alt.Chart(parts.inline(data)).encode(
            x=alt.X(
                "validation:Q",
                title="validation images",
                scale=alt.Scale(type="log", nice=False),
                axis=alt.Axis(values=counts, format=",d", grid=False, labelFlush=False),
            ),
            color=apart["color"],
        )
        y = alt.Y("value:Q", title=parts.sense(metric), scale=alt.Scale(zero=False))
        band = base.mark_area(opacity=0.12).encode(
            y=alt.Y("low:Q", title=parts.sense(metric)), y2="high"
        )
        lines = base.mark_line(strokeWidth=2).encode(y=y, strokeDash=apart["strokeDash"])
        points = base.mark_point(filled=True, size=50, opacity=1).encode(
            y=y,
            shape=apart["shape"],
            tooltip=[*parts.tooltips(("validation", "validation images", ",d")), *parts.measured()],
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
    return finished(parts.grid(panels, columns), dark)


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
        {**point, **{name: parts.number(point[name]) for name in ("value", "low", "high")}}
        for point in points
        if parts.number(point["value"]) is not None
    ]
    if not data:
        raise InputError(
            f"there is no {metric} of a method with a policy that was given to it: nothing to draw"
        )
    names = list(dict.fromkeys(d["method"] for d in data))
    apart = parts.told_apart(names, orient="top", columns=max(1, parts.pixels(width, 600) // 140))
    x = alt.X(
        "passes:Q",
        title="passes of the network an image",
        scale=alt.Scale(type="log", base=2, nice=False, padding=36),
        axis=alt.Axis(
            values=sorted({d["passes"] for d in data}), format=",.2~f", grid=False, labelFlush=False
        ),
    )
    y = alt.Y("value:Q", title=parts.sense(metric), scale=alt.Scale(zero=False))
    base = alt.Chart(parts.inline(data)).encode(x=x, color=apart["color"])
    tips = parts.tooltips(
        ("method", "method"),
        ("policy", "policy"),
        ("passes", "passes", ",.2~f"),
        ("value", "mean", ".5f"),
    )
    layers = [
        base.mark_rule(strokeWidth=1.5).encode(y="low:Q", y2="high"),
        base.mark_point(filled=True, size=70, opacity=1).encode(
            y=y, shape=apart["shape"], tooltip=tips
        ),
        alt.Chart(parts.inline(_texts(data)))
        .mark_text(style="note", align="left", dx=9)
        .encode(x=x, y=y, text="policy:N"),
    ]
    best = min(data, key=lambda d: d["value"] * (-1 if DRAWN.get(metric) == "higher" else 1))
    said = f"best: {best['method']} with {best['policy'] or 'no views'}, {best['passes']:g} passes, {best['value']:.4f}"
    own = f"{metric} by passes"
    return finished(
        alt.layer(*layers).properties(
            width=width,
            height=260,
            title=parts.heading(own if title is None else title, [said], width),
            description=f"{metric} against passes of the network an image, {len(data)} points; {said}.",
        ),
        dark,
    )


def _texts(data: Sequence[Datum]) -> list[Datum]:
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
            texts.append(
                {
                    "passes": d["passes"],
                    "value": d["value"],
                    "top": d["value"],
                    "names": {d["policy"]: None},
                }
            )
    return [
        {
            "passes": t["passes"],
            "value": (t["value"] + t["top"]) / 2,
            "policy": ", ".join(t["names"]),
        }
        for t in texts
    ]


def cost_points(results: Results, metric: str = "brier") -> list[Datum]:
    """The points of `cost`: of each method with each policy that was given, not chosen, the mean and its interval."""
    known = {(d["method"], d["policy"]): d["passes"] for d in results.details}
    points = []
    rows = [row for row in results if row.metric == metric and not row.choice]
    for method, policy in dict.fromkeys((row.method, row.policy) for row in rows):
        mine = [
            replace(row, policy="") for row in rows if (row.method, row.policy) == (method, policy)
        ]
        (summary,) = _summaries(mine, metric)
        views = Policy.parse(policy).repeats.values() if policy else ()
        passes = known.get((method, policy), 1 + sum(views))
        points.append({"policy": policy, "passes": passes, **summary})
    return points


def _summaries(rows: Iterable[Row], metric: str, intervals: Iterable[Interval] = ()) -> list[Datum]:
    """The mean of a metric over splits and seeds, and its interval, by what a chart calls the method."""
    found = Results(tuple(row for row in rows if row.metric == metric))
    if not found.rows:
        raise InputError(f"there are no rows of {metric} to draw")
    names = {name: key for key, name in labels(map(contender, found)).items()}
    table = relabelled(found).pivot(
        ("method",), ("metric",)
    )  # which refuses to average what differs
    over_images = {
        contender(one): (one.low, one.high)
        for one in intervals
        if one.metric == metric and not one.against
    }
    summaries = []
    for (name, key), summary in zip(names.items(), table.numbers.values(), strict=True):
        half = summary.interval if summary.interval is not None else math.nan
        between = over_images.get(key) if summary.count == 1 else None
        low, high = map(parts.number, between or (summary.mean - half, summary.mean + half))
        interval = "one run" if low is None or high is None else f"{low:.5f} to {high:.5f}"
        seen = {"value": parts.number(summary.mean), "low": low, "high": high}
        summaries.append({"method": name, **seen, "runs": summary.count, "interval": interval})
    return summaries
