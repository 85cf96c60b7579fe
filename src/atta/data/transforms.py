"""The pixel functions behind the views: pure functions of images and of given numbers.

Images are floats in [0, 1] of shape (n, c, h, w). The numbers `u` are uniform in [0, 1), one row
per image, float32 or wider: in half precision the largest of them would round to 1.

| transform       | rule, for one image x                                | numbers per image      |
|-----------------|------------------------------------------------------|------------------------|
| flip            | mirror left and right                                | none                   |
| crop            | cut out 0.8 of each side, resize to the full size    | 2: top, left           |
| native_crop     | the same, not resized                                | 2: top, left           |
| brightness      | x + β max(x),  β = (2u - 1) 0.5 ~ U(-0.5, 0.5)       | 1                      |
| contrast        | x (1 + α),     α = (2u - 1) 0.2 ~ U(-0.2, 0.2)       | 1                      |
| gaussian_noise  | x + s N(0, 1), (255 s)² ~ U(10, 50) per channel      | c variances, c h w     |
| gaussian_blur   | Gaussian blur of kernel size 1, 2, 3, 4 or 5         | 1                      |
|                 |                                                      |                        |
| shift           | move by 1/32 to 1/8 in 8 directions, reflect border  | 2: direction, distance |
| diagonal_shift  | the same, in one of the 4 diagonal directions        | 2                      |
| flip_shift      | shift, then flip; flip_diagonal_shift likewise       | 2                      |
| nudge           | move by 1/16 in 8 directions, flip every other image | 2: direction, flip     |
| vflip           | mirror top and bottom                                | none                   |
| rot90, 180, 270 | rotate counter-clockwise                             | none                   |
| transpose       | mirror at a diagonal; antitranspose at the other     | none                   |
| zoom_in         | enlarge by 5 % to 15 % around the centre             | 1                      |
| zoom_out        | shrink by 5 % to 15 %, border reflected              | 1                      |
| Scale           | resize each side to some percent, or also mirror     | none                   |
| rotate          | rotate by ±5° to ±15°, border reflected              | 2: sign, angle         |
| gamma           | x^γ, γ = 5/8, 3/4, 5/4 or 3/2                        | 1                      |
| autocontrast    | stretch each channel to [0, 1]                       | none                   |
| saturation      | y + (1 ± s)(x - y), y the luma, s ~ U(0.25, 0.75)    | 2: sign, strength      |
| hue             | rotate the chroma by ±18° to ±54°, keep the luma     | 2: sign, angle         |
| grey            | set every channel to the luma                        | none                   |
| sharpen         | x + s (x - blurred x), s ~ U(0.5, 1.5)               | 1                      |
| jpeg            | JPEG compression at a quality of 30 to 90            | 1                      |

The paper's views are flip, crop, brightness and contrast; noise and then blur make its shifted test
set (CIFAR-10*). Brightness and contrast leave the image unchanged at u = 1/2, and blur does at size
1. The transforms below the empty row change the image for every u. Flips, rotations and transposes
are the eight symmetries of the square. Colour transforms take 1 or 3 channels and leave a grey
image unchanged.

The same image and the same numbers give the same bits, whatever else is in the batch. This forbids
more than reductions over the batch. A vectorised exp, pow or cos rounds differently from the scalar
version that finishes a row, and where a row ends depends on the batch. So powers are made of square
roots, and angles of the tangent of their half: sums, products, quotients and square roots are
rounded correctly everywhere.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from atta._base.errors import InputError
from atta._base.types import Images, Labels

Numbers: TypeAlias = Float[Tensor, "n d"]
"""Uniform numbers in [0, 1), one row per image."""
Resized: TypeAlias = Float[Tensor, "n c h2 w2"]
"""Images whose height and width may differ from those of the input."""
PerImage: TypeAlias = Float[Tensor, "n"]
"""One value per image."""

# ------------------------------------------------------------------------------- the paper's views


def flip(images: Images) -> Images:
    """Mirror each image around its vertical axis."""
    return images.flip(-1)


def crop(images: Images, u: Numbers) -> Images:
    """Cut out a window of 0.8 of each side, every position equally likely, and resize it.

    The resize is bilinear, with pixel centres aligned and without antialiasing.
    """
    return resample(images, *crop_places(u, *images.shape[2:]))


def native_crop(images: Images, u: Numbers) -> Resized:
    """Cut out the same window and do not resize it: fewer pixels, for networks of any size."""
    for axis, number in zip((-2, -1), u.unbind(1), strict=True):
        size = max(1, round(0.8 * images.shape[axis]))
        start = pick(number, images.shape[axis] - size + 1)[:, None]
        images = _take(images, axis, start + torch.arange(size, device=images.device))
    return images


def crop_places(u: Numbers, h: int, w: int) -> list[Tensor]:
    """Return, for `resample`, what a crop to images of h x w pixels reads.

    It depends on the numbers alone, so `atta.data.batched` computes it once per classifier.
    """
    found = []
    for i, side in enumerate((h, w)):
        size = max(1, round(0.8 * side))
        start = pick(u[:, i], side - size + 1)
        place = torch.arange(side, device=u.device, dtype=torch.float64)
        place = ((place + 0.5) * (size / side) - 0.5).clamp(min=0)
        before = place.floor().long()
        both = torch.stack([before, (before + 1).clamp(max=size - 1)])
        found += [start[:, None, None] + both, (place - before).expand(u.shape[0], -1)]
    return found


def resample(images: Tensor, rows: Tensor, down: Tensor, columns: Tensor, across: Tensor) -> Tensor:
    """Interpolate between two rows (n, 2, h) with the weights `down` (n, h), then two columns.

    Gathering and mixing gives the same bits at any batch size, and on a GPU takes a tenth of the
    time of `F.interpolate` on small images.
    """
    for axis, places, weight in ((-2, rows, down), (-1, columns, across)):
        first, second = _take(images.expand(2, *images.shape), axis, places.movedim(-2, 0)).unbind()
        weight = weight.to(images.dtype)[..., None, None, :]
        images = torch.lerp(first, second, weight.mT if axis == -2 else weight)
    return images.clamp(0, 1)


def _take(images: Tensor, axis: int, places: Tensor) -> Tensor:
    """Select the rows (axis -2) or columns (axis -1) of each image at its own places."""
    sizes = list(images.shape)
    sizes[axis] = places.shape[-1]
    places = places[..., None, None, :]
    return images.gather(axis, (places.mT if axis == -2 else places).expand(sizes))


def brightness(images: Images, u: Numbers) -> Images:
    """Add β times the largest value of the image, β = (2u - 1) 0.5."""
    return (images + _centred(u, 0.5, images) * images.amax((1, 2, 3), keepdim=True)).clamp(0, 1)


def contrast(images: Images, u: Numbers) -> Images:
    """Multiply by 1 + α, α = (2u - 1) 0.2."""
    return (images * (1 + _centred(u, 0.2, images))).clamp(0, 1)


def gaussian_noise(images: Images, u: Numbers) -> Images:
    """Add normal noise whose variance is uniform in [10, 50) on the scale 0 to 255.

    The first c numbers choose the variance of each channel, the other c h w become the noise.
    """
    c = images.shape[1]
    deviation = (10.0 + 40.0 * u[:, :c]).sqrt()[..., None, None] / 255
    return (images + (deviation * normal(u[:, c:], images)).to(images.dtype)).clamp(0, 1)


def normal(u: Numbers, images: Images) -> Images:
    """Turn uniform numbers into normal ones, in the shape of the images.

    The inverse of the distribution function is -∞ at 0. The numbers are multiples of 2⁻²⁴, so a
    lower limit of half a step changes only the 0.
    """
    found: Tensor = torch.special.ndtri(u.clamp(min=2**-25))
    return found.reshape(images.shape)


def gaussian_blur(images: Images, u: Numbers, *, sizes: tuple[int, int] = (1, 5)) -> Images:
    """Blur with a Gaussian whose kernel size is drawn from `sizes[0]` to `sizes[1]`.

    A kernel of `size` pixels, centred on a pixel, covers the neighbour at distance d by
    clip((size + 1)/2 - |d|, 0, 1): an even size covers half of its two outermost pixels, so no size
    moves the image. Each neighbour weighs its cover times exp(-d²/2σ²), where
    σ = 0.3((size - 1)/2 - 1) + 0.8 as in OpenCV, and the weights sum to 1. Size 1 is the identity.
    The border is reflected without repeating the edge, as in OpenCV.
    """
    smallest, largest = sizes
    reach = largest // 2
    size = torch.arange(smallest, largest + 1, dtype=torch.float64)[:, None]
    distance = torch.arange(-reach, reach + 1)
    sigma = 0.3 * ((size - 1) / 2 - 1) + 0.8
    cover = ((size + 1) / 2 - distance.abs()).clamp(0, 1)
    kernels = cover * (-(distance**2) / (2 * sigma**2)).exp()
    kernels = (kernels / kernels.sum(1, keepdim=True)).to(images)
    weights = kernels[pick(u[:, 0], kernels.shape[0])][..., None, None, None]

    # A Gaussian is the product of a vertical and a horizontal one. Adding shifted copies in a fixed
    # order allows one kernel per image and gives the same bits in any batch; a convolution or a
    # reduction does not guarantee that.
    for axis, border in ((2, (0, 0, reach, reach)), (3, (reach, reach, 0, 0))):
        padded, side = F.pad(images, border, mode="reflect"), images.shape[axis]
        taps = (padded.narrow(axis, i, side) * weights[:, i] for i in range(2 * reach + 1))
        images = functools.reduce(torch.add, taps)
    return images.clamp(0, 1)


# ----------------------------------------------------------------------------- moves and rotations

COMPASS = ((-1, -1), (-1, 0), (-1, 1), (0, 1), (1, 1), (1, 0), (1, -1), (0, -1))
"""(down, right), clockwise from the upper left. Every other direction is diagonal."""


def shift(
    images: Images,
    u: Numbers,
    *,
    directions: Sequence[tuple[int, int]] = COMPASS,
    parts: tuple[int, int] = (32, 8),
) -> Images:
    """Move by whole pixels, at least one: u[0] picks the direction, u[1] the distance.

    The distance along a side of s pixels is a whole number from s/32 to s/8, rounded, at least 1:
    1, 2, 3 or 4 pixels of 32; `parts` sets other limits. The border is reflected at its outermost
    pixels. u = (1/2, 1/2) moves down and to the right by a middle distance.
    """
    chosen = torch.tensor(directions, device=images.device)[pick(u[:, 0], len(directions))]
    for axis, way in zip((-2, -1), chosen.unbind(1), strict=True):
        side = images.shape[axis]
        least, most = (max(1, round(side / part)) for part in parts)
        pixels = way * (least + pick(u[:, 1], most - least + 1))
        places = reflected(torch.arange(side, device=images.device) - pixels[:, None], side)
        images = _take(images, axis, places)
    return images


def flip_shift(images: Images, u: Numbers) -> Images:
    """Shift, then flip."""
    return shift(images, u).flip(-1)


def nudge(images: Images, u: Numbers) -> Images:
    """Move by 1/16 of the side, 2 pixels of 32; flip every other image.

    u[0] picks one of eight directions, clockwise from up; u[1] flips the image from 1/2 on. With
    stratified numbers, one nudge goes down; two go right and left; three go up and right, down, and
    left; four go along the diagonals. They point away from each other, and half of them are
    flipped. Larger moves and moves without a flip add less information.
    """
    clockwise_from_up = (*COMPASS[1:], COMPASS[0])
    moved = shift(images, u, directions=clockwise_from_up, parts=(16, 16))
    return torch.where(u[:, 1].reshape(-1, 1, 1, 1) >= 0.5, moved.flip(-1), moved)


def diagonal_shift(images: Images, u: Numbers) -> Images:
    """Shift along one of the four diagonals: every row and every column moves."""
    return shift(images, u, directions=COMPASS[::2])


def flip_diagonal_shift(images: Images, u: Numbers) -> Images:
    """Shift along a diagonal, then flip."""
    return diagonal_shift(images, u).flip(-1)


def vflip(images: Images) -> Images:
    """Mirror each image around its horizontal axis."""
    return images.flip(-2)


def rot90(images: Images) -> Resized:
    """Rotate by 90 degrees counter-clockwise. Height and width are exchanged."""
    return images.rot90(1, (-2, -1))


def rot180(images: Images) -> Images:
    """Rotate by 180 degrees."""
    return images.flip((-2, -1))


def rot270(images: Images) -> Resized:
    """Rotate by 270 degrees counter-clockwise. Height and width are exchanged."""
    return images.rot90(3, (-2, -1))


def transpose(images: Images) -> Resized:
    """Mirror at the diagonal from the upper left. Height and width are exchanged."""
    return images.mT


def antitranspose(images: Images) -> Resized:
    """Mirror at the diagonal from the upper right. Height and width are exchanged."""
    return images.flip((-2, -1)).mT


def zoom_in(images: Images, u: Numbers) -> Images:
    """Enlarge around the centre by the factor 1.05 + 0.1 u and cut off the rest. Bilinear."""
    return zoom(images, 1 / _between(u, 1.05, 1.15))


def zoom_out(images: Images, u: Numbers) -> Images:
    """Shrink around the centre by the factor 1.05 + 0.1 u, with a reflected border. Bilinear."""
    return zoom(images, _between(u, 1.05, 1.15))


def zoom(images: Images, step: Float[Tensor, "#n 1"]) -> Images:
    """Show every `step`-th pixel, counted from the centre. Bilinear."""
    rows, columns = (place * step for place in from_centre(images))
    return sample(images, rows[:, :, None], columns[:, None])


@dataclass(frozen=True)
class Scale:
    """Resize each side to some percent, and mirror left and right if asked to. Bilinear."""

    percent: int
    mirrored: bool = False

    def __call__(self, images: Images) -> Resized:
        """Return the resized images."""
        size = [max(1, round(side * (self.percent / 100))) for side in images.shape[-2:]]
        shown = F.interpolate(images, size=size, mode="bilinear", align_corners=False)
        return shown.flip(-1) if self.mirrored else shown


def rotate(images: Images, u: Numbers) -> Images:
    """Rotate around the centre by 5 to 15 degrees. Bilinear, with a reflected border.

    u[0] picks clockwise (below 1/2) or counter-clockwise, u[1] the angle: the tangent of half the
    angle is uniform.
    """
    cosine, sine = _angle(u, 5.0, 15.0)
    y, x = from_centre(images)
    rows = sine[:, None, None] * x + (cosine[:, None] * y)[:, :, None]
    columns = cosine[:, None, None] * x - (sine[:, None] * y)[:, :, None]
    return sample(images, rows, columns)


def from_centre(images: Images) -> list[Tensor]:
    """Return the rows and the columns as distances from the centre: -1, 0, 1 for a side of 3."""
    return [
        torch.arange(side, device=images.device, dtype=torch.float64) - (side - 1) / 2
        for side in images.shape[2:]
    ]


def sample(
    images: Images, rows: Float[Tensor, "#n h #w"], columns: Float[Tensor, "#n #h w"]
) -> Images:
    """Read each pixel at a place given from the centre, by bilinear interpolation."""
    h, w = images.shape[2:]
    rows, columns = rows + (h - 1) / 2, columns + (w - 1) / 2
    top, left = rows.floor(), columns.floor()
    down, across = (rows - top).to(images)[:, None], (columns - left).to(images)[:, None]
    lines = [reflected(one.long(), h) * w for one in (top, top + 1)]
    sides = [reflected(one.long(), w) for one in (left, left + 1)]
    pixels = images.flatten(2)
    corners = (
        pixels.gather(2, (line + side).flatten(1)[:, None].expand_as(pixels)).reshape(images.shape)
        for line in lines
        for side in sides
    )
    above, below = (torch.lerp(left, next(corners), across) for left in corners)
    return torch.lerp(above, below, down).clamp(0, 1)


def reflected(places: Tensor, side: int) -> Tensor:
    """Mirror places beyond a border at the outermost pixel: -2, -1, 0 → 2, 1, 0."""
    period = max(1, 2 * (side - 1))
    places = places.remainder(period)
    return torch.minimum(places, period - places)


# -------------------------------------------------------------------------------- light and colour


def _in_float32(transform: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Widen half precision to float32 for several steps, then clip and return the input's dtype."""

    @functools.wraps(transform)
    def run(images: Images, *u: Tensor) -> Images:
        wide = images.to(torch.promote_types(images.dtype, torch.float32))
        return transform(wide, *u).clamp(0, 1).to(images.dtype)

    return run


@_in_float32
def gamma(images: Images, u: Numbers) -> Images:
    """Raise every value to the power γ: 5/8 or 3/4 (brighter) below u = 1/2, else 5/4 or 3/2."""
    choice = pick(u, 4)[..., None, None]
    half = images.sqrt()
    quarter = half.sqrt()
    rest = torch.where(choice == 0, quarter.sqrt(), torch.where(choice == 3, half, quarter))
    return torch.where(choice < 2, half, images) * rest


@_in_float32
def autocontrast(images: Images) -> Images:
    """Stretch each channel to [0, 1]; a constant channel is left unchanged."""
    low, high = images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)
    return torch.where(high > low, (images - low) / (high - low), images)


@_in_float32
def sharpen(images: Images, u: Numbers) -> Images:
    """Add 0.5 + u times the difference between the image and its Gaussian blur of size 3."""
    lost = images - gaussian_blur(images, u, sizes=(3, 3))
    return images + (0.5 + u.double()).to(images)[..., None, None] * lost


@_in_float32
def saturation(images: Images, u: Numbers) -> Images:
    """Make colours paler or stronger: y + f (x - y), where y is the luma.

    u[0] picks paler, f = 1 - s, below 1/2 and stronger, f = 1 + s, from there on; u[1] picks s
    from 0.25 to 0.75. A grey image is left unchanged.
    """
    luma = _to_ycbcr(images)[0]
    factor = (1 + _either_sign(u, 0.25, 0.75)).to(images)[:, None, None, None]
    return luma + factor * (images - luma)


@_in_float32
def hue(images: Images, u: Numbers) -> Images:
    """Rotate the chroma (Cb, Cr) by 18 to 54 degrees: u[0] picks the sign, u[1] the angle.

    The luma stays, except where values are clipped. A grey image is left unchanged. The tangent of
    half the angle is uniform.
    """
    luma, *chroma = _to_ycbcr(images)
    if not chroma:
        return images
    blue, red = chroma
    cosine, sine = (part.to(images)[:, None, None, None] for part in _angle(u, 18.0, 54.0))
    return _to_rgb(luma, cosine * blue - sine * red, sine * blue + cosine * red)


@_in_float32
def grey(images: Images) -> Images:
    """Set every channel to the luma, 0.299 red + 0.587 green + 0.114 blue."""
    return _to_ycbcr(images)[0].expand(images.shape)


def jpeg(images: Images, u: Numbers) -> Images:
    """Compress and decompress as JPEG at a quality of 30 + floor(61 u)."""
    return jpeg_at(images, 30 + pick(u[:, 0], 61))


def jpeg_at(images: Images, quality: Labels) -> Images:
    """Compress and decompress as JPEG at a quality from 1 to 100.

    The 8 x 8 cosine coefficients of luma and chroma are rounded with libjpeg's tables and scaling.
    The chroma is not subsampled, and no other value is rounded. A side that is not a multiple of 8
    is continued with its last pixel. A grey image has luma only.
    """
    n, c, h, w = images.shape
    middle = torch.tensor([128.0, 0.0, 0.0][:c], device=images.device)[:, None, None]
    wide = images.to(torch.promote_types(images.dtype, torch.float32))
    planes = 255 * torch.cat(_to_ycbcr(wide), 1) - middle
    padded = F.pad(planes, (0, -w % 8, 0, -h % 8), mode="replicate")
    blocks = padded.reshape(n, c, -(-h // 8), 8, -(-w // 8), 8)

    # `full_like`, since the ONNX exporter does not divide a Python number by a tensor.
    low = torch.full_like(quality, 5000) // quality
    percent = torch.where(quality < 50, low, 200 - 2 * quality)[:, None, None, None]
    tables = torch.tensor([_LUMA_TABLE, _CHROMA_TABLE, _CHROMA_TABLE][:c], device=images.device)
    steps = ((tables * percent + 50) // 100).clamp(1, 255).to(blocks.dtype)[:, :, None, :, None]

    # Each axis times the cosines, summed in a fixed order: the same bits in any batch.
    cosines = torch.tensor(_COSINES, dtype=blocks.dtype, device=images.device)
    for matrix in (cosines.T, cosines):
        for axis in (3, 5):
            columns = matrix.reshape(8, *(8 if i == axis else 1 for i in range(6)))
            pairs = zip(torch.split(blocks, 1, axis), columns.unbind(), strict=True)
            blocks = functools.reduce(torch.add, (part * column for part, column in pairs))
        if matrix is not cosines:
            blocks = (blocks / steps).round() * steps
    planes = (blocks.reshape(padded.shape)[..., :h, :w] + middle) / 255
    shown = planes if c == 1 else _to_rgb(*torch.split(planes, 1, 1))
    return shown.clamp(0, 1).to(images.dtype)


_COSINES = [
    [
        math.cos((2 * place + 1) * wave * math.pi / 16) / (8**0.5 if wave == 0 else 2)
        for place in range(8)
    ]
    for wave in range(8)
]
_STEPS = """
16  11  10  16  24  40  51  61   17  18  24  47  99  99  99  99
12  12  14  19  26  58  60  55   18  21  26  66  99  99  99  99
14  13  16  24  40  57  69  56   24  26  56  99  99  99  99  99
14  17  22  29  51  87  80  62   47  66  99  99  99  99  99  99
18  22  37  56  68 109 103  77   99  99  99  99  99  99  99  99
24  35  55  64  81 104 113  92   99  99  99  99  99  99  99  99
49  64  78  87 103 121 120 101   99  99  99  99  99  99  99  99
72  92  95  98 112 100 103  99   99  99  99  99  99  99  99  99
"""
"""The steps of JPEG's standard (ITU T.81), annexes K.1 and K.2: luma left, chroma right."""
_LUMA_TABLE, _CHROMA_TABLE = (
    np.array(_STEPS.split(), dtype=int).reshape(8, 2, 8).swapaxes(0, 1).tolist()
)


def _to_ycbcr(images: Images) -> list[Tensor]:
    """Convert RGB to luma, blueness and redness (ITU-R BT.601, full range); grey is its luma."""
    if images.shape[1] == 1:
        return [images]
    if images.shape[1] != 3:
        raise InputError(
            f"A colour view: expected images of 1 or 3 channels, got {images.shape[1]}. "
            "Choose views that do not change colours, such as flip, shift or crop."
        )
    red, green, blue = torch.split(images, 1, 1)
    luma = 0.299 * red + 0.587 * green + 0.114 * blue
    return [luma, (blue - luma) / 1.772, (red - luma) / 1.402]


def _to_rgb(luma: Tensor, blueness: Tensor, redness: Tensor) -> Images:
    red, blue = luma + 1.402 * redness, luma + 1.772 * blueness
    return torch.cat([red, (luma - 0.299 * red - 0.114 * blue) / 0.587, blue], 1)


# --------------------------------------------------------------------- from numbers to parameters


def _between(u: Tensor, low: float, high: float) -> Tensor:
    """Spread the numbers over [low, high), in float64."""
    return low + (high - low) * u.double()


def _either_sign(u: Numbers, low: float, high: float) -> PerImage:
    """Spread over ±[low, high): u[0] picks the sign, + from 1/2 on, and u[1] the size."""
    size = _between(u[:, 1], low, high)
    return torch.where(u[:, 0] < 0.5, -size, size)


def _angle(u: Numbers, low: float, high: float) -> tuple[PerImage, PerImage]:
    """Cosine and sine of an angle of ±`low` to ±`high` degrees, from t = tan(angle / 2)."""
    t = _either_sign(u, math.tan(math.radians(low) / 2), math.tan(math.radians(high) / 2))
    return (1 - t * t) / (1 + t * t), 2 * t / (1 + t * t)


def _centred(u: Numbers, strength: float, images: Images) -> Tensor:
    """Spread the one number of each image over [-strength, strength)."""
    return ((2 * u - 1) * strength).to(images.dtype)[..., None, None]


def pick(u: Tensor, choices: int) -> Tensor:
    """Pick one of 0 … choices - 1, each equally likely; a product that rounds up is limited."""
    return (u * choices).long().clamp(max=choices - 1)
