"""A report shows the paper's claims and numbers if the results are of its experiments."""

from atta.lab.paper.published import paper_tables
from atta.results.rows import Results, Row

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
ROWS = tuple(
    Row(
        experiment="e",
        dataset="cifar10",
        method=method,
        split=split,
        metric=metric,
        value=0.5 + 0.1 * split,
    )
    for method in METHODS
    for split in range(2)
    for metric in ("brier", "ece", "mc_brier", "nll")
)
EXPERIMENT = {
    **{
        "name": "e",
        "dataset": "cifar10",
        "fit": "r",
        "methods": {"vanilla": {}},
        "title": "In distribution",
    },
    **{"paper": "Table 3", "published": "in_distribution.cifar10"},
}


def test_the_papers_experiments_bring_its_claims_and_published_numbers() -> None:
    tables = paper_tables(Results(ROWS, {"experiments": {"e": EXPERIMENT}}))
    assert tables.claims is not None
    assert "never worse than vanilla" in tables.claims.text()
    (table,) = tables.published
    assert table.title == "In distribution (Table 3), mean of all splits"
    assert "0.0358" in table.text(), "v-atta's Brier score in the paper's Table 3"
    assert "+0.5142" in table.text(), "0.55 less that"


def test_results_of_other_experiments_and_of_other_versions_bring_nothing() -> None:
    for known in (
        {},
        {"e": {**EXPERIMENT, "paper": "", "published": ""}},
        {"e": {**EXPERIMENT, "published": "no.such"}},
    ):
        assert not paper_tables(Results(ROWS, {"experiments": known})).published
    assert paper_tables(Results(ROWS)).claims is None
