"""Many images, and scikit-learn's habits: a classifier that `cross_val_score`, scorers and pipelines take as one of theirs."""

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
    """What scikit-learn asks of a classifier that is fitted, over a module that answers a batch with probabilities."""

    @property
    def classes_(self) -> np.ndarray:
        """The class numbers, as scikit-learn calls them; their names are `class_names`."""
        return np.arange(self.calibrator.classes)

    def predict(self, images: Any, **how: Any) -> np.ndarray:
        """Give the class number of each image: the network's own. Takes what `predict_proba` takes."""
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
        """Answer an array, a Dataset, a DataLoader, a Hugging Face dataset, a folder, files or Pillow images: (n, k).

        Files and Pillow images are resized and cropped as `preprocess` says.
        An array (n, h, w, c) needs no `channels` where the shape tells it apart.
        """
        source = as_source(images, channels or self._channels(images), self.preprocess)
        return self._proba(source, Truth(None), batch_size, workers, progress)[0]

    def predict_set(self, images: Any, *, coverage: float = 0.95, **how: Any) -> np.ndarray:
        """Mark the classes of each image, (n, k), of which the true one is one with this probability; the class is among them.

        That holds for images like those it was calibrated on, whose held-out answers the sets are cut from: where those are
        few, up to the noise of so many. Takes what `predict_proba` takes.
        """
        sets = self.conformal(coverage)
        return sets(torch.from_numpy(self.predict_proba(images, **how))).numpy()

    def conformal(self, coverage: float) -> ConformalSets:
        """What makes sets of its probabilities that hold the true class so often."""
        if self.answers_otherwise:
            raise InputError(
                "coverage: expected a classifier as it was calibrated, by whose answers sets are promised, got one that was "
                "adapted to other images: ask its unadapted() (on the command line, the classifier that it was made from)"
            )
        if self.conformity_scores is None:
            raise InputError(
                "expected a classifier that knows how strange true classes are (`conformity_scores`), got one without, as an older "
                "atta saved them and as `fit` leaves it: calibrate it again"
            )
        return self.conformity_scores.sets(coverage)

    @property
    def on_simplex(self) -> bool:
        """Whether its probabilities add up to one; pooled isotonic and histogram calibration may leave them otherwise."""
        return self.calibrator.method.on_simplex

    def labelled_proba(
        self,
        images: Any,
        labels: Any = None,
        *,
        channels: Channels = None,
        batch_size: int | None = None,
        workers: int = 0,
        progress: bool = False,
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """What `predict_proba` gives, and the labels, given or brought along by the images, by the names of its classes."""
        source = as_source(images, channels or self._channels(images), self.preprocess)
        truth = truth_of(labels, source, self.class_names)
        truth.settle(self.calibrator.classes)
        probs, own = self._proba(source, truth, batch_size, workers, progress)
        labels = truth.labels if truth.labels is not None else own
        return probs, None if labels is None else labels.numpy()

    def _proba(
        self, source: Source, truth: Truth, batch_size: int | None, workers: int, progress: bool
    ) -> tuple[np.ndarray, Tensor | None]:
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
        """Fit the same method with the same views to other images, in place; all else is what `collect` takes."""
        refuse_unknown("fit", collecting, [*Collecting.__annotations__])
        how: Any = {
            "channels": channels or self._channels(images),
            "progress": progress,
            **collecting,
        }
        rehearse = self.reference is not None and self.reference.slope is not None
        how |= {
            "preprocess": self.preprocess,
            "class_names": self.class_names,
            "rehearse": rehearse,
        }
        record = collect(self.model, images, labels, policy=self.policy, draws="stratified", **how)
        fitted = self.calibrator.method.fit(record.predictions, record.require_labels())
        self.calibrator, self.summary, self.conformity_scores = (
            fitted.to(device_of(self)),
            None,
            None,
        )
        self.adapted, self.before = None, ()
        self.reference = Reference.of(self.calibrator, record.predictions, record.require_labels())
        return self

    def score(self, images: Any, labels: Any) -> float:
        """The part of the images whose class is right, as scikit-learn's classifiers say it."""
        numbers = as_labels(
            labels, images=len(labels), classes=self.calibrator.classes, names=self.class_names
        )
        return float((self.predict(images) == numbers.numpy()).mean())

    def _channels(self, images: Any) -> Channels:
        """Where an array has its channels, as the shape that is expected tells."""
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
