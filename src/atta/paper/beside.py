"""What a report shows of the paper beside results: its claims, checked on them, and its numbers."""

from __future__ import annotations

from collections.abc import Iterator

from atta.errors import InputError
from atta.experiments.experiment import Experiment
from atta.paper.claims import claims_table
from atta.paper.page import against
from atta.report.page import Tables
from atta.results.rows import Results
from atta.results.table import Table
from atta.results.words import dataset_name


def paper_tables(results: Results) -> Tables:
    """The tables of a report that are the paper's; none where the results are of no experiment of the paper."""
    experiments = {name: {"paper": "", **known} for name, known in results.known("experiments").items()}
    claims = claims_table(Results(results.rows, {"experiments": experiments}), names=dataset_name)
    return Tables(claims if claims.cells else None, tuple(_published(results)))


def _published(results: Results) -> Iterator[Table]:
    """Ours beside the paper's, for each experiment of the paper that is there and whose numbers it prints."""
    for name, content in results.known("experiments").items():
        if not content.get("published"):
            continue
        try:
            table = against(results, Experiment.of(content, name))
        except InputError:  # an experiment, or a table, of another version
            continue
        if table is not None:
            yield table
