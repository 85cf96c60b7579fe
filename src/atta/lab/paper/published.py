"""The numbers that the paper published (Conde et al., arXiv 2304.05104v2), and ours next to them.

    published("in_distribution.cifar10")["v-atta"]["brier"]  →  0.0358

A table is method → metric → number, or method → policy → Brier score where it compares policies.
For its figures (OOD entropy, the size of the validation set) the paper prints no numbers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from atta._base.errors import InputError, suggest
from atta.lab.experiment import Experiment
from atta.lab.run import group_means
from atta.results.rows import Results, Row
from atta.results.table import Table
from atta.results.words import RULE

PublishedTable: TypeAlias = Mapping[str, Mapping[str, float]]
FILE = Path(__file__).parent / "published.json"


@cache
def paper() -> Mapping[str, Any]:
    """All tables and claims, and what the paper says about its networks, splits and policies."""
    content: Mapping[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return content


def published(place: str) -> PublishedTable:
    """A table by its place, such as "in_distribution.cifar10" or "shift_cifar10"."""
    tables: Mapping[str, PublishedTable] = paper()["tables"]
    if place not in tables:
        raise InputError(
            f"the paper has no table {place!r}.{suggest(place, tables)} It has: {', '.join(tables)}"
        )
    return tables[place]


@dataclass(frozen=True)
class Numbers:
    """Means over the splits, by method and then by metric; Brier scores by policy and size."""

    table: PublishedTable
    by_policy: PublishedTable
    by_size: Mapping[str, Mapping[int, float]]

    @classmethod
    def of(cls, rows: Iterable[Row]) -> Numbers:
        """Average the rows of one experiment."""
        rows = [row for row in rows if row.choice in ("", RULE)]
        brier = [row for row in rows if row.metric == "brier"]
        return cls(
            group_means((row.method, row.metric, row.value) for row in rows),
            group_means((row.method, row.policy, row.value) for row in brier),
            group_means((row.method, row.validation, row.value) for row in brier),
        )

    def column(self, metric: str) -> dict[str, float]:
        """One metric of each of the paper's methods that is there."""
        methods = published("in_distribution.cifar10")
        rows = {method: self.table.get(method, {}) for method in methods}
        return {method: row[metric] for method, row in rows.items() if metric in row}


def against(results: Results, experiment: Experiment, *, first: bool = False) -> Table | None:
    """Published, ours and the difference, by method and metric; None if nothing is published.

    Ours is the mean over the splits, or with `first` the first split alone. The policy is chosen by
    the paper's rule.
    """
    if not experiment.published:
        return None
    theirs, policies = published(experiment.published), experiment.compares_policies
    rows = results.where(experiment=experiment.name)
    numbers = Numbers.of(rows.where(split=0) if first else rows)
    ours = numbers.by_policy if policies else numbers.table
    methods, columns = list(theirs), list(next(iter(theirs.values())))
    down, across = (columns, methods) if policies else (methods, columns)
    lines = []
    for one in down:
        line = [one]
        for other in across:
            method, column = (other, one) if policies else (one, other)
            line += _three(theirs[method][column], ours.get(method, {}).get(column))
        lines.append(tuple(line))
    head = (f"{name} {what}" for name in across for what in ("published", "ours", "difference"))
    how = "first split alone" if first else "mean of all splits"
    title = f"{experiment.title or experiment.name} ({experiment.paper}), {how}"
    return Table(title, ("policy" if policies else "method", *head), tuple(lines))


def with_published(results: Results, experiment: Experiment) -> Table | None:
    """Ours with the published number in brackets; None if nothing is published."""
    whole = against(results, experiment)
    if whole is None:
        return None
    columns = range(1, len(whole.header), 3)
    header = (whole.header[0], *(whole.header[j].removesuffix(" published") for j in columns))
    cells = tuple((row[0], *(f"{row[j + 1]} ({row[j]})" for j in columns)) for row in whole.cells)
    return Table(f"{experiment.title}: ours (published)", header, cells)


def _three(theirs: float, ours: float | None) -> tuple[str, str, str]:
    if ours is None:
        return f"{theirs:.4f}", "–", "–"
    return f"{theirs:.4f}", f"{ours:.4f}", f"{ours - theirs:+.4f}"
