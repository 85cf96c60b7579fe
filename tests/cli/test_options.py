"""Options: groups of them, and how what was typed is read."""

import re
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from atta._base.errors import InputError
from atta.cli.options import Source, grouped, read_device, read_rows, read_settings
from atta.cli.records import read_parts
from atta.lab.recipe import find_model


def test_groups_of_options_are_options(tmp_path: Path) -> None:
    """What typer shows of a group is in docs/cli.md; here, that each value arrives."""
    found: list[Source] = []

    @grouped
    def look(name: str, *, source: Source, more: bool = False) -> None:
        found.append(source)
        assert (name, more) == ("digits", True)

    one = typer.Typer()
    one.command()(look)
    options = [
        "--split",
        "train",
        "--data",
        str(tmp_path),
        "--image-size",
        "8",
        "--columns",
        "a,b",
        "--shuffle",
        "3",
    ]
    for given, expected in ((options, Source("train", tmp_path, 8, "a,b", "3")), ([], Source())):
        result = CliRunner().invoke(one, ["digits", *given, "--more"])
        assert result.exit_code == 0, result.output
        assert found.pop() == expected


def test_rows_to_test_on_are_none_that_were_searched() -> None:
    assert read_parts(10, "0:4", "4:") == (slice(0, 4), slice(4, 10))
    assert read_parts(10, None, None) == (slice(0, 10), None)
    for rows, test, sentence in (
        ("0:4", "3:", "--test: expected other rows than --rows 0:4, got 1 of them in 3:"),
        (None, "8:", "expected other rows than --rows :, got 2 of them in 8:"),
        ("0:4", "10:", "--test 10: leaves none of the 10 images"),
        ("0:4", "4-6", "--test: expected FROM:TO, such as 0:1000 or 1000:, got '4-6'"),
    ):
        with pytest.raises(InputError, match=re.escape(sentence)):
            read_parts(10, rows, test)


def test_settings_are_read_as_json_lists_or_text() -> None:
    assert read_settings(
        ["step=0.01", "views=flip", "optimizer=adam", "pooled=false", "views=a,b", "step=null"]
    ) == {
        "step": None,
        "views": ["a", "b"],
        "optimizer": "adam",
        "pooled": False,
    }
    with pytest.raises(InputError, match="--set: expected NAME=VALUE, got 'step'"):
        read_settings(["step"])


NETWORKS = """
import sys
from torch import nn

network = nn.Linear(2, 2)
number = 5


def angry():
    raise KeyError("no weights")


def leaves():
    sys.exit(0)


def nothing():
    return None


def made():
    return nn.Linear(2, 2)
"""


def test_a_model_that_is_none_is_refused_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "odd_networks", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "odd_networks.py").write_text(NETWORKS)
    for text, sentence in {
        "os:path": "expected os:path to be a torch module or a function that makes one, got module",
        "odd_networks:number": "got int",
        "odd_networks:nothing": "got NoneType",
        "odd_networks:angry": "odd_networks:angry cannot be loaded: KeyError: 'no weights'",
        "odd_networks:leaves": "odd_networks:leaves cannot be loaded: SystemExit: 0",
        "odd_networks:absent": "has no attribute 'absent'",
        "absent_module:x": "No module named 'absent_module'",
        ":x": "with a module and a name, got ':x'",
        "..:x": "with a module and a name, got '..:x'",
        "odd_networks:": "with a module and a name",
        "odd_networks": "expected an existing model file",
    }.items():
        with pytest.raises(InputError, match=re.escape(sentence)):
            find_model(text)
    for text in ("odd_networks:network", "odd_networks:made"):
        assert find_model(text)[1] == {"model": text}


def test_a_device_that_is_not_there_is_said_before_any_work() -> None:
    for name in ("nope", "meta", "", "cuda:77"):
        with pytest.raises(InputError, match=f"--device: expected cpu.*, got '{name}'"):
            read_device(name)
    assert read_device("cpu") == "cpu"


def test_rows_may_end_beyond_all_numbers() -> None:
    assert read_rows(f"-{9**99}:{9**99}", 10) == slice(0, 10)
