"""Fits in workers have the same bits, report errors, and end when the run is stopped."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import active_children
from pathlib import Path

import pytest
import torch

import atta
from atta import (
    MATTA,
    VATTA,
    Calibrator,
    InputError,
    Method,
    Predictions,
    Record,
    TemperatureScaling,
)
from atta._base.types import Labels
from atta.lab.fits import Fit, Fits, Rows
from atta.lab.workers import THREADS, Call, one_thread, spread


def test_fits_in_other_processes_have_the_same_bits(record: Record, tmp_path: Path) -> None:
    methods = (MATTA(epochs=3), TemperatureScaling())
    wanted = [
        Fit("a", Rows(300, 100, split), method, "flip + 2 crop" if method.needs_views else "")
        for split in range(2)
        for method in methods
    ]
    here, there = Fits({"a": record}), Fits({"a": record}, tmp_path, workers=2)
    told: list[str] = []
    there.make(wanted, told.append)
    assert sorted(told) == sorted(fit.method.name for fit in wanted)
    assert len(list(tmp_path.glob("*/*.safetensors"))) == len(wanted)
    for fit in wanted:
        a, b = here[fit].state_dict(), there[fit].state_dict()
        assert a.keys() == b.keys()
        assert all(torch.equal(a[name], b[name]) for name in a)


def work(method: Method, file: Path) -> Calibrator:
    """A fit, in another process."""
    record = Record.load(file)
    return method.fit(record.predictions, record.require_labels())


def call(record: Record, tmp_path: Path, method: Method) -> Call[None]:
    return work, (method, record.save(tmp_path / "record.safetensors")), None


def test_what_goes_wrong_in_another_process_is_said_in_this_one(
    record: Record, tmp_path: Path
) -> None:
    with pytest.raises(
        InputError, match="expected predictions with the views zoom, got: flip, crop"
    ):
        list(spread([call(record, tmp_path, VATTA(views=["zoom"]))], 1))


def test_threads_are_given_back() -> None:
    before = torch.get_num_threads()
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


@dataclass(frozen=True, kw_only=True)
class Counting(TemperatureScaling):
    """Writes down how many threads each library of its process has."""

    to: str

    def learn(self, predictions: Predictions, labels: Labels) -> Calibrator:
        pools = pytest.importorskip("threadpoolctl").threadpool_info()
        Path(self.to).write_text(
            json.dumps([torch.get_num_threads(), *(pool["num_threads"] for pool in pools)])
        )
        return super().learn(predictions, labels)


def test_a_process_has_one_thread_in_every_library(
    record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in THREADS:
        monkeypatch.setenv(name, "2")
    list(spread([call(record, tmp_path, Counting(to=str(tmp_path / "threads")))], 1))
    threads = json.loads((tmp_path / "threads").read_text())
    assert len(threads) > 1
    assert set(threads) == {1}
    assert {os.environ[name] for name in THREADS} == {"2"}, "as it was before"


@dataclass(frozen=True, kw_only=True)
class Endless(TemperatureScaling):
    """A fit that does not end; the process says that it began, and kills itself if asked to."""

    begun: str
    killed: bool = False

    def learn(self, predictions: Predictions, labels: Labels) -> Calibrator:
        Path(self.begun).touch()
        if self.killed:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(600)
        raise AssertionError("nobody waited")


def endless(record: Record, tmp_path: Path, *, killed: bool = False) -> Call[None]:
    return call(record, tmp_path, Endless(begun=str(tmp_path / "begun"), killed=killed))


def test_a_process_that_is_killed_is_one_sentence(record: Record, tmp_path: Path) -> None:
    with pytest.raises(
        InputError,
        match="a process that worked was killed, perhaps because memory ran out; run the same",
    ):
        list(spread([endless(record, tmp_path, killed=True)], 1))


def test_a_run_that_is_stopped_ends_its_processes(record: Record, tmp_path: Path) -> None:
    def calls() -> Iterator[Call[None]]:
        yield endless(record, tmp_path)
        while not (tmp_path / "begun").exists():
            time.sleep(0.05)
        raise KeyboardInterrupt

    before = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        list(spread(calls(), 1))
    assert time.monotonic() - before < 60
    assert not active_children()


def stay() -> None:
    print("begun", flush=True)
    time.sleep(600)


PARENT = """
from atta.lab.workers import spread
from test_workers import stay

list(spread([(stay, (), None)], 1))
"""


def test_a_process_ends_if_the_one_that_started_it_is_killed() -> None:
    folders = [Path(__file__).parent, Path(atta.__file__).parent.parent]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, folders))}
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == "begun\n"
    parent.kill()
    parent.communicate(timeout=300)  # the pipe ends with the last process that could write to it
