"""Calibrators that see the logits alone, and stay close to the softmax: vanilla, temperature, Dirichlet.

vanilla        softmax(z)
temperature    softmax(z / T),  T = exp(t) > 0                                     Guo et al. 2017
dirichlet      softmax(W log softmax(z) + b)                                       Kull et al. 2019 (ODIR)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Annotated, ClassVar, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from atta._base.errors import InputError
from atta._base.settings import Folds, Seed, shown
from atta._base.types import Labels, Logits, Probs, RepeatLogits
from atta.calibrators.base import Calibrator, Method, base_probs
from atta.calibrators.fitting import cholesky, folds, minimize, pieces
from atta.functional import guard_class
from atta.record.predictions import Predictions

Pair: TypeAlias = tuple[float, float]
"""λ and μ."""

LOG_TEMPERATURE = (-12.0, 12.0)  # in units of the logits' own size: far beyond any use
PIECE = 1 << 16  # logits worked on together in float64, which stay in the caches
SOME = 1 << 21  # logits that are looked at first where there are more
MOST, NEAR, FLAT = (
    100,
    1e-6,
    1e-15,
)  # steps of a fit, the relative step after which no other is needed, and slopes like none
CLOSE = 1e-4  # how far behind a class is that no rounding brings to the front
LEAST = -1e6  # log-probabilities below it count as it: their squares must not overflow
STEPS = 60  # of a fit that only tells pairs apart: few need ten, and logits that are all saturated would take all they get
FULL_CURVATURE = (
    200  # classes up to which a k × k matrix a class is worth its k³ numbers; beyond, its diagonal
)


class Temperature(Calibrator):
    """softmax(logits / temperature)."""

    def __init__(self, temperature: Tensor) -> None:
        super().__init__(temperature=temperature)

    temperature: Tensor

    def calibrate(self, logits: Logits, views: Mapping[str, RepeatLogits]) -> Probs:
        """Divide by the temperature."""
        return scaled(logits, self.temperature.to(logits))

    def softened(self, softness: float) -> Calibrator:
        """Raise the temperature."""
        return self._like(Temperature(self.temperature / softness))


class Affine(Calibrator):
    """softmax(weight · log softmax(logits) + bias)."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__(weight=weight, bias=bias)

    weight: Tensor
    bias: Tensor

    def calibrate(self, logits: Logits, views: Mapping[str, RepeatLogits]) -> Probs:
        """Apply the affine map to the log-probabilities."""
        log_probs = logits.log_softmax(dim=-1).clamp(min=LEAST)
        return F.linear(log_probs, self.weight.to(logits), self.bias.to(logits)).softmax(dim=-1)


@dataclass(frozen=True, kw_only=True)
class Vanilla(Method):
    """The network as it is: softmax of its logits."""

    name: ClassVar[str] = "vanilla"
    summary: ClassVar[str] = "softmax of the logits, untouched"

    def learn(self, predictions: Predictions, labels: Labels) -> Temperature:
        """Learn nothing: temperature 1."""
        return Temperature(torch.ones((), device=predictions.device))


@dataclass(frozen=True, kw_only=True)
class TemperatureScaling(Method):
    """One temperature for all, at the minimum of the NLL (Guo et al. 2017, arXiv 1706.04599)."""

    name: ClassVar[str] = "temperature"
    summary: ClassVar[str] = "one temperature for all logits (Guo et al. 2017)"

    def learn(self, predictions: Predictions, labels: Labels) -> Temperature:
        """Find the temperature by NLL, to convergence, in float64."""
        return Temperature(temperature_of(predictions, labels))


def scaled(logits: Logits, temperature: Tensor) -> Probs:
    """Return softmax(logits / temperature). Rounding can make two logits equal, or unequal: hence the guard."""
    # Less the largest, as softmax does itself: a small temperature then cannot overflow.
    behind = logits - logits.amax(dim=-1, keepdim=True)
    probs = (behind / temperature).softmax(dim=-1)
    if logits.device.type != "cpu" or torch.compiler.is_compiling() or probs.requires_grad:
        return guard_class(probs, base_probs(logits))
    # The guard costs more than all else, and can only matter where a second class is close to the first in either answer.
    # Counted as 1 for the first and, from 1 down to 0, for what is less than so far behind: sums of floats are quick.
    nearness = behind.mul_(1 / (CLOSE * max(1.0, float(temperature)))).add_(1).clamp_(min=0)
    close = (nearness.sum(dim=-1) != 1).nonzero()[:, 0]
    if len(close):
        probs[close] = guard_class(probs[close], base_probs(logits[close]))
    return probs


def fit_temperature(logits: Logits, labels: Labels) -> Tensor:
    """Return the T > 0 at which softmax(logits / T) has the least NLL, whatever the scale of the logits."""
    rows = max(1, PIECE // logits.shape[1])
    return least_temperature(
        lambda: zip(torch.split(logits, rows), torch.split(labels, rows), strict=True), len(labels)
    )


def temperature_of(predictions: Predictions, labels: Labels) -> Tensor:
    """Return what `fit_temperature` does, for images that may lie on a disk."""
    rows, alone = max(1, PIECE // predictions.classes), predictions.select(()).unrehearsed()
    return least_temperature(
        lambda: ((part.logits, own) for part, own in pieces(alone, labels, rows)), len(labels)
    )


@torch.no_grad()
def least_temperature(parts: Callable[[], Iterable[tuple[Logits, Labels]]], images: int) -> Tensor:
    """Return the temperature of least NLL of so many images, whose logits and labels come in pieces, any number of times.

    With s = 1/T and b = logits less the largest, the NLL is mean ln Σ exp(s b_j) - s · mean b_y, which is convex in s. Where
    there are many images, those few that are kept for it say where to begin, and hardly a step over all of them is left.
    """
    sums, right, at, stride = torch.zeros(2, dtype=torch.float64), True, 0, 1
    kept = []
    for logits, labels in parts():
        stride = max(1, images * logits.shape[1] // SOME)
        behind = _behind(logits)
        sums = sums.to(behind.device) + torch.stack(
            [behind.gather(1, labels[:, None]).sum(), behind.sum()]
        )
        right = right and bool((behind.argmax(dim=-1) == labels).all())
        rows = slice(-at % stride, None, stride)
        kept.append((behind[rows].clone() if stride > 1 else behind, labels[rows]))
        at += len(labels)
    own, total = sums.tolist()
    size = -total / (images * behind.shape[1])
    if (
        not 0 < size < math.inf
    ):  # all logits equal: any temperature will do; or too far apart for float64
        return behind.new_ones(())
    smoothing = 1 / (images + 2) if right else 0.0  # as `laplace_smoothing` has it
    target = (1 - smoothing) * own / images - smoothing * size
    if stride == 1:
        start = math.exp(min(max(math.log(size), -5), 5)) / size  # T = 1, unless that is far off
        return behind.new_tensor(1 / _least(lambda: (one for one, _ in kept), target, start, size))
    first = least_temperature(lambda: kept, sum(len(labels) for _, labels in kept))
    return behind.new_tensor(
        1
        / _least(lambda: (_behind(logits) for logits, _ in parts()), target, 1 / float(first), size)
    )


def _behind(logits: Logits) -> Tensor:
    """How far each class is behind the first, in float64."""
    return logits.double() - logits.amax(dim=-1, keepdim=True)


def _least(
    behind: Callable[[], Iterable[Tensor]], target: float, start: float, size: float
) -> float:
    """Find the s of least mean ln Σ exp(s b_j) - s · target by Newton's steps, in the interval that the slopes so far leave.

    The exponentials give the slope s · ∂/∂s, from the mean of s b under softmax(s b), and the curvature from its variance.
    """
    ends = [math.exp(bound) / size for bound in LOG_TEMPERATURE]
    low, high, here = 0.0, math.inf, min(max(start, ends[0]), ends[1])
    for _ in range(MOST):
        images, sums = 0, torch.zeros(2, dtype=torch.float64)
        for part in behind():
            logs = part * (here / math.log(2))
            powers = torch.exp2(logs)  # in half the time of exp
            weight = powers.sum(dim=-1)
            mean = powers.mul_(logs).sum(dim=-1) / weight
            spread = powers.mul_(logs).sum(dim=-1) / weight - mean.square()
            images, sums = (
                images + len(part),
                sums.to(part.device) + torch.stack([mean.sum(), spread.sum()]),
            )
        slope, curvature = (float(total) / images for total in sums)
        slope, curvature = slope * math.log(2) - here * target, curvature * math.log(2) ** 2
        low, high = (here, high) if slope < 0 else (low, here)
        if abs(slope) < FLAT or low == ends[1] or high == ends[0]:
            break
        step = slope / max(curvature, FLAT)
        if abs(step) < NEAR:  # the next one would be its square
            return here * (1 - step)
        there = min(max(here * (1 - step), ends[0]), ends[1])
        here = there if low < there < high else math.sqrt(max(low, ends[0]) * min(high, ends[1]))
    return here


@dataclass(frozen=True, kw_only=True)
class Dirichlet(Method):
    """Dirichlet calibration with off-diagonal and intercept regularisation (ODIR), and a rein on the diagonal.

    Kull et al. 2019, arXiv 1910.12656.

    Loss: NLL + λ Σ off-diagonal² + μ Σ b² + ν Σ (diagonal - 1/T)², with T the temperature of temperature scaling and
    ν = `diagonal` / n. ODIR leaves the diagonal free: with ten images a class it has no minimum to speak of, and its authors
    stop their optimiser early instead. The rein does that and keeps the loss convex; 0 is ODIR as it is written.

    λ and μ are chosen by cross-validated NLL over `grid`: "coarse" (the default: 15 pairs, 3 beyond 200 classes), "authors"
    (theirs: 432 pairs, 243 from 100 classes on), or pairs of your own. Can change the class.
    """

    grid: Literal["coarse", "authors"] | Sequence[Sequence[float]] = "coarse"
    folds: Folds = 5
    seed: Seed = 0
    diagonal: Annotated[float, "≥ 0"] = 100.0

    name: ClassVar[str] = "dirichlet"
    summary: ClassVar[str] = (
        "affine map of the log-probabilities, λ and μ cross-validated (Kull et al. 2019)"
    )

    @property
    def keeps_class(self) -> bool:
        """An affine map mixes the classes."""
        return False

    def __post_init__(self) -> None:
        if not isinstance(self.grid, str):
            try:
                pairs = tuple((float(lam), float(mu)) for lam, mu in self.grid)
            except (TypeError, ValueError):
                pairs = ()
            if not pairs or not all(
                0 <= penalty < float("inf") for pair in pairs for penalty in pair
            ):
                raise InputError(
                    f"grid must hold pairs (λ, μ), finite and neither negative, got {shown(self.grid)}"
                )
            object.__setattr__(self, "grid", pairs)
        super().__post_init__()

    def minutes(self, images: int, classes: int) -> float:
        """About how long a fit takes on one core: the affine map has classes² numbers, on images of classes each."""
        return len(self.pairs(classes)) / 3 * classes**2 * (6e-6 + 4e-9 * images) / 60

    def pairs(self, classes: int) -> list[tuple[float, float]]:
        """Return the pairs (λ, μ) to try; the more classes, the more numbers off the diagonal are to be held back."""
        if not isinstance(self.grid, str):
            return [(lam, mu) for lam, mu in self.grid]
        if (
            self.grid == "coarse" and classes > FULL_CURVATURE
        ):  # k² parameters and more: each pair is a long wait
            return [(classes / 10, 1e-2), (classes, 1e-2), (10.0 * classes, 1.0)]
        if self.grid == "coarse":
            return list(product([classes / 10 * 10.0**i for i in range(-2, 3)], [1e-3, 1e-2, 1.0]))
        powers = [10.0**i for i in range(-2 if classes >= 100 else -5, 7)]
        return list(product(sorted(c * p for c in (1.0, 0.25, 0.5) for p in powers), powers))

    def learn(self, predictions: Predictions, labels: Labels) -> Affine:
        """Choose λ and μ by cross-validation, each pair from its neighbour; then fit on all."""
        problem = _Odir.of(predictions.logits, labels, self.diagonal)
        pairs = self.pairs(predictions.classes)
        best, start = pairs[0], problem.centre
        if len(pairs) > 1 and len(predictions) > 1:
            best, start = self._search(predictions.logits, labels, pairs)
        tolerance = 1e-13 if problem.small else 1e-6
        way = problem.coordinates(problem.curvature(start), *best)
        found = problem.fit(start, *best, way=way, tolerance=tolerance)
        return Affine(found[:, :-1].contiguous(), found[:, -1].contiguous())

    def _search(self, logits: Logits, labels: Labels, pairs: list[Pair]) -> tuple[Pair, Tensor]:
        """Return the pair with the least held-out NLL, and the mean of its folds' maps."""
        n = logits.shape[0]
        parts = folds(n, min(self.folds, n), seed=self.seed)
        rest = [torch.cat([other for other in parts if other is not part]) for part in parts]
        problems = [_Odir.of(logits[rows], labels[rows], self.diagonal, fast=True) for rows in rest]
        held_out = [_Odir.of(logits[rows], labels[rows], 0.0) for rows in parts]
        maps = [problem.centre for problem in problems]
        curvature = problems[0].curvature(
            maps[0]
        )  # of one fold for all: coordinates need not be exact
        best, start, least = pairs[0], maps[0], math.inf
        # From the stiffest penalty, where W is nearly the identity, to the loosest: each fit starts at the last one.
        for pair in sorted(pairs, reverse=True):
            way = problems[0].coordinates(curvature, *pair)
            maps = [
                one.fit(own, *pair, way=way, tolerance=1e-5, steps=STEPS)
                for one, own in zip(problems, maps, strict=True)
            ]
            loss = sum(
                float(one.nll(own)) * len(one.labels)
                for one, own in zip(held_out, maps, strict=True)
            )
            if loss < least:
                best, start, least = pair, torch.stack(maps).mean(dim=0), loss
        return best, start


class _Coordinates(NamedTuple):
    """Turns maps (W | b) into coordinates in which the curvature of the loss is about 1, and back."""

    to: Callable[[Tensor], Tensor]
    back: Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class _Odir:
    """The loss of a map (W | b) on some images, and the way to its minimum."""

    x: Tensor  # log-probabilities and a one
    labels: Tensor
    centre: Tensor
    rein: float

    @classmethod
    def of(cls, logits: Logits, labels: Labels, diagonal: float, *, fast: bool = False) -> _Odir:
        """Hold the diagonal near temperature scaling, or leave it free from the identity on; `fast` is in float32."""
        n, k = logits.shape
        log_probs = (
            logits.log_softmax(dim=-1).clamp(min=LEAST).to(torch.float32 if fast else torch.float64)
        )
        eye = torch.eye(k, k + 1, dtype=torch.float64, device=logits.device)
        centre = eye / fit_temperature(logits, labels) if diagonal else eye
        return cls(
            torch.cat([log_probs, torch.ones_like(log_probs[:, :1])], dim=1),
            labels,
            centre,
            diagonal / n,
        )

    @property
    def small(self) -> bool:
        """Whether there are few enough classes for a matrix of curvatures a class."""
        return self.centre.shape[0] <= FULL_CURVATURE

    def nll(self, maps: Tensor) -> Tensor:
        """Return the mean NLL."""
        return F.cross_entropy(self.x @ maps.to(self.x).T, self.labels)

    def penalties(self, lam: float, mu: float) -> Tensor:
        """Return the penalty on the square of each number of the map, counted from the centre."""
        penalties = torch.full_like(self.centre, lam)
        penalties.fill_diagonal_(self.rein)
        penalties[:, -1] = mu
        return penalties

    def curvature(self, maps: Tensor) -> Tensor:
        """Return that of class i's row alone, mean p_i (1 - p_i) x xᵀ: [k k+1 k+1]; for many classes its diagonal, [k k+1]."""
        probs = (self.x @ maps.to(self.x).T).softmax(dim=-1)
        spread = (probs * (1 - probs) / len(self.x)).T
        if self.small:
            return torch.stack([(self.x * row[:, None]).T @ self.x for row in spread]).double()
        return (spread @ self.x.square()).double()

    def coordinates(self, curvature: Tensor, lam: float, mu: float) -> _Coordinates:
        """Return those in which L-BFGS has a short way.

        Log-probabilities run from 0 to -40, nearly in step with one another, and λ over eleven powers of ten: as they are, it
        would need hundreds of steps. With the curvature H_i = L_i L_iᵀ of class i, the coordinates are L_iᵀ (W | b)_i.
        """
        more = 2 * self.penalties(lam, mu) + 1e-5
        if not self.small:
            unit = (curvature + more).rsqrt()
            return _Coordinates(lambda maps: maps / unit, lambda coordinates: coordinates * unit)
        factor = cholesky(curvature + torch.diag_embed(more))
        eye = torch.eye(factor.shape[-1]).to(factor).expand_as(factor)
        inverse = torch.linalg.solve_triangular(factor, eye, upper=False).mT.to(self.x).contiguous()
        return _Coordinates(
            lambda maps: (factor.mT @ maps.unsqueeze(-1)).squeeze(-1),
            lambda coordinates: (
                (inverse @ coordinates.to(inverse).unsqueeze(-1)).squeeze(-1).double()
            ),
        )

    def fit(
        self,
        start: Tensor,
        lam: float,
        mu: float,
        *,
        way: _Coordinates,
        tolerance: float,
        steps: int = 100,
    ) -> Tensor:
        """Go down from `start`."""
        penalties = self.penalties(lam, mu)

        def loss(parameters: Mapping[str, Tensor]) -> Tensor:
            maps = way.back(parameters["maps"])
            return self.nll(maps).double() + (penalties * (maps - self.centre).square()).sum()

        return way.back(
            minimize(loss, {"maps": way.to(start)}, tolerance=tolerance, iterations=steps)["maps"]
        )
