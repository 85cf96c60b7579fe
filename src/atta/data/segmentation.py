"""Segmentation: images with masks, and inverses of views.

Images and masks are read one at a time, because sizes may differ.

| what you give                          | read as                                                 |
|----------------------------------------|---------------------------------------------------------|
| images and masks as arrays or tensors  | (n, c, h, w) and (n, h, w)                              |
| a folder of images, a folder of masks  | files of the same name, whatever their endings          |
| a list of files, a list of files       | in their order                                          |
| a dataset or a list                    | items: an image, or an image and its mask               |

A mask has a class number for each pixel: a PNG with a palette or in grey, or an array. The number
`ignore_index` marks pixels without a class: fits and metrics leave them out.

The inverse of a view maps the answer to it back to the image, pixel by pixel.

| views                                   | inverse                                                |
|-----------------------------------------|--------------------------------------------------------|
| flip, vflip, turns, transpose           | the opposite move                                      |
| scale-50, ..., flip-scale-200           | resize the logits back, bilinear, and mirror them back |
| shift, nudge, flip-shift, ...           | each pixel back to its place; those that left the image|
|                                         | keep the answer to the image itself                    |
| brightness, gamma, jpeg, blur, ...      | none needed: no pixel moves                            |
| crop, native-crop, zoom-in, rotate, ... | refused: they lose a part of the image                 |
"""

import io
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader

from atta._base.errors import InputError, first_line, require
from atta._base.tensors import as_tensor, plain
from atta.data import transforms
from atta.data.batched import SHIFTS, moves_of
from atta.data.folder import Address, Place, as_place, find_images, listed
from atta.data.image_set import decode
from atta.data.items import Channels, check_pixels, read_item
from atta.data.transforms import Numbers
from atta.data.views import REHEARSAL, Policy, View

Mask: TypeAlias = Int[Tensor, "h w"]
Pixels: TypeAlias = Shaped[Tensor, "c h w"]
LogitMaps: TypeAlias = Float[Tensor, "n k h w"]
Inverse: TypeAlias = Callable[[LogitMaps, LogitMaps, Numbers], LogitMaps]
"""Takes the logits of a view, those of the image itself, and the numbers of the view."""
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
    if masks is not None:
        _check_order(images, masks)
    return Scenes(name, images, masks, channels)


def has_masks(images: Any, labels: Any) -> bool:
    """Whether labels, or what a dataset brings along, are masks and not class numbers."""
    images, labels = plain(images), plain(labels)
    if isinstance(labels, str | Path):
        return Path(labels).is_dir()
    if isinstance(labels, list | tuple) and labels:
        first = labels[0]
        file = isinstance(first, str | Path) and Path(first).suffix.lower() in (".png", ".tif")
        return file or _is_mask(first)
    if labels is None and not isinstance(images, str | Path | Tensor | np.ndarray):
        data = images.dataset if isinstance(images, DataLoader) else images
        if hasattr(data, "__getitem__") and hasattr(data, "__len__") and len(data):
            item = data[0]
            return isinstance(item, tuple | list) and len(item) == 2 and _is_mask(item[1])
    return _is_mask(labels)


def _is_mask(thing: Any) -> bool:
    return hasattr(thing, "getbands") or getattr(plain(thing), "ndim", 0) >= 2


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
                picture = opened.copy()
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise InputError(
                f"expected a mask in {mask}, but it is damaged: {first_line(error)}"
            ) from None
        return read_mask(picture, str(mask))
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
            f"{tensor.dtype}: give class numbers as integers, one for each pixel"
        )
    return tensor.long()


def _pixels(item: Any, where: str, channels: Channels) -> Pixels:
    """Decode one image."""
    if isinstance(item, str | Path | Address):
        return decode(as_place(item), None, None, where)
    found, _ = read_item(plain(item), channels, None, where)
    return check_pixels(found, tuple(found.shape[1:]), None, where)[0]


def _by_name(images: Any, folder: Path) -> list[Place]:
    """Return the mask of each image file in a folder of masks, found by its name."""
    if not isinstance(images, list) or hasattr(images[0], "shape"):
        raise InputError(
            f"masks: expected masks as the images are given, got the folder {folder} for images "
            "that are no files"
        )
    found = defaultdict[str, list[Place]](list)
    for path in find_images([folder]):
        found[Path(path.name).stem].append(path)
    stems = [Path(str(image)).stem for image in images]
    if missing := [stem for stem in stems if stem not in found]:
        raise InputError(
            f"masks: expected a file in {folder} with the name of each image, found none for "
            f"{listed(missing)}"
        )
    often = Counter(stems)
    if double := [stem for stem in often if len(found[stem]) > 1 or often[stem] > 1]:
        raise InputError(
            f"masks: expected one mask in {folder} with the name of each image, found several for "
            f"{listed(double)}"
        )
    return [found[stem][0] for stem in stems]


def _check_order(images: Any, masks: Any) -> None:
    """Refuse files of masks that have the names of the images, in another order."""
    both = [things if isinstance(things, list | tuple) else () for things in (images, masks)]
    if not all(isinstance(one, str | Path | Address) for things in both for one in things):
        return
    names, theirs = ([Path(str(one)).stem for one in things] for things in both)
    if names != theirs and sorted(names) == sorted(theirs):
        row = next(i for i, name in enumerate(names) if name != theirs[i])
        raise InputError(
            f"masks: expected the order of the images, got {masks[row]} for {images[row]}: sort "
            "both, or give the folder of the masks"
        )


def check_mask(mask: Mask, classes: int, ignored: int, where: str) -> None:
    """Refuse a mask with numbers that are no classes of the network."""
    wrong = mask[(mask != ignored) & ((mask < 0) | (mask >= classes))]
    if len(wrong):
        value = int(wrong[0])
        raise InputError(
            f"expected class numbers from 0 to {classes - 1} in the mask of {where}, or "
            f"{ignored} for pixels without a class, got {value} ({len(wrong)} pixels): if {value} "
            f"marks pixels without a class, pass ignore_index={value}; if masks count classes "
            "from 1, subtract 1"
        )


# ---- inverses of views ---------------------------------------------------------------------------

STILL = (
    *("brightness", "contrast", "noise", "blur", "gamma", "autocontrast", "saturation"),
    *("hue", "grey", "sharpen", "jpeg"),
)
INVERSES: dict[str, Callable[[Tensor], Tensor]] = {
    **dict.fromkeys(STILL, lambda shown: shown),
    "flip": transforms.flip,
    "vflip": transforms.vflip,
    "rot90": transforms.rot270,
    "rot180": transforms.rot180,
    "rot270": transforms.rot90,
    "transpose": transforms.transpose,
    "antitranspose": transforms.antitranspose,
}


def resize(logits: Tensor, size: tuple[int, ...]) -> Tensor:
    """Resize logits to a height and a width, if they have another size. Bilinear."""
    if tuple(logits.shape[-2:]) == tuple(size):
        return logits
    return F.interpolate(logits, size=list(size), mode="bilinear", align_corners=False)


def inverse_of(view: View) -> Inverse:
    """Return what maps the answer to a view back to the image.

    Raises:
        InputError: The view has no inverse.
    """
    if back := view.inverse or (INVERSES.get(view.name) if view.own else None):
        return lambda shown, own, u: back(shown)
    if isinstance(scale := view.transform, transforms.Scale):
        turned = transforms.flip if scale.mirrored else lambda shown: shown
        return lambda shown, own, u: resize(turned(shown), own.shape[-2:])
    if view.own and view.name in SHIFTS:
        return lambda shown, own, u: _unmoved(view, shown, own, u)
    if view.name.startswith(REHEARSAL):
        return lambda shown, own, u: shown
    raise InputError(
        f"View {view.name!r}: expected a view with an inverse for segmentation, which moves each "
        "pixel's answer back to its place, got one without: use flips, turns, shifts, scales "
        "(scale-75 is smaller, scale-150 larger, flip-scale-150 also mirrored), views of colours, "
        "or View(..., inverse=...)"
    )


def check_inverses(policy: Policy) -> None:
    """Refuse a policy with a view that has no inverse."""
    for view, _ in policy.terms:
        inverse_of(view)


def _unmoved(view: View, shown: LogitMaps, own: LogitMaps, u: Numbers) -> LogitMaps:
    """Move pixels back to where a shift took them from; of several copies, the first counts."""
    h, w = own.shape[-2:]
    source = moves_of(view, h, w, u[:1]).flatten()
    place = torch.arange(h * w, device=own.device)
    back = torch.full_like(place, h * w).scatter_reduce(0, source, place, "amin")
    found = shown.flatten(2)[..., back.clamp(max=h * w - 1)]
    return torch.where(back < h * w, found, own.flatten(2)).reshape(own.shape)
