"""Draws results: methods by a metric, by validation images, by cost; `figure` draws any chart."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from atta._base.errors import InputError, suggest
from atta.data.views import Policy
from atta.report.figures.detail import (
    confidence_histograms,
    diagram,
    per_class,
    risks,
    shares,
    weights,
)
from atta.report.figures.theme import (
    SKY,
    Datum,
    Detail,
    alt,
    chart_of,
    finished,
    grid,
    named_rows,
    names_of,
    number,
    titled,
    told_apart,
    tooltips,
)
from atta.report.sections import with_cost
from atta.results.rows import Results
from atta.results.words import (
    BASELINE,
    COST,
    DRAWN,
    PASSES,
    Contender,
    bounds,
    contender,
    label,
    labels,
    relabelled,
)


def ranking(results: Results, metric: str = "brier", *, title: str = "", width: int = 420) -> Any:
    """Draw methods by a metric, best first: the mean over splits and seeds with its 95 % interval.

    A single run shows its interval over test images, if the results have one. A dashed line marks
    the baseline. Like `Results.pivot`, it refuses rows of different datasets or sizes.
    """
    data = _ranked(results, metric, higher=DRAWN.get(metric) == "higher")
    base = _by_method(data)
    layers = [
        base.mark_rule(style="measured", strokeWidth=2).encode(x="low:Q", x2="high"),
        base.mark_point(style="measured", filled=True, size=70).encode(
            x=_metric_axis(alt.X, metric).axis(tickCount=5, labelFlush=False)
        ),
    ]
    note = ""
    if baseline := [d for d in data if d["method"] == BASELINE and d["value"] is not None]:
        layers.insert(0, chart_of(baseline).mark_rule(style="guide").encode(x="value:Q"))
        note = f"; dashed: {BASELINE}"
    return _described(layers, data, metric, title or f"Methods by {metric}", note, width)


def entropy(results: Results, metric: str = "entropy") -> Any:
    """Draw the entropy of each method on images of unknown classes, highest (best) first."""
    data = _ranked(results, metric, higher=True)
    base = _by_method(data)
    x = alt.X("value:Q", title=f"{metric} (higher is better)")
    layers = [
        base.mark_bar(color=SKY, height={"band": 0.7}).encode(
            x=x.axis(tickCount=6, labelFlush=False)
        ),
        base.mark_rule(style="whisker").encode(x="low:Q", x2="high"),
    ]
    title = f"{metric.replace('_', ' ').capitalize()} on images of unknown classes"
    return _described(layers, data, metric, title)


def _ranked(results: Results, metric: str, *, higher: bool) -> list[Datum]:
    """The methods, best first; those without a finite number come last and have no mark."""
    sign = -1 if higher else 1
    found = _summaries(results, metric).values()
    data = sorted(found, key=lambda d: (d["value"] is None, sign * (d["value"] or 0)))
    if data[0]["value"] is None:
        raise InputError(f"no {metric} of these rows is a finite number")
    return data


def _by_method(data: list[Datum]) -> Any:
    """A chart with a row for each method, without marks."""
    tips = tooltips("method", "value", "interval", "runs")
    return chart_of(data).encode(y=named_rows("method", data), tooltip=tips)


def _described(
    layers: list[Any], data: list[Datum], metric: str, title: str, note: str = "", width: int = 420
) -> Any:
    """Layer a chart that has a row for each method, and describe the best and the worst of them."""
    runs = max(d["runs"] for d in data)
    if runs > 1:
        shown = f"mean of {runs} runs and its 95 % interval"
    elif any(d["low"] is not None for d in data):
        shown = "one run and its 95 % interval over test images"
    else:
        shown = "one run"
    first, *_, last = [d for d in data if d["value"] is not None] * 2
    chart = alt.layer(*layers, width=width, height=max(40, 24 * len(data)))
    what = (
        f"{metric} of {len(data)} methods, from {first['method']} ({first['value']:.4f}) "
        f"to {last['method']} ({last['value']:.4f})"
    )
    return titled(chart, width, title, [shown + note], what)


def _sense(metric: str) -> str:
    """A metric's name on an axis, and which direction is better."""
    better = DRAWN.get(metric)
    return f"{metric} ({better} is better)" if better else metric


def _metric_axis(channel: Any, metric: str) -> Any:
    """The axis of a metric, which need not start at 0."""
    return channel("value:Q", title=_sense(metric)).scale(zero=False)


def sizes(results: Results, metrics: Sequence[str] = ()) -> Any:
    """Draw metrics against the number of validation images: one panel per metric.

    Each method is a line with its 95 % interval. Without `metrics`, all metrics are drawn.
    """
    sized = relabelled(Results(tuple(row for row in results if row.validation)))
    if not sized.rows:
        raise InputError("there are no rows that say how many images were fitted on")
    apart = told_apart(sized.names("method"))
    return grid([_sizes(sized, metric, apart) for metric in metrics or sized.names("metric")], 2)


def _sizes(results: Results, metric: str, apart: Mapping[str, Any]) -> Any:
    """One panel of `sizes`."""
    found = results.where(metric=metric)
    counts = sorted(found.names("validation"))
    data = [
        {"validation": count, **row}
        for count in counts
        for row in _summaries(found.where(validation=count), metric).values()
    ]
    x = alt.X("validation:Q", title="validation images").scale(type="log", nice=False)
    x = x.axis(values=counts, format=",d", grid=False, labelFlush=False)
    base = chart_of(data).encode(x=x, color=apart["color"])
    y = _metric_axis(alt.Y, metric)
    tips = tooltips("validation", "method", "value", "interval", "runs")
    listed = ", ".join(f"{count:,}" for count in counts)
    return alt.layer(
        base.mark_area(opacity=0.12).encode(y=alt.Y("low:Q", title=_sense(metric)), y2="high"),
        base.mark_line(strokeWidth=2).encode(y=y, strokeDash=apart["strokeDash"]),
        base.mark_point(filled=True, size=50, opacity=1).encode(
            y=y, shape=apart["shape"], tooltip=tips
        ),
        width=300,
        height=200,
        description=f"{metric} of {len(results.names('method'))} methods "
        f"at {listed} validation images.",
    )


def cost(results: Results, metric: str = "brier", *, title: str = "", width: int = 460) -> Any:
    """Draw a metric against network passes per image, a point for each method and policy."""
    data = [d for d in cost_points(results, metric) if d["value"] is not None]
    if not data:
        raise InputError(f"there is nothing to draw: no method has a policy and a finite {metric}")
    names = list(dict.fromkeys(d["method"] for d in data))
    apart = told_apart(names, orient="top", columns=max(1, width // 140))
    ticks: list[float] = []  # a tick that would touch the one before it is left out
    for passes in sorted({d["passes"] for d in data}):
        if not ticks or passes > 1.25 * ticks[-1]:
            ticks.append(passes)
    x = alt.X("passes:Q", title="network passes per image")
    x = x.scale(type="log", base=2, nice=False, padding=36)
    x = x.axis(values=ticks, format=",.2~f", grid=False, labelFlush=False)
    y, tips = _metric_axis(alt.Y, metric), tooltips("method", "policy", "passes", "value")
    base = chart_of(data).encode(x=x, color=apart["color"])
    points = base.mark_point(filled=True, size=70, opacity=1)
    texts = chart_of(_texts(data)).mark_text(style="note", align="left", dx=9)
    chart = alt.layer(
        base.mark_rule(strokeWidth=1.5).encode(y="low:Q", y2="high"),
        points.encode(y=y, shape=apart["shape"], tooltip=tips),
        texts.encode(x=x, y=y, text="policy:N"),
        width=width,
        height=260,
    )
    best = min(data, key=lambda d: d["value"] * (-1 if DRAWN.get(metric) == "higher" else 1))
    note = (
        f"best: {best['method']} with {best['policy'] or 'no views'}, "
        f"{best['passes']:g} passes, {best['value']:.4f}"
    )
    what = f"{metric} against network passes per image, {len(data)} points"
    return titled(chart, width, title or f"{metric} by passes", [note], what)


def _texts(data: Sequence[Datum]) -> list[Datum]:
    """Policy names next to their points; close points share one text, long names have none."""
    values = [d["value"] for d in data]
    near = (max(values) - min(values)) / 18
    short = [d for d in data if 0 < len(d["policy"]) <= 12]
    groups: list[list[Datum]] = []
    for d in sorted(short, key=lambda d: (d["passes"], d["value"])):
        last = groups[-1][-1] if groups else None
        if last and last["passes"] == d["passes"] and d["value"] - last["value"] < near:
            groups[-1].append(d)
        else:
            groups.append([d])
    return [
        {
            "passes": group[0]["passes"],
            "value": (group[0]["value"] + group[-1]["value"]) / 2,
            "policy": ", ".join(dict.fromkeys(d["policy"] for d in group)),
        }
        for group in groups
    ]


def cost_points(results: Results, metric: str = "brier") -> list[Datum]:
    """The points of `cost`: each method with each policy, its passes, its mean and its interval."""
    details = {contender(detail): detail for detail in reversed(results.details)}
    counts = _summaries(results, PASSES) if PASSES in results.names("metric") else {}
    points = []
    for key, summary in _summaries(results, metric).items():
        detail = details.get(key, {"policy": key.policy})
        known = counts[key]["value"] if key in counts else detail.get(PASSES)
        passes = known or (Policy.parse(key.policy).passes if key.policy else 1)
        name = label(key.method, key.choice)
        points.append({**summary, "method": name, "policy": detail["policy"], "passes": passes})
    return points


def _summaries(results: Results, metric: str) -> dict[Contender, Datum]:
    """The mean of a metric over splits and seeds, with its interval, by what is compared."""
    found = results.where(metric=metric)
    if not found.rows:
        raise InputError(f"there are no rows of {metric} to draw")
    names = labels(map(contender, found))
    table = relabelled(Results(found.rows)).pivot()  # refuses to average different settings
    over_images = bounds(found.intervals)
    summaries = {}
    for (key, name), summary in zip(names.items(), table.numbers.values(), strict=True):
        ends = summary.ends or over_images.get((key, None, metric)) or (None, None)
        low, high = map(number, ends)
        summaries[key] = {
            "method": name,
            "value": number(summary.mean),
            "low": low,
            "high": high,
            "runs": summary.count,
            "interval": "one run" if None in (low, high) else f"{low:.5f} to {high:.5f}",
        }
    return summaries


# ---- every figure by its name --------------------------------------------------------------------


def _named(results: Results, part: str, what: str) -> dict[str, Detail]:
    """The details that have the part to draw, by the name of their method."""
    found = [detail for detail in results.details if detail.get(part)]
    if not found:
        count = len(results.details)
        raise InputError(f"there is nothing to draw: none of the {count} details has {what}")
    return dict(zip(names_of(found), found, strict=True))


def _each(part: str, what: str, draw: Callable[[Detail, str], Any]) -> Callable[..., Any]:
    """A figure with a panel for each detail that has the part to draw."""

    def drawn(results: Results, metric: str) -> Any:
        found = _named(results, part, what).items()
        return grid([draw(detail, name) for name, detail in found], 2, color="independent")

    return drawn


FIGURES: dict[str, Callable[[Results, str], Any]] = {
    "reliability": _each("bins", "labels", diagram),
    "risk": lambda results, metric: risks(_named(results, "risk", "a curve of risk"), 420),
    "confidence": lambda results, metric: confidence_histograms(results.details),
    "weights": _each("views", "weights of views", weights),
    "shares": _each("views", "shares of views", shares),
    "per-class": _each("per_class", "labels", per_class),
    "ranking": lambda results, metric: ranking(results, metric or "brier"),
    "entropy": lambda results, metric: entropy(results, metric or "entropy"),
    "sizes": lambda results, metric: sizes(results, [metric] if metric else ()),
    # A policy that a rule chose may differ between splits.
    "cost": lambda results, metric: cost(results.where(choice=""), metric or "brier"),
}
"""Figures by name: functions of the results and a metric ("" for the default metric)."""


def figure(
    name: str, results: Results, *, metric: str = "", dark: bool = False, **columns: Any
) -> Any:
    """Draw one of FIGURES from the rows and details whose columns have these values.

    >>> figure("reliability", Results.load("results.json"), method="v-atta")  # doctest: +SKIP
    """
    if name not in FIGURES:
        raise InputError(
            f"there is no figure {name!r}; "
            f"expected one of {', '.join(FIGURES)}.{suggest(name, FIGURES)}"
        )
    wanted = {column: value for column, value in columns.items() if value not in (None, "", [], ())}
    if name == "cost" and "experiment" not in wanted:
        results = with_cost(results)
    main = [one for one in results.names("experiment") if not one.endswith(COST)]
    chosen = results.where(**{"experiment": main, **wanted})
    if not chosen.rows and not chosen.details:
        asked = ", ".join(f"{column} {value!r}" for column, value in wanted.items())
        raise InputError(f"the results have nothing with {asked}")
    for column in ("experiment", "dataset", *(() if name == "sizes" else ("validation",))):
        if len(found := chosen.names(column)) > 1:
            names = " or ".join(map(repr, found))
            raise InputError(
                f"expected one {column} to draw, got {len(found)}; choose one: --{column} {names}"
            )
    return finished(FIGURES[name](chosen, metric), dark)
