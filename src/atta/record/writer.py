"""Write a record as a folder of shards: append, stop, resume, repair.

    run.json                            settings of the run: policy, seed, model, batch size
    0000000000-0000000512.safetensors   answers to images 0 to 511, written whole or not at all
    ...
    record.json                         the index, written last (`store`)

Shards end at fixed positions, and batches start at multiples of the batch size, which `run.json`
keeps. A run that was stopped ends with the same bits and the same files as an uninterrupted one.
A shard that is not full is written every ten seconds and grows later. A shard that is missing,
damaged or belongs to another run is recorded again; the others are kept.
"""

import json
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import torch
from torch import Tensor

from atta._base.errors import InputError, advise
from atta._base.files import content_hash, whole_file
from atta._base.settings import check_one, checked
from atta._base.tensors import DIGEST, read_header, tensor_bytes, write_tensors
from atta.data.source import Source
from atta.record.predictions import FLOAT16_MAX, Predictions, Record, as_text
from atta.record.store import (
    LABELS,
    LOGITS,
    MARK,
    ROWS,
    RUN,
    Group,
    Index,
    Part,
    columns_of,
    open_folder,
    read_shard,
    rows_of,
    shard_name,
)

SHARDS = "{0}-{0}.safetensors".format("[0-9]" * 10)
"""Pattern of the names of shards (`shard_name`)."""
Size: TypeAlias = Annotated[int, "≥ 1", "≤ 1000000000"]
"""Images in a batch or in a pass."""
SETTINGS = "run.json"
SECONDS = 10.0
"""Time between two writes: the most work that a killed run has to repeat."""
PASSES = 1 << 14
"""Passes in a full shard: 65 MB of 1000 classes."""


def settings_of(folder: Path) -> dict[str, Any]:
    """Return the settings of the run that began in a folder; nothing if none did."""
    path = folder / SETTINGS
    if not path.is_file():
        return {}
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return found | {name: check_one(name, found[name], Size) for name in ("batch", "rows")}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(
            f"expected {path} to describe a run, but it cannot be read: {error}"
        ) from error


class ShardWriter:
    """Appends the answers of one run to a folder.

    Args:
        folder: Where the shards are.
        run: Settings that earlier shards must have been made with.
        counts: The number of passes of each kind of view, in order.
    """

    def __init__(self, folder: Path, run: Mapping[str, Any], counts: Mapping[str, int]) -> None:
        self.folder, self.run, self.counts = folder, run, counts
        self.passes, self.settings = sum(counts.values()), folder / SETTINGS
        self.batch = self.rows = self._start = 0
        self._written = time.monotonic()
        self._buffer: list[dict[str, Tensor]] = []
        self._ends: tuple[Tensor, Tensor]  # the first and the last image of the buffer
        self._partial: Path | None = None  # the file that already holds the beginning of the buffer
        # Writes full shards, so that a GPU does not wait for the disk.
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._writing: Future[None] | None = None

    @property
    def name(self) -> str:
        """A hash of the settings, which each shard repeats."""
        return content_hash([json.dumps(self.run, sort_keys=True)], "blake2b")

    @property
    def full(self) -> int:
        """Images in a full shard: whole batches, wherever a run was stopped."""
        batch = max(1, self.batch)
        return max(1, PASSES // (self.passes * batch)) * batch

    # ---- resuming --------------------------------------------------------------------------------

    def begin(self, size: int) -> int:
        """Return the size of batches: that of the run that is resumed, or `size`."""
        earlier = settings_of(self.folder)
        inside = sorted(path.name for path in self.folder.glob("[!.]*"))
        if inside and not earlier:
            raise InputError(
                f"expected an empty folder, or one of shards, found {inside[0]} in {self.folder}"
            )
        for key, value in json.loads(json.dumps(self.run)).items():
            if earlier and earlier.get(key) != value:
                if any(self.folder.glob(SHARDS)):
                    raise InputError(
                        f"expected {self.folder} to hold shards of this run, but their {key} is "
                        f"{earlier.get(key)!r} and not {value!r}; choose another folder, or "
                        "delete this one to start again"
                    )
                earlier = {}  # nothing to resume
        self.batch = earlier.get("batch", size)
        self.keep_rows(earlier.get("rows", size))
        return self.batch

    def keep_rows(self, rows: int) -> None:
        """Write the settings, and how many images go into one pass."""
        self.rows = rows
        with whole_file(self.settings) as part:
            part.write_text(json.dumps({**self.run, "batch": self.batch, "rows": rows}, indent=1))

    def resume(
        self, source: Source
    ) -> tuple[int, list[tuple[int, int | None]], list[tuple[int, Tensor]]]:
        """Check the shards of an earlier run and remove the bad ones.

        Returns: How many images are done, what is left to do, and the labels that came with the
            images that are done, with the position of the first of each shard.
        """
        bad, labels = list[tuple[Path, str]](), list[tuple[int, Tensor]]()
        gaps, images, done = list[tuple[int, int | None]](), 0, 0
        for path in self.paths():
            start, stop = rows_of(path)
            if source.once and start != done:
                break  # a stream cannot go back to what is missing
            try:
                tensors, known = self.read(path)
                ends = [batch.pixels for batch in source.read([[start], [stop - 1]])]
                if len(ends) < 2 or mark(*ends) != known:
                    raise InputError(
                        f"expected the images from {source.where(start)} on to be those whose "
                        f"shards are in {self.folder}, got others; choose another folder"
                    )
            except InputError as error:
                if source.once:
                    raise
                bad.append((path, str(error)))
                continue
            if start > done:
                gaps.append((done, start))
            if "labels" in tensors:
                labels.append((start, tensors["labels"]))
            images, done = images + stop - start, stop
        if bad and not done:  # probably somebody else's work
            raise InputError(bad[0][1])
        for path, fault in bad:
            advise(f"{fault}: it is recorded again")
            path.unlink(missing_ok=True)
        if done != source.count:
            gaps.append((done, source.count))
        return images, gaps, labels

    def go_to(self, start: int, source: Source) -> None:
        """Continue at an image; a shard that ends there and is not full is continued."""
        ending = [path for path in self.paths() if rows_of(path)[1] == start]
        if not ending or start % self.full == 0 or source.once:
            return  # a stream cannot go back to the first image of the shard
        self._partial, self._start = ending[0], rows_of(ending[0])[0]
        self._buffer = [self.read(ending[0])[0]]
        first = next(source.read([[self._start]])).pixels
        self._ends = first, first

    # ---- reading and writing shards --------------------------------------------------------------

    def paths(self) -> list[Path]:
        """Return the files of all shards in order; of overlapping ones, the first and longest."""
        found, done = list[Path](), 0
        longest = {rows_of(path)[0]: path for path in sorted(self.folder.glob(SHARDS))}
        for start, path in longest.items():
            if start >= done:
                done = rows_of(path)[1]
                found.append(path)
        return found

    def read(self, path: Path) -> tuple[dict[str, Tensor], str]:
        """Read a shard of this run."""
        return read_shard(path, self.passes, self.name)

    def append(
        self, start: int, answers: Tensor, labels: Tensor | None, first: Tensor, last: Tensor
    ) -> None:
        """Take the answers to a batch, its first and last image, and write a shard when due."""
        if not self._buffer:
            self._start, self._ends = start, (first.clone(), last)
        self._ends = self._ends[0], last.clone()  # a part would keep all of its batch
        self._buffer.append({"answers": answers} | ({} if labels is None else {"labels": labels}))
        if (start + answers.shape[0]) % self.full == 0:
            self._begin_write(full=True)
        elif time.monotonic() - self._written >= SECONDS:
            self._begin_write(full=False)

    def flush(self) -> None:
        """Write what no shard holds yet, and wait until it is written."""
        self._begin_write(full=True)
        self._wait()

    def _wait(self) -> None:
        """Wait for the shard that is being written, and raise its error."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _begin_write(self, *, full: bool) -> None:
        """Write a full shard in a thread; one that is not is written now, and longer next time."""
        buffer, self._buffer = self._buffer, []  # what cannot be written now is not tried again
        partial, self._partial = self._partial, None
        self._wait()
        if not buffer:
            return
        tensors = {name: torch.cat([part[name] for part in buffer]) for name in buffer[0]}
        path = self.folder / shard_name(self._start, self._start + len(tensors["answers"]))
        if path != partial:
            known = mark(*self._ends)
            self._writing = self._thread.submit(self._write, path, tensors, known, partial)
            self._written = time.monotonic()
        if not full:
            self._wait()
            self._buffer, self._partial = [tensors], path

    def _write(
        self, path: Path, tensors: Mapping[str, Tensor], known: str, partial: Path | None
    ) -> None:
        """Write a shard, and remove the file with its beginning."""
        if not self.settings.is_file():  # somebody removed the folder: the run goes on
            self.keep_rows(self.rows)
        try:
            write_tensors(path, tensors, {MARK: known, RUN: self.name, ROWS: path.stem})
        except InputError as error:
            kept = rows_of(path)[0] if partial is None else rows_of(partial)[1]
            raise InputError(
                f"{error}; the {kept} images before it are kept, run again to resume"
            ) from error
        if partial is not None:
            partial.unlink(missing_ok=True)

    def finish(self) -> None:
        """Remove shards that a longer one has replaced."""
        for path in {*self.folder.glob(SHARDS)} - {*self.paths()}:
            path.unlink(missing_ok=True)


def mark(first: Tensor, last: Tensor) -> str:
    """Hash two images, the first and the last of a shard: enough to notice other images."""
    images = ((f"{one.dtype}{tuple(one.shape)}", tensor_bytes(one)) for one in (first, last))
    return content_hash(chain.from_iterable(images), "blake2b")


def write_index(
    folder: Path, writers: Sequence[ShardWriter], labels: Tensor | None, origin: Mapping[str, str]
) -> Record:
    """Write the labels and the index of a folder whose shards are complete."""
    groups, dtype, labelled = list[Group](), torch.float32, ""
    for writer in writers:
        paths = writer.paths()
        parts = [
            Part(path.relative_to(folder).as_posix(), *rows_of(path), read_header(path)[DIGEST])
            for path in paths
        ]
        groups.append(Group(columns_of(writer.counts), parts, writer.name))
        answers = writer.read(paths[0])[0]["answers"]
        dtype = torch.promote_types(dtype, answers.dtype)
    if labels is not None:
        write_tensors(folder / LABELS, {"labels": labels}, {})
        labelled = read_header(folder / LABELS)[DIGEST]
    kind: Any = str(dtype).removeprefix("torch.")
    Index(parts[-1].stop, answers.shape[2], kind, groups, labelled, as_text(origin)).write(folder)
    return open_folder(folder)


# ---- records of one's own logits -----------------------------------------------------------------


class RecordWriter:
    """Write a record of any size from your own logits, as a folder of shards.

    Use it if another program runs the network, or if the logits do not fit into memory.

    Args:
        folder: The folder that becomes the record; `Record.load` reads it.
        dtype: "float32" or "float16", which takes half of the space.
        origin: Text about the logits, which the record keeps.

    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> with RecordWriter(folder, dtype="float16") as writer:
        ...     for _ in range(3):
        ...         writer.append(torch.randn(4, 10), {"flip": torch.randn(4, 1, 10)}, [1, 2, 3, 4])
        >>> Record.load(folder)
        Record(Predictions(12 images, 10 classes; 1 flip), with labels, {})
    """

    @checked
    def __init__(
        self,
        folder: str | PathLike[str],
        *,
        dtype: Literal["float16", "float32"] = "float32",
        origin: Mapping[str, str] | None = None,
    ) -> None:
        self.folder, self.dtype, self.origin = Path(folder), dtype, dict(origin or {})
        self._writer: ShardWriter | None = None
        self._labels: list[Tensor] = []
        self.images = 0
        """Images that are written or waiting to be written."""

    def __enter__(self) -> "RecordWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            self.close()
        elif self._writer is not None:
            self._writer.flush()

    def append(
        self, logits: Any, views: Mapping[str, Any] | None = None, labels: Any = None
    ) -> None:
        """Append the logits of some images.

        Args:
            logits: Logits of the images, (n, k).
            views: Logits of each kind of view, (n, repeats, k); the same kinds every time.
            labels: Class numbers, every time or never.
        """
        record = Record(Predictions(logits, views or {}), labels)
        predictions = record.predictions
        answers = torch.cat([predictions.logits[:, None], *predictions.views.values()], dim=1)
        if self.dtype == "float16" and float(answers.abs().max()) > FLOAT16_MAX:
            raise InputError(
                f"float16 holds logits up to {FLOAT16_MAX:.0f}, got larger ones: use float32"
            )
        answers, writer = answers.to(getattr(torch, self.dtype)), self._opened(predictions)
        if (labels is None) != (not self._labels) and self.images:
            raise InputError("expected labels with every append or with none")
        if record.labels is not None:
            self._labels.append(record.labels)
        ends = range(writer.full - self.images % writer.full, len(answers), writer.full)
        for part in answers.tensor_split(list(ends)):  # each shard that becomes full ends a part
            writer.append(self.images, part, None, part[:1], part[-1:])
            self.images += len(part)

    def _opened(self, predictions: Predictions) -> ShardWriter:
        """Return the writer, which is made for the first logits; later ones must be alike."""
        run = {**predictions.counts, "classes": predictions.classes, "dtype": self.dtype}
        if self._writer is None:
            if any(self.folder.glob(SHARDS)):
                raise InputError(f"expected an empty folder, found shards in {self.folder}")
            writer = ShardWriter(self.folder, run, {LOGITS: 1, **predictions.counts})
            writer.begin(1)
            self._writer = writer
        elif list(run.items()) != list(self._writer.run.items()):  # also the order of the views
            raise InputError(f"expected logits as before, {self._writer.run}, got {run}")
        return self._writer

    def close(self) -> Record:
        """Write what is left and the index, and return the record."""
        if self._writer is None:
            raise InputError(f"expected at least one image for {self.folder}, got none")
        self._writer.flush()
        labels = torch.cat(self._labels) if self._labels else None
        return write_index(self.folder, [self._writer], labels, self.origin)
