"""The command line: each command parses, calls one function, prints one table.

torch takes over a second to import, so the commands import what they need when they run: `atta --help` answers at once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from atta.cli.arguments import (
    fastest,
    read_images,
    read_model,
    read_output,
    read_parts,
    read_record,
    read_rows,
    read_settings,
)
from atta.cli.terminal import bar, err, out, resumable, say, show, waiting
from atta.errors import InputError
from atta.files import whole_file
from atta.results.rows import Results, Row
from atta.results.table import Table, comparison

if TYPE_CHECKING:
    from atta.calibrators import Method
    from atta.experiments.experiment import Experiment
    from atta.experiments.search import Findings
    from atta.predictions import Record

commands = typer.Typer(
    name="atta",
    help="Trustworthy confidence for image classifiers: learned test-time views that never change the predicted class.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
COMPARED = ("brier", "ece", "smooth_ece", "mc_brier", "nll", "accuracy", "class_changes")
BETTER: dict[str, str | None] = dict.fromkeys(("brier", "ece", "smooth_ece", "mc_brier", "nll"), "lower")
DIGITS = {"class_changes": 0}

RecordArgument = Annotated[
    str, typer.Argument(metavar="RECORD", help="A record file, or the name of a bundled record.")
]
Rows = Annotated[
    str | None, typer.Option(metavar="FROM:TO", help="Use only these rows of the record, such as 0:1000 or 1000:")
]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting of the method; may be repeated.")
]
RecipeSet = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting of the recipe; may be repeated.")
]
Report = Annotated[
    Path | None, typer.Option("--report", metavar="FILE", help="Also write an HTML page that opens anywhere.")
]
Intervals = Annotated[
    bool,
    typer.Option(
        "--intervals", help="Also print how sure each number is, and each difference to vanilla on the same images."
    ),
]
Json = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Also write the numbers to this file.")]

RecordsFolder = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="Where records lie: cifar10.safetensors, cifar10_shift.safetensors, ..."),
]
Validation = Annotated[
    int | None,
    typer.Option(help="Images to fit on, instead of what the experiment says; several sizes are scaled alike."),
]
Splits = Annotated[
    int | None, typer.Option(help="How often to draw validation images, instead of what the experiment says.")
]
Data = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="Where datasets lie; by default $ATTA_DATA, then the hub.")
]
ImageSize = Annotated[int | None, typer.Option(metavar="PIXELS", help="Resize the images to this side.")]
ModelArgument = Annotated[
    str, typer.Argument(help="What `atta train` wrote, an .onnx file, or package.module:name in Python.")
]
OwnModel = Annotated[
    str | None,
    typer.Option(metavar="MODULE:NAME", help="The network, where the file cannot build it: package.module:name."),
]
Split = Annotated[str, typer.Option(help="The split of the dataset.")]
Columns = Annotated[str | None, typer.Option(metavar="IMAGE,LABEL", help="The columns of a table.")]
Shuffle = Annotated[int | None, typer.Option(metavar="SEED", help="Put the images into a random order first.")]
BatchSize = Annotated[int | None, typer.Option(help="Images at a time; found by itself if not given.")]
Seed = Annotated[int, typer.Option(help="The seed of everything random.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, ...; the fastest there is by default.")]


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
    records: Annotated[
        list[str], typer.Argument(metavar="RECORD...", help="Record files, or names of bundled records.")
    ],
    validation: Annotated[int, typer.Option(help="Images to fit on; the rest is tested on.")] = 1000,
    splits: Annotated[int, typer.Option(help="How often to split anew; the first takes the rows as they stand.")] = 1,
    methods: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="Only these methods; all of them by default.")
    ] = None,
    fit: Annotated[
        str | None, typer.Option(metavar="RECORD", help="Fit on all of this record, test on all of the others.")
    ] = None,
    json_file: Json = None,
    report_file: Report = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown, to paste into a document.")] = False,
    intervals: Intervals = False,
) -> None:
    """Fit methods on validation images, test them on the rest, and print the paper's table.

    The best of each column is bold, among the methods that keep the class. Over several splits, mean ± half the
    width of the 95 % interval of the mean. ✓ and ✗ are surely better or worse than vanilla: the interval of the
    difference, by the bootstrap over the test images, excludes 0.
    """
    results = run_comparison(
        records, methods, validation=validation, splits=splits, fit=fit, cost=report_file is not None
    )
    from atta.paper.page import (
        interval_table,  # now that torch is there: a mistake in the arguments need not wait for it
    )

    write = formatted("markdown" if markdown else "table")
    for name in results.names("dataset"):
        write(comparison_table(results, name))
        if intervals:
            write(interval_table(results.where(experiment=name), title=f"{name}: how sure", metrics=COMPARED))
    if json_file is not None:
        say(f"numbers: {results.save(json_file)}")
    write_page(results, report_file)


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
    limit = dict(calibrator.named_buffers()).get("limit")
    if limit is not None and float(limit) == 0:
        err.print("The views do not help on these images: their share is 0, and the probabilities stay as they were.")
    passes = calibrator.passes(source.predictions).double().mean().item()
    out.print(
        f"{method} fitted on {len(source)} images of {source.predictions.classes} classes, {passes:.3g} passes an image: "
        f"{calibrator.save(output)}"
    )


@commands.command()
def evaluate(
    record: RecordArgument,
    calibrator: Annotated[Path, typer.Option(metavar="FILE", help="What `atta fit` wrote.")],
    rows: Rows = None,
    json_file: Json = None,
) -> None:
    """Evaluate a fitted calibrator on a record, beside the network as it is."""
    from atta.calibrators import Vanilla, load
    from atta.experiments.experiment import measure

    fitted, source = load(calibrator), read_record(record, rows)
    name = Path(record).stem
    with waiting("evaluating"):
        before = Vanilla().fit(source.predictions, source.require_labels())
        measured = {c.method.name: measure(c, source) for c in (before, fitted)}
    found = (Row(dataset=name, method=m, metric=k, value=v) for m, ks in measured.items() for k, v in ks.items())
    results = Results(tuple(found))
    show(metrics_table(results, name))
    if json_file is not None:
        out.print(f"numbers: {results.save(json_file)}")


@commands.command()
def train(
    dataset: Annotated[
        str, typer.Argument(help="cifar10, cifar100, aid, digits, ... or the name of a folder under --data.")
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FOLDER", help="Where the model and checkpoints go.")
    ],
    data: Data = None,
    model: Annotated[str, typer.Option(help="resnet50, resnet18 or small_cnn.")] = "resnet50",
    image_size: ImageSize = None,
    steps: Annotated[int | None, typer.Option(help="Updates in all, instead of the recipe's.")] = None,
    settings: RecipeSet = None,
    seed: Seed = 0,
    device: Device = None,
    compile: Annotated[bool, typer.Option(help="Compile the network first.")] = False,
    resume: Annotated[bool, typer.Option(help="Go on from a checkpoint in the folder.")] = True,
) -> None:
    """Train a network by the one recipe of all experiments; stopped, it goes on from its checkpoint."""
    from atta.images.datasets import load
    from atta.networks.training import Recipe
    from atta.networks.training import train as run

    recipe = Recipe.of(**read_settings(settings), **({} if steps is None else {"steps": steps}))

    with waiting(f"reading {dataset}"):
        train_set = load(dataset, "train", data=data, image_size=image_size).decoded()
        test_set = load(dataset, "test", data=data, image_size=image_size).decoded()
    with resumable(output):
        result = run(
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
            on_epoch=None
            if out.is_terminal
            else lambda e: print(f"epoch {e.epoch}/{e.of} loss {e.loss:.4f}", flush=True),
        )
    out.print(f"{model} on {dataset}: test accuracy {result.accuracy:.2%}: {result.path}")


@commands.command()
def collect(
    model: ModelArgument,
    dataset: Annotated[str, typer.Argument(help="A dataset by name, or a folder of images.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Where to write the record.")],
    policy: Annotated[str, typer.Option(help='A policy by name, or as text: "flip + 5 crop".')] = "aug8",
    split: Split = "test",
    data: Data = None,
    image_size: ImageSize = None,
    columns: Columns = None,
    shuffle: Shuffle = None,
    shift: Annotated[
        int | None, typer.Option(metavar="SEED", help="Add the noise and blur of CIFAR-10* first.")
    ] = None,
    rows: Rows = None,
    seed: Seed = 0,
    draws: Annotated[str, typer.Option(help="random, as in the paper, or stratified.")] = "random",
    device: Device = None,
    batch_size: BatchSize = None,
    autocast: Annotated[bool, typer.Option(help="Run the network in bfloat16.")] = False,
    channels_last: Annotated[bool, typer.Option(help="Lay the images out channels last.")] = False,
    compile: Annotated[bool, typer.Option(help="Compile the network first.")] = False,
    half: Annotated[bool, typer.Option(help="Store the logits in float16.")] = False,
) -> None:
    """Run a network over images and their views, and write the record. Stopped, it goes on where it was."""
    from atta.collection.collect import collect as run
    from atta.collection.shards import beside
    from atta.images.datasets import arrange

    arrangement: dict[str, Any] = {"shuffle": shuffle, "rows": rows, "shift": shift}
    with waiting(f"reading {dataset}"):
        images = read_images(dataset, split, data=data, image_size=image_size, columns=columns)
        images = arrange(images, **arrangement | {"rows": None if rows is None else read_rows(rows)})
        network, about = read_model(model)
    with beside(output) as shards, resumable(shards):
        record = run(
            network,
            images,
            policy=policy,
            seed=seed,
            draws=draws,
            device=device or fastest(),
            batch_size=batch_size,
            autocast=autocast,
            channels_last=channels_last,
            compile=compile,
            shards=shards,
            origin={
                **about,
                "split": split,
                **{key: str(value) for key, value in arrangement.items() if value is not None},
            },
        )
        path = record.save(output, half=half)
    out.print(f"{record.predictions}: {path}")


@commands.command()
def search(
    records: Annotated[
        list[str], typer.Argument(metavar="RECORD...", help="Records of the same images, or names of bundled ones.")
    ],
    budget: Annotated[int, typer.Option(help="The most passes an image may take, itself included.")] = 4,
    method: Annotated[str, typer.Option(help="One of `atta methods` that looks at views.")] = "c-atta",
    settings: Set = None,
    rows: Rows = None,
    test: Annotated[
        str | None, typer.Option(metavar="FROM:TO", help="Also fit on all searched rows and test on these.")
    ] = None,
    folds: Annotated[int, typer.Option(help="Parts that the images are dealt into, each held out once.")] = 5,
    seed: Seed = 0,
    greedy: Annotated[bool, typer.Option("--greedy", help="Also put passes together freely, which over-fits.")] = False,
    json_file: Json = None,
) -> None:
    """Choose the policy of views from records: the fewest passes within one standard error of the best.

    The policies of the library are judged by the NLL of images that their fits did not see. A record of stratified draws holds
    a random view only with the repeats it was made with; give several records where policies differ in those.
    """
    from atta.calibrators import find_method
    from atta.experiments.search import Pool, explore

    chosen = find_method(method, **read_settings(settings))
    whole = Pool.of([read_record(name) for name in records])
    searched, tested = read_parts(len(whole), rows, test)
    with waiting("searching"):
        found = explore(
            whole[searched],
            budget=budget,
            method=chosen,
            folds=folds,
            seed=seed,
            free=greedy,
            test=None if tested is None else whole[tested],
        )
    show(search_table(found))
    if found.missing:
        within = len(found.missing) + len(found.candidates)
        say(f"{len(found.missing)} of {within} policies within the budget are not in these records")
    if greedy:
        say(
            "warning: a greedy search over-fits a small validation set; its NLL is the least of many that were looked at, and "
            "too good for new images"
        )
    given = "".join(f" --set {text}" for text in settings or [])
    out.print(
        f"atta calibrate MODEL DATASET -o FOLDER --method {method}{given} --policy {found.choice.policy}",
        soft_wrap=True,
    )
    if json_file is not None:
        name = Path(records[0]).stem
        say(f"numbers: {found.results(name, method=method, images=len(whole[searched])).save(json_file)}")


@commands.command()
def calibrate(
    model: ModelArgument,
    dataset: Annotated[str, typer.Argument(help="A dataset by name, or a folder of images with one for each class.")],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="PATH", help="Where to write it: a folder, or FILE.safetensors."),
    ],
    policy: Annotated[str, typer.Option(help='auto, the name of a policy, or one as text: "flip + 2 shift".')] = "auto",
    budget: Annotated[int, typer.Option(help="The most passes an image that `auto` may take.")] = 4,
    method: Annotated[str, typer.Option(help="One of `atta methods`.")] = "c-atta",
    settings: Set = None,
    split: Split = "test",
    data: Data = None,
    image_size: ImageSize = None,
    columns: Columns = None,
    shuffle: Shuffle = None,
    rows: Rows = None,
    device: Device = None,
    batch_size: BatchSize = None,
    autocast: Annotated[bool, typer.Option(help="Record the views in bfloat16.")] = False,
) -> None:
    """Make a calibrated classifier of a network and labelled images that it was not trained on, and write it.

    What is printed is cross-validated: each image is judged by a fit that did not see it.
    """
    from atta.calibrators import find_method
    from atta.deploy.calibrate import calibrate as run
    from atta.images.datasets import arrange

    read_output(output)
    chosen = find_method(method, **read_settings(settings))
    with waiting(f"reading {dataset}"):
        images = read_images(dataset, split, data=data, image_size=image_size, columns=columns)
        images = arrange(images, shuffle=shuffle, rows=None if rows is None else read_rows(rows))
        network, _ = read_model(model)
    classifier = run(
        network,
        images,
        policy=policy,
        budget=budget,
        method=chosen,
        device=device or fastest(),
        batch_size=batch_size,
        autocast=autocast,
        progress=err.is_terminal,
    )
    out.print(str(classifier.summary), markup=False, highlight=False, soft_wrap=True)
    say(f"classifier: {classifier.save(output)}")


@commands.command()
def export(
    classifier: Annotated[Path, typer.Argument(metavar="CLASSIFIER", help="What `atta calibrate` wrote.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Where to: .onnx or .pt2.")],
    pixels: Annotated[str, typer.Option(help="What the graph takes: float32 in [0, 1], or uint8.")] = "float32",
    opset: Annotated[int | None, typer.Option(help="The version of ONNX's operators; torch's by default.")] = None,
    model: OwnModel = None,
) -> None:
    """Write a classifier as one graph, views and calibration included, and hold it against the classifier."""
    from atta.deploy.classifier import CalibratedClassifier

    loaded = CalibratedClassifier.load(classifier, None if model is None else read_model(model)[0])
    with waiting("exporting"):
        written = loaded.export(output, pixels=pixels, opset=opset)
    out.print(str(written), markup=False, highlight=False, soft_wrap=True)


@commands.command()
def predict(
    classifier: Annotated[Path, typer.Argument(metavar="MODEL", help="What `atta calibrate` or `atta export` wrote.")],
    images: Annotated[list[Path], typer.Argument(metavar="IMAGES...", help="Files, and folders to walk through.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Where to: .csv, .jsonl or .parquet.")],
    probs: Annotated[bool, typer.Option("--probs", help="Also the probability of each class.")] = False,
    model: OwnModel = None,
    device: Device = None,
    batch_size: BatchSize = None,
) -> None:
    """Predict files of images: class, calibrated confidence, entropy in nats, and the network's own confidence.

    Images are resized and made grey or RGB as the classifier expects. Files that cannot be read have no row and are named at
    the end, with exit code 1. Stopped, the same command goes on.
    """
    from atta.deploy import predict as predicting
    from atta.deploy.graphs import SUFFIXES

    predicting.check_format(output)
    files = predicting.find_images(images)
    with waiting(f"reading {classifier}"):
        network = None if model is None else read_model(model)[0]
        where = device if classifier.suffix in SUFFIXES else device or fastest()
        predictor = predicting.open_predictor(classifier, network, device=where)
    with resumable(predicting.beside(output)):
        done = predicting.predict(
            predictor,
            files,
            output,
            made_by=predicting.identity(classifier),
            probs=probs,
            batch_size=batch_size,
            progress=err.is_terminal,
        )
    if done.resized:
        say(f"resized to {' x '.join(map(str, predictor.shape[1:]))}: {done.resized} of {done.images} images")
    out.print(str(done), markup=False, highlight=False, soft_wrap=True)
    for reason in done.unreadable.values():
        say(f"left out: {reason}")
    if done.unreadable:
        raise typer.Exit(1)


@commands.command()
def run(
    experiment: Annotated[Path, typer.Argument(metavar="FILE", help="An experiment, as those in experiments/.")],
    records: RecordsFolder = None,
    splits: Splits = None,
    validation: Validation = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Also write the numbers to this file.")
    ] = None,
    report_file: Report = None,
    style: Annotated[str, typer.Option("--format", help="table, markdown, csv or latex.")] = "table",
    intervals: Intervals = False,
) -> None:
    """Run one experiment from its TOML file, on records by name, and print its table.

    ✓ and ✗ are surely better or worse than vanilla: the interval of the difference, by the bootstrap over the test
    images, excludes 0.
    """
    from atta.experiments.experiment import Experiment
    from atta.paper.page import interval_table, own_table

    write = formatted(style)
    chosen = Experiment.read(experiment).changed(splits=splits, validation=validation)
    results = run_experiment(chosen, records)
    if output is not None:
        say(f"numbers: {results.save(output)}")
    write(own_table(results, chosen))
    if intervals:
        write(interval_table(results, title=f"{chosen.title or chosen.name}: how sure"))
    write_page(results, report_file, title=chosen.title)


@commands.command()
def reproduce(
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only these: shift-cifar10, shift, '*-cifar10'; may be repeated."),
    ] = None,
    records: RecordsFolder = None,
    data: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Make missing records from the datasets here; also $ATTA_DATA."),
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FOLDER", help="Where numbers, fits and networks go.")
    ] = Path("atta-reproduce"),
    splits: Splits = None,
    validation: Validation = None,
    page: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write all of it as a Markdown page.")] = None,
    report_file: Report = None,
    model: Annotated[str, typer.Option(help="The network to train where a record is missing.")] = "resnet50",
    steps: Annotated[int | None, typer.Option(help="Updates of its training, instead of the recipe's.")] = None,
    image_size: ImageSize = None,
    device: Device = None,
) -> None:
    """Reproduce the paper: every table and figure from records, beside the published numbers, and its conclusions checked.

    Records are found in --records, or made from --data by training the network and recording its views; without either, those
    that come with the package are used. What cannot be had is skipped with a line. Stopped, the same command goes on.
    """
    from atta.experiments.provenance import cores, machine
    from atta.paper.claims import claims_table
    from atta.paper.page import against, own_table, results_page
    from atta.paper.reproduce import Making, Places, find_experiments
    from atta.paper.reproduce import reproduce as run_all
    from atta.results.words import dataset_name

    chosen = [e.changed(splits=splits, validation=validation) for e in find_experiments(only or [])]
    making = Making(
        model=model, steps=steps, image_size=image_size, validation=validation, device=device, progress=err.is_terminal
    )
    with resumable(output):
        places = Places(output=output, records=records, data=data)
        done = run_all(chosen, places, making, say=say, bar=bar, workers=cores())
    for experiment in done.experiments:
        show(own_table(done.results, experiment))
        for first in (False, True):
            table = against(done.results, experiment, first=first)
            if table is not None:
                show(table)
    if not done.experiments:
        raise InputError("nothing could be run: see the lines above")
    checked = claims_table(done.results, names=dataset_name)
    if checked.cells:
        show(checked)
    out.print(f"numbers: {output / 'results.json'}")
    if page is not None:
        with whole_file(page) as part:
            part.write_text(results_page(done, machine(), command=" ".join(["atta", *sys.argv[1:]])), encoding="utf-8")
        out.print(f"page: {page}")
    write_page(done.results, report_file, title="The paper, reproduced")


@commands.command()
def report(
    results: Annotated[Path, typer.Argument(metavar="RESULTS", help="What compare --json, run -o or reproduce wrote.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The page to write.")] = Path(
        "report.html"
    ),
    title: Annotated[str, typer.Option(help="What stands above it.")] = "",
) -> None:
    """Turn results into one HTML page that opens offline, for people who were not there."""
    write_page(Results.load(results), output, title=title)


@commands.command()
def demo(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FOLDER", help="Where everything is written.")
    ] = Path("atta-demo"),
) -> None:
    """Show the whole chain: train a small network, record its views, compare every method; then a ResNet-50 on CIFAR-10."""
    from atta.calibrators import METHODS
    from atta.cli.demo import EXPERIMENT, digits, thumbnails
    from atta.experiments.experiment import compare as compare_records
    from atta.paper.page import own_table
    from atta.paper.reproduce import find_experiments

    out.rule("1 · End to end on scikit-learn's digits", align="left")
    record, paths, images = digits(output, say=out.print)
    everything = [method() for method in METHODS.values()]
    with bar("comparing", 3 * len(everything)) as advance:
        results = compare_records({"digits": record}, everything, validation=300, splits=3, cost=True, done=advance)
    show(comparison_table(results, "digits"))
    out.print(
        "Eight by eight pixels and a handful of mistakes: the chain is the point here, the numbers are mostly noise.\n"
    )
    paths["numbers"] = results.save(output / "digits.json")
    pictures = thumbnails(results, "digits", images, 300)

    out.rule("2 · A ResNet-50 on CIFAR-10, from a record that comes with the package", align="left")
    out.print(
        f"The paper's methods with all of its views, 17 passes an image, and ours with few (experiments/{EXPERIMENT}.toml): "
        "1000 images to fit on, 9000 to test on. The network itself is not needed."
    )
    (chosen,) = find_experiments([EXPERIMENT])
    chosen = chosen.changed(splits=3)
    cifar = run_experiment(chosen)
    show(own_table(cifar, chosen))
    paths["CIFAR-10 numbers"] = cifar.save(output / f"{EXPERIMENT}.json")
    out.print(
        "In bold: the best of the methods that keep every predicted class. class_changes counts the others' changes."
    )
    for what, path in paths.items():
        out.print(f"{what}: {path}")
    write_page(cifar, output / "report.html", title="A ResNet-50 on CIFAR-10")
    write_page(results, output / "digits.html", title="A small network on digits", pictures=pictures)


@commands.command()
def figure(
    name: Annotated[
        str,
        typer.Argument(
            help="reliability, confidence, weights, shares, per-class, ranking, entropy, sizes or cost.",
        ),
    ],
    results: Annotated[Path, typer.Argument(metavar="RESULTS", help="A file of numbers, as the commands write them.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Where to: .svg, .png, .pdf, .json or .html.")
    ],
    method: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only this method; may be repeated.")] = None,
    dataset: Annotated[str | None, typer.Option(metavar="NAME", help="Only this dataset.")] = None,
    experiment: Annotated[str | None, typer.Option(metavar="NAME", help="Only this experiment.")] = None,
    validation: Annotated[int | None, typer.Option(metavar="IMAGES", help="Only fits on so many images.")] = None,
    metric: Annotated[str, typer.Option(help="Instead of the usual metric of the figure.")] = "",
    dark: Annotated[bool, typer.Option("--dark", help="For a dark background.")] = False,
) -> None:
    """Draw a figure from results."""
    from atta.figures.catalogue import figure as draw
    from atta.figures.write import picture

    found = Results.load(results)
    chart = draw(
        name,
        found,
        metric=metric,
        dark=dark,
        method=method,
        dataset=dataset,
        experiment=experiment,
        validation=validation,
    )
    out.print(f"figure: {picture(chart, output)}")


# --- What the commands share --------------------------------------------


def run_experiment(chosen: Experiment, records: Path | None = None) -> Results:
    """Run an experiment on records in a folder, or on those that come with the package, with a bar."""
    from tempfile import TemporaryDirectory

    from atta.experiments.experiment import planned
    from atta.experiments.experiment import run as run_all
    from atta.experiments.fits import Fits
    from atta.experiments.provenance import cores
    from atta.paper.reproduce import Places, find_records, load_records

    loaded = load_records(find_records([chosen], Places(output=Path(), records=records, own=False)))
    with TemporaryDirectory() as folder, bar(chosen.name, planned(chosen, loaded)) as advance:
        return run_all(chosen, loaded, fits=Fits(loaded, Path(folder), cores()), done=advance)


def run_comparison(
    records: list[str],
    methods: str | None,
    *,
    validation: int,
    splits: int,
    fit: str | None = None,
    cost: bool = False,
) -> Results:
    """Compare methods on records, with a bar; methods that need views a record lacks are named and left out."""
    from atta.calibrators import METHODS, find_method
    from atta.experiments.experiment import compare

    names = [name.strip() for name in methods.split(",")] if methods else list(METHODS)
    chosen = [find_method(name) for name in names]
    loaded = {Path(name).stem: read_record(name) for name in records}
    if len(loaded) < len(records):
        raise InputError(f"expected records with different names, got {', '.join(records)}")
    fit_on = read_record(fit) if fit else None
    for name, record in loaded.items() if fit_on is None else ():
        if not 0 < validation < len(record):
            most = len(record) - 1
            raise InputError(f"{name} has {most + 1} images: expected --validation from 1 to {most}, got {validation}")
    chosen = usable(chosen, [*loaded.values(), *([fit_on] if fit_on else [])], explicit=methods is not None)
    total = len(chosen) * len(loaded) * (1 if fit_on else splits)
    with bar("comparing", total) as advance:
        return compare(loaded, chosen, validation=validation, splits=splits, fit_on=fit_on, cost=cost, done=advance)


def write_page(results: Results, path: Path | None, *, title: str = "", pictures: Any = None) -> None:
    """Write the report, if one is asked for, and say where it is."""
    if path is None:
        return
    from atta.paper.beside import paper_tables
    from atta.report.page import write_report

    written = write_report(results, path, title=title, pictures=pictures, tables=paper_tables(results))
    say(f"report: {written}")


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


def formatted(style: str) -> Callable[[Table], None]:
    """Return what prints a table in that style."""
    styles: dict[str, Callable[[Table], None]] = {
        "table": show,
        "markdown": lambda table: print("\n\n".join(filter(None, (table.markdown(), table.legend))), end="\n\n"),
        "csv": lambda table: print(table.csv(), end=""),
        "latex": lambda table: print(table.latex()),
    }
    if style not in styles:
        raise InputError(f"--format takes {', '.join(styles)}, got {style!r}")
    return styles[style]


def comparison_table(results: Results, dataset: str) -> Table:
    """Lay the comparison out as the paper does."""
    from atta.calibrators import METHODS

    keeps = {name for name, method in METHODS.items() if method().keeps_class}
    results = results.where(experiment=dataset)  # without what each pass buys, which is an experiment of its own
    return comparison(
        results,
        dataset,
        metrics=COMPARED,
        better=BETTER,
        eligible=keeps.__contains__,
        digits=DIGITS,
        baseline="vanilla",
    )


def search_table(found: Findings) -> Table:
    """Lay the candidates of a search out, the choice first, the greedy one last."""
    cells, metrics = [], list(found.tested.get(found.choice.policy, {}))
    for one in found.rows:
        mark = "chosen" if one is found.choice else "greedy, selected on this NLL" if one is found.free else ""
        measured = (f"{found.tested[one.policy][metric]:.4f}" for metric in metrics)
        above = f"{one.above:.4f} ± {one.error:.4f}"
        cells.append((one.policy, str(one.passes), f"{one.nll:.4f}", above, *measured, mark))
    header = (
        "policy",
        "passes",
        "cross-validated NLL",
        "above the best",
        *(f"test {metric}" for metric in metrics),
        "",
    )
    return Table("Policies by cross-validation, ± one standard error", header, tuple(cells))


def metrics_table(results: Results, dataset: str) -> Table:
    """Lay every metric out as a row, a method a column."""
    methods = results.names("method")
    cells = []
    for metric in results.names("metric"):
        row = [results.summary(method=method, metric=metric) for method in methods]
        cells.append((metric, *(f"{summary.mean:.5g}" if summary else "–" for summary in row)))
    return Table(dataset, ("metric", *methods), tuple(cells))
