"""Datasets by name: found in a local folder in whichever layout they are published in, else fetched from the hub.

`load("cifar10", "test", data="folder")` looks into `folder/cifar10`, then into `folder` itself; without `data`, into
`$ATTA_DATA/cifar10`, and then asks the Hugging Face hub. The layouts, in the order they are looked for:

| layout                   | files                                                                                     |
|--------------------------|-------------------------------------------------------------------------------------------|
| one file a split         | `test.safetensors`, as `ImageSet.save` writes it                                          |
| Hugging Face             | `test-*.parquet`, also under `data/`                                                      |
| CIFAR's own              | `cifar-10-batches-py/test_batch`, `cifar-100-python/test`                                 |
| folders of images        | `test/<class>/*.png`; or `<class>/*.png`, which is one split, `train`                     |

Where `folder/cifar10` holds nothing but one folder, as archives and the hub's repositories do, that one is looked into
as well: `aid/AID/<class>`, `ucmerced/UCMerced_LandUse/Images/<class>`, `cifar10/plain_text/test-*.parquet`.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from atta._base.errors import InputError, require, suggest
from atta.data.image_set import ImageSet, arrange, resize, split_indices
from atta.data.layouts import Columns, Reader, listed, subfolders
from atta.lab.layouts import LAYOUTS, hub

__all__ = [
    "NAMES",
    "ImageSet",
    "arrange",
    "load",
    "present",
    "resize",
    "split_indices",
]


@dataclass(frozen=True)
class _Known:
    classes: int
    hub: str | None = None
    columns: tuple[str, str] | None = None
    train_part: float | None = None
    """Of a dataset published in one piece: the part to train on; the rest is the test split."""
    one_split: bool = False
    """There is nothing but `train`, whatever it is called where it lies."""


_KNOWN = {
    "cifar10": _Known(10, "uoft-cs/cifar10", ("img", "label")),
    "cifar100": _Known(100, "uoft-cs/cifar100", ("img", "fine_label")),
    "aid": _Known(30, "blanchon/AID", ("image", "label"), train_part=0.7),
    "ucmerced": _Known(21, "blanchon/UC_Merced", ("image", "label"), one_split=True),
    "fashion-mnist": _Known(10, "zalando-datasets/fashion_mnist", ("image", "label")),
    "digits": _Known(10),
}
NAMES = tuple(_KNOWN)
"""The datasets that need no folder; any other name is that of a folder."""
_SPLITS = ("train", "test", "validation", "val", "all", "full")


def load(
    name: str,
    split: str,
    *,
    data: str | Path | None = None,
    image_size: int | None = None,
    columns: Columns | None = None,
) -> ImageSet:
    """Find a split of a dataset; images come in `image_size` x `image_size` if that is given.

    `columns` names the image and the label of a table in which they cannot be told by their types. AID is published in one
    piece: unless its folder has a test split of its own, 7 of 10 images are "train" and 3 are "test", drawn with seed 0.
    UC-Merced's one piece is "train", whatever it is called where it lies.
    """
    folders = _folders(name, data)
    known = _KNOWN.get(name)
    columns = columns or (known.columns if known else None)
    read = _locate(folders, name, split, columns)
    if read is not None:
        return _checked_and_resized(read(), name, image_size)
    if known is None and all(folder.name != name for folder in folders):
        hint = suggest(name, NAMES)
        raise InputError(
            f"there is no folder {name}: expected the path of one, one of {', '.join(NAMES)}, or the name of a folder in "
            f"`data` (--data, $ATTA_DATA).{hint}"
        )
    if folders or known is None or known.hub is None:
        there = sorted(path.name for folder in folders for path in folder.iterdir())
        raise InputError(
            f"expected the split {split!r} of {name} in {folders[0]}, found {listed(there)}"
        )
    if known.train_part is not None and split in ("train", "test"):
        found = _train_or_test(hub(known.hub, name, "train", columns), known.train_part, split)
    else:
        found = hub(known.hub, name, split, columns)
    return _checked_and_resized(found, name, image_size)


def present(name: str, split: str, data: str | Path | None = None) -> bool:
    """Whether `load` would find the split on this machine; names of files are looked at, nothing is read or fetched."""
    return _locate(_folders(name, data), name, split, None) is not None


def _locate(
    folders: Sequence[Path], name: str, split: str, columns: Columns | None
) -> Reader | None:
    """How to read a split that is on this machine."""
    found = _find(folders, name, split, columns)
    known = _KNOWN.get(name)
    if known is not None and known.train_part is not None and split in ("train", "test"):
        whole, part = _find(folders, name, "train", columns), known.train_part
        if whole is not None and _find(folders, name, "test", columns) is None:
            return lambda: _train_or_test(whole(), part, split)
    if found is None and known is not None and known.one_split and split == "train":
        others = [
            other for name_there in _SPLITS if (other := _find(folders, name, name_there, columns))
        ]
        return others[0] if len(others) == 1 else None
    return partial(_digits, split) if found is None and name == "digits" else found


def _train_or_test(whole: ImageSet, train_part: float, split: str) -> ImageSet:
    n = len(whole)
    train, test = split_indices(n, (round(train_part * n), n - round(train_part * n)))
    return whole.subset(train if split == "train" else test)


def _find(folders: Sequence[Path], name: str, split: str, columns: Columns | None) -> Reader | None:
    for folder in folders:
        for layout in LAYOUTS:
            found = layout(folder, name, split, columns)
            if found is not None:
                return found
    return None


def _folders(name: str, data: str | Path | None) -> list[Path]:
    """Where to look for a dataset, in this order."""
    if data is not None and not Path(data).is_dir():
        raise InputError(f"expected a folder of data, found none at {data}")
    root = os.environ.get("ATTA_DATA") if data is None else data
    if not root:
        return []
    own = Path(root) / name
    return [*(_nested(own, name) if own.is_dir() else []), *([] if data is None else [Path(data)])]


def _nested(folder: Path, name: str) -> list[Path]:
    """The folder of a known dataset, and the one in it, and so on, while there is but one and it is not that of a split."""
    inner = subfolders(folder)
    if name not in _KNOWN or len(inner) != 1 or inner[0].name in _SPLITS:
        return [folder]
    return [folder, *_nested(inner[0], name)]


def _checked_and_resized(images: ImageSet, name: str, size: int | None) -> ImageSet:
    if name in _KNOWN and images.labels is not None and len(images.classes) != _KNOWN[name].classes:
        raise InputError(
            f"expected the {_KNOWN[name].classes} classes of {name}, found {len(images.classes)}: {listed(images.classes)}"
        )
    return images if size is None else images.resized(size)


def _digits(split: str) -> ImageSet:
    with require("sklearn", "the dataset digits"):
        from sklearn.datasets import load_digits
    if split not in ("train", "test"):
        raise InputError(f"expected the split train or test of digits, got {split!r}")
    digits = load_digits()
    images = torch.from_numpy(digits.images[:, None] * (255 / 16)).round().byte()
    n = images.shape[0]
    train, test = split_indices(n, (round(0.6 * n), n - round(0.6 * n)))
    whole = ImageSet(
        "digits",
        images,
        torch.from_numpy(digits.target),
        [str(name) for name in digits.target_names],
    )
    return whole.subset(train if split == "train" else test)
