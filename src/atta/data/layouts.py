"""Reads folders of images, lists of files, and tables and streams of the library `datasets`."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from atta._base.errors import InputError, require
from atta.data.class_names import is_number
from atta.data.image_set import EncodedImages, ImageSet

Columns: TypeAlias = tuple[str, str | None]
"""The names of the image column and of the label column, if there is one."""
Reader: TypeAlias = Callable[[], ImageSet]
"""What reads a split that was found."""

LABELS = ("label", "labels")
"""What a column of labels is called where its type does not tell."""
IMAGES = {".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".gif", ".webp", ".ppm", ".pgm"}


def is_table(value: object) -> bool:
    """Whether this is a dataset of the library, or several splits of one; asking does not import it."""
    datasets = sys.modules.get("datasets")
    return datasets is not None and isinstance(value, datasets.Dataset | datasets.DatasetDict)


def is_stream(value: object) -> bool:
    """Whether this is a dataset of the library that comes over the wire, item by item; asking does not import it."""
    datasets = sys.modules.get("datasets")
    return datasets is not None and isinstance(
        value, datasets.IterableDataset | datasets.IterableDatasetDict
    )


def from_stream(table: Any) -> tuple[Iterator[tuple[Any, Any]], str, tuple[str, ...]]:
    """The images of such a dataset, each with its label or None, in its order; its name, and the names of its classes."""
    _one_split(table)
    name, features = table.info.dataset_name or "stream", table.features
    if features is None:  # Nobody has said what the columns are: the first item shows it.
        image_kind, first = library().Image(), dict[str, Any](next(iter(table), {}))
        features = {
            key: image_kind if hasattr(cell, "getbands") else None for key, cell in first.items()
        }
    image, label = _columns(features, name)
    label = label or next((key for key in LABELS if key in features), None)
    classes = getattr(features.get(label), "names", None) or ()
    return (
        ((item[image], None if label is None else item[label]) for item in table),
        name,
        tuple(classes),
    )


def _one_split(table: Any) -> None:
    if isinstance(table, dict):
        raise InputError(
            f"expected one split of a dataset, got {listed(list(table))}: choose one, as in table['test']"
        )


def _columns(features: Mapping[str, Any], name: str) -> Columns:
    """The column of images, and that of classes if there is one, by their types."""
    datasets = library()
    images, labels = (
        [c for c, f in features.items() if isinstance(f, kind)]
        for kind in (datasets.Image, datasets.ClassLabel)
    )
    if len(images) != 1 or len(labels) > 1:
        raise InputError(
            f"expected one column of images and at most one of classes in {name}, found the columns "
            f"{listed(list(features))}; name them: columns=(image, label)"
        )
    return images[0], next(iter(labels), None)


def from_table(
    table: Any, name: str | None = None, split: str | None = None, columns: Columns | None = None
) -> ImageSet:
    """The images of a table of the library `datasets`; `columns` names them where their types do not tell."""
    datasets = library()
    _one_split(table)
    name, split = name or table.info.dataset_name or "table", split or str(table.split or "all")
    if table.format["type"] == "custom":
        raise InputError(
            f"expected {name} without a transform, which would be passed by: take it off by reset_format()"
        )
    if (
        table._indices is not None
    ):  # Rows that were chosen or shuffled are but a list of numbers until now.
        with quiet(datasets):
            table = table.flatten_indices()
    image, label = columns or _columns(table.features, name)
    missing = [
        column
        for column in (image, label)
        if column is not None and column not in table.column_names
    ]
    if missing:
        raise InputError(
            f"expected the columns {', '.join(missing)} in {name}, found {listed(table.column_names)}; "
            "name them: columns=(image, label)"
        )
    try:
        cells = table.cast_column(image, datasets.Image(decode=False)).data.column(image)
    except Exception as error:  # Arrow's, for a column of anything else
        raise InputError(
            f"expected images in the column {image} of {name}, found {table.features[image]}"
        ) from error

    def read(row: int) -> bytes | Path:
        cell = cells[row].as_py()
        if not cell or (cell["bytes"] is None and cell["path"] is None):
            raise InputError(
                f"expected an image in row {row} of {name}/{split}, found an empty cell"
            )
        return Path(cell["path"]) if cell["bytes"] is None else bytes(cell["bytes"])

    labels, classes = None, list[str]()
    if label is not None:
        numbers = table.data.column(label).to_numpy()
        if numbers.dtype.kind not in "iu":
            raise InputError(
                f"expected whole numbers in the column {label} of {name}, found {numbers.dtype}"
            )
        if (numbers >= 0).any():  # A hub's hidden test labels are all -1.
            labels = torch.from_numpy(numbers.astype(np.int64))
            classes = getattr(table.features[label], "names", None) or [
                str(i) for i in range(int(numbers.max()) + 1)
            ]
    images = EncodedImages(
        torch.arange(len(table)), read, lambda row: f"row {row} of {name}/{split}"
    )
    return ImageSet(name, images, labels, classes)


def image_folder(folder: Path, name: str, split: str, columns: Columns | None) -> Reader | None:
    """`<split>/<class>/*.png`, or `<class>/*.png`, which is one split, `train`."""
    place = folder / split
    if not place.is_dir():
        if split != "train" or any(
            (folder / other).is_dir() for other in ("test", "validation", "val")
        ):
            return None
        place = folder
    classes = _class_folders(place)
    if not classes:
        return None
    # A class that a test split lacks must not shift the numbers of those that follow.
    known = _class_folders(folder / "train") if place != folder else classes
    if strange := [label for label in classes if known and label not in known]:
        raise InputError(
            f"expected the classes of {folder / 'train'} in {place}, found {listed(strange)} as well"
        )
    return partial(_read_folders, name, place, classes, known or classes)


def _read_folders(name: str, place: Path, classes: list[str], known: list[str]) -> ImageSet:
    if all(
        map(is_number, known)
    ):  # "10" comes after "9", and a number that is missing moves no other
        known = [str(number) for number in range(max(map(int, known)) + 1)]
    place_of = {
        label: int(label) if is_number(label) and label not in known else known.index(label)
        for label in classes
    }
    files = [(path, place_of[label]) for label in classes for path in _image_files(place / label)]
    labels = torch.tensor([label for _, label in files])
    images = EncodedImages(
        torch.arange(len(files)), lambda row: files[row][0], lambda row: str(files[row][0])
    )
    return ImageSet(name, images, labels, known)


def folder_of_images(folder: Path) -> ImageSet:
    """`<class>/*.png`, labelled by the sorted names of the folders, or `*.png` without labels."""
    if not folder.is_dir():
        raise InputError(f"expected a folder of images, found none at {folder}")
    flat = list(_image_files(folder))
    reader = image_folder(folder, folder.name, "", None)
    sorted_in = reader() if reader else None
    if sorted_in is not None and flat:
        raise InputError(
            f"expected images in {folder} itself or in a folder for each class, found both: {flat[0].name} and "
            f"{listed(sorted_in.classes)}"
        )
    if sorted_in is None and not flat:
        raise InputError(_none_in(folder))
    images = EncodedImages(
        torch.arange(len(flat)), lambda row: flat[row], lambda row: str(flat[row])
    )
    return sorted_in or ImageSet(folder.name, images)


def by_file_name(images: ImageSet) -> ImageSet:
    """The images of a folder in the order of their files' names, whatever the folders of their classes are called.

    Their places are those in this order: the same files, sorted into classes in any way, are shuffled and drawn alike.
    """
    files = (
        []
        if isinstance(images.images, torch.Tensor)
        else [images.images.path(i) for i in range(len(images))]
    )
    keys = [(path.name, str(path), i) for i, path in enumerate(files) if path is not None]
    ordered = images.subset([i for *_, i in sorted(keys)])
    return ImageSet(ordered.name, ordered.images, ordered.labels, ordered.classes)


def files_of_images(files: Sequence[Path], folder: Path | None = None) -> ImageSet:
    """Return these files, in this order, without labels; `folder` is where relative names begin."""
    if missing := [str(path) for path in files if not (path.is_file() or path.is_symlink())]:
        raise InputError(f"expected files of images, found none at {listed(missing)}")
    images = EncodedImages(
        torch.arange(len(files)),
        lambda row: files[row] if folder is None else folder / files[row],
        lambda row: str(files[row]),
    )
    return ImageSet(files[0].name if len(files) == 1 else "files", images)


def find_images(paths: Iterable[str | PathLike[str]]) -> list[Path]:
    """Return the files that were named, and all images in folders, at any depth, by name."""
    found: dict[Path, None] = {}
    for path in map(Path, paths):
        if not (path.exists() or path.is_symlink()):
            raise InputError(f"there is no file or folder {path}")
        files = {path: None}
        if path.is_dir():
            inside = (file for file in sorted(path.rglob("*")) if not file.is_dir())
            files = dict.fromkeys(file for file in inside if file.suffix.lower() in IMAGES)
        if not files:
            raise InputError(_none_in(path))
        found |= files
    return list(found)


def _none_in(folder: Path) -> str:
    there = sorted(path.name for path in folder.iterdir())
    return (
        f"expected images, or folders of images named by their class, in {folder}, found "
        f"{listed(there)}"
    )


def subfolders(folder: Path) -> list[Path]:
    """The folders in a folder that someone put there, sorted; none where there is no folder."""
    inner = folder.iterdir() if folder.is_dir() else ()
    return sorted(
        path for path in inner if path.is_dir() and path.name[0] != "." and path.name != "__MACOSX"
    )


def _class_folders(folder: Path) -> list[str]:
    """Sorted names of the folders that hold images."""
    counts = {path.name: sum(1 for _ in _image_files(path)) for path in subfolders(folder)}
    if any(counts.values()) and (empty := [label for label, count in counts.items() if not count]):
        raise InputError(
            f"expected images in every class folder of {folder}, found none in {listed(empty)}"
        )
    return list(counts) if any(counts.values()) else []


def _image_files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.iterdir()) if path.suffix.lower() in IMAGES)


def library() -> Any:
    """The library `datasets`, imported when it is needed."""
    with require("data", "a table of images"):
        import datasets
    return datasets


@contextmanager
def quiet(datasets: Any) -> Iterator[None]:
    """Reading a local table takes a second: no bars."""
    shown = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            datasets.enable_progress_bars()


def listed(names: Sequence[str]) -> str:
    """The first names, for an error."""
    return (
        ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
        or "nothing"
    )
