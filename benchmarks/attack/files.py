"""Files that were cut short, have a bit flipped, or were forged: refused in a sentence, or read as what was written."""

import hashlib
import io
import pickle
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

import atta
from benchmarks.attack import toys
from benchmarks.attack.children import Child, command, time_limit
from benchmarks.attack.inputs import typed
from benchmarks.attack.tally import Attack, Effort, Tally, refusal

SECONDS = 60.0


def known_by(found: Any) -> str:
    """A hash of all that was read."""
    digest = hashlib.sha256()

    def add(value: Any) -> None:
        match value:
            case torch.Tensor():
                digest.update(f"{value.dtype}{tuple(value.shape)}".encode())
                digest.update(
                    value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
                )
            case dict():
                for key in sorted(value, key=str):
                    digest.update(f"{key}=".encode(errors="replace"))
                    add(value[key])
            case tuple() | list():
                for one in value:
                    add(one)
            case _:
                digest.update(repr(value).encode(errors="replace"))

    add(found)
    return digest.hexdigest()


def read_record(path: Path) -> Any:
    """All that a record holds."""
    found = atta.Record.load(path)
    return [
        found.predictions.logits,
        dict(found.predictions.views),
        found.predictions.kinds,
        found.labels,
        dict(found.origin),
    ]


def read_calibrator(path: Path) -> Any:
    """All that a calibrator is."""
    found = atta.load(path)
    return [
        type(found).__name__,
        found.state_dict(),
        found.options,
        repr(found.method),
        found.classes,
        found.kinds,
    ]


def read_classifier(path: Path) -> Any:
    """All that a classifier is; the file lies in its folder, or is it."""
    found = atta.CalibratedClassifier.load(
        path if path.name == "classifier.safetensors" else path.parent
    )
    return [found.model.state_dict(), found.calibrator.state_dict(), found.about()]


def read_results(path: Path) -> Any:
    """All that results hold."""
    return atta.Results.load(path).to_json()


def read_experiment(path: Path) -> Any:
    """What an experiment is."""
    from atta.lab.experiment import Experiment

    return repr(Experiment.read(path))


SEALED: dict[str, Callable[[Path], Any]] = {
    "record.safetensors": read_record,
    "calibrator.safetensors": read_calibrator,
    "classifier.safetensors": read_classifier,
    "results.json": read_results,
}
"""Single files that carry a checksum, and how they are read."""


def damaged(
    whole: bytes, effort: Effort, name: str, cuts: int, flips: int, begin: int = 600
) -> Iterator[tuple[str, bytes]]:
    """The file cut short at some places, and with one bit flipped; a third of the flips in its beginning."""
    draw = effort.random(name)
    places = {
        0,
        1,
        7,
        8,
        9,
        len(whole) // 2,
        len(whole) - 1,
        *(draw.randrange(len(whole)) for _ in range(effort.times(cuts))),
    }
    for place in sorted(place for place in places if place < len(whole)):
        yield f"cut to {place} of {len(whole)} bytes", whole[:place]
    for i in range(effort.times(flips)):
        place = draw.randrange(min(begin, len(whole)) if i % 3 == 0 else len(whole))
        changed = bytearray(whole)
        changed[place] ^= 1 << (bit := draw.randrange(8))
        yield f"bit {bit} of byte {place} flipped", bytes(changed)
    yield "nothing after it but zeros", whole + bytes(64)
    yield "twice", whole + whole


def try_to_read(
    tally: Tally, what: str, path: Path, read: Callable[[Path], Any], expected: str | None
) -> str:
    """Read a damaged file; `expected` is the hash of what was in it, or None if it carries no checksum. Give the hash."""
    try:
        with time_limit(SECONDS), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = known_by(read(path))
    except Exception as error:
        tally.count(not refusal(error), f"{what}: {refusal(error)}")
        return ""
    tally.count(expected in (None, found), f"{what}: went unnoticed")
    return found


@contextmanager
def shop(*, graphs: bool = False) -> Iterator[Path]:
    """A folder of files to damage."""
    with tempfile.TemporaryDirectory() as folder:
        yield toys.workshop(Path(folder) / "shop", graphs=graphs)


def files_with_a_checksum(tally: Tally, effort: Effort) -> None:
    """Records, calibrators, results, classifiers as a folder and as a file: no damage goes unnoticed."""
    with shop() as folder:
        inside = {
            f"classifier/{path.name}": read_classifier
            for path in sorted((folder / "classifier").iterdir())
        }
        for name, read in {**SEALED, **inside}.items():
            path = folder / name
            whole, expected = path.read_bytes(), known_by(read(path))
            for what, content in damaged(whole, effort, name, 8, 40):
                path.write_bytes(content)
                try_to_read(tally, f"{name}: {what}", path, read, expected)
            path.write_bytes(whole)


def the_check_command(tally: Tally, effort: Effort) -> None:
    """`atta check FILE` says of a whole file that it is whole, and of a damaged one that it is not."""
    with shop() as folder:
        for name in (*SEALED, "classifier"):
            trouble, code = _checked(folder / name)
            tally.count(
                not trouble and code == 0, f"atta check {name}: {trouble or f'exit code {code}'}"
            )
        for name in SEALED:
            path = folder / name
            whole = path.read_bytes()
            for what, content in damaged(whole, effort, "check " + name, 2, 12):
                path.write_bytes(content)
                trouble, code = _checked(path)
                alike = code == 0 and try_to_read(Tally(), "", path, SEALED[name], None)
                path.write_bytes(whole)
                alike = bool(alike) and alike == known_by(SEALED[name](path))
                tally.count(
                    not trouble and (code != 0 or alike),
                    f"atta check {name}, {what}: {trouble or 'said to be whole'}",
                )


def _checked(path: Path) -> tuple[str, int]:
    """What is wrong with the way `atta check` ended, and its exit code."""
    import sys

    from atta.cli import app

    codes: list[Any] = []
    original = app.app

    def kept() -> None:
        try:
            original()
        except SystemExit as end:
            codes.append(end.code or 0)
            raise

    app.app = kept
    try:
        trouble = typed(["check", str(path)])
    finally:
        app.app = original
        sys.stdout.flush()
    return trouble, int(codes[-1]) if codes else 0


def files_without_one(tally: Tally, effort: Effort) -> None:
    """Experiments and images: they are read as something, or refused."""
    from PIL import Image

    unnoticed = 0
    with shop() as folder:
        path = folder / "experiment.toml"
        whole, before = path.read_bytes(), known_by(read_experiment(path))
        for what, content in damaged(whole, effort, path.name, 20, 150):
            path.write_bytes(content)
            unnoticed += try_to_read(
                tally, f"experiment.toml: {what}", path, read_experiment, None
            ) not in ("", before)
        picture = folder / "one"
        picture.mkdir()
        for ending in ("png", "jpg", "bmp", "gif", "tif", "webp"):
            path = picture / f"image.{ending}"
            Image.open(folder / "photos" / "dark" / "000.png").save(path)
            for what, content in damaged(path.read_bytes(), effort, ending, 4, 12):
                path.write_bytes(content)
                output = folder / "out.csv"
                trouble = typed(
                    ["predict", str(folder / "classifier"), str(picture), "-o", str(output)]
                )
                tally.count(not trouble, f"atta predict, image.{ending} {what}: {trouble}")
                output.unlink(missing_ok=True)
            path.unlink()
    tally.note = f"{unnoticed} changed experiments are still experiments: text has no checksum"


def graphs(tally: Tally, effort: Effort) -> None:
    """Exported graphs through `atta predict`: an answer or a sentence; the process stays alive."""
    answered = 0
    with shop(graphs=True) as folder:
        path, output = folder / "graph.onnx", folder / "out.csv"
        photo = folder / "photos" / "dark" / "000.png"
        for what, content in damaged(path.read_bytes(), effort, path.name, 8, 60):
            path.write_bytes(content)
            trouble = typed(["predict", str(path), str(photo), "-o", str(output)])
            tally.count(not trouble, f"atta predict {path.name}, {what}: {trouble}")
            answered += output.exists()
            output.unlink(missing_ok=True)
            output.with_name("out.csv.part").unlink(missing_ok=True)
    tally.note = f"{answered} changed graphs still answer: they carry no checksum"


# ---- what a stopped run left -----------------------------------------------------------------------------------------


class Stopped(Exception):
    """Raised where a run is stopped."""


def trained(folder: Path, stop_after: int | None = None) -> Any:
    """Train a small network, or go on; give its weights and losses."""
    from atta.data.image_set import ImageSet
    from atta.lab import training
    from atta.lab.recipe import Recipe

    def stop(epoch: Any) -> None:
        if epoch.epoch == stop_after:
            raise Stopped

    training.CHECKPOINT_SECONDS = 0.0
    images = ImageSet("toy", toys.images(64), torch.arange(64) % 2, ["a", "b"])
    found = training.train(
        "small_cnn",
        images,
        recipe=Recipe(steps=6, batch_size=32),
        output=folder,
        device="cpu",
        progress=False,
        on_epoch=stop,
    )
    return [found.model.state_dict(), [epoch["loss"] for epoch in found.metadata["history"]]]


def checkpoints(tally: Tally, effort: Effort) -> None:
    """The checkpoint of a stopped training: it is refused, or training ends with the same bits as without."""
    with tempfile.TemporaryDirectory() as home:
        folder, expected = Path(home), known_by(trained(Path(home) / "whole"))
        with suppress(Stopped):
            trained(folder / "stopped", stop_after=2)
        (left,) = (path for path in (folder / "stopped").iterdir() if "checkpoint" in path.name)
        whole = left.read_bytes()
        cases = [("as it was", whole), *damaged(whole, effort, left.name, 10, 60)]
        cases += [(kind, bomb) for kind, bomb in bombs(folder / "it-ran").items()]
        for what, content in cases:
            path = toys.fresh(folder / "again") / left.name
            path.write_bytes(content)
            try_to_read(tally, f"{left.name}: {what}", path.parent, trained, expected)
            ran = (folder / "it-ran").exists()
            tally.count(not ran, f"{left.name}: {what}: CODE IN THE FILE WAS RUN")
            (folder / "it-ran").unlink(missing_ok=True)


def logs(tally: Tally, effort: Effort) -> None:
    """The log of a stopped `atta predict`: it is refused, or the table is the same as without."""
    with shop() as folder:
        output, part = folder / "out.csv", folder / "out.csv.part"
        line = ["predict", str(folder / "classifier"), str(folder / "photos"), "-o", str(output)]
        line += ["--batch-size", "2"]
        typed(line)
        expected = output.read_bytes()
        output.unlink()
        whole = _stopped(line, part, folder / "log.txt")
        first, *rest = whole.splitlines(keepends=True)
        other = rest[0].replace(b"000.png", b"001.png")
        cases = [
            ("as it was", whole),
            *damaged(whole, effort, part.name, 10, 80, begin=len(first)),
            ("two lines swapped", b"".join([first, rest[1], rest[0], *rest[2:]])),
            ("a line twice", b"".join([first, rest[0], *rest])),
            ("a line missing", b"".join([first, *rest[1:]])),
            ("a line of another image", b"".join([first, other, *rest[1:]])),
            ("a line without numbers", b"".join([first, b"{}\n", *rest[1:]])),
            ("a line that is no line", b"".join([first, b"[]\n", *rest[1:]])),
            ("the first line alone", first),
            ("no first line", b"".join(rest)),
            ("an empty line", b"".join([first, b"\n", *rest])),
        ]
        for what, content in cases:
            part.write_bytes(content)
            trouble = typed(line)
            found = output.read_bytes() if output.exists() else b""
            tally.count(not trouble, f"{part.name}, {what}: {trouble}")
            tally.count(found in (b"", expected), f"{part.name}, {what}: the table is another one")
            output.unlink(missing_ok=True)
            part.unlink(missing_ok=True)


def _stopped(line: list[str], part: Path, log: Path) -> bytes:
    """Kill the command while it works, and give what it leaves: at least four lines."""
    while True:
        child = Child(command(*line), log=log)
        while child.running() and not (part.exists() and part.read_bytes().count(b"\n") > 8):
            pass
        child.kill()
        child.wait()
        if part.exists() and part.read_bytes().count(b"\n") > 4:
            return part.read_bytes()


class Bomb:
    """What a forger puts into a pickle."""

    def __init__(self, sentinel: Path) -> None:
        self.sentinel = sentinel

    def __reduce__(self) -> Any:
        return open, (str(self.sentinel), "w")


def bombs(sentinel: Path) -> dict[str, bytes]:
    """The same, as a bare pickle, and as torch.save writes one, in both of its formats."""
    new, old = io.BytesIO(), io.BytesIO()
    torch.save(Bomb(sentinel), new)
    torch.save(Bomb(sentinel), old, _use_new_zipfile_serialization=False)
    return {
        "a pickle": pickle.dumps(Bomb(sentinel)),
        "a torch.save": new.getvalue(),
        "an old torch.save": old.getvalue(),
    }


ATTACKS = (
    Attack(
        "files: checksums",
        "records, calibrators, results, classifiers: cut short, one bit flipped, something added",
        files_with_a_checksum,
        300,
    ),
    Attack("files: check", "`atta check` on the same", the_check_command),
    Attack("files: other", "experiments and images: cut short, one bit flipped", files_without_one),
    Attack(
        "files: graphs",
        "ONNX graphs through `atta predict`: cut short, one bit flipped",
        graphs,
        400,
    ),
    Attack(
        "files: checkpoints",
        "the checkpoint of a stopped training: cut short, one bit flipped, pickles",
        checkpoints,
    ),
    Attack(
        "files: logs",
        "the log of a stopped `atta predict`: cut short, one bit flipped, lines changed",
        logs,
        300,
    ),
)
