"""Sources of images: everything that holds images becomes a `Source`, which is read in batches.

| what you give                          | read as                                              |
|----------------------------------------|------------------------------------------------------|
| a tensor                               | slices; channels first unless `channels="last"`      |
| a NumPy array, also a memory-mapped one| slices; `channels` must be stated                    |
| an `ImageSet`, a folder, a saved set   | slices of bytes, or files decoded when they are read |
| a Hugging Face table                   | its image column, decoded when it is read            |
| a Hugging Face dataset that streams    | its image column, once, in its order                 |
| a file, files, a Pillow image          | decoded when they are read                           |
| a torch dataset or a list              | items: an image, or an image and its label           |
| a `DataLoader`, an iterable dataset    | its batches, once, in its order                      |

Pixels are bytes, or floats in [0, 1]; other values are refused, never rescaled. There is one rule
for photographs of another size: with a `Preprocess` they are resized and cropped, without one they
are refused. Tensors and arrays are not resized: they must have the size that the `Preprocess`
states.
"""

import operator
import tempfile
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import chain
from itertools import count as counter
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeAlias, final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, Subset

from atta._base.errors import InputError
from atta._base.tensors import plain
from atta._base.types import dense
from atta.data.folder import IMAGES, files_of_images, folder_of_images
from atta.data.image_set import BadImage, EncodedImages, ImageSet, decode, mode_of
from atta.data.preprocess import Preprocess
from atta.data.tables import from_stream, from_table, is_table

Channels: TypeAlias = Literal["first", "last"] | None
Shape: TypeAlias = tuple[int, ...]
Positions: TypeAlias = Sequence[int]
"""The images of a batch: a range, or a list of ascending numbers."""
Batches: TypeAlias = Iterable[Positions]
Skip: TypeAlias = type[InputError] | None
"""The kind of error that a single image may cause without ending the run."""

_ROUNDING = 1e-5  # A resize in floats may leave [0, 1] by the last few bits.
_MEMORY = 1 << 30  # Bytes of decoded pixels kept in memory; more go to a temporary file.


class Batch(NamedTuple):
    """Images that were read together: positions, pixels (n, c, h, w), labels, and what failed."""

    positions: Positions
    pixels: Tensor
    labels: Tensor | None = None
    faults: Mapping[int, str] = MappingProxyType({})
    """Images that could not be read, by position, with the reason; `positions` leaves them out."""


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
    """

    name: str
    count: int | None
    shape: Shape
    dataset: str | None = None
    labels: Tensor | None = None
    classes: tuple[str, ...] = ()
    indices: Tensor | None = None
    files: list[Path] | None = None
    preprocess: Preprocess | None = None

    once = False
    """Whether the images can be read only once, in their own order."""

    @abstractmethod
    def read(self, batches: Batches, workers: int = 0, skip: Skip = None) -> Iterator[Batch]:
        """Read batches of images.

        Args:
            batches: Positions of the images of each batch, ascending over all batches.
            workers: Threads that decode the next batch meanwhile.
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

    def subset(self, rows: Tensor) -> "Source":
        """Return the images of these ascending rows."""
        numbers, files = rows.tolist(), self.files
        return SubsetSource(
            name=self.name,
            count=len(numbers),
            shape=self.shape,
            dataset=self.dataset,
            labels=None if self.labels is None else self.labels[rows],
            classes=self.classes,
            indices=self.places(numbers),
            files=None if files is None else [files[row] for row in numbers],
            preprocess=self.preprocess,
            source=self,
            rows=numbers,
        )


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


def _by(sides: Sequence[int]) -> str:
    return " x ".join(map(str, sides))


def check_range(pixels: Tensor, where: Callable[[int], str]) -> None:
    """Refuse floats outside of [0, 1], up to rounding; `where` names the image of a row."""
    low, high = torch.stack(dense(pixels, "pixels").aminmax()).tolist()  # one wait for a GPU
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
) -> Source:
    """Make a source of anything that holds images.

    Args:
        images: One of the things in the table of this module.
        channels: Where arrays have their channels.
        preprocess: How photographs are resized and cropped.
        shape: Channels, height and width that every image must have; by default those of the
            first image.
        skip_bad: Take the shape of the first image that can be decoded.

    Raises:
        InputError: If this is not something that holds images, or holds none.
    """
    if channels not in (None, "first", "last"):
        raise InputError(f"channels: expected 'first' or 'last', got {channels!r}")
    if isinstance(images, Source):
        return images
    images = plain(images)
    if isinstance(images, str | Path):
        images = _from_path(Path(images))
    elif is_table(images):
        images = from_table(images)
    elif isinstance(images, list | tuple) and images and _all(images, str | Path):
        images = files_of_images([Path(item) for item in images])
    elif hasattr(images, "getbands"):
        images = [images]
    if isinstance(images, ImageSet):
        if channels == "last":
            raise InputError(
                f"channels: {images.name} knows where its channels are, expected None, got 'last'"
            )
        return _from_set(images, preprocess, shape, skip_bad)
    if isinstance(images, Tensor | np.ndarray):
        array = dense(images, "images") if isinstance(images, Tensor) else images
        return _from_array(array, channels, preprocess, shape, name="the images")
    return _from_dataset(images, channels, preprocess, shape, skip_bad)


def _all(items: Iterable[object], kind: Any) -> bool:
    return all(isinstance(item, kind) for item in items)


def _from_path(path: Path) -> ImageSet:
    if path.suffix.lower() in IMAGES and (path.is_file() or path.is_symlink()):
        return files_of_images([path])
    return ImageSet.load_file(path) if path.suffix == ".safetensors" else folder_of_images(path)


def _none_in(name: str) -> InputError:
    return InputError(f"expected at least one image in {name}, found none")


def _from_array(
    array: Tensor | np.ndarray,
    channels: Channels,
    preprocess: Preprocess | None,
    shape: Shape | None,
    **known: Any,
) -> Source:
    if array.ndim != 4:
        raise InputError(f"expected images of shape (n, c, h, w), got {tuple(array.shape)}")
    if not array.shape[0]:
        raise _none_in(known["name"])
    empty = _as_pixels(array[:0], channels, known["name"])  # wrong for all: said first
    shape = shape or tuple(empty.shape[1:])
    if preprocess and preprocess.size:
        shape = (shape[0], *preprocess.size)
    check_pixels(empty.byte(), shape, preprocess, known["name"])
    return ArraySource(
        count=array.shape[0],
        shape=shape,
        preprocess=preprocess,
        array=array,
        channels=channels,
        **known,
    )


def _from_set(
    images: ImageSet, preprocess: Preprocess | None, shape: Shape | None, skip_bad: bool
) -> Source:
    known: dict[str, Any] = {
        "name": images.name,
        "dataset": images.name,
        "labels": images.labels,
        "classes": images.classes,
        "indices": images.indices,
    }
    encoded = (images if preprocess is None else images.preprocessed(preprocess)).images
    if isinstance(encoded, Tensor):
        return _from_array(encoded, "first", preprocess, shape, **known)
    if shape is not None:
        encoded = replace(encoded, mode=mode_of(shape[0]))
    files = images.files or None
    return _from_items(encoded, None, preprocess, shape, skip_bad, files=files, **known)


def _from_dataset(
    images: Any,
    channels: Channels,
    preprocess: Preprocess | None,
    shape: Shape | None,
    skip_bad: bool,
) -> Source:
    """Make a source of a dataset, a loader, a stream or a list."""
    if is_table(images, "IterableDataset"):
        items, name, classes = from_stream(images)
        batches: Iterable[Any] = _one_by_one(items, name, channels, preprocess)
        return _from_batches(batches, "first", preprocess, shape, name=name, classes=classes)
    if isinstance(images, IterableDataset):
        images = DataLoader(images, batch_size=32)
    if isinstance(images, DataLoader):
        return _from_batches(
            images,
            channels,
            preprocess,
            shape,
            name=type(images.dataset).__name__,
            count=_length(images),
            classes=_classes_of(images.dataset),
            shuffled=isinstance(images.sampler, RandomSampler),
        )
    if isinstance(images, Dataset | Sequence) and hasattr(images, "__len__"):
        dataset = None if isinstance(images, Sequence) else type(images).__name__
        known = {"name": dataset or "the images", "dataset": dataset}
        classes = _classes_of(images)
        return _from_items(images, channels, preprocess, shape, skip_bad, classes=classes, **known)
    raise InputError(
        "expected images as a tensor, a NumPy array, an ImageSet, a torch Dataset or DataLoader, "
        f"a Hugging Face dataset or a folder, got {type(images).__name__}"
    )


def _from_items(
    items: Any,
    channels: Channels,
    preprocess: Preprocess | None,
    shape: Shape | None,
    skip_bad: bool,
    **known: Any,
) -> Source:
    """Make a source of single images; without a shape, the first image that is read states it."""
    source = ItemSource(
        count=len(items),
        shape=shape or (),
        preprocess=preprocess,
        items=items,
        channels=channels,
        **known,
    )
    reason = ""
    for position in range(len(items)):
        if shape is not None:
            return source
        try:
            return replace(source, shape=tuple(source.item(position)[0].shape))
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
    batches: Iterable[Any],
    channels: Channels,
    preprocess: Preprocess | None,
    shape: Shape | None,
    *,
    name: str,
    count: int | None = None,
    **known: Any,
) -> Source:
    """Make a source of batches; without a shape, the first batch states it."""
    iterator = iter(batches)
    if (first := next(iterator, None)) is None:
        raise _none_in(name)
    own = tuple(_batch_pixels(first, channels, name)[0].shape[1:])
    if preprocess and preprocess.size:
        own = (own[0], *preprocess.size)
    return StreamSource(
        name=name,
        dataset=name,
        count=count,
        shape=shape or own,
        preprocess=preprocess,
        batches=chain([first], iterator),
        channels=channels,
        **known,
    )


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

    def read(self, batches: Batches, workers: int = 0, skip: Skip = None) -> Iterator[Batch]:
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
    """Files or a dataset, of which one item after another is asked for."""

    items: Any
    channels: Channels = None

    def where(self, position: int) -> str:
        """Name the file of an image, if it has one."""
        if isinstance(self.items, EncodedImages):
            return self.items.where(int(self.items.rows[position]))
        return super().where(position)

    def read(self, batches: Batches, workers: int = 0, skip: Skip = None) -> Iterator[Batch]:
        """Read the items of each batch; threads decode the next batch meanwhile."""

        def item(position: int) -> tuple[Tensor, Tensor | None] | str:
            try:
                return self.item(position)
            except InputError as error:
                if skip is None or not isinstance(error, skip):
                    raise
                return str(error)

        if workers == 0:
            for positions in batches:
                yield self._batch(positions, [item(position) for position in positions])
            return
        # Threads: decoding releases Python's lock, and nothing has to be pickled.
        pool = ThreadPoolExecutor(workers)
        ahead = deque[tuple[Positions, list[Future[Any]]]]()
        try:
            for positions in batches:
                ahead.append((positions, [pool.submit(item, position) for position in positions]))
                if len(ahead) > 1:
                    first, items = ahead.popleft()
                    yield self._batch(first, [one.result() for one in items])
            for first, items in ahead:
                yield self._batch(first, [one.result() for one in items])
        finally:
            pool.shutdown(cancel_futures=True)

    def item(self, position: int) -> tuple[Tensor, Tensor | None]:
        """Read one image and its label."""
        where = self.where(position)
        try:
            found = self.items[position]
        except OSError as error:
            raise BadImage(f"expected an image, but {where} cannot be read: {error}") from error
        image, label = _image_and_label(found, where)
        pixels = _pixels_of(image, self.channels, self.preprocess, where)
        if self.shape:
            pixels = check_pixels(pixels[None], self.shape, self.preprocess, where)[0]
        return pixels, None if label is None else torch.tensor(_number_of(label, where))

    def _batch(
        self, positions: Positions, items: Sequence[tuple[Tensor, Tensor | None] | str]
    ) -> Batch:
        pairs = list(zip(positions, items, strict=True))
        faults = {position: item for position, item in pairs if isinstance(item, str)}
        good = [item for item in items if not isinstance(item, str)]
        pixels = [pixels for pixels, _ in good]
        _check_one_kind(pixels, self.name)
        return Batch(
            [position for position in positions if position not in faults] if faults else positions,
            torch.stack(pixels) if pixels else torch.empty(0, *self.shape),
            _joined([label for _, label in good], torch.stack),
            faults,
        )


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class StreamSource(Source):
    """Batches that come in an order of their own: a loader can be read once, from its beginning."""

    batches: Iterable[Any]
    channels: Channels = None
    shuffled: bool = False
    """Whether this is a loader that shuffles."""
    _kept: deque[tuple[int, Tensor, Tensor | None]] = field(default_factory=deque, init=False)

    once = True

    def read(self, batches: Batches, workers: int = 0, skip: Skip = None) -> Iterator[Batch]:
        """Take batches until a range is complete; batches that lie before it are dropped."""
        kept, iterator = self._kept, iter(self.batches)
        for positions in batches:
            start, stop = positions[0], positions[-1] + 1
            while not kept or kept[-1][0] + kept[-1][1].shape[0] < stop:
                if (batch := next(iterator, None)) is None:
                    break
                first = kept[-1][0] + kept[-1][1].shape[0] if kept else 0
                kept.append((first, *self._checked(batch, first)))
            while len(kept) > 1 and kept[1][0] <= start:
                kept.popleft()
            if not kept or kept[-1][0] + kept[-1][1].shape[0] <= start:
                return
            pixels = torch.cat([part for _, part, _ in kept])
            labels = _joined([part for *_, part in kept], torch.cat)
            part = slice(start - kept[0][0], stop - kept[0][0])
            found = pixels[part]
            rows = range(start, start + found.shape[0])
            yield Batch(rows, found, None if labels is None else labels[part])

    def _checked(self, batch: Any, start: int) -> tuple[Tensor, Tensor | None]:
        pixels, labels = _batch_pixels(batch, self.channels, self.name)
        return check_pixels(pixels, self.shape, self.preprocess, self.where(start)), labels


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class CachedSource(Source):
    """A source whose pixels are decoded once, however often they are read.

    Pixels stay in memory up to 1 GiB; more of them go to a temporary memory-mapped file.
    """

    source: Source
    pixels: Tensor
    known: Tensor
    own: Tensor
    """Labels that came with the images; -1 where there is none."""

    def where(self, position: int) -> str:
        """Name an image as the source itself does."""
        return self.source.where(position)

    def read(self, batches: Batches, workers: int = 0, skip: Skip = None) -> Iterator[Batch]:
        """Read what is not there yet, and everything else from the cache."""
        wanted = [list(positions) for positions in batches]
        missing = [[row for row in rows if not self.known[row]] for rows in wanted]
        fresh = self.source.read((rows for rows in missing if rows), workers, skip)
        for rows, new in zip(wanted, missing, strict=True):
            faults: Mapping[int, str] = {}
            if new:
                batch = next(fresh)
                faults = batch.faults
                if len(batch.positions):
                    _check_one_kind([self.pixels, batch.pixels], self.name)
                self.pixels[list(batch.positions)] = batch.pixels.to(self.pixels.dtype)
                self.known[list(batch.positions)] = True
                if batch.labels is not None:
                    self.own[list(batch.positions)] = batch.labels
            good = [row for row in rows if row not in faults]
            own = self.own[good]
            yield Batch(
                good, self.pixels[good], own if len(own) and own.min() >= 0 else None, faults
            )


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class SubsetSource(Source):
    """Some rows of another source."""

    source: Source
    rows: list[int]

    def where(self, position: int) -> str:
        """Name an image as the whole source does."""
        return self.source.where(self.rows[position])

    def read(self, batches: Batches, workers: int = 0, skip: Skip = None) -> Iterator[Batch]:
        """Read these rows of the whole source."""
        number = {row: position for position, row in enumerate(self.rows)}
        wanted = ([self.rows[position] for position in positions] for positions in batches)
        for batch in self.source.read(wanted, workers, skip):
            positions = [number[row] for row in batch.positions]
            faults = {number[row]: why for row, why in batch.faults.items()}
            yield batch._replace(positions=positions, faults=faults)


def cached(source: Source, *, in_memory: bool = False) -> Source:
    """Decode each image of a source once, however often it is read.

    A stream is read now, to its end, because a second pass may yield a different order.
    With `in_memory`, a source of more than 1 GiB of pixels is returned as it is.
    """
    if isinstance(source, StreamSource):
        batches = list(source.read(batches_of(256, 0, source.count)))
        own = [batch.labels for batch in batches if batch.labels is not None]
        return ArraySource(
            name=source.name,
            count=sum(len(batch.positions) for batch in batches),
            shape=source.shape,
            dataset=source.dataset,
            labels=torch.cat(own) if own else None,
            classes=source.classes,
            preprocess=source.preprocess,
            array=torch.cat([batch.pixels for batch in batches]),
            channels="first",
        )
    if not isinstance(source, ItemSource) or source.count is None:
        return source
    # Of an image that cannot be read there is no dtype: the first good one tells.
    each = source.read(([row] for row in range(source.count)), 0, InputError)
    first = next((batch for batch in each if len(batch.positions)), None)
    dtype = torch.uint8 if first is None else first.pixels.dtype
    shape = (source.count, *source.shape)
    large = torch.Size(shape).numel() * dtype.itemsize > _MEMORY
    if large and in_memory:
        return source
    pixels = torch.empty(shape, dtype=dtype)
    if large:
        kind = {torch.uint8: np.uint8, torch.float32: np.float32}.get(dtype, np.float64)
        with tempfile.TemporaryFile() as file:
            pixels = torch.from_numpy(np.memmap(file, kind, shape=shape))
    fields = {name: getattr(source, name) for name in Source.__dataclass_fields__}
    return CachedSource(
        **fields,
        source=source,
        pixels=pixels,
        known=torch.zeros(source.count, dtype=torch.bool),
        own=torch.full((source.count,), -1),
    )


# ---- images and labels of one item ---------------------------------------------------------------


def _one_by_one(
    items: Iterator[tuple[Any, Any]], name: str, channels: Channels, preprocess: Preprocess | None
) -> Iterator[tuple[Tensor, list[int] | None]]:
    """Yield each image of a stream as a batch of its own, resized and cropped, with its label."""
    for position in counter():
        where = f"image {position} of {name}"
        try:
            image, label = next(items)
        except StopIteration:
            return
        except OSError as error:
            raise BadImage(f"expected an image, but {where} cannot be read: {error}") from error
        labels = None if label is None else [_number_of(label, where)]
        yield _pixels_of(image, channels, preprocess, where)[None], labels


def _pixels_of(image: Any, channels: Channels, preprocess: Preprocess | None, where: str) -> Tensor:
    """Return the pixels of one image; a Pillow image is resized and cropped."""
    if hasattr(image, "getbands"):  # Pillow's
        return decode(image, None, preprocess, where)
    pixels = _as_pixels(image, channels, where)
    if pixels.ndim != 3:
        raise InputError(
            f"expected an image of shape (c, h, w), got {tuple(pixels.shape)} in {where}"
        )
    return pixels


def _batch_pixels(batch: Any, channels: Channels, name: str) -> tuple[Tensor, Tensor | None]:
    """Return the pixels and the labels of a batch of a loader."""
    images, label = _image_and_label(batch, f"a batch of {name}")
    pixels = _as_pixels(images, channels, f"a batch of {name}")
    if pixels.ndim != 4:
        raise InputError(
            f"expected batches of shape (n, c, h, w) of {name}, got {tuple(pixels.shape)}"
        )
    labels = None if label is None else torch.as_tensor(label)
    if labels is not None and (labels.shape != pixels.shape[:1] or labels.is_floating_point()):
        raise InputError(
            f"expected a whole number for each image as the labels of {name}, got "
            f"{tuple(labels.shape)} of {labels.dtype} for {pixels.shape[0]} images"
        )
    return pixels, labels


def _number_of(label: Any, where: str) -> int:
    try:
        return operator.index(label)  # Whole numbers of Python, NumPy and torch have an index.
    except (TypeError, ValueError):
        raise InputError(
            f"expected a whole number as the label of {where}, got {label!r}"
        ) from None


def _length(loader: DataLoader[Any]) -> int | None:
    if isinstance(loader.dataset, IterableDataset) or loader.batch_size is None:
        return None
    number = len(loader.sampler)  # type: ignore[arg-type]
    return number - number % loader.batch_size if loader.drop_last else number


def _check_one_kind(pixels: Sequence[Tensor], name: str) -> None:
    """Refuse a mixture of bytes and floats, which torch would join as if both had one scale."""
    if len({each.dtype == torch.uint8 for each in pixels}) > 1:
        raise InputError(
            f"expected all images of {name} as uint8, or all as floats in [0, 1], got both"
        )


def _joined(
    labels: Sequence[Tensor | None], join: Callable[[list[Tensor]], Tensor]
) -> Tensor | None:
    known = [label for label in labels if label is not None]
    if 0 < len(known) < len(labels):
        raise InputError(
            f"expected a label with every image or with none, got {len(known)} with "
            f"{len(labels)} images"
        )
    return join(known).long().cpu() if known else None


def _image_and_label(item: Any, what: str) -> tuple[Any, Any]:
    if isinstance(item, tuple | list) and len(item) in (1, 2):
        return item[0], item[1] if len(item) == 2 else None
    if isinstance(item, Mapping | tuple | list):
        inside = ", ".join(map(str, item)) if isinstance(item, Mapping) else f"{len(item)} things"
        raise InputError(
            f"expected an image, or an image and its label, in {what}, got a "
            f"{type(item).__name__} of {inside}"
        )
    return item, None


def _as_pixels(image: Any, channels: Channels, what: str) -> Tensor:
    """Return uint8, or float32 or wider, with channels before height and width."""
    if isinstance(image, np.ndarray):
        if channels is None:
            raise InputError(
                "expected channels='first' or channels='last' with a NumPy array, got neither for "
                f"{what} of shape {image.shape[-3:]}"
            )
        if image.dtype.kind not in "uf" or (image.dtype.kind == "u" and image.dtype != np.uint8):
            raise InputError(
                f"expected uint8 or floating point pixels in {what}, got {image.dtype}"
            )
        wide = (
            np.uint8
            if image.dtype == np.uint8
            else np.float64
            if image.dtype.itemsize > 4
            else np.float32
        )
        pixels = torch.from_numpy(
            np.array(image, wide)
        )  # A copy: it may be read-only, or lie on disk.
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
