"""Checks the conclusions of the paper (its section 6) on any results: ours, or its own tables.

A claim looks at the experiments that reproduce certain tables or figures and says whether it holds,
and why. It is checked on the first split alone, as the paper measured, and on the mean of all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from atta._base.errors import InputError
from atta.lab.experiment import Experiment
from atta.lab.paper.published import against, paper
from atta.results.rows import Results, Row
from atta.results.table import Table
from atta.results.words import RULE, dataset_name

if TYPE_CHECKING:
    from atta.report.page import Tables

BASELINES = ("vanilla", "temperature", "isotonic", "histogram", "dirichlet", "adaptive-tta")
OURS = ("m-atta", "v-atta")
PROPER = ("brier", "mc_brier", "nll")
FOUR = ("brier", "ece", "mc_brier", "nll")
Found: TypeAlias = tuple[bool, str]
Key = TypeVar("Key")


@dataclass(frozen=True)
class Numbers:
    """Means of one experiment over the splits: by metric, policy, or validation size."""

    table: Mapping[tuple[str, str], float]
    by_policy: Mapping[tuple[str, str], float]
    by_size: Mapping[tuple[str, int], float]

    @classmethod
    def of(cls, rows: list[Row]) -> Numbers:
        """Average the rows of one experiment."""
        rows = [row for row in rows if row.choice in ("", RULE)]
        brier = [row for row in rows if row.metric == "brier"]
        return cls(
            _means(((row.method, row.metric), row.value) for row in rows),
            _means(((row.method, row.policy), row.value) for row in brier),
            _means(((row.method, row.validation), row.value) for row in brier),
        )

    def column(self, metric: str) -> dict[str, float]:
        """One metric of each of the paper's methods that is there."""
        return {m: self.table[m, metric] for m in (*BASELINES, *OURS) if (m, metric) in self.table}


def _means(values: Iterable[tuple[Key, float]]) -> dict[Key, float]:
    groups = defaultdict[Key, list[float]](list)
    for key, value in values:
        groups[key].append(value)
    return {key: fmean(found) for key, found in groups.items()}


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
        for metric in FOUR:
            value, vanilla = numbers.table[method, metric], numbers.table["vanilla", metric]
            if value > vanilla:
                worse.append(f"{method} {metric} {value:.4f} > {vanilla:.4f}")
    return not worse, "; ".join(worse) or "better in all four metrics"


def _best_is(metrics: tuple[str, ...], who: tuple[str, ...]) -> Callable[[Numbers], Found]:
    def check(numbers: Numbers) -> Found:
        best = {
            metric: min(numbers.column(metric).items(), key=lambda item: item[1])
            for metric in metrics
        }
        found = "; ".join(
            f"{metric}: {method} {value:.4f}" for metric, (method, value) in best.items()
        )
        return all(method in who for method, _ in best.values()), f"best {found}"

    return check


def _over_fits(fitted: Numbers, tested: Numbers) -> Found:
    policies = {policy for _, policy in fitted.by_policy}
    gap = {
        method: fmean(tested.by_policy[method, p] - fitted.by_policy[method, p] for p in policies)
        for method in OURS
    }
    ahead = fmean(fitted.by_policy["m-atta", p] - fitted.by_policy["v-atta", p] for p in policies)
    why = (
        f"Brier from fitted to test images: m-atta {gap['m-atta']:+.4f}, "
        f"v-atta {gap['v-atta']:+.4f}; on the fitted ones m-atta less v-atta is {ahead:+.4f}"
    )
    return gap["m-atta"] > gap["v-atta"] and ahead < 0, why


def _recovers(numbers: Numbers) -> Found:
    sizes = sorted({size for _, size in numbers.by_size})
    behind = {
        size: numbers.by_size["m-atta", size] - numbers.by_size["v-atta", size] for size in sizes
    }
    ahead = [str(size) for size in sizes if behind[size] < 0]
    first, last = sizes[0], sizes[-1]
    overtakes = f"ahead at {', '.join(ahead)}" if ahead else "never ahead"
    why = (
        f"Brier of m-atta less v-atta: {behind[first]:+.4f} at {first}, "
        f"{behind[last]:+.4f} at {last} images; {overtakes}"
    )
    return behind[last] < behind[first], why


def _highest_entropy(numbers: Numbers) -> Found:
    ranked = sorted(numbers.column("entropy").items(), key=lambda item: -item[1])
    return ranked[0][0] == "isotonic", "; ".join(
        f"{method} {value:.4f}" for method, value in ranked[:3]
    )


EVERY_TABLE = (("Table 3",), ("Table 4",), ("Table 5",))
CLAIMS = (
    Claim(
        "M-ATTA, V-ATTA and Adaptive-TTA are never worse than vanilla", EVERY_TABLE, _never_worse
    ),
    Claim(
        "M-ATTA or V-ATTA is best in Brier, mc-Brier and NLL", EVERY_TABLE, _best_is(PROPER, OURS)
    ),
    Claim(
        "isotonic regression or histogram binning is best in ECE",
        EVERY_TABLE,
        _best_is(("ece",), ("isotonic", "histogram")),
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


def claims_table(results: Results, *, names: Callable[[str], str] = str) -> Table:
    """One line per claim and dataset: the paper's numbers, our first split, our mean, and why."""
    columns = [
        {(one.claim, one.on): "holds" if one.holds else "does not hold" for one in findings(of)}
        for of in (as_results(), results.where(split=0), results)
    ]
    cells = []
    for found in findings(results):
        verdicts = (column.get((found.claim, found.on), "–") for column in columns)
        cells.append((found.claim, names(found.on), *verdicts, found.why))
    header = (
        "claim of the paper",
        "on",
        "its numbers",
        "our first split",
        "our mean",
        "why (mean)",
    )
    return Table("The paper's conclusions", header, tuple(cells))


def claims_summary(results: Results) -> Table:
    """One line per claim: on how many datasets it holds, by the same three."""
    columns = [list(findings(one)) for one in (as_results(), results.where(split=0), results)]
    cells = []
    for sentence in (*(claim.sentence for claim in CLAIMS), "all of them"):
        line = [sentence]
        for column in columns:
            holds = [f.holds for f in column if sentence in (f.claim, "all of them")]
            line.append(f"{sum(holds)} of {len(holds)}" if holds else "–")
        cells.append(tuple(line))
    header = ("claim of the paper", "its numbers", "our first split", "our mean")
    return Table("How many hold", header, tuple(cells))


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
