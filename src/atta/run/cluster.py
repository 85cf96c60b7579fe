"""The same work on a cluster: Ray reads and decodes on CPUs, and its actors hold the network. The one file that knows Ray.

    ranges of images ─► read and decode (tasks) ─► the network and all views (actors) ─► here, in order: shards, lines, a bar

Where and when something runs, and that it runs again after a worker was killed, is Ray's business. Whatever is written is
written by the process that asked, which alone holds the folder: shards are there once, and a run that was killed goes on from
them. A batch is the same images with the same draws as without Ray, in as many threads, so that its answers have the same bits.

`RAY_ADDRESS` names a cluster; a program that called `ray.init` itself has one; otherwise one is started on this machine, and
ends with the work. The machines of a cluster need atta, and the files of the images under the same names.
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
"""Batches that Ray is told of at a time: what it keeps of each, it keeps here."""
AHEAD = 2  # calls that wait for each worker that fits

Item = TypeVar("Item")
Read = TypeVar("Read")
Done = TypeVar("Done")
Kept = TypeVar("Kept")


@dataclass(frozen=True)
class Engine:
    """What an actor is given, and how many of them there are; None is as many as the cluster has room for."""

    actors: int | None
    gpu: bool = False
    threads: int = 1
    """Of each actor: the last bits of an answer may depend on them."""


def check_engine(
    engine: str | None, actors: int | None = None, called: Callable[[str], str] = lambda name: name
) -> Literal["ray"] | None:
    """Check what was asked for before anything is read; `called` is how options are named by whoever gave them."""
    if engine not in (None, RAY):
        raise InputError(
            f"{called('engine')}: expected 'ray', or none for this process alone, got {engine!r}"
        )
    if actors is not None and engine is None:
        raise InputError(f"{called('actors')}: expected {called('engine')} ray beside it, got none")
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
    """Ray, and how many actors there is room for; a cluster that was started here ends here."""
    ray, started = _ray(), False
    if not ray.is_initialized():
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nobody is told what is run here
        how: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if not os.environ.get("RAY_ADDRESS"):
            # One more than the actors take: readers that wait for a CPU would wait for ever.
            cpus = max(os.cpu_count() or 1, (engine.actors or 1) * engine.threads + 1)
            how |= {"address": "local", "num_cpus": cpus, "include_dashboard": False}
        try:
            ray.init(**how)
        except (ConnectionError, RuntimeError, ValueError, TimeoutError, OSError) as error:
            raise InputError(
                f"Ray could not be had at RAY_ADDRESS, or started here: {first_line(error)}"
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
                f"expected a Ray cluster with room for {actors} actors, {each}, got {cpus} CPUs and {gpus} GPUs"
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
    """Read items by tasks and work on what was read in actors, each of which calls `work` once; answers come in order.

    Refusals come back as what they are. What else goes wrong there is Ray's to say.
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
                # A byte of memory: Ray makes one step of two that ask for the same, and the actors would read themselves.
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
            last = str(error).strip().splitlines()[-1]  # the lines before it are where it happened
            raise InputError(
                f"Ray gave up: {last}; what is finished is kept, the same call goes on"
            ) from error


@contextmanager
def _quiet(ray: Any) -> Iterator[None]:
    """Answers in order; and one bar, ours."""
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
    """Something for other processes, where all of one machine read it from one memory."""
    try:
        return ray.put(what)
    except (TypeError, AttributeError, ValueError, RuntimeError, pickle.PicklingError) as error:
        raise InputError(
            f"engine 'ray': expected {named} that can be sent to other processes (pickled), but: {first_line(error)}"
        ) from error


@dataclass(frozen=True)
class _Refused:
    sentence: str


def _answered(call: Callable[[Any], Any], given: Any) -> bytes:
    """What comes of a call, refusals too, for the way back."""
    try:
        done = given if isinstance(given, _Refused) else call(given)
    except InputError as error:
        done = _Refused(str(error))
    return pickle.dumps(done, protocol=5)


class _Reader:
    """Reads an item, in whatever process Ray takes; what it reads by is fetched once a process."""

    held: tuple[Any, Any] | None = None

    def __init__(self, ref: Any) -> None:
        self.ref = ref

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        if _Reader.held is None or _Reader.held[0] != self.ref:
            _Reader.held = (self.ref, _ray().get(self.ref))
        return {"data": _answered(_Reader.held[1], pickle.loads(row["data"]))}


class _Worker:
    """An actor: it has the network, and answers what was read."""

    def __init__(self, ref: Any, threads: int) -> None:
        torch.set_num_threads(threads)
        self.call = _ray().get(ref)()

    def __call__(self, rows: dict[str, Any]) -> dict[str, Any]:
        return {"data": [_answered(self.call, pickle.loads(data)) for data in rows["data"]]}


# ---- collecting ----------------------------------------------------------------------------------------------------


def check_source(source: Source, who: str = "engine 'ray'") -> None:
    """Refuse what cannot be read here and there at once."""
    if source.once or source.count is None:
        raise InputError(
            f"{who} reads images by their places in several processes, and {source.name} can be read only once, in its "
            "order: give the dataset itself, a folder or files"
        )


@dataclass(frozen=True)
class Showing:
    """How a network is shown images: what a `Runner` is made of, in a process of its own."""

    network: nn.Module
    runner: Runner
    half: torch.dtype | None
    compiled: bool

    def __call__(self) -> Callable[[tuple[Batch, Tensor]], tuple[Batch, Tensor]]:
        """Move the network to its device, once; answer batches from then on."""
        runner, stack = self.runner, ExitStack()
        how = (self.network, runner.device, runner.channels_last, self.half)
        stack.enter_context(running(*how))
        runner.forward = torch.compile(self.network) if self.compiled else self.network

        def answer(given: tuple[Batch, Tensor]) -> tuple[Batch, Tensor]:
            batch, places = given
            with running(
                *how
            ):  # gradients and autocast belong to a thread, and Ray calls from several
                ((_, answers),) = runner.run([batch], lambda positions: places)
            ends = torch.cat(
                [batch.pixels[:1], batch.pixels[-1:]]
            )  # all that is asked of them from here on
            return batch._replace(pixels=ends), answers

        answer.held = stack  # type: ignore[attr-defined]
        return answer


def run_on_ray(
    showing: Showing, source: Source, batches: Iterable[Positions], engine: Engine
) -> Generator[tuple[Batch, Tensor]]:
    """Yield each batch, of which only the first and the last image come back, with its answers."""
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
    """Images in memory as an array, of which the processes of a machine share one."""
    if isinstance(source, CachedSource):
        return _shared(source.source)  # workers decode by themselves
    if not (isinstance(source, ArraySource) and isinstance(source.array, Tensor)):
        return source
    if source.array.dtype not in (torch.uint8, torch.float16, torch.float32, torch.float64):
        return source
    array = source.array.detach().cpu().numpy()
    return replace(source, array=array, channels=source.channels or "first")


# ---- calls ---------------------------------------------------------------------------------------------------------


def spread(
    calls: Iterable[tuple[Callable[..., Any], Sequence[Any], Kept]],
    *,
    what: str,
    begin: Callable[[], None],
    environment: Mapping[str, str],
) -> Iterator[tuple[Kept, Any]]:
    """Work through functions and their arguments in Ray's tasks, one CPU each; what was kept comes back with each answer.

    Processes have this `environment`, and `begin` before they work. Files and folders among the arguments have to lie where all
    machines see them.
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
                f"a process that {what} was ended again and again, perhaps for want of memory"
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
