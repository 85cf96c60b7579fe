"""Pictures made worse: the published constants, held against slow versions from other libraries."""

import colorsys

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import ndimage, stats

from atta.data import corruptions
from atta.data.corruptions import CONSTANTS, CORRUPTIONS
from atta.data.draws import random_numbers

SMOOTH = ndimage.gaussian_filter(np.random.default_rng(0).random((3, 32, 32)), (0, 2, 2))
IMAGE = torch.from_numpy((SMOOTH - SMOOTH.min()) / (SMOOTH.max() - SMOOTH.min()))[None]


def shown(name: str, images: torch.Tensor, first: int = 0) -> torch.Tensor:
    view = CORRUPTIONS[name]
    if not view.random:
        return view(images)
    return view(
        images, random_numbers(name, view.count(images), torch.arange(first, first + len(images)))
    )


@pytest.mark.parametrize("name", CORRUPTIONS)
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 20, 28), (3, 80, 72)])
def test_pixels_stay_pixels_of_the_same_shape_and_an_image_is_alone_in_its_batch(name, shape):
    images = torch.rand(3, *shape, generator=torch.Generator().manual_seed(0))
    before = images.clone()
    worse = shown(name, images)
    assert worse.shape == images.shape
    assert torch.isfinite(worse).all()
    assert worse.min() >= 0
    assert worse.max() <= 1
    assert torch.equal(images, before)
    assert torch.allclose(worse[1:2], shown(name, images[1:2], first=1), atol=1e-6)


@pytest.mark.parametrize(
    "family", [family for family in CONSTANTS if family not in ("saturate", "glass-blur")]
)
def test_more_severe_is_further_from_the_image(family):
    images = IMAGE.expand(8, -1, -1, -1).float()
    moved = [
        (shown(f"{family}-{severity}", images) - images).abs().mean() for severity in (1, 3, 5)
    ]
    assert moved == sorted(moved)
    assert moved[0] > 0


def test_a_gaussian_blur_is_that_of_scipy():
    slow = ndimage.gaussian_filter(IMAGE[0].numpy(), (0, 0.7, 0.7), mode="nearest", truncate=4.0)
    assert torch.allclose(shown("gaussian-blur-3", IMAGE)[0], torch.from_numpy(slow), atol=1e-9)


def test_pixels_are_those_of_pillow():
    pixels = (IMAGE[0] * 255).round()
    image = Image.fromarray(pixels.byte().permute(1, 2, 0).numpy())
    slow = image.resize((24, 24), Image.Resampling.BOX).resize((32, 32), Image.Resampling.BOX)
    worse = shown("pixelate-4", (pixels / 255)[None])[0] * 255
    assert (
        np.abs(worse.permute(1, 2, 0).numpy() - np.asarray(slow, dtype=float)).max() <= 1
    )  # Pillow rounds twice


@pytest.mark.parametrize(
    ("name", "change"), [("brightness-3", (1, 0, 0.15)), ("saturate-4", (2, 0.1, 0))]
)
def test_light_and_colour_are_those_of_hsv(name, change):
    factor, more, light = change
    images = torch.cat(
        [IMAGE, torch.zeros_like(IMAGE), torch.full_like(IMAGE, 0.4)]
    )  # black and grey have no hue
    worse = shown(name, images)
    for before, after in zip(
        images.permute(0, 2, 3, 1).reshape(-1, 3),
        worse.permute(0, 2, 3, 1).reshape(-1, 3),
        strict=True,
    ):
        h, s, v = colorsys.rgb_to_hsv(*before.tolist())
        slow = colorsys.hsv_to_rgb(h, min(1, s * factor + more), min(1, v + light))
        assert after.tolist() == pytest.approx(slow, abs=1e-9)


def test_photons_are_counted_by_poissons_law():
    for mean in (0.3, 4.0, 40.0, 200.0):
        u = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
        slow = torch.from_numpy(stats.poisson.ppf(u.numpy(), mean))
        image = torch.ones(1, 1, 1, len(u), dtype=torch.float64)
        found = (corruptions.shot_noise(image, u[None], mean) * mean).round().flatten()
        assert (found - slow).abs().max() <= (0 if mean <= corruptions.MANY else 1)
        assert (found != slow).double().mean() < 0.05


def test_impulses_are_as_many_dark_as_bright():
    images = torch.full((4, 3, 64, 64), 0.5)
    worse = shown("impulse-noise-5", images)
    assert (worse == 0).double().mean().item() == pytest.approx(0.035, abs=0.003)
    assert (worse == 1).double().mean().item() == pytest.approx(0.035, abs=0.003)


def test_noise_has_the_deviation_it_is_said_to_have():
    images = torch.full((4, 3, 32, 32), 0.5)
    assert (shown("gaussian-noise-5", images) - images).std().item() == pytest.approx(
        0.10, rel=0.03
    )
    assert (shown("speckle-noise-5", images) - images).std().item() == pytest.approx(
        0.2 * 0.5, rel=0.03
    )


def test_large_images_take_the_constants_of_imagenet():
    images = torch.full((1, 3, 96, 96), 0.5)
    assert (shown("gaussian-noise-1", images) - images).std().item() == pytest.approx(
        0.08, rel=0.03
    )


def test_a_blur_leaves_a_flat_image_flat_and_spreads_a_point_evenly():
    flat, point = (
        torch.full((1, 1, 33, 33), 0.3, dtype=torch.float64),
        torch.zeros(1, 1, 33, 33, dtype=torch.float64),
    )
    point[..., 16, 16] = 1
    for family in ("gaussian-blur", "defocus-blur", "motion-blur", "zoom-blur", "glass-blur"):
        assert torch.allclose(shown(f"{family}-5", flat), flat, atol=1e-6)
    spread = shown("defocus-blur-5", point)
    assert spread.sum().item() == pytest.approx(1)
    assert torch.allclose(spread, spread.mT)


def test_fog_keeps_the_brightest_light():
    worse = shown("fog-5", IMAGE.float())
    assert worse.max() <= IMAGE.max()
    assert worse.std() < IMAGE.std()
