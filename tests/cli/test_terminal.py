"""Printing: what cannot be printed ends no command, and nothing that was asked for is lost."""

import os
import subprocess
import sys
from contextlib import redirect_stdout
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import TextIO

import pytest

import atta
from atta.cli.app import app
from atta.cli.terminal import say, show, tell
from atta.errors import InputError
from atta.results.rows import Results
from atta.results.table import Table
from scenarios import command, made_up

pytestmark = pytest.mark.usefixtures("few_resamples")
ATTA = [sys.executable, "-c", "from atta.cli.app import app; app()"]


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(atta.__file__).parent.parent), "COLUMNS": "160", **more}


@pytest.fixture(scope="module")
def record_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(made_up(60).save(tmp_path_factory.mktemp("records") / "shop.safetensors"))


def comparing(record: str, numbers: Path) -> list[str]:
    return ["compare", record, "--validation", "30", "--methods", "vanilla,temperature", "--json", str(numbers)]


def printed_to(stream: TextIO, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> int | str | None:
    """The exit code of a command whose answers go to this stream."""
    monkeypatch.setattr(sys, "argv", ["atta", *arguments])
    with redirect_stdout(stream), pytest.raises(SystemExit) as end:
        app()
    return end.value.code


def test_an_output_without_the_letters_loses_nothing(record_file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = TextIOWrapper(BytesIO(), encoding="ascii")
    assert printed_to(stream, [*comparing(record_file, tmp_path / "n.json"), "--splits", "2"], monkeypatch) == 0
    assert Results.load(tmp_path / "n.json").names("method") == ["vanilla", "temperature"]
    stream.seek(0)
    table = stream.read()
    assert "temperature" in table
    assert "+-" in table


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_a_full_output_is_told_and_the_file_is_there(
    record_file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Path("/dev/full").open("w") as full:
        assert printed_to(full, comparing(record_file, tmp_path / "n.json"), monkeypatch) == 1
    assert "the answers could not all be printed (No space left on device)" in capsys.readouterr().err
    assert Results.load(tmp_path / "n.json")


@pytest.mark.skipif(os.name == "nt", reason="pipes close otherwise there")
def test_a_closed_pipe_ends_quietly_and_the_file_is_there(record_file: str, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    typed = [*ATTA, *comparing(record_file, tmp_path / "n.json")]
    done = subprocess.run(typed, stdout=writer, stderr=subprocess.PIPE, text=True, check=False, env=environment())
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, f"numbers: {tmp_path / 'n.json'}\n")
    assert Results.load(tmp_path / "n.json")


def test_what_cannot_be_written_is_still_shown(record_file: str, tmp_path: Path) -> None:
    done = command(*comparing(record_file, tmp_path), ok=False)
    assert isinstance(done.exception, InputError)
    assert "temperature" in done.stdout


@pytest.mark.skipif(os.name == "nt", reason="there is no such shell")
def test_help_and_versions_go_anywhere() -> None:
    typed = " ".join(f"'{part}'" for part in ATTA)
    for line, code in (
        (f"{typed} --version >&-", 0),
        (f"{typed} compare --help", 0),
        (f"{typed} nothing 2>/dev/full", 2),
    ):
        done = subprocess.run(
            ["/bin/sh", "-c", line], env=environment(PYTHONIOENCODING="cp1252"), capture_output=True, check=False
        )
        assert (done.returncode, b"Traceback" in done.stderr) == (code, False), done.stderr


def test_what_is_printed_is_said_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    for odd, said in (("[bold]x[/bold]", "[bold]x[/bold]"), ("[/]", "[/]"), ("caf\udce9 :smile:", "caf\\udce9 :smile:")):
        tell(f"answer: {odd}")
        say(f"beside: {odd}")
        show(Table(odd, (odd, "number"), ((odd, "1"),)))
        done = capsys.readouterr()
        assert done.out.count(said) == 4
        assert done.err == f"beside: {said}\n"
