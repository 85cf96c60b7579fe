"""The numbers and conclusions of the paper (Conde et al., arXiv 2304.05104v2), next to ours.

    published("in_distribution.cifar10")["v-atta"]["brier"]  →  0.0358

A table is method → metric → number, or method → policy → Brier score where it compares policies.
For its figures (OOD entropy, the size of the validation set) the paper prints no numbers.

A conclusion (its section 6) is a claim about the experiments that reproduce certain tables or
figures. A check says whether it holds, and why. It is made on the first split alone, as the paper
measured, on the mean of all, and on the paper's own tables.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, TypeAlias

from atta._base.errors import InputError, suggest
from atta.lab.experiment import Experiment
from atta.lab.run import group_means
from atta.results.rows import Results, Row
from atta.results.table import NOTHING, Table
from atta.results.words import RULE, dataset_name

if TYPE_CHECKING:
    from atta.report.page import Tables

PublishedTable: TypeAlias = Mapping[str, Mapping[str, float]]
Found: TypeAlias = tuple[bool, str]
Place: TypeAlias = tuple[str, str]
"""A table or figure of the paper, and a dataset."""
OURS = ("m-atta", "v-atta")


# ---- numbers


def mean_difference(ours: Mapping[str, float], theirs: Mapping[str, float]) -> float:
    """The mean difference of numbers by the same names."""
    return fmean(ours[name] - theirs[name] for name in ours)


@cache
def paper() -> Mapping[str, Any]:
    """All tables and claims, and what the paper says about its networks, splits and policies."""
    text = (Path(__file__).parent / "published.json").read_text(encoding="utf-8")
    content: Mapping[str, Any] = json.loads(text)
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
    rows = results.where(experiment=experiment.name)
    numbers = Numbers.of(rows.where(split=0) if first else rows)
    theirs, ours, down = published(experiment.published), numbers.table, "method"
    if experiment.compares_policies:
        theirs, ours, down = _transposed(theirs), _transposed(numbers.by_policy), "policy"
    across, lines = list(next(iter(theirs.values()))), []
    for name, values in theirs.items():
        line = [name]
        for column, value in values.items():
            mine = ours.get(name, {}).get(column)
            both = (NOTHING, NOTHING) if mine is None else (f"{mine:.4f}", f"{mine - value:+.4f}")
            line += (f"{value:.4f}", *both)
        lines.append(tuple(line))
    head = (f"{name} {what}" for name in across for what in ("published", "ours", "difference"))
    how = "first split alone" if first else "mean of all splits"
    title = f"{experiment.title or experiment.name} ({experiment.paper}), {how}"
    return Table(title, (down, *head), tuple(lines))


def _transposed(table: PublishedTable) -> PublishedTable:
    """By policy and then by method."""
    return group_means((to, of, value) for of, line in table.items() for to, value in line.items())


def with_published(results: Results, experiment: Experiment) -> Table | None:
    """Ours with the published number in brackets; None if nothing is published."""
    whole = against(results, experiment)
    if whole is None:
        return None
    columns = range(1, len(whole.header), 3)
    header = (whole.header[0], *(whole.header[j].removesuffix(" published") for j in columns))
    cells = tuple((row[0], *(f"{row[j + 1]} ({row[j]})" for j in columns)) for row in whole.cells)
    return Table(f"{experiment.title}: ours (published)", header, cells)


# ---- conclusions


@dataclass(frozen=True)
class Finding:
    """Whether a claim holds on one dataset."""

    claim: str
    on: str
    holds: bool
    why: str


def _never_worse(numbers: Numbers) -> Found:
    worse = []
    for method in ("adaptive-tta", *OURS):
        for metric in ("brier", "ece", "mc_brier", "nll"):
            value, vanilla = numbers.table[method][metric], numbers.table["vanilla"][metric]
            if value > vanilla:
                worse.append(f"{method} {metric} {value:.4f} > {vanilla:.4f}")
    return not worse, "; ".join(worse) or "better in all four metrics"


def _best_is(metrics: tuple[str, ...], who: tuple[str, ...], numbers: Numbers) -> Found:
    columns = {metric: numbers.column(metric) for metric in metrics}
    best = {metric: min(column, key=column.__getitem__) for metric, column in columns.items()}
    found = (f"{metric}: {one} {columns[metric][one]:.4f}" for metric, one in best.items())
    return set(best.values()) <= set(who), f"best {'; '.join(found)}"


def _over_fits(fitted: Numbers, tested: Numbers) -> Found:
    m, v = (fitted.by_policy[method] for method in OURS)
    m_gap, v_gap = (mean_difference(tested.by_policy[x], fitted.by_policy[x]) for x in OURS)
    ahead = mean_difference(m, v)
    why = (
        f"Brier from fitted to test images: m-atta {m_gap:+.4f}, "
        f"v-atta {v_gap:+.4f}; on the fitted ones m-atta less v-atta is {ahead:+.4f}"
    )
    return m_gap > v_gap and ahead < 0, why


def _recovers(numbers: Numbers) -> Found:
    m, v = (numbers.by_size[method] for method in OURS)
    behind = {size: m[size] - v[size] for size in sorted(m)}
    first, *_, last = behind
    ahead = ", ".join(str(size) for size in behind if behind[size] < 0)
    why = (
        f"Brier of m-atta less v-atta: {behind[first]:+.4f} at {first}, "
        f"{behind[last]:+.4f} at {last} images; {f'ahead at {ahead}' if ahead else 'never ahead'}"
    )
    return behind[last] < behind[first], why


def _highest_entropy(numbers: Numbers) -> Found:
    ranked = sorted(numbers.column("entropy").items(), key=lambda item: -item[1])
    why = "; ".join(f"{method} {value:.4f}" for method, value in ranked[:3])
    return ranked[0][0] == "isotonic", why


CHECKS: dict[str, Callable[..., Found]] = {
    "never_worse": _never_worse,
    "best_proper": partial(_best_is, ("brier", "mc_brier", "nll"), OURS),
    "best_ece": partial(_best_is, ("ece",), ("isotonic", "histogram")),
    "highest_entropy": _highest_entropy,
    "over_fits": _over_fits,
    "recovers": _recovers,
}
"""By the name of a claim in published.json: its check, of the numbers of one group of tables."""


def published_numbers() -> dict[Place, Numbers]:
    """The published tables, so that the same code checks our results and the paper's.

    A table is by metric or by policy; no claim looks for one in the other.
    """
    tables = paper()["tables"]
    return {
        (where["paper"], where["dataset"]): Numbers(tables[name], tables[name], {})
        for name, where in paper()["places"].items()
    }


def measured_numbers(results: Results) -> dict[Place, Numbers]:
    """The numbers of our experiments, by the table or figure and the dataset."""
    rows = defaultdict[Place, list[Row]](list)
    where = {name: of.get("paper", "") for name, of in results.known("experiments").items()}
    for row in results:
        if row.experiment in where:
            rows[where[row.experiment], row.dataset].append(row)
    return {key: Numbers.of(found) for key, found in rows.items()}


def findings(numbers: Mapping[Place, Numbers]) -> Iterator[Finding]:
    """Check every claim on every dataset for which there are its tables."""
    for name, claim in paper()["claims"].items():
        for tables in claim["tables"]:
            for dataset in (dataset for table, dataset in numbers if table == tables[0]):
                try:
                    holds, why = CHECKS[name](*(numbers[table, dataset] for table in tables))
                except KeyError:  # a table, method or metric of the claim is not in the results
                    continue
                yield Finding(claim["sentence"], dataset, holds, why)


HEADER = ("claim of the paper", "on", "its numbers", "our first split", "our mean", "why (mean)")


def _columns(results: Results) -> list[list[Finding]]:
    """The findings by the paper's own numbers, by our first split alone, and by our mean."""
    ours = (measured_numbers(one) for one in (results.where(split=0), results))
    return [list(findings(numbers)) for numbers in (published_numbers(), *ours)]


def claims_table(results: Results) -> Table:
    """One line per claim and dataset: the paper's numbers, our first split, our mean, and why."""
    columns, cells = _columns(results), []
    holds = [{(one.claim, one.on): one.holds for one in column} for column in columns]
    words = {True: "holds", False: "does not hold", None: NOTHING}
    for found in columns[-1]:
        verdicts = (words[column.get((found.claim, found.on))] for column in holds)
        cells.append((found.claim, dataset_name(found.on), *verdicts, found.why))
    return Table("The paper's conclusions", HEADER, tuple(cells))


def claims_summary(results: Results) -> Table:
    """One line per claim: on how many datasets it holds, by the same three."""
    columns, cells = _columns(results), []
    for sentence in (*(claim["sentence"] for claim in paper()["claims"].values()), "all of them"):
        line = [sentence]
        for column in columns:
            holds = [f.holds for f in column if sentence in (f.claim, "all of them")]
            line.append(f"{sum(holds)} of {len(holds)}" if holds else NOTHING)
        cells.append(tuple(line))
    return Table("How many hold", (HEADER[0], *HEADER[2:5]), tuple(cells))


def paper_tables(results: Results) -> Tables:
    """The paper's tables in a report; none if the results are not of the paper's experiments."""
    from atta.report.page import Tables  # here: it needs the libraries of reports

    claims, tables = claims_table(results), []
    for content in results.known("experiments").values():
        if content.get("published"):
            with suppress(InputError):  # an experiment, or a table, of another version
                tables.append(against(results, Experiment.of(content)))
    return Tables(claims if claims.cells else None, tuple(filter(None, tables)))
