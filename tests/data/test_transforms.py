"""Each transform against a slow version, pixel by pixel and written from the formula, and against its laws."""

import io
import itertools
import math
from statistics import NormalDist

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageEnhance, ImageOps
from scipy.fft import dctn, idctn
from torch import Tensor
from torch.nn import functional as F

from atta._base.errors import InputError
from atta.data.draws import stratified_numbers
from atta.data.transforms import (
    COMPASS,
    antitranspose,
    autocontrast,
    brightness,
    contrast,
    crop,
    diagonal_shift,
    flip,
    flip_diagonal_shift,
    flip_shift,
    gamma,
    gaussian_blur,
    gaussian_noise,
    grey,
    hue,
    jpeg,
    native_crop,
    nudge,
    rot90,
    rot180,
    rot270,
    rotate,
    saturation,
    sharpen,
    shift,
    transpose,
    vflip,
    zoom_in,
    zoom_out,
)

SHAPES = [(1, 8, 8), (3, 8, 13), (3, 20, 20), (1, 17, 9)]


def pixels(
    n: int, shape: tuple[int, int, int], *, seed: int = 0, dtype: torch.dtype = torch.float64
) -> Tensor:
    return torch.rand(
        n, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    ).to(dtype)


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
    flat = [
        value(i, j, y, x) for i in range(n) for j in range(c) for y in range(h) for x in range(w)
    ]
    return torch.tensor(flat, dtype=images.dtype).reshape(n, c, h, w)


def mirrored(place: int, side: int) -> int:
    """A place up to a side beyond a border, reflected at the outermost pixel."""
    return -place if place < 0 else 2 * (side - 1) - place if place >= side else place


def between(image: Tensor, row: float, column: float) -> float:
    """The value at a place between pixels of (h, w), weighed by how near each of the four is."""
    h, w = image.shape
    return sum(
        (1 - abs(row - a)) * (1 - abs(column - b)) * image[mirrored(a, h), mirrored(b, w)].item()
        for a in (math.floor(row), math.floor(row) + 1)
        for b in (math.floor(column), math.floor(column) + 1)
    )


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
    windows = native_crop(images, u)
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
                total += (
                    share * images[i, c, top + min(a, high - 1), left + min(b, wide - 1)].item()
                )
        return total

    torch.testing.assert_close(crop(images, u), pixelwise(images, value))


@pytest.mark.parametrize("shape", SHAPES)
def test_noise_is_normal_with_the_variance_drawn_for_its_channel(shape):
    images, u = pixels(2, shape), noise_numbers(2, shape)
    channels, h, w = shape

    def value(i, c, y, x):
        variance = 10 + 40 * u[i, c].item()
        normal = NormalDist(0, variance**0.5 / 255).inv_cdf(
            u[i, channels + (c * h + y) * w + x].item()
        )
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

    def value(i, c, y, x):
        return sum(
            raw[abs(a)]
            * raw[abs(b)]
            / total**2
            * images[i, c, mirrored(y + a, h), mirrored(x + b, w)].item()
            for a in range(-2, 3)
            for b in range(-2, 3)
        )

    torch.testing.assert_close(gaussian_blur(images, u), pixelwise(images, value))


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32), (3, 20, 64)])
def test_shift_moves_by_whole_pixels_in_the_direction_and_by_the_distance_drawn(shape):
    images = pixels(8 * 4, shape)
    u = torch.tensor([[(way + 0.5) / 8, (far + 0.5) / 4] for way in range(8) for far in range(4)])
    _, h, w = shape
    steps = {8: [1, 1, 1, 1], 20: [1, 1, 2, 2], 32: [1, 2, 3, 4], 64: [2, 4, 6, 8]}
    for i, (way, far) in enumerate(itertools.product(range(8), range(4))):
        down, right = COMPASS[way][0] * steps[h][far], COMPASS[way][1] * steps[w][far]
        rows = [mirrored(y - down, h) for y in range(h)]
        columns = [mirrored(x - right, w) for x in range(w)]
        assert torch.equal(shift(images, u)[i], images[i][:, rows][:, :, columns])


@pytest.mark.parametrize(("zoom", "inwards"), [(zoom_in, True), (zoom_out, False)])
@pytest.mark.parametrize("shape", [(1, 9, 9), (2, 8, 13)])
def test_zooms_look_up_places_nearer_to_the_centre_or_further_out(zoom, inwards, shape):
    images, u = pixels(2, shape), numbers(2, 1)
    _, h, w = shape

    def value(i, c, y, x):
        factor = 1.05 + 0.1 * u[i, 0].item()
        step = 1 / factor if inwards else factor
        return between(
            images[i, c],
            (h - 1) / 2 + (y - (h - 1) / 2) * step,
            (w - 1) / 2 + (x - (w - 1) / 2) * step,
        )

    torch.testing.assert_close(zoom(images, u), pixelwise(images, value))


@pytest.mark.parametrize("shape", [(1, 9, 9), (2, 8, 13)])
def test_rotate_turns_each_place_around_the_centre(shape):
    images, u = (
        pixels(4, shape),
        torch.tensor([[0.2, 0.9], [0.8, 0.1], [0.5, 0.5], [0.49, 0.0]], dtype=torch.float64),
    )
    _, h, w = shape

    def value(i, c, y, x):
        low, high = math.tan(math.radians(2.5)), math.tan(math.radians(7.5))
        angle = 2 * math.atan(low + (high - low) * u[i, 1].item()) * (-1 if u[i, 0] < 0.5 else 1)
        turned = complex(x - (w - 1) / 2, (h - 1) / 2 - y) * complex(
            math.cos(angle), -math.sin(angle)
        )
        return between(images[i, c], (h - 1) / 2 - turned.imag, (w - 1) / 2 + turned.real)

    torch.testing.assert_close(rotate(images, u), pixelwise(images, value))


@pytest.mark.parametrize(("u", "power"), [(0.1, 5 / 8), (0.25, 3 / 4), (0.5, 5 / 4), (0.75, 3 / 2)])
def test_gamma_raises_to_a_power(u, power):
    images = pixels(2, (3, 8, 8))
    torch.testing.assert_close(gamma(images, torch.full((2, 1), u)), images**power)


def test_sharpening_adds_what_the_blur_takes_away():
    images, u = pixels(2, (3, 8, 9)), numbers(2, 1)
    blurred = gaussian_blur(images, torch.full((2, 1), 0.5))  # size 3
    expected = images + (0.5 + u)[..., None, None] * (images - blurred)
    torch.testing.assert_close(sharpen(images, u), expected.clamp(0, 1))


def chroma(image: Tensor) -> np.ndarray:
    """Blueness + i redness of (3, h, w), by the matrix of ITU-R BT.601."""
    matrix = [[-0.168735892, -0.331264108, 0.5], [0.5, -0.418687589, -0.081312411]]
    blueness, redness = np.einsum("kc,chw->khw", matrix, image.numpy())
    return blueness + 1j * redness


@pytest.mark.parametrize(("u", "sign"), [((0.3, 0.6), -1), ((0.5, 0.0), 1)])
def test_hue_turns_the_chroma_and_keeps_the_luma(u, sign):
    images = 0.4 + 0.2 * pixels(1, (3, 8, 9))  # so that nothing is clipped
    low, high = math.tan(math.radians(9)), math.tan(math.radians(27))
    angle = sign * 2 * math.atan(low + (high - low) * u[1])
    shown = hue(images, torch.tensor([u], dtype=torch.float64))
    np.testing.assert_allclose(chroma(shown[0]), chroma(images[0]) * np.exp(1j * angle), atol=1e-8)
    torch.testing.assert_close(grey(shown), grey(images))


# ---------------------------------------------------------------------------------------------------- against Pillow


def photo(h: int = 40, w: int = 56) -> tuple[Tensor, Image.Image]:
    """A smooth image of bytes, in colours, as both libraries want it."""
    image = (
        F.interpolate(pixels(1, (3, 7, 7)), size=(h, w), mode="bicubic")
        .clamp(0.1, 0.9)
        .mul(255)
        .round()
    )
    return image / 255, Image.fromarray(image[0].permute(1, 2, 0).byte().numpy())


def levels(image: Image.Image) -> Tensor:
    array = torch.from_numpy(np.array(image, dtype=np.float64)) / 255
    return array[None, None] if array.ndim == 2 else array.permute(2, 0, 1)[None]


def test_colours_are_those_of_pillow():
    images, image = photo()
    one_level = {"atol": 1.01 / 255, "rtol": 0.0}  # Pillow rounds the luma, then the result
    torch.testing.assert_close(
        autocontrast(images), levels(ImageOps.autocontrast(image)), **one_level
    )
    torch.testing.assert_close(grey(images)[:, :1], levels(image.convert("L")), **one_level)
    for number, factor in ((0.5, 1.5), (0.25, 0.5)):
        paler_or_stronger = saturation(images, torch.tensor([[number, 0.5]]))
        torch.testing.assert_close(
            paler_or_stronger, levels(ImageEnhance.Color(image).enhance(factor)), **one_level
        )


def test_a_turn_is_that_of_pillow_away_from_the_border():
    images, _ = photo()
    angle = 2 * math.degrees(
        math.atan((math.tan(math.radians(2.5)) + math.tan(math.radians(7.5))) / 2)
    )
    plane = Image.fromarray(images[0, 0].float().numpy())
    for number, degrees in ((0.75, angle), (0.25, -angle)):
        expected = torch.from_numpy(
            np.array(plane.rotate(degrees, resample=Image.Resampling.BILINEAR))
        )
        shown = rotate(images, torch.tensor([[number, 0.5]]))[0, 0].float()
        torch.testing.assert_close(
            shown[10:-10, 10:-10], expected[10:-10, 10:-10], atol=1e-6, rtol=0
        )


def saved(image: Image.Image, quality: int) -> Image.Image:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality, subsampling=0)
    return Image.open(file)


@pytest.mark.parametrize("quality", [30, 49, 50, 75, 90])
@pytest.mark.parametrize("size", [(40, 56), (37, 50)])
def test_jpeg_rounds_the_cosines_of_each_block_by_the_tables_of_a_file(quality, size):
    images, image = photo(*size)
    (h, w), tables = size, saved(image, quality).quantization
    matrix = np.array(
        [
            [0.299, 0.587, 0.114],
            [-0.168735892, -0.331264108, 0.5],
            [0.5, -0.418687589, -0.081312411],
        ]
    )
    planes = (
        np.einsum("kc,chw->khw", matrix, images[0].numpy() * 255)
        - np.array([128, 0, 0])[:, None, None]
    )
    planes = np.pad(planes, ((0, 0), (0, -h % 8), (0, -w % 8)), mode="edge")
    for plane, table in zip(planes, (tables[0], tables[1], tables[1]), strict=True):
        steps = np.array(table).reshape(8, 8)
        for y, x in itertools.product(range(0, h, 8), range(0, w, 8)):
            cosines = dctn(plane[y : y + 8, x : x + 8], norm="ortho")
            plane[y : y + 8, x : x + 8] = idctn(np.round(cosines / steps) * steps, norm="ortho")
    planes[0] += 128
    expected = np.einsum("ck,khw->chw", np.linalg.inv(matrix), planes)[:, :h, :w].clip(0, 255) / 255
    shown = jpeg(images, torch.tensor([[(quality - 29.5) / 61]]))
    np.testing.assert_allclose(shown[0].numpy(), expected, atol=1e-6)


@pytest.mark.parametrize("quality", [30, 60, 90])
def test_a_grey_file_of_that_quality_holds_what_jpeg_leaves(quality):
    images, image = photo()
    shown = jpeg(images[:, :1], torch.tensor([[(quality - 29.5) / 61]]))
    file = levels(saved(image.split()[0], quality))
    assert (
        shown - file
    ).abs().mean() < 0.5 / 255  # a file rounds pixels, which may tip a coefficient over


# ------------------------------------------------------------------------------------------------------------- laws

TRANSFORMS = {
    "flip": (lambda images, u: flip(images), lambda c, h, w: 1),
    "crop": (crop, lambda c, h, w: 2),
    "native crop": (native_crop, lambda c, h, w: 2),
    "brightness": (brightness, lambda c, h, w: 1),
    "contrast": (contrast, lambda c, h, w: 1),
    "noise": (gaussian_noise, lambda c, h, w: c + c * h * w),
    "blur": (gaussian_blur, lambda c, h, w: 1),
}
MORE = {
    **{
        move.__name__: (move, 2)
        for move in (nudge, shift, flip_shift, diagonal_shift, flip_diagonal_shift, rotate)
    },
    **{zoom.__name__: (zoom, 1) for zoom in (zoom_in, zoom_out)},
    **{light.__name__: (light, 1) for light in (gamma, sharpen, jpeg)},
    **{colour.__name__: (colour, 2) for colour in (saturation, hue)},
    "autocontrast": (lambda images, u: autocontrast(images), 1),
    "grey": (lambda images, u: grey(images), 1),
}
more_transforms = pytest.mark.parametrize(("transform", "count"), MORE.values(), ids=MORE)
every_transform = pytest.mark.parametrize(
    ("transform", "count"), TRANSFORMS.values(), ids=TRANSFORMS
)
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
    torch.testing.assert_close(
        transform(images.to(memory_format=torch.channels_last), u), transform(images, u)
    )


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


def test_a_crop_of_a_single_pixel_is_the_image():
    images = pixels(2, (3, 1, 2))
    assert torch.equal(crop(images, numbers(2, 2)), images)


def test_every_window_is_reached_and_by_an_equal_share_of_the_numbers():
    side, positions = 16, 16 - 13 + 1
    steps = 24
    u = torch.cartesian_prod(*[(torch.arange(steps) + 0.5) / steps] * 2)
    images = (
        torch.arange(side * side, dtype=torch.float64)
        .reshape(1, 1, side, side)
        .expand(steps**2, -1, -1, -1)
    )
    corner = native_crop(images, u)[:, 0, 0, 0].long()
    counts = torch.bincount(corner, minlength=side * side).reshape(side, side)
    assert counts[:positions, :positions].unique().tolist() == [(steps // positions) ** 2]
    assert counts.sum() == steps**2 == counts[:positions, :positions].sum()


def test_the_largest_number_still_falls_on_the_last_window():
    images = torch.arange(512.0).reshape(1, 1, 1, 512).expand(1, 1, 8, 512)
    for side in range(8, 513):
        window = native_crop(images[..., :side], torch.full((1, 2), 1 - 2**-24))
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
    spread = [
        gaussian_blur(images, torch.tensor([[(size - 0.5) / 5]])).std().item() for size in KERNELS
    ]
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


# -------------------------------------------------------------------------------------- laws of more than the paper's


@more_transforms
@settings(max_examples=8, deadline=None)
@given(
    shape=st.tuples(st.sampled_from([1, 3]), st.integers(2, 20), st.integers(2, 20)),
    number=units,
    level=units,
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]),
)
def test_shape_dtype_and_range_are_kept_for_every_number(
    transform, count, shape, number, level, dtype
):
    images, u = pixels(2, shape, dtype=dtype), torch.full((2, count), number)
    images[1] = level
    before = images.clone()
    shown = transform(images, u)
    assert shown.dtype == dtype
    assert shown.shape == images.shape
    assert 0 <= shown.min() <= shown.max() <= 1
    assert torch.equal(images, before)
    assert transform(images[:0], u[:0]).shape == images[:0].shape


@more_transforms
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_no_bit_of_an_image_depends_on_its_batch(transform, count, dtype):
    images, u = pixels(19, (3, 8, 13), dtype=dtype), numbers(19, count).float()
    together = transform(images, u)
    for size in (1, 6):
        apart = [transform(*part) for part in zip(images.split(size), u.split(size), strict=True)]
        assert torch.equal(torch.cat(apart), together)
    torch.testing.assert_close(transform(images.to(memory_format=torch.channels_last), u), together)


DIHEDRAL = [lambda images: images, rot90, rot180, rot270, flip, vflip, transpose, antitranspose]


def test_flips_and_turns_are_the_eight_symmetries_of_the_square():
    images = torch.arange(9.0).reshape(1, 1, 3, 3)
    elements = [tuple(move(images).flatten().int().tolist()) for move in DIHEDRAL]
    assert len(set(elements)) == 8
    for one, two in itertools.product(DIHEDRAL, DIHEDRAL):
        assert tuple(one(two(images)).flatten().int().tolist()) in elements


def test_flips_and_turns_keep_the_laws_of_the_group_on_any_shape():
    images = pixels(2, (3, 8, 13))
    for mirror in (flip, vflip, rot180, transpose, antitranspose):
        assert torch.equal(mirror(mirror(images)), images)
    assert torch.equal(rot90(rot90(images)), rot180(images))
    assert torch.equal(rot90(rot270(images)), images)
    assert torch.equal(flip(vflip(images)), rot180(images))
    assert torch.equal(vflip(transpose(images)), rot90(images))
    assert torch.equal(rot180(transpose(images)), antitranspose(images))
    assert rot90(images).shape == transpose(images).shape == (2, 3, 13, 8)
    assert torch.equal(
        rot90(images)[..., -1, 0], images[..., 0, 0]
    )  # counter-clockwise: the first corner goes down


@settings(max_examples=30, deadline=None)
@given(
    h=st.integers(8, 70),
    w=st.integers(8, 70),
    way=st.integers(0, 7),
    far=st.floats(0, 1 - 2**-24, width=32),
)
def test_a_shift_and_the_opposite_one_cancel_in_the_interior_and_each_moves_the_image(
    h, w, way, far
):
    images = pixels(1, (1, h, w))
    there = shift(images, torch.tensor([[(way + 0.5) / 8, far]]))
    back = shift(there, torch.tensor([[((way + 4) % 8 + 0.5) / 8, far]]))
    y, x = (max(1, round(side / 8)) for side in (h, w))
    assert torch.equal(back[..., y:-y, x:-x], images[..., y:-y, x:-x])
    assert not torch.equal(there, images)


def test_a_single_even_draw_shifts_along_a_diagonal_by_a_middle_distance():
    images, half = pixels(1, (3, 32, 32)), torch.full((1, 2), 0.5)
    assert torch.equal(shift(images, half)[..., 3:, 3:], images[..., :-3, :-3])
    assert torch.equal(diagonal_shift(images, half), shift(images, half))
    assert torch.equal(flip_shift(images, half), flip(shift(images, half)))
    assert torch.equal(flip_diagonal_shift(images, half), flip(diagonal_shift(images, half)))


def test_nudges_point_away_from_each_other_and_half_are_mirrored():
    """Against whole-pixel moves by NumPy's own reflection, at the numbers that stratified draws give."""
    image = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    padded = np.pad(image[0].numpy(), ((0, 0), (2, 2), (2, 2)), mode="reflect")
    moves = {
        1: [((2, 0), True)],
        3: [((-2, 2), False), ((2, 0), True), ((0, -2), True)],
    }  # (down, right), mirrored
    for repeats, expected in moves.items():
        for u, ((down, right), mirrored) in zip(
            stratified_numbers("nudge", 2, repeats), expected, strict=True
        ):
            moved = padded[:, 2 - down : 34 - down, 2 - right : 34 - right]
            moved = moved[..., ::-1] if mirrored else moved
            np.testing.assert_array_equal(nudge(image, u[None])[0].numpy(), moved)


def test_diagonal_shifts_are_the_four_diagonal_ones():
    images = pixels(4, (1, 32, 32))[:1].expand(4, -1, -1, -1)
    diagonal = diagonal_shift(images, torch.tensor([[(way + 0.5) / 4, 0.3] for way in range(4)]))
    assert torch.equal(
        diagonal, shift(images, torch.tensor([[(way + 0.5) / 8, 0.3] for way in (0, 2, 4, 6)]))
    )


@pytest.mark.parametrize("transform", [shift, rotate, zoom_in, zoom_out, sharpen, jpeg])
def test_a_flat_image_stays_flat(transform):
    count = dict(MORE.values())[transform]
    images = torch.full(
        (5, 3, 11, 9), 128 / 255, dtype=torch.float64
    )  # the level that jpeg holds exactly
    torch.testing.assert_close(transform(images, numbers(5, count)), images)


def test_autocontrast_spans_the_range_and_leaves_a_flat_channel_alone():
    images = 0.2 + 0.5 * pixels(2, (3, 8, 9))
    images[0, 1] = 0.4
    shown = autocontrast(images)
    assert torch.equal(shown[0, 1], images[0, 1])
    assert torch.equal(shown[1].amin((1, 2)), torch.zeros(3, dtype=torch.float64))
    assert torch.equal(shown[1].amax((1, 2)), torch.ones(3, dtype=torch.float64))
    torch.testing.assert_close(autocontrast(shown), shown)


@pytest.mark.parametrize("colour", ["saturation", "hue", "grey"])
def test_a_grey_image_has_no_colours_to_change(colour):
    transform, count = MORE[colour]
    plane, u = pixels(4, (1, 8, 9)), numbers(4, count)
    assert torch.equal(transform(plane, u), plane)
    torch.testing.assert_close(
        transform(plane.expand(-1, 3, -1, -1), u), plane.expand(-1, 3, -1, -1)
    )


@pytest.mark.parametrize("colour", ["saturation", "hue", "grey", "jpeg"])
def test_colours_of_other_than_one_or_three_channels_are_refused(colour):
    transform, count = MORE[colour]
    with pytest.raises(InputError, match="expected images of 1 or 3 channels, got 4"):
        transform(pixels(2, (4, 8, 8)), numbers(2, count))


def test_a_lower_quality_of_jpeg_loses_more():
    images = pixels(1, (3, 32, 32))
    lost = [
        (jpeg(images, torch.tensor([[u]])) - images).abs().mean().item()
        for u in (0.0, 0.25, 0.5, 0.75, 0.99)
    ]
    assert lost == sorted(lost, reverse=True)
