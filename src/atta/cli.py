"""The command line: each command parses, calls one function, prints one table.

torch takes over a second to import, so the commands import what they need when they run: `atta --help` answers at once.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table as RichTable
from rich.text import Text

from atta.results import Results, Table, comparison
from atta.types import InputError

if TYPE_CHECKING:
    from atta.calibrators import Method
    from atta.predictions import Record

commands = typer.Typer(
    name="atta",
    help="Trustworthy confidence for image classifiers: learned test-time views that never change the predicted class.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
out = Console()
err = Console(stderr=True)

PAPER_METRICS = ("brier", "ece", "mc_brier", "nll", "accuracy", "class_changes")
BETTER: dict[str, str | None] = {"brier": "lower", "ece": "lower", "mc_brier": "lower", "nll": "lower"}

RecordArgument = Annotated[str, typer.Argument(metavar="RECORD", help="A record file, or the name of a bundled record.")]
Rows = Annotated[str | None, typer.Option(metavar="FROM:TO", help="Use only these rows of the record, such as 0:1000 or 1000:")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting of the method; may be repeated.")]
Json = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Also write the numbers to this file.")]


def app() -> None:
    """Run the command line; a user's mistake ends in one sentence and exit code 2, not in a traceback."""
    try:
        commands()
    except InputError as error:
        err.print(Text("error: ", style="bold red") + Text(str(error)))
        sys.exit(2)
    except KeyboardInterrupt:
        err.print("interrupted")
        sys.exit(130)


@commands.callback(invoke_without_command=True)
def main(version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False) -> None:
    """Say the version, or go on to the command."""
    if version:
        from atta import __version__

        out.print(__version__)
        raise typer.Exit


@commands.command()
def methods() -> None:
    """List every way to calibrate, and whether it keeps the predicted class."""
    from atta.calibrators import METHODS

    cells = tuple((name, "yes" if method().keeps_class else "no", method.summary) for name, method in METHODS.items())
    show(Table("Methods", ("name", "keeps the class", "what it is"), cells))


@commands.command()
def compare(
    records: Annotated[list[str], typer.Argument(metavar="RECORD...", help="Record files, or names of bundled records.")],
    validation: Annotated[int, typer.Option(help="Images to fit on; the rest is tested on.")] = 1000,
    splits: Annotated[int, typer.Option(help="How often to split anew; the first takes the rows as they stand.")] = 1,
    methods: Annotated[str | None, typer.Option(metavar="A,B,...", help="Only these methods; all of them by default.")] = None,
    fit: Annotated[str | None, typer.Option(metavar="RECORD", help="Fit on all of this record, test on all of the others.")] = None,
    json_file: Json = None,
) -> None:
    """Fit methods on validation images, test them on the rest, and print the paper's table.

    The best of each column is bold, among the methods that keep the class; over several splits, mean ± standard deviation.
    """
    results = run_comparison(records, methods, validation=validation, splits=splits, fit=fit)
    for name in results.names("dataset"):
        show(comparison_table(results, name))
    if json_file is not None:
        out.print(f"numbers: {results.save(json_file)}")


@commands.command()
def fit(
    record: RecordArgument,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Where to write the calibrator.")],
    method: Annotated[str, typer.Option(help="One of `atta methods`.")] = "v-atta",
    settings: Set = None,
    rows: Rows = None,
) -> None:
    """Fit a method on a record and write the calibrator."""
    from atta.calibrators import find_method

    chosen = find_method(method, **read_settings(settings))
    source = read_record(record, rows)
    with waiting(f"fitting {method}"):
        calibrator = chosen.fit(source.predictions, source.require_labels())
    out.print(f"{method} fitted on {len(source)} images of {source.predictions.classes} classes: {calibrator.save(output)}")


@commands.command()
def evaluate(
    record: RecordArgument,
    calibrator: Annotated[Path, typer.Option(metavar="FILE", help="What `atta fit` wrote.")],
    rows: Rows = None,
    json_file: Json = None,
) -> None:
    """Evaluate a fitted calibrator on a record, beside the network as it is."""
    from atta.calibrators import Vanilla, load
    from atta.experiment import score

    fitted, source = load(calibrator), read_record(record, rows)
    name = Path(record).stem
    with waiting("evaluating"):
        before = score(name, Vanilla(), Vanilla().fit(source.predictions, source.require_labels()), source)
        after = score(name, fitted.method, fitted, source)
    results = Results((*before, *after))
    show(metrics_table(results, name))
    if json_file is not None:
        out.print(f"numbers: {results.save(json_file)}")


# --- What the commands share: reading what was typed, showing what came out --------------------------------------------


def run_comparison(
    records: list[str], methods: str | None, *, validation: int, splits: int, fit: str | None = None
) -> Results:
    """Compare methods on records, with a bar; methods that need views a record lacks are named and left out."""
    from atta import __version__
    from atta.calibrators import METHODS, find_method
    from atta.experiment import compare

    names = [name.strip() for name in methods.split(",")] if methods else list(METHODS)
    chosen = [find_method(name) for name in names]
    loaded = {Path(name).stem: read_record(name) for name in records}
    if len(loaded) < len(records):
        raise InputError(f"expected records with different names, got {', '.join(records)}")
    fit_on = read_record(fit) if fit else None
    chosen = usable(chosen, [*loaded.values(), *([fit_on] if fit_on else [])], explicit=methods is not None)
    about = {"atta": __version__, "validation": validation, "splits": splits, "records": list(loaded)}
    results = Results((), about)
    total = len(chosen) * len(loaded) * (1 if fit_on else splits)
    with bar("comparing", total) as advance:
        for what, rows in compare(loaded, chosen, validation=validation, splits=splits, fit_on=fit_on):
            known = dict(results.about.get("methods", {}))
            results = Results((*results.rows, *rows.rows), {**results.about, "methods": {**known, **rows.about["methods"]}})
            advance(what)
    return results


def usable(methods: list[Method], records: list[Record], *, explicit: bool) -> list[Method]:
    """Leave out methods that need views where a record has none, saying so; if they were asked for, refuse."""
    if all(record.predictions.kinds for record in records):
        return methods
    left_out = [method.name for method in methods if method.needs_views]
    if explicit and left_out:
        raise InputError(f"{', '.join(left_out)} need the logits of views, and a record has none")
    if left_out:
        err.print(f"left out, for want of views: {', '.join(left_out)}")
    return [method for method in methods if not method.needs_views]


def read_record(name: str, rows: str | None = None) -> Record:
    """Load a record by path or bundled name, and take the rows asked for."""
    from atta.predictions import find_record

    record = find_record(name)
    if rows is None:
        return record
    try:
        start, stop = (int(part) if part.strip() else None for part in rows.split(":"))
    except ValueError:
        raise InputError(f"--rows takes FROM:TO, such as 0:1000 or 1000:, got {rows!r}") from None
    return record[start:stop]


def read_settings(texts: list[str] | None) -> dict[str, Any]:
    """Read NAME=VALUE pairs; a value is JSON where it can be, and a comma-separated list or plain text otherwise."""
    settings: dict[str, Any] = {}
    for text in texts or []:
        name, separator, value = text.partition("=")
        if not separator:
            raise InputError(f"--set takes NAME=VALUE, got {text!r}")
        try:
            settings[name] = json.loads(value)
        except ValueError:
            settings[name] = value.split(",") if "," in value or name == "views" else value
    return settings


def comparison_table(results: Results, dataset: str) -> Table:
    """Lay the comparison out as the paper does."""
    from atta.calibrators import METHODS

    keeps = {name for name, method in METHODS.items() if method().keeps_class}
    return comparison(results, dataset, metrics=PAPER_METRICS, better=BETTER, eligible=keeps.__contains__)


def metrics_table(results: Results, dataset: str) -> Table:
    """Lay every metric out as a row, a method a column."""
    methods = results.names("method")
    cells = []
    for metric in results.names("metric"):
        row = [results.summary(method=method, metric=metric) for method in methods]
        cells.append((metric, *(f"{summary.mean:.5g}" if summary else "–" for summary in row)))
    return Table(dataset, ("metric", *methods), tuple(cells))


def show(table: Table) -> None:
    """Print a table, the best cells bold."""
    rich = RichTable(title=table.title, title_justify="left", title_style="bold", header_style="bold", box=None, pad_edge=False)
    for j, name in enumerate(table.header):
        numeric = j > 0 and all(_is_number(row[j]) for row in table.cells)
        rich.add_column(name, justify="right" if numeric else "left", no_wrap=j == 0 or numeric)
    for i, row in enumerate(table.cells):
        rich.add_row(*(Text(cell, style="bold green" if (i, j) in table.best else "") for j, cell in enumerate(row)))
    out.print()
    out.print(rich)
    out.print()


def _is_number(cell: str) -> bool:
    return cell == "–" or cell.split(" ")[0].lstrip("-").replace(".", "", 1).replace("e-", "", 1).isdigit()


@contextmanager
def bar(title: str, total: int) -> Iterator[Any]:
    """Show a bar that goes away when done; the body calls what it is given after each step."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True) as progress:
        task = progress.add_task(title, total=total)
        yield lambda what: progress.update(task, advance=1, description=what)


@contextmanager
def waiting(title: str) -> Iterator[None]:
    """Show that something is going on whose length nobody knows."""
    with err.status(title):
        yield
