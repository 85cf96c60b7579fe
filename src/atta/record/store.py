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
from typing import Annotated, Any, Literal, TypeAlias

import torch
from torch import Tensor

from atta._base.errors import InputError, first_line
from atta._base.files import check_digest, digest, named, readable, whole_file
from atta._base.settings import Count, check, hints, shown
from atta._base.tensors import DIGEST, read_header, read_tensors, write_tensors
from atta._base.types import Logits, RepeatLogits
from atta.data.views import REHEARSAL
from atta.record.predictions import Predictions, Record, Rows, as_index, check_logits

INDEX, LABELS, RUN, ROWS = "record.json", "labels.safetensors", "run", "rows"
FORMAT, FORMAT_VERSION = "atta.record", 1
LOGITS = ""  # name of the column of the images themselves
OPEN = 64  # shards that stay mapped
MOST_NAMED = 5  # faults that are named one by one
Columns: TypeAlias = Mapping[str, tuple[int, int]]
"""First pass and number of passes of each kind of view."""


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

    columns: Columns
    parts: Sequence[Part]
    run: str = ""
    """Hash of the settings of the run, which each shard repeats."""

    @property
    def passes(self) -> int:
        """Passes per image."""
        return sum(count for _, count in self.columns.values())


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
            raise InputError(f"expected a record, got the folder {folder}, {_instead(folder)}")
        with _damage(path):
            content = json.loads(path.read_text(encoding="utf-8"))
            expected, found = content.pop("digest", None), digest(content)
            known = content["format"] == FORMAT and content["version"] <= FORMAT_VERSION
        if not known:
            raise InputError(
                f"{path} has version {content['version']}, this atta reads up to {FORMAT_VERSION}"
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
    counts = {kind: count for kind, (_, count) in given["columns"].items()}
    check(counts, dict.fromkeys(counts, Count))
    columns = columns_of(counts)
    if columns != {kind: tuple(place) for kind, place in given["columns"].items()}:
        raise InputError(f"its columns are not one after the other: {shown(given['columns'])}")
    parts = [Part(**check(part, hints(Part))) for part in given["parts"]]
    starts, stops = [part.start for part in parts], [part.stop for part in parts]
    names = [PurePosixPath(part.file).name for part in parts]
    right = starts == [0, *stops[:-1]] and stops[-1] == images
    if not right or names != list(map(shard_name, starts, stops)) or counts.get(LOGITS, 1) != 1:
        raise InputError(f"its shards do not hold all {images} images in order")
    return Group(columns, parts, given["run"])


def shard_name(start: int, stop: int) -> str:
    """Return the name of the file with the answers to these images."""
    return f"{start:010}-{stop:010}.safetensors"


def _instead(folder: Path) -> str:
    if (folder / "run.json").is_file():
        return f"which has no {INDEX} yet: its recording has not ended; the same collect resumes it"
    return f"which has no {INDEX}; a saved classifier is read by CalibratedClassifier.load"


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

    def read(self, number: int, rows: Tensor) -> Tensor:
        """Return all passes of a group for these rows, without a copy if one shard holds them."""
        group, first, stop = self.index.groups[number], int(rows[0]), int(rows[0]) + len(rows)
        if torch.equal(rows, torch.arange(first, stop)):
            found = [
                self.answers(number, part)[max(first - part.start, 0) : stop - part.start]
                for part in group.parts
                if part.start < stop and part.stop > first
            ]
            return found[0] if len(found) == 1 else torch.cat(found)
        starts = torch.tensor([part.start for part in group.parts])
        places = torch.bucketize(rows.contiguous(), starts, right=True) - 1
        order, found = places.argsort(stable=True), []
        for place in sorted(set(places.tolist())):
            part = group.parts[place]
            found.append(self.answers(number, part)[rows[places == place] - part.start])
        return torch.cat(found)[order.argsort()]

    def answers(self, number: int, part: Part) -> Tensor:
        """Return a shard, mapped into memory and checked the first time."""
        if part.file not in self._mapped:
            answers = self._opened(self.index.groups[number], part)
            while len(self._mapped) >= OPEN:
                del self._mapped[next(iter(self._mapped))]
            self._mapped[part.file] = answers
        return self._mapped[part.file]

    def _opened(self, group: Group, part: Part) -> Tensor:
        path, rows = self._inside(part.file), f"images {part.start} to {part.stop - 1}"
        if not path.is_file():
            raise InputError(
                f"{path} is missing, with the answers to {rows}; the same collect records it again"
            )
        try:
            header = read_header(path)
        except InputError:
            raise InputError(
                f"{path} is cut short or damaged; the same collect records its {rows} again"
            ) from None
        if fault := _foreign(header, group.run, part):
            raise InputError(f"{path} {fault}; the same collect records its {rows} again")
        answers = read_tensors(path, sealed=part.file not in self._sound)[0].get("answers")
        shape = (part.stop - part.start, group.passes, self.index.classes)
        if answers is None or answers.shape != shape:
            got = "none" if answers is None else tuple(answers.shape)
            raise InputError(f"{path} is damaged: expected answers of {shape}, got {got}")
        if part.file not in self._sound:
            check_logits(answers, f"the answers of {path}", "(images, passes, classes)")
            self._sound.add(part.file)
        return answers

    def _inside(self, file: str) -> Path:
        """Return the path of a file of this record, and refuse one that leads out of its folder."""
        path = named(self.folder / file)
        if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(self.folder)):
            raise InputError(
                f"expected the files of a record inside of its folder, got {path}, which leads out "
                "of it: copy the file into the folder"
            )
        return path

    def faults(self) -> list[str]:
        """Check every shard, and return what is wrong with each."""
        found = []
        try:
            self.labels()
        except InputError as error:
            found.append(str(error))
        for group in self.index.groups:
            for part in group.parts:
                try:
                    self._opened(group, part)
                except InputError as error:
                    found.append(str(error))
        return found


def _foreign(header: Mapping[str, str], run: str, part: Part) -> str:
    """Say what is wrong with a shard that was put in the place of another."""
    if header.get(RUN, run) != run:
        return "was recorded by another run: another network, other views or draws"
    name = PurePosixPath(part.file).stem
    if (rows := header.get(ROWS, name)) != name:
        return f"holds the rows {rows} instead"
    return "" if header.get(DIGEST) == part.digest else f"was changed since {INDEX} was written"


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
        self.__dict__.update(
            store=store,
            rows=rows,
            counts=dict(counts),
            kinds=tuple(kind for kind in counts if not kind.startswith(REHEARSAL)),
            rehearsals=tuple(kind for kind in counts if kind.startswith(REHEARSAL)),
            classes=store.index.classes,
            dtype=store.dtype,  # shards in float16 are read as float32
            device=torch.device("cpu"),
        )

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

    def chunks(self, rows: int) -> Iterator[Predictions]:
        """Read at most `rows` images at a time."""
        return map(self._read, torch.split(self.rows, rows))

    def only(self, counts: Mapping[str, int]) -> FolderPredictions:
        """Keep these numbers of passes, and no others, without reading them."""
        return FolderPredictions(self.store, self.rows, counts)

    def to(self, *args: Any, **kwargs: Any) -> Predictions:
        """Read all of it, and move or cast it."""
        return Predictions(self.logits, dict(self.views), check=False).to(*args, **kwargs)

    def parts(self) -> Iterator[Predictions]:
        """Read everything, a few megabytes at a time."""
        return self.chunks(max(1, (1 << 22) // self.classes))

    def _read(self, rows: Tensor) -> Predictions:
        found: dict[str, Tensor] = {}
        for number, group in enumerate(self.store.index.groups):
            wanted = [kind for kind in group.columns if kind in self.counts or kind == LOGITS]
            if wanted:
                answers = self.store.read(number, rows).to(self.store.dtype)
                for kind in wanted:
                    first = group.columns[kind][0]
                    found[kind] = (
                        answers[:, first]
                        if kind == LOGITS
                        else answers[:, first : first + self.counts[kind]]
                    )
        views = {kind: found[kind] for kind in self.counts}
        return Predictions(found[LOGITS], views, check=False)


def open_folder(folder: Path) -> Record:
    """Open the record in a folder; no shard is read."""
    store = Store(folder)
    counts = {
        kind: count
        for group in store.index.groups
        for kind, (_, count) in group.columns.items()
        if kind != LOGITS
    }
    with _damage(folder / INDEX):  # more images than memory has room for
        rows = torch.arange(store.index.images)
    predictions = FolderPredictions(store, rows, counts)
    try:
        return Record(predictions, store.labels(), store.index.origin)
    except InputError as error:
        raise InputError(f"{folder}: {str(error).removeprefix(f'{folder}: ')}") from None


def check_folder(folder: Path) -> str:
    """Check every shard of a record, and describe the record in a few words."""
    record = open_folder(folder)
    predictions = record.predictions
    assert isinstance(predictions, FolderPredictions)
    if faults := [fault.removeprefix(f"{folder}/") for fault in predictions.store.faults()]:
        more = f"; and {len(faults) - MOST_NAMED} more" if len(faults) > MOST_NAMED else ""
        raise InputError("; ".join(faults[:MOST_NAMED]) + more)
    return repr(predictions).removeprefix("Predictions(").removesuffix(")")


def columns_of(counts: Mapping[str, int]) -> Columns:
    """Return where the passes of each kind of view are, one kind after the other."""
    starts = accumulate(counts.values(), initial=0)
    return {kind: (at, count) for (kind, count), at in zip(counts.items(), starts, strict=False)}


def write_index(
    folder: Path,
    groups: Sequence[tuple[Columns, Sequence[Path], str]],
    labels: Tensor | None,
    origin: Mapping[str, str],
) -> Record:
    """Write the labels and the index of a folder whose shards are complete."""
    made, images, classes, dtype = [], 0, 0, torch.float32
    for columns, paths, run in groups:
        parts = []
        for path in paths:
            start, stop = map(int, path.stem.split("-"))
            parts.append(
                Part(path.relative_to(folder).as_posix(), start, stop, read_header(path)[DIGEST])
            )
            images = max(images, stop)
        answers = read_tensors(paths[0], sealed=False)[0]["answers"]
        classes, dtype = answers.shape[2], torch.promote_types(dtype, answers.dtype)
        made.append(Group(dict(columns), parts, run))
    labelled = ""
    if labels is not None:
        write_tensors(folder / LABELS, {"labels": labels}, {})
        labelled = read_header(folder / LABELS)[DIGEST]
    text = {readable(str(key)): readable(str(value)) for key, value in origin.items()}
    kind: Any = str(dtype).removeprefix("torch.")
    Index(images, classes, kind, made, labelled, text).write(folder)
    return open_folder(folder)
