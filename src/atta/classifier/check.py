"""Check a file or folder that atta wrote: what it is, and whether it is complete.

It knows records, calibrators, classifiers, results, graphs, and folders of training and shards.
Nothing is run: of a .pt2 file or a checkpoint, which can contain code, only checksums are read.
"""

import json
import os
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from atta import calibrators
from atta._base.errors import InputError, first_line
from atta._base.files import named
from atta._base.tensors import DIGEST, read_header, read_tensors
from atta.calibrators.base import FORMAT as CALIBRATOR
from atta.classifier import archive
from atta.classifier.export import open_graph
from atta.record.predictions import Record
from atta.record.store import INDEX, check_folder
from atta.record.writer import SHARDS
from atta.results.rows import Results

UNKNOWN = "nothing that atta writes"


@dataclass(frozen=True)
class Found:
    """What a file is, why it is incomplete (`fault`), and whether it has a checksum (`sealed`)."""

    path: Path
    kind: str
    about: str = ""
    fault: str = ""
    sealed: bool = True

    @property
    def whole(self) -> bool:
        """Whether no fault was found."""
        return not self.fault

    def __str__(self) -> str:
        kind = f"{self.kind} ({self.about})" if self.about else self.kind
        good = "whole" if self.sealed else "readable; it has no checksum that could say more"
        return f"{self.path}: {kind}, {self.fault or good}"


def check(path: str | os.PathLike[str]) -> Found:
    """Say what a file or folder is and whether it is complete; damaged files raise nothing."""
    path = Path(path)
    kind = UNKNOWN
    try:
        if not named(path).exists():
            raise InputError(f"there is no file or folder {path}")
        kind = _folder_kind(path) if path.is_dir() else _file_kind(path)
        if kind not in _LOOKS:
            return Found(path, UNKNOWN, fault=kind)
        about, sealed = _LOOKS[kind](path)
    except (InputError, OSError) as error:
        fault = first_line(error).removeprefix(f"{path} ").removeprefix(f"{path}: ")
        return Found(path, kind, fault=fault)
    return Found(path, kind, about, sealed=sealed)


# ---- what it is: a key of _LOOKS, or why it is none of them


def _folder_kind(path: Path) -> str:
    kinds = {
        archive.ABOUT: "classifier",
        INDEX: "record in a folder",
        "run.json": "unfinished record",
        "model.safetensors": "training",
        "checkpoint.pt": "training",
    }
    unknown = f"without {archive.ABOUT}, {INDEX}, run.json or model.safetensors in it"
    return next((kind for name, kind in kinds.items() if (path / name).exists()), unknown)


def _file_kind(path: Path) -> str:
    if path.suffix in (".pt2", ".onnx"):
        return f"graph, {path.suffix}"
    with path.open("rb") as file:
        start = file.read(9)
    if start[:2] == b"PK":
        return "an archive that may hold pickles"
    if start[8:] != b"{":
        return "results" if start.lstrip()[:1] == b"{" else f"it begins with {start!r}"
    header = read_header(path)
    formats = {archive.FORMAT: "classifier", CALIBRATOR: "calibrator"}
    if "format" in header:
        return formats.get(header["format"], f"its format is {header['format']!r}")
    # A record of `atta collect` has the key "atta", too, as a trained network has.
    return "trained network" if "atta" in header and "kinds" not in header else "record"


# ---- whether it is complete: a word about it, and whether a checksum says so


def _sealed(path: Path) -> bool:
    return DIGEST in read_header(path)


def _record(path: Path) -> tuple[str, bool]:
    text = repr(Record.load(path).predictions)
    return text.removeprefix("Predictions(").removesuffix(")"), _sealed(path)


def _classifier(path: Path) -> tuple[str, bool]:
    about, parts = archive.read(path)
    if "calibrator" not in parts:
        raise InputError("is damaged: it has no calibrator")
    calibrators.restore(*parts["calibrator"], path=path)
    return f"{about.get('method')}, {about.get('classes')} classes, {about.get('policy')}", True


def _results(path: Path) -> tuple[str, bool]:
    rows = f"{len(Results.load(path))} rows"
    return rows, "digest" in json.loads(path.read_text(encoding="utf-8"))


def _training(path: Path) -> tuple[str, bool]:
    """A trained network, or a folder with one, finished or not."""
    if path.is_dir():
        folder, path = path, path / "model.safetensors"
        if not path.is_file():
            return _zip(folder / "checkpoint.pt", "not finished")
    tensors, header = read_tensors(path)
    try:
        name = json.loads(header["atta"])["architecture"]["name"]
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        raise InputError(f"is damaged: it says nothing of its training ({error})") from None
    return f"{name}, {len(tensors)} tensors", _sealed(path)


def _shards(path: Path) -> tuple[str, bool]:
    try:
        json.loads((path / "run.json").read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"is damaged: run.json cannot be read ({error})") from None
    shards = sorted(path.glob(SHARDS))
    for shard in shards:
        read_tensors(shard)
    return f"{len(shards)} shards", all(map(_sealed, shards))


def _zip(path: Path, about: str) -> tuple[str, bool]:
    """Compare every part of an archive of torch with its checksum, without unpickling it."""
    try:
        with zipfile.ZipFile(path) as file:
            wrong = file.testzip()
    except (zipfile.BadZipFile, EOFError, ValueError, RuntimeError) as error:
        raise InputError(f"is not a whole file of torch ({error})") from None
    if wrong is not None:
        raise InputError(f"is damaged: the checksum of {wrong} does not fit")
    return about, True


_LOOKS: dict[str, Callable[[Path], tuple[str, bool]]] = {
    "record": _record,
    "record in a folder": lambda path: (check_folder(path), True),
    "calibrator": lambda path: (calibrators.load(path).extra_repr(), _sealed(path)),
    "classifier": _classifier,
    "results": _results,
    "trained network": _training,
    "training": _training,
    "unfinished record": _shards,
    "graph, .pt2": lambda path: _zip(path, "not opened"),
    "graph, .onnx": lambda path: (f"{open_graph(path).classes} classes", False),
}
