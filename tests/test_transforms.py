"""Each transform against a slow version, pixel by pixel and written from the formula, and against its laws."""

import math
from statistics import NormalDist

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from atta.transforms import brightness, contrast, crop, flip, gaussian_blur, gaussian_noise

SHAPES = [(1, 8, 8), (3, 8, 13), (3, 20, 20), (1, 17, 9)]


def pixels(n: int, shape: tuple[int, int, int], *, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.rand(n, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def numbers(n: int, d: int, *, seed: int = 1) -> Tensor:
    return torch.rand(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def noise_numbers(n: int, shape: tuple[int, int, int]) -> Tensor:
    c, h, w = shape
    return numbers(n, c + c * h * w)


def clip(value: float) -> float:
    return min(1.0, max(0.0, value))


def pixelwise(images: Tensor, value) -> Tensor:
    """value(image, channel, row, column) at every pixel."""
    n, c, h, w = images.shape
    flat = [value(i, j, y, x) for i in range(n) for j in range(c) for y in range(h) for x in range(w)]
    return torch.tensor(flat, dtype=images.dtype).reshape(n, c, h, w)


# ------------------------------------------------------------------------------------------- against a slow version


@pytest.mark.parametrize("shape", SHAPES)
def test_flip_reads_each_row_backwards(shape):
    images = pixels(2, shape)
    expected = pixelwise(images, lambda i, c, y, x: images[i, c, y, shape[2] - 1 - x].item())
    assert torch.equal(flip(images), expected)


@pytest.mark.parametrize("shape", SHAPES)
def test_brightness_adds_a_part_of_the_brightest_value_of_the_image(shape):
    images, u = pixels(3, shape), numbers(3, 1)
    brightest = [max(image.flatten().tolist()) for image in images]

    def value(i, c, y, x):
        beta = -0.5 + u[i, 0].item()
        return clip(images[i, c, y, x].item() + beta * brightest[i])

    torch.testing.assert_close(brightness(images, u), pixelwise(images, value))


@pytest.mark.parametrize("shape", SHAPES)
def test_contrast_multiplies_every_pixel(shape):
    images, u = pixels(3, shape), numbers(3, 1)

    def value(i, c, y, x):
        alpha = -0.2 + 0.4 * u[i, 0].item()
        return clip(images[i, c, y, x].item() * (1 + alpha))

    torch.testing.assert_close(contrast(images, u), pixelwise(images, value))


def slow_window(image: Tensor, u: list[float]) -> tuple[int, int, int, int]:
    (_, h, w), (high, wide) = image.shape, (round(0.8 * side) for side in image.shape[1:])
    return math.floor(u[0] * (h - high + 1)), math.floor(u[1] * (w - wide + 1)), high, wide


@pytest.mark.parametrize("shape", SHAPES)
def test_crop_left_at_its_native_size_is_a_window_of_the_image(shape):
    images, u = pixels(5, shape), numbers(5, 2)
    windows = crop(images, u, resize=False)
    for image, place, window in zip(images, u.tolist(), windows, strict=True):
        top, left, high, wide = slow_window(image, place)
        assert torch.equal(window, image[:, top : top + high, left : left + wide])


@pytest.mark.parametrize("shape", SHAPES)
def test_crop_resizes_its_window_bilinearly(shape):
    images, u = pixels(2, shape), numbers(2, 2)
    _, h, w = shape

    def value(i, c, y, x):
        top, left, high, wide = slow_window(images[i], u[i].tolist())
        row, column = max(0, (y + 0.5) * high / h - 0.5), max(0, (x + 0.5) * wide / w - 0.5)
        total = 0.0
        for a in (math.floor(row), math.floor(row) + 1):
            for b in (math.floor(column), math.floor(column) + 1):
                share = (1 - abs(row - a)) * (1 - abs(column - b))
                total += share * images[i, c, top + min(a, high - 1), left + min(b, wide - 1)].item()
        return total

    torch.testing.assert_close(crop(images, u), pixelwise(images, value))


@pytest.mark.parametrize("shape", SHAPES)
def test_noise_is_normal_with_the_variance_drawn_for_its_channel(shape):
    images, u = pixels(2, shape), noise_numbers(2, shape)
    channels, h, w = shape

    def value(i, c, y, x):
        variance = 10 + 40 * u[i, c].item()
        normal = NormalDist(0, variance**0.5 / 255).inv_cdf(u[i, channels + (c * h + y) * w + x].item())
        return clip(images[i, c, y, x].item() + normal)

    torch.testing.assert_close(gaussian_noise(images, u), pixelwise(images, value))


KERNELS = {  # size: weights at distance 0, 1, 2 before they are made to sum to 1
    1: (1.0, 0.0, 0.0),
    2: (1.0, 0.5 * math.exp(-1 / (2 * 0.65**2)), 0.0),
    3: (1.0, math.exp(-1 / (2 * 0.8**2)), 0.0),
    4: (1.0, math.exp(-1 / (2 * 0.95**2)), 0.5 * math.exp(-4 / (2 * 0.95**2))),
    5: (1.0, math.exp(-1 / (2 * 1.1**2)), math.exp(-4 / (2 * 1.1**2))),
}


@pytest.mark.parametrize("size", KERNELS)
def test_blur_weighs_the_neighbours_by_a_gaussian_centred_on_the_pixel(size):
    images, u = pixels(1, (2, 7, 6)), torch.tensor([[(size - 0.5) / 5]])
    _, _, h, w = images.shape
    raw = KERNELS[size]
    total = raw[0] + 2 * raw[1] + 2 * raw[2]

    def mirrored(place: int, side: int) -> int:
        return -place if place < 0 else 2 * (side - 1) - place if place >= side else place

    def value(i, c, y, x):
        return sum(
            raw[abs(a)] * raw[abs(b)] / total**2 * images[i, c, mirrored(y + a, h), mirrored(x + b, w)].item()
            for a in range(-2, 3)
            for b in range(-2, 3)
        )

    torch.testing.assert_close(gaussian_blur(images, u), pixelwise(images, value))


# ------------------------------------------------------------------------------------------------------------- laws

TRANSFORMS = {
    "flip": (lambda images, u: flip(images), lambda c, h, w: 1),
    "crop": (crop, lambda c, h, w: 2),
    "native crop": (lambda images, u: crop(images, u, resize=False), lambda c, h, w: 2),
    "brightness": (brightness, lambda c, h, w: 1),
    "contrast": (contrast, lambda c, h, w: 1),
    "noise": (gaussian_noise, lambda c, h, w: c + c * h * w),
    "blur": (gaussian_blur, lambda c, h, w: 1),
}
every_transform = pytest.mark.parametrize(("transform", "count"), TRANSFORMS.values(), ids=TRANSFORMS)
shapes = st.tuples(st.sampled_from([1, 3, 4]), st.integers(8, 40), st.integers(8, 40))
units = st.sampled_from([0.0, 2**-24, 0.25, 0.5, 0.75, 1 - 2**-24])


@every_transform
@settings(max_examples=25, deadline=None)
@given(shape=shapes, u=units, level=units, dtype=st.sampled_from([torch.float32, torch.float64]))
def test_pixels_stay_in_range_for_every_number(transform, count, shape, u, level, dtype):
    images = pixels(2, shape, dtype=dtype)
    images[1] = level
    shown = transform(images, torch.full((2, count(*shape)), u))
    assert shown.dtype == dtype
    assert shown.shape[:2] == images.shape[:2]
    assert shown.isfinite().all()
    assert 0 <= shown.min() <= shown.max() <= 1


@every_transform
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_batch_does_not_change_a_bit_of_an_image(transform, count, dtype, shape):
    images, u = pixels(64, shape, dtype=dtype), numbers(64, count(*shape)).float()
    together = transform(images, u)
    for size in (1, 7):
        apart = [transform(*part) for part in zip(images.split(size), u.split(size), strict=True)]
        assert torch.equal(torch.cat(apart), together)
    order = torch.randperm(64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(transform(images[order], u[order]), together[order])


@every_transform
def test_the_input_is_left_alone(transform, count):
    images, u = pixels(2, (3, 8, 9)), numbers(2, count(3, 8, 9))
    before = images.clone(), u.clone()
    transform(images, u)
    assert torch.equal(images, before[0])
    assert torch.equal(u, before[1])


@every_transform
def test_an_empty_batch_stays_empty(transform, count):
    assert transform(pixels(0, (3, 8, 9)), numbers(0, count(3, 8, 9))).shape[:2] == (0, 3)


@every_transform
def test_large_images_work(transform, count):
    images = pixels(1, (3, 512, 512), dtype=torch.float32)
    assert transform(images, numbers(1, count(3, 512, 512)).float()).isfinite().all()


@every_transform
def test_the_memory_layout_does_not_matter(transform, count):
    images, u = pixels(4, (3, 12, 9), dtype=torch.float32), numbers(4, count(3, 12, 9)).float()
    torch.testing.assert_close(transform(images.to(memory_format=torch.channels_last), u), transform(images, u))


@given(shape=shapes, dtype=st.sampled_from([torch.float32, torch.float64]))
@settings(max_examples=25, deadline=None)
def test_one_half_leaves_brightness_and_contrast_unchanged(shape, dtype):
    images, half = pixels(2, shape, dtype=dtype), torch.full((2, 1), 0.5)
    assert torch.equal(brightness(images, half), images)
    assert torch.equal(contrast(images, half), images)


def test_two_flips_are_none():
    images = pixels(2, (3, 8, 9))
    assert torch.equal(flip(flip(images)), images)


@given(u=st.floats(0, 1 - 2**-24, width=32), level=st.floats(0, 1))
@settings(max_examples=50, deadline=None)
def test_cropping_and_blurring_a_flat_image_change_nothing(u, level):
    images = torch.full((1, 3, 9, 11), level, dtype=torch.float64)
    torch.testing.assert_close(crop(images, torch.full((1, 2), u)), images)
    torch.testing.assert_close(gaussian_blur(images, torch.full((1, 1), u)), images)


def test_a_crop_of_the_whole_image_is_the_image():
    images = pixels(2, (3, 8, 9))
    torch.testing.assert_close(crop(images, numbers(2, 2), ratio=1.0), images)


def test_every_window_is_reached_and_by_an_equal_share_of_the_numbers():
    side, positions = 16, 16 - 13 + 1
    steps = 24
    u = torch.cartesian_prod(*[(torch.arange(steps) + 0.5) / steps] * 2)
    images = torch.arange(side * side, dtype=torch.float64).reshape(1, 1, side, side).expand(steps**2, -1, -1, -1)
    corner = crop(images, u, resize=False)[:, 0, 0, 0].long()
    counts = torch.bincount(corner, minlength=side * side).reshape(side, side)
    assert counts[:positions, :positions].unique().tolist() == [(steps // positions) ** 2]
    assert counts.sum() == steps**2 == counts[:positions, :positions].sum()


def test_the_largest_number_still_falls_on_the_last_window():
    images = torch.arange(512.0).reshape(1, 1, 1, 512).expand(1, 1, 8, 512)
    for side in range(8, 513):
        window = crop(images[..., :side], torch.full((1, 2), 1 - 2**-24), resize=False)
        assert window[0, 0, 0, -1] == side - 1


@pytest.mark.parametrize("size", KERNELS)
def test_blur_does_not_move_the_image(size):
    point = torch.zeros(1, 1, 9, 9, dtype=torch.float64)
    point[..., 4, 4] = 1
    blurred = gaussian_blur(point, torch.tensor([[(size - 0.5) / 5]]))
    torch.testing.assert_close(blurred, blurred.flip(-1))
    torch.testing.assert_close(blurred, blurred.flip(-2))
    torch.testing.assert_close(blurred, blurred.mT)
    torch.testing.assert_close(blurred.sum(), torch.ones((), dtype=torch.float64))


def test_a_larger_kernel_blurs_more_and_a_kernel_of_one_not_at_all():
    images = pixels(1, (3, 16, 16))
    spread = [gaussian_blur(images, torch.tensor([[(size - 0.5) / 5]])).std().item() for size in KERNELS]
    assert spread == sorted(spread, reverse=True)
    assert torch.equal(gaussian_blur(images, torch.tensor([[0.1]])), images)


def test_the_sizes_of_the_blur_are_a_setting():
    images = pixels(1, (3, 16, 16))
    only_three = gaussian_blur(images, torch.tensor([[0.9]]), sizes=(3, 3))
    torch.testing.assert_close(only_three, gaussian_blur(images, torch.tensor([[0.5]])))


def test_noise_has_mean_zero_and_the_variance_that_was_asked_for():
    grey = torch.full((4, 3, 64, 64), 0.5, dtype=torch.float64)
    u = noise_numbers(4, (3, 64, 64))
    noise = (gaussian_noise(grey, u) - grey) * 255
    variance = 10 + 40 * u[:, :3]
    assert (noise.mean((2, 3)).abs() < 4 * (variance / 64**2).sqrt()).all()
    assert ((noise.var((2, 3)) / variance - 1).abs() < 4 * (2 / 64**2) ** 0.5).all()
