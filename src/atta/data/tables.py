"""Tables and shards of images: Hugging Face's `datasets`, WebDataset tars and Parquet files.

A table in memory is an `ImageSet`. Streams and shards are read once, in their order, each shard
when its turn comes, on this disk or at an address. A name may stand for many shards:
`s3://bucket/train-{0000..0146}.tar`, `data/*.parquet`.

| shard   | image                                  | label                                       |
|---------|----------------------------------------|---------------------------------------------|
| tar     | KEY.jpg, KEY.png, ...                  | KEY.cls, or "label" in KEY.json, if any     |
| Parquet | the column of bytes, as Hugging Face's | the column label, with its names of classes |
"""

import json
import re
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from os import PathLike
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch

from atta._base.errors import InputError, first_line, require
from atta.data.folder import IMAGES, Address, listed
from atta.data.image_set import EncodedImages, ImageSet, readable

Columns: TypeAlias = tuple[str, str | None]
"""The names of the image column and of the label column, if there is one."""
TAR, PARQUET = ".tar", ".parquet"
LABELS = ("label", "labels", "target", "cls")
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")

# ---- tables and streams --------------------------------------------------------------------------


def is_table(value: object, kind: str = "Dataset") -> bool:
    """Return whether this is a dataset of the library, or its splits; does not import it.

    The kind "IterableDataset" is one that is read item by item.
    """
    datasets = sys.modules.get("datasets")
    return isinstance(value, (getattr(datasets, kind, ()), getattr(datasets, f"{kind}Dict", ())))


def from_stream(table: Any) -> tuple["Iterator[Sample]", str, tuple[str, ...]]:
    """Return the images of a stream, its name, and the names of the classes."""
    name, features = _name_of(table) or "stream", table.features
    if features is None:  # The types of the columns are not stated: the first item shows them.
        first: dict[str, Any] = next(iter(table), {})
        kind = library().Image()
        features = {key: hasattr(one, "getbands") and kind for key, one in first.items()}
    image, label = _columns(features, name)
    label = label or next((key for key in ("label", "labels") if key in features), None)
    classes = getattr(features.get(label), "names", None) or ()

    def samples() -> Iterator[Sample]:
        items = iter(table)
        for row in count():
            where = f"image {row} of {name}"
            with readable(where):
                item = next(items, None)
            if item is None:
                return
            yield Sample(where, item[image], item.get(label))

    return samples(), name, tuple(classes)


def from_table(
    table: Any, name: str | None = None, split: str | None = None, columns: Columns | None = None
) -> ImageSet:
    """Return the images of a table; `columns` names them where their types do not tell."""
    datasets, own = library(), _name_of(table)
    name, split = name or own or "table", split or str(table.split or "all")
    if table.format["type"] == "custom":
        raise InputError(
            f"expected {name} without a transform, which is not applied here: remove it with "
            "reset_format()"
        )
    if table._indices is not None:  # Rows that were selected or shuffled are a list of numbers.
        with quiet(datasets):
            table = table.flatten_indices()
    image, label = columns or _columns(table.features, name)
    if missing := [one for one in (image, label) if one and one not in table.column_names]:
        raise InputError(
            f"expected the columns {', '.join(missing)} in {name}, found "
            f"{listed(table.column_names)}; name them: columns=(image, label)"
        )
    try:
        cells = table.cast_column(image, datasets.Image(decode=False)).data.column(image)
    except Exception as error:  # Arrow's, for a column of anything else
        raise InputError(
            f"expected images in the column {image} of {name}, found {table.features[image]}"
        ) from error
    rows = torch.arange(len(table))
    images = EncodedImages(_Cells(cells), rows, ("row", f"{name}/{split}"))
    if label is None:
        return ImageSet(name, images)
    numbers = table.data.column(label).to_numpy()
    if numbers.dtype.kind not in "iu":
        raise InputError(
            f"expected whole numbers in the column {label} of {name}, found {numbers.dtype}"
        )
    if (numbers < 0).all():  # hidden test labels are all -1: none
        return ImageSet(name, images)
    labels = torch.from_numpy(numbers.astype(np.int64))
    names = getattr(table.features[label], "names", None)
    return ImageSet(name, images, labels, names or list(map(str, range(numbers.max() + 1))))


@dataclass(frozen=True, eq=False)
class _Cells:
    """The image column of a table: the bytes or the path of each image, or nothing."""

    cells: Any

    def __getitem__(self, row: int) -> bytes | Path:
        cell = self.cells[row].as_py() or {}
        if cell.get("bytes") is None and cell.get("path") is not None:
            return Path(cell["path"])
        return bytes(cell.get("bytes") or b"")


def _name_of(table: Any) -> Any:
    """Return the name of a dataset; refuse several splits of one."""
    if isinstance(table, dict):
        raise InputError(
            f"expected one split of a dataset, got {listed(list(table))}: choose one, as in "
            "table['test']"
        )
    return table.info.dataset_name


def _columns(features: Mapping[str, Any], name: str) -> Columns:
    """Find the column of images, and that of classes if there is one, by their types."""
    datasets = library()
    images, labels = (
        [column for column, feature in features.items() if isinstance(feature, kind)]
        for kind in (datasets.Image, datasets.ClassLabel)
    )
    if len(images) != 1 or len(labels) > 1:
        raise InputError(
            f"expected one column of images and at most one of classes in {name}, found the "
            f"columns {listed(list(features))}; name them: columns=(image, label)"
        )
    return images[0], next(iter(labels), None)


def library() -> Any:
    """Import the library `datasets` and return it."""
    with require("data", "a table of images"):
        import datasets
    return datasets


@contextmanager
def quiet(datasets: Any) -> Iterator[None]:
    """Hide progress bars: reading a local table takes a second."""
    shown = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            datasets.enable_progress_bars()


# ---- shards --------------------------------------------------------------------------------------


class Sample(NamedTuple):
    """An image in a shard or a stream: where it is, and its class number if it has one."""

    where: str
    image: Any
    label: int | None


def shards_of(images: object) -> list[Address]:
    """Return the shards that a name or a list of names stands for; none if these are no shards.

    >>> [str(one) for one in shards_of("photos-{08..10}.tar")]
    ['photos-08.tar', 'photos-09.tar', 'photos-10.tar']
    """
    names = images if isinstance(images, list | tuple) else [images]
    if not all(isinstance(name, str | PathLike | Address) for name in names):
        return []
    texts = list(map(str, names))
    if not all(text.endswith((TAR, PARQUET)) for text in texts):
        return []
    return [shard for text in texts for one in _counted(text) for shard in _found(one)]


def _counted(text: str) -> list[str]:
    """Write out ranges in braces."""
    if (found := _RANGE.search(text)) is None:
        return [text]
    first, last = found.groups()
    numbers = (f"{n:0{len(first)}}" for n in range(int(first), int(last) + 1))
    return [one for n in numbers for one in _counted(text.replace(found[0], n, 1))]


def _found(text: str) -> list[Address]:
    """List what a name with `*` stands for, sorted."""
    found = sorted(Address(text).glob()) if "*" in text else [Address(text)]
    if not found:
        raise InputError(f"expected shards of images at {text}, found none")
    return found


def classes_of(shard: Address) -> tuple[str, ...]:
    """Return the names of classes that a Parquet file of Hugging Face states."""
    if shard.suffix != PARQUET:
        return ()
    with _opened(shard) as file:
        schema = _parquet(file).schema_arrow
    with suppress(KeyError, TypeError, ValueError):
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return tuple(map(str, features[_cells(schema, shard)[1]]["names"]))
    return ()


def samples(shards: Sequence[Address]) -> Iterator[Sample]:
    """Read all shards, one after the other."""
    for shard in shards:
        with _opened(shard) as file:
            yield from (_of_parquet if shard.suffix == PARQUET else _of_tar)(file, shard)


@contextmanager
def _opened(shard: Address) -> Iterator[Any]:
    """Open a shard; a damaged one is named."""
    try:
        with shard.open() as file:
            yield file
    except InputError:
        raise
    except (OSError, ValueError, tarfile.TarError, EOFError) as error:  # Arrow's are among these
        raise InputError(
            f"expected a shard of images at {shard}, but it cannot be read: {first_line(error)}"
        ) from error


def _of_tar(file: Any, shard: Address) -> Iterator[Sample]:
    """Group the files of a tar by their names up to the first dot, as WebDataset does."""
    key, parts = "", dict[str, bytes]()
    with tarfile.open(fileobj=file, mode="r|*") as tar:
        for member in tar:
            path = PurePosixPath(member.name)
            stem, _, ending = path.name.partition(".")
            wanted = f".{ending}".lower() in IMAGES or ending in ("cls", "json")
            if not member.isfile() or not wanted or not stem:
                continue
            if (own := str(path.with_name(stem))) != key:
                yield from _sample(f"{key} of {shard}", parts)
                key, parts = own, {}
            inside = tar.extractfile(member)
            parts[ending] = b"" if inside is None else inside.read()
    yield from _sample(f"{key} of {shard}", parts)


def _sample(where: str, parts: dict[str, bytes]) -> Iterator[Sample]:
    """Make a sample of the files with one key."""
    if not parts:
        return
    label, about = parts.pop("cls", None), parts.pop("json", None)
    if len(parts) != 1:
        raise InputError(f"expected one image in {where}, found {', '.join(parts) or 'none'}")
    (data,) = parts.values()
    try:
        known = json.loads(about or b"null") or {}
        value = dict(known).get("label") if label is None else label
        yield Sample(where, data, None if value is None else int(value))
    except (ValueError, TypeError):
        raise InputError(
            f"expected a class number as the label of {where}, got {(label or about or b'')!r}"
        ) from None


def _parquet(file: Any) -> Any:
    """Open a Parquet file."""
    with require("cloud", "images in Parquet"):
        from pyarrow.parquet import ParquetFile
    return ParquetFile(file)


def _of_parquet(file: Any, shard: Address) -> Iterator[Sample]:
    """Read the rows of a Parquet file, few at a time."""
    table, row = _parquet(file), 0
    image, label = _cells(table.schema_arrow, shard)
    for batch in table.iter_batches(batch_size=32, columns=[image, *([label] if label else [])]):
        for cell in batch.to_pylist():
            data = cell[image]["bytes"] if isinstance(cell[image], dict) else cell[image]
            yield Sample(f"row {row} of {shard}", data or b"", cell[label] if label else None)
            row += 1


def _cells(schema: Any, shard: Address) -> Columns:
    """Find the column of images, by its type, and that of class numbers, by its name."""
    kinds = {name: str(schema.field(name).type) for name in schema.names}
    images = [name for name, kind in kinds.items() if "binary" in kind.partition(", path")[0]]
    if len(images) != 1:
        raise InputError(
            f"expected one column of images in {shard}, found {', '.join(images) or 'none'} among "
            f"{', '.join(schema.names)}"
        )
    label = next((name for name in LABELS if kinds.get(name, "").startswith(("int", "uint"))), None)
    return images[0], label
