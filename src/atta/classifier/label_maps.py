"""Files of a segmenter: label maps and confidence maps as PNG, and what a page shows of an image.

    table.csv                     a line for each image
    table/labels/NAME.png         class numbers, with a palette; 16 bits from 256 classes on
    table/confidence/NAME.png     16 bits: 65535 is a confidence of 1

NAME is the name of the image file, with the folders below the folder that all images share.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from atta._base.errors import InputError
from atta._base.files import whole_file
from atta.classifier.segmenter import Maps
from atta.data.folder import Place
from atta.data.image_set import data_uri

UNSURE = 0.5
"""Pixels of less confidence than this are unsure."""
FULL = 65535


def palette(classes: int) -> np.ndarray:
    """Return a colour for each class, (classes, 3) bytes: those of Pascal VOC."""
    places = 3 * np.arange(8)[:, None] + np.arange(3)
    bits = np.arange(classes)[:, None, None] >> places & 1
    return np.packbits(bits, axis=1)[:, 0]


def names_of(files: Sequence[Place]) -> list[Path]:
    """Return the names of the maps of some files.

    Raises:
        InputError: Two files would have the same name.
    """
    places = [file.absolute() for file in files]
    shared = os.path.commonpath([place.parent for place in places])
    names = [Path(os.path.relpath(place, shared)).with_suffix(".png") for place in places]
    if double := {str(name) for name in names if names.count(name) > 1}:
        raise InputError(
            f"expected image files of different names, got several called {sorted(double)[0]} "
            "but for their endings: predict them one after the other"
        )
    return names


def write_maps(maps: Maps, folder: Path, name: Path, classes: int) -> None:
    """Write the label map and the confidence map of an image, each whole or not at all."""
    from PIL import Image

    few = classes <= 256
    labels = Image.fromarray(maps.labels.numpy().astype(np.uint8 if few else np.uint16))
    if few:
        labels.putpalette(palette(256).tobytes())
    sure = (maps.confidence.double() * FULL).round().numpy().astype(np.uint16)
    for kind, picture in (("labels", labels), ("confidence", Image.fromarray(sure))):
        path = folder / kind / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as part:
            picture.save(part, "png")


def described_map(maps: Maps, classes: int) -> dict[str, Any]:
    """Return the columns of an image: the commonest label, confidence, and the unsure share."""
    counts = torch.bincount(maps.labels.flatten(), minlength=classes)
    return {
        "class": int(counts.argmax()),
        "confidence": float(maps.confidence.double().mean()),
        "unsure": float((maps.confidence < UNSURE).double().mean()),
        "confidence_before": float(maps.before.double().mean()),
    }


def pictures(pixels: Tensor, maps: Maps, classes: int, side: int) -> list[dict[str, Any]]:
    """Return the image, its labels, and confidence before and after, as a page shows them."""
    colours = torch.from_numpy(palette(max(classes, 2)))
    shown = {
        "the image itself": pixels,
        "labels": colours[maps.labels].permute(2, 0, 1),
        "confidence before": (maps.before[None] * 255).round().byte(),
        "confidence after": (maps.confidence[None] * 255).round().byte(),
    }
    return [{"view": name, "picture": data_uri(each, side)} for name, each in shown.items()]
