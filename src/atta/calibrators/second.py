"""A second opinion under a shift: the same network with the statistics of the new images.

Its logits (`networks.borrowing`) are one more view, with SECOND of the weight, softened to the
accuracy that is estimated for them. The class stays, by the guard of the blend. It is used if

- the images have drifted,
- the guard against label shift (`shift.guarded`) sees a shift that collapses the answers. If other
  classes occur than before, statistics of their images make the network worse, and more certain;
- the estimated accuracy is at least RISE higher than that of the network as it was.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from atta.calibrators.atta import ViewBlend
from atta.calibrators.base import Calibrator
from atta.calibrators.scaling import Temperature
from atta.calibrators.shift import (
    Adaptation,
    Reference,
    as_blend,
    estimate,
    guarded,
    softness_at,
)
from atta.record.predictions import Predictions

STATISTICS = "statistics"
"""The view whose logits are those of the network with statistics of the new images."""
SECOND = 0.9
"""Its part of the weights: with less, sets of images with half of the classes were harmed."""
RISE = 0.03


def refused(reference: Reference, predictions: Predictions, done: Adaptation) -> str:
    """Return why a second opinion is not even asked for, or nothing."""
    if not done.drifted:
        return "not used, because no drift was seen"
    if guarded(reference, predictions) == 0:
        return "not used, because classes may occur in other shares than before"
    return ""


def seconded(
    calibrator: Calibrator,
    hedged: Calibrator,
    reference: Reference,
    predictions: Predictions,
    done: Adaptation,
) -> tuple[Calibrator, Adaptation]:
    """Return the calibrator with a second opinion, if that is more accurate by RISE.

    Args:
        calibrator: The adapted calibrator.
        hedged: The hedged calibrator behind it.
        reference: The validation images of both.
        predictions: The unlabelled images, with the view STATISTICS.
        done: How the calibrator was adapted.
    """
    second = estimate(reference, predictions.views[STATISTICS][:, 0])
    better = f"{second.accuracy:.0%} right instead of {done.accuracy:.0%}"
    first = as_blend(hedged) if isinstance(hedged, Temperature) else hedged
    if (
        second.accuracy - done.accuracy < RISE
        or not isinstance(first, ViewBlend)
        or not isinstance(calibrator, ViewBlend | Temperature)
    ):
        return calibrator, replace(done, statistics=f"not used, too little gained ({better})")
    own = first.weights if first.itself else torch.cat([0 * first.weights[:1], first.weights])
    new = torch.full_like(own[:1], SECOND / reference.temperature)
    weights, temperature = torch.cat([(1 - SECOND) * own, new]), calibrator.temperature

    def blend(softness: float, guarded: bool = True) -> ViewBlend:
        found = ViewBlend(
            weights * softness,
            torch.ones_like(first.limit),
            temperature,
            kinds=(*first.kinds, STATISTICS),
            itself=True,
            guarded=guarded,
        )
        found.classes, found.method = first.classes, first.method
        return found

    def confidence(one: Calibrator) -> float:
        return float(one(predictions).double().amax(dim=1).mean())

    target, softness = second.accuracy + second.error, 1.0
    if confidence(blend(1.0, guarded=False)) > target:
        softness = softness_at(lambda kappa: confidence(blend(kappa, guarded=False)), target)
    found = blend(softness)
    said = f"used, {better} (estimated)"
    return found, replace(done, confidence=confidence(found), statistics=said)
