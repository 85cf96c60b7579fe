"""Commands about a calibrated classifier, as a user types them."""

import json
import sys
import threading
import urllib.request
from pathlib import Path

import pytest
import torch
from torch import nn

import atta
from atta._base.errors import InputError
from scenarios import command as run
from scenarios import made_classifier

NETWORK = """
import torch
from torch import nn

torch.manual_seed(0)
network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 2))
with torch.no_grad():
    network[1].weight[0] = 0.1
    network[1].weight[1] = 0
    network[1].bias[:] = torch.tensor([0.0, 9.6])
"""


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write light and dark photographs, and a network that mostly tells them apart."""
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_network", raising=False)
    (tmp_path / "own_network.py").write_text(NETWORK)
    generator = torch.Generator().manual_seed(0)
    for name, low in (("dark", 0), ("light", 16)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(15):
            pixels = torch.randint(
                low, 240 + low, (8, 8, 3), generator=generator, dtype=torch.uint8
            )
            image.fromarray(pixels.numpy()).save(tmp_path / "photos" / name / f"{i:02}.png")
    return tmp_path / "photos"


def test_a_network_is_calibrated_exported_and_predicts_files(photos: Path, tmp_path: Path) -> None:
    own, chosen = (
        ["own_network:network"],
        ["--method", "mean-tta-temperature", "--set", "views=vflip,flip"],
    )
    done = run("calibrate", *own, "photos", "-o", "classifier", "--policy", "flip + vflip", *chosen)
    classifier = atta.CalibratedClassifier.load(
        "classifier", model=nn.Sequential(nn.Flatten(), nn.Linear(192, 2))
    )
    assert classifier.class_names == ("dark", "light")
    assert classifier.calibrator.method == atta.MeanTTATemperature(views=["vflip", "flip"])
    assert str(classifier.summary) in done.stdout

    written = run("export", "classifier", "-o", "graph.onnx", "--model", *own).stdout
    size = (tmp_path / "graph.onnx").stat().st_size
    assert f"{size / 1e6:.1f} MB" in written
    assert "of eager" in written

    (photos / "broken.png").write_bytes(b"x")
    tables = {}
    for name, model in (("classifier", ["--model", *own]), ("graph.onnx", [])):
        result = run("predict", name, "photos", "-o", f"{name}.jsonl", "--probs", *model, ok=False)
        assert result.exit_code == 1
        assert "broken.png, but it cannot be decoded" in result.stderr.replace("\n", "")
        assert "30 images · mean confidence" in result.stdout
        tables[name] = [
            json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()
        ]
    for one, other in zip(tables["classifier"], tables["graph.onnx"], strict=True):
        assert one["class"] == other["class"]  # a graph knows the names, too
        assert one["confidence"] == pytest.approx(other["confidence"], abs=1e-5)
        assert one["p_dark"] == pytest.approx(other["p_dark"], abs=1e-5)


def test_a_classifier_is_evaluated_on_new_labelled_images_and_what_looks_wrong_is_said(
    photos: Path, tmp_path: Path
) -> None:
    own = ["own_network:network"]
    done = run("calibrate", *own, "photos", "-o", "classifier", "--method", "temperature")
    assert "note: 30 images are few" in done.stderr.replace("\n", " ")
    done = run("evaluate", "classifier", "photos", "--model", *own, "--json", "numbers.json")
    assert done.stderr.count("note: 30 images are few") == 1
    found = atta.Results.load("numbers.json")
    assert found.names("method") == ["vanilla", "temperature"]
    assert "temperature" in done.stdout
    for wrong in (["classifier"], ["classifier", "photos", "--calibrator", "c.safetensors"]):
        assert isinstance(run("evaluate", *wrong, ok=False).exception, InputError)
    (photos / "dark").rename(photos / "dim")
    refused = run("evaluate", "classifier", "photos", "--model", *own, ok=False).exception
    assert "expected names of the network's classes (dark, light), got 'dim'" in str(refused)


def test_predict_names_images_of_another_size(photos: Path) -> None:
    made_classifier(summary=False).save("small.safetensors")
    image = pytest.importorskip("PIL.Image")
    image.new("L", (11, 5)).save(photos / "dark" / "00.png")
    result = run("predict", "small.safetensors", str(photos / "dark"), "-o", "out.csv", ok=False)
    assert result.exit_code == 1
    assert "left out: expected images of the shape" in result.stderr
    assert "00.png" in result.stderr
    assert "14 images" in result.stdout


def test_a_page_to_try_a_classifier_on_is_served_until_it_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for library in ("PIL", "starlette", "uvicorn"):
        pytest.importorskip(library, reason=f"{library} is not installed")
    from atta.classifier.serve import TryIt

    made_classifier(names=tuple("abcde"), summary=False).save(tmp_path / "small.safetensors")
    run_it, seen, opened = TryIt.run, list[str](), list[str]()

    def visited(page: TryIt) -> None:
        def visit() -> None:
            with urllib.request.urlopen(page.url) as answer:
                seen.append(answer.read().decode())
            page.stop()

        visitor = threading.Thread(target=visit)
        visitor.start()
        run_it(page)
        visitor.join()

    monkeypatch.setattr(TryIt, "run", visited)
    monkeypatch.setattr("webbrowser.open", opened.append)
    done = run("serve", str(tmp_path / "small.safetensors"), "--port", "0")
    assert done.stdout.startswith("http://127.0.0.1:")
    assert "warning" not in done.stderr
    assert "<h1>small.safetensors</h1>" in seen[0]
    assert "No sets: coverage: expected a classifier with conformity scores" in seen[0]
    assert not opened, "there is no terminal"
    asked = run(
        "serve", str(tmp_path / "small.safetensors"), "--coverage", "0.9", ok=False
    ).exception
    assert "coverage: expected a classifier with conformity scores" in str(asked)

    monkeypatch.setattr(TryIt, "run", lambda page: page._socket.close())
    done = run(
        "serve",
        str(tmp_path / "small.safetensors"),
        "--port",
        "0",
        "--host",
        "0.0.0.0",
        "--browser",
    )
    assert "warning: everyone who reaches this machine at 0.0.0.0 can use the page" in done.stderr
    assert len(opened) == 1


def test_where_to_write_is_checked_before_the_network_runs(tmp_path: Path) -> None:
    saved = made_classifier(summary=False).save(tmp_path / "saved.safetensors")
    for arguments, sentence in (
        (["calibrate", "x:y", "digits", "-o", "graph.onnx"], "`atta export` writes graphs"),
        (
            ["calibrate", "x:y", "digits", "-o", str(Path(__file__))],
            "expected a folder or FILE.safetensors, got the file",
        ),
        (["predict", "nowhere", "photos", "-o", "out.txt"], "ends in .csv, .jsonl, .parquet"),
        (["export", str(tmp_path), "-o", "x.onnx"], "is not a classifier"),
        (
            ["export", str(saved), "-o", "x.onnx", "--opset", "-1"],
            "opset: expected a version of ONNX's operators",
        ),
        (
            ["predict", "nowhere", str(saved), "-o", "out.csv", "--device", "meta"],
            "--device: expected cpu",
        ),
        (
            ["calibrate", "x:y", "digits", "-o", "x", "--policy", "99999999 crop"],
            "expected 1000 or fewer, got 99999999",
        ),
    ):
        error = run(*arguments, ok=False).exception
        assert isinstance(error, InputError)
        assert sentence in str(error)


def test_images_without_labels_are_held_against_the_validation_images_and_adapted_to(
    photos: Path, tmp_path: Path
) -> None:
    own = ["--model", "own_network:network"]
    run(
        "calibrate",
        "own_network:network",
        "photos",
        "-o",
        "classifier",
        "--policy",
        "flip",
        "--method",
        "temperature",
    )
    few = run("drift", "classifier", "photos", *own, ok=False)
    assert "at least 32 images" in str(few.exception)
    for path in list(photos.glob("*/0*.png")):
        path.with_name(f"again-{path.name}").write_bytes(path.read_bytes())
    done = run(
        "drift", "classifier", "photos", "--json", "drift.json", "--picture", "drift.svg", *own
    )
    assert "estimated accuracy" in (tmp_path / "drift.svg").read_text()
    found = json.loads((tmp_path / "drift.json").read_text())
    assert found["sentence"] in done.stdout
    assert found["images"] == 50


def test_images_that_cannot_be_read_are_left_out_with_a_line_if_that_is_asked_for(
    photos: Path,
) -> None:
    (photos / "dark" / "broken.png").write_bytes(b"x")
    network, flip = "own_network:network", ["--policy", "flip"]
    assert "broken.png" in str(
        run("collect", network, "photos", "-o", "record", *flip, ok=False).exception
    )
    for made in (["collect", "-o", "record"], ["calibrate", "-o", "classifier"]):
        done = run(made[0], network, "photos", *made[1:], *flip, "--skip-bad")
        assert "note: left out: expected an image in photos/dark/broken.png" in done.stderr.replace(
            "\n", " "
        )
    assert len(atta.Record.load("record")) == 30
    assert run("evaluate", "classifier", "photos", "--skip-bad", "--model", network).exit_code == 0


def test_what_a_classifier_of_ones_own_network_needs_is_said_where_it_is_made_and_works_so(
    photos: Path,
) -> None:
    done = run(
        "calibrate",
        "own_network:network",
        "photos",
        "-o",
        "classifier",
        "--method",
        "temperature",
        "--policy",
        "flip",
    )
    assert "take --model own_network:network as well" in done.stderr.replace("\n", " ")
    run("predict", "classifier", "photos", "-o", "p.csv", "--model", "own_network:network")


def test_images_without_labels_are_not_evaluated_and_a_graph_is_no_classifier(photos: Path) -> None:
    made_classifier(summary=False).save("classifier")
    refused = str(run("evaluate", "classifier", "photos/dark", ok=False).exception)
    assert (
        "photos/dark has no labels: expected a folder for each class, or --labels FILE" in refused
    )
    for graph in ("graph.onnx", "graph.pt2"):
        Path(graph).write_bytes(b"x" * 99)
        for wrong in (["evaluate", graph, "photos"], ["drift", graph, "photos"]):
            assert f"{graph} is a graph, which is for predicting" in str(
                run(*wrong, ok=False).exception
            )


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        (["calibrate", "own_network.py", "photos"], "write own_network:NAME"),
        (
            ["calibrate", "own_network:network", "fotos"],
            "there is no folder fotos: expected the path of one",
        ),
        (
            ["calibrate", "own_network:network", "photos", "--mean", "0.5,0.5,0.5"],
            "expected mean and std together, one number per channel, got mean (0.5, 0.5, 0.5) and std None",
        ),
        (["calibrate", "own_network:network", "photos/dark", "--policy", "flip"], "--labels FILE"),
    ],
)
def test_a_slip_on_the_command_line_is_answered_with_what_to_type(
    photos: Path, typed: list[str], answer: str
) -> None:
    assert answer in str(run(*typed, "-o", "c", ok=False).exception)
