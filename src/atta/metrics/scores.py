"""Metrics by name, in one pass (`evaluate`), batch by batch (`Sums`), and of label maps.

`Sums` adds up what images contribute (`per_image`), and applies the formulas (`formulas`). Sums of
several batches or machines can be merged.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from atta._base.errors import InputError
from atta._base.settings import Cells, check_one, checked
from atta._base.types import Labels, PerImage, Probs
from atta.metrics.binning import (
    COUNT,
    GRID,
    Table,
    bin_index,
    binned,
    cell_edges,
    class_index,
    even_edges,
    mass_index,
    on_grid,
    tally,
)
from atta.metrics.formulas import FORMULAS, RANKED, measurable
from atta.metrics.per_image import (
    TERMS,
    UNLABELLED,
    AnyProbs,
    Array,
    Images,
    LabelArray,
    as_tensor,
    per_image,
    validate,
)
from atta.results.words import BY_CONFIDENCE, DIRECTION, Better

TOTALS = ("images", "labelled", *TERMS)
Confusion = Float[Tensor, "k k"]


@final
class Sums:
    """Accumulate METRICS over batches, in memory that does not grow with the images.

    Use it where the probabilities do not fit into memory, or come from several processes; then add
    up `state` (`torch.distributed.all_reduce`) or `merge` the sums of each. `compute` equals
    `atta.evaluate` up to float64 rounding, except for the metrics of ranks. These know each
    confidence by one of about 4000 cells: adaptive_ece is off by at most 2/n times the images in
    cells that a quantile cuts, aurc by Σ_cells m/4 · (w_first - w_last), for m images whose error
    at rank j weighs w_j. On 10,000 images that is under 1e-3 and 1e-4, and under 1e-4 for
    smooth_ece.

    Args:
        classes: The number of classes.
        count: The number of bins; 15 as in the paper.
        metrics: Names of METRICS; all by default. classwise_ece takes classes · bins of memory.
        device: Where the sums are kept.

    Attributes:
        state: Tensors by name, all plain sums: those of two sets add up to those of both.

    >>> sums = Sums(classes=2, metrics=["accuracy", "brier"])
    >>> for probs, label in (([[0.75, 0.25]], [0]), ([[0.25, 0.75]], [0])):
    ...     sums = sums.update(torch.tensor(probs), label)
    >>> sums.compute()
    {'accuracy': 0.5, 'brier': 0.3125}
    """

    def __init__(
        self,
        classes: int,
        *,
        count: int = COUNT,
        metrics: Iterable[str] | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.classes, self.count = classes, check_one("count", count, Cells)
        self.metrics = None if metrics is None else measurable(metrics)
        shapes = {"totals": (len(TOTALS),), "bins": (3, count), "cells": (3, len(cell_edges()) - 1)}
        if self.metrics is None or "classwise_ece" in self.metrics:
            shapes["class_bins"] = (3, classes, count)
        self.state = {
            name: torch.zeros(shape, dtype=torch.float64, device=device)
            for name, shape in shapes.items()
        }

    def update(
        self, probs: Array, labels: LabelArray | None = None, *, simplex: bool = True
    ) -> "Sums":
        """Add images and return the sums; refused input leaves the sums unchanged.

        Args:
            probs: Probabilities, images × classes.
            labels: The class number of each image; None for the entropies alone.
            simplex: Require rows that sum to 1.

        Raises:
            InputError: The arrays are not probabilities and labels of so many classes.
        """
        p, y = validate(probs, labels)
        if p.shape[1] != self.classes:
            raise InputError(f"probs: expected {self.classes} classes, got {p.shape[1]}")
        fresh = Sums(self.classes, count=self.count, metrics=self.metrics, device=p.device)
        for part in per_image(p, y, simplex=simplex):
            fresh.add(part)
        return self.merge(fresh)

    def merge(self, other: "Sums") -> "Sums":
        """Add the images of other sums, of the same classes, bins and metrics; return the sums."""
        mine, theirs = ((s.classes, s.count, s.metrics) for s in (self, other))
        if mine != theirs:
            raise InputError(
                "merge: expected sums of the same (classes, count, metrics), "
                f"got {mine} and {theirs}"
            )
        for name, tensor in self.state.items():
            tensor += other.state[name].to(tensor.device)
        return self

    def add(self, part: Images, *, cells: bool = True) -> None:
        """Add checked images; without `cells`, the caller knows the exact ranks."""
        totals, confidence, correct = self.state["totals"], part.confidence, part.correct
        totals[: 1 if part.labels is None else 2] += len(confidence)
        for name in FORMULAS if self.metrics is None else self.metrics:
            if name in (UNLABELLED if part.labels is None else TERMS):
                totals[TOTALS.index(name)] += TERMS[name](part).sum()
        if part.labels is not None:
            for name, edges in (("bins", even_edges(self.count)), ("cells", cell_edges())):
                if name == "bins" or cells:
                    index = bin_index(confidence, edges.to(confidence.device))
                    self.state[name] += tally(index, len(edges) - 1, confidence, correct)
            if "class_bins" in self.state:
                sums, own = self.state["class_bins"], part.labels[:, None]
                hits = torch.zeros_like(part.probs).scatter_(1, own, 1.0)
                index = class_index(part.probs, self.count)
                sums += tally(index, sums[0].numel(), part.probs, hits).view_as(sums)

    def compute(self, tied: Table | None = None) -> dict[str, float]:
        """Return the metrics of all images so far, by name.

        Args:
            tied: The table of images by confidence, ascending, if it is known exactly.

        Raises:
            InputError: There are no images yet, or some have labels and others none.
        """
        total = dict(zip(TOTALS, self.state["totals"], strict=True))
        images, labelled = total["images"], total["labelled"]
        if not images or labelled not in (0, images):
            raise InputError(
                "expected images, with labels for all or none, "
                f"got {labelled:.0f} labels for {images:.0f} images"
            )
        names = measurable(self.metrics, bool(labelled))
        by_class = self.state.get("class_bins", images.new_zeros(3, 0))
        summary = {name: value / images for name, value in total.items()}
        summary |= {"bins": self.state["bins"], "class_gaps": (by_class[2] - by_class[1]) / images}
        if RANKED & set(names):
            cells = self.state["cells"] if tied is None else tied
            cells = cells[:, cells[0] > 0]
            gaps, levels = (cells[2] - cells[1]) / images, cells[1] / cells[0]
            mass, (places, parts) = mass_index(levels, cells[0], self.count), on_grid(levels)
            summary |= {
                "tied": cells[::2],
                "mass_gaps": binned(mass, gaps, self.count),
                "residual": binned(places, parts * gaps, GRID),
            }
        return {name: float(FORMULAS[name](summary)) for name in names}


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
    return _auroc(
        *(torch.cat([part.nats for part in per_image(p, None, simplex=simplex)]) for p in (a, b))
    )


def _auroc(low: Tensor, high: Tensor) -> float:
    """Return how often a number of `high` is above one of `low`; ties count half."""
    low = low.sort().values
    lower, not_higher = (
        torch.searchsorted(low, high.to(low.device), right=right) for right in (False, True)
    )
    return float((lower + not_higher).double().mean() / 2 / len(low))


def class_changes(probs: Array, logits: Array) -> int:
    """Return the number of images whose class is not `argmax(logits)`, the first of the largest."""
    p, z = validate(probs, None)[0], as_tensor(logits, "logits")
    if p.shape != z.shape:
        raise InputError(f"logits: expected shape {tuple(p.shape)} as probs, got {tuple(z.shape)}")
    winner = torch.cat([part.winner for part in per_image(p, None, simplex=False)])
    return int((winner != z.argmax(dim=1).to(winner.device)).sum())


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
    if correct.all() or not correct.any():
        return float("nan")
    return 1 - _auroc(confidence[correct], confidence[~correct])


def map_scores(probs: Probs, labels: Labels, confidence: PerImage) -> dict[str, float]:
    """Return `miou` and `error_auroc` of pixels."""
    answers = probs.argmax(dim=1)
    return {
        "miou": miou(confusion(answers, labels, probs.shape[1])),
        "error_auroc": error_auroc(confidence, answers == labels),
    }
