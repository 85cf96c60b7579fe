"""Every fit once: which images, which method, which views; batched, remembered, and kept in a folder if there is one.

    Fit("cifar10", Rows(10_000, 1000, split=3), VATTA(), "aug4")  ──►  Fits  ──►  calibrator

Tables 2, 3 and 4 of the paper, its supplement and its OOD figures ask for the same fits in different orders. What a fit depends
on is its key: the numbers in the record, the rows, the method and its settings, and the views. A fit with the same key is the
same calibrator, in this run and, from the folder, in the next one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor

from atta import __version__
from atta._base.errors import InputError
from atta.calibrators import METHODS, Calibrator, Method, load
from atta.calibrators.fitting import folds
from atta.data.views import Policy
from atta.lab import workers
from atta.record.predictions import Predictions, Record

RECORDED = "recorded"
"""The policy that takes a record's views as they are."""
PIECE = 16  # fits asked for at a time: enough to be batched, few enough for a bar to move and a stop to lose little
LEAST = 8  # even of the largest: eight steps of Adam side by side take half the time of one after the other
WORK = (
    1 << 21
)  # logits of views in a piece: no batch is larger, and longer pieces leave other processes waiting at the end


@dataclass(frozen=True)
class Rows:
    """The rows of a record to fit on: `validation` of its `images`, drawn by `split`, less what `fold` of `folds` holds out.

    Split 0 takes the first rows as they stand, as in the paper; split s > 0 the first of a permutation seeded with s.
    """

    images: int
    validation: int
    split: int = 0
    fold: int | None = None
    folds: int = 5

    def __post_init__(self) -> None:
        if not 0 < self.validation <= self.images:
            raise InputError(
                f"expected 1 to {self.images} validation images out of {self.images}, got {self.validation}"
            )

    def drawn(self) -> tuple[Int[Tensor, " v"], Int[Tensor, " t"]]:
        """The validation rows, and all others."""
        if self.split == 0:
            order = torch.arange(self.images)
        else:
            order = torch.randperm(self.images, generator=torch.Generator().manual_seed(self.split))
        return order[: self.validation], order[self.validation :]

    def fitted(self) -> Int[Tensor, " f"]:
        """The rows to fit on."""
        drawn, _ = self.drawn()
        if self.fold is None:
            return drawn
        kept = torch.ones(self.validation, dtype=torch.bool)
        kept[self._held()] = False
        return drawn[kept]

    def held_out(self) -> Int[Tensor, " h"]:
        """The validation rows that this fold does not fit on."""
        return self.drawn()[0][self._held()]

    def parted(self) -> list[Rows]:
        """The folds of these rows, each to be fitted on all the others."""
        if self.validation < self.folds:
            raise InputError(
                f"expected at least {self.folds} validation images for {self.folds} folds, got {self.validation}"
            )
        return [replace(self, fold=fold) for fold in range(self.folds)]

    def _held(self) -> Int[Tensor, " h"]:
        return (
            torch.empty(0, dtype=torch.int64)
            if self.fold is None
            else folds(self.validation, self.folds)[self.fold]
        )


@dataclass(frozen=True)
class Fit:
    """One fit: of a method, on rows of the record of that name, through the views of a policy ("" where it needs none)."""

    record: str
    rows: Rows
    method: Method
    policy: str = ""


@dataclass
class Fits:
    """Calibrators by what they depend on; those that are missing are fitted together, and written to `folder`."""

    records: Mapping[str, Record]
    folder: Path | None = None
    workers: int = 0
    """Processes to fit and test in; fewer than two is this one."""
    files: dict[str, Path] = field(default_factory=dict)
    """Where the records lie, for other processes; those that lie nowhere are written to `folder`."""
    engine: str | None = None
    """Ray fits and tests on the machines of a cluster, which have to see the folder and the records; None on this one."""
    _done: dict[str, Calibrator] = field(default_factory=dict)
    _prints: dict[str, str] = field(default_factory=dict)
    _scores: dict[tuple[str, str], float] = field(default_factory=dict)

    def __getitem__(self, fit: Fit) -> Calibrator:
        """The calibrator; fitted now if it was not before."""
        key = self.key(fit)
        if not self._find(key):
            self.make([fit])
        return self._done[key]

    def make(self, wanted: Iterable[Fit], done: Callable[[str], None] = lambda what: None) -> None:
        """Fit all that are missing, those of one method together; `done` is told of each that is there."""
        missing: dict[Method, dict[str, Fit]] = {}
        for key, fit in {self.key(fit): fit for fit in wanted}.items():
            if self._find(key):
                done(fit.method.name)
            else:
                missing.setdefault(fit.method, {})[key] = fit
        pieces = [piece for method, fits in missing.items() for piece in self._pieces(method, fits)]
        # The longest first: a long one at the end keeps all others waiting.
        pieces.sort(key=lambda piece: sum(map(self._work, piece[1].values())), reverse=True)
        for method, keys in self._fitted(pieces) if pieces else ():
            for _ in keys:
                done(method.name)

    def _pieces(
        self, method: Method, fits: Mapping[str, Fit]
    ) -> Iterator[tuple[Method, dict[str, Fit]]]:
        """Cut the fits of a method into pieces to be made together, alike ones side by side: only these share a batch."""
        keys = sorted(
            fits,
            key=lambda key: (
                fits[key].rows.validation,
                len(self.views(fits[key])),
                fits[key].policy,
            ),
        )
        while keys:
            most = min(PIECE, max(LEAST, WORK // self._work(fits[keys[-1]])))
            count = most if method.takes_many else 1
            yield method, {key: fits[key] for key in keys[-count:]}
            del keys[-count:]

    def _work(self, fit: Fit) -> int:
        """The logits a fit looks at, each kind of view once."""
        return (
            fit.rows.validation
            * (1 + len(self.views(fit)))
            * self.records[fit.record].predictions.classes
        )

    def _fitted(
        self, pieces: Sequence[tuple[Method, dict[str, Fit]]]
    ) -> Iterator[tuple[Method, Sequence[str]]]:
        """Make the pieces here or, where there is a folder to meet in, in other processes; say which are done."""
        apart = self.apart and len(pieces) > 1
        for method, piece in pieces:
            if not apart or method.foreign:  # what others wrote stays in this process
                self._fit(method, piece)
                yield method, list(piece)
        if not apart:
            return
        known = self.abroad()
        calls = (
            workers.Call(_fitted_there, (*piece, *known), (piece[0], list(piece[1])))
            for piece in pieces
        )
        own = (call for call in calls if not call.kept[0].foreign)
        for kept, _ in workers.spread(own, self.workers, what="fitted", engine=self.engine):
            yield kept

    @property
    def apart(self) -> bool:
        """Whether there are other processes, and a folder to meet in."""
        return self.folder is not None and (self.workers > 1 or self.engine is not None)

    def _fit(self, method: Method, piece: Mapping[str, Fit]) -> None:
        """Fit a piece in this process."""
        sets = [
            (part.predictions, part.require_labels()) for part in map(self.part, piece.values())
        ]
        for key, calibrator in zip(piece, workers.fit(method, sets), strict=True):
            self._keep(key, calibrator)

    def abroad(self) -> tuple[dict[str, Path], Path, dict[str, str]]:
        """What another process needs to have these fits, too: files of the records, the folder, and the hashes.

        Records go by their files: a thousand fits would send the same images through a pipe a thousand times.
        """
        assert self.folder is not None
        for name in self.records:
            if name not in self.files:
                self.files[name] = self.folder / f"{self.fingerprint(name)}.safetensors"
                if not self.files[name].is_file():
                    self.records[name].save(self.files[name])
        # Absolute: the processes of a cluster begin in folders of their own.
        files = {name: path.absolute() for name, path in self.files.items()}
        return (
            files,
            self.folder.absolute(),
            {name: self.fingerprint(name) for name in self.records},
        )

    def remembered(self, what: str, fit: Fit, score: Callable[[Fits, Fit], float]) -> float:
        """A number that depends on a fit alone, worked out once."""
        key = (what, self.key(fit))
        if key not in self._scores:
            self._scores[key] = score(self, fit)
        return self._scores[key]

    def part(self, fit: Fit) -> Record:
        """What the method is given: the rows of the record to fit on, with the views of the policy."""
        return self.seen(fit, self.records[fit.record])[fit.rows.fitted()]

    def seen(self, fit: Fit, record: Record) -> Record:
        """A record with only the views that this fit uses."""
        return Record(record.predictions.take(self.views(fit)), record.labels, record.origin)

    def views(self, fit: Fit) -> dict[str, int]:
        """How often each kind of view is taken."""
        if fit.policy == RECORDED:
            return self.records[fit.record].predictions.repeats
        return Policy.parse(fit.policy).repeats if fit.policy else {}

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
        return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()

    def fingerprint(self, record: str) -> str:
        """A hash of the numbers in a record."""
        if record not in self._prints:
            self._prints[record] = fingerprint(self.records[record])
        return self._prints[record]

    def _find(self, key: str) -> bool:
        path = self._path(key)
        if key not in self._done and path is not None and path.is_file():
            try:
                self._done[key] = load(path)
            except InputError:  # It is only a memory: a damaged one is fitted again.
                return False
        return key in self._done

    def _keep(self, key: str, calibrator: Calibrator) -> None:
        self._done[key] = calibrator
        if (path := self._path(key)) is not None and not calibrator.method.foreign:
            calibrator.save(path)

    def _path(self, key: str) -> Path | None:
        return None if self.folder is None else _file(self.folder, key)


def known_here(files: Mapping[str, Path], folder: Path, prints: Mapping[str, str]) -> Fits:
    """The fits of another process, by what it says of them; records are read once they are asked for."""
    return Fits(_Read(files), folder, _prints=dict(prints))


class _Read(Mapping[str, Record]):
    """Records that are read from their files when they are asked for."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self.files = files

    def __getitem__(self, name: str) -> Record:
        return _read(self.files[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)


@lru_cache(maxsize=4)
def _read(path: Path) -> Record:
    return Record.load(path)


def _fitted_there(
    method: Method,
    piece: dict[str, Fit],
    files: dict[str, Path],
    folder: Path,
    prints: dict[str, str],
) -> None:
    known_here(files, folder, prints)._fit(method, piece)


def written(repeats: Mapping[str, int]) -> str:
    """Write how often each kind of view is taken as a policy is written: flip + 2 crop."""
    return " + ".join(kind if count == 1 else f"{count} {kind}" for kind, count in repeats.items())


def _own_class(method: Method) -> list[str]:
    """Tells a method of one's own from the one of atta whose name and settings it may share."""
    own = type(method)
    itself = [str(id(method))] if method.foreign else []  # which is never looked for in a folder
    return (
        [] if METHODS.get(method.name) is own else [f"{own.__module__}.{own.__qualname__}", *itself]
    )


def _file(folder: Path, key: str) -> Path:
    return folder / key[:2] / f"{key}.safetensors"


def fingerprint(record: Record) -> str:
    """A hash of the logits, views and labels of a record, whatever file they came from."""
    found = hashlib.sha256()
    predictions: Predictions = record.predictions
    n, k, rows = len(predictions), predictions.classes, max(1, WORK // predictions.classes)
    counts = predictions.counts
    for kind in (None, *sorted(counts)):
        name, shape = ("logits", (n, k)) if kind is None else (f"view.{kind}", (n, counts[kind], k))
        found.update(f"{name}{shape}{predictions.dtype}".encode())
        for part in predictions.chunks(rows):
            found.update(
                (part.logits if kind is None else part.views[kind]).contiguous().cpu().numpy().data
            )
    if record.labels is not None:
        found.update(f"labels{tuple(record.labels.shape)}{record.labels.dtype}".encode())
        found.update(record.labels.contiguous().cpu().numpy().data)
    return found.hexdigest()
