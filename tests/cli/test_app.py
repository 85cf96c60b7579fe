"""The command line as a whole: a mistake is one sentence, and help does not wait."""

import subprocess
import sys
from pathlib import Path

import pytest

import atta
from atta.cli.app import app
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
        (["compare", "{record}", "--methods", "v-ata"], "Did you mean 'v-atta'?"),
        (
            ["compare", "{record}", "--validation", "250"],
            "shop has 250 images: expected --validation from 1 to 249, got 250",
        ),
        (["compare", "{record}", "{record}"], "expected records with different names"),
        (["fit", "{record}", "-o", "x", "--set", "stepp=1"], "Did you mean 'step'?"),
        (["fit", "{record}", "-o", "x", "--rows", "1-2"], "--rows takes FROM:TO"),
        (["fit", "{record}", "-o", "x", "--rows", "900:"], "--rows 900: leaves none of the 250 images"),
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
    monkeypatch.setattr(sys, "argv", ["atta", *(a.replace("{record}", record_file) for a in arguments)])
    with pytest.raises(SystemExit) as end:
        app()
    assert end.value.code == 2
    said = capsys.readouterr().err.replace("\n", " ")
    assert said.startswith("error: ")
    assert sentence in said


def test_a_mistake_ends_in_exit_code_2_and_no_traceback() -> None:
    environment = {"PATH": "", "COLUMNS": "400", "PYTHONPATH": str(Path(atta.__file__).parent.parent)}
    done = subprocess.run(
        [*ATTA, "compare", "nowhere.safetensors"], capture_output=True, text=True, check=False, env=environment
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.replace("\n", " ").startswith("error: there is no file nowhere.safetensors")


def test_the_version_is_the_packages() -> None:
    assert run("--version").output.strip() == atta.__version__


def test_help_does_not_wait_for_torch() -> None:
    script = "import sys; from atta.cli.app import commands; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
