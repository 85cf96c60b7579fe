"""Pictures made worse on purpose: what cameras, weather and files do to images, at five severities.

The families and constants are those of CIFAR-10-C and ImageNet-C (Hendrycks & Dietterich, "Benchmarking neural network
robustness to common corruptions and perturbations", ICLR 2019): the gentler ones of CIFAR-10-C for images of up to 64 pixels
on the shorter side, ImageNet-C's for larger ones, whose lengths are in pixels of 224 and grow with the side.

| corruption     | rule, for one image x, with the constant c of its severity                       | numbers an image        |
|----------------|----------------------------------------------------------------------------------|-------------------------|
| gaussian-noise | x + c N(0, 1)                                                                    | one a value             |
| shot-noise     | Poisson(c x) / c                                                                 | one a value             |
| impulse-noise  | a part c of the values is 0 or 1                                                 | one a value             |
| speckle-noise  | x + c x N(0, 1)                                                                  | one a value             |
| gaussian-blur  | a Gaussian of deviation c                                                        | none                    |
| defocus-blur   | a disk of radius c, its edge softened                                            | none                    |
| glass-blur     | blurred, neighbours exchanged at random, blurred again                           | two a pixel and round   |
| motion-blur    | half a Gaussian along a line, up to 45° from the horizontal                      | 1: the angle            |
| zoom-blur      | the mean of the image and of enlargements of it                                  | none                    |
| fog            | (x + c f) max(x) / (max(x) + c), f a cloud of four octaves                       | 340, the cloud          |
| brightness     | the value of HSV plus c                                                          | none                    |
| contrast       | m + c (x - m), m the mean of the channel                                         | none                    |
| saturate       | the saturation of HSV times c, plus another constant                             | none                    |
| pixelate       | made smaller by c by the mean over boxes, and large again                        | none                    |
| jpeg           | what JPEG of quality c leaves                                                    | none                    |

Pure functions of pixels in [0, 1] and of given numbers, as views are: `CORRUPTIONS["fog-3"]` is a `View`. They are for
rehearsals, which a network is shown when a calibrator is fitted, and for tests; a network is not meant to be asked with them.
Where the original uses a library's random shapes (fog's diamond-square clouds, ImageMagick's motion blur), the law is the
same and the pixels are not.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from atta._base.types import Images
from atta.data import transforms
from atta.data.views import View

SEVERITIES = (1, 2, 3, 4, 5)
SMALL = 64
"""Pixels of the shorter side up to which an image takes the constants of CIFAR-10-C."""
LARGE = 224
"""Pixels of the side that the lengths of ImageNet-C are meant for."""
CONSTANTS: dict[str, tuple[Sequence[Any], Sequence[Any]]] = {  # CIFAR-10-C's, ImageNet-C's
    "gaussian-noise": ((0.04, 0.06, 0.08, 0.09, 0.10), (0.08, 0.12, 0.18, 0.26, 0.38)),
    "shot-noise": ((500, 250, 100, 75, 50), (60, 25, 12, 5, 3)),
    "impulse-noise": ((0.01, 0.02, 0.03, 0.05, 0.07), (0.03, 0.06, 0.09, 0.17, 0.27)),
    "speckle-noise": ((0.06, 0.1, 0.12, 0.16, 0.2), (0.15, 0.2, 0.35, 0.45, 0.6)),
    "gaussian-blur": ((0.4, 0.6, 0.7, 0.8, 1.0), (1.0, 2.0, 3.0, 4.0, 6.0)),
    "defocus-blur": (
        ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1.0, 0.2), (1.5, 0.1)),
        ((3.0, 0.1), (4.0, 0.5), (6.0, 0.5), (8.0, 0.5), (10.0, 0.5)),
    ),
    "glass-blur": (
        ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
        ((0.7, 1, 2), (0.9, 2, 1), (1.0, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
    ),
    "motion-blur": (
        ((6, 1.0), (6, 1.5), (6, 2.0), (8, 2.0), (9, 2.5)),
        ((10, 3.0), (15, 5.0), (15, 8.0), (15, 12.0), (20, 15.0)),
    ),
    "zoom-blur": (
        ((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
        ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)),
    ),
    "fog": (
        ((0.2, 3.0), (0.5, 3.0), (0.75, 2.5), (1.0, 2.0), (1.5, 1.75)),
        ((1.5, 2.0), (2.0, 2.0), (2.5, 1.7), (2.5, 1.5), (3.0, 1.4)),
    ),
    "brightness": ((0.05, 0.1, 0.15, 0.2, 0.3), (0.1, 0.2, 0.3, 0.4, 0.5)),
    "contrast": ((0.75, 0.5, 0.4, 0.3, 0.15), (0.4, 0.3, 0.2, 0.1, 0.05)),
    "saturate": (
        ((0.3, 0.0), (0.1, 0.0), (1.5, 0.0), (2.0, 0.1), (2.5, 0.2)),
        ((0.3, 0.0), (0.1, 0.0), (2.0, 0.0), (5.0, 0.1), (20.0, 0.2)),
    ),
    "pixelate": ((0.95, 0.9, 0.85, 0.75, 0.65), (0.6, 0.5, 0.4, 0.3, 0.25)),
    "jpeg": ((80, 65, 58, 50, 40), (25, 18, 15, 10, 7)),
}


def _constant(family: str, severity: int, side: int) -> Any:
    """The constant of a severity, or several of them, for images whose shorter side has so many pixels."""
    return CONSTANTS[family][side > SMALL][severity - 1]


def _one(family: str, severity: int, images: Images) -> int | float:
    found: int | float = _constant(family, severity, min(images.shape[2:]))
    return found


def _several(family: str, severity: int, images: Images) -> tuple[int | float, ...]:
    found: tuple[int | float, ...] = _constant(family, severity, min(images.shape[2:]))
    return found


def _pixels(length: int | float, images: Images) -> int | float:
    """A length in pixels of these images: as it is for small ones, in pixels of 224 for others."""
    side = min(images.shape[2:])
    return length if side <= SMALL else length * side / LARGE


# --------------------------------------------------------------------------------------------------------------- noise


def gaussian_noise(images: Images, u: Float[Tensor, "n d"], *, severity: int) -> Images:
    """Add normal noise."""
    return (images + _one("gaussian-noise", severity, images) * _normal(u, images)).clamp(0, 1)


def speckle_noise(images: Images, u: Float[Tensor, "n d"], *, severity: int) -> Images:
    """Add normal noise that grows with the light."""
    return (images + images * _one("speckle-noise", severity, images) * _normal(u, images)).clamp(
        0, 1
    )


def shot_noise(images: Images, u: Float[Tensor, "n d"], *, severity: int) -> Images:
    """Count photons: a Poisson number with mean c x, over c."""
    count = _one("shot-noise", severity, images)
    return (
        (_poisson(count * images.double(), u.reshape(images.shape).double()) / count)
        .clamp(0, 1)
        .to(images.dtype)
    )


def impulse_noise(images: Images, u: Float[Tensor, "n d"], *, severity: int) -> Images:
    """Set a part of the values to 0, and as many to 1."""
    part = _one("impulse-noise", severity, images)
    numbers = u.reshape(images.shape)
    salted = torch.where(numbers > 1 - part / 2, torch.ones_like(images), images)
    return torch.where(numbers < part / 2, torch.zeros_like(images), salted)


def _normal(u: Tensor, images: Images) -> Images:
    """Uniform numbers as normal ones; half a step inside of 0, where the inverse is -∞."""
    normal: Tensor = torch.special.ndtri(u.clamp(min=2**-25)).reshape(images.shape)
    return normal.to(images.dtype)


MANY = 60.0
"""Photons from which a rounded normal number with Poisson's mean, deviation and skew stands for a Poisson one."""


def _poisson(mean: Tensor, u: Tensor) -> Tensor:
    """The least count whose cumulative probability exceeds u; nearly so for images that are brighter than MANY somewhere."""
    u = u.clamp(2**-25, 1 - 2**-25)
    normal: Tensor = torch.special.ndtri(u)
    counts = (mean + mean.sqrt() * normal + (normal.square() - 1) / 6 + 0.5).floor().clamp(min=0)
    dark = (
        mean.flatten(1).amax(dim=1) <= MANY
    )  # each image by itself: its neighbours in a batch shall not matter
    if dark.any():
        counts[dark] = _exactly_poisson(mean[dark], u[dark])
    return counts


def _exactly_poisson(mean: Tensor, u: Tensor) -> Tensor:
    count, chance = torch.zeros_like(mean), (-mean).exp()
    total = chance.clone()
    for k in range(1, int(MANY + 8 * MANY**0.5)):
        count += total <= u
        chance = chance * mean / k
        total += chance
    return count


# ---------------------------------------------------------------------------------------------------------------- blur


def gaussian_blur(images: Images, *, severity: int) -> Images:
    """Blur with a Gaussian."""
    return _blurred(images, _pixels(_one("gaussian-blur", severity, images), images)).clamp(0, 1)


def defocus_blur(images: Images, *, severity: int) -> Images:
    """Spread each pixel over a disk with a soft edge."""
    radius, soft = _several("defocus-blur", severity, images)
    radius = _pixels(radius, images)
    reach = math.ceil(radius) + 2
    place = torch.arange(-reach, reach + 1, dtype=torch.float64)
    disk = (place[:, None].square() + place.square() <= radius**2).double()
    edge = _bell(soft, 1 if radius <= 8 else 2)
    kernel = F.conv2d(
        (disk / disk.sum())[None, None], torch.outer(edge, edge)[None, None], padding="same"
    )[0, 0]
    return _convolved(images, kernel).clamp(0, 1)


def glass_blur(images: Images, u: Float[Tensor, "n d"], *, severity: int) -> Images:
    """Blur, let each pixel be taken from a place nearby, and blur again."""
    deviation, reach, rounds = _several("glass-blur", severity, images)
    n, c, h, w = images.shape
    deviation, reach = _pixels(deviation, images), max(1, round(_pixels(reach, images)))
    moves = (u.reshape(n, int(rounds), 2, h, w) * 2 * reach).floor().long() - reach
    rows, columns = torch.arange(h, device=u.device)[:, None], torch.arange(w, device=u.device)
    images = _blurred(images, deviation)
    for down, across in (move.unbind(1) for move in moves.unbind(1)):
        places = (rows + down).clamp(0, h - 1) * w + (columns + across).clamp(0, w - 1)
        images = (
            images.flatten(2)
            .gather(2, places.reshape(n, 1, -1).expand(-1, c, -1))
            .reshape(images.shape)
        )
    return _blurred(images, deviation).clamp(0, 1)


def _glass_numbers(c: int, h: int, w: int, *, severity: int) -> int:
    return int(_constant("glass-blur", severity, min(h, w))[2]) * 2 * h * w


def motion_blur(images: Images, u: Float[Tensor, "n 1"], *, severity: int) -> Images:
    """Draw each pixel out along a line, with the weights of half a Gaussian."""
    radius, deviation = _several("motion-blur", severity, images)
    steps = max(1, round(_pixels(radius, images)))
    angle = (u[:, 0].double() - 0.5) * (math.pi / 2)
    down, across = angle.sin()[:, None, None], angle.cos()[:, None, None]
    weights = _bell(_pixels(deviation, images), steps)[steps:]
    rows, columns = (
        torch.arange(s, device=images.device, dtype=torch.float64) - (s - 1) / 2
        for s in images.shape[2:]
    )
    blurred = torch.zeros_like(images)
    for step, weight in enumerate((weights / weights.sum()).tolist()):
        moved = transforms.sample(images, rows[:, None] + step * down, columns + step * across)
        blurred += weight * moved
    return blurred.clamp(0, 1)


def zoom_blur(images: Images, *, severity: int) -> Images:
    """Average the image with itself enlarged more and more."""
    stop, step = _several("zoom-blur", severity, images)
    factors = torch.arange(1, stop, step, dtype=torch.float64).tolist()
    rows, columns = (
        torch.arange(s, device=images.device, dtype=torch.float64) - (s - 1) / 2
        for s in images.shape[2:]
    )
    total = images.clone()
    for factor in factors:
        whole = (
            torch.ones(images.shape[0], 1, 1, dtype=torch.float64, device=images.device) / factor
        )
        total += transforms.sample(images, rows[:, None] * whole, columns * whole)
    return (total / (len(factors) + 1)).clamp(0, 1)


def _bell(deviation: int | float, reach: int) -> Float[Tensor, "taps"]:
    """The weights of a Gaussian from -reach to reach."""
    place = torch.arange(-reach, reach + 1, dtype=torch.float64)
    weights = (-(place**2) / (2 * deviation**2)).exp()
    return weights / weights.sum()


def _blurred(images: Images, deviation: int | float) -> Images:
    """Convolve with a Gaussian that is cut off at four deviations; beyond its border the image has its outermost pixels."""
    taps = _bell(deviation, int(4 * deviation + 0.5))
    reach, channels = taps.shape[0] // 2, images.shape[1]
    kernel = taps.to(images).expand(channels, 1, -1)
    padded = F.pad(images, (reach, reach, reach, reach), mode="replicate")
    return F.conv2d(
        F.conv2d(padded, kernel[:, :, :, None], groups=channels),
        kernel[:, :, None, :],
        groups=channels,
    )


def _convolved(images: Images, kernel: Float[Tensor, "h2 w2"]) -> Images:
    """Convolve each channel; beyond its border the image is its reflection."""
    reach, channels = kernel.shape[0] // 2, images.shape[1]
    rows, columns = (
        transforms.reflected(torch.arange(-reach, side + reach, device=images.device), side)
        for side in images.shape[2:]
    )
    padded = images[:, :, rows][:, :, :, columns]
    return F.conv2d(padded, kernel.to(images).expand(channels, 1, -1, -1), groups=channels)


# ----------------------------------------------------------------------------------------- weather, light, colour, files

OCTAVES = (2, 4, 8, 16)
"""Sides of the grids that a cloud of fog is made of."""


def fog(images: Images, u: Float[Tensor, "n 340"], *, severity: int) -> Images:
    """Add a bright cloud whose octaves fade by a constant, and darken to the brightness there was."""
    amount, decay = _several("fog", severity, images)
    n, _, h, w = images.shape
    cloud, start = torch.zeros(n, 1, h, w, dtype=images.dtype, device=images.device), 0
    for octave, side in enumerate(OCTAVES):
        grid = u[:, start : start + side**2].reshape(n, 1, side, side).to(images.dtype) - 0.5
        cloud += decay**-octave * F.interpolate(grid, (h, w), mode="bilinear", align_corners=True)
        start += side**2
    low, high = cloud.amin((2, 3), keepdim=True), cloud.amax((2, 3), keepdim=True)
    brightest = images.amax((1, 2, 3), keepdim=True)
    return (
        (images + amount * (cloud - low) / (high - low)) * brightest / (brightest + amount)
    ).clamp(0, 1)


def brightness(images: Images, *, severity: int) -> Images:
    """Raise the value of HSV: all channels by one factor."""
    more = _one("brightness", severity, images)
    value = images.amax(1, keepdim=True)
    factor = (value + more).clamp(max=1) / value.clamp(min=1e-12)
    # Black has no colour: it becomes grey.
    return torch.where(value > 0, images * factor, torch.full_like(images, more)).clamp(0, 1)


def contrast(images: Images, *, severity: int) -> Images:
    """Draw each channel towards its mean."""
    mean = images.mean((2, 3), keepdim=True)
    return (mean + _one("contrast", severity, images) * (images - mean)).clamp(0, 1)


def saturate(images: Images, *, severity: int) -> Images:
    """Scale the saturation of HSV; the value and the hue stay."""
    factor, more = _several("saturate", severity, images)
    value = images.amax(1, keepdim=True)
    saturation = (value - images.amin(1, keepdim=True)) / value.clamp(min=1e-12)
    wanted = (saturation * factor + more).clamp(0, 1)
    grey = saturation <= 0  # of no hue: HSV calls it red
    red = torch.zeros_like(images)
    red[:, :1] = 1
    colour = torch.where(
        grey, red.expand_as(images) if images.shape[1] == 3 else torch.ones_like(images), images
    )
    behind = torch.where(grey, 1 - colour, (value - images) / (value * saturation).clamp(min=1e-12))
    return (value * (1 - wanted * behind)).clamp(0, 1)


def pixelate(images: Images, *, severity: int) -> Images:
    """Make the image smaller by the mean over boxes, and as large as it was."""
    part = _one("pixelate", severity, images)
    h, w = images.shape[2:]
    small = [_boxes(side, max(1, int(side * part))).to(images) for side in (h, w)]
    large = [_boxes(max(1, int(side * part)), side).to(images) for side in (h, w)]
    return (large[0] @ (small[0] @ images @ small[1].T) @ large[1].T).clamp(0, 1)


def _boxes(side: int, other: int) -> Float[Tensor, "other side"]:
    """The matrix that resizes a side by the mean over what each new pixel covers, or by the nearest pixel if it grows."""
    scale = side / other
    place = torch.arange(side, dtype=torch.float64)
    centre = (torch.arange(other, dtype=torch.float64)[:, None] + 0.5) * scale
    half = max(scale, 1.0) / 2
    inside = ((place + 0.5 - centre) / (2 * half) > -0.5) & (
        (place + 0.5 - centre) / (2 * half) <= 0.5
    )
    return inside.double() / inside.sum(1, keepdim=True)


def jpeg(images: Images, *, severity: int) -> Images:
    """Compress and decompress; other channels than grey or RGB each by itself."""
    quality = int(_one("jpeg", severity, images))
    if images.shape[1] in (1, 3):
        return transforms.jpeg_at(images, quality)
    return transforms.jpeg_at(images.flatten(0, 1).unsqueeze(1), quality).reshape(images.shape)


def _a_value(c: int, h: int, w: int) -> int:
    return c * h * w


_FAMILIES: dict[str, tuple[Any, Any]] = {
    "gaussian-noise": (gaussian_noise, _a_value),
    "shot-noise": (shot_noise, _a_value),
    "impulse-noise": (impulse_noise, _a_value),
    "speckle-noise": (speckle_noise, _a_value),
    "gaussian-blur": (gaussian_blur, 0),
    "defocus-blur": (defocus_blur, 0),
    "glass-blur": (glass_blur, _glass_numbers),
    "motion-blur": (motion_blur, 1),
    "zoom-blur": (zoom_blur, 0),
    "fog": (fog, sum(side**2 for side in OCTAVES)),
    "brightness": (brightness, 0),
    "contrast": (contrast, 0),
    "saturate": (saturate, 0),
    "pixelate": (pixelate, 0),
    "jpeg": (jpeg, 0),
}


def _view(family: str, severity: int) -> View:
    transform, numbers = _FAMILIES[family]
    if numbers is _glass_numbers:
        numbers = partial(_glass_numbers, severity=severity)
    return View(f"{family}-{severity}", partial(transform, severity=severity), numbers)


CORRUPTIONS: dict[str, View] = {
    f"{family}-{severity}": _view(family, severity)
    for family in _FAMILIES
    for severity in SEVERITIES
}
"""Every family at every severity, as views: `gaussian-noise-1` … `jpeg-5`."""
