"""Commands about images without labels: whether they drifted, and a classifier for their domain."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from atta.cli.arguments import read_device, read_model, read_output
from atta.cli.options import Device, Json, OwnModel
from atta.cli.terminal import say, say_written, tell, waiting, write_numbers

if TYPE_CHECKING:
    from atta.classifier.adapt import Drift
    from atta.classifier.classifier import CalibratedClassifier

ClassifierArgument = Annotated[
    Path, typer.Argument(metavar="CLASSIFIER", help="What `atta calibrate` wrote.")
]
Images = Annotated[
    list[Path],
    typer.Argument(metavar="IMAGES...", help="Files, and folders to walk through; 32 or more."),
]


def drift(
    classifier: ClassifierArgument,
    images: Images,
    json_file: Json = None,
    picture: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also draw it here: .svg, .png, .pdf, .json or .html."),
    ] = None,
    model: OwnModel = None,
    device: Device = None,
) -> None:
    """Hold images without labels against the validation images: their estimated accuracy, and whether they drifted.

    The test calls one in a hundred samples that did not drift drifted.
    """
    loaded, files = _read(classifier, images, model, device)
    with waiting(f"looking at {len(files)} images"):
        found = loaded.drift(files)
    say_written(
        numbers=write_numbers(json_file, json.dumps(found.json(), indent=2) + "\n"),
        picture=_drawn(found, picture),
    )
    tell(found.sentence)


def _drawn(found: Drift, path: Path | None) -> Path | None:
    if path is None:
        return None
    from atta.report.figures.drift import drift as draw
    from atta.report.figures.write import picture

    return picture(draw(found.json()), path)


def adapt(
    classifier: ClassifierArgument,
    images: Images,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="PATH",
            help="Where to write it: a folder, or FILE.safetensors.",
        ),
    ],
    model: OwnModel = None,
    device: Device = None,
) -> None:
    """Write a classifier for the domain of images without labels: of the same classes, and as sure as it is right there."""
    read_output(output)
    loaded, files = _read(classifier, images, model, device)
    with waiting(f"adapting to {len(files)} images"):
        adapted = loaded.adapt(files)
    say(f"classifier: {adapted.save(output)}")
    tell(str(adapted.adapted))


def _read(
    path: Path, images: list[Path], model: str | None, device: str | None
) -> tuple[CalibratedClassifier, list[Path]]:
    from atta.classifier.classifier import CalibratedClassifier
    from atta.data.folder import find_images

    found = find_images(images)
    with waiting(f"reading {path}"):
        network = None if model is None else read_model(model)[0]
        classifier = CalibratedClassifier.load(path, network, device=read_device(device))
    return classifier, found
