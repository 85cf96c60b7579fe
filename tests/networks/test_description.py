"""What a network is built from, as JSON, and the same network from it."""

import json
from itertools import islice

import pytest
import torch
from torch import nn

import atta
from atta._base.errors import InputError
from atta.networks.adapters import NumpyModel, TorchModel, as_logits
from atta.networks.description import build, describe, has_weights
from atta.networks.resnet import resnet18
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


FORGED = (
    None,
    True,
    -1,
    0,
    1.5,
    10**9,
    10**30,
    float("nan"),
    "",
    "a" * 9,
    [],
    [[]],
    {},
    {"kind": 1},
)


def forgeries(value, depth=0):
    """Copies of a description in which one value is another one, missing, or nested."""
    if isinstance(value, dict):
        yield from ({k: v for k, v in value.items() if k != key} for key in value)
        yield value | {"more": 1}
        for key in value:
            yield from (value | {key: forged} for forged in forgeries(value[key], depth + 1))
    elif isinstance(value, list):
        for i in range(len(value)):
            yield from (
                [*value[:i], forged, *value[i + 1 :]] for forged in forgeries(value[i], depth + 1)
            )
    if depth:
        yield from FORGED
        yield [value]


@pytest.mark.parametrize(("name", "step"), [("small_cnn", 1), ("vit", 11)])
def test_a_forged_description_builds_a_network_or_is_refused_in_a_sentence(name, step):
    model = as_logits(atta.Normalized(REBUILT[name](), [0.5] * 3, [0.2] * 3))
    description = json.loads(json.dumps(describe(model)))
    assert describe(build(description)) == description
    refused = 0
    for forged in islice(forgeries(description), 0, None, step):
        try:
            with torch.device("meta"):  # as `CalibratedClassifier.load`: sizes fill no memory
                assert isinstance(build(forged), nn.Module)
        except InputError:
            refused += 1
    assert refused > 20
    for wrong in ({}, {"kind": None}, {"model": description}):
        with pytest.raises(InputError, match="expected a network as atta describes it"):
            build(wrong)
    for _ in range(5000):
        description = {"kind": "TorchModel", "model": description}
    with pytest.raises(InputError, match="expected a network as atta describes it"):
        build(description)


def test_no_size_of_a_network_fills_the_memory():
    for settings in ({"num_classes": 10**12}, {"num_classes": 0}, small_in(10**9), small_in(-1)):
        with pytest.raises(InputError, match="s must be a whole number ≥ 1 and ≤ 100000"):
            resnet18(**settings)
    for settings in (
        {"num_classes": "10"},
        small_in([3]),
        {"num_classes": 2, "small_images": "no"},
    ):
        with pytest.raises(InputError):
            build({"kind": "atta", "name": "resnet18", **settings})


def small_in(channels):
    return {"num_classes": 2, "in_channels": channels}
