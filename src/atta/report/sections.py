"""Prepares what a report compares: one section per experiment and dataset, without any HTML.

A line is a row of the comparison table: a method and, if it was run with several, its policy, rule
of choice or number of validation images. A difference between two lines is significant if its 95 %
interval excludes 0. The interval is that of the bootstrap over test images if the results have it,
else Student's t over the splits, paired split by split.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any, NamedTuple

from atta.report.figures.comparison import with_cost
from atta.results.rows import Results, Row
from atta.results.table import Summary, Table, pivot
from atta.results.words import (
    BASELINE,
    BETTER,
    BY_CONFIDENCE,
    CLASS_CHANGES,
    COST,
    DIGITS,
    ENTROPIES,
    FITTED,
    REST,
    SENSE,
    Bounds,
    Contender,
    bounds,
    contender,
    dataset_name,
    judged,
    labels,
    relabelled,
)

LABELLED = ("brier", "ece", "smooth_ece", "mc_brier", "nll", "accuracy")
CRITERIA = ("nll", "brier", "mc_brier", "ece")
"""The metrics that can decide the recommendation: the first one that was measured does."""
WORDS = {1: ("better", "better"), 0: ("unclear", "no clear difference"), -1: ("worse", "worse")}
"""The CSS class and the text of a judged difference."""


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
    def class_changes(self) -> Mapping[int, float]:
        """How many predicted classes changed, by split; empty if unknown."""
        return self.values.get(CLASS_CHANGES, {})

    @property
    def keeps_class(self) -> bool:
        """Whether no predicted class changed in any split, nor can change as far as is known."""
        promised = self.detail.get("keeps_class", self.class_changes)
        return bool(promised) and not any(self.class_changes.values())

    @property
    def changes_class(self) -> bool:
        """Whether a predicted class changed, or the method is known to allow it."""
        return self.detail.get("keeps_class") is False or any(self.class_changes.values())

    @property
    def passes(self) -> float | None:
        """Network passes per image on average, including views; None if unknown."""
        return self.detail.get("passes")

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
        interval, ends = found.interval, self.bounds.get((self.key, other.key, metric))
        if ends:
            interval = (ends[1] - ends[0]) / 2
        elif interval is not None:
            ends = (found.mean - interval, found.mean + interval)
        better = judged(*ends, SENSE.get(metric)) if ends else None
        return Difference(found.mean, interval, better)


class Difference(NamedTuple):
    """The mean difference of two lines, and half the width of its 95 % interval."""

    mean: float
    interval: float | None
    better: int | None
    """1 or -1 if the interval excludes 0, 0 if it does not, None without an interval."""

    @property
    def none(self) -> bool:
        """Whether both lines are equal in every split."""
        return self.mean == 0 == self.interval

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
        main = [m for m in LABELLED if m in found] or [m for m in ENTROPIES if m in found]
        main = main or [metric for metric in found if metric != CLASS_CHANGES]
        return (*main, *(metric for metric in found if metric == CLASS_CHANGES))

    @cached_property
    def table(self) -> Table:
        """The lines × the metrics; only methods that keep the class can be the best."""
        return self._pivot(self.metrics)

    @cached_property
    def answered(self) -> Table | None:
        """How many images each method answers at a risk, and how good its confidence is."""
        found = [name for name in BY_CONFIDENCE if name in self.results.names("metric")]
        return self._pivot(found) if found else None

    @cached_property
    def others(self) -> Table | None:
        """The metrics that are in no other table."""
        shown = {*self.metrics, *BY_CONFIDENCE}
        rest = [metric for metric in self.results.names("metric") if metric not in shown]
        return self._pivot(rest) if rest else None

    def _pivot(self, metrics: Sequence[str]) -> Table:
        keeps = {one.label for one in self._compared if one.keeps_class}
        where = {"method": tuple(one.label for one in self.lines), "metric": tuple(metrics)}
        # Higher entropy is better only on images of unknown classes, which have no labels.
        better = {**BETTER, **dict.fromkeys(ENTROPIES)} if self.criterion else BETTER
        rows = relabelled(Results(self.results.rows), sizes=True)
        return pivot(rows, where=where, better=better, eligible=keeps.__contains__, digits=DIGITS)

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

    @cached_property
    def vanilla(self) -> Line | None:
        """The unmodified model, if it was run."""
        return next((one for one in self._compared if one.key.method == BASELINE), None)

    @cached_property
    def rival(self) -> Line | None:
        """What the answers at a risk are compared with: temperature, or the unmodified model."""
        found = (one for one in self._compared if one.key.method == "temperature")
        rival = next(found, self.vanilla)
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

    @cached_property
    def advised(self) -> Line | None:
        """The line with the fewest passes that is not significantly worse than the best one.

        Without passes or intervals, it is the best one.
        """
        if not self.ranked:
            return None
        best, *others = self.ranked

        def as_good(one: Line) -> bool:
            found = one.difference(best, self.criterion)
            return found is not None and found.better in (0, 1)

        near = [one for one in others if best.passes and one.passes and as_good(one)]
        return min((best, *near), key=lambda one: one.passes or math.inf)

    @property
    def recommended(self) -> Line | None:
        """The advised line, if it was chosen from several and is not the unmodified model."""
        chosen = len(self.ranked) > 1 and self.advised is not self.vanilla and not self.fitted
        return self.advised if chosen else None

    @property
    def chosen(self) -> Line:
        """The line that the charts first compare with the baseline."""
        wanted = (self.advised, *self.ranked, self.lines[-1])
        return next((one for one in wanted if one and one is not self.baseline), self.baseline)

    @property
    def order(self) -> list[Line]:
        """The lines, starting with those that the page shows first."""
        return list(dict.fromkeys((self.baseline, self.chosen, *self.ranked, *self.lines)))

    def spread(self, one: Line, metric: str, found: Summary) -> float | None:
        """Half the 95 % interval of a number: over several splits, or over test images."""
        if self.splits > 1:
            return found.interval
        low, high = one.bounds.get((one.key, None, metric), (math.nan, math.nan))
        return None if math.isnan(low) else (high - low) / 2

    def detail(self, name: str) -> Any:
        """The first known value of an entry of the details."""
        return next(filter(None, (one.detail.get(name) for one in self.lines)), None)

    def highest(self, metric: str) -> Line | None:
        """The line with the highest mean, if several lines have one."""
        known = _sorted(self.lines[::-1], metric)  # of equal means, the first line is last
        return known[-1] if len(known) > 1 else None

    def data(self, shown: Sequence[int]) -> dict[str, Any]:
        """What the switches of the page need; `shown` are the lines that have charts."""
        metrics = [metric for metric in self.metrics if metric != CLASS_CHANGES]
        return {
            "metrics": metrics,
            "differences": {
                f"{one.index} {other.index}": [one.difference(other, m) for m in metrics]
                for one in self.lines
                for other in self.lines[: one.index]
            },
            "changed": {i: packed(self.lines[i].detail.get("changed") or ()) for i in shown},
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
    pairs = list(dict.fromkeys((row.experiment, row.dataset) for row in results))
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


def packed(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Rows as column names and lists of cells, which repeat no name."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return {"columns": columns, "rows": [[row.get(name) for name in columns] for row in rows]}
