"""Compute metrics batch by batch, or on several machines, from sums that can be merged."""

from collections.abc import Iterable
from typing import final

import torch

from atta._base.errors import InputError
from atta.metrics.binning import COUNT
from atta.metrics.per_image import Array, LabelArray, per_image, validate
from atta.metrics.scores import METRICS, add_images, compute, known, measurable, no_images


@final
class Sums:
    """Accumulate METRICS over batches, in memory that does not grow with the images.

    Use it where the probabilities do not fit into memory, or come from several processes; then add
    up `state` (`torch.distributed.all_reduce`) or `merge` the sums of each. `compute` equals
    `atta.evaluate` up to float64 rounding, except for the three metrics of ranks. These know each
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
        self.classes, self.count = classes, count
        self.metrics = None if metrics is None else known(metrics)
        self._names = list(METRICS) if self.metrics is None else self.metrics
        self.state = no_images(classes, count, self._names, device=device, cells=True)

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
            add_images(fresh.state, part, self._names)
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

    def compute(self) -> dict[str, float]:
        """Return the metrics of all images so far, by name.

        Raises:
            InputError: There are no images yet, or some have labels and others none.
        """
        images, labelled = map(int, self.state["totals"][:2].tolist())
        if not images or labelled not in (0, images):
            raise InputError(
                "expected images, with labels for all or none, "
                f"got {labelled} labels for {images} images"
            )
        cells = self.state["cells"]
        names = measurable(self.metrics, bool(labelled))
        return compute(names, self.state, cells[:, cells[0] > 0])
