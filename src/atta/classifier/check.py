"""What a file is, and whether it is whole: records, calibrators, classifiers, results, graphs, folders of training and shards.

Nothing that is looked at is run: of a .pt2 file, which could name code, and of a checkpoint only the checksums are read.
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
FOLDER = "record in a folder"


@dataclass(frozen=True)
class Found:
    """What a file is; `fault` says why it is not whole, and is empty if it is. `sealed`: a checksum says so."""

    path: Path
    kind: str
    about: str = ""
    fault: str = ""
    sealed: bool = True

    @property
    def whole(self) -> bool:
        """Whether nothing is wrong with it, as far as can be told."""
        return not self.fault

    def __str__(self) -> str:
        kind = f"{self.kind} ({self.about})" if self.about else self.kind
        good = "whole" if self.sealed else "readable; it has no checksum that could say more"
        return f"{self.path}: {kind}, {self.fault or good}"


def check(path: str | os.PathLike[str]) -> Found:
    """Say what a file or folder is, and whether it is whole; it never raises for what lies there."""
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
        return Found(
            path, kind, fault=first_line(error).removeprefix(f"{path} ").removeprefix(f"{path}: ")
        )
    return Found(path, kind, about, sealed=sealed)


# ---- what it is


def _folder_kind(path: Path) -> str:
    there = {entry.name for entry in path.iterdir()}
    if archive.ABOUT in there:
        return "classifier"
    if INDEX in there:
        return FOLDER
    if "run.json" in there:
        return "unfinished record"
    if there & {"model.safetensors", "checkpoint.pt"}:
        return "training"
    return f"without {archive.ABOUT}, {INDEX}, run.json or model.safetensors in it"


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
    # A record of `atta collect` says which atta made it, by the same word as a trained network.
    return "trained network" if "atta" in header and "kinds" not in header else "record"


# ---- whether it is whole: a word about it, and whether a checksum says so


def _record(path: Path) -> tuple[str, bool]:
    return repr(Record.load(path).predictions).removeprefix("Predictions(").removesuffix(
        ")"
    ), DIGEST in read_header(path)


def _folder(path: Path) -> tuple[str, bool]:
    return check_folder(path), True


def _calibrator(path: Path) -> tuple[str, bool]:
    return calibrators.load(path).extra_repr(), DIGEST in read_header(path)


def _classifier(path: Path) -> tuple[str, bool]:
    about, parts = archive.read(path)
    if "calibrator" not in parts:
        raise InputError("is damaged: it has no calibrator")
    calibrators.restore(*parts["calibrator"], path=path)
    return f"{about.get('method')}, {about.get('classes')} classes, {about.get('policy')}", True


def _results(path: Path) -> tuple[str, bool]:
    results = Results.load(path)
    return f"{len(results)} rows", "digest" in json.loads(path.read_text(encoding="utf-8"))


def _trained(path: Path) -> tuple[str, bool]:
    tensors, header = read_tensors(path)
    try:
        name = json.loads(header["atta"])["architecture"]["name"]
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        raise InputError(f"is damaged: it says nothing of its training ({error})") from None
    return f"{name}, {len(tensors)} tensors", DIGEST in read_header(path)


def _training(path: Path) -> tuple[str, bool]:
    if (path / "model.safetensors").is_file():
        return _trained(path / "model.safetensors")
    _check_zip(path / "checkpoint.pt")
    return "not finished", True


def _shards(path: Path) -> tuple[str, bool]:
    try:
        json.loads((path / "run.json").read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"is damaged: run.json cannot be read ({error})") from None
    shards = sorted(path.glob(SHARDS))
    for shard in shards:
        read_tensors(shard)
    return f"{len(shards)} shards", all(DIGEST in read_header(shard) for shard in shards)


def _torch_graph(path: Path) -> tuple[str, bool]:
    _check_zip(path)
    return "not opened", True


def _onnx_graph(path: Path) -> tuple[str, bool]:
    graph = open_graph(path)
    return f"{graph.classes} classes", False


def _check_zip(path: Path) -> None:
    """Compare every part of an archive of torch with its checksum, without unpacking what is in it."""
    try:
        with zipfile.ZipFile(path) as file:
            wrong = file.testzip()
    except (zipfile.BadZipFile, NotImplementedError, EOFError, ValueError, RuntimeError) as error:
        raise InputError(f"is not a whole file of torch ({error})") from None
    if wrong is not None:
        raise InputError(f"is damaged: the checksum of {wrong} does not fit")


_LOOKS = {
    "record": _record,
    FOLDER: _folder,
    "calibrator": _calibrator,
    "classifier": _classifier,
    "results": _results,
    "trained network": _trained,
    "training": _training,
    "unfinished record": _shards,
    "graph, .pt2": _torch_graph,
    "graph, .onnx": _onnx_graph,
}
