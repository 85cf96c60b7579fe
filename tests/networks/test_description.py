"""What a network is built from, as JSON, and the same network from it."""

import json

import pytest
from torch import nn

import atta
from atta.networks.adapters import NumpyModel, TorchModel, as_logits
from atta.networks.description import build, describe, has_weights
from atta.types import InputError
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
