"""Drift: have unlabelled images drifted from the validation images, and adapt a classifier to them.

    found = classifier.drift(images)        estimated accuracy, its interval, and a test: `Drift`
    adapted = classifier.adapt(images)      the same classes, with lower confidence
    adapted.adapted                         what was done, and why
    adapted.unadapted()                     the classifier as it was

`calibrate` stores what is needed of the validation images as `classifier.reference`
(`calibrators.shift`).
"""

import copy
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from atta._base.errors import InputError
from atta.calibrators import shift
from atta.calibrators.shift import LEVEL, Reference
from atta.data.source import Channels
from atta.networks.borrowing import device_of
from atta.record.predictions import Predictions

if TYPE_CHECKING:
    from atta.classifier.classifier import CalibratedClassifier


@dataclass(frozen=True, kw_only=True)
class Drift:
    """Unlabelled images, compared with the validation images.

    `accuracy` is an estimate, with the 95 % interval from `low` to `high`. `p_value` is how often
    images that did not drift look as uncertain as these; `drifted` means that it is below `level`,
    the false-alarm rate.
    """

    images: int
    accuracy: float
    low: float
    high: float
    expected_accuracy: float
    expected_confidence: float
    seen_confidence: float
    p_value: float
    level: float
    drifted: bool
    slope: float | None
    expected_histogram: tuple[float, ...] = ()
    seen_histogram: tuple[float, ...] = ()
    """Histograms of the confidence of the validation images and of these images."""

    @classmethod
    def of(
        cls,
        reference: Reference,
        found: shift.Estimate,
        confidence: float,
        seen: tuple[float, ...] = (),
    ) -> "Drift":
        """Compare an estimate and the confidence of images with the validation images."""
        return cls(
            images=found.images,
            accuracy=found.accuracy,
            low=found.low,
            high=found.high,
            expected_accuracy=reference.accuracy,
            expected_confidence=reference.confidence,
            seen_confidence=confidence,
            p_value=found.p_value,
            level=LEVEL,
            drifted=found.drifted,
            slope=reference.slope,
            expected_histogram=reference.histogram,
            seen_histogram=seen,
        )

    @property
    def sentence(self) -> str:
        """The result in one sentence."""
        chance = f"p {'<' if self.p_value < 1e-4 else '='} {max(self.p_value, 1e-4):.4f}"
        verdict = (
            f"drifted ({chance})"
            if self.drifted
            else f"no drift seen ({chance}, an alarm below {self.level:g})"
        )
        by = "" if self.slope is not None else ", roughly: fitted without rehearsals"
        return (
            f"{self.images} images, {verdict}: about {self.accuracy:.0%} are right "
            f"({self.low:.0%} to {self.high:.0%}{by}), {self.expected_accuracy:.0%} of the "
            f"validation images were; mean confidence {self.seen_confidence:.0%}, expected "
            f"{self.expected_confidence:.0%}."
        )

    def __str__(self) -> str:
        return self.sentence

    def json(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {**asdict(self), "sentence": self.sentence}


def drift(classifier: "CalibratedClassifier", images: Any, *, channels: Channels = None) -> Drift:
    """Compare unlabelled images with the validation images; fewer than 32 are refused."""
    reference, predictions = _reference(classifier), _answers(classifier, images, channels)
    if len(predictions) < shift.LEAST:
        raise InputError(
            f"expected at least {shift.LEAST} images, got {len(predictions)}, which say too little"
        )
    seen = classifier.calibrator(predictions).double().amax(dim=1)
    found = shift.estimate(reference, predictions.logits)
    return Drift.of(reference, found, float(seen.mean()), shift.histogram(seen))


def adapt(
    classifier: "CalibratedClassifier", images: Any, *, channels: Channels = None
) -> "CalibratedClassifier":
    """Return a classifier adapted to these images; an earlier adaptation is undone first."""
    classifier = unadapted(classifier)
    reference = _reference(classifier)
    if reference.slope is None:
        raise InputError(
            "expected a classifier that knows how its accuracy falls, but nothing that was recorded "
            "when it was calibrated lowered its accuracy: calibrate it again with rehearse=True, on "
            "a few hundred images or more"
        )
    classifier.calibrator.softened(1.0)  # one that cannot be raises before the network runs
    calibrator, adapted = shift.adapt(
        classifier.calibrator, reference, _answers(classifier, images, channels)
    )
    there = copy.copy(classifier)
    there._modules = dict(classifier._modules)  # shares the network, not the calibrator
    there.calibrator, there.adapted, there.before = (
        calibrator.to(device_of(classifier)),
        adapted,
        (classifier.calibrator,),
    )
    there.images_seen = there.passes_run = 0
    return there


def unadapted(classifier: "CalibratedClassifier") -> "CalibratedClassifier":
    """Return the classifier as it was before it was adapted, to the last bit."""
    if classifier.adapted is None:
        return classifier
    back = copy.copy(classifier)
    back._modules = dict(classifier._modules)
    back.calibrator, back.adapted, back.before = (
        classifier.before[0].to(device_of(classifier)),
        None,
        (),
    )
    back.images_seen = back.passes_run = 0
    return back


def _reference(classifier: "CalibratedClassifier") -> Reference:
    if classifier.reference is None:
        raise InputError(
            "expected a classifier that knows its validation images (`reference`), got one without, "
            "saved by an older version or built by hand: calibrate it again"
        )
    return classifier.reference


def _answers(
    classifier: "CalibratedClassifier", images: Any, channels: Channels = None
) -> Predictions:
    """Return what the network says of all images and of the views of the classifier."""
    return classifier.record(images, channels=channels).predictions
