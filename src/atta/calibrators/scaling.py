"""Calibrators that see the logits alone, and stay close to the softmax: vanilla, temperature, Dirichlet.

vanilla        softmax(z)
temperature    softmax(z / T),  T = exp(t) > 0                                     Guo et al. 2017
dirichlet      softmax(W log softmax(z) + b)                                       Kull et al. 2019 (ODIR)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import ClassVar, Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from atta.calibrators.base import Calibrator, Method, base_probs
from atta.calibrators.fitting import cholesky, fold_weights, folds, laplace_smoothing, minimize
from atta.errors import InputError
from atta.functional import guard_class
from atta.predictions import Predictions
from atta.settings import Folds, Seed, shown
from atta.types import Labels, Logits, Probs, RepeatLogits

Pair: TypeAlias = tuple[float, float]
"""λ and μ."""

LOG_TEMPERATURE = (-12.0, 12.0)  # in units of the logits' own size: far beyond any use
LEAST = -1e6  # log-probabilities below it count as it: their squares must not overflow
FULL_CURVATURE = 200  # classes up to which a k × k matrix a class is worth its k³ numbers; beyond, its diagonal


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
        return Temperature(torch.ones((), device=predictions.logits.device))


@dataclass(frozen=True, kw_only=True)
class TemperatureScaling(Method):
    """One temperature for all, at the minimum of the NLL."""

    name: ClassVar[str] = "temperature"
    summary: ClassVar[str] = "one temperature for all logits (Guo et al. 2017)"

    def learn(self, predictions: Predictions, labels: Labels) -> Temperature:
        """Find the temperature by NLL, to convergence, in float64."""
        return Temperature(fit_temperature(predictions.logits, labels))


def scaled(logits: Logits, temperature: Tensor) -> Probs:
    """Return softmax(logits / temperature). Rounding can make two logits equal, or unequal: hence the guard."""
    # Less the largest, as softmax does itself: a small temperature then cannot overflow.
    behind = logits - logits.amax(dim=-1, keepdim=True)
    return guard_class((behind / temperature).softmax(dim=-1), base_probs(logits))


def fit_temperature(logits: Logits, labels: Labels) -> Tensor:
    """Return the T > 0 at which softmax(logits / T) has the least NLL, whatever the scale of the logits."""
    logits = logits.double()
    smoothing = laplace_smoothing(logits, labels)
    logits = logits - logits.amax(dim=-1, keepdim=True)
    size = -logits.mean()
    size = torch.where(size > 0, size, 1.0)  # all logits equal: any temperature will do
    logits = logits / size

    def loss(parameters: Mapping[str, Tensor]) -> Tensor:
        return F.cross_entropy(logits / parameters["log_t"].exp(), labels, label_smoothing=smoothing)

    start = {"log_t": -size.log().clamp(-5, 5)}  # T = 1, unless that is far off
    return size * minimize(loss, start, {"log_t": LOG_TEMPERATURE})["log_t"].exp()


@dataclass(frozen=True, kw_only=True)
class Dirichlet(Method):
    """Dirichlet calibration with off-diagonal and intercept regularisation (ODIR).

    Loss: NLL + λ Σ off-diagonal² + μ Σ b². W starts at the identity. λ and μ are chosen by cross-validated NLL over `grid`:
    "coarse" (the default: 15 pairs, 3 beyond 200 classes), "authors" (theirs: 432 pairs, 243 from 100 classes on), or pairs of
    your own. Can change the class.
    """

    grid: Literal["coarse", "authors"] | Sequence[Sequence[float]] = "coarse"
    folds: Folds = 5
    seed: Seed = 0

    name: ClassVar[str] = "dirichlet"
    summary: ClassVar[str] = "affine map of the log-probabilities, λ and μ cross-validated (Kull et al. 2019)"

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
            if not pairs or not all(0 <= penalty < float("inf") for pair in pairs for penalty in pair):
                raise InputError(f"grid must hold pairs (λ, μ), finite and neither negative, got {shown(self.grid)}")
            object.__setattr__(self, "grid", pairs)
        super().__post_init__()

    def pairs(self, classes: int) -> list[tuple[float, float]]:
        """Return the pairs (λ, μ) to try."""
        if not isinstance(self.grid, str):
            return [(lam, mu) for lam, mu in self.grid]
        if self.grid == "coarse" and classes > FULL_CURVATURE:  # k² parameters and more: each pair is a long wait
            return [(1e-2, 1e-2), (1e-1, 1e-1), (1.0, 1.0)]
        if self.grid == "coarse":
            return list(product([1e-4, 1e-3, 1e-2, 1e-1, 1.0], [1e-3, 1e-1, 10.0]))
        powers = [10.0**i for i in range(-2 if classes >= 100 else -5, 7)]
        return list(product(sorted(c * p for c in (1.0, 0.25, 0.5) for p in powers), powers))

    def learn(self, predictions: Predictions, labels: Labels) -> Affine:
        """Choose λ and μ by cross-validation, the folds fitted together and each pair from its neighbour; then fit on all."""
        log_probs = predictions.logits.log_softmax(dim=-1).clamp(min=LEAST)
        n, k = log_probs.shape
        pairs = self.pairs(k)
        best, start = pairs[0], _identity(1, log_probs)
        if len(pairs) > 1 and n > 1:
            best, start = self._search(log_probs, labels, pairs)
        everything = torch.full((1, n), 1 / n, dtype=torch.float64, device=log_probs.device)
        tolerance = 1e-13 if k <= FULL_CURVATURE else 1e-6
        found = _fit_odir(log_probs.double(), labels, everything, start, *best, tolerance=tolerance)[0]
        return Affine(found[:, :-1].contiguous(), found[:, -1].contiguous())

    def _search(self, log_probs: Tensor, labels: Tensor, pairs: list[Pair]) -> tuple[Pair, Tensor]:
        """Return the pair with the least held-out NLL, and the mean of its folds' maps."""
        n, k = log_probs.shape
        parts = folds(n, min(self.folds, n), seed=self.seed)
        kept = fold_weights(n, parts).to(log_probs.device)
        tolerance = 1e-5 if k <= FULL_CURVATURE else 1e-4
        maps, least = _identity(len(parts), log_probs), math.inf
        best, start = pairs[0], maps
        # From the stiffest penalty, where W is nearly the identity, to the loosest: each fit starts at the last one.
        for pair in sorted(pairs, reverse=True):
            maps = _fit_odir(log_probs.float(), labels, kept.float(), maps, *pair, tolerance=tolerance)
            held_out = _losses(log_probs.double(), labels, (kept == 0).double(), maps).sum().item()
            if held_out < least:
                least, best, start = held_out, pair, maps
        return best, start.mean(dim=0, keepdim=True)


def _identity(count: int, log_probs: Tensor) -> Tensor:
    """Return `count` maps (W | b) that change nothing."""
    k = log_probs.shape[1]
    return torch.eye(k, k + 1, dtype=torch.float64, device=log_probs.device).expand(count, k, k + 1)


def _losses(log_probs: Tensor, labels: Tensor, rows: Tensor, maps: Tensor) -> Tensor:
    """Return the NLL of each of the maps (W | b) [f k k+1], summed over the images with their weights in `rows` [f n]."""
    f, k, _ = maps.shape
    scores = log_probs @ maps[..., :-1].reshape(f * k, k).T + maps[..., -1].reshape(f * k)
    scores = scores.reshape(-1, f, k)
    picked = scores.gather(-1, labels[:, None, None].expand(-1, f, 1)).squeeze(-1)
    losses: Tensor = rows * (scores.logsumexp(dim=-1) - picked).T
    return losses.sum(dim=-1)


def _fit_odir(
    log_probs: Tensor, labels: Tensor, rows: Tensor, start: Tensor, lam: float, mu: float, *, tolerance: float
) -> Tensor:
    """Fit one map (W | b) a row of `rows`, all of them together.

    Log-probabilities run from 0 to -40, nearly in step with one another, and λ over eleven powers of ten: L-BFGS would need
    hundreds of steps. So it works in coordinates in which the curvature is about 1: that of class i's row alone is
    H_i = mean p_i (1 - p_i) x xᵀ + penalties, and with H_i = L_i L_iᵀ the coordinates are L_iᵀ (W | b)_i.
    """
    k = log_probs.shape[1]
    x = torch.cat([log_probs, torch.ones_like(log_probs[:, :1])], dim=1).double()
    scores = x @ start.reshape(-1, k + 1).T
    probs = scores.reshape(-1, start.shape[0], k).softmax(dim=-1)
    penalties = x.new_full((k, k + 1), lam)
    penalties.fill_diagonal_(0)
    penalties[:, -1] = mu
    spread = (probs * (1 - probs)).mean(dim=1) / x.shape[0]
    if k <= FULL_CURVATURE:
        curvature = torch.stack([(x * row[:, None]).T @ x for row in spread.T])
        factor = cholesky(curvature + torch.diag_embed(2 * penalties + 1e-5))
        inverse = torch.linalg.inv(factor)
        coordinates = torch.einsum("ipq,fip->fiq", factor, start)
    else:
        unit = (spread.T @ x.square() + 2 * penalties + 1e-5).rsqrt()
        coordinates = start / unit

    def maps(coordinates: Tensor) -> Tensor:
        return torch.einsum("ipq,fip->fiq", inverse, coordinates) if k <= FULL_CURVATURE else coordinates * unit

    def loss(parameters: Mapping[str, Tensor]) -> Tensor:
        these = maps(parameters["maps"])
        fit = _losses(log_probs, labels, rows, these.to(log_probs)).sum().double()
        return fit + (penalties * these.square()).sum()

    return maps(minimize(loss, {"maps": coordinates}, tolerance=tolerance)["maps"])
