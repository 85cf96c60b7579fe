"""The command line as a whole: a mistake is one sentence, and help does not wait."""

import errno
import os
import subprocess
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.main import get_command

import atta
from atta._base.errors import InputError
from atta.cli.app import app, commands
from scenarios import command as run
from scenarios import made_up

ATTA = [sys.executable, "-c", "from atta.cli.app import app; app()"]


@pytest.fixture(scope="module")
def record_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(made_up(250).save(tmp_path_factory.mktemp("records") / "shop.safetensors"))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["compare", "nowhere.safetensors"], "there is no file nowhere.safetensors"),
        (
            ["compare", "{record}", "--validation", "9", "--methods", "v-ata"],
            "Did you mean 'v-atta'?",
        ),
        (
            ["compare", "{record}", "--validation", "250"],
            "shop has 250 images: expected fewer of them for validation, got 250",
        ),
        (["compare", "{record}", "{record}"], "expected records with different names"),
        (["fit", "{record}", "-o", "x", "--set", "stepp=1"], "Did you mean 'step'?"),
        (["fit", "{record}", "-o", "x", "--rows", "1-2"], "--rows: expected FROM:TO"),
        (
            ["fit", "{record}", "-o", "x", "--rows", "900:"],
            "--rows 900: leaves none of the 250 images",
        ),
        (["evaluate", "{record}", "--calibrator", "{record}"], "is not a calibrator"),
    ],
)
def test_a_mistake_ends_in_one_sentence(
    record_file: str,
    arguments: list[str],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(
        sys, "argv", ["atta", *(a.replace("{record}", record_file) for a in arguments)]
    )
    with pytest.raises(SystemExit) as end:
        app()
    assert end.value.code == 2
    said = capsys.readouterr().err.replace("\n", " ")
    assert said.startswith("error: ")
    assert sentence in said


def test_a_mistake_ends_in_exit_code_2_and_no_traceback() -> None:
    environment = {
        "PATH": "",
        "COLUMNS": "400",
        "PYTHONPATH": str(Path(atta.__file__).parent.parent),
    }
    done = subprocess.run(
        [*ATTA, "report", "nowhere.json"],  # which does not wait for torch
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.replace("\n", " ").startswith("error: there is no file nowhere.json")


def test_the_version_is_the_packages() -> None:
    assert run("--version").output.strip() == atta.__version__


def test_help_does_not_wait_for_torch() -> None:
    script = "import sys; from atta.cli.app import commands; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device", "x.json"),
            1,
            "error: x.json: No space left on device",
        ),
        (
            InputError("x.json cannot be written: no space left on device"),
            1,
            "error: x.json cannot be written",
        ),
        (
            OSError(errno.ENAMETOOLONG, "File name too long", "xx"),
            2,
            "error: xx: File name too long",
        ),
        (MemoryError(), 1, "error: there is not enough memory for this"),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to"),
            1,
            "error: there is not enough memory",
        ),
        (RecursionError(), 2, "error: the input is nested too deeply"),
        (KeyboardInterrupt(), 130, ""),
        (KeyError("bug"), 1, "Traceback"),
    ],
)
def test_what_ends_a_command_is_said_and_a_fault_of_ours_shows_where_it_is(
    error: BaseException,
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def raises(path: object) -> None:
        raise error

    monkeypatch.setattr("atta.results.rows.Results.load", raises)
    monkeypatch.setattr(sys, "argv", ["atta", "report", "x.json"])
    with pytest.raises(SystemExit) as end:
        app()
    shown = capsys.readouterr().err
    assert end.value.code == code
    assert shown.startswith(said)
    assert ("Please report it" in shown) == ("Traceback" in shown) == isinstance(error, KeyError)


# ---- whatever is typed

WORDS = st.one_of(
    st.sampled_from(
        [
            "",
            "0",
            "-1",
            "1e9",
            "nan",
            ":",
            "0:0",
            "[/]",
            "=",
            "a=[",
            "é" * 200,
            "..",
            "/",
            "x.csv",
            "cpu:x",
            "9" * 40,
        ]
    ),
    st.integers().map(str),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12),
)
PLACES = {
    "compare": 1,
    "fit": 1,
    "evaluate": 1,
    "search": 1,
    "calibrate": 2,
    "export": 1,
    "predict": 2,
    "collect": 2,
    "train": 1,
}
PLACES |= {"run": 1, "report": 1, "figure": 2, "methods": 0}
NEEDED = {
    "fit": "-o",
    "evaluate": "--calibrator",
    "calibrate": "-o",
    "export": "-o",
    "predict": "-o",
    "collect": "-o",
    "train": "-o",
}


def options(name: str) -> list[str]:
    found = get_command(commands).commands[name].params  # type: ignore[attr-defined]
    return sorted(
        {
            text
            for one in found
            if one.param_type_name == "option"
            for text in one.opts
            if text != "--help"
        }
    )


@st.composite
def typed(draw: st.DrawFn) -> list[str]:
    """A command with anything as its arguments and options; required ones are mostly given."""
    name = draw(st.sampled_from(sorted(PLACES)))
    words = [name, *(draw(WORDS) for _ in range(PLACES[name]))]
    for option in [NEEDED[name]] if name in NEEDED else []:
        words += [option, draw(WORDS)]
    for option in draw(st.lists(st.sampled_from(options(name) or ["--help"]), max_size=3)):
        words += [option, draw(WORDS)]
    return words


@settings(max_examples=60, deadline=None)
@given(typed())
def test_whatever_is_typed_ends_in_a_sentence(words: list[str]) -> None:
    out, err = StringIO(), StringIO()
    with (
        TemporaryDirectory() as folder,
        chdir(folder),
        patch.object(sys, "argv", ["atta", *words]),
        patch.dict(os.environ, {"ATTA_DATA": folder, "HF_HUB_OFFLINE": "1"}),
        redirect_stdout(out),
        redirect_stderr(err),
        pytest.raises(SystemExit) as end,
    ):
        app()
    assert end.value.code in (0, 1, 2), words
    assert "Traceback" not in err.getvalue(), err.getvalue()
    assert end.value.code == 0 or err.getvalue().strip(), "it says why"
