"""One recipe for every dataset; crops, zooms and mirrors are functions of given numbers."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from atta._base.errors import InputError
from atta.lab.recipe import MIRRORS, NUMBERS, Recipe, augment, symmetries

IMAGE = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
STILL = Recipe(shift=0.125, zoom=0.6, zoomed=0.0, mirrors=MIRRORS)


def test_every_dataset_gets_about_the_same_number_of_updates():
    recipe = Recipe()
    assert recipe.epochs(50_000) == 41
    assert recipe.epochs(7_000) == 296
    assert Recipe(steps=10, batch_size=500).epochs(100) == 10


@given(st.floats(0, 1))
def test_the_learning_rate_rises_to_its_peak_and_falls_to_nothing(done):
    recipe = Recipe()
    assert 0 <= recipe.learning_rate(done) <= recipe.peak_lr
    assert recipe.learning_rate(recipe.rise) == recipe.peak_lr
    assert recipe.learning_rate(0.0) == 0
    assert recipe.learning_rate(1.0) == pytest.approx(0, abs=1e-12)


def test_an_unknown_setting_of_the_recipe_is_named() -> None:
    assert Recipe.of(zoomed=0.0, steps=10) == Recipe(zoomed=0.0, steps=10)
    with pytest.raises(
        InputError,
        match=r"the recipe has no setting 'zoomd'. Did you mean 'zoomed'\? It has: steps, ",
    ):
        Recipe.of(zoomd=0.0)


def test_a_recipe_that_cannot_be_followed_is_refused() -> None:
    with pytest.raises(InputError, match="steps must be a whole number ≥ 1, got 0"):
        Recipe(steps=0)
    with pytest.raises(
        InputError, match="mirrors among left-right, up-down, diagonal, got upside-down"
    ):
        Recipe(mirrors=("upside-down",))
    for changed, name in (
        ({"steps": "many"}, "steps"),
        ({"shift": True}, "shift"),
        ({"mirrors": 5}, "mirrors"),
    ):
        with pytest.raises(InputError, match=f"{name} must be"):
            Recipe.of(**changed)


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
    torch.testing.assert_close(augment(IMAGE, numbers(mirrored=mirrored), STILL), expected)


@given(st.lists(st.booleans(), min_size=3, max_size=3))
def test_mirrors_that_were_not_asked_for_are_not_used(mirrored):
    torch.testing.assert_close(
        augment(IMAGE, numbers(mirrored=mirrored), replace(STILL, mirrors=())), IMAGE
    )


def test_a_shift_is_by_whole_pixels_and_reflects_what_it_uncovers():
    right = augment(IMAGE, numbers(across=0.99), STILL)
    torch.testing.assert_close(right[..., :-1], IMAGE[..., 1:])
    torch.testing.assert_close(right[..., -1], IMAGE[..., -1])


def test_a_zoom_shows_a_window_of_the_image():
    ramp = torch.linspace(0, 1, 16).expand(1, 1, 16, 16).contiguous()
    settings = replace(STILL, zoomed=1.0, zoom=0.5, shift=0.0)
    shown = augment(ramp, numbers(zoom=0.0), settings)
    assert (shown.max() - shown.min()).item() == pytest.approx(0.5, abs=0.05)


@given(st.integers(0, 2**31))
@settings(max_examples=25, deadline=None)
def test_an_image_is_augmented_alike_in_every_batch(seed):
    generator = torch.Generator().manual_seed(seed)
    images, u = (
        torch.rand(5, 3, 9, 9, generator=generator),
        torch.rand(5, NUMBERS, generator=generator),
    )
    chosen = replace(STILL, zoomed=0.5)
    together = augment(images, u, chosen)
    assert together.min() >= 0
    assert together.max() <= 1 + 1e-6
    torch.testing.assert_close(augment(images[2:3], u[2:3], chosen), together[2:3])


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
