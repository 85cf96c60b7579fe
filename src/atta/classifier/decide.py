"""Decide: answer, hand over to a person, or choose what costs least.

    classifier.confidence(images)               how likely the network's own class is right
    careful = classifier.at_risk(0.01)          at most 1 % of what it answers is wrong
    careful.answered(images)                    which images it answers; the others are "unsure"
    classifier.decide(images, costs=matrix)     the decision of least expected cost

`calibrators.risk` finds the threshold and the costs.
"""

from dataclasses import replace
from typing import Any, TypeVar, Unpack

import numpy as np
from torch import Tensor

from atta._base.errors import InputError
from atta.calibrators.risk import DELTA, Promise, expected_cost
from atta.classifier.estimator import Answering
from atta.classifier.stated import Stated

Classifier = TypeVar("Classifier", bound="Deciding")


class Deciding(Stated):
    """A classifier whose answers people act on."""

    def confidence(self, images: Any, **how: Unpack[Answering]) -> np.ndarray:
        """Return for each image the probability that the network's own class is right.

        `predict_proba(images).max(axis=1)` is the probability after the guard, which keeps the
        class on top of all others. This number is the probability without the guard.

        Args:
            images: What `predict_proba` takes.
            how: Options of `predict_proba`.

        Returns:
            Numbers between 0 and 1, shaped (n,).
        """
        return self._each(lambda pixels: self.details(pixels).confidence, images, **how)

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
        return self._with(self.calibrator, replace(self.kept, promise=promise))

    @property
    def promise(self) -> Promise | None:
        """The risk that `at_risk` promised; an adaptation withdraws it."""
        return self.kept.promise

    def answered(self, images: Any, **how: Unpack[Answering]) -> np.ndarray:
        """Return which images are answered under the promise; the others are "unsure".

        Args:
            images: What `predict_proba` takes.
            how: Options of `predict_proba`.

        Returns:
            Booleans, shaped (n,).
        """

        def answer(pixels: Tensor) -> Tensor:
            answered = self.details(pixels).answered
            if answered is None:
                raise InputError(
                    "expected a classifier with a promise, as at_risk(0.01) returns it, got one "
                    "without"
                )
            return answered

        return self._each(answer, images, **how)

    def decide(
        self,
        images: Any,
        costs: Any,
        *,
        abstain: float | None = None,
        **how: Unpack[Answering],
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the decision of least expected cost for each image, and that cost.

        Args:
            images: What `predict_proba` takes.
            costs: What each decision (column) costs if a class (row) is the true one.
            abstain: What handing an image over costs; that decision is -1.
            how: Options of `predict_proba`.

        Returns:
            Column numbers and expected costs, each shaped (n,).
        """
        return expected_cost(self.predict_proba(images, **how), costs, abstain)
