"""Commands that run experiments: run, one from its file, and reproduce, all of the paper's."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from atta._base.errors import InputError, MissingExtra
from atta._base.files import digest, locked, whole_file
from atta.cli.options import (
    Device,
    Engine,
    ImageSize,
    Intervals,
    Output,
    RecordsFolder,
    Report,
    Splits,
    Validation,
    grouped,
    read_device,
)
from atta.cli.pages import write_results
from atta.cli.terminal import bar, formatted, out, resumable, say, say_written, tell
from atta.results.rows import Results
from atta.results.table import Table
from atta.results.words import dataset_name

if TYPE_CHECKING:
    from atta.lab.experiment import Experiment
    from atta.lab.paper.reproduce import Reproduction


def run(
    experiment: Annotated[
        Path, Argument(metavar="FILE", help="An experiment, like those in experiments/.")
    ],
    records: RecordsFolder = None,
    splits: Splits = None,
    validation: Validation = None,
    output: Annotated[
        Path | None, Option("--output", "-o", metavar="FILE", help="Also write the numbers.")
    ] = None,
    report_file: Report = None,
    style: Annotated[str, Option("--format", help="table, markdown, csv or latex.")] = "table",
    intervals: Intervals = False,
) -> None:
    """Run one experiment from its TOML file, on records by name, and print its table.

    ✓ and ✗: significantly better or worse than vanilla (95 %, bootstrap over test images).
    """
    from atta.lab.paper.reproduce import read_experiment

    write = formatted(style)
    chosen = read_experiment(experiment).changed(splits=splits, validation=validation)
    with nullcontext() if output is None else locked(output):
        results = run_experiment(chosen, records)
        write_results(
            results,
            _tables(results, chosen, intervals),
            numbers=output,
            page=report_file,
            title=chosen.title,
            write=write,
        )


def _tables(results: Results, chosen: Experiment, intervals: bool) -> Iterator[Table]:
    from atta.lab.run import interval_table, own_table

    yield own_table(results, chosen)
    if intervals:
        yield interval_table(results, title=f"{chosen.title or chosen.name}: 95 % intervals")


def run_experiment(chosen: Experiment, records: Path | None = None) -> Results:
    """Run an experiment on the records of a folder, or on the bundled ones, with a progress bar.

    Fits are kept until it ends, so that a run that was stopped or lost a process resumes.
    """
    from atta.lab.experiment import fits_of
    from atta.lab.fits import Fits
    from atta.lab.paper.reproduce import Places, find_records, load_records
    from atta.lab.run import run as run_all
    from atta.lab.workers import cores

    files = find_records([chosen], Places(output=Path(), records=records, own=False))
    loaded = load_records(files)
    fits = Fits(loaded, workers=cores(), files=files)
    key = digest([chosen.about(), *map(fits.fingerprint, loaded)])[:16]
    total = len(fits_of(chosen, loaded))
    with _kept(key) as folder, bar(chosen.name, total) as advance:
        return run_all(chosen, loaded, fits=replace(fits, folder=folder), done=advance)


@contextmanager
def _kept(key: str) -> Iterator[Path]:
    """Yield a folder in the user's cache for unfinished work; it is removed at the end."""
    home = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA") or "~/.cache"
    folder = Path(home).expanduser() / "atta" / "runs" / key
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(folder))
        except InputError:  # the cache cannot be written, or the same run is going on
            yield Path(stack.enter_context(TemporaryDirectory()))
            return
        stack.enter_context(resumable(folder))
        yield folder
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class Missing:
    """How records that are missing are made."""

    data: Annotated[
        Path | None,
        Option(metavar="FOLDER", help="Datasets to make missing records from; or $ATTA_DATA."),
    ] = None
    model: Annotated[str, Option(help="The network to train for missing records.")] = "resnet50"
    steps: Annotated[
        int | None, Option(help="Updates of its training, instead of the recipe's.")
    ] = None
    image_size: ImageSize = None
    device: Device = None


@grouped
def reproduce(
    *,
    only: Annotated[
        list[str] | None,
        Option(metavar="NAME", help="Only shift, '*-cifar10', table3, ...; may be repeated."),
    ] = None,
    records: RecordsFolder = None,
    output: Annotated[
        Path, Option("--output", "-o", metavar="FOLDER", help="For numbers, fits and networks.")
    ] = Path("atta-reproduce"),
    splits: Splits = None,
    validation: Validation = None,
    page: Annotated[Path | None, Option(metavar="FILE", help="Also write a Markdown page.")] = None,
    report_file: Report = None,
    missing: Missing,
    engine: Engine = None,
) -> None:
    """Reproduce the paper from records: its tables, figures and claims, next to the published.

    Records that are not in --records are made from --data. Without either, the bundled ones are
    used. Experiments that cannot be run are named and skipped. The same command resumes.
    """
    from atta.lab.paper.records import VALIDATION, Making
    from atta.lab.paper.reproduce import Places, find_experiments
    from atta.lab.paper.reproduce import reproduce as run_all
    from atta.lab.workers import cores, hold_memory
    from atta.run.cluster import check_engine

    check_engine(engine, called="--{}".format)
    read_device(missing.device)
    chosen = [e.changed(splits=splits, validation=validation) for e in find_experiments(only or [])]
    making = Making(
        model=missing.model,
        steps=missing.steps,
        image_size=missing.image_size,
        validation=validation or VALIDATION,
        device=missing.device,
    )
    hold_memory()
    with resumable(output):
        places = Places(output=output, records=records, data=missing.data)
        done = run_all(chosen, places, making, say=say, bar=bar, workers=cores(), engine=engine)
    if not done.experiments:
        raise InputError("nothing could be run: see the lines above")
    _write_reproduction(done, output, page, report_file)


def _write_reproduction(
    done: Reproduction, output: Path, page: Path | None, report_file: Path | None
) -> None:
    """Write the pages, print the tables in any case, and name the files."""
    try:
        if page is not None:
            _write_results_page(page, done)
    finally:
        tables, title = _reproduced_tables(done), "The paper, reproduced"
        write_results(done.results, tables, page=report_file, title=title)
    say_written(numbers=output / "results.json", page=page)


def _write_results_page(page: Path, done: Reproduction) -> None:
    """Write the page, and its pictures into a folder of the same name."""
    from atta.lab.paper.page import figures, results_page
    from atta.lab.workers import machine
    from atta.report.figures.theme import picture

    folder, pictures = page.with_suffix(""), {}
    for name, chart in figures(done):
        folder.mkdir(parents=True, exist_ok=True)
        pictures[name] = f"{folder.name}/{picture(chart, folder / f'{name}.svg').name}"
    command = " ".join(["atta", *sys.argv[1:]])
    text = results_page(done, machine(), command=command, pictures=pictures)
    with whole_file(page) as part:
        part.write_text(text, encoding="utf-8")


def _reproduced_tables(done: Reproduction) -> Iterator[Table]:
    """Yield our table of each experiment, the differences to the published, and the claims."""
    from atta.lab.paper.claims import claims_table
    from atta.lab.paper.published import against
    from atta.lab.run import own_table

    for experiment in done.experiments:
        yield own_table(done.results, experiment)
        tables = (against(done.results, experiment, first=first) for first in (False, True))
        yield from filter(None, tables)
    claims = claims_table(done.results, names=dataset_name)
    if claims.cells:
        yield claims


# ---- demo ----------------------------------------------------------------------------------------

EXPERIMENT = "past-the-paper-cifar10"
DIGITS = (
    "train digits -o {0}/network --model small_cnn --steps 200 --set batch_size=64 --device cpu "
    "--no-resume",
    "collect {0}/network digits -o {0}/digits.safetensors "
    "--policy '5 crop + 5 brightness + 5 contrast'",  # a mirrored digit is not a digit
    "fit {0}/digits.safetensors -o {0}/v-atta.safetensors --rows 0:300",
    "compare {0}/digits.safetensors --validation 300 --splits 3 --json {0}/digits.json "
    "--report {0}/digits.html --images digits",
)
CIFAR = ("run {1} --splits 3 -o {0}/past-the-paper-cifar10.json --report {0}/report.html",)


def demo(output: Output = Path("atta-demo")) -> None:
    """Train a small network, record its views, compare all methods; then show a ResNet-50."""
    out.rule("1 · End to end on scikit-learn's digits", align="left")
    type_commands(DIGITS, output)
    tell("The images are tiny and mistakes are few: these numbers are mostly noise.\n")
    out.rule("2 · A ResNet-50 on CIFAR-10, from a bundled record", align="left")
    tell(
        "The paper's methods with 17 passes per image, and ours with few: 1000 images to fit on, "
        "9000 to test on. The network itself is not needed."
    )
    type_commands(CIFAR, output)
    tell("Bold: the best method that keeps every predicted class. class_changes counts changes.")


def type_commands(lines: tuple[str, ...], output: Path) -> None:
    """Run commands one after the other; one whose libraries are not installed ends the list."""
    from atta.cli.app import commands
    from atta.lab.paper.reproduce import experiments_folder

    experiment = experiments_folder() / f"{EXPERIMENT}.toml"
    places = [shlex.quote(str(place)) for place in (output, experiment)]
    try:
        for line in lines:
            typed = line.format(*places)
            tell(f"\n$ atta {typed}")
            commands(shlex.split(typed), standalone_mode=False)
    except MissingExtra as error:
        say(f"left out: {error}")
