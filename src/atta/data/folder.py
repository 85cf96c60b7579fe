"""Reads folders of images and lists of files."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TypeAlias

import torch

from atta._base.errors import InputError
from atta.data.class_names import is_number
from atta.data.image_set import EncodedImages, ImageSet

Reader: TypeAlias = Callable[[], ImageSet]
"""What reads a split that was found."""

IMAGES = {".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".gif", ".webp", ".ppm", ".pgm"}


def image_folder(folder: Path, name: str, split: str, columns: object) -> Reader | None:
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


def listed(names: Sequence[str]) -> str:
    """The first names, for an error."""
    return (
        ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
        or "nothing"
    )
