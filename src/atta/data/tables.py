"""Reads tables and streams of the library `datasets`. Only this module and `lab` use it."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from atta._base.errors import InputError, require
from atta.data.folder import listed
from atta.data.image_set import EncodedImages, ImageSet

Columns: TypeAlias = tuple[str, str | None]
"""The names of the image column and of the label column, if there is one."""


def is_table(value: object, kind: str = "Dataset") -> bool:
    """Return whether this is a dataset of the library, or its splits; does not import it.

    The kind "IterableDataset" is one that is read item by item.
    """
    datasets = sys.modules.get("datasets")
    kinds = tuple(getattr(datasets, name, ()) for name in (kind, f"{kind}Dict"))
    return isinstance(value, kinds)


def from_stream(table: Any) -> tuple[Iterator[tuple[Any, Any]], str, tuple[str, ...]]:
    """Return pairs of an image and its label or None, the name, and the names of the classes."""
    name, features = _name_of(table) or "stream", table.features
    if features is None:  # The types of the columns are not stated: the first item shows them.
        first, image_type = dict[str, Any](next(iter(table), {})), library().Image()
        features = {key: image_type if hasattr(first[key], "getbands") else None for key in first}
    image, label = _columns(features, name)
    label = label or next((key for key in ("label", "labels") if key in features), None)
    classes = getattr(features.get(label), "names", None) or ()
    pairs = ((item[image], None if label is None else item[label]) for item in table)
    return pairs, name, tuple(classes)


def from_table(
    table: Any, name: str | None = None, split: str | None = None, columns: Columns | None = None
) -> ImageSet:
    """Return the images of a table; `columns` names them where their types do not tell."""
    datasets, own = library(), _name_of(table)
    name, split = name or own or "table", split or str(table.split or "all")
    if table.format["type"] == "custom":
        raise InputError(
            f"expected {name} without a transform, which is not applied here: remove it with "
            "reset_format()"
        )
    if table._indices is not None:  # Rows that were selected or shuffled are a list of numbers.
        with quiet(datasets):
            table = table.flatten_indices()
    image, label = columns or _columns(table.features, name)
    if missing := [one for one in (image, label) if one and one not in table.column_names]:
        raise InputError(
            f"expected the columns {', '.join(missing)} in {name}, found "
            f"{listed(table.column_names)}; name them: columns=(image, label)"
        )
    try:
        cells = table.cast_column(image, datasets.Image(decode=False)).data.column(image)
    except Exception as error:  # Arrow's, for a column of anything else
        raise InputError(
            f"expected images in the column {image} of {name}, found {table.features[image]}"
        ) from error

    found = _Cells(cells, f"{name}/{split}")
    images = EncodedImages(torch.arange(len(table)), found.read, found.where)
    return ImageSet(name, images, *_labels(table, label, name))


@dataclass(frozen=True, eq=False)
class _Cells:
    """The image column of a table as encoded images; processes get it pickled."""

    cells: Any
    name: str

    def read(self, row: int) -> bytes | Path:
        cell = self.cells[row].as_py() or {}
        if cell.get("bytes") is not None:
            return bytes(cell["bytes"])
        if cell.get("path") is not None:
            return Path(cell["path"])
        raise InputError(f"expected an image in {self.where(row)}, found an empty cell")

    def where(self, row: int) -> str:
        return f"row {row} of {self.name}"


def _labels(table: Any, label: str | None, name: str) -> tuple[Tensor | None, list[str]]:
    """Read the labels and the names of the classes. Hidden test labels are all -1: none."""
    if label is None:
        return None, []
    numbers = table.data.column(label).to_numpy()
    if numbers.dtype.kind not in "iu":
        raise InputError(
            f"expected whole numbers in the column {label} of {name}, found {numbers.dtype}"
        )
    if not (numbers >= 0).any():
        return None, []
    names = getattr(table.features[label], "names", None)
    return torch.from_numpy(numbers.astype(np.int64)), names or [
        str(i) for i in range(numbers.max() + 1)
    ]


def _name_of(table: Any) -> str | None:
    """Return the name of a dataset; refuse several splits of one."""
    if isinstance(table, dict):
        raise InputError(
            f"expected one split of a dataset, got {listed(list(table))}: choose one, as in "
            "table['test']"
        )
    name: str | None = table.info.dataset_name
    return name


def _columns(features: Mapping[str, Any], name: str) -> Columns:
    """Find the column of images, and that of classes if there is one, by their types."""
    datasets = library()
    images, labels = (
        [column for column, feature in features.items() if isinstance(feature, kind)]
        for kind in (datasets.Image, datasets.ClassLabel)
    )
    if len(images) != 1 or len(labels) > 1:
        raise InputError(
            f"expected one column of images and at most one of classes in {name}, found the "
            f"columns {listed(list(features))}; name them: columns=(image, label)"
        )
    return images[0], next(iter(labels), None)


def library() -> Any:
    """Import the library `datasets` and return it."""
    with require("data", "a table of images"):
        import datasets
    return datasets


@contextmanager
def quiet(datasets: Any) -> Iterator[None]:
    """Hide progress bars: reading a local table takes a second."""
    shown = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            datasets.enable_progress_bars()
