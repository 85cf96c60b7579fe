"""Folders of images and lists of files, on this disk or at an address, and those of a record.

An `Address` (s3://, gs://, hf://, https://) is read by fsspec. Names are listed, and files are read
one by one, where they are used. Each process opens its own connection. What a file system needs
(keys, regions) is set as fsspec documents it.

A record keeps the folder of its images, their order, what was left out, and a digest of the file
names. `Origin` finds a folder that was moved by that, and refuses one that was changed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from os import PathLike, fspath
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias, TypeVar

import torch

from atta._base.errors import InputError, first_line, require
from atta._base.files import content_hash
from atta.data.image_set import EncodedImages, ImageSet, arrange

IMAGES = {".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".gif", ".webp", ".ppm", ".pgm"}
is_number = re.compile("0*[0-9]{1,5}").fullmatch
"""Whether the name of a class is its number; a larger one is a date or a serial number."""

# ---- places --------------------------------------------------------------------------------------


@dataclass(frozen=True, order=True)
class Address:
    """A file or a folder anywhere, with the methods of `Path` that reading images needs."""

    text: str
    kind: str | None = field(default=None, compare=False)
    """What fsspec listed it as, "file" or "directory"; None if it was not listed."""

    def __str__(self) -> str:
        return self.text

    def absolute(self) -> PurePosixPath:
        """Return the address as a path, to compare names by."""
        return PurePosixPath(self.text)

    resolve = absolute

    @property
    def name(self) -> str:
        """The last part."""
        return self.absolute().name

    @property
    def suffix(self) -> str:
        """The ending of the name, with its dot."""
        return self.absolute().suffix

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts between slashes."""
        return self.absolute().parts

    def is_file(self) -> bool:
        """Whether a file is there."""
        return self._kind() == "file"

    def is_dir(self) -> bool:
        """Whether a folder is there."""
        return self._kind() == "directory"

    def exists(self) -> bool:
        """Whether anything is there."""
        return self._kind() is not None

    def is_symlink(self) -> bool:
        """Return False: addresses have no links."""
        return False

    def read_bytes(self) -> bytes:
        """Read the file."""
        return bytes(self._asked("cat_file")[0])

    def open(self) -> Any:
        """Open the file to read it from its beginning."""
        return self._asked("open", "rb")[0]

    def iterdir(self) -> Iterator[Address]:
        """List the folder."""
        found, path, _ = self._asked("ls", detail=True)
        return (
            self._inside(path, one["name"], one["type"]) for one in found if one["name"] != path
        )

    def rglob(self, pattern: str) -> Iterator[Address]:
        """List all files in the folder, at any depth; the pattern is "*"."""
        found, path, _ = self._asked("find")
        return (self._inside(path, name, "file") for name in found)

    def glob(self) -> Iterator[Address]:
        """List the files that the address stands for, with its wildcards."""
        found, _, system = self._asked("glob")
        here = "://" not in self.text
        return (Address(name if here else system.unstrip_protocol(name), "file") for name in found)

    def _inside(self, path: str, name: str, kind: str) -> Address:
        inner = name.strip("/").removeprefix(path.strip("/")).strip("/")
        return Address(f"{self.text.rstrip('/')}/{inner}", kind)

    def _kind(self) -> str | None:
        if self.kind is not None:
            return self.kind
        with suppress(FileNotFoundError):
            return str(self._asked("info")[0]["type"])
        return None

    def _asked(self, question: str, *arguments: Any, **how: Any) -> tuple[Any, str, Any]:
        """Return a file system's answer about this path, the path in it, and the file system."""
        with require("cloud", f"reading {self.text}"):
            from fsspec.core import url_to_fs
        try:
            system, path = url_to_fs(self.text)
        except (ImportError, ValueError) as error:  # no library for it, or no such protocol
            raise InputError(
                f"expected an address that fsspec reads, but {self.text} cannot be: {error}; "
                "pip install 'atta[cloud]' reads s3://, gs:// and hf://"
            ) from error
        try:
            return getattr(system, question)(path, *arguments, **how), str(path), system
        except OSError:
            raise
        except Exception as error:  # file systems have errors of any kind
            raise OSError(f"{self.text}: {type(error).__name__}: {first_line(error)}") from error


Place: TypeAlias = Path | Address
"""A file or a folder, here or elsewhere."""
Where = TypeVar("Where", bound=Place)


def as_place(name: str | PathLike[str] | Address) -> Place:
    """Return what a name leads to: an `Address` if it has a protocol, otherwise a `Path`."""
    if isinstance(name, Address):
        return name
    return Address(fspath(name)) if "://" in fspath(name) else Path(name)


# ---- images --------------------------------------------------------------------------------------


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
    if flat:
        return ImageSet(folder.name, _encoded(flat))
    if classes:
        return labelled_by_folder(folder.name, classes, list(classes))
    raise _without_images(folder)


def labelled_by_folder(
    name: str, files: Mapping[str, Sequence[Place]], classes: list[str]
) -> ImageSet:
    """Label the files by their folders; folders named by numbers are class numbers."""
    number = {label: i for i, label in enumerate(classes)}
    if all(map(is_number, classes)):  # "10" comes after "9"; a missing number moves no other
        number = {label: int(label) for label in classes}
        classes = list(map(str, range(max(number.values()) + 1)))
    labels = [number[label] for label, inside in files.items() for _ in inside]
    return ImageSet(name, _encoded(list(chain(*files.values()))), torch.tensor(labels), classes)


def files_of_images(files: Sequence[Place], folder: Path | None = None) -> ImageSet:
    """Return these files, in this order, without labels; `folder` is where relative names begin."""
    here = (path for path in files if isinstance(path, Path))  # others cost a question each
    if missing := [str(path) for path in here if not (path.is_file() or path.is_symlink())]:
        raise InputError(f"expected files of images, found none at {listed(missing)}")
    return ImageSet(files[0].name if len(files) == 1 else "files", _encoded(files, folder))


def _encoded(files: Sequence[Place], folder: Path | None = None) -> EncodedImages:
    return EncodedImages(list(files), torch.arange(len(files)), folder=folder)


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
            files = sorted(
                file
                for file in path.rglob("*")
                if not file.is_dir() and (file.suffix.lower() in IMAGES or not file.exists())
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


# ---- the images of a record ----------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Which images a record is of.

    Args:
        folder: Folder of the images.
        files: Digest of the names of the files, in order.
        shuffle: Seed by which the images were shuffled.
        rows: The part of the images that was taken, after shuffling.
        left_out: Files that could not be decoded.
    """

    folder: str | None = None
    files: str | None = None
    shuffle: int | None = None
    rows: slice | None = None
    left_out: tuple[str, ...] = ()

    @classmethod
    def of(cls, text: Mapping[str, Any]) -> Origin:
        """Read the text of a record; what people wrote by hand and cannot be read is left out."""
        found: dict[str, Any] = {
            name: text[name] for name in ("folder", "files") if isinstance(text.get(name), str)
        }
        wrong = suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError)
        with wrong:
            found["shuffle"] = int(text["shuffle"])
        with wrong:
            start, stop = text["rows"].split(":")
            found["rows"] = slice(*(int(end) if end.strip() else None for end in (start, stop)))
        with wrong:
            if isinstance(names := json.loads(text["left_out"]), list):
                found["left_out"] = tuple(map(str, names))
        return cls(**found)

    def images(self, images: Path | ImageSet, count: int | None) -> ImageSet:
        """Return the images of the record in its order, from their folder or their set.

        Raises:
            InputError: If there are not `count` of them, or if the folder holds other files.
        """
        folder = None
        if isinstance(images, Path):
            folder, images = images, folder_of_images(images)
        by_name = folder is not None and self.shuffle is not None  # as `collect` shuffles folders
        found = arrange(images, by_name=by_name, shuffle=self.shuffle, rows=self.rows)
        # Files that could not be decoded are known by name and class folder.
        bad = {Path(name).parts[-2:] for name in self.left_out}
        if bad and found.files:
            kept = [i for i, file in enumerate(found.files) if file.parts[-2:] not in bad]
            found = found.subset(kept)
        name = folder or found.name
        if count is not None and len(found) != count:
            raise InputError(
                f"expected the {count} images of the record in {name}, found {len(found)}"
            )
        if folder and self.files is not None and digest_of(found.files, folder) != self.files:
            raise InputError(
                f"expected the files of the record in {name}, found files with other names"
            )
        return found


def digest_of(files: Sequence[Place], folder: str | Path) -> str:
    """Hash the names of files in a folder, in their order."""
    names = (Path(os.path.relpath(str(file), folder)).as_posix() for file in files)
    return content_hash(["\n".join(names)])
