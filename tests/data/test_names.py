"""A class is found by its name: one that is missing moves no other."""

import pytest

from atta._base.errors import InputError
from atta.data.labels import imagenet, numbers_of

NAMES = ("tench, Tinca tinca", "polar bear", "crane", "crane", "Dog")


@pytest.mark.parametrize(
    ("found", "number"),
    [
        ("Polar_Bear", 1),
        ("polar-bear", 1),
        ("POLARBEAR", 1),
        ("tench", 0),
        ("tench, tinca tinca", 0),
        ("dog", 4),
        ("3", 3),
    ],
)
def test_names_are_found_whatever_their_case_and_spaces(found, number):
    assert numbers_of([found], NAMES) == {found: number}


def test_what_matches_nothing_is_refused_with_the_one_that_was_meant():
    with pytest.raises(
        InputError, match=r"got 'polar baer': no class has that name\. Did you mean 'polar bear'"
    ):
        numbers_of(["polar baer"], NAMES)


@pytest.mark.parametrize("found", ["crane", "5", "n02123045"])
def test_two_of_a_name_and_numbers_out_of_range_are_refused(found):
    with pytest.raises(InputError, match=f"got '{found}'"):
        numbers_of([found], NAMES)


def test_a_name_that_is_a_number_is_a_name_first():
    assert numbers_of(["1", "2"], ("2", "1", "0")) == {"1": 1, "2": 0}


def test_wordnet_ids_are_imagenet_s_classes_where_there_are_a_thousand():
    names = [f"class {i}" for i in range(1000)]
    assert numbers_of(["n02123045", "n01440764_tench"], names) == {
        "n02123045": 281,
        "n01440764_tench": 0,
    }
    assert len(imagenet()) == 1000
