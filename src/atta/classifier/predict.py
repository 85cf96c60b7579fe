r"""Predict files: image files in, a table out, by a saved classifier or an exported graph.

| column            | what it is                                                                  |
|-------------------|-----------------------------------------------------------------------------|
| file              | the path                                                                    |
| class             | name of the predicted class, or its number                                  |
| confidence        | how likely that class is right (`classifier.confidence`)                    |
| entropy           | -Σ_j p_j ln p_j of the calibrated probabilities (`shannon_entropy`)         |
| confidence_before | the largest probability of the network itself                               |
| ood               | part of the validation images that are less unusual than this image         |
| answered          | at a stated risk: whether the class is answered; if not, it is "unsure"     |
| set               | with `coverage`: classes that include the true one so often, joined by `|`  |
| p_NAME            | with `probs`: the calibrated probability of each class                      |

A run that was stopped resumes from its log, `OUTPUT.part`, which becomes the output at the end:

    checksum {"model": ..., "files": ..., ...}      the run
    checksum {"file": ..., "row": [...], ...}       one line per image, with "row" or "error"

A checksum covers its line and the checksum before, so that a changed, lost, doubled or moved line
is noticed: at the end it is cut off and predicted again, elsewhere the log is refused. Batches
always hold the same files, so that the result has the same bits. A file that cannot be read is
reported and has no row. File names that are not UTF-8 keep their row, escaped as in `\udcff`. In a
CSV file, a name of which a spreadsheet would take a line for a formula (it begins with = + - @, a
tab or a line break) gets a ' in front of it, and a name with a line break is quoted.
"""

import csv
import json
import os
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from math import isnan, nan
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from atta._base.display import counted
from atta._base.errors import InputError, advise, require
from atta._base.files import content_hash, file_hash, locked, readable, whole_file
from atta.calibrators import shift
from atta.calibrators.conformal import ConformalSets
from atta.calibrators.risk import Promise
from atta.classifier.adapt import Drift
from atta.classifier.archive import ABOUT
from atta.classifier.classifier import CalibratedClassifier
from atta.classifier.estimator import Details
from atta.classifier.export import SUFFIXES, Graph, open_graph
from atta.classifier.label_maps import described_map, names_of, write_maps
from atta.classifier.segmenter import CalibratedSegmenter
from atta.data.folder import Place, files_of_images
from atta.data.image_set import decode, mode_of
from atta.data.loading import Positions
from atta.data.source import Batch, as_source, batches_of
from atta.networks.borrowing import device_of
from atta.run.cluster import Engine, parts_of, stream
from atta.run.runner import batch_size as usual_size
from atta.run.runner import check_engine

GROUP = 10_000  # rows of a Parquet file written together
FORMULA = re.compile(r"(?:^|(?<=[\r\n]))(?=[=+\-@\t\r\n])")
"""Where a formula begins in a spreadsheet: some programs read a new row after any line break."""
ENDINGS = (".csv", ".jsonl", ".parquet")
Rows: TypeAlias = Iterable[Sequence[Any]]
COLUMNS = ("file", "class", "confidence", "entropy", "confidence_before")
MAP_COLUMNS = ("file", "class", "confidence", "unsure", "confidence_before")
CPU = torch.device("cpu")
LEFT_OUT = ("passes", "score", "number", "largest", "changed")
"""What `described` says for the summary and not for the table."""
TINY = 1e-38  # stands for a probability that was rounded to zero
Answerer: TypeAlias = CalibratedClassifier | Graph
"""What answers images: a classifier, a segmenter or a graph."""
Lines: TypeAlias = list[dict[str, Any]]
"""What is kept of the images of a batch: a row of the table each, or an error."""


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """Where the table is, and a summary of it; `passes` is None for a graph."""

    path: Path
    images: int
    confidence: float
    before: float
    passes: float | None
    unreadable: Mapping[str, str]
    drift: Drift | None = None
    """Comparison with the validation images, if these are known and there are enough images."""
    answered: int | None = None
    """How many images are answered at a stated risk; the others are "unsure"."""
    promise: Promise | None = None
    changed: int = 0
    """Images whose class is not the network's own, as after `with_classes`."""

    def __str__(self) -> str:
        if not self.images:
            return f"no image could be read: {self.path}"
        passes = "" if self.passes is None else f" · {self.passes:.3g} passes per image"
        unsure = "" if self.answered is None else f" · {self.images - self.answered} unsure"
        confidence = f"mean confidence {self.before:.4f} → {self.confidence:.4f}"
        changed = f" · {self.changed} classes changed" if self.changed else ""
        return f"{self.images} images · {confidence}{passes}{unsure}{changed}: {self.path}"

    @property
    def sentences(self) -> list[str]:
        """What is known about these images: the stated risk, the drift, and if the risk holds."""
        promised = [] if self.promise is None else [str(self.promise)]
        return promised + ([told(self.drift, self.promise)] if self.drift else [])


def told(drift: Drift, promise: Promise | None) -> str:
    """Return what a drift says, and whether a stated risk still holds."""
    void = " The stated risk does not hold for them." if promise and drift.drifted else ""
    return drift.sentence + void


def predict(
    classifier: Answerer,
    files: Sequence[Place],
    output: str | os.PathLike[str],
    *,
    made_by: str = "",
    probs: bool = False,
    coverage: float | None = None,
    batch_size: int | None = None,
    progress: bool = False,
    engine: str | None = None,
    actors: int | None = None,
) -> Predicted:
    """Answer the files and write the table. One run at a time writes a table.

    Args:
        classifier: What answers: a classifier, a segmenter or a graph.
        files: The image files.
        output: The table: .csv, .jsonl or .parquet.
        made_by: Identifies the classifier, for a run that resumes.
        probs: Add a column for each class.
        coverage: Add conformal sets that include the true class so often.
        batch_size: Images per batch.
        progress: Show a progress bar.
        engine: "ray" decodes and answers on a Ray cluster.
        actors: Ray processes that hold the classifier.
    """
    check_format(output := Path(output))
    check_engine(engine, actors)
    mode_of(classifier.image_shape[0])
    sets = None if coverage is None else classifier.conformal(coverage)
    answer = partial(_answer, classifier, probs, sets)
    size = 1 if classifier.any_size else usual_size(batch_size, _device(classifier))
    if classifier.any_size and (probs or engine is not None):
        raise InputError("probs, engine: expected neither for a segmenter, which writes maps here")
    run = {"model": made_by, "files": _hashed(files), "probs": probs, "coverage": coverage}
    run |= {"risk": str(classifier.promise or ""), "batch_size": size}
    part = beside(output)
    with locked(output):
        done, seal = _resumed(part, run, size)
        rest = batches_of(size, done, len(files))
        with counted("predicting", len(files), shown=progress, done=done) as tell:
            if isinstance(classifier, CalibratedSegmenter):
                answered = _mapped(classifier, files, output.with_suffix(""), done)
            else:
                answered = _answered(classifier, files, rest, answer, engine, actors)
            _keep(part, answered, files, done, seal, tell)
        return _finish(part, output, _columns(classifier, probs, coverage), files, classifier)


def _hashed(files: Sequence[Place]) -> str:
    """Return the number of the files and a hash of their names: another run has others."""
    names = content_hash((f"{file}\0" for file in files), "blake2b")
    return f"{len(files)}, {names}"


def _answered(
    classifier: Answerer,
    files: Sequence[Place],
    batches: Iterable[Positions],
    answer: Callable[[Batch], Lines],
    engine: str | None,
    actors: int | None,
) -> Iterator[Lines]:
    """Read and answer batches of files, here or on a cluster."""
    images = files_of_images(files, None if engine is None else Path.cwd())
    shape = classifier.image_shape
    source = as_source(images, preprocess=classifier.preprocess, shape=shape)
    if engine is None:
        return map(answer, source.read(batches, "auto", InputError))
    there = Engine(actors, _device(classifier).type == "cuda", torch.get_num_threads())
    reading, shares = parts_of(source, batches, InputError)
    return stream(shares, reading, lambda: lambda read: answer(read[0]), there)


def _mapped(
    segmenter: CalibratedSegmenter, files: Sequence[Place], folder: Path, done: int
) -> Iterator[Lines]:
    """Write the maps of one file after the other, and yield its line."""
    classes, nothing = segmenter.calibrator.classes, dict.fromkeys(LEFT_OUT) | {"changed": False}
    for row, name in islice(enumerate(names_of(files)), done, None):
        line: dict[str, Any] = {"file": row}
        try:
            pixels = decode(files[row], mode_of(segmenter.image_shape[0]), None, str(files[row]))
        except InputError as error:
            yield [line | {"error": str(error)}]
            continue
        maps = segmenter.answered_map(pixels)
        write_maps(maps, folder, name, classes)
        said = described_map(maps, classes)
        said["class"] = names_in(segmenter)[said["class"]]
        yield [line | {"row": list(said.values())} | nothing]


def _keep(
    part: Path,
    answered: Iterable[Lines],
    files: Sequence[Place],
    done: int,
    seal: str,
    tell: Callable[[int], None],
) -> None:
    """Append the lines of each batch to the log, after `done` lines, the last one with `seal`."""
    try:
        with part.open("a", encoding="ascii", newline="") as log:
            for lines in answered:
                for line in lines:
                    # Readers and actors are sent numbers of files, not names.
                    seal, text = _sealed(seal, {**line, "file": str(files[line["file"]])})
                    log.write(text)
                log.flush()
                done += len(lines)
                tell(done)
    except OSError as error:
        raise InputError(
            f"{part} could not be written ({error}); {done} images are kept, run again to go on"
        ) from None


def beside(output: Path) -> Path:
    """Return the file that holds finished batches until the table is complete."""
    return output.with_name(output.name + ".part")


# ---- what answers --------------------------------------------------------------------------------


def open_predictor(
    path: str | os.PathLike[str],
    model: object = None,
    *,
    device: str | None = None,
    adapt_to: Sequence[Place] = (),
    risk: float | None = None,
    classes: str | None = None,
) -> Answerer:
    """Open a saved classifier or an exported graph.

    Args:
        path: What `CalibratedClassifier.save` or `export` wrote.
        model: The network, if the file cannot build it.
        device: Where a classifier runs.
        adapt_to: Files that a classifier is adapted to first.
        risk: The risk at which it answers (`at_risk`).
        classes: The classes that occur, as `told` reads them.
    """
    path = Path(path)
    if path.suffix not in SUFFIXES:
        classifier = CalibratedClassifier.load(path, model, device=device)
        classifier = classifier.adapt(list(adapt_to)) if adapt_to else classifier
        classifier = classifier if classes is None else classifier.told(classes)
        return classifier if risk is None else classifier.at_risk(risk)
    if adapt_to or risk is not None or classes is not None:
        raise InputError(
            f"{path.name} is a graph, whose numbers are fixed: adapt the classifier, or state its "
            "risk or its classes, and export that"
        )
    if model is not None or device not in (None, "cpu"):
        raise InputError(
            f"{path.name} is a graph, which has its network inside and runs on the CPU: expected "
            "no other"
        )
    graph = open_graph(path)
    if graph.dense:
        raise InputError(
            f"{path.name} answers every pixel: expected the segmenter that it was exported from, "
            "or run the graph by ONNX Runtime"
        )
    return graph


def identity(path: str | os.PathLike[str]) -> str:
    """Hash the file of a classifier or graph; of a folder, its description, which has a hash."""
    return file_hash(Path(path) / ABOUT if Path(path).is_dir() else path)


# ---- one batch -----------------------------------------------------------------------------------


def names_in(classifier: Answerer) -> Sequence[str | int]:
    """Return the names of the classes, or their numbers."""
    classes = classifier.classes if isinstance(classifier, Graph) else classifier.calibrator.classes
    return classifier.class_names or range(classes)


def _device(classifier: Answerer) -> torch.device:
    return CPU if isinstance(classifier, Graph) else device_of(classifier)


def details_of(classifier: Answerer, images: Tensor) -> Details:
    """Return what the answers are made of, on the device where they are made."""
    return classifier.details(images.to(_device(classifier)))


def _columns(classifier: Answerer, probs: bool, coverage: float | None) -> list[str]:
    """Return the names of the columns."""
    if classifier.any_size:
        return list(MAP_COLUMNS)
    names = names_in(classifier)
    each = names if len(set(names)) == len(names) else range(len(names))
    more = {"ood": classifier.reference, "answered": classifier.promise, "set": coverage}
    known = [name for name, value in more.items() if value]
    return [*COLUMNS, *known, *(f"p_{name}" for name in each if probs)]


def _answer(classifier: Answerer, probs: bool, sets: ConformalSets | None, batch: Batch) -> Lines:
    """Return what is kept of each image, by its number: a row, or why it could not be read."""
    lines: dict[int, dict[str, Any]] = {row: {"error": why} for row, why in batch.faults.items()}
    if len(batch.positions):
        details = details_of(classifier, batch.pixels)
        each = details.probs.double().tolist() if probs else [[]] * len(batch.positions)
        said = described(classifier, details, sets)
        for row, found, p in zip(batch.positions, said, each, strict=True):
            kept = {name: found.pop(name) for name in LEFT_OUT}
            if sets:
                found["set"] = "|".join(map(str, found["set"]))
            lines[row] = {"row": [*found.values(), *p], **kept}
    return [{"file": row, **lines[row]} for row in sorted(lines)]


def described(classifier: Answerer, details: Details, sets: ConformalSets | None) -> Lines:
    """Return the columns of each image, `set` as a list, and what the table leaves out."""
    p, base = details.probs.double().cpu(), details.base.double().cpu()
    reference, names, nothing = classifier.reference, names_in(classifier), [None] * len(p)
    (largest, winner), number = p.max(dim=1), base.argmax(dim=1)
    columns: dict[str, Sequence[Any]] = {
        "class": [names[j] for j in winner.tolist()],
        "confidence": details.confidence.double().tolist(),
        "entropy": torch.special.entr(p).sum(dim=1).tolist(),
        "confidence_before": base.amax(dim=1).tolist(),
    }
    score: Sequence[Any] = nothing
    if reference is not None:
        scores = shift.scores(base.clamp_min(TINY).log(), reference.temperature)
        columns["ood"], score = shift.unlike(reference, scores).tolist(), scores.tolist()
    answered = None if details.answered is None else details.answered.cpu()
    if answered is not None:
        columns["answered"] = answered.tolist()
    if sets:
        ranked = p.argsort(dim=1, descending=True, stable=True).tolist()  # the likeliest first
        columns["set"] = [
            [names[j] for j in order if inside[j]]
            for order, inside in zip(ranked, sets(p, answered), strict=True)
        ]
    columns["passes"] = nothing if details.passes is None else details.passes.tolist()
    columns |= {"score": score, "number": number.tolist(), "largest": largest.tolist()}
    columns["changed"] = (winner != number).tolist()
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


# ---- going on, and the table ---------------------------------------------------------------------


def _sealed(before: str, value: Any) -> tuple[str, str]:
    """Return a checksum and a line of a log, which follows the line with the checksum `before`."""
    content = json.dumps(value) + "\n"
    seal = content_hash([before, content], "blake2b")
    return seal, f"{seal} {content}"


def _log(part: Path) -> Iterator[tuple[Any, str, int]]:
    """Yield value, checksum and end of the lines of a log, up to damage that no line follows."""
    seal, end = "", 0
    with part.open("rb") as log:
        for number, line in enumerate(log):
            stated, _, content = line.partition(b" ")
            seal = content_hash([seal, content], "blake2b")
            if stated != seal.encode() or not line.endswith(b"\n"):
                if number and log.read(1):
                    raise InputError(
                        f"{part} is damaged: line {number + 1} does not have its checksum; delete "
                        "the file to predict all images again"
                    )
                return
            end += len(line)
            yield json.loads(content), seal, end


def _resumed(part: Path, run: dict[str, Any], size: int) -> tuple[int, str]:
    """Begin a log, or cut one after its last whole batch; return its images and last checksum."""
    total = int(run["files"].partition(",")[0])
    length = part.stat().st_size if part.is_file() else 0
    done, seal, kept, end = 0, "", 0, 0
    for i, (begun, found, end) in enumerate(_log(part) if length else ()):
        if i == 0 and begun != run:
            key = next(key for key in run if begun.get(key) != run[key])
            raise InputError(
                f"{part} holds predictions of another run: its {key} is {begun.get(key)!r} and not "
                f"{run[key]!r}; delete it to start again"
            )
        if i % size == 0 or i == total:
            done, seal, kept = i, found, end
    if kept:
        if end < length:
            advise(f"the end of {part} is damaged: {done} of {total} images are kept")
        os.truncate(part, kept)
        return done, seal
    if length:
        if not part.read_bytes().startswith(b'{"model": '):
            raise InputError(
                f"expected {part} to hold finished predictions, got something else; delete it"
            )
        advise(f"{part} is of atta 0.1.0, without checksums: its images are predicted again")
    seal, text = _sealed("", run)
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, encoding="ascii", newline="")
    except OSError as error:
        raise InputError(f"{part} cannot be written: {error}") from None
    return 0, seal


def _finish(
    part: Path,
    output: Path,
    columns: Sequence[str],
    files: Sequence[Place],
    classifier: Answerer,
) -> Predicted:
    """Write the table from the finished lines, remove them, and summarise the table."""
    unreadable, seen, answered = dict[str, str](), array("d"), 0
    place = columns.index("answered") - 1 if "answered" in columns else None

    def rows() -> Iterator[list[Any]]:
        nonlocal answered
        count = 0
        for line, *_ in islice(_log(part), 1, None):
            count += 1
            if "error" in line:
                unreadable[line["file"]] = line["error"]
                continue
            _, confidence, _, before, *_ = line["row"]
            known = (confidence, before, *(line[name] for name in LEFT_OUT))
            answered += place is not None and line["row"][place]
            seen.extend(nan if value is None else value for value in known)
            yield [line["file"], *line["row"]]
        if count != len(files):
            raise InputError(
                f"{part} was changed by another program: expected {len(files)} images in it, got "
                f"{count}; run again"
            )

    with whole_file(output) as file:
        write_table(file, columns, rows(), ending=output.suffix)
    part.unlink()
    each = torch.from_numpy(np.array(seen)).reshape(-1, 7)
    confidence, before, passes, *_, largest, _ = each.mean(dim=0).tolist()
    drift, reference = None, classifier.reference
    if "ood" in columns and reference is not None and len(each) >= shift.LEAST:
        found = shift.estimated(reference, each[:, 3], each[:, 4].long())
        drift = Drift.of(reference, found, largest)
    return Predicted(
        path=output,
        images=len(each),
        confidence=confidence,
        before=before,
        passes=None if isnan(passes) else passes,
        unreadable=unreadable,
        drift=drift,
        answered=None if place is None else answered,
        promise=classifier.promise,
        changed=int(each[:, 6].sum()),
    )


# ---- the table as a file


def check_format(output: Path) -> None:
    """Refuse a table that cannot be written, before any work is done."""
    if output.suffix not in ENDINGS:
        raise InputError(f"expected a file that ends in {', '.join(ENDINGS)}, got {output.name!r}")
    if output.suffix == ".parquet":
        _arrow()


def write_table(path: Path, columns: Sequence[str], rows: Rows, *, ending: str) -> None:
    """Write rows: text (`file`, `set`), name or number (`class`), boolean (`answered`), numbers."""
    names = [readable(name) for name in columns]
    plain = ([readable(cell) if isinstance(cell, str) else cell for cell in row] for row in rows)
    if ending == ".parquet":
        _write_parquet(path, names, plain)
        return
    with path.open("w", encoding="utf-8", newline="") as file:
        if ending == ".jsonl":
            for row in plain:
                line = json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False)
                file.write(f"{line}\n")
        else:
            writer = csv.writer(file, lineterminator="\n")
            whole = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_ALL)
            for row in chain([names], plain):
                cells = [FORMULA.sub("'", cell) if isinstance(cell, str) else cell for cell in row]
                broken = any("\r" in cell for cell in cells if isinstance(cell, str))
                # Python 3.11 does not quote a carriage return of itself.
                (whole if broken else writer).writerow(cells)


def _write_parquet(path: Path, columns: Sequence[str], rows: Rows) -> None:
    arrow, parquet = _arrow()
    rows = iter(rows)
    group = list(islice(rows, GROUP))
    name = arrow.string() if group and isinstance(group[0][1], str) else arrow.int64()
    known = {
        "file": arrow.string(),
        "class": name,
        "set": arrow.string(),
        "answered": arrow.bool_(),
    }
    schema = arrow.schema([(each, known.get(each, arrow.float64())) for each in columns])
    with parquet.ParquetWriter(path, schema) as writer:
        while group:
            cells = [list(column) for column in zip(*group, strict=True)]
            writer.write_table(arrow.table(cells, schema=schema))
            group = list(islice(rows, GROUP))


def _arrow() -> tuple[Any, Any]:
    with require("data", "a .parquet file"):
        import pyarrow
        import pyarrow.parquet
    return pyarrow, pyarrow.parquet
