"""Preprocessing: from a photograph to the pixels of a network, as one value in the classifier.

    decode ─► resize ─► centre crop ─► pixels in [0, 1] ─► views ─► normalise ─► network
    └──────────── Preprocess(image) ──────────┘                     └─ inside the network ─┘

`Preprocess.of` reads it from:

| input                                                | source of the settings                  |
|------------------------------------------------------|-----------------------------------------|
| a timm model                                         | `pretrained_cfg`, read as timm does     |
| a Hugging Face image processor, its dict, its folder | its settings, checked on a test image   |
| torchvision's `weights.transforms()`, or a `Compose` | its attributes                          |
| a dict: of `about()`, of timm, of a processor        | its keys                                |

Photographs are resized and cropped as bytes by Pillow, as these libraries do with files, or by
torch for Hugging Face processors that use torchvision, which rounds other pixels up or down. A
rescaling other than 1 / 255 becomes part of mean and std, so pixels are in [0, 1] for any network.
"""

from __future__ import annotations

import json
import math
import operator
import platform
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from atta._base.errors import InputError, first_line, require, suggest
from atta.data.photographs import Sheet, Terms, named

if TYPE_CHECKING:
    from PIL import Image

Size: TypeAlias = int | Sequence[int]
"""A side, or height and width."""

# Where torchvision resizes bytes as bytes, and not as floats that are rounded.
_FAST_BYTES = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512") or (
    platform.machine() in ("aarch64", "arm64")
)

FILTERS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
"""Interpolations, in the order of Pillow's numbers for them."""
FITS = {
    "shortest": "shortest edge to",
    "squash": "resized to",
    "cover": "to cover",
    "longest": "longest edge to",
}
"""Ways to resize, and their words in `str(preprocess)`."""
MODES = {"RGB": "RGB", "BGR": "RGB", "L": "L", None: None}
"""Channel orders of the network, and Pillow's mode of the pixels before the views."""
_CHOICES: dict[str, Collection[str | None]] = {
    "interpolation": FILTERS,
    "fit": FITS,
    "rounding": ("half", "down"),
    "channels": MODES,
    "library": ("pillow", "torch"),
}
ORIENTATION = 0x0112
"""EXIF tag; 1 is upright."""
MOST_PIXELS = 100_000_000
"""Of a resized or cropped image: larger settings are mistakes, or forged to fill the memory."""
CONFIGS = ("processor_config.json", "preprocessor_config.json", "config.json")
"""Files in the folder of a network that may state its preprocessing, in this order."""
STATE_IT = "state what it does as atta.Preprocess(resize=..., crop=..., mean=..., std=...)"


@dataclass(frozen=True)
class Preprocess:
    """How a photograph becomes the pixels of a network. A step that is None is left out.

    Use it where the settings of a network cannot be read by `Preprocess.of`. `calibrate`, `collect`
    and the command line accept it as `preprocess`, and a saved classifier keeps it.

    Args:
        resize: A side in pixels, or (height, width).
        crop: Side, or (height, width), cut from the centre after resizing.
        mean: Mean of pixels in [0, 1] per channel, in the order R, G, B.
        std: Standard deviation of pixels in [0, 1] per channel.
        interpolation: "nearest", "lanczos", "bilinear", "bicubic", "box" or "hamming".
        fit: Resize the "shortest" or "longest" edge, "squash" both, or "cover" (height, width).
            The default is "squash" for a pair and "shortest" for one number.
        antialias: Whether resizing to fewer pixels averages over them.
        rounding: Where half a pixel of the crop goes: "half" to even (torchvision) or "down"
            (Hugging Face).
        fill: Values of 0 to 255 that pad an image smaller than the crop.
        channels: "RGB", "L", or "BGR" (reversed after the views). None follows mean and images.
        library: "pillow" resizes, or "torch", as Hugging Face processors do that use torchvision.
        views: Views of the photograph and their repeats, which are put on a sheet below the crop.
            `calibrate` and `collect` set them by the policy.

    Raises:
        InputError: A setting has an impossible value, or two settings contradict each other.

    >>> print(Preprocess(resize=256, crop=224, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)))
    shortest edge to 256 (bilinear), centre crop 224 x 224, RGB, mean 0.5 0.5 0.5, std 0.5 0.5 0.5
    """

    resize: Size | None = None
    crop: Size | None = None
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    interpolation: str = "bilinear"
    fit: str | None = None
    antialias: bool = True
    rounding: str = "half"
    fill: Sequence[int] = (0,)
    channels: str | None = None
    library: str = "pillow"
    views: Sequence[Sequence[str | int]] = ()

    def __post_init__(self) -> None:
        resize, crop = _size("resize", self.resize), _size("crop", self.crop)
        mean, std = _numbers("mean", self.mean), _numbers("std", self.std)
        self.__dict__.update(
            resize=resize,
            crop=crop and _pair(crop),
            mean=mean,
            std=std,
            fill=tuple(map(int, self.fill)),
            views=_terms(self.views),
            fit=self.fit or ("squash" if isinstance(resize, tuple) else "shortest"),
            channels=self.channels or (mean and ("L" if len(mean) == 1 else "RGB")) or None,
        )
        for name, known in _CHOICES.items():
            if (value := getattr(self, name)) not in known:
                raise InputError(
                    f"{name}: expected {', '.join(map(str, known))}, got {value!r}."
                    f"{suggest(value, filter(None, known))}"
                )
        if self.fit == "shortest" and isinstance(resize, tuple):
            raise InputError(f"resize: expected one number for the shortest edge, got {resize}")
        if len(mean or ()) != len(std or ()):
            raise InputError(
                f"expected mean and std together, one number per channel, got mean {mean} and std "
                f"{std}"
            )
        if not all(value > 0 for value in std or ()):
            raise InputError(f"std: expected positive numbers, got {std}")
        if any(abs(value) > 10 for value in mean or ()):
            raise InputError(
                f"mean: expected that of pixels in [0, 1], got {mean}: divide mean and std by 255"
            )
        if mean and self.channels and len(mean) != len(self.channels):
            raise InputError(
                f"mean: expected {len(self.channels)} numbers for {self.channels}, got {len(mean)}"
            )
        if self.views and not self.fills:
            raise InputError(
                f"views of the photograph ({named(_terms(self.views))}): expected "
                f"preprocessing that resizes photographs and fills the input, got '{self}'"
            )
        if (sheet := self.sheet) and math.prod(sheet.shape) > MOST_PIXELS:
            raise InputError(
                f"expected at most {MOST_PIXELS // 10**6} million pixels in all views, got "
                f"{written(sheet.shape)}: take fewer views"
            )

    # ---- pixels ----------------------------------------------------------------------------------

    def __call__(self, image: Image.Image, mode: str | None = None) -> Tensor:
        """Turn upright, resize and crop one Pillow image.

        Args:
            image: The decoded photograph.
            mode: Pillow's mode where `channels` is None; by default the image decides.

        Returns:
            Bytes of shape (c, h, w); with `views`, a sheet of the crop and its views.
        """
        from PIL import ImageOps

        mode = MODES[self.channels] or mode or ("L" if image.mode in ("1", "L") else "RGB")
        # A camera stores in the EXIF data how it was held. Without a turn, Pillow would copy.
        if image.format in ("JPEG", "MPO") and image.getexif().get(ORIENTATION, 1) != 1:
            image = ImageOps.exif_transpose(image)
        image = image if image.mode == mode else image.convert(mode)
        width, height = image.size if self.resize is None else self._resized(image, self.resize)
        if width * height > MOST_PIXELS:
            raise InputError(
                f"expected at most {MOST_PIXELS // 10**6} million pixels after resizing, got "
                f"{width} x {height}: the image is too long for '{self}'"
            )
        torch_can = self.interpolation in ("bilinear", "bicubic")
        by_pillow = not torch_can or (self.antialias and self.library == "pillow")
        photo = image
        if by_pillow and (width, height) != image.size:
            image = image.resize((width, height), FILTERS.index(self.interpolation))
        array = np.array(image)
        pixels = torch.from_numpy(array).reshape(*array.shape[:2], -1).permute(2, 0, 1)
        if pixels.shape[1:] != (height, width):
            native = self.library == "torch" and (self.interpolation == "bicubic" or _FAST_BYTES)
            found = pixels[None].contiguous() if native else pixels[None].float()
            size, way = (height, width), self.interpolation
            found = F.interpolate(found, size, mode=way, antialias=self.antialias)
            pixels = found.round().clamp(0, 255).byte()[0]
        crop = pixels if self.crop is None else self._cropped(pixels, self.crop)
        if not (self.views and (sheet := self.sheet)):
            return crop.contiguous()
        return sheet.filled(crop, pixels, photo, FILTERS.index(self.interpolation))

    def normalise(self, pixels: Tensor) -> Tensor:
        """Subtract mean, divide by std, order the channels: the last step, after the views.

        Args:
            pixels: Floats in [0, 1] of shape (n, c, h, w).

        Returns:
            The input of the network.
        """
        if self.mean is not None:
            both = torch.tensor([self.mean, self.std], dtype=pixels.dtype, device=pixels.device)
            mean, std = both[:, :, None, None].unbind()
            pixels = (pixels - mean) / std
        return pixels.flip(1) if self.channels == "BGR" else pixels

    @property
    def input_size(self) -> tuple[int, int] | None:
        """Height and width of the network's input, where they are the same for every image."""
        size = self.crop or (self.resize if self.fit == "squash" else None)
        return None if size is None else _pair(size)

    @property
    def size(self) -> tuple[int, int] | None:
        """Height and width of what it returns: of the network's input, or of a sheet of views."""
        return self.input_size if self.sheet is None else self.sheet.shape

    @property
    def sheet(self) -> Sheet | None:
        """Where the centre crop and the views of a photograph are; None without views."""
        size = self.input_size
        return Sheet(size, _terms(self.views)) if self.views and size else None

    @property
    def fills(self) -> bool:
        """Whether a resized photograph always fills the input, as its views need it."""
        size = self.input_size
        if self.resize is None or size is None or self.fit == "longest":
            return False
        return all(a >= b for a, b in zip(_pair(self.resize), size, strict=True))

    def _resized(self, image: Image.Image, size: Size) -> tuple[int, int]:
        """The width and height that an image is resized to, by `fit`."""
        (width, height), (to_height, to_width) = image.size, _pair(size)
        if self.fit == "squash":
            return to_width, to_height
        if self.fit == "shortest":
            long = int(to_height * max(width, height) / min(width, height))
            return (to_height, long) if width <= height else (long, to_height)
        ratios = height / to_height, width / to_width
        ratio = max(ratios) if self.fit == "longest" else min(ratios)
        return max(1, round(width / ratio)), max(1, round(height / ratio))

    def _cropped(self, pixels: Tensor, size: Size) -> Tensor:
        """Cut out the centre, or pad; `rounding` decides on which side an odd pixel is."""
        down = self.rounding == "down"
        fill = torch.tensor(self.fill, dtype=torch.uint8)[:, None, None]
        for axis, want in enumerate(_pair(size), start=1):
            spare = pixels.shape[axis] - want
            if spare >= 0:
                start = spare // 2 if down else round(spare / 2)
                pixels = pixels.narrow(axis, start, want)
                continue
            shape = list(pixels.shape)
            shape[axis] = want
            padded = fill.expand(shape).clone()
            up = down and self.library == "pillow"
            padded.narrow(axis, (up - spare) // 2, want + spare).copy_(pixels)
            pixels = padded
        return pixels

    # ---- as text and JSON, and from other libraries ----------------------------------------------

    def about(self) -> dict[str, Any]:
        """Return the settings as plain values for JSON; `Preprocess.of` reads them again."""
        found: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        if self.library == "pillow":  # versions that know no other library read it as well
            del found["library"]
        if not self.views:
            del found["views"]
        return found

    def __str__(self) -> str:
        parts = []
        if self.resize is not None:
            size = self.resize if self.fit == "shortest" else written(self.resize)
            how = self.interpolation + ("" if self.antialias else ", not antialiased")
            parts.append(f"{FITS[str(self.fit)]} {size} ({how})")
        if self.crop is not None:
            parts.append(f"centre crop {written(self.crop)}")
        if self.channels:
            parts.append(self.channels)
        for name, values in (("mean", self.mean), ("std", self.std)):
            if values is not None:
                parts.append(f"{name} {' '.join(f'{v:.4g}' for v in values)}")
        if self.views:
            parts.append(f"with views of the photograph ({named(_terms(self.views))})")
        return ", ".join(parts) or "as it is"

    @classmethod
    def of(cls, given: Any) -> Preprocess:
        """Read the preprocessing of a network from the object or dict that states it.

        Args:
            given: A timm model, a Hugging Face image processor, torchvision's `weights`,
                `weights.transforms()` or `Compose`, a dict of settings of any of these, or the
                folder or JSON file where a processor was saved.

        Returns:
            The preprocessing, which gives the same pixels as the library.

        Raises:
            InputError: The object states no preprocessing, or one that is not known here.

        >>> print(Preprocess.of({"input_size": (3, 160, 160), "crop_pct": 1.0}).size)
        (160, 160)
        """
        if isinstance(given, Preprocess):
            return given
        if isinstance(given, str | Path):
            given = _saved(Path(given))
        if isinstance(given, Mapping):
            return _of_dict(given)
        to_dict = getattr(given, "to_dict", None)
        if callable(to_dict) and "image_processor_type" in to_dict():
            return _of_processor(given)
        if isinstance(config := getattr(given, "pretrained_cfg", None), Mapping):
            return _of_timm(config)
        inner = getattr(given, "transforms", None)
        if isinstance(inner, Sequence):
            return _of_steps(inner)
        if inner is not None:
            return cls.of(inner() if callable(inner) else inner)
        if hasattr(given, "resize_size") and hasattr(given, "crop_size"):  # torchvision's preset
            way = _filter(given.interpolation)
            return cls(given.resize_size, given.crop_size, given.mean, given.std, way)
        raise InputError(
            "expected preprocessing as atta.Preprocess(...), a timm model, a Hugging Face image "
            "processor or its folder, torchvision's weights.transforms() or a dict of settings, "
            f"got {type(given).__name__}"
        )


def sheet_of(preprocess: Preprocess | None) -> Sheet | None:
    """Return where the views of the photograph are; None if there are none."""
    return None if preprocess is None else preprocess.sheet


def showing(preprocess: Preprocess | None, views: Terms) -> Preprocess | None:
    """Return the preprocessing that makes these views of the photograph, and no others."""
    if preprocess is None and views:
        raise InputError(
            f"views of the photograph ({named(views)}): expected "
            "preprocess=..., which says how photographs are resized and cropped, got none"
        )
    return preprocess and replace(preprocess, views=views)


# ---- readers -------------------------------------------------------------------------------------


def _saved(path: Path) -> dict[str, Any]:
    """Read the JSON file of settings at this path, or in this folder."""
    files = [path / name for name in CONFIGS] if path.is_dir() else [path]
    file = next(filter(Path.is_file, files), None)
    if file is None:
        raise InputError(f"preprocess: expected {' or '.join(CONFIGS)} in {path}, found none")
    try:
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except (ValueError, TypeError, RecursionError) as error:
        raise InputError(
            f"preprocess: expected a JSON file of settings, but {file} cannot be read: {error}"
        ) from None


def _of_dict(given: Mapping[str, Any]) -> Preprocess:
    """Read a dict of ours, of timm or of an image processor, which differ in their keys."""
    names = {field.name for field in fields(Preprocess)}
    if given.keys() <= names:
        return Preprocess(**given)
    if "image_processor" in given:  # processor_config.json
        return _of_dict(given["image_processor"])
    if "pretrained_cfg" in given:  # the config.json of a timm network on the hub
        return _of_timm(given["pretrained_cfg"])
    types = {"image_processor_type", "feature_extractor_type"}
    if types & given.keys() or any(key.startswith("do_") for key in given):
        return _of_processor(_processor(given))
    if "input_size" in given:
        return _of_timm(given)
    strange = next(key for key in given if key not in names)
    raise InputError(
        f"preprocess: expected some of {', '.join(sorted(names))}, got {strange!r}."
        f"{suggest(strange, names)} Dicts of timm (input_size, ...) and of Hugging Face image "
        "processors (do_resize, ...) are read as well"
    )


def _of_timm(config: Mapping[str, Any]) -> Preprocess:
    """Read a config as timm's `resolve_model_data_config` and `create_transform` do."""
    channels, *side = config.get("input_size") or (3, 224, 224)
    mean = tuple(config.get("mean") or (0.485, 0.456, 0.406))[:channels]
    std = tuple(config.get("std") or (0.229, 0.224, 0.225))[:channels]
    h, w = (math.floor(edge / (config.get("crop_pct") or 0.875)) for edge in side)
    found = Preprocess((h, w), side, mean, std, config.get("interpolation") or "bicubic")
    mode = config.get("crop_mode") or "center"
    if mode == "squash":
        return found
    if mode == "border":
        return replace(found, fit="longest", fill=[round(255 * value) for value in mean])
    if mode != "center":
        raise InputError(f"crop_mode: expected center, squash or border, got {mode!r}")
    if h == w:
        return replace(found, fit="shortest", resize=h)
    found = replace(found, fit="cover")
    with suppress(metadata.PackageNotFoundError):
        version = re.findall(r"\d+", metadata.version("timm"))[:3]
        if tuple(map(int, version)) < (1, 0, 31):  # resizes such crops always bilinearly
            return replace(found, interpolation="bilinear")
    return found


def _of_steps(steps: Sequence[Any]) -> Preprocess:
    """Read a `Compose` of torchvision or timm: Resize, CenterCrop, ToTensor and Normalize."""
    conversions = (
        "ToTensor MaybeToTensor PILToTensor ToImage ToDtype ConvertImageDtype ToPureTensor"
    )
    found = Preprocess()
    for step in steps:
        match type(step).__name__:
            case "Resize":
                way = _filter(step.interpolation)
                found = replace(found, resize=step.size, interpolation=way, fit=None)
            case "CenterCrop":
                found = replace(found, crop=step.size)
            case "Normalize":
                mean, std = (torch.as_tensor(one).tolist() for one in (step.mean, step.std))
                # Seven digits: the numbers may have been stored as float32.
                mean, std = ([float(f"{v:.7g}") for v in values] for values in (mean, std))
                found = replace(found, mean=mean, std=std)
            case name if name not in conversions.split():
                raise InputError(
                    "expected Resize, CenterCrop, ToTensor and Normalize among the transforms, got "
                    f"{name}: {STATE_IT}"
                )
    return found


def _processor(settings: Mapping[str, Any]) -> Any:
    """Make the Hugging Face image processor of these settings, with its own defaults."""
    try:
        import transformers
    except (ImportError, RuntimeError) as error:  # a broken torchvision also fails at import
        raise InputError(
            "the settings of a Hugging Face image processor need the transformers library: "
            f"pip install transformers ({error})"
        ) from error
    name = str(settings.get("image_processor_type") or settings.get("feature_extractor_type") or "")
    name = name.replace("FeatureExtractor", "ImageProcessor")
    plain = {key: value for key, value in settings.items() if not key.endswith("_type")}
    for candidate in (name, name.removesuffix("Fast"), f"{name.removesuffix('Fast')}Pil"):
        with suppress(AttributeError, ImportError, RuntimeError):
            return getattr(transformers, candidate)(**plain)
    raise InputError(
        "image_processor_type: expected an image processor of transformers "
        f"{transformers.__version__}, got {name!r}"
    )


def _of_processor(processor: Any) -> Preprocess:
    """Read a Hugging Face image processor, and compare the pixels of both on a test image."""
    kind = type(processor).__name__
    with require("data", "a Hugging Face image processor"):
        from PIL import Image
    noise = np.random.default_rng(0).integers(0, 256, (173, 237, 3), dtype=np.uint8)
    image = Image.fromarray(noise)
    try:
        found = _settings(processor)
        theirs = processor(image, return_tensors="pt")["pixel_values"][0].float()
    except InputError:
        raise
    except Exception as error:  # a processor may raise anything
        raise InputError(
            f"the image processor {kind} fails on an image: {first_line(error)}"
        ) from error
    ours = found.normalise(found(image)[None].float() / 255)[0]
    # Less than rounding a pixel otherwise, which changes it by a 255th.
    tolerance = 0.002 * (theirs.max() - theirs.min())
    if theirs.shape != ours.shape or not (theirs - ours).abs().mean() < tolerance:
        raise InputError(
            f"{kind} does something that is not known here: its pixels differ from those of "
            f"'{found}'; {STATE_IT}"
        )
    return found


def _settings(processor: Any) -> Preprocess:
    """Translate the settings of a Hugging Face image processor."""
    given = {key: value for key, value in processor.to_dict().items() if value is not None}
    kind, backend = type(processor).__name__, getattr(processor, "backend", None)
    fast = backend == "torchvision" or kind.endswith("Fast")
    resize: Size | None = None
    crop: Size | None = None
    if given.get("do_center_crop") and given.get("crop_size"):
        sides = dict(given["crop_size"])
        crop = sides.get("shortest_edge") or (sides["height"], sides["width"])
    if given.get("do_resize"):
        resize, crop = _hugging_size(kind, given, crop)
    # (scale · p - offset - mean) / std  =  (p - (offset + mean) / scale) / (std / scale)
    rescaled = given.get("do_rescale")
    scale = float(given.get("rescale_factor", 1 / 255)) * 255 if rescaled else 255.0
    offset = 1.0 if rescaled and given.get("rescale_offset") else 0.0
    mean, std = np.zeros(3), np.ones(3)
    if given.get("do_normalize"):
        mean, std = mean + given["image_mean"], std * given["image_std"]
    if given.get("include_top"):  # EfficientNet divides by std twice
        std = std * given["image_std"]
    mean, std = (mean + offset) / scale, std / scale
    return Preprocess(
        resize,
        crop,
        mean.tolist(),
        std.tolist(),
        _filter(given.get("resample", 2)),
        rounding="down",
        channels="BGR" if given.get("do_flip_channel_order") else "RGB",
        library="torch" if fast else "pillow",
    )


def _hugging_size(
    kind: str, given: Mapping[str, Any], crop: Size | None
) -> tuple[Size, Size | None]:
    """How a processor resizes and crops: the shortest edge, a size, or a rule of its own."""
    size = {key: value for key, value in dict(given.get("size") or {}).items() if value is not None}
    edge, pct = size.get("shortest_edge"), given.get("crop_pct")
    if kind.startswith("PoolFormer") and pct:
        return int((edge or size.get("height", 0)) / pct), crop
    if {"height", "width"} <= size.keys():
        return (size["height"], size["width"]), crop
    if edge is not None and "longest_edge" not in size:
        if not kind.startswith("ConvNext"):
            return int(256 / 224 * edge) if kind.startswith("LevitImage") else edge, crop
        if edge < 384:
            return int(edge / (pct or 224 / 256)), edge
        return (edge, edge), crop  # squashed, without a setting that says so
    raise InputError(
        f"size: expected shortest_edge, or height and width, in the image processor {kind}, got "
        f"{size}: images would have several sizes; {STATE_IT}"
    )


# ---- checks of single settings -------------------------------------------------------------------


def _size(name: str, given: Any) -> Size | None:
    """Read a side, or a pair; also a list, as in JSON."""
    if given is None:
        return None
    sides = tuple(given) if isinstance(given, Sequence) else (given,)
    if len(sides) not in (1, 2) or not all(type(side) is int and side > 0 for side in sides):
        raise InputError(f"{name}: expected a number of pixels, or (height, width), got {given!r}")
    if sides[0] * sides[-1] > MOST_PIXELS:
        raise InputError(
            f"{name}: expected at most {MOST_PIXELS // 10**6} million pixels, got {given!r}"
        )
    return sides if len(sides) == 2 else sides[0]


def _numbers(name: str, given: Any) -> tuple[float, ...] | None:
    """Read one number per channel."""
    try:
        return None if given is None else tuple(float(value) for value in given)
    except (TypeError, ValueError):
        raise InputError(
            f"{name}: expected a number for each channel, such as (0.5, 0.5, 0.5), got {given!r}"
        ) from None


def _terms(given: Any) -> Terms:
    """Read names of views with their repeats; also lists, as in JSON."""
    try:
        return tuple((str(name), operator.index(repeats)) for name, repeats in given)
    except (TypeError, ValueError):
        raise InputError(
            f"views: expected names of views with their repeats, (('larger', 1),), got {given!r}"
        ) from None


def _pair(size: Size) -> tuple[int, int]:
    height, width = (size, size) if isinstance(size, int) else size
    return height, width


def written(size: Size) -> str:
    """Write height and width for people: `224 x 224`."""
    return " x ".join(map(str, _pair(size)))


def _filter(given: Any) -> str:
    """Name an interpolation: from text, from Pillow's number, or from an enum of either library."""
    value = getattr(given, "value", given)
    name = FILTERS[value] if value in range(len(FILTERS)) else value
    return str(name).lower().removesuffix("-exact")
