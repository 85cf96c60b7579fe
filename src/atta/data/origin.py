"""Where the images of a record come from: typed here, written as text into the record.

A record keeps the folder of its images, their order, what was left out, and a digest of the file
names. A folder that was moved is found again by that; one that was changed is refused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from atta._base.errors import InputError
from atta._base.files import content_hash
from atta.data.folder import folder_of_images
from atta.data.image_set import ImageSet, arrange
from atta.data.preprocess import Preprocess


@dataclass(frozen=True, kw_only=True)
class Origin:
    """What a record says of its images and of the run that made it.

    Args:
        dataset: Name of the dataset.
        model: Class name of the network.
        classes: Class names of the network.
        preprocess: How photographs were resized, cropped and normalised.
        image_shape: Channels, height and width.
        policy: The views, as text.
        passes: Passes per image.
        seed: Seed of random views.
        draws: "random" or "stratified".
        shuffle: Seed by which the images were shuffled.
        rows: The part of the images that was taken, after shuffling.
        left_out: Files that could not be decoded.
        folder: Folder of the images.
        files: Digest of the names of the files, in order.
    """

    dataset: str | None = None
    model: str | None = None
    classes: tuple[str, ...] = ()
    preprocess: Preprocess | None = None
    image_shape: tuple[int, ...] = ()
    policy: str | None = None
    passes: int | None = None
    seed: int | None = None
    draws: str | None = None
    shuffle: int | None = None
    rows: slice | None = None
    left_out: tuple[str, ...] = ()
    folder: str | None = None
    files: str | None = None

    def text(self) -> dict[str, str]:
        """Return what is known as text, for the metadata of a file."""
        found = {name: value for name, value in asdict(self).items() if value not in (None, ())}
        for name in ("classes", "left_out"):
            if name in found:
                found[name] = json.dumps(found[name])
        if self.preprocess is not None:
            found["preprocess"] = json.dumps(self.preprocess.about())
        if self.image_shape:
            found["image_shape"] = " x ".join(map(str, self.image_shape))
        if self.rows is not None:
            ends = (self.rows.start, self.rows.stop)
            found["rows"] = ":".join("" if end is None else str(end) for end in ends)
        return {name: str(value) for name, value in found.items()}

    @classmethod
    def of(cls, text: Mapping[str, Any]) -> Origin:
        """Read the text of a record; what people wrote by hand and cannot be read is left out."""
        found: dict[str, Any] = {
            name: text[name]
            for name in ("dataset", "model", "policy", "draws", "folder", "files")
            if isinstance(text.get(name), str)
        }
        for name in ("passes", "seed", "shuffle"):
            with suppress(ValueError, TypeError, KeyError):
                found[name] = int(text[name])
        for name in ("classes", "left_out"):
            with suppress(ValueError, TypeError, KeyError, RecursionError):
                if isinstance(names := json.loads(text[name]), list):
                    found[name] = tuple(map(str, names))
        with suppress(ValueError, TypeError, KeyError, RecursionError):
            found["preprocess"] = Preprocess.of(json.loads(text["preprocess"]))
        with suppress(ValueError, KeyError, AttributeError):
            found["image_shape"] = tuple(int(side) for side in text["image_shape"].split(" x "))
        start, colon, stop = str(text.get("rows", "")).partition(":")
        with suppress(ValueError):
            if colon:
                found["rows"] = slice(*(int(end) if end.strip() else None for end in (start, stop)))
        return cls(**found)

    def images(self, images: Path | ImageSet, count: int | None) -> ImageSet:
        """Return the images of the record in its order, from their folder or their set.

        Raises:
            InputError: If there are not `count` of them, or if the folder holds other files.
        """
        folder = None if isinstance(images, ImageSet) else images
        found = images if folder is None else folder_of_images(folder)
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


def digest_of(files: Sequence[Path], folder: str | Path) -> str:
    """Hash the names of files in a folder, in their order."""
    names = (Path(os.path.relpath(file, folder)).as_posix() for file in files)
    return content_hash(["\n".join(names)])
