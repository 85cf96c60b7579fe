"""Commands that run experiments, as a user types them."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from atta import Calibrator, Method, Predictions, Record
from atta._base.errors import InputError
from atta._base.files import locked
from atta.lab.paper.reproduce import experiments_folder
from atta.results.rows import Results
from scenarios import command, made_up

pytestmark = pytest.mark.usefixtures("few_resamples")


@pytest.fixture(autouse=True, scope="module")
def one_process() -> Iterator[None]:
    """Commands fit in this process; that others give the same bits is tested with the workers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("atta.data.loading.cores", lambda: 1)
        yield


def atta(*arguments: str, code: int = 0) -> str:
    result = command(*arguments, ok=not code)
    assert result.exit_code == code or (code == 2 and isinstance(result.exception, InputError)), (
        result.output
    )
    return result.output + (str(result.exception) if code else "")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where runs keep what is finished."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made_up(60, 10).save(tmp_path / "cifar10.safetensors")
    (tmp_path / "mine.toml").write_text(
        'dataset = "shop"\nfit = "cifar10"\nvalidation = 20\nsplits = 2\n'
        "[methods.vanilla]\n[methods.temperature]\n"
    )
    return tmp_path


@pytest.mark.parametrize(
    ("style", "text"),
    [("table", "mine"), ("markdown", "| method |"), ("csv", "method,"), ("latex", "toprule")],
)
def test_run_prints_the_table_of_a_file(folder: Path, style: str, text: str) -> None:
    arguments = [
        "run",
        str(folder / "mine.toml"),
        "--records",
        str(folder),
        "--format",
        style,
        "-o",
        str(folder / "r.json"),
    ]
    assert text in atta(*arguments)
    assert Results.load(folder / "r.json").names("method") == ["vanilla", "temperature"]


def test_run_says_what_is_wrong_in_one_sentence(folder: Path) -> None:
    file, records = str(folder / "mine.toml"), str(folder)
    assert "there is no record cifar10" in atta(
        "run", file, "--records", str(folder / "none"), code=2
    )
    assert "--format: expected table, markdown" in atta(
        "run", file, "--records", records, "--format", "word", code=2
    )
    (folder / "cifar10.safetensors").write_bytes(
        (folder / "cifar10.safetensors").read_bytes()[:500]
    )
    assert "is not a whole safetensors file" in atta("run", file, "--records", records, code=2)


def test_reproduce_prints_ours_beside_the_published_and_the_claims(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("policies-validation-cifar10", "policies-test-cifar10")
    for name in names:  # with two epochs instead of five hundred
        text = (experiments_folder() / f"{name}.toml").read_text(encoding="utf-8")
        (tmp_path / f"{name}.toml").write_text(
            text.replace("step = 0.01", "epochs = 2\nstep = 0.01")
        )
    monkeypatch.setattr("atta.lab.paper.reproduce.experiments_folder", lambda: tmp_path)
    record, records = made_up(60, 10), tmp_path / "records"
    views = {
        kind: view[:, :1].repeat(1, 5, 1) if kind != "flip" else view
        for kind, view in record.predictions.views.items()
    }
    Record(Predictions(record.predictions.logits, views), record.labels).save(
        records / "cifar10.safetensors"
    )
    output = atta(
        *(
            "reproduce",
            "--only",
            names[0],
            "--only",
            names[1],
            "--records",
            str(records),
            "-o",
            str(tmp_path / "out"),
        ),
        *("--splits", "1", "--validation", "20", "--page", str(tmp_path / "page.md")),
    )
    assert "0.0399" in output
    assert "M-ATTA over-fits" in output
    assert (tmp_path / "page.md").read_text().startswith("# Results")
    assert (tmp_path / "out" / "results.json").is_file()


def test_reproduce_without_anything_to_run_is_an_error(tmp_path: Path) -> None:
    message = "nothing could be run"
    arguments = [
        "reproduce",
        "--only",
        "shift-aid",
        "--records",
        str(tmp_path),
        "-o",
        str(tmp_path / "out"),
    ]
    assert message in atta(*arguments, code=2)


def test_a_label_may_hold_what_tables_put_between_names(folder: Path) -> None:
    file = folder / "odd.toml"
    file.write_text(
        (folder / "mine.toml").read_text() + '[methods."a · b | c"]\nmethod = "vanilla"\n'
    )
    assert "a · b" in atta("run", str(file), "--records", str(folder))


def test_what_cannot_be_written_is_one_sentence(folder: Path) -> None:
    arguments = ("run", str(folder / "mine.toml"), "--records", str(folder))
    assert "cannot be written" in atta(
        *arguments, "-o", str(folder / "mine.toml" / "x.json"), code=2
    )


def test_a_methods_own_policies_stand_beside_the_others(folder: Path) -> None:
    file = folder / "own.toml"
    own = '[methods.v-atta]\noptimizer = "adam"\nepochs = 2\npolicies = ["flip", "flip + 2 crop"]\n'
    file.write_text((folder / "mine.toml").read_text() + own)
    output = atta("run", str(file), "--records", str(folder), "--format", "markdown")
    for line in ("| temperature |", "| v-atta · flip |", "| v-atta · flip + 2 crop |"):
        assert line in output


def test_a_run_that_lost_a_process_goes_on_from_the_fits_it_had(
    folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted: list[str] = []

    fit_many = Method.fit_many

    def fit(method: Method, sets: Sequence[tuple[Any, Any]]) -> list[Calibrator]:
        if len(fitted) == 1:
            raise InputError(
                "a process that fitted was ended, perhaps for want of memory; the same call goes on"
            )
        fitted.append(method.name)
        return fit_many(method, sets)

    arguments = [
        "run",
        str(folder / "mine.toml"),
        "--records",
        str(folder),
        "-o",
        str(folder / "r.json"),
    ]
    with monkeypatch.context() as patch:
        patch.setattr(Method, "fit_many", fit)
        assert "the same call goes on" in atta(*arguments, code=2)
        assert fitted == ["vanilla"]
        assert len(list(cache.rglob("*.safetensors"))) == 1, "one of its two splits"
        fitted[:] = ["", ""]
        atta(*arguments)
        assert fitted == ["", "", "vanilla", "temperature", "temperature"], "and not what was there"
    assert not [path for path in cache.rglob("*") if path.is_file()], "what is done is not kept"
    assert Results.load(folder / "r.json").names("method") == ["vanilla", "temperature"]


def test_two_runs_do_not_write_one_output(folder: Path) -> None:
    run = ["run", str(folder / "mine.toml"), "--records", str(folder), "-o", str(folder / "r.json")]
    with locked(folder / "r.json"):
        assert "another run is writing" in atta(*run, code=2)
    with locked(folder / "all" / "results.json"):
        reproduce = [
            "reproduce",
            "--only",
            "shift-cifar10",
            "--records",
            str(folder),
            "-o",
            str(folder / "all"),
        ]
        assert "another run is writing" in atta(*reproduce, code=2)
    atta(*run)


def test_what_is_nested_too_deep_is_said(tmp_path: Path) -> None:
    (tmp_path / "deep.toml").write_text("x = " + 5000 * "[" + 5000 * "]")
    (tmp_path / "deep.json").write_text(100_000 * "[" + 100_000 * "]")
    assert "too deep" in atta("run", str(tmp_path / "deep.toml"), code=2)
    assert "too deep" in atta("report", str(tmp_path / "deep.json"), code=2)
