"""Methods and calibrators: what every one of them is.

A `Method` is a frozen dataclass of settings. `method.fit(predictions, labels)` returns a `Calibrator`, an `nn.Module` that
holds only what was learned, all of it in buffers. A calibrator that is not fitted cannot be expressed.

    Method.fit, Method.fit_many:  checks at the door  →  Method.learn  →  Calibrator
    Calibrator(predictions):  checks at the door  →  Calibrator.calibrate on pieces that fit the cache  →  probs
    Calibrator.passes(predictions):  how often the network has to run for each image, by what Calibrator.goes_on says

A method that looks at views is a `ViewMethod`. `Calibrator.header` says in a file what
`calibrators.restore` makes a calibrator of again.
"""

from __future__ import annotations

import dataclasses
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from atta._base.errors import InputError, advise
from atta._base.settings import check, hints, shown
from atta._base.tensors import write_tensors
from atta._base.types import Labels, Logits, Probs, RepeatLogits
from atta.record.predictions import Predictions, as_labels, look_like_probabilities

FORMAT = "atta.calibrator"
FORMAT_VERSION = 1
Kinds: TypeAlias = Sequence[str] | None
Sets: TypeAlias = Sequence[tuple[Predictions, Int[Tensor, "_"]]]  # of any sizes
SEEN = 100  # images that tell whether all are of probabilities
CHUNK = 1 << 19  # logits worked on at a time: few enough for the caches, enough to be worth a call
ON_GPU = 1 << 24  # the same where what counts is how often kernels are started


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """Settings of one way to calibrate. Frozen: a fitted calibrator can say exactly how it came about."""

    name: ClassVar[str]
    summary: ClassVar[str]

    def __post_init__(self) -> None:
        """Check every setting by its annotation; what those cannot say, a method says after this."""
        settings = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        for name, value in check(settings, hints(type(self))).items():
            object.__setattr__(self, name, value)

    @property
    def keeps_class(self) -> bool:
        """Whether the predicted class is promised never to change. A method that cannot promise it says so here."""
        return True

    @property
    def needs_views(self) -> bool:
        """Whether the logits of views are needed, or those of the image alone will do."""
        return False

    @property
    def on_simplex(self) -> bool:
        """Whether each row of probabilities adds up to one."""
        return True

    @property
    def foreign(self) -> bool:
        """Whether what it learns is an object of somebody else, which has no file and is known by itself alone."""
        return False

    def settings(self) -> dict[str, Any]:
        """The settings by name."""
        return dataclasses.asdict(self)

    def minutes(self, images: int, classes: int) -> float:
        """About how long a fit takes, where that is long."""
        return 0.0

    @property
    def takes_many(self) -> bool:
        """Whether several sets are fitted quicker together than one after the other."""
        return type(self).learn_many is not Method.learn_many

    def fit(self, predictions: Any, labels: Any) -> Calibrator:
        """Learn from validation predictions and their labels (a list, array or tensor of class numbers).

        A method that needs no views takes an array or tensor of logits (images, classes) as well.
        """
        given = as_predictions(predictions, self.name, self.needs_views)
        if given is predictions:
            _say_probabilities(given)
        return self.fit_many([(given, labels)])[0]

    def fit_many(self, sets: Sequence[tuple[Any, Any]]) -> list[Calibrator]:
        """Return what `fit` returns for each set of predictions and labels, bit for bit; some methods are quicker so."""
        given = [
            (as_predictions(predictions, self.name, self.needs_views), labels)
            for predictions, labels in sets
        ]
        checked = [(predictions, self._check(predictions, labels)) for predictions, labels in given]
        calibrators = []
        for (predictions, _), learned in zip(checked, self.learn_many(checked), strict=True):
            calibrator = learned.to(dtype=predictions.dtype)
            calibrator.classes, calibrator.method = predictions.classes, self
            calibrators.append(calibrator)
        return calibrators

    def _check(self, predictions: Predictions, labels: Any) -> Labels:
        return as_labels(labels, images=len(predictions), classes=predictions.classes).to(
            predictions.device
        )

    @abstractmethod
    def learn(self, predictions: Predictions, labels: Labels) -> Calibrator:
        """Fit to predictions and labels that have been checked."""

    def learn_many(self, sets: Sets) -> Sequence[Calibrator]:
        """Fit to each of several sets that have been checked. The answer for a set must not depend on the others."""
        return [self.learn(predictions, labels) for predictions, labels in sets]


@dataclass(frozen=True, kw_only=True)
class ViewMethod(Method):
    """A method that looks at views; `views` are the kinds to use, by default every kind that is there."""

    views: Kinds = None

    def __post_init__(self) -> None:
        if isinstance(self.views, str):  # which is a sequence, of letters
            raise InputError(
                f"views must be a list of kinds, such as [{self.views!r}], got the text {self.views!r}"
            )
        if not isinstance(self.views, Iterable | None):
            raise InputError(
                f"views must be a list of kinds, such as ['flip'], got {shown(self.views)}"
            )
        object.__setattr__(self, "views", None if self.views is None else tuple(self.views))
        if odd := [kind for kind in self.views or () if not isinstance(kind, str)]:
            raise InputError(
                f"views must be a list of kinds, such as ['flip'], got {shown(odd[0])} in it"
            )
        super().__post_init__()

    @property
    def needs_views(self) -> bool:
        """Whether the logits of views are needed."""
        return True

    def kinds_of(self, predictions: Predictions) -> tuple[str, ...]:
        """Return the kinds of view to use: the given ones, or by default every one that is there."""
        if self.views is not None and not self.views:
            raise InputError(f"{self.name} needs at least one kind of view, got an empty list")
        chosen = predictions.kinds if self.views is None else predictions.check_kinds(self.views)
        if not chosen:
            raise InputError(f"{self.name} needs the logits of views, got predictions without any")
        return chosen


class Calibrator(nn.Module, ABC):
    """What was learned: turns predictions into calibrated probabilities.

    Computes in the dtype of the predictions (at least float32), on its own device, and answers where the predictions lie.
    """

    classes: int
    method: Method
    kinds: tuple[str, ...] = ()

    def __init__(self, **learned: Tensor | None) -> None:
        super().__init__()
        for name, tensor in learned.items():
            self.register_buffer(name, tensor)

    @abstractmethod
    def calibrate(self, logits: Logits, views: Mapping[str, RepeatLogits]) -> Probs:
        """Map tensors to probabilities: no checks, no Python values, fit for `torch.export`."""

    def softened(self, softness: float) -> Calibrator:
        """Return one like it that is less sure: all logits times `softness`, in (0, 1], the class as it was.

        Only where that folds into what was learned; the others say that they cannot.
        """
        raise InputError(
            f"expected a method whose answer can be softened, such as temperature or c-atta, got {self.method.name}"
        )

    def _like(self, other: Calibrator) -> Calibrator:
        """Tell another calibrator how this one came about, as far as it knows itself."""
        for name in ("classes", "method"):
            if name in self.__dict__:
                setattr(other, name, getattr(self, name))
        return other

    @property
    def stages(self) -> tuple[tuple[str, ...], ...]:
        """The kinds of view in the order in which an image is shown in them; most calibrators need all of them at once."""
        return (self.kinds,) if self.kinds else ()

    def goes_on(self, logits: Logits, views: Mapping[str, RepeatLogits]) -> Bool[Tensor, " n"]:
        """Say of each image whether its answer still needs the next stage, given the views of the stages before it.

        A deployed classifier asks before each stage, with fewer and fewer images, and runs no view that nobody asked for.
        `calibrate` must give the same answer whatever it is given in place of those.
        """
        return torch.ones(logits.shape[0], dtype=torch.bool, device=logits.device)

    @property
    def options(self) -> dict[str, Any]:
        """What the constructor needs besides the buffers."""
        return {}

    @property
    def keeps_class(self) -> bool:
        """Whether the predicted class is promised never to change."""
        return self.method.keeps_class

    @torch.no_grad()
    def forward(self, predictions: Any) -> Probs:
        """Return the calibrated probabilities, in memory bounded by the answer itself.

        Where no views were learned from, an array or tensor of logits (images, classes) will do.
        """
        predictions = as_predictions(predictions, "this calibrator", bool(self.kinds))
        pieces = self._pieces(predictions)
        shape = (len(predictions), predictions.classes)
        probs = torch.empty(shape, dtype=_computing_dtype(predictions), device=predictions.device)
        start = 0
        for part in pieces:
            probs[start : start + len(part)] = self.calibrate(part.logits, part.views)
            start += len(part)
        return probs

    @torch.no_grad()
    def passes(self, predictions: Any) -> Int[Tensor, " n"]:
        """Return how often the network runs for each image when deployed: for itself, and for each view it still needs."""
        predictions = as_predictions(predictions, "this calibrator", bool(self.kinds))
        counts = [self._passes(part.logits, part.views) for part in self._pieces(predictions)]
        return torch.cat(counts).to(predictions.device)

    def _passes(self, logits: Logits, views: Mapping[str, RepeatLogits]) -> Int[Tensor, " n"]:
        passes = torch.ones(logits.shape[0], dtype=torch.int64, device=logits.device)
        going = torch.ones_like(passes, dtype=torch.bool)
        seen: dict[str, RepeatLogits] = {}
        for stage in self.stages:
            going = going & self.goes_on(logits, seen)
            passes += going * sum(views[kind].shape[1] for kind in stage)
            seen |= {kind: views[kind] for kind in stage}
        return passes

    def _pieces(self, predictions: Predictions) -> Iterator[Predictions]:
        """Check at the door; then the views that are used, in pieces that fit the cache, where the calibrator lies."""
        if predictions.classes != self.classes:
            raise InputError(
                f"this calibrator was fitted on {self.classes} classes, got predictions of {predictions.classes}"
            )
        used = predictions.select(self.kinds).unrehearsed()
        state = next(self.buffers(), None)
        device = used.device if state is None else state.device
        dtype = _computing_dtype(used)
        most = CHUNK if device.type == "cpu" else ON_GPU
        return (
            part.to(device=device, dtype=dtype)
            for part in used.chunks(max(1, most // self.classes))
        )

    @property
    def gated(self) -> bool:
        """Whether some images may do without some of the views."""
        return type(self).goes_on is not Calibrator.goes_on

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write one safetensors file: the buffers, and as JSON in its header the method, settings, classes and views."""
        return write_tensors(path, self.state_dict(), self.header())

    def header(self) -> dict[str, str]:
        """What a file says of this calibrator, beside its buffers."""
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
        """Name the method and what it was fitted on."""
        views = f", views={'+'.join(self.kinds)}" if self.kinds else ""
        return f"{self.method.name}, classes={self.classes}{views}"


def as_predictions(given: Any, who: str, needs_views: bool) -> Predictions:
    """Predictions as they are, or made of an array or tensor of logits where no views are needed."""
    if isinstance(given, Predictions):
        return given
    if needs_views or not isinstance(given, Tensor | np.ndarray | list):
        takes = "atta.Predictions (of logits and views, or a record's .predictions)"
        also = "" if needs_views else ", or an array or tensor of logits"
        raise InputError(f"{who} takes {takes}{also}, got {type(given).__name__}")
    predictions = Predictions(given)
    _say_probabilities(predictions)
    return predictions


def _say_probabilities(predictions: Predictions) -> None:
    some = next(predictions.select(()).unrehearsed().chunks(SEEN), None)
    if some is not None and look_like_probabilities(some.logits):
        advise(
            "expected logits, got rows that are not negative and sum to 1: take the logarithm where these are probabilities"
        )


def check_format(header: Mapping[str, str], path: str | os.PathLike[str]) -> None:
    """Refuse a file that is no calibrator's, or that of a later atta."""
    if header.get("format") != FORMAT:
        raise InputError(
            f"{path} is not a calibrator: expected format {FORMAT!r}, got {header.get('format')!r}"
        )
    version = header.get("format_version", "")
    if not version.isdecimal() or len(version) > 9 or int(version) > FORMAT_VERSION:
        version = version[:9]
        raise InputError(
            f"{path} has format version {version}, this atta reads up to {FORMAT_VERSION}: install a newer one"
        )


def _computing_dtype(predictions: Predictions) -> torch.dtype:
    """The dtype to compute in: half precision would round classes into ties."""
    return torch.promote_types(predictions.dtype, torch.float32)


def base_probs(logits: Logits) -> Probs:
    """Return softmax(logits): what the network itself says."""
    return logits.softmax(dim=-1)
