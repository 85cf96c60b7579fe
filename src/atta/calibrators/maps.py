"""Calibrators that map single probabilities by how often they were right: isotonic and histogram.

Pooled (the default, as in the paper): one map for all k·n probabilities, with the target "is this
the true class". One-vs-rest (`pooled=False`): one map per class. Mapped rows do not sum to one, and
histogram binning is not even monotone, so the predicted class can change. `normalize=True` fixes
both: the class is kept, its confidence is the mapped value if possible, and the other classes share
the rest in proportion to their mapped values. `normalize=False` returns the mapped values, as in
the paper.
"""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import isotonic_regression
from torch import Tensor

from atta._base.settings import Cells
from atta._base.types import Labels, Logits, Probs
from atta.calibrators.base import Calibrator, Method, Views
from atta.functional import MARGIN, leader, put_first
from atta.metrics.binning import bin_index, even_edges
from atta.record.predictions import Predictions


def carry_class(mapped: Probs, logits: Logits, floor: Tensor) -> Probs:
    """Normalise mapped probabilities with the class of `logits` first.

    With v = mapped, c the class of `logits` and q_j the fraction of rival j among the rivals, the
    result is p_c = v_c and p_j = (1 - v_c) q_j. If a rival would then lead, p_c is the least value
    that keeps c first: max q / (1 + max q). Values stay `floor` away from 0 and 1: the validation
    images cannot support more certainty.
    """
    first = leader(logits)
    mapped = mapped.clamp(min=floor, max=1 - floor)
    rivals = mapped.scatter(-1, first, 0.0)
    part = rivals / rivals.sum(dim=-1, keepdim=True)
    strongest = part.amax(dim=-1, keepdim=True)
    confidence = torch.maximum(mapped.gather(-1, first), (1 + MARGIN) * strongest / (1 + strongest))
    return put_first(((1 - confidence) * part).scatter(-1, first, confidence), first)


class _ProbabilityMap(Calibrator):
    """A map of single probabilities, one for all classes (1, b) or one per class (k, b)."""

    values: Tensor
    floor: Tensor
    normalize: bool

    @abstractmethod
    def map(self, probs: Probs) -> Probs:
        """Map every single probability."""

    def calibrate(self, logits: Logits, views: Views) -> Probs:
        """Map the softmax, and keep the class if `normalize`."""
        mapped = self.map(logits.softmax(dim=-1))
        return carry_class(mapped, logits, self.floor.to(logits)) if self.normalize else mapped


class Steps(_ProbabilityMap):
    """A value per bin: p in (edges_i, edges_{i+1}] becomes values_i."""

    edges: Tensor

    def map(self, probs: Probs) -> Probs:
        """Look up the value of the bin."""
        index = bin_index(probs, self.edges)
        columns = self.values.to(probs).expand(probs.shape[1], -1)
        return columns.gather(1, index.T).T


class Polyline(_ProbabilityMap):
    """Linear interpolation between the knots (x, y), constant beyond the first and the last."""

    knots: Tensor

    def map(self, probs: Probs) -> Probs:
        """Interpolate between the two neighbouring knots."""
        k = probs.shape[1]
        x, y = self.knots.to(probs).expand(k, -1).contiguous(), self.values.to(probs).expand(k, -1)
        columns = probs.T.contiguous()
        right = torch.searchsorted(x, columns).clamp(1, x.shape[1] - 1)
        x0, y0 = x.gather(1, right - 1), y.gather(1, right - 1)
        x1, y1 = x.gather(1, right), y.gather(1, right)
        along = ((columns - x0) / (x1 - x0).clamp(min=torch.finfo(probs.dtype).tiny)).clamp(0, 1)
        return torch.lerp(y0, y1, along).T


@dataclass(frozen=True, kw_only=True)
class _MapMethod(Method):
    """The settings of both maps. Without `normalize`, ties and bins can change the class."""

    pooled: bool = True
    normalize: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for promise in ("keeps_class", "on_simplex"):
            object.__setattr__(self, promise, self.normalize)

    def pairs(
        self, predictions: Predictions, labels: Labels
    ) -> tuple[Iterator[tuple[Tensor, Tensor]], Tensor]:
        """Return what each map sees, and the lowest frequency that this can show.

        A map sees probabilities, and the places of those of the true classes.
        """
        probs = predictions.logits.softmax(dim=-1)
        floor = torch.tensor(1.0 / probs.numel(), dtype=torch.float64, device=probs.device)
        if self.pooled:
            rows = torch.arange(len(labels), device=probs.device)
            return iter([(probs.flatten(), rows * predictions.classes + labels)]), floor
        # One class at a time: all of them in float64 are several times the logits.
        each = ((probs[:, k], torch.where(labels == k)[0]) for k in range(predictions.classes))
        return each, floor


@dataclass(frozen=True, kw_only=True)
class Isotonic(_MapMethod):
    """Isotonic regression: the best monotone map of probabilities (Zadrozny & Elkan, KDD 2002).

    Args:
        pooled: Whether one map serves all classes; otherwise there is one per class.
        normalize: Whether rows sum to one and keep the class; False returns the mapped values.

    >>> logits = torch.tensor([[4.0, 0.0], [4.0, 0.0], [0.0, 4.0], [0.0, 4.0]])
    >>> Isotonic().fit(logits, [0, 0, 1, 0])(logits[:1])     # three of four are right
    tensor([[0.7500, 0.2500]])
    """

    name = "isotonic"
    summary = "the best monotone map of single probabilities (Zadrozny & Elkan 2002)"

    def learn(self, predictions: Predictions, labels: Labels) -> Polyline:
        """Pool adjacent violators, over all classes at once or class by class."""
        pairs, floor = self.pairs(predictions, labels)
        lines = [_isotonic_knots(probs, hits) for probs, hits in pairs]
        longest = max(line.shape[1] for line in lines)
        padded = [np.pad(line, ((0, 0), (0, longest - line.shape[1])), "edge") for line in lines]
        x, y = torch.from_numpy(np.stack(padded, axis=1)).to(predictions.device)
        return Polyline(knots=x.clone(), values=y.clone(), floor=floor, normalize=self.normalize)


def _isotonic_knots(probs: Tensor, hits: Tensor) -> np.ndarray:
    """Return the corners (2, knots) of the fitted line: the ends of each run of equal values."""
    x, inverse, counts = np.unique(probs.cpu().numpy(), return_inverse=True, return_counts=True)
    x, rate = x.astype(float), np.bincount(inverse[hits.cpu().numpy()], minlength=len(x)) / counts
    y = np.asarray(isotonic_regression(rate, weights=counts).x)
    if len(x) == 1:  # all probabilities are equal
        return np.array([[0.0, 1.0], [y[0], y[0]]])
    corner = np.ones(len(x), dtype=bool)
    corner[1:-1] = (y[1:-1] != y[:-2]) | (y[1:-1] != y[2:])
    return np.stack([x[corner], y[corner]])


@dataclass(frozen=True, kw_only=True)
class Histogram(_MapMethod):
    """Histogram binning: each probability becomes the accuracy of its bin.

    Zadrozny & Elkan, ICML 2001.

    Args:
        bins: The number of equal bins.
        pooled: Whether one map serves all classes; otherwise there is one per class.
        normalize: Whether rows sum to one and keep the class; False returns the mapped values.

    >>> logits = torch.tensor([[4.0, 0.0], [4.0, 0.0], [0.0, 4.0], [0.0, 4.0]])
    >>> Histogram().fit(logits, [0, 0, 1, 0])(logits[:1])     # three of four are right
    tensor([[0.7500, 0.2500]])
    """

    bins: Cells = 15

    name = "histogram"
    summary = "the accuracy of the bin a probability falls into (Zadrozny & Elkan 2001)"

    def learn(self, predictions: Predictions, labels: Labels) -> Steps:
        """Count the hits in each bin; an empty bin keeps its midpoint."""
        pairs, floor = self.pairs(predictions, labels)
        # In the dtype of the calibrator: a softmax of exactly 1/5 must always fall into one bin.
        edges = even_edges(self.bins).to(predictions.logits)
        values = []
        for probs, hits in pairs:
            index = bin_index(probs, edges)
            counts = torch.bincount(index, minlength=self.bins)
            rights = torch.bincount(index[hits], minlength=self.bins).double()
            midpoints = (edges[1:] + edges[:-1]).double() / 2
            values.append(torch.where(counts > 0, rights / counts.clamp(min=1), midpoints))
        return Steps(edges=edges, values=torch.stack(values), floor=floor, normalize=self.normalize)
