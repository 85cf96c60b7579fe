"""Run a network on images and their views, once, and record the logits.

    for each batch of images, read and uploaded once:
        for the image itself and each of its views:
            logits = model(view)                          [n k]
    Record(logits [n k], views {"crop": [n r k], ...}, labels, origin)

The model gets pixels in [0, 1], n c h w; a model that wants them normalised is `atta.Normalized`.
A view depends on the seed, the position of the image in its set, the kind of view and the repeat.
Batch size, order and workers do not change it. The model is the same after the run as before.

`Run` is a network and its images, prepared once; it runs many policies. `collect` runs one.
"""

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from atta._base.display import counted
from atta._base.errors import InputError
from atta._base.files import locked
from atta._base.settings import checked
from atta._base.tensors import read_tensors
from atta.data.corruptions import REHEARSALS, rehearsed
from atta.data.folder import digest_of
from atta.data.items import Channels
from atta.data.labels import Labelling, Reading, labelled_source
from atta.data.preprocess import Preprocess, sheet_of, showing
from atta.data.source import Batch, Source, batches_of, cached
from atta.data.views import Policy
from atta.networks.adapters import Normalized, TorchModel, as_logits
from atta.networks.borrowing import class_names_of
from atta.networks.description import fingerprint
from atta.record.predictions import Predictions, Record, as_labels
from atta.record.store import LOGITS
from atta.record.writer import SHARDS, ShardWriter, write_index
from atta.run.checks import check_labels, look_over, try_out
from atta.run.cluster import check_source, kept_alive, run_on_ray
from atta.run.runner import Execution, ExecutionOptions, Runner, batch_size, split_options

FIRST_SEVERITY = 3
"""The severity that rehearsals begin with."""
FALL = 0.25
"""Accuracy drop that ends the severity search; also the part above chance that is too little."""
MOST_SEVERITIES = 3
"""Severities that a search records at most."""
STREAM_SEVERITIES = (2, FIRST_SEVERITY, 5)
"""Severities recorded from a stream, which cannot be read again to search for one."""


class CollectOptions(ExecutionOptions, total=False):
    """Less common keyword arguments of `collect`: those of `atta.Execution`, and

    Args:
        shuffle: Seed by which a labelled folder is shuffled, 0 by default; False keeps its order.
        skip_bad: Leave out images that cannot be decoded, with a line for each.
        checks: False skips the trial with eight images and the remarks at the end.
        origin: Text to add to the record's origin.
    """

    shuffle: int | bool | None
    skip_bad: bool
    checks: bool
    origin: Mapping[str, str] | None


@checked
def collect(
    model: object,
    images: object,
    labels: object = None,
    *,
    policy: Any = "aug8",
    seed: int = 0,
    draws: str = "random",
    rehearse: bool | Iterable[int] = False,
    channels: Channels = None,
    preprocess: Any = None,
    class_names: Sequence[str] = (),
    output: str | PathLike[str] | None = None,
    **options: Unpack[CollectOptions],
) -> Record:
    """Run the model on every image and every view of it, and return the logits as a record.

    Args:
        model: An `nn.Module` that returns logits, an ONNX file, or a function (`atta.NumpyModel`).
        images: A tensor, an array, a dataset, a loader, a folder or files (`atta.data.source`).
        labels: Class numbers or names, or a CSV or Parquet file; by default those of the images.
        policy: Views to show: a name, or text such as "flip + 5 crop".
        seed, draws: Seed of random views, or draws="stratified", which spreads repeats evenly.
        rehearse: Also record degraded images: True chooses severities, a list names some (1 to 5).
        channels: Where arrays have their channels: "first" or "last".
        preprocess: How photographs are resized, cropped and normalised (`Preprocess.of`).
        class_names: Names of the network's classes, in its order.
        output: A folder that becomes the record, or a `.safetensors` file. After a kill, the same
            call resumes, repairs damaged shards, and ends with the same bits.
        **options: `CollectOptions`: `device`, `batch_size`, `workers`, `skip_bad`, ...

    Returns: The record; with a folder as output, it reads from there.

    >>> network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 3))
    >>> collect(network, torch.rand(8, 3, 4, 4), policy="flip", checks=False).predictions
    Predictions(8 images, 3 classes; 1 flip)
    """
    execution, rest = split_options("collect", options, collect, CollectOptions)
    views = Policy.parse(policy)
    wanted = None if preprocess is None else Preprocess.of(preprocess)
    wanted = showing(wanted, views.photographs)
    read = Reading(class_names, channels, wanted, rest.get("shuffle"), rest.get("skip_bad", False))
    run = prepared(model, images, labels, read, execution, seed, draws, rest.get("origin"))
    run.about.update(folder_of(images, run.source, run.about.get("folder")))
    if rehearse and execution.engine is None and not run.source.once:
        run = replace(run, source=cached(run.source, in_memory=True))
    with _output(output) as folder:
        record = run.record(views, rehearse, folder, checks=rest.get("checks", True))
        return record if output is None or as_folder(output) else Record.load(record.save(output))


def prepared(
    model: object,
    images: object,
    labels: object,
    read: Reading,
    execution: Execution,
    seed: int,
    draws: str,
    origin: Mapping[str, str] | None = None,
) -> "Run":
    """Prepare a network and its images for runs, whose origin gets these words."""
    network = as_logits(model, read.preprocess)
    read = replace(
        read,
        class_names=read.class_names or class_names_of(network),
        cache=read.cache and execution.engine is None,
        workers=execution.workers,
    )
    source, labelling, about = labelled_source(images, labels, read)
    return Run(network, source, labelling, execution, seed, draws, {**about, **(origin or {})})


def folder_of(images: object, source: Source, folder: str | None = None) -> dict[str, str]:
    """Return the folder of the images and a digest of their file names, for a record's origin.

    `folder` is the folder of images that were read before, as commands do.
    """
    if isinstance(images, str | Path) and Path(images).is_dir():
        folder = str(Path(images).absolute())
    if folder is None:
        return {}
    files = {"files": digest_of(source.files, folder)} if source.files else {}
    return {"folder": folder, **files}


def as_folder(output: str | PathLike[str]) -> bool:
    """Whether a record becomes a folder: an existing one, or a name without a suffix."""
    path = Path(output)
    ends = str(output).endswith(("/", os.sep))
    return path.is_dir() or ends or not (path.suffix or path.exists())


@contextmanager
def _output(output: str | PathLike[str] | None) -> Iterator[Path | None]:
    """Yield the folder for shards; that of a file is removed once the file is written."""
    if output is None or as_folder(output):
        yield None if output is None else Path(output)
        return
    path = Path(output)
    folder = path.with_name(path.name + ".shards")
    with locked(path):
        existed = folder.exists()
        try:
            yield folder
        except BaseException:
            if not existed and not any(folder.glob(SHARDS)):
                shutil.rmtree(folder, ignore_errors=True)
            raise
        shutil.rmtree(folder, ignore_errors=True)


def degraded(rehearse: bool | Iterable[int]) -> Policy:
    """Return the rehearsals that were asked for, as far as no search decides them."""
    return rehearsed(STREAM_SEVERITIES if rehearse is True else rehearse or ())


@dataclass(frozen=True)
class Run:
    """A network and its images, prepared once, to be run under many policies.

    `about` are words for the origin of its records.
    """

    network: nn.Module
    source: Source
    labelling: Labelling
    execution: Execution
    seed: int
    draws: str
    about: dict[str, str] = field(default_factory=dict)

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Channels, height and width of the images, without views of the photograph."""
        shape = self.source.shape
        sheet = sheet_of(self.source.preprocess)
        return shape if sheet is None else (shape[0], *sheet.size)

    def record(
        self,
        policy: Policy,
        rehearse: bool | Iterable[int],
        folder: Path | None = None,
        *,
        checks: bool = True,
    ) -> Record:
        """Try a few images, run all of them, rehearse, and check the answers."""
        source = self.source
        labelling = self.labelling
        if self.execution.engine:
            check_source(source)
        if checks:
            check_labels(labelling, source)
            trial = try_out(self.network, source, labelling, policy, self.execution)
            if trial.fixed:
                raise InputError(trial.fixed)
        search = rehearse is True and not source.once
        unlabelled = search and labelling.labels is None
        if unlabelled and next(source.read([[0]])).labels is None:
            raise InputError(
                "labels: expected a class number for every image, to see how far accuracy falls "
                "in rehearsals, got none; give labels=..., or name severities: rehearse=[3, 5]"
            )
        every = Policy((*policy.terms, *degraded(() if search else rehearse).terms))
        with kept_alive(self.execution.engine):
            runs = [first := self.answers(every, folder=folder)]
            if not first.classes:
                raise InputError(f"expected at least one image in {source.name}, found none")
            labels = first.labels()
            severity = FIRST_SEVERITY if search else 0  # a search begins in the middle
            while severity and labels is not None:
                place = folder and folder / REHEARSALS[severity].name
                runs.append(self.answers(rehearsed([severity]), itself=False, folder=place))
                severity = _next_severity(severity, first, runs[-1], labels)
        origin = self.origin(policy, first.classes)
        if folder is None:
            views = {kind: view for run in runs for kind, view in run.views().items()}
            record = Record(Predictions(views.pop(LOGITS)[:, 0], views), labels, origin)
        else:
            writers = [run.writer for run in runs if run.writer]
            record = write_index(folder, writers, labels, origin)
        if checks:
            look_over(record, source)
        return record

    def answers(
        self, policy: Policy, *, itself: bool = True, folder: Path | None = None
    ) -> "Answers":
        """Run the network on the images themselves, unless told otherwise, and on their views."""
        execution = self.execution
        source = self.source
        progress = self.execution.progress
        device = execution.device_of(self.network)
        writer = None
        told = 0
        size = batch_size(execution.batch_size, device)
        how = device, size, self.seed, self.draws, itself, sheet_of(source.preprocess)
        runner = Runner(self.network, policy, execution, *how)
        counts = ({LOGITS: 1} if itself else {}) | policy.repeats
        title = "collecting" if itself else f"rehearsing, {policy}"
        here = execution.engine is None
        with ExitStack() as stack:
            if folder is not None:
                writer = ShardWriter(folder, self._settings(policy, device), counts)
                stack.enter_context(locked(writer.settings))
                size = writer.begin(size)
                runner.told = writer.keep_rows
                runner.rows = writer.rows
            if here:
                stack.enter_context(runner.started())
            answers = Answers(source, self.labelling, counts, writer)
            gaps = answers.resume()
            done = answers.images
            shown = counted(title, source.count, shown=progress is True, done=done)
            tell = stack.enter_context(shown)
            for start, stop in gaps:
                if writer is not None:
                    writer.go_to(start, source)
                wanted = batches_of(size, start, stop)
                batches = (runner.run if here else partial(run_on_ray, runner))(source, wanted)
                try:
                    with closing(batches):
                        for batch, logits in batches:
                            answers.append(batch, logits)
                            tell(answers.images)
                            if callable(progress):
                                progress((answers.images - told) * (policy.passes - (not itself)))
                                told = answers.images
                finally:
                    if writer is not None:
                        writer.flush()
            if writer is not None:
                writer.finish()
        return answers

    def _settings(self, policy: Policy, device: torch.device) -> dict[str, Any]:
        """Return what changes bits: shards with other settings are not resumed."""
        execution = self.execution
        labelling = self.labelling
        named = labelling.labels is None and labelling.numbers is not None
        return {
            "model": fingerprint(self.network),
            "policy": str(policy),
            "seed": self.seed,
            "draws": self.draws,
            "images": self.source.count,
            **({"classes": list(labelling.classes)} if named else {}),  # shards hold such labels
            "device": device.type,
            "batch_size": execution.batch_size,
            "autocast": str(execution.half),
            "channels_last": bool(execution.channels_last),
            "compile": execution.compile,
        }

    def origin(self, policy: Policy, classes: int) -> dict[str, str]:
        """Describe the run as text, for the origin of a record."""
        from atta import __version__  # the package imports this module first

        inner = self.network
        source = self.source
        while isinstance(inner, TorchModel) or (
            source.preprocess and isinstance(inner, Normalized)
        ):
            inner = inner.model
        names = self.labelling.settled(classes).classes
        preprocess = source.preprocess and replace(source.preprocess, views=())
        known = {
            "dataset": source.dataset,
            "model": type(inner).__name__,
            "classes": json.dumps(names) if names else None,
            "preprocess": None if preprocess is None else json.dumps(preprocess.about()),
            "image_shape": " x ".join(map(str, self.image_shape)),
            "policy": policy,
            "passes": policy.passes,
            "seed": self.seed,
            "draws": self.draws,
            "atta": __version__,
            "torch": torch.__version__,
        }
        found = {name: str(value) for name, value in known.items() if value is not None}
        return found | self.about


@dataclass
class Answers:
    """The answers of one run: in memory, or in the shards of a folder."""

    source: Source
    labelling: Labelling
    counts: Mapping[str, int]
    writer: ShardWriter | None = None
    images: int = 0
    classes: int = 0
    parts: list[Tensor] = field(default_factory=list)
    own: dict[int, Tensor] = field(default_factory=dict)
    """Labels that came with the images, by the position of the first."""

    def resume(self) -> list[tuple[int, int | None]]:
        """Return what is left to do: everything, or what an earlier run did not finish."""
        if self.writer is None:
            return [(0, self.source.count)]
        self.images, gaps, labels = self.writer.resume(self.source)
        self.own = dict(labels)
        for block in islice(self.blocks(), 1):
            self._settle(block.shape[2])
        return gaps

    def _settle(self, classes: int) -> None:
        """Check labels and names now that the number of classes is known."""
        self.classes = classes
        self.labelling = self.labelling.settled(classes)
        if (labels := self.labelling.labels) is not None:
            as_labels(labels, images=labels.shape[0], classes=classes)

    def append(self, batch: Batch, answers: Tensor) -> None:
        """Take the answers to a batch."""
        start = batch.positions[0]
        n = answers.shape[0]
        k = answers.shape[2]
        if not self.classes:
            self._settle(k)
        if k != self.classes:
            raise InputError(
                f"expected {self.classes} classes as before, got {k} from "
                f"{self.source.where(start)} on"
            )
        own = self.labelling.own(batch.labels)
        if own is not None:
            if self.labelling.labels is None:
                as_labels(own, images=n, classes=k)
            self.own[start] = own
        self.images += n
        if self.writer is None:
            self.parts.append(answers)
        else:
            self.writer.append(start, answers, own, batch.pixels[:1], batch.pixels[-1:])

    def labels(self) -> Tensor | None:
        """Return the labels that were given, or those that came with the images, in order."""
        if self.labelling.labels is not None or not self.own:
            return self.labelling.labels
        return torch.cat([self.own[start] for start in sorted(self.own)])

    def blocks(self) -> Iterator[Tensor]:
        """Return all answers, (n, passes, k), piece by piece."""
        if self.writer is None:
            return iter(self.parts)
        return (read_tensors(path, sealed=False)[0]["answers"] for path in self.writer.paths())

    def views(self) -> dict[str, Tensor]:
        """Return the logits of each pass by kind, the images themselves under `LOGITS`."""
        return by_kind(self.blocks(), self.counts)


def by_kind(blocks: Iterable[Tensor], counts: Mapping[str, int]) -> dict[str, Tensor]:
    """Return the logits (n, repeats, k) of each kind of view from all passes (n, passes, k)."""
    parts = zip(*(torch.split(block, [*counts.values()], dim=1) for block in blocks), strict=True)
    return {kind: torch.cat(part) for kind, part in zip(counts, parts, strict=True)}


def _next_severity(severity: int, base: Answers, rehearsal: Answers, labels: Tensor) -> int:
    """Return where to go on: up if accuracy hardly fell, down near chance, 0 to end."""
    accuracies = []
    for run in (base, rehearsal):
        winners = torch.cat([part[:, 0].argmax(dim=1) for part in run.blocks()])
        accuracies.append(int((winners == labels).sum()) / len(labels))
    (before, after), chance = accuracies, 1 / base.classes
    fell = before - after >= FALL
    near_chance = after - chance < FALL * (before - chance)
    if severity == FIRST_SEVERITY:
        return int(near_chance) if fell else max(REHEARSALS)
    return 2 if severity == 1 and not fell else 0
