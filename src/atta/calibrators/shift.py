"""Images without labels from another domain: how often the network is right on them, and a calibrator softened to that.

What helps under a shift is one number a domain, not a number an image: the accuracy. It is estimated by ATC (Garg et al.,
"Leveraging unlabeled data to predict out-of-distribution performance", ICLR 2022). With the score s = Σ_j p_j log p_j, the
negative entropy of p = softmax(logits / T0), a threshold t is put where as many validation images lie above it as are right,

    A(S) = the part of the images of S whose score is t or more        (on validation images: their accuracy, a0)
    â    = a0 - b (a0 - A(S))                                          within 1.5 / k … 1

and the slope b ≥ 1, how much further accuracy falls than A does, comes from rehearsals j of the validation images,

    b = Σ_j (a0 - a_j) (a0 - A_j) / Σ_j (a0 - A_j)²

Then κ ≤ 1 is the largest softness at which the mean confidence on S is no more than â. Nothing is changed where the images are
not surely less certain than the validation images: by a one-sided rank test (Mann & Whitney) of the scores, whose false alarms
are LEVEL of all samples that did not shift. That is what keeps a small sample from doing harm; drawing κ towards 1 by the error
of â, too, was measured and cost a third of the gain with 32 images (docs/under-shift.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from scipy import stats
from torch import Tensor

from atta._base.errors import InputError
from atta._base.types import Labels, Logits
from atta.calibrators.base import Calibrator
from atta.calibrators.hedged import rehearsing, right
from atta.calibrators.scaling import fit_temperature, scaled
from atta.record.predictions import Predictions

LEVEL = 0.01
"""How often a sample that did not shift is called drifted."""
LEAST = 32
"""Images without labels that say something of a domain."""
QUANTILES = 256
CELLS = 20
SPREAD = 0.25
"""The standard deviation of the slope from shift to shift, beside that of its fit (docs/under-shift.md)."""
STEEPEST = 2.0
UNKNOWN = 0.5
"""The standard error from which on a slope is noise."""
NORMAL = 1.96


@dataclass(frozen=True, kw_only=True)
class Reference:
    """What a classifier remembers of the validation images, to hold others against them. `slope` is None where unknown."""

    images: int
    classes: int
    accuracy: float
    confidence: float
    temperature: float
    threshold: float
    slope: float | None
    slope_error: float
    quantiles: tuple[float, ...]
    histogram: tuple[float, ...] = ()
    """Of the calibrator's confidence, the part of the images in each of CELLS cells; none in what an older atta remembers."""

    @classmethod
    def of(cls, calibrator: Calibrator, predictions: Predictions, labels: Labels) -> Reference:
        """Look at the images that a calibrator was fitted to, and at their rehearsals."""
        logits = predictions.logits.double()
        temperature = float(fit_temperature(logits, labels))
        seen = scores(logits, temperature)
        hit = right(logits.unsqueeze(1), labels)[:, 0]
        count = int(hit.sum())
        ordered = seen.sort(descending=True).values
        threshold = float(ordered[count - 1]) if count else 1.0  # above every score
        above = (seen >= threshold).double()
        worse = [
            view
            for kind in rehearsing(predictions, labels)
            for view in predictions.views[kind].double().unbind(dim=1)
        ]
        slope, error = _slope(
            [hit - right(view.unsqueeze(1), labels)[:, 0] for view in worse],
            [above - (scores(view, temperature) >= threshold).double() for view in worse],
        )
        confidence = calibrator(predictions).double().amax(dim=1)
        places = (torch.arange(min(QUANTILES, len(seen)), dtype=torch.float64) + 0.5) / min(
            QUANTILES, len(seen)
        )
        return cls(
            images=len(predictions),
            classes=predictions.classes,
            accuracy=float(hit.mean()),
            confidence=float(confidence.mean()),
            temperature=temperature,
            threshold=threshold,
            slope=slope,
            slope_error=error,
            quantiles=tuple(torch.quantile(seen, places.to(seen)).tolist()),
            histogram=histogram(confidence),
        )

    @classmethod
    def read(cls, about: dict[str, Any]) -> Reference:
        """Make one of what `json` gave."""
        return cls(
            **{
                **about,
                "quantiles": tuple(about["quantiles"]),
                "histogram": tuple(about.get("histogram", ())),
            }
        )

    def json(self) -> dict[str, Any]:
        """As plain numbers."""
        return {
            **asdict(self),
            "quantiles": list(self.quantiles),
            "histogram": list(self.histogram),
        }


def histogram(confidence: Float[Tensor, " n"]) -> tuple[float, ...]:
    """The part of the images in each of CELLS equal cells of [0, 1]."""
    counts = torch.histc(confidence.double().cpu(), CELLS, 0, 1)
    return tuple((counts / max(1, len(confidence))).tolist())


def scores(logits: Logits, temperature: float) -> Float[Tensor, " n"]:
    """The negative entropy of softmax(logits / temperature): 0 for an image that the network is sure of."""
    probs = scaled(
        logits.double(), torch.tensor(temperature, dtype=torch.float64, device=logits.device)
    )
    negative: Tensor = -torch.special.entr(probs).sum(dim=1)
    return negative


def _slope(falls: Sequence[Tensor], seen: Sequence[Tensor]) -> tuple[float | None, float]:
    """The slope of falls of accuracy over falls of A, image by image and a pass at a time, and its standard error."""
    if not falls:
        return None, 0.0
    x = torch.stack(list(seen))
    y = torch.stack(list(falls))
    far = x.mean(dim=1, keepdim=True)
    whole = float(far.square().sum())
    if whole <= 0:
        return None, 0.0
    slope = float((far * y.mean(dim=1, keepdim=True)).sum()) / whole
    apart = (far * (y - slope * x)).sum(dim=0)
    error = float(apart.std()) / apart.shape[0] ** 0.5 / whole
    if not error < UNKNOWN or slope <= 0:
        return None, 0.0
    return min(max(slope, 1.0), STEEPEST), error


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """How often the network is right on images without labels: between `low` and `high`, nineteen times of twenty.

    `p_value` is how often images that did not shift would look as uncertain as these.
    """

    images: int
    accuracy: float
    low: float
    high: float
    p_value: float

    @property
    def drifted(self) -> bool:
        """Whether these images are less certain than chance would have it."""
        return self.p_value < LEVEL


def unlike(reference: Reference, seen: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """The part of the validation images that the network was surer of than of each of these: near 1, it is a stranger."""
    known = torch.tensor(reference.quantiles, dtype=torch.float64)
    below = torch.searchsorted(known, seen.double().cpu().contiguous(), side="right")
    return 1 - below.double() / len(known)


def estimate(reference: Reference, logits: Logits) -> Estimate:
    """Estimate the accuracy on images without labels."""
    return estimated(reference, scores(logits, reference.temperature))


def estimated(reference: Reference, seen: Float[Tensor, " n"]) -> Estimate:
    """Estimate it from the scores of the images, by the temperature of the reference."""
    n, m, a0 = reference.images, seen.shape[0], reference.accuracy
    part = float((seen >= reference.threshold).double().mean())
    fallen = a0 - part
    slope = (reference.slope or 1.0) if fallen > 0 else 1.0
    accuracy = min(max(a0 - slope * fallen, 1.5 / reference.classes), 1.0)
    # Of the sample and of the validation images (their accuracy and their threshold), never quite nothing; and of the slope.
    noise = slope**2 * (_binomial(part, m) + _binomial(a0, n)) + (1 - slope) ** 2 * _binomial(a0, n)
    error = math.sqrt(noise + fallen**2 * (reference.slope_error**2 + SPREAD**2))
    return Estimate(
        images=m,
        accuracy=accuracy,
        low=max(0.0, accuracy - NORMAL * error),
        high=min(1.0, accuracy + NORMAL * error),
        p_value=_rank_test(np.array(reference.quantiles), seen.cpu().numpy(), n),
    )


def _binomial(part: float, images: int) -> float:
    """The variance of a part of so many images, by Laplace's rule: none is never quite impossible."""
    part = (part * images + 1) / (images + 2)
    return part * (1 - part) / images


def _rank_test(reference: np.ndarray, seen: np.ndarray, images: int) -> float:
    """How often the mean rank of as many scores of the reference would be as low (Mann & Whitney, normal form)."""
    below = np.searchsorted(reference, seen, side="left") + np.searchsorted(
        reference, seen, side="right"
    )
    ranks = below / (2 * len(reference))
    deviation = math.sqrt((1 / len(seen) + 1 / images) / 12)
    return float(stats.norm.sf((0.5 - ranks.mean()) / deviation))


@dataclass(frozen=True, kw_only=True)
class Adaptation:
    """What was done to a calibrator for a domain: its softness, and what that was read from."""

    softness: float
    images: int
    accuracy: float
    low: float
    high: float
    confidence_before: float
    confidence: float
    p_value: float

    def __str__(self) -> str:
        what = (
            f"of {self.images} images without labels, about {self.accuracy:.0%} are right ({self.low:.0%} to {self.high:.0%}) "
            f"at a mean confidence of {self.confidence_before:.0%}"
        )
        if self.softness == 1:
            why = (
                "it is no surer than it is right"
                if self.p_value < LEVEL
                else "that is no more of a drift than chance"
            )
            return f"Not adapted: {what}; {why}."
        return f"Adapted by a softness of {self.softness:.3f}: {what}; it is {self.confidence:.0%} now."


def adapt(
    calibrator: Calibrator, reference: Reference, predictions: Predictions
) -> tuple[Calibrator, Adaptation]:
    """Soften a calibrator until its mean confidence on these images is their estimated accuracy; the class stays."""
    if len(predictions) < LEAST:
        raise InputError(
            f"expected at least {LEAST} images to adapt to, for fewer say too little of a domain, got {len(predictions)}"
        )
    if predictions.classes != reference.classes:
        raise InputError(
            f"expected predictions of {reference.classes} classes, as the reference has, got {predictions.classes}"
        )
    found = estimate(reference, predictions.logits)

    def confidence(softness: float) -> float:
        return float(calibrator.softened(softness)(predictions).double().amax(dim=1).mean())

    before = confidence(1.0)
    softness, after = 1.0, before
    if found.drifted and before > found.accuracy:
        softness = softness_at(confidence, found.accuracy)
        after = confidence(softness)
    adaptation = Adaptation(
        softness=softness,
        images=found.images,
        accuracy=found.accuracy,
        low=found.low,
        high=found.high,
        confidence_before=before,
        confidence=after,
        p_value=found.p_value,
    )
    return calibrator if softness == 1 else calibrator.softened(softness), adaptation


def softness_at(confidence: Callable[[float], float], target: float) -> float:
    """The largest softness at which the mean confidence is no more than the target, by halving its logarithm."""
    low, high = 1e-3, 1.0
    for _ in range(30):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if confidence(middle) <= target else (low, middle)
    return low
