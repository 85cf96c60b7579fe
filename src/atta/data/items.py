"""Pixels and labels of what datasets and loaders yield, and the checks of both.

An item is an image, an image and its label, or a dict. The keys of a dict are `image`, `images`,
`img` or `pixel_values`, and `label`, `labels`, `target` or `targets`. Pixels are bytes, or floats
in [0, 1]; other values are refused, never rescaled.
"""

import operator
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from atta._base.errors import InputError
from atta._base.tensors import as_tensor
from atta.data.image_set import decode
from atta.data.photographs import named
from atta.data.preprocess import Preprocess, written

Channels: TypeAlias = Literal["first", "last"] | None
Shape: TypeAlias = tuple[int, ...]

_ROUNDING = 1e-5  # A resize in floats may leave [0, 1] by the last few bits.
_IMAGES = ("image", "images", "img", "pixel_values")
_LABELS = ("label", "labels", "target", "targets")


class CroppedAlready(InputError):
    """Pixels where a photograph is needed, of which views are made."""


def read_item(
    item: Any,
    channels: Channels,
    preprocess: Preprocess | None,
    where: str,
    ndim: int = 3,
    mode: str | None = None,
    strict: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Return pixels (n, c, h, w) and labels (n) of an image or, with `ndim` 4, of a batch.

    An encoded image is decoded, resized and cropped.
    """
    label = None
    if isinstance(item, Mapping):
        images, labels = ([key for key in keys if key in item] for keys in (_IMAGES, _LABELS))
        if len(images) != 1 or len(labels) > 1:
            raise InputError(
                f"expected one image ({', '.join(_IMAGES)}) and at most one label "
                f"({', '.join(_LABELS)}) in {where}, got a {type(item).__name__} of "
                f"{', '.join(map(str, item))}: rename or remove keys"
            )
        item, label = item[images[0]], item[labels[0]] if labels else None
    elif isinstance(item, tuple | list):
        if len(item) not in (1, 2):
            raise InputError(
                f"expected an image, or an image and its label, in {where}, got a "
                f"{type(item).__name__} of {len(item)} things"
            )
        item, label = (*item, None)[:2]
    if isinstance(item, bytes) or hasattr(item, "getbands"):
        pixels = decode(item, mode, preprocess, where, strict=strict)
    else:
        pixels = as_pixels(item, channels, where)
    if pixels.ndim != ndim:
        expected = "an image of shape (c, h, w)" if ndim == 3 else "batches of shape (n, c, h, w)"
        raise InputError(f"expected {expected}, got {tuple(pixels.shape)} in {where}")
    pixels = pixels.reshape(-1, *pixels.shape[-3:])
    return pixels, None if label is None else _labels_of(label, len(pixels), where, ndim == 3)


def _labels_of(label: Any, count: int, where: str, single: bool) -> Tensor:
    """Return the label of one image, or those of a batch."""
    try:
        # Whole numbers of Python, NumPy and torch have an index.
        labels = torch.as_tensor([operator.index(label)] if single else label)
        if labels.shape == (count,) and not labels.is_floating_point():
            return labels
        got = f"{tuple(labels.shape)} of {labels.dtype}"
    except (TypeError, ValueError):
        got = repr(label)
    each = "as the label" if single else f"for each of {count} images as the labels"
    raise InputError(f"expected a whole number {each} of {where}, got {got}")


def as_pixels(image: Any, channels: Channels, what: str) -> Tensor:
    """Return uint8, or float32 or wider, with channels before height and width."""
    if not isinstance(image, Tensor | np.ndarray):
        raise InputError(
            f"expected a tensor, a NumPy array or a Pillow image in {what}, got "
            f"{type(image).__name__}"
        )
    if channels is None and isinstance(image, np.ndarray):
        raise InputError(
            "expected channels='first' or channels='last' with a NumPy array, got neither for "
            f"{what} of shape {image.shape[-3:]}"
        )
    kind = image.dtype.name if isinstance(image, np.ndarray) else str(image.dtype)
    if not kind.endswith("uint8") and "float" not in kind:
        raise InputError(f"expected uint8 or floating point pixels in {what}, got {image.dtype}")
    if isinstance(image, np.ndarray):
        wide = kind if kind == "uint8" else "float64" if image.dtype.itemsize > 4 else "float32"
        # A copy: the array may be read-only, or lie on disk.
        image = torch.from_numpy(np.array(image, wide))
    pixels: Tensor = image.detach()
    if pixels.ndim < 3 or 0 in pixels.shape[-3:]:
        raise InputError(
            f"expected an image of shape (c, h, w) in {what}, got {tuple(pixels.shape)}"
        )
    if channels is None and pixels.shape[-1] in (1, 3) and pixels.shape[-3] not in (1, 3):
        raise InputError(
            f"expected channels first, as torch has them, got {tuple(pixels.shape[-3:])} in "
            f"{what}; state channels='last', or channels='first' if that is what it is"
        )
    pixels = pixels.movedim(-1, -3) if channels == "last" else pixels
    return pixels if pixels.dtype in (torch.uint8, torch.float32, torch.float64) else pixels.float()


def check_pixels(pixels: Tensor, shape: Shape, preprocess: Preprocess | None, where: str) -> Tensor:
    """Return images (n, c, h, w) with floats clamped to [0, 1], if they are of this shape."""
    found = tuple(pixels.shape[1:])
    if found != shape:
        if preprocess and (sheet := preprocess.sheet):
            raise CroppedAlready(
                f"expected files or Pillow images, of which views are made "
                f"({named(sheet.terms)}), got pixels of "
                f"{written(found[1:])} in {where}: give the photographs, or what preprocess(image) "
                f"returns for each, {written(shape[1:])} pixels"
            )
        if preprocess and preprocess.size:
            raise InputError(
                f"expected tensors and arrays of {written(shape[1:])} pixels, the size that "
                f"preprocess states, got {written(found[1:])} in {where}; "
                "only files and Pillow images are resized and cropped"
            )
        raise InputError(
            f"expected images of the shape {shape}, got {found} in {where}; photographs of other "
            "sizes need preprocessing: preprocess=Preprocess(resize=..., crop=..., mean=..., "
            "std=...) (--resize, --crop, --mean, --std)"
        )
    if pixels.dtype == torch.uint8:
        return pixels
    check_range(pixels, lambda row: where)
    return pixels.clamp(0, 1)


def check_range(pixels: Tensor, where: Callable[[int], str]) -> None:
    """Refuse floats outside of [0, 1], up to rounding; `where` names the image of a row."""
    both = torch.stack(as_tensor(pixels, "pixels", "numbers").aminmax())
    low, high = both.tolist()  # one wait for a GPU
    if low >= -_ROUNDING and high <= 1 + _ROUNDING:
        return
    good = (pixels >= -_ROUNDING) & (pixels <= 1 + _ROUNDING)
    place = where(int((~good).flatten(1).any(dim=1).nonzero()[0]))
    got, hint = f"{low:.4g} to {high:.4g}, first", "; give bytes as uint8, or divide by 255"
    if low != low:
        got, hint = "nan", ""
    elif low < 0 or high > 255:
        hint = (
            "; take the normalisation out of the data and put it around the model: "
            "Normalized(model, mean, std)"
        )
    raise InputError(f"expected floating point pixels in [0, 1], got {got} in {place}{hint}")
