"""A setting is what its annotation says, and whatever else came is refused in one sentence."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atta._base.errors import InputError
from atta._base.settings import check_one, shown
from scenarios import said_to_users

KINDS: dict[str, Any] = {
    "a whole number ≥ 1": Annotated[int, "≥ 1"],
    "a number > 0 and ≤ 1 or None": Annotated[float, "> 0", "≤ 1"] | None,
    "True or False": bool,
    "one of a, b or a number": Literal["a", "b"] | float,
    "a mapping or None": Mapping[str, str] | None,
    "a list": Sequence[str],
    "text or a Tensor": str | torch.Tensor,
}
GOOD: list[tuple[str, Any, Any]] = [
    ("a whole number ≥ 1", np.int64(5), 5),
    ("a number > 0 and ≤ 1 or None", 1, 1.0),
    ("a number > 0 and ≤ 1 or None", np.float32(0.5), 0.5),
    ("a number > 0 and ≤ 1 or None", None, None),
    ("True or False", np.True_, True),
    ("True or False", 0, False),
    ("one of a, b or a number", "b", "b"),
    ("a mapping or None", {}, {}),
    ("a list", ("a",), ("a",)),
    ("text or a Tensor", "a", "a"),
]
ANYTHING = st.one_of(
    *(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(),
        st.binary(),
        st.complex_numbers(),
        st.just(10**400),
    ),
    *(
        st.lists(st.integers()),
        st.dictionaries(st.text(), st.text()),
        st.sampled_from([object(), torch.ones(2), np.ones(2), int]),
    ),
)


@pytest.mark.parametrize(("words", "value", "plain"), GOOD)
def test_a_good_setting_comes_back_as_a_plain_one(words, value, plain):
    found = check_one("it", value, KINDS[words])
    assert found == plain
    assert type(found) is type(plain)


@pytest.mark.parametrize("words", KINDS)
@given(value=ANYTHING)
def test_any_value_is_taken_or_refused_in_one_line(words, value):
    try:
        check_one("it", value, KINDS[words])
    except InputError as error:
        said = str(error)
    else:
        return
    assert said == f"it must be {words}, got {shown(value)}"
    assert len(said) < 400
    assert len(said.splitlines()) == 1


def test_what_an_annotation_cannot_say_is_left_to_others():
    value = object()
    assert check_one("it", value, Any) is value
    assert check_one("it", value, int | Any) is value


VIEW = (
    "A view: expected a name of atta.VIEWS, an atta.View, or a transform of kornia, torchvision, "
    "albumentations, got {}. Turn a function of a batch of images into a view with "
    "atta.View.of('name', function)."
)
SPARSE = "expected numbers in memory, got a tensor of layout torch.sparse_coo; see Tensor.to_dense"
BAD = {
    "atta.collect(net, images, output=5)": "output must be text or a path or None, got 5",
    "atta.RecordWriter('x', dtype='half')": "dtype must be one of float16, float32, got 'half'",
    "atta.collect(net, images, origin='x')": "origin must be a mapping or None, got 'x'",
    "atta.collect(net, images, autocast='half')": (
        "autocast must be True or False or a dtype, got 'half'"
    ),
    "atta.collect(net, images, batch_size='a')": (
        "batch_size must be a whole number or None, got 'a'"
    ),
    "atta.collect(net, images, policy=None)": VIEW.format(None),
    "atta.calibrate(net, images, [0] * 4, method=None)": (
        "method: expected a name, such as 'c-atta', or a method, such as atta.CATTA(), got None"
    ),
    "atta.calibrate(net, images, [0] * 4, class_names=7)": "class_names must be a list, got 7",
    "atta.CalibratedClassifier(net, None, image_shape=(3, 8, 8))": (
        "calibrator must be a Calibrator, got None"
    ),
    "atta.CalibratedClassifier(net, None, image_shape=5)": "image_shape must be a list, got 5",
    "atta.Policy.parse(5)": VIEW.format(5),
    "atta.collect(net, images.to_sparse())": f"the images: {SPARSE}",
    "atta.Predictions(torch.zeros(4, 3, device='meta'))": (
        "logits: expected numbers in memory, got a tensor of the meta device, which holds none"
    ),
    "atta.evaluate(torch.eye(3).to_sparse(), [0, 1, 2])": f"probs: {SPARSE}",
    "atta.bins(torch.ones(3), torch.ones(3) + 1j)": (
        "correct: expected real numbers, got torch.complex64"
    ),
}


def test_what_users_read_is_one_sentence():
    setup = """
import torch, atta
net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 3))
images = torch.zeros(4, 3, 8, 8)
"""
    assert said_to_users(setup, BAD) == {
        expression: f"InputError: {sentence}" for expression, sentence in BAD.items()
    }
