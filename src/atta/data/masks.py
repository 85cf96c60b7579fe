"""Images with masks, for segmentation: read one at a time, because sizes may differ.

| what you give                          | read as                                                 |
|----------------------------------------|---------------------------------------------------------|
| images and masks as arrays or tensors  | (n, c, h, w) and (n, h, w)                              |
| a folder of images, a folder of masks  | files of the same name, whatever their endings          |
| a list of files, a list of files       | in their order                                          |
| a dataset or a list                    | items: an image, or an image and its mask               |

A mask has a class number for each pixel: a PNG with a palette or in grey, or an array. The number
`ignore_index` marks pixels without a class: fits and metrics leave them out.
"""

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Int, Shaped
from torch import Tensor
from torch.utils.data import DataLoader

from atta._base.errors import InputError, first_line, require
from atta._base.tensors import as_tensor, plain
from atta.data.folder import Address, Place, as_place, find_images, listed
from atta.data.image_set import decode
from atta.data.source import Channels, as_source

Mask: TypeAlias = Int[Tensor, "h w"]
Pixels: TypeAlias = Shaped[Tensor, "c h w"]
IGNORED = 255
"""The usual number of pixels without a class."""


class Scene(NamedTuple):
    """An image, bytes or floats in [0, 1], and its mask, if there is one."""

    pixels: Pixels
    mask: Mask | None


@dataclass(frozen=True, eq=False)
class Scenes:
    """Images and their masks, decoded when they are read.

    Args:
        name: How errors call the images.
        images: The images: an array, files, or items of a dataset.
        masks: The masks, as many; None if there are none, or if the items contain them.
        channels: Where arrays have their channels.
    """

    name: str
    images: Any
    masks: Any = None
    channels: Channels = None

    def __len__(self) -> int:
        return len(self.images)

    def __iter__(self) -> Iterator[Scene]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, row: int) -> Scene:
        """Decode an image and its mask, and check that they have the same size."""
        item, mask = self.images[row], None if self.masks is None else self.masks[row]
        if mask is None and isinstance(item, tuple | list) and len(item) == 2:
            item, mask = item
        where = self.where(row)
        pixels = _pixels(item, where, self.channels)
        if mask is None:
            return Scene(pixels, None)
        found = read_mask(mask, f"the mask of {where}")
        if found.shape != pixels.shape[1:]:
            (h, w), (rows, columns) = pixels.shape[1:], found.shape
            raise InputError(
                f"expected a mask of {w} x {h} pixels, the size of {where}, got {columns} x {rows}"
            )
        return Scene(pixels, found)

    def where(self, row: int) -> str:
        """Name an image in an error message."""
        item = self.images[row] if isinstance(self.images, list) else None
        if isinstance(item, str | Path | Address):
            return str(item)
        return f"image {row} of {self.name}"


def scenes(images: Any, masks: Any = None, channels: Channels = None) -> Scenes:
    """Put images and masks together.

    Args:
        images: One of the things in the table of this module.
        masks: The masks, in the same form; None for images alone or a dataset that has them.
        channels: Where arrays have their channels.

    Raises:
        InputError: There are none, their numbers differ, or a file has no mask.
    """
    if isinstance(images, Scenes):
        return images
    if isinstance(images, DataLoader):
        images = images.dataset
    images, masks = plain(images), plain(masks)
    name = "the images"
    if isinstance(images, str | Path):
        name, images = str(images), find_images([images])
    if isinstance(images, Tensor | np.ndarray) and images.ndim == 3:
        images = images[None]
    if isinstance(masks, Tensor | np.ndarray) and masks.ndim == 2:
        masks = masks[None]
    if isinstance(masks, str | Path):
        masks = _by_name(images, Path(masks))
    count = len(images)
    if not count:
        raise InputError(f"expected at least one image in {name}, found none")
    if masks is not None and len(masks) != count:
        raise InputError(f"masks: expected {count}, one for each image, got {len(masks)}")
    return Scenes(name, images, masks, channels)


def has_masks(images: Any, labels: Any) -> bool:
    """Whether labels, or what a dataset brings along, are masks and not class numbers."""
    images, labels = plain(images), plain(labels)
    if isinstance(labels, Tensor | np.ndarray):
        return labels.ndim >= 2
    if isinstance(labels, str | Path):
        return Path(labels).is_dir()
    if isinstance(labels, list | tuple) and labels:
        first = labels[0]
        file = isinstance(first, str | Path) and Path(first).suffix.lower() in (".png", ".tif")
        return file or hasattr(first, "getbands") or getattr(plain(first), "ndim", 0) >= 2
    if labels is None and not isinstance(images, str | Path | Tensor | np.ndarray):
        data = images.dataset if isinstance(images, DataLoader) else images
        if hasattr(data, "__getitem__") and hasattr(data, "__len__") and len(data):
            item = data[0]
            if isinstance(item, tuple | list) and len(item) == 2:
                mask = plain(item[1])
                return hasattr(mask, "getbands") or getattr(mask, "ndim", 0) >= 2
    return False


def read_mask(mask: Any, where: str = "the mask") -> Mask:
    """Return class numbers (h, w) of a file, a Pillow image or an array.

    Raises:
        InputError: It is damaged, or its pixels are colours and not class numbers.
    """
    if isinstance(mask, str | Path | Address):
        with require("data", "decoding masks"):
            from PIL import Image
        try:
            with Image.open(io.BytesIO(as_place(mask).read_bytes())) as opened:
                opened.load()
                return read_mask(opened, str(mask))
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise InputError(
                f"expected a mask in {mask}, but it is damaged: {first_line(error)}"
            ) from None
    if hasattr(mask, "getbands"):
        if len(mask.getbands()) != 1:
            raise InputError(
                f"expected class numbers in {where}, one channel (a PNG with a palette, or grey), "
                f"got {mask.mode}: replace the colours by class numbers"
            )
        mask = np.array(mask)
    tensor = as_tensor(mask, where, "class numbers")
    tensor = tensor[0] if tensor.ndim == 3 and tensor.shape[0] == 1 else tensor
    if tensor.ndim != 2 or tensor.is_floating_point() or tensor.is_complex():
        raise InputError(
            f"expected whole numbers of shape (h, w) in {where}, got {tuple(tensor.shape)} of "
            f"{tensor.dtype}"
        )
    return tensor.long()


def _pixels(item: Any, where: str, channels: Channels) -> Pixels:
    """Decode one image."""
    if isinstance(item, str | Path | Address) or hasattr(item, "getbands"):
        place = as_place(item) if isinstance(item, str) else item
        found: Pixels = decode(place, None, None, where)
        return found
    source = as_source(plain(item), channels)
    pixels = next(source.read([[0]])).pixels
    return pixels[0]


def _by_name(images: Any, folder: Path) -> list[Place]:
    """Return the mask of each image file in a folder of masks, found by its name."""
    if not isinstance(images, list) or hasattr(images[0], "shape"):
        raise InputError(
            f"masks: expected masks as the images are given, got the folder {folder} for images "
            "that are no files"
        )
    found: dict[str, list[Place]] = {}
    for path in find_images([folder]):
        found.setdefault(Path(path.name).stem, []).append(path)
    stems = [Path(str(image)).stem for image in images]
    if missing := [stem for stem in stems if stem not in found]:
        raise InputError(
            f"masks: expected a file in {folder} with the name of each image, found none for "
            f"{listed(missing)}"
        )
    if double := [stem for stem in stems if len(found[stem]) > 1 or stems.count(stem) > 1]:
        raise InputError(
            f"masks: expected one mask in {folder} with the name of each image, found several for "
            f"{listed(list(dict.fromkeys(double)))}"
        )
    return [found[stem][0] for stem in stems]


def check_mask(mask: Mask, classes: int, ignored: int, where: str) -> None:
    """Refuse a mask with numbers that are no classes of the network."""
    wrong = mask[(mask != ignored) & ((mask < 0) | (mask >= classes))]
    if len(wrong):
        value = int(wrong[0])
        raise InputError(
            f"expected class numbers from 0 to {classes - 1} in the mask of {where}, or "
            f"{ignored} for pixels without a class, got {value} ({len(wrong)} pixels): if {value} "
            f"marks pixels without a class, pass ignore_index={value}"
        )
