"""What was typed, read."""

import re

import pytest

from atta.cli.arguments import read_parts, read_settings
from atta.types import InputError


def test_rows_to_test_on_are_none_that_were_searched() -> None:
    assert read_parts(10, "0:4", "4:") == (slice(0, 4), slice(4, None))
    assert read_parts(10, None, None) == (slice(None), None)
    for rows, test, sentence in (
        ("0:4", "3:", "--test expects rows that are not searched, got 1 of --rows 0:4 in 3:"),
        (None, "8:", "got 2 of --rows : in 8:"),
        ("0:4", "10:", "--test 10: leaves none of the 10 images"),
        ("0:4", "4-6", "--test takes FROM:TO, such as 0:1000 or 1000:, got '4-6'"),
    ):
        with pytest.raises(InputError, match=re.escape(sentence)):
            read_parts(10, rows, test)


def test_settings_are_read_as_json_lists_or_text() -> None:
    assert read_settings(["step=0.01", "views=flip", "optimizer=adam", "pooled=false", "views=a,b", "step=null"]) == {
        "step": None,
        "views": ["a", "b"],
        "optimizer": "adam",
        "pooled": False,
    }
    with pytest.raises(InputError, match="--set takes NAME=VALUE, got 'step'"):
        read_settings(["step"])
