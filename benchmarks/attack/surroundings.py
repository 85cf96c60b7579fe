"""Hostile surroundings: a result is saved whatever becomes of what is printed, and what is no plain file stays what it is."""

import io
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.attack import toys
from benchmarks.attack.children import answer, run
from benchmarks.attack.tally import Attack, Effort, Tally
from benchmarks.attack.writers import _here, _remove, leftovers, warm

PRINTING: dict[str, tuple[tuple[str, ...], str]] = {
    "compare": (
        (
            "compare",
            "record.safetensors",
            "--validation",
            "100",
            "--methods",
            "vanilla,v-atta",
            "--json",
            "out.json",
        ),
        "out.json",
    ),
    "fit": (("fit", "record.safetensors", "-o", "out.safetensors"), "out.safetensors"),
    "evaluate": (
        (
            "evaluate",
            "record.safetensors",
            "--calibrator",
            "calibrator.safetensors",
            "--json",
            "out.json",
        ),
        "out.json",
    ),
    "search": (("search", "record.safetensors", "--json", "out.json"), "out.json"),
    "collect": (
        ("collect", "own_network:network", "photos", "--policy", "flip", "-o", "out.safetensors"),
        "out.safetensors",
    ),
    "calibrate": (
        ("calibrate", "own_network:network", "photos", "--policy", "flip", "-o", "made"),
        "made",
    ),
    "predict": (("predict", "classifier", "photos", "-o", "out.csv"), "out.csv"),
    "run": (("run", "experiment.toml", "--records", ".", "-o", "out.json"), "out.json"),
    "report": (("report", "results.json", "-o", "out.html"), "out.html"),
    "figure": (("figure", "reliability", "results.json", "-o", "out.json"), "out.json"),
    "methods": (("methods",), ""),
}
"""Commands, and what each has to leave behind."""


def printers() -> dict[str, Callable[[], None]]:
    """Places to print to that make trouble."""

    def encoded(encoding: str) -> Callable[[], None]:
        def act() -> None:
            sys.stdout = io.TextIOWrapper(
                os.fdopen(os.dup(1), "wb"), encoding=encoding, errors="strict"
            )
            sys.stderr = io.TextIOWrapper(
                os.fdopen(os.dup(2), "wb"), encoding=encoding, errors="backslashreplace"
            )

        return act

    def full() -> None:
        device = os.open("/dev/full", os.O_WRONLY)
        os.dup2(device, 1)
        sys.stdout = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)

    def closed_pipe() -> None:
        reader, writer = os.pipe()
        os.close(reader)
        os.dup2(writer, 1)
        sys.stdout = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)

    return {
        "cp1252": encoded("cp1252"),
        "ascii": encoded("ascii"),
        "a full device": full,
        "a closed pipe": closed_pipe,
    }


def printing(tally: Tally, effort: Effort) -> None:
    """Whatever stdout is, the result is there, and no traceback is printed."""
    warm()
    with tempfile.TemporaryDirectory() as home:
        folder, log = Path(home) / "shop", Path(home) / "log.txt"
        answer(lambda: toys.workshop(folder).name, log=log)
        keep = {path.name for path in folder.iterdir()} | {"__pycache__"}
        for name, (words, output) in PRINTING.items():
            for where, before in printers().items():
                ended = run(_here(folder, words), log=log, before=before)
                there = not output or (folder / output).exists()
                trouble = (
                    ""
                    if ended.code in (0, 1, 141)
                    and "Traceback (most recent" not in ended.text  # 141: a closed pipe, as usual
                    else f"exit code {ended.code}: {ended.text[-200:]}"
                )
                tally.count(there, f"atta {name} into {where}: nothing was saved; {trouble}")
                tally.count(not trouble, f"atta {name} into {where}: {trouble}")
                for left in leftovers(folder, keep):
                    _remove(folder / left)
        for name, environment in (
            ("calibrate", {"PYTHONIOENCODING": "cp1252"}),
            ("compare", {"PYTHONIOENCODING": "ascii", "LC_ALL": "C"}),
        ):
            words, output = PRINTING[name]
            done = subprocess.run(
                [sys.executable, "-m", "atta", *words],
                cwd=folder,
                env={**os.environ, **environment},
                capture_output=True,
                check=False,
            )
            right = (
                not done.returncode
                and (folder / output).exists()
                and b"Traceback" not in done.stderr
            )
            tally.count(
                right,
                f"atta {name} with {environment}: exit code {done.returncode}, {done.stderr[-200:]!r}",
            )


def odd_outputs(tally: Tally, effort: Effort) -> None:
    """Devices stay devices, links stay links, folders that cannot be written to are named in a sentence."""
    warm()
    writing = {
        name: PRINTING[name][0]
        for name in ("compare", "fit", "collect", "calibrate", "predict", "report", "figure")
    }
    with tempfile.TemporaryDirectory() as home:
        folder, log = Path(home) / "shop", Path(home) / "log.txt"
        answer(lambda: toys.workshop(folder).name, log=log)
        for name, words in writing.items():
            _device(tally, name, words, folder, log)
            _link(tally, name, words, folder, log)
            for what, output in (
                ("a folder that is none", "record.safetensors/out"),
                ("/proc", "/proc/atta-attack/out"),
                ("a long name", "y" * 300),
            ):
                ending = Path(words[-1]).suffix
                ended = run(_here(folder, (*words[:-1], output + ending)), log=log)
                tally.count(
                    not ended.trouble and ended.code != 0,
                    f"atta {name} -o {what}: {ended.trouble or 'expected a refusal'}",
                )


def _device(tally: Tally, name: str, words: tuple[str, ...], folder: Path, log: Path) -> None:
    """Write to a device of our own making, a twin of /dev/null; who has no leave to make one does not try."""
    device = folder / f"null{Path(words[-1]).suffix}"
    try:
        os.mknod(device, 0o20666, os.makedev(1, 3))
    except (OSError, AttributeError):
        return
    ended = run(_here(folder, (*words[:-1], device.name)), log=log)
    still = device.is_char_device()
    _remove(device)
    tally.count(
        still and not ended.trouble,
        f"atta {name} -o a device: {'' if still else 'it was replaced; '}{ended.trouble}",
    )


def _link(tally: Tally, name: str, words: tuple[str, ...], folder: Path, log: Path) -> None:
    """Write through a link, to a place that is there and to one that is not yet."""
    for old in (True, False):
        if name == "calibrate" and not old:
            continue  # a link to a folder that is not there is no folder
        aim, link = (
            folder / f"aim{Path(words[-1]).suffix}",
            folder / f"link{Path(words[-1]).suffix}",
        )
        if old and name == "calibrate":
            aim.mkdir()
        elif old:
            aim.write_bytes(b"old")
        link.symlink_to(aim.name, target_is_directory=name == "calibrate")
        ended = run(_here(folder, (*words[:-1], link.name)), log=log)
        new = any(aim.iterdir()) if aim.is_dir() else aim.exists() and aim.read_bytes() != b"old"
        right = link.is_symlink() and new and not ended.trouble
        tally.count(
            right,
            f"atta {name} -o a link: {'' if link.is_symlink() else 'it was replaced; '}{ended.trouble}",
        )
        _remove(link)
        _remove(aim)


def odd_names(tally: Tally, effort: Effort) -> None:
    """Names that are no UTF-8, markup, formulas: all images are predicted, and a table opens safely."""
    import csv

    warm()
    names = [
        b"\xff\xfe.png",
        b"[bold]x.png",
        b"[link=x].png",
        b"=1+1.png",
        b"+1.png",
        b"-1.png",
        b"@x.png",
        "é ñ 🎉.png".encode(),
        b'a,b"c.png',
        b"a\nb.png",
        b"a\rb.png",
        b"a\r\nb.png",
        b"\r=1+1.png",
    ]
    with tempfile.TemporaryDirectory() as home:
        folder, log = Path(home) / "shop", Path(home) / "log.txt"
        answer(lambda: toys.workshop(folder).name, log=log)
        one = (folder / "photos" / "dark" / "000.png").read_bytes()
        odd = folder / "odd"
        odd.mkdir()
        for name in names:
            Path(os.fsdecode(os.fsencode(odd) + b"/" + name)).write_bytes(one)
        for ending in ("csv", "jsonl", "parquet"):
            output = folder / f"out.{ending}"
            ended = run(_here(folder, ("predict", "classifier", "odd", "-o", output.name)), log=log)
            tally.count(
                not ended.trouble and output.exists(),
                f"atta predict, odd names, .{ending}: {ended.trouble or ended.text[-200:]}",
            )
        if (folder / "out.csv").exists():
            with (folder / "out.csv").open(encoding="utf-8", errors="replace", newline="") as file:
                rows = list(csv.reader(file))[1:]
            tally.count(
                len(rows) == len(names), f"odd names: expected {len(names)} rows, got {len(rows)}"
            )
            cells = [
                row[0].replace("'", "") for row in rows if row
            ]  # ' guards lines that look like formulas
            for name in (os.fsdecode(name) for name in names[7:]):
                there = any(cell.endswith(f"/{name}") for cell in cells)
                tally.count(there, f"a file named {name!r}: its row has another name")
        in_place = _in(
            odd,
            (
                "predict",
                str(folder / "classifier"),
                *(os.fsdecode(name) for name in names[3:7]),
                "-o",
                "../own.csv",
            ),
        )
        ended = run(in_place, log=log)
        cells = []
        if (folder / "own.csv").exists():
            with (folder / "own.csv").open(encoding="utf-8", newline="") as file:
                cells = [row[0] for row in csv.reader(file)][1:]
        tally.count(
            bool(cells) and not any(cell[0] in "=+-@" for cell in cells),
            f"cells that begin with = + - @: {cells} {ended.trouble}",
        )
        (odd / "[bold]broken.png").write_bytes(b"x")
        ended = run(
            _here(folder, ("predict", "classifier", "odd/[bold]broken.png", "-o", "[red]out.csv")),
            log=log,
        )
        tally.count(
            "[bold]broken.png" in ended.text.replace("\n", "") and not ended.trouble,
            f"markup in a path: {ended.text[-200:]}",
        )
        for word in ("[/x]", "[bold]nope", "[link=x]"):
            ended = run(_here(folder, ("report", f"{word}.json")), log=log)
            tally.count(
                word in ended.text.replace("\n", "") and not ended.trouble,
                f"markup in a path: {ended.text[-200:]}",
            )


def _in(folder: Path, words: tuple[str, ...]) -> Callable[[], None]:
    """A command in a folder, where words that begin with a dash are names."""
    options = words.index("-o")
    return _here(folder, (words[0], *words[options:], "--", *words[1:options]))


ATTACKS = (
    Attack(
        "printing",
        "cp1252, ascii, /dev/full and a closed pipe as output: the result is saved, no traceback",
        printing,
        300,
    ),
    Attack(
        "odd outputs",
        "devices, links, and places that cannot be written to, as output",
        odd_outputs,
        300,
    ),
    Attack("odd names", "files whose names are no text, markup or formulas", odd_names),
)
