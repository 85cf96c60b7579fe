"""What a row is a row of: how a contender is keyed, what people call it, and how two of them compare.

A contender is a method with its policy, or the rule that chose it, fitted on some images of a dataset in an experiment.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

from atta.results.rows import Interval, Results, Row
from atta.results.words import RULE


class Contender(NamedTuple):
    """What is compared, and, in the first three columns, on what."""

    experiment: str = ""
    dataset: str = ""
    validation: int = 0
    method: str = ""
    policy: str = ""
    choice: str = ""

    @property
    def setting(self) -> Setting:
        """What it is compared on."""
        return self[:3]


Setting: TypeAlias = tuple[str, str, int]
Bounds: TypeAlias = dict[tuple[Contender, Contender | None, str], tuple[float, float]]
"""Low and high by contender, what it is compared with (None for the number itself) and metric."""


def contender(one: Row | Interval | Mapping[str, Any]) -> Contender:
    """Of a row, an interval or a detail: a policy that a rule chose may differ from split to split, and is none of its own."""
    columns = one if isinstance(one, Mapping) else vars(one)
    found = Contender(**{name: columns[name] for name in Contender._fields if name in columns})
    return found._replace(policy="") if found.choice else found


def label(method: str, choice: str = "", *more: str) -> str:
    """What people call a contender: the method, the rule that chose its policy unless it is the paper's, and what is left."""
    return " · ".join(filter(None, (method, choice if choice != RULE else "", *more)))


def labels(contenders: Iterable[Contender], *, sizes: bool = False) -> dict[Contender, str]:
    """Name contenders with no more words than tell them apart: the policy where a method has several; `sizes` likewise."""
    keys = list(dict.fromkeys(contenders))
    policies: dict[str, set[str]] = {}
    for key in keys:
        policies.setdefault(key.method, set()).add(key.policy)
    several = sizes and len({key.validation for key in keys}) > 1
    return {
        key: label(
            key.method,
            key.choice,
            key.policy * (len(policies[key.method]) > 1),
            f"{key.validation} images" * several,
        )
        for key in keys
    }


def bounds(intervals: Iterable[Interval]) -> Bounds:
    """How sure numbers and differences are; each difference in both directions."""
    found: Bounds = {}
    for one in intervals:
        mine, theirs = contender(one), contender(one.other) if one.against else None
        found[mine, theirs, one.metric] = one.low, one.high
        if theirs is not None:
            found[theirs, mine, one.metric] = -one.high, -one.low
    return found


def baselines(results: Results, method: str) -> dict[Setting, Contender]:
    """What differences are taken to, in each setting: that method, or else the first one."""
    found: dict[Setting, Contender] = {}
    for row in sorted(
        results, key=lambda row: row.method != method
    ):  # the order stays as it is otherwise
        key = contender(row)
        found.setdefault(key.setting, key)
    return found


def judged(low: float, high: float, better: str | None) -> int | None:
    """1 or -1 for a difference whose interval excludes 0, better or worse; 0 if it does not; None if neither is better."""
    if better is None or not (math.isfinite(low) and math.isfinite(high)):
        return None
    if low <= 0 <= high:
        return 0
    return 1 if (high < 0) == (better == "lower") else -1


def relabelled(results: Results, *, sizes: bool = False) -> Results:
    """The same numbers under the labels of their contenders, which take the place of method, policy and choice."""
    named = labels(map(contender, results), sizes=sizes)
    return results.renamed(lambda one: (named.get(contender(one), one.method), "", ""))
