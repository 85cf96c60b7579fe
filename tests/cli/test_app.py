"""The commands as a user types them, in a process of their own where the exit code matters."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner, Result

import atta
from atta.cli.app import commands
from atta.cli.arguments import read_parts, read_settings
from atta.results.rows import Results
from atta.types import InputError
from scenarios import made_classifier, made_up

ATTA = [sys.executable, "-c", "from atta.cli.app import app; app()"]


@pytest.fixture(scope="module")
def record_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(made_up(250).save(tmp_path_factory.mktemp("records") / "shop.safetensors"))


def run(*arguments: str, ok: bool = True) -> Result:
    result = CliRunner().invoke(commands, list(arguments))
    if ok:
        assert result.exit_code == 0, (result.output, result.exception)
    return result


def test_methods_lists_every_method_and_whether_it_keeps_the_class() -> None:
    output = run("methods").output
    for name, method in atta.METHODS.items():
        line = next(line for line in output.splitlines() if line.split() and line.split()[0] == name)
        assert line.split()[1] == ("yes" if method().keeps_class else "no")


def test_compare_prints_the_table_and_writes_its_numbers(record_file: str, tmp_path: Path) -> None:
    numbers = tmp_path / "out.json"
    output = run(
        "compare",
        record_file,
        "--validation",
        "100",
        "--splits",
        "2",
        "--methods",
        "vanilla,v-atta",
        "--json",
        str(numbers),
    ).output
    results = Results.load(numbers)
    assert results.names("method") == ["vanilla", "v-atta"]
    assert results.about["methods"]["shop"]["v-atta"]["optimizer"] == "lbfgs"
    for method in ("vanilla", "v-atta"):
        line = next(line for line in output.splitlines() if line.startswith(method))
        for metric in ("brier", "ece", "mc_brier", "nll"):
            summary = results.summary(method=method, metric=metric)
            assert summary is not None
            assert summary.text() in line


def test_compare_takes_all_methods_by_default(record_file: str, tmp_path: Path) -> None:
    numbers = tmp_path / "out.json"
    run("compare", record_file, "--validation", "20", "--json", str(numbers))
    assert Results.load(numbers).names("method") == list(atta.METHODS)


def test_compare_leaves_out_what_needs_views_where_there_are_none(tmp_path: Path) -> None:
    record = made_up(60)
    bare = atta.Record(atta.Predictions(record.predictions.logits), record.labels).save(tmp_path / "bare.safetensors")
    numbers = tmp_path / "out.json"
    result = run("compare", str(bare), "--validation", "30", "--json", str(numbers))
    assert "v-atta" not in Results.load(numbers).names("method")
    assert "left out, for want of views" in result.stderr


def test_a_fitted_calibrator_is_evaluated_beside_the_network(record_file: str, tmp_path: Path) -> None:
    file, numbers = tmp_path / "v.safetensors", tmp_path / "n.json"
    done = run("fit", record_file, "--method", "v-atta", "-o", str(file), "--rows", "0:100", "--set", "views=flip,crop")
    assert "5 passes an image" in done.output
    assert atta.load(file).kinds == ("flip", "crop")
    output = run("evaluate", record_file, "--calibrator", str(file), "--rows", "100:", "--json", str(numbers)).output
    assert re.search(r"passes +. +1 +. +5", output)
    test = made_up(250)[100:]
    expected = atta.evaluate(atta.load(file)(test.predictions), test.labels)
    summary = Results.load(numbers).summary(method="v-atta", metric="brier")
    assert summary is not None
    assert summary.mean == pytest.approx(expected["brier"], abs=1e-12)


def test_comparing_says_how_sure_each_difference_to_vanilla_is(record_file: str, tmp_path: Path) -> None:
    numbers = tmp_path / "n.json"
    methods = ("--methods", "vanilla,temperature,mean-tta", "--validation", "100")
    text = run("compare", record_file, *methods, "--intervals", "--json", str(numbers)).output
    sure = {(i.method, i.metric): i for i in Results.load(numbers).intervals if i.against == "vanilla"}
    lines = [line.split() for line in text.partition("how sure")[2].splitlines()]
    said = {(line[0], line[1]): line for line in lines if len(line) > 8}
    words = {(False, False): "unclear", (True, False): "better", (False, True): "worse"}
    for method in ("temperature", "mean-tta"):
        for metric in ("brier", "ece", "smooth_ece", "mc_brier", "nll"):
            one = sure[method, metric]
            assert said[method, metric][-4:-1] == [f"{one.low:+.4f}", "to", f"{one.high:+.4f}"]
            assert said[method, metric][-1] == words[one.high < 0, one.low > 0]
    marked = sum(
        one.low * one.high > 0 for (_, metric), one in sure.items() if metric != "accuracy" and "entropy" not in metric
    )
    table = text.partition("how sure")[0].partition("surely")[0]
    assert marked
    assert table.count("✓") + table.count("✗") == marked + 1, "and the one of the legend"


def test_search_names_the_policy_and_tests_it_on_other_rows(record_file: str, tmp_path: Path) -> None:
    numbers = tmp_path / "out.json"
    options = ("--rows", "0:120", "--test", "120:", "--budget", "3", "--folds", "3", "--greedy", "--json", str(numbers))
    result = run("search", record_file, *options)
    results = Results.load(numbers)
    chosen, free = results.where(choice="one-standard-error"), results.where(choice="greedy")
    assert chosen.names("policy") == ["flip-2"]  # the only one of two or three passes that is there
    assert {"passes", "cv_nll", "cv_nll_above", "cv_nll_error", "brier", "nll"} == {*chosen.names("metric")}
    for one, mark in ((chosen, "chosen"), (free, "greedy, selected on this NLL")):
        line = next(line for line in result.stdout.splitlines() if line.rstrip().endswith(mark))
        assert line.startswith(one.names("policy")[0])
        for metric in ("cv_nll", "brier", "nll"):
            assert f"{next(row.value for row in one if row.metric == metric):.4f}" in line
    assert "--method c-atta --policy flip-2" in result.stdout
    assert "policies within the budget are not in these records" in result.stderr
    assert "over-fits a small validation set" in result.stderr


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
    assert read_settings(["step=0.01", "views=flip", "optimizer=adam", "pooled=false", "views=a,b", "step=null"]) == {
        "step": None,
        "views": ["a", "b"],
        "optimizer": "adam",
        "pooled": False,
    }
    with pytest.raises(InputError, match="--set takes NAME=VALUE, got 'step'"):
        read_settings(["step"])


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
def test_a_mistake_ends_in_one_sentence(record_file: str, arguments: list[str], sentence: str) -> None:
    done = subprocess.run(
        [*ATTA, *(a.replace("{record}", record_file) for a in arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "", "COLUMNS": "400", "PYTHONPATH": str(Path(atta.__file__).parent.parent)},
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert sentence in done.stderr.replace("\n", " ")
    assert "Traceback" not in done.stderr


def test_the_version_is_the_packages() -> None:
    assert run("--version").output.strip() == atta.__version__


def test_help_does_not_wait_for_torch() -> None:
    script = "import sys; from atta.cli.app import commands; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.strip().lower()) is False


NETWORK = """
import torch
from torch import nn

torch.manual_seed(0)
network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 2))
with torch.no_grad():
    network[1].weight[0] = 0.3
    network[1].weight[1] = 0
    network[1].bias[:] = torch.tensor([0.0, 28.8])
"""


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Light and dark photographs in a folder each, and a network of one's own that mostly tells them apart."""
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_network", raising=False)
    (tmp_path / "own_network.py").write_text(NETWORK)
    generator = torch.Generator().manual_seed(0)
    for name, low in (("dark", 0), ("light", 16)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(15):
            pixels = torch.randint(low, 240 + low, (8, 8, 3), generator=generator, dtype=torch.uint8)
            image.fromarray(pixels.numpy()).save(tmp_path / "photos" / name / f"{i:02}.png")
    return tmp_path / "photos"


def test_a_network_is_calibrated_exported_and_predicts_files(photos: Path, tmp_path: Path) -> None:
    own, chosen = ["own_network:network"], ["--method", "mean-tta-temperature", "--set", "views=vflip,flip"]
    done = run("calibrate", *own, "photos", "-o", "classifier", "--policy", "flip + vflip", *chosen)
    classifier = atta.CalibratedClassifier.load("classifier", model=nn.Sequential(nn.Flatten(), nn.Linear(192, 2)))
    assert classifier.class_names == ("dark", "light")
    assert classifier.calibrator.method == atta.MeanTTATemperature(views=["vflip", "flip"])
    assert str(classifier.summary) in done.stdout

    written = run("export", "classifier", "-o", "graph.pt2", "--model", *own).stdout
    size = (tmp_path / "graph.pt2").stat().st_size
    assert f"{size / 1e6:.1f} MB" in written
    assert "of eager" in written

    (photos / "broken.png").write_bytes(b"x")
    tables = {}
    for name, model in (("classifier", ["--model", *own]), ("graph.pt2", [])):
        result = run("predict", name, "photos", "-o", f"{name}.jsonl", "--probs", *model, ok=False)
        assert result.exit_code == 1
        assert "broken.png, but it cannot be decoded" in result.stderr.replace("\n", "")
        assert "30 images · mean confidence" in result.stdout
        tables[name] = [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
    for one, other in zip(tables["classifier"], tables["graph.pt2"], strict=True):
        assert one["class"] == ("dark", "light")[other["class"]]
        assert one["confidence"] == pytest.approx(other["confidence"], abs=1e-5)
        assert one["p_dark"] == pytest.approx(other["p_0"], abs=1e-5)


def test_predict_says_how_many_images_it_resized(photos: Path) -> None:
    made_classifier(summary=False).save("small.safetensors")
    image = pytest.importorskip("PIL.Image")
    image.new("L", (11, 5)).save(photos / "dark" / "00.png")
    result = run("predict", "small.safetensors", str(photos / "dark"), "-o", "out.csv")
    assert "resized to 8 x 8: 1 of 15 images" in result.stderr
    assert "4 passes an image" in result.stdout


def test_where_to_write_is_checked_before_the_network_runs(tmp_path: Path) -> None:
    for arguments, sentence in (
        (["calibrate", "x:y", "digits", "-o", "graph.onnx"], "`atta export` makes graphs of those"),
        (
            ["calibrate", "x:y", "digits", "-o", str(Path(__file__))],
            "expected a folder or FILE.safetensors, got the file",
        ),
        (["predict", "nowhere", "photos", "-o", "out.txt"], "ends in .csv, .jsonl, .parquet"),
        (["export", str(tmp_path), "-o", "x.onnx"], "is not a classifier"),
    ):
        error = run(*arguments, ok=False).exception
        assert isinstance(error, InputError)
        assert sentence in str(error)
