"""Measure everything and write docs/speed.md.

    python -m benchmarks                                        on this machine: its CPU, and its GPU where there is one
    python -m benchmarks --only collect,deploy                  some of it; the rest of the page stays
    python -m benchmarks --device cuda --into FOLDER            where there is a GPU and little else: files for docs/speed
    python -m benchmarks --quick                                small sizes: a trial, which writes no page but its own

What is measured is kept in runs/bench, step by step, until all is: stopped, the same command goes on.
"""

import argparse
import importlib
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from atta._base.errors import InputError, suggest
from atta.lab.workers import machine
from benchmarks import peers
from benchmarks.measured import Asked, Part, Steps, measured

NAMES = (
    "baselines",
    "scores",
    "fit",
    "predict",
    "gpu",
    "dirichlet",
    "shrunk",
    "collect",
    "scale",
    "deploy",
    "growth",
    "quality",
)
ON_GPU = ("collect", "scale", "deploy", "predict", "gpu")
"""Those that need no peers and that a GPU changes."""
ON_CPU = tuple(name for name in NAMES if name != "gpu")


def say(line: str) -> None:
    """Progress, a line each."""
    print(line, file=sys.stderr, flush=True)


def begun(path: Path, fresh: Part) -> Part:
    """What was kept of a run that was stopped, if it was measured on what this one is; else nothing yet."""
    if not path.exists():
        return fresh
    kept = Part.load(path)
    same = (kept.machine, kept.quick, kept.peers) == (fresh.machine, fresh.quick, fresh.peers)
    return kept if same else fresh


def run(name: str, steps: Steps, path: Path, fresh: Part) -> Part:
    """Take the steps that have not been taken, and keep each."""
    part = begun(path, fresh)
    for i, (step, work) in enumerate(steps.items(), 1):
        if step in part.done:
            continue
        say(f"{name} {i}/{len(steps)}: {step}")
        start = time.perf_counter()
        rows = measured(work)
        taken = part.seconds + time.perf_counter() - start
        part = replace(part, rows=(*part.rows, *rows), done=(*part.done, step), seconds=taken)
        part.save(path)
    return part


def chosen(only: str) -> list[str]:
    """The names that were asked for."""
    names = [name.strip() for name in only.split(",") if name.strip()] or list(NAMES)
    for name in names:
        if name not in NAMES:
            raise InputError(
                f"--only: expected some of {', '.join(NAMES)}, got {name!r}.{suggest(name, NAMES)}"
            )
    return names


def measure(
    names: Sequence[str], devices: Sequence[str], quick: bool, kept: Path
) -> Mapping[str, Part]:
    """Everything that was asked for on each device, into the folder of what is kept."""
    here, there = machine(), peers.found()
    found = {}
    for device in devices:
        own = here if device == "cuda" else {**here, "gpu": "none"}
        for name in names:
            if name in (ON_CPU if device == "cpu" else ON_GPU):
                steps = importlib.import_module(f"benchmarks.{name}").steps(Asked(device, quick))
                path = kept / f"{name}-{device}.json"
                found[path.stem] = run(name, steps, path, Part(name, own, quick, there))
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", default="", metavar="NAMES", help=f"of {', '.join(NAMES)}")
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), help="usually the CPU, and the GPU where there is one"
    )
    parser.add_argument("--quick", action="store_true", help="small sizes: a trial")
    parser.add_argument(
        "--fresh", action="store_true", help="forget what a run that was stopped has measured"
    )
    parser.add_argument(
        "--kept",
        type=Path,
        default=Path("runs/bench"),
        metavar="FOLDER",
        help="of what a run has measured so far",
    )
    parser.add_argument(
        "--into",
        type=Path,
        metavar="FOLDER",
        help="where finished parts lie: docs/speed; elsewhere, no page is written",
    )
    given = parser.parse_args(arguments)
    try:
        names = chosen(given.only)
    except InputError as error:
        parser.error(str(error))
    kept = given.kept / "quick" if given.quick else given.kept
    if given.fresh:
        shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True, exist_ok=True)
    devices = (
        [given.device]
        if given.device
        else ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    )
    try:
        found = measure(names, devices, given.quick, kept)
    except KeyboardInterrupt:
        say(f"stopped; what is finished lies in {kept}, and the same command goes on")
        raise SystemExit(130) from None
    finish(found, kept, given.into, given.quick)


def finish(found: Mapping[str, Part], kept: Path, into: Path | None, quick: bool) -> None:
    """Move what was measured to where the page is made from, and make it."""
    own = kept / "page" if quick else None
    folder = into or own or Path("docs/speed")
    folder.mkdir(parents=True, exist_ok=True)
    for name in found:
        shutil.move(kept / f"{name}.json", folder / f"{name}.json")
    if into is None:
        from benchmarks import page  # which draws, and needs what a machine with a GPU may not have

        written = folder / "speed.md" if own else page.PAGE
        page.write(folder, written)
        say(f"written: {written}")
    else:
        say(f"written: {', '.join(sorted(found))} in {folder}")


if __name__ == "__main__":
    main()
