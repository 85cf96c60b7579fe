"""What every benchmark returns, and how it is measured.

A benchmark is a module with `steps(asked)`: what it measures, by name, each a function that returns rows. A row is a
`Measured`: who did what, and what it took. Rows are costs, so that every ratio is "ours over theirs" and below 1 is ahead;
what a cost can at best be is a row too, a limit. `Part` is all rows of one benchmark, with what they were measured on, as a
file.

    python -m benchmarks            all of them, and the page
    python -m benchmarks.fit        one of them, as a table in the terminal
"""

import argparse
import ctypes
import gc
import json
import math
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from atta._base.files import whole_file

OURS = "atta"
COSTS = {
    "seconds": "time",
    "relative": "time, in bare networks",
    "fit": "fit, time",
    "predict": "predict, time",
    "fit_mb": "fit, memory",
    "predict_mb": "predict, memory",
    "mb": "memory",
}
"""The numbers of which less is better, and by which rows are compared."""
LEAST_MB = 8.0  # what an allocator holds or not, from one run to the next: less counts as this
FORMAT = 1
Role = Literal["ours", "peer", "limit"]


@dataclass(frozen=True)
class Asked:
    """How to measure: on which device, and whether in seconds and for nobody's eyes."""

    device: str = "cpu"
    quick: bool = False

    def few(self, usual: int, quick: int) -> int:
        """So many, or as many as will do for a trial."""
        return quick if self.quick else usual


@dataclass(frozen=True)
class Measured:
    """Who did what, and what it took; `note` says why there are no numbers, or what is to be known of them."""

    what: str
    who: str
    numbers: Mapping[str, float] = field(default_factory=dict)
    role: Role = "ours"
    note: str = ""


Steps = Mapping[str, Callable[[], Sequence[Measured]]]
"""What a benchmark measures, by name."""


@dataclass(frozen=True)
class Part:
    """All that one benchmark has measured so far, and on what; `done` are the names of its steps."""

    name: str
    machine: Mapping[str, str]
    quick: bool = False
    peers: Mapping[str, str] = field(default_factory=dict)
    done: tuple[str, ...] = ()
    rows: tuple[Measured, ...] = ()
    seconds: float = 0.0

    def save(self, path: Path) -> None:
        """Write a file that `load` reads."""
        with whole_file(path) as part:
            part.write_text(
                json.dumps({"format": FORMAT, **asdict(self)}, indent=1, ensure_ascii=False) + "\n",
                encoding="utf-8",
            )

    @classmethod
    def load(cls, path: Path) -> "Part":
        """Read what `save` wrote."""
        known: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if known.pop("format", None) != FORMAT:
            raise SystemExit(
                f"{path}: expected a part of format {FORMAT}, written by `python -m benchmarks`"
            )
        rows = tuple(Measured(**row) for row in known.pop("rows"))
        return cls(**{**known, "rows": rows, "done": tuple(known["done"])})


# ----------------------------------------------------------------------------------------------------------- ratios


def cost(row: Measured, column: str) -> float | None:
    """A cost of a row, or None; of little memory, the least that can be told."""
    value = row.numbers.get(column)
    return value if value is None or not column.endswith("mb") else max(value, LEAST_MB)


def ratio(ours: Measured, theirs: Measured, column: str) -> float | None:
    """Ours over theirs: below 1, ours takes less."""
    mine, other = cost(ours, column), cost(theirs, column)
    return None if mine is None or other is None or other <= 0 else mine / other


def by_what(rows: Iterable[Measured]) -> dict[str, list[Measured]]:
    """The rows of each thing that was done, in the order in which they came."""
    found: dict[str, list[Measured]] = {}
    for row in rows:
        found.setdefault(row.what, []).append(row)
    return found


def against_best(rows: Sequence[Measured], role: str = "peer") -> list[tuple[str, Measured, float]]:
    """Of what one thing took: each cost, the peer (or limit) that took the least, and ours over it."""
    ours = next((row for row in rows if row.role == "ours"), None)
    found = []
    for column in COSTS if ours else ():
        held = [(row, ratio(ours, row, column)) for row in rows if row.role == role]
        known = [(row, value) for row, value in held if value is not None]
        if known:
            best, value = max(known, key=lambda one: one[1])
            found.append((column, best, value))
    return found


def slope(xs: Sequence[float], ys: Sequence[float]) -> float:
    """The exponent of growth: the slope of a straight line through the logarithms."""
    points = [(math.log(x), math.log(y)) for x, y in zip(xs, ys, strict=True)]
    return statistics.linear_regression(*zip(*points, strict=True)).slope


# ----------------------------------------------------------------------------------------------------------- clocks


def seconds(work: Callable[[], object]) -> float:
    """Time one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def usual_seconds(work: Callable[[], object], budget: float = 1.0) -> float:
    """The median time of as many calls as a budget of seconds allows; at least one."""
    times = [seconds(work)]
    while sum(times) < budget and len(times) < 1000:
        times.append(seconds(work))
    return statistics.median(times)


def interleaved(ways: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median seconds of each, run in turns: a machine that slows down slows all, and one slow first turn moves no median."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, work in ways.items():
            times[name].append(seconds(work))
    return {name: statistics.median(own) for name, own in times.items()}


def memory(held: str) -> int:
    """VmRSS: the bytes this process holds; VmHWM: the most it has held since the last reset."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(held))


def extra_megabytes(work: Callable[[], object]) -> float:
    """What `work` took at its peak, beyond what was held before; nan where there is no Linux to ask."""
    gc.collect()
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(
            0
        )  # what was freed before is not to be had for nothing
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
        before = memory("VmRSS")
    except (OSError, AttributeError):
        work()
        return math.nan
    work()
    return (memory("VmHWM") - before) / 1e6


def measured(step: Callable[[], Sequence[Measured]]) -> Sequence[Measured]:
    """Take one step, on one thread, without advice: these are no images to fit on."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return step()
    finally:
        torch.set_num_threads(before)


# ------------------------------------------------------------------------------------------------------------- data


def too_sure(images: int, classes: int) -> tuple[Tensor, Tensor]:
    """Logits that are right more often than not and too sure of themselves, and labels."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(classes, (images,), generator=generator)
    logits = torch.randn(images, classes, generator=generator).mul_(2)
    logits[torch.arange(images), labels] += 6
    return logits.mul_(1.7), labels


def role_of(who: str, limits: Iterable[str]) -> Role:
    """What someone is in a contest."""
    return "ours" if who == OURS else "limit" if who in limits else "peer"


def sized(images: int, classes: int) -> str:
    """How tables name a size."""
    return f"{images:,} × {classes}"


# --------------------------------------------------------------------------------------------------------- one alone


def shown(row: Measured) -> str:
    """A row as a line of a terminal."""
    numbers = "  ".join(f"{name} {value:.4g}" for name, value in row.numbers.items())
    return f"{row.what:46} {row.who:30} {numbers}{'  ' if numbers and row.note else ''}{row.note}"


def alone(steps: Callable[[Asked], Steps], doc: str | None) -> None:
    """Run one benchmark by itself, and print each row as it is measured."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--quick", action="store_true", help="small sizes: a trial")
    given = parser.parse_args()
    for step in steps(Asked(given.device, given.quick)).values():
        for row in measured(step):
            print(shown(row), flush=True)
