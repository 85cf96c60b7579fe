"""The contenders of a comparison: their keys, their labels, and how two of them compare.

A contender is a method with its policy, or with the rule that chose the policy, fitted on some
images of a dataset in an experiment.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

from atta.results.rows import Interval, Results, Row
from atta.results.words import RULE


class Contender(NamedTuple):
    """What is compared; the first three columns say on what."""

    experiment: str = ""
    dataset: str = ""
    validation: int = 0
    method: str = ""
    policy: str = ""
    choice: str = ""

    @property
    def setting(self) -> Setting:
        """What the contender is compared on."""
        return self[:3]


Setting: TypeAlias = tuple[str, str, int]
Bounds: TypeAlias = dict[tuple[Contender, Contender | None, str], tuple[float, float]]
"""(low, high) by contender, the other contender (None for the number itself) and metric."""


def contender(one: Row | Interval | Mapping[str, Any]) -> Contender:
    """Return the contender of a row, an interval or a detail; a rule stands for its policies."""
    columns = one if isinstance(one, Mapping) else vars(one)
    found = Contender(**{name: columns[name] for name in Contender._fields if name in columns})
    return found._replace(policy="") if found.choice else found


def label(method: str, choice: str = "", *more: str) -> str:
    """Join a method, the rule of its policy unless it is the paper's, and more words."""
    return " · ".join(filter(None, (method, choice if choice != RULE else "", *more)))


def labels(contenders: Iterable[Contender], *, sizes: bool = False) -> dict[Contender, str]:
    """Name contenders as briefly as tells them apart: policies, and with `sizes` image counts."""
    keys = list(dict.fromkeys(contenders))
    policies = Counter(method for method, _ in {(key.method, key.policy) for key in keys})
    several = sizes and len({key.validation for key in keys}) > 1
    return {
        key: label(
            key.method,
            key.choice,
            key.policy if policies[key.method] > 1 else "",
            f"{key.validation} images" if several else "",
        )
        for key in keys
    }


def bounds(intervals: Iterable[Interval]) -> Bounds:
    """Return the bounds of numbers and of differences, each difference in both directions."""
    found: Bounds = {}
    for one in intervals:
        mine, theirs = contender(one), contender(one.other) if one.against else None
        found[mine, theirs, one.metric] = one.low, one.high
        if theirs is not None:
            found[theirs, mine, one.metric] = -one.high, -one.low
    return found


def baselines(results: Results, method: str) -> dict[Setting, Contender]:
    """Return what each setting is compared with: that method, or else the first one."""
    found: dict[Setting, Contender] = {}
    for row in sorted(results, key=lambda row: row.method != method):  # a stable sort
        key = contender(row)
        found.setdefault(key.setting, key)
    return found


def judged(low: float, high: float, better: str | None) -> int | None:
    """Return 1 (better) or -1 (worse) if the interval of a difference excludes 0, else 0.

    None if the metric has no better direction or a bound is not finite.
    """
    if better is None or not (math.isfinite(low) and math.isfinite(high)):
        return None
    if low <= 0 <= high:
        return 0
    return 1 if (high < 0) == (better == "lower") else -1


def relabelled(results: Results, *, sizes: bool = False) -> Results:
    """Return the results with labels in the place of method, policy and choice."""
    named = labels(map(contender, results), sizes=sizes)
    return results.renamed(lambda one: (named.get(contender(one), one.method), "", ""))
