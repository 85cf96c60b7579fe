"""How sure the numbers of an experiment are: the intervals of every mean and of every difference between contenders.

A resample counts the images of a record once for all splits and methods. So its mean over splits is the mean of what it makes
of each, and it is paired in whatever two contenders were tested on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from atta.metrics.resampling import intervals
from atta.results.contenders import Contender, contender
from atta.results.rows import Interval, Row

JUDGED = ("accuracy", "brier", "ece", "smooth_ece", "mc_brier", "nll", "entropy", "shannon_entropy")
"""The metrics that tables and verdicts judge by: results have their intervals. `atta.bootstrap` gives those of all."""


@dataclass
class Intervals:
    """Collects what resamples make of every contender, and turns it into intervals."""

    _points: dict[Contender, list[Mapping[str, float]]] = field(default_factory=dict)
    _values: dict[Contender, list[Mapping[str, Tensor]]] = field(default_factory=dict)

    def add(self, row: Row, points: Mapping[str, float], values: Mapping[str, Tensor]) -> None:
        """Take in one split and seed of the contender that this is a row of."""
        key = contender(row)
        self._points.setdefault(key, []).append({name: points[name] for name in values})
        self._values.setdefault(key, []).append(values)

    def found(self) -> Iterator[Interval]:
        """Those of each contender, and of its difference to each one before it that was fitted on as many images."""
        done: list[tuple[Contender, dict[str, float], dict[str, Tensor]]] = []
        for key, parts in self._points.items():
            points = {name: sum(part[name] for part in parts) / len(parts) for name in parts[0]}
            values = {
                name: torch.stack([part[name] for part in self._values[key]]).mean(0)
                for name in points
            }
            what: dict[str, Any] = key._asdict()
            for metric, (low, high) in intervals(points, values):
                yield Interval(**what, metric=metric, low=max(low, 0.0), high=high)
            for other, theirs, drawn in done:
                if other.validation != key.validation:
                    continue
                what |= {
                    "against": other.method,
                    "against_policy": other.policy,
                    "against_choice": other.choice,
                }
                less = {name: points[name] - theirs[name] for name in points}
                for metric, (low, high) in intervals(
                    less, {name: values[name] - drawn[name] for name in points}
                ):
                    yield Interval(**what, metric=metric, low=low, high=high)
            done.append((key, points, values))
