"""Runs fits and tests in worker processes of one thread each; and describes this machine.

A fit is a long sequence of small operations: two threads wait for each other more than they help,
two processes do not. One thread also makes the last bits of a fit independent of the number of
workers; `one_thread` gives the same bits in this process. torch is not the only library with
threads: those under numpy and scipy read their number from the environment when they are loaded.
"""

import ctypes
import os
import platform
import signal
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import torch

from atta import __version__
from atta._base.errors import InputError
from atta.data.loading import cores
from atta.record.predictions import CLONE
from atta.run.cluster import spread as spread_on_ray

Kept = TypeVar("Kept")
Call: TypeAlias = tuple[Callable[..., Any], Sequence[Any], Kept]
"""A function and its arguments for a worker, and a value that stays in this process."""

Tell: TypeAlias = Callable[[str], None]
"""Is called with a name or a line when something is done."""

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
HELD = 1 << 30  # bytes that the C library keeps instead of returning them to the system


def silent(what: str) -> None:
    """Say nothing."""


def spread(
    calls: Iterable[Call[Kept]], workers: int, *, what: str = "worked", engine: str | None = None
) -> Iterator[tuple[Kept, Any]]:
    """Run calls in that many processes; yield what was kept of each with its answer.

    With an `engine`, Ray runs as many at a time as its machines have room for.
    """
    environment = dict.fromkeys(THREADS, "1")
    if engine is not None:
        yield from spread_on_ray(calls, what=what, begin=_alone, environment=environment)
        return
    # A fresh interpreter each: a fork would inherit the locks of torch's threads.
    spawn = get_context("spawn")
    lifeline, held = spawn.Pipe(duplex=False)
    pool = ProcessPoolExecutor(workers, spawn, initializer=_begin, initargs=(lifeline,))
    with lifeline, held, _environment(environment), pool:
        doing: dict[Future[Any], Kept] = {}
        try:
            for function, arguments, kept in calls:
                doing[pool.submit(function, *arguments)] = kept
            for future in as_completed(tuple(doing)):
                answer = future.result()  # or what went wrong
                yield doing.pop(future), answer
        except BrokenProcessPool:
            raise InputError(
                f"a process that {what} was killed, perhaps because memory ran out; "
                "run the same command again to resume"
            ) from None
        finally:
            # Stopped work is not waited for: files are written whole or not at all.
            if doing:
                held.close()


def hold_memory() -> None:
    """Let glibc keep freed memory for the next allocation, for the rest of this process.

    A step of Adam allocates about thirty blocks of a megabyte. By default each is returned to the
    system and comes back zeroed page by page, which takes more than half of the time of a fit to
    100 classes.
    """
    with suppress(AttributeError, OSError, TypeError):  # not glibc
        for threshold in (-1, -3):  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD
            ctypes.CDLL(None).mallopt(threshold, HELD)


@contextmanager
def _environment(changes: dict[str, str]) -> Iterator[None]:
    """Change the environment in which processes are started."""
    before = dict(os.environ)
    os.environ.update(changes)
    try:
        yield
    finally:
        for name in changes:
            del os.environ[name]
            if name in before:
                os.environ[name] = before[name]


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread, as the workers do."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _begin(lifeline: Connection) -> None:
    # Ctrl-C reaches the process that started this one, which then ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()
    _alone()


def _alone() -> None:
    """Prepare a worker: one thread, and memory that is kept."""
    torch.set_num_threads(1)
    hold_memory()


def _end_with(lifeline: Connection) -> None:
    """End this process when the other end is closed: by a stopped run or the end of its process."""
    with suppress(OSError):
        lifeline.poll(None)  # nothing is ever sent
    os._exit(1)


def machine() -> dict[str, str]:
    """The processor, the cores that this process may use, the GPU, and the versions that matter."""
    return {
        "processor": _processor(),
        "cores": str(cores()),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "atta": __version__,
        "commit": _commit(),
    }


def _commit() -> str:
    """The commit of this source, and whether it was changed since; "unknown" outside a clone."""

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=CLONE, capture_output=True, text=True, check=True
        ).stdout.strip()

    if not (CLONE / ".git").exists():
        return "unknown"
    try:
        changed = git("status", "--porcelain", "--", "src/atta", "experiments")
        return git("rev-parse", "--short=12", "HEAD") + (", with changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
