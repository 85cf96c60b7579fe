"""What a view does to pixels: pure functions of images in [0, 1] and of given numbers in [0, 1).

| transform      | rule, for one image x                                     | numbers an image                 |
|----------------|-----------------------------------------------------------|----------------------------------|
| flip           | left and right change places                              | none                             |
| crop           | a window of 0.8 of each side, resized to the side         | 2: its top, its left             |
| brightness     | x + β max(x),  β = (2u - 1) 0.5 ~ U(-0.5, 0.5)            | 1                                |
| contrast       | x (1 + α),     α = (2u - 1) 0.2 ~ U(-0.2, 0.2)            | 1                                |
| gaussian_noise | x + s N(0, 1), (255 s)² ~ U(10, 50) for each channel      | c variances, then c h w, a pixel |
| gaussian_blur  | x convolved with a Gaussian of width 1, 2, 3, 4 or 5      | 1                                |

The first four are the paper's views; the last two, noise and then blur, make its shifted test set (CIFAR-10*). Every
result is clipped to [0, 1]. Nothing here draws a random number, so the same numbers give the same pixels, and no image
is touched by its neighbours in the batch. The numbers come in float32 or wider: in half precision the largest of them
would round to 1.
"""

import functools

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from atta.types import Images


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
    h, w = images.shape[2:]
    high, wide = (max(1, round(ratio * side)) for side in (h, w))
    top, left = _pick(u[:, 0], h - high + 1), _pick(u[:, 1], w - wide + 1)
    if not resize:
        return _stretch(_stretch(images, 2, top, high, high), 3, left, wide, wide)
    return _stretch(_stretch(images, 2, top, high, h), 3, left, wide, w).clamp(0, 1)


def _stretch(images: Images, axis: int, start: Int[Tensor, "n"], window: int, side: int) -> Float[Tensor, "n c h2 w2"]:
    """Cut `window` pixels from `start` on along an axis, and stretch them to `side` by linear interpolation.

    By gathering and mixing the two neighbours of each pixel: the same bits at any batch size, and on a GPU a tenth of the
    time that its own resize takes on small images.
    """
    place = ((torch.arange(side, device=images.device, dtype=torch.float64) + 0.5) * (window / side) - 0.5).clamp(min=0)
    before = place.floor().long()
    shape = [images.shape[0], 1, 1, 1]
    shape[axis] = side
    sizes = list(images.shape)
    sizes[axis] = side

    def take(position: Tensor) -> Tensor:
        return images.gather(axis, (start[:, None] + position).reshape(shape).expand(sizes))

    if side == window:
        return take(before)
    weight = (place - before).to(images.dtype).reshape([1, *shape[1:]])
    return torch.lerp(take(before), take((before + 1).clamp(max=window - 1)), weight)


def brightness(images: Images, u: Float[Tensor, "n 1"], *, strength: float = 0.5) -> Images:
    """Add β times the brightest value of the image, β = (2u - 1) strength; u = 1/2 changes nothing."""
    return (images + _centred(u, strength, images) * images.amax((1, 2, 3), keepdim=True)).clamp(0, 1)


def contrast(images: Images, u: Float[Tensor, "n 1"], *, strength: float = 0.2) -> Images:
    """Multiply by 1 + α, α = (2u - 1) strength; u = 1/2 changes nothing."""
    return (images * (1 + _centred(u, strength, images))).clamp(0, 1)


def gaussian_noise(images: Images, u: Float[Tensor, "n d"], *, variance: tuple[float, float] = (10.0, 50.0)) -> Images:
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


def gaussian_blur(images: Images, u: Float[Tensor, "n 1"], *, sizes: tuple[int, int] = (1, 5)) -> Images:
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
    kernels = ((size + 1) / 2 - distance.abs()).clamp(0, 1) * (-(distance**2) / (2 * sigma**2)).exp()
    kernels = (kernels / kernels.sum(1, keepdim=True)).to(images)
    weights = kernels[_pick(u[:, 0], kernels.shape[0])][..., None, None, None]

    # A Gaussian is the product of one pass down and one across. Shifted copies, added in a fixed order, let each image
    # have its kernel and give the same bits in any batch; neither a convolution nor a reduction promises that.
    for axis, border in ((2, (0, 0, reach, reach)), (3, (reach, reach, 0, 0))):
        padded, side = F.pad(images, border, mode="reflect"), images.shape[axis]
        images = functools.reduce(
            torch.add, (padded.narrow(axis, tap, side) * weights[:, tap] for tap in range(2 * reach + 1))
        )
    return images.clamp(0, 1)


def _centred(u: Float[Tensor, "n 1"], strength: float, images: Images) -> Float[Tensor, "n 1 1 1"]:
    """The numbers spread over [-strength, strength), one an image."""
    return ((2 * u - 1) * strength).to(images.dtype)[..., None, None]


def _pick(u: Tensor, choices: int) -> Tensor:
    """One of 0 … choices - 1, each equally likely; the last one should a product round up to `choices`."""
    return (u * choices).long().clamp(max=choices - 1)
