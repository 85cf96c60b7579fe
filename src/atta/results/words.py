"""The vocabulary of results: what a column or metric is called, which way is better, and how many digits are shown.

Nothing here knows torch.
"""

from collections.abc import Mapping
from typing import Literal, TypeAlias

Better: TypeAlias = Literal["lower", "higher"] | None
CLASS_CHANGES = "class_changes"
OOD_AUROC = "ood_auroc"
PASSES = "passes"
COVERAGE, SET_SIZE = "coverage", "set_size"
REST, FITTED = "rest", "fitted"
"""What an experiment tests on: the rows that it did not fit on, or those that it did."""
COST = ": cost"
"""Ends the name of the experiment that says what each pass buys, after the name of the one it belongs to."""
RULE = "paper"
"""The choice of the policy that the paper's claims are about: the paper's own."""
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
"""Which way each metric of `atta.metrics` is better; None where neither is."""
ENTROPIES: Mapping[str, Better] = {
    "entropy": "higher",
    "shannon_entropy": "higher",
    OOD_AUROC: "higher",
}
"""Better on images of no known class, and on no others."""
BETTER: Mapping[str, Better] = {**DIRECTION, **ENTROPIES, "accuracy": None}
"""By what tables mark the best: a calibration is not better for its accuracy, which it keeps."""
SENSE: Mapping[str, Better] = {**DIRECTION, **ENTROPIES}
"""By what a difference is called better or worse."""
DRAWN: Mapping[str, Better] = {**DIRECTION, CLASS_CHANGES: "lower", OOD_AUROC: "higher"}
"""What an axis says, of whatever images."""
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
"""What differences are taken to, where it was run."""
DIGITS: Mapping[str, int] = {CLASS_CHANGES: 0, PASSES: 2, COVERAGE: 3, SET_SIZE: 3}
"""After the point, where it is not 4."""
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
    """What people call a metric."""
    return METRIC_NAMES.get(metric, metric.replace("_", " "))


def dataset_name(dataset: str) -> str:
    """What people call a dataset."""
    return DATASET_NAMES.get(dataset, dataset)


def digits(metric: str) -> int:
    """How many digits after the point are shown."""
    return DIGITS.get(metric, 4)
