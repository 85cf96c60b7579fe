"""Answer many images, in the style of scikit-learn: `predict`, `predict_proba`, `fit`, `score`.

    classifier.confidence(images)               how likely the network's own class is right
    classifier.predict_set(images)              classes that include the true one so often
    classifier.at_risk(0.01).answered(images)   which images it answers; the others are "unsure"
    classifier.decide(images, costs=matrix)     the decision of least expected cost

`cross_val_score`, scorers and pipelines of scikit-learn take a classifier as one of their own.
"""

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, TypedDict, TypeVar, Unpack

import numpy as np
import torch
from torch import Tensor

from atta._base.display import counted
from atta._base.errors import InputError
from atta._base.types import Labels, PerImage, Probs
from atta.calibrators import Vanilla
from atta.calibrators.conformal import ConformalSets
from atta.calibrators.hedged import hedge
from atta.calibrators.risk import expected_cost
from atta.calibrators.shift import STATISTICS, Reference
from atta.classifier.archive import Archived, Kept
from atta.data.items import Channels
from atta.data.labels import Reading
from atta.data.loading import Workers
from atta.data.source import Source, as_source, batches_of
from atta.data.views import Policy
from atta.metrics.scores import by_confidence, evaluate
from atta.record.predictions import Predictions, Record
from atta.run.checks import NO_LABELS
from atta.run.collect import CollectOptions, prepared
from atta.run.runner import batch_size as usual_size
from atta.run.runner import split_options

Fitted = TypeVar("Fitted", bound="Estimator")


class Details(NamedTuple):
    """What each answer is made of: probs = (1 - share) · start + share · fused.

    `confidence` is the probability that the predicted class is right, and `answered` says if it is
    above the threshold of `at_risk`; None without one. `base` are the network's probabilities,
    `start` the same at the temperature that views are blended into. `start`, `fused` and `share`
    are None if the method has none. `views` are the probabilities of every view, NaN where an image
    was not shown in it. A graph does not know its views and its passes.
    """

    probs: Tensor
    confidence: Tensor
    answered: Tensor | None
    base: Tensor
    fused: Tensor | None = None
    share: Tensor | None = None
    views: Mapping[str, Tensor] = MappingProxyType({})
    passes: Tensor | None = None
    start: Tensor | None = None


class Answering(TypedDict, total=False):
    """Options of `predict_proba`.

    Args:
        channels: "first" or "last" in an array; by default its shape decides.
        batch_size: Images per forward pass; the default depends on the device.
        workers: Processes that decode files ahead, as in `atta.Execution`.
        progress: Whether to show a progress bar.
    """

    channels: Channels
    batch_size: int | None
    workers: Workers
    progress: bool


class Estimator(Archived):
    """The interface of a fitted scikit-learn classifier, for a module that answers batches."""

    @property
    def classes_(self) -> np.ndarray:
        """The class numbers, for scikit-learn; their names are `class_names`."""
        return np.arange(self.classes)

    def predict(self, images: Any, **how: Unpack[Answering]) -> np.ndarray:
        """Return the class number of each image, which is the network's own.

        Args:
            images: As in `predict_proba`.
            how: Options of `predict_proba`.

        Returns:
            Class numbers, shaped (n,).
        """
        return np.asarray(self.predict_proba(images, **how).argmax(axis=1))

    def predict_proba(self, images: Any, **how: Unpack[Answering]) -> np.ndarray:
        """Return the calibrated probabilities of many images.

        Args:
            images: An array, a Dataset, a DataLoader, a Hugging Face dataset, a folder, files or
                Pillow images. Files and Pillow images are resized and cropped by `preprocess`.
            how: `Answering`: `channels`, `batch_size`, `workers` and `progress`.

        Returns:
            Probabilities, shaped (n, k).

        >>> import atta
        >>> network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 3))
        >>> fitted = atta.TemperatureScaling().fit(atta.Predictions(torch.eye(3), {}), [0, 1, 2])
        >>> classifier = atta.CalibratedClassifier(network, fitted, image_shape=(3, 2, 2))
        >>> classifier.predict_proba(np.zeros((5, 3, 2, 2), np.uint8)).shape
        (5, 3)
        """
        return self._each(self, images, **how)

    def details(self, images: Any) -> Details:
        """Return what the answer to each image of a batch is made of."""
        raise NotImplementedError

    def _each(
        self, answer: Callable[[Tensor], Any], images: Any, **how: Unpack[Answering]
    ) -> np.ndarray:
        """Answer batch by batch, and join the answers."""
        known = Answering.__annotations__
        if unknown := how.keys() - known.keys():
            raise InputError(
                f"expected options among {', '.join(known)}, got {min(unknown)!r}: every image "
                "gets an answer; `atta predict` leaves out files that cannot be read"
            )
        source, found = self.source(images, how.get("channels")), list[Tensor]()
        wanted = batches_of(usual_size(how.get("batch_size"), self.device), 0, source.count)
        with counted("predicting", source.count, shown=how.get("progress", False)) as tell:
            for batch in source.read(wanted, how.get("workers", "auto")):
                found.append(answer(batch.pixels.to(self.device)).cpu())
                tell(batch.positions[-1] + 1)
        if not found:
            raise InputError(f"expected at least one image in {source.name}, found none")
        return torch.cat(found).numpy()

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

    def changed(self, images: Any, **how: Unpack[Answering]) -> np.ndarray:
        """Return which images get another class than the network's own.

        Use it after `with_classes` or `with_prior`; without them, most methods change none.

        Args:
            images: What `predict_proba` takes.
            how: Options of `predict_proba`.

        Returns:
            Booleans, shaped (n,); their sum is the number of changed classes.
        """

        def changed(pixels: Tensor) -> Tensor:
            found = self.details(pixels)
            return found.probs.argmax(1) != found.base.argmax(1)

        return self._each(changed, images, **how)

    def answered(self, images: Any, **how: Unpack[Answering]) -> np.ndarray:
        """Return which images are answered under the promise; the others are "unsure".

        Args:
            images: What `predict_proba` takes.
            how: Options of `predict_proba`.

        Returns:
            Booleans, shaped (n,).
        """
        if self.promise is None:
            raise InputError(
                "expected a classifier with a promise, as at_risk(0.01) returns it, got one without"
            )
        return self._each(lambda pixels: self.details(pixels).answered, images, **how)

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
        self._for_images("decide")
        return expected_cost(self.predict_proba(images, **how), costs, abstain)

    def source(self, images: Any, channels: Channels = None) -> Source:
        """Read images as the classifier expects them: its channels, its size, its preprocessing."""
        where = channels or self._channels(images)
        return as_source(images, where, self.preprocess, self.image_shape)

    def predict_set(
        self, images: Any, *, coverage: float = 0.95, **how: Unpack[Answering]
    ) -> np.ndarray:
        """Return a set of classes for each image that contains the true class this often.

        The coverage holds for images like those of calibration, up to the noise of their number.
        The predicted class is always in the set. A set holds at least `coverage` of the
        probability, and all classes if the image is less confident than every validation image.
        An image that is "unsure" at the risk of `at_risk` gets two classes at least.

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

        def found(pixels: Tensor) -> Tensor:
            details = self.details(pixels)
            return sets(details.probs, details.answered)

        return self._each(found, images, **how)

    def conformal(self, coverage: float) -> ConformalSets:
        """Return the function from probabilities to sets that contain the true class this often."""
        if self.answers_otherwise:
            raise InputError(
                "coverage: expected a classifier as it was calibrated, got one that was adapted to "
                "other images or told its classes, for which sets have no guarantee: use its "
                "unadapted() (on the command line, the classifier that it was made from)"
            )
        return super().conformal(coverage)

    @property
    def on_simplex(self) -> bool:
        """Whether the probabilities sum to one; those of isotonic and histogram maps may not."""
        return self.calibrator.method.on_simplex

    def labelled_proba(self, images: Any, labels: Any = None) -> tuple[Tensor, Tensor | None]:
        """Return the probabilities and the labels, which are given or come with the images."""
        record = self.record(images, labels)
        return self.kept.restated(self.calibrator(record.predictions)), record.labels

    def record(
        self,
        images: Any,
        labels: Any = None,
        *,
        channels: Channels = None,
        rehearse: bool | Iterable[int] = False,
        **options: Unpack[CollectOptions],
    ) -> Record:
        """Run the network on images and on the views of this classifier, and return the logits.

        Args:
            images: What `predict_proba` takes.
            labels: Class numbers or names; by default those of the images, if they have any.
            channels: Where arrays have their channels.
            rehearse: Also record degraded images, as `collect` does.
            **options: What `collect` takes: `batch_size`, `workers`, `skip_bad`, ...
        """
        options.setdefault("progress", False)
        execution, rest = split_options("record", options, Estimator.record, CollectOptions)
        skip_bad = rest.get("skip_bad", False)
        read = Reading(
            self.class_names,
            channels or self._channels(images),
            self.preprocess,
            rest.get("shuffle", False),
            skip_bad,
            self.image_shape,
            cache=skip_bad,  # which reads the images twice
        )
        how = execution, 0, "stratified", rest.get("origin")
        run = prepared(self.model, images, labels, read, *how)
        record = run.record(self.policy, rehearse, checks=rest.get("checks", False))
        if self.kept.second is None:
            return record
        if run.source.once:
            raise InputError(
                "images: expected images that can be read twice, because the classifier was "
                "adapted with statistics, got a stream: read it into an array"
            )
        other = replace(run, network=self.kept.second)
        (second,) = other.answers(Policy(())).views().values()
        views = {**record.predictions.views, STATISTICS: second}
        return Record(Predictions(record.predictions.logits, views), record.labels, record.origin)

    def evaluate(
        self, images: Any, labels: Any = None, **options: Unpack[CollectOptions]
    ) -> dict[str, dict[str, float]]:
        """Measure the network and the classifier on labelled images.

        It warns if the labels or the images look wrong; `checks=False` does not look.

        Args:
            images: What `predict_proba` takes.
            labels: Class numbers or names; by default those of the images.
            **options: What `record` takes.

        Returns:
            The metrics of `atta.evaluate`, under "vanilla" and under the name of the method.
            `answered_1`, ... and `confidence_brier`, `confidence_ece` and `confidence_aurc` are
            those of `confidence`, not of the largest probability.
        """
        split_options("evaluate", options, Estimator.record, CollectOptions)
        options.setdefault("checks", True)
        record = self.record(images, labels, **options)
        return self._measured(record, partial(by_confidence, simplex=self.on_simplex))

    def _measured(
        self, record: Record, others: Callable[[Probs, Labels, PerImage], Mapping[str, float]]
    ) -> dict[str, dict[str, float]]:
        """Measure the network and the classifier on a labelled record, by `others`, too."""
        if (known := record.labels) is None:
            raise InputError(NO_LABELS)
        vanilla = Vanilla().fit(record.predictions, known)
        found = {}
        for one in (vanilla, self.calibrator):
            probs, confidence = one(record.predictions), one.confidence(record.predictions)
            if one is self.calibrator and self.kept.odds:
                probs = self.kept.restated(probs)
                confidence = probs.amax(dim=1)
            found[one.method.name] = {
                **evaluate(probs, known, simplex=self.on_simplex),
                **others(probs, known, confidence),
            }
        return found

    def fit(
        self: Fitted,
        images: Any,
        labels: Any = None,
        *,
        channels: Channels = None,
        **options: Unpack[CollectOptions],
    ) -> Fitted:
        """Fit the same method with the same views to other images, in place.

        Args:
            images: What `collect` takes.
            labels: Class numbers or names; by default those of the images.
            channels: Where arrays have their channels.
            **options: What `record` takes.

        Returns:
            The classifier itself.
        """
        split_options("fit", options, Estimator.fit, CollectOptions)
        options.setdefault("checks", True)
        self.kept = replace(self.kept, second=None)
        rehearse = self.reference is not None and self.reference.slope is not None
        record = self.record(images, labels, channels=channels, rehearse=rehearse, **options)
        predictions, known = record.predictions, record.require_labels()
        self.calibrator = self.calibrator.method.fit(predictions, known).to(self.device)
        self.reference = Reference.of(self.calibrator, predictions, known)
        self.summary = self.conformity = None
        self.kept = Kept(hedged=hedge(self.calibrator, predictions, known))
        return self

    def score(self, images: Any, labels: Any) -> float:
        """Return the accuracy, as classifiers of scikit-learn do.

        Args:
            images: As in `predict_proba`.
            labels: The class number or name of each image.

        Returns:
            The fraction of the images whose predicted class is right.
        """
        return evaluate(self, images, labels, metrics=("accuracy",))["accuracy"]

    def _channels(self, images: Any) -> Channels:
        """Where an array has its channels, by the shape that the classifier expects."""
        if not isinstance(images, Tensor | np.ndarray) or images.ndim not in (3, 4):
            return None
        first = tuple(images.shape[-3:])
        last = (first[2], *first[:2])
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
