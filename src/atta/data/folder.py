"""Reads folders of images and lists of files."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import torch

from atta._base.errors import InputError
from atta.data.address import Address, Place, as_place
from atta.data.class_names import is_number
from atta.data.image_set import EncodedImages, ImageSet

Where = TypeVar("Where", bound=Place)
IMAGES = {".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".gif", ".webp", ".ppm", ".pgm"}


def labelled_by_folder(
    name: str, files: Mapping[str, Sequence[Place]], classes: list[str]
) -> ImageSet:
    """Label the files by their folders; folders named by numbers are class numbers."""
    position = {label: i for i, label in enumerate(classes)}
    if all(map(is_number, classes)):  # "10" comes after "9"; a missing number moves no other
        position = {label: int(label) for label in classes}
        classes = [str(number) for number in range(max(position.values()) + 1)]
    labels = [position[label] for label, inside in files.items() for _ in inside]
    paths = [path for inside in files.values() for path in inside]
    return ImageSet(name, _encoded(paths), torch.tensor(labels), classes)


def folder_of_images(folder: Place) -> ImageSet:
    """Read `<class>/*.png`, labelled by the sorted folder names, or `*.png` without labels."""
    if not folder.is_dir():
        raise InputError(f"expected a folder of images, found none at {folder}")
    (flat, _), classes = contents(folder), class_files(folder)
    if flat and classes:
        raise InputError(
            f"expected images in {folder} itself or in a folder for each class, found both: "
            f"{flat[0].name} and {listed(list(classes))}"
        )
    if not flat and not classes:
        raise _without_images(folder)
    if flat:
        return ImageSet(folder.name, _encoded(flat))
    return labelled_by_folder(folder.name, classes, list(classes))


def files_of_images(files: Sequence[Place], folder: Path | None = None) -> ImageSet:
    """Return these files, in this order, without labels; `folder` is where relative names begin."""
    here = (path for path in files if isinstance(path, Path))  # others cost a question each
    if missing := [str(path) for path in here if not (path.is_file() or path.is_symlink())]:
        raise InputError(f"expected files of images, found none at {listed(missing)}")
    return ImageSet(files[0].name if len(files) == 1 else "files", _encoded(files, folder))


@dataclass(frozen=True)
class _Files:
    """Files as encoded images; processes get it pickled."""

    paths: Sequence[Place]
    folder: Path | None

    def read(self, row: int) -> Place:
        path = self.paths[row]
        return self.folder / path if self.folder and isinstance(path, Path) else path

    def where(self, row: int) -> str:
        return str(self.paths[row])

    def part(self, rows: Sequence[int]) -> "_Files":
        return _Files([self.paths[row] for row in rows], self.folder)


def _encoded(files: Sequence[Place], folder: Path | None = None) -> EncodedImages:
    found = _Files(files, folder)
    return EncodedImages(torch.arange(len(files)), found.read, found.where)


def find_images(paths: Iterable[str | PathLike[str] | Address]) -> list[Place]:
    """Return the files that were named, and all images in folders, at any depth, by name.

    Links that lead nowhere are among them, whatever their names: reading them says so.
    """
    found: dict[Place, None] = {}
    for path in map(as_place, paths):
        if not (path.exists() or path.is_symlink()):
            raise InputError(f"there is no file or folder {path}")
        files: list[Place] = [path]
        if path.is_dir():
            inside: Iterator[Place] = (file for file in path.rglob("*") if not file.is_dir())
            files = sorted(
                file for file in inside if file.suffix.lower() in IMAGES or not file.exists()
            )
        if not files:
            raise _without_images(path)
        found |= dict.fromkeys(files)
    return list(found)


def _without_images(folder: Place) -> InputError:
    there = sorted(path.name for path in folder.iterdir())
    return InputError(
        f"expected images, or folders of images named by their class, in {folder}, found "
        f"{listed(there)}"
    )


def contents(folder: Where) -> tuple[list[Where], list[Where]]:
    """List the images and the visible subfolders of a folder, sorted; none if it is not there."""
    images, folders = list[Any](), list[Any]()  # of the kind of the folder
    # Comparing paths takes several times as long as comparing their names.
    inside: list[Any] = sorted(folder.iterdir(), key=attrgetter("name")) if folder.is_dir() else []
    for path in inside:
        if path.suffix.lower() in IMAGES:
            images.append(path)
        elif not path.is_file() and not path.name.startswith((".", "__MACOSX")):
            folders.append(path)
    return images, folders


def class_files(folder: Where) -> dict[str, list[Where]]:
    """List the images in each folder of a class, by its name, sorted; none if there are none."""
    files = {path.name: contents(path)[0] for path in contents(folder)[1]}
    empty = [label for label, inside in files.items() if not inside]
    if 0 < len(empty) < len(files):
        raise InputError(
            f"expected images in every class folder of {folder}, found none in {listed(empty)}"
        )
    return {} if empty else files


def listed(names: Sequence[str]) -> str:
    """Write the first names, for an error."""
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return ", ".join(names[:8]) + more or "nothing"
