"""A record of any size: a folder of shards, of which only the rows that are used are read.

    record.json                          index: images, classes, views, origin, rows and checksums
    labels.safetensors                   class numbers, if they are known
    0000000000-0000000512.safetensors    `answers` [n passes k]: images 0 to 511 and their views
    rehearse-3/...                       further passes over the same images

`collect(..., output=folder)` and `RecordWriter` write shards and, last, the index (`writer`).
`Record.load(folder)` reads the index and the labels. A shard is mapped into memory, compared with
its checksum and checked for numbers that are not finite when it is first used.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import accumulate
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from atta._base.errors import InputError, first_line
from atta._base.files import check_digest, digest, named, readable, whole_file
from atta._base.settings import Count, check, check_one, hints, shown
from atta._base.tensors import DIGEST, read_header, read_tensors
from atta._base.types import Logits, RepeatLogits
from atta.record.predictions import Predictions, Record, Rows, as_index, check_logits

INDEX, LABELS, RUN, ROWS, MARK = "record.json", "labels.safetensors", "run", "rows", "mark"
FORMAT, FORMAT_VERSION = "atta.record", 1
LOGITS = ""  # name of the column of the images themselves
OPEN = 64  # shards that stay mapped
PIECE = 1 << 22  # logits read at a time
MOST_NAMED = 5  # faults that are named one by one


# ---- shards --------------------------------------------------------------------------------------


def shard_name(start: int, stop: int) -> str:
    """Return the name of the file with the answers to these images."""
    return f"{start:010}-{stop:010}.safetensors"


def rows_of(path: Path) -> tuple[int, int]:
    """Return the first image in a shard, and the first after it."""
    start, stop = map(int, path.stem.split("-"))
    return start, stop


def read_shard(
    path: Path, passes: int, run: str, *, sealed: bool = True
) -> tuple[dict[str, Tensor], str]:
    """Return the tensors of a shard, and the hash of its first and last image.

    `answers` are (n, passes, k) and mapped into memory, `labels` are those that came with the
    images. A shard that is damaged, or of another run or other rows, is refused. `sealed=False`
    does not compute its checksum.
    """
    header = read_header(path)
    if header.get(RUN, run) != run:
        raise InputError(
            f"{path} was recorded by another run: another network, other views or draws"
        )
    if (rows := header.get(ROWS, path.stem)) != path.stem:
        raise InputError(f"{path} holds the rows {rows} instead")
    tensors, _ = read_tensors(path, sealed=sealed)
    answers, (start, stop) = tensors.get("answers"), rows_of(path)
    shape = (stop - start, passes)
    if answers is None or answers.ndim != 3 or answers.shape[:2] != shape:
        got = "none" if answers is None else tuple(answers.shape)
        raise InputError(f"{path} is damaged: expected answers of {shape} and classes, got {got}")
    return tensors, header.get(MARK, "")


# ---- the index -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """A shard in the index."""

    file: str
    start: Annotated[int, "≥ 0"]
    stop: Count
    digest: str


@dataclass(frozen=True)
class Group:
    """Shards of the same passes over all images, in order."""

    columns: Mapping[str, tuple[int, int]]
    """First pass and number of passes of each kind of view."""
    parts: Sequence[Part]
    run: str = ""
    """Hash of the settings of the run, which each shard repeats."""

    @property
    def counts(self) -> dict[str, int]:
        """Number of passes of each kind of view."""
        return {kind: count for kind, (_, count) in self.columns.items()}


def columns_of(counts: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Return where the passes of each kind of view are, one kind after the other."""
    starts = accumulate(counts.values(), initial=0)
    return dict(zip(counts, zip(starts, counts.values(), strict=False), strict=True))


@dataclass(frozen=True)
class Index:
    """What is known without reading a shard."""

    images: Count
    classes: Annotated[int, "≥ 2", "≤ 1000000000"]
    dtype: Literal["float32", "float64"]
    groups: Sequence[Group]
    labelled: str = ""
    """Checksum of the labels, if there are any."""
    origin: Mapping[str, str] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Write the index, with a checksum of itself."""
        content = {"format": FORMAT, "version": FORMAT_VERSION, **asdict(self)}
        content = json.loads(json.dumps(content))
        with whole_file(folder / INDEX) as part:
            text = json.dumps(content | {"digest": digest(content)}, indent=1, ensure_ascii=False)
            part.write_text(text, encoding="utf-8", newline="\n")

    @classmethod
    def read(cls, folder: Path) -> Index:
        """Read an index; every field must be one that `write` writes, whatever its digest."""
        path = folder / INDEX
        if not path.is_file():
            instead = "a saved classifier is read by CalibratedClassifier.load"
            if (folder / "run.json").is_file():
                instead = "its recording has not ended; the same collect resumes it"
            raise InputError(
                f"expected a record, got the folder {folder}, which has no {INDEX}: {instead}"
            )
        with _damage(path):
            content = json.loads(path.read_text(encoding="utf-8"))
            expected, found = content.pop("digest", None), digest(content)
            ours, version = content["format"] == FORMAT, content["version"]
            known = ours and version <= FORMAT_VERSION
        if not known:
            raise InputError(
                f"{path} has version {version}, this atta reads up to {FORMAT_VERSION}"
            )
        check_digest(path, expected, found)
        with _damage(path):
            names = ("images", "classes", "dtype", "labelled", "origin")
            fields = check({name: content[name] for name in names}, hints(Index))
            check(fields["origin"], dict.fromkeys(fields["origin"], str))
            groups = [_group(one, fields["images"]) for one in content["groups"]]
            kinds = [kind for group in groups for kind in group.columns]
            if LOGITS not in kinds or kinds != list(dict.fromkeys(map(readable, kinds))):
                raise InputError(f"expected images and views, each once, got {shown(kinds)}")
            return cls(groups=groups, **fields)


@contextmanager
def _damage(path: Path) -> Iterator[None]:
    """Say that an index is damaged, however reading it fails: a forged one can hold anything."""
    try:
        yield
    except Exception as error:
        fault = readable(first_line(error))
        raise InputError(f"{path} is damaged: it is not an index ({fault})") from None


def _group(content: Mapping[str, Any], images: int) -> Group:
    """Make a group of JSON; its shards must hold all passes over all images, in order."""
    given = check(content, hints(Group))
    places = {kind: tuple(place) for kind, place in given["columns"].items()}
    counts = {kind: check_one(kind, count, Count) for kind, (_, count) in places.items()}
    group = Group(
        columns_of(counts),
        [Part(**check(part, hints(Part))) for part in given["parts"]],
        given["run"],
    )
    ends = [0, *(part.stop for part in group.parts)]
    right = [part.start for part in group.parts] == ends[:-1] and ends[-1] == images
    for part in group.parts:
        right &= PurePosixPath(part.file).name == shard_name(part.start, part.stop)
    if not right or places != group.columns or counts.get(LOGITS, 1) != 1:
        raise InputError(f"its shards do not hold all passes over all {images} images in order")
    return group


# ---- reading -------------------------------------------------------------------------------------


class Store:
    """The shards of a folder, mapped into memory when they are used."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.index = folder, Index.read(folder)
        self.dtype: torch.dtype = getattr(torch, self.index.dtype)
        self._sound: set[str] = set()
        self._mapped: dict[str, Tensor] = {}

    def labels(self) -> Tensor | None:
        """The labels, if there are any."""
        if not self.index.labelled:
            return None
        path = self._inside(LABELS)
        found = read_tensors(path)[0].get("labels")
        if found is None or read_header(path).get(DIGEST) != self.index.labelled:
            raise InputError(f"{path} is not the file of labels that {INDEX} names")
        return found

    def read(self, group: Group, rows: Tensor) -> Tensor:
        """Return all passes of a group for these rows."""
        starts = torch.tensor([part.start for part in group.parts])
        places = torch.bucketize(rows.contiguous(), starts, right=True) - 1
        found = torch.empty(0, dtype=self.dtype)
        for place in torch.unique(places).tolist():
            part, own = group.parts[place], places == place
            answers = self.answers(group, part)
            if not len(found):  # now, as a forged index could name any number of passes
                found = found.new_empty(len(rows), *answers.shape[1:])
            found[own] = answers[rows[own] - part.start].to(self.dtype)
        return found

    def answers(self, group: Group, part: Part) -> Tensor:
        """Return a shard, mapped into memory and checked the first time."""
        if part.file not in self._mapped:
            path, fresh = self._inside(part.file), part.file not in self._sound
            try:
                passes = sum(group.counts.values())
                answers = read_shard(path, passes, group.run, sealed=fresh)[0]["answers"]
                if read_header(path).get(DIGEST) != part.digest:
                    raise InputError(f"{path} was changed since {INDEX} was written")
                if answers.shape[2] != self.index.classes:
                    raise InputError(f"{path} is damaged: it has {answers.shape[2]} classes")
                if fresh:
                    check_logits(answers, f"the answers of {path}", "(images, passes, classes)")
            except InputError as error:
                rows = f"{part.start} to {part.stop - 1}"
                raise InputError(f"{error}; the same collect records images {rows} again") from None
            self._sound.add(part.file)
            while len(self._mapped) >= OPEN:
                del self._mapped[next(iter(self._mapped))]
            self._mapped[part.file] = answers
        return self._mapped[part.file]

    def _inside(self, file: str) -> Path:
        """Return the path of a file of this record, and refuse one that leads out of its folder."""
        path = named(self.folder / file)
        if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(self.folder)):
            raise InputError(
                f"expected the files of a record inside of its folder, got {path}, which leads out "
                "of it: copy the file into the folder"
            )
        return path


class Views(Mapping[str, RepeatLogits]):
    """Views by name, each read when it is used."""

    def __init__(self, of: FolderPredictions) -> None:
        self._of = of

    def __getitem__(self, kind: str) -> RepeatLogits:
        alone = self._of.only({kind: self._of.counts[kind]})
        return torch.cat([part.views[kind] for part in alone.parts()])

    def __contains__(self, kind: object) -> bool:
        return kind in self._of.counts

    def __iter__(self) -> Iterator[str]:
        return iter(self._of.counts)

    def __len__(self) -> int:
        return len(self._of.counts)


class FolderPredictions(Predictions):
    """Predictions in a folder: rows and views are chosen without reading, `chunks` reads pieces."""

    store: Store
    rows: Tensor

    def __init__(self, store: Store, rows: Tensor, counts: Mapping[str, int]) -> None:
        # Shards in float16 are read as float32.
        self._describe(counts, store.index.classes, store.dtype, torch.device("cpu"))
        self.__dict__.update(store=store, rows=rows)

    @cached_property
    def logits(self) -> Logits:
        """All logits, for code that cannot work in pieces."""
        return torch.cat([part.logits for part in self.only({}).parts()])

    @property
    def views(self) -> Views:
        """Views, each read when it is used."""
        return Views(self)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: Rows) -> FolderPredictions:
        """Choose some of the images, without reading them."""
        return FolderPredictions(self.store, self.rows[as_index(rows, len(self))], self.counts)

    def only(self, counts: Mapping[str, int]) -> FolderPredictions:
        """Keep these numbers of passes, and no others, without reading them."""
        return FolderPredictions(self.store, self.rows, counts)

    def to(self, *args: Any, **kwargs: Any) -> Predictions:
        """Read all of it, and move or cast it."""
        return Predictions(self.logits, dict(self.views), check=False).to(*args, **kwargs)

    def parts(self) -> Iterator[Predictions]:
        """Read everything, a few megabytes at a time."""
        return self.chunks(max(1, PIECE // self.classes))

    def chunks(self, rows: int) -> Iterator[Predictions]:
        """Read at most `rows` images at a time."""
        return map(self._read, torch.split(self.rows, rows))

    def _read(self, rows: Tensor) -> Predictions:
        wanted, found = {LOGITS: 1, **self.counts}, dict[str, Tensor]()
        for group in self.store.index.groups:
            if own := wanted.keys() & group.columns:
                answers = self.store.read(group, rows)
                for kind in own:
                    first, _ = group.columns[kind]
                    found[kind] = answers[:, first : first + wanted[kind]]
        views = {kind: found[kind] for kind in self.counts}
        return Predictions(found[LOGITS][:, 0], views, check=False)


def open_folder(folder: Path) -> Record:
    """Open the record in a folder; no shard is read."""
    store, counts = Store(folder), dict[str, int]()
    for group in store.index.groups:
        counts |= group.counts
    counts.pop(LOGITS)
    with _damage(folder / INDEX):  # more images than memory has room for
        rows = torch.arange(store.index.images)
    predictions = FolderPredictions(store, rows, counts)
    try:
        return Record(predictions, store.labels(), store.index.origin)
    except InputError as error:
        raise InputError(f"{folder}: {str(error).removeprefix(f'{folder}: ')}") from None


def check_folder(folder: Path) -> str:
    """Check every shard of a record, and describe the record in a few words."""
    predictions, faults = open_folder(folder).predictions, list[str]()
    assert isinstance(predictions, FolderPredictions)
    store = predictions.store
    for group in store.index.groups:
        for part in group.parts:
            try:
                store.answers(group, part)
            except InputError as error:
                faults.append(str(error).removeprefix(f"{folder}/"))
    if faults:
        more = f"; and {len(faults) - MOST_NAMED} more" if len(faults) > MOST_NAMED else ""
        raise InputError("; ".join(faults[:MOST_NAMED]) + more)
    return repr(predictions).removeprefix("Predictions(").removesuffix(")")
