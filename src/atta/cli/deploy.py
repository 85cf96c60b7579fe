"""Commands for a calibrated classifier: calibrate, export, predict, serve, drift and adapt."""

from __future__ import annotations

import json
import webbrowser
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Exit, Option

import atta
from atta._base.errors import InputError
from atta.cli.options import (
    Actors,
    BatchSize,
    ClassifierArgument,
    Engine,
    Json,
    ModelArgument,
    Network,
    Output,
    OwnModel,
    Photographs,
    Running,
    Set,
    Source,
    check_output,
    grouped,
    read_settings,
)
from atta.cli.terminal import err, resumable, say, say_written, tell, waiting, write_numbers

Risk = Annotated[
    float | None, Option(help="Answer only where at most this part is wrong: 0.01; else unsure.")
]
if TYPE_CHECKING:
    from atta.classifier.predict import Predicted

Files = Annotated[
    list[str],
    Argument(metavar="IMAGES...", help="Files, folders at any depth, and addresses (s3://...)."),
]
OwnMethod = Annotated[
    str | None, Option(help="One of `atta methods`; by default c-atta, with --set shrink=true.")
]
Quick = Annotated[
    bool, Option("--quick", help="Compare the default views with temperature scaling only.")
]


@dataclass(frozen=True)
class Masked:
    """Label maps of the images, for a segmenter."""

    masks: Annotated[
        Path | None,
        Option(
            metavar="FOLDER",
            help="Label maps of the images, by name: calibrate a segmenter.",
            exists=True,
            file_okay=False,
        ),
    ] = None
    ignore_index: Annotated[int, Option(help="The number in masks of pixels without a class.")] = (
        255
    )


@grouped
def calibrate(
    model: ModelArgument,
    dataset: Annotated[str, Argument(help="A dataset by name, or a folder of class folders.")],
    output: Output,
    *,
    policy: Annotated[str, Option(help='auto, a name, or text: "flip + 2 shift".')] = "auto",
    budget: Annotated[int, Option(help="Most passes per image that `auto` may choose.")] = 4,
    method: OwnMethod = None,
    settings: Set = None,
    quick: Quick = False,
    masked: Masked,
    source: Source,
    photographs: Photographs,
    running: Running,
) -> None:
    """Turn a network into a calibrated classifier with labelled images it was not trained on.

    It is written as a folder or FILE.safetensors. The printed numbers are cross-validated. With
    --masks, DATASET is a folder of images, and the network answers every pixel.
    """
    from atta.classifier import calibrate as calibrating
    from atta.lab.recipe import find_model

    check_output(output)
    how, preprocess, wanted = running.read(), photographs.read(), read_settings(settings)
    chosen = (
        atta.find_method(method or "c-atta", **wanted) if method or wanted else calibrating.DEFAULT
    )
    views = policy if policy == "auto" else atta.Policy.parse(policy)
    with waiting(f"reading {dataset}"):
        images = dataset if masked.masks else source.read(dataset)[0]
        network, _ = find_model(model)
    classifier = calibrating.calibrate(
        network,
        images,
        masked.masks or source.labels,
        policy=views,
        budget=budget,
        class_names=source.class_names(),
        skip_bad=source.skip_bad,
        method=chosen,
        preprocess=preprocess,
        effort="quick" if quick else "full",
        ignore_index=masked.ignore_index,
        **how,
    )
    _write(classifier, output, model)


def _write(classifier: atta.CalibratedClassifier, output: Path, model: str) -> None:
    """Save a classifier, and say what it gains and what is not saved."""
    from atta.networks.description import describe, inside

    try:
        path = classifier.save(output)
    finally:
        tell(str(classifier.summary), folded=True)
    say_written(classifier=path)
    if classifier.summary is not None:
        tell(classifier.summary.verdict)
    if inside(describe(classifier.model))["kind"] == "other":
        say(f"the network's code is not saved: other commands take --model {model} as well")


def export(
    classifier: ClassifierArgument,
    output: Output,
    pixels: Annotated[str, Option(help="Input: float32 in [0, 1], or uint8.")] = "float32",
    opset: Annotated[
        int | None, Option(help="The version of ONNX's operators; by default torch's.")
    ] = None,
    risk: Risk = None,
    model: OwnModel = None,
) -> None:
    """Export a classifier with its views as one .onnx or .pt2 graph, and compare the answers."""
    loaded = Network(model, "cpu").load(classifier)
    loaded = loaded if risk is None else loaded.at_risk(risk)
    with waiting("exporting"):
        written = loaded.export(output, pixels=pixels, opset=opset)
    tell(str(written))


@grouped
def predict(
    classifier: ClassifierArgument,
    images: Files,
    output: Output,
    *,
    probs: Annotated[bool, Option("--probs", help="Add the probability of each class.")] = False,
    coverage: Annotated[float | None, Option(help="Add class sets of this coverage: 0.95.")] = None,
    risk: Risk = None,
    adapt: Annotated[bool, Option("--adapt", help="First adapt to these images.")] = False,
    classes: Annotated[
        str | None, Option(help="Classes that occur: cat,dog or, with shares, cat=0.9,dog=0.1.")
    ] = None,
    network: Network,
    batch_size: BatchSize = None,
    engine: Engine = None,
    actors: Actors = None,
) -> None:
    """Write a table of predictions as .csv, .jsonl or .parquet. The same command resumes.

    Columns: class, confidence (that it is right), entropy in nats, the network's own confidence,
    and ood, the share of validation images that are less unusual: near 1, the image is unlike them.
    Photographs are preprocessed as for calibration. Unreadable files have no row; they are named,
    with exit code 1. A segmenter also writes label maps and 16-bit confidence maps, as PNG files in
    a folder with the name of the table.
    """
    from atta.classifier import predict as predicting
    from atta.classifier.export import SUFFIXES
    from atta.data.folder import find_images

    predicting.check_format(output)
    if engine is not None and classifier.suffix in SUFFIXES:
        raise InputError(f"--engine: expected what `atta calibrate` wrote, got {classifier.name}")
    files = find_images(images)
    predictor = network.open(classifier, files if adapt else [], risk, classes)
    told = (" adapted" if adapt else "") + (f" {classes}" if classes else "")
    with resumable(predicting.beside(output)):
        done = predicting.predict(
            predictor,
            files,
            output,
            made_by=predicting.identity(classifier) + told,
            probs=probs,
            coverage=coverage,
            batch_size=batch_size,
            progress=err.is_terminal,
            engine=engine,
            actors=actors,
        )
    _tell_predicted(done)


def _tell_predicted(done: Predicted) -> None:
    """Summarise the table, and name the files that it leaves out."""
    for sentence in (str(done), *done.sentences):
        tell(sentence)
    for reason in done.unreadable.values():
        say(f"left out: {reason}")
    if done.unreadable:
        raise Exit(1)


COVERAGE = 0.95  # of the sets on the page, by default


@grouped
def serve(
    classifier: ClassifierArgument,
    *,
    coverage: Annotated[
        float | None,
        Option(help=f"How often the sets contain the true class; {COVERAGE} if possible."),
    ] = None,
    risk: Risk = None,
    port: Annotated[int, Option(help="Port; 0 takes a free one.", min=0, max=65535)] = 8000,
    host: Annotated[
        str, Option(help="Address; any but this machine's lets others in, without a password.")
    ] = "127.0.0.1",
    browser: Annotated[
        bool | None, Option(help="Open a browser; by default if this is a terminal.")
    ] = None,
    network: Network,
) -> None:
    """Serve a page that answers images dropped on it: views, confidence, set and passes.

    Nothing is written. Only this machine has access, unless `--host` is given. Ctrl-C ends it.
    """
    from atta.classifier.serve import Explainer, TryIt, is_here

    predictor, note = network.open(classifier, adapt_to=[], risk=risk), ""
    try:
        explainer = Explainer(
            predictor, coverage=COVERAGE if coverage is None else coverage, views=True
        )
    except InputError as error:
        if coverage is not None:
            raise
        explainer, note = Explainer(predictor, views=True), f"No sets: {error}."
    page = TryIt(explainer, host=host, port=port, title=classifier.resolve().name, note=note)
    if not is_here(host):
        say(
            f"warning: everyone who reaches this machine at {host} can use the page: it has no "
            "password and no encryption"
        )
    tell(page.url)
    if err.is_terminal if browser is None else browser:
        webbrowser.open(page.url)
    with suppress(KeyboardInterrupt):
        page.run()


@grouped
def drift(
    classifier: ClassifierArgument,
    images: Files,
    *,
    json_file: Json = None,
    picture: Annotated[
        Path | None,
        Option(metavar="FILE", help="Also draw a .svg, .png, .pdf, .json or .html file."),
    ] = None,
    network: Network,
) -> None:
    """Compare unlabelled images with the validation images: estimated accuracy, and drift.

    It needs 32 images or more. Files that cannot be read are named and left out. The false-alarm
    rate of the test is 1 %.
    """
    from atta.data.folder import find_images

    files = find_images(images)
    loaded = network.load(classifier)
    found = loaded.drift(files, progress=err.is_terminal)
    numbers = write_numbers(json_file, json.dumps(found.json(), indent=2) + "\n")
    if picture is not None:
        from atta.report.figures.detail import drift as chart
        from atta.report.figures.theme import picture as draw

        draw(chart(found.json()), picture)
    say_written(numbers=numbers, picture=picture)
    tell(found.sentence)


@grouped
def adapt(
    classifier: ClassifierArgument,
    images: Files,
    output: Output,
    *,
    statistics: Annotated[
        bool,
        Option("--statistics", help="Also use their batch normalisation statistics, a pass more."),
    ] = False,
    network: Network,
) -> None:
    """Recalibrate a classifier for 32 or more unlabelled images; it predicts the same classes.

    `--statistics` is for the same classes, in similar shares, under another camera, light or
    weather. It is not used where the estimate or a guard speaks against it.
    """
    from atta.data.folder import find_images

    check_output(output)
    files = find_images(images)
    loaded = network.load(classifier)
    adapted = loaded.adapt(files, statistics=statistics, progress=err.is_terminal)
    say_written(classifier=adapted.save(output))
    tell(str(adapted.adapted))
