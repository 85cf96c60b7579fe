"""Draws every figure of results by its name, for `atta figure`."""

from collections.abc import Callable
from typing import Any

from atta._base.errors import InputError, suggest
from atta.report.figures import comparison
from atta.report.figures.detail import (
    confidence_histograms,
    diagram,
    per_class,
    risks,
    shares,
    weights,
)
from atta.report.figures.theme import Detail, finished, grid, names_of
from atta.report.sections import with_cost
from atta.results.rows import Results
from atta.results.words import COST


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
    "ranking": lambda results, metric: comparison.ranking(results, metric or "brier"),
    "entropy": lambda results, metric: comparison.entropy(results, metric or "entropy"),
    "sizes": lambda results, metric: comparison.sizes(results, [metric] if metric else ()),
    # A policy that a rule chose may differ between splits.
    "cost": lambda results, metric: comparison.cost(results.where(choice=""), metric or "brier"),
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
