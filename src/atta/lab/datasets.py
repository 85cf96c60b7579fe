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
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from atta._base.errors import InputError, require, suggest
from atta.data.folder import (
    as_place,
    class_files,
    contents,
    files_of_images,
    folder_of_images,
    labelled_by_folder,
    listed,
)
from atta.data.image_set import ImageSet
from atta.data.tables import Columns, from_table, library, quiet

Reader: TypeAlias = Callable[[], ImageSet]
"""Reads a split that was found."""


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
    read = _reader(folders, name, split, columns or known.columns, outside=not folders)
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


def open_images(
    dataset: str,
    split: str,
    *,
    data: str | Path | None = None,
    columns: Columns | None = None,
    shuffle: int | bool = True,
    labelled: bool = False,
) -> tuple[ImageSet, int | None]:
    """Load a folder by its path, or a split of a dataset; return the seed to shuffle by as well.

    `shuffle` is a seed or False. By default only labelled files, which are sorted by class, are
    shuffled, with seed 0. `labelled` says that a table has the labels.
    """
    path = as_place(dataset)
    if path.is_symlink() and not path.exists():
        files_of_images([path]).tensors()  # raises what every entry point says of such a file
    in_folder = data is None and path.is_dir()
    images = (
        folder_of_images(path) if in_folder else load(dataset, split, data=data, columns=columns)
    )
    seed = None if isinstance(shuffle, bool) else shuffle
    if shuffle is True and images.files and (labelled or images.labels is not None):
        seed = 0
    return images, seed


def present(name: str, split: str, data: str | Path | None = None) -> bool:
    """Whether the split is on this machine; this looks at file names only."""
    return _reader(_folders(name, data), name, split) is not None


def _reader(
    folders: list[Path],
    name: str,
    split: str,
    columns: Columns | None = None,
    *,
    outside: bool = False,
) -> Reader | None:
    """The reader of a split, which may be a part of another one, or have another name.

    It is in one of the folders, in scikit-learn or, `outside`, on the hub.
    """
    known = _KNOWN.get(name, _Known())
    part = known.train_part

    def find(split: str) -> Reader | None:
        for folder in folders:
            for layout in LAYOUTS:
                if found := layout(folder, name, split, columns):
                    return found
        if part is not None and split == "test":
            return None  # it is in one piece there
        if name == "digits":
            if split != "train":
                raise InputError(f"expected the split train or test of digits, got {split!r}")
            return _digits
        return partial(hub, known.hub, name, split, columns) if outside and known.hub else None

    if part is not None and split in ("train", "test") and not find("test"):
        whole = find("train")
        return whole and (lambda: _train_or_test(whole(), part, split))
    found = find(split)
    if found is None and known.one_split and split == "train":
        others = [other for name_there in _SPLITS if (other := find(name_there))]
        return others[0] if len(others) == 1 else None
    return found


def _train_or_test(whole: ImageSet, train_part: float, split: str) -> ImageSet:
    n, count = len(whole), round(train_part * len(whole))
    order = torch.randperm(n, generator=torch.Generator().manual_seed(0))
    return whole.subset(order[:count] if split == "train" else order[count:])


def _folders(name: str, data: str | Path | None) -> list[Path]:
    """Where to look for a dataset, in this order: its folder, the only folder in it, and so on."""
    if data is not None and not Path(data).is_dir():
        raise InputError(f"expected a folder of data, found none at {data}")
    root = os.environ.get("ATTA_DATA") if data is None else data
    if not root:
        return []
    inner, found = [Path(root) / name], list[Path]()
    while len(inner) == 1 and inner[0].is_dir() and not (found and inner[0].name in _SPLITS):
        found += inner
        inner = contents(inner[0])[1] if name in _KNOWN else []
    return found if data is None else [*found, Path(data)]


def _digits() -> ImageSet:
    with require("sklearn", "the dataset digits"):
        from sklearn.datasets import load_digits
    digits = load_digits()
    images = torch.from_numpy(digits.images[:, None] * (255 / 16)).round().byte()
    names = [str(name) for name in digits.target_names]
    return ImageSet("digits", images, torch.from_numpy(digits.target), names)


# ---- layouts on disk -----------------------------------------------------------------------------


def saved(folder: Path, name: str, split: str, columns: Columns | None) -> Reader | None:
    """`<split>.safetensors`, as `ImageSet.save` writes it."""
    path = folder / f"{split}.safetensors"
    return partial(ImageSet.load_file, path) if path.is_file() else None


def parquet(folder: Path, name: str, split: str, columns: Columns | None) -> Reader | None:
    """`<split>-*.parquet` with the images inside, as on the Hugging Face hub."""
    patterns = (f"{split}-*.parquet", f"{split}.parquet", f"data/{split}-*.parquet")
    files = sorted(str(path) for pattern in patterns for path in folder.glob(pattern))
    return partial(_read_parquet, files, folder, name, split, columns) if files else None


def _read_parquet(
    files: list[str], folder: Path, name: str, split: str, columns: Columns | None
) -> ImageSet:
    datasets = library()
    try:
        with quiet(datasets):
            table = datasets.load_dataset("parquet", data_files=files, split="train")
    except Exception as error:  # Arrow, the file system and the library raise different ones
        raise InputError(
            f"expected parquet files in {folder}, but they cannot be read: {error}"
        ) from error
    return from_table(table, name, split, columns)


def hub(repository: str, name: str, split: str, columns: Columns | None) -> ImageSet:
    """A dataset of the Hugging Face hub, which the library keeps in its cache."""
    datasets = library()
    try:
        table = datasets.load_dataset(repository, split=split)
    except Exception as error:  # whatever the network, the hub or a wrong split may raise
        raise InputError(
            f"expected the split {split!r} of {repository} on the Hugging Face hub, but it could "
            f"not be fetched ({type(error).__name__}: {error}); "
            f"put a local copy into $ATTA_DATA/{name}"
        ) from error
    return from_table(table, name, split, columns)


_CIFAR = {
    "cifar10": ("cifar-10-batches-py", "batches.meta", b"label", "data_batch_[1-5]", "test_batch"),
    "cifar100": ("cifar-100-python", "meta", b"fine_label", "train", "test"),
}
"""By name: the folder, the file of class names, the key of labels, the files of train and test."""


def cifar(folder: Path, name: str, split: str, columns: Columns | None) -> Reader | None:
    """CIFAR's own files: `cifar-10-batches-py`, `cifar-100-python`."""
    if name not in _CIFAR or split not in ("train", "test"):
        return None
    inner, meta, key, train, test = _CIFAR[name]
    place = folder / inner if (folder / inner).is_dir() else folder
    batches = sorted(place.glob(train if split == "train" else test))
    found = batches and (place / meta).is_file()
    return partial(_read_cifar, name, batches, place / meta, key) if found else None


def _read_cifar(name: str, batches: list[Path], meta: Path, key: bytes) -> ImageSet:
    (names,) = _unpickled(meta, key + b"_names")
    if not _all(names, bytes):
        raise InputError(f"expected names of classes in {meta}, as CIFAR's files have")
    pixels, labels = list[np.ndarray](), list[int]()
    for batch in batches:
        data, numbers = _unpickled(batch, b"data", key + b"s")
        if not _all(numbers, int) or not all(0 <= label < len(names) for label in numbers):
            raise InputError(f"expected labels from 0 to {len(names) - 1} in {batch}")
        shape = (len(numbers), 3, 32, 32)
        match data:
            case _Described(state=(_, _, _Described(made_with=("u1" | b"u1", *_)), False, raw)) if (
                isinstance(raw, bytes) and len(raw) == prod(shape)
            ):
                pixels.append(np.frombuffer(raw, np.uint8).reshape(shape))
            case _:
                raise InputError(f"expected an array of n x 3072 bytes as the data in {batch}")
        labels += numbers
    classes = [item.decode(errors="replace") for item in names]
    images = torch.from_numpy(np.concatenate(pixels))
    return ImageSet(name, images, torch.tensor(labels, dtype=torch.long), classes)


def _all(found: Any, kind: type) -> bool:
    """Whether it is a list of that type."""
    return isinstance(found, list) and all(type(item) is kind for item in found)


class _Described:
    """An array or its type, as a pickle describes it: what it is made with, and its state.

    NumPy's own functions must not be called: with a forged type they read bytes as pointers.
    """

    state: Any = None

    def __init__(self, *made_with: Any) -> None:
        self.made_with = made_with

    def __setstate__(self, state: Any) -> None:
        self.state = state


_ARRAY_PARTS = (
    *(("numpy", "ndarray"), ("numpy", "dtype")),
    *(("numpy.core.multiarray", "_reconstruct"), ("numpy._core.multiarray", "_reconstruct")),
)
"""The names in the pickle of an array, of NumPy 1 and 2."""


class _ArraysOnly(pickle._Unpickler):
    """Reads descriptions of arrays in plain containers, as CIFAR's pickles have; no other objects.

    The version in C allocates gigabytes for a file of a few bytes that numbers its memo high.
    """

    def find_class(self, module: str, name: str) -> Any:
        """Return a stand-in for the few parts of an array."""
        if (module, name) not in _ARRAY_PARTS:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return _Described


def _unpickled(path: Path, *keys: bytes) -> list[Any]:
    """The values of these keys of the dictionary in a file."""
    try:
        content = _ArraysOnly(BytesIO(path.read_bytes()), encoding="bytes").load()
    except Exception as error:  # a damaged pickle raises almost anything
        raise InputError(
            f"expected nothing but arrays, lists and text in {path}: {error}"
        ) from error
    if not isinstance(content, dict) or not set(keys) <= content.keys():
        raise InputError(
            f"expected {', '.join(key.decode() for key in keys)} in {path}, as CIFAR's files have"
        )
    return [content[key] for key in keys]


def image_folder(folder: Path, name: str, split: str, columns: Columns | None) -> Reader | None:
    """Find `<split>/<class>/*.png`, or `<class>/*.png`, which is one split, `train`."""
    place = folder / split
    if not place.is_dir():
        others = (folder / other for other in ("test", "validation", "val"))
        if split != "train" or any(other.is_dir() for other in others):
            return None
        place = folder
    files = class_files(place)
    if not files:
        return None
    # A class that a test split lacks must not shift the numbers of those that follow.
    known = class_files(folder / "train") if place != folder else files
    classes = list(known or files)
    if strange := [label for label in files if label not in classes]:
        raise InputError(
            f"expected the classes of {folder / 'train'} in {place}, found {listed(strange)} as "
            "well"
        )
    return partial(labelled_by_folder, name, files, classes)


LAYOUTS = (saved, parquet, cifar, image_folder)
"""In the order they are looked for."""
