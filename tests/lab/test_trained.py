"""A trained network on disk: it is built again, says how it was made, and belongs to one run."""

import json
from dataclasses import replace

import pytest
import torch

from atta._base.errors import InputError
from atta._base.tensors import read_tensors, write_tensors
from atta.lab.recipe import load_trained
from atta.lab.training import pixel_statistics, train
from atta.networks.description import save_weights
from atta.networks.resnet import small_cnn
from scenarios import BRIEF, StopsAt, stripes


def test_a_trained_file_rebuilds_the_model_and_says_how_it_was_made(tmp_path):
    result = train(
        "small_cnn",
        stripes(),
        test_set=stripes(seed=1),
        recipe=BRIEF,
        output=tmp_path,
        progress=False,
    )
    model, metadata = load_trained(tmp_path / "model.safetensors")
    images = torch.rand(4, 3, 8, 8)
    torch.testing.assert_close(model(images), result.model(images))
    assert metadata["architecture"] == {
        "name": "small_cnn",
        "num_classes": 2,
        "in_channels": 3,
        "small_images": True,
    }
    assert metadata["classes"] == ["dark", "light"]
    assert metadata["dataset"] == "stripes"
    assert metadata["accuracy"] == result.accuracy
    assert metadata["recipe"]["steps"] == 12
    assert metadata["mean"] == pixel_statistics(stripes().tensors())[0]


def test_a_network_of_ones_own_is_given_again_to_load_it(tmp_path):
    result = train(StopsAt(), stripes(), recipe=BRIEF, output=tmp_path, progress=False)
    with pytest.raises(InputError, match="pass the model as well"):
        load_trained(result.path)
    model, _ = load_trained(result.path, StopsAt())
    torch.testing.assert_close(model(torch.ones(1, 3, 8, 8)), result.model(torch.ones(1, 3, 8, 8)))


def test_a_run_with_other_settings_does_not_go_on_from_this_one(tmp_path):
    train("small_cnn", stripes(), recipe=BRIEF, output=tmp_path, progress=False)
    with pytest.raises(
        InputError, match=r"its seed is 0 and not 1; .* delete this file to start again"
    ):
        train("small_cnn", stripes(), recipe=BRIEF, output=tmp_path, seed=1, progress=False)
    with pytest.raises(
        InputError, match=r"its recipe.steps is 12 and not 13; choose another folder"
    ):
        train(
            "small_cnn", stripes(), recipe=replace(BRIEF, steps=13), output=tmp_path, progress=False
        )
    train(
        "small_cnn", stripes(), recipe=BRIEF, output=tmp_path, seed=1, resume=False, progress=False
    )
    assert load_trained(tmp_path / "model.safetensors")[1]["seed"] == 1


def test_a_plain_file_of_weights_is_no_trained_model(tmp_path):
    with pytest.raises(InputError, match="there is no file"):
        load_trained(tmp_path / "none.safetensors")
    save_weights(small_cnn(2), tmp_path / "model.safetensors")
    with pytest.raises(InputError, match="says nothing about its training"):
        load_trained(tmp_path / "model.safetensors")


def test_a_broken_file_is_named(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(InputError, match=r"model\.safetensors is not a whole safetensors file"):
        load_trained(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "checkpoint.pt").write_bytes(b"")
    with pytest.raises(
        InputError,
        match=r"expected a checkpoint of `train` at .*checkpoint.pt, but it cannot be read",
    ):
        train("small_cnn", stripes(), recipe=BRIEF, output=tmp_path, progress=False)


WHOLE = object()
FORGED = {
    "no JSON": (WHOLE, "{"),
    "a list": (WHOLE, "[]"),
    "nested too deeply": (WHOLE, 100_000 * "[" + 100_000 * "]"),
    "no architecture": ("architecture", None),
    "an architecture in words": ("architecture", "small_cnn"),
    "a network without a name": ("architecture", {"name": ["small_cnn"]}),
    "an unknown network": ("architecture", {"name": "vit"}),
    "an unknown setting": ("architecture", {"name": "small_cnn", "num_classes": 2, "path": "x"}),
    "a class too many": ("architecture", {"name": "small_cnn", "num_classes": 3}),
    "more classes than memory": ("architecture", {"name": "small_cnn", "num_classes": 10**12}),
    "more classes than numbers": ("architecture", {"name": "small_cnn", "num_classes": 10**30}),
    "classes in words": ("architecture", {"name": "small_cnn", "num_classes": "two"}),
    "a mean in words": ("mean", ["a", "b", "c"]),
    "no mean": ("mean", None),
    "a mean too few": ("mean", [0.5]),
    "a deviation of 0": ("std", [0, 0, 0]),
    "a deviation in a list": ("std", [[1], [1], [1]]),
    "a seed in words": ("seed", "zero"),
    "no recipe": ("recipe", []),
    "no dataset": ("dataset", 5),
    "no classes": ("classes", "two"),
    "a history in words": ("history", "long"),
    "an accuracy in words": ("accuracy", "high"),
}


def test_forged_metadata_of_a_trained_model_is_refused_in_a_sentence(tmp_path):
    path = tmp_path / "model.safetensors"
    train("small_cnn", stripes(), recipe=BRIEF, output=tmp_path, progress=False)
    tensors, whole = read_tensors(path)
    about = json.loads(whole["atta"])
    for what, (key, value) in FORGED.items():
        text = value if key is WHOLE else json.dumps({**about, key: value})
        write_tensors(path, tensors, {"atta": text})
        with pytest.raises(
            InputError, match=r"model\.safetensors|std|means|numbers of classes"
        ) as refused:
            load_trained(path)
        assert "\n" not in str(refused.value), what
