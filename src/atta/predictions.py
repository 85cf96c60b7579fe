"""What is passed around: the logits of images and of their views, and the record of them on disk.

    Predictions(logits [n k], views={"flip": [n 1 k], "crop": [n 5 k]})
    Record(predictions, labels, origin)   ⇄   one safetensors file

The network runs once a split; every policy, method and metric then works from the record. A file holds the tensors
`logits` (n k), `view.<name>` (n r k), `labels` (n, optional), and text metadata.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from atta.files import whole_file
from atta.html import html_table
from atta.types import InputError, Labels, Logits, RepeatLogits, ViewLogits

VIEW_PREFIX = "view."
BUNDLED = Path(__file__).parent / "records"
FLOAT16_MAX = torch.finfo(torch.float16).max
NOTHING: Mapping[str, Any] = MappingProxyType({})
Rows: TypeAlias = slice | Sequence[int] | np.ndarray | Tensor


@dataclass(frozen=True, eq=False, init=False)
class Predictions:
    """Logits of n images and, for each kind of view, of its r repeats.

    NumPy arrays and torch tensors are both welcome; all of it is brought to one dtype, at least float32, and checked here,
    once. Probabilities are not logits, and nothing guesses: take their logarithm first if that is what you have.

    >>> Predictions(torch.zeros(2, 3), {"flip": torch.zeros(2, 1, 3), "crop": torch.zeros(2, 5, 3)})
    Predictions(2 images, 3 classes; 1 flip, 5 crop)
    """

    logits: Logits
    views: Mapping[str, RepeatLogits]

    def __init__(self, logits: Any, views: Mapping[str, Any] = NOTHING) -> None:
        logits = _as_logits(logits, "logits")
        if logits.ndim != 2:
            raise InputError(f"logits must have shape (images, classes), got {_shape(logits)}")
        n, k = logits.shape
        if n == 0:
            raise InputError("logits must hold at least one image, got none")
        if k < 2:
            raise InputError(f"logits must hold at least two classes, got {k}")
        checked = {}
        for name, given in views.items():
            if not isinstance(name, str) or not name:
                raise InputError(f"a kind of view needs a name, got {name!r}")
            view = _as_logits(given, f"view {name!r}")
            if view.ndim != 3:
                raise InputError(f"view {name!r} must have shape (images, repeats, classes), got {_shape(view)}")
            if view.shape[0] != n or view.shape[2] != k or view.shape[1] == 0:
                raise InputError(f"view {name!r} must have shape ({n}, repeats ≥ 1, {k}) like the logits, got {_shape(view)}")
            checked[name] = view
        dtype = torch.float32
        for tensor in (logits, *checked.values()):
            dtype = torch.promote_types(dtype, tensor.dtype)
        logits = logits.to(dtype)
        _check_finite(logits, "logits")
        for name, view in checked.items():
            checked[name] = view.to(device=logits.device, dtype=dtype)
            _check_finite(checked[name], f"view {name!r}")
        object.__setattr__(self, "logits", logits)
        object.__setattr__(self, "views", checked)

    @classmethod
    def _trusted(cls, logits: Tensor, views: Mapping[str, Tensor]) -> Predictions:
        """Wrap tensors that come out of checked predictions, without checking them again."""
        predictions = object.__new__(cls)
        object.__setattr__(predictions, "logits", logits)
        object.__setattr__(predictions, "views", dict(views))
        return predictions

    @property
    def classes(self) -> int:
        """The number of classes, k."""
        return self.logits.shape[1]

    @property
    def kinds(self) -> tuple[str, ...]:
        """The names of the kinds of view."""
        return tuple(self.views)

    @property
    def passes(self) -> int:
        """How often the network ran for each image."""
        return 1 + sum(view.shape[1] for view in self.views.values())

    def view_logits(self, kinds: Sequence[str]) -> ViewLogits:
        """Return one row a kind: the mean over its repeats, in logit space."""
        return mean_views(self.views, kinds)

    def __len__(self) -> int:
        return self.logits.shape[0]

    def __getitem__(self, rows: Rows) -> Predictions:
        """Return the predictions of some of the images."""
        index = _as_index(rows, len(self))
        return self._trusted(self.logits[index], {name: view[index] for name, view in self.views.items()})

    def __repr__(self) -> str:
        views = ", ".join(f"{view.shape[1]} {name}" for name, view in self.views.items()) or "no views"
        return f"Predictions({len(self)} images, {self.classes} classes; {views})"

    def chunks(self, rows: int) -> Iterator[Predictions]:
        """Cut into pieces of at most `rows` images, without copying."""
        for start in range(0, len(self), rows):
            yield self[start : start + rows]

    def select(self, kinds: Sequence[str]) -> Predictions:
        """Return the predictions with only these kinds of view, in this order."""
        return self._trusted(self.logits, {kind: self.views[kind] for kind in self.check_kinds(kinds)})

    def take(self, repeats: Mapping[str, int]) -> Predictions:
        """Return the predictions with only these kinds of view, each with its first so many repeats."""
        for kind in self.check_kinds(list(repeats)):
            if repeats[kind] > (have := self.views[kind].shape[1]):
                raise InputError(f"expected predictions with {repeats[kind]} {kind} views an image, got {have}")
        return self._trusted(self.logits, {kind: self.views[kind][:, :count] for kind, count in repeats.items()})

    def to(self, *args: Any, **kwargs: Any) -> Predictions:
        """Move or cast every tensor, as `Tensor.to` does."""
        return self._trusted(
            self.logits.to(*args, **kwargs), {name: view.to(*args, **kwargs) for name, view in self.views.items()}
        )

    def check_kinds(self, kinds: Sequence[str]) -> tuple[str, ...]:
        """Return `kinds` if each of them is here, and say which are not otherwise."""
        missing = [kind for kind in kinds if kind not in self.views]
        if missing:
            have = ", ".join(self.kinds) or "none"
            raise InputError(f"expected predictions with the views {', '.join(missing)}, got: {have}")
        return tuple(kinds)


def mean_views(views: Mapping[str, RepeatLogits], kinds: Sequence[str]) -> ViewLogits:
    """Return one row a kind of view: the mean of its repeats, in the space they are given in."""
    return torch.stack([repeat_mean(views[kind]) for kind in kinds], dim=1)


def repeat_mean(view: RepeatLogits) -> Logits:
    """Average the repeats of one kind of view, in the space they are given in."""
    return view[:, 0] if view.shape[1] == 1 else view.mean(dim=1)


def as_labels(labels: Any, *, images: int, classes: int) -> Labels:
    """Turn a list, array or tensor into labels for `images` images, and say what is wrong with it otherwise.

    The number of classes is that of the logits: classes without a single label are fine.
    """
    if labels is None:
        raise InputError(f"expected {images} labels, one an image, got none")
    tensor = _as_tensor(labels, "labels must be a list, an array or a tensor of class numbers")
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise InputError(f"labels must be integers, got {tensor.dtype}")
    if tensor.ndim != 1:
        raise InputError(f"labels must have shape (images,), got {_shape(tensor)}")
    if tensor.shape[0] != images:
        raise InputError(f"expected {images} labels, one an image, got {tensor.shape[0]}")
    tensor = tensor.to(torch.int64)
    wrong = ((tensor < 0) | (tensor >= classes)).nonzero()
    if len(wrong):
        row = int(wrong[0])
        raise InputError(f"labels must lie in 0 … {classes - 1}, got {int(tensor[row])} in row {row} ({len(wrong)} such)")
    return tensor


def look_like_probabilities(logits: Logits) -> bool:
    """Whether every row is without a negative number and sums to 1: no network's logits are of that form."""
    wide = logits.double()
    return bool(wide.min() >= 0 and (wide.sum(dim=1) - 1).abs().max() < 1e-3)


@dataclass(frozen=True, eq=False, init=False)
class Record:
    """Predictions, the labels where they are known, and where all of it comes from (text, for people)."""

    predictions: Predictions
    labels: Labels | None
    origin: Mapping[str, str]

    def __init__(self, predictions: Predictions, labels: Any = None, origin: Mapping[str, Any] = NOTHING) -> None:
        if labels is not None:
            labels = as_labels(labels, images=len(predictions), classes=predictions.classes)
            labels = labels.to(predictions.logits.device)
        object.__setattr__(self, "predictions", predictions)
        object.__setattr__(self, "labels", labels)
        object.__setattr__(self, "origin", {str(key): str(value) for key, value in origin.items()})

    def __len__(self) -> int:
        return len(self.predictions)

    def __repr__(self) -> str:
        labels = "without labels" if self.labels is None else "with labels"
        return f"Record({self.predictions!r}, {labels}, {dict(self.origin)})"

    def _repr_html_(self) -> str:
        predictions = self.predictions
        views = " + ".join(f"{view.shape[1]} {name}" for name, view in predictions.views.items()) or "none"
        known = {"images": len(self), "classes": predictions.classes, "views": views, "labels": self.labels is not None}
        return html_table(("", ""), [*known.items(), *self.origin.items()], title="Record")

    def __getitem__(self, rows: Rows) -> Record:
        """Return the record of some of the images."""
        labels = None if self.labels is None else self.labels[_as_index(rows, len(self))]
        return Record(self.predictions[rows], labels, self.origin)

    def require_labels(self) -> Labels:
        """Return the labels, which this use of the record cannot do without."""
        if self.labels is None:
            raise InputError("expected a record with labels, got one without")
        return self.labels

    def save(self, path: str | os.PathLike[str], *, half: bool = False) -> Path:
        """Write one safetensors file, whole or not at all; `half` stores the logits in float16."""
        predictions = self.predictions.to(torch.float16) if half else self.predictions
        if half and not all(torch.isfinite(t).all() for t in (predictions.logits, *predictions.views.values())):
            raise InputError(f"float16 holds logits up to {FLOAT16_MAX:.0f}, got larger ones: save with half=False")
        tensors = {"logits": predictions.logits}
        tensors |= {VIEW_PREFIX + name: view for name, view in predictions.views.items()}
        if self.labels is not None:
            tensors["labels"] = self.labels
        metadata = {**self.origin, "kinds": ",".join(predictions.kinds)}
        return write_tensors(path, tensors, metadata)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Record:
        """Read what `save` wrote, or any safetensors file with that layout."""
        tensors, metadata = read_tensors(path)
        logits, labels = tensors.pop("logits", None), tensors.pop("labels", None)
        foreign = [name for name in tensors if not name.startswith(VIEW_PREFIX)]
        if logits is None or foreign:
            have = ", ".join(foreign) if foreign else "no logits"
            raise InputError(f"{path} is not a record: expected tensors logits, labels and view.<name>, got {have}")
        views = {name.removeprefix(VIEW_PREFIX): view for name, view in tensors.items()}
        order = [name for name in metadata.pop("kinds", "").split(",") if name in views]
        views = {name: views[name] for name in [*order, *(name for name in views if name not in order)]}
        try:
            return cls(Predictions(logits, views), labels, metadata)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None


def find_record(name: str | os.PathLike[str]) -> Record:
    """Load a record by its path, or one that comes with the package by its name."""
    if Path(name).exists():
        return Record.load(name)
    bundled = {path.stem: path for path in sorted(BUNDLED.glob("*.safetensors"))}
    if str(name) in bundled:
        return Record.load(bundled[str(name)])
    raise InputError(f"there is no file {name}, and no bundled record of that name; bundled: {', '.join(bundled) or 'none'}")


def read_tensors(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read the tensors and the text metadata of a safetensors file."""
    if Path(path).is_dir():
        raise InputError(f"expected a file, got the folder {path}; a saved classifier is read by CalibratedClassifier.load")
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except FileNotFoundError:
        raise InputError(f"there is no file {path}") from None
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} is not a whole safetensors file ({error})") from None


def write_tensors(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> Path:
    """Write a safetensors file, whole or not at all."""
    try:
        with whole_file(path) as part:
            save_file({name: tensor.contiguous().cpu() for name, tensor in tensors.items()}, part, dict(metadata))
            _sort_metadata(part)
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} could not be written ({error})") from None
    return Path(path)


def _sort_metadata(path: Path) -> None:
    """Put the text of a safetensors file in order: it is written in a random one, and equal records shall be equal files."""
    with path.open("r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        header["__metadata__"] = dict(sorted(header.get("__metadata__", {}).items()))
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        if len(text) <= size:  # The tensors begin where they began; the format pads with spaces.
            file.seek(8)
            file.write(text.ljust(size))


def _as_tensor(values: Any, expected: str) -> Tensor:
    if isinstance(values, np.ndarray):  # torch shares the memory of one that is contiguous and writeable only
        values = np.require(values, requirements=["C", "W"])
    try:
        return torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{expected}, got {type(values).__name__} ({error})") from None


def _as_index(rows: Rows, images: int) -> slice | Tensor:
    """Turn any way to say which rows into one that a tensor understands."""
    if isinstance(rows, slice) and (rows.step is None or rows.step > 0) and range(images)[rows]:
        return rows  # a slice copies nothing
    try:
        numbers = list(range(images)[rows]) if isinstance(rows, slice) else rows
        index = torch.arange(images)[_as_tensor(numbers, "rows must be numbers").cpu()]
    except (IndexError, InputError):
        index = torch.empty(0)
    if index.ndim != 1 or index.numel() == 0:
        raise InputError(f"expected a slice or a list of rows that leaves at least one image, got {rows!r} of {images} images")
    return index


def _as_logits(values: Any, name: str) -> Tensor:
    tensor = _as_tensor(values, f"{name} must be an array or a tensor of numbers")
    if not tensor.is_floating_point():
        raise InputError(f"{name} must be floating-point numbers, got {tensor.dtype}")
    return tensor.detach()


def _check_finite(tensor: Tensor, name: str) -> None:
    if torch.isfinite(tensor).all():
        return
    rows = (~torch.isfinite(tensor)).flatten(1).any(dim=1).nonzero().flatten()
    value = tensor[rows[0]][~torch.isfinite(tensor[rows[0]])][0].item()
    raise InputError(f"{name} must be finite, got {value} in row {int(rows[0])} ({len(rows)} such rows)")


def _shape(tensor: Tensor) -> str:
    return str(tuple(tensor.shape))
