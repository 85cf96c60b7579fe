"""Drift: have unlabelled images drifted from the validation images, and adapt a classifier to them.

    found = classifier.drift(images)        estimated accuracy, its interval, and a test: `Drift`
    adapted = classifier.adapt(images)      the same classes, with lower confidence
    adapted.adapted                         what was done, and why
    adapted.unadapted()                     the classifier as it was

`calibrate` stores what is needed of the validation images as `classifier.reference`
(`calibrators.shift`).
"""

from dataclasses import asdict, dataclass, replace
from os import PathLike
from typing import Any, TypeVar

from atta._base.errors import InputError
from atta.calibrators import Calibrator, shift
from atta.calibrators.shift import LEVEL, Reference
from atta.classifier.archive import Kept
from atta.classifier.estimator import Estimator
from atta.data.folder import find_images
from atta.data.source import Channels
from atta.networks.borrowing import device_of
from atta.record.predictions import Predictions

Classifier = TypeVar("Classifier", bound="Adaptable")


@dataclass(frozen=True, kw_only=True)
class Drift:
    """Unlabelled images, compared with the validation images.

    `accuracy` is an estimate, with the standard error `error` and the
    95 % interval from `low` to `high`. `p_value` is how often
    images that did not drift look as uncertain as these; `drifted` means that it is below `level`,
    the false-alarm rate.
    """

    images: int
    accuracy: float
    low: float
    high: float
    error: float
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
            **asdict(found),
            expected_accuracy=reference.accuracy,
            expected_confidence=reference.confidence,
            seen_confidence=confidence,
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
        by = "" if self.slope is not None else ", roughly: no rehearsal lowered it"
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


class Adaptable(Estimator):
    """A classifier that compares unlabelled images with its validation images, and adapts."""

    def drift(self, images: Any, *, channels: Channels = None) -> Drift:
        """Compare unlabelled images with the validation images, and estimate the accuracy on them.

        Args:
            images: What `predict_proba` takes, 32 images or more.
            channels: Where arrays have their channels.
        """
        reference = self._known_reference()
        predictions = self._answers(images, channels)
        shift.check_enough(predictions)
        seen = self.calibrator(predictions).double().amax(dim=1)
        found = shift.estimate(reference, predictions)
        return Drift.of(reference, found, float(seen.mean()), shift.histogram(seen))

    def adapt(self: Classifier, images: Any, *, channels: Channels = None) -> Classifier:
        """Return a classifier adapted to unlabelled images: the same classes, lower confidence.

        Nothing changes if the images have not significantly drifted. `adapted` says what was done,
        `unadapted()` undoes it. An earlier adaptation is undone first.

        Args:
            images: What `predict_proba` takes, 32 images or more.
            channels: Where arrays have their channels.
        """
        plain = self.unadapted()
        reference = plain._known_reference()
        if reference.slope is None:
            raise InputError(
                "expected a classifier that knows how its accuracy falls, but nothing that was "
                "recorded when it was calibrated lowered its accuracy: calibrate it again on more "
                "images, a few hundred at least, with rehearsals, which are the default"
            )
        hedged = plain.kept.hedged or plain.calibrator
        hedged.softened(1.0)  # one that cannot be raises before the network runs
        predictions = plain._answers(images, channels)
        hedged = hedged.to(device_of(plain.model))
        calibrator, done = shift.adapt(plain.calibrator, hedged, reference, predictions)
        return plain._with(
            calibrator, replace(plain.kept, adapted=done, before=plain.calibrator, promise=None)
        )

    def unadapted(self: Classifier) -> Classifier:
        """Return the classifier as it was before it was adapted, to the last bit."""
        if self.adapted is None or self.kept.before is None:
            return self
        return self._with(self.kept.before, replace(self.kept, adapted=None, before=None))

    def _with(
        self: Classifier,
        calibrator: Calibrator,
        kept: Kept,
    ) -> Classifier:
        """Return this classifier with another calibrator; both share the network."""
        return type(self)(
            self.model,
            calibrator,
            self.policy,
            image_shape=self.image_shape,
            class_names=self.class_names,
            summary=self.summary,
            preprocess=self.preprocess,
            reference=self.reference,
            conformity=self.conformity,
            kept=kept,
        )

    def _answers(self, images: Any, channels: Channels) -> Predictions:
        """Run the network on unlabelled images; leave out files that cannot be read, and say so."""
        several = images if isinstance(images, list | tuple) else [images]
        files = all(isinstance(one, str | PathLike) for one in several)
        if files:  # by themselves: the names of their folders need not be those of classes
            images = find_images(several)
        return self.record(images, channels=channels, skip_bad=files).predictions

    def _known_reference(self) -> Reference:
        if self.reference is None:
            raise InputError(
                "expected a classifier that knows its validation images (`reference`), got one "
                "without, saved by an older version or built by hand: calibrate it again"
            )
        return self.reference
