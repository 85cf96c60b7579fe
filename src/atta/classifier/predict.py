"""Files of images in, a table of predictions out: by a saved classifier, or by a graph exported from one.

| column            | what it is                                                                                    |
|-------------------|-----------------------------------------------------------------------------------------------|
| file              | the path, as it was given or found                                                            |
| class             | the name of the predicted class where the classifier knows it, its number otherwise           |
| confidence        | its calibrated probability                                                                    |
| entropy           | -Σ_j p_j ln p_j of the calibrated probabilities, as the metric `shannon_entropy`              |
| confidence_before | the largest probability of the network itself                                                 |
| ood               | the part of the validation images that the network was surer of: near 1, the image is a stranger |
| set               | with `coverage`: the classes of which the true one is one so often, `|` between them           |
| p_NAME            | with `probs`: the calibrated probability of each class                                        |

Work that is interrupted goes on: finished batches lie as lines of JSON in a file beside the output (`beside`), which
becomes the output at the end. Its first line says what it was made of, and a batch always holds the same files, so that a
run in pieces ends with the same bits. A file that cannot be read is reported and has no row; one whose name is no text,
for its bytes are not UTF-8, has one, with a backslash and a number where the name cannot be said.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from math import isnan, nan
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from atta._base.errors import InputError
from atta._base.files import locked, whole_file
from atta._base.progress import counted
from atta.calibrators import shift
from atta.calibrators.conformal import ConformalSets, ConformityScores
from atta.calibrators.shift import Reference
from atta.classifier.adapt import Drift, Files
from atta.classifier.archive import ABOUT
from atta.classifier.classifier import CalibratedClassifier
from atta.classifier.export import SUFFIXES, open_graph
from atta.classifier.tables import check_format, write_table
from atta.data.image_set import mode_of, read_image, resize
from atta.data.layouts import IMAGES
from atta.data.preprocess import Preprocess
from atta.networks.borrowing import device_of
from atta.run.cluster import Engine, check_engine, stream
from atta.run.runner import ROWS, Shown
from atta.run.runner import batch_size as usual_size

COLUMNS = ("file", "class", "confidence", "entropy", "confidence_before")
READERS = 4  # threads that decode the next batch while the network looks at this one
CPU = torch.device("cpu")
TINY = 1e-38  # what a probability that was rounded to nothing counts for


class Answers(NamedTuple):
    """Calibrated and base probabilities (n, k); passes an image and what its views say (n, r, k), where it is told."""

    probs: Tensor
    base: Tensor
    passes: Tensor | None
    views: Mapping[str, Tensor] = MappingProxyType({})


@dataclass(frozen=True)
class Predictor:
    """What answers images of one shape, given as bytes."""

    answer: Callable[[Tensor], Answers]
    shape: tuple[int, int, int]
    classes: int
    names: tuple[str, ...] = ()
    rows: int = ROWS["cpu"]
    preprocess: Preprocess | None = None
    """How a photograph comes to that shape; without one it is squashed."""
    reference: Reference | None = None
    sets: Callable[[float], ConformalSets] | None = None
    gpu: bool = False
    show: Callable[[Tensor], Iterable[Shown]] | None = None
    """The images in each of their views, in the order of `Answers.views`."""

    def read(self, source: Path | bytes) -> tuple[Tensor, bool]:
        """Decode a file, or what was sent, into the shape that is answered; say whether it had to be squashed."""
        return _Decoding(self.shape, self.preprocess).read(source)

    def columns(self, probs: bool, coverage: float | None = None) -> list[str]:
        """What the columns of the table are called."""
        each = self.names if len(set(self.names)) == self.classes else map(str, range(self.classes))
        more = [*(["ood"] if self.reference else []), *(["set"] if coverage else [])]
        return [*COLUMNS, *more, *(f"p_{name}" for name in each if probs)]

    def conformal(self, coverage: float | None) -> ConformalSets | None:
        """What makes the sets of the table, if some are asked for."""
        if coverage is None:
            return None
        if self.sets is None:
            raise InputError(
                "coverage: expected a classifier that knows how strange true classes are: calibrate or export it again"
            )
        return self.sets(coverage)

    def named(self, number: int) -> str | int:
        """The class by its name, where that is known."""
        return self.names[number] if self.names else number

    def listed(self, sets: Tensor, probs: Tensor) -> list[list[str | int]]:
        """The classes of each set, the likeliest first."""
        order = probs.argsort(dim=1, descending=True, stable=True).tolist()
        return [
            [self.named(j) for j in ranked if inside[j]]
            for ranked, inside in zip(order, sets, strict=True)
        ]


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """What came out: where it is, and how it went. `passes` is None for a graph."""

    path: Path
    images: int
    resized: int
    confidence: float
    before: float
    passes: float | None
    unreadable: Mapping[str, str]
    drift: Drift | None = None
    """How far the images are from the validation images, where these are known and the images enough."""

    def __str__(self) -> str:
        if not self.images:
            return f"no image could be read: {self.path}"
        passes = "" if self.passes is None else f" · {self.passes:.3g} passes an image"
        return f"{self.images} images · mean confidence {self.before:.4f} → {self.confidence:.4f}{passes}: {self.path}"


def predict(
    predictor: Predictor,
    files: Sequence[Path],
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
    """Answer the files and write the table; `made_by` identifies the predictor, for a run that goes on.

    `coverage` adds a set of classes to each, which holds the true one so often. An `engine` decodes and answers on a Ray
    cluster, whose `actors` have the predictor each.
    One run at a time writes a table: a second one would take the first one's batches for its own.
    """
    output = Path(output)
    size = predictor.rows if batch_size is None else usual_size(batch_size, CPU)
    check_format(output)
    check_engine(engine, actors)
    mode_of(predictor.shape[0])
    sets = predictor.conformal(coverage)
    names = "\n".join(map(str, files))
    run = {
        "model": made_by,
        "files": f"{len(files)}, {hashlib.blake2b(names.encode(errors='surrogateescape'), digest_size=8).hexdigest()}",
        "probs": probs,
        "coverage": coverage,
        "batch_size": size,
    }
    with locked(output):
        part = beside(output)
        done = _resumed(part, run, size)
        try:
            with (
                part.open("a", encoding="utf-8") as log,
                counted("predicting", len(files), shown=progress, done=done) as tell,
            ):
                answering = _Answering(predictor, probs, sets)
                for lines in answering.lines(files[done:], size, engine, actors):
                    log.writelines(json.dumps(line) + "\n" for line in lines)
                    log.flush()
                    done += len(lines)
                    tell(done)
        except OSError as error:
            raise InputError(
                f"{part} could not be written ({error}); {done} images are kept, run again to go on"
            ) from None
        predicted = _finish(part, output, predictor.columns(probs, coverage), predictor.reference)
        part.unlink()
    return predicted


def beside(output: Path) -> Path:
    """The file that holds what is finished, until all is."""
    return output.with_name(output.name + ".part")


def find_images(paths: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """The files that were named, and those of images in folders, at any depth and in the order of their names."""
    found: dict[Path, None] = {}
    for path in map(Path, paths):
        if not path.exists():
            raise InputError(f"there is no file or folder {path}")
        inside = (
            file
            for file in sorted(path.rglob("*"))
            if file.suffix.lower() in IMAGES and file.is_file()
        )
        files = dict.fromkeys(inside) if path.is_dir() else {path: None}
        if not files:
            raise InputError(f"expected images in {path} ({', '.join(sorted(IMAGES))}), found none")
        found |= files
    return list(found)


# ---- what answers --------------------------------------------------------------------------------------------------


def open_predictor(
    path: str | os.PathLike[str],
    model: object = None,
    *,
    device: str | None = None,
    adapt_to: Sequence[Path] = (),
) -> Predictor:
    """Open what `CalibratedClassifier.save` or `export` wrote; `model` is the network where the file cannot build it.

    A classifier can be adapted to images without labels first; one that is exported has been, or not.
    """
    path = Path(path)
    if path.suffix not in SUFFIXES:
        classifier = CalibratedClassifier.load(path, model, device=device)
        return of_classifier(
            classifier.adapt(Files(adapt_to, classifier)) if adapt_to else classifier
        )
    if adapt_to:
        raise InputError(
            f"{path.name} is a graph, whose numbers are fixed: adapt the classifier, and export that"
        )
    if model is not None or device not in (None, "cpu"):
        raise InputError(
            f"{path.name} is a graph, which has its network inside and runs on the CPU: expected no other"
        )
    graph = open_graph(path)

    def answer(images: Tensor) -> Answers:
        return Answers(
            *graph.run(images if graph.dtype == torch.uint8 else images.to(graph.dtype) / 255), None
        )

    try:
        given, names = (
            graph.about.get("preprocess"),
            tuple(map(str, json.loads(graph.about.get("class_names", "[]")))),
        )
        preprocess = None if given is None else Preprocess.of(json.loads(given))
        known = {
            name: json.loads(graph.about[name])
            for name in ("reference", "strangeness")
            if name in graph.about
        }
        reference = Reference.read(known["reference"]) if "reference" in known else None
        scores = ConformityScores.read(known["strangeness"]) if "strangeness" in known else None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InputError(
            f"{path}: expected class_names, preprocess, ... as `export` writes them: {error}"
        ) from None
    sets = None if scores is None else scores.sets
    return Predictor(
        answer,
        graph.shape,
        graph.classes,
        names,
        preprocess=preprocess,
        reference=reference,
        sets=sets,
    )


def of_classifier(classifier: CalibratedClassifier) -> Predictor:
    """Let a classifier answer."""
    channels, height, width = classifier.image_shape
    rows = usual_size(None, device_of(classifier))
    shape, k = (channels, height, width), len(classifier.classes_)
    sets = None if classifier.conformity_scores is None else classifier.conformal
    known: Any = {
        "preprocess": classifier.preprocess,
        "reference": classifier.reference,
        "sets": sets,
    }
    gpu, by = device_of(classifier).type == "cuda", _ByClassifier(classifier)
    return Predictor(by, shape, k, classifier.class_names, rows, gpu=gpu, show=by.shown, **known)


@dataclass(frozen=True)
class _ByClassifier:
    """Answers by a classifier; unlike a function in a function, it can be sent to another process."""

    classifier: CalibratedClassifier

    def __call__(self, images: Tensor) -> Answers:
        details = self.classifier.details(images.to(device_of(self.classifier)))
        return Answers(details.probs, details.base, details.passes, details.views)

    def shown(self, images: Tensor) -> Iterable[Shown]:
        """The images in each of their views."""
        return self.classifier.shown(images.to(device_of(self.classifier)))


def identity(path: str | os.PathLike[str]) -> str:
    """A hash of the file of a classifier or graph; of a folder, the description that itself holds a hash of the rest."""
    path = Path(path) / ABOUT if Path(path).is_dir() else Path(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


# ---- one batch -----------------------------------------------------------------------------------------------------


class _Image(NamedTuple):
    file: str
    pixels: Tensor | None
    resized: bool = False
    error: str = ""


@dataclass(frozen=True)
class _Decoding:
    """Reads a file of an image to the shape of a predictor; several of them in another process."""

    shape: tuple[int, int, int]
    preprocess: Preprocess | None
    folder: Path | None = None
    """That of the process that named the files, in others."""

    def one(self, path: Path) -> _Image:
        """Decode a file."""
        try:
            return _Image(
                str(path), *self.read(path if self.folder is None else self.folder / path)
            )
        except InputError as error:
            return _Image(str(path), None, error=str(error))

    def read(self, source: Path | bytes) -> tuple[Tensor, bool]:
        """Decode a file or its bytes, and say whether the image had to be squashed."""
        pixels = read_image(source, mode_of(self.shape[0]), self.preprocess)
        own = self.preprocess is not None and self.preprocess.size is not None
        return resize(pixels[None], self.shape[1:])[0], not own and tuple(
            pixels.shape[1:]
        ) != self.shape[1:]

    def __call__(self, files: Sequence[Path]) -> list[_Image]:
        return [self.one(path) for path in files]


@dataclass(frozen=True)
class _Answering:
    """What is said of each image of a batch, here or on a cluster."""

    predictor: Predictor
    probs: bool
    sets: ConformalSets | None

    def lines(
        self, files: Sequence[Path], size: int, engine: str | None, actors: int | None
    ) -> Iterator[list[dict[str, Any]]]:
        """Decode and answer the files batch by batch."""
        read = _Decoding(
            self.predictor.shape, self.predictor.preprocess, None if engine is None else Path.cwd()
        )
        batches = (files[start : start + size] for start in range(0, len(files), size))
        if engine is None:
            return map(self, _decoded(read, batches))
        return stream(
            batches, read, self.there, Engine(actors, self.predictor.gpu, torch.get_num_threads())
        )

    def there(self) -> Callable[[Sequence[_Image]], list[dict[str, Any]]]:
        """What an actor answers by."""
        return self

    def __call__(self, batch: Sequence[_Image]) -> list[dict[str, Any]]:
        return _lines(self.predictor, batch, self.probs, self.sets)


def _decoded(read: _Decoding, batches: Iterator[Sequence[Path]]) -> Iterator[list[_Image]]:
    """Decode the files batch by batch, a batch ahead."""
    with ThreadPoolExecutor(READERS) as pool:
        ahead = [pool.submit(read.one, path) for path in next(batches, ())]
        try:
            while ahead:
                now, ahead = ahead, [pool.submit(read.one, path) for path in next(batches, ())]
                yield [item.result() for item in now]
        finally:
            pool.shutdown(cancel_futures=True)


def _lines(
    predictor: Predictor, batch: Sequence[_Image], probs: bool, sets: ConformalSets | None
) -> list[dict[str, Any]]:
    """What is kept of each image of a batch."""
    lines: list[dict[str, Any]] = [
        {"file": image.file, "error": image.error} if image.pixels is None else {"file": image.file}
        for image in batch
    ]
    pixels = [image.pixels for image in batch if image.pixels is not None]
    if not pixels:
        return lines
    answers = predictor.answer(torch.stack(pixels))
    each = answers.probs.double().tolist() if probs else [[]] * len(pixels)
    found = zip(described(predictor, answers, sets), each, strict=True)
    for line, image in zip(lines, batch, strict=True):
        if image.pixels is not None:
            said, p = next(found)
            count, score = said.pop("passes"), said.pop("score")
            row = [
                "|".join(map(str, value)) if isinstance(value, list) else value
                for value in said.values()
            ]
            line |= {"row": [*row, *p], "resized": image.resized, "passes": count, "score": score}
    return lines


def described(
    predictor: Predictor, answers: Answers, sets: ConformalSets | None
) -> list[dict[str, Any]]:
    """What is said of each image: by the names of the columns, `set` as a list; and its `passes`, and `score` for the drift."""
    p, base, reference = (
        answers.probs.double().cpu(),
        answers.base.double().cpu(),
        predictor.reference,
    )
    confidence, winner = p.max(dim=1)
    columns: dict[str, Sequence[Any]] = {
        "class": list(map(predictor.named, winner.tolist())),
        "confidence": confidence.tolist(),
        "entropy": torch.special.entr(p).sum(dim=1).tolist(),
        "confidence_before": base.amax(dim=1).tolist(),
    }
    scores = None
    if reference is not None:
        scores = shift.scores(base.clamp_min(TINY).log(), reference.temperature)
        columns["ood"] = shift.unlike(reference, scores).tolist()
    if sets:
        columns["set"] = predictor.listed(sets(p), p)
    nothing = [None] * p.shape[0]
    columns["passes"] = nothing if answers.passes is None else answers.passes.tolist()
    columns["score"] = nothing if scores is None else scores.tolist()
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


# ---- going on, and the table ---------------------------------------------------------------------------------------


def _resumed(part: Path, run: dict[str, Any], size: int) -> int:
    """Begin the file of finished work, or cut it back to its last whole batch; give how many images that has."""
    text = part.read_bytes().splitlines(keepends=True) if part.is_file() else []
    if not text:
        try:
            part.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps(run) + "\n", encoding="utf-8")
        except OSError as error:
            raise InputError(f"{part} cannot be written: {error}") from None
        return 0
    try:
        found = json.loads(text[0])
        begun = {key: found[key] for key in run}
    except (ValueError, KeyError, TypeError):
        raise InputError(
            f"expected {part} to hold finished predictions, got something else; delete it"
        ) from None
    for key, value in run.items():
        if begun[key] != value:
            raise InputError(
                f"{part} holds predictions of another run: its {key} is {begun[key]!r} and not {value!r}; "
                "delete it to start again"
            )
    total = int(run["files"].partition(",")[0])
    lines = text[1:] if text[-1].endswith(b"\n") else text[1:-1]  # killed while it wrote
    whole = len(lines) if len(lines) == total else len(lines) // size * size
    with part.open("r+b") as file:
        file.truncate(sum(map(len, text[: 1 + whole])))
    return whole


def _finish(
    part: Path, output: Path, columns: Sequence[str], reference: Reference | None
) -> Predicted:
    """Make the table of the finished lines, and sum up what they say."""
    scores = list[float]()
    unreadable, sums = (
        dict[str, str](),
        dict.fromkeys(("images", "resized", "confidence", "before", "passes"), 0.0),
    )

    def rows() -> Iterator[list[Any]]:
        with part.open(encoding="utf-8") as log:
            for line in map(json.loads, islice(log, 1, None)):
                if "error" in line:
                    unreadable[line["file"]] = line["error"]
                    continue
                _, confidence, _, before, *_ = line["row"]
                passes = nan if line["passes"] is None else line["passes"]
                for name, value in zip(
                    sums, (1, line["resized"], confidence, before, passes), strict=True
                ):
                    sums[name] += value
                if reference is not None:
                    scores.append(line["score"])
                yield [line["file"], *line["row"]]

    with whole_file(output) as file:
        write_table(file, columns, rows(), ending=output.suffix)
    images = int(sums["images"])
    mean = {
        name: sums[name] / images if images else nan for name in ("confidence", "before", "passes")
    }
    drift = None
    if reference is not None and len(scores) >= shift.LEAST:
        drift = Drift.of(
            reference, shift.estimated(reference, torch.tensor(scores).double()), mean["confidence"]
        )
    return Predicted(
        path=output,
        images=images,
        resized=int(sums["resized"]),
        confidence=mean["confidence"],
        before=mean["before"],
        passes=None if isnan(mean["passes"]) else mean["passes"],
        unreadable=unreadable,
        drift=drift,
    )
