"""Means of the views' probabilities: Adaptive-TTA, M-ATTA's predecessor, and the plain average.

adaptive-tta            fused = Σ_i |w_i| / Σ|w| · mean over repeats of softmax(z_ij), blended in as M-ATTA is
mean-tta                mean of the softmaxes of the image and all its views
mean-tta-temperature    the mean of their logits, or of the softmaxes and its logarithm, divided by a temperature
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from atta._base.settings import Step
from atta._base.types import Labels, Logits, Probs, RepeatLogits, ViewLogits
from atta.calibrators.atta import LIMIT
from atta.calibrators.base import Calibrator, ViewMethod, base_probs
from atta.calibrators.fitting import minimize, nll
from atta.calibrators.scaling import fit_temperature
from atta.functional import Space, blend, guarded_blend, largest_share
from atta.metrics.binning import COUNT, bin_index, even_edges
from atta.record.predictions import Predictions, repeat_mean


class AverageBlend(Calibrator):
    """A weighted mean of the views' probabilities, blended into the softmax as far as the class admits."""

    def __init__(
        self, weights: Tensor, limit: Tensor, *, kinds: Sequence[str], step: float | None = None
    ) -> None:
        super().__init__(weights=weights, limit=limit)
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

    def base(self, logits: Logits) -> Probs:
        """What the views are blended into: the softmax."""
        return base_probs(logits)

    def calibrate(self, logits: Logits, views: Mapping[str, RepeatLogits]) -> Probs:
        """Blend what the views say into what the network says."""
        return guarded_blend(
            self.base(logits), self.fused(logits, views), self.limit.to(logits), step=self.step
        )


class ViewMean(Calibrator):
    """The mean of the logits, or of the probabilities, of the image and all its views, with a temperature on top."""

    def __init__(
        self,
        temperature: Tensor,
        *,
        kinds: Sequence[str],
        original: bool,
        space: Space = "probabilities",
    ) -> None:
        super().__init__(temperature=temperature)
        self.kinds, self.original, self.space = tuple(kinds), original, space

    temperature: Tensor

    @property
    def options(self) -> dict[str, Any]:
        """What the constructor needs besides the buffers."""
        return {"kinds": list(self.kinds), "original": self.original, "space": self.space}

    def calibrate(self, logits: Logits, views: Mapping[str, RepeatLogits]) -> Probs:
        """Average, divide, softmax."""
        mean = mean_passes(logits, views, self.kinds, original=self.original, space=self.space)
        return (mean / self.temperature.to(logits)).softmax(dim=-1)


def mean_probs(views: Mapping[str, RepeatLogits], kinds: tuple[str, ...]) -> ViewLogits:
    """Return one row a kind: the mean of its repeats' probabilities."""
    return torch.stack([repeat_mean(views[kind].softmax(dim=-1)) for kind in kinds], dim=1)


def average(view_probs: ViewLogits, weights: Tensor) -> Probs:
    """Return the mean of the kinds, weighted by |w_i| / Σ|w|."""
    share = weights.abs() / weights.abs().sum().clamp(min=torch.finfo(weights.dtype).tiny)
    return torch.einsum("m,nmk->nk", share, view_probs)


def mean_passes(
    logits: Logits,
    views: Mapping[str, RepeatLogits],
    kinds: tuple[str, ...],
    *,
    original: bool,
    space: Space,
) -> Logits:
    """Return the mean logit over every pass, each counting the same, or the logarithm of the mean probability."""
    passes = ([logits.unsqueeze(1)] if original else []) + [views[kind] for kind in kinds]
    every = torch.cat(passes, dim=1)
    if space == "logits":
        return (every / every.shape[1]).sum(
            dim=1
        )  # divided first: sums of large ones are not numbers
    return (
        every.log_softmax(dim=-1).logsumexp(dim=1)
        - torch.tensor(float(every.shape[1]), dtype=logits.dtype).log()
    )


@dataclass(frozen=True, kw_only=True)
class AdaptiveTTA(ViewMethod):
    """Adaptive-TTA (Conde & Premebida, BMVC 2022), the predecessor, reconstructed from how the paper describes it.

    Uses flip, crop and brightness where the predictions have any of them, and every kind there is otherwise, unless `views`
    says which. `objective` is what the weights minimise: "brier", "nll", or "ece", which jumps where an image changes its bin
    and is followed between the jumps.
    """

    objective: Literal["brier", "nll", "ece"] = "brier"
    step: Step = None

    name: ClassVar[str] = "adaptive-tta"
    summary: ClassVar[str] = (
        "weighted mean of the views' probabilities (Conde & Premebida 2022, reconstructed)"
    )

    def kinds_of(self, predictions: Predictions) -> tuple[str, ...]:
        """Return the kinds of view to use, by default its authors' where they are."""
        usual = tuple(kind for kind in ("flip", "crop", "brightness") if kind in predictions.views)
        return usual if usual and self.views is None else super().kinds_of(predictions)

    def learn(self, predictions: Predictions, labels: Labels) -> AverageBlend:
        """Learn a weight a kind and the limit."""
        kinds = self.kinds_of(predictions)
        base = base_probs(predictions.logits.double())
        view_probs = mean_probs(predictions.views, kinds).double()
        objective = OBJECTIVES[self.objective]
        start = {
            "weights": base.new_full((len(kinds),), 1 / len(kinds)),
            "limit": base.new_ones(()),
        }

        def loss(parameters: Mapping[str, Tensor]) -> Tensor:
            fused = average(view_probs, parameters["weights"])
            share = largest_share(base, fused, parameters["limit"], step=self.step)
            return objective(blend(base, fused, share), labels)

        # |w| / Σ|w| does not know the scale of w: the box only keeps it from drifting.
        found = minimize(
            loss, start, {"weights": (0.0, 1.0), **LIMIT}, polish=self.objective != "ece"
        )
        return AverageBlend(found["weights"], found["limit"], kinds=kinds, step=self.step)


def _brier(probs: Probs, labels: Labels) -> Tensor:
    confidence, prediction = probs.max(dim=-1)
    return (confidence - (prediction == labels).to(probs)).square().mean()


def _ece(probs: Probs, labels: Labels) -> Tensor:
    """ECE, differentiable between the jumps: the bins are fixed by the values, the gaps move with them."""
    confidence, prediction = probs.max(dim=-1)
    hits = (prediction == labels).to(probs)
    index = bin_index(confidence.detach(), even_edges(COUNT).to(probs.device))
    gaps = probs.new_zeros(COUNT).index_add(0, index, confidence - hits)
    return gaps.abs().sum() / probs.shape[0]


OBJECTIVES: dict[str, Callable[[Probs, Labels], Tensor]] = {
    "brier": _brier,
    "nll": nll,
    "ece": _ece,
}


@dataclass(frozen=True, kw_only=True)
class _Mean(ViewMethod):
    """What both averages are told: the views, and whether the image itself is among what is averaged. Changes the class."""

    original: bool = True

    @property
    def keeps_class(self) -> bool:
        """An average follows the majority."""
        return False


@dataclass(frozen=True, kw_only=True)
class MeanTTA(_Mean):
    """The plain average of the image and its views: what everybody else calls test-time augmentation. Changes the class.

    Every pass of the network counts the same, in probability space; `original=False` leaves the image itself out.
    """

    name: ClassVar[str] = "mean-tta"
    summary: ClassVar[str] = "plain average of the image and its views"

    def learn(self, predictions: Predictions, labels: Labels) -> ViewMean:
        """Learn nothing: temperature 1."""
        one = torch.ones((), device=predictions.device)
        return ViewMean(one, kinds=self.kinds_of(predictions), original=self.original)


@dataclass(frozen=True, kw_only=True)
class MeanTTATemperature(_Mean):
    """The plain average, divided by a temperature. Changes the class.

    Of the logits, which measured better on four networks (docs/method.md), unless `space` is "probabilities".
    """

    space: Space = "logits"

    name: ClassVar[str] = "mean-tta-temperature"
    summary: ClassVar[str] = "plain average of the image and its views, then a temperature"

    def learn(self, predictions: Predictions, labels: Labels) -> ViewMean:
        """Fit the temperature by NLL on the average."""
        kinds = self.kinds_of(predictions)
        wide = predictions.to(torch.float64)
        mean = mean_passes(wide.logits, wide.views, kinds, original=self.original, space=self.space)
        return ViewMean(
            fit_temperature(mean, labels), kinds=kinds, original=self.original, space=self.space
        )
