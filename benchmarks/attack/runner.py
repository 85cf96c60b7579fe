"""Attacks are run in processes of their own: one that crashes or hangs takes no other with it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path

from benchmarks.attack import known
from benchmarks.attack.children import time_limit
from benchmarks.attack.tally import Attack, Effort, Tally

ROOT = Path(__file__).parents[2]
SECTIONS = ("rows", "inputs", "files", "forged", "serving", "writers", "twins", "surroundings")
ALONE = {  # one thread each, and nothing from the network
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
    **dict.fromkeys(("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE"), "1"),
    "PYTHONWARNINGS": "ignore",
    "TQDM_DISABLE": "1",
}
GRACE = 30  # seconds that an attack may stay over its limit before its process is ended


@dataclass(frozen=True)
class Outcome:
    """What became of an attack."""

    section: str
    name: str
    what: str
    tried: int
    passed: int
    failures: tuple[str, ...]
    note: str
    seconds: float

    @property
    def unknown(self) -> list[str]:
        """Failures that no reason is known for."""
        return [failure for failure in self.failures if not known.reason(self.name, failure)]


def attacks(section: str, only: str = "") -> list[Attack]:
    """The attacks of a section whose name, or whose section's, holds `only`."""
    found = import_module(f"benchmarks.attack.{section}").ATTACKS
    return [attack for attack in found if only in attack.name or only in section]


def work(section: str, only: str, effort: Effort, skip: int, log: Path) -> None:
    """Run the attacks of a section after the first few, and write down when each begins and how it ends."""
    for attack in attacks(section, only)[skip:]:
        _write(log, {"begun": attack.name, "limit": _limit(attack, effort)})
        began, tally = time.monotonic(), Tally()
        try:
            with time_limit(_limit(attack, effort)):
                attack.run(tally, effort)
        except BaseException as error:
            tally.count(False, f"the attack itself ended early: {type(error).__name__}: {error}")
        _write(log, {**asdict(tally), "seconds": time.monotonic() - began})


def _limit(attack: Attack, effort: Effort) -> float:
    return attack.limit * max(1.0, effort.scale)


def _write(log: Path, line: dict[str, object]) -> None:
    with log.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def run(
    sections: Sequence[str],
    only: str,
    effort: Effort,
    *,
    say: Callable[[str], None],
    at_once: int = 2,
) -> list[Outcome]:
    """Run the sections, some at a time, and give what came out in their order."""
    with ThreadPoolExecutor(at_once) as pool:
        return [
            one
            for found in pool.map(
                lambda section: list(_section(section, only, effort, say)), sections
            )
            for one in found
        ]


def _section(
    section: str, only: str, effort: Effort, say: Callable[[str], None]
) -> Iterator[Outcome]:
    """Run a section to its end, with another process whenever one dies."""
    planned, done = attacks(section, only), 0
    while done < len(planned):
        with tempfile.TemporaryDirectory(prefix="atta-attack-") as folder:
            log = Path(folder) / "log.jsonl"
            died = _process(section, only, effort, done, log, say)
            lines = (
                [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
                if log.exists()
                else []
            )
        ended = [line for line in lines if "tried" in line]
        if died or len(ended) < len(planned) - done:
            ended.append(
                {
                    "tried": 1,
                    "passed": 0,
                    "failures": [died or "the process ended early"],
                    "note": "",
                    "seconds": 0.0,
                }
            )
        for line in ended[: len(planned) - done]:
            attack = planned[done]
            line["failures"] = tuple(line["failures"])
            outcome = Outcome(section=section, name=attack.name, what=attack.what, **line)
            done += 1
            say(
                f"{outcome.name}: {outcome.passed:,} of {outcome.tried:,} in {outcome.seconds:.0f} s"
            )
            yield outcome


def _process(
    section: str, only: str, effort: Effort, skip: int, log: Path, say: Callable[[str], None]
) -> str:
    """Run a section in a process; say how that ended, if it did not end well."""
    beside = str(ROOT / "tests" / "beside")  # where torchvision and torch are of different builds
    paths = [str(ROOT), str(ROOT / "src"), beside, *filter(None, [os.environ.get("PYTHONPATH")])]
    words = [
        "--worker",
        section,
        "--only",
        only,
        "--scale",
        str(effort.scale),
        "--seed",
        str(effort.seed),
    ]
    scratch = log.parent / "scratch"
    scratch.mkdir()
    with (log.parent / "output.txt").open("w+", encoding="utf-8", errors="replace") as output:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "benchmarks.attack",
                *words,
                "--skip",
                str(skip),
                "--log",
                str(log),
            ],
            env={
                **os.environ,
                **ALONE,
                "PYTHONPATH": os.pathsep.join(paths),
                "TMPDIR": str(scratch),
            },
            cwd=scratch,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        late = _watch(process, log, say)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # children that were left behind
        output.seek(0)
        end = " / ".join(output.read().strip().splitlines()[-2:])
    if late:
        return late
    return f"the process died with {process.returncode}: {end}" if process.returncode else ""


def _watch(process: "subprocess.Popen[bytes]", log: Path, say: Callable[[str], None]) -> str:
    """Wait for a process, say what it begins, and end it if the attack that it is at takes far too long."""
    seen = 0
    while process.poll() is None:
        time.sleep(0.2)
        if not log.exists():
            continue
        lines = log.read_text(encoding="utf-8").splitlines()
        for line in map(json.loads, lines[seen:]):
            if "begun" in line:
                say(f"{line['begun']} …")
        seen, last = len(lines), json.loads(lines[-1]) if lines else {}
        if "begun" in last and time.time() - log.stat().st_mtime > last["limit"] + GRACE:
            process.kill()
            process.wait()
            return f"it hung, and was ended after {last['limit'] + GRACE:.0f} s"
    return ""
