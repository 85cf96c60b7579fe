"""A function of a benchmark in a process of its own, on one thread: what it holds is then its own, and it can be stopped."""

import importlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.measured import Measured, Role

ROOT = Path(__file__).parent.parent
BESIDE = (
    ROOT / "tests" / "beside"
)  # lets torchvision import beside a torch of another build, which some peers need
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")


class Failed(Exception):
    """Why there is no answer, in one line."""


def call(function: str, *arguments: Any, limit: float = 300.0) -> Any:
    """Return what `module:function` returns of arguments that JSON can hold, or raise `Failed`."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        path = os.pathsep.join(
            filter(None, (str(ROOT), str(BESIDE), os.environ.get("PYTHONPATH", "")))
        )
        surroundings = {**os.environ, "PYTHONPATH": path, **dict.fromkeys(THREADS, "1")}
        order = [
            sys.executable,
            "-W",
            "ignore",
            "-m",
            "benchmarks.children",
            function,
            json.dumps(arguments),
            str(answer),
        ]
        try:
            ended = subprocess.run(
                order, env=surroundings, cwd=ROOT, capture_output=True, timeout=limit, check=False
            )
        except subprocess.TimeoutExpired:
            raise Failed(f"stopped after {limit:.0f} s") from None
        if ended.returncode or not answer.exists():
            raise Failed(reason(ended.stderr.decode(errors="replace"), ended.returncode))
        return json.loads(answer.read_text(encoding="utf-8"))


def measured(
    what: str, who: str, role: Role, function: str, *arguments: Any, limit: float = 300.0
) -> Measured:
    """A row of the numbers that `module:function` returns, or of the reason why there are none."""
    try:
        numbers = call(function, *arguments, limit=limit)
    except Failed as error:
        return Measured(what, who, role=role, note=str(error))
    finite = {name: value for name, value in numbers.items() if math.isfinite(value)}
    missing = ", ".join(name for name in numbers if name not in finite)
    return Measured(what, who, finite, role, f"no number came out as {missing}" if missing else "")


def reason(said: str, code: int) -> str:
    """What a process said went wrong, in one line of a table: its last error, or else its last line."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith("error")]
    return (
        ([f"ended with {code}", *lines[-1:], *errors])[-1].replace("|", "¦").replace("`", "'")[:200]
    )


@contextmanager
def within(limit: float) -> Iterator[None]:
    """Raise `Failed` in this process, where it is back in Python, after so many seconds."""

    def stop(*_: object) -> None:
        raise Failed(f"stopped after {limit:.0f} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, limit)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def main() -> None:
    import torch

    torch.set_num_threads(1)
    name, arguments, answer = sys.argv[1:]
    module, _, function = name.partition(":")
    found = getattr(importlib.import_module(module), function)(*json.loads(arguments))
    Path(answer).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
