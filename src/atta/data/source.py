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
| .tar and .parquet shards, also by * or {0..9} | samples, once, in their order (`shards`)      |
| a torch dataset or a list              | items: an image, an image and its label, or a dict   |
| a `DataLoader`, an iterable dataset    | its batches, once, in its order                      |

Pixels are bytes, or floats in [0, 1]; other values are refused, never rescaled. There is one rule
for photographs of another size: with a `Preprocess` they are resized and cropped, without one they
are refused. Tensors and arrays are not resized: they must have the size that the `Preprocess`
states. A single tensor, array or image is read as a batch of one. The keys of a dict are `image`,
`images`, `img` or `pixel_values`, and `label`, `labels`, `target` or `targets`.
"""

import hashlib
import operator
import tempfile
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice
from itertools import count as counter
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeAlias, final

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
from atta.data.address import Address, Place, as_place
from atta.data.folder import IMAGES, files_of_images, folder_of_images
from atta.data.image_set import BadImage, EncodedImages, ImageSet, decode, decoded, mode_of
from atta.data.loading import PIECE, Positions, Workers, empty_like, in_parts
from atta.data.photographs import named
from atta.data.preprocess import MODES, Preprocess
from atta.data.shards import Sample, classes_of, samples, shards_of
from atta.data.tables import from_stream, from_table, is_table

Channels: TypeAlias = Literal["first", "last"] | None
Shape: TypeAlias = tuple[int, ...]
Batches: TypeAlias = Iterable[Positions]
Skip: TypeAlias = type[InputError] | None
"""The kind of error that a single image may cause without ending the run."""
Also: TypeAlias = Callable[[int, Any], Mapping[str, Tensor]]
"""Makes more tensors, by name, of an image's place in its set and the upright Pillow image (of its
pixels (c, h, w), where no Pillow image is given)."""

_ROUNDING = 1e-5  # A resize in floats may leave [0, 1] by the last few bits.
_KEYS = (("image", "images", "img", "pixel_values"), ("label", "labels", "target", "targets"))
_SHUFFLING = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
_PIXELS = "pixels"  # the name of `Batch.pixels` among `Batch.more`
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
        more: Further tensors (n, ...), by name: what `ItemSource.also` made of each image.
    """

    positions: Positions
    pixels: Tensor
    labels: Tensor | None = None
    faults: Mapping[int, str] = MappingProxyType({})
    more: Mapping[str, Tensor] = MappingProxyType({})


@dataclass(frozen=True, eq=False, kw_only=True)
class Source(ABC):
    """Images in a fixed order, all of one shape, with what is known about them.

    Args:
        name: How errors call the images.
        count: Number of images; None if only reading to the end tells.
        shape: Channels, height and width of every image.
        dataset: Name of the dataset, for the origin of a record.
        labels: Class numbers that belong to the images, in the order of `classes`.
        classes: Class names of the dataset or the folder.
        indices: Position of each image in the set it comes from; random views are drawn by it.
        files: Path of each image, if the images are files.
        preprocess: How photographs are resized and cropped.
        shuffled: Whether the images come from a loader that shuffles them.
    """

    name: str
    count: int | None
    shape: Shape
    dataset: str | None = None
    labels: Tensor | None = None
    classes: tuple[str, ...] = ()
    indices: Tensor | None = None
    files: list[Place] | None = None
    preprocess: Preprocess | None = None
    shuffled: bool = False

    once = False
    """Whether the images can be read only once, in their own order."""

    @abstractmethod
    def read(self, batches: Batches, workers: Workers = 0, skip: Skip = None) -> Iterator[Batch]:
        """Read batches of images.

        Args:
            batches: Positions of the images of each batch, ascending over all batches.
            workers: Processes that decode files and read datasets ahead; 0 reads in this one.
                "auto" starts some for many files. They change no bit.
            skip: Kind of error that a single image may cause; such images are left out of the
                batch and listed in its `faults`. By default the first error is raised.
        """

    def where(self, position: int) -> str:
        """Name an image in an error message."""
        return f"image {position} of {self.name}"

    def places(self, positions: Positions) -> Tensor:
        """Return the positions of images in the set they come from."""
        rows = torch.as_tensor(positions)
        return rows if self.indices is None else self.indices[rows]

    def _joined(self, parts: Iterable[Batch], count: int) -> Batch:
        return _join(parts, count, self.name, self.shape)

    def part(self, positions: Positions) -> "Source | None":
        """Return a small source of these images alone, for another process; None if none is small.

        Its images count from 0. Use `renumbered` for what is read from it.
        """
        return None

    def subset(self, rows: Tensor) -> "Source":
        """Return the images of these ascending rows."""
        numbers, files = rows.tolist(), self.files
        known = {name: getattr(self, name) for name in Source.__dataclass_fields__} | {
            "count": len(numbers),
            "labels": None if self.labels is None else self.labels[rows],
            "indices": self.places(numbers),
            "files": None if files is None else [files[row] for row in numbers],
        }
        return SubsetSource(**known, source=self, rows=numbers)


def renumbered(batch: Batch, numbers: Mapping[int, int] | Positions) -> Batch:
    """Return a batch whose images have other positions."""
    faults = {numbers[row]: why for row, why in batch.faults.items()}
    return batch._replace(positions=[numbers[row] for row in batch.positions], faults=faults)


def _named(batch: Batch) -> dict[str, Tensor]:
    return {_PIXELS: batch.pixels, **batch.more}


def _join(parts: Iterable[Batch], count: int, name: str, shape: Shape) -> Batch:
    """Join batches of `count` images, or of fewer if some failed, in new tensors."""
    store, labels = dict[str, Tensor](), list[Tensor]()
    positions, faults = list[int](), dict[int, str]()
    for part in parts:
        faults |= part.faults
        rows = slice(len(positions), len(positions) + len(part.positions))
        positions += part.positions
        for key, found in _named(part).items() if part.positions else ():
            kept = store[key] if key in store else empty_like(found, count)
            store[key] = kept = kept.to(_common(kept, found, name))
            kept[rows] = found
        labels += [] if part.labels is None else [part.labels]
    if 0 < sum(map(len, labels)) < len(positions):
        raise InputError(
            f"expected a label with every image or with none, got {sum(map(len, labels))} with "
            f"{len(positions)} images"
        )
    own = torch.cat(labels).long().cpu() if labels else None
    more = {key: each[: len(positions)] for key, each in store.items()}
    return Batch(positions, more.pop(_PIXELS, torch.empty(0, *shape)), own, faults, more)


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
    for first in counter(start, size):
        if stop is not None and first >= stop:
            return
        yield range(first, first + size if stop is None else min(first + size, stop))


def check_pixels(pixels: Tensor, shape: Shape, preprocess: Preprocess | None, where: str) -> Tensor:
    """Return images (n, c, h, w) with floats clamped to [0, 1], if they are of this shape."""
    found = tuple(pixels.shape[1:])
    if found != shape:
        if preprocess and (sheet := preprocess.sheet):
            raise CroppedAlready(
                f"expected files or Pillow images, of which views are made "
                f"({named(sheet.terms)}), got pixels of "
                f"{_by(found[1:])} in {where}: give the photographs, or what preprocess(image) "
                f"returns for each, {_by(shape[1:])} pixels"
            )
        if preprocess and preprocess.size:
            raise InputError(
                f"expected tensors and arrays of {_by(shape[1:])} pixels, the size that "
                f"preprocess states, got {_by(found[1:])} in {where}; "
                "only files and Pillow images are resized and cropped"
            )
        raise BadSize(
            f"expected images of the shape {shape}, got {found} in {where}; photographs of other "
            "sizes need preprocessing: preprocess=Preprocess(resize=..., crop=..., mean=..., "
            "std=...) (--resize, --crop, --mean, --std)"
        )
    if pixels.dtype == torch.uint8:
        return pixels
    check_range(pixels, lambda row: where)
    return pixels.clamp(0, 1)


class BadSize(InputError):
    """An image whose shape differs from that of the others."""


class CroppedAlready(InputError):
    """Pixels where a photograph is needed, of which views are made."""


def _by(sides: Sequence[int]) -> str:
    return " x ".join(map(str, sides))


def check_range(pixels: Tensor, where: Callable[[int], str]) -> None:
    """Refuse floats outside of [0, 1], up to rounding; `where` names the image of a row."""
    low, high = torch.stack(
        as_tensor(pixels, "pixels", "numbers").aminmax()
    ).tolist()  # one wait for a GPU
    if low >= -_ROUNDING and high <= 1 + _ROUNDING:
        return
    rows = (~((pixels >= -_ROUNDING) & (pixels <= 1 + _ROUNDING))).flatten(1).any(dim=1).nonzero()
    place, expected = where(int(rows[0])), "expected floating point pixels in [0, 1]"
    if low != low:
        raise InputError(f"{expected}, got nan in {place}")
    hint = (
        "take the normalisation out of the data and put it around the model: "
        "Normalized(model, mean, std)"
    )
    if low >= 0 and high <= 255:
        hint = "give bytes as uint8, or divide by 255"
    raise InputError(f"{expected}, got {low:.4g} to {high:.4g}, first in {place}; {hint}")


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
    if isinstance(images, Source):
        return images
    known: dict[str, Any] = {"preprocess": preprocess, "channels": channels}
    images = plain(images)
    if shards := shards_of(images):
        return _from_shards(shards, shape, workers, known)
    if isinstance(images, str | Path | Address):
        images = _from_place(as_place(images))
    elif is_table(images):
        images = from_table(images)
    elif isinstance(images, list | tuple) and images and _all(images, str | Path | Address):
        images = files_of_images(list(map(as_place, images)))
    elif hasattr(images, "getbands"):
        images = [images]
    if isinstance(images, ImageSet):
        if channels == "last":
            raise InputError(
                f"channels: {images.name} knows where its channels are, expected None, got 'last'"
            )
        return _from_set(images, shape, skip_bad, known)
    if isinstance(images, Tensor | np.ndarray):
        array = as_tensor(images, "images", "numbers") if isinstance(images, Tensor) else images
        return _from_array(array, shape, known | {"name": "the images"})
    return _from_dataset(images, shape, skip_bad, known)


def _from_place(place: Place) -> ImageSet:
    """Read one image, a saved set, or a folder."""
    if place.suffix.lower() in IMAGES and (place.is_file() or place.is_symlink()):
        return files_of_images([place])
    if place.suffix == ".safetensors" and isinstance(place, Path):
        return ImageSet.load_file(place)
    return folder_of_images(place)


def _all(items: Iterable[object], kind: Any) -> bool:
    return all(isinstance(item, kind) for item in items)


def _none_in(name: str) -> InputError:
    return InputError(f"expected at least one image in {name}, found none")


def _from_array(
    array: Tensor | np.ndarray, shape: Shape | None, known: dict[str, Any]
) -> "ArraySource":
    ends = {"first": array.shape[:1], "last": array.shape[-1:]}.get(
        known["channels"], array.shape[:1] + array.shape[-1:]
    )
    if array.ndim == 3 and set(ends) & (set(shape[:1]) if shape else {1, 3}):
        array = array[None]  # one image
    if array.ndim != 4:
        raise InputError(
            f"expected images of shape (n, c, h, w), got {tuple(array.shape)}; write images[None] "
            "for one image, images[:, None] for grey images without an axis of channels"
        )
    if not array.shape[0]:
        raise _none_in(known["name"])
    # What is wrong for all images is said first.
    empty = _as_pixels(array[:0], known["channels"], known["name"])
    shape, preprocess = shape or tuple(empty.shape[1:]), known["preprocess"]
    if preprocess and preprocess.size:
        shape = (shape[0], *preprocess.size)
    check_pixels(empty.byte(), shape, preprocess, known["name"])
    return ArraySource(count=array.shape[0], shape=shape, array=array, **known)


def _from_set(
    images: ImageSet, shape: Shape | None, skip_bad: bool, known: dict[str, Any]
) -> Source:
    about = ("name", "labels", "classes", "indices")
    known |= {"dataset": images.name} | {name: getattr(images, name) for name in about}
    preprocess = known["preprocess"]
    encoded = (images if preprocess is None else images.preprocessed(preprocess)).images
    if isinstance(encoded, Tensor):
        return _from_array(encoded, shape, known | {"channels": "first"})
    if shape is not None:
        encoded = replace(encoded, mode=mode_of(shape[0]))
    return _from_items(encoded, shape, skip_bad, known | {"files": images.files or None})


def _from_dataset(
    images: Any, shape: Shape | None, skip_bad: bool, known: dict[str, Any]
) -> Source:
    """Make a source of a dataset, a loader, a stream or a list."""
    if is_table(images, "IterableDataset"):
        items, name, classes = from_stream(images)
        batches = _one_by_one(items, name, known["channels"], known["preprocess"])
        known |= {"name": name, "classes": classes, "channels": "first"}
        return _from_batches(batches, shape, known)
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
        dataset = None if isinstance(images, Sequence) else type(images).__name__
        known |= {"name": dataset or "the images", "dataset": dataset}
        return _from_items(images, shape, skip_bad, known | {"classes": _classes_of(images)})
    raise InputError(
        "expected images as a tensor, a NumPy array, an ImageSet, a torch Dataset or DataLoader, "
        f"a Hugging Face dataset or a folder, got {type(images).__name__}"
    )


def _from_items(
    items: Any, shape: Shape | None, skip_bad: bool, known: dict[str, Any]
) -> "ItemSource":
    """Make a source of single images; without a shape, the first image that is read states it."""
    source = ItemSource(count=len(items), shape=shape or (), items=items, **known)
    reason = ""
    for position in range(len(items)):
        if shape is not None:
            return source
        try:
            return replace(source, shape=tuple(source.item(position).pixels.shape[1:]))
        except BadImage as error:
            if not skip_bad:
                raise
            reason = reason or str(error)
    if reason:
        raise InputError(
            f"expected at least one image in {source.name} that can be read, found none: {reason}"
        )
    raise _none_in(source.name)


def _from_batches(
    batches: Iterable[Any], shape: Shape | None, known: dict[str, Any]
) -> "StreamSource":
    """Make a source of batches; without a shape, the first batch states it."""
    iterator, name, preprocess = iter(batches), known["name"], known["preprocess"]
    if (first := next(iterator, None)) is None:
        raise _none_in(name)
    own = tuple(_read(first, known["channels"], None, f"a batch of {name}", 4).pixels.shape[1:])
    if preprocess and preprocess.size:
        own = (own[0], *preprocess.size)
    batches = chain([first], iterator)
    known = {"dataset": name, "count": None} | known
    return StreamSource(shape=shape or own, batches=batches, **known)


def _from_shards(
    shards: Sequence[Address], shape: Shape | None, workers: Workers, known: dict[str, Any]
) -> "StreamSource":
    """Make a source of shards: they are read here, and decoded in processes."""
    left, name = samples(shards), shards[0].name
    if (first := next(left, None)) is None:
        raise _none_in(name)
    own = mode_of(shape[0]) if shape else MODES[getattr(known["preprocess"], "channels", None)]
    mode = own or ("L" if len(decode(first.data, None, None, first.where)) == 1 else "RGB")
    make = partial(_decoded, mode=mode, strict=own is None, preprocess=known["preprocess"])
    size = make([first]).pixels.nbytes
    rest = chain([first], left)
    pieces = iter(lambda: list(islice(rest, PIECE)), [])
    join = partial(_join, name=name, shape=())
    batches = in_parts(make, join, pieces, workers, lambda: size)
    about = {"name": name, "classes": classes_of(shards[0]), "channels": "first"}
    return _from_batches(((one.pixels, one.labels) for one in batches), shape, known | about)


def _decoded(
    piece: Sequence[Sample], mode: str, strict: bool, preprocess: Preprocess | None
) -> Batch:
    """Decode samples of a shard."""
    found = list[Batch]()
    for row, one in enumerate(piece):
        pixels, _ = decoded(one.data, mode, preprocess, one.where, strict=strict)
        label = None if one.label is None else torch.tensor([one.label])
        found.append(Batch([row], pixels[None], label))
    for one, batch in zip(piece, found, strict=True):
        check_pixels(batch.pixels, tuple(found[0].pixels.shape[1:]), preprocess, one.where)
    return _join(found, len(found), "the shards", ())


def _classes_of(dataset: Any) -> tuple[str, ...]:
    """Return the class names of a torch dataset, as torchvision's `ImageFolder` has them."""
    while not hasattr(dataset, "classes") and isinstance(dataset, Subset):
        dataset = dataset.dataset
    found = getattr(dataset, "classes", ())
    return tuple(found) if isinstance(found, list | tuple) and _all(found, str) else ()


# ---- kinds of sources ----------------------------------------------------------------------------


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class ArraySource(Source):
    """A tensor or an array that holds all images; an array on disk is read slice by slice."""

    array: Tensor | np.ndarray
    channels: Channels = None

    def read(self, batches: Batches, workers: Workers = 0, skip: Skip = None) -> Iterator[Batch]:
        """Slice the array."""
        for positions in batches:
            rows: Any = positions
            if isinstance(positions, range):
                rows = slice(positions.start, positions.stop)
            pixels = _as_pixels(self.array[rows], self.channels, self.name)
            if pixels.dtype != torch.uint8:
                names = [self.where(position) for position in positions]
                check_range(pixels, names.__getitem__)
                pixels = pixels.clamp(0, 1)
            yield Batch(positions, pixels)


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class ItemSource(Source):
    """Files or a dataset, of which one item after another is asked for.

    Args:
        items: Encoded images, a dataset or a list.
        channels: Where arrays have their channels.
        also: Makes more of each image where it is decoded, for `Batch.more`: views of the whole
            photograph, say, or the mask beside it. All images have the same names and shapes.
            Processes get it pickled where they do not start by a fork.
    """

    items: Any
    channels: Channels = None
    also: Also | None = None

    def where(self, position: int) -> str:
        """Name the file of an image, if it has one."""
        if isinstance(self.items, EncodedImages):
            return self.items.where(int(self.items.rows[position]))
        return super().where(position)

    def read(self, batches: Batches, workers: Workers = 0, skip: Skip = None) -> Iterator[Batch]:
        """Read the items of each batch, in processes where that is faster.

        A process calls `item` for each image: it decodes the photograph once, makes the network's
        pixels of it, and calls `also`. A list is read here: its Pillow images may share open files.
        A dataset of one's own is read here by default: it may hold what cannot be shared.
        """
        if not isinstance(self.items, EncodedImages):
            workers = workers if isinstance(self.items, Dataset) and workers != "auto" else 0
        make = partial(self._part, skip=skip)
        return in_parts(make, self._joined, batches, workers, self._size)

    def item(self, position: int, skip: Skip = None) -> Batch:
        """Read one image as a batch, or say why it is skipped in an empty one."""
        where = self.where(position)
        also = self.also and partial(self.also, int(self.places([position])))
        try:
            try:
                if isinstance(self.items, EncodedImages):
                    pixels, more = self.items.decoded(position, also)
                    more = {name: each[None] for name, each in more.items()}
                    batch = Batch([position], pixels[None], more=more)
                else:
                    batch = _read(
                        self.items[position], self.channels, self.preprocess, where, also=also
                    )
            except OSError as error:
                raise BadImage(f"expected an image, but {where} cannot be read: {error}") from error
            if self.shape:
                pixels = check_pixels(batch.pixels, self.shape, self.preprocess, where)
                batch = batch._replace(pixels=pixels)
        except InputError as error:
            if skip is None or not isinstance(error, skip):
                raise
            return Batch([], torch.empty(0), faults={position: str(error)})
        return batch._replace(positions=[position])

    def _part(self, positions: Positions, skip: Skip) -> Batch:
        """Read images one by one; worker processes call this."""
        batch = self._joined((self.item(row, skip) for row in positions), len(positions))
        return batch if batch.faults else batch._replace(positions=positions)

    def part(self, positions: Positions) -> "Source | None":
        """Return a source of these files, without the names of all others."""
        items = self.items.part(positions) if isinstance(self.items, EncodedImages) else None
        if items is None:
            return None
        count, places = len(positions), self.places(positions)
        return replace(self, items=items, count=count, indices=places, labels=None, files=None)

    def _size(self) -> int:
        """Return the bytes of an image and of what is made of it."""
        if self.also:
            return sum(each.nbytes for each in _named(self.item(0, InputError)).values())
        return prod(self.shape) * (1 if isinstance(self.items, EncodedImages) else 8)


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class StreamSource(Source):
    """Batches that come in an order of their own: a loader can be read once, from its beginning."""

    batches: Iterable[Any]
    channels: Channels = None
    _kept: deque[Batch] = field(default_factory=deque, init=False)

    once = True

    def read(self, batches: Batches, workers: Workers = 0, skip: Skip = None) -> Iterator[Batch]:
        """Take batches until a range is complete; batches that lie before it are dropped."""
        kept, iterator = self._kept, iter(self.batches)
        end = kept[-1].positions[-1] + 1 if kept else 0
        for positions in batches:
            start, stop = positions[0], positions[-1] + 1
            while end < stop and (item := next(iterator, None)) is not None:
                batch = _read(item, self.channels, None, f"a batch of {self.name}", 4)
                pixels = check_pixels(batch.pixels, self.shape, self.preprocess, self.where(end))
                if len(pixels):
                    rows = range(end, end + len(pixels))
                    kept.append(batch._replace(positions=rows, pixels=pixels))
                    end += len(pixels)
            while len(kept) > 1 and kept[1].positions[0] <= start:
                kept.popleft()
            if end <= start:
                return
            first = kept[0].positions[0]
            whole = self._joined(kept, end - first)
            part = slice(start - first, stop - first)
            yield Batch(
                range(start, min(stop, end)),
                whole.pixels[part],
                None if whole.labels is None else whole.labels[part],
            )


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
    store: Mapping[str, Tensor]
    """Pixels, and the tensors of `Batch.more`, of all images."""

    def where(self, position: int) -> str:
        """Name an image as the source itself does."""
        return self.source.where(position)

    def read(self, batches: Batches, workers: Workers = 0, skip: Skip = None) -> Iterator[Batch]:
        """Read what is not there yet, and everything else from the cache."""
        wanted = [list(positions) for positions in batches]
        missing = [[row for row in rows if not self.known[row]] for rows in wanted]
        fresh = self.source.read((rows for rows in missing if rows), workers, skip)
        for rows, new in zip(wanted, missing, strict=True):
            faults = self._keep(next(fresh)) if new else {}
            good = [row for row in rows if row not in faults]
            more, own = {name: kept[good] for name, kept in self.store.items()}, self.own[good]
            labels = own if len(own) and own.min() >= 0 else None
            yield Batch(good, more.pop(_PIXELS), labels, faults, more)

    def _keep(self, batch: Batch) -> Mapping[int, str]:
        """Keep images that were read, and return what could not be."""
        rows = list(batch.positions)
        for name, found in _named(batch).items() if rows else ():
            _common(self.store[name], found, self.name)
            self.store[name][rows] = found.to(self.store[name].dtype)
        self.known[rows] = True
        if batch.labels is not None:
            self.own[rows] = batch.labels
        return batch.faults


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class SubsetSource(Source):
    """Some rows of another source."""

    source: Source
    rows: list[int]

    def where(self, position: int) -> str:
        """Name an image as the whole source does."""
        return self.source.where(self.rows[position])

    def read(self, batches: Batches, workers: Workers = 0, skip: Skip = None) -> Iterator[Batch]:
        """Read these rows of the whole source."""
        number = {row: position for position, row in enumerate(self.rows)}
        wanted = ([self.rows[position] for position in positions] for positions in batches)
        for batch in self.source.read(wanted, workers, skip):
            yield renumbered(batch, number)

    def part(self, positions: Positions) -> Source | None:
        """Return a source of these rows of the whole source."""
        return self.source.part([self.rows[position] for position in positions])


def cached(source: Source, *, in_memory: bool = False) -> Source:
    """Decode each image of a source once, however often it is read.

    A stream is read now, to its end, because a second pass may yield a different order.
    With `in_memory`, a source of more than 1 GiB of pixels is returned as it is.
    """
    fields = {name: getattr(source, name) for name in Source.__dataclass_fields__}
    if isinstance(source, StreamSource):
        batches = list(source.read(batches_of(256, 0, source.count)))
        whole = source._joined(batches, sum(len(batch.positions) for batch in batches))
        fields |= {"count": len(whole.positions), "labels": whole.labels}
        return ArraySource(**fields, array=whole.pixels, channels="first")
    if not isinstance(source, ItemSource) or source.count is None:
        return source
    # Of an image that cannot be read there is no dtype: the first good one tells.
    each = source.read(([row] for row in range(source.count)), 0, InputError)
    nothing = Batch([], torch.empty(0, *source.shape, dtype=torch.uint8))
    first = _named(next((batch for batch in each if batch.positions), nothing))
    shapes = {name: (source.count, *found.shape[1:]) for name, found in first.items()}
    size = sum(prod(shapes[name]) * found.itemsize for name, found in first.items())
    if size > _MEMORY and in_memory:
        return source
    return CachedSource(
        **fields,
        source=source,
        known=torch.zeros(source.count, dtype=torch.bool),
        own=torch.full((source.count,), -1),
        store={
            name: _empty(shapes[name], found.dtype, size > _MEMORY) for name, found in first.items()
        },
    )


def _empty(shape: Shape, dtype: torch.dtype, in_file: bool) -> Tensor:
    """Make room in memory, or in a temporary file."""
    if not in_file:
        return torch.empty(shape, dtype=dtype)
    with tempfile.TemporaryFile() as file:
        kind = torch.empty(0, dtype=dtype).numpy().dtype
        return torch.from_numpy(np.memmap(file, kind, shape=shape))


def copies(source: Source) -> int:
    """Count the images that occur more than once, without decoding files again.

    Pixels are compared where they are at hand, otherwise up to MOST_HASHED files by their bytes. It
    is 0 for streams, for more files, and for files that are not on this disk.
    """
    whole = source.source if isinstance(source, SubsetSource) else source
    found = Counter[bytes]()
    if isinstance(whole, ArraySource | CachedSource):
        for batch in source.read(batches_of(64, 0, source.count), skip=InputError):
            rows = batch.pixels.flatten(1).contiguous().cpu().numpy()
            found.update(hashlib.blake2b(row, digest_size=16).digest() for row in rows)
    elif len(source.files or ()) <= MOST_HASHED:
        files = [path for path in source.files or () if isinstance(path, Path)]
        with suppress(OSError):  # links that lead nowhere
            sizes = [path.stat().st_size for path in files]
            often = Counter(sizes)
            alike = (path for path, size in zip(files, sizes, strict=True) if often[size] > 1)
            found.update(hashlib.blake2b(path.read_bytes()).digest() for path in alike)
    return sum(count for count in found.values() if count > 1)


# ---- images and labels of one item ---------------------------------------------------------------


def _one_by_one(
    items: Iterator[tuple[Any, Any]], name: str, channels: Channels, preprocess: Preprocess | None
) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Yield each image of a stream as a batch of its own, resized and cropped, with its label."""
    for position in counter():
        where = f"image {position} of {name}"
        try:
            image, label = next(items)
        except StopIteration:
            return
        except OSError as error:
            raise BadImage(f"expected an image, but {where} cannot be read: {error}") from error
        batch = _read((image, label), channels, preprocess, where)
        yield batch.pixels, batch.labels


def _read(
    item: Any,
    channels: Channels,
    preprocess: Preprocess | None,
    where: str,
    ndim: int = 3,
    also: "partial[Mapping[str, Tensor]] | None" = None,
) -> Batch:
    """Return pixels (n, c, h, w) and labels (n) of an image or, with `ndim` 4, of a batch.

    A Pillow image is resized and cropped. The batch has no positions yet.
    """
    label, more = None, None
    if isinstance(item, tuple | list) and len(item) in (1, 2):
        item, label = (*item, None)[:2]
    elif isinstance(item, Mapping):
        images, names = ([key for key in keys if key in item] for keys in _KEYS)
        if len(images) != 1 or len(names) > 1:
            raise InputError(
                f"expected one image ({', '.join(_KEYS[0])}) and at most one label "
                f"({', '.join(_KEYS[1])}) in {where}, got a {type(item).__name__} of "
                f"{', '.join(map(str, item))}: rename or remove keys"
            )
        item, label = item[images[0]], item[names[0]] if names else None
    elif isinstance(item, tuple | list):
        raise InputError(
            f"expected an image, or an image and its label, in {where}, got a "
            f"{type(item).__name__} of {len(item)} things"
        )
    if hasattr(item, "getbands"):
        pixels, more = decoded(item, None, preprocess, where, also)
    else:
        pixels = _as_pixels(item, channels, where)
    if pixels.ndim != ndim:
        expected = "an image of shape (c, h, w)" if ndim == 3 else "batches of shape (n, c, h, w)"
        raise InputError(f"expected {expected}, got {tuple(pixels.shape)} in {where}")
    more = also(pixels) if also and more is None else more or {}
    more = {name: each[None] for name, each in more.items()}
    pixels = pixels.reshape(-1, *pixels.shape[-3:])
    if label is None:
        return Batch([], pixels, more=more)
    return Batch([], pixels, _labels_of(label, len(pixels), where, ndim == 3), more=more)


def _labels_of(label: Any, count: int, where: str, single: bool) -> Tensor:
    """Return the label of one image, or those of a batch."""
    try:
        # Whole numbers of Python, NumPy and torch have an index.
        labels = torch.as_tensor([operator.index(label)] if single else label)
    except (TypeError, ValueError):
        raise InputError(
            f"expected a whole number as the label of {where}, got {label!r}"
        ) from None
    if labels.shape != (count,) or labels.is_floating_point():
        raise InputError(
            f"expected a whole number for each image as the labels of {where}, got "
            f"{tuple(labels.shape)} of {labels.dtype} for {count} images"
        )
    return labels


def _length(loader: DataLoader[Any]) -> int | None:
    if isinstance(loader.dataset, IterableDataset) or loader.batch_size is None:
        return None
    number = len(loader.sampler)  # type: ignore[arg-type]
    return number - number % loader.batch_size if loader.drop_last else number


def _as_pixels(image: Any, channels: Channels, what: str) -> Tensor:
    """Return uint8, or float32 or wider, with channels before height and width."""
    if isinstance(image, np.ndarray):
        if channels is None:
            raise InputError(
                "expected channels='first' or channels='last' with a NumPy array, got neither for "
                f"{what} of shape {image.shape[-3:]}"
            )
        if image.dtype.kind != "f" and image.dtype != np.uint8:
            raise InputError(
                f"expected uint8 or floating point pixels in {what}, got {image.dtype}"
            )
        wide: Any = np.float64 if image.dtype.itemsize > 4 else np.float32
        # A copy: the array may be read-only, or lie on disk.
        pixels = torch.from_numpy(np.array(image, np.uint8 if image.dtype == np.uint8 else wide))
    elif isinstance(image, Tensor):
        pixels = image.detach()
    else:
        raise InputError(
            f"expected a tensor, a NumPy array or a Pillow image in {what}, got "
            f"{type(image).__name__}"
        )
    if pixels.dtype != torch.uint8 and not pixels.is_floating_point():
        raise InputError(f"expected uint8 or floating point pixels in {what}, got {pixels.dtype}")
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
