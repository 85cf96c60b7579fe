"""Ours beside the paper's: published | ours | difference, and the paper's part of a report on any results."""

from __future__ import annotations

from collections.abc import Iterator

from atta._base.errors import InputError
from atta.lab.experiment import Experiment
from atta.lab.paper.claims import claims_table
from atta.lab.paper.published import published
from atta.lab.tables import by_policy
from atta.report.page import Tables
from atta.results.rows import Results
from atta.results.table import Table
from atta.results.words import RULE, dataset_name


def against(results: Results, experiment: Experiment, *, first: bool = False) -> Table | None:
    """Published, ours and the difference, for each method and metric; None if the paper prints no numbers.

    Ours is the mean over the splits, with the policy chosen by the paper's rule; with `first`, the first split alone.
    """
    if not experiment.published:
        return None
    theirs = published(experiment.published)
    rows = [
        r
        for r in results
        if r.experiment == experiment.name
        and r.choice in ("", RULE)
        and (r.split == 0 or not first)
    ]
    policies = by_policy(experiment)
    ours: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        ours.setdefault((row.method, row.policy if policies else row.metric), []).append(row.value)
    methods, columns = list(theirs), list(next(iter(theirs.values())))
    down, across = (columns, methods) if policies else (methods, columns)
    three = {(m, c): _three(theirs[m][c], ours.get((m, c))) for m in methods for c in columns}
    lines = (
        (
            one,
            *(
                cell
                for other in across
                for cell in three[(other, one) if policies else (one, other)]
            ),
        )
        for one in down
    )
    head = (f"{name} {what}" for name in across for what in ("published", "ours", "difference"))
    how = "first split alone" if first else "mean of all splits"
    title = f"{experiment.title or experiment.name} ({experiment.paper}), {how}"
    return Table(title, ("policy" if policies else "method", *head), tuple(lines))


def beside(results: Results, experiment: Experiment) -> Table | None:
    """Ours with the published number in brackets, at a glance; None if the paper prints none."""
    whole = against(results, experiment)
    if whole is None:
        return None
    columns = range(1, len(whole.header), 3)
    header = (whole.header[0], *(whole.header[j].removesuffix(" published") for j in columns))
    cells = tuple((row[0], *(f"{row[j + 1]} ({row[j]})" for j in columns)) for row in whole.cells)
    return Table(f"{experiment.title}: ours (published)", header, cells)


def _three(theirs: float, ours: list[float] | None) -> tuple[str, str, str]:
    if not ours:
        return f"{theirs:.4f}", "–", "–"
    mean = sum(ours) / len(ours)
    return f"{theirs:.4f}", f"{mean:.4f}", f"{mean - theirs:+.4f}"


# ---- the page


def paper_tables(results: Results) -> Tables:
    """The tables of a report that are the paper's; none where the results are of no experiment of the paper."""
    experiments = {
        name: {"paper": "", **known} for name, known in results.known("experiments").items()
    }
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
