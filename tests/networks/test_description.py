"""What a network is built from, as JSON, and the same network from it."""

import json

import pytest
from torch import nn

import atta
from atta._base.errors import InputError
from atta.networks.adapters import NumpyModel, TorchModel, as_logits
from atta.networks.description import build, describe, has_weights
from scenarios import REBUILT, Own


@pytest.mark.parametrize("name", REBUILT)
def test_a_description_goes_through_json_and_builds_the_same_layers(name):
    model = as_logits(REBUILT[name]())
    description = json.loads(json.dumps(describe(model)))
    again = build(description)
    assert str(again) == str(model)
    assert {key: value.shape for key, value in again.state_dict().items()} == {
        key: value.shape for key, value in model.state_dict().items()
    }
    assert describe(again) == description


def test_a_given_network_takes_the_place_of_the_one_inside():
    model, own = as_logits(atta.Normalized(Own(), [0.5] * 3, [0.2] * 3)), Own()
    assert build(describe(model), own).model.model is own
    whole = atta.Normalized(own, [0.1] * 3, [0.3] * 3)
    assert build(describe(model), whole).model is whole
    assert build(describe(as_logits(nn.Identity())), own).model is own


@pytest.mark.parametrize("name", ["Trainer", "NoSuchForImageClassification", "ViTModel"])
def test_only_image_classifiers_of_transformers_are_built(name):
    with pytest.raises(InputError, match="expected an image classifier of transformers"):
        build({"kind": "transformers", "class": name, "config": {"model_type": "vit"}})


def test_a_function_keeps_its_weights_elsewhere():
    assert has_weights(TorchModel(Own()))
    assert not has_weights(atta.FromProbabilities(NumpyModel(lambda images: images[:, :, 0, 0])))


def small(**settings):
    sizes = {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 8,
        "image_size": 8,
    }
    config = {"model_type": "vit", "patch_size": 4, "num_labels": 3, **sizes, **settings}
    return {"kind": "transformers", "class": "ViTForImageClassification", "config": config}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"attn_implementation": "org/kernel"},
            "expected attn_implementation to be eager or sdpa, got 'org/kernel'",
        ),
        (
            {"attn_implementation": "flash_attention_2"},
            "expected attn_implementation to be eager or sdpa",
        ),
        (
            {"_attn_implementation": "org/kernel"},
            "expected _attn_implementation to be eager or sdpa",
        ),
        (
            {"attn_implementation": {"": "eager", "vision_config": "org/kernel:f"}},
            "expected attn_implementation to be",
        ),
        (
            {"vision_config": {"attn_implementation": "org/kernel"}},
            "expected attn_implementation to be eager or sdpa",
        ),
        (
            {"parts": [{"experts_implementation": "org/kernel"}]},
            "expected experts_implementation|names a place",
        ),
        ({"auto_map": {"AutoConfig": "x--y.Z"}}, "its auto_map names code"),
        ({"vision_config": {"auto_map": {"AutoConfig": "x"}}}, "its auto_map names code"),
        ({"trust_remote_code": True}, "its trust_remote_code names code"),
        (
            {"quantization_config": {"quant_method": "bitsandbytes"}},
            "its quantization_config names code",
        ),
        ({"use_kernels": True}, "its use_kernels names code"),
        ({"backbone": "resnet50"}, "its backbone names code"),
        ({"use_pretrained_backbone": True}, "its use_pretrained_backbone names code"),
        ({"hidden_act": "org/kernel"}, "its hidden_act names a place to download from"),
        ({"architecture": "hf_hub:org/model"}, "its architecture names a place to download from"),
        ({"dtype": "load"}, "expected dtype to be float32"),
        ({"hidden_act": "no_such"}, "cannot build a ViTForImageClassification"),
        ({"hidden_size": "a"}, "cannot build a ViTForImageClassification"),
        ({"model_type": "no_such"}, "cannot build a ViTForImageClassification"),
    ],
)
def test_a_configuration_that_names_code_or_a_place_is_refused(settings, message):
    with pytest.raises(InputError, match=message):
        build(small(**settings))


def test_what_says_only_where_a_configuration_came_from_is_not_used():
    labels = {
        "id2label": {"0": "a/b", "1": "c:d", "2": "e"},
        "label2id": {"a/b": 0, "c:d": 1, "e": 2},
    }
    network = build(
        small(
            _name_or_path="org/model",
            transformers_version="4.0",
            attn_implementation="eager",
            **labels,
        )
    )
    assert network.config._name_or_path != "org/model"
    assert network.config.id2label[0] == "a/b"
    network.config._name_or_path = "/home/somebody/model"
    assert "somebody" not in json.dumps(describe(network))
