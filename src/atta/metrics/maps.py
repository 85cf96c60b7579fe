"""Metrics of label maps: mIoU, and how well confidence finds wrong pixels."""

import torch
from jaxtyping import Float
from torch import Tensor

from atta._base.types import Labels, PerImage, Probs

Confusion = Float[Tensor, "k k"]


def confusion(answers: Labels, labels: Labels, classes: int) -> Confusion:
    """Count the pixels of each true class (row) that were given each class (column)."""
    pairs = labels * classes + answers
    return torch.bincount(pairs, minlength=classes**2).view(classes, classes).double()


def miou(counts: Confusion) -> float:
    """Return the mean intersection over union of the classes that occur.

    >>> miou(confusion(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]), 3))
    0.5
    """
    right, union = counts.diag(), counts.sum(0) + counts.sum(1) - counts.diag()
    return float((right[union > 0] / union[union > 0]).mean())


def error_auroc(confidence: PerImage, correct: Tensor) -> float:
    """Return how often a wrong pixel has less confidence than a right one; ties count half.

    >>> error_auroc(torch.tensor([0.9, 0.8, 0.3]), torch.tensor([True, True, False]))
    1.0
    """
    right, wrong = confidence[correct].sort().values, confidence[~correct]
    if not len(right) or not len(wrong):
        return float("nan")
    lower = torch.searchsorted(right, wrong)
    not_higher = torch.searchsorted(right, wrong, right=True)
    return 1 - float((lower + not_higher).double().mean() / 2 / len(right))


def map_scores(probs: Probs, labels: Labels, confidence: PerImage) -> dict[str, float]:
    """Return `miou` and `error_auroc` of pixels."""
    answers = probs.argmax(dim=1)
    return {
        "miou": miou(confusion(answers, labels, probs.shape[1])),
        "error_auroc": error_auroc(confidence, answers == labels),
    }
