"""docs/reliability.md, and the same table for a terminal."""

from collections.abc import Sequence

from atta.lab.workers import machine
from benchmarks.attack import known
from benchmarks.attack.runner import Outcome

SHOWN = 12  # failures of one attack that are listed; the rest is counted
INTRODUCTION = """\
What happens when something goes wrong: two classes tie, an argument has the wrong type, a file is damaged or forged, the power fails
while a result is saved, the disk is full, two jobs write to the same place, a stranger talks to the server? This page lists what atta
promises, and what one command tried to break these promises: the number of attempts, how many ended as promised, and each that did not.
"""
PROMISES = """\
## What is promised

- **The class is kept.** Every method that says so (`atta methods`) answers each image with the class of the network: the largest logit,
  the first of equal ones. This holds in Python, in a classifier, in exported graphs, in any floating-point type, at any scale of the
  logits. The answer is continuous: a graph or a batch of another size agrees within 1e-5, also near ties. There the answer may move 50
  times as fast as the logits, so float32 and float64 agree within 5e-5.
- **A mistake gets one sentence.** A wrong argument raises `atta.InputError` (a `ValueError`). A wrong word on the command line ends with
  exit code 2. Both say what was expected and what came.
- **Nothing in a file is run.** Files hold numbers and text. Of a pickle (CIFAR's own files) only arrays, lists and text are read. atta
  reads ONNX graphs and no `.pt2` files, which can run code.
- **A damaged file is not used.** Records, calibrators, results, classifiers, checkpoints and logs of predictions carry a checksum. It
  finds accidents. It does not stop a forger, who can write a new one; a forged file is refused, or read as what it says.
- **Nothing is lost.** A file is written next to its place and then renamed: after a kill, a power cut or a full disk, the old file or
  the new one is there, complete. Stopped runs (`collect`, `predict`, `train`) resume with the same command and end with the same bits.
  The next run removes what a killed one left.
- **Nothing is silently wrong.** Two processes with one output end with a correct output, or with a sentence.
- **Printing never costs a result.** It is saved before it is shown.
- **The server goes on.** Silent and slow clients, bad headers and images that take long to decode do not stop `atta serve` from
  answering others.
"""


def table(outcomes: Sequence[Outcome]) -> str:
    """Tried and passed, an attack a line."""
    lines = ["| attack | what is tried | tried | passed | |", "|---|---|--:|--:|---|"]
    for one in outcomes:
        mark = "" if one.passed == one.tried else f"**{one.tried - one.passed} failed**"
        note = " · ".join(filter(None, (mark, one.note)))
        lines.append(f"| {one.name} | {one.what} | {one.tried:,} | {one.passed:,} | {note} |")
    tried, passed = sum(one.tried for one in outcomes), sum(one.passed for one in outcomes)
    lines.append(f"| all | | {tried:,} | {passed:,} | |")
    return "\n".join(lines) + "\n"


def failures(outcomes: Sequence[Outcome]) -> str:
    """Every failure, with the reason why it stays if it does."""
    lines = []
    for one in outcomes:
        for failure in one.failures[:SHOWN]:
            why = known.reason(one.name, failure)
            said = failure.replace("`", "'").replace("|", "¦")
            lines.append(f"- {one.name}: `{said}`" + (f" Stays: {why}" if why else ""))
        if len(one.failures) > SHOWN:
            lines.append(f"- {one.name}: and {len(one.failures) - SHOWN} more")
    return "\n".join(lines) + "\n" if lines else "No attack failed.\n"


def page(outcomes: Sequence[Outcome], *, seconds: float, command: str) -> str:
    """All of it, as Markdown."""
    where = "\n".join(f"| {name} | {value} |" for name, value in machine().items())
    parts = [
        "<!-- made by `python -m benchmarks.attack --page docs/reliability.md` -->\n",
        "# Reliability\n",
        INTRODUCTION,
        PROMISES,
        "## What was tried\n",
        table(outcomes),
        "Rows and images are counted one by one. Otherwise an attempt is one call, command, file, request or kill.\n",
        "## What failed\n",
        failures(outcomes),
        "## Where it ran, and how to repeat it\n",
        f"`{command}` took {seconds / 60:.1f} minutes on commit {machine()['commit']}. The seed is fixed; only the times at which "
        "processes are killed depend on the machine. `--long` tries ten times as much, `--only NAME` one section or attack, `--list` "
        "names them. `make attack` runs all of them and ends with an error if one fails that is not listed as known "
        "(benchmarks/attack/known.py).\n",
        f"| | |\n|---|---|\n{where}\n",
    ]
    return "\n".join(parts)
