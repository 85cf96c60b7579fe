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
    checksum [{"file": ..., "class": ..., ...}]     a line for each batch; bad files have an "error"

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
from operator import itemgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from atta._base.display import counted
from atta._base.errors import InputError, advise, require
from atta._base.files import content_hash, locked, readable, whole_file
from atta.calibrators import shift
from atta.calibrators.conformal import ConformalSets
from atta.calibrators.risk import Promise
from atta.classifier.adapt import Drift
from atta.classifier.archive import ABOUT, AnyPath
from atta.classifier.classifier import CalibratedClassifier
from atta.classifier.estimator import Details
from atta.classifier.export import SUFFIXES, Graph, open_graph
from atta.classifier.label_maps import described_map, names_of, write_maps
from atta.classifier.segmenter import CalibratedSegmenter
from atta.data.folder import Place, files_of_images
from atta.data.image_set import decode, mode_of
from atta.data.loading import Positions
from atta.data.source import Batch, as_source, batches_of
from atta.run.cluster import Engine, parts_of, stream
from atta.run.runner import batch_size as usual_size
from atta.run.runner import check_engine

GROUP = 10_000  # rows of a Parquet file written together
FORMULA = re.compile(r"(?:^|(?<=[\r\n]))(?=[=+\-@\t\r\n])")
"""Where a formula begins in a spreadsheet: some programs read a new row after any line break."""
ENDINGS = (".csv", ".jsonl", ".parquet")
EMPTY = {"file": "", "class": 0, "confidence": 0.0, "entropy": 0.0, "confidence_before": 0.0}
"""The columns of an empty table, with a value of their kind."""
UNSHOWN = ("passes", "score", "number", "largest", "changed")
"""What `described` says for the summary and not for the table."""
SUMMED = ("confidence", "confidence_before", "answered", *UNSHOWN)
TINY = 1e-38  # stands for a probability that was rounded to zero
Answerer: TypeAlias = CalibratedClassifier | Graph
"""What answers images: a classifier, a segmenter or a graph."""
Line: TypeAlias = dict[str, Any]
"""What is known of an image: its file, and its columns or an error."""


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
    output: AnyPath,
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
    if classifier.any_size and (probs or engine is not None):
        raise InputError("probs, engine: expected neither for a segmenter, which writes maps here")
    sets = None if coverage is None else classifier.conformal(coverage)
    size = 1 if classifier.any_size else usual_size(batch_size, classifier.device)
    names = content_hash((f"{file}\0" for file in files), "blake2b")
    run = {"model": made_by, "files": f"{len(files)}, {names}", "probs": probs}
    run |= {"coverage": coverage, "risk": str(classifier.promise or ""), "batch_size": size}
    with locked(output):
        log, done = _resumed(beside(output), run, len(files))
        rest = batches_of(size, done, len(files))
        with counted("predicting", len(files), shown=progress, done=done) as tell:
            if isinstance(classifier, CalibratedSegmenter):
                answered = _mapped(classifier, files, output.with_suffix(""), rest)
            else:
                answer = partial(_answer, classifier, probs, sets)
                answered = _answered(classifier, files, rest, answer, engine, actors)
            for lines in answered:
                log.append([{**line, "file": str(files[line["file"]])} for line in lines])
                tell(done := done + len(lines))
        return _finish(log, output, len(files), classifier)


def _answered(
    classifier: Answerer,
    files: Sequence[Place],
    batches: Iterable[Positions],
    answer: Callable[[Batch], list[Line]],
    engine: str | None,
    actors: int | None,
) -> Iterator[list[Line]]:
    """Read and answer batches of files, here or on a cluster, which is sent numbers, not names."""
    images = files_of_images(files, None if engine is None else Path.cwd())
    shape = classifier.image_shape
    source = as_source(images, preprocess=classifier.preprocess, shape=shape)
    if engine is None:
        return map(answer, source.read(batches, "auto", InputError))
    there = Engine(actors, classifier.device.type == "cuda", torch.get_num_threads())
    reading, shares = parts_of(source, batches, InputError)
    return stream(shares, reading, lambda: lambda read: answer(read[0]), there)


def _mapped(
    segmenter: CalibratedSegmenter,
    files: Sequence[Place],
    folder: Path,
    batches: Iterable[Positions],
) -> Iterator[list[Line]]:
    """Write the maps of one file after the other, and yield its line."""
    names, mode = names_of(files), mode_of(segmenter.image_shape[0])
    for (row,) in batches:
        try:
            pixels = decode(files[row], mode, None, str(files[row]))
        except InputError as error:
            yield [{"file": row, "error": str(error)}]
            continue
        maps = segmenter.answered_map(pixels)
        write_maps(maps, folder, names[row], segmenter.classes)
        said = described_map(maps, segmenter.classes)
        yield [{"file": row, **said, "class": segmenter.names[said["class"]]}]


def beside(output: Path) -> Path:
    """Return the file that holds finished batches until the table is complete."""
    return output.with_name(output.name + ".part")


# ---- what answers --------------------------------------------------------------------------------


def open_predictor(
    path: AnyPath,
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
        if adapt_to:
            classifier = classifier.adapt(list(adapt_to))
        if classes is not None:
            classifier = classifier.told(classes)
        return classifier if risk is None else classifier.at_risk(risk)
    changed = adapt_to or any(each is not None for each in (model, risk, classes))
    if changed or device not in (None, "cpu"):
        raise InputError(
            f"{path.name} is a graph, which has its network inside, runs on the CPU and answers as "
            "it was exported: adapt the classifier, or state its risk or its classes, and export "
            "that"
        )
    graph = open_graph(path)
    if graph.dense:
        raise InputError(
            f"{path.name} answers every pixel: expected the segmenter that it was exported from, "
            "or run the graph by ONNX Runtime"
        )
    return graph


def identity(path: AnyPath) -> str:
    """Hash the file of a classifier or graph; of a folder, its description, which has a hash."""
    file = Path(path) / ABOUT if Path(path).is_dir() else Path(path)
    with file.open("rb") as opened:
        return content_hash(iter(partial(opened.read, 1 << 20), b""), "blake2b")


# ---- one batch -----------------------------------------------------------------------------------


def _answer(
    classifier: Answerer, probs: bool, sets: ConformalSets | None, batch: Batch
) -> list[Line]:
    """Return what is known of each image of a batch, in their order; `file` is its number."""
    lines: list[Line] = [{"file": row, "error": why} for row, why in batch.faults.items()]
    if len(batch.positions):
        details = classifier.details(batch.pixels.to(classifier.device))
        answers = zip(
            batch.positions, described(classifier, details, sets, probs=probs), strict=True
        )
        lines += [{"file": row, **columns} for row, columns in answers]
    return sorted(lines, key=itemgetter("file"))


def described(
    classifier: Answerer, details: Details, sets: ConformalSets | None, *, probs: bool = False
) -> list[Line]:
    """Return the columns of each image in their order, `set` as a list, and UNSHOWN ones."""
    p, base = details.probs.double().cpu(), details.base.double().cpu()
    reference, names = classifier.reference, classifier.names
    (largest, winner), number = p.max(dim=1), base.argmax(dim=1)
    columns: Line = {
        "class": [names[j] for j in winner.tolist()],
        "confidence": details.confidence.double(),
        "entropy": torch.special.entr(p).sum(dim=1),
        "confidence_before": base.amax(dim=1),
    }
    score, answered = None, details.answered
    if reference is not None:
        score = shift.scores(base.clamp_min(TINY).log(), reference.temperature)
        columns["ood"] = shift.unlike(reference, score)
    if answered is not None:
        columns["answered"] = answered = answered.cpu()
    if sets:
        ranked = p.argsort(dim=1, descending=True, stable=True).tolist()  # the likeliest first
        columns["set"] = [
            [names[j] for j in order if inside[j]]
            for order, inside in zip(ranked, sets(p, answered), strict=True)
        ]
    if probs:
        each = names if len(set(names)) == len(names) else range(len(names))
        columns |= {f"p_{name}": p[:, j] for j, name in enumerate(each)}
    unshown = details.passes, score, number, largest, winner != number
    columns |= zip(UNSHOWN, unshown, strict=True)
    known = {name: column for name, column in columns.items() if column is not None}
    values = [x.tolist() if isinstance(x, Tensor) else x for x in known.values()]
    return [dict(zip(known, row, strict=True)) for row in zip(*values, strict=True)]


# ---- going on, and the table ---------------------------------------------------------------------


class Log:
    """A file of JSON values, a line each, that starts with a checksum of it and of those before."""

    def __init__(self, path: Path) -> None:
        self.path, self.seal = path, ""

    def append(self, value: Any) -> None:
        """Write a value to the end."""
        content = json.dumps(value) + "\n"
        self.seal = content_hash([self.seal, content], "blake2b")
        try:
            with self.path.open("a", encoding="ascii", newline="") as file:
                file.write(f"{self.seal} {content}")
        except OSError as error:
            raise InputError(
                f"{self.path} could not be written ({error}); what is finished is kept, run again "
                "to go on"
            ) from None

    def read(self) -> Iterator[Any]:
        """Yield the values, up to damage that no line follows, which is cut off."""
        self.seal, end = "", 0
        with self.path.open("rb") as file:
            for number, line in enumerate(file):
                stated, _, content = line.partition(b" ")
                seal = content_hash([self.seal, content], "blake2b")
                if stated != seal.encode() or not line.endswith(b"\n"):
                    if number and file.read(1):
                        raise InputError(
                            f"{self.path} is damaged: line {number + 1} does not have its "
                            "checksum; delete the file to predict all images again"
                        )
                    break
                self.seal, end = seal, end + len(line)
                yield json.loads(content)
        if end:
            os.truncate(self.path, end)


def _resumed(path: Path, run: Mapping[str, Any], total: int) -> tuple[Log, int]:
    """Begin a log, or go on with one; also return how many images are in it."""
    log = Log(path)
    length = path.stat().st_size if path.is_file() else 0
    batches = log.read() if length else iter(())
    if begun := next(batches, None):
        if begun != run:
            key = next(key for key in run if begun.get(key) != run[key])
            raise InputError(
                f"{path} holds predictions of another run: its {key} is {begun.get(key)!r} and not "
                f"{run[key]!r}; delete it to start again"
            )
        done = sum(map(len, batches))
        if path.stat().st_size < length:
            advise(f"the end of {path} is damaged: {done} of {total} images are kept")
        return log, done
    if length:
        if not path.read_bytes().startswith(b'{"model": '):
            raise InputError(
                f"expected {path} to hold finished predictions, got something else; delete it"
            )
        advise(f"{path} is of atta 0.1.0, without checksums: its images are predicted again")
        path.unlink()
    log.append(run)
    return log, 0


def _finish(log: Log, output: Path, total: int, classifier: Answerer) -> Predicted:
    """Write the table from the finished batches, remove them, and summarise the table."""
    unreadable, seen = dict[str, str](), array("d")

    def rows() -> Iterator[Mapping[str, Any]]:
        count = 0
        for lines in islice(log.read(), 1, None):
            count += len(lines)
            for line in lines:
                if "error" in line:
                    unreadable[line["file"]] = line["error"]
                    continue
                seen.extend(nan if line.get(name) is None else line[name] for name in SUMMED)
                yield {name: value for name, value in line.items() if name not in UNSHOWN}
        if count != total:
            raise InputError(
                f"{log.path} was changed by another program: expected {total} images in it, got "
                f"{count}; run again"
            )

    with whole_file(output) as file:
        write_table(file, rows(), ending=output.suffix)
    log.path.unlink()
    each = torch.from_numpy(np.array(seen)).reshape(-1, len(SUMMED))
    column = dict(zip(SUMMED, each.unbind(dim=1), strict=True))
    mean = dict(zip(SUMMED, each.mean(dim=0).tolist(), strict=True))
    drift, reference = None, classifier.reference
    if reference is not None and not classifier.any_size and len(each) >= shift.LEAST:
        number, largest = column["number"].long(), column["largest"]
        drift = Drift.of(reference, column["score"], number, largest)
    return Predicted(
        path=output,
        images=len(each),
        confidence=mean["confidence"],
        before=mean["confidence_before"],
        passes=None if isnan(mean["passes"]) else mean["passes"],
        unreadable=unreadable,
        drift=drift,
        answered=None if classifier.promise is None else int(column["answered"].sum()),
        promise=classifier.promise,
        changed=int(column["changed"].nansum()),
    )


# ---- the table as a file


def check_format(output: Path) -> None:
    """Refuse a table that cannot be written, before any work is done."""
    if output.suffix not in ENDINGS:
        raise InputError(f"expected a file that ends in {', '.join(ENDINGS)}, got {output.name!r}")
    if output.suffix == ".parquet":
        _arrow()


def write_table(path: Path, lines: Iterable[Mapping[str, Any]], *, ending: str) -> None:
    """Write rows: text (`file`, `set`), name or number (`class`), boolean (`answered`), numbers."""
    made = ({readable(name): _cell(value) for name, value in line.items()} for line in lines)
    first = next(made, None)
    example, rows = first or EMPTY, chain([] if first is None else [first], made)
    if ending == ".parquet":
        arrow, parquet = _arrow()
        schema = arrow.Table.from_pylist([example]).schema
        with parquet.ParquetWriter(path, schema) as writer:
            while group := list(islice(rows, GROUP)):
                writer.write_table(arrow.Table.from_pylist(group, schema))
        return
    with path.open("w", encoding="utf-8", newline="") as file:
        if ending == ".jsonl":
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            return
        # Python 3.11 quotes a carriage return only if lines end in one.
        ended = SimpleNamespace(write=lambda line: file.write(line.removesuffix("\r\n") + "\n"))
        for cells in chain([example], (row.values() for row in rows)):
            csv.writer(ended).writerow(
                FORMULA.sub("'", cell) if isinstance(cell, str) else cell for cell in cells
            )


def _cell(value: Any) -> Any:
    """Return a set of classes as text, and all text so that it can be printed."""
    value = "|".join(map(str, value)) if isinstance(value, list) else value
    return readable(value) if isinstance(value, str) else value


def _arrow() -> tuple[Any, Any]:
    with require("data", "a .parquet file"):
        import pyarrow
        import pyarrow.parquet
    return pyarrow, pyarrow.parquet
