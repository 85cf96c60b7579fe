"""Finds the images of a record again, by what its metadata say about them.

A record keeps the folder of its images, their order, what was left out, and a digest of the file
names. A folder that was moved is found again by that; one that was changed is refused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atta._base.errors import InputError
from atta._base.files import content_hash
from atta.data.address import Place
from atta.data.folder import folder_of_images
from atta.data.image_set import ImageSet, arrange


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
        with suppress(ValueError, TypeError, KeyError):
            found["shuffle"] = int(text["shuffle"])
        with suppress(ValueError, KeyError, AttributeError):
            start, stop = text["rows"].split(":")
            found["rows"] = slice(*(int(end) if end.strip() else None for end in (start, stop)))
        with suppress(ValueError, TypeError, KeyError, RecursionError):
            if isinstance(names := json.loads(text["left_out"]), list):
                found["left_out"] = tuple(map(str, names))
        return cls(**found)

    def images(self, images: Path | ImageSet, count: int | None) -> ImageSet:
        """Return the images of the record in its order, from their folder or their set.

        Raises:
            InputError: If there are not `count` of them, or if the folder holds other files.
        """
        folder = images if isinstance(images, Path) else None
        found = folder_of_images(images) if isinstance(images, Path) else images
        by_name = folder is not None and self.shuffle is not None  # as `collect` shuffles folders
        found = arrange(found, by_name=by_name, shuffle=self.shuffle, rows=self.rows)
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
