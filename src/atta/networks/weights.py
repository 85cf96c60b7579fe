"""Weights of a network in a safetensors file, and the hash of a model (`fingerprint`)."""

from collections.abc import Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from atta._base.errors import InputError
from atta._base.files import content_hash
from atta._base.tensors import read_tensors, tensor_bytes, write_tensors
from atta.networks.adapters import NumpyModel, OnnxModel


def save_weights(
    model: nn.Module, path: str | Path, metadata: Mapping[str, str] | None = None
) -> None:
    """Write the weights as safetensors, completely or not at all."""
    write_tensors(path, _unwrapped(model).state_dict(), metadata or {})


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Load what `save_weights` wrote; every name and shape must be the model's own."""
    weights = read_tensors(path)[0]
    model = _unwrapped(model)
    check_weights(model, weights, path)
    model.load_state_dict(weights)


def check_weights(
    model: nn.Module, weights: Mapping[str, Tensor], path: str | PathLike[str]
) -> None:
    """Refuse a state dict, read from `path`, with other names or shapes than the model."""
    own, there = (
        {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        for tensors in (model.state_dict(), weights)
    )
    faults = [
        f"{name} is {there.get(name, 'missing')} there and {own.get(name, 'missing')} in the model"
        for name in sorted(own.keys() | there.keys())
        if own.get(name) != there.get(name)
    ]
    if faults:
        more = f"; and {len(faults) - 4} more" if len(faults) > 4 else ""
        raise InputError(f"expected {path} to fit the model: {'; '.join(faults[:4])}{more}")


def _unwrapped(model: nn.Module) -> nn.Module:
    """The module inside torch.compile's wrapper."""
    return getattr(model, "_orig_mod", model)


def fingerprint(model: nn.Module) -> str:
    """Hash the layers and every weight, the file of an ONNX model, the name of a bare function."""
    return content_hash(_content(model), "blake2b")


def _content(model: nn.Module) -> Iterator[str | Any]:
    """Yield what `fingerprint` hashes."""
    for name, module in model.named_modules():
        yield f"{name}:{type(module).__qualname__};"
        if isinstance(module, OnnxModel):
            yield module.path.read_bytes()
        if isinstance(module, NumpyModel):
            yield getattr(module.fn, "__qualname__", type(module.fn).__qualname__)
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        yield f"{name}:{tensor.dtype}{tuple(tensor.shape)};"
        yield tensor_bytes(tensor)
