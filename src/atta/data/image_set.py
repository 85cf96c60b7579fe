"""Labelled images that are decoded when they are used, and the file that keeps them.

Every dataset becomes an `ImageSet`. It works as a torch dataset; `tensors()` decodes everything.
"""

import io
import json
import pickle
import re
import signal
import sys
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from jaxtyping import Int, UInt8
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Dataset

from atta._base.errors import InputError, require
from atta._base.tensors import read_tensors, write_tensors
from atta.data.preprocess import MODES, Preprocess

if TYPE_CHECKING:
    from PIL import Image

    from atta.data.folder import Place

Bytes: TypeAlias = UInt8[Tensor, "n c h w"]
"""Pixels as they are stored: 0 to 255."""
Pixels: TypeAlias = UInt8[Tensor, "c h w"]
AS_IT_IS = Preprocess()


class BadImage(InputError):
    """A file that is damaged or not an image: `skip_bad` leaves it out."""


@contextmanager
def readable(where: str) -> Iterator[None]:
    """Say which image it is that a dataset cannot read."""
    try:
        yield
    except OSError as error:
        raise BadImage(f"expected an image, but {where} cannot be read: {error}") from error


@dataclass(frozen=True, eq=False)
class EncodedImages:
    """Images that are decoded one by one.

    Colour images become RGB. If no mode is given, a set whose first image is grey is grey, and a
    colour image in it is an error.

    Args:
        items: What `decode` takes, by number: a list of files, the cells of a table, or pixels.
        rows: Numbers of the images among the items.
        name: Names items that are not files in an error message: "row" and "the table", say.
        folder: Where relative names of files begin.
        size: Side to which images are resized.
        preprocess: How images are resized and cropped instead.
        mode: Pillow's mode that images are converted to, "L" or "RGB".
    """

    items: Any
    rows: Int[Tensor, "n"]
    name: tuple[str, str] = ("image", "")
    folder: Path | None = None
    size: int | None = None
    preprocess: Preprocess = AS_IT_IS
    mode: str | None = None

    def __len__(self) -> int:
        return self.rows.shape[0]

    def __getitem__(self, index: int) -> Pixels:
        own = self.mode or MODES[self.preprocess.channels]
        mode = own or ("L" if self.grey else "RGB")
        item, where = self._item(int(self.rows[index]))
        pixels = decode(item, mode, self.preprocess, where, strict=own is None)
        return pixels if self.size is None else resize(pixels[None], self.size)[0]

    def _item(self, row: int) -> tuple[Any, str]:
        """Return what `decode` takes, and how errors call it."""
        item = self.items[row]
        if not isinstance(self.items, list):
            return item, f"{self.name[0]} {row} of {self.name[1]}"
        relative = self.folder is not None and isinstance(item, Path)
        return self.folder / item if relative else item, str(item)

    def where(self, index: int) -> str:
        """Name an image in an error message."""
        return self._item(int(self.rows[index]))[1]

    @property
    def files(self) -> "list[Place]":
        """The path of each image, if the images are files."""
        files = self.items if isinstance(self.items, list) else []
        return [files[row] for row in self.rows.tolist() if files]

    def part(self, positions: Sequence[int]) -> "EncodedImages":
        """Return these files alone, without the names of all others, decoded alike."""
        files = [self.items[row] for row in self.rows[torch.as_tensor(positions)].tolist()]
        part = replace(self, items=files, rows=torch.arange(len(files)))
        if self.mode is None:
            vars(part)["grey"] = self.grey
        return part

    @cached_property
    def grey(self) -> bool:
        """Whether the first image of the whole set is grey, so that subsets decode alike.

        If it cannot be decoded, the first image that can be decides.
        """
        for row in (0, *self.rows.sort().values.tolist()):
            item, where = self._item(row)
            with suppress(BadImage):
                return len(decode(item, None, self.preprocess, where)) == 1
        return False


def decode(
    source: "Place | bytes | Image.Image | Tensor",
    mode: str | None,
    preprocess: Preprocess | None,
    where: str,
    *,
    strict: bool = False,
    sent: bool = False,
) -> Pixels:
    """Decode one image, and resize and crop it. This is the only place that decodes images.

    Args:
        source: A path, an address, the bytes of a file, a Pillow image, or pixels.
        mode: "L" or "RGB"; None keeps grey images grey.
        preprocess: How the image is resized and cropped; None leaves its size.
        where: Names the image in an error message.
        strict: Refuse to convert colour to grey.
        sent: The bytes come from a stranger: check their format and size before unpacking them.

    Raises:
        BadImage: If this is not an image, a damaged one, or one that takes too long to decode.
    """
    with require("data", "decoding images"):
        from PIL import Image
    image: Any = _picture(source) if isinstance(source, Tensor) else source
    try:
        image = image.read_bytes() if hasattr(image, "read_bytes") else image
        if isinstance(image, bytes):
            data, image = image, Image.open(io.BytesIO(image), formats=SENT if sent else None)
            if image.format in ("JPEG", "MPO") and _scans(data) > MOST_SCANS:
                raise BadImage(f"expected at most {MOST_SCANS} scans in the JPEG {where}, got more")
        too_long = max(image.size) > MOST_ASPECT * min(image.size)
        if sent and (too_long or prod(image.size) > MOST_PIXELS):
            raise BadImage(
                f"expected an image at most {MOST_ASPECT} times as long as wide, of at most "
                f"{MOST_PIXELS // 10**6} million pixels, got {image.size[0]} x {image.size[1]}"
            )
        if image.mode.startswith(("I", "F")):  # Pillow would cut off what is above 255
            raise BadImage(f"expected 8 bits a channel in {where}, found the mode {image.mode}")
        if not (strict and mode == "L" and image.mode not in ("1", "L")):
            return (preprocess or AS_IT_IS)(image, mode)
    except BadImage:
        raise
    except (OSError, SyntaxError, ValueError, MemoryError, Image.DecompressionBombError) as error:
        why = str(error).partition(" <")[0] or "it takes too much memory"  # no address of a buffer
        raise BadImage(f"expected an image in {where}, but it cannot be decoded: {why}") from error
    raise InputError(
        f"expected grey as in the first image of the set, got colour in {where}: "
        "Preprocess(channels='RGB'), or a mean of three numbers (--mean), reads all in colour"
    )


_MARKER = re.compile(rb"\xff[^\x00\x01\xd0-\xd8\xff]")  # with a length after it, but for the end


def _scans(data: bytes) -> int:
    """Count the scans of the first image in a JPEG file; each costs a pass over all pixels."""
    count, place = 0, 2
    while (marker := _MARKER.search(data, place)) and marker[0] != b"\xff\xd9":
        count += marker[0] == b"\xff\xda"
        place = marker.end() + int.from_bytes(data[marker.end() : marker.end() + 2], "big")
    return count


class ImageSet(Dataset[tuple[Tensor, int]]):
    """Images, their labels if there are any, and the names of the classes.

    `indices` is the position of each image in the set it comes from. Random views and shifts depend
    on it, so that a subset gets the same ones.
    """

    def __init__(
        self,
        name: str,
        images: Tensor | EncodedImages,
        labels: Tensor | None = None,
        classes: Sequence[str] = (),
        indices: Tensor | None = None,
    ) -> None:
        if isinstance(images, Tensor) and (
            images.dtype != torch.uint8 or images.ndim != 4 or 0 in images.shape[1:]
        ):
            raise InputError(
                f"expected the images of {name} as uint8 of shape (n, c, h, w), got {images.dtype} "
                f"of shape {tuple(images.shape)}"
            )
        for what, numbers in (("labels", labels), ("indices", indices)):
            if numbers is not None and (
                numbers.shape != (len(images),) or numbers.is_floating_point()
            ):
                raise InputError(
                    f"expected {len(images)} whole numbers as the {what} in {name}, got "
                    f"{numbers.dtype} of shape {tuple(numbers.shape)}"
                )
        if labels is not None and not ((labels >= 0) & (labels < len(classes))).all():
            raise InputError(
                f"expected labels from 0 to {len(classes) - 1} in {name}, which has "
                f"{len(classes)} classes, got {labels.min()} to {labels.max()}"
            )
        self.name, self.images, self.classes = name, images, tuple(classes)
        self.labels = None if labels is None else labels.long()
        self.indices = torch.arange(len(images)) if indices is None else indices.long()

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.images[index], -1 if self.labels is None else int(self.labels[index])

    @property
    def files(self) -> "list[Place]":
        """The path of each image, if the images are files."""
        return [] if isinstance(self.images, Tensor) else self.images.files

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of the first image."""
        if not len(self):
            raise InputError(f"expected at least one image in {self.name}, found none")
        c, h, w = self.images[0].shape
        return c, h, w

    def tensors(self) -> Bytes:
        """Decode every image."""
        shape = self.shape
        if isinstance(self.images, Tensor):
            return self.images
        everything = torch.empty(len(self), *shape, dtype=torch.uint8)
        for i, place in enumerate(everything):
            if (image := self.images[i]).shape != shape:
                raise InputError(
                    f"expected all images of {self.name} to be {shape} as the first is, image {i} "
                    f"is {tuple(image.shape)}; give an image size to resize them to"
                )
            place.copy_(image)
        return everything

    def decoded(self) -> "ImageSet":
        """Return the same set held in memory."""
        return self._with(self.tensors())

    def resized(self, size: int) -> "ImageSet":
        """Return the set with every image `size` x `size`; encoded images are resized later."""
        if isinstance(self.images, Tensor):
            return self._with(resize(self.images, size))
        return self._with(replace(self.images, size=size))

    def _with(self, images: Tensor | EncodedImages, rows: Any = slice(None)) -> "ImageSet":
        labels = None if self.labels is None else self.labels[rows]
        return ImageSet(self.name, images, labels, self.classes, self.indices[rows])

    def preprocessed(self, preprocess: Preprocess) -> "ImageSet":
        """Return the set with every image resized and cropped when it is decoded."""
        encoded = self.images
        if isinstance(encoded, Tensor):
            if preprocess.resize is preprocess.crop is None:
                return self
            # A set in memory may be larger after resizing: its images are made one by one, too.
            encoded = EncodedImages(encoded, torch.arange(len(encoded)), ("image", self.name))
        if encoded.size is not None:
            raise InputError(
                "expected images that are not resized before they are preprocessed, got a size of "
                f"{encoded.size}"
            )
        return self._with(replace(encoded, preprocess=preprocess))

    def subset(self, indices: Tensor | Sequence[int]) -> "ImageSet":
        """The images at these positions, in this order."""
        rows, images = torch.as_tensor(indices, dtype=torch.long), self.images
        if isinstance(images, Tensor):
            return self._with(images[rows], rows)
        return self._with(replace(images, rows=images.rows[rows]), rows)

    def save(self, path: str | Path) -> None:
        """Write images, labels and class names as one safetensors file."""
        tensors = {"images": self.tensors(), "indices": self.indices}
        tensors |= {} if self.labels is None else {"labels": self.labels}
        write_tensors(path, tensors, {"name": self.name, "classes": json.dumps(self.classes)})

    @staticmethod
    def load_file(path: str | Path) -> "ImageSet":
        """Read what `save` wrote."""
        tensors, metadata = read_tensors(path)
        if "images" not in tensors or not {"name", "classes"} <= metadata.keys():
            raise InputError(
                f"expected images, a name and classes in {path}, found "
                f"{', '.join([*tensors, *metadata])}"
            )
        classes = None
        with suppress(ValueError, RecursionError):
            classes = json.loads(metadata["classes"])
        if not isinstance(classes, list) or not all(isinstance(one, str) for one in classes):
            raise InputError(f"expected a list of names as the classes in {path}: save it again")
        labels, indices = tensors.get("labels"), tensors.get("indices")
        return ImageSet(metadata["name"], tensors["images"], labels, classes, indices)


def arrange(
    images: ImageSet,
    *,
    by_name: bool = False,
    shuffle: int | None = None,
    rows: slice | None = None,
    image_size: int | None = None,
) -> "ImageSet":
    """Order by file name, shuffle, cut and resize, in this order; each image keeps its index.

    The index of an image in a folder ordered by name is its position in that order: the same files,
    sorted into classes in any way, are shuffled and drawn alike.
    """
    if by_name:
        keys = sorted((path.name, str(path), i) for i, path in enumerate(images.files))
        images = images.subset([i for *_, i in keys])
        images = ImageSet(images.name, images.images, images.labels, images.classes)
    if shuffle is not None:
        generator = torch.Generator().manual_seed(shuffle)
        images = images.subset(torch.randperm(len(images), generator=generator))
    if rows is not None:
        images = images.subset(torch.arange(len(images))[rows])
    return images if image_size is None else images.resized(image_size)


def mode_of(channels: int) -> str:
    """Return the mode of Pillow for this number of channels."""
    modes = {1: "L", 3: "RGB"}
    if channels not in modes:
        raise InputError(
            f"expected 1 channel (grey) or 3 (RGB) to decode images into, got {channels}"
        )
    with require("data", "decoding images"):
        import PIL  # noqa: F401
    return modes[channels]


SENT = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
"""Formats that may be sent, by their names in Pillow."""
MOST_PIXELS, MOST_ASPECT = 25_000_000, 50
"""Limits for images that were sent: a few bytes may claim any size, and resizing the short edge of
a very long image takes any amount of memory. Files of one's own have Pillow's limit,
`PIL.Image.MAX_IMAGE_PIXELS`, which is an error from twice that number on."""
MOST_SCANS = 100
"""Limit for all JPEG files: cameras and editors write 1 to about 20 scans."""


def resize(images: Bytes, size: int) -> UInt8[Tensor, "n c h2 w2"]:
    """Resize to `size` x `size`, bilinear and antialiased."""
    if size < 1:
        raise InputError(f"expected a size of at least 1 pixel, got {size}")
    side = (size, size)
    if images.shape[-2:] == side:
        return images
    # In pieces: float32 takes four times the bytes, and a whole dataset of them may not fit.
    pieces = (
        F.interpolate(piece.float(), side, mode="bilinear", antialias=True)
        for piece in torch.split(images, 512)
    )
    return torch.cat([piece.round().clamp(0, 255).byte() for piece in pieces])


def data_uri(image: Tensor, side: int | None = None) -> str:
    """Return an image as the data URI of a PNG, or of a JPEG with no edge longer than `side`."""
    picture, buffer = _picture(image), io.BytesIO()
    kind = "png" if side is None else "jpeg"
    if side is not None:
        picture.thumbnail((side, side))
    picture.save(buffer, kind, quality=80)
    return f"data:image/{kind};base64,{b64encode(buffer.getvalue()).decode()}"


def _picture(image: Tensor) -> "Image.Image":
    """Make a Pillow image of bytes, or of floats in [0, 1]."""
    from PIL import Image

    if image.ndim != 3 or image.shape[0] not in (1, 3):
        raise InputError(
            f"expected an image of 1 or 3 channels to encode, got the shape {tuple(image.shape)}"
        )
    pixels = image if image.dtype == torch.uint8 else (image.clamp(0, 1) * 255).round().byte()
    array = pixels.cpu().permute(1, 2, 0).numpy()
    return Image.fromarray(array[..., 0] if array.shape[2] == 1 else array)


def decode_requests(seconds: float, memory: int) -> None:
    """Decode what arrives on standard input until it ends: the process of `atta serve`.

    A request is the pickled arguments of `decode`. The answer is a line of JSON, and the pixels if
    that has a "shape". The first line says that the process is ready.

    Args:
        seconds: Time of one image. The caller ends this process then; if the caller has died, an
            alarm does, so that the process never outlives it for long.
        memory: Bytes that may be allocated, where the system has such limits.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the caller, which ends the input
    torch.set_num_threads(1)
    with suppress(ImportError, OSError, ValueError):
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])  # this process, so far
        limit = pages * resource.getpagesize() + memory
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    sink.write(b"{}\n")
    with suppress(EOFError, BrokenPipeError):
        while True:
            sink.flush()
            arguments, content = pickle.load(source), b""
            answer: dict[str, object]
            if hasattr(signal, "setitimer"):
                signal.setitimer(signal.ITIMER_REAL, seconds + 1)
            try:
                pixels = decode(*arguments, sent=True).contiguous()
                answer, content = {"shape": list(pixels.shape)}, pixels.numpy().tobytes()
            except InputError as error:
                answer = {"error": str(error)}
            except (MemoryError, RuntimeError) as error:
                answer = {
                    "error": f"expected an image that takes at most {memory / 1e6:.0f} MB to "
                    f"decode, got one that takes more ({type(error).__name__})"
                }
            if hasattr(signal, "setitimer"):
                signal.setitimer(signal.ITIMER_REAL, 0)
            sink.write(json.dumps(answer).encode() + b"\n" + content)
