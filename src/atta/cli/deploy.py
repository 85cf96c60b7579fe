"""Commands about a calibrated classifier: make one, export it, let it predict files, try it on a page."""

from __future__ import annotations

import webbrowser
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from atta._base.errors import InputError
from atta.cli.arguments import read_device, read_engine, read_model, read_output, read_settings
from atta.cli.options import (
    ANY,
    AS_THEY_ARE,
    Actors,
    BatchSize,
    Device,
    Engine,
    ModelArgument,
    OwnModel,
    Photographs,
    Rows,
    Set,
    Source,
    grouped,
)
from atta.cli.terminal import err, resumable, say, say_written, tell, waiting


@grouped
def calibrate(
    model: ModelArgument,
    dataset: Annotated[
        str,
        typer.Argument(help="A dataset by name, or a folder of images with one for each class."),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="PATH",
            help="Where to write it: a folder, or FILE.safetensors.",
        ),
    ],
    policy: Annotated[
        str, typer.Option(help='auto, the name of a policy, or one as text: "flip + 2 shift".')
    ] = "auto",
    budget: Annotated[int, typer.Option(help="The most passes an image that `auto` may take.")] = 4,
    method: Annotated[str, typer.Option(help="One of `atta methods`.")] = "c-atta",
    settings: Set = None,
    source: Source = ANY,
    photographs: Photographs = AS_THEY_ARE,
    rows: Rows = None,
    device: Device = None,
    batch_size: BatchSize = None,
    autocast: Annotated[bool, typer.Option(help="Record the views in bfloat16.")] = False,
) -> None:
    """Make a calibrated classifier of a network and labelled images that it was not trained on, and write it.

    What is printed is cross-validated: each image is judged by a fit that did not see it.
    """
    from atta.calibrators import find_method
    from atta.classifier.calibrate import calibrate as run
    from atta.data.views import Policy
    from atta.networks.description import builds_itself, describe

    read_output(output)
    where, preprocess = read_device(device), photographs.read()
    chosen = find_method(method, **read_settings(settings))
    views = policy if policy == "auto" else Policy.parse(policy)
    with waiting(f"reading {dataset}"):
        images, _ = source.read(dataset, rows)
        network, _ = read_model(model)
    classifier = run(
        network,
        images,
        source.labels,
        policy=views,
        budget=budget,
        class_names=source.class_names(),
        skip_bad=source.skip_bad,
        method=chosen,
        preprocess=preprocess,
        device=where,
        batch_size=batch_size,
        autocast=autocast,
        progress=True,
    )
    try:
        path = classifier.save(output)
    finally:
        tell(str(classifier.summary), folded=True)
    say_written(classifier=path)
    if not builds_itself(describe(classifier.model)):
        say(
            f"its network's code is not in it: predict, evaluate, drift, adapt and export take --model {model} as well"
        )


def export(
    classifier: Annotated[
        Path, typer.Argument(metavar="CLASSIFIER", help="What `atta calibrate` wrote.")
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Where to: .onnx or .pt2.")
    ],
    pixels: Annotated[
        str, typer.Option(help="What the graph takes: float32 in [0, 1], or uint8.")
    ] = "float32",
    opset: Annotated[
        int | None, typer.Option(help="The version of ONNX's operators; torch's by default.")
    ] = None,
    model: OwnModel = None,
) -> None:
    """Write a classifier as one graph, views and calibration included, and hold it against the classifier."""
    from atta.classifier.classifier import CalibratedClassifier

    loaded = CalibratedClassifier.load(classifier, None if model is None else read_model(model)[0])
    with waiting("exporting"):
        written = loaded.export(output, pixels=pixels, opset=opset)
    tell(str(written))


def predict(
    classifier: Annotated[
        Path, typer.Argument(metavar="MODEL", help="What `atta calibrate` or `atta export` wrote.")
    ],
    images: Annotated[
        list[Path], typer.Argument(metavar="IMAGES...", help="Files, and folders to walk through.")
    ],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FILE", help="Where to: .csv, .jsonl or .parquet."),
    ],
    probs: Annotated[
        bool, typer.Option("--probs", help="Also the probability of each class.")
    ] = False,
    coverage: Annotated[
        float | None,
        typer.Option(
            help="Also a set of classes that holds the true one so often, such as 0.95, on images like those fitted on."
        ),
    ] = None,
    adapt: Annotated[
        bool, typer.Option("--adapt", help="Adapt to these images first, as `atta adapt` does.")
    ] = False,
    model: OwnModel = None,
    device: Device = None,
    batch_size: BatchSize = None,
    engine: Engine = None,
    actors: Actors = None,
) -> None:
    """Predict files of images: class, calibrated confidence, entropy in nats, and the network's own confidence.

    The column ood is the part of the validation images that the network was surer of: near 1, the image is a stranger.

    Photographs are resized and cropped as those that it was calibrated on, and made grey or RGB.

    Files that cannot be read have no row and are named at
    the end, with exit code 1. Stopped, the same command goes on.
    """
    from atta.classifier import predict as predicting
    from atta.classifier.export import SUFFIXES
    from atta.classifier.tables import check_format
    from atta.data.folder import find_images

    check_format(output)
    read_engine(engine, actors)
    if engine is not None and classifier.suffix in SUFFIXES:
        raise InputError(
            f"--engine ray takes what `atta calibrate` wrote, got {classifier.name}, a graph"
        )
    where = device if classifier.suffix in SUFFIXES else read_device(device)
    files = find_images(images)
    with waiting(f"reading {classifier}"):
        network = None if model is None else read_model(model)[0]
        predictor = predicting.open_predictor(
            classifier, network, device=where, adapt_to=files if adapt else ()
        )
    with resumable(predicting.beside(output)):
        done = predicting.predict(
            predictor,
            files,
            output,
            made_by=predicting.identity(classifier) + (" adapted" if adapt else ""),
            probs=probs,
            coverage=coverage,
            batch_size=batch_size,
            progress=err.is_terminal,
            engine=engine,
            actors=actors,
        )
    tell(str(done))
    if done.drift is not None:
        tell(done.drift.sentence)
    for reason in done.unreadable.values():
        say(f"left out: {reason}")
    if done.unreadable:
        raise typer.Exit(1)


COVERAGE = 0.95  # of the sets of the page, if nobody says otherwise


def serve(
    classifier: Annotated[
        Path,
        typer.Argument(metavar="CLASSIFIER", help="What `atta calibrate` or `atta export` wrote."),
    ],
    coverage: Annotated[
        float | None,
        typer.Option(
            help=f"How often the sets of classes hold the true one; {COVERAGE} where it can be promised."
        ),
    ] = None,
    port: Annotated[
        int, typer.Option(help="Where the page is; 0 takes a free port.", min=0, max=65535)
    ] = 8000,
    host: Annotated[
        str,
        typer.Option(
            help="An address other than this machine's own lets others in, without a password."
        ),
    ] = ("127.0.0.1"),
    browser: Annotated[
        bool | None, typer.Option(help="Open the page in a browser; by default in a terminal.")
    ] = None,
    model: OwnModel = None,
    device: Device = None,
) -> None:
    """Open a page on this machine on which images are dropped and answered: views, confidence before and after, set, passes.

    Nothing is written, and nobody but this machine can ask, unless `--host` says otherwise. Ctrl-C ends it.
    """
    from atta.classifier.export import SUFFIXES
    from atta.classifier.predict import open_predictor
    from atta.classifier.serve import Explainer, TryIt, is_here

    where = device if classifier.suffix in SUFFIXES else read_device(device)
    with waiting(f"reading {classifier}"):
        predictor = open_predictor(
            classifier, None if model is None else read_model(model)[0], device=where
        )
    note = ""
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
            f"warning: whoever reaches this machine at {host} can use the page: it has no password and no encryption"
        )
    tell(page.url)
    if err.is_terminal if browser is None else browser:
        webbrowser.open(page.url)
    with suppress(KeyboardInterrupt):
        page.run()
