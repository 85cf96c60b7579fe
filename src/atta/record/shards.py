"""Work that can be interrupted: what is finished lies in a folder, and a second run takes it from there.

    run.json                            what the run was made of: policy, seed, model, settings, batch size
    0000000000-0000000512.safetensors   the answers to images 0 to 511, written whole or not at all
    ...

A shard ends where a batch ends, and batches begin at multiples of the batch size, which `run.json` keeps. A resumed run
therefore cuts the images as an uninterrupted one does, and ends with the same bits. Where the folder itself becomes the record
(`atta.record.folder`), shards end at fixed places, so that its files are the same whoever makes them and however often that was
stopped: one that is not full yet is written now and then, and goes on. It is also mended: what is missing or wrong in the
middle is recorded again, and nothing else.
"""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from atta._base.errors import InputError
from atta._base.files import locked, whole_file
from atta._base.tensors import read_tensors, tensor_bytes, write_tensors
from atta.record.folder import ROWS, RUN

SHARDS = "[0-9]*-[0-9]*.safetensors"
SECONDS = 10.0
"""A shard is written when this long has passed since the last: the most work that a killed run has to repeat."""
PASSES = 1 << 14
"""Passes in a full shard of a folder that becomes the record: 65 MB of 1000 classes."""
LARGE = 1 << 28
"""Bytes that a shard has at most, give or take a batch: what is not written yet lies in memory."""


@dataclass(frozen=True)
class Shard:
    """The answers to the images from `start` to `stop`, their labels if they came with them, and a mark of the images."""

    start: int
    stop: int
    answers: Tensor
    labels: Tensor | None
    mark: str


@dataclass
class Shards:
    """A folder of shards, and what they must have been made of to be of use."""

    folder: Path
    run: Mapping[str, Any]
    written: float = field(default_factory=time.monotonic)
    batch: int = 0
    rows: int = 0

    @property
    def name(self) -> str:
        """A hash of what the run is made of, which each of its shards repeats."""
        text = json.dumps(self.run, sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    @property
    def about(self) -> Path:
        """The file that says what the run is made of."""
        return self.folder / "run.json"

    @property
    def due(self) -> bool:
        """Whether it is time to write a shard."""
        return time.monotonic() - self.written >= SECONDS

    def begin(self, size: int) -> tuple[int, int]:
        """Begin a run of batches and passes of this size, or take the sizes of the one that is resumed."""
        self.batch, rows = self._earlier() or (size, size)
        self.keep_rows(rows)
        return self.batch, rows

    def _earlier(self) -> tuple[int, int] | None:
        """The sizes of the run that began here, or None if there is none; another run's folder is refused."""
        path = self.about
        if not path.is_file():
            there = (
                [path.name for path in self.folder.iterdir() if path.name[0] != "."]
                if self.folder.is_dir()
                else []
            )
            if there:
                raise InputError(
                    f"expected an empty folder, or one of shards, found {sorted(there)[0]} in {self.folder}"
                )
            return None
        try:
            found = json.loads(path.read_text())
            batch = int(found["batch"]), int(found["rows"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"expected {path} to describe a run, but it cannot be read: {error}"
            ) from error
        expected = json.loads(json.dumps(self.run))
        for key, value in expected.items():
            if found.get(key) != value:
                if not any_in(self.folder):  # a run that ended before it had something to keep
                    return None
                raise InputError(
                    f"expected {self.folder} to hold shards of this run, but their {key} is {found.get(key)!r} and not "
                    f"{value!r}; choose another folder, or delete this one to start again"
                )
        return batch

    def finished(self) -> Iterator[Shard]:
        """What was done, from the first image on and without a gap."""
        done = 0
        for start, stop in self.stretches():
            if start > done:
                return
            yield self.read(start, stop)
            done = stop

    def stretches(self) -> Iterator[tuple[int, int]]:
        """From and to which image there are shards, one after the other; of those that overlap, the first and the longest."""
        stops: dict[int, int] = {}
        for path in self.folder.glob(SHARDS):
            start, stop = map(int, path.stem.split("-"))
            stops[start] = max(stop, stops.get(start, 0))
        done = 0
        for start in sorted(stops):
            if start >= done:
                done = stops[start]
                yield start, done

    def read(self, start: int, stop: int) -> Shard:
        """Read a shard; one that is damaged, or of another run or other rows, is refused."""
        path = self.path(start, stop)
        tensors, text = read_tensors(path)
        if text.get(RUN, self.name) != self.name:
            raise InputError(
                f"{path} was recorded by another run: of another network, or with other views or draws"
            )
        answers = tensors.get("answers")
        if (
            answers is None
            or "mark" not in text
            or len(answers) != stop - start
            or text.get(ROWS, path.stem) != path.stem
        ):
            raise InputError(f"{path} holds other rows than its name says")
        return Shard(start, stop, answers, tensors.get("labels"), text["mark"])

    def forget(self, start: int, stop: int) -> None:
        """Take a shard away that is to be recorded again."""
        self.path(start, stop).unlink(missing_ok=True)

    def full(self, passes: int) -> int:
        """Images in a full shard, of so many passes each: whole batches, wherever a run was stopped."""
        return max(1, PASSES // (passes * self.batch)) * self.batch

    def sweep(self) -> None:
        """Take away what a longer shard has replaced, and a kill left behind."""
        longest = dict(self.stretches())
        for path in self.folder.glob(SHARDS):
            start, stop = map(int, path.stem.split("-"))
            if stop < longest.get(start, 0):
                path.unlink(missing_ok=True)

    def keep_rows(self, rows: int) -> None:
        """Write what the run is made of, and how many images a pass is given."""
        self.rows = rows
        with whole_file(self.about) as part:
            part.write_text(json.dumps({**self.run, "batch": self.batch, "rows": rows}, indent=1))

    def write(self, shard: Shard) -> None:
        """Write a shard, and say what is kept if there is no room for it.

        Someone may have removed the folder in the meantime: the run itself goes on, and so does a later one, from its gap on.
        """
        if not self.about.is_file():
            self.keep_rows(self.rows)
        tensors = {"answers": shard.answers} | (
            {} if shard.labels is None else {"labels": shard.labels}
        )
        try:
            path = self.path(shard.start, shard.stop)
            write_tensors(path, tensors, {"mark": shard.mark, RUN: self.name, ROWS: path.stem})
        except InputError as error:
            raise InputError(
                f"{error}; the {shard.start} images before it are kept, run again to go on"
            ) from error
        self.written = time.monotonic()

    def path(self, start: int, stop: int) -> Path:
        """Where a shard lies."""
        return self.folder / f"{start:010}-{stop:010}.safetensors"


def any_in(folder: Path) -> bool:
    """Whether a folder holds a shard."""
    return any(True for _ in folder.glob(SHARDS))


def as_folder(output: str) -> bool:
    """Whether a record goes into a folder: one that is there, a name that ends as folders' do, or one without a suffix."""
    path = Path(output)
    return path.is_dir() or output.endswith(("/", os.sep)) or not (path.suffix or path.exists())


@contextmanager
def beside(path: Path) -> Iterator[Path]:
    """The folder for the shards of a record that becomes this file; it goes when the record is written.

    It also goes where a run that failed had nothing to keep. One run at a time has it.
    """
    if not path.name or path.is_dir():
        raise InputError(f"expected the name of a file, got the folder {path}")
    folder = path.with_name(path.name + ".shards")
    with locked(path):
        there = folder.exists()
        try:
            yield folder
        except BaseException:
            if not there and not any_in(folder):
                shutil.rmtree(folder, ignore_errors=True)
            raise
        shutil.rmtree(folder, ignore_errors=True)


def mark(first: Tensor, last: Tensor) -> str:
    """A hash of two images, the first and the last of a shard: enough to notice other images or another order."""
    digest = hashlib.blake2b(digest_size=16)
    for image in (first, last):
        digest.update(f"{image.dtype}{tuple(image.shape)}".encode())
        digest.update(tensor_bytes(image))
    return digest.hexdigest()
