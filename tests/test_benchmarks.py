"""benchmarks/: what is measured is kept as it comes, ratios are ours over theirs, and the page says what the parts say."""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks import __main__ as bench
from benchmarks import baselines, children, growth, page, peers, quality
from benchmarks.measured import Asked, Measured, Part, against_best, ratio, slope

from atta import Peer, Record
from scenarios import made_up

MACHINE = {"processor": "a processor", "cores": "2", "gpu": "none", "torch": "2.0", "commit": "abc"}


def rows(ours: float = 2.0, quick: float = 1.0, slow: float = 4.0) -> tuple[Measured, ...]:
    return (
        Measured("temperature, 10 × 2", "atta", {"fit": ours, "fit_mb": 1.0, "nll": 0.5}),
        Measured(
            "temperature, 10 × 2",
            "slow",
            {"fit": slow, "fit_mb": 400.0, "nll": 0.75, "apart": 0.1},
            "peer",
        ),
        Measured("temperature, 10 × 2", "quick", {"fit": quick, "fit_mb": 2.0, "nll": 0.5}, "peer"),
        Measured(
            "temperature, 10 × 2",
            "absent",
            role="peer",
            note="ModuleNotFoundError: No module named 'absent'",
        ),
        Measured("temperature, 10 × 2", "one softmax", {"fit": 0.5}, "limit"),
    )


def test_a_ratio_is_ours_over_theirs_and_little_memory_counts_as_the_least_that_can_be_told() -> (
    None
):
    ours, slow, quick, absent, _ = rows()
    assert ratio(ours, slow, "fit") == 0.5
    assert ratio(ours, absent, "fit") is None
    assert ratio(ours, quick, "fit_mb") == 1.0
    assert ratio(ours, slow, "fit_mb") == 8 / 400
    assert [(column, best.who, value) for column, best, value in against_best(rows())] == [
        ("fit", "quick", 2.0),
        ("fit_mb", "quick", 1.0),
    ]
    assert [value for _, _, value in against_best(rows(), "limit")] == [4.0]


def test_growth_in_proportion_has_an_exponent_of_one() -> None:
    assert slope([1, 10, 100], [0.3, 3, 30]) == pytest.approx(1)
    assert slope([2, 4], [1, 4]) == pytest.approx(2)


def test_the_page_lists_where_we_are_behind_and_names_the_peer_that_is_missing() -> None:
    part = Part(
        "baselines", MACHINE, peers={"quick": "1.0", "gone": "not installed: no wheel"}, rows=rows()
    )
    written = page.page({"baselines-cpu": part})
    assert "Of 2 costs that a peer has too" in written
    assert "ahead in 0, level in 1 (within 1.05) and behind in 1" in written
    assert "| temperature, 10 × 2 | fit, time | quick | 2.00 | to convergence" in written
    assert "|  | slow | 4 s (0.50) |" in written
    assert "+2.5e-01 | 1.0e-01 |" in written
    assert (
        "- absent, not measured (temperature, 10 × 2): ModuleNotFoundError: No module named 'absent'"
        in written
    )
    assert "| gone | not installed: no wheel |" in written
    assert "One thread, a processor, torch 2.0" in written
    ahead = page.page({"baselines-cpu": replace(part, rows=rows(ours=0.5))})
    assert "behind in 0." in ahead
    assert "Behind:" not in ahead


def test_a_part_of_a_gpu_is_shown_beside_that_of_the_cpu() -> None:
    own = (
        Measured("net", "atta", {"relative": 1.23, "passes": 4}),
        Measured("net", "bare", {"relative": 1.0}, "limit"),
    )
    parts = {
        "deploy-cpu": Part("deploy", MACHINE, rows=own),
        "deploy-cuda": Part("deploy", {**MACHINE, "gpu": "GPU"}, rows=own),
    }
    written = page.page(parts)
    assert "One thread, a processor, torch 2.0:" in written
    assert "One GPU, torch 2.0:" in written
    assert written.count("|  | limit: bare | – | – | 1.23 |") == 2
    assert "A deployed classifier takes 1.23 times the bare network's time (One GPU" in written


def test_the_page_is_made_of_the_parts_that_are_kept() -> None:
    assert page.PAGE.read_text(encoding="utf-8") == page.page(page.read(page.PARTS)), (
        "run `python -m benchmarks.page`"
    )


def test_a_run_that_was_stopped_goes_on_and_a_part_of_another_commit_is_measured_again(
    tmp_path: Path,
) -> None:
    taken: list[str] = []

    def step(name: str) -> Sequence[Measured]:
        if name == "b" and taken == ["a"]:
            raise KeyboardInterrupt
        taken.append(name)
        return [Measured(name, "atta", {"seconds": 1.0})]

    steps = {name: lambda name=name: step(name) for name in "ab"}
    path, fresh = tmp_path / "fit-cpu.json", Part("fit", MACHINE)
    with pytest.raises(KeyboardInterrupt):
        bench.run("fit", steps, path, fresh)
    taken.append("stopped")
    part = bench.run("fit", steps, path, fresh)
    assert taken == ["a", "stopped", "b"]
    assert Part.load(path) == part
    assert [row.what for row in part.rows] == ["a", "b"]
    bench.run("fit", steps, path, replace(fresh, machine={**MACHINE, "commit": "def"}))
    assert taken[3:] == ["a", "b"]


def test_the_command_measures_what_it_is_asked_for_and_writes_a_page_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "benchmarks.dirichlet.measure",
        lambda *size: [Measured(f"{size}", "atta", {"seconds": 3.0, "fits": 76})],
    )
    bench.main(["--only", "dirichlet", "--quick", "--device", "cpu", "--kept", str(tmp_path)])
    assert "| 3 s | 76 |" in (tmp_path / "quick/page/speed.md").read_text(encoding="utf-8")
    assert not list((tmp_path / "quick").glob("*.json"))  # the next run measures again
    with pytest.raises(SystemExit):
        bench.main(["--only", "dirichlets", "--kept", str(tmp_path)])
    assert "'dirichlets'. Did you mean 'dirichlet'?" in capsys.readouterr().err


def test_classes_that_a_peer_changes_are_counted_over_all_draws(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record = made_up(1100)
    turned = Peer(
        called="turned",
        fitting=lambda x, y: None,
        predicting=lambda _, x: np.roll(np.eye(x.shape[1])[x.argmax(1)], 1, 1),
    )
    failing = Peer(called="failing", fitting=lambda x, y: 1 / 0, predicting=lambda fitted, x: x)
    monkeypatch.setattr(quality, "record", lambda name: record)
    monkeypatch.setitem(
        quality.LIBRARIES, "theirs", lambda classes: {"turned": turned, "failing": failing}
    )
    found = {row["who"]: row for row in quality.measure("toy", "theirs", 2, None, 60.0)}
    assert found["theirs: turned"]["numbers"]["class_changes"] == 2 * 100
    assert found["theirs: turned"]["numbers"]["draws"] == 2
    assert "ZeroDivisionError" in found["theirs: failing"]["note"]
    numbers = {
        "passes": 1.0,
        "brier": 0.1,
        "mc_brier": 0.2,
        "nll": 0.3,
        "ece": 0.04,
        "class_changes": 0.0,
    }
    numbers |= {f"{metric} ±": 0.01 for metric in ("brier", "mc_brier", "nll", "ece")}
    shown = [
        Measured("toy", "temperature", numbers),
        Measured("toy", "theirs: a", {**numbers, "nll": 0.6, "class_changes": 7}, "peer"),
    ]
    written = page.quality_tables(Part("quality", MACHINE, rows=tuple(shown)))
    assert "| NLL | theirs: a: 0.6000 | 0.500 (temperature) |" in written
    assert (
        "| theirs: a | 1 | 0.1000 ± 0.0100 | 0.2000 ± 0.0100 | 0.6000 ± 0.0100 | 0.0400 ± 0.0100 | 7 |"
        in written
    )


def test_every_peer_is_installed_by_itself_and_one_that_fails_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def run(order: Sequence[str]) -> Any:
        if order[1] == "-c":
            return SimpleNamespace(stdout=str(tmp_path).encode(), returncode=0)
        asked.append(" ".join(order[order.index("-c") + 2 :]))
        failed = asked[-1].startswith("netcal")
        return subprocess.CompletedProcess(
            order, int(failed), b"", b"noise\nERROR: no matching distribution\n" if failed else b""
        )

    monkeypatch.setattr("venv.create", lambda folder, with_pip: None)
    assert peers.make(tmp_path, run) == {"netcal": "ERROR: no matching distribution"}
    assert asked == list(peers.wanted().values())
    assert f"torch=={torch.__version__}" in (tmp_path / "constraints.txt").read_text(
        encoding="utf-8"
    )
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(
        "importlib.metadata.version",
        lambda name: (_ for _ in ()).throw(peers.metadata.PackageNotFoundError),
    )
    assert peers.found()["netcal"] == "not installed: ERROR: no matching distribution"
    assert peers.found()["ttach"] == "not installed"


def test_a_process_that_fails_or_takes_too_long_says_so_in_a_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(children, "call", lambda *_, limit: {"fit": 1.0, "nll": float("nan")})
    assert children.measured("a", "b", "peer", "c") == Measured(
        "a", "b", {"fit": 1.0}, "peer", "no number came out as nll"
    )
    assert children.reason("a\nValueError: x | `y`\n\n", 1) == "ValueError: x ¦ 'y'"
    assert children.reason("", 3) == "ended with 3"
    with pytest.raises(children.Failed, match="stopped after 0 s"), children.within(0.01):
        time.sleep(5)


def test_answers_of_ours_are_measured_in_memory_and_time(tmp_path: Path) -> None:
    sample = tmp_path / "sample.npy"
    numbers = baselines.measure("histogram, class by class", "atta", 100, 4, str(sample))
    assert {"fit", "predict", "fit_mb", "predict_mb", "nll"} == set(numbers)
    assert np.nansum(np.load(sample)[0]) == pytest.approx(1)
    probs = np.array([[0.5, 0.5], [np.nan, np.nan]])
    assert baselines.apart(probs, np.array([[0.25, 0.75], [1.0, 0.0]])) == 0.25


def test_every_benchmark_says_what_it_will_measure() -> None:
    import importlib

    for name in bench.NAMES:
        for asked in (Asked(), Asked(quick=True)):
            assert importlib.import_module(f"benchmarks.{name}").steps(asked), name
    assert json.dumps(list(growth.steps(Asked("cpu", quick=True))))
    assert isinstance(quality.record("CIFAR-100"), Record)
