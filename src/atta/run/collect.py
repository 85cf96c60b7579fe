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

import operator
import os
import shutil
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from atta._base.errors import InputError
from atta._base.files import locked, readable
from atta._base.progress import counted
from atta._base.settings import checked
from atta._base.tensors import read_tensors
from atta.data.corruptions import REHEARSALS, rehearsed
from atta.data.labels import Labelling, Reading, labelled_source
from atta.data.origin import Origin, digest_of
from atta.data.preprocess import Preprocess
from atta.data.source import Batch, Channels, Source, batches_of, cached
from atta.data.views import Policy
from atta.networks.adapters import Normalized, TorchModel, as_logits, class_names_of, normalised
from atta.networks.borrowing import dtype_of
from atta.networks.weights import fingerprint
from atta.record.predictions import Predictions, Record, as_labels
from atta.record.store import LOGITS, Columns, write_index
from atta.record.writer import SHARDS, ShardWriter
from atta.run.checks import check_labels, look_over, try_out
from atta.run.cluster import Engine, Showing, check_source, run_on_ray
from atta.run.execution import Execution, ExecutionOptions, split_options
from atta.run.runner import Runner, batch_size, running

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
        seed: Seed of random views.
        draws: "random" or "stratified", which spreads repeats evenly.
        rehearse: Also record degraded images, for hedged methods: True searches for the severity
            at which accuracy falls, a list names severities (1 to 5).
        channels: Where arrays have their channels: "first" or "last".
        preprocess: How photographs are resized, cropped and normalised (`Preprocess.of`).
        class_names: Names of the network's classes, in its order.
        output: A folder that becomes the record, or a `.safetensors` file. After a kill, the same
            call resumes, repairs damaged shards, and ends with the same bits.
        **options: `CollectOptions`: `device`, `batch_size`, `workers`, `skip_bad`, ...

    Returns:
        The record; with a folder as output, it reads from there.

    Example:
        >>> network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 3))
        >>> collect(network, torch.rand(8, 3, 4, 4), policy="flip", checks=False).predictions
        Predictions(8 images, 3 classes; 1 flip)
    """
    execution, rest = split_options("collect", options, collect, CollectOptions)
    wanted = None if preprocess is None else Preprocess.of(preprocess)
    read = Reading(class_names, channels, wanted, rest.get("shuffle"), rest.get("skip_bad", False))
    run, about = prepared(model, images, labels, read, execution, as_seed(seed), draws)
    about |= dict(rest.get("origin") or {}) | folder_of(images, run.source)
    return run.written(Policy.parse(policy), rehearse, about, output, rest.get("checks", True))


def prepared(
    model: object,
    images: object,
    labels: object,
    read: Reading,
    execution: Execution,
    seed: int,
    draws: str,
) -> tuple["Run", dict[str, str]]:
    """Prepare a network and its images for runs, and say what the origin says of their order."""
    network = as_logits(normalised(model, read.preprocess))
    read = replace(
        read,
        class_names=read.class_names or class_names_of(network),
        cache=read.cache and not execution.on_ray,
        workers=execution.workers,
    )
    source, labelling, about = labelled_source(images, labels, read)
    return Run(network, source, labelling, execution, seed, draws), about


def folder_of(images: object, source: Source) -> dict[str, str]:
    """Return the folder of the images and a digest of their file names, for a record's origin."""
    if not isinstance(images, str | Path) or not Path(images).is_dir():
        return {}
    folder = str(Path(images).absolute())
    digest = digest_of(source.files, folder) if source.files else None
    return Origin(folder=folder, files=digest).text()


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


def as_seed(seed: Any) -> int:
    """Return a seed as a plain whole number."""
    try:
        return operator.index(seed)
    except TypeError:
        raise InputError(f"seed: expected a whole number, got {seed!r}") from None


@dataclass(frozen=True)
class Run:
    """A network and its images, prepared once, to be run under many policies."""

    network: nn.Module
    source: Source
    labelling: Labelling
    execution: Execution
    seed: int
    draws: str

    def written(
        self,
        policy: Policy,
        rehearse: bool | Iterable[int],
        about: Mapping[str, str],
        output: str | PathLike[str] | None,
        checks: bool,
    ) -> Record:
        """Run a policy and write the record as a folder or a file, if `output` names one."""
        run = self
        if rehearse and not self.execution.on_ray and not self.source.once:
            run = replace(self, source=cached(self.source, in_memory=True))
        with _output(output) as folder:
            record = run.record(policy, rehearse, about, folder, checks=checks)
            if output is None or as_folder(output):
                return record
            return Record.load(record.save(output))

    def record(
        self,
        policy: Policy,
        rehearse: bool | Iterable[int],
        about: Mapping[str, str],
        folder: Path | None = None,
        *,
        checks: bool = True,
    ) -> Record:
        """Try a few images, run all of them, rehearse, and check the answers."""
        source, once = self.source, self.source.once
        if self.execution.on_ray:
            check_source(source)
        if checks:
            check_labels(self.labelling, source)
            where = self.execution.trial_device(self.network)
            try_out(self.network, source, self.labelling, policy, where, self.execution.half)
        search = rehearse is True and not once
        unlabelled = search and self.labelling.labels is None
        if unlabelled and next(iter(source.read([[0]]))).labels is None:
            raise InputError(
                "labels: expected a class number for every image, to see how far accuracy falls "
                "in rehearsals, got none; give labels=..., or name severities: rehearse=[3, 5]"
            )
        severities = () if search or rehearse is False else rehearse
        severities = STREAM_SEVERITIES if severities is True else severities
        first = self.answers(Policy((*policy.terms, *rehearsed(severities).terms)), folder=folder)
        runs = [first, *(self._search(first, folder) if search else ())]
        record = joined(runs, {**self.origin(policy, first.classes), **about}, folder)
        if checks:
            look_over(record, source)
        return record

    def _search(self, base: "Answers", folder: Path | None) -> list["Answers"]:
        """Record rehearsals from the middle severity: up if accuracy hardly fell, else down."""
        found: list[Answers] = []
        labels = base.labels()
        assert labels is not None
        before, chance, severity = base.accuracy(labels), 1 / base.classes, FIRST_SEVERITY
        while severity:
            place = None if folder is None else folder / REHEARSALS[severity].name
            found.append(self.answers(rehearsed([severity]), itself=False, folder=place))
            after = found[-1].accuracy(labels)
            fell, near_chance = before - after >= FALL, after - chance < FALL * (before - chance)
            if severity == FIRST_SEVERITY:
                severity = int(near_chance) if fell else max(REHEARSALS)
            else:
                severity = 2 if severity == 1 and not fell else 0
        return found

    def answers(
        self, policy: Policy, *, itself: bool = True, folder: Path | None = None
    ) -> "Answers":
        """Run the network on the images themselves, unless told otherwise, and on their views."""
        device = self.execution.device_of(self.network)
        answers = Answers(self.source, self.labelling, policy, itself)
        if folder is not None:
            run = {**self._settings(policy), "device": device.type, **self.execution.settings()}
            run = {"model": fingerprint(self.network), **run}
            answers.writer = ShardWriter(folder, run, answers.passes)
        writer, size = answers.writer, batch_size(self.execution.batch_size, device)
        alone = nullcontext() if writer is None else locked(writer.settings)
        here = nullcontext() if self.execution.on_ray else self._running(device)
        with alone, here:
            size, rows = (size, size) if writer is None else writer.begin(size)
            runner = self._runner(policy, device, rows, itself, writer)
            gaps = answers.resume()
            with self._counted(policy, itself, answers.images) as tell:
                for start, stop in gaps:
                    if writer is not None:
                        writer.go_to(start, self.source)
                    try:
                        with closing(self._batches(runner, size, start, stop)) as batches:
                            for batch, logits in batches:
                                answers.append(batch, logits)
                                tell(answers.images)
                    finally:
                        if writer is not None:
                            writer.flush()
            if writer is not None:
                writer.finish()
        return answers

    def _settings(self, policy: Policy) -> dict[str, Any]:
        """Return what shards must have been made of to be resumed."""
        run = {
            "policy": str(policy),
            "seed": self.seed,
            "draws": self.draws,
            "images": self.source.count,
        }
        if self.labelling.labels is None and self.labelling.numbers is not None:
            run["classes"] = list(self.labelling.classes)  # shards hold labels by these names
        return run

    def _running(self, device: torch.device) -> AbstractContextManager[None]:
        execution = self.execution
        return running(self.network, device, execution.channels_last, execution.half)

    def _runner(
        self,
        policy: Policy,
        device: torch.device,
        rows: int,
        itself: bool,
        writer: ShardWriter | None,
    ) -> Runner:
        execution = self.execution
        compiled = execution.compile and not execution.on_ray
        return Runner(
            torch.compile(self.network) if compiled else self.network,
            policy,
            self.seed,
            self.draws,
            device,
            dtype_of(self.network),
            execution.channels_last,
            rows,
            execution.half,
            None if writer is None else writer.keep_rows,
            itself,
        )

    def _batches(
        self, runner: Runner, size: int, start: int, stop: int | None
    ) -> Generator[tuple[Batch, Tensor]]:
        """Yield batches with their answers, from this process or from a cluster."""
        execution, wanted = self.execution, batches_of(size, start, stop)
        if not execution.on_ray:
            batches = self.source.read(wanted, execution.workers)
            return runner.run(batches, self.source.places)
        there = replace(runner, device=torch.device(runner.device.type), told=None)
        showing = Showing(self.network, there, execution.half, execution.compile)
        on_gpu = runner.device.type == "cuda"
        engine = Engine(execution.actors, on_gpu, torch.get_num_threads())
        return run_on_ray(showing, self.source, wanted, engine)

    def _counted(
        self, policy: Policy, itself: bool, begun: int
    ) -> AbstractContextManager[Callable[[int], None]]:
        """Show how many images are done, or tell a function how many passes were run."""
        progress = self.execution.progress
        if not callable(progress):
            title = "collecting" if itself else f"rehearsing, {policy}"
            return counted(title, self.source.count, shown=progress, done=begun)
        passes, last = policy.passes - (not itself), 0

        def tell(images: int) -> None:
            nonlocal last
            progress((images - last) * passes)
            last = images

        return nullcontext(tell)

    def origin(self, policy: Policy, classes: int) -> dict[str, str]:
        """Describe the run as text, for the origin of a record."""
        from atta import __version__  # the package imports this module first

        inner, source = self.network, self.source
        while isinstance(inner, TorchModel) or (
            source.preprocess and isinstance(inner, Normalized)
        ):
            inner = inner.model
        origin = Origin(
            dataset=source.dataset,
            model=type(inner).__name__,
            classes=self.labelling.settled(classes).classes,
            preprocess=source.preprocess,
            image_shape=source.shape,
            policy=str(policy),
            passes=policy.passes,
            seed=self.seed,
            draws=self.draws,
        )
        return {**origin.text(), "atta": __version__, "torch": torch.__version__}


@dataclass
class Answers:
    """The answers of one run: in memory, or in the shards of a folder."""

    source: Source
    labelling: Labelling
    policy: Policy
    itself: bool
    writer: ShardWriter | None = None
    images: int = 0
    classes: int = 0
    parts: list[Tensor] = field(default_factory=list)
    own: list[tuple[int, Tensor]] = field(default_factory=list)
    """Labels that came with the images, by the position of the first."""

    @property
    def passes(self) -> int:
        """Passes per image."""
        return self.itself + sum(self.policy.repeats.values())

    @property
    def columns(self) -> Columns:
        """Return the first pass of each kind of view, and how many there are."""
        found, at = {LOGITS: (0, 1)} if self.itself else {}, int(self.itself)
        for kind, repeats in self.policy.repeats.items():
            found[kind] = (at, repeats)
            at += repeats
        return found

    def resume(self) -> list[tuple[int, int | None]]:
        """Return what is left to do: everything, or what an earlier run did not finish."""
        if self.writer is None:
            return [(0, self.source.count)]
        self.images, gaps, self.own = self.writer.resume(self.source)
        if paths := self.writer.paths():
            self._settle(read_tensors(paths[0], sealed=False)[0]["answers"].shape[2])
        return gaps

    def _settle(self, classes: int) -> None:
        """Check labels and names now that the number of classes is known."""
        self.classes, self.labelling = classes, self.labelling.settled(classes)
        if (labels := self.labelling.labels) is not None:
            as_labels(labels, images=labels.shape[0], classes=classes)

    def append(self, batch: Batch, answers: Tensor) -> None:
        """Take the answers to a batch."""
        start, n, k = batch.positions[0], answers.shape[0], answers.shape[2]
        if self.classes and k != self.classes:
            raise InputError(
                f"expected {self.classes} classes as before, got {k} from "
                f"{self.source.where(start)} on"
            )
        if not self.classes:
            self._settle(k)
        own = self.labelling.own(batch.labels)
        if own is not None:
            if self.labelling.labels is None:
                as_labels(own, images=n, classes=k)
            self.own.append((start, own))
        self.images += n
        if self.writer is None:
            self.parts.append(answers)
        else:
            self.writer.append(start, answers, own, batch.pixels[:1], batch.pixels[-1:])

    def labels(self) -> Tensor | None:
        """Return the labels that were given, or those that came with the images, in order."""
        if self.labelling.labels is not None or not self.own:
            return self.labelling.labels
        return torch.cat([part for _, part in sorted(self.own, key=operator.itemgetter(0))])

    def blocks(self) -> Iterator[Tensor]:
        """Yield all answers, (n, passes, k), piece by piece."""
        if self.writer is None:
            yield from self.parts
        else:
            for path in self.writer.paths():
                yield read_tensors(path, sealed=False)[0]["answers"]

    def accuracy(self, labels: Tensor) -> float:
        """Return how often the first pass is right."""
        right = start = 0
        for part in self.blocks():
            right += int((part[:, 0].argmax(dim=1) == labels[start : start + len(part)]).sum())
            start += len(part)
        return right / start

    def views(self) -> dict[str, Tensor]:
        """Return the logits of each pass by kind, the images themselves under `LOGITS`."""
        blocks = list(self.blocks())
        return {
            kind: torch.cat([part[:, at : at + n] for part in blocks])
            for kind, (at, n) in self.columns.items()
        }


def joined(runs: Sequence[Answers], origin: Mapping[str, str], folder: Path | None) -> Record:
    """Make a record of one run over the images and further runs over their views."""
    first = runs[0]
    if not first.classes:
        raise InputError(f"expected at least one image in {first.source.name}, found none")
    if folder is None:
        views = {kind: view for run in runs for kind, view in run.views().items()}
        return Record(Predictions(views.pop(LOGITS)[:, 0], views), first.labels(), origin)
    groups = [(run.columns, run.writer.paths(), run.writer.name) for run in runs if run.writer]
    text = {readable(key): readable(str(value)) for key, value in origin.items()}
    return write_index(folder, groups, first.labels(), text)
