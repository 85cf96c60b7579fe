"""Where the network runs: images in, the logits of each image and of each of its views out, as one `Record`.

    for a batch of images, read and uploaded once:
        for the image itself and each of its views:
            logits = model(view)                          [n k]
    Record(logits [n k], views {"crop": [n r k], ...}, labels, origin)

The model is given pixels in [0, 1], n c h w; a model that wants them normalised is `atta.Normalized`. A view is a
function of the seed, the image's place in its set, the kind of view and the repeat: neither the size of a batch nor the
order, nor the number of workers changes it. The model is borrowed: nothing of it is different afterwards.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor, nn

from atta.collection.advice import look_over
from atta.collection.runner import Runner, batch_size, read_batches
from atta.collection.shards import Shard, Shards, fingerprint, mark
from atta.collection.trial import as_device, check_labels, running, try_out
from atta.errors import InputError, suggest
from atta.images.sources import Block, Channels, Source, as_source
from atta.images.views import Policy
from atta.networks.adapters import TorchModel, as_logits
from atta.networks.borrowing import dtype_of
from atta.predictions import Predictions, Record, as_labels
from atta.progress import counted


class Execution(TypedDict, total=False):
    """How the network is run. None of it changes what is asked of it; most of it changes the last bits of the answers."""

    device: str | torch.device | None
    """The model's own unless it is named."""
    batch_size: int | None
    """The most images a forward pass is given; None takes what is usual on the device."""
    channels_last: bool
    """Run in the layout that some networks are faster in."""
    autocast: bool | torch.dtype
    """Run the network in bfloat16, or another dtype."""
    compile: bool
    """Run what torch.compile makes of the network."""
    workers: int
    """Threads that read and decode ahead."""


class Collecting(Execution, total=False):
    """What else is handed on to `collect` by those who choose policy and draws themselves."""

    seed: int
    shards: str | PathLike[str] | None
    origin: Mapping[str, str] | None


def collect(
    model: object,
    images: object,
    labels: object = None,
    *,
    policy: Any = "aug8",
    seed: int = 0,
    draws: str = "random",
    channels: Channels = None,
    shards: str | PathLike[str] | None = None,
    progress: bool | Callable[[int], None] = True,
    origin: Mapping[str, str] | None = None,
    checks: bool = True,
    logits: Tensor | None = None,
    **execution: Unpack[Execution],
) -> Record:
    """Run the model on every image and every view of it, once.

    `model` is what `as_logits` takes. `images` are uint8 or floats in [0, 1], held by anything that the table in
    `atta.images.sources` names; `channels` says where an array has its channels. `labels` come from the images where those
    have them.

    `device` is the model's own unless it is named. `batch_size` is the most images a forward pass is given; running out of a
    GPU's memory halves it. `channels_last`, `autocast` (to bfloat16, or a dtype) and `compile` make networks faster; logits
    come back in float32 or wider. `workers` threads read and decode ahead.

    `shards` names a folder in which finished work is kept: the same call again goes on from it, also after a kill, and
    ends with the same bits. Delete the folder once the record is saved. `origin` adds to the record's own.

    Eight images go first (`trial`), and what looks wrong at the end is said (`advice`); `checks=False` leaves out both.
    `progress` may be a function, which is told how many images are done. `logits` of the images themselves, where they are
    known, spare a pass an image.
    """
    refuse_unknown("collect", execution, [*Execution.__annotations__])
    policy, source, network = Policy.parse(policy), as_source(images, channels), as_logits(model)
    labels = as_numbers(labels, source)
    at, half, fast = as_device(execution.get("device"), network), half_of(execution), execution.get("channels_last", False)
    size = batch_size(execution.get("batch_size"), at)
    if checks:
        check_labels(labels, images, source)
        try_out(network, source, labels, policy, device=at, half=half)
    kept, rows = None, size
    if shards is not None:
        run = {"policy": str(policy), "seed": seed, "draws": draws, "images": source.count, "device": at.type}
        kept = Shards(Path(shards), {"model": fingerprint(network), **run, **_switches(execution)})
        size, rows = kept.begin(size)
    with running(network, at, fast, half):
        forward = torch.compile(network) if execution.get("compile") else network
        runner = Runner(forward, policy, seed, draws, at, dtype_of(network), fast, rows, kept, logits is None)
        done = _Done(source, labels, policy, kept)
        begun = done.resume()
        told = nullcontext(progress) if callable(progress) else counted("collecting", source.count, shown=progress, done=begun)
        with told as tell:
            try:
                batches = read_batches(source, size, start=done.stop, workers=execution.get("workers", 0))
                for batch, answers in runner.run(batches, source.places):
                    if logits is not None:
                        answers = torch.cat([logits[batch.start :][: len(answers), None], answers], dim=1)
                    done.add(batch.start, batch.pixels, answers, batch.labels)
                    tell(done.stop)
            finally:
                done.flush()
    record = done.record(_origin(network, source, policy, seed, draws) | dict(origin or {}))
    if checks:
        look_over(record)
    return record


def refuse_unknown(function: str, given: Iterable[str], known: Sequence[str]) -> None:
    """Name a keyword that a function does not take, and the one that was perhaps meant."""
    for name in given:
        if name not in known:
            raise InputError(f"{function} takes no {name!r}.{suggest(name, known)} It takes: {', '.join(known)}")


def half_of(execution: Execution) -> torch.dtype | None:
    """The dtype of autocast, if it was asked for."""
    asked = execution.get("autocast") or None
    return torch.bfloat16 if asked is True else asked


def _switches(execution: Execution) -> dict[str, Any]:
    """What of it changes bits: shards of other switches are not gone on from."""
    switches = {name: execution.get(name, False) for name in ("channels_last", "compile")}
    return {"batch_size": execution.get("batch_size"), "autocast": str(half_of(execution)), **switches}


def as_numbers(labels: object, source: Source) -> Tensor | None:
    """The labels that were given, or those that the source brings along."""
    if labels is None:
        return source.labels
    try:
        numbers = torch.as_tensor(labels)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"expected labels as whole numbers, one an image, got {type(labels).__name__} ({error})") from None
    if source.count is not None and numbers.shape[:1] != (source.count,):
        raise InputError(f"expected {source.count} labels, one an image, got {tuple(numbers.shape)}")
    return numbers


# ---- what is done --------------------------------------------------------------------------------------------------


@dataclass
class _Done:
    """The answers so far, those of an earlier run among them, and the labels that came with the images."""

    source: Source
    labels: Any
    policy: Policy
    kept: Shards | None
    answers: list[Tensor] = field(default_factory=list)
    own: list[Tensor] = field(default_factory=list)
    stop: int = 0
    _fresh: list[Block] = field(default_factory=list)
    _first: Tensor | None = None
    _last: Tensor | None = None

    def resume(self) -> int:
        """Take over what an earlier run finished, if it ran on these images; say how many they are."""
        for shard in self.kept.finished() if self.kept else ():
            ends = [block for block, _ in self.source.read([(shard.start, shard.start + 1), (shard.stop - 1, shard.stop)])]
            if len(ends) < 2 or mark(ends[0], ends[1]) != shard.mark:
                raise InputError(
                    f"expected the images from {self.source.where(shard.start)} on to be those whose shards are in "
                    f"{self.kept.folder if self.kept else ''}, got others; choose another folder"
                )
            self._take(shard.answers, shard.labels)
        return self.stop

    def add(self, start: int, pixels: Tensor, answers: Tensor, own: Tensor | None) -> None:
        """Take the answers to a batch, and write a shard when it is time."""
        n, k = answers.shape[0], answers.shape[2]
        if self.answers and k != self.answers[0].shape[2]:
            before = self.answers[0].shape[2]
            raise InputError(f"expected {before} classes as before, got {k} from {self.source.where(start)} on")
        if self.labels is not None:
            if not self.answers:  # Now the number of classes is known: a wrong label is said before the work is done.
                as_labels(self.labels, images=self.labels.shape[0], classes=k)
        elif own is not None:
            as_labels(own, images=n, classes=k)
        self._first = pixels[:1] if self._first is None else self._first
        self._last = pixels[-1:]
        self._fresh.append((answers, own))
        self._take(answers, own)
        if self.kept is not None and self.kept.due:
            self.flush()

    def _take(self, answers: Tensor, own: Tensor | None) -> None:
        self.answers.append(answers)
        self.stop += answers.shape[0]
        if own is not None:
            self.own.append(own)

    def flush(self) -> None:
        """Write what no shard holds yet."""
        if self.kept is None or self._first is None or self._last is None:
            return
        fresh, first = self._fresh, self._first
        self._fresh, self._first = [], None  # If it cannot be written now, it cannot be written on the way out either.
        answers = torch.cat([part for part, _ in fresh])
        labels = [part for _, part in fresh if part is not None]
        start = self.stop - answers.shape[0]
        self.kept.write(Shard(start, self.stop, answers, torch.cat(labels) if labels else None, mark(first, self._last)))

    def record(self, origin: Mapping[str, str]) -> Record:
        """All of it, one tensor a kind of view."""
        if not self.answers:
            raise InputError(f"expected at least one image in {self.source.name}, found none")
        views, at = {}, 1
        for kind, repeats in self.policy.repeats.items():
            views[kind] = torch.cat([part[:, at : at + repeats] for part in self.answers])
            at += repeats
        labels = self.labels if self.labels is not None else torch.cat(self.own) if self.own else None
        return Record(Predictions(torch.cat([part[:, 0] for part in self.answers]), views), labels, origin)


def _origin(model: nn.Module, source: Source, policy: Policy, seed: int, draws: str) -> dict[str, str]:
    from atta import __version__  # the package imports this module first

    inner = model.model if isinstance(model, TorchModel) else model
    dataset = {"dataset": source.dataset} if source.dataset else {}
    dataset |= {"classes": json.dumps(source.classes)} if source.classes else {}
    return dataset | {
        "model": type(inner).__name__,
        "image_shape": " x ".join(map(str, source.shape or ())),
        "policy": str(policy),
        "passes": str(policy.passes),
        "seed": str(seed),
        "draws": draws,
        "atta": __version__,
        "torch": torch.__version__,
    }
