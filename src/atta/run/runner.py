"""Run a network on batches of images and on their views. Networks run here and nowhere else.

    images ─► pixels in [0, 1] ─► images and views ─► several views in one pass ─► float32 logits

`Runner` serves records: batch after batch, without waiting for a GPU, in passes that fit into its
memory. `run_views` serves the classifier, which answers one batch at once. `Execution` says how a
network is run: device, batch size, precision, workers, engine; the same everywhere.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, fields
from inspect import signature
from itertools import chain, groupby, islice
from typing import Any, Literal, NamedTuple, TypeAlias, TypedDict

import torch
from torch import Tensor, nn

from atta._base.errors import InputError, first_line, require, suggest
from atta._base.settings import Count
from atta.data.loading import Workers, check_workers
from atta.data.photographs import Sheet
from atta.data.source import Batch, Batches, Source
from atta.data.views import Policy
from atta.networks.borrowing import borrowed, device_of, dtype_of, find_device
from atta.record.predictions import Predictions

ROWS = {"cuda": 256, "cpu": 32}
"""Images per pass by default: enough to keep a GPU busy, few enough for the caches of a CPU."""
LARGEST = 10**9  # images in a batch: more fit into no machine
IMAGE = "the image itself"
"""Name of the pass over the unchanged image."""
Shown: TypeAlias = tuple[str, int, Tensor]
"""Name of a view, repeat, and the images in this view."""
Network: TypeAlias = Callable[[Tensor], Tensor]
RAY = "ray"


# ---- how -----------------------------------------------------------------------------------------


def check_engine(
    engine: str | None, actors: int | None = None, called: Callable[[str], str] = str
) -> None:
    """Check the options before anything is read; `called` converts their names for messages."""
    if engine not in (None, RAY):
        raise InputError(
            f"{called('engine')}: expected 'ray', or none for this process alone, got {engine!r}"
        )
    if actors is not None and engine is None:
        raise InputError(f"{called('actors')}: expected {called('engine')} ray as well, got none")
    if actors is not None and actors < 1:
        raise InputError(f"{called('actors')}: expected 1 or more, got {actors}")
    if engine is not None:
        import_ray()


def import_ray() -> Any:
    """Return Ray, or say how to install it."""
    with require(RAY, "engine 'ray'"):
        import ray
    return ray


class ExecutionOptions(TypedDict, total=False):
    """The fields of `Execution` as keyword arguments."""

    device: str | int | torch.device | None
    batch_size: int | None
    workers: Workers
    autocast: bool | torch.dtype
    channels_last: bool | None
    compile: bool
    engine: Literal["ray"] | None
    actors: Count | None
    progress: bool | Callable[[int], None]


@dataclass(frozen=True)
class Execution:
    """How a network is run. None of this changes which passes are run, only how fast.

    `collect`, `calibrate` and `CalibratedClassifier.fit` take these fields as keyword arguments:
    `atta.collect(model, images, device="cuda", workers=8)`.

    Args:
        device: Where the network runs; by default where it is.
        batch_size: Most images in a forward pass; by default 256 on a GPU and 32 on a CPU. A GPU
            whose memory is full halves it.
        workers: Processes that read and decode files ahead of the network; 0 reads in this one.
            "auto" starts one for each core where there are many files (on Linux). In a script, a
            number on another system needs `if __name__ == "__main__":` around its calls.
        autocast: Run the network in bfloat16, or in another dtype.
        channels_last: Run in the memory layout in which some networks are faster. By default, only
            `calibrate` does so: on a CPU, if a trial of eight images is faster.
        compile: Run the network through `torch.compile`.
        engine: "ray" decodes and runs on a Ray cluster; None runs in this process.
        actors: Ray processes that hold the network; by default as many as fit.
        progress: Show a progress bar, or a function that is told how many passes were run since
            the last call.

    Example:
        >>> Execution(device="cpu", workers=4).workers
        4
    """

    device: str | int | torch.device | None = None
    batch_size: int | None = None
    workers: Workers = "auto"
    autocast: bool | torch.dtype = False
    channels_last: bool | None = None
    compile: bool = False
    engine: Literal["ray"] | None = None
    actors: Count | None = None
    progress: bool | Callable[[int], None] = True

    @property
    def half(self) -> torch.dtype | None:
        """The dtype of autocast, if there is one."""
        if self.autocast is True:
            return torch.bfloat16
        return self.autocast if isinstance(self.autocast, torch.dtype) else None

    def device_of(self, network: nn.Module) -> torch.device:
        """Return where the network runs; a cluster's devices are not looked for here."""
        if self.device is None:
            return device_of(network)
        return torch.device(self.device) if self.engine else find_device(self.device)


def split_options(
    name: str, options: Mapping[str, Any], function: Callable[..., Any], extra: type
) -> tuple[Execution, dict[str, Any]]:
    """Split keyword arguments into the execution and the rest, and refuse unknown names.

    Args:
        name: How an error calls the function.
        options: The keyword arguments of a call.
        function: The function, whose own parameters are named in an error.
        extra: The `TypedDict` of its keyword arguments, the fields of `Execution` among them.
    """
    own = [each for each in signature(function).parameters if each not in ("self", "options")]
    known = [*own, *extra.__annotations__]
    for given in options:
        if given not in known:
            raise InputError(
                f"{name} takes no {given!r}.{suggest(given, known)} It takes: {', '.join(known)}"
            )
    names = {each.name for each in fields(Execution)}
    execution = Execution(**{key: value for key, value in options.items() if key in names})
    check_engine(execution.engine, execution.actors)
    check_workers(execution.workers)
    return execution, {key: value for key, value in options.items() if key not in names}


# ---- one batch -----------------------------------------------------------------------------------


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Disable autocast: only the network may run in half precision, not views or calibrators."""
    return (
        torch.autocast(device.type, enabled=False)
        if torch.is_autocast_enabled(device.type)
        else nullcontext()
    )


@contextmanager
def running(
    network: nn.Module, device: torch.device, channels_last: bool, half: torch.dtype | None
) -> Iterator[None]:
    """Put the network on a device, in evaluation mode and without gradients, and put it back.

    One context serves many passes: autocast caches the weights that it has cast.
    """
    mixed = torch.autocast(device.type, half) if half else nullcontext()
    with torch.no_grad(), borrowed(network, device, channels_last), mixed:
        yield


def as_pixels(images: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert bytes, or floats in [0, 1] up to rounding, to pixels for views and networks."""
    wide = torch.promote_types(dtype, torch.float32)
    if images.dtype != torch.uint8:
        return images.to(wide).clamp(0, 1)
    # A tensor as divisor: with a Python number, a GPU multiplies by the inverse and the last bit
    # differs. It is made on the GPU, because sending a number would wait for the GPU.
    return images / torch.full((), 255.0, dtype=wide, device=images.device)


def logits_of(network: Network, images: Tensor, dtype: torch.dtype) -> Tensor:
    """Run the network in its own dtype, and return float32 logits or wider.

    Half precision would round classes into ties.
    """
    logits = network(images.to(dtype))
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


@contextmanager
def failing_on(images: Tensor, *passed: type[Exception]) -> Iterator[None]:
    """Say on which images a network failed; errors of the kinds `passed` stay as they are."""
    try:
        yield
    except Exception as error:
        if isinstance(error, (InputError, *passed)):
            raise
        shape = " x ".join(map(str, images.shape[1:]))
        raise InputError(
            f"the model failed on images of {shape} (channels x height x width): "
            f"{first_line(error)}"
        ) from error


def run_views(network: Network, shown: Iterable[Shown], most: int) -> list[Shown]:
    """Return the logits of each view, (n, k), with up to `most` views of one size in a pass."""
    answers: list[Shown] = []
    for _, alike in groupby(shown, key=lambda view: view[2].shape):
        while group := list(islice(alike, most)):
            views = [images for *_, images in group]
            logits = network(torch.cat(views) if len(views) > 1 else views[0])
            each = logits.reshape(len(views), views[0].shape[0], -1)
            for (name, repeat, _), one in zip(group, each, strict=True):
                answers.append((name, repeat, one))
    return answers


@torch.no_grad()
def check_takes(model: nn.Module, shape: Sequence[int], classes: int) -> None:
    """Check that the model takes such images and has as many classes."""
    image = torch.zeros(1, *shape, dtype=dtype_of(model), device=device_of(model))
    try:
        found = model(image).float()
        logits = Predictions(found[..., 0, 0] if found.ndim == 4 else found).logits
    except InputError:
        raise
    except Exception as error:  # whatever a network says of images it cannot take
        raise InputError(
            f"expected a model that takes images of {tuple(shape)}, but this one fails: "
            f"{first_line(error)}"
        ) from error
    if logits.shape[1] != classes:
        raise InputError(
            f"expected a model of {classes} classes, as the calibrator has, got one of "
            f"{logits.shape[1]}"
        )


# ---- batch after batch ---------------------------------------------------------------------------


def batch_size(asked: int | None, device: torch.device) -> int:
    """Return the batch size that was asked for, or the default of the device."""
    size = ROWS.get(device.type, ROWS["cpu"]) if asked is None else asked
    if not 1 <= size <= LARGEST:
        raise InputError(
            f"batch_size: expected {'1 or more' if size < 1 else f'{LARGEST} or fewer'}, got {size}"
        )
    return size


class _Pending(NamedTuple):
    """Answers that may still be on their way from a GPU."""

    logits: Tensor
    indices: Tensor
    names: list[str]
    event: torch.cuda.Event | None = None

    def finish(self) -> Tensor:
        """Wait for the answers and check that they are finite."""
        if self.event is not None:
            self.event.synchronize()
        bad = ~torch.isfinite(self.logits)
        if not bad.any():
            return self.logits
        first = tuple(bad.nonzero()[0].tolist())
        images = self.indices[bad.flatten(1).any(dim=1)].tolist()
        some = ", ".join(map(str, images[:5]))
        some += f" and {len(images) - 5} more" if len(images) > 5 else ""
        raise InputError(
            f"expected finite logits, got {float(self.logits[first])} for images {some}, first in "
            f"the view {self.names[first[1]]}"
        )


@dataclass
class Runner:
    """Runs a network on batches.

    Args:
        network: The network.
        policy: The views.
        execution: Precision, memory layout and workers.
        device: Where the network runs.
        rows: Images in a forward pass; fewer once a GPU is full.
        seed, draws: How random views are drawn.
        itself: Whether the image itself is run, too.
        sheet: Where images and views of the photograph are, if the images are sheets.
        told: Called with the number of rows when it was halved, so that a resumed run does the
            same.
    """

    network: nn.Module
    policy: Policy
    execution: Execution
    device: torch.device
    rows: int
    seed: int
    draws: str
    itself: bool = True
    sheet: Sheet | None = None
    told: Callable[[int], None] | None = None
    _forward: Network = field(init=False, repr=False)

    @contextmanager
    def started(self) -> Iterator[None]:
        """Move the network to its device, and compile it if that was asked for."""
        how = self.execution
        with running(self.network, self.device, bool(how.channels_last), how.half):
            self._forward = torch.compile(self.network) if how.compile else self.network
            yield

    def run(self, source: Source, wanted: Batches) -> Generator[tuple[Batch, Tensor]]:
        """Yield each batch with its answers; a GPU already works on the next batch meanwhile."""
        batches = iter(source.read(wanted, self.execution.workers))
        waiting = list[tuple[Batch, _Pending]]()
        while True:
            try:
                batch = next(batches, None)
                if batch is not None:
                    places = source.places(batch.positions)
                    waiting.append((batch, self.begin(batch.pixels, places)))
            except BaseException:  # finished batches are not lost
                yield from ((done, pending.finish()) for done, pending in waiting)
                raise
            late = 1 if self.device.type == "cuda" and batch is not None else 0
            while len(waiting) > late:
                done, pending = waiting.pop(0)
                yield done, pending.finish()
            if batch is None:
                return

    def begin(self, pixels: Tensor, places: Tensor) -> _Pending:
        """Run the network on a batch and its views; on a GPU, without waiting for the answers."""
        if upload := self.device.type == "cuda" and pixels.device.type == "cpu":
            pixels = pixels.pin_memory()  # from elsewhere, an upload waits for the batch before
        # Bytes are uploaded as bytes, and become pixels there.
        there = pixels.to(self.device, non_blocking=upload).contiguous()
        images = as_pixels(there, dtype_of(self.network))
        most = max(1, self.rows // pixels.shape[0])  # few images leave room for several views
        with without_autocast(self.device):  # views are made in full precision
            crop = images if self.sheet is None else self.sheet.crop(images)
            views = self.policy.render(
                images, places, seed=self.seed, draws=self.draws, sheet=self.sheet
            )
            itself = [(IMAGE, 0, crop)] if self.itself else []
            shown = run_views(self._in_parts, chain(itself, views), most)
        names = [f"{name}, repeat {repeat}" if repeat else name for name, repeat, _ in shown]
        answers = [answer for *_, answer in shown]
        classes = answers[0].shape[1]
        for name, answer in zip(names, answers, strict=True):
            if (k := answer.shape[1]) < 2 or k != classes:
                same = f"{classes} classes as for {IMAGE}"
                expected = "at least two classes" if k < 2 else same
                raise InputError(f"expected the model to return {expected}, got {k} for {name}")
        logits = torch.stack(answers, dim=1)
        if self.device.type != "cuda":
            return _Pending(logits.cpu(), places, names)
        pinned = torch.empty(logits.shape, dtype=logits.dtype, pin_memory=True)
        pinned.copy_(logits, non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return _Pending(pinned, places, names, event)

    def _in_parts(self, images: Tensor) -> Tensor:
        """Run images in one pass, or in smaller ones once a GPU is full."""
        half = self.execution.half
        dtype = dtype_of(self.network)
        while True:
            try:
                mixed = torch.autocast(self.device.type, half) if half else nullcontext()
                with mixed, failing_on(images, torch.cuda.OutOfMemoryError):
                    answers = []
                    for part in torch.split(images, self.rows):
                        if self.execution.channels_last:
                            part = part.to(dtype).contiguous(memory_format=torch.channels_last)
                        answers.append(logits_of(self._forward, part, dtype))
                    return torch.cat(answers)
            except torch.cuda.OutOfMemoryError as error:
                if self.rows == 1:
                    raise InputError(
                        f"one image does not fit into the memory of {self.device} ({error})"
                    ) from error
            # Outside of the handler, whose error holds on to the tensors that filled the memory.
            self.rows = max(1, min(self.rows, images.shape[0]) // 2)
            torch.cuda.empty_cache()
            if self.told is not None:
                self.told(self.rows)
