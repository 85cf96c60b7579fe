"""Run on a Ray cluster: tasks decode images, actors hold the network. Only this file uses Ray.

    positions ─► decode (tasks) ─► network and views (actors) ─► here, in order: shards, rows

Ray decides where and when something runs, and runs it again after a worker was killed. Only the
calling process writes files, so that a killed run resumes from its shards. A batch has the same
images, draws and threads as without Ray, so that its answers have the same bits.

`RAY_ADDRESS` names a cluster; a program that called `ray.init` has one; otherwise one is started on
this machine and ends with the work. All machines need atta, and the images under the same paths.
"""

from __future__ import annotations

import logging
import os
import pickle
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import chain, islice
from typing import Any, NamedTuple, TypeAlias, TypeVar

import torch
from torch import Tensor

from atta._base.errors import InputError, first_line
from atta.data.loading import Positions
from atta.data.source import ArraySource, Batch, Batches, CachedSource, Skip, Source, renumbered
from atta.run.runner import RAY, Runner, import_ray

AHEAD = 4  # calls for each worker that fits: some are read while others are processed
RETRIES = 3  # of a call whose process was killed
PATIENCE = 5.0  # seconds without an answer until the machines are counted again
LOSSES = 12  # actors that one answer may cost: about a minute

Item = TypeVar("Item")
Read = TypeVar("Read")
Done = TypeVar("Done")
Kept = TypeVar("Kept")
Share: TypeAlias = tuple[Positions, Source | None]
"""A batch for a reader: positions, and their own files, if the images are files."""


@dataclass(frozen=True)
class Engine:
    """Number of actors and what each gets; None is as many as fit."""

    actors: int | None
    gpu: bool = False
    threads: int = 1
    """Threads of each actor: the last bits of an answer may depend on them."""


@contextmanager
def connected(engine: Engine) -> Iterator[tuple[Any, int]]:
    """Yield Ray and the number of actors; a cluster that was started here is shut down."""
    ray = import_ray()
    started = False
    if not ray.is_initialized():
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no telemetry
        how: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if not os.environ.get("RAY_ADDRESS"):
            # One more than the actors take: readers would wait for a CPU for ever.
            cpus = max(os.cpu_count() or 1, (engine.actors or 1) * engine.threads + 1)
            how |= {"address": "local", "num_cpus": cpus, "include_dashboard": False}
        try:
            ray.init(**how)
        except (ConnectionError, RuntimeError, ValueError, TimeoutError, OSError) as error:
            raise InputError(
                f"Ray was not found at RAY_ADDRESS, or could not start here: {first_line(error)}"
            ) from error
        started = True
    try:
        room = _room(ray, engine)
        actors = max(1, room) if engine.actors is None else engine.actors
        if actors > room:
            each = "a GPU" if engine.gpu else f"{engine.threads} CPUs"
            raise InputError(
                f"expected a Ray cluster with room for {actors} actors, {each} each, and one CPU "
                f"to read with, got room for {room}"
            )
        yield ray, actors
    finally:
        if started:
            ray.shutdown()


def _room(ray: Any, engine: Engine) -> int:
    """Return how many actors fit into the machines that are alive, with a CPU left for readers."""
    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    cpus = [int(node.get("CPU", 0)) for node in alive]
    if engine.gpu:
        return sum(int(node.get("GPU", 0)) for node in alive) if any(cpus) else 0
    fitting = sum(one // engine.threads for one in cpus)
    return max(0, min(fitting, (sum(cpus) - 1) // engine.threads))


def stream(
    items: Iterable[Item],
    read: Callable[[Item], Read],
    work: Callable[[], Callable[[Read], Done]],
    engine: Engine,
) -> Generator[Done]:
    """Read items in tasks and process them in actors; answers come in order.

    Args:
        items: What `read` takes, one after the other.
        read: Reads an item, in any process.
        work: Called once in each actor; returns the function that processes what was read.
        engine: How many actors there are, and what each gets.
    """
    left = iter(items)
    if (first := next(left, None)) is None:
        return
    left = chain([first], left)
    with kept_alive(RAY):
        pool = _pool_of(engine)
        ray = pool.ray
        doing = deque[_Call]()
        reader, worker = [_sent(ray, read, "images")], [_sent(ray, work, "a network")]
        reads = ray.remote(max_retries=RETRIES)(_read)

        def begin(item: Item) -> None:
            busy = Counter(call.actor for call in doing)
            actor = min(pool.actors, key=busy.__getitem__)
            answer = actor.answer.remote(worker, reads.remote(reader, item))
            doing.append(_Call(item, actor, answer))

        def begin_again() -> None:
            pool.restart()
            items = [call.item for call in doing]
            doing.clear()
            for item in items:
                begin(item)

        try:
            while True:
                for item in islice(left, max(0, AHEAD * len(pool.actors) - len(doing))):
                    begin(item)
                if not doing:
                    break
                yield _next(pool, doing, begin_again)
        except ray.exceptions.RayError as error:
            last = str(error).strip().splitlines()[-1]  # the lines before it are a traceback
            raise InputError(
                f"Ray gave up: {last}; what is finished is kept, the same call resumes"
            ) from error


class _Call(NamedTuple):
    """An item that is being read and processed, the actor that does it, and its answer."""

    item: Any
    actor: Any
    answer: Any


@dataclass
class _Pool:
    """Actors, which hold a network, while one run or several last."""

    ray: Any
    engine: Engine
    actors: list[Any] = field(default_factory=list)

    def start(self, number: int) -> None:
        """End the actors that there are, and start some."""
        for actor in self.actors:
            self.ray.kill(actor)
        gpu = self.engine.gpu
        threads = self.engine.threads
        takes = {"num_cpus": 0, "num_gpus": 1} if gpu else {"num_cpus": threads}
        make = self.ray.remote(max_restarts=-1, max_task_retries=RETRIES, **takes)(_Worker)
        self.actors = [make.remote(threads) for _ in range(number)]

    def restart(self) -> None:
        """Start as many actors as fit on the machines that are left: readers need a CPU, too."""
        if (room := _room(self.ray, self.engine)) < 1:
            raise InputError(
                "the Ray cluster has lost machines, and an actor and a reader no longer fit; what "
                "is finished is kept, the same call resumes"
            )
        self.start(min(room, len(self.actors)))


_ALIVE: ContextVar[tuple[ExitStack, dict[Engine, _Pool]] | None] = ContextVar("alive", default=None)
"""The actors of each engine, while a run lasts, and what ends with them."""


@contextmanager
def kept_alive(engine: str | None) -> Iterator[None]:
    """Keep the cluster and its actors during the block, which may run many policies.

    Starting Ray takes seconds, and so does an actor, which imports torch.
    """
    if engine is None or _ALIVE.get() is not None:
        yield
        return
    with ExitStack() as stack:
        token = _ALIVE.set((stack, {}))
        stack.callback(_ALIVE.reset, token)
        yield


def _pool_of(engine: Engine) -> _Pool:
    """Return the actors that are kept alive, which are started for the first run."""
    alive = _ALIVE.get()
    assert alive is not None
    stack, pools = alive
    if engine not in pools:
        ray, number = stack.enter_context(connected(engine))
        pools[engine] = _Pool(ray, engine)
        stack.callback(pools[engine].start, 0)
        pools[engine].start(number)
    return pools[engine]


def _next(pool: _Pool, doing: deque[_Call], begin_again: Callable[[], None]) -> Any:
    """Wait for the next answer; what a lost machine read or answered is done again."""
    ray = pool.ray
    for last in range(LOSSES, -1, -1):
        try:
            while not ray.wait([doing[0].answer], timeout=PATIENCE)[0]:
                if _room(ray, pool.engine) < len(pool.actors):
                    begin_again()
            found = _got(ray, doing[0].answer)
            doing.popleft()
            return found
        except ray.exceptions.RayError as error:
            if not last or not _is_lost(ray, error):
                raise
        time.sleep(PATIENCE)  # it takes a while until Ray knows that a machine is lost
        begin_again()


def _is_lost(ray: Any, error: BaseException) -> bool:
    """Whether a process or a machine was lost: then no call raised an error of its own."""
    cause = error.cause if isinstance(error, ray.exceptions.RayTaskError) else error
    return isinstance(cause, ray.exceptions.RayError)


def _got(ray: Any, ref: Any) -> Any:
    """Return the result of a call, or raise its `InputError` as it was."""
    try:
        return ray.get(ref)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, InputError):
            raise InputError(str(error.cause)) from None
        raise


def _sent(ray: Any, what: object, named: str) -> Any:
    """Put an object into the shared memory of the cluster."""
    try:
        return ray.put(what)
    except (TypeError, AttributeError, ValueError, RuntimeError, pickle.PicklingError) as error:
        raise InputError(
            f"engine 'ray': expected {named} that can be sent to other processes (pickled), but: "
            f"{first_line(error)}"
        ) from error


@lru_cache(maxsize=1)
def _fetched(ref: Any) -> Any:
    """Fetch an object once in each process."""
    return import_ray().get(ref)


def _read(refs: Sequence[Any], item: Any) -> Any:
    """Read an item; Ray would fetch a reference that is not in a list for every item."""
    return _fetched(refs[0])(item)


class _Worker:
    """An actor that holds the network."""

    def __init__(self, threads: int) -> None:
        torch.set_num_threads(threads)
        self.call: Callable[[Any], Any] | None = None
        self.ref: Any = None

    def answer(self, refs: Sequence[Any], given: Any) -> Any:
        """Process what was read; the first call of each policy fetches the network."""
        if self.call is None or self.ref != refs[0]:
            self.call = None  # frees the memory of the last one
            self.call = _fetched(refs[0])()
            self.ref = refs[0]
        return self.call(given)


# ---- collecting ----------------------------------------------------------------------------------


def check_source(source: Source) -> None:
    """Refuse a source that several processes cannot read."""
    if source.once or source.count is None:
        raise InputError(
            f"engine 'ray' reads images in several processes, and {source.name} can be read only "
            "once, in its order: give the dataset itself, a folder or files"
        )


def run_on_ray(runner: Runner, source: Source, wanted: Batches) -> Generator[tuple[Batch, Tensor]]:
    """Yield each batch with its answers; only its first and last image come back."""
    device = torch.device(runner.device.type)
    how = runner.execution
    engine = Engine(how.actors, device.type == "cuda", torch.get_num_threads())
    # What belongs to this process stays here.
    sent = replace(runner, device=device, execution=replace(how, progress=False), told=None)
    reading, items = parts_of(source, wanted)
    return stream(items, reading, partial(_started, sent), engine)


def _started(runner: Runner) -> Callable[[tuple[Batch, Tensor]], tuple[Batch, Tensor]]:
    """Move the network to its device, once, and return the function that answers batches."""
    stack = ExitStack()
    stack.enter_context(runner.started())

    def answer(read: tuple[Batch, Tensor]) -> tuple[Batch, Tensor]:
        batch, places = read
        answers = runner.begin(batch.pixels, places).finish()
        ends = torch.cat([batch.pixels[:1], batch.pixels[-1:]])  # the writer needs no more
        return batch._replace(pixels=ends), answers

    answer.stack = stack  # type: ignore[attr-defined]  # as long as the actor lives
    return answer


def parts_of(
    source: Source, batches: Batches, skip: Skip = None
) -> tuple[Callable[[Share], tuple[Batch, Tensor]], Iterable[Share]]:
    """Return what reads batches in any process, and what it takes: a batch's own files, if any."""
    whole = _shared(source)
    items = ((positions, whole.part(positions)) for positions in batches)
    return partial(_read_share, whole if whole.part([0]) is None else None, skip), items


def _read_share(whole: Source | None, skip: Skip, share: Share) -> tuple[Batch, Tensor]:
    """Read a batch, from the part that comes with it or from the whole, and say its places."""
    positions, part = share
    source = part or whole
    assert source is not None, "a part comes where there is no whole"
    rows = range(len(positions)) if part else positions
    (batch,) = source.read([rows], skip=skip)
    # Without a copy, all of what it is a slice of would be sent.
    batch = batch._replace(pixels=batch.pixels.clone())
    return renumbered(batch, positions) if part else batch, source.places(rows).clone()


def _shared(source: Source) -> Source:
    """Return images in memory as an array, which the processes of a machine share."""
    if isinstance(source, CachedSource):
        return _shared(source.source)  # workers decode by themselves
    if not (isinstance(source, ArraySource) and isinstance(source.array, Tensor)):
        return source
    if source.array.dtype not in (torch.uint8, torch.float16, torch.float32, torch.float64):
        return source
    array = source.array.detach().cpu().numpy()
    return replace(source, array=array, channels=source.channels or "first")


# ---- calls ---------------------------------------------------------------------------------------


def spread(
    calls: Iterable[tuple[Callable[..., Any], Sequence[Any], Kept]],
    *,
    what: str,
    begin: Callable[[], None],
    environment: Mapping[str, str],
) -> Iterator[tuple[Kept, Any]]:
    """Call functions in Ray tasks, one CPU each, and yield each result with what was kept for it.

    Args:
        calls: Function, arguments and what comes back with the result.
        what: What such a process does, for an error message.
        begin: Called in each process first.
        environment: Environment variables of the processes.
    """
    with connected(Engine(None)) as (ray, room):
        how = {"env_vars": dict(environment)}
        task = ray.remote(num_cpus=1, max_retries=RETRIES, runtime_env=how)(_begun)
        doing: dict[Any, Kept] = {}

        def finished(most: int) -> Iterator[tuple[Kept, Any]]:
            while len(doing) > most:
                (ref,), _ = ray.wait(list(doing), num_returns=1)
                yield doing.pop(ref), _got(ray, ref)

        try:
            for function, arguments, kept in calls:
                yield from finished(AHEAD * room - 1)
                doing[task.remote(begin, function, *arguments)] = kept
            yield from finished(0)
        except ray.exceptions.WorkerCrashedError as error:
            raise InputError(
                f"a process that {what} was killed repeatedly, perhaps for lack of memory"
            ) from error


def _begun(begin: Callable[[], None], function: Callable[..., Any], *arguments: Any) -> Any:
    begin()
    return function(*arguments)
