"""Writes a reproduction as one page: the claims, each table and figure, what differs, the machine.

The page (docs/results.md is one) is written from results alone: no number in it was typed. Its
text is `results.md.jinja`; there, too, is why ours differ, which is known for some datasets.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import correlation, fmean
from typing import Any

from atta._base.errors import require
from atta._base.files import whole_file
from atta.lab import run as tables
from atta.lab.experiment import Experiment
from atta.lab.paper import claims, published
from atta.lab.paper.reproduce import Reproduction
from atta.lab.workers import machine
from atta.report.figures.comparison import figure
from atta.report.figures.theme import picture
from atta.results import words
from atta.results.table import Table

with require("report", "the page of a reproduction"):
    from jinja2 import Environment, FileSystemLoader, StrictUndefined


def figures(done: Reproduction) -> Iterator[tuple[str, Any]]:
    """The paper's figures, drawn from our results, by the name of their experiment."""
    for experiment in done.experiments:
        if experiment.paper.startswith("Figure"):
            several = len(experiment.validation) > 1
            name, metric = ("sizes", "brier") if several else ("entropy", "entropy")
            drawn = figure(name, done.results, metric=metric, experiment=experiment.name)
            yield experiment.name, drawn


def write_page(done: Reproduction, path: Path, *, command: str) -> None:
    """Write the page, and its pictures into a folder of the same name."""
    folder, pictures = path.with_suffix(""), {}
    for name, chart in figures(done):
        folder.mkdir(parents=True, exist_ok=True)
        pictures[name] = f"{folder.name}/{picture(chart, folder / f'{name}.svg').name}"
    text = results_page(done, machine(), command=command, pictures=pictures)
    with whole_file(path) as part:
        part.write_text(text, encoding="utf-8")


def results_page(
    done: Reproduction,
    machine: Mapping[str, str],
    *,
    command: str,
    pictures: Mapping[str, str] | None = None,
) -> str:
    """The whole page as Markdown.

    `pictures` are the files of `figures` by the name of the experiment, as the page links them.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"anchor": _anchor, "one_line": _one_line}
    text = environment.get_template("results.md.jinja").render(
        results=done.results,
        experiments=sorted(done.experiments, key=_by_number),
        splits=max(experiment.splits for experiment in done.experiments),
        skipped=done.skipped,
        machine=Table("", ("", ""), tuple(machine.items())),
        records=_side_by_side(done.results.about["records"]),
        command=command,
        pictures=pictures or {},
        claims=claims,
        published=published,
        tables=tables,
        words=words,
        mean_difference=_mean_difference,
        spearman=_spearman,
    )
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def _by_number(experiment: Experiment) -> tuple[int, str]:
    """The paper's tables, figures and supplement, each by number; then what is ours."""
    kinds = ("Table", "Figure", "Supplement", "")
    place = next(i for i, kind in enumerate(kinds) if experiment.paper.startswith(kind))
    return place, experiment.paper


def _anchor(title: str) -> str:
    """The anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def _one_line(text: str) -> str:
    return re.sub(r" (?=[.,;])", "", " ".join(text.split()))


def _side_by_side(columns: Mapping[str, Mapping[str, Any]]) -> Table:
    """What is known about several things, each in a column."""
    names = sorted({name for column in columns.values() for name in column})
    cells = ((name, *(str(column.get(name, "–")) for column in columns.values())) for name in names)
    return Table("", ("", *columns), tuple(cells))


def _mean_difference(ours: Mapping[str, float], theirs: Mapping[str, float]) -> float:
    return fmean(ours[name] - theirs[name] for name in ours)


def _spearman(a: Mapping[str, float], b: Mapping[str, float]) -> float:
    """Spearman's correlation of two orders of the same names."""
    one, other = (sorted(values, key=values.__getitem__) for values in (a, b))
    ranks = [one.index(name) for name in a], [other.index(name) for name in a]
    return correlation(*ranks) if len(a) > 1 else 1.0
