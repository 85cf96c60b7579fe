"""Checks the conclusions of the paper (its section 6) on any results: ours, or its own tables.

A claim looks at the experiments that reproduce certain tables or figures and says whether it holds,
and why. It is checked on the first split alone, as the paper measured, and on the mean of all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from atta._base.errors import InputError
from atta.lab.experiment import Experiment
from atta.lab.paper.published import PublishedTable, against, paper
from atta.results.rows import Results, Row
from atta.results.table import Table
from atta.results.words import RULE, dataset_name

if TYPE_CHECKING:
    from atta.report.page import Tables

OURS = ("m-atta", "v-atta")
METHODS = (
    *("vanilla", "temperature", "isotonic", "histogram", "dirichlet", "adaptive-tta"),
    *OURS,
)
Found: TypeAlias = tuple[bool, str]
Key = TypeVar("Key")


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
            _means((row.method, row.metric, row.value) for row in rows),
            _means((row.method, row.policy, row.value) for row in brier),
            _means((row.method, row.validation, row.value) for row in brier),
        )

    def column(self, metric: str) -> dict[str, float]:
        """One metric of each of the paper's methods that is there."""
        rows = {method: self.table.get(method, {}) for method in METHODS}
        return {method: row[metric] for method, row in rows.items() if metric in row}


def _means(values: Iterable[tuple[str, Key, float]]) -> dict[str, dict[Key, float]]:
    groups: dict[str, dict[Key, list[float]]] = {}
    for method, column, value in values:
        groups.setdefault(method, {}).setdefault(column, []).append(value)
    return {method: {c: fmean(v) for c, v in row.items()} for method, row in groups.items()}


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, the tables it is about, and its check."""

    sentence: str
    tables: tuple[tuple[str, ...], ...]
    """Groups of tables; the claim is checked on every group that is there."""
    check: Callable[..., Found]
    """Of the numbers of a group, one argument per table."""


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
    m_gap, v_gap = (
        fmean(tested.by_policy[method][p] - fitted.by_policy[method][p] for p in m)
        for method in OURS
    )
    ahead = fmean(m[p] - v[p] for p in m)
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


EVERY_TABLE = (("Table 3",), ("Table 4",), ("Table 5",))
CLAIMS = (
    Claim(
        "M-ATTA, V-ATTA and Adaptive-TTA are never worse than vanilla", EVERY_TABLE, _never_worse
    ),
    Claim(
        "M-ATTA or V-ATTA is best in Brier, mc-Brier and NLL",
        EVERY_TABLE,
        partial(_best_is, ("brier", "mc_brier", "nll"), OURS),
    ),
    Claim(
        "isotonic regression or histogram binning is best in ECE",
        EVERY_TABLE,
        partial(_best_is, ("ece",), ("isotonic", "histogram")),
    ),
    Claim(
        "isotonic regression has the highest OOD entropy",
        (("Figure 2",), ("Figure 3",)),
        _highest_entropy,
    ),
    Claim(
        "M-ATTA over-fits its validation images", (("Table 2", "Supplement, Table 1"),), _over_fits
    ),
    Claim("M-ATTA recovers with more validation images", (("Figure 4",),), _recovers),
)


def findings(results: Results) -> Iterator[Finding]:
    """Check every claim on every dataset for which the results have its tables."""
    rows = defaultdict[tuple[str, str], list[Row]](list)
    where = {name: about["paper"] for name, about in results.about.get("experiments", {}).items()}
    for row in results:
        if row.experiment in where:
            rows[where[row.experiment], row.dataset].append(row)
    numbers = {key: Numbers.of(found) for key, found in rows.items()}
    for claim in CLAIMS:
        for tables in claim.tables:
            for dataset in (dataset for table, dataset in numbers if table == tables[0]):
                try:
                    holds, why = claim.check(*(numbers[table, dataset] for table in tables))
                except KeyError:  # a table, method or metric of the claim is not in the results
                    continue
                yield Finding(claim.sentence, dataset, holds, why)


HEADER = ("claim of the paper", "on", "its numbers", "our first split", "our mean", "why (mean)")


def _columns(results: Results) -> list[list[Finding]]:
    """The findings by the paper's own numbers, by our first split alone, and by our mean."""
    return [list(findings(one)) for one in (as_results(), results.where(split=0), results)]


def claims_table(results: Results, *, names: Callable[[str], str] = str) -> Table:
    """One line per claim and dataset: the paper's numbers, our first split, our mean, and why."""
    columns, cells = _columns(results), []
    holds = [{(one.claim, one.on): one.holds for one in column} for column in columns]
    words = {True: "holds", False: "does not hold", None: "–"}
    for found in columns[-1]:
        verdicts = (words[column.get((found.claim, found.on))] for column in holds)
        cells.append((found.claim, names(found.on), *verdicts, found.why))
    return Table("The paper's conclusions", HEADER, tuple(cells))


def claims_summary(results: Results) -> Table:
    """One line per claim: on how many datasets it holds, by the same three."""
    columns, cells = _columns(results), []
    for sentence in (*(claim.sentence for claim in CLAIMS), "all of them"):
        line = [sentence]
        for column in columns:
            holds = [f.holds for f in column if sentence in (f.claim, "all of them")]
            line.append(f"{sum(holds)} of {len(holds)}" if holds else "–")
        cells.append(tuple(line))
    return Table("How many hold", (HEADER[0], *HEADER[2:5]), tuple(cells))


def as_results() -> Results:
    """The published tables as rows, so that the same code checks our results and the paper's."""
    rows, places = [], paper()["places"]
    for place, table in paper()["tables"].items():
        policies = place.startswith("policy")
        rows += [
            Row(
                experiment=place,
                dataset=places[place]["dataset"],
                method=method,
                policy=name if policies else "",
                metric="brier" if policies else name,
                value=value,
            )
            for method, numbers in table.items()
            for name, value in numbers.items()
        ]
    return Results(tuple(rows), {"source": paper()["source"], "experiments": places})


def paper_tables(results: Results) -> Tables:
    """The paper's tables in a report; none if the results are not of the paper's experiments."""
    from atta.report.page import Tables  # here: it needs the libraries of reports

    known = results.known("experiments")
    experiments = {name: {"paper": "", **content} for name, content in known.items()}
    claims = claims_table(Results(results.rows, {"experiments": experiments}), names=dataset_name)
    tables = []
    for name, content in known.items():
        if content.get("published"):
            with suppress(InputError):  # an experiment, or a table, of another version
                tables.append(against(results, Experiment.of(content, name)))
    return Tables(claims if claims.cells else None, tuple(filter(None, tables)))
