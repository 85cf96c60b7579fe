"""Calibrators that map one probability to another, learned from how often it was right: isotonic and histogram.

Pooled (the default, and what the paper ran): one map for all k·n probabilities, with the target "is this the true class".
One-vs-rest (`pooled=False`): a map a class. Neither keeps rows on the simplex, and histogram binning is not even monotone, so
that the top class can change. `normalize=True` mends both: the original class is carried along, its confidence is the mapped
value wherever that can be, and the others share the rest in proportion to theirs. `normalize=False` leaves the mapped values
as they are, as the paper does.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from scipy.optimize import isotonic_regression
from torch import Tensor

from atta._base.settings import Cells
from atta._base.types import Labels, Logits, Probs, RepeatLogits
from atta.calibrators.base import Calibrator, Method, base_probs
from atta.functional import MARGIN, guard_class
from atta.metrics.binning import bin_index, even_edges
from atta.record.predictions import Predictions


def carry_class(mapped: Probs, base: Probs, floor: Tensor) -> Probs:
    """Put mapped probabilities on the simplex with the class of `base` in front.

    With v = mapped, c the class of `base` and q_j the part of rival j among the rivals, the answer is p_c = v_c and
    p_j = (1 - v_c) q_j. Where a rival would then be ahead, p_c is the least that keeps c in front: max q / (1 + max q).
    Values are kept `floor` away from 0 and 1: a zero would claim a certainty that the validation images cannot support.
    """
    first = base.argmax(dim=-1, keepdim=True)
    mapped = mapped.clamp(min=floor, max=1 - floor)
    rivals = mapped.scatter(-1, first, 0.0)
    part = rivals / rivals.sum(dim=-1, keepdim=True)
    strongest = part.amax(dim=-1, keepdim=True)
    confidence = torch.maximum(mapped.gather(-1, first), (1 + MARGIN) * strongest / (1 + strongest))
    return guard_class(((1 - confidence) * part).scatter(-1, first, confidence), base)


class _ProbabilityMap(Calibrator):
    """A map of single probabilities, one for all classes (1, b) or one a class (k, b)."""

    def __init__(self, *, normalize: bool, **learned: Tensor) -> None:
        super().__init__(**learned)
        self.normalize = normalize

    floor: Tensor

    @property
    def options(self) -> dict[str, Any]:
        """What the constructor needs besides the buffers."""
        return {"normalize": self.normalize}

    @abstractmethod
    def map(self, probs: Probs) -> Probs:
        """Map every single probability."""

    def calibrate(self, logits: Logits, views: Mapping[str, RepeatLogits]) -> Probs:
        """Map the softmax, and carry the class along unless told not to."""
        base = base_probs(logits)
        mapped = self.map(base)
        return carry_class(mapped, base, self.floor.to(base)) if self.normalize else mapped


class Steps(_ProbabilityMap):
    """A value a bin: p in (edges_i, edges_{i+1}] becomes values_i."""

    def __init__(self, edges: Tensor, values: Tensor, floor: Tensor, *, normalize: bool) -> None:
        super().__init__(edges=edges, values=values, floor=floor, normalize=normalize)

    edges: Tensor
    values: Tensor

    def map(self, probs: Probs) -> Probs:
        """Look up the value of the bin."""
        index = bin_index(probs, self.edges)
        columns = self.values.to(probs).expand(probs.shape[1], -1)
        return columns.gather(1, index.T).T


class Polyline(_ProbabilityMap):
    """Straight lines through the knots (x, y), constant beyond the first and the last."""

    def __init__(self, knots: Tensor, values: Tensor, floor: Tensor, *, normalize: bool) -> None:
        super().__init__(knots=knots, values=values, floor=floor, normalize=normalize)

    knots: Tensor
    values: Tensor

    def map(self, probs: Probs) -> Probs:
        """Interpolate between the two neighbouring knots."""
        k = probs.shape[1]
        x, y = self.knots.to(probs).expand(k, -1).contiguous(), self.values.to(probs).expand(k, -1)
        columns = probs.T.contiguous()
        right = torch.searchsorted(x, columns).clamp(1, x.shape[1] - 1)
        left = right - 1
        x0, x1, y0, y1 = (
            x.gather(1, left),
            x.gather(1, right),
            y.gather(1, left),
            y.gather(1, right),
        )
        along = ((columns - x0) / (x1 - x0).clamp(min=torch.finfo(probs.dtype).tiny)).clamp(0, 1)
        return torch.lerp(y0, y1, along).T


class _MapMethod(Method):
    """With `normalize` the class is carried along. Otherwise another one can lead: a monotone map makes ties, bins more."""

    normalize: bool

    @property
    def keeps_class(self) -> bool:
        """Whether the predicted class is promised never to change."""
        return self.normalize

    @property
    def on_simplex(self) -> bool:
        """Whether each row adds up to one."""
        return self.normalize


@dataclass(frozen=True, kw_only=True)
class Isotonic(_MapMethod):
    """Isotonic regression of "is this the true class" on the probability: the best monotone map.

    Zadrozny & Elkan, KDD 2002.
    """

    pooled: bool = True
    normalize: bool = True

    name: ClassVar[str] = "isotonic"
    summary: ClassVar[str] = "the best monotone map of single probabilities (Zadrozny & Elkan 2002)"

    def learn(self, predictions: Predictions, labels: Labels) -> Polyline:
        """Pool adjacent violators, over all classes at once or class by class."""
        pairs, floor = _pairs(predictions, labels, pooled=self.pooled)
        knots, values = zip(*(_isotonic_knots(probs, hits) for probs, hits in pairs), strict=True)
        longest = max(len(x) for x in knots)
        padded = [
            np.stack([np.pad(line, (0, longest - len(line)), mode="edge") for line in lines])
            for lines in (knots, values)
        ]
        device = predictions.device
        x, y = (torch.from_numpy(lines).to(device) for lines in padded)
        return Polyline(x, y, floor, normalize=self.normalize)


def _isotonic_knots(probs: Tensor, hits: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return the corners of the fitted monotone line: the ends of each run of equal values."""
    x, inverse, counts = np.unique(probs.cpu().numpy(), return_inverse=True, return_counts=True)
    rate = np.bincount(inverse, weights=hits.cpu().numpy()) / counts
    y = np.asarray(isotonic_regression(rate, weights=counts).x)
    corner = np.ones(len(x), dtype=bool)
    corner[1:-1] = (y[1:-1] != y[:-2]) | (y[1:-1] != y[2:])
    x, y = x[corner], y[corner]
    return (
        (x, y) if len(x) > 1 else (np.array([0.0, 1.0]), np.repeat(y, 2))
    )  # all probabilities alike


@dataclass(frozen=True, kw_only=True)
class Histogram(_MapMethod):
    """Histogram binning: each probability becomes the accuracy of its bin (Zadrozny & Elkan, ICML 2001)."""

    bins: Cells = 15
    pooled: bool = True
    normalize: bool = True

    name: ClassVar[str] = "histogram"
    summary: ClassVar[str] = (
        "the accuracy of the bin a probability falls into (Zadrozny & Elkan 2001)"
    )

    def learn(self, predictions: Predictions, labels: Labels) -> Steps:
        """Count hits by bin; a bin that no validation probability falls into keeps its midpoint."""
        pairs, floor = _pairs(predictions, labels, pooled=self.pooled)
        # In the dtype that is kept: a softmax of exactly 1/5 must fall into the same bin here and later.
        edges = even_edges(self.bins).to(predictions.logits)
        shape = (1 if self.pooled else predictions.classes, self.bins)
        counts, rights = torch.zeros(2, *shape, dtype=torch.float64, device=edges.device)
        for i, (probs, hits) in enumerate(pairs):
            index = bin_index(probs, edges)
            counts[i].scatter_add_(0, index, torch.ones_like(hits))
            rights[i].scatter_add_(0, index, hits)
        midpoints = (edges[1:] + edges[:-1]).double() / 2
        values = torch.where(counts > 0, rights / counts.clamp(min=1), midpoints)
        return Steps(edges, values, floor, normalize=self.normalize)


def _pairs(
    predictions: Predictions, labels: Labels, *, pooled: bool
) -> tuple[Iterator[tuple[Tensor, Tensor]], Tensor]:
    """Return probabilities and hits, map by map as they are asked for, and the smallest frequency that many pairs can show."""
    probs = base_probs(predictions.logits)
    floor = torch.tensor(1.0 / probs.numel(), dtype=torch.float64, device=probs.device)
    if not pooled:
        return (
            (column.double(), (labels == k).double()) for k, column in enumerate(probs.T)
        ), floor
    hits = torch.zeros_like(probs, dtype=torch.float64).scatter_(1, labels.unsqueeze(1), 1.0)
    return iter([(probs.double().T.reshape(-1), hits.T.reshape(-1))]), floor
