"""What was typed, read."""

import re
import sys
from pathlib import Path

import pytest

from atta._base.errors import InputError
from atta.cli.arguments import read_device, read_model, read_parts, read_rows, read_settings


def test_rows_to_test_on_are_none_that_were_searched() -> None:
    assert read_parts(10, "0:4", "4:") == (slice(0, 4), slice(4, None))
    assert read_parts(10, None, None) == (slice(None), None)
    for rows, test, sentence in (
        ("0:4", "3:", "--test expects rows that are not searched, got 1 of --rows 0:4 in 3:"),
        (None, "8:", "got 2 of --rows : in 8:"),
        ("0:4", "10:", "--test 10: leaves none of the 10 images"),
        ("0:4", "4-6", "--test takes FROM:TO, such as 0:1000 or 1000:, got '4-6'"),
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
    with pytest.raises(InputError, match="--set takes NAME=VALUE, got 'step'"):
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
        "os:path": "expected os:path to be a torch module or a function that makes one; it is a module",
        "odd_networks:number": "it is a int",
        "odd_networks:nothing": "it gave None",
        "odd_networks:angry": "odd_networks:angry cannot be had: KeyError: 'no weights'",
        "odd_networks:leaves": "odd_networks:leaves cannot be had: SystemExit: 0",
        "odd_networks:absent": "has no attribute 'absent'",
        "absent_module:x": "No module named 'absent_module'",
        ":x": "with a module and a name in it, got ':x'",
        "..:x": "with a module and a name in it, got '..:x'",
        "odd_networks:": "with a module and a name in it",
        "odd_networks": "which is neither",
    }.items():
        with pytest.raises(InputError, match=re.escape(sentence)):
            read_model(text)
    for text in ("odd_networks:network", "odd_networks:made"):
        assert read_model(text)[1] == {"model": text}


def test_a_device_that_is_not_there_is_said_before_any_work() -> None:
    for name in ("nope", "meta", "", "cuda:77"):
        with pytest.raises(InputError, match=f"--device: expected cpu.*, got '{name}'"):
            read_device(name)
    assert read_device("cpu") == "cpu"


def test_rows_may_end_beyond_all_numbers() -> None:
    assert len(range(10)[read_rows(f"-{9**99}:{9**99}")]) == 10
