"""Calibrators that look at the views: M-ATTA, V-ATTA, their predecessor Adaptive-TTA, and the plain average.

m-atta, v-atta          functional.atta with weights (m, k) or (m, 1) and a limit, learned by NLL
adaptive-tta            fused = Σ_i |w_i| / Σ|w| · mean over repeats of softmax(z_ij), same share
mean-tta                mean of the softmaxes of the image and all its views
mean-tta-temperature    the same, then a temperature on the log of the mean
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from jaxtyping import Int
from torch import Tensor

from atta.calibrators.base import Calibrator, Method, Sets, base_probs, choose_kinds
from atta.calibrators.fitting import descend, minimize, nll
from atta.calibrators.scaling import fit_temperature
from atta.calibrators.slopes import nll_slopes
from atta.functional import Space, blend, fuse, guarded_blend, largest_share, leader, weighted_sum
from atta.metrics.binning import bin_index
from atta.predictions import Predictions, mean_views, repeat_mean
from atta.types import InputError, Labels, Logits, Probs, RepeatLogits, ViewLogits

Kinds: TypeAlias = Sequence[str] | None
LIMIT = {"limit": (0.0, 1.0)}
# The guard caps what a mistake can cost, so that with few mistakes to learn from more certainty may seem better without end.
# Weights add up to one over the temperature: beyond RUNAWAY they are fitted again, as if drawn with deviation PRIOR.
RUNAWAY, PRIOR = 10.0, 3.0
TOGETHER = (
    1 << 19
)  # logits of views in the batches of the fits that Adam walks through together: few enough for the caches
Fit: TypeAlias = tuple[Predictions, Int[Tensor, "_"], tuple[str, ...]]  # with the kinds of view to use


class ViewBlend(Calibrator):
    """The views, weighted and fused, blended into the softmax as far as the class admits: `functional.atta`.

    With `itself` the first row of the weights is that of the image itself.
    """

    def __init__(
        self,
        weights: Tensor,
        limit: Tensor,
        *,
        kinds: Sequence[str],
        step: float | None = None,
        space: Space = "logits",
        itself: bool = False,
    ) -> None:
        super().__init__()
        self.register_buffer("weights", weights)
        self.register_buffer("limit", limit)
        self.kinds, self.step, self.space, self.itself = tuple(kinds), step, space, itself

    weights: Tensor
    limit: Tensor

    @property
    def options(self) -> dict[str, Any]:
        """What the constructor needs besides the buffers."""
        return {"kinds": list(self.kinds), "step": self.step, "space": self.space, "itself": self.itself}

    def fused(self, logits: Logits, views: Mapping[str, RepeatLogits]) -> Probs:
        """Average the repeats and fuse the kinds: what the views say."""
        weights, rows = self.weights.to(logits), [repeat_mean(views[kind]) for kind in self.kinds]
        rows = [logits, *rows] if self.itself else rows
        if self.space == "logits":
            return weighted_sum(rows, weights).softmax(dim=-1)
        return fuse(torch.stack(rows, dim=1), weights, space=self.space)

    def calibrate(self, logits: Logits, views: Mapping[str, RepeatLogits]) -> Probs:
        """Blend what the views say into what the network says."""
        return guarded_blend(base_probs(logits), self.fused(logits, views), self.limit.to(logits), step=self.step)


class AverageBlend(Calibrator):
    """A weighted mean of the views' probabilities, blended into the softmax as far as the class admits."""

    def __init__(self, weights: Tensor, limit: Tensor, *, kinds: Sequence[str], step: float | None = None) -> None:
        super().__init__()
        self.register_buffer("weights", weights)
        self.register_buffer("limit", limit)
        self.kinds, self.step = tuple(kinds), step

    weights: Tensor
    limit: Tensor

    @property
    def options(self) -> dict[str, Any]:
        """What the constructor needs besides the buffers."""
        return {"kinds": list(self.kinds), "step": self.step}

    def fused(self, logits: Logits, views: Mapping[str, RepeatLogits]) -> Probs:
        """Average the probabilities of the repeats and weigh the kinds: what the views say."""
        return average(mean_probs(views, self.kinds), self.weights.to(logits))

    def calibrate(self, logits: Logits, views: Mapping[str, RepeatLogits]) -> Probs:
        """Blend what the views say into what the network says."""
        return guarded_blend(base_probs(logits), self.fused(logits, views), self.limit.to(logits), step=self.step)


class ViewMean(Calibrator):
    """The mean of the probabilities of the image and all its views, with a temperature on its logarithm."""

    def __init__(self, temperature: Tensor, *, kinds: Sequence[str], original: bool) -> None:
        super().__init__()
        self.register_buffer("temperature", temperature)
        self.kinds, self.original = tuple(kinds), original

    temperature: Tensor

    @property
    def options(self) -> dict[str, Any]:
        """What the constructor needs besides the buffers."""
        return {"kinds": list(self.kinds), "original": self.original}

    def calibrate(self, logits: Logits, views: Mapping[str, RepeatLogits]) -> Probs:
        """Average, take the logarithm, divide, softmax."""
        log_mean = log_mean_probs(logits, views, self.kinds, original=self.original)
        return (log_mean / self.temperature.to(logits)).softmax(dim=-1)


def mean_probs(views: Mapping[str, RepeatLogits], kinds: tuple[str, ...]) -> ViewLogits:
    """Return one row a kind: the mean of its repeats' probabilities."""
    return torch.stack([repeat_mean(views[kind].softmax(dim=-1)) for kind in kinds], dim=1)


def average(view_probs: ViewLogits, weights: Tensor) -> Probs:
    """Return the mean of the kinds, weighted by |w_i| / Σ|w|."""
    share = weights.abs() / weights.abs().sum().clamp(min=torch.finfo(weights.dtype).tiny)
    return torch.einsum("m,nmk->nk", share, view_probs)


def log_mean_probs(
    logits: Logits, views: Mapping[str, RepeatLogits], kinds: tuple[str, ...], *, original: bool
) -> Logits:
    """Return the logarithm of the mean probability over every pass of the network, each counting the same."""
    passes = ([logits.unsqueeze(1)] if original else []) + [views[kind] for kind in kinds]
    every = torch.cat(passes, dim=1)
    return every.log_softmax(dim=-1).logsumexp(dim=1) - torch.tensor(float(every.shape[1]), dtype=logits.dtype).log()


@dataclass(frozen=True, kw_only=True)
class _Atta(Method):
    """The settings that M-ATTA and V-ATTA share; they differ in the width of the weights and in the default optimiser.

    `views`      kinds to use; by default every kind that is there
    `optimizer`  "lbfgs": full batch, to convergence; "adam": `epochs` over batches of `batch`, `lr`, `decay`
    `start`      the weights' start: "1/m" (kinds), "1/k" (classes) or a number
    `step`       None: the share in closed form; 0.01: the paper's grid
    `space`      where the views are summed
    """

    views: Kinds = None
    optimizer: Literal["lbfgs", "adam"]
    start: Literal["1/m", "1/k"] | float
    epochs: int = 500
    batch: int = 500
    lr: float = 1e-3
    decay: float = 1e-5
    step: float | None = None
    space: Space = "logits"
    seed: int = 0

    kinks: ClassVar[bool] = True  # whether a fit to convergence is settled in the kinks of the share, too

    def __post_init__(self) -> None:
        object.__setattr__(self, "views", as_kinds(self.views))
        _check_choice("optimizer", self.optimizer, ("lbfgs", "adam"))
        _check_choice("space", self.space, ("logits", "probabilities"))
        if isinstance(self.start, str):
            _check_choice("start", self.start, ("1/m", "1/k"))
        elif not math.isfinite(self.start):
            raise InputError(f"start must be '1/m', '1/k' or a finite number, got {self.start}")
        for name in ("epochs", "batch", "lr"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} must be positive, got {getattr(self, name)}")
        if not self.decay >= 0:
            raise InputError(f"decay must not be negative, got {self.decay}")
        _check_step(self.step)

    @abstractmethod
    def width(self, classes: int) -> int:
        """Return the number of columns of the weights."""

    def learn(self, predictions: Predictions, labels: Labels) -> ViewBlend:
        """Learn weights and limit by NLL."""
        return self.learn_many([(predictions, labels)])[0]

    def learn_many(self, sets: Sets) -> list[ViewBlend]:
        """Learn weights and limit by NLL, again with the prior where the weights run away. Adam takes like sets together."""
        fits = [(*one, choose_kinds(one[0], self.views, self.name)) for one in sets]
        learned = self._learn(fits)
        again = [i for i, found in enumerate(learned) if found.weights.abs().sum(dim=0).mean() > RUNAWAY]
        for i, found in zip(again, self._learn([fits[i] for i in again], prior=True), strict=True):
            learned[i] = found
        return learned

    def _learn(self, fits: Sequence[Fit], *, prior: bool = False) -> list[ViewBlend]:
        if self.optimizer == "lbfgs":
            return [self._converge(fit, prior) for fit in fits]
        alike: dict[Any, list[int]] = {}
        for i, (predictions, _, kinds) in enumerate(fits):
            logits = predictions.logits
            alike.setdefault((logits.shape, len(kinds), logits.dtype, logits.device), []).append(i)
        learned: dict[int, ViewBlend] = {}
        for (shape, count, *_), members in alike.items():
            together = max(1, TOGETHER // (min(self.batch, shape[0]) * count * shape[1]))
            for start in range(0, len(members), together):
                chunk = members[start : start + together]
                learned.update(zip(chunk, self._walk([fits[i] for i in chunk], prior), strict=True))
        return [learned[i] for i in range(len(fits))]

    def _walk(self, fits: Sequence[Fit], prior: bool) -> list[ViewBlend]:
        """Take Adam's steps for fits of one shape."""
        images = len(fits[0][0])
        dtype = torch.promote_types(fits[0][0].logits.dtype, torch.float32)
        base, views = map(torch.stack, zip(*(_base_and_views(fit, dtype) for fit in fits), strict=True))
        labels = torch.stack([labels for _, labels, _ in fits])
        start = {name: value.expand(len(fits), *value.shape) for name, value in self._start(views[0]).items()}
        weak = penalty(images) if prior else 0.0
        slopes = nll_slopes(base, views, labels, step=self.step, space=self.space, prior=weak)
        adam = {"epochs": self.epochs, "batch": self.batch, "lr": self.lr, "decay": self.decay, "seed": self.seed}
        found = descend(slopes, start, LIMIT, images=images, **adam)  # type: ignore[arg-type]
        pairs = zip(fits, found["weights"], found["limit"], strict=True)
        return [self._blend(weights.clone(), limit.clone(), kinds) for (_, _, kinds), weights, limit in pairs]

    def _converge(self, fit: Fit, prior: bool) -> ViewBlend:
        """Go to the minimum with L-BFGS, in float64."""
        predictions, labels, kinds = fit
        base, views = _base_and_views(fit, torch.float64)
        first = leader(base)
        weak = penalty(len(predictions)) if prior else 0.0

        def loss(parameters: Mapping[str, Tensor]) -> Tensor:
            fused = fuse(views, parameters["weights"], space=self.space)
            share = largest_share(base, fused, parameters["limit"], step=self.step, first=first)
            value = nll(blend(base, fused, share, first=first), labels)
            return value + weak * parameters["weights"].square().sum(dim=0).mean() if weak else value

        found = minimize(loss, self._start(views), LIMIT, tolerance=1e-11, kinks=self.kinks)
        return self._blend(found["weights"], found["limit"], kinds)

    def _start(self, views: ViewLogits) -> dict[str, Tensor]:
        _, kinds, classes = views.shape
        value = {"1/m": 1 / kinds, "1/k": 1 / classes}.get(self.start, self.start)  # type: ignore[arg-type]
        return {"weights": views.new_full((kinds, self.width(classes)), float(value)), "limit": views.new_ones(())}

    def _blend(self, weights: Tensor, limit: Tensor, kinds: tuple[str, ...]) -> ViewBlend:
        return ViewBlend(weights, limit, kinds=kinds, step=self.step, space=self.space)


def _base_and_views(fit: Fit, dtype: torch.dtype) -> tuple[Probs, ViewLogits]:
    predictions, _, kinds = fit
    return base_probs(predictions.logits.to(dtype)), mean_views(predictions.views, kinds).to(dtype)


def penalty(images: int) -> float:
    """The weak prior, as what the squares of the weights cost beside the mean NLL of so many images."""
    return 1 / (2 * PRIOR**2 * images)


@dataclass(frozen=True, kw_only=True)
class MATTA(_Atta):
    """M-ATTA: a weight for each kind of view and class.

    By default the paper's recipe with the share in closed form. Run to convergence (`optimizer="lbfgs"`) it over-fits a
    small validation set badly: the short Adam run is its hidden early stopping.
    """

    optimizer: Literal["lbfgs", "adam"] = "adam"
    start: Literal["1/m", "1/k"] | float = "1/k"

    name: ClassVar[str] = "m-atta"
    summary: ClassVar[str] = "a learned weight for each kind of view and class (Conde et al. 2023)"

    def width(self, classes: int) -> int:
        """Return a column a class."""
        return classes

    @classmethod
    def paper(cls, *, views: Kinds = None, seed: int = 0) -> MATTA:
        """Return exactly the paper's recipe: Adam, 500 epochs, batches of 500, and the share on a grid of 0.01."""
        return cls(views=views, seed=seed, optimizer="adam", start="1/k", step=0.01)


@dataclass(frozen=True, kw_only=True)
class VATTA(_Atta):
    """V-ATTA: a weight for each kind of view. By default fitted to convergence, in well under a second."""

    optimizer: Literal["lbfgs", "adam"] = "lbfgs"
    start: Literal["1/m", "1/k"] | float = "1/m"

    name: ClassVar[str] = "v-atta"
    summary: ClassVar[str] = "a learned weight for each kind of view (Conde et al. 2023)"

    def width(self, classes: int) -> int:
        """Return one column for all classes."""
        return 1

    @classmethod
    def paper(cls, *, views: Kinds = None, seed: int = 0) -> VATTA:
        """Return exactly the paper's recipe: Adam, 500 epochs, batches of 500, and the share on a grid of 0.01."""
        return cls(views=views, seed=seed, optimizer="adam", start="1/k", step=0.01)


@dataclass(frozen=True, kw_only=True)
class AdaptiveTTA(Method):
    """Adaptive-TTA (Conde & Premebida, BMVC 2022), the predecessor, reconstructed from how the paper describes it.

    Uses flip, crop and brightness where the predictions have any of them, and every kind there is otherwise, unless `views`
    says which. `objective` is what the weights minimise: "brier", "nll", or "ece", which jumps where an image changes its bin
    and is followed between the jumps.
    """

    views: Kinds = None
    objective: Literal["brier", "nll", "ece"] = "brier"
    step: float | None = None

    name: ClassVar[str] = "adaptive-tta"
    summary: ClassVar[str] = "weighted mean of the views' probabilities (Conde & Premebida 2022, reconstructed)"

    def __post_init__(self) -> None:
        object.__setattr__(self, "views", as_kinds(self.views))
        _check_choice("objective", self.objective, tuple(OBJECTIVES))
        _check_step(self.step)

    def learn(self, predictions: Predictions, labels: Labels) -> AverageBlend:
        """Learn a weight a kind and the limit."""
        usual = tuple(kind for kind in ("flip", "crop", "brightness") if kind in predictions.views)
        kinds = choose_kinds(predictions, self.views if self.views is not None else usual or None, self.name)
        base = base_probs(predictions.logits.double())
        view_probs = mean_probs(predictions.views, kinds).double()
        objective = OBJECTIVES[self.objective]
        start = {"weights": base.new_full((len(kinds),), 1 / len(kinds)), "limit": base.new_ones(())}

        def loss(parameters: Mapping[str, Tensor]) -> Tensor:
            fused = average(view_probs, parameters["weights"])
            share = largest_share(base, fused, parameters["limit"], step=self.step)
            return objective(blend(base, fused, share), labels)

        # |w| / Σ|w| does not know the scale of w: the box only keeps it from drifting.
        found = minimize(loss, start, {"weights": (0.0, 1.0), **LIMIT}, kinks=self.objective != "ece")
        return AverageBlend(found["weights"], found["limit"], kinds=kinds, step=self.step)


def _brier(probs: Probs, labels: Labels) -> Tensor:
    confidence, prediction = probs.max(dim=-1)
    return (confidence - (prediction == labels).to(probs)).square().mean()


def _ece(probs: Probs, labels: Labels) -> Tensor:
    """ECE, differentiable between the jumps: the bins are fixed by the values, the gaps move with them."""
    confidence, prediction = probs.max(dim=-1)
    hits = (prediction == labels).to(probs)
    edges = torch.arange(16, dtype=torch.float64, device=probs.device) / 15
    index = bin_index(confidence.detach(), edges)
    gaps = torch.zeros(15, dtype=probs.dtype, device=probs.device).index_add(0, index, confidence - hits)
    return gaps.abs().sum() / probs.shape[0]


OBJECTIVES: dict[str, Callable[[Probs, Labels], Tensor]] = {"brier": _brier, "nll": nll, "ece": _ece}


@dataclass(frozen=True, kw_only=True)
class MeanTTA(Method):
    """The plain average of the image and its views: what everybody else calls test-time augmentation. Changes the class.

    Every pass of the network counts the same, in probability space; `original=False` leaves the image itself out.
    """

    views: Kinds = None
    original: bool = True

    name: ClassVar[str] = "mean-tta"
    summary: ClassVar[str] = "plain average of the image and its views"

    def __post_init__(self) -> None:
        object.__setattr__(self, "views", as_kinds(self.views))

    @property
    def keeps_class(self) -> bool:
        """An average follows the majority."""
        return False

    def learn(self, predictions: Predictions, labels: Labels) -> ViewMean:
        """Learn nothing: temperature 1."""
        kinds = choose_kinds(predictions, self.views, self.name)
        return ViewMean(torch.ones((), device=predictions.logits.device), kinds=kinds, original=self.original)


@dataclass(frozen=True, kw_only=True)
class MeanTTATemperature(Method):
    """The plain average, then a temperature on its logarithm. Changes the class."""

    views: Kinds = None
    original: bool = True

    name: ClassVar[str] = "mean-tta-temperature"
    summary: ClassVar[str] = "plain average of the image and its views, then a temperature"

    def __post_init__(self) -> None:
        object.__setattr__(self, "views", as_kinds(self.views))

    @property
    def keeps_class(self) -> bool:
        """An average follows the majority."""
        return False

    def learn(self, predictions: Predictions, labels: Labels) -> ViewMean:
        """Fit the temperature by NLL on the averaged probabilities."""
        kinds = choose_kinds(predictions, self.views, self.name)
        log_mean = log_mean_probs(predictions.logits.double(), predictions.views, kinds, original=self.original)
        return ViewMean(fit_temperature(log_mean, labels), kinds=kinds, original=self.original)


def as_kinds(views: Kinds) -> tuple[str, ...] | None:
    """Return the kinds of view as a tuple; None are all there are."""
    if isinstance(views, str):  # which is a sequence, of letters
        raise InputError(f"views must be a list of kinds, such as [{views!r}], got the text {views!r}")
    return None if views is None else tuple(views)


def _check_step(step: float | None) -> None:
    if step is not None and not 0 < step <= 1:
        raise InputError(f"step must lie in (0, 1] or be None for the closed form, got {step}")


def _check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InputError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
