"""The paper's conclusions, on its own numbers and on made-up ones."""

from collections.abc import Callable
from typing import Any

import pytest

from atta._base.errors import InputError
from atta.lab.paper.published import (
    Finding,
    Numbers,
    claims_table,
    findings,
    measured_numbers,
    paper,
    published,
    published_numbers,
)
from atta.results.rows import Results, Row

NEVER_WORSE, BEST, ECE, ENTROPY, OVER_FITS, RECOVERS = (
    claim["sentence"] for claim in paper()["claims"].values()
)
METHODS = (
    "vanilla",
    "temperature",
    "isotonic",
    "histogram",
    "dirichlet",
    "adaptive-tta",
    "m-atta",
    "v-atta",
)


def found(results: Results) -> dict[tuple[str, str], Finding]:
    return by_claim(measured_numbers(results))


def by_claim(numbers: dict[tuple[str, str], Numbers]) -> dict[tuple[str, str], Finding]:
    return {(finding.claim, finding.on): finding for finding in findings(numbers)}


def made(
    table: str, number: Callable[[str, str], float], metrics: tuple[str, ...], **columns: Any
) -> Results:
    rows = (
        Row(
            experiment="e",
            dataset="d",
            method=method,
            metric=metric,
            value=number(method, metric),
            **columns,
        )
        for method in METHODS
        for metric in metrics
    )
    return Results(tuple(rows), {"experiments": {"e": {"paper": table}}})


def four(better: dict[tuple[str, str], float]) -> Results:
    return made("Table 3", lambda *cell: better.get(cell, 0.5), ("brier", "ece", "mc_brier", "nll"))


def test_on_the_papers_own_tables_its_claims_hold_but_for_one_table() -> None:
    verdicts = {key: finding.holds for key, finding in by_claim(published_numbers()).items()}
    assert {key for key, holds in verdicts.items() if not holds} == {
        (BEST, "ucmerced"),
        (ECE, "ucmerced"),
    }
    assert len(verdicts) == 3 * 5 + 3, "three claims on five tables, over-fitting on three datasets"
    why = by_claim(published_numbers())[BEST, "ucmerced"].why
    assert "mc_brier: dirichlet 0.6666" in why, "as Table 5 prints in bold"


def test_never_worse_names_who_is_worse_and_by_how_much() -> None:
    assert found(four({}))[NEVER_WORSE, "d"].holds
    finding = found(four({("m-atta", "ece"): 0.6}))[NEVER_WORSE, "d"]
    assert not finding.holds
    assert finding.why == "m-atta ece 0.6000 > 0.5000"


def test_a_baseline_may_be_worse() -> None:
    assert found(four({("histogram", "nll"): 0.9}))[NEVER_WORSE, "d"].holds


def test_best_needs_all_three_metrics() -> None:
    lead = {("v-atta", "brier"): 0.1, ("m-atta", "mc_brier"): 0.1, ("v-atta", "nll"): 0.1}
    assert found(four(lead))[BEST, "d"].holds
    assert not found(four({**lead, ("temperature", "nll"): 0.05}))[BEST, "d"].holds


def test_methods_beside_the_papers_do_not_count() -> None:
    extra = Row(experiment="e", dataset="d", method="v-atta converged", metric="brier", value=0.0)
    lead = four({("v-atta", "brier"): 0.1, ("m-atta", "mc_brier"): 0.1, ("v-atta", "nll"): 0.1})
    assert found(Results((*lead.rows, extra), lead.about))[BEST, "d"].holds


def test_policies_chosen_by_another_rule_do_not_count() -> None:
    lead = four({("v-atta", "brier"): 0.1, ("m-atta", "mc_brier"): 0.1, ("v-atta", "nll"): 0.1})
    extra = Row(
        experiment="e",
        dataset="d",
        method="v-atta",
        metric="brier",
        value=9.0,
        choice="cross-validated",
    )
    assert found(Results((*lead.rows, extra), lead.about))[BEST, "d"].holds


def test_entropy_is_best_when_highest() -> None:
    assert found(made("Figure 2", lambda m, _: float(m == "isotonic"), ("entropy",)))[
        ENTROPY, "d"
    ].holds
    assert not found(made("Figure 2", lambda m, _: float(m == "temperature"), ("entropy",)))[
        ENTROPY, "d"
    ].holds


@pytest.mark.parametrize(("late", "holds"), [(0.0, True), (0.3, False)])
def test_recovering_is_a_lag_that_shrinks(late: float, holds: bool) -> None:
    def lag(size: int, behind: float) -> tuple[Row, ...]:
        rows = made(
            "Figure 4", lambda m, _: 0.4 + behind * (m == "m-atta"), ("brier",), validation=size
        )
        return rows.rows

    about = {"experiments": {"e": {"paper": "Figure 4"}}}
    finding = found(Results((*lag(1000, 0.2), *lag(5000, late)), about))[RECOVERS, "d"]
    assert finding.holds is holds
    assert f"+0.2000 at 1000, {late:+.4f} at 5000 images" in finding.why


def test_what_was_not_run_is_not_checked() -> None:
    assert found(Results(())) == {}
    without = Results(tuple(row for row in four({}) if row.method != "vanilla"), four({}).about)
    assert (NEVER_WORSE, "d") not in found(without)


def test_the_table_has_the_papers_verdict_the_first_split_and_the_mean() -> None:
    first = four({("m-atta", "ece"): 0.6})
    second = [
        Row(**{**vars(row), "split": 1, "value": 0.4 if row.method == "m-atta" else row.value})
        for row in first
    ]
    table = claims_table(Results((*first.rows, *second), first.about))
    line = next(cells for cells in table.cells if cells[0] == NEVER_WORSE)
    assert line[2:5] == ("–", "does not hold", "holds"), (
        "d is not a dataset of the paper; the mean of 0.6 and 0.4 is no worse"
    )


def test_the_published_numbers_are_the_papers() -> None:
    assert published("in_distribution.cifar10")["v-atta"] == {
        "brier": 0.0358,
        "ece": 0.013,
        "mc_brier": 0.0793,
        "nll": 0.1705,
    }
    assert published("shift_cifar10")["vanilla"]["nll"] == 2.353
    assert published("policy_test_brier.aid")["m-atta"]["aug5"] == 0.0259
    assert (
        sum(len(numbers) for table in paper()["tables"].values() for numbers in table.values())
        == 5 * 8 * 4 + 6 * 2 * 8
    )


def test_a_table_the_paper_does_not_have_is_said() -> None:
    with pytest.raises(
        InputError,
        match=r"the paper has no table 'in_distribution'. Did you mean 'in_distribution.aid'\?",
    ):
        published("in_distribution")
