"""Where the network runs: images in, the logits of each image and of each of its views out, as one `Record`.

    for a batch of images, read and uploaded once:
        for the image itself and each of its views:
            logits = model(view)                          [n k]
    Record(logits [n k], views {"crop": [n r k], ...}, labels, origin)
    for a record that rehearses, the images made worse on purpose, severity by severity until accuracy has clearly fallen

The model is given pixels in [0, 1], n c h w; a model that wants them normalised is `atta.Normalized`. A view is a
function of the seed, the image's place in its set, the kind of view and the repeat: neither the size of a batch nor the
order, nor the number of workers changes it. The model is borrowed: nothing of it is different afterwards.
"""

import json
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from operator import itemgetter
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypedDict, TypeGuard, Unpack

import torch
from torch import Tensor, nn

from atta.collection.advice import look_over
from atta.collection.cluster import RAY, Engine, Showing, check_engine, check_source, run_on_ray
from atta.collection.runner import Batch, Runner, batch_size, ranges_of, read_batches
from atta.collection.shards import LARGE, Shard, Shards, fingerprint, mark
from atta.collection.trial import as_device, check_labels, check_names, running, try_out, without_bad
from atta.errors import InputError, advise, suggest
from atta.files import locked, readable
from atta.images.again import FILES, FOLDER, digest_of
from atta.images.labels import Truth, truth_of
from atta.images.layouts import by_file_name, folder_of_images
from atta.images.preprocessing import Preprocess
from atta.images.rehearsals import REHEARSALS, rehearsed
from atta.images.sets import ImageSet, arrange
from atta.images.sources import Block, Channels, Source, StreamSource, as_source
from atta.images.views import Policy
from atta.networks.adapters import Normalized, TorchModel, as_logits, class_names_of, normalised
from atta.networks.borrowing import dtype_of
from atta.predictions import Predictions, Record, as_labels, read_tensors
from atta.progress import counted
from atta.settings import Count, checked
from atta.sharded import LOGITS, write_index

RUNG = 3
"""The severity that a ladder of rehearsals begins with."""
FALLEN = 0.25
"""By how much accuracy has to fall until a ladder has been climbed; and the part of what is above chance that is near it."""
LADDER = 3
"""The most severities that are climbed."""
UNSEEN = (2, RUNG, 5)
"""The severities that are recorded where images can be read only once, so that nobody can go on by what was seen."""


class Execution(TypedDict, total=False):
    """How the network is run. None of it changes what is asked of it; most of it changes the last bits of the answers."""

    device: str | int | torch.device | None
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
    engine: Literal["ray"] | None
    """Ray reads, decodes and runs on a Ray cluster (`collection.cluster`); None in this process."""
    actors: Count | None
    """Processes of the cluster that hold the network; as many as there is room for unless it is given."""


class Collecting(Execution, total=False):
    """What else is handed on to `collect` by those who choose policy and draws themselves."""

    seed: int
    shuffle: int | bool | None
    skip_bad: bool
    shards: str | PathLike[str] | None
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
    shuffle: int | bool | None = None,
    skip_bad: bool = False,
    shards: str | PathLike[str] | None = None,
    output: str | PathLike[str] | None = None,
    progress: bool | Callable[[int], None] = True,
    origin: Mapping[str, str] | None = None,
    checks: bool = True,
    logits: Tensor | None = None,
    **execution: Unpack[Execution],
) -> Record:
    """Run the model on every image and every view of it, once.

    `model` is what `as_logits` takes. `images` are uint8 or floats in [0, 1], held by anything that the table in
    `atta.images.sources` names; `channels` says where an array has its channels. `labels` come from the images where those
    have them; they are class numbers, names, or a CSV or Parquet file of files and labels. `class_names` are those of the
    network, in its order, where it does not know them itself: folders, classes of datasets and labels are found among them.

    A folder with its labels is read class by class: its rows are shuffled by the seed `shuffle`, 0 unless it is given, which
    the record's origin remembers; `shuffle=False` leaves them as they stand. `skip_bad` reads all images first and leaves out,
    with a line each, those that cannot be decoded; otherwise the first of them ends the run.

    `preprocess` is what the network wants done to a photograph: anything that `Preprocess.of` reads. Files, folders, tables
    and Pillow images are resized and cropped by it, and the model is given their pixels normalised.

    `rehearse` also runs it on the images made worse on purpose (`images.rehearsals`), for fits that hedge against a shift: True
    climbs a ladder of severities until accuracy has clearly fallen, at most three passes an image, and needs labels; a list of
    severities takes these.

    `device` is the model's own unless it is named. `batch_size` is the most images a forward pass is given; running out of a
    GPU's memory halves it. `channels_last`, `autocast` (to bfloat16, or a dtype) and `compile` make networks faster; logits
    come back in float32 or wider. `workers` threads read and decode ahead. `engine="ray"` does all of it on a Ray cluster, the
    one of RAY_ADDRESS or one of this machine, with the network in so many `actors`; this process writes what they answer.

    `shards` names a folder in which finished work is kept: the same call again goes on from it, also after a kill, and
    ends with the same bits; one run at a time works in it. Delete it once the record is saved. `origin` adds to the
    record's own.

    `output` names a folder that becomes the record (`atta.sharded`), for records of any size: its shards are written as they
    are made, memory holds no more than one of them, and nothing is copied at the end. The same call again goes on from it, and
    mends it: a shard that is missing, cut short, or of another run or other rows is recorded again. What is returned reads
    from the folder, as `Record.load(folder)` does.

    Eight images go first (`trial`), and what looks wrong at the end is said (`advice`); `checks=False` leaves out both.
    `progress` may be a function, which is told how many passes were run since it was told last. `logits` of the images
    themselves, where they are known, spare a pass an image.
    """
    refuse_unknown("collect", execution, [*Execution.__annotations__])
    check_engine(execution.get("engine"), execution.get("actors"))
    wanted, seed = None if preprocess is None else Preprocess.of(preprocess), as_seed(seed)
    if shards is not None and output is not None:
        raise InputError("expected shards=... or output=..., whose folder holds the shards itself, got both")
    check_names(class_names)
    known = dict(origin or {}) | ({FOLDER: str(Path(images).absolute())} if _is_folder(images) else {})
    images, mixed_by = mixed(images, labels, shuffle)
    policy, source = Policy.parse(policy), as_source(images, channels, wanted)
    network = as_logits(normalised(model, wanted))
    truth = truth_of(labels, source, class_names or class_names_of(network))
    if execution.get("engine") == RAY:
        check_source(source)
    if skip_bad:
        source, left_out = without_bad(source, truth, execution.get("workers", 0))
        mixed_by |= left_out
    if checks:
        check_labels(truth, images, source)
        where = _asked_device(execution, network)
        where = where if torch.cuda.is_available() or execution.get("engine") is None else torch.device("cpu")
        try_out(network, source, truth, policy, device=where, half=half_of(execution))
    once = isinstance(source, StreamSource)
    asked = () if rehearse is False else (UNSEEN if once else ()) if rehearse is True else rehearse
    climbing = rehearse is True and not once
    if climbing and truth.labels is None and next(iter(source.read([(0, 1)])))[1] is None:
        raise InputError(
            "labels: expected a class number for every image, to see how far accuracy falls in rehearsals, got none; give "
            "labels=..., or name severities: rehearse=[3, 5]"
        )
    work = _Work(network, source, truth, seed, draws, progress, execution, output is not None)
    folder = shards if output is None else output
    done = work.run(Policy((*policy.terms, *rehearsed(asked).terms)), folder, logits=logits)
    more = _climbed(work, done, folder) if climbing else []
    if FOLDER in known and source.files:
        known[FILES] = digest_of(source.files, known[FOLDER])
    about = _origin(network, source, policy, truth.classes, seed, draws) | mixed_by | known
    record = done.record(about, more) if output is None else _indexed(Path(output), [done, *more], about)
    if checks:
        look_over(record)
    return record


@dataclass(frozen=True)
class _Work:
    """A network and images to run it on, with all that does not depend on the views."""

    network: nn.Module
    source: Source
    truth: Truth
    seed: int
    draws: str
    progress: bool | Callable[[int], None]
    execution: Execution
    lean: bool = False
    """Whether the shards become the record, and nothing of them stays in memory."""

    def run(
        self, policy: Policy, shards: str | PathLike[str] | None, *, itself: bool = True, logits: Tensor | None = None
    ) -> "_Done":
        """Run the network on the images, unless `itself` or known `logits` say that this was done, and on their views."""
        source, network, execution = self.source, self.network, self.execution
        at, half, fast = _asked_device(execution, network), half_of(execution), execution.get("channels_last", False)
        size, itself = batch_size(execution.get("batch_size"), at), itself and logits is None
        kept = None
        if shards is not None:
            run: dict[str, Any] = {
                "policy": str(policy),
                "seed": self.seed,
                "draws": self.draws,
                "images": source.count,
                "device": at.type,
            }
            if self.truth.labels is None and self.truth.numbers is not None:  # shards hold labels by these names
                run["classes"] = list(self.truth.classes)
            kept = Shards(Path(shards), {"model": fingerprint(network), **run, **_switches(execution)})
        alone = nullcontext() if kept is None else locked(kept.about)
        on_ray, compiled = execution.get("engine") == RAY, execution.get("compile", False)
        with alone, nullcontext() if on_ray else running(network, at, fast, half):
            size, rows = (size, size) if kept is None else kept.begin(size)
            forward = torch.compile(network) if compiled and not on_ray else network
            runner = Runner(forward, policy, self.seed, self.draws, at, dtype_of(network), fast, rows, kept, itself)
            done = _Done(source, self.truth, policy, kept, at=int(itself or logits is not None), lean=self.lean)
            with self._counted(policy, itself, done.resume()) as tell:
                for start, stop in done.gaps:
                    done.go_on(start)
                    try:
                        for batch, answers in self._answers(runner, size, start, stop):
                            if logits is not None:
                                answers = torch.cat([logits[batch.start :][: len(answers), None], answers], dim=1)
                            done.add(batch.start, batch.pixels, answers, batch.labels)
                            tell(done.stop)
                    finally:
                        done.flush()
            if kept is not None and self.lean:
                kept.sweep()
        return done

    def _answers(self, runner: Runner, size: int, start: int, stop: int | None) -> Iterator[tuple[Batch, Tensor]]:
        """Batch after batch, here or on a cluster."""
        execution = self.execution
        if execution.get("engine") != RAY:
            batches = read_batches(self.source, size, start=start, stop=stop, workers=execution.get("workers", 0))
            return runner.run(batches, self.source.places)
        there = replace(runner, device=torch.device(runner.device.type), kept=None)
        showing = Showing(self.network, there, half_of(execution), execution.get("compile", False))
        engine = Engine(execution.get("actors"), runner.device.type == "cuda", torch.get_num_threads())
        return run_on_ray(showing, self.source, ranges_of(size, start, stop), engine)

    def _counted(self, policy: Policy, itself: bool, begun: int) -> AbstractContextManager[Callable[[int], None]]:
        """Count the images that are done: in a bar, or for whoever is told of the passes since the last time."""
        if not callable(self.progress):
            title = "collecting" if itself else f"rehearsing, {policy}"
            return counted(title, self.source.count, shown=self.progress, done=begun)
        told, each, last = self.progress, policy.passes - (not itself), 0

        def tell(images: int) -> None:
            nonlocal last
            told((images - last) * each)
            last = images

        return nullcontext(tell)


def _climbed(work: _Work, done: "_Done", shards: str | PathLike[str] | None) -> list["_Done"]:
    """Run rehearsals from the middle of the ladder: up where accuracy has hardly fallen, down where little of it is left."""
    climbed: list[_Done] = []

    def right(severity: int) -> float:
        folder = None if shards is None else Path(shards) / REHEARSALS[severity].name
        climbed.append(work.run(rehearsed([severity]), folder, itself=False))
        return climbed[-1].accuracy(done.labels())

    before, chance = done.accuracy(done.labels()), 1 / done.classes
    after = right(RUNG)
    if before - after < FALLEN:
        right(max(REHEARSALS))
    elif after - chance < FALLEN * (before - chance) and before - right(1) < FALLEN:
        right(2)
    return climbed


def _indexed(folder: Path, runs: Sequence["_Done"], origin: Mapping[str, str]) -> Record:
    """Make the folder of shards a record."""
    groups = [(done.columns, done.paths(), done.kept.name) for done in runs if done.kept is not None]
    if not runs[0].classes:
        raise InputError(f"expected at least one image in {runs[0].source.name}, found none")
    return write_index(folder, groups, runs[0].labels(), {readable(key): readable(str(value)) for key, value in origin.items()})


def mixed(images: object, labels: object, shuffle: int | bool | None) -> tuple[object, dict[str, str]]:
    """Shuffle the images of a folder, unless labels in an order of their own go with them; say by which seed."""
    if shuffle is False or (labels is not None and not isinstance(labels, str | Path)):
        return images, {}
    seed = int(shuffle or 0)
    if _is_folder(images):
        found = folder_of_images(Path(images))
        if found.labels is None and labels is None and shuffle is None:
            return images, {}  # whoever has no labels goes by the names of the files
        return arrange(by_file_name(found), shuffle=seed), {"shuffle": str(seed)}
    if shuffle is not None and isinstance(images, ImageSet):
        return arrange(images, shuffle=seed), {"shuffle": str(seed)}
    return images, {}


def _is_folder(images: object) -> TypeGuard[str | Path]:
    return isinstance(images, str | Path) and Path(images).is_dir()


def refuse_unknown(function: str, given: Iterable[str], known: Sequence[str]) -> None:
    """Name a keyword that a function does not take, and the one that was perhaps meant."""
    for name in given:
        if name not in known:
            raise InputError(f"{function} takes no {name!r}.{suggest(name, known)} It takes: {', '.join(known)}")


def _asked_device(execution: Execution, network: nn.Module) -> torch.device:
    """Where the network is to run; what a cluster has is not looked for here."""
    asked = execution.get("device")
    return torch.device(asked) if execution.get("engine") == RAY and asked is not None else as_device(asked, network)


def half_of(execution: Execution) -> torch.dtype | None:
    """The dtype of autocast, if it was asked for."""
    asked = execution.get("autocast") or None
    return torch.bfloat16 if asked is True else asked


def _switches(execution: Execution) -> dict[str, Any]:
    """What of it changes bits: shards of other switches are not gone on from."""
    switches = {name: execution.get(name, False) for name in ("channels_last", "compile")}
    return {"batch_size": execution.get("batch_size"), "autocast": str(half_of(execution)), **switches}


def as_seed(seed: Any) -> int:
    """A whole number, NumPy's too."""
    try:
        return operator.index(seed)
    except TypeError:
        raise InputError(f"seed: expected a whole number, got {seed!r}") from None


# ---- what is done --------------------------------------------------------------------------------------------------


@dataclass
class _Done:
    """The answers so far, those of an earlier run among them, and the labels that came with the images."""

    source: Source
    truth: Truth
    policy: Policy
    kept: Shards | None
    at: int
    """The pass that is the first of the views: 1 where the images themselves come before them."""
    lean: bool
    answers: list[Tensor] = field(default_factory=list)
    own: list[tuple[int, Tensor]] = field(default_factory=list)
    stop: int = 0
    classes: int = 0
    gaps: list[tuple[int, int | None]] = field(default_factory=list)
    """From and to which image there is something to do."""
    _begun: dict[int, Shard] = field(default_factory=dict)
    """Shards that are not full, by the image that they go on with."""
    _part: tuple[int, int] | None = None
    """What is written of the shard that is being made."""
    _fresh: list[Block] = field(default_factory=list)
    _start: int = 0
    _first: Tensor | None = None
    _last: Tensor | None = None

    def resume(self) -> int:
        """Take over what an earlier run finished, if it ran on these images; say how many they are."""
        done, last = 0, None
        for shard in self._sound() if self.kept else ():
            if shard.start > done:
                self._gap(last, done, shard.start)
            self._take(shard.start, shard.answers, shard.labels)
            done, last = shard.stop, shard
        self._gap(last, done, self.source.count)
        return self.stop

    def _gap(self, last: Shard | None, start: int, stop: int | None) -> None:
        """Note what there is to do, and the shard before it if that is not full: a stream cannot go back to its first image."""
        self.gaps.append((start, stop))
        once = isinstance(self.source, StreamSource)
        if last is not None and start != stop and self.lean and not once and not self._full(start):
            self._begun[start] = last

    def _full(self, stop: int) -> bool:
        """Whether a shard that ends here is one that a folder has in the end."""
        assert self.kept is not None
        return stop % self.kept.full(self.passes) == 0

    def go_on(self, start: int) -> None:
        """Go on with the shard that ends here, if it is not full."""
        self._part = None
        if (shard := self._begun.pop(start, None)) is not None:
            self._fresh, self._start, self._part = [(shard.answers, shard.labels)], shard.start, (shard.start, shard.stop)
            ((self._first, _),) = self.source.read([(shard.start, shard.start + 1)])

    def _sound(self) -> Iterator[Shard]:
        """Shards of these images; where they are the record, those that are not are taken away, to be recorded again."""
        assert self.kept is not None
        if not self.lean or isinstance(self.source, StreamSource):  # which cannot go back to what is missing
            for shard in self.kept.finished():
                self._recognise(shard)
                yield shard
            return
        bad, good = list[tuple[int, int, str]](), list[tuple[int, int]]()
        for start, stop in self.kept.stretches():
            try:
                shard = self.kept.read(start, stop)
                if shard.answers.ndim != 3 or shard.answers.shape[1] != self.passes:
                    raise InputError(f"{self.kept.path(start, stop)} holds other views than its run has")
                self._recognise(shard)
                good.append((start, stop))
            except InputError as error:
                bad.append((start, stop, str(error)))
        if bad and not good:  # nothing of it is known: it may well be somebody else's work
            raise InputError(bad[0][2])
        for start, stop, fault in bad:
            advise(f"{fault}: it is recorded again")
            self.kept.forget(start, stop)
        yield from (self.kept.read(*one) for one in good)

    def _recognise(self, shard: Shard) -> None:
        """Refuse a shard of other images."""
        ends = [block for block, _ in self.source.read([(shard.start, shard.start + 1), (shard.stop - 1, shard.stop)])]
        if len(ends) < 2 or mark(ends[0], ends[1]) != shard.mark:
            raise InputError(
                f"expected the images from {self.source.where(shard.start)} on to be those whose shards are in "
                f"{self.kept.folder if self.kept else ''}, got others; choose another folder"
            )

    def add(self, start: int, pixels: Tensor, answers: Tensor, own: Tensor | None) -> None:
        """Take the answers to a batch, and write a shard when it is time."""
        n, k = answers.shape[0], answers.shape[2]
        if self.classes and k != self.classes:
            raise InputError(f"expected {self.classes} classes as before, got {k} from {self.source.where(start)} on")
        if not self.classes:  # Now the number of classes is known: a wrong label is said before the work is done.
            self.truth.settle(k)
            if self.truth.labels is not None:
                as_labels(self.truth.labels, images=self.truth.labels.shape[0], classes=k)
        own = self.truth.own(own)
        if self.truth.labels is None and own is not None:
            as_labels(own, images=n, classes=k)
        if self._first is None:
            self._first, self._start = pixels[:1], start
        self._last = pixels[-1:]
        self._fresh.append((answers, own))
        self._take(start, answers, own)
        if self.kept is None:
            return
        if self._full(start + n) if self.lean else (self.kept.due or sum(part.nbytes for part, _ in self._fresh) >= LARGE):
            self.flush()
        elif self.kept.due:
            self.flush(full=False)

    def _take(self, start: int, answers: Tensor, own: Tensor | None) -> None:
        self.classes = answers.shape[2]
        if not self.lean:
            self.answers.append(answers)
        self.stop += answers.shape[0]
        if own is not None:
            self.own.append((start, own))

    def flush(self, *, full: bool = True) -> None:
        """Write what no shard holds yet; one that is not full is written longer the next time."""
        if self.kept is None or self._first is None or self._last is None:
            return
        fresh, first, part = self._fresh, self._first, self._part
        self._fresh, self._first = [], None  # If it cannot be written now, it cannot be written on the way out either.
        answers = torch.cat([part for part, _ in fresh])
        labels = [part for _, part in fresh if part is not None]
        own = torch.cat(labels) if labels else None
        stop = self._start + answers.shape[0]
        if part != (self._start, stop):
            self.kept.write(Shard(self._start, stop, answers, own, mark(first, self._last)))
            if part is not None:
                self.kept.forget(*part)
        self._part = None if full else (self._start, stop)
        if not full:
            self._fresh, self._first = [(answers, own)], first

    @property
    def passes(self) -> int:
        """How many passes an image has."""
        return self.at + sum(self.policy.repeats.values())

    @property
    def columns(self) -> dict[str, tuple[int, int]]:
        """Which of the passes are of which kind of view."""
        found, at = {LOGITS: (0, 1)} if self.at else {}, self.at
        for kind, repeats in self.policy.repeats.items():
            found[kind] = (at, repeats)
            at += repeats
        return found

    def paths(self) -> list[Path]:
        """The shards, one after the other."""
        return [self.kept.path(*one) for one in self.kept.stretches()] if self.kept else []

    def labels(self) -> Tensor | None:
        """Those that were given, or those that came with the images, in their order."""
        if self.truth.labels is not None:
            return self.truth.labels
        return torch.cat([part for _, part in sorted(self.own, key=itemgetter(0))]) if self.own else None

    def accuracy(self, labels: Tensor | None) -> float:
        """How often the first pass is right."""
        assert labels is not None
        parts = (read_tensors(path, sealed=False)[0]["answers"] for path in self.paths()) if self.lean else self.answers
        right, start = 0, 0
        for part in parts:
            right += int((part[:, 0].argmax(dim=1) == labels[start : start + len(part)]).sum())
            start += len(part)
        return right / start

    def record(self, origin: Mapping[str, str], more: Sequence["_Done"] = ()) -> Record:
        """All of it, one tensor a kind of view, and what was rehearsed `more`."""
        if not self.answers:
            raise InputError(f"expected at least one image in {self.source.name}, found none")
        views = {kind: view for done in (self, *more) for kind, view in done.views().items()}
        return Record(Predictions(torch.cat([part[:, 0] for part in self.answers]), views), self.labels(), origin)

    def views(self) -> dict[str, Tensor]:
        """The answers to each kind of view."""
        columns = {kind: place for kind, place in self.columns.items() if kind != LOGITS}
        return {kind: torch.cat([part[:, at : at + n] for part in self.answers]) for kind, (at, n) in columns.items()}


def _origin(model: nn.Module, source: Source, policy: Policy, classes: Sequence[str], seed: int, draws: str) -> dict[str, str]:
    from atta import __version__  # the package imports this module first

    inner = model
    while isinstance(inner, TorchModel) or (source.preprocess and isinstance(inner, Normalized)):
        inner = inner.model
    dataset = {"dataset": source.dataset} if source.dataset else {}
    dataset |= {"classes": json.dumps(classes)} if classes else {}
    dataset |= {"preprocess": json.dumps(source.preprocess.about())} if source.preprocess else {}
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
