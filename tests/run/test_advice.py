"""What looks wrong is said, a sentence each; what looks right is not."""

import warnings

import pytest
import torch

from atta import Predictions, Record
from atta._base.errors import Advice, advise
from atta.run.checks import advice, look_over
from scenarios import made_up


def test_a_record_like_any_other_is_silent():
    assert advice(made_up(300)) == []


@pytest.mark.parametrize(
    ("record", "sentence"),
    [
        (made_up(199), "199 images are few"),
        (
            Record(made_up(300).predictions, (made_up(300).labels + 1) % 5),
            "right of 5 classes is no better than chance",
        ),
        (
            Record(made_up(300).predictions, torch.tensor([0, 2, 1, 3, 4])[made_up(300).labels]),
            "most images of class 1 are taken for class 2, and most of that for class 1",
        ),
        (
            Record(made_up(300).predictions, made_up(300).predictions.logits.argmax(1)),
            "all images are right",
        ),
        (
            Record(Predictions(made_up(300).predictions.logits.softmax(1))),
            "where these are probabilities",
        ),
        (
            Record(Predictions(made_up(300).predictions.logits * 1e5)),
            "sure of every image, confidence 1.0",
        ),
    ],
)
def test_what_looks_wrong_is_said_in_one_sentence(record, sentence):
    (found,) = advice(record)
    assert sentence in found
    with pytest.warns(Advice, match="images|network|classes") as caught:
        look_over(record)
    assert len(caught) == 1


def test_advice_points_at_the_line_of_the_caller():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        look_over(made_up(50))
        advise("beware")
    assert {one.filename for one in caught} == {__file__}
