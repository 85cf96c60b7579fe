"""Files that atta 0.1.0 wrote are read by this version, and mean what they meant.

`old_files/make.py` wrote them, and `expected.json` with what 0.1.0 made of them. Numbers are
compared up to rounding: other machines and other versions of torch round differently.
"""

import io
import json
import shutil
import sys
import zipfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import atta
from atta.cli.app import app

OLD = Path(__file__).parent / "old_files"
EXPECTED = json.loads((OLD / "expected.json").read_text(encoding="utf-8"))
CALIBRATORS = EXPECTED["calibrators"]
CLASSIFIER = EXPECTED["classifier"]
TRAINING = EXPECTED["training"]
POLICY = "flip + 2 shift"


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the old files, as the current folder; no test changes the files themselves."""
    copy = shutil.copytree(OLD, tmp_path / "old")
    with zipfile.ZipFile(copy / "training.zip") as archive:
        archive.extractall(copy)
    monkeypatch.chdir(copy)
    monkeypatch.syspath_prepend(OLD)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return copy


def typed(*arguments: str) -> str:
    """Run a command that succeeds, and return what it printed."""
    said, errors = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["atta", *arguments]),
        redirect_stdout(said),
        redirect_stderr(errors),
        pytest.raises(SystemExit) as end,
    ):
        app()
    assert not end.value.code, errors.getvalue()
    return said.getvalue()


def close(found: object, expected: object, tolerance: float = 1e-6) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=0, atol=tolerance)


def network() -> torch.nn.Module:
    from old_network import Network

    return Network()


def images(count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    from old_network import images as make

    return make(count, seed)


def shown() -> torch.Tensor:
    """The pixels of the photographs."""
    files = sorted(Path("photos").iterdir())
    return torch.stack([torch.from_numpy(np.array(Image.open(f))).permute(2, 0, 1) for f in files])


def rows(path: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


# ---- records ---


def check_record(record: atta.Record, *, rehearsals: bool = True) -> None:
    expected = EXPECTED["record"]
    views = {
        name: view
        for name, view in expected["views"].items()
        if rehearsals or not name.startswith("rehearse")
    }
    close(record.predictions.logits, expected["logits"])
    assert set(record.predictions.views) == set(views)
    for name, view in views.items():
        close(record.predictions.views[name], view)
    assert record.labels.tolist() == expected["labels"]


@pytest.mark.parametrize("name", ["record.safetensors", "record"])
def test_a_record_is_read(old: Path, name: str) -> None:
    record = atta.Record.load(name)
    check_record(record)
    assert record.origin["seed"] == "3"
    assert record.origin["image_shape"] == "3 x 8 x 8"


@pytest.mark.parametrize("name", ["stopped_record", "stopped_shards"])
def test_a_collection_that_was_stopped_goes_on(old: Path, name: str) -> None:
    model, seen = network(), 0

    def count(module: object, given: tuple[torch.Tensor]) -> None:
        nonlocal seen
        seen += len(given[0])

    model.register_forward_pre_hook(count)
    pixels, labels = images(48)
    rehearsals = name == "stopped_record"
    how = {"policy": POLICY, "batch_size": 8, "seed": 3, "progress": False, "checks": False}
    if rehearsals:
        how |= {"output": name, "rehearse": True}
    else:  # 0.1.0 kept the shards of a file under `shards=`
        Path(name).rename(f"{name}.safetensors.shards")
        how |= {"output": f"{name}.safetensors"}
    record = atta.collect(model, pixels, labels, **how)
    check_record(record, rehearsals=rehearsals)
    extra = sum(view.startswith("rehearse") for view in record.predictions.views)
    assert seen == 16 * 4 + 48 * extra  # 32 of 48 images were done
    if rehearsals:
        del how["output"]
        whole = atta.collect(network(), pixels, labels, **how)
        again = atta.Record.load(name)
        assert torch.equal(again.predictions.logits[:], whole.predictions.logits)
        for view, logits in whole.predictions.views.items():
            assert torch.equal(again.predictions.views[view][:], logits)


def test_a_saved_set_of_images_is_read(old: Path) -> None:
    file = Path("training/data/dots/test.safetensors")
    record = atta.collect(network(), file, policy="flip", progress=False)
    assert record.labels.tolist() == [i % 3 for i in range(24)]
    close(record.predictions.logits, network()(load_file(file)["images"] / 255).detach(), 1e-5)


# ---- calibrators and results ---


@pytest.mark.parametrize("name", CALIBRATORS)
def test_a_calibrator_is_read(old: Path, name: str) -> None:
    calibrator = atta.load(f"calibrators/{name}.safetensors")
    record = atta.Record.load("record.safetensors")
    close(calibrator(record.predictions[:8]), CALIBRATORS[name])
    assert calibrator.method.name == name.partition(",")[0]
    assert calibrator.keeps_class or not calibrator.method.keeps_class


def test_every_old_method_still_exists() -> None:
    assert set(atta.METHODS) >= {name.partition(",")[0] for name in CALIBRATORS}


def check_results(path: str, name: str) -> None:
    found = {(r.method, r.metric, r.split): r.value for r in atta.Results.load(path).rows}
    expected = {(method, metric, split): value for method, metric, split, value in EXPECTED[name]}
    assert found.keys() >= expected.keys()
    close([found[key] for key in expected], list(expected.values()), 1e-5)


@pytest.mark.parametrize("name", ["compared", "results"])
def test_results_are_read(old: Path, name: str) -> None:
    check_results(f"{name}.json", name)


def test_an_old_record_is_compared_to_the_same_numbers(old: Path) -> None:
    methods = "--methods", "vanilla,temperature,c-atta", "--validation", "24", "--splits", "2"
    typed("compare", "record.safetensors", *methods, "--json", "again.json")
    check_results("again.json", "compared")


# ---- classifiers ---


@pytest.mark.parametrize("name", ["classifier", "classifier.safetensors"])
def test_a_classifier_is_read(old: Path, name: str) -> None:
    classifier = atta.CalibratedClassifier.load(name, model=network())
    assert tuple(classifier.class_names) == ("a", "b", "c")
    assert str(classifier.policy) == POLICY
    close(classifier(shown()), CLASSIFIER["probs"])
    close(classifier.predict_proba("photos"), CLASSIFIER["probs"])
    assert classifier.predict_set(shown(), coverage=0.8).tolist() == CLASSIFIER["sets"]
    drift = classifier.drift((images(120, 1)[0] * 0.92).byte())
    found = [drift.images, drift.accuracy, drift.low, drift.high, drift.p_value]
    close(found[:2] + found[4:], CLASSIFIER["drift"][:2] + CLASSIFIER["drift"][4:], 1e-5)
    close(found[2:4], CLASSIFIER["drift"][2:4], 0.02)  # the interval is that of the new estimate
    for number in ("0.0844", "0.3085", "4"):  # Brier, NLL and passes, however they are laid out
        assert number in CLASSIFIER["summary"]
        assert number in str(classifier.summary)


def test_an_adapted_classifier_is_read(old: Path) -> None:
    adapted = atta.CalibratedClassifier.load("adapted.safetensors", model=network())
    close(adapted(shown()), CLASSIFIER["adapted"])
    assert adapted.adapted is not None
    close(adapted.unadapted()(shown()), CLASSIFIER["probs"])


def test_a_classifier_with_preprocessing_is_read(old: Path) -> None:
    classifier = atta.CalibratedClassifier.load("preprocessing.safetensors", model=network())
    expected = atta.Preprocess(resize=9, crop=8, mean=(0.5,) * 3, std=(0.25,) * 3)
    assert classifier.preprocess == expected
    close(classifier(shown()), CLASSIFIER["preprocessing"])
    close(classifier.predict_proba("photos"), CLASSIFIER["files"])


def test_a_classifier_that_chooses_its_passes_is_read(old: Path) -> None:
    classifier = atta.CalibratedClassifier.load("selective.safetensors", model=network())
    close(classifier(shown()), CLASSIFIER["selective"])
    assert classifier.calibrator.method == atta.SelectiveVATTA(passes=2.0)


def check_table(found: str) -> None:
    expected = rows("whole.jsonl")
    for row, other in zip(rows(found), expected, strict=True):
        assert row.keys() == other.keys()
        for key, value in other.items():
            assert row[key] == (pytest.approx(value, abs=1e-6) if type(value) is float else value)


def test_an_exported_graph_predicts_with_its_names_and_sets(old: Path) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    arguments = "--probs", "--coverage", "0.8"
    typed("predict", "graph.onnx", "photos", "-o", "table.jsonl", *arguments)
    check_table("table.jsonl")
    close(
        [[row[f"p_{name}"] for name in "abc"] for row in rows("table.jsonl")],
        CLASSIFIER["probs"],
        1e-5,
    )


def test_predictions_that_were_stopped_are_made_again_as_nothing_guards_the_old_ones(
    old: Path,
) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    part = Path("stopped.jsonl.part")
    changed = part.read_text(encoding="utf-8").replace('["a", 0.99', '["b", 0.19', 1)
    part.write_text(changed, encoding="utf-8")
    arguments = "--probs", "--coverage", "0.8", "--batch-size", "2"
    typed("predict", "graph.onnx", "photos", "-o", "stopped.jsonl", *arguments)
    assert not part.exists()
    check_table("stopped.jsonl")


# ---- trained networks ---


def test_a_trained_network_is_read(old: Path) -> None:
    said = typed(*TRAINING["arguments"], "-o", "training/finished")  # at once: it is finished
    assert TRAINING["says"].partition(": training")[0] in said
    how = "--data", "training/data", "--split", "test", "--policy", "flip"
    typed("collect", "training/finished", "dots", *how, "-o", "again.safetensors")
    found, expected = (
        atta.Record.load(path).predictions
        for path in ("again.safetensors", "training/record.safetensors")
    )
    close(found.logits, expected.logits, 1e-5)
    close(found.views["flip"], expected.views["flip"], 1e-5)


def test_a_classifier_of_a_trained_network_builds_the_network_itself(old: Path) -> None:
    classifier = atta.CalibratedClassifier.load("training/classifier")
    test = load_file("training/data/dots/test.safetensors")["images"]
    close(classifier(test[:6]), TRAINING["probs"], 1e-5)


def test_a_training_that_was_stopped_goes_on(old: Path) -> None:
    said = typed(*TRAINING["arguments"], "-o", "training/stopped")
    assert "epoch 3/" in said  # the first two were done
    assert "epoch 2/" not in said
    assert not Path("training/stopped/checkpoint.pt").exists()
    found, expected = (
        load_file(f"training/{run}/model.safetensors") for run in ("stopped", "finished")
    )
    assert found.keys() == expected.keys()
    for name, weights in expected.items():
        close(found[name], weights, 1e-4)


def test_every_file_is_whole(old: Path) -> None:
    files = [
        "record",
        "record.safetensors",
        "classifier",
        "classifier.safetensors",
        "adapted.safetensors",
    ]
    files += [
        "results.json",
        "graph.onnx",
        "training/finished",
        "training/stopped",
        "stopped_record",
    ]
    files += [str(path) for path in sorted(Path("calibrators").iterdir())]
    said = typed("check", *files)
    assert len(said.splitlines()) == len(files)
