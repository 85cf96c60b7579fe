"""Printing: what cannot be printed ends no command, and nothing that was asked for is lost."""

import os
import subprocess
import sys
import warnings
from contextlib import redirect_stdout
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import TextIO

import pytest

import atta
from atta._base.errors import InputError
from atta.classifier.summary import Summary
from atta.cli import terminal
from atta.cli.app import app
from atta.cli.terminal import advised, say, show, tell
from atta.results.rows import Results
from atta.results.table import Table
from scenarios import command, made_up

pytestmark = pytest.mark.usefixtures("few_resamples")
ATTA = [sys.executable, "-c", "from atta.cli.app import app; app()"]


def environment(**more: str) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(Path(atta.__file__).parent.parent),
        "COLUMNS": "160",
        **more,
    }


@pytest.fixture(scope="module")
def record_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(made_up(60).save(tmp_path_factory.mktemp("records") / "shop.safetensors"))


def comparing(record: str, numbers: Path) -> list[str]:
    return [
        "compare",
        record,
        "--validation",
        "30",
        "--methods",
        "vanilla,temperature",
        "--json",
        str(numbers),
    ]


def printed_to(
    stream: TextIO, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> int | str | None:
    """The exit code of a command whose answers go to this stream."""
    monkeypatch.setattr(sys, "argv", ["atta", *arguments])
    with redirect_stdout(stream), pytest.raises(SystemExit) as end:
        app()
    return end.value.code


def test_an_output_without_the_letters_loses_nothing(
    record_file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = TextIOWrapper(BytesIO(), encoding="ascii")
    assert (
        printed_to(
            stream, [*comparing(record_file, tmp_path / "n.json"), "--splits", "2"], monkeypatch
        )
        == 0
    )
    assert Results.load(tmp_path / "n.json").names("method") == ["vanilla", "temperature"]
    stream.seek(0)
    table = stream.read()
    assert "temperature" in table
    assert "+-" in table


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_a_full_output_is_told_and_the_file_is_there(
    record_file: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Path("/dev/full").open("w") as full:
        assert printed_to(full, comparing(record_file, tmp_path / "n.json"), monkeypatch) == 1
    assert (
        "the answers could not all be printed (No space left on device)" in capsys.readouterr().err
    )
    assert Results.load(tmp_path / "n.json")


@pytest.mark.skipif(os.name == "nt", reason="pipes close otherwise there")
def test_a_closed_pipe_ends_quietly_and_the_file_is_there(record_file: str, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    typed = [*ATTA, *comparing(record_file, tmp_path / "n.json")]
    done = subprocess.run(
        typed, stdout=writer, stderr=subprocess.PIPE, text=True, check=False, env=environment()
    )
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
            ["/bin/sh", "-c", line],
            env=environment(PYTHONIOENCODING="cp1252"),
            capture_output=True,
            check=False,
        )
        assert (done.returncode, b"Traceback" in done.stderr) == (code, False), done.stderr


def test_what_is_printed_is_said_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    for odd, said in (
        ("[bold]x[/bold]", "[bold]x[/bold]"),
        ("[/]", "[/]"),
        ("caf\udce9 :smile:", "caf\\udce9 :smile:"),
    ):
        tell(f"answer: {odd}")
        say(f"beside: {odd}")
        show(Table(odd, (odd, "number"), ((odd, "1"),)))
        done = capsys.readouterr()
        assert done.out.count(said) == 4
        assert done.err == f"beside: {said}\n"


LONG = "v-atta (optimizer=adam, step=0.01) · flip + 5 crop + 5 brightness · 1000 images"
RANGE = "-0.0121 to +0.0019"
WIDE = {
    "a comparison over splits": (
        ("method", "brier", "ece", "smooth_ece", "mc_brier", "nll", "accuracy", "class_changes"),
        [
            (f"{LONG} #{i}", *(f"{i}.123{j} ± 0.1234" for j in range(6)), "9000 ± 12")
            for i in range(30)
        ],
    ),
    "how sure": (
        ("method", "metric", "mean", "95 % interval", f"− {LONG}", "95 % interval", "so it is"),
        [
            (LONG, metric, "0.1234", RANGE, "-0.1234", RANGE, "unclear")
            for metric in ("nll", "multi_class_brier")
        ],
    ),
    "policies": (
        ("policy", "passes", "cross-validated NLL", "above the best", "test brier", "test nll", ""),
        [
            (
                "flip + 5 crop + 5 brightness + 5 contrast",
                "17",
                "0.1234",
                "0.0012 ± 0.0003",
                "0.12",
                "0.34",
                "greedy, selected",
            )
        ],
    ),
    "every metric of thirty": (
        ("metric", *(f"{LONG} #{i}" for i in range(30))),
        [("accuracy", *(["0.12345"] * 30))],
    ),
    "a name without a space": (("class", "images"), [("n01440764_" * 30, "12")]),
    "words": (
        ("claim", "holds", "why"),
        [(LONG, "yes", "because of all that is said here, which takes its place " * 3)],
    ),
}


@pytest.mark.parametrize("title", WIDE)
def test_a_table_fits_eighty_columns_and_no_number_is_cut(
    title: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal.out, "width", 80)
    header, cells = WIDE[title]
    table = Table(
        title, header, tuple(cells), sure={(0, 1): 1} if title == "a comparison over splits" else {}
    )
    show(table)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert not any("…" in line for line in lines)
    for j in range(1, len(header)):
        for row in cells if table.is_numeric(j) else ():
            assert sum(line.split().count(row[j].split()[0]) for line in lines), (header[j], row[j])
            assert any(row[j] in line for line in lines), "in one piece"
    names = [part.partition(" ")[0] for part in header if part]
    assert all(any(name.split("_")[0] in line for line in lines) for name in names), (
        "each column has its name"
    )


def test_a_table_that_fits_stays_as_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal.out, "width", 80)
    show(Table("t", ("method", "smooth_ece", "class_changes"), (("vanilla", "0.1234", "0"),)))
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines() if line.strip()] == [
        "t",
        "method   smooth_ece  class_changes",
        "vanilla      0.1234              0",
    ]


def test_a_range_breaks_once_and_what_names_a_line_stands_in_every_block(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal.out, "width", 80)
    header, cells = WIDE["how sure"]
    show(Table("", header, tuple(cells)))
    blocks = capsys.readouterr().out.strip("\n").split("\n\n")
    assert len(blocks) > 1
    assert all("multi_class_brier" in block for block in blocks)
    assert all(
        any(part in line for line in blocks[0].splitlines()) for part in ("-0.0121 to", "+0.0019")
    )


def test_a_summary_is_folded_between_words_in_a_terminal_and_not_in_a_pipe(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    policies = [
        {"policy": f"flip + {i} crop + 5 brightness", "above": 0.1, "images": None}
        for i in range(2, 30)
    ]
    numbers = {"brier": 0.1234, "ece": 0.1234, "nll": 1.2345}
    rivals = [
        {
            "method": "sequential-v-atta",
            "policy": "flip + 5 crop + 5 brightness + 5 contrast",
            "passes": 16.75,
            **numbers,
        }
    ]
    summary = Summary(
        **{
            "method": "sequential-v-atta",
            "policy": rivals[0]["policy"],
            "passes": 16.75,
            "images": 50000,
            "classes": 1000,
        },
        **{"before": numbers, "after": numbers, "accuracy": 0.7, "class_changes": 0, "bins": {}},
        **{"candidates": policies, "rivals": rivals},
    )
    monkeypatch.setattr(terminal.out, "width", 80)
    monkeypatch.setattr(terminal, "_WIDE", False)
    tell(str(summary), folded=True)
    assert capsys.readouterr().out.splitlines() == str(summary).splitlines(), (
        "whoever reads a pipe goes by lines"
    )
    monkeypatch.setattr(terminal, "_WIDE", True)
    tell(str(summary), folded=True)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert " ".join(" ".join(lines).split()) == " ".join(str(summary).split())
    head = next(i for i, line in enumerate(lines) if "Brier of the top label" in line)
    assert lines[head + 1].split()[-4:] == ["0.1234", "1.2345", "0.1234", "16.8"]
    rest = [line.strip() for line in lines[head + 2 : head + 4]]
    assert rest == ["crop + 5 brightness + 5", "contrast"], "of the name"


@pytest.mark.parametrize(
    ("python", "shell"),
    [
        ("or method='temperature'", "or --method temperature"),
        ("given as labels=... (--labels FILE), by", "given as --labels FILE, by"),
        ("record it with rehearse=True", "record it with --rehearse"),
        ("use half=False", "use --no-half"),
        ("simplex=False accepts such rows", "simplex=False accepts such rows"),  # no option
        ("got 'a=b'", "got 'a=b'"),
    ],
)
def test_a_message_names_the_options_of_the_shell(python, shell, capsys):
    terminal.fail(python)
    assert capsys.readouterr().err == f"error: {shell}\n"
    with advised():
        warnings.warn(python, atta.Advice, stacklevel=1)
    assert capsys.readouterr().err == f"note: {shell}\n"
