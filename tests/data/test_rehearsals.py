"""Rehearsals: each image in a family of its own, by its own numbers."""

import pytest
import torch

from atta import InputError, Policy
from atta.data.corruptions import CORRUPTIONS, FAMILIES, REHEARSALS, rehearsed
from atta.data.draws import random_numbers
from atta.data.transforms import pick

IMAGES = torch.rand(40, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def shown(
    severity: int, images: torch.Tensor = IMAGES, places: torch.Tensor | None = None, **how
) -> torch.Tensor:
    places = torch.arange(len(images)) if places is None else places
    ((_, _, pixels),) = rehearsed([severity]).render(images, places, **how)
    return pixels


@pytest.mark.parametrize("severity", REHEARSALS)
def test_every_image_is_changed_and_stays_in_range(severity):
    pixels = shown(severity)
    assert pixels.shape == IMAGES.shape
    assert pixels.min() >= 0
    assert pixels.max() <= 1
    assert ((pixels - IMAGES).abs().flatten(1).amax(1) > 0).all()


def test_each_image_is_shown_in_the_family_that_its_own_number_picks():
    view = REHEARSALS[2]
    u = random_numbers(view.name, view.count(IMAGES), torch.arange(40))
    picked = pick(u[:, 0], len(FAMILIES))
    assert len(picked.unique()) > len(FAMILIES) // 2
    pixels = shown(2)
    for row in (0, 7, 21):
        corruption = CORRUPTIONS[f"{FAMILIES[picked[row]]}-2"]
        given = (u[row : row + 1, 1 : 1 + corruption.count(IMAGES)],) if corruption.random else ()
        torch.testing.assert_close(pixels[row : row + 1], corruption(IMAGES[row : row + 1], *given))


def test_neither_the_batch_nor_the_draws_of_other_views_change_what_is_shown():
    whole, places = shown(3), torch.arange(40)
    parts = torch.cat(
        [
            shown(3, IMAGES[i : i + 7], places[i : i + 7], draws="stratified")
            for i in range(0, 40, 7)
        ]
    )
    torch.testing.assert_close(parts, whole, rtol=0, atol=1e-6)
    assert not torch.equal(shown(3, seed=1), whole)


def test_stratified_draws_of_a_rehearsal_need_the_places_of_the_images_too():
    with pytest.raises(InputError, match="each image's position"):
        list(rehearsed([3]).render(IMAGES, draws="stratified"))


@pytest.mark.parametrize("channels", [1, 4])
def test_images_of_other_channels_can_be_rehearsed(channels):
    images = torch.rand(30, channels, 12, 9)
    assert shown(5, images).shape == images.shape


@pytest.mark.parametrize("wrong", [0, 6, True])
def test_a_severity_that_there_is_not_is_refused(wrong):
    with pytest.raises(InputError, match="severities from 1 to 5"):
        rehearsed([3, wrong])


def test_a_dark_image_is_the_same_beside_a_bright_one():
    dark, bright = torch.full((1, 3, 8, 8), 0.05), torch.ones(1, 3, 8, 8)
    view, u = CORRUPTIONS["shot-noise-1"], torch.rand(2, 192)
    assert torch.equal(view(torch.cat([dark, bright]), u)[:1], view(dark, u[:1]))


def test_the_library_has_crops_of_few_passes():
    assert [
        Policy.parse(name).passes for name in ("crop-2", "crop-4", "flip-crop-4", "crop-9")
    ] == [2, 4, 4, 9]
