"""Weights go out and come back exactly, and what does not fit, or could run code, is refused."""

import pickle

import pytest
import torch
from torch import nn

from atta._base.errors import InputError
from atta.networks.adapters import Normalized
from atta.networks.resnet import resnet18, small_cnn
from atta.networks.weights import load_weights, save_weights


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


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "module._orig_mod."])
def test_a_torch_file_loads_whatever_wrapped_the_model(tmp_path, prefix):
    model, other = small_cnn(4), small_cnn(4)
    torch.save(
        {prefix + name: value for name, value in model.state_dict().items()}, tmp_path / "model.pt"
    )
    load_weights(other, tmp_path / "model.pt")
    assert same(model, other)


def test_a_module_truly_called_module_keeps_its_name(tmp_path):
    model = nn.ModuleDict({"module": nn.Linear(2, 2)})
    save_weights(model, tmp_path / "model.safetensors")
    load_weights(model, tmp_path / "model.safetensors")


def test_weights_inside_a_checkpoint_need_their_key(tmp_path):
    model, other = small_cnn(4), small_cnn(4)
    torch.save({"epoch": 3, "state_dict": model.state_dict()}, tmp_path / "checkpoint.pt")
    with pytest.raises(
        InputError, match="found the keys epoch, state_dict; name the one with `key`"
    ):
        load_weights(other, tmp_path / "checkpoint.pt")
    with pytest.raises(InputError, match="under 'model'"):
        load_weights(other, tmp_path / "checkpoint.pt", key="model")
    load_weights(other, tmp_path / "checkpoint.pt", key="state_dict")
    assert same(model, other)


def test_weights_that_do_not_fit_are_named(tmp_path):
    path = tmp_path / "model.safetensors"
    save_weights(nn.ModuleDict({"a": nn.Linear(2, 3), "b": nn.Linear(2, 2)}), path)
    with pytest.raises(InputError) as error:
        load_weights(nn.ModuleDict({"a": nn.Linear(2, 2), "c": nn.Linear(2, 2)}), path)
    for part in (
        "it lacks c.bias, c.weight",
        "has no b.bias, b.weight",
        "a.weight is (3, 2) there and (2, 2) in the",
    ):
        assert part in str(error.value)


def test_many_faults_are_counted_rather_than_listed(tmp_path):
    save_weights(small_cnn(4), tmp_path / "model.safetensors")
    with pytest.raises(InputError, match=r"it lacks bn1.bias, .* and \d+ more"):
        load_weights(resnet18(4), tmp_path / "model.safetensors")


class Dangerous:
    def __reduce__(self):
        return print, ("this must never be printed",)


def test_a_pickle_is_refused_and_never_run(tmp_path, capsys):
    torch.save({"weight": Dangerous()}, tmp_path / "model.pt")
    (tmp_path / "plain.pkl").write_bytes(pickle.dumps(Dangerous(), protocol=2))
    for name in ("model.pt", "plain.pkl"):
        with pytest.raises(InputError, match="could run code"):
            load_weights(small_cnn(2), tmp_path / name)
    assert capsys.readouterr().out == ""


def test_files_that_are_missing_or_broken_are_named(tmp_path):
    with pytest.raises(InputError, match="found none at"):
        load_weights(small_cnn(2), tmp_path / "none.safetensors")
    for name in ("broken.safetensors", "broken.pt"):
        (tmp_path / name).write_bytes(b"")
        with pytest.raises(InputError, match="cannot be read"):
            load_weights(small_cnn(2), tmp_path / name)
    torch.save(torch.zeros(3), tmp_path / "tensor.pt")
    with pytest.raises(InputError, match="found a Tensor"):
        load_weights(small_cnn(2), tmp_path / "tensor.pt")


def test_normalisation_travels_with_the_weights(tmp_path):
    save_weights(
        Normalized(small_cnn(2), (0.1, 0.2, 0.3), (1.0, 2.0, 3.0)), tmp_path / "model.safetensors"
    )
    other = Normalized(small_cnn(2), (0.0,) * 3, (1.0,) * 3)
    load_weights(other, tmp_path / "model.safetensors")
    assert other.mean.tolist() == pytest.approx([0.1, 0.2, 0.3])
