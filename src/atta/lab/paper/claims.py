"""Checks the conclusions of the paper (its section 6) on any results: ours, or its own tables.

A claim looks at the experiments that reproduce certain tables or figures and says whether it holds,
and why. It is checked on the first split alone, as the paper measured, and on the mean of all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, TypeAlias

from atta._base.errors import InputError
from atta.lab.experiment import Experiment
from atta.lab.paper.published import Numbers, against, paper
from atta.results.rows import Results, Row
from atta.results.table import Table
from atta.results.words import dataset_name

if TYPE_CHECKING:
    from atta.report.page import Tables

OURS = ("m-atta", "v-atta")
Found: TypeAlias = tuple[bool, str]
Place: TypeAlias = tuple[str, str]
"""A table or figure of the paper, and a dataset."""


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
    for sentence in (*(claim["sentence"] for claim in paper()["claims"].values()), "all of them"):
        line = [sentence]
        for column in columns:
            holds = [f.holds for f in column if sentence in (f.claim, "all of them")]
            line.append(f"{sum(holds)} of {len(holds)}" if holds else "–")
        cells.append(tuple(line))
    return Table("How many hold", (HEADER[0], *HEADER[2:5]), tuple(cells))


def paper_tables(results: Results) -> Tables:
    """The paper's tables in a report; none if the results are not of the paper's experiments."""
    from atta.report.page import Tables  # here: it needs the libraries of reports

    claims = claims_table(results, names=dataset_name)
    tables = []
    for name, content in results.known("experiments").items():
        if content.get("published"):
            with suppress(InputError):  # an experiment, or a table, of another version
                tables.append(against(results, Experiment.of(content, name)))
    return Tables(claims if claims.cells else None, tuple(filter(None, tables)))
