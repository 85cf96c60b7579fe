"""What is compared: its key, its label, and how sure a difference is."""

import math
from dataclasses import replace
from typing import Any

import pytest

from atta.results.rows import Interval, Results, Row
from atta.results.words import Contender, bounds, contender, judged, labels


def sure(method: str, low: float, high: float, **columns: Any) -> Interval:
    return Interval(dataset="set", metric="brier", method=method, low=low, high=high, **columns)


def test_a_difference_can_be_looked_up_in_both_directions() -> None:
    results = Results((), {}, (), (sure("b", 0.05, 0.1, against="a"), sure("a", 0.0, 0.2)))
    (a, b) = (("", "set", 0, name, "", "") for name in "ab")
    assert bounds(results.intervals) == {
        (b, a, "brier"): (0.05, 0.1),
        (a, b, "brier"): (-0.1, -0.05),
        (a, None, "brier"): (0, 0.2),
    }


@pytest.mark.parametrize(
    ("low", "high", "better", "found"),
    [
        (-0.2, -0.1, "lower", 1),
        (0.1, 0.2, "lower", -1),
        (0.1, 0.2, "higher", 1),
        (-0.2, -0.1, "higher", -1),
        (-0.1, 0.1, "lower", 0),
        (0.0, 0.1, "lower", 0),
        (0.0, 0.0, "lower", 0),
        (0.1, 0.2, None, None),
        (math.nan, 0.2, "lower", None),
    ],
)
def test_only_an_interval_that_excludes_0_is_sure(
    low: float, high: float, better: str | None, found: int | None
) -> None:
    assert judged(low, high, better) == found


def test_a_policy_that_a_rule_chose_is_none_of_its_own() -> None:
    one = Row(dataset="d", method="v-atta", policy="aug4", choice="paper", metric="nll", value=0.1)
    assert contender(one) == contender(replace(one, policy="flip", split=3, value=0.2))
    assert contender(one) != contender(replace(one, choice="nll"))
    assert contender(one) == contender(
        {"dataset": "d", "method": "v-atta", "policy": "aug8", "choice": "paper"}
    )


def test_labels_tell_contenders_apart_with_no_more_words_than_that_takes() -> None:
    def key(method: str, policy: str = "", choice: str = "", size: int = 0) -> Contender:
        return Contender("e", "d", size, method, policy, choice)

    assert list(labels([key("a", "flip"), key("b", "flip"), key("b", "crop")]).values()) == [
        "a",
        "b · flip",
        "b · crop",
    ]
    assert list(labels([key("a", choice="paper"), key("a", choice="nll")]).values()) == [
        "a",
        "a · nll",
    ]
    assert list(labels([key("a", choice="paper"), key("a", "flip")]).values()) == ["a", "a · flip"]
    sized = [key("a", size=10), key("a", size=20)]
    assert list(labels(sized, sizes=True).values()) == ["a · 10 images", "a · 20 images"]
    assert list(labels(sized).values()) == ["a", "a"]
    assert list(labels(sized[:1], sizes=True).values()) == ["a"]
