"""Compute metrics batch by batch, or on several machines, from sums that can be merged."""

from collections.abc import Iterable
from typing import final

import torch

from atta._base.errors import InputError
from atta._base.settings import Cells, check_one
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
    Array,
    Images,
    LabelArray,
    per_image,
    validate,
)

TOTALS = ("images", "labelled", *TERMS)


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
            edges = {"bins": even_edges(self.count)} | ({"cells": cell_edges()} if cells else {})
            for name, some in edges.items():
                index = bin_index(confidence, some.to(confidence.device))
                self.state[name] += tally(index, len(some) - 1, confidence, correct)
            if "class_bins" in self.state:
                by_class = self.state["class_bins"]
                index = class_index(part.probs, self.count)
                true = index.gather(1, part.labels[:, None])
                for row, places, values in (
                    (0, index, torch.ones_like(part.probs)),
                    (1, index, part.probs),
                    (2, true, torch.ones_like(confidence)),
                ):
                    by_class[row] += binned(places, values, by_class[0].numel()).view_as(
                        by_class[0]
                    )

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
            mass, grid = gaps.new_zeros(self.count), gaps.new_zeros(GRID)
            places, parts = on_grid(levels)
            summary |= {
                "tied": cells[::2],
                "mass_gaps": mass.index_add(0, mass_index(levels, cells[0], self.count), gaps),
                "residual": grid.index_add(0, places.flatten(), (parts * gaps).flatten()),
            }
        return {name: float(FORMULAS[name](summary)) for name in names}
