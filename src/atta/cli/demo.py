"""The whole chain on one small machine: train, record, save. What `atta demo` shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from atta.calibrators import VATTA
from atta.data.image_set import ImageSet, data_uri
from atta.data.views import Policy
from atta.lab.datasets import load
from atta.lab.fits import Rows
from atta.lab.recipe import Recipe
from atta.lab.training import train
from atta.record.predictions import Record
from atta.results.rows import Results
from atta.run.collect import collect

EXPERIMENT = "past-the-paper-cifar10"
POLICY = "5 crop + 5 brightness + 5 contrast"  # a mirrored digit is no digit: the paper's policy 7


def digits(folder: Path, *, say: Callable[[str], None]) -> tuple[Record, dict[str, Path], ImageSet]:
    """Train a small network on the digits, record its views, fit V-ATTA.

    Returns the record, what was written where, and the test images.
    """
    train_set, test_set = load("digits", "train"), load("digits", "test")
    say(f"Training a small network on {len(train_set)} digits of 8 x 8 pixels ...")
    trained = train(
        "small_cnn",
        train_set,
        test_set=test_set,
        recipe=Recipe(steps=200, batch_size=64),
        output=folder / "network",
        resume=False,
        device="cpu",
        progress=False,
    )
    say(
        f"Test accuracy {trained.accuracy:.1%}. Looking at {len(test_set)} test images through {POLICY} ..."
    )
    record = collect(
        trained.model, test_set, policy=POLICY, progress=False, origin={"dataset": "digits"}
    )
    calibrator = VATTA().fit(record[:300].predictions, record[:300].require_labels())
    assert trained.path is not None
    paths = {
        "network": trained.path,
        "record": record.save(folder / "digits.safetensors"),
        "calibrator": calibrator.save(folder / "v-atta.safetensors"),
    }
    return record, paths, test_set


def thumbnails(
    results: Results, dataset: str, images: ImageSet, validation: int
) -> dict[tuple[str, int], dict[str, str]]:
    """The images that changed the most, and the first of each of their views, for the report on the first split."""
    _, tested = Rows(len(images), validation).drawn()
    wanted = {
        one["row"]
        for detail in results.details
        if (detail["dataset"], detail["validation"], detail["split"]) == (dataset, validation, 0)
        for one in detail["changed"]
    }
    found = {}
    for row in sorted(wanted):
        one = images.subset(tested[row : row + 1])
        pixels = one.tensors().float() / 255
        shown = {
            name: view[0]
            for name, repeat, view in Policy.parse(POLICY).render(pixels, one.indices)
            if repeat == 0
        }
        found[dataset, row] = {
            what: data_uri(image) for what, image in {"image": pixels[0], **shown}.items()
        }
    return found
