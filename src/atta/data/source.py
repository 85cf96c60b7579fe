"""Images in, whatever holds them: arrays, sets, datasets, loaders, tables and folders all become a `Source`.

| what you give                              | read as                                                              |
|--------------------------------------------|----------------------------------------------------------------------|
| a tensor                                   | slices; channels first, torch's convention, unless `channels="last"` |
| a NumPy array, a memory-mapped one too     | slices; `channels` must be stated                                    |
| an `ImageSet`, a folder, a saved set       | slices of bytes, or files decoded as they are needed                 |
| a Hugging Face table                       | its column of images, decoded as they are needed                     |
| a Hugging Face dataset that streams        | its column of images, once, in its order                             |
| a file, a list of files, a Pillow image    | decoded as they are needed                                           |
| a torch dataset or a list                  | items: an image, or an image and its label                           |
| a `DataLoader`, an iterable dataset        | its batches, in its order                                            |

Pixels are bytes, or floats in [0, 1]; anything else is refused, never rescaled. A `Source` is read in ranges, so that
work that was interrupted goes on without reading what is done. A `Preprocess` resizes and crops whatever is a photograph:
files, sets, tables and Pillow images. Tensors and arrays are pixels that were cropped before, and have to be of its size.
"""

import operator
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any, Literal, TypeAlias, final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from atta._base.errors import InputError
from atta._base.types import dense
from atta.data.image_set import BadImage, ImageSet, check_depth
from atta.data.layouts import (
    IMAGES,
    files_of_images,
    folder_of_images,
    from_stream,
    from_table,
    is_stream,
    is_table,
)
from atta.data.preprocess import Preprocess, upright

Channels: TypeAlias = Literal["first", "last"] | None
Range: TypeAlias = tuple[int, int]
Block: TypeAlias = tuple[Tensor, Tensor | None]
"""The pixels of a range, n c h w, and its labels where the images bring them along."""

_ROUNDING = 1e-5  # A resize in floats may leave [0, 1] by the last few bits.


class Source(ABC):
    """Images in a fixed order. `count` is None where only reading to the end tells it."""

    def __init__(
        self,
        dataset: str | None,
        count: int | None,
        labels: Tensor | None = None,
        indices: Tensor | None = None,
    ) -> None:
        self.dataset, self.count, self.labels, self.indices = dataset, count, labels, indices
        self.name = dataset or "the images"
        self.shape: tuple[int, ...] | None = None
        self.classes: tuple[str, ...] = ()
        self.preprocess: Preprocess | None = None
        self.files: list[Path] | None = None
        if count == 0:
            raise InputError(f"expected at least one image in {self.name}, found none")

    @abstractmethod
    def read(self, ranges: Iterable[Range], workers: int = 0) -> Iterator[Block]:
        """Give the block of each range; starts never go back. A source that ends early gives a shorter one, or none.

        `workers` threads read ahead where images are read one by one.
        """

    def where(self, position: int) -> str:
        """Name an image in an error."""
        return f"image {position} of {self.name}"

    def places(self, start: int, stop: int) -> Tensor:
        """Where these images stood in the set they come from: what their random views are drawn by."""
        return torch.arange(start, stop) if self.indices is None else self.indices[start:stop]

    def _checked(self, pixels: Tensor, start: int) -> Tensor:
        """Make sure that all images are alike, and are pixels."""
        shape = tuple(pixels.shape[1:])
        if self.preprocess and (size := self.preprocess.size) and shape[1:] != size:
            raise InputError(
                f"expected tensors and arrays to be cropped to {size[0]} x {size[1]}, as preprocess says, got "
                f"{' x '.join(map(str, shape[1:]))} in {self.where(start)}; files and Pillow images are resized and cropped"
            )
        self.shape = self.shape or shape
        if shape != self.shape:
            raise InputError(
                f"expected all images to have the shape {self.shape}, as the first has, got {shape} in "
                f"{self.where(start)}; say what the network wants: preprocess=Preprocess(resize=..., crop=..., mean=..., "
                "std=...) (--resize, --crop, --mean, --std)"
            )
        if pixels.dtype == torch.uint8:
            return pixels
        check_range(pixels, lambda row: self.where(start + row))
        return pixels.clamp(0, 1)


def check_range(pixels: Tensor, where: Callable[[int], str]) -> None:
    """Make sure that floats lie in [0, 1] up to rounding, and name the first image that does not, as `where` does."""
    low, high = torch.stack(dense(pixels, "pixels").aminmax()).tolist()  # a GPU is waited for once
    if low >= -_ROUNDING and high <= 1 + _ROUNDING:
        return
    rows = (~((pixels >= -_ROUNDING) & (pixels <= 1 + _ROUNDING))).flatten(1).any(dim=1).nonzero()
    place, expected = where(int(rows[0])), "expected floating point pixels in [0, 1]"
    if low != low:
        raise InputError(f"{expected}, got nan in {place}")
    hint = "take the normalisation out of the data and put it around the model: Normalized(model, mean, std)"
    if low >= 0 and high <= 255:
        hint = "give bytes as uint8, or divide by 255"
    raise InputError(f"{expected}, got {low:.4g} to {high:.4g}, first in {place}; {hint}")


def as_source(
    images: Any, channels: Channels = None, preprocess: Preprocess | None = None
) -> Source:
    """Make a source of anything that holds images, and say what can be used otherwise."""
    source = _source(images, channels, preprocess)
    source.preprocess = source.preprocess if isinstance(images, Source) else preprocess
    return source


def _source(images: Any, channels: Channels, preprocess: Preprocess | None) -> Source:
    if channels not in (None, "first", "last"):
        raise InputError(f"channels: expected 'first' or 'last', got {channels!r}")
    if isinstance(images, Source):
        return images
    if isinstance(images, str | Path):
        images = _from_path(Path(images))
    elif is_table(images):
        images = from_table(images)
    elif (
        isinstance(images, list | tuple)
        and images
        and all(isinstance(item, str | Path) for item in images)
    ):
        images = files_of_images([Path(item) for item in images])
    elif hasattr(images, "getbands"):
        images = [images]
    if isinstance(images, ImageSet):
        if channels == "last":
            raise InputError(
                f"channels: {images.name} knows where its channels are, expected None, got 'last'"
            )
        source = _from_set(images if preprocess is None else images.preprocessed(preprocess))
        source.classes = images.classes
        encoded = images.images
        if not isinstance(encoded, Tensor) and len(encoded) and encoded.path(0) is not None:
            source.files = [
                path for i in range(len(encoded)) if (path := encoded.path(i)) is not None
            ]
        return source
    if isinstance(images, Tensor | np.ndarray):
        return ArraySource(
            dense(images, "images") if isinstance(images, Tensor) else images, channels
        )
    if is_stream(images):
        items, name, classes = from_stream(images)
        stream = StreamSource(_one_by_one(items, name, channels, preprocess), "first", name)
        stream.classes = classes
        return stream
    if isinstance(images, IterableDataset):
        images = DataLoader(images, batch_size=32)
    if isinstance(images, DataLoader):
        stream = StreamSource(images, channels, type(images.dataset).__name__, _length(images))
        stream.classes = _classes_of(images.dataset)
        return stream
    if isinstance(images, Dataset | Sequence) and hasattr(images, "__len__"):
        each = ItemSource(
            images, channels, None if isinstance(images, Sequence) else type(images).__name__
        )
        each.classes = _classes_of(images)
        return each
    raise InputError(
        "expected images as a tensor, a NumPy array, an ImageSet, a torch Dataset or DataLoader, a Hugging Face dataset "
        f"or a folder, got {type(images).__name__}"
    )


def _classes_of(dataset: Any) -> tuple[str, ...]:
    """The names of the classes of a torch dataset, as torchvision's `ImageFolder` has them, a `Subset` of one as well."""
    while not hasattr(dataset, "classes") and isinstance(dataset, Subset):
        dataset = dataset.dataset
    found = getattr(dataset, "classes", ())
    return (
        tuple(found)
        if isinstance(found, list | tuple) and all(isinstance(name, str) for name in found)
        else ()
    )


def _one_by_one(
    items: Iterator[tuple[Any, Any]], name: str, channels: Channels, preprocess: Preprocess | None
) -> Iterator[tuple[Tensor, list[int] | None]]:
    """Each image of a stream as a batch of its own, resized and cropped, with its label."""
    for position in count():
        where = f"image {position} of {name}"
        try:
            image, label = next(items)
        except StopIteration:
            return
        except OSError as error:
            raise BadImage(f"expected an image, but {where} cannot be read: {error}") from error
        yield (
            _pixels_of(image, channels, preprocess, where)[None],
            None if label is None else [_number_of(label, where)],
        )


def _pixels_of(image: Any, channels: Channels, preprocess: Preprocess | None, where: str) -> Tensor:
    """The pixels of one image; a photograph is resized and cropped."""
    if hasattr(image, "getbands"):
        check_depth(image, where)
        image = preprocess(image) if preprocess else upright(image)
    pixels = _as_pixels(image, channels, where)
    if pixels.ndim != 3:
        raise InputError(
            f"expected an image of shape (c, h, w), got {tuple(pixels.shape)} in {where}"
        )
    return pixels


def _number_of(label: Any, where: str) -> int:
    try:
        return operator.index(label)  # Whole numbers of Python, NumPy and torch have an index.
    except (TypeError, ValueError):
        raise InputError(
            f"expected a whole number as the label of {where}, got {label!r}"
        ) from None


def _from_set(images: ImageSet) -> Source:
    if isinstance(images.images, Tensor):
        return ArraySource(images.images, "first", images.name, images.labels, images.indices)
    encoded = images.images
    return ItemSource(
        encoded,
        None,
        images.name,
        images.labels,
        images.indices,
        lambda position: encoded.where(int(encoded.rows[position])),
    )


def _from_path(path: Path) -> ImageSet:
    if path.suffix.lower() in IMAGES and path.is_file():
        return files_of_images([path])
    return ImageSet.load_file(path) if path.suffix == ".safetensors" else folder_of_images(path)


@final
class ArraySource(Source):
    """A tensor or an array that holds all images; an array on disk is read slice by slice."""

    def __init__(
        self,
        array: Tensor | np.ndarray,
        channels: Channels,
        name: str | None = None,
        labels: Tensor | None = None,
        indices: Tensor | None = None,
    ) -> None:
        if array.ndim != 4:
            raise InputError(f"expected images of shape (n, c, h, w), got {tuple(array.shape)}")
        self.array, self.channels = array, channels
        super().__init__(name, array.shape[0], labels, indices)
        _as_pixels(
            array[:0], channels, self.name
        )  # What is wrong with all of them is said before any work is done.

    def read(self, ranges: Iterable[Range], workers: int = 0) -> Iterator[Block]:
        """Slice."""
        for start, stop in ranges:
            yield (
                self._checked(_as_pixels(self.array[start:stop], self.channels, self.name), start),
                None,
            )


@final
class ItemSource(Source):
    """A dataset that is asked for one item after another."""

    def __init__(
        self,
        items: Any,
        channels: Channels,
        name: str | None = None,
        labels: Tensor | None = None,
        indices: Tensor | None = None,
        where: Callable[[int], str] | None = None,
    ) -> None:
        super().__init__(name, len(items), labels, indices)
        self.items, self.channels, self._where = items, channels, where

    def where(self, position: int) -> str:
        """Name the file of an image, where there is one."""
        return self._where(position) if self._where else super().where(position)

    def read(self, ranges: Iterable[Range], workers: int = 0) -> Iterator[Block]:
        """Read the items of each range, the next range ahead of time if there are workers."""
        if workers == 0:
            for start, stop in ranges:
                yield self._block(start, [self._item(position) for position in range(start, stop)])
            return
        # Threads: decoding releases Python's lock, and nothing has to be pickled.
        pool = ThreadPoolExecutor(workers)
        ahead = deque[tuple[int, list[Future[Block]]]]()
        try:
            for start, stop in ranges:
                ahead.append(
                    (start, [pool.submit(self._item, position) for position in range(start, stop)])
                )
                if len(ahead) > 1:
                    first, items = ahead.popleft()
                    yield self._block(first, [item.result() for item in items])
            for first, items in ahead:
                yield self._block(first, [item.result() for item in items])
        finally:
            pool.shutdown(cancel_futures=True)

    def _item(self, position: int) -> Block:
        try:
            item = self.items[position]
        except OSError as error:
            raise BadImage(
                f"expected an image, but {self.where(position)} cannot be read: {error}"
            ) from error
        image, label = _image_and_label(item, self.where(position))
        pixels = _pixels_of(image, self.channels, self.preprocess, self.where(position))
        return pixels, None if label is None else torch.tensor(
            _number_of(label, self.where(position))
        )

    def fault(self, position: int) -> str | None:
        """What is wrong with an image that cannot be decoded."""
        try:
            self._item(position)
        except BadImage as error:
            return str(error)
        return None

    def _block(self, start: int, items: Sequence[Block]) -> Block:
        pixels = [self._checked(image[None], start + i) for i, (image, _) in enumerate(items)]
        return torch.cat(pixels), _joined([label for _, label in items], torch.stack)


@final
class StreamSource(Source):
    """Batches that come in an order of their own: a loader can be read once, from its beginning."""

    def __init__(
        self, batches: Iterable[Any], channels: Channels, name: str, count: int | None = None
    ) -> None:
        super().__init__(name, count)
        self.channels = channels
        self._batches: Iterator[Any] = iter(batches)
        self._held = deque[Block]()
        self._start = self._stop = 0  # of what is held

    def read(self, ranges: Iterable[Range], workers: int = 0) -> Iterator[Block]:
        """Take batches until a range is covered; what lies before it is dropped."""
        for start, stop in ranges:
            while self._stop < stop and (batch := next(self._batches, None)) is not None:
                self._held.append(self._block(batch))
                self._stop += self._held[-1][0].shape[0]
                self._drop(start)
            self._drop(start)
            if not self._held:
                return
            pixels = torch.cat([part for part, _ in self._held])
            labels = _joined([part for _, part in self._held], torch.cat)
            part = slice(start - self._start, stop - self._start)
            yield pixels[part], None if labels is None else labels[part]

    def _drop(self, start: int) -> None:
        while self._held and self._start + self._held[0][0].shape[0] <= start:
            self._start += self._held.popleft()[0].shape[0]

    def _block(self, batch: Any) -> Block:
        images, label = _image_and_label(batch, f"a batch of {self.name}")
        pixels = _as_pixels(images, self.channels, f"a batch of {self.name}")
        if pixels.ndim != 4:
            raise InputError(
                f"expected batches of shape (n, c, h, w) of {self.name}, got {tuple(pixels.shape)}"
            )
        labels = None if label is None else torch.as_tensor(label)
        if labels is not None and (labels.shape != pixels.shape[:1] or labels.is_floating_point()):
            raise InputError(
                f"expected a whole number an image as the labels of {self.name}, got {tuple(labels.shape)} of "
                f"{labels.dtype} for {pixels.shape[0]} images"
            )
        return self._checked(pixels, self._stop), labels


def _length(loader: DataLoader[Any]) -> int | None:
    if isinstance(loader.dataset, IterableDataset) or loader.batch_size is None:
        return None
    count = len(loader.sampler)  # type: ignore[arg-type]
    return count - count % loader.batch_size if loader.drop_last else count


def _joined(
    labels: Sequence[Tensor | None], join: Callable[[list[Tensor]], Tensor]
) -> Tensor | None:
    known = [label for label in labels if label is not None]
    if 0 < len(known) < len(labels):
        raise InputError(
            f"expected a label with every image or with none, got {len(known)} with {len(labels)} images"
        )
    return join(known).long().cpu() if known else None


def _image_and_label(item: Any, what: str) -> tuple[Any, Any]:
    if isinstance(item, tuple | list) and len(item) in (1, 2):
        return item[0], item[1] if len(item) == 2 else None
    if isinstance(item, Mapping | tuple | list):
        inside = ", ".join(map(str, item)) if isinstance(item, Mapping) else f"{len(item)} things"
        raise InputError(
            f"expected an image, or an image and its label, in {what}, got a {type(item).__name__} of {inside}"
        )
    return item, None


def _as_pixels(image: Any, channels: Channels, what: str) -> Tensor:
    """A tensor of uint8 or float32 or wider, channels before height and width."""
    if hasattr(image, "getbands"):  # Pillow's, whose channels are always last
        array = np.array(image if image.mode in ("L", "RGB") else image.convert("RGB"))
        pixels, channels = torch.from_numpy(array.reshape(*array.shape[:2], -1)), "last"
    elif isinstance(image, np.ndarray):
        if channels is None:
            raise InputError(
                f"expected channels='first' or channels='last' beside a NumPy array, got none for {what} of shape "
                f"{image.shape[-3:]}: nothing guesses which axis holds them"
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
            f"expected a tensor, a NumPy array or a Pillow image in {what}, got {type(image).__name__}"
        )
    if pixels.dtype != torch.uint8 and not pixels.is_floating_point():
        raise InputError(f"expected uint8 or floating point pixels in {what}, got {pixels.dtype}")
    if pixels.ndim < 3 or 0 in pixels.shape[-3:]:
        raise InputError(
            f"expected an image of shape (c, h, w) in {what}, got {tuple(pixels.shape)}"
        )
    if channels is None and pixels.shape[-1] in (1, 3) and pixels.shape[-3] not in (1, 3):
        raise InputError(
            f"expected channels first, as torch has them, got {tuple(pixels.shape[-3:])} in {what}; "
            "state channels='last', or channels='first' if that is what it is"
        )
    pixels = pixels.movedim(-1, -3) if channels == "last" else pixels
    return pixels if pixels.dtype in (torch.uint8, torch.float32, torch.float64) else pixels.float()
