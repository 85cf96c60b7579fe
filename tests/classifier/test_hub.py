"""Classifiers on the hub, without a network: what is written, what is uploaded, what comes back."""

import copy
import importlib.util
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import atta
from atta.classifier import hub
from atta.data.views import VIEWS, View
from scenarios import Own, made_classifier, made_up

pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
NAMES = ("cat", "dog", 'Ärger: "x"', "a, b", "e")
FILES = {
    "classifier.json",
    "calibrator.safetensors",
    "model.safetensors",
    "config.json",
    "README.md",
    "reliability.png",
}
IMAGES = torch.rand(6, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def test_a_folder_written_for_the_hub_answers_with_the_same_bits(tmp_path: Path) -> None:
    classifier = made_classifier(names=NAMES)
    classifier.save_pretrained(tmp_path / "shared")
    assert {path.name for path in (tmp_path / "shared").iterdir()} == FILES
    again = atta.CalibratedClassifier.from_pretrained(tmp_path / "shared")
    assert torch.equal(again(IMAGES), classifier(IMAGES))
    assert again.about() == classifier.about()
    assert torch.equal(
        atta.CalibratedClassifier.load(tmp_path / "shared")(IMAGES), classifier(IMAGES)
    )


def test_the_mixin_leaves_no_trace_in_the_classifier(tmp_path: Path) -> None:
    classifier = made_classifier(summary=False)
    classifier.save_pretrained(tmp_path)
    loaded = atta.CalibratedClassifier.from_pretrained(tmp_path)
    for other in (copy.deepcopy(classifier), loaded, copy.deepcopy(loaded)):
        assert not any("hub" in name for name in other.__dict__)
        assert repr(other) == repr(classifier)
        assert torch.equal(other(IMAGES), classifier(IMAGES))


def test_the_config_names_the_classes_and_no_parameter_of_the_constructor(tmp_path: Path) -> None:
    made_classifier(names=NAMES, summary=False).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert list(config["id2label"].values()) == list(NAMES)
    assert not config.keys() & {
        "model",
        "calibrator",
        "policy",
        "image_shape",
        "class_names",
        "summary",
    }


def test_a_card_that_was_edited_is_kept(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine")
    made_classifier(summary=False).save_pretrained(tmp_path)
    assert (tmp_path / "README.md").read_text() == "mine"


def test_push_to_hub_uploads_the_whole_folder_with_a_card_that_loads_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import huggingface_hub

    uploaded: dict[str, Any] = {}

    def upload(self: object, *, folder_path: Path, repo_id: str, **rest: Any) -> str:
        uploaded.update(
            {path.name: path.read_bytes() for path in Path(folder_path).iterdir()}, repo_id=repo_id
        )
        return "https://example.org/commit"

    def create(self: object, repo_id: str, **rest: Any) -> SimpleNamespace:
        return SimpleNamespace(repo_id=repo_id)

    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", create)
    monkeypatch.setattr(huggingface_hub.HfApi, "upload_folder", upload)
    url = made_classifier().push_to_hub("me/birds", model_card_kwargs={"license": "mit"})
    assert url == "https://example.org/commit"
    assert uploaded.pop("repo_id") == "me/birds"
    assert uploaded.keys() == FILES
    card = huggingface_hub.ModelCard(uploaded["README.md"].decode())
    assert 'from_pretrained("me/birds")' in card.text
    assert card.data.license == "mit"


def test_the_front_matter_says_every_metric_after_calibration_and_what_was_added() -> None:
    classifier = made_classifier(names=NAMES)
    data = classifier.generate_model_card(
        repo_id='me/odd: "name"', license="mit", datasets=["a", "b: c"]
    ).data
    assert (data.library_name, data.pipeline_tag) == ("atta", "image-classification")
    assert (data.license, data.datasets, data.model_name) == ("mit", ["a", "b: c"], 'odd: "name"')
    metrics = {result.metric_type: result.metric_value for result in data.eval_results}
    assert metrics == pytest.approx(classifier.about()["summary"]["after"], rel=1e-5)
    bare = made_classifier(summary=False).generate_model_card()
    assert bare.data.eval_results is None
    assert "Brier" not in str(bare)


def test_a_repository_is_fetched_without_what_loading_does_not_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    classifier = made_classifier(summary=False)
    classifier.save_pretrained(tmp_path)
    asked: dict[str, Any] = {}

    def snapshot(repo_id: str, **options: Any) -> str:
        asked.update(options, repo_id=repo_id)
        return str(tmp_path)

    monkeypatch.setattr("atta.classifier.hub.snapshot_download", snapshot)
    monkeypatch.setattr(
        "huggingface_hub.hub_mixin.hf_hub_download", lambda **_: str(tmp_path / "config.json")
    )
    again = atta.CalibratedClassifier.from_pretrained("me/birds", revision="v1", token=False)
    assert torch.equal(again(IMAGES), classifier(IMAGES))
    assert (asked["repo_id"], asked["revision"], asked["token"]) == ("me/birds", "v1", False)
    assert asked["allow_patterns"] == ["classifier.json", "*.safetensors"]


def test_a_network_and_views_of_ones_own_are_handed_on(tmp_path: Path) -> None:
    record, views = (
        made_up(60),
        {"quarter": View("quarter", lambda images: images.rot90(dims=(2, 3)))},
    )
    assert not views.keys() & VIEWS.keys()
    predictions = atta.Predictions(
        record.predictions.logits, {"quarter": record.predictions.views["flip"]}
    )
    policy = atta.Policy.parse("quarter", views=views)
    calibrator = atta.VATTA().fit(predictions, record.labels)
    classifier = atta.CalibratedClassifier(
        Own(classes=5), calibrator, policy, image_shape=(3, 8, 8)
    )
    classifier.save_pretrained(tmp_path)
    assert "model=network" in (tmp_path / "README.md").read_text(encoding="utf-8")
    again = atta.CalibratedClassifier.from_pretrained(tmp_path, model=Own(classes=5), views=views)
    assert torch.equal(again(IMAGES), classifier(IMAGES))


def test_without_huggingface_hub_the_methods_say_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    spec = importlib.util.spec_from_file_location("alone", hub.__file__)
    assert spec is not None
    assert spec.loader is not None
    alone = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(alone)
    classifier = type("Classifier", (nn.Linear, alone.OnHub), {})(2, 2)
    assert (
        classifier(torch.zeros(1, 2)).shape
        == copy.deepcopy(classifier)(torch.zeros(1, 2)).shape
        == (1, 2)
    )
    for call in (
        classifier.push_to_hub,
        classifier.save_pretrained,
        type(classifier).from_pretrained,
    ):
        with pytest.raises(atta.InputError, match=r"pip install 'atta\[hub\]'"):
            call("me/birds")
