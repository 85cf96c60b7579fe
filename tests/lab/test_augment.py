"""Crops, zooms and mirrors: a pure function of the images and given numbers; and the mirrors that the images allow."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from atta.lab.recipe import MIRRORS, NUMBERS, augment, symmetries

IMAGE = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
STILL = {"shift": 0.125, "zoom": 0.6, "zoomed": 0.0, "mirrors": MIRRORS}


def numbers(
    across=0.5, down=0.5, mirrored=(False, False, False), zoomed=0.9, zoom=0.5
) -> torch.Tensor:
    return torch.tensor(
        [[zoomed, zoom, across, down, *(0.1 if flag else 0.9 for flag in mirrored)]]
    )


@pytest.mark.parametrize(
    ("mirrored", "expected"),
    [
        ((False, False, False), IMAGE),
        ((True, False, False), IMAGE.flip(3)),
        ((False, True, False), IMAGE.flip(2)),
        ((False, False, True), IMAGE.transpose(2, 3)),
        ((True, True, False), IMAGE.rot90(2, (2, 3))),
    ],
)
def test_each_mirror_moves_pixels_and_changes_none(mirrored, expected):
    torch.testing.assert_close(augment(IMAGE, numbers(mirrored=mirrored), **STILL), expected)


@given(st.lists(st.booleans(), min_size=3, max_size=3))
def test_mirrors_that_were_not_asked_for_are_not_used(mirrored):
    torch.testing.assert_close(
        augment(IMAGE, numbers(mirrored=mirrored), **(STILL | {"mirrors": ()})), IMAGE
    )


def test_a_shift_is_by_whole_pixels_and_reflects_what_it_uncovers():
    right = augment(IMAGE, numbers(across=0.99), **STILL)
    torch.testing.assert_close(right[..., :-1], IMAGE[..., 1:])
    torch.testing.assert_close(right[..., -1], IMAGE[..., -1])


def test_a_zoom_shows_a_window_of_the_image():
    ramp = torch.linspace(0, 1, 16).expand(1, 1, 16, 16).contiguous()
    settings = STILL | {"zoomed": 1.0, "zoom": 0.5, "shift": 0.0}
    shown = augment(ramp, numbers(zoom=0.0), **settings)
    assert (shown.max() - shown.min()).item() == pytest.approx(0.5, abs=0.05)


@given(st.integers(0, 2**31))
@settings(max_examples=25, deadline=None)
def test_an_image_is_augmented_alike_in_every_batch(seed):
    generator = torch.Generator().manual_seed(seed)
    images, u = (
        torch.rand(5, 3, 9, 9, generator=generator),
        torch.rand(5, NUMBERS, generator=generator),
    )
    chosen = STILL | {"zoomed": 0.5}
    together = augment(images, u, **chosen)
    assert together.min() >= 0
    assert together.max() <= 1 + 1e-6
    torch.testing.assert_close(augment(images[2:3], u[2:3], **chosen), together[2:3])


def test_symmetries_are_read_off_the_images():
    generator = torch.Generator().manual_seed(0)
    noise = torch.randint(0, 100, (400, 3, 16, 16), generator=generator)
    labels = torch.arange(400) % 4
    sky = 50 * (torch.arange(16) < 8)[:, None].expand(16, 16)
    assert symmetries(noise.byte(), labels) == MIRRORS
    assert symmetries((noise + sky).byte(), labels) == ("left-right",)
    assert symmetries((noise + sky.T).byte(), labels) == ("up-down",)
    assert symmetries((noise + sky * sky.T // 50).byte(), labels) == ("diagonal",)


def test_symmetries_look_at_each_class_by_itself():
    """Two classes that lean in opposite directions look even when they are taken together."""
    generator = torch.Generator().manual_seed(0)
    noise, labels = (
        torch.randint(0, 100, (400, 1, 16, 16), generator=generator),
        torch.arange(400) % 2,
    )
    lean = 50 * (torch.arange(16) < 8).expand(1, 16, 16)
    images = torch.where(
        labels[:, None, None, None] == 1, noise + lean, noise + lean.flip(2)
    ).byte()
    assert "left-right" not in symmetries(images, labels)
    assert "left-right" in symmetries(images, torch.zeros_like(labels))
