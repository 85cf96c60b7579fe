"""Shards of images: WebDataset tars and Parquet files, on this disk or at an address.

They are read once, in their order, each when its turn comes. A name may stand for many shards:
`s3://bucket/train-{0000..0146}.tar`, `data/*.parquet`.

| shard   | image                                  | label                                       |
|---------|----------------------------------------|---------------------------------------------|
| tar     | KEY.jpg, KEY.png, ...                  | KEY.cls, or "label" in KEY.json, if any     |
| Parquet | the column of bytes, as Hugging Face's | the column label, with its names of classes |
"""

import json
import re
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from atta._base.errors import InputError, first_line, require
from atta.data.address import Address
from atta.data.folder import IMAGES

TAR, PARQUET = ".tar", ".parquet"
LABELS = ("label", "labels", "target", "cls")
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")


class Sample(NamedTuple):
    """An image as it lies in a shard: where, its bytes, and its class number if it has one."""

    where: str
    data: bytes
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
    numbers = range(int(first), int(last) + 1)
    names = (f"{text[: found.start()]}{n:0{len(first)}}{text[found.end() :]}" for n in numbers)
    return [one for name in names for one in _counted(name)]


def _found(text: str) -> list[Address]:
    """List what a name with `*` stands for, sorted."""
    if "*" not in text:
        return [Address(text)]
    found = sorted(Address(text).glob())
    if not found:
        raise InputError(f"expected shards of images at {text}, found none")
    return found


def classes_of(shard: Address) -> tuple[str, ...]:
    """Return the names of classes that a Parquet file of Hugging Face states."""
    if shard.suffix != PARQUET:
        return ()
    with _opened(shard) as file, require("cloud", "images in Parquet"):
        from pyarrow.parquet import read_schema

        schema = read_schema(file)
    _, label = _columns(schema, shard)
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return tuple(map(str, features[label]["names"]))
    except (KeyError, TypeError, ValueError):
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
                yield from _sample(shard, key, parts)
                key, parts = own, {}
            inside = tar.extractfile(member)
            parts[ending] = b"" if inside is None else inside.read()
    yield from _sample(shard, key, parts)


def _sample(shard: Address, key: str, parts: dict[str, bytes]) -> Iterator[Sample]:
    """Make a sample of the files with one key."""
    if not parts:
        return
    label, about = parts.pop("cls", None), parts.pop("json", None)
    where = f"{key} of {shard}"
    if len(parts) != 1:
        raise InputError(f"expected one image in {where}, found {', '.join(parts) or 'none'}")
    (data,) = parts.values()
    try:
        known = json.loads(about or b"null")
        value = label if label is not None else dict(known or {}).get("label")
        yield Sample(where, data, None if value is None else int(value))
    except (ValueError, TypeError):
        raise InputError(
            f"expected a class number as the label of {where}, got {(label or about or b'')!r}"
        ) from None


def _of_parquet(file: Any, shard: Address) -> Iterator[Sample]:
    """Read the rows of a Parquet file, few at a time."""
    with require("cloud", "images in Parquet"):
        from pyarrow.parquet import ParquetFile
    table, row = ParquetFile(file), 0
    image, label = _columns(table.schema_arrow, shard)
    columns = [image, *([label] if label else [])]
    for batch in table.iter_batches(batch_size=32, columns=columns):
        for cell in batch.to_pylist():
            where = f"row {row} of {shard}"
            data = cell[image]["bytes"] if isinstance(cell[image], dict) else cell[image]
            if data is None:
                raise InputError(f"expected an image in {where}, found an empty cell")
            yield Sample(where, data, cell[label] if label else None)
            row += 1


def _columns(schema: Any, shard: Address) -> tuple[str, str | None]:
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
