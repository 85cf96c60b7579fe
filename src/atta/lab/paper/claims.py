"""What the paper concludes (its section 6), checked claim by claim on any results: ours, or the paper's own tables.

A claim looks at the experiments that reproduce certain tables or figures and says of each whether it holds, and why. It is
checked on the first split alone, which is how the paper measured, and on the mean of all splits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import TypeAlias, TypeVar

from atta.lab.paper.published import paper
from atta.results.rows import Results, Row
from atta.results.table import Table
from atta.results.words import RULE

BASELINES = ("vanilla", "temperature", "isotonic", "histogram", "dirichlet", "adaptive-tta")
OURS = ("m-atta", "v-atta")
PROPER = ("brier", "mc_brier", "nll")
FOUR = ("brier", "ece", "mc_brier", "nll")
Found: TypeAlias = tuple[bool, str]
Key = TypeVar("Key")


@dataclass(frozen=True)
class Numbers:
    """Means of one experiment over the splits looked at: by method and metric, policy, or size of the validation set."""

    table: Mapping[tuple[str, str], float]
    by_policy: Mapping[tuple[str, str], float]
    by_size: Mapping[tuple[str, int], float]

    @classmethod
    def of(cls, rows: list[Row]) -> Numbers:
        """Average the rows of one experiment."""
        table, by_policy = (defaultdict[tuple[str, str], list[float]](list) for _ in range(2))
        by_size = defaultdict[tuple[str, int], list[float]](list)
        for row in rows:
            if row.choice in ("", RULE):
                table[row.method, row.metric].append(row.value)
                if row.metric == "brier":
                    by_policy[row.method, row.policy].append(row.value)
                    by_size[row.method, row.validation].append(row.value)
        return cls(_means(table), _means(by_policy), _means(by_size))

    def column(self, metric: str) -> dict[str, float]:
        """One metric of each of the paper's methods that is there."""
        return {m: self.table[m, metric] for m in (*BASELINES, *OURS) if (m, metric) in self.table}


def _means(groups: Mapping[Key, list[float]]) -> dict[Key, float]:
    return {key: fmean(values) for key, values in groups.items()}


Group: TypeAlias = Mapping[str, Numbers]
"""The experiments a claim looks at together: by the table or figure they reproduce."""


@dataclass(frozen=True)
class Claim:
    """One sentence of the paper, the tables it is about, and how to tell."""

    sentence: str
    tables: tuple[tuple[str, ...], ...]
    """Each a group looked at together; the claim is checked on every group that is there."""
    check: Callable[[Group], Found]


@dataclass(frozen=True)
class Finding:
    """Whether a claim holds on one dataset."""

    claim: str
    on: str
    holds: bool
    why: str


def _never_worse(group: Group) -> Found:
    (numbers,) = group.values()
    worse = []
    for method in ("adaptive-tta", *OURS):
        for metric in FOUR:
            value, vanilla = numbers.table[method, metric], numbers.table["vanilla", metric]
            if value > vanilla:
                worse.append(f"{method} {metric} {value:.4f} > {vanilla:.4f}")
    return not worse, "; ".join(worse) or "better in all four metrics"


def _best_is(metrics: tuple[str, ...], who: tuple[str, ...]) -> Callable[[Group], Found]:
    def check(group: Group) -> Found:
        (numbers,) = group.values()
        best = {
            metric: min(numbers.column(metric).items(), key=lambda item: item[1])
            for metric in metrics
        }
        found = "; ".join(
            f"{metric}: {method} {value:.4f}" for metric, (method, value) in best.items()
        )
        return all(method in who for method, _ in best.values()), f"best {found}"

    return check


def _over_fits(group: Group) -> Found:
    fitted, tested = group.values()
    policies = {policy for _, policy in fitted.by_policy}
    gap = {
        method: fmean(tested.by_policy[method, p] - fitted.by_policy[method, p] for p in policies)
        for method in OURS
    }
    ahead = fmean(fitted.by_policy["m-atta", p] - fitted.by_policy["v-atta", p] for p in policies)
    why = (
        f"Brier from fitted to test images: m-atta {gap['m-atta']:+.4f}, v-atta {gap['v-atta']:+.4f}; "
        f"on the fitted ones m-atta less v-atta is {ahead:+.4f}"
    )
    return gap["m-atta"] > gap["v-atta"] and ahead < 0, why


def _recovers(group: Group) -> Found:
    (numbers,) = group.values()
    sizes = sorted({size for _, size in numbers.by_size})
    behind = {
        size: numbers.by_size["m-atta", size] - numbers.by_size["v-atta", size] for size in sizes
    }
    ahead = [str(size) for size in sizes if behind[size] < 0]
    first, last = sizes[0], sizes[-1]
    overtakes = f"ahead at {', '.join(ahead)}" if ahead else "never ahead"
    why = f"Brier of m-atta less v-atta: {behind[first]:+.4f} at {first}, {behind[last]:+.4f} at {last} images; {overtakes}"
    return behind[last] < behind[first], why


def _highest_entropy(group: Group) -> Found:
    (numbers,) = group.values()
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
    """Check every claim on every dataset that the results have the tables for; what is not there is not checked."""
    rows = defaultdict[tuple[str, str], list[Row]](list)
    where = {name: about["paper"] for name, about in results.about.get("experiments", {}).items()}
    for row in results:
        if row.experiment in where:
            rows[where[row.experiment], row.dataset].append(row)
    numbers = {key: Numbers.of(found) for key, found in rows.items()}
    for claim in CLAIMS:
        for tables in claim.tables:
            for dataset in dict.fromkeys(
                dataset for table, dataset in numbers if table == tables[0]
            ):
                group = {
                    table: numbers[table, dataset]
                    for table in tables
                    if (table, dataset) in numbers
                }
                if len(group) == len(tables):
                    try:
                        holds, why = claim.check(group)
                    except KeyError:  # a method or a metric that the claim is about was not run
                        continue
                    yield Finding(claim.sentence, dataset, holds, why)


def claims_table(results: Results, *, names: Callable[[str], str] = str) -> Table:
    """One line a claim and dataset: the paper's own numbers, our first split, the mean of ours, and why."""
    first = {(f.claim, f.on): f for f in findings(results.where(split=0))}
    own = {(f.claim, f.on): f for f in findings(as_results())}
    cells = []
    for found in findings(results):
        told = own.get((found.claim, found.on)), first.get((found.claim, found.on)), found
        verdicts = (
            "–" if one is None else "holds" if one.holds else "does not hold" for one in told
        )
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
    """One line a claim: on how many of the datasets it holds, by the paper's own numbers, our first split, and our mean."""
    columns = [list(findings(one)) for one in (as_results(), results.where(split=0), results)]
    cells = [
        (
            claim.sentence,
            *(_held([f.holds for f in column if f.claim == claim.sentence]) for column in columns),
        )
        for claim in CLAIMS
    ]
    cells.append(("all of them", *(_held([f.holds for f in column]) for column in columns)))
    return Table(
        "How many hold",
        ("claim of the paper", "its numbers", "our first split", "our mean"),
        tuple(cells),
    )


def _held(holds: list[bool]) -> str:
    return f"{sum(holds)} of {len(holds)}" if holds else "–"


def as_results() -> Results:
    """The published tables as rows, so that whatever reads our results can read the paper's."""
    rows, about = [], {}
    for place, (table, dataset) in _PLACES.items():
        about[place] = {"paper": table}
        for method, numbers in paper()["tables"][place].items():
            for name, value in numbers.items():
                what = (
                    {"policy": name, "metric": "brier"}
                    if place.startswith("policy")
                    else {"metric": name}
                )
                rows.append(
                    Row(experiment=place, dataset=dataset, method=method, value=value, **what)
                )
    return Results(tuple(rows), {"source": paper()["source"], "experiments": about})


_PLACES = {
    **{
        f"policy_validation_brier.{name}": ("Table 2", name)
        for name in ("cifar10", "cifar100", "aid")
    },
    **{
        f"policy_test_brier.{name}": ("Supplement, Table 1", name)
        for name in ("cifar10", "cifar100", "aid")
    },
    **{f"in_distribution.{name}": ("Table 3", name) for name in ("cifar10", "cifar100", "aid")},
    "shift_cifar10": ("Table 4", "cifar10*"),
    "shift_aid_to_ucmerced": ("Table 5", "ucmerced"),
}
