"""What is compared: its key, its label, and how sure a difference is."""

import math
from typing import Any

import pytest

from atta.results.contenders import bounds, judged
from atta.results.rows import Interval, Results


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
