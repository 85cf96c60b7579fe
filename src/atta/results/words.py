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
ENTROPIES = {"entropy": "higher", "shannon_entropy": "higher", "ood_auroc": "higher"}
BETTER: Mapping[str, str | None] = {**DIRECTION, **ENTROPIES, "accuracy": None}
SENSE: Mapping[str, str | None] = {**BETTER, "accuracy": "higher"}
BASELINE = "vanilla"
"""What differences are taken to, where it was run."""
DIGITS = {"class_changes": 0, "passes": 2, "coverage": 3, "set_size": 3}
NAMES = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "aid": "AID",
    "cifar10*": "CIFAR-10*",
    "ucmerced": "UC-Merced",
    "cifar10 → aid": "CIFAR-10 → AID",
    "aid → cifar10": "AID → CIFAR-10",
}
