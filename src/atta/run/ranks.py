"""The same work in all processes that torchrun started, a GPU each. The one file of this room that knows torch.distributed.

    rank 0   has the folder: goes on from its shards, says what is next, writes the answers in their order, shows the bar
    each     reads and runs every so many-th batch of what is next, and hands its answers to rank 0

Which process runs where, and that all end when one of them does, is torchrun's business. Whatever is written is written by rank
0: shards are there once, and a run that was killed goes on from them, in as many processes as the next one has. A batch is the
same images with the same draws as in one process, so that its answers have the same bits.

A refusal in any rank is the refusal of all: before the work begins by `agree`, which each rank comes to with what it was asked
for or with what is wrong with that; later in the place of an answer, and by the last word of rank 0.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, Any, TypeAlias

from atta._base.errors import Advice, InputError, first_line

if TYPE_CHECKING:  # the command line asks who speaks before there is torch
    from torch import Tensor

    from atta.run.runner import Batch

TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
MEETING = timedelta(minutes=10)
"""How long the first rank to come waits for the last."""
WORK = timedelta(days=30)
"""How long one waits for another after that: whoever ends lets go of the others at once, and torchrun ends them."""

Answered: TypeAlias = "tuple[Batch, Tensor]"


@dataclass(frozen=True)
class _Refused:
    sentence: str


@dataclass(frozen=True)
class _End:
    refused: _Refused | None


def started() -> tuple[int, int]:
    """The number of this process among those that torchrun started, and how many they are: (0, 1) where it started none."""
    if any(name not in os.environ for name in TORCHRUN):
        return 0, 1
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def several() -> bool:
    """Whether this is one of several processes: of torchrun's, or of a process group that the program made."""
    import torch.distributed as dist

    if not dist.is_available():
        return False
    return (dist.get_world_size() if dist.is_initialized() else started()[1]) > 1


class Ranks:
    """The processes that share the work, and this one's number among them."""

    def __init__(self, group: Any, rank: int, size: int) -> None:
        self.group, self.rank, self.size = group, rank, size
        self._agreed = self._ended = False

    # ---- before the work

    def agree(self, call: Mapping[str, object] | _Refused) -> None:
        """Make sure that all were asked for the same; what is wrong in one rank is said in all."""
        import torch.distributed as dist

        calls: list[Any] = [None] * self.size
        self._agreed = True
        self._shared(dist.all_gather_object, calls, call)
        if sentence := _differ(calls):
            self._ended = True  # all know it
            raise InputError(sentence)

    # ---- the work

    def lead(self, order: object, answers: Iterator[Answered]) -> Generator[Answered]:
        """Give an order, and yield the answers of all ranks in the order of their batches, those of this one among them."""
        self._say(order)
        try:
            while True:
                mine = _next(answers)
                self._say(True)
                for one in self._gathered(mine):
                    if one is None:
                        return
                    if isinstance(one, _Refused):
                        raise InputError(one.sentence)
                    yield one
        finally:
            self._say(False)

    def orders(self) -> Iterator[Any]:
        """What rank 0 says is next, until it says that all is done, or why it is not."""
        while not isinstance(order := self._told(), _End):
            yield order
        self._ended = True
        if order.refused is not None:
            raise InputError(order.refused.sentence)

    def follow(self, answers: Iterator[Answered]) -> None:
        """Hand answers to rank 0 as long as it asks for them."""
        while True:
            mine = _next(answers)
            if not self._told():
                return
            self._gathered(mine)

    def end(self, refused: str | None = None) -> None:
        """Let the others go, once: all is done, or this is why it is not."""
        if not self._agreed:
            with suppress(InputError):  # whoever calls has it in hand
                self.agree(_Refused(refused or "another process ended before the work began"))
        elif not self.rank and not self._ended:
            self._ended = True
            self._say(_End(None if refused is None else _Refused(refused)))

    def _say(self, word: object) -> None:
        self._broadcast([word])

    def _told(self) -> Any:
        word: list[Any] = [None]
        self._broadcast(word)
        return word[0]

    def _broadcast(self, word: list[Any]) -> None:
        import torch.distributed as dist

        self._shared(dist.broadcast_object_list, word, src=0)

    def _gathered(self, mine: object) -> list[Any]:
        import torch.distributed as dist

        found: list[Any] | None = None if self.rank else [None] * self.size
        self._shared(dist.gather_object, mine, found, dst=0)
        return found or []

    def _shared(self, act: Callable[..., object], *given: Any, **how: Any) -> None:
        try:
            act(*given, **how, group=self.group)
        except RuntimeError as error:  # gloo's, of a process that is gone
            raise InputError(
                f"another of the {self.size} processes ended; what is finished is kept, the same call goes on"
            ) from error


def _differ(calls: Sequence[Any]) -> str | None:
    """What is wrong with one of the calls, or how one is another than the first."""
    for call in calls:
        if isinstance(call, _Refused):
            return call.sentence
    for rank, call in enumerate(calls):
        for key, value in calls[0].items():
            if call[key] != value:
                return (
                    f"expected the same call in each of the {len(calls)} processes, which share the work, but {key} is "
                    f"{value!r} in rank 0 and {call[key]!r} in rank {rank}"
                )
    return None


def _next(answers: Iterator[Answered]) -> Answered | _Refused | None:
    """The next answers for the way to rank 0; of the images, it asks for no more than the first and the last."""
    import torch

    try:
        if (found := next(answers, None)) is None:
            return None
    except InputError as error:
        return _Refused(str(error))
    batch, logits = found
    return batch._replace(pixels=torch.cat([batch.pixels[:1], batch.pixels[-1:]])), logits


# ---- coming together -----------------------------------------------------------------------------------------------

_met: Ranks | None = None
_meetings = count()


@contextmanager
def together(wanted: bool = True) -> Iterator[Ranks | None]:
    """Share the work of the block with the other processes, if there are any; a block inside of another is part of it.

    They meet here, each with its own GPU as torch's current one. What ends the block in one of them ends it in all; only rank
    0 gives advice.
    """
    global _met
    if _met is not None or not wanted or not several():
        yield _met if wanted else None
        return
    with _meeting() as met, _own_gpu(), warnings.catch_warnings():
        if met.rank:
            warnings.simplefilter("ignore", Advice)
        _met = met
        try:
            yield met
        except Exception as error:
            met.end(first_line(error))
            raise
        else:
            met.end()
        finally:
            _met = None


@contextmanager
def _meeting() -> Iterator[Ranks]:
    """A group of processes for this work alone, beside the one that the program may have, or in the place of none."""
    import torch.distributed as dist

    here = dist.is_initialized()
    try:
        if here:
            dist.new_group(backend="gloo", timeout=MEETING)
        else:
            store, rank, size = (
                _store()
            )  # under a name that is new: the one before tells old addresses
            store = dist.PrefixStore(f"atta/{next(_meetings)}", store)  # type: ignore[attr-defined]
            dist.init_process_group(
                "gloo", store=store, rank=rank, world_size=size, timeout=MEETING
            )
        group = dist.new_group(backend="gloo", timeout=WORK)
    except (RuntimeError, ValueError) as error:
        raise InputError(
            "collect shares its work with all processes that torchrun started, and they did not come together: call it in "
            f"each of them, or without torchrun ({first_line(error)})"
        ) from error
    try:
        yield Ranks(group, dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group(group if here else None)


@cache
def _store() -> Any:
    """Where the processes that torchrun started find each other, this one's number, and how many they are."""
    import torch.distributed as dist

    return next(iter(dist.rendezvous("env://", timeout=MEETING)))  # type: ignore[attr-defined]


def _own_gpu() -> Any:
    """The GPU of this process as the one that is meant by `cuda`; one GPU is shared by those who see no other."""
    import torch

    if not torch.cuda.is_available() or "LOCAL_RANK" not in os.environ:
        return nullcontext()
    return torch.cuda.device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
