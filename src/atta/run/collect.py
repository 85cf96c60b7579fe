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
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field, replace
from operator import itemgetter
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

import torch
from torch import Tensor, nn

from atta._base.errors import InputError, advise, suggest
from atta._base.files import locked, readable
from atta._base.progress import counted
from atta._base.settings import Count, checked
from atta._base.tensors import read_tensors
from atta.data.again import FILES, FOLDER, digest_of
from atta.data.labels import Truth
from atta.data.preprocess import Preprocess
from atta.data.rehearsals import REHEARSALS, rehearsed
from atta.data.source import Block, Channels, Source, StreamSource
from atta.data.views import Policy
from atta.networks.adapters import Normalized, TorchModel, as_logits, normalised
from atta.networks.borrowing import dtype_of
from atta.networks.weights import fingerprint
from atta.record.folder import LOGITS, open_folder, write_index
from atta.record.predictions import Predictions, Record, as_labels
from atta.record.shards import LARGE, Shard, Shards, mark
from atta.run.advice import look_over
from atta.run.cluster import RAY, Engine, Showing, check_engine, check_source, run_on_ray
from atta.run.given import Given, found_in, take
from atta.run.ranks import Ranks, together
from atta.run.runner import Batch, Runner, batch_size, ranges_of, read_batches
from atta.run.trial import as_device, check_labels, running, try_out

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


class Recording(Execution, total=False):
    """How the network is run, and what is known, checked and said meanwhile."""

    logits: Tensor | None
    """Those of the images themselves, where they are known: they spare a pass an image."""
    checks: bool
    """Whether eight images go first (`trial`), and what looks wrong at the end is said (`advice`)."""
    progress: bool | Callable[[int], None]
    """A bar, or a function which is told how many passes were run since it was told last."""


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
    origin: Mapping[str, str] | None = None,
    **recording: Unpack[Recording],
) -> Record:
    """Run the model on every image and every view of it, once.

    `model` is what `as_logits` takes. `images` are uint8 or floats in [0, 1], held by anything that the table in
    `atta.data.source` names; `channels` says where an array has its channels. `labels` come from the images where those
    have them; they are class numbers, names, or a CSV or Parquet file of files and labels. `class_names` are those of the
    network, in its order, where it does not know them itself: folders, classes of datasets and labels are found among them.

    `preprocess` is what the network wants done to a photograph, as anything that `Preprocess.of` reads. A folder with its
    labels is shuffled by the seed `shuffle`, 0 unless it is given, which the record's origin remembers; False leaves it
    class by class. `skip_bad` reads all images first and leaves out, with a line each, those that cannot be decoded, the
    first of which ends the run otherwise. `rehearse` also runs it on the images made worse on purpose
    (`images.rehearsals`), for fits that hedge against a shift: True climbs a ladder of severities until accuracy has
    clearly fallen, at most three passes an image, and needs labels; a list of severities takes these.

    `output` names a folder that becomes the record (`atta.record.folder`), of any size: memory holds no more than one of its
    shards, and what is returned reads from it. The same call again goes on from it, also after a kill, ends with the same
    bits, and mends it: a shard that is missing, damaged or of another run is recorded again. Processes that torchrun
    started share the work, if each makes this call. `shards` names a folder that keeps finished work for a record in
    memory; delete it once that is saved. One run at a time works in a folder.

    `device` is the model's own unless it is named. `batch_size` is the most images a forward pass is given; a GPU whose
    memory runs out halves it. `channels_last`, `autocast` (to bfloat16, or a dtype) and `compile` make networks faster;
    logits come back in float32 or wider. `workers` threads read and decode ahead. `engine="ray"` does all of it on a Ray
    cluster, with the network in so many `actors`. `origin` adds to the record's own. Eight images go first (`trial`), and
    what looks wrong at the end is said (`advice`); `checks=False` leaves out both. `progress` may be a function, which is
    told how many passes were run since it was told last. `logits` of the images themselves, where they are known, spare a
    pass an image.
    """
    refuse_unknown("collect", recording, [*Recording.__annotations__])
    check_engine(recording.get("engine"), recording.get("actors"))
    if shards is not None and output is not None:
        raise InputError(
            "expected shards=... or output=..., whose folder holds the shards itself, got both"
        )
    with together(output is not None) as ranks:
        seed, wanted = as_seed(seed), None if preprocess is None else Preprocess.of(preprocess)
        network, policy = as_logits(normalised(model, wanted)), Policy.parse(policy)
        rest: Any = {
            "shuffle": shuffle,
            "skip_bad": skip_bad,
            "workers": recording.get("workers", 0),
        }
        given = take(
            images, labels, class_names, network, channels=channels, preprocess=wanted, **rest
        )
        place = shards if output is None else output
        folder = None if place is None else Path(place)
        work = _Work(network, given, seed, draws, recording, folder, output is not None, ranks)
        return work.record(policy, rehearse, given.about | dict(origin or {}) | found_in(images))


@dataclass(frozen=True)
class _Work:
    """A network and images to run it on, with all that does not depend on the views."""

    network: nn.Module
    given: Given
    seed: int
    draws: str
    execution: Recording
    folder: Path | None
    lean: bool
    """Whether the shards become the record, and nothing of them stays in memory."""
    ranks: Ranks | None
    """With whom the work is shared."""

    @property
    def source(self) -> Source:
        """The images."""
        return self.given.source

    @property
    def truth(self) -> Truth:
        """Their labels, as far as they are known."""
        return self.given.truth

    def record(
        self, policy: Policy, rehearse: bool | Iterable[int], about: Mapping[str, str]
    ) -> Record:
        """Check it by a few images, run all of it, and look at what came of it."""
        if self.execution.get("engine") == RAY:
            check_source(self.source)
        once = isinstance(self.source, StreamSource)
        climbing, checks = rehearse is True and not once, self.execution.get("checks", True)
        asked = rehearse if not isinstance(rehearse, bool) else UNSEEN if rehearse and once else ()
        first = Policy((*policy.terms, *rehearsed(asked).terms))
        if self.ranks is not None:
            self.ranks.agree(self._call(first, climbing))
            if self.ranks.rank:
                return self._follow(self.ranks, first)
        if checks:
            check_labels(self.truth, self.given.images, self.source)
            try_out(
                self.network,
                self.source,
                self.truth,
                policy,
                device=self._here(),
                half=half_of(self.execution),
            )
        if (
            climbing
            and self.truth.labels is None
            and next(iter(self.source.read([(0, 1)])))[1] is None
        ):
            raise InputError(
                "labels: expected a class number for every image, to see how far accuracy falls in rehearsals, got none; give "
                "labels=..., or name severities: rehearse=[3, 5]"
            )
        done = self.run(first, self.folder, logits=self.execution.get("logits"))
        more = _climbed(self, done) if climbing else []
        if FOLDER in about and self.source.files:
            about = {**about, FILES: digest_of(self.source.files, about[FOLDER])}
        about = {**_origin(self, policy), **about}
        record = (
            _indexed(self.folder, [done, *more], about)
            if self.folder and self.lean
            else done.record(about, more)
        )
        if checks:
            look_over(record)
        if self.ranks is not None:
            self.ranks.end()
        return record

    def _here(self) -> torch.device:
        """Where a few images are tried: what a cluster has need not be here."""
        at = _asked_device(self.execution, self.network)
        return (
            at
            if torch.cuda.is_available() or self.execution.get("engine") is None
            else torch.device("cpu")
        )

    def run(
        self,
        policy: Policy,
        shards: Path | None,
        *,
        itself: bool = True,
        logits: Tensor | None = None,
    ) -> "_Done":
        """Run the network on the images, unless `itself` or known `logits` say that this was done, and on their views."""
        at, execution = _asked_device(self.execution, self.network), self.execution
        size, itself = batch_size(execution.get("batch_size"), at), itself and logits is None
        kept = None if shards is None else Shards(shards, self._made_of(policy, at))
        alone = nullcontext() if kept is None else locked(kept.about)
        with alone, nullcontext() if execution.get("engine") == RAY else self._running(at):
            size, rows = (size, size) if kept is None else kept.begin(size)
            runner = self._runner(policy, at, rows, itself, kept)
            done = _Done(
                self.source,
                self.truth,
                policy,
                kept,
                at=int(itself or logits is not None),
                lean=self.lean,
            )
            with self._counted(policy, itself, done.resume()) as tell:
                for start, stop in done.gaps:
                    done.go_on(start)
                    try:
                        with closing(self._answers(runner, size, start, stop)) as answered:
                            for batch, answers in answered:
                                if logits is not None:
                                    answers = torch.cat(
                                        [logits[batch.start :][: len(answers), None], answers],
                                        dim=1,
                                    )
                                done.add(batch.start, batch.pixels, answers, batch.labels)
                                tell(done.stop)
                    finally:
                        done.flush()
            if kept is not None and self.lean:
                kept.sweep()
        return done

    def _made_of(self, policy: Policy, at: torch.device) -> dict[str, Any]:
        """What shards must have been made of to be gone on from."""
        run = {
            "policy": str(policy),
            "seed": self.seed,
            "draws": self.draws,
            "images": self.source.count,
            "device": at.type,
        }
        if (
            self.truth.labels is None and self.truth.numbers is not None
        ):  # shards hold labels by these names
            run["classes"] = list(self.truth.classes)
        return {"model": fingerprint(self.network), **run, **_switches(self.execution)}

    def _running(self, at: torch.device) -> AbstractContextManager[None]:
        return running(
            self.network, at, self.execution.get("channels_last", False), half_of(self.execution)
        )

    def _runner(
        self, policy: Policy, at: torch.device, rows: int, itself: bool, kept: Shards | None
    ) -> Runner:
        compiled = self.execution.get("compile", False) and self.execution.get("engine") != RAY
        forward, fast = (
            torch.compile(self.network) if compiled else self.network,
            self.execution.get("channels_last", False),
        )
        return Runner(
            forward,
            policy,
            self.seed,
            self.draws,
            at,
            dtype_of(self.network),
            fast,
            rows,
            kept,
            itself,
        )

    def _answers(
        self, runner: Runner, size: int, start: int, stop: int | None
    ) -> Generator[tuple[Batch, Tensor]]:
        """Batch after batch: here, here and in other ranks, or on a cluster."""
        execution = self.execution
        if self.ranks is not None:
            order = (str(runner.policy), runner.itself, runner.rows, size, start, stop)
            return self.ranks.lead(order, self._mine(runner, size, start, stop))
        if execution.get("engine") != RAY:
            return self._mine(runner, size, start, stop)
        there = replace(runner, device=torch.device(runner.device.type), kept=None)
        showing = Showing(self.network, there, half_of(execution), execution.get("compile", False))
        engine = Engine(
            execution.get("actors"), runner.device.type == "cuda", torch.get_num_threads()
        )
        return run_on_ray(showing, self.source, ranges_of(size, start, stop), engine)

    def _mine(
        self, runner: Runner, size: int, start: int, stop: int | None
    ) -> Generator[tuple[Batch, Tensor]]:
        """Those batches that this process runs: all of them, or its part."""
        rank, step = (self.ranks.rank, self.ranks.size) if self.ranks else (0, 1)
        part: Any = {"start": start + rank * size, "stop": stop, "step": step}
        batches = read_batches(self.source, size, workers=self.execution.get("workers", 0), **part)
        return runner.run(batches, self.source.places)

    def _call(self, policy: Policy, climbing: bool) -> dict[str, object]:
        """What all ranks have to be asked for alike; their images are told apart by the first and the last."""
        if self.execution.get("engine") is not None:
            raise InputError(
                "engine: expected none under torchrun, whose processes share the work, got 'ray'"
            )
        check_source(self.source, "torchrun")
        count = self.source.count or 0
        ends = [block for block, _ in self.source.read([(0, 1), (count - 1, count)])]
        made_of = self._made_of(policy, _asked_device(self.execution, self.network))
        hashes = {
            "the hash of its weights": made_of.pop("model"),
            "that of the first and the last image": mark(ends[0], ends[-1]),
        }
        known = {"logits": self.execution.get("logits") is not None, "rehearse": climbing}
        return {"output": str(self.folder), **made_of, **known, **hashes}

    def _follow(self, ranks: Ranks, first: Policy) -> Record:
        """Run what rank 0 says is next, to the end of it; the record is the one that it writes."""
        policies = {
            str(one): one for one in (first, *(rehearsed([severity]) for severity in REHEARSALS))
        }
        at = _asked_device(self.execution, self.network)
        with self._running(at):
            for name, itself, rows, size, start, stop in ranks.orders():
                runner = self._runner(policies[name], at, rows, itself, None)
                ranks.follow(self._mine(runner, size, start, stop))
        assert self.folder is not None
        return open_folder(self.folder)

    def _counted(
        self, policy: Policy, itself: bool, begun: int
    ) -> AbstractContextManager[Callable[[int], None]]:
        """Count the images that are done: in a bar, or for whoever is told of the passes since the last time."""
        told = self.execution.get("progress", True)
        if not callable(told):
            title = "collecting" if itself else f"rehearsing, {policy}"
            return counted(title, self.source.count, shown=told, done=begun)
        each, last = policy.passes - (not itself), 0

        def tell(images: int) -> None:
            nonlocal last
            told((images - last) * each)
            last = images

        return nullcontext(tell)


def _climbed(work: _Work, done: "_Done") -> list["_Done"]:
    """Run rehearsals from the middle of the ladder: up where accuracy has hardly fallen, down where little of it is left."""
    climbed: list[_Done] = []

    def right(severity: int) -> float:
        folder = None if work.folder is None else work.folder / REHEARSALS[severity].name
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
    groups = [
        (done.columns, done.paths(), done.kept.name) for done in runs if done.kept is not None
    ]
    if not runs[0].classes:
        raise InputError(f"expected at least one image in {runs[0].source.name}, found none")
    return write_index(
        folder,
        groups,
        runs[0].labels(),
        {readable(key): readable(str(value)) for key, value in origin.items()},
    )


def refuse_unknown(function: str, given: Iterable[str], known: Sequence[str]) -> None:
    """Name a keyword that a function does not take, and the one that was perhaps meant."""
    for name in given:
        if name not in known:
            raise InputError(
                f"{function} takes no {name!r}.{suggest(name, known)} It takes: {', '.join(known)}"
            )


def _asked_device(execution: Execution, network: nn.Module) -> torch.device:
    """Where the network is to run; what a cluster has is not looked for here."""
    asked = execution.get("device")
    return (
        torch.device(asked)
        if execution.get("engine") == RAY and asked is not None
        else as_device(asked, network)
    )


def half_of(execution: Execution) -> torch.dtype | None:
    """The dtype of autocast, if it was asked for."""
    asked = execution.get("autocast") or None
    return torch.bfloat16 if asked is True else asked


def _switches(execution: Execution) -> dict[str, Any]:
    """What of it changes bits: shards of other switches are not gone on from."""
    switches = {name: execution.get(name, False) for name in ("channels_last", "compile")}
    return {
        "batch_size": execution.get("batch_size"),
        "autocast": str(half_of(execution)),
        **switches,
    }


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
            self._fresh, self._start, self._part = (
                [(shard.answers, shard.labels)],
                shard.start,
                (shard.start, shard.stop),
            )
            ((self._first, _),) = self.source.read([(shard.start, shard.start + 1)])

    def _sound(self) -> Iterator[Shard]:
        """Shards of these images; where they are the record, those that are not are taken away, to be recorded again."""
        assert self.kept is not None
        if not self.lean or isinstance(
            self.source, StreamSource
        ):  # which cannot go back to what is missing
            for shard in self.kept.finished():
                self._recognise(shard)
                yield shard
            return
        bad, good = list[tuple[int, int, str]](), list[tuple[int, int]]()
        for start, stop in self.kept.stretches():
            try:
                shard = self.kept.read(start, stop)
                if shard.answers.ndim != 3 or shard.answers.shape[1] != self.passes:
                    raise InputError(
                        f"{self.kept.path(start, stop)} holds other views than its run has"
                    )
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
        ends = [
            block
            for block, _ in self.source.read(
                [(shard.start, shard.start + 1), (shard.stop - 1, shard.stop)]
            )
        ]
        if len(ends) < 2 or mark(ends[0], ends[1]) != shard.mark:
            raise InputError(
                f"expected the images from {self.source.where(shard.start)} on to be those whose shards are in "
                f"{self.kept.folder if self.kept else ''}, got others; choose another folder"
            )

    def add(self, start: int, pixels: Tensor, answers: Tensor, own: Tensor | None) -> None:
        """Take the answers to a batch, and write a shard when it is time."""
        n, k = answers.shape[0], answers.shape[2]
        if self.classes and k != self.classes:
            raise InputError(
                f"expected {self.classes} classes as before, got {k} from {self.source.where(start)} on"
            )
        if (
            not self.classes
        ):  # Now the number of classes is known: a wrong label is said before the work is done.
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
        if (
            self._full(start + n)
            if self.lean
            else (self.kept.due or sum(part.nbytes for part, _ in self._fresh) >= LARGE)
        ):
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
        self._fresh, self._first = (
            [],
            None,
        )  # If it cannot be written now, it cannot be written on the way out either.
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
        return (
            torch.cat([part for _, part in sorted(self.own, key=itemgetter(0))])
            if self.own
            else None
        )

    def accuracy(self, labels: Tensor | None) -> float:
        """How often the first pass is right."""
        assert labels is not None
        parts = (
            (read_tensors(path, sealed=False)[0]["answers"] for path in self.paths())
            if self.lean
            else self.answers
        )
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
        return Record(
            Predictions(torch.cat([part[:, 0] for part in self.answers]), views),
            self.labels(),
            origin,
        )

    def views(self) -> dict[str, Tensor]:
        """The answers to each kind of view."""
        columns = {kind: place for kind, place in self.columns.items() if kind != LOGITS}
        return {
            kind: torch.cat([part[:, at : at + n] for part in self.answers])
            for kind, (at, n) in columns.items()
        }


def _origin(work: _Work, policy: Policy) -> dict[str, str]:
    from atta import __version__  # the package imports this module first

    inner, source, classes = work.network, work.source, work.truth.classes
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
        "seed": str(work.seed),
        "draws": work.draws,
        "atta": __version__,
        "torch": torch.__version__,
    }
