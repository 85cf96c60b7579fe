"""The command demo: commands that anyone can type, from training to a report."""

from __future__ import annotations

import shlex
from pathlib import Path

from atta._base.errors import MissingExtra
from atta.cli.options import Output
from atta.cli.terminal import out, say, tell

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
