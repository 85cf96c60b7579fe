"""Predict files: image files in, a table out, by a saved classifier or an exported graph.

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
reported and has no row. File names that are not UTF-8 keep their row, escaped.
"""

import json
import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from math import isnan, nan
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from atta._base.errors import InputError, advise, first_line
from atta._base.files import content_hash, file_hash, locked, whole_file
from atta._base.progress import counted
from atta.calibrators import ViewBlend, shift
from atta.calibrators.conformal import ConformalSets, ConformityScores
from atta.calibrators.risk import Promise
from atta.calibrators.shift import Reference
from atta.classifier.adapt import Drift
from atta.classifier.archive import ABOUT, optional
from atta.classifier.classifier import CalibratedClassifier
from atta.classifier.export import SUFFIXES, open_graph
from atta.classifier.label_maps import described_map, names_of, write_maps
from atta.classifier.segmenter import CalibratedSegmenter, Maps
from atta.classifier.tables import check_format, write_table
from atta.data.address import Place
from atta.data.folder import files_of_images
from atta.data.image_set import decode, mode_of
from atta.data.loading import Positions
from atta.data.preprocess import Preprocess
from atta.data.source import Batch, as_source, batches_of, check_pixels
from atta.networks.borrowing import device_of
from atta.run.cluster import Engine, check_engine, parts_of, stream
from atta.run.runner import IMAGE, ROWS, Shown
from atta.run.runner import batch_size as usual_size

COLUMNS = ("file", "class", "confidence", "entropy", "confidence_before")
MAP_COLUMNS = ("file", "class", "confidence", "unsure", "confidence_before")
CPU = torch.device("cpu")
SENT = partial(decode, sent=True)  # decodes with the limits for bytes of a stranger
LEFT_OUT = ("passes", "score", "number", "largest", "changed")
"""What `described` says for the summary and not for the table."""
TINY = 1e-38  # stands for a probability that was rounded to zero
Lines: TypeAlias = list[dict[str, Any]]
"""What is kept of the images of a batch: a row of the table each, or an error."""


class Answers(NamedTuple):
    """Calibrated and base probabilities (n, k); passes and probabilities of views if known.

    Without a `confidence` (graphs of 0.1.0) the largest probability takes its place.
    """

    probs: Tensor
    base: Tensor
    passes: Tensor | None
    views: Mapping[str, Tensor] = MappingProxyType({})
    confidence: Tensor | None = None


@dataclass(frozen=True)
class Predictor:
    """Answers images of one shape, given as bytes."""

    answer: Callable[[Tensor], Answers]
    shape: tuple[int, int, int]
    classes: int
    names: tuple[str, ...] = ()
    rows: int = ROWS["cpu"]
    preprocess: Preprocess | None = None
    """How a photograph gets that shape; without one, photographs of another size are refused."""
    reference: Reference | None = None
    sets: Callable[[float], ConformalSets] | None = None
    promise: Promise | None = None
    """The stated risk at which images are answered."""
    gpu: bool = False
    show: Callable[[Tensor], Iterable[Shown]] | None = None
    """Returns the views of images, in the order of `Answers.views`."""
    maps: Callable[[Tensor], Maps] | None = None
    """Answers the pixels of an image of any size: a segmenter."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """The learned weight of each kind of view, if there is one number for it."""
    about: tuple[str, ...] = ()
    """Network, method, and how good it was on the validation images, in a few lines."""

    def read(self, data: bytes, decoder: Callable[..., Tensor] = SENT) -> Tensor:
        """Decode bytes that were sent to the shape that is answered."""
        where = "what was sent"
        pixels = decoder(data, mode_of(self.shape[0]), self.preprocess, where)
        if self.maps is not None:
            return pixels
        return check_pixels(pixels[None], self.shape, self.preprocess, where)[0]

    def columns(self, probs: bool, coverage: float | None = None) -> list[str]:
        """Return the names of the columns."""
        if self.maps is not None:
            return list(MAP_COLUMNS)
        each = self.names if len(set(self.names)) == self.classes else map(str, range(self.classes))
        more = [
            *(["ood"] if self.reference else []),
            *(["answered"] if self.promise else []),
            *(["set"] if coverage else []),
        ]
        return [*COLUMNS, *more, *(f"p_{name}" for name in each if probs)]

    def conformal(self, coverage: float | None) -> ConformalSets | None:
        """Return what makes conformal sets, if a coverage is given."""
        if coverage is None:
            return None
        if self.sets is None:
            raise InputError(
                "coverage: expected a classifier with conformity scores, got one without: "
                "calibrate or export it again"
            )
        return self.sets(coverage)

    def named(self, number: int) -> str | int:
        """Return the name of a class, or its number if it has none."""
        return self.names[number] if self.names else number


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
    predictor: Predictor,
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
        predictor: What answers.
        files: The image files.
        output: The table: .csv, .jsonl or .parquet.
        made_by: Identifies the predictor, for a run that resumes.
        probs: Add a column for each class.
        coverage: Add conformal sets that include the true class so often.
        batch_size: Images per batch.
        progress: Show a progress bar.
        engine: "ray" decodes and answers on a Ray cluster.
        actors: Ray processes that hold the predictor.
    """
    check_format(output := Path(output))
    check_engine(engine, actors)
    mode_of(predictor.shape[0])
    if predictor.maps is not None and (probs or engine is not None):
        raise InputError("probs, engine: expected neither for a segmenter, which writes maps here")
    size = predictor.rows if batch_size is None else usual_size(batch_size, CPU)
    size = 1 if predictor.maps is not None else size
    run = _identified(predictor, files, made_by, probs, coverage, size)
    answer = partial(_answer, predictor, probs, predictor.conformal(coverage))
    part = beside(output)
    with locked(output):
        done, seal = _resumed(part, run, size)
        rest = batches_of(size, done, len(files))
        with counted("predicting", len(files), shown=progress, done=done) as tell:
            if predictor.maps is None:
                answered = _answered(answer, predictor, files, rest, engine, actors)
            else:
                answered = _mapped(predictor, files, output.with_suffix(""), done)
            _keep(part, (_named(lines, files) for lines in answered), done, seal, tell)
        predicted = _finish(part, output, predictor.columns(probs, coverage), len(files), predictor)
        part.unlink()
    return predicted


def _identified(
    predictor: Predictor,
    files: Sequence[Place],
    made_by: str,
    probs: bool,
    coverage: float | None,
    size: int,
) -> dict[str, Any]:
    """Describe a run: only a run that is described alike resumes it."""
    names = content_hash((f"{file}\0" for file in files), "blake2b")
    return {
        "model": made_by,
        "files": f"{len(files)}, {names}",
        "probs": probs,
        "coverage": coverage,
        "risk": str(predictor.promise or ""),
        "batch_size": size,
    }


def _answered(
    answer: Callable[[Batch], Lines],
    predictor: Predictor,
    files: Sequence[Place],
    batches: Iterable[Positions],
    engine: str | None,
    actors: int | None,
) -> Iterable[Lines]:
    """Read and answer batches of files, here or on a cluster."""
    images = files_of_images(files, None if engine is None else Path.cwd())
    source = as_source(images, preprocess=predictor.preprocess, shape=predictor.shape)
    if engine is None:
        return map(answer, source.read(batches, "auto", InputError))
    there = Engine(actors, predictor.gpu, torch.get_num_threads())
    reading, shares = parts_of(source, batches, InputError)
    return stream(shares, reading, lambda: lambda read: answer(read[0]), there)


def _mapped(
    predictor: Predictor, files: Sequence[Place], folder: Path, done: int
) -> Iterator[Lines]:
    """Write the maps of one file after the other, and yield its line."""
    assert predictor.maps is not None
    nothing = dict.fromkeys(LEFT_OUT) | {"changed": False}
    for row, (file, name) in islice(
        enumerate(zip(files, names_of(files), strict=True)), done, None
    ):
        line: dict[str, Any] = {"file": row}
        try:
            pixels = decode(file, mode_of(predictor.shape[0]), None, str(file))
        except InputError as error:
            yield [line | {"error": str(error)}]
            continue
        maps = predictor.maps(pixels)
        write_maps(maps, folder, name, predictor.classes)
        said = described_map(maps, predictor.classes)
        said["class"] = predictor.named(said["class"])
        yield [line | {"row": list(said.values())} | nothing]


def _named(lines: Lines, files: Sequence[Place]) -> Lines:
    """Replace the numbers of files by their names, which readers and actors are not sent."""
    return [{**line, "file": str(files[line["file"]])} for line in lines]


def _keep(
    part: Path, answered: Iterable[Lines], done: int, seal: str, tell: Callable[[int], None]
) -> None:
    """Append the lines of each batch to the log, after `done` lines, the last one with `seal`."""
    try:
        with part.open("a", encoding="ascii", newline="") as log:
            for lines in answered:
                for line in lines:
                    seal, text = _sealed(seal, line)
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
) -> Predictor:
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
        return of_classifier(classifier if risk is None else classifier.at_risk(risk))
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
    return _of_graph(path)


def _of_graph(path: Path) -> Predictor:
    """Return a predictor that answers by a graph, as its metadata says."""
    graph = open_graph(path)
    if graph.dense:
        raise InputError(
            f"{path.name} answers every pixel: expected the segmenter that it was exported from, "
            "or run the graph by ONNX Runtime"
        )

    def answer(images: Tensor) -> Answers:
        pixels = images if graph.dtype == torch.uint8 else images.to(graph.dtype) / 255
        probs, base, *certain = graph.run(pixels)
        return Answers(probs, base, None, confidence=certain[0] if certain else None)

    def said(name: str) -> Any:
        return json.loads(graph.about.get(name, "null"))

    try:
        scores = optional(said("strangeness"), ConformityScores.read)
        names = tuple(map(str, said("class_names") or ()))
        if len(names) not in (0, graph.classes):
            raise InputError(f"{graph.classes} class names, got {len(names)}")
        return Predictor(
            answer,
            graph.shape,
            graph.classes,
            names,
            preprocess=optional(said("preprocess"), Preprocess.of),
            reference=optional(said("reference"), Reference.read),
            sets=None if scores is None else scores.sets,
            promise=optional(said("promise"), Promise.read),
        )
    except Exception as error:  # forged values can raise anything
        raise InputError(
            f"{path}: expected class_names, preprocess, ... as `export` writes them: "
            f"{first_line(error)}"
        ) from None


def of_classifier(classifier: CalibratedClassifier) -> Predictor:
    """Return a predictor that answers by a classifier."""
    channels, height, width = classifier.image_shape
    device, answer = device_of(classifier), _ByClassifier(classifier)
    maps = classifier.answered_map if isinstance(classifier, CalibratedSegmenter) else None
    calibrator, weights = classifier.calibrator, dict[str, float]()
    if isinstance(calibrator, ViewBlend) and calibrator.weights.shape[-1] == 1:
        kinds = [*([IMAGE] if calibrator.itself else []), *calibrator.kinds]
        weights = dict(zip(kinds, calibrator.weights[:, 0].tolist(), strict=True))
    return Predictor(
        answer,
        (channels, height, width),
        classifier.calibrator.classes,
        classifier.class_names,
        maps=maps,
        rows=usual_size(None, device),
        preprocess=None if maps else classifier.preprocess,
        reference=None if maps else classifier.reference,
        sets=classifier.conformal,
        promise=classifier.promise,
        gpu=device.type == "cuda",
        show=answer.shown,
        weights=weights,
        about=_about(classifier),
    )


def _about(classifier: CalibratedClassifier) -> tuple[str, ...]:
    """Network, method and quality of a classifier."""
    inner: torch.nn.Module = classifier.model
    while isinstance(inside := getattr(inner, "model", None), torch.nn.Module):
        inner = inside  # of the normalisation
    network = getattr(inner, "built", {}).get("name") or type(inner).__name__
    facts = () if classifier.summary is None else classifier.summary.facts
    return (f"network: {network}", *facts)


@dataclass(frozen=True)
class _ByClassifier:
    """Answers by a classifier; it can be pickled, unlike a nested function."""

    classifier: CalibratedClassifier

    def __call__(self, images: Tensor) -> Answers:
        details = self.classifier.details(images.to(device_of(self.classifier)))
        return Answers(
            details.probs, details.base, details.passes, details.views, details.confidence
        )

    def shown(self, images: Tensor) -> Iterable[Shown]:
        """Return the views of images."""
        return self.classifier.shown(images.to(device_of(self.classifier)))


def identity(path: str | os.PathLike[str]) -> str:
    """Hash the file of a classifier or graph; of a folder, its description, which has a hash."""
    return file_hash(Path(path) / ABOUT if Path(path).is_dir() else path)


# ---- one batch -----------------------------------------------------------------------------------


def _answer(
    predictor: Predictor,
    probs: bool,
    sets: ConformalSets | None,
    batch: Batch,
) -> Lines:
    """Return what is kept of each image, by its number: a row, or why it could not be read."""
    lines: dict[int, dict[str, Any]] = {row: {"error": why} for row, why in batch.faults.items()}
    if len(batch.positions):
        answers = predictor.answer(batch.pixels)
        each = answers.probs.double().tolist() if probs else [[]] * len(batch.positions)
        said = described(predictor, answers, sets)
        for row, found, p in zip(batch.positions, said, each, strict=True):
            kept = {name: found.pop(name) for name in LEFT_OUT}
            if sets:
                found["set"] = "|".join(map(str, found["set"]))
            lines[row] = {"row": [*found.values(), *p], **kept}
    return [{"file": row, **lines[row]} for row in sorted(lines)]


def described(predictor: Predictor, answers: Answers, sets: ConformalSets | None) -> Lines:
    """Return the columns of each image, `set` as a list, and what the table leaves out."""
    p, base = answers.probs.double().cpu(), answers.base.double().cpu()
    reference, nothing = predictor.reference, [None] * len(p)
    largest, winner = p.max(dim=1)
    confidence = largest if answers.confidence is None else answers.confidence.double().cpu()
    answered = None if predictor.promise is None else predictor.promise.answered(confidence, winner)
    columns: dict[str, Sequence[Any]] = {
        "class": list(map(predictor.named, winner.tolist())),
        "confidence": confidence.tolist(),
        "entropy": torch.special.entr(p).sum(dim=1).tolist(),
        "confidence_before": base.amax(dim=1).tolist(),
    }
    score: Sequence[Any] = nothing
    if reference is not None:
        scores = shift.scores(base.clamp_min(TINY).log(), reference.temperature)
        columns["ood"], score = shift.unlike(reference, scores).tolist(), scores.tolist()
    if answered is not None:
        columns["answered"] = answered.tolist()
    if sets:
        ranked = p.argsort(dim=1, descending=True, stable=True).tolist()  # the likeliest first
        columns["set"] = [
            [predictor.named(j) for j in order if inside[j]]
            for order, inside in zip(ranked, sets(p, answered), strict=True)
        ]
    columns["passes"] = nothing if answers.passes is None else answers.passes.tolist()
    number = base.argmax(dim=1)
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
    part: Path, output: Path, columns: Sequence[str], files: int, predictor: Predictor
) -> Predicted:
    """Write the table from the finished lines, and summarise it."""
    unreadable, seen, answered = dict[str, str](), array("d"), 0
    reference = predictor.reference
    place = columns.index("answered") - 1 if predictor.promise else None

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
        if count != files:
            raise InputError(
                f"{part} was changed by another program: expected {files} images in it, got "
                f"{count}; run again"
            )

    with whole_file(output) as file:
        write_table(file, columns, rows(), ending=output.suffix)
    each = torch.from_numpy(np.array(seen)).reshape(-1, 7)
    confidence, before, passes, *_, largest, _ = each.mean(dim=0).tolist()
    drift = None
    if reference is not None and len(each) >= shift.LEAST:
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
        promise=predictor.promise,
        changed=int(each[:, 6].sum()),
    )
