"""What a view does to pixels: pure functions of images in [0, 1] and of given numbers in [0, 1).

| transform       | rule, for one image x                                     | numbers an image                 |
|-----------------|-----------------------------------------------------------|----------------------------------|
| flip            | left and right change places                              | none                             |
| crop            | a window of 0.8 of each side, resized to the side         | 2: its top, its left             |
| brightness      | x + β max(x),  β = (2u - 1) 0.5 ~ U(-0.5, 0.5)            | 1                                |
| contrast        | x (1 + α),     α = (2u - 1) 0.2 ~ U(-0.2, 0.2)            | 1                                |
| gaussian_noise  | x + s N(0, 1), (255 s)² ~ U(10, 50) for each channel      | c variances, then c h w, a pixel |
| gaussian_blur   | x convolved with a Gaussian of width 1, 2, 3, 4 or 5      | 1                                |
|                 |                                                           |                                  |
| shift           | moved by 1/32 to 1/8 of the side, the border reflected    | 2: one of 8 directions, how far  |
| diagonal_shift  | the same, in one of the 4 diagonal directions             | 2                                |
| flip_shift      | shifted, then flipped; flip_diagonal_shift likewise       | 2                                |
| nudge           | moved by 1/16 of the side, every other one flipped        | 2: one of 8 directions, flip     |
| vflip           | top and bottom change places                              | none                             |
| rot90, 180, 270 | turned, counter-clockwise                                 | none                             |
| transpose       | mirrored at a diagonal; antitranspose at the other one    | none                             |
| zoom_in         | enlarged by 5 % to 15 % around the centre                 | 1                                |
| zoom_out        | made smaller by 5 % to 15 %, the border reflected         | 1                                |
| rotate          | turned by 5° to 15° to either side, the border reflected  | 2: which side, how far           |
| gamma           | x^γ, γ = 5/8, 3/4, 5/4 or 3/2                             | 1                                |
| autocontrast    | each channel stretched to [0, 1]                          | none                             |
| saturation      | y + (1 ± s)(x - y), y the luma, s ~ U(0.25, 0.75)         | 2: which side, how far           |
| hue             | chroma turned by 18° to 54° to either side, luma kept     | 2: which side, how far           |
| grey            | every channel becomes the luma                            | none                             |
| sharpen         | x + s (x - blurred x), s ~ U(0.5, 1.5)                    | 1                                |
| jpeg            | what compression at a quality of 30 to 90 leaves          | 1                                |

The first four are the paper's views; the next two, noise and then blur, make its shifted test set (CIFAR-10*). Every
result is clipped to [0, 1]. Nothing here draws a random number, so the same numbers give the same pixels, and no image
is touched by its neighbours in the batch. The numbers come in float32 or wider: in half precision the largest of them
would round to 1.

Brightness and contrast leave the image as it is at u = 1/2, and blur where it draws the width 1. Those below the empty
line have no such number: whatever is drawn shows something new. Flips, turns and transposes are the eight symmetries of
the square. A colour transform takes 1 or 3 channels, and leaves a grey image alone.

The same bits at any batch size forbid more than reductions. A vectorised exp, pow or cos rounds differently from the
scalar one that finishes a row, and where a row ends depends on the batch. So powers are made of square roots and
angles of the tangent of their half: sums, products, quotients and square roots are rounded correctly everywhere.
"""

import functools
import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from atta._base.errors import InputError
from atta._base.types import Images


def flip(images: Images) -> Images:
    """Mirror each image around its vertical axis."""
    return images.flip(-1)


def crop(
    images: Images, u: Float[Tensor, "n 2"], *, ratio: float = 0.8, resize: bool = True
) -> Float[Tensor, "n c h2 w2"]:
    """Cut a window of `ratio` of each side, every position equally likely, and resize it to the size it was cut from.

    A side of s pixels leaves p = s - round(ratio s) + 1 positions and the window starts at floor(u p). The resize is
    bilinear, pixel centres aligned, without antialiasing. `resize=False` leaves the window as it is, for networks that
    take any size: fewer pixels, a cheaper pass.
    """
    (top, high), (left, wide) = (
        window(u[:, i], side, ratio) for i, side in enumerate(images.shape[2:])
    )
    h, w = images.shape[2:] if resize else (high, wide)
    cut = _stretch(_stretch(images, 2, top, high, h), 3, left, wide, w)
    return cut.clamp(0, 1) if resize else cut


def window(u: Float[Tensor, "n"], side: int, ratio: float = 0.8) -> tuple[Int[Tensor, "n"], int]:
    """Where a window of `ratio` of a side begins, and how many pixels it has."""
    size = max(1, round(ratio * side))
    return _pick(u, side - size + 1), size


def _stretch(
    images: Images, axis: int, start: Int[Tensor, "n"], window: int, side: int
) -> Float[Tensor, "n c h2 w2"]:
    """Cut `window` pixels from `start` on along an axis, and stretch them to `side` by linear interpolation.

    By gathering and mixing the two neighbours of each pixel: the same bits at any batch size, and on a GPU a tenth of the
    time that its own resize takes on small images.
    """
    (before, after), nearness = neighbours(start, window, side)
    first = _take(images, axis, before)
    if side == window:
        return first
    shape = [1, 1, 1, 1]
    shape[axis] = side
    return torch.lerp(first, _take(images, axis, after), nearness.to(images.dtype).reshape(shape))


def neighbours(
    start: Int[Tensor, "n"], window: int, side: int
) -> tuple[Int[Tensor, "2 n side"], Float[Tensor, "side"]]:
    """The two pixels of a window that each of `side` pixels lies between, and how near it is to the second one."""
    place = (
        (torch.arange(side, device=start.device, dtype=torch.float64) + 0.5) * (window / side) - 0.5
    ).clamp(min=0)
    before = place.floor().long()
    both = torch.stack([before, (before + 1).clamp(max=window - 1)])
    return start[:, None] + both[:, None], place - before


def _take(images: Images, axis: int, places: Int[Tensor, "n side"]) -> Float[Tensor, "n c h2 w2"]:
    """The rows or columns of each image at its own places."""
    shape, sizes = [places.shape[0], 1, 1, 1], list(images.shape)
    shape[axis] = sizes[axis] = places.shape[1]
    return images.gather(axis, places.reshape(shape).expand(sizes))


def brightness(images: Images, u: Float[Tensor, "n 1"], *, strength: float = 0.5) -> Images:
    """Add β times the brightest value of the image, β = (2u - 1) strength; u = 1/2 changes nothing."""
    return (images + _centred(u, strength, images) * images.amax((1, 2, 3), keepdim=True)).clamp(
        0, 1
    )


def contrast(images: Images, u: Float[Tensor, "n 1"], *, strength: float = 0.2) -> Images:
    """Multiply by 1 + α, α = (2u - 1) strength; u = 1/2 changes nothing."""
    return (images * (1 + _centred(u, strength, images))).clamp(0, 1)


def gaussian_noise(
    images: Images, u: Float[Tensor, "n d"], *, variance: tuple[float, float] = (10.0, 50.0)
) -> Images:
    """Add normal noise whose variance, on the scale 0 to 255, is uniform in `variance` for each image and channel.

    The first c numbers of an image choose the variances, the other c h w become noise by the inverse of the normal
    distribution function.
    """
    n, c, h, w = images.shape
    low, high = variance
    deviation = (low + (high - low) * u[:, :c]).sqrt()[..., None, None] / 255
    # At 0 the inverse is -∞. The numbers are multiples of 2⁻²⁴: half a step further in, nothing else moves.
    normal: Tensor = torch.special.ndtri(u[:, c:].clamp(min=2**-25)).reshape(n, c, h, w)
    return (images + (deviation * normal).to(images.dtype)).clamp(0, 1)


def gaussian_blur(
    images: Images, u: Float[Tensor, "n 1"], *, sizes: tuple[int, int] = (1, 5)
) -> Images:
    """Blur with a Gaussian whose kernel size is drawn, for each image, from the whole numbers `sizes[0]` to `sizes[1]`.

    A window of `size` pixels, centred on a pixel, covers the neighbour at distance d by clip((size + 1)/2 - |d|, 0, 1):
    an odd size covers whole pixels, an even one half of its two outermost, so that no size moves the image. Each
    neighbour weighs its cover times exp(-d²/2σ²), where σ = 0.3((size - 1)/2 - 1) + 0.8 is OpenCV's rule, and the
    weights sum to 1. Size 1 is the identity. Borders are reflected without repeating the edge, also as in OpenCV.
    """
    smallest, largest = sizes
    reach = largest // 2
    size = torch.arange(smallest, largest + 1, dtype=torch.float64)[:, None]
    distance = torch.arange(-reach, reach + 1)
    sigma = 0.3 * ((size - 1) / 2 - 1) + 0.8
    kernels = ((size + 1) / 2 - distance.abs()).clamp(0, 1) * (
        -(distance**2) / (2 * sigma**2)
    ).exp()
    kernels = (kernels / kernels.sum(1, keepdim=True)).to(images)
    weights = kernels[_pick(u[:, 0], kernels.shape[0])][..., None, None, None]

    # A Gaussian is the product of one pass down and one across. Shifted copies, added in a fixed order, let each image
    # have its kernel and give the same bits in any batch; neither a convolution nor a reduction promises that.
    for axis, border in ((2, (0, 0, reach, reach)), (3, (reach, reach, 0, 0))):
        padded, side = F.pad(images, border, mode="reflect"), images.shape[axis]
        images = functools.reduce(
            torch.add,
            (padded.narrow(axis, tap, side) * weights[:, tap] for tap in range(2 * reach + 1)),
        )
    return images.clamp(0, 1)


# ---------------------------------------------------------------------------------------------------- moves and turns

COMPASS = ((-1, -1), (-1, 0), (-1, 1), (0, 1), (1, 1), (1, 0), (1, -1), (0, -1))
"""(down, right), clockwise from the upper left. Every other one is a diagonal, the middle one too."""


def shift(
    images: Images, u: Float[Tensor, "n 2"], *, directions: Sequence[tuple[int, int]] = COMPASS
) -> Images:
    """Move by whole pixels, never by none: the first number picks the direction, the second the distance.

    The distance along a side of s pixels is one of the whole numbers from s/32 to s/8, rounded and 1 at least: 1, 2, 3
    or 4 pixels of 32. What comes in over the border is the image reflected at its outermost pixels. u = (1/2, 1/2) moves
    down and to the right by a middle distance.
    """
    chosen = torch.tensor(directions, device=images.device)[_pick(u[:, 0], len(directions))]
    for axis, way in zip((2, 3), chosen.unbind(1), strict=True):
        side = images.shape[axis]
        least, most = max(1, round(side / 32)), max(1, round(side / 8))
        images = _moved(images, axis, way * (least + _pick(u[:, 1], most - least + 1)))
    return images


def _moved(images: Images, axis: int, pixels: Int[Tensor, "n"]) -> Images:
    """Move each image by whole pixels along an axis, its reflection coming in over the border."""
    side = images.shape[axis]
    return _take(
        images, axis, reflected(torch.arange(side, device=images.device) - pixels[:, None], side)
    )


def flip_shift(images: Images, u: Float[Tensor, "n 2"]) -> Images:
    """Shift, then flip."""
    return flip(shift(images, u))


CLOCKWISE = ((-1, 0), (-1, 1), (0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1))
"""(down, right), clockwise from straight up."""


def nudge(images: Images, u: Float[Tensor, "n 2"]) -> Images:
    """Move by a sixteenth of the side, 2 pixels of 32; mirror every other image.

    The first number picks one of eight directions, clockwise from up; the second mirrors the image from 1/2 on. Spread evenly,
    one nudge goes down, two right and left, three up and right, down, and left, four along the diagonals: they point away from
    each other, and half of them are mirrored. Larger moves and moves without a mirror image say less that is new and right.
    """
    chosen = torch.tensor(CLOCKWISE, device=images.device)[_pick(u[:, 0], 8)]
    for axis, way in zip((2, 3), chosen.unbind(1), strict=True):
        images = _moved(images, axis, way * max(1, round(images.shape[axis] / 16)))
    return torch.where(u[:, 1].reshape(-1, 1, 1, 1) >= 0.5, flip(images), images)


def diagonal_shift(images: Images, u: Float[Tensor, "n 2"]) -> Images:
    """Shift along one of the four diagonals: every row and every column moves."""
    return shift(images, u, directions=COMPASS[::2])


def flip_diagonal_shift(images: Images, u: Float[Tensor, "n 2"]) -> Images:
    """Shift along a diagonal, then flip."""
    return flip(diagonal_shift(images, u))


def vflip(images: Images) -> Images:
    """Mirror each image around its horizontal axis: top and bottom change places."""
    return images.flip(-2)


def rot90(images: Images) -> Float[Tensor, "n c w h"]:
    """Turn by 90 degrees, counter-clockwise. Height and width change places."""
    return images.rot90(1, (-2, -1))


def rot180(images: Images) -> Images:
    """Turn upside down, by 180 degrees."""
    return images.flip((-2, -1))


def rot270(images: Images) -> Float[Tensor, "n c w h"]:
    """Turn by 270 degrees counter-clockwise, 90 clockwise. Height and width change places."""
    return images.rot90(3, (-2, -1))


def transpose(images: Images) -> Float[Tensor, "n c w h"]:
    """Mirror each image at the diagonal from its upper left. Height and width change places."""
    return images.mT


def antitranspose(images: Images) -> Float[Tensor, "n c w h"]:
    """Mirror each image at the diagonal from its upper right. Height and width change places."""
    return images.flip((-2, -1)).mT


def zoom_in(images: Images, u: Float[Tensor, "n 1"]) -> Images:
    """Enlarge around the centre by the factor 1.05 + 0.1 u; what no longer fits is cut off. Bilinear."""
    return _zoom(images, 1 / _between(u[:, 0], 1.05, 1.15))


def zoom_out(images: Images, u: Float[Tensor, "n 1"]) -> Images:
    """Shrink around the centre by the factor 1.05 + 0.1 u; the image, reflected, fills the border. Bilinear."""
    return _zoom(images, _between(u[:, 0], 1.05, 1.15))


def _zoom(images: Images, step: Float[Tensor, "n"]) -> Images:
    """Look at every `step`-th pixel, counted from the centre."""
    rows, columns = (_from_centre(side, images) * step[:, None] for side in images.shape[2:])
    return sample(images, rows[:, :, None], columns[:, None])


def rotate(images: Images, u: Float[Tensor, "n 2"]) -> Images:
    """Turn around the centre: the first number picks the side, the second the angle, from 5 to 15 degrees.

    Clockwise below 1/2, counter-clockwise from there on; the tangent of half the angle is uniform. Bilinear.
    """
    cosine, sine = _turn(u, 5.0, 15.0)
    y, x = (_from_centre(side, images) for side in images.shape[2:])
    rows = sine[:, None, None] * x + (cosine[:, None] * y)[:, :, None]
    columns = cosine[:, None, None] * x - (sine[:, None] * y)[:, :, None]
    return sample(images, rows, columns)


def _from_centre(side: int, images: Images) -> Float[Tensor, "side"]:
    """Where the pixels of a side lie, from its middle: -1, 0, 1 for three."""
    return torch.arange(side, device=images.device, dtype=torch.float64) - (side - 1) / 2


def sample(
    images: Images, rows: Float[Tensor, "n h #w"], columns: Float[Tensor, "n #h w"]
) -> Images:
    """Look each pixel up at a place between pixels, in steps from the centre, by linear interpolation both ways."""
    _, c, h, w = images.shape
    rows, columns = rows + (h - 1) / 2, columns + (w - 1) / 2
    top, left = rows.floor(), columns.floor()
    flat = images.flatten(2)

    def look(row: Tensor, column: Tensor) -> Tensor:
        places = reflected(row.long(), h) * w + reflected(column.long(), w)
        return flat.gather(2, places.reshape(-1, 1, h * w).expand(-1, c, -1)).reshape(images.shape)

    down, across = (
        (place - before).to(images.dtype)[:, None]
        for place, before in ((rows, top), (columns, left))
    )
    above = torch.lerp(look(top, left), look(top, left + 1), across)
    below = torch.lerp(look(top + 1, left), look(top + 1, left + 1), across)
    return torch.lerp(above, below, down).clamp(0, 1)


def reflected(places: Int[Tensor, "..."], side: int) -> Int[Tensor, "..."]:
    """Places beyond a border, mirrored at the outermost pixel: -2, -1, 0 → 2, 1, 0."""
    period = max(1, 2 * (side - 1))
    places = places.remainder(period)
    return torch.minimum(places, period - places)


# --------------------------------------------------------------------------------------------------- light and colour


def gamma(images: Images, u: Float[Tensor, "n 1"]) -> Images:
    """Raise every pixel to the power γ: 5/8 or 3/4, which brighten, below u = 1/2; 5/4 or 3/2, which darken, above."""
    choice = _pick(u, 4)[..., None, None]
    whole = _wide(images)
    half = whole.sqrt()
    quarter = half.sqrt()
    rest = torch.where(choice == 0, quarter.sqrt(), torch.where(choice == 3, half, quarter))
    return (torch.where(choice < 2, half, whole) * rest).clamp(0, 1).to(images.dtype)


def autocontrast(images: Images) -> Images:
    """Stretch each channel so that its darkest pixel is 0 and its brightest 1; a flat channel stays as it is."""
    pixels = _wide(images)
    low, high = pixels.amin((2, 3), keepdim=True), pixels.amax((2, 3), keepdim=True)
    return (
        torch.where(high > low, (pixels - low) / (high - low), pixels).clamp(0, 1).to(images.dtype)
    )


def sharpen(images: Images, u: Float[Tensor, "n 1"]) -> Images:
    """Add 0.5 + u times what a Gaussian blur of size 3 takes away."""
    pixels = _wide(images)
    lost = pixels - gaussian_blur(pixels, u, sizes=(3, 3))
    return (
        (pixels + _between(u, 0.5, 1.5).to(pixels.dtype)[..., None, None] * lost)
        .clamp(0, 1)
        .to(images.dtype)
    )


def saturation(images: Images, u: Float[Tensor, "n 2"]) -> Images:
    """Make colours paler or stronger: y + f (x - y), where y is the luma.

    The first number picks paler, f = 1 - s, below 1/2 and stronger, f = 1 + s, from there on; the second picks s from
    0.25 to 0.75. A grey image stays as it is.
    """
    if _is_grey(images):
        return images
    pixels = _wide(images)
    luma = _luma(pixels)
    factor = (1 + _either_side(u, 0.25, 0.75)).to(pixels.dtype)[:, None, None, None]
    return (luma + factor * (pixels - luma)).clamp(0, 1).to(images.dtype)


def hue(images: Images, u: Float[Tensor, "n 2"]) -> Images:
    """Turn the chroma (Cb, Cr): the first number picks the side, the second the angle, from 18 to 54 degrees.

    The luma stays, but for what is clipped, and so does a grey image. The tangent of half the angle is uniform.
    """
    if _is_grey(images):
        return images
    luma, blue, red = torch.split(_to_ycbcr(_wide(images)), 1, 1)
    cosine, sine = (part.to(luma.dtype)[:, None, None, None] for part in _turn(u, 18.0, 54.0))
    turned = torch.cat([luma, cosine * blue - sine * red, sine * blue + cosine * red], 1)
    return _to_rgb(turned).clamp(0, 1).to(images.dtype)


def grey(images: Images) -> Images:
    """Give every channel the luma, 0.299 red + 0.587 green + 0.114 blue; a grey image stays as it is."""
    if _is_grey(images):
        return images
    return _luma(_wide(images)).clamp(0, 1).to(images.dtype).expand(images.shape)


def jpeg(images: Images, u: Float[Tensor, "n 1"]) -> Images:
    """What JPEG leaves of an image at a quality of 30 + floor(61 u): luma and chroma, cosines of 8 x 8 pixels, rounded.

    The tables and their scaling are libjpeg's. The chroma is not subsampled and nothing but the coefficients is rounded.
    A side that is no multiple of 8 is continued with its last pixel. A grey image is all luma.
    """
    percent = torch.tensor(
        [_jpeg_percent(quality) for quality in range(30, 91)], device=images.device
    )
    return _compressed(images, percent[_pick(u[:, 0], percent.shape[0])])


def jpeg_at(images: Images, quality: int) -> Images:
    """What JPEG leaves of an image at a quality from 1 to 100."""
    return _compressed(
        images, torch.full((images.shape[0],), _jpeg_percent(quality), device=images.device)
    )


def _jpeg_percent(quality: int) -> int:
    """How libjpeg scales its tables, in per cent."""
    return 5000 // quality if quality < 50 else 200 - 2 * quality


def _compressed(images: Images, percent: Int[Tensor, "n"]) -> Images:
    n, c, h, w = images.shape
    pixels = _wide(images)
    middle = torch.tensor([128.0, 0.0, 0.0][:c], device=images.device)[:, None, None]
    planes = 255 * (pixels if _is_grey(images) else _to_ycbcr(pixels)) - middle
    padded = F.pad(planes, (0, -w % 8, 0, -h % 8), mode="replicate")
    blocks = padded.reshape(n, c, -(-h // 8), 8, -(-w // 8), 8)

    scale = percent[:, None, None, None]
    tables = torch.tensor([_LUMA_TABLE, _CHROMA_TABLE, _CHROMA_TABLE][:c], device=images.device)
    steps = ((tables * scale + 50) // 100).clamp(1, 255).to(blocks.dtype)[:, :, None, :, None]

    cosines = torch.tensor(_COSINES, dtype=blocks.dtype, device=images.device)
    waves = _mix(_mix(blocks, 3, cosines), 5, cosines)
    waves = (waves / steps).round() * steps
    planes = _mix(_mix(waves, 3, cosines.T), 5, cosines.T).reshape(padded.shape)[..., :h, :w]
    planes = (planes + middle) / 255
    return (planes if _is_grey(images) else _to_rgb(planes)).clamp(0, 1).to(images.dtype)


def _mix(
    blocks: Float[Tensor, "n c i 8 j 8"], axis: int, matrix: Float[Tensor, "8 8"]
) -> Float[Tensor, "n c i 8 j 8"]:
    """The product of a matrix with one axis, added up in a fixed order: the same bits in any batch."""
    shape = [1] * 6
    shape[axis] = 8
    columns = matrix.T.reshape([8, *shape]).unbind()
    return functools.reduce(
        torch.add,
        (part * column for part, column in zip(torch.split(blocks, 1, axis), columns, strict=True)),
    )


_COSINES = [
    [
        math.cos((2 * place + 1) * wave * math.pi / 16) / (8**0.5 if wave == 0 else 2)
        for place in range(8)
    ]
    for wave in range(8)
]
_LUMA_TABLE = [  # JPEG's standard (ITU T.81), annex K.1
    [16, 11, 10, 16, 24, 40, 51, 61],
    [12, 12, 14, 19, 26, 58, 60, 55],
    [14, 13, 16, 24, 40, 57, 69, 56],
    [14, 17, 22, 29, 51, 87, 80, 62],
    [18, 22, 37, 56, 68, 109, 103, 77],
    [24, 35, 55, 64, 81, 104, 113, 92],
    [49, 64, 78, 87, 103, 121, 120, 101],
    [72, 92, 95, 98, 112, 100, 103, 99],
]
_CHROMA_TABLE = [
    [17, 18, 24, 47, 99, 99, 99, 99],
    [18, 21, 26, 66, 99, 99, 99, 99],
    [24, 26, 56, 99, 99, 99, 99, 99],
    [47, 66, 99, 99, 99, 99, 99, 99],
    *([[99] * 8] * 4),
]


def _is_grey(images: Images) -> bool:
    """Whether there is one channel, not three; a colour transform knows no others."""
    if images.shape[1] not in (1, 3):
        raise InputError(
            f"A view of colours: expected images of 1 or 3 channels, got {images.shape[1]}."
        )
    return images.shape[1] == 1


def _luma(images: Float[Tensor, "n 3 h w"]) -> Float[Tensor, "n 1 h w"]:
    red, green, blue = torch.split(images, 1, 1)
    return 0.299 * red + 0.587 * green + 0.114 * blue


def _to_ycbcr(images: Float[Tensor, "n 3 h w"]) -> Float[Tensor, "n 3 h w"]:
    """Luma, blueness and redness (ITU-R BT.601, full range): grey has neither of the two."""
    luma, (red, _, blue) = _luma(images), torch.split(images, 1, 1)
    return torch.cat([luma, (blue - luma) / 1.772, (red - luma) / 1.402], 1)


def _to_rgb(planes: Float[Tensor, "n 3 h w"]) -> Float[Tensor, "n 3 h w"]:
    luma, blueness, redness = torch.split(planes, 1, 1)
    red, blue = luma + 1.402 * redness, luma + 1.772 * blueness
    return torch.cat([red, (luma - 0.299 * red - 0.114 * blue) / 0.587, blue], 1)


# ------------------------------------------------------------------------------------------- from numbers to settings


def _wide(images: Images) -> Images:
    """Half precision widened to float32: for what would lose too much in several steps."""
    return images.to(torch.promote_types(images.dtype, torch.float32))


def _between(u: Tensor, low: float, high: float) -> Tensor:
    """The numbers spread over [low, high), in float64."""
    return low + (high - low) * u.double()


def _either_side(u: Float[Tensor, "n 2"], low: float, high: float) -> Float[Tensor, "n"]:
    """From -high to -low or from low to high: the first number picks the sign, + from 1/2 on, the second the size."""
    size = _between(u[:, 1], low, high)
    return torch.where(u[:, 0] < 0.5, -size, size)


def _turn(
    u: Float[Tensor, "n 2"], low: float, high: float
) -> tuple[Float[Tensor, "n"], Float[Tensor, "n"]]:
    """Cosine and sine of an angle of `low` to `high` degrees to either side, by way of t = tan(angle / 2)."""
    t = _either_side(u, *(math.tan(math.radians(angle) / 2) for angle in (low, high)))
    return (1 - t * t) / (1 + t * t), 2 * t / (1 + t * t)


def _centred(u: Float[Tensor, "n 1"], strength: float, images: Images) -> Float[Tensor, "n 1 1 1"]:
    """The numbers spread over [-strength, strength), one an image."""
    return ((2 * u - 1) * strength).to(images.dtype)[..., None, None]


def _pick(u: Tensor, choices: int) -> Tensor:
    """One of 0 … choices - 1, each equally likely; the last one should a product round up to `choices`."""
    return (u * choices).long().clamp(max=choices - 1)
