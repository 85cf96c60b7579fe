"""docs/reliability.md, and the same table for a terminal."""

from collections.abc import Sequence

from atta.lab.workers import machine
from benchmarks.attack import known
from benchmarks.attack.runner import Outcome

SHOWN = 12  # failures of one attack that are listed; the rest is counted
INTRODUCTION = """\
What happens when something goes wrong? A network is shown a picture on which two classes tie, an argument is of the wrong type, a
file was cut short in the post or made by someone who means harm, the power goes while a result is being saved, the disk is full,
two jobs write to the same place. This page lists what atta promises for such days, and what one command tried in order to break
the promises: so many attempts, so many that ended as promised, and each that did not, by name.
"""
PROMISES = """\
## What is promised

- **The class is kept.** Every method that says so (`atta methods`) answers every image with the class that the network itself
  gives, ties included: in Python, in a classifier, in exported graphs, in any floating-point type. The answer is continuous: a
  graph or a batch of another size agrees with it within 1e-5, near ties as well. There it may move 50 times as fast as what the
  network says, which float32 rounds: float32 and float64 agree within 5e-5.
- **Mistakes are answered in one sentence.** A wrong argument raises `atta.InputError` (a `ValueError`), a wrong word on the command
  line ends with exit code 2; both say what was expected and what came.
- **Nothing in a file is run**, and a file that was changed is not read as if it had not been: records, calibrators, results and
  classifiers carry a checksum. It finds accidents. It does not stop a forger, who can write a new one; that a forged file
  runs nothing does not depend on it.
- **Nothing is lost.** What takes long is written beside its place and renamed: after a kill, a power cut or a full disk the old file
  or the new one is there, whole. Runs that were stopped (`collect`, `predict`, `train`) go on with the same command and end with the
  same bits. The next run removes what a killed one left.
- **Nothing is silently wrong.** Two processes with one output end with a right output, or with a sentence.
- **Printing never costs a result.** It is saved before it is shown.
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
        "Rows and images are counted one by one; elsewhere a try is one call, one command, one file or one kill.\n",
        "## What failed\n",
        failures(outcomes),
        "## On what, and how to repeat it\n",
        f"`{command}` took {seconds / 60:.1f} minutes. The seed is fixed; only the times at which writers are killed depend on the "
        "machine. `--long` tries ten times as much, `--only NAME` one section or attack, `--list` names them; `make attack` runs "
        "all of them and ends with an error if one fails that is not listed as known (benchmarks/attack/known.py).\n",
        f"| | |\n|---|---|\n{where}\n",
    ]
    return "\n".join(parts)
