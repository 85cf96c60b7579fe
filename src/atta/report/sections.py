"""What a report compares: contenders, their differences, and one section an experiment and dataset.

A contender is a line of the table: a method and, where it was run with several, its policy, rule of choice or number of
images. A difference is clear only where its interval excludes 0: that of the bootstrap over test images where the results have
it, and Student's t over the splits, paired split by split, where they do not. Nothing here knows of HTML.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import Any

from atta.results.contenders import Bounds, Contender, bounds, contender, judged, labels, relabelled
from atta.results.rows import Interval, Results, Row
from atta.results.table import Summary, Table, pivot
from atta.results.words import (
    BASELINE,
    BETTER,
    CLASS_CHANGES,
    COST,
    DIGITS,
    ENTROPIES,
    FITTED,
    REST,
    SENSE,
    dataset_name,
)

LABELLED = ("brier", "ece", "smooth_ece", "mc_brier", "nll", "accuracy")
UNLABELLED = tuple(ENTROPIES)
CRITERIA = ("nll", "brier", "mc_brier", "ece")
"""What a method is recommended by: the first of these that was measured."""
WORDS = {1: ("better", "better"), 0: ("unclear", "no clear difference"), -1: ("worse", "worse")}


@dataclass(frozen=True, eq=False)
class Line:
    """A line of the table: a contender, its numbers, and what is known of it besides."""

    key: Contender
    label: str
    values: Mapping[str, Mapping[int, float]]
    """By metric and split; the seeds of one split are averaged, as they saw the same images."""
    detail: Mapping[str, Any]
    """What `experiments.details` saw on the first split; empty for results that were made without."""
    bounds: Bounds
    """Bootstrap intervals, those of all lines."""

    @property
    def size(self) -> int:
        """How many images it was fitted on; the others are tested on, so that other sizes have other tests."""
        return self.key.validation

    @property
    def keeps_class(self) -> bool:
        """Whether it leaves the predicted class alone: it did so in every split and, as far as is known, promises it."""
        changes = self.values.get(CLASS_CHANGES, {})
        return bool(self.detail.get("keeps_class", changes)) and not any(changes.values())

    @property
    def changes_class(self) -> bool:
        """Whether it is known to have changed a class, or not to promise otherwise."""
        return self.detail.get("keeps_class") is False or any(
            self.values.get(CLASS_CHANGES, {}).values()
        )

    @property
    def passes(self) -> float | None:
        """How often the network runs for an image on average, views and all."""
        return self.detail.get("passes")

    def mean(self, metric: str) -> float:
        """The mean over the splits, nan where it was not measured."""
        values = self.values.get(metric)
        return fmean(values.values()) if values else math.nan


@dataclass(frozen=True)
class Difference:
    """One contender less another on the same images, and half the width of its 95 % interval."""

    mean: float
    interval: float | None
    better: int | None
    """1 or -1 where the interval excludes 0, 0 where it does not, None where there is none, and no such claim."""

    @classmethod
    def between(cls, one: Line, other: Line, metric: str) -> Difference | None:
        """Compare on the splits that both were run on; None where there are none, or where their images differ."""
        mine, theirs = (
            one.values.get(metric, {}),
            other.values.get(metric, {}) if one.size == other.size else {},
        )
        paired = [mine[split] - theirs[split] for split in mine if split in theirs]
        if not paired:
            return None
        found, sense = Summary.of(paired), SENSE.get(metric)
        if (one.key, other.key, metric) in one.bounds:
            low, high = one.bounds[one.key, other.key, metric]
            return cls(found.mean, (high - low) / 2, judged(low, high, sense))
        if found.interval is None:
            return cls(found.mean, None, None)
        return cls(
            found.mean,
            found.interval,
            judged(found.mean - found.interval, found.mean + found.interval, sense),
        )

    @property
    def none(self) -> bool:
        """Whether the two are the same in every split."""
        return self.mean == 0 == self.interval

    @property
    def word(self) -> tuple[str, str] | None:
        """What the page calls it: a class of its style sheet, and the word itself."""
        if self.none:
            return "unclear", "the same"
        return None if self.better is None else WORDS[self.better]


@dataclass(frozen=True)
class Section:
    """One experiment on one dataset."""

    id: str
    name: str
    dataset: str
    rows: tuple[Row, ...]
    details: tuple[Mapping[str, Any], ...]
    experiment: Mapping[str, Any]
    """What is known of the experiment, as in its TOML file."""
    record: Mapping[str, Any]
    """What is known of the record that was fitted on."""
    fewer: Section | None = None
    """The same with fewer and fewer views, which goes into the chart of the cost."""
    intervals: tuple[Interval, ...] = ()

    @property
    def title(self) -> str:
        """What the page calls it."""
        return str(self.experiment.get("title") or dataset_name(self.dataset))

    @cached_property
    def contenders(self) -> tuple[Line, ...]:
        """Everything that is compared, in the order of the rows."""
        found: dict[Contender, list[Row]] = {}
        for row in self.rows:
            found.setdefault(contender(row), []).append(row)
        seen = {contender(detail): detail for detail in reversed(self.details)}
        known = bounds(self.intervals)
        return tuple(
            Line(key, label, _values(found[key]), seen.get(key, {}), known)
            for key, label in labels(found, sizes=True).items()
        )

    @cached_property
    def metrics(self) -> tuple[str, ...]:
        """The columns of the table: those that need labels, or those that do not where there are none."""
        there = dict.fromkeys(row.metric for row in self.rows)
        main = [m for m in LABELLED if m in there] or [m for m in UNLABELLED if m in there]
        main = main or [metric for metric in there if metric != CLASS_CHANGES]
        return (*main, *(metric for metric in (CLASS_CHANGES,) if metric in there))

    @cached_property
    def table(self) -> Table:
        """Contenders × metrics, as `atta compare` prints them; the best are those of the ones that keep the class."""
        return self._pivot(self.metrics)

    @cached_property
    def others(self) -> Table | None:
        """The metrics that have no place in the table."""
        rest = tuple(
            dict.fromkeys(row.metric for row in self.rows if row.metric not in self.metrics)
        )
        return self._pivot(rest) if rest else None

    def _pivot(self, metrics: tuple[str, ...]) -> Table:
        keeps = {one.label for one in self.contenders if one.keeps_class and one.size == self.size}
        where = {"method": tuple(one.label for one in self.contenders), "metric": metrics}
        # More entropy is better on images of no known class, and on no others.
        better = BETTER if self.criterion is None else {**BETTER, **dict.fromkeys(UNLABELLED)}
        rows = relabelled(Results(self.rows), sizes=True)
        return pivot(rows, where=where, better=better, eligible=keeps.__contains__, digits=DIGITS)

    @cached_property
    def size(self) -> int:
        """How many images those were fitted on that the verdict is about: the most there are."""
        return max(row.validation for row in self.rows)

    @property
    def mixed(self) -> bool:
        """Whether contenders were fitted on different numbers of images."""
        return any(one.size != self.size for one in self.contenders)

    @cached_property
    def splits(self) -> int:
        """How many draws of the validation images there are."""
        return len({row.split for row in self.rows})

    @cached_property
    def images(self) -> int | None:
        """How many images were tested on; None where nobody wrote it down."""
        found = (one.detail.get("images") for one in self.contenders if one.size == self.size)
        return next((images for images in found if images), None)

    @cached_property
    def vanilla(self) -> int | None:
        """Which contender is the model as it is."""
        compared = enumerate(self.contenders)
        return next(
            (i for i, one in compared if one.key.method == BASELINE and one.size == self.size), None
        )

    @property
    def baseline(self) -> int:
        """What differences are taken to at first."""
        compared = (i for i, one in enumerate(self.contenders) if one.size == self.size)
        return next(compared) if self.vanilla is None else self.vanilla

    @cached_property
    def criterion(self) -> str | None:
        """The metric that decides; None without labels."""
        return next((metric for metric in CRITERIA if metric in self.metrics), None)

    @cached_property
    def ranked(self) -> list[int]:
        """The contenders that keep the class, best first."""
        criterion = self.criterion or ""
        compared = (
            i for i, one in enumerate(self.contenders) if one.keeps_class and one.size == self.size
        )
        means = {i: self.contenders[i].mean(criterion) for i in compared}
        return sorted(
            (i for i, mean in means.items() if not math.isnan(mean)), key=means.__getitem__
        )

    @property
    def tested(self) -> str:
        """The name of the record that was tested on."""
        test = self.experiment.get("test", REST)
        return str(self.experiment.get("fit", self.dataset) if test in (REST, FITTED) else test)

    @property
    def fitted(self) -> bool:
        """Whether it was tested on the images it was fitted on, of which nothing follows for others."""
        return self.experiment.get("test") == FITTED

    @cached_property
    def advised(self) -> int | None:
        """Of those that are not surely worse than the best, the one of the fewest passes, and of several the best of them.

        Where nothing is known of passes, or of how sure a difference is, that is the best itself.
        """
        if not self.ranked:
            return None
        best = self.contenders[self.ranked[0]]
        near = [
            i
            for i in self.ranked[1:]
            if best.passes and self.contenders[i].passes and self._as_good(i, best)
        ]
        return min((self.ranked[0], *near), key=lambda i: self.contenders[i].passes or math.inf)

    def _as_good(self, i: int, best: Line) -> bool:
        found = Difference.between(self.contenders[i], best, self.criterion or "")
        return found is not None and found.better is not None and found.better >= 0

    @property
    def recommended(self) -> int | None:
        """What is advised among several that keep the class, unless that is the model as it is."""
        return (
            None
            if len(self.ranked) < 2 or self.advised == self.vanilla or self.fitted
            else self.advised
        )

    @property
    def costs(self) -> bool:
        """Whether it is known how often the network runs."""
        return any(one.passes for one in self.contenders)

    @property
    def changed(self) -> bool:
        """Whether it is known which images changed the most."""
        return any(one.detail.get("changed") for one in self.contenders)

    @property
    def chosen(self) -> int:
        """What stands beside the baseline at first: the recommended method, or what comes closest to one."""
        wanted = (self.advised, *self.ranked, len(self.contenders) - 1)
        others = [i for i in wanted if i is not None and i != self.baseline]
        return others[0] if others else self.baseline

    @cached_property
    def order(self) -> list[int]:
        """The contenders, those first that a reader looks at first."""
        return list(
            dict.fromkeys((self.baseline, self.chosen, *self.ranked, *range(len(self.contenders))))
        )

    @property
    def cells(self) -> list[list[dict[str, Any]]]:
        """The table as the page needs it: a summary each, whether it is a best one, and the difference to the baseline."""
        base = self.contenders[self.baseline]
        return [
            [
                {
                    "metric": metric,
                    "summary": self.table.numbers.get((i, j)),
                    "spread": self._spread(one, metric, self.table.numbers.get((i, j))),
                    "best": (i, j) in self.table.best,
                    "difference": None
                    if i == self.baseline or metric == CLASS_CHANGES
                    else Difference.between(one, base, metric),
                }
                for j, metric in enumerate(self.metrics, 1)
            ]
            for i, one in enumerate(self.contenders)
        ]

    def _spread(self, one: Line, metric: str, found: Summary | None) -> float | None:
        """What stands after ±: over splits where there are several, else over test images."""
        if self.splits > 1:
            return found.interval if found else None
        low, high = one.bounds.get((one.key, None, metric), (math.nan, math.nan))
        return None if math.isnan(low) else (high - low) / 2

    @property
    def note(self) -> str:
        """How the table is to be read."""
        among = f", fitted on {self.size} images" if self.mixed else ""
        spread = (
            f"Mean over {self.splits} splits ± half its 95 % interval (Student’s t); the splits share images, so an "
            "interval says how much the choice of the validation images matters."
            if self.splits > 1
            else "One split ± half its 95 % interval over test images (bootstrap), the fit held fixed."
            if self.intervals
            else "One split: no intervals, and no difference is called clear."
        )
        best = f" ★ and bold: the best of the methods that keep the predicted class{among}."
        return spread + best if self.table.best else spread

    @property
    def facts(self) -> list[str]:
        """What was run, in one line."""
        sizes = sorted({row.validation for row in self.rows} - {0})
        classes = next(
            (one.detail["classes"] for one in self.contenders if "classes" in one.detail), None
        )
        found = [
            self.record.get("model"),
            f"{classes} classes" if classes else None,
            f"{' to '.join(map(str, dict.fromkeys((sizes[0], sizes[-1]))))} images to fit on"
            if sizes
            else None,
            f"{self.images} to test on" if self.images and len(sizes) < 2 else None,
            "1 split" if self.splits == 1 else f"{self.splits} splits",
            self.experiment.get("paper"),
        ]
        return [str(fact) for fact in found if fact]

    def data(self, shown: Sequence[int]) -> dict[str, Any]:
        """What the switches of the page need; `shown` are the contenders that have diagrams."""
        names = next(
            (
                one.detail["per_class"]["names"]
                for one in self.contenders
                if one.detail.get("per_class")
            ),
            None,
        )
        return {
            "metrics": [metric for metric in self.metrics if metric != CLASS_CHANGES],
            "differences": {
                f"{i} {j}": [
                    _plain(Difference.between(one, other, m))
                    for m in self.metrics
                    if m != CLASS_CHANGES
                ]
                for i, one in enumerate(self.contenders)
                for j, other in enumerate(self.contenders[:i])
            },
            "changed": {i: packed(self.contenders[i].detail.get("changed") or ()) for i in shown},
            "classes": names,
            "dataset": self.dataset,
            "record": self.tested,
        }


def _plain(found: Difference | None) -> list[Any] | None:
    return None if found is None else [found.mean, found.interval, found.better]


def _values(rows: Sequence[Row]) -> dict[str, dict[int, float]]:
    found: dict[str, dict[int, list[float]]] = {}
    for row in rows:
        found.setdefault(row.metric, {}).setdefault(row.split, []).append(row.value)
    return {
        metric: {split: sum(values) / len(values) for split, values in splits.items()}
        for metric, splits in found.items()
    }


def sections_of(results: Results) -> list[Section]:
    """One section an experiment and dataset; what each pass buys goes with what it belongs to."""
    parts: dict[tuple[str, str], list[Row]] = {}
    for row in results:
        parts.setdefault((row.experiment, row.dataset), []).append(row)
    experiments, records = results.known("experiments"), results.known("records")
    sections = []
    for i, ((name, dataset), rows) in enumerate(parts.items(), 1):
        seen = tuple(
            d
            for d in results.details
            if (d.get("experiment", ""), d.get("dataset")) == (name, dataset)
        )
        experiment = experiments.get(name, {})
        record = records.get(str(experiment.get("fit", "")), {})
        sure = tuple(
            one for one in results.intervals if (one.experiment, one.dataset) == (name, dataset)
        )
        sections.append(
            Section(f"s{i}", name, dataset, tuple(rows), seen, experiment, record, intervals=sure)
        )
    fewer = {(s.name.removesuffix(COST), s.dataset): s for s in sections if s.name.endswith(COST)}
    own = (
        replace(s, fewer=fewer.pop((s.name, s.dataset), None))
        for s in sections
        if not s.name.endswith(COST)
    )
    return [*own, *fewer.values()]


def packed(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Rows as columns and cells: each name once."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return {"columns": columns, "rows": [[row.get(name) for name in columns] for row in rows]}
