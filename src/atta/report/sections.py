"""Prepares what a report compares: one section per experiment and dataset, without any HTML.

A line is a row of the comparison table: a method and, if it was run with several, its policy, rule
of choice or number of validation images. A line is better or worse than another if the 95 %
interval of their difference excludes 0 and the difference is at least `LEAST`. The interval is that
of the bootstrap over test images if the results have it, else Student's t over the splits, paired
split by split.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import Any, NamedTuple, TypeVar

from atta.results.rows import COLUMNS, Interval, Results, Row, values_of
from atta.results.table import Summary, Table
from atta.results.words import (
    BASELINE,
    BETTER,
    BY_CONFIDENCE,
    CLASS_CHANGES,
    COST,
    DIGITS,
    ENTROPIES,
    FITTED,
    PASSES,
    REST,
    SENSE,
    Bounds,
    Contender,
    bounds,
    contender,
    dataset_name,
    judged,
    labels,
    metric_name,
    relabelled,
)

MAIN = ("brier", "nll", "ece", "accuracy")
"""The metrics of the comparison table; the others are folded."""
CRITERIA = ("nll", "brier", "mc_brier", "ece")
"""The metrics by which methods are ranked: the first one that was measured."""
JUDGES = ("brier", "nll")
"""The metrics that decide the recommendation, as far as they were measured."""
LEAST = 0.01
"""The least change that counts as better or worse, as a part of the other value."""
TEMPERATURE = "temperature"
WORDS = {1: ("better", "better"), 0: ("unclear", "no clear difference"), -1: ("worse", "worse")}
"""The CSS class and the text of a judged difference."""


_Moved = TypeVar("_Moved", Row, Interval)


@dataclass(frozen=True, eq=False)
class Line:
    """A row of the comparison table: a method, its numbers, and its detail."""

    index: int
    key: Contender
    label: str
    values: Mapping[str, Mapping[int, float]]
    """By metric and split; the seeds of a split are averaged, because they saw the same images."""
    detail: Mapping[str, Any]
    """The entry of `Results.details` for the first split, or empty."""
    bounds: Bounds
    """The bootstrap intervals of all lines."""

    @property
    def keeps_class(self) -> bool | None:
        """Whether no class changed in any split, nor can, as far as is known; None if unknown."""
        changes = self.values.get(CLASS_CHANGES)
        if changes and any(changes.values()):
            return False
        known: bool | None = self.detail.get("keeps_class", True if changes else None)
        return known

    @property
    def passes(self) -> float | None:
        """Network passes per image on average, including views; None if unknown."""
        return self.mean(PASSES) if PASSES in self.values else self.detail.get(PASSES)

    def mean(self, metric: str) -> float:
        """The mean over the splits; nan if the metric was not measured."""
        values = self.values.get(metric)
        return fmean(values.values()) if values else math.nan

    def difference(self, other: Line, metric: str) -> Difference | None:
        """This line minus another on their common splits; None if their test images differ."""
        if self.key.validation != other.key.validation:
            return None  # the images that are not fitted on are tested on
        mine, theirs = self.values.get(metric, {}), other.values.get(metric, {})
        paired = [mine[split] - theirs[split] for split in mine if split in theirs]
        if not paired:
            return None
        found = Summary.of(paired)
        ends = self.bounds.get((self.key, other.key, metric)) or found.ends
        if ends is None:
            return Difference(found.mean, None, None, None)
        better = judged(*ends, SENSE.get(metric))
        base = 1 - other.mean(metric) if metric == "accuracy" else other.mean(metric)
        if better and abs(found.mean) < LEAST * abs(base):
            better = 0
        return Difference(found.mean, *ends, better)

    def better(self, other: Line, metric: str) -> int | None:
        """Whether this line is better (1) or worse (-1) than another, if that is known."""
        found = self.difference(other, metric)
        return found and found.better


class Difference(NamedTuple):
    """The mean difference of two lines, and its 95 % interval."""

    mean: float
    low: float | None
    high: float | None
    better: int | None
    """1 or -1 if one line is better, 0 if none is, None without an interval."""

    @property
    def none(self) -> bool:
        """Whether both lines are equal in every split."""
        return self.mean == 0 == self.low == self.high

    @property
    def word(self) -> tuple[str, str] | None:
        """The CSS class and the text that the page shows."""
        if self.none:
            return "unclear", "the same"
        return None if self.better is None else WORDS[self.better]


@dataclass(frozen=True)
class Section:
    """One experiment on one dataset."""

    id: str
    name: str
    dataset: str
    results: Results
    experiment: Mapping[str, Any]
    """The settings of the experiment, as in its TOML file."""
    record: Mapping[str, Any]
    """The origin of the record that the methods were fitted on."""
    cost: Results
    """The results with those of the cost experiment, which runs the methods with fewer views."""

    @property
    def title(self) -> str:
        """The title of the section."""
        return str(self.experiment.get("title") or dataset_name(self.dataset))

    @cached_property
    def lines(self) -> tuple[Line, ...]:
        """Everything that is compared, in the order of the rows."""
        found: dict[Contender, list[Row]] = {}
        for row in self.results:
            found.setdefault(contender(row), []).append(row)
        details = {contender(detail): detail for detail in reversed(self.results.details)}
        known = bounds(self.results.intervals)
        return tuple(
            Line(i, key, label, _values(found[key]), details.get(key, {}), known)
            for i, (key, label) in enumerate(labels(found, sizes=True).items())
        )

    @cached_property
    def metrics(self) -> tuple[str, ...]:
        """The metrics of the table: those that need labels, or those that do not if none do."""
        found = self.results.names("metric")
        others = [metric for metric in found if metric != CLASS_CHANGES]
        kinds = (kind for kind in (MAIN, CRITERIA, ENTROPIES) if not {*kind}.isdisjoint(found))
        return tuple(one for one in (*next(kinds, others), CLASS_CHANGES) if one in found)

    @cached_property
    def table(self) -> Table | None:
        """The lines × the metrics; only methods that keep the class can be the best."""
        return self._pivot(self.metrics)

    @cached_property
    def answered(self) -> Table | None:
        """How many images each method answers at a risk, and how good its confidence is."""
        return self._pivot(tuple(BY_CONFIDENCE))

    @cached_property
    def others(self) -> Table | None:
        """The metrics that are in no other table."""
        shown = {*self.metrics, *BY_CONFIDENCE, PASSES}
        return self._pivot([name for name in self.results.names("metric") if name not in shown])

    def _pivot(self, metrics: Sequence[str]) -> Table | None:
        """The lines × those of the metrics that there are; None if there are none."""
        found = tuple(name for name in metrics if name in self.results.names("metric"))
        if not found:
            return None
        keeps = {one.label for one in self._compared if one.keeps_class}
        where = {"method": tuple(one.label for one in self.lines), "metric": found}
        # Higher entropy is better only on images of unknown classes, which have no labels.
        better = {**BETTER, **dict.fromkeys(ENTROPIES)} if self.criterion else BETTER
        rows = relabelled(Results(self.results.rows), sizes=True)
        return rows.pivot(where=where, better=better, eligible=keeps.__contains__, digits=DIGITS)

    @cached_property
    def sizes(self) -> list[int]:
        """The numbers of validation images; the verdict is about the largest."""
        return sorted(self.results.names("validation"))

    @cached_property
    def _compared(self) -> list[Line]:
        """The lines that the verdict compares: those with the most validation images."""
        return [one for one in self.lines if one.key.validation == self.sizes[-1]]

    @cached_property
    def splits(self) -> int:
        """How many splits there are."""
        return len(self.results.names("split"))

    @cached_property
    def images(self) -> int | None:
        """How many test images there are; None if unknown."""
        return next(filter(None, (one.detail.get("images") for one in self._compared)), None)

    def _find(self, method: str) -> Line | None:
        """The first line of a method, if it was run."""
        return next((one for one in self._compared if one.key.method == method), None)

    @cached_property
    def vanilla(self) -> Line | None:
        """The unmodified model, if it was run."""
        return self._find(BASELINE)

    @cached_property
    def rival(self) -> Line | None:
        """What the answers at a risk are compared with: temperature, or the unmodified model."""
        rival = self._find(TEMPERATURE) or self.vanilla
        return None if rival is self.advised else rival

    @property
    def baseline(self) -> Line:
        """The line that differences are first taken from."""
        return self.vanilla or self._compared[0]

    @cached_property
    def criterion(self) -> str:
        """The metric that decides the recommendation; "" without labels."""
        return next((metric for metric in CRITERIA if metric in self.metrics), "")

    @cached_property
    def ranked(self) -> list[Line]:
        """The lines that keep the class, best first."""
        return _sorted([one for one in self._compared if one.keeps_class], self.criterion)

    @property
    def tested(self) -> str:
        """The name of the record that the methods were tested on."""
        test = self.experiment.get("test", REST)
        return str(self.experiment.get("fit", self.dataset) if test in (REST, FITTED) else test)

    @property
    def fitted(self) -> bool:
        """Whether the methods were tested on the images that they were fitted on."""
        return self.experiment.get("test") == FITTED

    @property
    def judges(self) -> list[str]:
        """The metrics that decide the recommendation."""
        return [metric for metric in JUDGES if metric in self.metrics] or [self.criterion]

    @cached_property
    def proven(self) -> list[Line]:
        """The lines that can be recommended, cheapest first.

        By every judge they are better than vanilla, and not worse than the best.
        """
        good = self.ranked
        for metric in self.judges:
            if self.vanilla:
                good = [one for one in good if one.better(self.vanilla, metric) == 1]
            for best in _sorted(self.ranked, metric)[:1]:
                good = [one for one in good if one is best or one.better(best, metric) in (0, 1)]
        return sorted(good, key=lambda one: one.passes or math.inf)

    @cached_property
    def advised(self) -> Line | None:
        """The cheapest proven line; if there is none, temperature scaling or nothing.

        Temperature scaling if it lowers every judge, though not clearly; else vanilla. Without
        vanilla, the best line.
        """
        if len(self.ranked) < 2:
            return self.ranked[0] if self.ranked else None
        if self.proven:
            return self.proven[0]
        base, tempered = self.vanilla, self._find(TEMPERATURE)
        if not base or tempered not in self.ranked:
            return base or self.ranked[0]
        lower = (
            tempered.mean(metric) < base.mean(metric) and tempered.better(base, metric) != -1
            for metric in self.judges
        )
        return tempered if all(lower) else base

    @property
    def recommended(self) -> Line | None:
        """The advised line, if it was chosen from several and is not the unmodified model."""
        chosen = len(self.ranked) > 1 and self.advised is not self.vanilla and not self.fitted
        return self.advised if chosen else None

    @property
    def sentence(self) -> str:
        """The recommendation in plain text; "" if there was nothing to choose."""
        if len(self.ranked) < 2 or self.fitted or not self.advised:
            return ""
        name = self.advised.label
        if not self.proven:
            instead = f"use {name}" if self.recommended else "leave the model as it is"
            return f"{self.title}: too few images to tell which method is better; {instead}."
        costs = f" ({self.advised.passes:.3g} passes per image)" if self.advised.passes else ""
        if self.vanilla:
            before, after = self.vanilla, self.advised
            changes = (
                f"{metric_name(metric)} {after.mean(metric) / before.mean(metric) - 1:+.0%}"
                for metric in self.judges
            )
            costs += f": {', '.join(changes)}"
        known = [one for one in (self.advised, self.rival) if one and "answered_1" in one.values]
        shares = ", ".join(f"{one.label} answers {one.mean('answered_1'):.0%}" for one in known)
        answers = f" At 1 % risk {shares} of the images." if shares else ""
        return f"{self.title}: use {name}{costs}; every class stays the same.{answers}"

    @property
    def chosen(self) -> Line:
        """The line that the charts first compare with the baseline."""
        wanted = (self.advised, *self.ranked, self.lines[-1])
        return next((one for one in wanted if one and one is not self.baseline), self.baseline)

    @property
    def order(self) -> list[Line]:
        """The lines in the order of the page: what is compared first, then the best."""
        return list(dict.fromkeys((self.chosen, self.baseline, *self.ranked, *self.lines)))

    def spread(self, one: Line, metric: str, found: Summary) -> tuple[float, float] | None:
        """The 95 % interval of a number: over several splits, or over test images."""
        return found.ends if self.splits > 1 else one.bounds.get((one.key, None, metric))

    def detail(self, name: str) -> Any:
        """The first known value of an entry of the details."""
        return next(filter(None, (one.detail.get(name) for one in self.lines)), None)

    def highest(self, metric: str) -> Line | None:
        """The line with the highest mean, if several lines have one."""
        known = _sorted(self.lines[::-1], metric)  # of equal means, the first line is last
        return known[-1] if len(known) > 1 else None

    def data(self, shown: Iterable[int]) -> dict[str, Any]:
        """What the switches of the page need; `shown` are the lines that have charts."""
        metrics = [metric for metric in self.metrics if metric != CLASS_CHANGES]
        return {
            "metrics": metrics,
            "differences": {
                f"{one.index} {other.index}": [one.difference(other, m) for m in metrics]
                for one in self.lines
                for other in self.lines[: one.index]
            },
            "changed": {i: self.lines[i].detail.get("changed") or [] for i in shown},
            "classes": (self.detail("per_class") or {}).get("names"),
            "record": self.tested,
        }


def _sorted(lines: Sequence[Line], metric: str) -> list[Line]:
    """The lines that have the metric, lowest mean first."""
    known = (one for one in lines if not math.isnan(one.mean(metric)))
    return sorted(known, key=lambda one: one.mean(metric))


def _values(rows: Sequence[Row]) -> dict[str, dict[int, float]]:
    """The values by metric and split, averaged over seeds."""
    found: dict[str, dict[int, list[float]]] = {}
    for row in rows:
        found.setdefault(row.metric, {}).setdefault(row.split, []).append(row.value)
    return {
        metric: {split: sum(values) / len(values) for split, values in splits.items()}
        for metric, splits in found.items()
    }


def sections_of(results: Results) -> list[Section]:
    """One section per experiment and dataset; a cost experiment joins the one it belongs to."""
    pairs = dict.fromkeys((row.experiment, row.dataset) for row in results)
    experiments, records = results.known("experiments"), results.known("records")
    merged = with_cost(results)
    sections = []
    for i, (name, dataset) in enumerate(pairs, 1):
        main = name.removesuffix(COST)
        if main != name and (main, dataset) in pairs:
            continue
        found = results.where(experiment=name, dataset=dataset)
        experiment = experiments.get(name, {})
        record = records.get(str(experiment.get("fit", "")), {})
        cost = merged.where(experiment=main, dataset=dataset)
        sections.append(Section(f"s{i}", name, dataset, found, experiment, record, cost))
    return sorted(sections, key=lambda section: section.name.endswith(COST))


def with_cost(results: Results) -> Results:
    """Add the rows of the cost experiments (with fewer views) to the experiments they belong to.

    Both may have run the same policy: the numbers of the main experiment replace the others.
    """

    def moved(these: Iterable[_Moved]) -> list[_Moved]:
        cost_first = sorted(these, key=lambda one: not one.experiment.endswith(COST))
        return [replace(one, experiment=one.experiment.removesuffix(COST)) for one in cost_first]

    rows = {values_of(row, COLUMNS[:-1]): row for row in moved(results)}
    details = tuple(
        {**detail, "experiment": detail.get("experiment", "").removesuffix(COST)}
        for detail in results.details
    )
    return Results(tuple(rows.values()), results.about, details, tuple(moved(results.intervals)))
