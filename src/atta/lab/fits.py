"""Makes every fit once: in batches, in workers, remembered, and kept in a folder if there is one.

    Fit("cifar10", Rows(10_000, 1000, split=3), VATTA(), "aug4")  ──►  Fits  ──►  calibrator

Several tables and figures of the paper need the same fits in different orders. The key of a fit
covers all that it depends on: the numbers in the record, the rows, the method with its settings,
and the views. Equal keys mean the same calibrator, in this run and, from the folder, in the next.

`RULES` choose one policy of views for a method, from its validation images alone:

| rule            | the best Brier score ...                                                  |
|-----------------|---------------------------------------------------------------------------|
| paper           | on the images it was fitted on: too optimistic with many parameters       |
| cross-validated | on held-out images: five fits, each tested on the fifth it did not see    |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from atta import __version__
from atta._base.errors import InputError
from atta._base.files import content_hash, digest
from atta._base.tensors import tensor_bytes
from atta.calibrators import METHODS, Calibrator, Method, load
from atta.calibrators.crossval import FOLDS
from atta.calibrators.fitting import fold_splits
from atta.data.views import Policy
from atta.lab import workers
from atta.lab.workers import Tell, silent
from atta.metrics.scores import METRICS
from atta.record.predictions import Record
from atta.results.words import RULE

RECORDED = "recorded"
"""The policy that takes a record's views as they are."""
RULES = (RULE, "cross-validated")
TOGETHER = 8  # fits per call: eight steps of Adam in a batch take half the time of eight
CHUNK = 1 << 21  # logits that are hashed at a time


@dataclass(frozen=True)
class Rows:
    """The rows of a record to fit on: `validation` of its `images`, less one of the `FOLDS`.

    Split 0 takes the first rows as they stand, as in the paper. Split s > 0 takes the first rows of
    a permutation seeded with s.
    """

    images: int
    validation: int
    split: int = 0
    fold: int | None = None
    """The fold that is held out, if any."""
    groups: tuple[int, ...] = ()
    """Of pixels, one image after the other: how many rows each has. Images are drawn whole."""

    def __post_init__(self) -> None:
        if not 0 < self.validation <= self.images:
            raise InputError(
                f"expected 1 to {self.images} validation images out of {self.images}, "
                f"got {self.validation}"
            )

    @property
    def _image(self) -> Int[Tensor, " n"]:
        """The image of each row."""
        counts = torch.tensor(self.groups or (1,) * self.images)
        return torch.arange(len(counts)).repeat_interleave(counts)

    def drawn(self) -> tuple[Int[Tensor, " v"], Int[Tensor, " t"]]:
        """The validation rows, and all others."""
        image = self._image
        order = torch.arange(int(image[-1]) + 1)
        if self.split:
            generator = torch.Generator().manual_seed(self.split)
            order = torch.randperm(len(order), generator=generator)
        place = order.argsort()[image]
        last = place.sort().values[self.validation - 1]  # rows are taken up to the end of an image
        rows = place.argsort(stable=True)
        size = int((place <= last).sum())
        return rows[:size], rows[size:]

    def folded(self) -> tuple[Int[Tensor, " f"], Int[Tensor, " h"]]:
        """The validation rows to fit on, and those of the fold that is held out."""
        rows = self.drawn()[0]
        if self.fold is None:
            return rows, rows[:0]
        groups = self._image[rows] if self.groups else None
        rest, held_out = fold_splits(len(rows), FOLDS, groups=groups)[self.fold]
        return rows[rest.sort().values], rows[held_out]


@dataclass(frozen=True)
class Fit:
    """A method on rows of a named record, with a policy of views ("" if it needs none)."""

    record: str
    rows: Rows
    method: Method
    policy: str = ""

    def parted(self) -> list[Fit]:
        """The same fit once for each fold, without the images of that fold."""
        if self.rows.validation < FOLDS:
            raise InputError(
                f"expected at least {FOLDS} validation images for {FOLDS} folds, "
                f"got {self.rows.validation}"
            )
        return [replace(self, rows=replace(self.rows, fold=fold)) for fold in range(FOLDS)]


@dataclass
class Fits:
    """Calibrators by what they depend on; missing ones are fitted together and kept in `folder`."""

    records: Mapping[str, Record]
    folder: Path | None = None
    workers: int = 0
    """Processes that fit and test; fewer than two mean this process."""
    files: Mapping[str, Path] = field(default_factory=dict)
    """The files of the records, which workers read."""
    engine: str | None = None
    """`ray` fits and tests on a cluster that can read the folder and the records."""
    _done: dict[str, Calibrator] = field(default_factory=dict)
    _prints: dict[str, str] = field(default_factory=dict)

    def __getitem__(self, fit: Fit) -> Calibrator:
        """The calibrator; fitted now if it was not before."""
        key = self.key(fit)
        if not self._find(key):
            self.make([fit])
        return self._done[key]

    def make(self, wanted: Iterable[Fit], done: Tell = silent) -> None:
        """Make all missing fits, those of one method together; call `done` once for each fit."""
        missing: dict[Method, list[Fit]] = {}
        for key, fit in {self.key(fit): fit for fit in wanted}.items():
            if self._find(key):
                done(fit.method.name)
            else:
                missing.setdefault(fit.method, []).append(fit)
        pieces: list[tuple[Sequence[Fit]]] = []
        for method, fits in missing.items():
            # Similar fits are neighbours: only these share a batch.
            fits = sorted(fits, key=lambda fit: (self._work(fit), fit.policy))[::-1]
            count = TOGETHER if method.takes_many else 1
            pieces += ((fits[at : at + count],) for at in range(0, len(fits), count))
        # The longest first: a long one at the end keeps all other workers waiting.
        pieces.sort(key=lambda piece: sum(map(self._work, *piece)), reverse=True)
        foreign = [fits[0].method.foreign for (fits,) in pieces]
        for place, _ in self.each(Fits._fit, pieces, foreign, what="fitted"):
            for fit in pieces[place][0]:
                done(fit.method.name)

    def _work(self, fit: Fit) -> int:
        """The number of logits that a fit reads, each kind of view once."""
        classes = self.records[fit.record].predictions.classes
        return fit.rows.validation * (1 + len(self.views(fit))) * classes

    def each(
        self,
        function: Callable[..., Any],
        work: Sequence[tuple[Any, ...]],
        foreign: Sequence[bool],
        what: str,
    ) -> Iterator[tuple[int, Any]]:
        """Call `function(fits, *item)` for each item of the work; yield its place and the answer.

        Workers do it, if there are any, a folder to exchange fits, and files of all records. Items
        with `foreign` methods, those of other libraries, stay in this process.
        """
        helped = self.folder and len(work) > 1 and (self.workers > 1 or self.engine)
        helped = helped and self.records.keys() <= self.files.keys()
        away = [place for place, stays in enumerate(foreign) if helped and not stays]
        for place, item in enumerate(work):
            if place not in away:
                with workers.one_thread():  # the last digit depends on the number of threads
                    answer = function(self, *item)
                yield place, answer
        if away:
            there = self._for_workers()
            calls = ((function, (there, *work[place]), place) for place in away)
            yield from workers.spread(calls, self.workers, what=what, engine=self.engine)

    def _fit(self, fits: Sequence[Fit]) -> None:
        """Make fits of one method together, in this process."""
        parts = [self.seen(fit)[fit.rows.folded()[0]] for fit in fits]
        sets = [(part.predictions, part.require_labels()) for part in parts]
        for fit, calibrator in zip(fits, fits[0].method.fit_many(sets), strict=True):
            key = self.key(fit)
            self._done[key] = calibrator
            if (path := self._path(key)) and not fit.method.foreign:
                calibrator.save(path)

    def _for_workers(self) -> Fits:
        """These fits for another process, which reads the records from their files.

        A thousand fits would otherwise send the same images through a pipe a thousand times.
        """
        # Absolute paths: workers of a cluster start in folders of their own.
        files = _Files({name: path.absolute() for name, path in self.files.items()})
        prints = {name: self.fingerprint(name) for name in self.records}
        return Fits(files, self.folder and self.folder.absolute(), _prints=prints)

    def seen(self, fit: Fit, name: str | None = None) -> Record:
        """A record, by default the fitted one, with only the views that this fit uses."""
        record = self.records[name or fit.record]
        return Record(record.predictions.take(self.views(fit)), record.labels, record.origin)

    def views(self, fit: Fit) -> dict[str, int]:
        """The repeats of each kind of view."""
        return views_of(fit.policy, self.records[fit.record])

    def key(self, fit: Fit) -> str:
        """A hash of all that the fit depends on."""
        about = {
            "atta": __version__,
            "torch": torch.__version__,
            "record": self.fingerprint(fit.record),
            "rows": asdict(fit.rows),
            "method": [fit.method.name, fit.method.settings(), *_own_class(fit.method)],
            "views": list(self.views(fit).items()),
        }
        return digest(about)

    def fingerprint(self, record: str) -> str:
        """A hash of the numbers in a record."""
        if record not in self._prints:
            self._prints[record] = fingerprint(self.records[record])
        return self._prints[record]

    def _find(self, key: str) -> bool:
        path = self._path(key)
        if key not in self._done and path and path.is_file():
            with suppress(InputError):  # a damaged file of this cache is fitted again
                self._done[key] = load(path)
        return key in self._done

    def _path(self, key: str) -> Path | None:
        return self.folder and self.folder / key[:2] / f"{key}.safetensors"


class _Files(dict[str, Any]):
    """Records that are read from their files when they are needed."""

    def __getitem__(self, name: str) -> Record:
        return _read(super().__getitem__(name))


_read = lru_cache(maxsize=4)(Record.load)


def views_of(policy: str, record: Record) -> dict[str, int]:
    """The repeats of each kind of view that a policy uses of a record."""
    if policy == RECORDED:
        return record.predictions.repeats
    return Policy.parse(policy).repeats if policy else {}


def written(repeats: Mapping[str, int]) -> str:
    """Write the repeats of each kind of view as a policy: flip + 2 crop."""
    return " + ".join(kind if count == 1 else f"{count} {kind}" for kind, count in repeats.items())


def _own_class(method: Method) -> list[str]:
    """Tell a method of the user's from one of atta's with the same name and settings."""
    own = type(method)
    if METHODS.get(method.name) is own:
        return []
    itself = [str(id(method))] if method.foreign else []  # never looked for in a folder
    return [f"{own.__module__}.{own.__qualname__}", *itself]


def fingerprint(record: Record) -> str:
    """A hash of the logits, views and labels of a record, whichever file they came from."""
    return content_hash(_contents(record))


def _contents(record: Record) -> Iterator[Any]:
    """What is hashed: the name, shape and type of each tensor, then its numbers."""
    predictions = record.predictions
    n, k = len(predictions), predictions.classes
    for kind in (None, *sorted(predictions.counts)):
        shape = (n, k) if kind is None else (n, predictions.counts[kind], k)
        yield f"{'logits' if kind is None else f'view.{kind}'}{shape}{predictions.dtype}"
        for part in predictions.chunks(max(1, CHUNK // k)):
            yield tensor_bytes(part.logits if kind is None else part.views[kind])
    if record.labels is not None:
        yield f"labels{tuple(record.labels.shape)}{record.labels.dtype}"
        yield tensor_bytes(record.labels)


def choose(fits: Fits, candidates: Sequence[Fit], rule: str) -> Fit:
    """Return the candidate with the lowest score; of equal ones, the first."""
    return min(candidates, key=lambda fit: score(fits, fit, rule))


def score(fits: Fits, fit: Fit, rule: str) -> float:
    """The Brier score by which a rule chooses."""
    parts, tested = ([fit], 0) if rule == RULE else (fit.parted(), 1)
    tests = [fits.seen(part)[part.rows.folded()[tested]] for part in parts]
    probs = [fits[part](test.predictions) for part, test in zip(parts, tests, strict=True)]
    labels = torch.cat([test.require_labels() for test in tests])
    return METRICS["brier"](torch.cat(probs), labels, simplex=fit.method.on_simplex)
