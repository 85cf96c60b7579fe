"""Commands that run networks and experiments: train, collect, run, reproduce and demo."""

from __future__ import annotations

import shlex
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

import atta
from atta._base.errors import InputError, MissingExtra, require
from atta._base.files import locked
from atta.cli.options import (
    Compile,
    Data,
    Device,
    Engine,
    ImageSize,
    Intervals,
    ModelArgument,
    Output,
    Photographs,
    RecordsFolder,
    Report,
    Running,
    Seed,
    Set,
    Source,
    Splits,
    Validation,
    grouped,
    read_device,
    read_settings,
)
from atta.cli.records import write_results
from atta.cli.terminal import bar, formatted, out, resumable, say, say_written, tell, waiting
from atta.results.rows import Results

if TYPE_CHECKING:
    from atta.data.image_set import ImageSet
    from atta.lab.paper.records import Making
    from atta.lab.training import Epoch


def train(
    dataset: Annotated[str, Argument(help="cifar10, digits, ..., or a folder under --data.")],
    output: Annotated[
        Path, Option("--output", "-o", metavar="FOLDER", help="For the model and checkpoints.")
    ],
    data: Data = None,
    model: Annotated[str, Option(help="resnet50, resnet18 or small_cnn.")] = "resnet50",
    image_size: ImageSize = None,
    steps: Annotated[int | None, Option(help="Updates in all, instead of the recipe's.")] = None,
    settings: Set = None,
    seed: Seed = 0,
    device: Device = None,
    compile: Compile = False,
    resume: Annotated[bool, Option(help="Resume from a checkpoint in the folder.")] = True,
) -> None:
    """Train a network by the recipe of all experiments. The same command resumes."""
    from atta.lab.datasets import load
    from atta.lab.recipe import Recipe
    from atta.lab.training import train as run_training

    read_device(device)
    recipe = Recipe.of(**read_settings(settings) | ({} if steps is None else {"steps": steps}))
    with waiting(f"reading {dataset}"):
        train_set, test_set = (
            load(dataset, split, data=data, image_size=image_size).decoded()
            for split in ("train", "test")
        )
    with resumable(output):
        result = run_training(
            model,
            train_set,
            test_set=test_set,
            recipe=recipe,
            seed=seed,
            output=output,
            resume=resume,
            device=device,
            compile=compile,
            progress=out.is_terminal,
            on_epoch=_print_epoch,
        )
    accuracy = "not measured" if result.accuracy is None else f"{result.accuracy:.2%}"
    tell(f"{model} on {dataset}: test accuracy {accuracy}: {result.path}")


def _print_epoch(epoch: Epoch) -> None:
    if not out.is_terminal:  # a terminal has a progress bar
        print(f"epoch {epoch.epoch}/{epoch.of} loss {epoch.loss:.4f}", flush=True)


@grouped
def collect(
    model: ModelArgument,
    dataset: Annotated[str, Argument(help="A dataset by name, or a folder of images.")],
    output: Annotated[
        str, Option("--output", "-o", metavar="FILE|FOLDER", help="NAME.safetensors, or a folder.")
    ],
    *,
    policy: Annotated[str, Option(help='A policy by name or as text: "flip + 5 crop".')] = "aug8",
    shift: Annotated[int | None, Option(metavar="SEED", help="Add the noise of CIFAR-10*.")] = None,
    seed: Seed = 0,
    draws: Annotated[str, Option(help="random, as in the paper, or stratified.")] = "random",
    rehearse: Annotated[bool, Option("--rehearse", help="Also run degraded images.")] = False,
    source: Source,
    photographs: Photographs,
    running: Running,
    half: Annotated[bool, Option(help="Store the logits in float16.")] = False,
) -> None:
    """Run a network on images and their views, and write the record. The same command resumes.

    A folder is for records that do not fit into memory. Damaged or missing shards are made again.
    """
    from atta.lab.recipe import find_model
    from atta.run.collect import as_folder

    if half and as_folder(output):
        raise InputError(f"--half: expected -o NAME.safetensors, got the folder {output}")
    how, views, preprocess = running.read(), atta.Policy.parse(policy), photographs.read()
    with waiting(f"reading {dataset}"):
        images, arranged = _read_shifted(source, dataset, shift)
        network, about = find_model(model)
    with resumable(Path(output)):
        record = atta.collect(
            network,
            images,
            source.labels,
            class_names=source.class_names(),
            skip_bad=source.skip_bad,
            policy=views,
            seed=seed,
            draws=draws,
            rehearse=rehearse,
            preprocess=preprocess,
            output=output,
            origin={**about, **arranged},
            **how,
        )
    if half:
        record.save(output, half=True)
    tell(f"{record.predictions}: {output}")


def _read_shifted(
    source: Source, dataset: str, seed: int | None
) -> tuple[ImageSet | str, dict[str, str]]:
    """Read the images, with the noise and blur of CIFAR-10* if there is a seed."""
    from atta.lab.paper.records import shifted

    images, arranged = source.read(dataset)
    if seed is None:
        return images, arranged
    if isinstance(images, str):
        raise InputError(f"--shift: expected a dataset or a folder, got the shards {images}")
    return shifted(images, seed), {**arranged, "shift": str(seed)}


# ---- experiments ---------------------------------------------------------------------------------


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
    from atta.data.loading import cores
    from atta.lab.paper.reproduce import read_experiment, run_alone
    from atta.lab.run import tables_of

    write = formatted(style)
    chosen = read_experiment(experiment).changed(splits=splits, validation=validation)
    with nullcontext() if output is None else locked(output):
        results = run_alone(chosen, records, workers=cores(), bar=bar, resumable=resumable)
        write_results(
            results,
            tables_of(results, chosen, intervals=intervals),
            numbers=output,
            page=report_file,
            title=chosen.title,
            write=write,
        )


@dataclass(frozen=True)
class Missing:
    """How records that are missing are made."""

    model: Annotated[str, Option(help="The network to train for missing records.")] = "resnet50"
    steps: Annotated[
        int | None, Option(help="Updates of its training, instead of the recipe's.")
    ] = None
    image_size: ImageSize = None
    device: Device = None

    def read(self, validation: int | None) -> Making:
        """Return the settings of `reproduce`."""
        from atta.lab.paper.records import Making

        read_device(self.device)
        return Making(**vars(self), validation=validation or Making.validation)


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
    data: Annotated[
        Path | None,
        Option(metavar="FOLDER", help="Datasets to make missing records from; or $ATTA_DATA."),
    ] = None,
    missing: Missing,
    engine: Engine = None,
) -> None:
    """Reproduce the paper from records: its tables, figures and claims, next to the published.

    Records that are not in --records are made from --data. Without either, the bundled ones are
    used. Experiments that cannot be run are named and skipped. The same command resumes.
    """
    from atta.data.loading import cores
    from atta.lab.paper.reproduce import Places, find_experiments, reproduced_tables, write_page
    from atta.lab.paper.reproduce import reproduce as run_all
    from atta.lab.workers import hold_memory
    from atta.run.runner import check_engine

    check_engine(engine, called="--{}".format)
    making = missing.read(validation)
    chosen = [e.changed(splits=splits, validation=validation) for e in find_experiments(only or [])]
    hold_memory()
    with resumable(output):
        places = Places(output=output, records=records, data=data)
        done = run_all(chosen, places, making, say=say, bar=bar, workers=cores(), engine=engine)
    if not done.experiments:
        raise InputError("nothing could be run: see the lines above")
    try:
        if page is not None:
            write_page(done, page, command=" ".join(["atta", *sys.argv[1:]]))
    finally:
        tables, title = reproduced_tables(done), "The paper, reproduced"
        write_results(done.results, tables, page=report_file, title=title)
    say_written(numbers=output / "results.json", page=page)


# ---- demo ----------------------------------------------------------------------------------------

EXPERIMENT = "past-the-paper-cifar10"
PHOTOGRAPHS = (
    "calibrate {2}/resnet20.safetensors {2}/validation -o {0}/classifier",
    "evaluate {0}/classifier {2}/test --json {0}/evaluation.json",
    "collect {2}/resnet20.safetensors {2}/test -o {0}/photographs.safetensors "
    "--policy 'flip + 2 crop'",
    "compare {0}/photographs.safetensors --validation 500 "
    "--methods vanilla,temperature,isotonic,v-atta,c-atta,selective-v-atta "
    "--json {0}/comparison.json --report {0}/report.html",
)
CIFAR = ("run {1} --splits 3 -o {0}/past-the-paper-cifar10.json --report {0}/report.html",)


def demo(output: Output = Path("atta-demo")) -> None:
    """Calibrate a small network on photographs, compare all methods, and write a report.

    The photographs are in a clone of the repository. Without one, the recorded answers of a
    ResNet-50 are compared.
    """
    folder = Path(__file__).parents[3] / "examples" / "cifar10"
    if folder.is_dir():
        with require("data,report", "the demo"):  # at once, not after the first command
            for library in ("PIL", "altair", "vl_convert", "jinja2"):
                import_module(library)
        type_commands(PHOTOGRAPHS, output, folder)
        results = Results.load(output / "evaluation.json")
        before, scaled, after = (row.value for row in results.where(metric="nll"))
        tell(
            f"\nOn 1000 new photographs the NLL falls from {before:.4f} to {after:.4f} "
            f"({after / before - 1:+.0%}); temperature scaling alone reaches {scaled:.4f} "
            f"({scaled / before - 1:+.0%}). Every predicted class stays the same."
        )
    else:
        tell("The answers of a ResNet-50 to 10,000 photographs: 1000 to fit on, 9000 to test on.")
        type_commands(CIFAR, output, folder)
    if (output / "report.html").is_file():
        tell(f"Open {output / 'report.html'} in a browser.")


def type_commands(lines: tuple[str, ...], output: Path, photographs: Path) -> None:
    """Run commands one after the other; one whose libraries are not installed ends the list."""
    from atta.cli.app import commands
    from atta.lab.paper.reproduce import experiments_folder

    experiment = experiments_folder() / f"{EXPERIMENT}.toml"
    places = [shlex.quote(str(place)) for place in (output, experiment, photographs)]
    try:
        for line in lines:
            typed = line.format(*places)
            tell(f"\n$ atta {typed}")
            commands(shlex.split(typed), standalone_mode=False)
    except MissingExtra as error:
        say(f"left out: {error}")
