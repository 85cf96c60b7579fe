"""Means of the probabilities of views: Adaptive-TTA, the predecessor of M-ATTA, and plain averages.

adaptive-tta            fused = Σ_i |w_i| / Σ|w| · mean over repeats of softmax(z_ij), then blended
mean-tta                mean of the softmaxes of the image and all its views
mean-tta-temperature    mean of their logits (or log of the mean softmax), divided by a temperature
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from atta._base.settings import Step
from atta._base.types import Labels, Logits, Probs, ViewLogits
from atta.calibrators.atta import LIMIT_BOUNDS, Blend
from atta.calibrators.base import Calibrator, ViewMethod, Views
from atta.calibrators.fitting import minimize, nll
from atta.calibrators.scaling import fit_temperature
from atta.functional import Space, guarded_blend
from atta.metrics.binning import COUNT, bin_index, even_edges
from atta.record.predictions import Predictions, repeat_mean


class AverageBlend(Blend):
    """A weighted mean of the probabilities of the views, blended into the softmax."""

    def parts(self, logits: Logits, views: Views) -> tuple[Probs, Probs]:
        """Return the softmax, and the weighted mean of the probabilities of the views."""
        fused = _average(_mean_probs(views, self.kinds), self.weights.to(logits))
        return logits.softmax(dim=-1), fused


class ViewMean(Calibrator):
    """The mean logits or probabilities of the image and all its views, with a temperature."""

    temperature: Tensor
    original: bool
    space: Space = "probabilities"

    def calibrate(self, logits: Logits, views: Views) -> Probs:
        """Average, divide, softmax."""
        mean = self.mean(logits, views)
        return (mean / self.temperature.to(logits)).softmax(dim=-1)

    def mean(self, logits: Logits, views: Views) -> Logits:
        """Return the mean logits over all passes, or the logarithm of the mean probabilities."""
        passes = ([logits.unsqueeze(1)] if self.original else []) + [views[k] for k in self.kinds]
        every = torch.cat(passes, dim=1)
        if self.space == "logits":
            return (every / every.shape[1]).sum(dim=1)  # divided first: large sums overflow
        count = torch.tensor(float(every.shape[1]), dtype=logits.dtype)
        return every.log_softmax(dim=-1).logsumexp(dim=1) - count.log()


def _mean_probs(views: Views, kinds: tuple[str, ...]) -> ViewLogits:
    """Return one row per kind: the mean of the probabilities of its repeats."""
    return torch.stack([repeat_mean(views[kind].softmax(dim=-1)) for kind in kinds], dim=1)


def _average(view_probs: ViewLogits, weights: Tensor) -> Probs:
    """Return the mean of the kinds, weighted by |w_i| / Σ|w|."""
    share = weights.abs() / weights.abs().sum().clamp(min=torch.finfo(weights.dtype).tiny)
    return torch.einsum("m,nmk->nk", share, view_probs)


@dataclass(frozen=True, kw_only=True)
class AdaptiveTTA(ViewMethod):
    """Adaptive-TTA (Conde & Premebida, BMVC 2022), reconstructed from its description.

    A weighted mean of the probabilities of the views, blended in as in M-ATTA, its successor.

    Args:
        views: The kinds of view to use; None uses flip, crop and brightness if any of them is in
            the predictions, and all kinds otherwise.
        objective: What the weights minimise: "brier", "nll", or "ece", which is followed between
            the jumps where an image changes its bin.
        step: None for the share in closed form, 0.01 for the paper's grid.

    >>> logits, labels = 4 * torch.eye(3).repeat(4, 1), [0, 1, 2, 0, 1, 2, 0, 1, 2, 1, 2, 0]
    >>> predictions = Predictions(logits, {"flip": logits.unsqueeze(1)})
    >>> AdaptiveTTA().fit(predictions, labels)
    AverageBlend(adaptive-tta, classes=3, views=flip)
    """

    objective: Literal["brier", "nll", "ece"] = "brier"
    step: Step = None

    name = "adaptive-tta"
    summary = "weighted mean of the views' probabilities (Conde & Premebida 2022, reconstructed)"

    def kinds_of(self, predictions: Predictions) -> tuple[str, ...]:
        """Return the kinds of view to use, by default those of its authors."""
        usual = tuple(kind for kind in ("flip", "crop", "brightness") if kind in predictions.views)
        return usual if usual and self.views is None else super().kinds_of(predictions)

    def learn(self, predictions: Predictions, labels: Labels) -> AverageBlend:
        """Learn one weight per kind, and the limit."""
        kinds = self.kinds_of(predictions)
        base = predictions.logits.double().softmax(dim=-1)
        view_probs = _mean_probs(predictions.views, kinds).double()
        objective = {"brier": _brier, "nll": nll, "ece": _ece}[self.objective]

        def loss(parameters: Mapping[str, Tensor]) -> Tensor:
            fused = _average(view_probs, parameters["weights"])
            probs = guarded_blend(
                base, fused, parameters["limit"], predictions.logits, step=self.step
            )
            return objective(probs, labels)

        weights = base.new_full((len(kinds),), 1 / len(kinds))
        # |w| / Σ|w| does not depend on the scale of w: the bounds only keep it from drifting.
        found = minimize(
            loss,
            {"weights": weights, "limit": base.new_ones(())},
            {"weights": (0.0, 1.0), **LIMIT_BOUNDS},
            polish=self.objective != "ece",
        )
        return AverageBlend(**found, kinds=kinds, step=self.step)


def _brier(probs: Probs, labels: Labels) -> Tensor:
    confidence, prediction = probs.max(dim=-1)
    return (confidence - (prediction == labels).to(probs)).square().mean()


def _ece(probs: Probs, labels: Labels) -> Tensor:
    """Return the ECE; it is differentiable as long as no image changes its bin."""
    confidence, prediction = probs.max(dim=-1)
    hits = (prediction == labels).to(probs)
    index = bin_index(confidence.detach(), even_edges(COUNT).to(probs.device))
    gaps = probs.new_zeros(COUNT).index_add(0, index, confidence - hits)
    return gaps.abs().sum() / probs.shape[0]


@dataclass(frozen=True, kw_only=True)
class MeanTTA(ViewMethod):
    """The plain average of the probabilities: what is usually called test-time augmentation.

    All passes of the network count the same. It can change the class.

    Args:
        views: The kinds of view to use; None uses all kinds in the predictions.
        original: Whether the image itself is among the averaged passes.

    >>> logits = torch.tensor([[2.0, 0.0]])
    >>> predictions = Predictions(logits, {"flip": -logits.unsqueeze(1)})
    >>> MeanTTA().fit(predictions, [0])(predictions)
    tensor([[0.5000, 0.5000]])
    """

    original: bool = True

    name = "mean-tta"
    summary = "plain average of the image and its views"
    keeps_class = False  # an average follows the majority

    def learn(self, predictions: Predictions, labels: Labels) -> ViewMean:
        """Learn nothing: the temperature is 1."""
        return self._mean(predictions, "probabilities")

    def _mean(self, predictions: Predictions, space: Space) -> ViewMean:
        """Return the average at a temperature of 1."""
        return ViewMean(
            temperature=torch.ones((), device=predictions.device),
            kinds=self.kinds_of(predictions),
            original=self.original,
            space=space,
        )


@dataclass(frozen=True, kw_only=True)
class MeanTTATemperature(MeanTTA):
    """The plain average, divided by a temperature. It can change the class.

    Args:
        views: The kinds of view to use; None uses all kinds in the predictions.
        original: Whether the image itself is among the averaged passes.
        space: What is averaged: "logits", which measured better (docs/method.md), or
            "probabilities".

    >>> logits, labels = 4 * torch.eye(3).repeat(4, 1), [0, 1, 2, 0, 1, 2, 0, 1, 2, 1, 2, 0]
    >>> predictions = Predictions(logits, {"flip": logits.unsqueeze(1)})
    >>> MeanTTATemperature().fit(predictions, labels)(predictions).amax()    # 9 of 12 are right
    tensor(0.7500)
    """

    space: Space = "logits"

    name = "mean-tta-temperature"
    summary = "plain average of the image and its views, then a temperature"

    def learn(self, predictions: Predictions, labels: Labels) -> ViewMean:
        """Fit the temperature by NLL on the average."""
        found = self._mean(predictions, self.space)
        wide = predictions.to(torch.float64)
        found.temperature = fit_temperature(found.mean(wide.logits, wide.views), labels)
        return found
