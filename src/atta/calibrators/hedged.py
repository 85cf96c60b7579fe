"""Hedged methods: calibrators that are less confident, by as much as simulated shifts ask for.

A calibrator fitted in distribution is over-confident wherever the accuracy falls. One softness κ ≤
1 scales all logits,

    softmax(κ · logits / T)        softmax(κ · Σ w_i · view_logits_i)

and is absorbed by the temperature and the weights, so a hedged calibrator is an ordinary
`Temperature` or `ViewBlend`. κ is learned from rehearsals: passes over corrupted validation images.
With T0 the temperature of the images and T1 that of the images and their rehearsals together, κ
goes from 1 down towards T0 / T1. It stops where the NLL of the validation images exceeds that at κ
= 1 by more than one standard error of the paired difference: the in-distribution cost is not
statistically significant.

A kind of view on which the network is significantly less accurate than on the image itself is not
blended: it may help in distribution, and fails first under a shift. In a record without rehearsals,
such kinds replace them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from atta._base.errors import advise
from atta._base.types import Labels, PerImage, RepeatLogits
from atta.calibrators.base import Calibrator, Method
from atta.calibrators.convex import CATTA, GuardedMethod
from atta.calibrators.crossval import losses
from atta.calibrators.fitting import standard_error
from atta.calibrators.scaling import TemperatureScaling, fit_temperature
from atta.record.predictions import Predictions

SIGNIFICANT = 2.0  # standard errors by which the accuracy on a view has to be lower
LEAST_FALL = 0.02  # and by at least this much: with many images a tiny fall is significant, too
STEPS = 40  # between κ = 1 and T0 / T1


@dataclass(frozen=True, kw_only=True)
class HedgedTemperature(Method):
    """Temperature scaling, with the temperature raised by what rehearsals ask for.

    Use it if the images may shift and extra passes are too expensive: it needs one pass per image.

    >>> logits, labels = 4 * torch.eye(2).repeat(40, 1), torch.arange(80) // 3 % 2
    >>> worse = torch.randn(80, 1, 2, generator=torch.Generator().manual_seed(0))
    >>> predictions = Predictions(logits, {"rehearse-noise": worse})
    >>> HedgedTemperature().fit(predictions, labels)
    Temperature(hedged-temperature, classes=2)
    """

    name = "hedged-temperature"
    summary = "temperature, softened by rehearsals of a shift at no significant cost (ours)"

    def learn(self, predictions: Predictions, labels: Labels) -> Calibrator:
        """Fit the temperature, then the softness."""
        return _hedged(TemperatureScaling().learn(predictions, labels), predictions, labels)


@dataclass(frozen=True, kw_only=True)
class HedgedCATTA(GuardedMethod):
    """C-ATTA without the views that lower the accuracy, softened by what rehearsals ask for.

    Use it if the images may shift. The other views of the record may serve as rehearsals.

    Args:
        views: The kinds of view that may be blended; None allows all kinds in the predictions.
        keep_class: Whether the class is kept; otherwise the answer is that of all passes together.

    >>> logits, labels = 4 * torch.eye(2).repeat(40, 1), torch.arange(80) // 3 % 2
    >>> worse = torch.randn(80, 1, 2, generator=torch.Generator().manual_seed(0))
    >>> views = {"flip": logits.unsqueeze(1), "rehearse-noise": worse}
    >>> HedgedCATTA().fit(Predictions(logits, views), labels)
    ViewBlend(hedged-c-atta, classes=2, views=flip)
    """

    name = "hedged-c-atta"
    summary = "c-atta, softened by rehearsals of a shift at no significant cost (ours)"

    def learn(self, predictions: Predictions, labels: Labels) -> Calibrator:
        """Fit the weights of the harmless kinds, or a temperature without any; then soften."""
        every = self.kinds_of(predictions)
        harmful = rehearsing(predictions, labels, every)
        kinds = [kind for kind in every if kind not in harmful]
        method: Method = TemperatureScaling()
        if kinds:
            method = CATTA(views=kinds, keep_class=self.keep_class)
        return _hedged(method.learn(predictions, labels), predictions, labels)


def _hedged(calibrator: Calibrator, predictions: Predictions, labels: Labels) -> Calibrator:
    """Soften a calibrator that was fitted to these images by what their rehearsals ask for.

    κ goes from 1 towards T0 / T1, until it costs the validation images significantly.
    """
    passes = [predictions.views[kind] for kind in rehearsing(predictions, labels)]
    if not passes:
        advise(
            "nothing that was recorded lowers the network's accuracy, so there is no shift to "
            "hedge against: record rehearsals, as collect(..., rehearse=True) does "
            "(`atta collect --rehearse`)"
        )
        return calibrator
    logits = predictions.logits.double()
    every = torch.cat([logits, *(one.double() for view in passes for one in view.unbind(dim=1))])
    repeated = labels.repeat(every.shape[0] // labels.shape[0])
    least = float(fit_temperature(logits, labels) / fit_temperature(every, repeated))
    wide = predictions.select(predictions.kinds, rehearsals=False).to(torch.float64)

    def losses_at(kappa: float) -> PerImage:
        return losses(calibrator.softened(kappa).calibrate(logits, wide.views), labels)

    before, found = losses_at(1.0), 1.0
    for step in range(1, STEPS + 1 if least < 1 else 1):
        kappa = least ** (step / STEPS)
        more = losses_at(kappa) - before
        if more.mean() > standard_error(more, predictions.images):
            break
        found = kappa
    return calibrator.softened(found)


def hedge(calibrator: Calibrator, predictions: Predictions, labels: Labels) -> Calibrator | None:
    """Return what replaces a calibrator after a drift, fitted to the same images and rehearsals.

    It has the same views. Returns None if nothing that was recorded lowers the accuracy, and for
    methods that may change the class.
    """
    method = calibrator.method
    if isinstance(method, HedgedCATTA | HedgedTemperature):
        return calibrator
    if not method.keeps_class or not rehearsing(predictions, labels):
        return None
    hedged = HedgedCATTA(views=calibrator.kinds) if calibrator.kinds else HedgedTemperature()
    return hedged.fit(predictions, labels)


def rehearsing(
    predictions: Predictions, labels: Labels, names: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return which of these views significantly lower the accuracy.

    By default, the rehearsals are tested; without rehearsals, all kinds of view.
    """
    own, found = correct(predictions.logits.unsqueeze(1), labels).squeeze(1), []
    for name in names or predictions.rehearsals or predictions.kinds:
        fall = own - correct(predictions.views[name], labels).mean(dim=1)
        error = standard_error(fall, predictions.images) if len(fall) > 1 else 1.0
        least = max(LEAST_FALL, SIGNIFICANT * error)
        if fall.mean() > least:
            found.append(name)
    return tuple(found)


def correct(view: RepeatLogits, labels: Labels) -> Float[Tensor, "n r"]:
    """Return 1 for each pass with the correct class, and 0 otherwise."""
    return torch.eq(view.argmax(dim=-1), labels.unsqueeze(-1)).double()
