"""In two processes that torchrun started: the files of one process, also where one of the two is killed; refusals, once."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import atta
import ranked
from atta._base.errors import InputError
from atta.record import shards
from atta.run import ranks
from ranked import SETTINGS, Network, collect
from scenarios import command

TESTS = Path(__file__).parent.parent


@pytest.fixture
def brief(monkeypatch):
    """Shards of two batches."""
    monkeypatch.setattr(shards, "PASSES", ranked.BRIEF)


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("[!.]*")
        if path.is_file()
    }


@pytest.fixture
def ended(folder, tmp_path) -> subprocess.CompletedProcess[str]:
    """The program, when all of it has ended."""
    found = os.pathsep.join([str(TESTS), str(Path(atta.__file__).parent.parent)])
    environment = os.environ | {
        "PYTHONPATH": found,
        "OMP_NUM_THREADS": str(torch.get_num_threads()),
    }
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]
    program = [*torchrun, TESTS / "ranked.py", tmp_path]
    return subprocess.run(
        program, env=environment, check=False, capture_output=True, text=True, timeout=120
    )


def test_two_processes_write_the_files_of_one_and_go_on_after_one_is_killed(
    brief, ended, folder, tmp_path
):
    said = {path.name: path.read_text() for path in tmp_path.glob("*.[01]")}
    one = collect(tmp_path / "one", Network(), rehearse=True)
    assert files_of(tmp_path / "whole") == files_of(tmp_path / "one")
    assert said["whole.0"] == said["whole.1"] == str(one.predictions.logits.sum().item()), (
        "each has the record"
    )

    assert "expected finite logits, got" in said["infinite.0"]
    assert "0000000000-0000000016.safetensors" in files_of(tmp_path / "infinite"), (
        "what was finished is kept"
    )
    assert "seed is 0 in rank 0 and 1 in rank 1" in said["unlike.0"]
    assert "another run is writing" in said["taken.0"]
    assert all(said[f"{name}.0"] == said[f"{name}.1"] for name in ("infinite", "unlike", "taken"))

    command(
        "collect",
        "ranked:Network",
        str(folder),
        "-o",
        str(tmp_path / "typed once"),
        "--batch-size",
        "8",
    )
    assert files_of(tmp_path / "typed") == files_of(tmp_path / "typed once")
    assert ended.stdout.count("20 images") == 1, ended.stdout
    assert ended.stderr.count("few to fit on") == 1, ended.stderr
    assert ended.stderr.count("run methods without torchrun") == 1, ended.stderr
    assert (said["methods.0"], said["methods.1"]) == ("2", "0"), (
        "the first speaks, and says how it ended"
    )

    assert ended.returncode, "rank 1 was killed"
    assert "0000000000-0000000016.safetensors" in files_of(tmp_path / "killed")
    assert "record.json" not in files_of(tmp_path / "killed")
    for name in ("killed", "undisturbed"):
        collect(tmp_path / name, Network("killed"))
    assert files_of(tmp_path / "killed") == files_of(tmp_path / "undisturbed")


def test_what_cannot_be_shared_is_refused_before_anybody_waits(monkeypatch, tmp_path):
    for name, value in zip(ranks.TORCHRUN, ("0", "0", "2", "127.0.0.1", "1"), strict=True):
        monkeypatch.setenv(name, value)
    refused = command(
        "collect", "small", "digits", "-o", str(tmp_path / "record.safetensors"), ok=False
    )
    assert "expected the name of a folder under torchrun" in str(refused.exception)

    def nobody() -> None:
        raise RuntimeError("nobody came")

    monkeypatch.setattr(ranks, "_store", nobody)
    with pytest.raises(InputError, match="call it in each of them, or without torchrun"):
        collect(tmp_path / "record", Network())
    assert len(atta.collect(Network(), ranked.IMAGES, **SETTINGS)) == 60, (
        "what is kept in memory is each one's own"
    )
