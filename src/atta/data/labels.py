"""Labels from a table of files, and the labels of a source by the names of the network's classes.

A table is CSV or Parquet with a column of files (file, filename, path or image) and one of labels (label or class): class
numbers or names. A file is found by its name, or by as much of its path as tells it apart.
"""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from torch import Tensor

from atta._base.errors import InputError, require
from atta._base.tensors import as_tensor
from atta.data.class_names import IMAGENET, imagenet, is_number, numbers_of
from atta.data.source import Source

FILES, LABELS = ("file", "filename", "file_name", "path", "image"), ("label", "class")
TABLES = (".csv", ".parquet")


@dataclass
class Truth:
    """Labels as class numbers, as far as they are known before the images are read, and the names of the classes.

    `guessed` names are those of the images, in their own order, for want of the network's: they have to be as many as its
    classes. `numbers` are of the labels that come with each image of a dataset.
    """

    labels: Tensor | None
    classes: tuple[str, ...] = ()
    guessed: bool = False
    numbers: Tensor | None = None

    def settle(self, k: int) -> None:
        """Make sure, now that the network's number of classes is known, that the names can be those of its classes."""
        if not self.guessed:
            if self.classes and len(self.classes) != k:
                raise InputError(
                    f"class_names: expected {k}, one a class of the network, got {len(self.classes)}"
                )
            return
        if len(self.classes) == k:
            return
        if k == IMAGENET and all(name in imagenet() for name in self.classes):
            self.numbers = torch.tensor([imagenet()[name] for name in self.classes])
            self.labels = None if self.labels is None else self.numbers[self.labels]
            self.classes, self.guessed = tuple(imagenet()), False
            return
        some = ", ".join(self.classes[:6]) + (", ..." if len(self.classes) > 6 else "")
        raise InputError(
            f"the images are of {len(self.classes)} classes ({some}), and the network knows {k}: which is which cannot be "
            "told. Name the network's classes in its order, class_names=[...] (--classes FILE or a,b,c), or give class numbers"
        )

    def own(self, labels: Tensor | None) -> Tensor | None:
        """The numbers of labels that came with images."""
        return labels if labels is None or self.numbers is None else self.numbers[labels]


def truth_of(labels: Any, source: Source, names: Sequence[str]) -> Truth:
    """Read the labels that were given, or those that the images bring along, by the names of the network's classes."""
    names = tuple(map(str, names))
    if isinstance(labels, str | Path):
        labels = _of_files(read_labels(Path(labels)), source, Path(labels))
    if is_text(labels):
        texts = [str(label) for label in labels]
        _check_count(len(texts), source)
        return _named(texts, names)
    if labels is None:
        return _own(source, names)
    numbers = as_tensor(labels, "labels", "a list, an array or a tensor of class numbers, or names")
    if source.count is not None and numbers.shape[:1] != (source.count,):
        raise InputError(
            f"expected {source.count} labels, one an image, got {tuple(numbers.shape)}"
        )
    return Truth(numbers, names)


def is_text(labels: Any) -> bool:
    """Whether labels are names: a list, or an array, of texts."""
    if isinstance(labels, np.ndarray):
        return labels.dtype.kind == "U" or (
            labels.dtype.kind == "O" and all(isinstance(item, str) for item in labels.flat)
        )
    return (
        isinstance(labels, list | tuple)
        and bool(labels)
        and all(isinstance(item, str) for item in labels)
    )


def _own(source: Source, names: tuple[str, ...]) -> Truth:
    """The labels of a set are numbers of its own classes, in their own order: find the network's."""
    own, labels = source.classes, source.labels
    if not own:
        return Truth(labels, names)
    if not names:
        return Truth(
            labels, () if all(map(is_number, own)) else own, guessed=not all(map(is_number, own))
        )
    present = range(len(own)) if labels is None else sorted(set(labels.tolist()))
    found = numbers_of([own[i] for i in present], names, f"the classes of {source.name}")
    numbers = torch.full((len(own),), -1)
    for i in present:
        numbers[i] = found[own[i]]
    return Truth(None if labels is None else numbers[labels], names, numbers=numbers)


def _named(texts: Sequence[str], names: tuple[str, ...]) -> Truth:
    """Labels as texts: numbers, or names of the network's classes, or of classes in the order of the alphabet."""
    if all(map(is_number, texts)) and not {*texts} & {*names}:
        return Truth(torch.tensor([int(text) for text in texts]), names)
    known = names or tuple(sorted(set(texts)))
    found = numbers_of(texts, known)
    return Truth(torch.tensor([found[text] for text in texts]), known, guessed=not names)


def read_labels(path: Path) -> dict[str, str]:
    """A table of files and their labels: file → label, as texts."""
    if path.suffix.lower() not in TABLES:
        raise InputError(
            f"labels: expected numbers, names or a file of labels ({', '.join(TABLES)}), got {str(path)!r}"
        )
    if not path.is_file():
        raise InputError(f"labels: there is no file {path}")
    if path.suffix.lower() == ".parquet":
        with require("data", "labels in Parquet"):
            from pyarrow import ArrowInvalid
            from pyarrow.parquet import read_table
        try:
            rows = read_table(path).to_pylist()
        except (ArrowInvalid, OSError) as error:
            raise InputError(
                f"labels: expected a Parquet file, but {path} cannot be read: {error}"
            ) from None
    else:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
    columns = list(rows[0]) if rows else []
    chosen = [
        next((name for name in columns if name.strip().lower() in known), None)
        for known in (FILES, LABELS)
    ]
    if None in chosen:
        there = ", ".join(columns) or "none"
        raise InputError(
            f"labels: expected the columns file and label in {path}, found {there}: name them so in line 1"
        )
    found: dict[str, str] = {}
    for row in rows:
        file_name, label = (str(row[column]).strip() for column in chosen if column is not None)
        if found.setdefault(file_name, label) != label:
            raise InputError(
                f"labels: {path} says {found[file_name]!r} and {label!r} of {file_name}"
            )
    return found


def _of_files(table: Mapping[str, str], source: Source, path: Path) -> list[str]:
    """The label of each file of a source."""
    if source.files is None:
        raise InputError(
            f"labels: {path.name} names files, and {source.name} has none: expected a folder, or files, of images"
        )
    by_name: dict[str, list[tuple[PurePosixPath, str]]] = {}
    for file, label in table.items():
        place = PurePosixPath(file.replace("\\", "/"))
        by_name.setdefault(place.name, []).append((place, label))
    labels, missing = list[str](), list[str]()
    # Each by its own path and, where links lead to it, by the one without.
    places = [
        [PurePosixPath(way.as_posix()) for way in (path.absolute(), path.resolve())]
        for path in source.files
    ]
    here = {way for ways in places for way in ways}
    for file_path, ways in zip(source.files, places, strict=True):
        # A whole path that is none of these files is one of before they were moved: its name is all that can be gone by.
        said = {
            label
            for p, label in by_name.get(file_path.name, [])
            if any(way.parts[-len(p.parts) :] == p.parts for way in ways)
            or (p.is_absolute() and p not in here)
        }
        if len(said) > 1:
            raise InputError(
                f"labels: {path.name} has several rows for {file_path}: write as much of the path as tells them apart"
            )
        labels += said
        missing += [] if said else [str(file_path)]
    if missing:
        raise InputError(
            f"labels: {path.name} has no row for {len(missing)} of {len(source.files)} images, first {missing[0]}"
        )
    return labels


def _check_count(count: int, source: Source) -> None:
    if source.count is not None and count != source.count:
        raise InputError(f"expected {source.count} labels, one an image, got {count}")
