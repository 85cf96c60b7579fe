"""One recipe for every dataset."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atta._base.errors import InputError
from atta.lab.recipe import Recipe


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
    with pytest.raises(InputError, match="at least 1 step"):
        Recipe(steps=0)
    with pytest.raises(
        InputError, match="mirrors among left-right, up-down, diagonal, got upside-down"
    ):
        Recipe(mirrors=("upside-down",))
    for settings, name in (
        ({"steps": "many"}, "steps"),
        ({"shift": True}, "shift"),
        ({"mirrors": 5}, "mirrors"),
    ):
        with pytest.raises(InputError, match=f"recipe: {name}: expected"):
            Recipe.of(**settings)
