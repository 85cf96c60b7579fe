"""Act on answers: state which classes occur, answer or hand over, or choose what costs least.

    classifier.with_classes(["cat", "dog"])             only these occur
    classifier.with_prior({"cat": 0.9, "dog": 0.1})     and this often
    classifier.confidence(images)               how likely the network's own class is right
    careful = classifier.at_risk(0.01)          at most 1 % of what it answers is wrong
    careful.answered(images)                    which images it answers; the others are "unsure"
    classifier.decide(images, costs=matrix)     the decision of least expected cost

`calibrators.risk` finds the threshold and the costs. For stated classes, probabilities are
multiplied by the stated share of the class over its share among the validation images, and
normalised. The class may change: that is the point.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import inf
from typing import Any, TypeVar, Unpack

import numpy as np
from torch import Tensor

from atta._base.errors import InputError, suggest
from atta.calibrators.risk import DELTA, Promise, expected_cost
from atta.classifier.adapt import Adaptable
from atta.classifier.estimator import Answering

Classifier = TypeVar("Classifier", bound="Deciding")


class Deciding(Adaptable):
    """A classifier whose answers people act on."""

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
        odds = np.zeros(self.calibrator.classes)
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
        shares = np.zeros(self.calibrator.classes)
        for one, share in prior.items():
            if not 0 <= share < inf:
                raise InputError(f"prior: expected a share ≥ 0 of class {one!r}, got {share}")
            shares[self._number(one)] = share
        known = self.reference is not None and self.reference.answers
        before = self.reference.shares if known and self.reference else 1 / len(shares)
        return self._stated(shares / before / max(shares.sum(), 1e-30))

    def changed(self, images: Any, **how: Unpack[Answering]) -> np.ndarray:
        """Return which images get another class than the network's own.

        Use it after `with_classes` or `with_prior`; without them, most methods change none.

        Args:
            images: What `predict_proba` takes.
            how: Options of `predict_proba`.

        Returns:
            Booleans, shaped (n,); their sum is the number of changed classes.
        """

        def answer(pixels: Tensor) -> Tensor:
            found = self.details(pixels)
            return found.probs.argmax(dim=1) != found.base.argmax(dim=1)

        return self._each(answer, images, **how)

    def told(self: Classifier, text: str) -> Classifier:
        """Read what the command line was told: "cat,dog", or with shares "cat=0.9,dog=0.1".

        Args:
            text: Names or numbers of classes, separated by commas, all or none with shares.
        """
        parts = [part.partition("=") for part in text.split(",")]
        named = {
            name if name in self.class_names or not name.isdecimal() else int(name): share
            for name, _, share in ((a.strip(), b, c) for a, b, c in parts)
        }
        if not any(named.values()):
            return self.with_classes(named)
        try:
            return self.with_prior({name: float(share) for name, share in named.items()})
        except ValueError:
            raise InputError(
                f"classes: expected names, or a share for each: cat=0.9,dog=0.1, got {text!r}"
            ) from None

    def _stated(self: Classifier, odds: np.ndarray) -> Classifier:
        self._for_images("classes")
        if not odds.any():
            raise InputError("classes: expected at least one class that occurs, got none")
        kept = () if (odds == 1).all() else tuple(odds.tolist())
        return self._with(self.calibrator, replace(self.kept, odds=kept, promise=None))

    def _number(self, one: str | int) -> int:
        """Return the number of a class that was given by its name or number."""
        names = self.class_names or tuple(map(str, range(self.calibrator.classes)))
        if isinstance(one, str) and one in names:
            return names.index(one)
        if isinstance(one, int | np.integer) and 0 <= one < len(names):
            return int(one)
        raise InputError(
            f"classes: expected names or numbers of the {len(names)} classes, got {one!r}"
            + (suggest(one, names) if isinstance(one, str) else "")
        )

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
