"""Run on a Ray cluster: tasks read and decode, actors hold the network. The only file that knows Ray.

    positions ─► read and decode (tasks) ─► network and views (actors) ─► here, in order: shards, rows

Ray decides where and when something runs, and runs it again after a worker was killed. Only the
calling process writes files, so that a killed run resumes from its shards. A batch has the same
images, draws and threads as without Ray, so that its answers have the same bits.

`RAY_ADDRESS` names a cluster; a program that called `ray.init` has one; otherwise one is started on
this machine and ends with the work. All machines need atta, and the image files under the same paths.
"""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from atta._base.errors import InputError, first_line, require
from atta.data.source import ArraySource, Batch, CachedSource, Positions, Source
from atta.run.runner import Runner, running

RAY: Literal["ray"] = "ray"
WINDOW = 4096
"""Batches that are submitted at a time: Ray keeps state for each in this process."""
AHEAD = 2  # calls that wait for each worker that fits

Item = TypeVar("Item")
Read = TypeVar("Read")
Done = TypeVar("Done")
Kept = TypeVar("Kept")


@dataclass(frozen=True)
class Engine:
    """Number of actors and what each gets; None is as many as fit."""

    actors: int | None
    gpu: bool = False
    threads: int = 1
    """Threads of each actor: the last bits of an answer may depend on them."""


def check_engine(
    engine: str | None, actors: int | None = None, called: Callable[[str], str] = lambda name: name
) -> Literal["ray"] | None:
    """Check the options before anything is read; `called` converts their names for messages."""
    if engine not in (None, RAY):
        raise InputError(
            f"{called('engine')}: expected 'ray', or none for this process alone, got {engine!r}"
        )
    if actors is not None and engine is None:
        raise InputError(f"{called('actors')}: expected {called('engine')} ray as well, got none")
    if actors is not None and actors < 1:
        raise InputError(f"{called('actors')}: expected 1 or more, got {actors}")
    if engine is None:
        return None
    _ray()
    return RAY


def _ray() -> Any:
    with require(RAY, "engine 'ray'"):
        import ray
        import ray.data
    return ray


@contextmanager
def connected(engine: Engine) -> Iterator[tuple[Any, int]]:
    """Yield Ray and the number of actors; a cluster that was started here is shut down."""
    ray, started = _ray(), False
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
        there = ray.cluster_resources()
        cpus, gpus = int(there.get("CPU", 0)), int(there.get("GPU", 0))
        room = gpus if engine.gpu else (cpus - 1) // engine.threads
        actors = max(1, room) if engine.actors is None else engine.actors
        if actors > room:
            each = (
                "a GPU each" if engine.gpu else f"{engine.threads} CPUs each, and one to read with"
            )
            raise InputError(
                f"expected a Ray cluster with room for {actors} actors, {each}, got {cpus} CPUs and "
                f"{gpus} GPUs"
            )
        yield ray, actors
    finally:
        if started:
            ray.shutdown()


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
    first = next(left, None)
    if first is None:
        return
    with connected(engine) as (ray, actors), _quiet(ray):
        reader, worker = _sent(ray, read, "images"), _sent(ray, work, "a network")
        takes = {"num_gpus": 1} if engine.gpu else {"num_cpus": engine.threads}
        pool = ray.data.ActorPoolStrategy(size=actors)
        left = chain([first], left)
        try:
            while window := list(islice(left, WINDOW)):
                rows = [{"data": pickle.dumps(item)} for item in window]
                # One byte of memory: without a difference in resources, Ray would fuse reading and
                # processing, and the actors would decode.
                data = ray.data.from_items(rows, override_num_blocks=len(rows)).map(
                    _Reader(reader), memory=1
                )
                data = data.map_batches(
                    _Worker,
                    fn_constructor_args=(worker, engine.threads),
                    batch_size=1,
                    batch_format="numpy",
                    zero_copy_batch=True,
                    compute=pool,
                    **takes,
                )
                for row in data.iter_rows():
                    done = pickle.loads(row["data"])
                    if isinstance(done, _Refused):
                        raise InputError(done.sentence)
                    yield done
        except ray.exceptions.RayError as error:
            last = str(error).strip().splitlines()[-1]  # the lines before it are a traceback
            raise InputError(
                f"Ray gave up: {last}; what is finished is kept, the same call resumes"
            ) from error


@contextmanager
def _quiet(ray: Any) -> Iterator[None]:
    """Keep the order of answers, and hide the progress bars of Ray."""
    context = ray.data.DataContext.get_current()
    options = context.execution_options
    before = options.preserve_order, context.enable_progress_bars
    logger = logging.getLogger("ray.data")
    level = logger.level
    options.preserve_order, context.enable_progress_bars = True, False
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        options.preserve_order, context.enable_progress_bars = before
        logger.setLevel(level)


def _sent(ray: Any, what: object, named: str) -> Any:
    """Put an object into the shared memory of the cluster."""
    try:
        return ray.put(what)
    except (TypeError, AttributeError, ValueError, RuntimeError, pickle.PicklingError) as error:
        raise InputError(
            f"engine 'ray': expected {named} that can be sent to other processes (pickled), but: "
            f"{first_line(error)}"
        ) from error


@dataclass(frozen=True)
class _Refused:
    sentence: str


def _answered(call: Callable[[Any], Any], given: Any) -> bytes:
    """Pickle the result of a call, or its `InputError`."""
    try:
        done = given if isinstance(given, _Refused) else call(given)
    except InputError as error:
        done = _Refused(str(error))
    return pickle.dumps(done, protocol=5)


class _Reader:
    """Reads an item; the reading function is fetched once in each process."""

    fetched: tuple[Any, Any] | None = None

    def __init__(self, ref: Any) -> None:
        self.ref = ref

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        if _Reader.fetched is None or _Reader.fetched[0] != self.ref:
            _Reader.fetched = (self.ref, _ray().get(self.ref))
        return {"data": _answered(_Reader.fetched[1], pickle.loads(row["data"]))}


class _Worker:
    """An actor that holds the network."""

    def __init__(self, ref: Any, threads: int) -> None:
        torch.set_num_threads(threads)
        self.call = _ray().get(ref)()

    def __call__(self, rows: dict[str, Any]) -> dict[str, Any]:
        return {"data": [_answered(self.call, pickle.loads(data)) for data in rows["data"]]}


# ---- collecting ----------------------------------------------------------------------------------


def check_source(source: Source, who: str = "engine 'ray'") -> None:
    """Refuse a source that several processes cannot read."""
    if source.once or source.count is None:
        raise InputError(
            f"{who} reads images in several processes, and {source.name} can be read only once, in "
            "its order: give the dataset itself, a folder or files"
        )


@dataclass(frozen=True)
class Showing:
    """A network and its `Runner`, for a process of their own."""

    network: nn.Module
    runner: Runner
    half: torch.dtype | None
    compiled: bool

    def __call__(self) -> Callable[[tuple[Batch, Tensor]], tuple[Batch, Tensor]]:
        """Move the network to its device, once, and return the function that answers batches."""
        runner, stack = self.runner, ExitStack()
        how = (self.network, runner.device, runner.channels_last, self.half)
        stack.enter_context(running(*how))
        runner.forward = torch.compile(self.network) if self.compiled else self.network

        def answer(given: tuple[Batch, Tensor]) -> tuple[Batch, Tensor]:
            batch, places = given
            with running(*how):  # gradients and autocast belong to a thread; Ray has several
                ((_, answers),) = runner.run([batch], lambda positions: places)
            ends = torch.cat([batch.pixels[:1], batch.pixels[-1:]])  # the writer needs no more
            return batch._replace(pixels=ends), answers

        answer.stack = stack  # type: ignore[attr-defined]  # as long as the actor lives
        return answer


def run_on_ray(
    showing: Showing, source: Source, batches: Iterable[Positions], engine: Engine
) -> Generator[tuple[Batch, Tensor]]:
    """Yield each batch with its answers; only its first and last image come back."""
    return stream(batches, _Reading(_shared(source)), showing, engine)


@dataclass(frozen=True)
class _Reading:
    """Reads a range of images, in any process."""

    source: Source

    def __call__(self, positions: Positions) -> tuple[Batch, Tensor]:
        (batch,) = self.source.read([positions])
        # Without a copy, all of what it is a slice of would be sent.
        pixels, places = batch.pixels.clone(), self.source.places(positions).clone()
        return Batch(batch.positions, pixels, batch.labels), places


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
        task = ray.remote(num_cpus=1, max_retries=3, runtime_env={"env_vars": dict(environment)})(
            _begun
        )
        doing: dict[Any, Kept] = {}
        try:
            for function, arguments, kept in calls:
                while len(doing) >= AHEAD * room:
                    yield _finished(ray, doing)
                doing[task.remote(begin, function, *arguments)] = kept
            while doing:
                yield _finished(ray, doing)
        except ray.exceptions.WorkerCrashedError as error:
            raise InputError(
                f"a process that {what} was killed repeatedly, perhaps for lack of memory"
            ) from error


def _begun(begin: Callable[[], None], function: Callable[..., Any], *arguments: Any) -> Any:
    begin()
    return function(*arguments)


def _finished(ray: Any, doing: dict[Any, Kept]) -> tuple[Kept, Any]:
    (ref,), _ = ray.wait(list(doing), num_returns=1)
    kept = doing.pop(ref)
    try:
        return kept, ray.get(ref)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, InputError):
            raise InputError(str(error.cause)) from None
        raise
