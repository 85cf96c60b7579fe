"""The command demo: the whole chain on one small machine, then results of a larger network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from atta._base.errors import MissingExtra
from atta.cli.experiments import run_experiment
from atta.cli.pages import write_page
from atta.cli.records import comparison_table
from atta.cli.terminal import bar, out, say, say_written, show, tell

if TYPE_CHECKING:
    from atta.data.image_set import ImageSet
    from atta.record.predictions import Record

EXPERIMENT = "past-the-paper-cifar10"
POLICY = "5 crop + 5 brightness + 5 contrast"  # the paper's policy 7: digits must not be mirrored


def demo(
    output: Annotated[
        Path, Option("--output", "-o", metavar="FOLDER", help="Where everything is written.")
    ] = Path("atta-demo"),
) -> None:
    """Train a small network, record its views, compare all methods; then show a ResNet-50."""
    from atta.lab.paper.reproduce import find_experiments
    from atta.lab.tables import own_table

    out.rule("1 · End to end on scikit-learn's digits", align="left")
    with _left_out():
        _compare_digits(output)
    out.rule("2 · A ResNet-50 on CIFAR-10, from a bundled record", align="left")
    tell(
        "The paper's methods with 17 passes per image, and ours with few "
        f"(experiments/{EXPERIMENT}.toml): 1000 images to fit on, 9000 to test on. The network "
        "itself is not needed."
    )
    (chosen,) = find_experiments([EXPERIMENT])
    chosen = chosen.changed(splits=3)
    cifar = run_experiment(chosen)
    numbers = cifar.save(output / f"{EXPERIMENT}.json")
    show(own_table(cifar, chosen))
    tell("Bold: the best method that keeps every predicted class. class_changes counts changes.")
    tell(f"CIFAR-10 numbers: {numbers}")
    with _left_out():
        page = write_page(cifar, output / "report.html", title="A ResNet-50 on CIFAR-10")
        say_written(report=page)


@contextmanager
def _left_out() -> Iterator[None]:
    """Leave out a part of the demo whose libraries are not installed, and name them."""
    try:
        yield
    except MissingExtra as error:
        say(f"left out: {error}")


def _compare_digits(output: Path) -> None:
    """Compare all methods on digits, and write the numbers and a page."""
    from atta.calibrators import METHODS
    from atta.lab.compare import compare

    record, paths, images = digits(output)
    methods = [method() for method in METHODS.values()]
    with bar("comparing", 3 * len(methods)) as advance:
        results = compare(
            {"digits": record}, methods, validation=300, splits=3, cost=True, done=advance
        )
    paths["numbers"] = results.save(output / "digits.json")
    show(comparison_table(results, "digits"))
    for what, path in paths.items():
        tell(f"{what}: {path}")
    with _left_out():
        title, shown = "A small network on digits", {"digits": images}
        page = write_page(results, output / "digits.html", title=title, images=shown)
        say_written(report=page)
    tell("The images are tiny and mistakes are few: these numbers are mostly noise.\n")


def digits(folder: Path) -> tuple[Record, dict[str, Path], ImageSet]:
    """Train a small network on digits, record its views, and fit V-ATTA.

    Returns:
        The record, the files that were written, and the test images.
    """
    from atta.calibrators import VATTA
    from atta.lab.datasets import load
    from atta.lab.training.recipe import Recipe
    from atta.lab.training.train import train
    from atta.run.collect import collect

    train_set, test_set = load("digits", "train"), load("digits", "test")
    tell(f"Training a small network on {len(train_set)} digits of 8 x 8 pixels ...")
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
    tell(f"Test accuracy {trained.accuracy:.1%}. Recording {len(test_set)} images: {POLICY} ...")
    origin = {"dataset": "digits"}
    record = collect(trained.model, test_set, policy=POLICY, progress=False, origin=origin)
    calibrator = VATTA().fit(record[:300].predictions, record[:300].require_labels())
    assert trained.path is not None
    paths = {
        "network": trained.path,
        "record": record.save(folder / "digits.safetensors"),
        "calibrator": calibrator.save(folder / "v-atta.safetensors"),
    }
    return record, paths, test_set
