"""Every writer, killed at a random time and on a full disk: the old or the new file is there, whole, and nothing else."""

import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.attack import toys
from benchmarks.attack.children import Child, answer, command, little_disk, run
from benchmarks.attack.tally import Attack, Effort, Tally

READY = "ready"


@dataclass(frozen=True)
class Writer:
    """Something that writes: `make(version)` gives what writes the old (0) or the new one (1); `read` says what is there."""

    name: str
    output: str
    make: Callable[[int], Callable[[Path], object]]
    read: Callable[[Path], str]
    kills: int = 12


def _of(build: Callable[[int], Any]) -> Callable[[int], Callable[[Path], object]]:
    """A writer that builds something and then calls its `save`."""

    def make(version: int) -> Callable[[Path], object]:
        made = build(version)
        return lambda path: made.save(path)

    return make


def _report(version: int) -> Callable[[Path], object]:
    from atta.report.page import write_report

    results = _results(version)
    return lambda path: write_report(results, path, title=f"version {version}")


@cache
def _results(version: int) -> Any:
    return toys.results(version)


def _figure(version: int) -> Callable[[Path], object]:
    import atta
    from atta.report.figures.theme import picture

    rows, labels = toys.predictions(seed=version)
    chart = atta.reliability(rows.logits.softmax(-1), labels, title=f"version {version}")
    return lambda path: picture(chart, path)


def _export(version: int) -> Callable[[Path], object]:
    made = toys.classifier(seed=version)
    return lambda path: made.export(path)


def _hash(read: Callable[[Path], Any]) -> Callable[[Path], str]:
    from benchmarks.attack.files import known_by

    return lambda path: known_by(read(path))


def _read_graph(path: Path) -> Any:
    import torch

    from benchmarks.attack.forged import read_graph

    run = torch.export.load(path).module() if path.suffix == ".pt2" else read_graph(path).run
    return [part.double().mul(1e4).round() for part in run(toys.images(4).float() / 255)]


def _read_page(path: Path) -> Any:
    """A page is whole if it ends, and is the one of its version; ids and order in it may differ."""
    text = path.read_text(encoding="utf-8")
    if not text.rstrip().endswith(("</html>", "</svg>", "}")):
        raise ValueError("it ends in the middle")
    return "version 1" in text


def writers() -> tuple[Writer, ...]:
    """All that write something at once; those that go on after a kill are `RESUMED`."""
    from benchmarks.attack import files

    warm()
    return (
        Writer(
            "Record.save",
            "out.safetensors",
            _of(lambda v: toys.record(3000, seed=v)),
            _hash(files.read_record),
            25,
        ),
        Writer(
            "calibrator.save", "out.safetensors", _of(_calibrator), _hash(files.read_calibrator), 25
        ),
        Writer("Results.save", "out.json", _of(toys.results), _hash(files.read_results), 25),
        Writer(
            "classifier.save, a file",
            "classifier.safetensors",
            _of(_classifier),
            _hash(files.read_classifier),
            25,
        ),
        Writer(
            "classifier.save, a folder",
            "folder",
            _of(_classifier),
            _hash(lambda path: files.read_classifier(path / "x")),
            40,
        ),
        Writer("report", "out.html", _report, _hash(_read_page), 4),
        Writer("figure", "out.svg", _figure, _hash(_read_page), 4),
        Writer("export, .pt2", "out.pt2", _export, _hash(_read_graph), 4),
        Writer("export, .onnx", "out.onnx", _export, _hash(_read_graph), 3),
    )


@cache
def warm() -> None:
    """Import now what each child would have to import, and nothing that starts threads."""
    for name in (
        "altair",
        "jinja2",
        "vl_convert",
        "scipy.optimize",
        "onnxscript",
        "onnxruntime",
        "PIL.Image",
        "sklearn.datasets",
    ):
        with contextlib.suppress(ImportError):
            import_module(name)
    for name in (
        "report.page",
        "report.figures.theme",
        "classifier.predict",
        "classifier.calibrate",
        "lab.run",
        "cli.app",
        "lab.paper.reproduce",
    ):
        import_module(f"atta.{name}")
    import_module("torch._dynamo")
    import_module("torch.onnx._internal.exporter._core")


def _calibrator(version: int) -> Any:
    import atta

    return atta.MATTA(optimizer="adam", epochs=2, seed=version).fit(
        *toys.predictions(60, 100, seed=version)
    )


def _classifier(version: int) -> Any:
    return toys.classifier(seed=version)


@contextmanager
def place() -> Iterator[tuple[Path, Path]]:
    """A folder for the output, and a file beside it for what children print."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "out").mkdir()
        yield Path(folder) / "out", Path(folder) / "log.txt"


def leftovers(folder: Path, keep: set[str]) -> list[str]:
    """What lies there and should not."""
    return sorted(path.name for path in folder.iterdir() if path.name not in keep)


def inside(folder: Path) -> list[str]:
    """Temporary files at any depth: hidden ones, and those that end as parts do."""
    return sorted(
        str(p.relative_to(folder))
        for p in folder.rglob("*")
        if p.name.startswith(".") or p.name.endswith((".part", ".tmp", ".lock"))
    )


def _versions(writer: Writer, folder: Path, log: Path) -> tuple[str, str]:
    """The hashes of the old and of the new one; leaves the old one there."""
    path = folder / writer.output
    both = []
    for version in (1, 0):
        both.append(answer(lambda v=version: (writer.make(v)(path), writer.read(path))[1], log=log))
    return both[1], both[0]


def killed_writers(tally: Tally, effort: Effort) -> None:
    """Kill each while it writes over an old file, at times spread over how long it takes."""
    for writer in writers():
        draw = effort.random(writer.name)
        with place() as (folder, log):
            path = folder / writer.output
            try:
                old, new = _versions(writer, folder, log)
            except RuntimeError as error:
                tally.count(False, f"{writer.name} does not work: {error}")
                continue
            run(_forever(writer, path, once=True), log=log)
            length = max(0.005, _written(log))
            for _ in range(effort.times(writer.kills / 3)):
                child = Child(_forever(writer, path), log=log)
                _wait_for(log)
                time.sleep(draw.uniform(0, 1.5 * length))
                child.kill()
                child.wait()
                whole, reason = _whole(writer, path, log, {old, new})
                tally.count(whole, reason)
                if not whole:  # so that the next kill has something to destroy
                    _remove(path)
                    run(lambda w=writer, p=path: w.make(0)(p), log=log)
            trouble = run(lambda w=writer, p=path: w.make(0)(p), log=log).trouble
            left = leftovers(folder, {writer.output}) + inside(folder)
            tally.count(
                not trouble and not left,
                f"{writer.name}: {trouble} after the next run there is {', '.join(left[:3])}",
            )


def _forever(writer: Writer, path: Path, once: bool = False) -> Callable[[], None]:
    def act() -> None:
        makes = [writer.make(1)] if once else [writer.make(1), writer.make(0)]
        print(READY, time.monotonic(), flush=True)
        for i in range(1 if once else 1000):
            makes[i % len(makes)](path)
        print("done", time.monotonic(), flush=True)

    return act


def _written(log: Path) -> float:
    """How long it wrote, by what it said."""
    times = [
        float(line.split()[1])
        for line in log.read_text().splitlines()
        if line.startswith((READY, "done "))
    ]
    return times[1] - times[0] if len(times) == 2 else 0.2


def _wait_for(log: Path) -> None:
    """Wait until it is about to write."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (
        log.exists() and READY in log.read_text(errors="replace")
    ):
        time.sleep(0.002)


def _whole(writer: Writer, path: Path, log: Path, versions: set[str]) -> tuple[bool, str]:
    """Whether one of the versions is there, and what is said if not."""
    try:
        found = answer(lambda: writer.read(path), log=log)
    except RuntimeError as error:
        return False, f"{writer.name}: what is left cannot be read: {error}"
    return found in versions, f"{writer.name}: what is left is neither the old nor the new one"


def writers_on_a_full_disk(tally: Tally, effort: Effort) -> None:
    """Files may not grow over a part of what is needed: one sentence, the old file whole, no part of the new one."""
    from atta._base.errors import InputError

    def said(write: Callable[[Path], object], path: Path) -> Callable[[], None]:
        def act() -> None:
            try:
                write(path)
            except InputError as error:
                print(error)
                raise SystemExit(1) from None

        return act

    for writer in writers():
        with place() as (folder, log):
            path = folder / writer.output
            try:
                old, _ = _versions(writer, folder, log)
            except RuntimeError as error:
                tally.count(False, f"{writer.name} does not work: {error}")
                continue
            size = max(
                p.stat().st_size
                for p in ([path] if path.is_file() else path.rglob("*"))
                if p.is_file()
            )
            for part in (
                (0, 10, size // 3, size - size // 10) if writer.kills > 10 else (0, size // 2)
            ):

                def act(part: int = part, writer: Writer = writer, path: Path = path) -> None:
                    write = writer.make(1)
                    little_disk(part)
                    said(write, path)()

                # What a child prints goes to a file, too, which has no room either: it goes through a pipe.
                ended = _piped(act, log)
                right = ended.code == 1 and not ended.trouble
                tally.count(
                    right,
                    f"{writer.name}, room for {part} of {size} bytes: {ended.trouble or f'exit code {ended.code}, expected a sentence and 1'}",
                )
                whole, reason = _whole(writer, path, log, {old})
                left = leftovers(folder, {writer.output}) + inside(folder)
                tally.count(
                    whole and not left,
                    f"{writer.name}, room for {part} bytes: {'' if whole else reason} left: {', '.join(left[:3])}",
                )


def _piped(action: Callable[[], object], log: Path) -> Any:
    """Run a child whose words go into a pipe; a full disk stops no pipe."""
    import os

    from benchmarks.attack.children import Ended

    reader, writer = os.pipe()

    def before() -> None:
        os.dup2(writer, 1)
        os.dup2(writer, 2)
        import sys

        sys.stdout = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
        sys.stderr = os.fdopen(os.dup(2), "w", encoding="utf-8", buffering=1)

    child = Child(action, log=log, before=before)
    os.close(writer)
    chunks = []
    with os.fdopen(reader, "rb") as pipe:
        chunks.append(pipe.read())
    ended = child.wait()
    return Ended(ended.code, b"".join(chunks).decode(errors="replace"), ended.seconds)


# ---- what goes on after a kill -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Resumed:
    """A command that goes on where it was stopped; `read` says what came out."""

    name: str
    words: tuple[str, ...]
    output: str
    read: Callable[[Path], str]
    kills: int = 6


def _read_text(path: Path) -> str:
    return path.read_text()


def _read_weights(path: Path) -> str:
    from atta._base.tensors import read_tensors
    from benchmarks.attack.files import known_by

    return known_by(read_tensors(path / "model.safetensors")[0])


def resumed() -> tuple[Resumed, ...]:
    """Commands that take long."""
    from benchmarks.attack import files

    own = ("--batch-size", "4")
    slow = ("own_network:slow", "photos")
    return (
        Resumed(
            "collect",
            ("collect", *slow, "--policy", "flip + 2 crop", *own, "-o"),
            "out.safetensors",
            _hash(files.read_record),
            10,
        ),
        Resumed(
            "predict", ("predict", "classifier", "photos", *own, "-o"), "out.csv", _read_text, 8
        ),
        Resumed(
            "predict, .jsonl",
            ("predict", "classifier", "photos", *own, "-o"),
            "out.jsonl",
            _read_text,
            4,
        ),
        Resumed(
            "calibrate",
            ("calibrate", *slow, "--policy", "flip", *own, "-o"),
            "made",
            _calibrated,
            5,
        ),
        Resumed(
            "train",
            ("train", "digits", "--model", "small_cnn", "--steps", "40", "--device", "cpu", "-o"),
            "trained",
            _read_weights,
            5,
        ),
        Resumed(
            "fit",
            ("fit", "record.safetensors", "-o"),
            "out.safetensors",
            _hash(files.read_calibrator),
            3,
        ),
        Resumed(
            "compare",
            (
                "compare",
                "record.safetensors",
                "--validation",
                "100",
                "--methods",
                "vanilla,v-atta",
                "--json",
            ),
            "out.json",
            _scores,
            3,
        ),
        Resumed("run", ("run", "experiment.toml", "--records", ".", "-o"), "out.json", _scores, 3),
    )


def _calibrated(path: Path) -> str:
    import sys

    import atta
    from benchmarks.attack.files import known_by

    sys.path.insert(0, str(path.parent))
    import own_network

    found = atta.CalibratedClassifier.load(path, own_network.slow)
    return known_by([found.model.state_dict(), found.calibrator.state_dict()])


def _scores(path: Path) -> str:
    import atta

    return json.dumps(
        [
            (row.method, row.metric, row.split, row.value)
            for row in atta.Results.load(path)
            if row.metric in ("brier", "nll")
        ]
    )


def killed_commands(tally: Tally, effort: Effort) -> None:
    """Kill each at a random time, once or twice, and run it again: the same bits as without, and nothing else there."""
    with tempfile.TemporaryDirectory() as home:
        folder, log = Path(home) / "shop", Path(home) / "log.txt"
        answer(lambda: bool(toys.workshop(folder)), log=log)
        keep = {path.name for path in folder.iterdir()} | {"__pycache__"}
        for one in resumed():
            draw, path = effort.random(one.name), folder / one.output
            act = _here(folder, (*one.words, one.output))
            first = run(act, log=log)
            if first.code:
                tally.count(
                    False, f"{one.name} does not work: {first.trouble or first.text[-200:]}"
                )
                continue
            expected = answer(lambda o=one, p=path: o.read(p), log=log)
            for _ in range(effort.times(one.kills / 3)):
                _remove(path)
                for _ in range(draw.choice((1, 2))):
                    child = Child(act, log=log)
                    time.sleep(draw.uniform(0.02, first.seconds))
                    child.kill()
                    child.wait()
                ended = run(act, log=log)
                left = leftovers(folder, keep | {one.output}) + inside(folder)
                try:
                    same = answer(lambda o=one, p=path: o.read(p), log=log) == expected
                except RuntimeError as error:
                    same, ended = (
                        False,
                        ended
                        if ended.trouble
                        else type(ended)(ended.code, f"{ended.text} {error}", 0),
                    )
                what = f"{one.name}, killed and run again"
                tally.count(
                    not ended.code and same,
                    f"{what}: {ended.trouble or ('another result than without' if not ended.code else ended.text[-200:])}",
                )
                tally.count(not left, f"{what}: there is {', '.join(left[:3])}")
                for name in leftovers(folder, keep):
                    _remove(folder / name)


def commands_on_a_full_disk(tally: Tally, effort: Effort) -> None:
    """The same commands with no room: exit code 1 or 2 and a sentence, an old output whole; with room again, they go on."""
    with tempfile.TemporaryDirectory() as home:
        folder, log = Path(home) / "shop", Path(home) / "log.txt"
        answer(lambda: bool(toys.workshop(folder)), log=log)
        for one in resumed():
            path, act = folder / one.output, _here(folder, (*one.words, one.output))
            if (first := run(act, log=log)).code:
                tally.count(
                    False, f"{one.name} does not work: {first.trouble or first.text[-200:]}"
                )
                continue
            expected = answer(lambda o=one, p=path: o.read(p), log=log)
            for room in (0, 300, 2000):
                if one.name == "train":
                    _remove(path)  # a finished network is not written again
                ended = _piped(lambda a=act, r=room: (little_disk(r), a()), log)
                what = f"{one.name}, room for {room} bytes"
                tally.count(not ended.trouble, f"{what}: {ended.trouble}")
                if path.exists() and one.name != "train":
                    try:
                        same = answer(lambda o=one, p=path: o.read(p), log=log) == expected
                    except RuntimeError:
                        same = False
                    tally.count(same, f"{what}: the old output is not whole")
                again = run(act, log=log)
                same = (
                    not again.code and answer(lambda o=one, p=path: o.read(p), log=log) == expected
                )
                tally.count(same, f"{what}, and then enough: {again.trouble or 'another result'}")
            _remove(path)


def _here(folder: Path, words: tuple[str, ...]) -> Callable[[], None]:
    """A command, run in a folder, with shards and checkpoints as often as can be."""

    def act() -> None:
        import os
        import sys

        from atta.lab import training
        from atta.record import writer

        os.chdir(folder)
        sys.path.insert(0, str(folder))
        writer.SECONDS = training.CHECKPOINT_SECONDS = 0.0
        command(*words)()

    return act


def _remove(path: Path) -> None:
    import shutil

    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


ATTACKS = (
    Attack(
        "kill: writers",
        "kill -9 while a file is written over an old one: the old or the new one is whole, and nothing stays",
        killed_writers,
        900,
    ),
    Attack(
        "kill: commands",
        "kill -9 at any time, then the same command: the same bits as without, and nothing stays",
        killed_commands,
        900,
    ),
    Attack(
        "full disk: writers",
        "no room for all of a file: a sentence, the old one whole, no part of the new one",
        writers_on_a_full_disk,
        300,
    ),
    Attack(
        "full disk: commands",
        "no room while a command runs: a sentence, the old output whole; with room, it goes on",
        commands_on_a_full_disk,
        300,
    ),
)
