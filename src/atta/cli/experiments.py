"""Commands that run experiments: one from its file, all of the paper's, and the demo."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atta._base.errors import InputError, MissingExtra
from atta._base.files import locked, whole_file
from atta.cli.arguments import read_device, read_engine
from atta.cli.options import (
    Device,
    Engine,
    ImageSize,
    Intervals,
    RecordsFolder,
    Report,
    Splits,
    Validation,
)
from atta.cli.pages import write_page
from atta.cli.records import comparison_table
from atta.cli.terminal import bar, formatted, out, resumable, say, say_written, show, tell
from atta.results.rows import Results
from atta.results.words import dataset_name

if TYPE_CHECKING:
    from atta.lab.experiment import Experiment
    from atta.lab.paper.reproduce import Reproduction


def run(
    experiment: Annotated[
        Path, typer.Argument(metavar="FILE", help="An experiment, as those in experiments/.")
    ],
    records: RecordsFolder = None,
    splits: Splits = None,
    validation: Validation = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Also write the numbers to this file."),
    ] = None,
    report_file: Report = None,
    style: Annotated[
        str, typer.Option("--format", help="table, markdown, csv or latex.")
    ] = "table",
    intervals: Intervals = False,
) -> None:
    """Run one experiment from its TOML file, on records by name, and print its table.

    ✓ and ✗ are surely better or worse than vanilla: the interval of the difference, by the bootstrap over the test
    images, excludes 0.
    """
    from atta.lab.paper.reproduce import read_experiment
    from atta.lab.tables import interval_table, own_table

    write = formatted(style)
    chosen = read_experiment(experiment).changed(splits=splits, validation=validation)
    with nullcontext() if output is None else locked(output):
        results = run_experiment(chosen, records)
        try:
            numbers = None if output is None else results.save(output)
            page = write_page(results, report_file, title=chosen.title)
        finally:  # what cannot be written is still shown
            write(own_table(results, chosen))
            if intervals:
                write(interval_table(results, title=f"{chosen.title or chosen.name}: how sure"))
    say_written(numbers=numbers, report=page)


def reproduce(
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Only these: shift-cifar10, shift, '*-cifar10', table3; may be repeated.",
        ),
    ] = None,
    records: RecordsFolder = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Make missing records from the datasets here; also $ATTA_DATA."
        ),
    ] = None,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="FOLDER", help="Where numbers, fits and networks go."
        ),
    ] = Path("atta-reproduce"),
    splits: Splits = None,
    validation: Validation = None,
    page: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write all of it as a Markdown page.")
    ] = None,
    report_file: Report = None,
    model: Annotated[
        str, typer.Option(help="The network to train where a record is missing.")
    ] = "resnet50",
    steps: Annotated[
        int | None, typer.Option(help="Updates of its training, instead of the recipe's.")
    ] = None,
    image_size: ImageSize = None,
    device: Device = None,
    engine: Engine = None,
) -> None:
    """Reproduce the paper: every table and figure from records, beside the published numbers, and its conclusions checked.

    Records are found in --records, or made from --data by training the network and recording its views; without either, those
    that come with the package are used. What cannot be had is skipped with a line. Stopped, the same command goes on.
    """
    from atta.lab.paper.records import VALIDATION, Making
    from atta.lab.paper.reproduce import Places, find_experiments
    from atta.lab.paper.reproduce import reproduce as run_all
    from atta.lab.workers import cores, hold_memory

    read_engine(engine)
    read_device(device)
    chosen = [e.changed(splits=splits, validation=validation) for e in find_experiments(only or [])]
    making = Making(
        model=model,
        steps=steps,
        image_size=image_size,
        validation=validation or VALIDATION,
        device=device,
        progress=True,
    )
    hold_memory()
    with resumable(output):
        places = Places(output=output, records=records, data=data)
        done = run_all(chosen, places, making, say=say, bar=bar, workers=cores(), engine=engine)
    if not done.experiments:
        raise InputError("nothing could be run: see the lines above")
    try:
        if page is not None:
            _write_results_page(page, done)
        written = write_page(done.results, report_file, title="The paper, reproduced")
    finally:  # what cannot be written is still shown
        show_reproduction(done)
        tell(f"numbers: {output / 'results.json'}")
    if page is not None:
        tell(f"page: {page}")
    say_written(report=written)


def _write_results_page(page: Path, done: Reproduction) -> None:
    """Write the page, and its pictures into a folder of its name beside it."""
    from atta.lab.paper.page import figures, results_page
    from atta.lab.workers import machine
    from atta.report.figures.write import picture

    folder, pictures = page.with_suffix(""), {}
    for name, chart in figures(done):
        folder.mkdir(parents=True, exist_ok=True)
        pictures[name] = f"{folder.name}/{picture(chart, folder / f'{name}.svg').name}"
    text = results_page(
        done, machine(), command=" ".join(["atta", *sys.argv[1:]]), pictures=pictures
    )
    with whole_file(page) as part:
        part.write_text(text, encoding="utf-8")


def demo(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FOLDER", help="Where everything is written.")
    ] = Path("atta-demo"),
) -> None:
    """Show the whole chain: train a small network, record its views, compare every method; then a ResNet-50 on CIFAR-10."""
    from atta.cli.demo import EXPERIMENT
    from atta.lab.paper.reproduce import find_experiments
    from atta.lab.tables import own_table

    out.rule("1 · End to end on scikit-learn's digits", align="left")
    with _left_out():
        _demo_digits(output)
    out.rule("2 · A ResNet-50 on CIFAR-10, from a record that comes with the package", align="left")
    tell(
        f"The paper's methods with all of its views, 17 passes an image, and ours with few (experiments/{EXPERIMENT}.toml): "
        "1000 images to fit on, 9000 to test on. The network itself is not needed."
    )
    (chosen,) = find_experiments([EXPERIMENT])
    chosen = chosen.changed(splits=3)
    cifar = run_experiment(chosen)
    numbers = cifar.save(output / f"{EXPERIMENT}.json")
    show(own_table(cifar, chosen))
    tell(
        "In bold: the best of the methods that keep every predicted class. class_changes counts the others' changes."
    )
    tell(f"CIFAR-10 numbers: {numbers}")
    with _left_out():
        say_written(
            report=write_page(cifar, output / "report.html", title="A ResNet-50 on CIFAR-10")
        )


def _demo_digits(output: Path) -> None:
    """The first half of the demo: a network, its record, every method, a page."""
    from atta.calibrators import METHODS
    from atta.cli.demo import digits, thumbnails
    from atta.lab.compare import compare as compare_records

    record, paths, images = digits(output, say=tell)
    everything = [method() for method in METHODS.values()]
    with bar("comparing", 3 * len(everything)) as advance:
        results = compare_records(
            {"digits": record}, everything, validation=300, splits=3, cost=True, done=advance
        )
    paths["numbers"] = results.save(output / "digits.json")
    show(comparison_table(results, "digits"))
    for what, path in paths.items():
        tell(f"{what}: {path}")
    with _left_out():
        pictures = thumbnails(results, "digits", images, 300)
        title = "A small network on digits"
        say_written(
            report=write_page(results, output / "digits.html", title=title, pictures=pictures)
        )
    tell(
        "Eight by eight pixels and a handful of mistakes: the chain is the point here, the numbers are mostly noise.\n"
    )


@contextmanager
def _left_out() -> Iterator[None]:
    """Leave out of the demo what libraries are missing for, and say which: the rest is worth seeing without them."""
    try:
        yield
    except MissingExtra as error:
        say(f"left out: {error}")


def run_experiment(chosen: Experiment, records: Path | None = None) -> Results:
    """Run an experiment on records in a folder, or on those that come with the package, with a bar.

    Its fits are kept until it is done, so that a run that was stopped, or lost a process, goes on where it was.
    """
    from atta.lab.experiment import fits_of
    from atta.lab.fits import Fits
    from atta.lab.paper.reproduce import Places, find_records, load_records
    from atta.lab.run import run as run_all
    from atta.lab.workers import cores

    files = find_records([chosen], Places(output=Path(), records=records, own=False))
    loaded = load_records(files)
    fits = Fits(loaded, workers=cores(), files=files)
    total = len(fits_of(chosen, loaded))
    with (
        _kept([chosen.about(), *map(fits.fingerprint, loaded)]) as fits.folder,
        bar(chosen.name, total) as advance,
    ):
        return run_all(chosen, loaded, fits=fits, done=advance)


@contextmanager
def _kept(what: list[Any]) -> Iterator[Path]:
    """A folder of the user's own for what is finished of a run of exactly this; it goes when the run is done."""
    home = (
        os.environ.get("XDG_CACHE_HOME")
        or os.environ.get("LOCALAPPDATA")
        or Path("~/.cache").expanduser()
    )
    key = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]
    folder = Path(home) / "atta" / "runs" / key
    with ExitStack() as held:
        try:
            held.enter_context(locked(folder))
        except InputError:  # no home that can be written to, or a twin is at work: nothing is kept
            yield Path(held.enter_context(TemporaryDirectory()))
            return
        held.enter_context(resumable(folder))
        yield folder
        shutil.rmtree(folder, ignore_errors=True)


def show_reproduction(done: Reproduction) -> None:
    """Print the table of each experiment, ours beside the published, and the paper's conclusions."""
    from atta.lab.paper.claims import claims_table
    from atta.lab.paper.published import against
    from atta.lab.tables import own_table

    for experiment in done.experiments:
        show(own_table(done.results, experiment))
        for table in (against(done.results, experiment, first=first) for first in (False, True)):
            if table is not None:
                show(table)
    checked = claims_table(done.results, names=dataset_name)
    if checked.cells:
        show(checked)
