"""A batch of images in, the logits of each image and of all its views out, in passes that fit into memory."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from atta.collection.memory import peak_memory, tensor_memory
from atta.collection.shards import Shards
from atta.images.sources import Source
from atta.images.views import Policy
from atta.types import InputError


class Batch(NamedTuple):
    """Consecutive images of a source, and their labels where they bring them along."""

    start: int
    pixels: Tensor
    labels: Tensor | None


class _Pending(NamedTuple):
    """Answers that may still be on their way from a GPU."""

    logits: Tensor
    indices: Tensor
    names: list[str]
    event: torch.cuda.Event | None = None

    def finish(self) -> Tensor:
        """Wait for the answers and look at them."""
        if self.event is not None:
            self.event.synchronize()
        logits = self.logits
        if not torch.isfinite(logits).all():
            image, view = (~torch.isfinite(logits)).any(dim=2).nonzero()[0].tolist()
            value = float(logits[image, view][~torch.isfinite(logits[image, view])][0])
            places = self.indices[(~torch.isfinite(logits)).flatten(1).any(dim=1)].tolist()
            some = ", ".join(map(str, places[:5])) + (f" and {len(places) - 5} more" if len(places) > 5 else "")
            first = self.names[view]
            raise InputError(f"expected finite logits, got {value} for images {some}, first in the view {first}")
        return logits


Shown: TypeAlias = tuple[str, int, Tensor]
"""The name of a view, the repeat, and the images shown in it."""


@dataclass
class Runner:
    """Shows images to the network: `batch` images are read at a time, `rows` of anything go into one forward pass."""

    forward: Callable[[Tensor], Tensor]
    policy: Policy
    seed: int
    draws: str
    device: torch.device
    dtype: torch.dtype
    channels_last: bool
    batch: int = 1
    rows: int = 1
    kept: Shards | None = None

    def prepare(self, source: Source, asked: int | None, memory: int | None, kept: Shards | None) -> None:
        """Find the batch size, or take that of the run that is resumed."""
        self.kept = kept
        earlier = kept.batch() if kept else None
        if earlier is not None:
            self.batch, self.rows = earlier
            return
        first, _ = next(source.read([(0, 1)]), (None, None))
        if first is None:
            raise InputError(f"expected at least one image in {source.name}, found none")
        most = asked or _usual_rows(self.device, tensor_memory(partial(self._logits, self._on_device(first))))
        if memory is not None:
            most = self._rows_within(memory, first, most)
        self.batch = self.rows = most
        if kept is not None:
            kept.begin(self.batch, self.rows)

    def _rows_within(self, memory: int, image: Tensor, most: int) -> int:
        """The most images whose batch stays under the bound, but no more than `most`."""
        self.rows = 1
        while True:
            images = image.expand(self.rows, -1, -1, -1)
            needed = peak_memory(partial(self.answers, images, torch.arange(self.rows)), self.device)
            if needed > memory:
                raise InputError(f"memory: expected at least the {needed:,} bytes that one image takes, got {memory:,}")
            fit = min(most, memory * self.rows // needed)
            # Tensors grow with the images. A GPU's kernels also take room of their own, so it is asked again.
            if self.device.type != "cuda" or fit < 2 * self.rows:
                return fit
            self.rows *= 2

    def run(self, batches: Iterable[Batch], places: Callable[[int, int], Tensor]) -> Iterator[tuple[Batch, Tensor]]:
        """Yield each batch with its answers, one batch late: a GPU works on the next one while this one is dealt with."""
        source, waiting = iter(batches), list[tuple[Batch, _Pending]]()
        while True:
            try:
                batch = next(source, None)
                if batch is not None:
                    stop = batch.start + batch.pixels.shape[0]
                    waiting.append((batch, self.begin(batch.pixels, places(batch.start, stop))))
            except BaseException:  # What is done is not lost to what cannot be done.
                yield from ((done, pending.finish()) for done, pending in waiting)
                raise
            late = 1 if self.device.type == "cuda" and batch is not None else 0
            while len(waiting) > late:
                done, pending = waiting.pop(0)
                yield done, pending.finish()
            if batch is None:
                return

    def answers(self, pixels: Tensor, indices: Tensor) -> Tensor:
        """The logits of every image (row 0) and of every view of it: n passes k, on the CPU."""
        return self.begin(pixels, indices).finish()

    def begin(self, pixels: Tensor, indices: Tensor) -> "_Pending":
        """Set the network to work on a batch; on a GPU, without waiting for it."""
        n = pixels.shape[0]
        images = self._on_device(pixels)
        views = self.policy.render(images, indices, seed=self.seed, draws=self.draws)
        shown = chain([("the image itself", 0, images)], _precisely(views, self.device))
        # Few images leave room for several views in one pass.
        names, answers = [], list[Tensor]()
        for group in groups(shown, max(1, self.rows // n)):
            names += [f"{name}, repeat {repeat}" if repeat else name for name, repeat, _ in group]
            together = [view for *_, view in group]
            answers += torch.split(self._logits(torch.cat(together) if len(together) > 1 else together[0]), n)
        classes = [answer.shape[1] for answer in answers]
        for name, k in zip(names, classes, strict=True):
            if k < 2 or k != classes[0]:
                expected = "at least two classes" if k < 2 else f"{classes[0]} classes as for the image itself"
                raise InputError(f"expected the model to return {expected}, got {k} for {name}")
        logits = torch.stack(answers, dim=1)
        if self.device.type != "cuda":
            return _Pending(logits.cpu(), indices, names)
        there = torch.empty(logits.shape, dtype=logits.dtype, pin_memory=True)
        there.copy_(logits, non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        return _Pending(there, indices, names, event)

    def _on_device(self, pixels: Tensor) -> Tensor:
        """Upload bytes as bytes, and make pixels in [0, 1] of them there."""
        images = pixels.to(self.device).contiguous()
        wide = torch.float64 if self.dtype == torch.float64 else torch.float32
        if images.dtype != torch.uint8:
            return images.to(wide)
        # A tensor as divisor: by a Python number a GPU multiplies with the inverse, and the last bit would differ.
        return images.to(wide) / torch.tensor(255.0, dtype=wide, device=self.device)

    def _logits(self, images: Tensor) -> Tensor:
        while True:
            try:
                return torch.cat([self._pass(part) for part in torch.split(images, self.rows)])
            except torch.cuda.OutOfMemoryError as error:
                if self.rows == 1:
                    raise InputError(f"one image does not fit into the memory of {self.device} ({error})") from error
            # Outside of the handler, whose error holds on to the tensors that filled the memory.
            self.rows = max(1, min(self.rows, images.shape[0]) // 2)
            torch.cuda.empty_cache()
            if self.kept is not None:  # A resumed run shall cut its passes as this one does from now on.
                self.kept.begin(self.batch, self.rows)

    def _pass(self, images: Tensor) -> Tensor:
        images = images.to(self.dtype)
        if self.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        try:
            logits = self.forward(images)
        except (InputError, torch.cuda.OutOfMemoryError):
            raise
        except (RuntimeError, ValueError, TypeError) as error:  # whatever a network says of images it cannot take
            shape = " x ".join(map(str, images.shape[1:]))
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise InputError(f"the model failed on images of {shape} (channels x height x width): {reason}") from error
        return logits if logits.dtype == torch.float64 else logits.float()


def _precisely(views: Iterator[Shown], device: torch.device) -> Iterator[Shown]:
    """Make views outside of autocast: the network runs in half precision, what it is shown is the same."""
    while True:
        with torch.autocast(device.type, enabled=False):
            view = next(views, None)
        if view is None:
            return
        yield view


def groups(shown: Iterable[Shown], most: int) -> Iterator[list[Shown]]:
    """Up to `most` views in a row that have the same size; a full group does not wait for the next view to be made."""
    group: list[Shown] = []
    for view in shown:
        if group and group[0][2].shape != view[2].shape:
            yield group
            group = []
        group.append(view)
        if len(group) == most:
            yield group
            group = []
    if group:
        yield group


def _usual_rows(device: torch.device, held: int) -> int:
    """How many images keep the device busy, if a pass holds `held` bytes an image.

    On a CPU activations that leave the caches cost more than larger batches gain: measured, 32 MiB a thread is best for
    light and heavy networks alike. A GPU is full long before 4 GiB.
    """
    gpu = device.type == "cuda"
    room, least, most = (2**32, 32, 4096) if gpu else (torch.get_num_threads() * 2**25, 8, 256)
    fit = room // max(held, 1)
    return max(least, min(most, 1 << max(fit.bit_length() - 1, 0)))
