"""Every figure of results by its name: what `atta figure` draws."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from atta._base.errors import InputError, suggest
from atta.report.figures.comparison import cost, cost_points, entropy, ranking, sizes
from atta.report.figures.detail import (
    confidence_histogram,
    per_class_panel,
    shares_panel,
    weights_panel,
)
from atta.report.figures.parts import Detail, grid, names_of
from atta.report.figures.reliability import diagram
from atta.report.figures.theme import alt, finished
from atta.results.rows import Results, one_of
from atta.results.words import COST


def _each(part: str, what: str, draw: Callable[[Detail, str], Any]) -> Callable[..., Any]:
    """A panel for each detail that has the part to draw."""

    def drawn(results: Results, metric: str, dark: bool) -> alt.TopLevelMixin:
        found = [detail for detail in results.details if detail[part] is not None]
        if not found:
            raise InputError(
                f"there is nothing to draw: none of the {len(results.details)} details here has {what}"
            )
        panels = [draw(detail, name) for detail, name in zip(found, names_of(found), strict=True)]
        return finished(
            panels[0] if len(panels) == 1 else grid(panels, 2).resolve_scale(color="independent"),
            dark,
        )

    return drawn


FIGURES: dict[str, Callable[..., Any]] = {
    "reliability": _each("bins", "labels", lambda detail, name: diagram(detail, name, 300)),
    "confidence": lambda results, metric, dark: confidence_histogram(results.details, dark=dark),
    "weights": _each("views", "weights of views", weights_panel),
    "shares": _each("views", "shares of views", shares_panel),
    "per-class": _each("per_class", "labels", per_class_panel),
    "ranking": lambda results, metric, dark: ranking(
        results, metric or "brier", intervals=results.intervals, dark=dark
    ),
    "entropy": lambda results, metric, dark: entropy(
        results, metric or "entropy", intervals=results.intervals, dark=dark
    ),
    "sizes": lambda results, metric, dark: sizes(results, [metric] if metric else (), dark=dark),
    "cost": lambda results, metric, dark: cost(
        cost_points(results, metric or "brier"), metric or "brier", dark=dark
    ),
}
"""Figures of results, by name: functions of the results, a metric ("" for the usual one) and whether it is dark."""


def figure(
    name: str, results: Results, *, metric: str = "", dark: bool = False, **columns: Any
) -> Any:
    """Draw one of FIGURES from results, of the rows and details whose columns have these values.

    >>> figure("reliability", Results.load("results.json"), method="v-atta")  # doctest: +SKIP
    """
    if name not in FIGURES:
        raise InputError(
            f"there is no figure {name!r}; expected one of {', '.join(FIGURES)}.{suggest(name, FIGURES)}"
        )
    wanted = {column: value for column, value in columns.items() if value not in (None, "", [], ())}
    if "experiment" not in wanted:
        results = _main(results, whole=name == "cost")
    chosen = results.where(**wanted)
    allowed = {column: one_of(value) for column, value in wanted.items()}
    details = [
        d for d in results.details if all(d.get(column) in allowed[column] for column in allowed)
    ]
    if not chosen.rows and not details:
        raise InputError(
            f"the results have nothing with {', '.join(f'{k} {v!r}' for k, v in wanted.items())}"
        )
    for column in ("experiment", "dataset", *(() if name == "sizes" else ("validation",))):
        if len(there := chosen.names(column)) > 1:
            names = " or ".join(repr(one) for one in there)
            raise InputError(
                f"expected one {column} to draw, got {len(there)}; choose one: --{column} {names}"
            )
    return FIGURES[name](replace(chosen, details=tuple(details)), metric, dark)


def _main(results: Results, *, whole: bool) -> Results:
    """Results without the experiments that only say what each pass buys; `whole` has these under the name they belong to."""

    def named(name: str) -> str | None:
        return name.removesuffix(COST) if whole else None if name.endswith(COST) else name

    rows = (
        replace(row, experiment=name)
        for row in results
        if (name := named(row.experiment)) is not None
    )
    seen = (
        {**d, "experiment": named(d["experiment"])} for d in results.details if "experiment" in d
    )
    once = {
        (
            r.experiment,
            r.dataset,
            r.method,
            r.policy,
            r.validation,
            r.split,
            r.seed,
            r.choice,
            r.metric,
        ): r
        for r in rows
    }
    details = tuple(d for d in seen if d["experiment"] is not None)
    sure = (
        replace(one, experiment=name)
        for one in results.intervals
        if (name := named(one.experiment)) is not None
    )
    return Results(tuple(once.values()), results.about, details, tuple(sure))
