"""Hedged methods: as sure as the validation images allow, and no surer than a rehearsal of a shift asks for.

A calibrator fitted in distribution is over-confident wherever accuracy falls. One softness κ ≤ 1 scales all that it adds up,

    softmax(κ · logits / T)        softmax(κ · Σ w_i · view_logits_i)

and folds into the temperature and the weights, so that a hedged calibrator is a `Temperature` or a `ViewBlend` like any other.
κ is learned from rehearsals, passes over the validation images made worse on purpose. With T0 the temperature of the images
and T1 that of the images and their rehearsals together, κ goes from 1 down towards T0 / T1, and stops where the NLL of the
validation images exceeds that at κ = 1 by more than one standard error of the paired difference: what a hedge costs in
distribution is not sure to be anything.

A kind of view on which the network is clearly less often right than on the image itself is not blended: in distribution it
may help, under a shift it is the first to fail. In a record without rehearsals such kinds stand in for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from atta._base.errors import advise
from atta._base.types import Labels, RepeatLogits
from atta.calibrators.base import Calibrator, Method
from atta.calibrators.convex import CATTA, GuardedMethod
from atta.calibrators.scaling import Temperature, fit_temperature
from atta.record.predictions import Predictions

SURE = 2.0  # standard errors by which accuracy has to be lower until it is clearly so
FALL = 0.02  # and by how much at least: with many images a hair is sure, too, and no reason to leave a view out
STEPS = 40  # in which κ goes down


@dataclass(frozen=True, kw_only=True)
class HedgedTemperature(Method):
    """One temperature for all, raised by what rehearsals ask for; one pass an image."""

    name: ClassVar[str] = "hedged-temperature"
    summary: ClassVar[str] = (
        "a temperature that is softer, as far as it costs nothing sure, by rehearsals of a shift (ours)"
    )

    def learn(self, predictions: Predictions, labels: Labels) -> Calibrator:
        """Fit the temperature, and then the softness."""
        return hedged(Temperature(fit_temperature(predictions.logits, labels)), predictions, labels)


@dataclass(frozen=True, kw_only=True)
class HedgedCATTA(GuardedMethod):
    """C-ATTA with the views that the network sees as well as the image itself, softened by what rehearsals ask for.

    `views` are the kinds that may be blended, by default all; the others of the record may stand in for rehearsals.
    """

    name: ClassVar[str] = "hedged-c-atta"
    summary: ClassVar[str] = (
        "c-atta that is softer, as far as it costs nothing sure, by rehearsals of a shift (ours)"
    )

    def learn(self, predictions: Predictions, labels: Labels) -> Calibrator:
        """Fit the weights of the kinds that do not hurt, or a temperature where none is left, and then the softness."""
        kinds = tuple(
            kind
            for kind in self.kinds_of(predictions)
            if not hurts(predictions, labels, predictions.views[kind])
        )
        if not kinds:
            return hedged(
                Temperature(fit_temperature(predictions.logits, labels)), predictions, labels
            )
        return hedged(
            CATTA(views=kinds, keep_class=self.keep_class).learn(predictions, labels),
            predictions,
            labels,
        )


def hedged(calibrator: Calibrator, predictions: Predictions, labels: Labels) -> Calibrator:
    """Soften a calibrator that was fitted to these images as far as their rehearsals ask for, at no sure cost."""
    passes = [predictions.views[kind] for kind in rehearsing(predictions, labels)]
    if not passes:
        advise(
            "nothing that was recorded lowers the network's accuracy, so that there is no shift to hedge against: "
            "record rehearsals, as collect(..., rehearse=True) does (`atta collect --rehearse`)"
        )
        return calibrator
    return calibrator.softened(softness(calibrator, predictions, labels, passes))


def rehearsing(predictions: Predictions, labels: Labels) -> tuple[str, ...]:
    """The rehearsals that hurt; in a record without rehearsals, the kinds of view that do."""
    asked = predictions.rehearsals or predictions.kinds
    return tuple(kind for kind in asked if hurts(predictions, labels, predictions.views[kind]))


def hurts(predictions: Predictions, labels: Labels, view: RepeatLogits) -> bool:
    """Whether the network is clearly less often right on such a view than on the image itself."""
    fall = right(predictions.logits.unsqueeze(1), labels).squeeze(1) - right(view, labels).mean(
        dim=1
    )
    images = fall.shape[0]
    return images > 1 and bool(fall.mean() > max(FALL, SURE * float(fall.std()) / images**0.5))


def right(view: RepeatLogits, labels: Labels) -> Float[Tensor, "n r"]:
    """1 where a pass is right, 0 where it is not."""
    found: Bool[Tensor, "n r"] = view.argmax(dim=-1) == labels.unsqueeze(-1)
    return found.double()


def softness(
    calibrator: Calibrator, predictions: Predictions, labels: Labels, passes: Sequence[Tensor]
) -> float:
    """How far to soften: from 1 towards T0 / T1, until the validation images say that it costs them something."""
    logits = predictions.logits.double()
    together = torch.cat([logits, *(one.double() for view in passes for one in view.unbind(dim=1))])
    repeated = labels.repeat(together.shape[0] // labels.shape[0])
    least = float(fit_temperature(logits, labels) / fit_temperature(together, repeated))
    if not least < 1:
        return 1.0
    wide = predictions.unrehearsed().to(torch.float64)

    def losses(kappa: float) -> Float[Tensor, " n"]:
        probs = calibrator.softened(kappa).calibrate(logits, wide.views)
        return (
            -probs.gather(1, labels[:, None])[:, 0].clamp(min=torch.finfo(torch.float32).tiny).log()
        )

    before, found = losses(1.0), 1.0
    for step in range(1, STEPS + 1):
        kappa = least ** (step / STEPS)
        more = losses(kappa) - before
        if more.mean() > more.std() / len(more) ** 0.5:
            break
        found = kappa
    return found
