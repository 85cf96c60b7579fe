"""Draws every figure of results by its name, for `atta figure`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from atta._base.errors import InputError, suggest
from atta.report.figures import comparison
from atta.report.figures.detail import confidence_histograms, per_class, risks, shares, weights
from atta.report.figures.parts import Detail, grid, names_of
from atta.report.figures.reliability import diagram
from atta.report.figures.theme import finished
from atta.report.sections import with_cost
from atta.results.rows import Results
from atta.results.words import COST


def _each(part: str, what: str, draw: Callable[[Detail, str], Any]) -> Callable[..., Any]:
    """A figure with a panel for each detail that has the part to draw."""

    def drawn(results: Results, metric: str) -> Any:
        found = [detail for detail in results.details if detail[part] is not None]
        if not found:
            count = len(results.details)
            raise InputError(f"there is nothing to draw: none of the {count} details has {what}")
        panels = [draw(detail, name) for detail, name in zip(found, names_of(found), strict=True)]
        return grid(panels, 2, color="independent")

    return drawn


def _risk(results: Results, metric: str) -> Any:
    """The curves of all details that have one."""
    found = [detail for detail in results.details if detail.get("risk")]
    if not found:
        raise InputError("there is nothing to draw: none of the details has a curve of risk")
    return risks(dict(zip(names_of(found), found, strict=True)), 420)


def _cost(results: Results, metric: str) -> Any:
    """The cost of policies that were given; a chosen policy may differ between splits."""
    metric = metric or "brier"
    points = comparison.cost_points(results.where(choice=""), metric)
    return comparison.cost(points, metric)


FIGURES: dict[str, Callable[[Results, str], Any]] = {
    "reliability": _each("bins", "labels", diagram),
    "risk": _risk,
    "confidence": lambda results, metric: confidence_histograms(results.details),
    "weights": _each("views", "weights of views", weights),
    "shares": _each("views", "shares of views", shares),
    "per-class": _each("per_class", "labels", per_class),
    "ranking": lambda results, metric: comparison.ranking(results, metric or "brier"),
    "entropy": lambda results, metric: comparison.entropy(results, metric or "entropy"),
    "sizes": lambda results, metric: comparison.sizes(results, [metric] if metric else ()),
    "cost": _cost,
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
    asked = ", ".join(f"{column} {value!r}" for column, value in wanted.items())
    if name == "cost" and "experiment" not in wanted:
        results = with_cost(results)
    main = [one for one in results.names("experiment") if not one.endswith(COST)]
    chosen = results.where(**{"experiment": main, **wanted})
    if not chosen.rows and not chosen.details:
        raise InputError(f"the results have nothing with {asked}")
    for column in ("experiment", "dataset", *(() if name == "sizes" else ("validation",))):
        if len(found := chosen.names(column)) > 1:
            names = " or ".join(map(repr, found))
            raise InputError(
                f"expected one {column} to draw, got {len(found)}; choose one: --{column} {names}"
            )
    return finished(FIGURES[name](chosen, metric), dark)
