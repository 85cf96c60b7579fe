"""Sources of images: everything that holds images becomes a `Source`, which is read in batches.

| what you give                          | read as                                              |
|----------------------------------------|------------------------------------------------------|
| a tensor                               | slices; channels first unless `channels="last"`      |
| a NumPy array, also a memory-mapped one| slices; `channels` must be stated                    |
| an `ImageSet`, a folder, a saved set   | slices of bytes, or files decoded when they are read |
| a Hugging Face table                   | its image column, decoded when it is read            |
| a Hugging Face dataset that streams    | its image column, once, in its order                 |
| a file, files, a Pillow image          | decoded when they are read                           |
| an address (s3://, gs://, hf://, ...)  | a folder, a file or files that are not on this disk  |
| .tar and .parquet shards, also by * or {0..9} | samples, once, in their order (`tables`)      |
| a torch dataset or a list              | items: an image, an image and its label, or a dict   |
| a `DataLoader`, an iterable dataset    | its batches, once, in its order                      |

Pixels are bytes, or floats in [0, 1]. There is one rule for photographs of another size: with a
`Preprocess` they are resized and cropped, without one they are refused. Tensors and arrays are not
resized: they must have the size that the `Preprocess` states. A single tensor, array or image is
read as a batch of one.
"""

import hashlib
import tempfile
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice
from itertools import count as counter
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from atta._base.errors import InputError
from atta._base.tensors import as_tensor, plain
from atta.data.folder import (
    IMAGES,
    Address,
    Place,
    as_place,
    files_of_images,
    folder_of_images,
)
from atta.data.image_set import BadImage, EncodedImages, ImageSet, mode_of, readable
from atta.data.items import Channels, Shape, as_pixels, check_pixels, check_range, read_item
from atta.data.loading import PIECE, Positions, Workers, empty_like, in_parts
from atta.data.preprocess import MODES, Preprocess
from atta.data.tables import (
    Sample,
    classes_of,
    from_stream,
    from_table,
    is_table,
    samples,
    shards_of,
)

Batches: TypeAlias = Iterable[Positions]
Skip: TypeAlias = type[InputError] | None
"""The kind of error that a single image may cause without ending the run."""

_SHUFFLING = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
MOST_HASHED = 10_000
"""Files that are compared by their bytes, where they have the same size."""
_MEMORY = 1 << 30  # Bytes of decoded pixels kept in memory; more go to a temporary file.


class Batch(NamedTuple):
    """Images that were read together.

    Args:
        positions: Their positions in the source.
        pixels: Bytes or floats in [0, 1], (n, c, h, w).
        labels: Labels that came with the images.
        faults: Images that could not be read, by position, with the reason; `positions` leaves
            them out.
    """

    positions: Positions
    pixels: Tensor
    labels: Tensor | None = None
    faults: Mapping[int, str] = MappingProxyType({})


@dataclass(frozen=True, eq=False, kw_only=True)
class Source(ABC):
    """Images in a fixed order, all of one shape, with what is known about them.

    Args:
        name: How errors call the images.
        count: Number of images; None if only reading to the end tells.
        shape: Channels, height and width of every image.
        channels: Where arrays have their channels.
        dataset: Name of the dataset, for the origin of a record.
        labels: Class numbers that belong to the images, in the order of `classes`.
        classes: Class names of the dataset or the folder.
        indices: Position of each image in the set it comes from; random views are drawn by it.
        files: Path of each image, if the images are files.
        preprocess: How photographs are resized and cropped.
        shuffled: Whether the images come from a loader that shuffles them.
        rows: Numbers of the images in the whole source, ascending, if this is a subset of it.
    """

    name: str
    count: int | None
    shape: Shape
    channels: Channels = None
    dataset: str | None = None
    labels: Tensor | None = None
    classes: tuple[str, ...] = ()
    indices: Tensor | None = None
    files: list[Place] | None = None
    preprocess: Preprocess | None = None
    shuffled: bool = False
    rows: Sequence[int] | None = None

    once = False
    """Whether the images can be read only once, in their own order."""

    def read(self, batches: Batches, workers: Workers = 0, skip: Skip = None) -> Iterator[Batch]:
        """Read batches of images.

        Args:
            batches: Positions of the images of each batch, ascending over all batches.
            workers: Processes that decode files and read datasets ahead; 0 reads in this one.
                "auto" starts some for many files. They change no bit.
            skip: Kind of error that a single image may cause; such images are left out of the
                batch and listed in its `faults`. By default the first error is raised.
        """
        if self.rows is None:
            return self._read(batches, workers, skip)
        rows, numbers = self.rows, {row: position for position, row in enumerate(self.rows)}
        wanted = ([rows[position] for position in positions] for positions in batches)
        return (renumbered(batch, numbers) for batch in self._read(wanted, workers, skip))

    @abstractmethod
    def _read(self, batches: Batches, workers: Workers, skip: Skip) -> Iterator[Batch]:
        """Read batches of the whole source."""

    def where(self, position: int) -> str:
        """Name an image in an error message."""
        return self._where(position if self.rows is None else self.rows[position])

    def _where(self, row: int) -> str:
        return f"image {row} of {self.name}"

    def places(self, positions: Positions) -> Tensor:
        """Return the positions of images in the set they come from."""
        rows = torch.as_tensor(positions)
        return rows if self.indices is None else self.indices[rows]

    def part(self, positions: Positions) -> "Source | None":
        """Return a small source of these images alone, for another process; None if none is small.

        Its images count from 0. Use `renumbered` for what is read from it.
        """
        return None

    def subset(self, rows: Tensor) -> "Source":
        """Return the images of these ascending rows."""
        numbers, files, own = rows.tolist(), self.files, self.rows
        return replace(
            self,
            count=len(numbers),
            labels=None if self.labels is None else self.labels[rows],
            indices=self.places(numbers),
            files=None if files is None else [files[row] for row in numbers],
            rows=numbers if own is None else [own[row] for row in numbers],
        )

    def _known(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in Source.__dataclass_fields__}


def renumbered(batch: Batch, numbers: Mapping[int, int] | Positions) -> Batch:
    """Return a batch whose images have other positions."""
    faults = {numbers[row]: why for row, why in batch.faults.items()}
    return batch._replace(positions=[numbers[row] for row in batch.positions], faults=faults)


def _join(parts: Iterable[Batch], count: int, name: str, shape: Shape) -> Batch:
    """Join batches of `count` images, or of fewer if some failed, in new tensors."""
    pixels, labels = torch.empty(0, *shape), list[Tensor]()
    positions, faults = list[int](), dict[int, str]()
    for part in parts:
        faults |= part.faults
        labels += [] if part.labels is None else [part.labels]
        if part.positions:
            found = part.pixels
            pixels = pixels if positions else empty_like(found, count)
            pixels = pixels.to(_common(pixels, found, name))
            pixels[len(positions) : len(positions) + len(found)] = found
            positions += part.positions
    own = torch.cat(labels).long().cpu() if labels else None
    if own is not None and 0 < len(own) < len(positions):
        raise InputError(
            f"expected a label with every image or with none, got {len(own)} with "
            f"{len(positions)} images"
        )
    return Batch(positions, pixels[: len(positions)], own, faults)


def _common(one: Tensor, other: Tensor, name: str) -> torch.dtype:
    """Return a dtype for both; torch would join bytes and floats as if both had one scale."""
    if (one.dtype == torch.uint8) != (other.dtype == torch.uint8):
        raise InputError(
            f"expected all images of {name} as uint8, or all as floats in [0, 1], got both"
        )
    return torch.promote_types(one.dtype, other.dtype)


def batches_of(size: int, start: int, stop: int | None) -> Iterator[range]:
    """Yield positions from `start` to `stop`, or without end, `size` at a time.

    >>> list(batches_of(4, 0, 10))
    [range(0, 4), range(4, 8), range(8, 10)]
    """
    firsts = counter(start, size) if stop is None else range(start, stop, size)
    for first in firsts:
        yield range(first, first + size if stop is None else min(first + size, stop))


# ---- kinds of sources ----------------------------------------------------------------------------


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class ArraySource(Source):
    """A tensor or an array that holds all images; an array on disk is read slice by slice."""

    array: Tensor | np.ndarray

    def _read(self, batches: Batches, workers: Workers, skip: Skip) -> Iterator[Batch]:
        for positions in batches:
            whole = isinstance(positions, range)
            rows: Any = slice(positions[0], positions[-1] + 1) if whole else positions
            pixels = as_pixels(self.array[rows], self.channels, self.name)
            if pixels.dtype != torch.uint8:
                names = list(map(self._where, positions))
                check_range(pixels, names.__getitem__)
                pixels = pixels.clamp(0, 1)
            yield Batch(positions, pixels)


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class ItemSource(Source):
    """Files or a dataset, of which one item after another is asked for.

    Args:
        items: Encoded images, a dataset or a list.
    """

    items: Any

    def _where(self, row: int) -> str:
        encoded = isinstance(self.items, EncodedImages)
        return self.items.where(row) if encoded else super()._where(row)

    def _read(self, batches: Batches, workers: Workers, skip: Skip) -> Iterator[Batch]:
        """Read the items of each batch, in processes where that is faster.

        A process calls `item` for each image. A list is read here: its Pillow images may share open
        files. A dataset of one's own is read here by default: it may hold what cannot be shared.
        """
        encoded = isinstance(self.items, EncodedImages)
        if not encoded and (workers == "auto" or not isinstance(self.items, Dataset)):
            workers = 0
        join = partial(_join, name=self.name, shape=self.shape)
        size = prod(self.shape) * (1 if encoded else 8)
        return in_parts(partial(self._part, skip=skip), join, batches, workers, size)

    def item(self, position: int, skip: Skip = None) -> Batch:
        """Read one image as a batch, or say why it is skipped in an empty one."""
        where, labels = self._where(position), None
        try:
            if isinstance(self.items, EncodedImages):
                pixels = self.items[position][None]
            else:
                with readable(where):
                    item = self.items[position]
                pixels, labels = read_item(item, self.channels, self.preprocess, where)
            if self.shape:
                pixels = check_pixels(pixels, self.shape, self.preprocess, where)
        except InputError as error:
            if skip is None or not isinstance(error, skip):
                raise
            return Batch([], torch.empty(0), faults={position: str(error)})
        return Batch([position], pixels, labels)

    def _part(self, positions: Positions, skip: Skip) -> Batch:
        """Read images one by one; worker processes call this."""
        parts = [self.item(row, skip) for row in positions]
        return _join(parts, len(positions), self.name, self.shape)

    def part(self, positions: Positions) -> "Source | None":
        """Return a source of these files, without the names of all others."""
        if self.files is None:
            return None
        few = self.subset(torch.as_tensor(positions))
        known = few._known() | {"labels": None, "files": None, "rows": None}
        return ItemSource(**known, items=self.items.part(few.rows))


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class StreamSource(Source):
    """Batches that come in an order of their own: a loader can be read once, from its beginning."""

    batches: Iterable[Any]
    _kept: deque[Batch] = field(default_factory=deque, init=False)

    once = True

    def _read(self, batches: Batches, workers: Workers, skip: Skip) -> Iterator[Batch]:
        """Take batches until a range is complete; batches that lie before it are dropped."""
        kept, iterator = self._kept, iter(self.batches)
        end = kept[-1].positions[-1] + 1 if kept else 0
        for positions in batches:
            start, stop = positions[0], positions[-1] + 1
            while end < stop and (item := next(iterator, None)) is not None:
                pixels, labels = read_item(item, self.channels, None, f"a batch of {self.name}", 4)
                pixels = check_pixels(pixels, self.shape, self.preprocess, self._where(end))
                if len(pixels):
                    kept.append(Batch(range(end, end + len(pixels)), pixels, labels))
                    end += len(pixels)
            while len(kept) > 1 and kept[1].positions[0] <= start:
                kept.popleft()
            if end <= start:
                return
            first = kept[0].positions[0]
            whole = _join(kept, end - first, self.name, self.shape)
            part, labels = slice(start - first, stop - first), whole.labels
            labels = None if labels is None else labels[part]
            yield Batch(range(start, min(stop, end)), whole.pixels[part], labels)


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class CachedSource(Source):
    """A source whose pixels are decoded once, however often they are read.

    Pixels stay in memory up to 1 GiB; more of them go to a temporary memory-mapped file.
    """

    source: Source
    known: Tensor
    """Which images are there."""
    own: Tensor
    """Labels that came with the images; -1 where there is none."""
    pixels: Tensor
    """The pixels of all images."""

    def _where(self, row: int) -> str:
        return self.source.where(row)

    def _read(self, batches: Batches, workers: Workers, skip: Skip) -> Iterator[Batch]:
        """Read what is not there yet, and everything else from the cache."""
        wanted = [list(positions) for positions in batches]
        missing = [[row for row in rows if not self.known[row]] for rows in wanted]
        fresh = self.source.read((rows for rows in missing if rows), workers, skip)
        for rows, new in zip(wanted, missing, strict=True):
            batch = next(fresh) if new else Batch([], self.pixels)
            if found := list(batch.positions):
                _common(self.pixels, batch.pixels, self.name)
                self.pixels[found] = batch.pixels.to(self.pixels.dtype)
                self.known[found] = True
                if batch.labels is not None:
                    self.own[found] = batch.labels
            good = [row for row in rows if row not in batch.faults]
            own = self.own[good]
            labels = own if len(own) and own.min() >= 0 else None
            yield Batch(good, self.pixels[good], labels, batch.faults)


def cached(source: Source, *, in_memory: bool = False) -> Source:
    """Decode each image of a source once, however often it is read.

    A stream is read now, to its end, because a second pass may yield a different order.
    With `in_memory`, a source of more than 1 GiB of pixels is returned as it is.
    """
    if isinstance(source, StreamSource):
        batches = list(source.read(batches_of(256, 0, source.count)))
        count = sum(len(batch.positions) for batch in batches)
        whole = _join(batches, count, source.name, source.shape)
        known = source._known() | {"count": count, "labels": whole.labels, "channels": "first"}
        return ArraySource(**known, array=whole.pixels)
    if not isinstance(source, ItemSource) or source.count is None:
        return source
    # Of an image that cannot be read there is no dtype: the first good one tells.
    each = source.read(([row] for row in range(source.count)), 0, InputError)
    dtype = next((batch.pixels.dtype for batch in each if batch.positions), torch.uint8)
    shape = (source.count, *source.shape)
    in_file = prod(shape) * dtype.itemsize > _MEMORY
    if in_file and in_memory:
        return source
    pixels = torch.empty(0 if in_file else shape, dtype=dtype)
    if in_file:
        with tempfile.TemporaryFile() as file:
            pixels = torch.from_numpy(np.memmap(file, pixels.numpy().dtype, shape=shape))
    return CachedSource(
        **source._known() | {"rows": None},
        source=source,
        known=torch.zeros(source.count, dtype=torch.bool),
        own=torch.full((source.count,), -1),
        pixels=pixels,
    )


def copies(source: Source) -> int:
    """Count the images that occur more than once, without decoding files again.

    Pixels are compared where they are at hand, otherwise up to MOST_HASHED files by their bytes. It
    is 0 for streams, for more files, and for files that are not on this disk.
    """
    contents: Iterable[Any]
    if isinstance(source, ArraySource | CachedSource):
        batches = source.read(batches_of(64, 0, source.count), skip=InputError)
        contents = (row.contiguous().cpu().numpy() for batch in batches for row in batch.pixels)
    else:
        files = [path for path in source.files or () if isinstance(path, Path) and path.is_file()]
        sizes = [path.stat().st_size for path in files if len(files) <= MOST_HASHED]
        often = Counter(sizes)
        alike = (path for path, size in zip(files, sizes, strict=False) if often[size] > 1)
        contents = (path.read_bytes() for path in alike)
    found = Counter(hashlib.blake2b(content, digest_size=16).digest() for content in contents)
    return sum(count for count in found.values() if count > 1)


# ---- any object to a source ----------------------------------------------------------------------


def as_source(
    images: Any,
    channels: Channels = None,
    preprocess: Preprocess | None = None,
    shape: Shape | None = None,
    skip_bad: bool = False,
    workers: Workers = "auto",
) -> Source:
    """Make a source of anything that holds images.

    Args:
        images: One of the things in the table of this module.
        channels: Where arrays have their channels.
        preprocess: How photographs are resized and cropped.
        shape: Channels, height and width that every image must have; by default those of the
            first image.
        skip_bad: Take the shape of the first image that can be decoded.
        workers: Processes that decode shards; other sources are told when they are read.

    Raises:
        InputError: If this is not something that holds images, or holds none.
    """
    if channels not in (None, "first", "last"):
        raise InputError(f"channels: expected 'first' or 'last', got {channels!r}")
    if isinstance(images := plain(images), Source):
        return images
    known: dict[str, Any] = {"name": "the images", "preprocess": preprocess, "channels": channels}
    if shards := shards_of(images):
        known |= {"name": shards[0].name, "classes": classes_of(shards[0])}
        return _from_samples(samples(shards), shape, workers, known)
    if isinstance(images, str | Path | Address):
        images = _opened(as_place(images))
    elif is_table(images):
        images = from_table(images)
    elif _are_all(images, str | Path | Address) and images:
        images = files_of_images(list(map(as_place, images)))
    elif hasattr(images, "getbands"):
        images = [images]
    if isinstance(images, ImageSet):
        about = ("name", "labels", "classes", "indices")
        known |= {name: getattr(images, name) for name in about}
        known |= {"dataset": images.name, "channels": "first", "files": images.files or None}
        images = (images if preprocess is None else images.preprocessed(preprocess)).images
        if shape is not None and isinstance(images, EncodedImages):
            images = replace(images, mode=mode_of(shape[0]))
    if isinstance(images, Tensor | np.ndarray):
        return _from_array(images, shape, known)
    if isinstance(images, EncodedImages):
        return _from_items(images, shape, skip_bad, known)
    return _from_dataset(images, shape, skip_bad, known)


def _opened(place: Place) -> ImageSet:
    """Read one image, a saved set, or a folder."""
    if place.suffix.lower() in IMAGES and (place.is_file() or place.is_symlink()):
        return files_of_images([place])
    if place.suffix == ".safetensors" and isinstance(place, Path):
        return ImageSet.load_file(place)
    return folder_of_images(place)


def _are_all(items: object, kind: Any) -> bool:
    return isinstance(items, list | tuple) and all(isinstance(item, kind) for item in items)


def _none_in(name: str) -> InputError:
    return InputError(f"expected at least one image in {name}, found none")


def _from_array(
    array: Tensor | np.ndarray, shape: Shape | None, known: dict[str, Any]
) -> ArraySource:
    channels, preprocess, name = known["channels"], known["preprocess"], known["name"]
    if isinstance(array, Tensor):
        array = as_tensor(array, name, "numbers")
    if array.ndim == 3:
        ends = {"first": array.shape[:1], "last": array.shape[-1:]}
        if set(ends.get(channels, array.shape[::2])) & set(shape[:1] if shape else (1, 3)):
            array = array[None]  # one image
    if array.ndim != 4:
        raise InputError(
            f"expected images of shape (n, c, h, w), got {tuple(array.shape)}; write images[None] "
            "for one image, images[:, None] for grey images without an axis of channels"
        )
    if not array.shape[0]:
        raise _none_in(name)
    # What is wrong for all images is said first.
    empty = as_pixels(array[:0], channels, name)
    shape = shape or tuple(empty.shape[1:])
    if preprocess and preprocess.size:
        shape = (shape[0], *preprocess.size)
    check_pixels(empty.byte(), shape, preprocess, name)
    return ArraySource(count=array.shape[0], shape=shape, array=array, **known)


def _from_dataset(
    images: Any, shape: Shape | None, skip_bad: bool, known: dict[str, Any]
) -> Source:
    """Make a source of a dataset, a loader, a stream or a list."""
    if is_table(images, "IterableDataset"):
        items, name, classes = from_stream(images)
        return _from_samples(items, shape, 0, known | {"name": name, "classes": classes})
    if isinstance(images, IterableDataset):
        images = DataLoader(images, batch_size=32)
    if isinstance(images, DataLoader):
        known |= {
            "name": type(images.dataset).__name__,
            "count": _length(images),
            "classes": _classes_of(images.dataset),
            "shuffled": isinstance(images.sampler, _SHUFFLING),
        }
        return _from_batches(images, shape, known)
    if isinstance(images, Dataset | Sequence) and hasattr(images, "__len__"):
        if not isinstance(images, Sequence):
            known |= dict.fromkeys(("name", "dataset"), type(images).__name__)
        return _from_items(images, shape, skip_bad, known | {"classes": _classes_of(images)})
    raise InputError(
        "expected images as a tensor, a NumPy array, an ImageSet, a torch Dataset or DataLoader, "
        f"a Hugging Face dataset or a folder, got {type(images).__name__}"
    )


def _from_items(
    items: Any, shape: Shape | None, skip_bad: bool, known: dict[str, Any]
) -> ItemSource:
    """Make a source of single images; without a shape, the first image that is read states it."""
    source = ItemSource(count=len(items), shape=shape or (), items=items, **known)
    if not source.count:
        raise _none_in(source.name)
    if shape is not None:
        return source
    faults = dict[int, str]()
    for position in range(source.count):
        batch = source.item(position, BadImage if skip_bad else None)
        if batch.positions:
            return replace(source, shape=tuple(batch.pixels.shape[1:]))
        faults |= batch.faults
    raise InputError(
        f"expected at least one image in {source.name} that can be read, found none: {faults[0]}"
    )


def _from_batches(
    batches: Iterable[Any], shape: Shape | None, known: dict[str, Any]
) -> StreamSource:
    """Make a source of batches; without a shape, the first batch states it."""
    iterator, name, preprocess = iter(batches), known["name"], known["preprocess"]
    if (first := next(iterator, None)) is None:
        raise _none_in(name)
    pixels, _ = read_item(first, known["channels"], None, f"a batch of {name}", 4)
    size = (preprocess and preprocess.size) or pixels.shape[2:]
    known = {"dataset": name, "count": None} | known
    known["shape"] = shape or (pixels.shape[1], *size)
    return StreamSource(batches=chain([first], iterator), **known)


def _from_samples(
    left: Iterator[Sample], shape: Shape | None, workers: Workers, known: dict[str, Any]
) -> StreamSource:
    """Make a source of samples: they are taken here, and decoded in processes."""
    name, channels, preprocess = known["name"], known["channels"], known["preprocess"]
    if (first := next(left, None)) is None:
        raise _none_in(name)
    own = mode_of(shape[0]) if shape else MODES[getattr(preprocess, "channels", None)]
    alone = partial(_decoded, channels=channels, preprocess=preprocess)
    mode = own or ("L" if alone([first], mode=None).pixels.shape[1] == 1 else "RGB")
    make = partial(alone, mode=mode, strict=own is None)
    rest = chain([first], left)
    pieces = iter(lambda: list(islice(rest, PIECE)), [])
    join = partial(_join, name=name, shape=())
    batches = in_parts(make, join, pieces, workers, make([first]).pixels.nbytes)
    answers = ((batch.pixels, batch.labels) for batch in batches)
    return _from_batches(answers, shape, known | {"channels": "first"})


def _decoded(
    piece: Sequence[Sample],
    channels: Channels,
    preprocess: Preprocess | None,
    mode: str | None,
    strict: bool = False,
) -> Batch:
    """Decode samples of a shard or a stream."""
    found = list[Batch]()
    for row, (where, image, label) in enumerate(piece):
        item = (image, label)
        pixels, labels = read_item(item, channels, preprocess, where, mode=mode, strict=strict)
        first = found[0].pixels if found else pixels
        check_pixels(pixels, tuple(first.shape[1:]), preprocess, where)
        found.append(Batch([row], pixels, labels))
    return _join(found, len(found), "the shards", ())


def _classes_of(dataset: Any) -> tuple[str, ...]:
    """Return the class names of a torch dataset, as torchvision's `ImageFolder` has them."""
    while not hasattr(dataset, "classes") and isinstance(dataset, Subset):
        dataset = dataset.dataset
    found = getattr(dataset, "classes", ())
    return tuple(found) if _are_all(found, str) else ()


def _length(loader: DataLoader[Any]) -> int | None:
    if isinstance(loader.dataset, IterableDataset) or loader.batch_size is None:
        return None
    number = len(loader.sampler)  # type: ignore[arg-type]
    return number - number % loader.batch_size if loader.drop_last else number
