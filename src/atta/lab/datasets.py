"""Loads datasets by name: from a local folder in any published layout, else from the hub.

`load("cifar10", "test", data="folder")` looks into `folder/cifar10`, then into `folder` itself;
without `data`, into `$ATTA_DATA/cifar10`, and then asks the Hugging Face hub. The layouts, in the
order in which they are looked for:

| layout              | files                                                                 |
|---------------------|-----------------------------------------------------------------------|
| one file per split  | `test.safetensors`, as `ImageSet.save` writes it                      |
| Hugging Face        | `test-*.parquet`, also under `data/`                                  |
| CIFAR's own         | `cifar-10-batches-py/test_batch`, `cifar-100-python/test`             |
| folders of images   | `test/<class>/*.png`; or `<class>/*.png`, which is one split, `train` |

If `folder/cifar10` holds only one folder, as archives and repositories of the hub do, that folder
is searched as well: `aid/AID/<class>`, `cifar10/plain_text/test-*.parquet`.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from atta._base.errors import InputError, require, suggest
from atta.data.folder import Reader, listed, subfolders
from atta.data.image_set import ImageSet, split_indices
from atta.data.tables import Columns
from atta.lab.layouts import LAYOUTS, hub


@dataclass(frozen=True)
class _Known:
    classes: int = 0
    hub: str = ""
    columns: Columns | None = None
    train_part: float | None = None
    """The part to train on, of a dataset published in one piece; the rest is the test split."""
    one_split: bool = False
    """Its only split is `train`, whatever it is called in its folder."""


_KNOWN = {
    "cifar10": _Known(10, "uoft-cs/cifar10", ("img", "label")),
    "cifar100": _Known(100, "uoft-cs/cifar100", ("img", "fine_label")),
    "aid": _Known(30, "blanchon/AID", ("image", "label"), train_part=0.7),
    "ucmerced": _Known(21, "blanchon/UC_Merced", ("image", "label"), one_split=True),
    "fashion-mnist": _Known(10, "zalando-datasets/fashion_mnist", ("image", "label")),
    "digits": _Known(10, train_part=0.6),
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
    """Load a split of a dataset.

    Use it for the datasets of the paper, or for any folder in one of the layouts above.

    Args:
        name: One of `NAMES`, or the name of a folder in `data`.
        split: "train", "test" or what the folder has. AID has one piece: 7 of 10 images are
            "train", 3 are "test", drawn with seed 0. UC-Merced's only split is "train".
        data: The folder that holds the datasets; $ATTA_DATA by default.
        image_size: The side that images are resized to; by default they keep their size.
        columns: The image and label columns of a table whose types do not tell them.

    Raises:
        InputError: If the split is neither there nor on the hub.

    >>> load("digits", "test").shape
    (1, 8, 8)
    """
    folders, known = _folders(name, data), _KNOWN.get(name, _Known())
    columns = columns or known.columns
    outside = name == "digits" or bool(known.classes and not folders)
    read = _reader(name, split, partial(_find, folders, name, columns, outside))
    if read is None and not known.classes and all(folder.name != name for folder in folders):
        raise InputError(
            f"there is no folder {name}: expected the path of one, one of {', '.join(NAMES)}, or "
            f"the name of a folder in `data` (--data, $ATTA_DATA).{suggest(name, NAMES)}"
        )
    if read is None:
        there = sorted(path.name for folder in folders for path in folder.iterdir())
        raise InputError(
            f"expected the split {split!r} of {name} in {folders[0]}, found {listed(there)}"
        )
    found = read()
    if known.classes and found.labels is not None and len(found.classes) != known.classes:
        raise InputError(
            f"expected the {known.classes} classes of {name}, "
            f"found {len(found.classes)}: {listed(found.classes)}"
        )
    return found if image_size is None else found.resized(image_size)


def present(name: str, split: str, data: str | Path | None = None) -> bool:
    """Whether the split is on this machine; this looks at file names only."""
    find = partial(_find, _folders(name, data), name, None, False)
    return name == "digits" or _reader(name, split, find) is not None


def _reader(name: str, split: str, find: Callable[[str], Reader | None]) -> Reader | None:
    """The reader of a split, which may be a part of what `find` finds, or have another name."""
    found, known = find(split), _KNOWN.get(name, _Known())
    part = known.train_part
    if part is not None and split in ("train", "test") and not find("test"):
        whole = find("train")
        return whole and (lambda: _train_or_test(whole(), part, split))
    if found is None and known.one_split and split == "train":
        others = [other for name_there in _SPLITS if (other := find(name_there))]
        return others[0] if len(others) == 1 else None
    return found


def _train_or_test(whole: ImageSet, train_part: float, split: str) -> ImageSet:
    n = len(whole)
    train, test = split_indices(n, (round(train_part * n), n - round(train_part * n)))
    return whole.subset(train if split == "train" else test)


def _find(
    folders: list[Path], name: str, columns: Columns | None, outside: bool, split: str
) -> Reader | None:
    """The reader of a split in one of the folders or, `outside`, of the hub or scikit-learn."""
    for folder in folders:
        for layout in LAYOUTS:
            if found := layout(folder, name, split, columns):
                return found
    if not outside or (_KNOWN[name].train_part is not None and split == "test"):
        return None
    if name != "digits":
        return partial(hub, _KNOWN[name].hub, name, split, columns)
    if split != "train":
        raise InputError(f"expected the split train or test of digits, got {split!r}")
    return _digits


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
    """The folder of a known dataset, and the only folder in it, and so on, down to the splits."""
    inner = subfolders(folder)
    if name not in _KNOWN or len(inner) != 1 or inner[0].name in _SPLITS:
        return [folder]
    return [folder, *_nested(inner[0], name)]


def _digits() -> ImageSet:
    with require("sklearn", "the dataset digits"):
        from sklearn.datasets import load_digits
    digits = load_digits()
    images = torch.from_numpy(digits.images[:, None] * (255 / 16)).round().byte()
    names = [str(name) for name in digits.target_names]
    return ImageSet("digits", images, torch.from_numpy(digits.target), names)
