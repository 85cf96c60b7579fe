"""Logits of images and of their views, and the record of them on disk.

    Predictions(logits [n k], views={"flip": [n 1 k], "crop": [n 5 k]})
    Record(predictions, labels, origin)   ⇄   one safetensors file, or a folder of shards (`store`)

The network runs once; every policy, method and metric then works from the record. A file holds the
tensors `logits` (n k), `view.<name>` (n r k), `labels` (n, optional) and, if the rows are pixels,
`images` (n), the number of the image of each. Its text metadata are the origin, the order of the
views as `kinds`, and a digest that detects damage. Files without a digest are read as well.

Rehearsals are stored like views, under names that begin with `rehearse-`: logits of degraded images
(`data.rehearsals`). Fits learn from them how a shift changes the network. They are not views, and
cost no pass when deployed.
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
from torch import Tensor

from atta._base.display import html_table, shortened
from atta._base.errors import InputError
from atta._base.files import named, readable
from atta._base.tensors import (
    DIGEST,
    HASH,
    as_tensor,
    read_tensors,
    write_tensors,
)
from atta._base.types import Labels, Logits, RepeatLogits, ViewLogits
from atta.data.views import REHEARSAL

VIEW_PREFIX = "view."
BUNDLED = Path(__file__).parents[1] / "records"
CLONE = Path(__file__).parents[3]  # of the repository, if this is one
ORIGIN = "atta.origin"
"""The name in the metadata of what an origin says under one of our own names."""
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
FLOAT16_MAX = torch.finfo(torch.float16).max
RESERVED = ("kinds", HASH, DIGEST, ORIGIN)
NOTHING: Mapping[str, Any] = MappingProxyType({})
MOST_IMAGES = 1 << 31  # images of pixels
Rows: TypeAlias = slice | Sequence[int] | np.ndarray | Tensor


@dataclass(frozen=True, eq=False, init=False)
class Predictions:
    """Logits of n images and, for each kind of view, of its r repeats.

    Everything is converted to one dtype, at least float32, and checked once, here. If you have
    probabilities, take their logarithm first: they are never guessed.

    Args:
        logits: Logits of the images, (n, k), as a tensor or an array.
        views: Logits of each kind of view, (n, repeats, k), by its name.
        images: For rows that are pixels, the number of the image of each row, (n,). Pixels of an
            image are not independent: folds, errors and intervals go by image.
        check: False skips the checks, for tensors that come from checked predictions.

    Raises:
        InputError: If shapes differ, or if a number is not finite.

    Example:
        >>> views = {"flip": torch.zeros(2, 1, 3), "crop": torch.zeros(2, 5, 3)}
        >>> Predictions(torch.zeros(2, 3), views)
        Predictions(2 images, 3 classes; 1 flip, 5 crop)
    """

    logits: Logits
    views: Mapping[str, RepeatLogits]
    counts: Mapping[str, int]
    """Number of passes of each kind of view and each rehearsal."""
    kinds: tuple[str, ...]
    """Names of the kinds of view, without rehearsals."""
    rehearsals: tuple[str, ...]
    """Names of the rehearsals, which only fits use."""
    classes: int
    """The number of classes, k."""
    dtype: torch.dtype
    """Dtype of all logits."""
    device: torch.device
    """Device of all logits."""
    images: Labels | None = None
    """The image of each row, if the rows are pixels."""

    def __init__(
        self,
        logits: Any,
        views: Mapping[str, Any] = NOTHING,
        images: Any = None,
        *,
        check: bool = True,
    ) -> None:
        if check:
            logits, views = _checked(logits, views)
            if images is not None:
                images = as_labels(images, images=len(logits), classes=MOST_IMAGES)
                images = images.to(logits.device)
        counts = {kind: view.shape[1] for kind, view in views.items()}
        self.__dict__.update(logits=logits, views=views, images=images)
        self._describe(counts, logits.shape[1], logits.dtype, logits.device)

    def _describe(
        self, counts: Mapping[str, int], classes: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Set what is known without the logits."""
        rehearsals = tuple(kind for kind in counts if kind.startswith(REHEARSAL))
        kinds = tuple(kind for kind in counts if kind not in rehearsals)
        self.__dict__.update(counts=dict(counts), kinds=kinds, rehearsals=rehearsals)
        self.__dict__.update(classes=classes, dtype=dtype, device=device)

    @property
    def repeats(self) -> dict[str, int]:
        """Number of repeats of each kind of view."""
        return {kind: self.counts[kind] for kind in self.kinds}

    @property
    def passes(self) -> int:
        """Passes per image, without rehearsals."""
        return 1 + sum(self.repeats.values())

    @property
    def image_count(self) -> int:
        """Number of images: that of the rows, unless the rows are pixels."""
        return len(self) if self.images is None else group_count(self.images)

    def view_logits(self, kinds: Sequence[str]) -> ViewLogits:
        """Return one row for each kind: the mean over its repeats, in logit space."""
        return torch.stack([repeat_mean(self.views[kind]) for kind in kinds], dim=1)

    def __len__(self) -> int:
        return self.logits.shape[0]

    def __getitem__(self, rows: Rows) -> Predictions:
        """Return the predictions of some of the images."""
        index = as_index(rows, len(self))
        views = {name: view[index] for name, view in self.views.items()}
        images = None if self.images is None else self.images[index]
        return Predictions(self.logits[index], views, images, check=False)

    def __repr__(self) -> str:
        views = ", ".join(f"{count} {kind}" for kind, count in self.repeats.items()) or "no views"
        views += f"; {', '.join(self.rehearsals)}" if self.rehearsals else ""
        rows = "images" if self.images is None else f"pixels of {self.image_count} images"
        return f"Predictions({len(self)} {rows}, {self.classes} classes; {views})"

    def chunks(self, rows: int) -> Iterator[Predictions]:
        """Cut into pieces of at most `rows` images, without copying."""
        for start in range(0, len(self), rows):
            yield self[start : start + rows]

    def select(self, kinds: Sequence[str], *, rehearsals: bool = True) -> Predictions:
        """Keep these kinds of view, in this order, and the rehearsals.

        Args:
            kinds: Names of the kinds of view to keep.
            rehearsals: False leaves out the rehearsals: what a deployed calibrator gets.
        """
        if missing := [kind for kind in kinds if kind not in self.counts]:
            have = ", ".join(self.kinds) or "none"
            raise InputError(
                f"expected predictions with the views {', '.join(missing)}, got: {have}"
            )
        kept = [*kinds, *(self.rehearsals if rehearsals else ())]
        return self.only({kind: self.counts[kind] for kind in kept})

    def take(self, repeats: Mapping[str, int]) -> Predictions:
        """Keep the first repeats of these kinds of view, and the rehearsals."""
        have = self.select(list(repeats)).counts
        for kind, count in repeats.items():
            if count > have[kind]:
                raise InputError(
                    f"expected predictions with {count} {kind} views an image, got {have[kind]}"
                )
        return self.only({**have, **repeats})

    def only(self, counts: Mapping[str, int]) -> Predictions:
        """Keep these numbers of passes, and no others."""
        views = {kind: self.views[kind][:, :count] for kind, count in counts.items()}
        return Predictions(self.logits, views, self.images, check=False)

    def to(self, *args: Any, **kwargs: Any) -> Predictions:
        """Move or cast every tensor, as `Tensor.to` does."""
        views = {name: view.to(*args, **kwargs) for name, view in self.views.items()}
        logits = self.logits.to(*args, **kwargs)
        images = None if self.images is None else self.images.to(logits.device)
        return Predictions(logits, views, images, check=False)


def _checked(logits: Any, views: Mapping[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
    """Return logits and views as tensors of one dtype and device, and refuse all others."""
    logits = check_logits(logits, "logits", "(images, classes)")
    n, k = logits.shape
    if n == 0 or k < 2:
        raise InputError(
            f"logits must hold at least one image and at least two classes, got {n} and {k}"
        )
    if not isinstance(views, Mapping):
        raise InputError(
            f"views must be a mapping from names to logits, got {type(views).__name__}"
        )
    dtype, found = torch.promote_types(logits.dtype, torch.float32), dict[str, Tensor]()
    for name, given in views.items():
        if not isinstance(name, str) or not name or readable(name) != name:
            raise InputError(f"a kind of view needs a name, got {name!r}")
        view = check_logits(given, f"view {name!r}", "(images, repeats, classes)")
        if view.shape[0] != n or view.shape[2] != k or view.shape[1] == 0:
            raise InputError(
                f"view {name!r} must have shape ({n}, repeats ≥ 1, {k}) like the logits, "
                f"got {tuple(view.shape)}"
            )
        dtype, found[name] = torch.promote_types(dtype, view.dtype), view
    logits = logits.to(dtype)
    return logits, {kind: view.to(logits) for kind, view in found.items()}


def group_count(groups: Labels) -> int:
    """Return how many different numbers occur."""
    return int((torch.bincount(groups) > 0).sum())


def repeat_mean(view: RepeatLogits) -> Logits:
    """Average the repeats of one kind of view."""
    return view[:, 0] if view.shape[1] == 1 else view.mean(dim=1)


def as_labels(labels: Any, *, images: int, classes: int) -> Labels:
    """Return labels as a tensor of class numbers, and refuse what is not one for each image.

    The number of classes is that of the logits: a class may have no label at all.
    """
    if labels is None:
        raise InputError(f"expected {images} labels, one for each image, got none")
    tensor = as_tensor(labels, "labels", "a list, an array or a tensor of class numbers")
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise InputError(f"labels must be integers, got {tensor.dtype}")
    if tensor.ndim != 1:
        raise InputError(f"labels must have shape (images,), got {tuple(tensor.shape)}")
    if tensor.shape[0] != images:
        raise InputError(f"expected {images} labels, one for each image, got {tensor.shape[0]}")
    tensor = tensor.to(torch.int64)
    wrong = ((tensor < 0) | (tensor >= classes)).nonzero()
    if len(wrong):
        row = int(wrong[0])
        raise InputError(
            f"labels must lie in 0 … {classes - 1}, got {int(tensor[row])} in row {row} "
            f"({len(wrong)} such)"
        )
    return tensor


def unfair(labels: Tensor, fitted: Tensor) -> str | None:
    """Return a warning if the other rows have classes that the fitted rows lack, beyond chance."""
    labels, rest = labels.cpu(), torch.ones(len(labels), dtype=torch.bool)
    rest[fitted] = False
    if not rest.any() or rest.all():
        return None
    others = labels[rest]
    strange = (~torch.isin(others, labels[fitted])).double().mean()
    # The chance that no other image of its class is among the fitted rows.
    by_chance = rest.double().mean() ** (torch.bincount(labels)[others] - 1)
    if strange - by_chance.mean() < 0.05:
        return None
    return (
        f"{float(strange):.0%} of the other images belong to classes that none of "
        f"the {len(fitted)} fitted rows has: the rows are sorted by class. Shuffle the images when "
        "they are collected"
    )


def look_like_probabilities(logits: Logits) -> bool:
    """Whether no number is negative and every row sums to 1: logits never look like that."""
    sums = logits.sum(dim=1, dtype=torch.float64)
    return bool(logits.min() >= 0) and bool((sums - 1).abs().max() < 1e-3)


@dataclass(frozen=True, eq=False, init=False)
class Record:
    """Predictions, their labels if these are known, and text about where they come from.

    Args:
        predictions: The logits.
        labels: Class numbers, one for each image.
        origin: Text about the images and the network; `collect` fills it in.

    Example:
        >>> Record(Predictions(torch.eye(3)), [0, 1, 2], {"dataset": "toy"})
        Record(Predictions(3 images, 3 classes; no views), with labels, {'dataset': 'toy'})
    """

    predictions: Predictions
    labels: Labels | None
    origin: Mapping[str, str]

    def __init__(
        self, predictions: Predictions, labels: Any = None, origin: Mapping[str, Any] = NOTHING
    ) -> None:
        if not isinstance(predictions, Predictions):
            raise InputError(
                f"a record is made of atta.Predictions, got {type(predictions).__name__}"
            )
        if not isinstance(origin, Mapping):
            raise InputError(
                f"the origin of a record must be a mapping of text, got {type(origin).__name__}"
            )
        if labels is not None:
            labels = as_labels(labels, images=len(predictions), classes=predictions.classes)
            labels = labels.to(predictions.device)
        self.__dict__.update(predictions=predictions, labels=labels, origin=as_text(origin))

    def __len__(self) -> int:
        return len(self.predictions)

    def __repr__(self) -> str:
        labels = "without labels" if self.labels is None else "with labels"
        origin = {key: shortened(value) for key, value in self.origin.items()}
        return f"Record({self.predictions!r}, {labels}, {origin})"

    def _repr_html_(self) -> str:
        predictions = self.predictions
        views = " + ".join(f"{count} {name}" for name, count in predictions.counts.items())
        known = {
            "images": len(self),
            "classes": predictions.classes,
            "views": views or "none",
            "labels": self.labels is not None,
        }
        rows = [(key, shortened(value)) for key, value in {**known, **self.origin}.items()]
        return html_table(("", ""), rows, title="Record")

    def __getitem__(self, rows: Rows) -> Record:
        """Return the record of some of the images."""
        labels = None if self.labels is None else self.labels[as_index(rows, len(self))]
        origin = {key: value for key, value in self.origin.items() if key != "files"}
        return Record(self.predictions[rows], labels, origin)

    def require_labels(self) -> Labels:
        """Return the labels, and refuse a record without them."""
        if self.labels is None:
            raise InputError("expected a record with labels, got one without")
        return self.labels

    def save(self, path: str | os.PathLike[str], *, half: bool = False) -> Path:
        """Write one safetensors file, whole or not at all.

        Args:
            path: Name of the file.
            half: Store the logits in float16.
        """
        predictions = self.predictions.to(torch.float16) if half else self.predictions
        stored = (predictions.logits, *predictions.views.values())
        if half and not all(bool(tensor.isfinite().all()) for tensor in stored):
            raise InputError(
                f"float16 holds logits up to {FLOAT16_MAX:.0f}, got larger ones: use half=False"
            )
        tensors = {"logits": predictions.logits}
        tensors |= {VIEW_PREFIX + name: view for name, view in predictions.views.items()}
        if self.labels is not None:
            tensors["labels"] = self.labels
        if predictions.images is not None:
            tensors["images"] = predictions.images
        metadata = dict(self.origin)
        if hidden := {key: metadata.pop(key) for key in self.origin if key in RESERVED}:
            metadata[ORIGIN] = json.dumps(hidden)
        metadata["kinds"] = json.dumps(list(predictions.views), ensure_ascii=False)
        return write_tensors(path, tensors, metadata)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Record:
        """Read a record from a file, or open one in a folder, of which only the index is read."""
        if named(path).is_dir():
            from atta.record.store import open_folder  # which is made of predictions

            return open_folder(Path(path))
        tensors, metadata = read_tensors(path)
        logits, labels, images = map(tensors.pop, ("logits", "labels", "images"), [None] * 3)
        foreign = [name for name in tensors if not name.startswith(VIEW_PREFIX)]
        if logits is None or foreign:
            raise InputError(
                f"{path} is not a record: expected tensors logits, labels, images and "
                f"view.<name>, got {', '.join(foreign) or 'no logits'}"
            )
        views = {name.removeprefix(VIEW_PREFIX): view for name, view in tensors.items()}
        text = metadata.pop("kinds", "")
        try:
            # Older files have names between commas.
            kinds = json.loads(text) if text.startswith("[") else text.split(",")
            views = {name: views[name] for name in dict.fromkeys([*kinds, *views]) if name in views}
            origin = metadata | json.loads(metadata.pop(ORIGIN, "{}"))
            return cls(Predictions(logits, views, images), labels, origin)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
        except (ValueError, TypeError, RecursionError) as error:
            raise InputError(f"{path} is damaged: its metadata cannot be read ({error})") from None


def as_text(origin: Mapping[Any, Any]) -> dict[str, str]:
    """Return an origin as text that can be written and printed."""
    return {readable(str(key)): readable(str(value)) for key, value in origin.items()}


def find_record(name: str | os.PathLike[str]) -> Record:
    """Load a record by its path, or a bundled one by its name.

    Example:
        >>> find_record("cifar10-resnet50").predictions
        Predictions(10000 images, 10 classes; 1 flip, 5 crop, 5 brightness, 5 contrast)
    """
    own = own_records()
    path = named(name) if named(name).exists() else own.get(str(name))
    if path is None:
        raise InputError(
            f"there is no file {name}, and no bundled record of that name; bundled: "
            f"{', '.join(own) or 'none'}"
        )
    return Record.load(path)


def own_records() -> dict[str, Path]:
    """Return the bundled records and, in a clone of the repository, those of the repository."""
    folders = [BUNDLED, CLONE / "records"] if (CLONE / "pyproject.toml").is_file() else [BUNDLED]
    return {path.stem: path for folder in folders for path in sorted(folder.glob("*.safetensors"))}


def as_index(rows: Rows, images: int) -> slice | Tensor:
    """Convert rows to an index that tensors take."""
    if isinstance(rows, slice) and (rows.step is None or rows.step > 0) and range(images)[rows]:
        return rows  # a slice copies nothing
    try:
        numbers = list(range(images)[rows]) if isinstance(rows, slice) else rows
        index = torch.arange(images)[as_tensor(numbers, "rows", "numbers").cpu()]
    except (IndexError, InputError):
        index = torch.empty(0)
    if index.ndim != 1 or index.numel() == 0:
        raise InputError(
            f"expected a slice or a list of rows with at least one image, got {rows!r} of {images} "
            "images"
        )
    return index


def check_logits(values: Any, name: str, shape: str) -> Tensor:
    """Return finite floating-point numbers of such a shape as a tensor; refuse all others."""
    tensor = as_tensor(values, name, "an array or a tensor of numbers").detach()
    if tensor.dtype not in FLOATS:
        raise InputError(f"{name} must be floating-point numbers, got {tensor.dtype}")
    if tensor.ndim != shape.count(",") + 1:
        raise InputError(f"{name} must have shape {shape}, got {tuple(tensor.shape)}")
    # A mask of all numbers takes memory; the extremes are nan if one is.
    if tensor.numel() and not torch.isfinite(torch.stack(tensor.aminmax())).all():
        bad = ~torch.isfinite(tensor)
        rows = bad.flatten(1).any(dim=1).nonzero().flatten().tolist()
        raise InputError(
            f"{name} must be finite, got {tensor[bad][0].item()} in row {rows[0]} "
            f"({len(rows)} such rows)"
        )
    return tensor
