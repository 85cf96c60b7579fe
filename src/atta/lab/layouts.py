"""Reads the layouts of published datasets: saved sets, parquet files, CIFAR's files, the hub.

Each layout is a function that returns a reader, or None where it does not apply. Finding a layout
looks at file names only; the reader does what takes time and memory.
"""

import pickle
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from atta._base.errors import InputError
from atta.data.folder import Reader, image_folder
from atta.data.image_set import ImageSet
from atta.data.tables import Columns, from_table, library, quiet


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
    "cifar10": (
        "cifar-10-batches-py",
        "batches.meta",
        b"label",
        {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]},
    ),
    "cifar100": (
        "cifar-100-python",
        "meta",
        b"fine_label",
        {"train": ["train"], "test": ["test"]},
    ),
}
"""By name: the folder, the file of class names, the key of the labels, the files of each split."""


def cifar(folder: Path, name: str, split: str, columns: Columns | None) -> Reader | None:
    """CIFAR's own files: `cifar-10-batches-py`, `cifar-100-python`."""
    if name not in _CIFAR:
        return None
    inner, meta, key, splits = _CIFAR[name]
    place = folder / inner if (folder / inner).is_dir() else folder
    batches = [place / file for file in splits.get(split, ())]
    if not batches or not all(file.is_file() for file in (*batches, place / meta)):
        return None
    return partial(_read_cifar, name, batches, place / meta, key)


def _read_cifar(name: str, batches: list[Path], meta: Path, key: bytes) -> ImageSet:
    parts = [_unpickled(batch, b"data", key + b"s") for batch in batches]
    pixels = np.concatenate(
        [np.asarray(part[b"data"], np.uint8).reshape(-1, 3, 32, 32) for part in parts]
    )
    labels = torch.tensor([label for part in parts for label in part[key + b"s"]])
    names = _unpickled(meta, key + b"_names")[key + b"_names"]
    return ImageSet(name, torch.from_numpy(pixels), labels, [item.decode() for item in names])


# The parts of an array in a pickle. Its function moved between releases of NumPy; arrays know it.
_REBUILD = np.empty(0).__reduce__()[0]
_ARRAY_PARTS = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _REBUILD,
    ("numpy._core.multiarray", "_reconstruct"): _REBUILD,
}


class _ArraysOnly(pickle.Unpickler):
    """Reads NumPy arrays in plain containers, as in CIFAR's pickles, and refuses all else."""

    def find_class(self, module: str, name: str) -> Any:
        """The few parts of an array."""
        if (module, name) not in _ARRAY_PARTS:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return _ARRAY_PARTS[module, name]


def _unpickled(path: Path, *keys: bytes) -> dict[bytes, Any]:
    try:
        with path.open("rb") as file:
            content = _ArraysOnly(file, encoding="bytes").load()
    except Exception as error:  # a damaged pickle raises almost anything
        raise InputError(
            f"expected nothing but arrays, lists and text in {path}: {error}"
        ) from error
    if not isinstance(content, dict) or not set(keys) <= content.keys():
        raise InputError(
            f"expected {', '.join(key.decode() for key in keys)} in {path}, as CIFAR's files have"
        )
    return content


LAYOUTS = (saved, parquet, cifar, image_folder)
"""In the order they are looked for."""
