"""The same network with other answers: for images that have drifted, for stated classes or a risk.

    found = classifier.drift(images)        estimated accuracy, its interval, and a test: `Drift`
    adapted = classifier.adapt(images)      the same classes, with lower confidence
    adapted.adapted                         what was done, and why
    adapted.unadapted()                     the classifier as it was
    watch = classifier.watch()              an alarm for a stream: `watch.update(batch)`

    classifier.with_classes(["cat", "dog"])             only these occur
    classifier.with_prior({"cat": 0.9, "dog": 0.1})     and this often
    classifier.at_risk(0.01)                at most 1 % of what it answers is wrong

`calibrate` stores what is needed of the validation images as `classifier.reference`
(`calibrators.shift`); `calibrators.risk` finds the threshold of a risk. For stated classes,
probabilities are multiplied by the stated share of the class over its share among the validation
images, and normalised. The class may change: that is the point.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import inf
from os import PathLike
from typing import Any, TypeVar, Unpack

import numpy as np
import torch
from torch import Tensor

from atta._base.errors import InputError, suggest
from atta._base.types import Labels, PerImage
from atta.calibrators import Calibrator, shift
from atta.calibrators.alarm import RATE, Alarm
from atta.calibrators.risk import DELTA
from atta.calibrators.shift import LEVEL, STATISTICS, Reference, refused, seconded
from atta.classifier.estimator import Answering, Estimator
from atta.data.folder import find_images
from atta.data.items import Channels
from atta.data.preprocess import sheet_of
from atta.data.source import batches_of
from atta.networks.borrowing import BATCH, dtype_of, layers, renormalised
from atta.record.predictions import Predictions
from atta.run.runner import as_pixels, logits_of

Classifier = TypeVar("Classifier", bound="Adaptable")
WINDOW = 500
"""The latest images that `watch` estimates from and adapts to."""


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
        scores: PerImage,
        answers: Labels,
        confidence: PerImage,
        images: Labels | None = None,
    ) -> Drift:
        """Compare images with the validation images, by their scores, classes and confidence.

        Args:
            reference: The validation images.
            scores: `shift.scores` of the images.
            answers: The network's classes.
            confidence: The largest calibrated probabilities.
            images: The image of each row, if the rows are pixels.
        """
        found = shift.estimated(reference, scores, answers, images)
        return cls(
            **vars(found),
            expected_accuracy=reference.accuracy,
            expected_confidence=reference.confidence,
            seen_confidence=float(confidence.mean()),
            level=LEVEL,
            drifted=found.drifted,
            slope=reference.slope,
            expected_histogram=reference.histogram,
            seen_histogram=shift.histogram(confidence),
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

    def drift(self, images: Any, **how: Unpack[Answering]) -> Drift:
        """Compare unlabelled images with the validation images, and estimate the accuracy on them.

        Args:
            images: What `predict_proba` takes, 32 images or more.
            how: Options of `predict_proba`.
        """
        self._known_reference()
        predictions = self._answers(images, **how)
        shift.check_enough(predictions)
        return self._compared(predictions)

    def _compared(self, predictions: Predictions) -> Drift:
        """Compare answers to unlabelled images with the validation images."""
        reference = self._known_reference()
        logits = predictions.logits
        seen = self.calibrator(predictions).double().amax(dim=1)
        scores = shift.scores(logits, reference.temperature)
        return Drift.of(reference, scores, logits.argmax(dim=1), seen, predictions.images)

    def adapt(
        self: Classifier, images: Any, *, statistics: bool = False, **how: Unpack[Answering]
    ) -> Classifier:
        """Return a classifier adapted to unlabelled images: the same classes, lower confidence.

        Nothing changes if the images have not significantly drifted. `adapted` says what was done,
        `unadapted()` undoes it. An earlier adaptation is undone first.

        Args:
            images: What `predict_proba` takes, 32 images or more; 8 or more for a segmenter.
            statistics: Whether to use the network with the batch normalisation statistics of these
                images as one more view, for one pass more. For the same classes in similar shares
                under another camera, light or weather.
            how: Options of `predict_proba`, such as `progress`.

        Raises:
            InputError: The images are too few, or the classifier does not know its validation
                images or its rehearsals, or `statistics` and the network has none.
        """
        plain = self.unadapted()
        plain._hedged()  # one that is missing raises before the network runs
        if statistics:
            plain._for_images("statistics")
            if not layers(plain.model):
                raise InputError(
                    "statistics: expected a network with batch normalisation, got one without, or "
                    "one that is an ONNX file or a function: adapt without statistics"
                )
        predictions = plain._answers(images, **how)
        pixels = partial(plain._pixels, images, how.get("channels")) if statistics else None
        return plain._adapted_to(predictions, pixels)

    def _adapted_to(
        self: Classifier, predictions: Predictions, pixels: Callable[[], Tensor] | None = None
    ) -> Classifier:
        """Adapt to the answers to unlabelled images, and to the statistics of their pixels.

        The view of the network with these statistics is added only if that is safe.
        """
        reference = self._known_reference()
        hedged = self._hedged()
        second = None
        calibrator, done = shift.adapt(self.calibrator, hedged, reference, predictions)
        if pixels is not None:
            if why := refused(reference, predictions, done):
                done = replace(done, statistics=why)
            else:
                every = pixels()
                dtype = dtype_of(self.model)
                second = renormalised(self.model, every.tensor_split(-(-len(every) // BATCH)))
                parts = [logits_of(second, part, dtype) for part in torch.split(every, BATCH)]
                views = {**predictions.views, STATISTICS: (logits := torch.cat(parts))[:, None]}
                both = Predictions(predictions.logits.to(logits), views)
                calibrator, done = seconded(calibrator, hedged, reference, both, done)
                second = second if STATISTICS in calibrator.kinds else None
        return self._with(
            calibrator, adapted=done, before=self.calibrator, promise=None, second=second
        )

    @torch.no_grad()
    def _pixels(self, images: Any, channels: Channels) -> Tensor:
        """Read unlabelled images into memory, as the network takes them."""
        source = self.source(_files(images), channels)
        if source.once:
            raise InputError(
                "images: expected images that can be read twice, for their statistics, got a "
                "stream: read it into an array"
            )
        wanted = batches_of(BATCH, 0, source.count)
        pixels = torch.cat([batch.pixels for batch in source.read(wanted, skip=InputError)])
        if sheet := sheet_of(self.preprocess):
            pixels = sheet.crop(pixels)
        return as_pixels(pixels.to(self.device), dtype_of(self.model))

    def _hedged(self) -> Calibrator:
        """Return the calibrator that takes over after a drift."""
        if self._known_reference().slope is None:
            raise InputError(
                "expected a classifier that knows how its accuracy falls, but nothing that was "
                "recorded when it was calibrated lowered its accuracy: calibrate it again on more "
                "images, a few hundred at least, with rehearsals, which are the default"
            )
        hedged = self.kept.hedged or self.calibrator
        hedged.softened(1.0)
        return hedged.to(self.device)

    def watch(self, *, window: int = WINDOW, rate: float = RATE, seed: int = 0) -> Watch:
        """Watch a stream of unlabelled images: an alarm, and adapting to the latest images.

        Use it in production instead of calling `drift` again and again, which raises a false alarm
        sooner or later.

        Args:
            window: How many of the latest images to estimate from and to adapt to.
            rate: The probability that a stream that does not shift ever raises the alarm.
            seed: The seed of the random numbers that break ties.

        Returns:
            An object with `update(images)` and `classifier`.
        """
        self._for_images("watch")
        plain = self.unadapted()
        return Watch(plain, window, Alarm(plain._known_reference(), rate=rate, seed=seed))

    def unadapted(self: Classifier) -> Classifier:
        """Return the classifier as it was before it was adapted, to the last bit."""
        if self.adapted is None or self.kept.before is None:
            return self
        return self._with(self.kept.before, adapted=None, before=None, second=None)

    def _with(self: Classifier, calibrator: Calibrator | None = None, **kept: Any) -> Classifier:
        """Return this classifier with another calibrator or other parts that `Kept` lists.

        Both share the network.
        """
        names = "image_shape", "class_names", "summary", "preprocess", "reference", "conformity"
        known = {name: getattr(self, name) for name in names}
        known["kept"] = replace(self.kept, **kept)
        return type(self)(self.model, calibrator or self.calibrator, self.policy, **known)

    def with_classes(self: Classifier, classes: Iterable[str | int]) -> Classifier:
        """Return the classifier for images of these classes alone. The class may change.

        Use it if you know which classes can occur, such as the species of a region. Their shares
        stay in proportion to those of the validation images; `with_prior` states them.

        Args:
            classes: Names or numbers of the classes that occur; all of them undo it.

        Returns:
            A classifier with the same network. It promises no sets and no risk.

        >>> import atta, torch
        >>> network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 3))
        >>> fitted = atta.TemperatureScaling().fit(atta.Predictions(torch.eye(3), {}), [0, 1, 2])
        >>> classifier = atta.CalibratedClassifier(network, fitted, image_shape=(3, 2, 2))
        >>> classifier.with_classes([0, 2])(torch.zeros(1, 3, 2, 2))[0, 1]
        tensor(0.)
        """
        odds = np.zeros(self.classes)
        odds[[self._number(one) for one in classes]] = 1.0
        return self._stated(odds)

    def with_prior(self: Classifier, prior: Mapping[str | int, int | float]) -> Classifier:
        """Return the classifier for classes that occur this often. The class may change.

        Args:
            prior: The share of each class that occurs, by name or number. Shares are normalised;
                classes that are not named do not occur.

        Returns:
            A classifier with the same network. It promises no sets and no risk.
        """
        shares = np.zeros(self.classes)
        for one, share in prior.items():
            if not 0 <= share < inf:
                raise InputError(f"prior: expected a share ≥ 0 of class {one!r}, got {share}")
            shares[self._number(one)] = share
        known = self.reference is not None and self.reference.answers
        before = self.reference.shares if known and self.reference else 1 / len(shares)
        return self._stated(shares / before / max(shares.sum(), 1e-30))

    def told(self: Classifier, text: str) -> Classifier:
        """Read what the command line was told: "cat,dog", or with shares "cat=0.9,dog=0.1".

        Args:
            text: Names or numbers of classes, separated by commas, all or none with shares.
        """
        parts = [part.partition("=") for part in text.split(",")]
        shares = {name.strip(): share for name, _, share in parts}
        if not any(shares.values()):
            return self.with_classes(shares)
        try:
            return self.with_prior({name: float(share) for name, share in shares.items()})
        except ValueError:
            raise InputError(
                f"classes: expected names, or a share for each: cat=0.9,dog=0.1, got {text!r}"
            ) from None

    def _stated(self: Classifier, odds: np.ndarray) -> Classifier:
        self._for_images("classes")
        if not odds.any():
            raise InputError("classes: expected at least one class that occurs, got none")
        kept = () if (odds == 1).all() else tuple(odds.tolist())
        return self._with(odds=kept, promise=None)

    def _number(self, one: str | int) -> int:
        """Return the number of a class that was given by its name or number."""
        if one in self.class_names:
            return self.class_names.index(str(one))
        if str(one).isdecimal() and int(one) < self.classes:
            return int(one)
        close = suggest(one, self.class_names) if isinstance(one, str) else ""
        raise InputError(
            f"classes: expected names or numbers of the {self.classes} classes, got {one!r}{close}"
        )

    def at_risk(
        self: Classifier, risk: float, *, delta: float = DELTA, by_class: bool = False
    ) -> Classifier:
        """Return this classifier with a promise: at most `risk` of its answers are wrong.

        The promise (`promise`) holds with probability 1 - `delta`, for images like those of
        calibration. Images below its threshold are not answered: `answered` says which.

        Args:
            risk: The largest fraction of the answered images that may be wrong, such as 0.01.
            delta: The probability that the promise is broken.
            by_class: Whether each class has a threshold and a promise of its own.

        Raises:
            InputError: The validation images are too few to promise it (the error names the risk
                that they can), or the classifier was adapted or does not know them, or it is a
                segmenter.
        """
        self._for_images("at_risk")
        if self.answers_otherwise:
            raise InputError(
                "risk: expected a classifier as it was calibrated, got one that was adapted to "
                "other images or told its classes, for which nothing can be promised: use its "
                "unadapted()"
            )
        if self.kept.held_out is None:
            raise InputError(
                "risk: expected a classifier that knows its validation images, got one without, "
                "saved by an older version or fitted again: calibrate it again"
            )
        promise = self.kept.held_out.promise(risk, delta=delta, by_class=by_class)
        return self._with(promise=promise)

    def _answers(self, images: Any, **how: Unpack[Answering]) -> Predictions:
        """Run the network on unlabelled images; leave out files that cannot be read, and say so."""
        found = _files(images)
        return self.record(found, skip_bad=found is not images, **how).predictions

    def _known_reference(self) -> Reference:
        if self.reference is None:
            raise InputError(
                "expected a classifier that knows its validation images (`reference`), got one "
                "without, saved by an older version or built by hand: calibrate it again"
            )
        return self.reference


def _files(images: Any) -> Any:
    """Return the image files in folders by themselves: folders need not be classes."""
    several = images if isinstance(images, list | tuple) else [images]
    files = bool(several) and all(isinstance(one, str | PathLike) for one in several)
    return find_images(several) if files else images


@dataclass(frozen=True, kw_only=True)
class Watched:
    """A stream of images after a batch.

    `raised` says after how many images the alarm was raised, if it was. `drift` compares the latest
    images with the validation images; it is None for fewer than 32.
    """

    images: int
    raised: int | None
    drift: Drift | None

    @property
    def alarm(self) -> bool:
        """Whether the alarm is raised; it stays raised."""
        return self.raised is not None

    def __str__(self) -> str:
        state = "no alarm" if self.raised is None else f"alarm after {self.raised} images"
        return f"{self.images} images, {state}. {self.drift or 'Too few to estimate accuracy.'}"


class Watch:
    """Watches a stream of images in constant memory; `classifier.watch` makes one.

    `classifier` is the classifier as it was until the alarm is raised. From then on, each update
    adapts it to the latest images, if it was calibrated with rehearsals.
    """

    def __init__(self, classifier: Adaptable, window: int, alarm: Alarm) -> None:
        self.classifier = self._plain = classifier
        self.window = max(window, shift.LEAST)
        self.alarm = alarm
        self._latest: Predictions | None = None

    def update(self, images: Any, *, channels: Channels = None) -> Watched:
        """Look at the next images of the stream.

        Args:
            images: What `predict_proba` takes.
            channels: Where arrays have their channels.
        """
        plain = self._plain
        drift = None
        new = plain._answers(images, channels=channels)
        reference = plain._known_reference()
        self.alarm.update(shift.scores(new.logits, reference.temperature))
        if (old := self._latest) is not None:
            views = {kind: torch.cat([view, new.views[kind]]) for kind, view in old.views.items()}
            new = Predictions(torch.cat([old.logits, new.logits]), views)
        self._latest = new[-self.window :]
        if len(self._latest) >= shift.LEAST:
            drift = plain._compared(self._latest)
            if self.alarm.raised is not None and reference.slope is not None:
                self.classifier = plain._adapted_to(self._latest)
        return Watched(images=self.alarm.images, raised=self.alarm.raised, drift=drift)
