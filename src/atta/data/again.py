"""The images of a record, found again: in the order in which the network saw them, or not at all.

A record's origin says which folder its images came from, how they were shuffled and cut, what was left out, and a digest of the
names of the files in their order. A folder that was moved is found again by that; one that was changed is refused.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from atta._base.errors import InputError
from atta.data.image_set import ImageSet, arrange
from atta.data.layouts import by_file_name, folder_of_images

FOLDER, FILES = "folder", "files"
"""What an origin calls the folder, and the digest of its files."""


def digest_of(files: Sequence[Path], folder: str | Path) -> str:
    """A digest of the names of files in a folder, in their order."""
    names = (Path(os.path.relpath(file, folder)).as_posix() for file in files)
    return hashlib.sha256("\n".join(names).encode(errors="surrogateescape")).hexdigest()


def found_again(images: Path | ImageSet, origin: Mapping[str, Any], count: int | None) -> ImageSet:
    """The images of the record of that origin, of `count` images if that is known, from their folder or the set they were."""
    shuffle, rows = _number(origin.get("shuffle")), _rows(origin.get("rows"))
    name = images.name if isinstance(images, ImageSet) else str(images)
    found = images if isinstance(images, ImageSet) else folder_of_images(images)
    if isinstance(images, Path) and shuffle is not None:
        found = by_file_name(found)  # as `collect` shuffles folders
    found = _without(arrange(found, shuffle=shuffle, rows=rows), origin.get("left_out"))
    if count is not None and len(found) != count:
        raise InputError(f"expected the {count} images of the record in {name}, found {len(found)}")
    if (
        isinstance(images, Path)
        and FILES in origin
        and digest_of(_files(found), images) != origin[FILES]
    ):
        raise InputError(
            f"expected the files of the record in {name}, found others: their names are not those of then"
        )
    return found


def _files(images: ImageSet) -> list[Path]:
    encoded = images.images
    paths = [] if isinstance(encoded, Tensor) else [encoded.path(i) for i in range(len(encoded))]
    return [path for path in paths if path is not None]


def _without(images: ImageSet, left_out: Any) -> ImageSet:
    """Without what `skip_bad` left out: files, by as much of their path as the folder of a class is."""
    files = _files(images)
    try:
        bad = {Path(name).parts[-2:] for name in json.loads(left_out or "[]")}
    except (ValueError, TypeError):
        bad = set()
    return (
        images.subset([i for i, file in enumerate(files) if file.parts[-2:] not in bad])
        if bad and files
        else images
    )


def _number(text: Any) -> int | None:
    """A number that an origin says, which is text for people."""
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def _rows(text: Any) -> slice | None:
    start, colon, stop = str(text or "").partition(":")
    return slice(_number(start.strip() or None), _number(stop.strip() or None)) if colon else None
