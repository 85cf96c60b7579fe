"""Names of metrics and datasets, which direction is better, and how many digits are shown."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal, NamedTuple, TypeAlias

from atta.results.rows import Form, Interval, Results, Row

Better: TypeAlias = Literal["lower", "higher"] | None
CLASS_CHANGES = "class_changes"
OOD_AUROC = "ood_auroc"
PASSES = "passes"
COVERAGE, SET_SIZE = "coverage", "set_size"
REST, FITTED = "rest", "fitted"
"""What an experiment tests on: the rows it was not fitted on, or those it was."""
COST = ": cost"
"""Ends the name of the experiment that measures the gain of each pass of another one."""
RULE = "paper"
"""The rule by which the paper chooses the policy; its claims are about that choice."""
ANSWERED = {f"answered_{risk:g}": risk / 100 for risk in (0.5, 1, 2, 5)}
"""The metrics of how many images are answered at a risk, and the risk."""
DIRECTION: Mapping[str, Better] = {
    "accuracy": "higher",
    "brier": "lower",
    "ece": "lower",
    "mc_brier": "lower",
    "nll": "lower",
    "entropy": None,
    "mce": "lower",
    "classwise_ece": "lower",
    "adaptive_ece": "lower",
    "debiased_ece": "lower",
    "shannon_entropy": None,
    "brier_reliability": "lower",
    "brier_resolution": "higher",
    "brier_uncertainty": None,
    "aurc": "lower",
    "smooth_ece": "lower",
    **dict.fromkeys(ANSWERED, "higher"),
}
"""The better direction of each metric of `atta.metrics`; None if neither is better."""
ENTROPIES: Mapping[str, Better] = {
    "entropy": "higher",
    "shannon_entropy": "higher",
    OOD_AUROC: "higher",
}
"""The better direction on out-of-distribution images only."""
BY_CONFIDENCE = {
    "confidence_brier": "brier",
    "confidence_ece": "ece",
    "confidence_aurc": "aurc",
    **dict(zip(ANSWERED, ANSWERED, strict=True)),
}
"""What is measured of `classifier.confidence` in the place of the largest probability."""
SENSE: Mapping[str, Better] = {
    **DIRECTION,
    **ENTROPIES,
    **{name: DIRECTION[metric] for name, metric in BY_CONFIDENCE.items()},
}
"""When a difference is called better or worse."""
BETTER: Mapping[str, Better] = {**SENSE, "accuracy": None}
"""How tables mark the best: not by accuracy, which calibration keeps."""
DRAWN: Mapping[str, Better] = {**DIRECTION, CLASS_CHANGES: "lower", OOD_AUROC: "higher"}
"""What the axis of a figure says, for any images."""
METRIC_NAMES = {
    "brier": "Brier score",
    "ece": "ECE",
    "smooth_ece": "smooth ECE",
    "mc_brier": "multi-class Brier score",
    "nll": "NLL",
    "shannon_entropy": "Shannon entropy",
    OOD_AUROC: "AUROC by entropy",
    "aurc": "AURC",
    "confidence_brier": "Brier score of confidence",
    "confidence_ece": "ECE of confidence",
    "confidence_aurc": "AURC of confidence",
    **{name: f"answered at {100 * risk:g} % risk" for name, risk in ANSWERED.items()},
}
BASELINE = "vanilla"
"""The method that others are compared with, if it was run."""
DIGITS: Mapping[str, int] = {CLASS_CHANGES: 0, PASSES: 2, COVERAGE: 3, SET_SIZE: 3}
"""Digits after the point, if not 4."""
DATASET_NAMES = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "aid": "AID",
    "cifar10*": "CIFAR-10*",
    "ucmerced": "UC-Merced",
    "cifar10 → aid": "CIFAR-10 → AID",
    "aid → cifar10": "AID → CIFAR-10",
}


def metric_name(metric: str) -> str:
    """Return the readable name of a metric."""
    return METRIC_NAMES.get(metric, metric.replace("_", " "))


def dataset_name(dataset: str) -> str:
    """Return the readable name of a dataset."""
    return DATASET_NAMES.get(dataset, dataset)


def digits(metric: str) -> int:
    """Return how many digits after the point are shown."""
    return DIGITS.get(metric, 4)


# ---- labels of contenders ------------------------------------------------------------------------


class Contender(NamedTuple):
    """What is compared; the first three columns say on what."""

    experiment: str = ""
    dataset: str = ""
    validation: int = 0
    method: str = ""
    policy: str = ""
    choice: str = ""

    @property
    def setting(self) -> Setting:
        """What the contender is compared on."""
        return self[:3]


Setting: TypeAlias = tuple[str, str, int]
Bounds: TypeAlias = dict[tuple[Contender, Contender | None, str], tuple[float, float]]
"""(low, high) by contender, the other contender (None for the number itself) and metric."""


def contender(one: Row | Interval | Mapping[str, Any]) -> Contender:
    """Return the contender of a row, an interval or a detail; a rule stands for its policies."""
    columns = one if isinstance(one, Mapping) else vars(one)
    found = Contender(**{name: columns[name] for name in Contender._fields if name in columns})
    return found._replace(policy="") if found.choice else found


def label(method: str, choice: str = "", *more: str) -> str:
    """Join a method, the rule of its policy unless it is the paper's, and more words."""
    return " · ".join(filter(None, (method, choice if choice != RULE else "", *more)))


def labels(contenders: Iterable[Contender], *, sizes: bool = False) -> dict[Contender, str]:
    """Name contenders as briefly as tells them apart: policies, and with `sizes` image counts."""
    keys = list(dict.fromkeys(contenders))
    policies = Counter(method for method, _ in {(key.method, key.policy) for key in keys})
    several = sizes and len({key.validation for key in keys}) > 1
    return {
        key: label(
            key.method,
            key.choice,
            key.policy if policies[key.method] > 1 else "",
            f"{key.validation} images" if several else "",
        )
        for key in keys
    }


def bounds(intervals: Iterable[Interval]) -> Bounds:
    """Return the bounds of numbers and of differences, each difference in both directions."""
    found: Bounds = {}
    for one in intervals:
        mine, theirs = contender(one), contender(one.other) if one.against else None
        found[mine, theirs, one.metric] = one.low, one.high
        if theirs is not None:
            found[theirs, mine, one.metric] = -one.high, -one.low
    return found


def baselines(results: Results, method: str) -> dict[Setting, Contender]:
    """Return what each setting is compared with: that method, or else the first one."""
    found: dict[Setting, Contender] = {}
    for row in sorted(results, key=lambda row: row.method != method):  # a stable sort
        key = contender(row)
        found.setdefault(key.setting, key)
    return found


def judged(low: float, high: float, better: str | None) -> int | None:
    """Return 1 (better) or -1 (worse) if the interval of a difference excludes 0, else 0.

    None if the metric has no better direction or a bound is not finite.
    """
    if better is None or not (math.isfinite(low) and math.isfinite(high)):
        return None
    if low <= 0 <= high:
        return 0
    return 1 if (high < 0) == (better == "lower") else -1


def relabelled(results: Results, *, sizes: bool = False) -> Results:
    """Return the results with labels in the place of method, policy and choice."""
    named = labels(map(contender, results), sizes=sizes)

    def rename(one: Form) -> Form:
        return replace(one, method=named.get(contender(one), one.method), policy="", choice="")

    intervals = (
        replace(
            rename(one),
            against=one.against and rename(one.other).method,
            against_policy="",
            against_choice="",
        )
        for one in results.intervals
    )
    return replace(results, rows=tuple(map(rename, results)), intervals=tuple(intervals))
