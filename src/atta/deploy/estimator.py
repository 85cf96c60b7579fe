"""Many images, and scikit-learn's habits: a classifier that `cross_val_score`, scorers and pipelines take as one of theirs."""

import copy
from typing import Any, TypeVar, Unpack

import numpy as np
import torch
from torch import Tensor

from atta.collection.collect import Collecting, collect, refuse_unknown
from atta.collection.runner import batch_size as usual_size
from atta.collection.runner import read_batches
from atta.deploy.archive import Archived
from atta.errors import InputError
from atta.images.sources import Channels, as_source
from atta.networks.borrowing import device_of
from atta.progress import counted

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
        """Answer an array, a Dataset, a DataLoader, a Hugging Face dataset or a folder of images: probabilities (n, k).

        An array (n, h, w, c) needs no `channels` where the shape tells it apart.
        """
        return self.labelled_proba(images, channels=channels, batch_size=batch_size, workers=workers, progress=progress)[0]

    @property
    def on_simplex(self) -> bool:
        """Whether its probabilities add up to one; pooled isotonic and histogram calibration may leave them otherwise."""
        return self.calibrator.method.on_simplex

    def labelled_proba(
        self,
        images: Any,
        *,
        channels: Channels = None,
        batch_size: int | None = None,
        workers: int = 0,
        progress: bool = False,
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """What `predict_proba` gives, and the labels of the images where these bring them along."""
        device = device_of(self)
        source, size = as_source(images, channels or self._channels(images)), usual_size(batch_size, device)
        probs, own = list[Tensor](), list[Tensor]()
        with counted("predicting", source.count, shown=progress) as tell:
            for batch in read_batches(source, size, workers=workers):
                probs.append(self(batch.pixels.to(device)).cpu())
                own += [] if batch.labels is None else [batch.labels]
                tell(batch.start + batch.pixels.shape[0])
        if not probs:
            raise InputError(f"expected at least one image in {source.name}, found none")
        labels = source.labels if source.labels is not None else torch.cat(own) if own else None
        return torch.cat(probs).numpy(), None if labels is None else labels.numpy()

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
        how: Any = {"channels": channels or self._channels(images), "progress": progress, **collecting}
        record = collect(self.model, images, labels, policy=self.policy, draws="stratified", **how)
        fitted = self.calibrator.method.fit(record.predictions, record.require_labels())
        self.calibrator, self.summary = fitted.to(device_of(self)), None
        return self

    def score(self, images: Any, labels: Any) -> float:
        """The part of the images whose class is right, as scikit-learn's classifiers say it."""
        return float((self.predict(images) == np.asarray(labels)).mean())

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
