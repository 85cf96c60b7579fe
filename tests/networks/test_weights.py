"""Weights come back exactly, and files that do not fit or are not safetensors are refused."""

import pytest
import torch
from torch import nn

from atta._base.errors import InputError
from atta.networks.adapters import Normalized
from atta.networks.description import load_weights, save_weights
from atta.networks.resnet import resnet18, small_cnn


def same(a: nn.Module, b: nn.Module) -> bool:
    return all(
        torch.equal(x, y)
        for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    )


def test_weights_come_back_exactly(tmp_path):
    model, other = small_cnn(4).to(memory_format=torch.channels_last), small_cnn(4)
    save_weights(model, tmp_path / "deep" / "model.safetensors", {"origin": "test"})
    load_weights(other, tmp_path / "deep" / "model.safetensors")
    assert same(model, other)
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["model.safetensors"]


def test_tied_weights_can_be_saved(tmp_path):
    def tied():
        first = nn.Linear(3, 3)
        second = nn.Linear(3, 3)
        second.weight = first.weight
        return nn.Sequential(first, second)

    model, other = tied(), tied()
    save_weights(model, tmp_path / "tied.safetensors")
    load_weights(other, tmp_path / "tied.safetensors")
    assert same(model, other)


def test_weights_that_do_not_fit_are_named(tmp_path):
    path = tmp_path / "model.safetensors"
    save_weights(nn.ModuleDict({"a": nn.Linear(2, 3), "b": nn.Linear(2, 2)}), path)
    with pytest.raises(InputError) as error:
        load_weights(nn.ModuleDict({"a": nn.Linear(2, 2), "c": nn.Linear(2, 2)}), path)
    for part in (
        "a.weight is (3, 2) there and (2, 2) in the",
        "b.bias is (2,) there and missing in the model",
        "; and 2 more",
    ):
        assert part in str(error.value)


def test_many_faults_are_counted_rather_than_listed(tmp_path):
    save_weights(small_cnn(4), tmp_path / "model.safetensors")
    with pytest.raises(InputError, match=r"0.weight is .* there and missing .*; and \d+ more"):
        load_weights(resnet18(4), tmp_path / "model.safetensors")


def test_files_that_are_missing_broken_or_pickled_are_refused(tmp_path):
    with pytest.raises(InputError, match="there is no file"):
        load_weights(small_cnn(2), tmp_path / "none.safetensors")
    torch.save(small_cnn(2).state_dict(), tmp_path / "model.pt")
    (tmp_path / "broken.safetensors").write_bytes(b"")
    for name in ("broken.safetensors", "model.pt"):
        with pytest.raises(InputError, match="not a whole safetensors file"):
            load_weights(small_cnn(2), tmp_path / name)


def test_normalisation_travels_with_the_weights(tmp_path):
    save_weights(
        Normalized(small_cnn(2), (0.1, 0.2, 0.3), (1.0, 2.0, 3.0)), tmp_path / "model.safetensors"
    )
    other = Normalized(small_cnn(2), (0.0,) * 3, (1.0,) * 3)
    load_weights(other, tmp_path / "model.safetensors")
    assert other.mean.tolist() == pytest.approx([0.1, 0.2, 0.3])
