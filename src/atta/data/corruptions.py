"""Corruptions: what cameras, weather and file formats do to images, at five severities.

Families and constants are those of CIFAR-10-C and ImageNet-C (Hendrycks & Dietterich,
"Benchmarking neural network robustness to common corruptions and perturbations", ICLR 2019).
Images of up to 64 pixels on the shorter side take the weaker constants of CIFAR-10-C, larger ones
those of ImageNet-C, whose lengths are in pixels of 224 and grow with the side.

| corruption     | rule, for one image x and the constant c of the severity   | numbers per image |
|----------------|------------------------------------------------------------|-------------------|
| gaussian-noise | x + c N(0, 1)                                              | one per value     |
| shot-noise     | Poisson(c x) / c                                           | one per value     |
| impulse-noise  | set a share c of the values to 0 or 1                      | one per value     |
| speckle-noise  | x + c x N(0, 1)                                            | one per value     |
| gaussian-blur  | a Gaussian of standard deviation c                         | none              |
| defocus-blur   | a disk of radius c with a soft edge                        | none              |
| glass-blur     | blur, exchange neighbours at random, blur again            | two per pixel     |
| motion-blur    | half a Gaussian along a line, up to 45° from horizontal    | 1: the angle      |
| zoom-blur      | the mean of the image and of enlarged versions             | none              |
| fog            | (x + c f) max(x) / (max(x) + c), f a cloud of 4 octaves    | 340: the cloud    |
| brightness     | add c to the value of HSV                                  | none              |
| contrast       | m + c (x - m), m the mean of the channel                   | none              |
| saturate       | multiply the saturation of HSV by c, add another constant  | none              |
| pixelate       | shrink by c (mean over boxes), enlarge again               | none              |
| jpeg           | JPEG compression of quality c                              | none              |

They are pure functions of pixels in [0, 1] and of given numbers, as views are:
`CORRUPTIONS["fog-3"]` is a `View`. They are for rehearsals, which a network is shown when a
calibrator is fitted, and for tests; a deployed network does not use them. Where the original uses
random shapes of a library (diamond-square clouds for fog, ImageMagick's motion blur), the
distribution is the same and the pixels are not.
"""

import math
from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from atta._base.errors import InputError
from atta._base.types import Images, Labels
from atta.data import transforms
from atta.data.draws import random_numbers
from atta.data.transforms import Numbers, normal, pick
from atta.data.views import REHEARSAL, Policy, View

SEVERITIES = (1, 2, 3, 4, 5)
SMALL = 64
"""Up to this shorter side in pixels, an image takes the constants of CIFAR-10-C."""
LARGE = 224
"""Side in pixels that the lengths of ImageNet-C refer to."""
_TABLE = """
gaussian-noise |  .04  .06  .08  .09  .10 | .08  .12  .18  .26  .38
shot-noise     |  500  250  100   75   50 |  60   25   12    5    3
impulse-noise  |  .01  .02  .03  .05  .07 | .03  .06  .09  .17  .27
speckle-noise  |  .06  .1   .12  .16  .2  | .15  .2   .35  .45  .6
gaussian-blur  |  .4   .6   .7   .8   1   |  1    2    3    4    6
defocus-blur   | .3,.4 .4,.5 .5,.6 1,.2 1.5,.1 | 3,.1 4,.5 6,.5 8,.5 10,.5
glass-blur     | .05,1,1 .25,1,1 .4,1,1 .25,1,2 .4,1,2 | .7,1,2 .9,2,1 1,2,3 1.1,3,2 1.5,4,2
motion-blur    | 6,1 6,1.5 6,2 8,2 9,2.5 | 10,3 15,5 15,8 15,12 20,15
zoom-blur|1.06,.01 1.11,.01 1.16,.01 1.21,.01 1.26,.01|1.11,.01 1.16,.01 1.21,.02 1.26,.02 1.31,.03
fog            | .2,3 .5,3 .75,2.5 1,2 1.5,1.75 | 1.5,2 2,2 2.5,1.7 2.5,1.5 3,1.4
brightness     |  .05  .1   .15  .2   .3  | .1   .2   .3   .4   .5
contrast       |  .75  .5   .4   .3   .15 | .4   .3   .2   .1   .05
saturate       | .3,0 .1,0 1.5,0 2,.1 2.5,.2 | .3,0 .1,0 2,0 5,.1 20,.2
pixelate       |  .95  .9   .85  .75  .65 | .6   .5   .4   .3   .25
jpeg           |   80   65   58   50   40 | 25   18   15   10    7
"""
CONSTANTS = {
    family.strip(): [
        [tuple(map(float, one.split(","))) for one in severities.split()] for severities in sets
    ]
    for family, *sets in (line.split("|") for line in _TABLE.strip().splitlines())
}
"""Of each family: the constants of CIFAR-10-C and of ImageNet-C, one tuple per severity."""


# ------------------------------------------------------------------------------------------- noise

MANY = 60.0
"""Photons from which a rounded normal number with Poisson's mean, deviation and skew is used."""


def shot_noise(images: Images, u: Numbers, count: float) -> Images:
    """Count photons: a Poisson number with mean `count` x, divided by `count`.

    It is the least number whose cumulative probability exceeds u; approximate for bright images.
    """
    mean = count * images.double()
    u = u.reshape(images.shape).double().clamp(2**-25, 1 - 2**-25)
    z: Tensor = torch.special.ndtri(u)
    found = (mean + mean.sqrt() * z + (z.square() - 1) / 6 + 0.5).floor().clamp(min=0)
    # Decided for each image alone: the rest of the batch must not matter.
    dark = mean.flatten(1).amax(dim=1) <= MANY
    mean, u = mean[dark], u[dark]
    exact, chance = torch.zeros_like(mean), (-mean).exp()
    total = chance.clone()
    for k in range(1, int(MANY + 8 * MANY**0.5)):
        exact += total <= u
        chance = chance * mean / k
        total += chance
    found[dark] = exact
    return (found / count).to(images.dtype)


def impulse_noise(images: Images, u: Numbers, share: float) -> Images:
    """Set half of a share of the values to 0, and the other half to 1."""
    numbers = u.reshape(images.shape)
    return images.masked_fill(numbers > 1 - share / 2, 1).masked_fill(numbers < share / 2, 0)


# -------------------------------------------------------------------------------------------- blur


def gaussian_blur(images: Images, deviation: float) -> Images:
    """Blur with a Gaussian, cut off at four standard deviations; the border is repeated."""
    taps = _gaussian(deviation, int(4 * deviation + 0.5))
    images = F.pad(images, (len(taps) // 2,) * 4, mode="replicate")
    return _convolved(_convolved(images, taps[:, None]), taps[None])


def defocus_blur(images: Images, radius: float, soft: float) -> Images:
    """Spread each pixel over a disk with a soft edge; the border is reflected."""
    reach = math.ceil(radius) + 2
    place = torch.arange(-reach, reach + 1, dtype=torch.float64)
    disk = (place[:, None].square() + place.square() <= radius**2).double()
    edge = _gaussian(soft, 1 if radius <= 8 else 2)
    soft_edge = torch.outer(edge, edge)[None, None]
    kernel = F.conv2d((disk / disk.sum())[None, None], soft_edge, padding="same")[0, 0]
    for axis in (2, 3):
        side = images.shape[axis]
        places = torch.arange(-reach, side + reach, device=images.device)
        images = images.index_select(axis, transforms.reflected(places, side))
    return _convolved(images, kernel)


def glass_blur(images: Images, u: Numbers, deviation: float, reach: float, rounds: float) -> Images:
    """Blur, read each pixel from a random place nearby, and blur again."""
    n, _, h, w = images.shape
    reach = max(1, round(reach))
    moves = (u.reshape(n, int(rounds), 2, h, w) * 2 * reach).floor().long() - reach
    rows, columns = torch.arange(h, device=u.device)[:, None], torch.arange(w, device=u.device)
    images = gaussian_blur(images, deviation)
    for down, across in (move.unbind(1) for move in moves.unbind(1)):
        places = (rows + down).clamp(0, h - 1) * w + (columns + across).clamp(0, w - 1)
        index = places.flatten(1)[:, None].expand(-1, images.shape[1], -1)
        images = images.flatten(2).gather(2, index).reshape(images.shape)
    return gaussian_blur(images, deviation)


def motion_blur(images: Images, u: Numbers, radius: float, deviation: float) -> Images:
    """Average along a line, with the weights of half a Gaussian."""
    steps = max(1, round(radius))
    angle = (u[:, 0].double() - 0.5) * (math.pi / 2)
    down, across = angle.sin()[:, None, None], angle.cos()[:, None, None]
    weights = _gaussian(deviation, steps)[steps:]
    rows, columns = transforms.from_centre(images)
    blurred = torch.zeros_like(images)
    for step, weight in enumerate((weights / weights.sum()).tolist()):
        moved = transforms.sample(images, rows[:, None] + step * down, columns + step * across)
        blurred += weight * moved
    return blurred


def zoom_blur(images: Images, stop: float, apart: float) -> Images:
    """Average the image and versions that are enlarged by 1, 1 + `apart`, ... up to `stop`."""
    factors = torch.arange(1, stop, apart, dtype=torch.float64, device=images.device)
    rows, columns = transforms.from_centre(images)
    total = images.clone()
    for step in 1 / factors:
        total += transforms.sample(
            images, (rows * step)[None, :, None], (columns * step)[None, None]
        )
    return total / (len(factors) + 1)


def _convolved(images: Tensor, kernel: Tensor) -> Tensor:
    """Convolve each channel with a kernel (h, w), without a border."""
    channels = images.shape[1]
    return F.conv2d(images, kernel.to(images).expand(channels, 1, -1, -1), groups=channels)


def _gaussian(deviation: float, reach: int) -> Tensor:
    """The weights of a Gaussian from -reach to reach."""
    place = torch.arange(-reach, reach + 1, dtype=torch.float64)
    weights = (-(place**2) / (2 * deviation**2)).exp()
    return weights / weights.sum()


# ---------------------------------------------------------------- weather, light, colour and files

OCTAVES = (2, 4, 8, 16)
"""Sides of the grids of random numbers that a fog cloud is made of."""


def fog(images: Images, u: Numbers, amount: float, decay: float) -> Images:
    """Add a bright cloud whose octaves decay by a constant, and keep the largest value."""
    n, _, h, w = images.shape
    cloud = torch.zeros(n, 1, h, w, dtype=images.dtype, device=images.device)
    grids = torch.split(u, [side**2 for side in OCTAVES], 1)
    for octave, (side, grid) in enumerate(zip(OCTAVES, grids, strict=True)):
        grid = grid.reshape(n, 1, side, side).to(images.dtype) - 0.5
        cloud += decay**-octave * F.interpolate(grid, (h, w), mode="bilinear", align_corners=True)
    low, high = cloud.amin((2, 3), keepdim=True), cloud.amax((2, 3), keepdim=True)
    brightest = images.amax((1, 2, 3), keepdim=True)
    return (images + amount * (cloud - low) / (high - low)) * brightest / (brightest + amount)


def brightness(images: Images, more: float) -> Images:
    """Raise the value of HSV: all channels by one factor."""
    value = images.amax(1, keepdim=True)
    factor = (value + more).clamp(max=1) / value.clamp(min=1e-12)
    # Black has no colour: it becomes grey.
    return torch.where(value > 0, images * factor, more)


def saturate(images: Images, factor: float, more: float) -> Images:
    """Scale the saturation of HSV; value and hue stay."""
    value = images.amax(1, keepdim=True)
    saturation = (value - images.amin(1, keepdim=True)) / value.clamp(min=1e-12)
    wanted = (saturation * factor + more).clamp(0, 1)
    # A grey pixel has no hue: HSV calls it red, so that green and blue become smaller.
    red = torch.tensor([0.0, 1.0, 1.0]) if images.shape[1] == 3 else torch.zeros(1)
    below = (value - images) / (value * saturation).clamp(min=1e-12)
    below = torch.where(saturation <= 0, red.to(images)[:, None, None], below)
    return value * (1 - wanted * below)


def pixelate(images: Images, share: float) -> Images:
    """Shrink by the mean over boxes, and enlarge to the original size."""
    sides = [(side, max(1, int(side * share))) for side in images.shape[2:]]
    for sizes in (sides, [(few, side) for side, few in sides]):
        for axis, (before, after) in enumerate(sizes):
            # Each pixel is the mean of the pixels in its box, or the nearest one.
            scale = before / after
            place = torch.arange(before, dtype=torch.float64) + 0.5
            centre = (torch.arange(after, dtype=torch.float64)[:, None] + 0.5) * scale
            distance = (place - centre) / max(scale, 1.0)
            inside = ((distance > -0.5) & (distance <= 0.5)).double()
            boxes = (inside / inside.sum(1, keepdim=True)).to(images)
            images = images @ boxes.T if axis else boxes @ images
    return images


def jpeg(images: Images, quality: float) -> Images:
    """Compress and decompress as JPEG; channels other than grey or RGB one by one."""
    planes = images if images.shape[1] in (1, 3) else images.flatten(0, 1).unsqueeze(1)
    qualities = torch.full(planes.shape[:1], int(quality), device=images.device)
    return transforms.jpeg_at(planes, qualities).reshape(images.shape)


# ------------------------------------------------------------------------------------------- views

_RULES: dict[str, tuple[Callable[..., Tensor], int]] = {
    "gaussian-noise": (lambda x, u, c: x + c * normal(u, x).to(x.dtype), 0),
    "shot-noise": (shot_noise, 0),
    "impulse-noise": (impulse_noise, 0),
    "speckle-noise": (lambda x, u, c: x + x * c * normal(u, x).to(x.dtype), 0),
    "gaussian-blur": (gaussian_blur, 1),
    "defocus-blur": (defocus_blur, 1),
    "glass-blur": (glass_blur, 2),
    "motion-blur": (motion_blur, 2),
    "zoom-blur": (zoom_blur, 0),
    "fog": (fog, 0),
    "brightness": (brightness, 0),
    "contrast": (lambda x, c: (mean := x.mean((2, 3), keepdim=True)) + c * (x - mean), 0),
    "saturate": (saturate, 0),
    "pixelate": (pixelate, 0),
    "jpeg": (jpeg, 0),
}
"""The function of each family, and how many of its constants, from the first on, are lengths."""
FAMILIES = tuple(_RULES)


def _numbers(c: int, h: int, w: int, *, family: str, severity: int) -> int:
    """Count the numbers per image."""
    *_, rounds = CONSTANTS["glass-blur"][min(h, w) > SMALL][severity - 1]
    cloud = sum(side**2 for side in OCTAVES)
    needs = {"glass-blur": int(rounds) * 2 * h * w, "motion-blur": 1, "fog": cloud}
    return needs.get(family, c * h * w if family.endswith("-noise") else 0)


def _corrupt(images: Images, *u: Numbers, family: str, severity: int) -> Images:
    """Apply a family with the constants of a severity."""
    (function, lengths), side = _RULES[family], min(images.shape[2:])
    constants = list(CONSTANTS[family][side > SMALL][severity - 1])
    if side > SMALL:
        constants[:lengths] = [length * side / LARGE for length in constants[:lengths]]
    return function(images, *u, *constants)


def _view(family: str, severity: int) -> View:
    numbers = partial(_numbers, family=family, severity=severity)
    transform = partial(_corrupt, family=family, severity=severity)
    return View(f"{family}-{severity}", transform, numbers if numbers(1, 1, 1) else 0)


_VIEWS = {severity: [_view(family, severity) for family in FAMILIES] for severity in SEVERITIES}
CORRUPTIONS = {view.name: view for views in zip(*_VIEWS.values(), strict=True) for view in views}
"""Every family at every severity, as views: `gaussian-noise-1` … `jpeg-5`."""


def _most_numbers(c: int, h: int, w: int, *, severity: int) -> int:
    """Count the numbers of the family that needs most, and one to pick a family."""
    return 1 + max(view.count(torch.empty(1, c, h, w)) for view in _VIEWS[severity])


def _rehearse(images: Images, u: Numbers, *, severity: int) -> Images:
    """Show each image in a family; its first number picks it."""
    picked, shown = pick(u[:, 0], len(FAMILIES)), images.clone()
    for family in set(picked.tolist()):
        view, rows = _VIEWS[severity][family], picked == family
        numbers = [u[rows, 1 : 1 + view.count(images)]] if view.random else []
        shown[rows] = view.transform(images[rows], *numbers)
    return shown


REHEARSALS = {
    severity: View(
        f"{REHEARSAL}{severity}",
        partial(_rehearse, severity=severity),
        partial(_most_numbers, severity=severity),
        stratified=False,
    )
    for severity in SEVERITIES
}
"""The rehearsals by severity: the first number of each image picks its family of FAMILIES."""


def rehearsed(severities: Iterable[int]) -> Policy:
    """Return the rehearsals of these severities as a policy of one pass each."""
    asked = dict.fromkeys(severities)
    if wrong := [one for one in asked if one not in REHEARSALS or isinstance(one, bool)]:
        raise InputError(
            f"rehearse: expected severities from 1 to {max(SEVERITIES)}, got {wrong[0]!r}"
        )
    return Policy(tuple((REHEARSALS[severity], 1) for severity in asked))


def families_of(rehearsals: Iterable[str], places: Tensor, seed: int) -> dict[str, Labels]:
    """Return the position in FAMILIES of each image's family, by rehearsal.

    Args:
        rehearsals: Names of rehearsals.
        places: The positions of the images in their set.
        seed: The seed of the run.
    """
    numbers = {name: random_numbers(name, 1, places, seed=seed)[:, 0] for name in rehearsals}
    return {name: pick(u, len(FAMILIES)) for name, u in numbers.items()}
