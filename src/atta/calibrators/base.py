"""The base classes of all methods and calibrators.

A `Method` is a frozen dataclass of settings. `method.fit(predictions, labels)` returns a
`Calibrator`, an `nn.Module` whose buffers hold everything that was learned. A calibrator that is
not fitted cannot be expressed.

    Method.fit, Method.fit_many:     check the input → Method.learn → Calibrator
    Calibrator(predictions):         check the input → Calibrator.calibrate on pieces → probs
    Calibrator.passes(predictions):  how often the network runs for each image (Calibrator.goes_on)

A method that uses views is a `ViewMethod`. `Calibrator.header` describes a calibrator in a file,
and `calibrators.restore` makes a calibrator of that description and the buffers.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from atta._base.errors import InputError, advise
from atta._base.settings import check, hints
from atta._base.tensors import piece_rows, write_tensors
from atta._base.types import Labels, Logits, PerImage, Probs, RepeatLogits
from atta.record.predictions import Predictions, as_labels, look_like_probabilities

FORMAT = "atta.calibrator"
FORMAT_VERSION = 1
Kinds: TypeAlias = Sequence[str] | None
Views: TypeAlias = Mapping[str, RepeatLogits]
Sets: TypeAlias = Sequence[tuple[Predictions, Int[Tensor, "_"]]]  # of any sizes
EXAMINED_IMAGES = 100  # images that are examined to tell probabilities from logits
CHUNK_LOGITS = 1 << 17  # logits per chunk; above 1 MB, each temporary is new memory: 3 times slower


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """The settings of one way to calibrate.

    Derive from it to write your own method. The settings are frozen, so a fitted calibrator can say
    exactly how it was fitted, and each is checked by its annotation.

    >>> from atta import Histogram
    >>> Histogram(bins=0)
    Traceback (most recent call last):
    atta._base.errors.InputError: bins must be a whole number ≥ 1 and ≤ 1000000, got 0
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    needs_views: ClassVar[bool] = False  # whether it needs the logits of views
    keeps_class: ClassVar[bool] = True  # whether it guarantees that the class never changes
    on_simplex: ClassVar[bool] = True  # whether each row of probabilities sums to one
    foreign: ClassVar[bool] = False  # whether it learns an object of another library
    takes_many: ClassVar[bool] = False  # whether `fit_many` is faster than several calls of `fit`

    def __post_init__(self) -> None:
        """Check every setting by its annotation; methods check what an annotation cannot say."""
        for name, value in check(vars(self), hints(type(self))).items():
            object.__setattr__(self, name, tuple(value) if isinstance(value, list) else value)

    def settings(self) -> dict[str, Any]:
        """Return the settings by name."""
        return dataclasses.asdict(self)

    def minutes(self, images: int, classes: int) -> float:
        """Return about how many minutes a fit takes, if it takes long."""
        return 0.0

    def fit(self, predictions: Any, labels: Any) -> Calibrator:
        """Learn from labelled validation images.

        Args:
            predictions: `Predictions`, or an array of logits (images, classes) if no views are
            needed. labels: A list, array or tensor of class numbers, one per image.

        Returns:
            A calibrator. Call it with the predictions of other images.

        Raises:
            InputError: If the labels do not match the images, or a kind of view is missing.

        >>> from atta import TemperatureScaling
        >>> logits = torch.tensor([[4.0, 0.0], [4.0, 0.0], [0.0, 4.0], [0.0, 4.0]])
        >>> TemperatureScaling().fit(logits, [0, 0, 1, 0])(logits[:1])     # three of four are right
        tensor([[0.7500, 0.2500]])
        """
        given = as_predictions(predictions, self.name, self.needs_views, examine=True)
        return self.fit_many([(given, labels)])[0]

    def fit_many(self, sets: Sequence[tuple[Any, Any]]) -> list[Calibrator]:
        """Return what `fit` returns for each pair, bit for bit; some methods are faster so."""
        checked = []
        for given, labels in sets:
            predictions = as_predictions(given, self.name, self.needs_views)
            tensor = as_labels(labels, images=len(predictions), classes=predictions.classes)
            checked.append((predictions, tensor.to(predictions.device)))
        calibrators = list(self.learn_many(checked))
        for (predictions, _), one in zip(checked, calibrators, strict=True):
            one.to(dtype=predictions.dtype)
            one.classes, one.method = predictions.classes, self
        return calibrators

    @abstractmethod
    def learn(self, predictions: Predictions, labels: Labels) -> Calibrator:
        """Fit to checked predictions and labels."""

    def learn_many(self, sets: Sets) -> Sequence[Calibrator]:
        """Fit to each of several checked sets; the result for a set must not depend on others."""
        return [self.learn(predictions, labels) for predictions, labels in sets]


@dataclass(frozen=True, kw_only=True)
class ViewMethod(Method):
    """A method that uses views.

    Args:
        views: The kinds of view to use; None uses all kinds in the predictions.
    """

    views: Kinds = None

    needs_views = True

    def kinds_of(self, predictions: Predictions) -> tuple[str, ...]:
        """Return the kinds of view to use: the given ones, or all kinds in the predictions."""
        chosen = predictions.kinds if self.views is None else tuple(map(str, self.views))
        predictions.select(chosen)  # refuses kinds that are missing
        if not chosen:
            got = "predictions without any" if self.views is None else "an empty list of kinds"
            raise InputError(f"{self.name} needs the logits of views, got {got}")
        return chosen


class Calibrator(nn.Module, ABC):
    """Turns predictions into calibrated probabilities.

    `Method.fit` and `atta.load` return one. It computes in the dtype of the predictions (at least
    float32), on its own device, and returns probabilities on the device of the predictions.

    A subclass annotates what it has learned. Its constructor takes these values by name: tensors
    become buffers, other values become `options`, which are attributes and go into files.
    """

    classes: int
    method: Method
    kinds: tuple[str, ...] = ()

    def __init__(self, **learned: Any) -> None:
        super().__init__()
        known = {name for one in type(self).__mro__ for name in inspect.get_annotations(one)}
        if unknown := learned.keys() - known:
            raise TypeError(f"{type(self).__name__} annotates no {', '.join(sorted(unknown))}")
        self.options: dict[str, Any] = {}
        for name, value in learned.items():
            if isinstance(value, Tensor):
                self.register_buffer(name, value)
            else:
                self.options[name] = tuple(value) if isinstance(value, list) else value
                setattr(self, name, self.options[name])

    @abstractmethod
    def calibrate(self, logits: Logits, views: Views) -> Probs:
        """Map tensors to probabilities: no checks, no Python values, fit for `torch.export`."""

    def certainty(self, logits: Logits, views: Views) -> PerImage:
        """Return the probability that the predicted class is right, as `calibrate` does."""
        return self.calibrate(logits, views).amax(dim=-1)

    def softened(self, softness: float) -> Calibrator:
        """Return a less confident calibrator: all logits are multiplied by `softness`, in (0, 1].

        The predicted class stays. Only calibrators whose parameters can absorb the factor support
        it.

        Raises:
            InputError: If this calibrator does not support it.
        """
        raise InputError(
            "expected a method whose answer can be softened, such as temperature or c-atta, "
            f"got {self.method.name}"
        )

    @property
    def stages(self) -> tuple[tuple[str, ...], ...]:
        """The kinds of view in the order of their passes; most calibrators need all at once."""
        return (self.kinds,) if self.kinds else ()

    def goes_on(self, logits: Logits, views: Views) -> Bool[Tensor, " n"]:
        """Return for each image whether it needs the next stage, given the views so far.

        A deployed classifier asks before each stage, with fewer and fewer images, and skips the
        other passes. `calibrate` must return the same probabilities whatever is given instead of
        the skipped views.
        """
        return torch.ones(logits.shape[0], dtype=torch.bool, device=logits.device)

    @property
    def keeps_class(self) -> bool:
        """Whether the predicted class is guaranteed never to change."""
        return self.method.keeps_class

    @torch.no_grad()
    def forward(self, predictions: Any) -> Probs:
        """Return the calibrated probabilities (images, classes), in memory bounded by the result.

        Args:
            predictions: `Predictions`, or an array of logits (images, classes) if no views are
            needed.
        """
        predictions, parts = self._pieces(predictions)
        dtype = torch.promote_types(predictions.dtype, torch.float32)
        shape, start = (len(predictions), predictions.classes), 0
        probs = torch.empty(shape, dtype=dtype, device=predictions.device)
        for part in parts:
            answer = self.calibrate(part.logits, part.views)
            if len(part) == len(predictions):  # a GPU computes most predictions as one piece
                return answer.to(predictions.device)
            probs[start : start + len(part)] = answer
            start += len(part)
        return probs

    @torch.no_grad()
    def confidence(self, predictions: Any) -> PerImage:
        """Return for each image the probability that the predicted class is right.

        It differs from the largest probability where views are blended in: those keep the class
        on top, and so its probability up. The views themselves may think less of it.

        Args:
            predictions: What calling the calibrator takes.
        """
        predictions, parts = self._pieces(predictions)
        certain = [self.certainty(part.logits, part.views) for part in parts]
        return torch.cat(certain).to(predictions.device)

    @torch.no_grad()
    def passes(self, predictions: Any) -> Int[Tensor, " n"]:
        """Return how often the network runs for each image: for itself and each view it needs."""
        predictions, parts = self._pieces(predictions)
        if not self.gated:  # nothing has to be read
            same = 1 + sum(predictions.counts[kind] for kind in self.kinds)
            return torch.full((len(predictions),), same, device=predictions.device)
        counts = []
        for part in parts:
            passes = torch.ones(len(part), dtype=torch.int64, device=part.device)
            going, seen = passes > 0, dict[str, RepeatLogits]()
            for stage in self.stages:
                going = going & self.goes_on(part.logits, seen)
                passes += going * sum(part.views[kind].shape[1] for kind in stage)
                seen |= {kind: part.views[kind] for kind in stage}
            counts.append(passes)
        return torch.cat(counts).to(predictions.device)

    def _pieces(self, given: Any) -> tuple[Predictions, Iterator[Predictions]]:
        """Check predictions; return them, and pieces with the used views that fit the cache."""
        predictions = as_predictions(given, "this calibrator", bool(self.kinds))
        if predictions.classes != self.classes:
            raise InputError(
                f"this calibrator was fitted on {self.classes} classes, "
                f"got predictions of {predictions.classes}"
            )
        used = predictions.select(self.kinds, rehearsals=False)
        state = next(self.buffers(), None)
        device = used.device if state is None else state.device
        # Half precision would round different classes to equal ones.
        dtype = torch.promote_types(used.dtype, torch.float32)
        parts = used.chunks(piece_rows(CHUNK_LOGITS, self.classes, device))
        return predictions, (part.to(device=device, dtype=dtype) for part in parts)

    @property
    def gated(self) -> bool:
        """Whether some images may need only some of the views."""
        return type(self).goes_on is not Calibrator.goes_on

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write one safetensors file with the buffers and, as JSON in its header, everything else.

        Args:
            path: The file to write; `atta.load` reads it.

        Returns:
            The path.
        """
        return write_tensors(path, self.state_dict(), self.header())

    def header(self) -> dict[str, str]:
        """Return what a file says about this calibrator besides its buffers."""
        from atta import __version__  # the package imports this module first

        about = {
            "calibrator": type(self).__name__,
            "options": self.options,
            "method": self.method.name,
            "settings": self.method.settings(),
            "classes": self.classes,
            "views": list(self.kinds),
            "version": __version__,
        }
        return {"format": FORMAT, "format_version": str(FORMAT_VERSION), "about": json.dumps(about)}

    def extra_repr(self) -> str:
        """Return the method, the number of classes and the views."""
        views = f", views={'+'.join(self.kinds)}" if self.kinds else ""
        return f"{self.method.name}, classes={self.classes}{views}"


def as_predictions(
    given: Any, who: str, needs_views: bool, *, examine: bool = False
) -> Predictions:
    """Return predictions unchanged, or make them of an array of logits if no views are needed.

    An array, and with `examine` also predictions, are checked for probabilities instead of logits.
    """
    if isinstance(given, Predictions):
        found = given
    else:
        if needs_views or not isinstance(given, Tensor | np.ndarray | list):
            takes = "atta.Predictions (of logits and views, or a record's .predictions)"
            also = "" if needs_views else ", or an array or tensor of logits"
            raise InputError(f"{who} takes {takes}{also}, got {type(given).__name__}")
        found, examine = Predictions(given), True
    if examine:
        first = next(found.select((), rehearsals=False).chunks(EXAMINED_IMAGES))
        if look_like_probabilities(first.logits):
            advise(
                "expected logits, got rows that are not negative and sum to 1: "
                "take the logarithm where these are probabilities"
            )
    return found
