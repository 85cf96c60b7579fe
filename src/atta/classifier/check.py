"""Check a file or folder that atta wrote: what it is, and whether it is complete.

It knows records, calibrators, classifiers, results, graphs, and folders of training and shards.
Nothing is run: of a .pt2 file or a checkpoint, which can contain code, only checksums are read.
"""

import json
import os
import zipfile
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
        about, sealed = _read(path, kind)
    except (InputError, OSError) as error:
        fault = first_line(error).removeprefix(f"{path} ").removeprefix(f"{path}: ")
        return Found(path, kind, fault=fault)
    return Found(path, kind, about, sealed=sealed)


def _folder_kind(path: Path) -> str:
    """Return what a folder is, by the files in it."""
    kinds = {
        archive.ABOUT: "classifier",
        INDEX: "record in a folder",
        "run.json": "unfinished record",
        "model.safetensors": "training",
        "checkpoint.pt": "training",
    }
    for name, kind in kinds.items():
        if (path / name).exists():
            return kind
    raise InputError(f"without {archive.ABOUT}, {INDEX}, run.json or model.safetensors in it")


def _file_kind(path: Path) -> str:
    """Return what a file is, by its name, its first bytes and its header."""
    if path.suffix in (".pt2", ".onnx"):
        return f"graph, {path.suffix}"
    with path.open("rb") as file:
        start = file.read(9)
    if start[:2] == b"PK":
        raise InputError("an archive that may hold pickles")
    if start[8:] != b"{":
        if start.lstrip()[:1] == b"{":
            return "results"
        raise InputError(f"it begins with {start!r}")
    header = read_header(path)
    if "format" not in header:
        # A record of `atta collect` has the key "atta", too, as a trained network has.
        return "trained network" if "atta" in header and "kinds" not in header else "record"
    formats = {archive.FORMAT: "classifier", CALIBRATOR: "calibrator"}
    if header["format"] not in formats:
        raise InputError(f"its format is {header['format']!r}")
    return formats[header["format"]]


def _read(path: Path, kind: str) -> tuple[str, bool]:
    """Read it whole; return a word about it, and whether a checksum says that it is complete."""
    match kind:
        case "record":
            text = repr(Record.load(path).predictions).removeprefix("Predictions(")
            return text.removesuffix(")"), _sealed(path)
        case "record in a folder":
            return check_folder(path), True
        case "unfinished record":
            try:
                json.loads((path / "run.json").read_text(encoding="utf-8"))
            except ValueError as error:
                raise InputError(f"is damaged: run.json cannot be read ({error})") from None
            shards = sorted(path.glob(SHARDS))
            for shard in shards:
                read_tensors(shard)
            return f"{len(shards)} shards", all(map(_sealed, shards))
        case "calibrator":
            return calibrators.load(path).extra_repr(), _sealed(path)
        case "classifier":
            about, parts = archive.read(path)
            if "calibrator" not in parts:
                raise InputError("is damaged: it has no calibrator")
            calibrators.restore(*parts["calibrator"], path=path)
            words = f"{about.get('method')}, {about.get('classes')} classes, {about.get('policy')}"
            return words, True
        case "results":
            rows = f"{len(Results.load(path))} rows"
            return rows, "digest" in json.loads(path.read_text(encoding="utf-8"))
        case "graph, .onnx":
            return f"{open_graph(path).classes} classes", False
        case "graph, .pt2":
            return _zip(path, "not opened")
        case _:
            return _training(path)


def _sealed(path: Path) -> bool:
    return DIGEST in read_header(path)


def _training(path: Path) -> tuple[str, bool]:
    """Read a trained network, or a folder with one, finished or not."""
    if path.is_dir():
        folder = path
        path = path / "model.safetensors"
        if not path.is_file():
            return _zip(folder / "checkpoint.pt", "not finished")
    tensors, header = read_tensors(path)
    try:
        name = json.loads(header["atta"])["architecture"]["name"]
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        raise InputError(f"is damaged: it says nothing of its training ({error})") from None
    return f"{name}, {len(tensors)} tensors", _sealed(path)


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
