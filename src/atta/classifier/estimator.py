"""Answer many images, in the style of scikit-learn: `predict`, `predict_proba`, `fit`, `score`.

`cross_val_score`, scorers and pipelines of scikit-learn take a classifier as one of their own.
"""

import copy
from typing import Any, TypeVar, Unpack

import numpy as np
import torch
from torch import Tensor

from atta._base.errors import InputError
from atta._base.progress import counted
from atta.calibrators.conformal import ConformalSets
from atta.calibrators.shift import Reference
from atta.classifier.archive import Archived
from atta.data.labels import Truth, truth_of
from atta.data.source import Channels, Source, as_source
from atta.networks.borrowing import device_of
from atta.record.predictions import as_labels
from atta.run.collect import Collecting, collect, refuse_unknown
from atta.run.runner import batch_size as usual_size
from atta.run.runner import read_batches

Fitted = TypeVar("Fitted", bound="Estimator")


class Estimator(Archived):
    """The interface of a fitted scikit-learn classifier, for a module that answers batches."""

    @property
    def classes_(self) -> np.ndarray:
        """The class numbers, for scikit-learn; their names are `class_names`."""
        return np.arange(self.calibrator.classes)

    def predict(self, images: Any, **how: Any) -> np.ndarray:
        """Return the class number of each image, which is the network's own.

        Args:
            images: As in `predict_proba`.
            how: Options of `predict_proba`.

        Returns:
            Class numbers, shaped (n,).
        """
        return np.asarray(self.classes_[self.predict_proba(images, **how).argmax(axis=1)])

    def predict_proba(
        self,
        images: Any,
        *,
        channels: Channels = None,
        batch_size: int | None = None,
        workers: int = 0,
        progress: bool = False,
    ) -> np.ndarray:
        """Return the calibrated probabilities of many images.

        Args:
            images: An array, a Dataset, a DataLoader, a Hugging Face dataset, a folder, files or
                Pillow images. Files and Pillow images are resized and cropped by `preprocess`.
            channels: "first" or "last" in an array; by default its shape decides.
            batch_size: Images per forward pass; the default depends on the device.
            workers: Threads that read and decode ahead.
            progress: Whether to show a progress bar.

        Returns:
            Probabilities, shaped (n, k).

        >>> import atta
        >>> network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 3))
        >>> fitted = atta.TemperatureScaling().fit(atta.Predictions(torch.eye(3), {}), [0, 1, 2])
        >>> classifier = atta.CalibratedClassifier(network, fitted, image_shape=(3, 2, 2))
        >>> classifier.predict_proba(np.zeros((5, 3, 2, 2), np.uint8)).shape
        (5, 3)
        """
        source = as_source(images, channels or self._channels(images), self.preprocess)
        return self._proba(source, Truth(None), batch_size, workers, progress)[0]

    def predict_set(self, images: Any, *, coverage: float = 0.95, **how: Any) -> np.ndarray:
        """Return a set of classes for each image that contains the true class this often.

        The coverage holds for images like those of calibration, up to the noise of their number.
        The predicted class is always in the set.

        Args:
            images: As in `predict_proba`.
            coverage: The probability that the set contains the true class.
            how: Options of `predict_proba`.

        Returns:
            A boolean array, shaped (n, k).

        Raises:
            InputError: The classifier was adapted, or does not know its validation images.
        """
        sets = self.conformal(coverage)
        return sets(torch.from_numpy(self.predict_proba(images, **how))).numpy()

    def conformal(self, coverage: float) -> ConformalSets:
        """Return the function from probabilities to sets that contain the true class this often."""
        if self.answers_otherwise:
            raise InputError(
                "coverage: expected a classifier as it was calibrated, got one that was adapted to "
                "other images, for which sets have no guarantee: use its unadapted() (on the "
                "command line, the classifier that it was made from)"
            )
        if self.strangeness is None:
            raise InputError(
                "expected a classifier that knows how strange true classes are (`strangeness`), "
                "got one without, as older versions saved them and as `fit` leaves it: "
                "calibrate it again"
            )
        return self.strangeness.sets(coverage)

    @property
    def on_simplex(self) -> bool:
        """Whether the probabilities sum to one; those of isotonic and histogram maps may not."""
        return self.calibrator.method.on_simplex

    def labelled_proba(
        self, images: Any, labels: Any = None
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Return `predict_proba` and the labels, which are given or come with the images."""
        source = as_source(images, self._channels(images), self.preprocess)
        truth = truth_of(labels, source, self.class_names)
        truth.settle(self.calibrator.classes)
        probs, own = self._proba(source, truth)
        found = own if truth.labels is None else truth.labels
        return probs, None if found is None else found.numpy()

    def _proba(
        self,
        source: Source,
        truth: Truth,
        batch_size: int | None = None,
        workers: int = 0,
        progress: bool = False,
    ) -> tuple[np.ndarray, Tensor | None]:
        """Answer the images of a source, and return the labels that come with them."""
        device = device_of(self)
        size, probs, own = usual_size(batch_size, device), list[Tensor](), list[Tensor]()
        with counted("predicting", source.count, shown=progress) as tell:
            for batch in read_batches(source, size, workers=workers):
                probs.append(self(batch.pixels.to(device)).cpu())
                labels = truth.own(batch.labels)
                own += [] if labels is None else [labels]
                tell(batch.start + batch.pixels.shape[0])
        if not probs:
            raise InputError(f"expected at least one image in {source.name}, found none")
        return torch.cat(probs).numpy(), torch.cat(own) if own else None

    def fit(
        self: Fitted,
        images: Any,
        labels: Any = None,
        *,
        channels: Channels = None,
        progress: bool = False,
        **collecting: Unpack[Collecting],
    ) -> Fitted:
        """Fit the same method with the same views to other images, in place.

        Args:
            images: As in `predict_proba`.
            labels: Class numbers or names; by default those that come with the images.
            channels: "first" or "last" in an array; by default its shape decides.
            progress: Whether to show a progress bar.
            collecting: Options of `atta.collect`.

        Returns:
            The classifier itself, without a summary and without sets.
        """
        refuse_unknown("fit", collecting, [*Collecting.__annotations__])
        record = collect(
            self.model,
            images,
            labels,
            policy=self.policy,
            draws="stratified",
            rehearse=self.reference is not None and self.reference.slope is not None,
            channels=channels or self._channels(images),
            preprocess=self.preprocess,
            class_names=self.class_names,
            progress=progress,
            **collecting,
        )
        predictions, numbers = record.predictions, record.require_labels()
        self.calibrator = self.calibrator.method.fit(predictions, numbers).to(device_of(self))
        self.reference = Reference.of(self.calibrator, predictions, numbers)
        self.summary = self.strangeness = self.adapted = None
        self.before = ()
        return self

    def score(self, images: Any, labels: Any) -> float:
        """Return the accuracy, as classifiers of scikit-learn do.

        Args:
            images: As in `predict_proba`.
            labels: The class number or name of each image.

        Returns:
            The fraction of the images whose predicted class is right.
        """
        numbers = as_labels(
            labels, images=len(labels), classes=self.calibrator.classes, names=self.class_names
        )
        return float((self.predict(images) == numbers.numpy()).mean())

    def _channels(self, images: Any) -> Channels:
        """Where an array has its channels, by the shape that the classifier expects."""
        if not isinstance(images, Tensor | np.ndarray) or images.ndim != 4:
            return None
        first, last = tuple(images.shape[1:]), (images.shape[3], *images.shape[1:3])
        return "last" if last == self.image_shape != first else "first"

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_clone__(self: Fitted) -> Fitted:
        return copy.deepcopy(self)

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn that this is a classifier."""
        from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags

        return Tags(
            estimator_type="classifier",
            target_tags=TargetTags(required=True),
            classifier_tags=ClassifierTags(),
            input_tags=InputTags(two_d_array=False, three_d_array=True),
        )
