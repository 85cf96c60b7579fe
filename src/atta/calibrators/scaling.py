"""Calibrators of the logits alone: vanilla, temperature scaling, Dirichlet calibration.

vanilla        softmax(z)
temperature    softmax(z / T),  T > 0               Guo et al. 2017
dirichlet      softmax(W log softmax(z) + b)        Kull et al. 2019 (ODIR)
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product, starmap
from typing import Annotated, Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from atta._base.errors import InputError
from atta._base.settings import Folds, Seed, shown
from atta._base.types import Labels, Logits, Probs
from atta.calibrators.base import Calibrator, Method, Views
from atta.calibrators.fitting import cholesky, fold_splits, minimize, pieces
from atta.functional import can_look, guard_class
from atta.record.predictions import Predictions

Pair: TypeAlias = tuple[float, float]
"""λ and μ."""
Coordinates: TypeAlias = tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]
"""From maps (W | b) to coordinates in which the curvature is about 1, and back."""

LOG_TEMPERATURE = (-12.0, 12.0)  # bounds, in units of the size of the logits
PIECE_LOGITS = 1 << 16  # logits per piece: in float64 they fit the caches
MAJORITY = 0.52
"""A probability that leads by more than rounding can change."""
SAMPLE_LOGITS = 1 << 21  # logits in the sample that the fit to more images starts with
NEWTON_STEPS = 100
LAST_STEP = 1e-6  # relative: a step this small is the last one
FLAT = 1e-15  # a slope this small counts as none
LEAST_LOG_PROB = -1e6  # the squares of log-probabilities must not overflow
SEARCH_STEPS = 60  # of a fit that only ranks pairs: few need more than ten
FULL_CURVATURE_CLASSES = 200  # more classes use the diagonal of the curvature, which has k³ numbers


class Temperature(Calibrator):
    """softmax(logits / temperature)."""

    temperature: Tensor

    def calibrate(self, logits: Logits, views: Views) -> Probs:
        """Divide by the temperature."""
        return scaled(logits, self.temperature.to(logits))

    def softened(self, softness: float) -> Calibrator:
        """Raise the temperature."""
        softer = copy.deepcopy(self)
        softer.temperature = self.temperature / softness
        return softer


class Affine(Calibrator):
    """softmax(weight · log softmax(logits) + bias)."""

    weight: Tensor
    bias: Tensor

    def calibrate(self, logits: Logits, views: Views) -> Probs:
        """Apply the affine map to the log-probabilities."""
        log_probs = _log_probs(logits)
        return F.linear(log_probs, self.weight.to(logits), self.bias.to(logits)).softmax(dim=-1)


@dataclass(frozen=True, kw_only=True)
class Vanilla(Method):
    """The softmax of the logits, unchanged: what to compare other methods with.

    >>> Vanilla().fit(torch.zeros(2, 2), [0, 1])(torch.zeros(1, 2))
    tensor([[0.5000, 0.5000]])
    """

    name = "vanilla"
    summary = "softmax of the logits, untouched"

    def learn(self, predictions: Predictions, labels: Labels) -> Temperature:
        """Learn nothing: the temperature is 1."""
        return Temperature(temperature=torch.ones((), device=predictions.device))


@dataclass(frozen=True, kw_only=True)
class TemperatureScaling(Method):
    """One temperature for all logits, fitted by NLL (Guo et al. 2017, arXiv 1706.04599).

    Use it if there are no views, or as a baseline. It needs one pass per image.

    >>> logits = torch.tensor([[4.0, 0.0], [4.0, 0.0], [0.0, 4.0], [0.0, 4.0]])
    >>> TemperatureScaling().fit(logits, [0, 0, 1, 0])(logits[:1])     # three of four are right
    tensor([[0.7500, 0.2500]])
    """

    name = "temperature"
    summary = "one temperature for all logits (Guo et al. 2017)"

    def learn(self, predictions: Predictions, labels: Labels) -> Temperature:
        """Fit the temperature by NLL, to convergence, in float64."""
        return Temperature(temperature=fit_temperature(predictions, labels))


def scaled(logits: Logits, temperature: Tensor) -> Probs:
    """Return softmax(logits / temperature), with the class of the logits even in near ties."""
    # Minus the largest logit, as softmax does itself: a small temperature then cannot overflow.
    behind = logits - logits.amax(dim=-1, keepdim=True)
    probs = (behind / temperature).softmax(dim=-1)
    if not can_look(probs):
        return guard_class(probs, logits)
    # A class with a majority leads by more than rounding. Of confident answers to 100 classes,
    # guarding the others alone takes 200 us instead of 360 per chunk; a softmax takes 80.
    unsure = (~(probs.amax(dim=-1) > MAJORITY)).nonzero()[:, 0]
    if len(unsure):
        probs[unsure] = guard_class(probs[unsure], logits[unsure])
    return probs


@torch.no_grad()
def fit_temperature(given: Predictions | Logits, labels: Labels) -> Tensor:
    """Return the T > 0 that minimises the NLL of softmax(logits / T), whatever their scale.

    With s = 1/T and b = logits - max(logits), the NLL is mean ln Σ exp(s b_j) - s · mean b_y, which
    is convex in s. A fit to more than SAMPLE_LOGITS starts at the fit to a sample of the images.
    """
    predictions = given if isinstance(given, Predictions) else Predictions(given)
    alone = predictions.select((), rehearsals=False)
    images, stride = len(labels), max(1, len(labels) * alone.classes // SAMPLE_LOGITS)

    def prepare(part: Predictions, labels: Labels) -> tuple[Tensor, Labels]:
        # How far each class is behind the first.
        return part.logits.double() - part.logits.amax(dim=-1, keepdim=True), labels

    def parts() -> Iterable[tuple[Tensor, Labels]]:
        return kept or starmap(prepare, pieces(alone, labels, PIECE_LOGITS))

    kept = None  # many pieces are prepared again in each step: kept, they would fill the memory
    kept = list(parts()) if stride == 1 else None
    sums, right = torch.zeros(2, dtype=torch.float64), True
    for behind, own in parts():
        true = behind.gather(1, own[:, None])
        sums = sums.to(behind.device) + torch.stack([true.sum(), behind.sum()])
        right = right and bool((behind.argmax(dim=-1) == own).all())
    of_labels, total = sums.tolist()
    size = -total / (images * alone.classes)
    if not 0 < size < math.inf:  # all logits equal, or too far apart for float64
        return sums.new_ones(())
    smoothing = 1 / (images + 2) if right else 0.0  # see `laplace_smoothing`
    start = math.exp(min(max(math.log(size), -5), 5)) / size  # T = 1, unless that is far off
    if stride > 1:
        start = 1 / float(fit_temperature(alone[torch.arange(0, images, stride)], labels[::stride]))
    target = (1 - smoothing) * of_labels / images - smoothing * size
    return sums.new_tensor(1 / _minimize_scale(parts, target, start, size))


def _minimize_scale(
    parts: Callable[[], Iterable[tuple[Tensor, Labels]]], target: float, start: float, size: float
) -> float:
    """Minimise mean ln Σ exp(s b_j) - s · target over s by Newton's method with bisection.

    The slope s · ∂/∂s follows from the mean of s b under softmax(s b), the curvature from its
    variance.
    """
    ends = [math.exp(bound) / size for bound in LOG_TEMPERATURE]
    low, high, here = 0.0, math.inf, min(max(start, ends[0]), ends[1])
    for _ in range(NEWTON_STEPS):
        images, sums = 0, torch.zeros(2, dtype=torch.float64)
        for part, _ in parts():
            logs = part * (here / math.log(2))
            powers = torch.exp2(logs)  # takes half the time of exp
            weight = powers.sum(dim=-1)
            mean = powers.mul_(logs).sum(dim=-1) / weight
            spread = powers.mul_(logs).sum(dim=-1) / weight - mean.square()
            images += len(part)
            sums = sums.to(part.device) + torch.stack([mean.sum(), spread.sum()])
        slope, curvature = (float(total) / images for total in sums)
        slope = slope * math.log(2) - here * target
        curvature *= math.log(2) ** 2
        low, high = (here, high) if slope < 0 else (low, here)
        if abs(slope) < FLAT or low == ends[1] or high == ends[0]:
            break
        step = slope / max(curvature, FLAT)
        if abs(step) < LAST_STEP:  # the next one would be its square
            return here * (1 - step)
        there = min(max(here * (1 - step), ends[0]), ends[1])
        here = there if low < there < high else math.sqrt(max(low, ends[0]) * min(high, ends[1]))
    return here


@dataclass(frozen=True, kw_only=True)
class Dirichlet(Method):
    """Dirichlet calibration with off-diagonal and intercept regularisation (ODIR).

    An affine map of the log-probabilities (Kull et al. 2019, arXiv 1910.12656). It can change the
    class.

    The loss is NLL + λ Σ off-diagonal² + μ Σ b² + ν Σ (diagonal - 1/T)², where T is the temperature
    of temperature scaling and ν = `diagonal` / n. ODIR does not penalise the diagonal. With ten
    images per class its loss then has no useful minimum, and its authors stop the optimiser early.
    The penalty on the diagonal has the same effect and keeps the loss convex.

    Args:
        grid: The pairs (λ, μ) to cross-validate: "coarse" (15 pairs, 3 above 200 classes),
        "authors"
            (432 pairs, 243 from 100 classes on), or a list of pairs.
        folds: The number of folds of the cross-validation.
        seed: The seed that deals the folds.
        diagonal: The penalty on the diagonal; 0 is ODIR as published.

    >>> Dirichlet(grid=[(1.0, 1.0)]).fit(3 * torch.eye(2), [0, 1])(torch.zeros(1, 2))
    tensor([[0.5000, 0.5000]])
    """

    grid: Literal["coarse", "authors"] | Sequence[Sequence[float]] = "coarse"
    folds: Folds = 5
    seed: Seed = 0
    diagonal: Annotated[float, "≥ 0"] = 100.0

    name = "dirichlet"
    summary = "affine map of the log-probabilities, λ and μ cross-validated (Kull et al. 2019)"
    keeps_class = False  # an affine map mixes the classes

    def __post_init__(self) -> None:
        if not isinstance(self.grid, str):
            try:
                pairs = tuple((float(lam), float(mu)) for lam, mu in self.grid)
            except (TypeError, ValueError):
                pairs = ()
            if not pairs or not all(0 <= penalty < math.inf for pair in pairs for penalty in pair):
                raise InputError(
                    "grid must hold pairs (λ, μ), finite and neither negative, "
                    f"got {shown(self.grid)}"
                )
            object.__setattr__(self, "grid", pairs)
        super().__post_init__()

    def minutes(self, images: int, classes: int) -> float:
        """Return about how many minutes a fit takes on one core."""
        return len(self.pairs(classes)) / 3 * classes**2 * (6e-6 + 4e-9 * images) / 60

    def pairs(self, classes: int) -> list[Pair]:
        """Return the pairs (λ, μ) to try; more classes need a larger λ."""
        if not isinstance(self.grid, str):
            return [(lam, mu) for lam, mu in self.grid]
        if self.grid == "coarse" and classes > FULL_CURVATURE_CLASSES:  # each pair takes long
            return [(classes / 10, 1e-2), (classes, 1e-2), (10.0 * classes, 1.0)]
        if self.grid == "coarse":
            return list(product([classes / 10 * 10.0**i for i in range(-2, 3)], [1e-3, 1e-2, 1.0]))
        powers = [10.0**i for i in range(-2 if classes >= 100 else -5, 7)]
        return list(product(sorted(c * p for c in (1.0, 0.25, 0.5) for p in powers), powers))

    def learn(self, predictions: Predictions, labels: Labels) -> Affine:
        """Choose λ and μ by cross-validation; then fit on all images."""
        problem = _Odir.of(predictions.logits, labels, self.diagonal)
        pairs = self.pairs(predictions.classes)
        best, start = pairs[0], problem.centre
        if len(pairs) > 1 and len(predictions) > 1:
            best, start = self._search(predictions, labels, pairs)
        tolerance = 1e-13 if problem.small else 1e-6
        coordinates = problem.coordinates(problem.curvature(start), best)
        found = problem.fit(start, best, coordinates, tolerance)
        return Affine(weight=found[:, :-1].contiguous(), bias=found[:, -1].contiguous())

    def _search(
        self, predictions: Predictions, labels: Labels, pairs: list[Pair]
    ) -> tuple[Pair, Tensor]:
        """Return the pair with the lowest held-out NLL, and the mean of the maps of its folds."""
        logits, folds = predictions.logits, min(self.folds, len(labels))
        splits = fold_splits(len(labels), folds, seed=self.seed, groups=predictions.images)
        problems = [
            _Odir.of(logits[rest], labels[rest], self.diagonal, fast=True) for rest, _ in splits
        ]
        held_out = [_Odir.of(logits[part], labels[part], 0.0) for _, part in splits]
        maps = [problem.centre for problem in problems]
        curvature = problems[0].curvature(maps[0])  # approximate for the other folds
        best, start, least = pairs[0], maps[0], math.inf
        # From the largest penalty, with W nearly the identity: each fit starts at the one before.
        for pair in sorted(pairs, reverse=True):
            coordinates = problems[0].coordinates(curvature, pair)
            maps = [
                one.fit(own, pair, coordinates, 1e-5, SEARCH_STEPS)
                for one, own in zip(problems, maps, strict=True)
            ]
            loss = sum(
                float(one.nll(own)) * len(one.labels)
                for one, own in zip(held_out, maps, strict=True)
            )
            if loss < least:
                best, start, least = pair, torch.stack(maps).mean(dim=0), loss
        return best, start


def _log_probs(logits: Logits) -> Tensor:
    return logits.log_softmax(dim=-1).clamp(min=LEAST_LOG_PROB)


@dataclass(frozen=True)
class _Odir:
    """The loss of a map (W | b) on some images, and its minimisation."""

    x: Tensor  # log-probabilities and a one
    labels: Tensor
    centre: Tensor
    diagonal: float

    @classmethod
    def of(cls, logits: Logits, labels: Labels, diagonal: float, *, fast: bool = False) -> _Odir:
        """Prepare a fit, in float32 if `fast`; its centre is temperature scaling or 1."""
        n, k = logits.shape
        log_probs = _log_probs(logits).to(torch.float32 if fast else torch.float64)
        eye = torch.eye(k, k + 1, dtype=torch.float64, device=logits.device)
        centre = eye / fit_temperature(logits, labels) if diagonal else eye
        x = torch.cat([log_probs, torch.ones_like(log_probs[:, :1])], dim=1)
        return cls(x, labels, centre, diagonal / n)

    @property
    def small(self) -> bool:
        """Whether the classes are few enough for a matrix of curvatures per class."""
        return self.centre.shape[0] <= FULL_CURVATURE_CLASSES

    def nll(self, maps: Tensor) -> Tensor:
        """Return the mean NLL."""
        return F.cross_entropy(self.x @ maps.to(self.x).T, self.labels)

    def penalties(self, pair: Pair) -> Tensor:
        """Return the penalty on the squared distance of each parameter from the centre."""
        penalties = torch.full_like(self.centre, pair[0])
        penalties.fill_diagonal_(self.diagonal)
        penalties[:, -1] = pair[1]
        return penalties

    def curvature(self, maps: Tensor) -> Tensor:
        """Return mean p_i (1 - p_i) x xᵀ for each class i; for many classes, its diagonal."""
        probs = (self.x @ maps.to(self.x).T).softmax(dim=-1)
        spread = (probs * (1 - probs) / len(self.x)).T
        if self.small:
            return torch.stack([(self.x * row[:, None]).T @ self.x for row in spread]).double()
        return (spread @ self.x.square()).double()

    def coordinates(self, curvature: Tensor, pair: Pair) -> Coordinates:
        """Return coordinates in which L-BFGS needs few steps.

        Log-probabilities range from 0 to -40 and are strongly correlated, and λ ranges over eleven
        powers of ten: without a change of coordinates, L-BFGS takes hundreds of steps. With the
        curvature H_i = L_i L_iᵀ of class i, the coordinates are L_iᵀ (W | b)_i.
        """
        more = 2 * self.penalties(pair) + 1e-5
        if not self.small:
            unit = (curvature + more).rsqrt()
            return lambda maps: maps / unit, lambda coordinates: coordinates * unit
        factor = cholesky(curvature + torch.diag_embed(more))
        eye = torch.eye(factor.shape[-1]).to(factor).expand_as(factor)
        inverse = torch.linalg.solve_triangular(factor, eye, upper=False).mT.to(self.x).contiguous()
        return (
            lambda maps: (factor.mT @ maps.unsqueeze(-1)).squeeze(-1),
            lambda coordinates: (
                (inverse @ coordinates.to(inverse).unsqueeze(-1)).squeeze(-1).double()
            ),
        )

    def fit(
        self,
        start: Tensor,
        pair: Pair,
        coordinates: Coordinates,
        tolerance: float,
        steps: int = 100,
    ) -> Tensor:
        """Minimise the loss from `start`."""
        penalties, (to, back) = self.penalties(pair), coordinates

        def loss(parameters: Mapping[str, Tensor]) -> Tensor:
            maps = back(parameters["maps"])
            return self.nll(maps).double() + (penalties * (maps - self.centre).square()).sum()

        first = {"maps": to(start)}
        return back(minimize(loss, first, tolerance=tolerance, iterations=steps)["maps"])
