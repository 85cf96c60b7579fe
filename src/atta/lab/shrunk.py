"""M-ATTA, shrunk towards V-ATTA as far as the validation images ask for it.

M-ATTA has one weight per kind of view and class, and over-fits a small validation set. V-ATTA has
one weight per kind and does not, but cannot follow classes that differ, however many images there
are. Between the two lies

    W = v·1ᵀ + D,     loss = NLL + λ / 2n · Σ_ic (s_ic D_ic)²,     s_ic² = mean of view_logits_ic²

with V-ATTA at λ = ∞ and M-ATTA, run to convergence, at λ = 0.

**The scale of the penalty.** s_ic D_ic is what D adds to the fused logit of class c through kind i.
The penalty is a Gaussian prior with a deviation of 1/√λ logits for each such term. So one λ means
the same for any number of images (whose evidence outgrows the prior, hence 1/n), classes and kinds,
and for any scale of the logits.

**The choice of λ** is by cross-validated NLL, and cautious: the largest λ whose held-out loss
exceeds the lowest one by at most two standard errors of the paired difference. λ = ∞ is always
among them and is V-ATTA itself. λ goes from large to small, each fit starts at the one before, and
the search ends once the loss clearly rises.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from atta._base.errors import InputError
from atta._base.settings import Folds, Seed, Step, shown
from atta._base.types import Labels, Probs, Scalar, ViewLogits, ViewWeights
from atta.calibrators.atta import LIMIT_BOUNDS, PRIOR_DEVIATION, VATTA, ViewBlend
from atta.calibrators.base import ViewMethod
from atta.calibrators.fitting import cholesky, fold_splits, minimize, standard_error
from atta.functional import First, Space, fuse, largest_share, leader
from atta.record.predictions import Predictions

LARGEST_STRENGTH = 1e6  # used for λ = ∞ in the folds: D then stays below 0.01 logits
LEAST_SIZE = 1e-3  # of logits: the weight of a view of zeros must not be infinite
STANDARD_ERRORS = 2  # with one, 250 images were shrunk too little (docs/past-the-paper.md)
RIDGE = 1e-4  # fraction of the curvature that is added to it: equal views leave it singular


class Samples(NamedTuple):
    """The images of a fit."""

    base: Probs
    views: ViewLogits
    labels: Labels
    first: First  # the classes to keep

    def rows(self, rows: Tensor) -> Samples:
        """Return some of the images."""
        return Samples(*(part[rows] for part in self))

    def to(self, dtype: torch.dtype) -> Samples:
        """Return the same in another precision."""
        return self._replace(base=self.base.to(dtype), views=self.views.to(dtype))


class Point(NamedTuple):
    """The parameters of a fit: v, D and the limit."""

    shared: Float[Tensor, "m 1"]
    spread: Float[Tensor, "m k"]
    limit: Scalar

    @property
    def weights(self) -> ViewWeights:
        """W = v·1ᵀ + D."""
        return self.shared + self.spread


@dataclass(frozen=True, kw_only=True)
class ShrunkMATTA(ViewMethod):
    """M-ATTA with weights that are shrunk over the classes towards those of V-ATTA.

    Use it with thousands of validation images whose classes differ. The strength is chosen by
    cross-validation, V-ATTA included.

    Args:
        views: The kinds of view to use; None uses all kinds in the predictions.
        strengths: The λ to choose from, besides ∞, which is V-ATTA.
        folds: The number of folds of the cross-validation.
        step: None for the share in closed form, 0.01 for the paper's grid.
        space: Where the views are summed: "logits" or "probabilities".
        seed: The seed that deals the folds.

    >>> logits, labels = 4 * torch.eye(3).repeat(4, 1), [0, 1, 2, 0, 1, 2, 0, 1, 2, 1, 2, 0]
    >>> predictions = Predictions(logits, {"flip": logits.unsqueeze(1)})
    >>> ShrunkMATTA(strengths=[10.0], folds=2).fit(predictions, labels)
    ViewBlend(shrunk-m-atta, classes=3, views=flip)
    """

    strengths: Sequence[float] = (1000.0, 300.0, 100.0, 30.0, 10.0, 3.0)
    folds: Folds = 5
    step: Step = None
    space: Space = "logits"
    seed: Seed = 0

    name = "shrunk-m-atta"
    summary = "m-atta drawn towards v-atta, how far by cross-validation"

    def __post_init__(self) -> None:
        try:
            strengths = tuple(
                sorted({float(strength) for strength in self.strengths}, reverse=True)
            )
        except (TypeError, ValueError):
            strengths = ()
        if not strengths or not all(0 < strength < math.inf for strength in strengths):
            raise InputError(
                "strengths must be numbers, positive and finite (∞ is always tried), "
                f"got {shown(self.strengths)}"
            )
        object.__setattr__(self, "strengths", strengths)
        super().__post_init__()

    def learn(self, predictions: Predictions, labels: Labels) -> ViewBlend:
        """Choose λ on the folds, then fit on all images; at λ = ∞ the result is V-ATTA's."""
        kinds = self.kinds_of(predictions)
        flat = VATTA(views=self.views, step=self.step, space=self.space).learn(predictions, labels)
        views = predictions.view_logits(kinds).double()
        base = predictions.logits.double().softmax(dim=-1)
        images = Samples(base, views, labels, leader(base))
        start = Point(flat.weights.double(), torch.zeros_like(views[0]), flat.limit.double())
        strength = self._choose(images, start)
        if strength == math.inf:
            return flat
        for stiffer in self.strengths:
            if stiffer > strength:
                start = self._fit(stiffer, images, start)
        found = self._fit(strength, images, start, tolerance=1e-7, iterations=500)
        return ViewBlend(found.weights, found.limit, kinds=kinds, step=self.step, space=self.space)

    def _choose(self, images: Samples, start: Point) -> float:
        """Return the largest λ that is as good on held-out images as the best one, up to noise."""
        n, device = len(images.labels), start.limit.device
        if n < 2:
            return math.inf
        splits = [
            (images.rows(rest.to(device)).to(torch.float32), images.rows(part.to(device)))
            for rest, part in fold_splits(n, min(self.folds, n), seed=self.seed)
        ]
        points, best = [start] * len(splits), math.inf
        losses: dict[float, Tensor] = {}
        for strength in (math.inf, *self.strengths):
            held_out = []
            for i, (rest, part) in enumerate(splits):
                points[i] = self._fit(min(strength, LARGEST_STRENGTH), rest, points[i])
                held_out.append(self._losses(part, points[i]))
            losses[strength] = torch.cat(held_out)
            if losses[strength].mean() < losses[best].mean():
                best = strength
            elif _clearly_worse(losses[strength], losses[best]):
                break
        return max(
            strength for strength in losses if not _clearly_worse(losses[strength], losses[best])
        )

    def _losses(self, images: Samples, point: Point) -> Float[Tensor, " n"]:
        """Return the NLL of each image; only labels need mixing, as the share keeps the class."""
        base, views, labels, first = images
        fused = fuse(views, point.weights.to(base), space=self.space)
        share = largest_share(base, fused, point.limit.to(base), step=self.step, first=first)
        label = labels.unsqueeze(-1)
        own = (base.gather(-1, label), fused.gather(-1, label))
        picked = torch.lerp(*own, share.unsqueeze(-1)).squeeze(-1)
        return -picked.clamp(min=torch.finfo(base.dtype).tiny).log().double()

    def _fit(
        self,
        strength: float,
        images: Samples,
        start: Point,
        *,
        tolerance: float = 1e-6,
        iterations: int = 40,
    ) -> Point:
        """Minimise from `start` by L-BFGS, in coordinates in which the curvature is about 1."""
        n, _, k = images.views.shape
        size, factor = _coordinates(
            images, fuse(images.views, start.weights.to(images.views), space=self.space), strength
        )

        def point(parameters: Mapping[str, Tensor]) -> Point:
            scaled = torch.linalg.solve_triangular(
                factor.mT, parameters["moves"].unsqueeze(2), upper=True
            )
            weights = (scaled.squeeze(2) / size).T
            return Point(weights[:, k:], weights[:, :k], parameters["limit"])

        def loss(parameters: Mapping[str, Tensor]) -> Tensor:
            here = point(parameters)
            # The prior of V-ATTA on v: with hardly a mistake among the images, only it bounds v.
            penalty = (
                strength * (size[:k].T * here.spread).square().sum()
                + here.shared.square().sum() / PRIOR_DEVIATION**2
            )
            return self._losses(images, here).mean() + penalty / (2 * n)

        scaled = size * torch.cat([start.spread, start.shared], dim=1).T
        moves = (factor.mT @ scaled.unsqueeze(2)).squeeze(2)
        return point(
            minimize(
                loss,
                {"moves": moves, "limit": start.limit},
                LIMIT_BOUNDS,
                tolerance=tolerance,
                iterations=iterations,
            )
        )


def _coordinates(
    images: Samples, fused: Probs, strength: float
) -> tuple[Float[Tensor, "columns m"], Float[Tensor, "columns m m"]]:
    """Return sizes s and factors L of the curvature for the k columns of D and, last, for v.

    The coordinates are Lᵀ (s ⊙ D). The kinds are strongly correlated and λ ranges over powers of
    ten: in D itself, L-BFGS would take hundreds of steps. The curvature in s_c ⊙ D_c of class c
    alone is H_c = mean fused_c (1 - fused_c) x xᵀ + λ/n with x = view_logits_c / s_c. That in v is
    the sum of those of the NLL, each in the sizes of v. H = L Lᵀ.
    """
    n, _, k = images.views.shape
    logits = images.views.double().permute(2, 1, 0)
    square = logits.square().mean(dim=2)
    size = torch.cat([square, square.mean(dim=0, keepdim=True)]).sqrt().clamp(min=LEAST_SIZE)
    x = logits / size[:k].unsqueeze(2)
    uncertain = (fused * (1 - fused)).double().T.unsqueeze(1) / n
    of_nll = (x * uncertain) @ x.mT
    ratio = size[:k] / size[k]
    in_v = (ratio.unsqueeze(2) * of_nll * ratio.unsqueeze(1)).sum(dim=0, keepdim=True)
    curvature = torch.cat([of_nll, in_v])
    diagonal = curvature.diagonal(dim1=1, dim2=2)
    diagonal += RIDGE * (diagonal.mean(dim=1, keepdim=True) + 1 / n)
    diagonal[:k] += strength / n
    return size, cholesky(curvature)


def _clearly_worse(losses: Tensor, best: Tensor) -> bool:
    """Return whether the mean loss exceeds the best one significantly."""
    more = losses - best
    return bool(more.mean() > STANDARD_ERRORS * standard_error(more))
