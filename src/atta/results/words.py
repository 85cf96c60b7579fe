"""Names of metrics and datasets, which direction is better, and how many digits are shown."""

from collections.abc import Mapping
from typing import Literal, TypeAlias

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
}
"""The better direction of each metric of `atta.metrics`; None if neither is better."""
ENTROPIES: Mapping[str, Better] = {
    "entropy": "higher",
    "shannon_entropy": "higher",
    OOD_AUROC: "higher",
}
"""The better direction on out-of-distribution images only."""
BETTER: Mapping[str, Better] = {**DIRECTION, **ENTROPIES, "accuracy": None}
"""How tables mark the best: not by accuracy, which calibration keeps."""
SENSE: Mapping[str, Better] = {**DIRECTION, **ENTROPIES}
"""When a difference is called better or worse."""
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
