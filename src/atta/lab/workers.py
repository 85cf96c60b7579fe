"""Work in processes beside this one, one thread each: fits, and tests of what was fitted.

A fit is a long row of small operations: two threads wait for each other more than they help, two processes do not. One thread
also makes a fit's last bits independent of how many there are; `one_thread` gives the same to fits in this process. Not torch
alone has threads: the libraries under numpy and scipy take theirs from the environment, when they are loaded.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, Generic, TypeAlias, TypeVar

import torch
from torch import Tensor

from atta._base.errors import InputError
from atta.calibrators import Calibrator, Method
from atta.record.predictions import Predictions
from atta.run.cluster import spread as spread_on_ray

Sets: TypeAlias = Sequence[tuple[Predictions, Tensor]]


THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
HELD = 1 << 30  # bytes


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


Kept = TypeVar("Kept")


@dataclass(frozen=True)
class Call(Generic[Kept]):
    """A function of a module and its arguments, for another process, and what stays here meanwhile."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    kept: Kept


def spread(
    calls: Iterable[Call[Kept]], workers: int, *, what: str = "worked", engine: str | None = None
) -> Iterator[tuple[Kept, Any]]:
    """Work through calls in that many processes; what was kept of each comes back with its answer, once it is there.

    An `engine` takes as many as there is room for on its machines.
    """
    if engine is not None:
        plain = ((call.function, call.arguments, call.kept) for call in calls)
        yield from spread_on_ray(
            plain, what=what, begin=_alone, environment=dict.fromkeys(THREADS, "1")
        )
        return
    # A fresh interpreter each: a fork would inherit the locks of torch's threads.
    spawn = get_context("spawn")
    lifeline, held = spawn.Pipe(duplex=False)
    pool = ProcessPoolExecutor(workers, spawn, initializer=_begin, initargs=(lifeline,))
    with lifeline, held, _environment(dict.fromkeys(THREADS, "1")), pool:
        doing: dict[Future[Any], Kept] = {}
        try:
            for call in calls:
                while (
                    len(doing) > workers
                ):  # one more than is worked on waits, packed: not all of them
                    yield from _finished(doing)
                doing[pool.submit(call.function, *call.arguments)] = call.kept
            while doing:
                yield from _finished(doing)
        except BrokenProcessPool:
            raise InputError(
                f"a process that {what} was ended, perhaps for want of memory; the same call goes on"
            ) from None
        finally:
            # What is stopped half-way is not waited for: files are written whole or not at all, so nothing is lost.
            if doing:
                held.close()


def hold_memory() -> None:
    """Keep what is freed for what is asked for next, where the C library can be told so.

    A step of Adam asks for some thirty pieces of a megabyte. By default each goes back to the system and comes as new, zeroed
    page by page: more than half of the time of a fit to 100 classes. For processes of our own; it is theirs to the end.
    """
    with suppress(AttributeError, OSError, TypeError):  # not glibc
        for threshold in (-1, -3):  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD
            ctypes.CDLL(None).mallopt(threshold, HELD)


@contextmanager
def _environment(changes: dict[str, str]) -> Iterator[None]:
    """Change the environment that processes are started in."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread, as the processes do."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def fit(method: Method, sets: Sets) -> list[Calibrator]:
    """Fit in this process, with the bits that another would give."""
    with one_thread():
        return method.fit_many(sets)


def _finished(doing: dict[Future[Any], Kept]) -> Iterator[tuple[Kept, Any]]:
    done, _ = wait(doing, return_when=FIRST_COMPLETED)
    for future in done:
        answer = future.result()  # or what went wrong
        yield doing.pop(future), answer


def _begin(lifeline: Connection) -> None:
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # whoever stops the run stops the process that started it
    threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()
    _alone()


def _alone() -> None:
    """Make a process one that fits, in one thread."""
    torch.set_num_threads(1)
    hold_memory()


def _end_with(lifeline: Connection) -> None:
    """End this process when the other end is let go: by a run that was stopped, or by the end of its process."""
    with suppress(OSError):
        lifeline.poll(None)  # nothing is ever sent
    os._exit(1)
