"""M-ATTA, drawn towards V-ATTA as far as the validation images ask for it.

M-ATTA has a weight for each kind of view and class, and over-fits a small validation set; V-ATTA has one for each kind and
does not, but cannot follow classes that differ however many images there are. Between the two lies

    W = v·1ᵀ + D,     loss = NLL + λ / 2n · Σ_ic (s_ic D_ic)²,     s_ic² = mean over the images of view_logits_ic²

with V-ATTA at λ = ∞ and M-ATTA, run to convergence, at λ = 0.

**The scale of the penalty.** s_ic D_ic is what D adds to the fused logit of class c through kind i. The penalty is that of
a Gaussian prior by which each such addition has deviation 1/√λ, in logits. So one λ means the same for any number of images
(whose evidence outgrows the prior by itself, hence 1/n), classes and kinds, and whatever the scale of the logits.

**The choice of λ** is by cross-validated NLL, and cautious: the largest λ whose held-out loss exceeds the least one by no more
than two standard errors of that difference, image by image. λ = ∞ is always among them, and is V-ATTA itself. λ goes from stiff
to loose, each fit starting at the last one, and no further once the loss is clearly on the rise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from atta._base.errors import InputError
from atta._base.settings import Folds, Seed, Step, shown
from atta._base.types import Labels, Probs, Scalar, ViewLogits, ViewWeights
from atta.calibrators.atta import LIMIT, PRIOR, VATTA, ViewBlend
from atta.calibrators.base import ViewMethod, base_probs
from atta.calibrators.fitting import cholesky, folds, minimize
from atta.functional import First, Space, fuse, largest_share, leader, mix
from atta.record.predictions import Predictions, mean_views

STIFF = (
    1e6  # stands for λ = ∞ in the folds: nothing moves by more than a few thousandths of a logit
)
SILENT = 1e-3  # the size that logits have at least: a weight on nothing must not be infinite
CAUTION = 2  # standard errors: with one, a split of 250 images was given too little shrinkage (docs/past-the-paper.md)
EASE = 1e-4  # of the curvature, added to it: views that say the same leave it singular


class Samples(NamedTuple):
    """What is fitted to."""

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
    """What is fitted: v, D and the limit."""

    shared: Float[Tensor, "m 1"]
    spread: Float[Tensor, "m k"]
    limit: Scalar

    @property
    def weights(self) -> ViewWeights:
        """W = v·1ᵀ + D."""
        return self.shared + self.spread


@dataclass(frozen=True, kw_only=True)
class ShrunkMATTA(ViewMethod):
    """M-ATTA with its weights drawn together over the classes; how much is chosen by cross-validation, V-ATTA included.

    `strengths`  the λ to choose from, besides ∞, which is V-ATTA
    `folds`      of the cross-validation; dealt by `seed`
    `step`       None: the share in closed form; 0.01: the paper's grid
    `space`      where the views are summed
    """

    strengths: Sequence[float] = (1000.0, 300.0, 100.0, 30.0, 10.0, 3.0)
    folds: Folds = 5
    step: Step = None
    space: Space = "logits"
    seed: Seed = 0

    name: ClassVar[str] = "shrunk-m-atta"
    summary: ClassVar[str] = "m-atta drawn towards v-atta, how far by cross-validation"

    def __post_init__(self) -> None:
        try:
            strengths = tuple(
                sorted({float(strength) for strength in self.strengths}, reverse=True)
            )
        except (TypeError, ValueError):
            strengths = ()
        if not strengths or not all(0 < strength < math.inf for strength in strengths):
            raise InputError(
                f"strengths must be numbers, positive and finite (∞ is always tried), got {shown(self.strengths)}"
            )
        object.__setattr__(self, "strengths", strengths)
        super().__post_init__()

    @property
    def v_atta(self) -> VATTA:
        """The method at λ = ∞."""
        return VATTA(views=self.views, step=self.step, space=self.space)

    def learn(self, predictions: Predictions, labels: Labels) -> ViewBlend:
        """Choose λ on the folds, then go down to it on all images. At λ = ∞ this is V-ATTA's own answer."""
        kinds = self.kinds_of(predictions)
        flat = self.v_atta.learn(predictions, labels)
        views = mean_views(predictions.views, kinds).double()
        base = base_probs(predictions.logits.double())
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
        """Return the largest λ that does as well on held-out images as the best one, up to noise."""
        n = len(images.labels)
        if n < 2:
            return math.inf
        parts = [
            part.to(images.labels.device) for part in folds(n, min(self.folds, n), seed=self.seed)
        ]
        kept = [torch.cat(parts[:i] + parts[i + 1 :]) for i in range(len(parts))]
        points = [start] * len(parts)
        losses: dict[float, Tensor] = {}
        best = math.inf
        for strength in (math.inf, *self.strengths):
            points = [
                self._fit(min(strength, STIFF), images.rows(rows).to(torch.float32), point)
                for rows, point in zip(kept, points, strict=True)
            ]
            held_out = [
                self._losses(images.rows(rows), point)
                for rows, point in zip(parts, points, strict=True)
            ]
            losses[strength] = torch.cat(held_out)
            if losses[strength].mean() < losses[best].mean():
                best = strength
            elif _clearly_worse(losses[strength], losses[best]):
                break
        return max(
            strength for strength in losses if not _clearly_worse(losses[strength], losses[best])
        )

    def _losses(self, images: Samples, point: Point) -> Float[Tensor, " n"]:
        """Return the NLL of each image; only labels are mixed, since the share keeps the class or, in a tie, is nearly 0."""
        base, views, labels, first = images
        fused = fuse(views, point.weights.to(base), space=self.space)
        share = largest_share(base, fused, point.limit.to(base), step=self.step, first=first)
        label = labels.unsqueeze(-1)
        picked = mix(base.gather(-1, label), fused.gather(-1, label), share).squeeze(-1)
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
        """Go to the minimum from `start`: L-BFGS, in coordinates in which the curvature is about 1."""
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
            # V-ATTA's weak prior on v: with hardly a mistake among the images, it is all that bounds it.
            penalty = (
                strength * (size[:k].T * here.spread).square().sum()
                + here.shared.square().sum() / PRIOR**2
            )
            return self._losses(images, here).mean() + penalty / (2 * n)

        scaled = size * torch.cat([start.spread, start.shared], dim=1).T
        moves = (factor.mT @ scaled.unsqueeze(2)).squeeze(2)
        return point(
            minimize(
                loss,
                {"moves": moves, "limit": start.limit},
                LIMIT,
                tolerance=tolerance,
                iterations=iterations,
            )
        )


def _coordinates(
    images: Samples, fused: Probs, strength: float
) -> tuple[Float[Tensor, "columns m"], Float[Tensor, "columns m m"]]:
    """Return sizes s and factors L of the curvature for the k columns of D and, last, for v; the coordinates are Lᵀ (s ⊙ D).

    The kinds say nearly the same and λ runs over powers of ten: in D itself L-BFGS would take hundreds of steps. The
    curvature in s_c ⊙ D_c, of class c alone, is H_c = mean fused_c (1 - fused_c) x xᵀ + λ/n with x = view_logits_c / s_c, and
    that in v the sum of those of the NLL, each in v's sizes. H = L Lᵀ.
    """
    n, _, k = images.views.shape
    logits = images.views.double().permute(2, 1, 0)
    square = logits.square().mean(dim=2)
    size = torch.cat([square, square.mean(dim=0, keepdim=True)]).sqrt().clamp(min=SILENT)
    x = logits / size[:k].unsqueeze(2)
    unsure = (fused * (1 - fused)).double().T.unsqueeze(1) / n
    of_nll = (x * unsure) @ x.mT
    ratio = size[:k] / size[k]
    in_v = (ratio.unsqueeze(2) * of_nll * ratio.unsqueeze(1)).sum(dim=0, keepdim=True)
    curvature = torch.cat([of_nll, in_v])
    diagonal = curvature.diagonal(dim1=1, dim2=2)
    diagonal += EASE * (diagonal.mean(dim=1, keepdim=True) + 1 / n)
    diagonal[:k] += strength / n
    return size, cholesky(curvature)


def _clearly_worse(losses: Tensor, best: Tensor) -> bool:
    """Say whether the mean loss exceeds the best one by more than CAUTION standard errors of the difference."""
    more = losses - best
    return bool(more.mean() > CAUTION * more.std() / math.sqrt(len(more)))
