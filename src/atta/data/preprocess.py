"""What a network wants done to a photograph before it looks at it, as one value that travels with the classifier.

    decode ─► resize ─► centre crop ─► pixels in [0, 1] ─► views ─► normalise (mean, std, channel order) ─► network
    └──────────── Preprocess(image) ────────────┘                   └──────── inside the network ───────┘

`Preprocess.of` reads it off whatever states it:

| what you have                                          | where it is read                                              |
|--------------------------------------------------------|---------------------------------------------------------------|
| a timm model                                           | its `pretrained_cfg`, as `timm.data.resolve_model_data_config`|
| a Hugging Face image processor, or its dict            | its settings; it is tried on an image, and has to agree       |
| torchvision's `weights.transforms()`, or a `Compose`   | its attributes                                                |
| a dict: `about()`'s, timm's, a processor's             | its keys                                                      |

Photographs are resized and cropped as bytes by Pillow, which is what these libraries do with files. A rescaling other than
1 / 255 is folded into mean and std, so that the pixels are in [0, 1] for every network.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from atta._base.errors import InputError, first_line, require, suggest

if TYPE_CHECKING:
    from PIL import Image

Size: TypeAlias = int | tuple[int, int]
"""A side, or height and width."""
Numbers: TypeAlias = tuple[float, ...]

FILTERS = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3, "box": 4, "hamming": 5}
"""Ways to interpolate, and Pillow's numbers of them."""
FITS = ("shortest", "squash", "cover", "longest")
ROUNDINGS = ("half", "down")
CHANNELS = ("RGB", "BGR", "L")
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


@dataclass(frozen=True)
class Preprocess:
    """From a photograph to the pixels of a network; nothing is done of what is None.

    `resize` is a side or (height, width), and `fit` how an image is brought to it: "shortest" edge, "squash" both edges,
    "cover" (height, width) or stay within its "longest" edge. `crop` is cut from the centre, or padded with `fill` where the
    image is smaller; `rounding` says where half a pixel goes: "half" to the even number, as torchvision, or "down", as Hugging
    Face. `mean` and `std` are of pixels in [0, 1], in the order R, G, B. `channels` is "RGB", "BGR" (turned round after the
    views) or "L"; None goes by the mean, and then by the images.

    >>> print(Preprocess(resize=256, crop=224, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)))
    shortest edge to 256 (bilinear), centre crop 224 x 224, RGB, mean 0.5 0.5 0.5, std 0.5 0.5 0.5
    """

    resize: Size | None = None
    crop: Size | None = None
    mean: Numbers | None = None
    std: Numbers | None = None
    interpolation: str = "bilinear"
    fit: str | None = None
    antialias: bool = True
    rounding: str = "half"
    fill: tuple[int, ...] = (0,)
    channels: str | None = None

    def __post_init__(self) -> None:
        put = object.__setattr__
        for name in ("resize", "crop"):
            put(self, name, _size(name, getattr(self, name)))
        put(self, "crop", None if self.crop is None else _pair(self.crop))
        put(self, "mean", _numbers("mean", self.mean))
        put(self, "std", _numbers("std", self.std))
        put(self, "fill", tuple(int(value) for value in self.fill))
        if (self.mean is None) != (self.std is None):
            raise InputError(
                f"expected mean and std together, got mean {self.mean} and std {self.std}"
            )
        if self.mean and self.std and len(self.mean) != len(self.std):
            raise InputError(
                f"expected one mean and one std a channel, got {len(self.mean)} means and {len(self.std)} stds"
            )
        if self.std and not all(value > 0 for value in self.std):
            raise InputError(f"std: expected positive numbers, got {self.std}")
        if self.mean and max(map(abs, self.mean)) > 10:
            raise InputError(
                f"mean: expected that of pixels in [0, 1], got {self.mean}: divide mean and std by 255"
            )
        if self.fit is None:
            put(self, "fit", "squash" if isinstance(self.resize, tuple) else "shortest")
        if self.fit == "shortest" and isinstance(self.resize, tuple):
            raise InputError(
                f"resize: expected one number for the shortest edge, got {self.resize}"
            )
        if self.channels is None and self.mean:
            put(self, "channels", "L" if len(self.mean) == 1 else "RGB")
        known = {
            "interpolation": tuple(FILTERS),
            "fit": FITS,
            "rounding": ROUNDINGS,
            "channels": (*CHANNELS, None),
        }
        for name, values in known.items():
            if (value := getattr(self, name)) not in values:
                listed = ", ".join(map(str, values))
                raise InputError(
                    f"{name}: expected {listed}, got {value!r}.{suggest(value, filter(None, values))}"
                )
        if self.mean and self.channels and len(self.mean) != len(self.channels):
            raise InputError(
                f"mean: expected {len(self.channels)} numbers for {self.channels}, got {len(self.mean)}"
            )

    # ---- pixels ----------------------------------------------------------------------------------------------------

    def __call__(self, image: Image.Image, mode: str | None = None) -> Tensor:
        """Turn upright, resize and crop one image of Pillow's: bytes (c, h, w), in `mode` where `channels` leaves it open."""
        mode = self.mode or mode or ("L" if image.mode in ("1", "L") else "RGB")
        image = upright(image)
        image = image if image.mode == mode else image.convert(mode)
        if self.resize is not None:
            image = self._resized(image)
        array = np.array(image)
        pixels = torch.from_numpy(array).reshape(*array.shape[:2], -1).permute(2, 0, 1)
        return (pixels if self.crop is None else self._cropped(pixels)).contiguous()

    def normalise(self, pixels: Tensor) -> Tensor:
        """What the network itself sees of pixels in [0, 1], (n, c, h, w): the last step, after the views."""
        if self.mean is not None and self.std is not None:
            mean, std = (
                torch.tensor(values, dtype=pixels.dtype, device=pixels.device)
                for values in (self.mean, self.std)
            )
            pixels = (pixels - mean[:, None, None]) / std[:, None, None]
        return pixels.flip(1) if self.channels == "BGR" else pixels

    @property
    def mode(self) -> str | None:
        """What Pillow calls the pixels before the views; None where the images decide."""
        return {"RGB": "RGB", "BGR": "RGB", "L": "L", None: None}[self.channels]

    @property
    def size(self) -> tuple[int, int] | None:
        """Height and width of what the network is given, where every image comes to the same."""
        if self.crop is not None:
            return _pair(self.crop)
        return _pair(self.resize) if self.resize is not None and self.fit == "squash" else None

    @property
    def moves_pixels(self) -> bool:
        """Whether there is more to it than decoding."""
        return self.resize is not None or self.crop is not None

    def _resized(self, image: Image.Image) -> Image.Image:
        from PIL import Image as pillow

        width, height = image.size
        assert self.resize is not None
        if self.fit == "squash":
            height, width = _pair(self.resize)
        elif self.fit == "shortest":
            edge = _pair(self.resize)[0]
            long = int(edge * max(width, height) / min(width, height))
            width, height = (edge, long) if width <= height else (long, edge)
        else:
            target = _pair(self.resize)
            ratios = height / target[0], width / target[1]
            ratio = max(ratios) if self.fit == "longest" else min(ratios)
            height, width = (max(1, round(side / ratio)) for side in (height, width))
        if self.antialias or self.interpolation not in ("bilinear", "bicubic"):
            return image.resize((width, height), pillow.Resampling(FILTERS[self.interpolation]))
        pixels = np.array(image)
        planes = (
            torch.from_numpy(pixels).reshape(*pixels.shape[:2], -1).permute(2, 0, 1)[None].float()
        )
        found = F.interpolate(planes, (height, width), mode=self.interpolation, antialias=False)
        array = found.round().clamp(0, 255).byte()[0].permute(1, 2, 0).numpy()
        return pillow.fromarray(array[..., 0] if array.shape[2] == 1 else array)

    def _cropped(self, pixels: Tensor) -> Tensor:
        """Cut the centre out; pad what is smaller, and the odd pixel of the border goes where the library puts it."""
        assert self.crop is not None
        channels, sides, starts = pixels.shape[0], list(pixels.shape[1:]), []
        down = self.rounding == "down"
        before = [
            -(-max(0, want - side) // 2) if down else max(0, want - side) // 2
            for want, side in self._pairs(sides)
        ]
        canvas = [max(side, want) for want, side in self._pairs(sides)]
        if canvas != sides:
            fill = torch.tensor(self.fill, dtype=torch.uint8).expand(channels)
            padded = fill[:, None, None].repeat(1, *canvas)
            padded[:, before[0] : before[0] + sides[0], before[1] : before[1] + sides[1]] = pixels
            pixels = padded
        for want, side in self._pairs(canvas):
            starts.append((side - want) // 2 if down else round((side - want) / 2))
        height, width = _pair(self.crop)
        return pixels[:, starts[0] : starts[0] + height, starts[1] : starts[1] + width]

    def _pairs(self, sides: Sequence[int]) -> list[tuple[int, int]]:
        assert self.crop is not None
        return list(zip(_pair(self.crop), sides, strict=True))

    # ---- in words, as JSON, and from others --------------------------------------------------------------------------

    def about(self) -> dict[str, Any]:
        """As plain values; `Preprocess.of` reads them again."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain

    def __str__(self) -> str:
        how = f"({self.interpolation}{'' if self.antialias else ', not antialiased'})"
        parts = []
        if self.resize is not None:
            fits = {
                "shortest": "shortest edge to",
                "squash": "resized to",
                "cover": "to cover",
                "longest": "longest edge to",
            }
            parts.append(
                f"{fits[str(self.fit)]} {_written(self.resize, self.fit == 'shortest')} {how}"
            )
        if self.crop is not None:
            parts.append(f"centre crop {_written(self.crop)}")
        parts += [self.channels] if self.channels else []
        if self.mean is not None and self.std is not None:
            parts += [
                f"{name} {' '.join(f'{v:.4g}' for v in values)}"
                for name, values in (("mean", self.mean), ("std", self.std))
            ]
        return ", ".join(parts) or "as it is"

    @classmethod
    def of(cls, given: Any) -> Preprocess:
        """Read it off anything that states it: see the table at the top of this module."""
        if isinstance(given, Preprocess):
            return given
        if callable(getattr(given, "to_dict", None)) and "image_processor_type" in given.to_dict():
            return _of_processor(given)
        config = getattr(given, "pretrained_cfg", None) or getattr(given, "default_cfg", None)
        if config is not None:
            return _of_timm(config if isinstance(config, Mapping) else config.to_dict())
        if hasattr(given, "transforms"):
            inner = given.transforms
            return (
                _of_steps(inner)
                if isinstance(inner, Sequence)
                else cls.of(inner() if callable(inner) else inner)
            )
        if hasattr(given, "resize_size") and hasattr(given, "crop_size"):
            return _of_torchvision(given)
        if isinstance(given, Mapping):
            return _of_dict(given)
        raise InputError(
            "expected preprocessing as atta.Preprocess(...), a timm model, a Hugging Face image processor, torchvision's "
            f"weights.transforms() or a dict of settings, got {type(given).__name__}"
        )


def upright(image: Image.Image) -> Image.Image:
    """As a person holds it: a camera may store a photograph turned and say so in its EXIF."""
    from PIL import ImageOps

    return ImageOps.exif_transpose(image) if image.format in ("JPEG", "MPO") else image


# ---- reading what others say --------------------------------------------------------------------------------------


def _of_dict(given: Mapping[str, Any]) -> Preprocess:
    """Ours, timm's or a processor's, told apart by their keys."""
    names = {field.name for field in fields(Preprocess)}
    if given.keys() <= names:
        plain: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in given.items()
        }
        return Preprocess(**plain)
    if "image_processor" in given:  # processor_config.json
        return _of_dict(given["image_processor"])
    if "pretrained_cfg" in given:  # the config.json of a timm network on the hub
        return _of_timm(given["pretrained_cfg"])
    if (
        any(key.startswith("do_") for key in given)
        or {"image_processor_type", "feature_extractor_type"} & given.keys()
    ):
        return _of_processor(_processor(given))
    if "input_size" in given:
        return _of_timm(given)
    strange = next(key for key in given if key not in names)
    raise InputError(
        f"preprocess: expected some of {', '.join(sorted(names))}, got {strange!r}.{suggest(strange, names)} Dicts of timm's "
        "(input_size, ...) and of Hugging Face's image processors (do_resize, ...) are read as well"
    )


def _of_timm(config: Mapping[str, Any]) -> Preprocess:
    """As `resolve_model_data_config` and `create_transform` read it: bicubic, and .875 of the edge by default."""
    channels, *side = config.get("input_size") or (3, 224, 224)
    share, mode = config.get("crop_pct") or 0.875, config.get("crop_mode") or "center"
    mean, std = (tuple(config.get(name) or IMAGENET[name]) for name in ("mean", "std"))
    if channels == 1:
        mean, std = mean[:1], std[:1]
    edges: Any = tuple(math.floor(edge / share) for edge in side)
    found: dict[str, Any] = {"crop": tuple(side), "mean": mean, "std": std}
    found["interpolation"] = config.get("interpolation") or "bicubic"
    if mode == "squash":
        return Preprocess(resize=edges, fit="squash", **found)
    if mode == "border":
        return Preprocess(
            resize=edges, fit="longest", fill=tuple(round(255 * v) for v in mean), **found
        )
    if mode != "center":
        raise InputError(f"crop_mode: expected center, squash or border, as timm has, got {mode!r}")
    if edges[0] == edges[1]:
        return Preprocess(resize=edges[0], **found)
    return Preprocess(
        resize=edges, fit="cover", **{**found, "interpolation": "bilinear"}
    )  # timm does not pass its own on


def _of_torchvision(preset: Any) -> Preprocess:
    size = {name: _one_or_two(getattr(preset, name)) for name in ("resize_size", "crop_size")}
    return Preprocess(
        resize=size["resize_size"],
        crop=size["crop_size"],
        mean=tuple(preset.mean),
        std=tuple(preset.std),
        interpolation=_filter(preset.interpolation),
    )


def _of_steps(steps: Sequence[Any]) -> Preprocess:
    """A `Compose` of torchvision's: Resize, CenterCrop, ToTensor and Normalize, as timm makes them as well."""
    found: dict[str, Any] = {}
    plain = (
        "ToTensor",
        "MaybeToTensor",
        "PILToTensor",
        "ToImage",
        "ToDtype",
        "ConvertImageDtype",
        "ToPureTensor",
    )
    for step in steps:
        match type(step).__name__:
            case "Resize":
                found |= {
                    "resize": _one_or_two(step.size),
                    "interpolation": _filter(step.interpolation),
                }
            case "CenterCrop":
                found["crop"] = _one_or_two(step.size)
            case "Normalize":
                given = {
                    name: torch.as_tensor(getattr(step, name)).tolist() for name in ("mean", "std")
                }
                found |= {
                    name: tuple(float(f"{v:.7g}") for v in values) for name, values in given.items()
                }  # float32's
            case name if name not in plain:
                raise InputError(
                    f"expected Resize, CenterCrop, ToTensor and Normalize among the transforms, got {name}: state what it does "
                    "as atta.Preprocess(resize=..., crop=..., mean=..., std=...)"
                )
    return Preprocess(**found)


def _processor(settings: Mapping[str, Any]) -> Any:
    """The image processor of such settings: what is not in them are its class's own."""
    name = str(settings.get("image_processor_type") or settings.get("feature_extractor_type") or "")
    name = (
        name.replace("FeatureExtractor", "ImageProcessor").removesuffix("Fast").removesuffix("Pil")
    )
    try:
        import transformers
    except (
        ImportError,
        RuntimeError,
    ) as error:  # a broken torchvision beside it fails at import, too
        raise InputError(
            f"the settings of a Hugging Face image processor need the transformers library: pip install transformers ({error})"
        ) from error
    for candidate in (f"{name}Pil", name):
        try:
            found = getattr(transformers, candidate)
            return found(
                **{key: value for key, value in settings.items() if not key.endswith("_type")}
            )
        except (AttributeError, ImportError, RuntimeError):
            continue
    raise InputError(
        f"image_processor_type: expected an image processor of transformers {transformers.__version__}, got {name!r}"
    )


def _of_processor(processor: Any) -> Preprocess:
    """The settings of a Hugging Face image processor, tried on an image: kinds with habits of their own are found out."""
    found = _settings(processor)
    try:
        difference = _disagreement(found, processor)
    except Exception as error:  # whatever a processor says of an image
        raise InputError(
            f"the image processor {type(processor).__name__} fails on an image: {first_line(error)}"
        ) from error
    # Its torchvision backend rounds otherwise than Pillow; anything else is off by much more.
    if not difference < 0.02:
        raise InputError(
            f"{type(processor).__name__} does something that is not known here: its pixels differ from '{found}' by "
            f"{difference:.3g} on average; state what it does as atta.Preprocess(resize=..., crop=..., mean=..., std=...)"
        )
    return found


def _settings(processor: Any) -> Preprocess:
    given = {key: value for key, value in processor.to_dict().items() if value is not None}
    kind = type(processor).__name__
    found: dict[str, Any] = {
        "rounding": "down",
        "channels": "BGR" if given.get("do_flip_channel_order") else "RGB",
    }
    found["interpolation"] = _filter(given.get("resample", 2))
    if given.get("do_resize"):
        found |= _hugging_size(kind, given)
    if given.get("do_center_crop") and given.get("crop_size"):
        found["crop"] = _edges(given["crop_size"])
    scale = float(given.get("rescale_factor", 1 / 255)) * 255 if given.get("do_rescale") else 255.0
    offset = 1.0 if given.get("rescale_offset") and given.get("do_rescale") else 0.0
    mean = std = torch.zeros(3, dtype=torch.float64)
    std = std + 1
    if given.get("do_normalize"):
        mean, std = (
            torch.tensor(given[name], dtype=torch.float64).expand(3)
            for name in ("image_mean", "image_std")
        )
    again = (
        torch.tensor(given["image_std"], dtype=torch.float64)
        if given.get("include_top")
        else torch.ones(3)
    )
    # (scale · p - offset - mean) / std / again  =  (p - (offset + mean) / scale) / (std · again / scale)
    mean, std = (mean + offset) / scale, std * again / scale
    if bool((mean != 0).any() or (std != 1).any()):
        found |= {"mean": tuple(mean.tolist()), "std": tuple(std.tolist())}
    return Preprocess(**found)


def _hugging_size(kind: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """How a processor resizes: by the shortest edge or to a size, and three kinds with habits of their own."""
    size = {key: value for key, value in dict(given["size"]).items() if value is not None}
    short, pair = size.get("shortest_edge"), ("height" in size and "width" in size)
    if kind.startswith("ConvNext") and short is not None:
        if short >= 384:  # squashed, without a flag that says so
            return {"resize": (short, short), "fit": "squash"}
        return {"resize": int(short / given.get("crop_pct", 224 / 256)), "crop": (short, short)}
    if kind.startswith("LevitImage") and short is not None:
        return {"resize": int(256 / 224 * short)}
    if kind.startswith("PoolFormer") and "crop_pct" in given:
        return {"resize": int((short or size.get("height", 0)) / given["crop_pct"])}
    if short is not None and "longest_edge" not in size:
        return {"resize": short}
    if pair:
        return {"resize": _edges(size), "fit": "squash"}
    raise InputError(
        f"size: expected shortest_edge, or height and width, in the image processor {kind}, got {size}: images would come in "
        "several sizes; state what you want as atta.Preprocess(resize=..., crop=..., mean=..., std=...)"
    )


def _disagreement(ours: Preprocess, processor: Any) -> float:
    """Mean difference between the processor's pixels and ours on a made image, in units of its own range."""
    with require("data", "a Hugging Face image processor"):
        from PIL import Image
    y, x = np.mgrid[0:173, 0:237]
    waves = [127.5 + 127.5 * np.sin(x / (3 + i) + y / (11 - i) + i) for i in range(3)]
    image = Image.fromarray(np.stack(waves, axis=-1).round().astype(np.uint8))
    theirs = torch.from_numpy(
        np.array(processor(image)["pixel_values"][0], dtype=np.float32)
    )  # a copy
    found = ours.normalise(ours(image)[None].float() / 255)[0]
    if theirs.shape != found.shape:
        return math.inf
    return float((theirs - found).abs().mean() / (theirs.max() - theirs.min()).clamp(min=1e-6))


# ---- small things -------------------------------------------------------------------------------------------------


def _size(name: str, given: Any) -> Size | None:
    """A side, or a pair; a list, as JSON has it, too."""
    if given is None:
        return None
    sides = tuple(given) if isinstance(given, Sequence) and not isinstance(given, str) else (given,)
    if len(sides) not in (1, 2) or not all(
        isinstance(side, int) and not isinstance(side, bool) and side > 0 for side in sides
    ):
        raise InputError(f"{name}: expected a number of pixels, or (height, width), got {given!r}")
    return sides if len(sides) == 2 else sides[0]


def _numbers(name: str, given: Any) -> Numbers | None:
    if given is None:
        return None
    try:
        return tuple(float(value) for value in given)
    except (TypeError, ValueError):
        raise InputError(
            f"{name}: expected a number for each channel, such as (0.5, 0.5, 0.5), got {given!r}"
        ) from None


def _one_or_two(size: Any) -> Any:
    sides = list(size) if isinstance(size, Sequence) else [size]
    return sides[0] if len(sides) == 1 else tuple(sides)


def _edges(size: Any) -> Size:
    """The size of a crop or a squash, in any way that Hugging Face has written it."""
    if isinstance(size, int):
        return size, size
    if isinstance(size, Sequence):
        return _pair(_one_or_two(size))
    sides = {key: value for key, value in dict(size).items() if value is not None}
    edge = sides.get("shortest_edge")
    return (edge, edge) if edge else (sides["height"], sides["width"])


def _pair(size: Size) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else size


def _filter(given: Any) -> str:
    """The name of an interpolation: a text, Pillow's number, or an enum of Pillow's or torchvision's."""
    value = getattr(given, "value", given)
    if isinstance(value, int):
        names = {number: name for name, number in FILTERS.items()}
        if value in names:
            return names[value]
    text = str(value).lower()
    return "nearest" if text == "nearest-exact" else text


def _written(size: Size, edge: bool = False) -> str:
    return str(size) if edge else " x ".join(map(str, _pair(size)))
