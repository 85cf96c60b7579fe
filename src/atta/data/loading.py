"""Reads images in processes: the workers of `torch.utils.data.DataLoader`, and shared memory.

Decoding in threads holds Python's lock half of the time. Processes decode on all cores. Starting
one takes as long as decoding some 20 photographs, so that few images are read in this process.
"""

import gc
import os
import pickle
import shutil
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from multiprocessing import current_process
from typing import Any, Literal, TypeAlias, TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from atta._base.errors import InputError, first_line

Part = TypeVar("Part")
Positions: TypeAlias = Sequence[int]
"""The images of a batch: a range, or a list of ascending numbers."""
Piece: TypeAlias = Sequence[Any]
"""A batch, or a part of it: positions, or encoded images."""
Workers: TypeAlias = int | Literal["auto"]

EACH = 64  # least images for each process that "auto" starts
PIECE = 64  # most images that a process reads at a time
AHEAD = 2  # pieces that each process reads ahead
PINNED = 1 << 28  # most bytes of a batch that are pinned: pinned memory is kept for the next batch
FORK = sys.platform == "linux"
"""Whether processes start by a fork: in milliseconds, and without importing the caller's script."""


def cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_workers(workers: object) -> None:
    """Refuse what is neither "auto" nor a number of processes."""
    if workers != "auto" and not (isinstance(workers, int) and workers >= 0):
        raise InputError(f"workers: expected 'auto', or a number of processes, got {workers!r}")


def in_parts(
    make: Callable[[Piece], Part],
    join: Callable[[Iterable[Part], int], Part],
    batches: Iterable[Piece],
    workers: Workers,
    size: int,
) -> Iterator[Part]:
    """Yield what is made of each batch, in order. Processes make parts of it if that is faster.

    Args:
        make: Makes a part of a batch. It is pickled where processes do not start by a fork.
        join: Copies the parts of a batch of so many images one by one: shared memory is scarce.
        batches: The positions, or whatever `make` takes, of each batch.
        workers: Processes. "auto" starts as many as there are cores and images for, on Linux.
        size: The bytes of one image, for the shared memory that parts need.
    """
    number, images, batches = _planned(batches, workers)
    if not number:
        yield from map(make, batches)
        return
    number, most = _fitting(number, -(-images // number), size)
    failed = f"workers: expected {number} processes that read images, but"
    begun = deque[list[Piece]]()
    try:
        answers = _started(make, _pieces(batches, most, begun), number)
    except (OSError, AttributeError, TypeError, pickle.PicklingError) as error:
        if begun:  # it is about what is to be read
            raise
        if workers != "auto":
            why = f"they cannot start: {first_line(error)}; give workers=0"
            raise InputError(f"{failed} {why}") from error
        yield from map(make, batches)
        return
    try:
        while (first := next(answers, None)) is not None:
            cut = begun.popleft()
            parts = map(_raised, chain([first], islice(answers, len(cut) - 1)))
            yield next(parts) if len(cut) == 1 else join(parts, sum(map(len, cut)))
    except (RuntimeError, EOFError, ConnectionError) as error:
        if "Caught" in str(error):  # what a dataset raised, with its traceback
            raise
        raise InputError(
            f"{failed} one ended: it ran out of memory, or they cannot start because the script "
            "has no `if __name__ == '__main__':` around its calls; give fewer workers, or "
            f"workers=0 ({first_line(error)})"
        ) from error
    finally:
        answers._shutdown_workers()  # torch waits until nothing refers to it; a traceback does


def _planned(batches: Iterable[Piece], workers: Workers) -> tuple[int, int, Iterator[Piece]]:
    """Return how many processes read, how many images there are, or more, and the batches."""
    check_workers(workers)
    left, images, head = iter(batches), 0, list[Piece]()
    while workers and images < EACH * cores() and (positions := next(left, None)) is not None:
        head.append(positions)
        images += len(positions)
    number = min(cores(), images // EACH) * FORK if workers == "auto" else workers
    alone = current_process().daemon or (workers == "auto" and number == 1)
    return 0 if alone else number, images, chain(head, left)  # a daemon may start no processes


def _pieces(batches: Iterable[Piece], most: int, begun: deque[list[Piece]]) -> Iterator[Piece]:
    """Cut batches into pieces, and note which a batch has; an empty one is a piece."""
    for batch in batches:
        starts = range(0, max(1, len(batch)), most)
        begun.append([batch[start : start + most] for start in starts])
        yield from begun[-1]


def _raised(part: Part | InputError) -> Part:
    if isinstance(part, InputError):
        raise part
    return part


def _fitting(number: int, share: int, size: int) -> tuple[int, int]:
    """Return how many processes read how many images at a time in the shared memory there is.

    Containers often have 64 MB of it, and what does not fit kills a process.
    """
    try:
        room = shutil.disk_usage("/dev/shm").free // 2 // max(1, size)
    except OSError:  # a system without this folder, or without its limit
        room = sys.maxsize
    number = max(1, min(number, room // (AHEAD + 1)))
    return number, max(1, min(PIECE, share, room // ((AHEAD + 1) * number)))


def _started(make: Callable[[Piece], Any], pieces: Iterable[Piece], number: int) -> Any:
    """Start the processes, and return the iterator of what they make."""
    with warnings.catch_warnings():
        # There may be more processes than cores: they wait for disks, and for the network.
        warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
        # Python 3.12 warns of a fork next to threads. The processes decode and take no lock.
        warnings.filterwarnings("ignore", "This process", DeprecationWarning)
        loader = DataLoader(
            _Making(make),
            batch_size=None,
            sampler=pieces,
            num_workers=number,
            prefetch_factor=AHEAD,
            collate_fn=_same,
            multiprocessing_context="fork" if FORK else None,
            generator=torch.Generator(),  # otherwise it draws from the caller's
        )
        gc.freeze()  # a worker that frees an ONNX session of this process waits for its threads
        try:
            return iter(loader)
        finally:
            gc.unfreeze()


def empty_like(one: Tensor, count: int) -> Tensor:
    """Make room for `count` tensors like the rows of one, where it can be sent from.

    In a worker this is shared memory: to copy a tensor there takes 0.1 ms for a photograph. A
    process that uses a GPU uploads from pinned memory, without waiting for the GPU.
    """
    shape = torch.Size((count, *one.shape[1:]))
    size = shape.numel() * one.itemsize
    if get_worker_info() is None or one.device.type != "cpu" or not size:
        gpu: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        pinned = gpu and one.device.type == "cpu" and size <= PINNED
        return torch.empty(shape, dtype=one.dtype, device=one.device, pin_memory=pinned)
    storage = torch.UntypedStorage._new_shared(size)  # type: ignore[no-untyped-call]
    return torch.empty(0, dtype=one.dtype).set_(storage).view(shape)


@dataclass(frozen=True)
class _Making(Dataset[Any]):
    """What a worker does: make a part, or return why it cannot."""

    make: Callable[[Piece], Any]

    def __getitem__(self, positions: Piece) -> Any:
        try:
            return self.make(positions)
        except InputError as error:  # torch would put its own words around the sentence
            return error


def _same(part: Part) -> Part:
    return part
