"""Dataset shift: estimate the accuracy on unlabelled images, and soften a calibrator to it.

Under a shift, one number per domain helps: the accuracy. It is estimated by ATC (Garg et al.,
"Leveraging unlabeled data to predict out-of-distribution performance", ICLR 2022). The score s =
Σ_j p_j log p_j is the negative entropy of p = softmax(logits / T0). The threshold t is chosen so
that as many validation images lie above it as are classified correctly,

    A(S) = the fraction of the images of S with a score of at least t (on validation images: a0)
    â    = a0 - b (a0 - A(S))                                         clamped to 1.5 / k … 1

and the slope b ≥ 1, how much faster the accuracy falls than A does, comes from rehearsals j of the
validation images,

    b = Σ_j (a0 - a_j) (a0 - A_j) / Σ_j (a0 - A_j)²

Then κ ≤ 1 is the largest softness at which the mean confidence on S is at most â. Nothing changes
unless the images are significantly less certain than the validation images, by a one-sided rank
test (Mann & Whitney) of the scores with a false-alarm rate of LEVEL. The test keeps a small sample
from doing harm. Shrinking κ towards 1 by the error of â as well was measured and cost a third of
the gain with 32 images (docs/under-shift.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from atta._base.errors import InputError
from atta._base.types import Labels, Logits
from atta.calibrators.base import Calibrator
from atta.calibrators.fitting import PerImage, standard_error
from atta.calibrators.hedged import correct, rehearsing
from atta.calibrators.scaling import fit_temperature, scaled
from atta.record.predictions import Predictions

LEVEL = 0.01
"""The false-alarm rate of the test for drift."""
LEAST = 32
"""The fewest unlabelled images to adapt to."""
QUANTILES = 256
CELLS = 20
SLOPE_DEVIATION = 0.25
"""The standard deviation of the slope between shifts, besides its error (docs/under-shift.md)."""
LARGEST_SLOPE = 2.0
LARGEST_SLOPE_ERROR = 0.5
"""A slope with a larger standard error is noise."""
NORMAL = 1.96


@dataclass(frozen=True, kw_only=True)
class Reference:
    """What a classifier remembers of the validation images to compare other images with them.

    Args:
        images: The number of validation images.
        classes: The number of classes.
        accuracy: The accuracy on them.
        confidence: The mean confidence of the calibrator.
        temperature: The temperature of the scores.
        threshold: The score above which as many images lie as are classified correctly.
        slope: How much faster the accuracy falls than A does; None if unknown.
        slope_error: The standard error of the slope.
        quantiles: Quantiles of the scores.
        histogram: The fraction of the images in each of CELLS cells of the confidence; files of
            older versions have none.
    """

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

    @classmethod
    def of(cls, calibrator: Calibrator, predictions: Predictions, labels: Labels) -> Reference:
        """Make one of the images that a calibrator was fitted to, and of their rehearsals."""
        logits = predictions.logits.double()
        temperature = float(fit_temperature(logits, labels))
        seen = scores(logits, temperature)
        hits = correct(logits.unsqueeze(1), labels)[:, 0]
        count = int(hits.sum())
        ordered = seen.sort(descending=True).values
        threshold = float(ordered[count - 1]) if count else 1.0  # above every score
        above = (seen >= threshold).double()
        falls, seen_falls = [], []
        for kind in rehearsing(predictions, labels):
            for view in predictions.views[kind].double().unbind(dim=1):
                falls.append(hits - correct(view.unsqueeze(1), labels)[:, 0])
                seen_falls.append(above - (scores(view, temperature) >= threshold).double())
        slope, error = _slope(falls, seen_falls)
        confidence = calibrator(predictions).double().amax(dim=1)
        kept = min(QUANTILES, len(seen))
        places = (torch.arange(kept, dtype=torch.float64) + 0.5) / kept
        return cls(
            images=len(predictions),
            classes=predictions.classes,
            accuracy=float(hits.mean()),
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
        """Make one of what `json` returned."""
        quantiles, cells = tuple(about["quantiles"]), tuple(about.get("histogram", ()))
        return cls(**{**about, "quantiles": quantiles, "histogram": cells})

    def json(self) -> dict[str, Any]:
        """Return plain numbers and tuples of them."""
        return asdict(self)


def histogram(confidence: PerImage) -> tuple[float, ...]:
    """Return the fraction of the images in each of CELLS equal cells of [0, 1]."""
    counts = torch.histc(confidence.double().cpu(), CELLS, 0, 1)
    return tuple((counts / max(1, len(confidence))).tolist())


def scores(logits: Logits, temperature: float) -> PerImage:
    """Return the negative entropy of softmax(logits / temperature): 0 for a certain image."""
    wide = logits.double()
    negative: Tensor = -torch.special.entr(scaled(wide, wide.new_tensor(temperature))).sum(dim=1)
    return negative


def _slope(falls: Sequence[Tensor], seen: Sequence[Tensor]) -> tuple[float | None, float]:
    """Return the slope of falls in accuracy over falls in A, and its standard error."""
    if not falls:
        return None, 0.0
    x, y = torch.stack(list(seen)), torch.stack(list(falls))
    mean = x.mean(dim=1, keepdim=True)
    squares = mean.square().sum()  # a slope over falls of 0 is not a number
    slope = float((mean * y.mean(dim=1, keepdim=True)).sum() / squares)
    error = float(standard_error((mean * (y - slope * x)).sum(dim=0)) / squares)
    if not error < LARGEST_SLOPE_ERROR or slope <= 0:
        return None, 0.0
    return min(max(slope, 1.0), LARGEST_SLOPE), error


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The estimated accuracy on unlabelled images.

    Args:
        images: The number of images.
        accuracy: The estimated accuracy.
        low: The lower end of its 95 % interval.
        high: The upper end of its 95 % interval.
        p_value: How often images without a shift would look as uncertain as these.
    """

    images: int
    accuracy: float
    low: float
    high: float
    p_value: float

    @property
    def drifted(self) -> bool:
        """Whether these images are significantly less certain than the validation images."""
        return self.p_value < LEVEL


def unlike(reference: Reference, seen: PerImage) -> PerImage:
    """Return for each score the fraction of the validation images with a higher one."""
    known = torch.tensor(reference.quantiles, dtype=torch.float64)
    below = torch.searchsorted(known, seen.double().cpu().contiguous(), side="right")
    return 1 - below.double() / len(known)


def estimate(reference: Reference, logits: Logits) -> Estimate:
    """Estimate the accuracy on unlabelled images from their logits."""
    return estimated(reference, scores(logits, reference.temperature))


def estimated(reference: Reference, seen: PerImage) -> Estimate:
    """Estimate the accuracy from the scores of the images, at the temperature of the reference."""
    n, m, a0 = reference.images, seen.shape[0], reference.accuracy
    part = float((seen >= reference.threshold).double().mean())
    fallen = a0 - part
    slope = (reference.slope or 1.0) if fallen > 0 else 1.0
    accuracy = min(max(a0 - slope * fallen, 1.5 / reference.classes), 1.0)
    # Errors of the sample, of the accuracy and threshold of the reference, and of the slope.
    noise = slope**2 * (_binomial(part, m) + _binomial(a0, n)) + (1 - slope) ** 2 * _binomial(a0, n)
    error = math.sqrt(noise + fallen**2 * (reference.slope_error**2 + SLOPE_DEVIATION**2))
    # The one-sided p-value of the mean rank of the scores (Mann & Whitney, normal).
    known, new = np.array(reference.quantiles), seen.cpu().numpy()
    left, right = (np.searchsorted(known, new, side=side) for side in ("left", "right"))
    rank = ((left + right) / (2 * len(known))).mean()
    deviation = math.sqrt((1 / m + 1 / n) / 12)
    return Estimate(
        images=m,
        accuracy=accuracy,
        low=max(0.0, accuracy - NORMAL * error),
        high=min(1.0, accuracy + NORMAL * error),
        p_value=float(stats.norm.sf((0.5 - rank) / deviation)),
    )


def _binomial(part: float, images: int) -> float:
    """Return the variance of a fraction of images, by Laplace's rule, so that it is never 0."""
    part = (part * images + 1) / (images + 2)
    return part * (1 - part) / images


@dataclass(frozen=True, kw_only=True)
class Adaptation(Estimate):
    """How a calibrator was adapted to a domain, and the estimate behind it.

    Args:
        softness: The factor of all logits; 1 if nothing was changed.
        confidence_before: The mean confidence on the images before.
        confidence: The mean confidence after.
    """

    softness: float
    confidence_before: float
    confidence: float

    def __str__(self) -> str:
        what = (
            f"of {self.images} images without labels, about {self.accuracy:.0%} are right "
            f"({self.low:.0%} to {self.high:.0%}) "
            f"at a mean confidence of {self.confidence_before:.0%}"
        )
        if self.softness == 1:
            fine, small = "it is not over-confident", "the drift is not statistically significant"
            return f"Not adapted: {what}; {fine if self.drifted else small}."
        did = f"Adapted by a softness of {self.softness:.3f}"
        return f"{did}: {what}; it is {self.confidence:.0%} now."


def adapt(
    calibrator: Calibrator, reference: Reference, predictions: Predictions
) -> tuple[Calibrator, Adaptation]:
    """Soften a calibrator until its mean confidence is the estimated accuracy; the class stays."""
    if len(predictions) < LEAST:
        raise InputError(
            f"expected at least {LEAST} images to adapt to, for fewer say too little of a domain, "
            f"got {len(predictions)}"
        )
    if predictions.classes != reference.classes:
        raise InputError(
            f"expected predictions of {reference.classes} classes, as the reference has, "
            f"got {predictions.classes}"
        )
    found = estimate(reference, predictions.logits)

    def confidence(softness: float) -> float:
        return float(calibrator.softened(softness)(predictions).double().amax(dim=1).mean())

    before, softness = confidence(1.0), 1.0
    if found.drifted and before > found.accuracy:
        softness = softness_at(confidence, found.accuracy)
    after = confidence(softness)
    adaptation = Adaptation(
        **asdict(found), softness=softness, confidence_before=before, confidence=after
    )
    return calibrator if softness == 1 else calibrator.softened(softness), adaptation


def softness_at(confidence: Callable[[float], float], target: float) -> float:
    """Return the largest softness with a mean confidence of at most the target, by bisection."""
    low, high = 1e-3, 1.0
    for _ in range(30):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if confidence(middle) <= target else (low, middle)
    return low
