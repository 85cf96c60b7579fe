"""METRICS by name, and `evaluate`, which computes them in one pass; see `formulas`."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from atta._base.errors import InputError
from atta._base.settings import Cells, checked
from atta.metrics.binning import COUNT, tally
from atta.metrics.formulas import RANKED, measurable
from atta.metrics.per_image import (
    UNLABELLED,
    AnyProbs,
    Array,
    LabelArray,
    per_image,
    validate,
)
from atta.metrics.sums import Sums
from atta.results.words import BY_CONFIDENCE, DIRECTION, Better


@final
@dataclass(frozen=True)
class Metric:
    """A metric, called as `metric(probs, labels) -> float`; see `atta.metrics.formulas`.

    Use `atta.evaluate` for several metrics: it reads the probabilities once.

    Attributes:
        name: The name in `atta.METRICS`.
        better: Whether "lower" or "higher" values are better; None if neither.
        needs_labels: Whether the metric needs labels; the entropies need none.
    """

    name: str
    better: Better
    needs_labels: bool

    def __call__(
        self, probs: Array, labels: LabelArray | None = None, *, simplex: bool = True
    ) -> float:
        """Return this metric alone; the arguments are those of `evaluate`."""
        return evaluate(probs, labels, simplex=simplex, metrics=[self.name])[self.name]


METRICS = {name: Metric(name, better, name not in UNLABELLED) for name, better in DIRECTION.items()}
"""All metrics by name: the paper's six come first, in its order.

>>> METRICS["brier"](torch.tensor([[0.75, 0.25], [0.25, 0.75]]), [0, 0])
0.3125
>>> METRICS["brier"].better
'lower'
"""


@checked
def evaluate(
    probs: Any,
    labels: Any = None,
    truth: Any = None,
    *,
    simplex: bool = True,
    metrics: Iterable[str] | None = None,
    confidence: Any = None,
    count: Cells = COUNT,
) -> dict[str, float]:
    """Return all METRICS, or the named ones, of probabilities or of a classifier on images.

    `evaluate(probs, labels)` takes probabilities; `evaluate(classifier, images, labels)` runs the
    classifier first. Without labels it returns the entropies. `atta.Sums` takes batches.

    Args:
        probs: Probabilities, images × classes, or a classifier with `predict_proba`.
        labels: The class number of each image, or None; after a classifier, the images.
        truth: The labels, after a classifier and images that do not bring theirs along.
        simplex: Require rows that sum to 1. Isotonic and histogram calibration may need False.
        metrics: Names of METRICS; all that the labels allow by default.
        confidence: What `classifier.confidence` says; by default the largest probability.
        count: The number of bins of the ECEs and of the Brier decomposition; 15 as in the paper.

    Returns:
        The metrics by name, in the order of `metrics`.

    >>> evaluate(torch.tensor([[0.75, 0.25], [0.25, 0.75]]), [0, 0], metrics=["accuracy", "brier"])
    {'accuracy': 0.5, 'brier': 0.3125}
    """
    if hasattr(probs, "predict_proba"):
        simplex = simplex and getattr(probs, "on_simplex", True)
        ours = hasattr(probs, "labelled_proba")  # which also reads labels that are names
        answered = probs.labelled_proba(labels, truth) if ours else probs.predict_proba(labels)
        probs, labels = answered if ours else (answered, truth)
    elif truth is not None:
        got = type(probs).__name__
        raise InputError(f"expected a classifier before images and labels, got a {got}")
    p, y = validate(probs, labels)
    names = measurable(metrics, y is not None)
    ranked = list[tuple[Tensor, Tensor]]()
    sums = Sums(p.shape[1], count=count, metrics=names, device=p.device)
    for part in per_image(p, y, simplex=simplex, confidence=confidence):
        sums.add(part, cells=False)
        ranked.append((part.confidence, part.correct))
    if not RANKED & set(names):
        return sums.compute()
    sure, correct = (torch.cat(column) for column in zip(*ranked, strict=True))
    levels, index = sure.unique(return_inverse=True)  # type: ignore[no-untyped-call]
    return sums.compute(tally(index, len(levels), sure, correct))


def by_confidence(
    probs: AnyProbs, labels: LabelArray, confidence: Array, *, simplex: bool = True
) -> dict[str, float]:
    """Return how good `classifier.confidence` is: BY_CONFIDENCE in `results.words`."""
    metrics = BY_CONFIDENCE.values()
    found = evaluate(probs, labels, simplex=simplex, metrics=metrics, confidence=confidence)
    return {name: found[metric] for name, metric in BY_CONFIDENCE.items()}


def ood_auroc(probs_in: AnyProbs, probs_out: AnyProbs, *, simplex: bool = True) -> float:
    """Return the AUROC of telling out-of-distribution images by entropy; ties count half."""
    a, b = (validate(probs, None)[0] for probs in (probs_in, probs_out))
    if a.shape[1] != b.shape[1]:
        raise InputError(
            f"probs_out: expected {a.shape[1]} classes as in probs_in, got {b.shape[1]}"
        )
    inside, outside = (
        torch.cat([part.nats for part in per_image(p, None, simplex=simplex)]) for p in (a, b)
    )
    inside, outside = inside.sort().values, outside.to(inside.device)
    lower = torch.searchsorted(inside, outside)
    not_higher = torch.searchsorted(inside, outside, right=True)
    return float((lower + not_higher).double().mean() / 2 / len(inside))


def class_changes(probs: Array, logits: Array) -> int:
    """Return the number of images whose class is not `argmax(logits)`, the first of the largest."""
    p, z = (validate(scores, None)[0] for scores in (probs, logits))
    if p.shape != z.shape:
        raise InputError(f"logits: expected shape {tuple(p.shape)} as probs, got {tuple(z.shape)}")
    winner = torch.cat([part.winner for part in per_image(p, None, simplex=False)])
    return int((winner != z.argmax(dim=1).to(winner.device)).sum())
