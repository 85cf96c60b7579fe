"""State which classes occur: knowing it is worth more than any estimate.

    classifier.with_classes(["cat", "dog"])             only these occur
    classifier.with_prior({"cat": 0.9, "dog": 0.1})     and this often

Probabilities are multiplied by the stated share of the class over its share among the validation
images, and normalised. The class may change: that is the point.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import inf
from typing import TypeVar

import numpy as np

from atta._base.errors import InputError, suggest
from atta.classifier.adapt import Adaptable

Classifier = TypeVar("Classifier", bound="Stated")


class Stated(Adaptable):
    """A classifier that can be told which classes occur."""

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
