"""The weights of a network on disk: out as safetensors, in from safetensors or from a `torch.save`d state dict.

Nothing is pickled, and a pickle is read for its tensors alone. Every name and shape must be the network's own.
"""

import hashlib
import pickle
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from atta._base.errors import InputError, first_line
from atta._base.tensors import read_tensors, tensor_bytes, write_tensors
from atta.networks.adapters import NumpyModel, OnnxModel


def save_weights(
    model: nn.Module, path: str | Path, metadata: Mapping[str, str] | None = None
) -> None:
    """Write the weights as safetensors, whole or not at all."""
    model = getattr(model, "_orig_mod", model)  # what torch.compile wrapped
    write_tensors(path, copied(model.state_dict()), metadata or {})


def copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies on the CPU: safetensors refuses tensors that share memory, and tied weights do."""
    layout = torch.contiguous_format
    return {
        name: tensor.detach().cpu().clone(memory_format=layout) for name, tensor in tensors.items()
    }


def load_weights(model: nn.Module, path: str | Path, key: str | None = None) -> None:
    """Load a safetensors file, or a `torch.save`d state dict (under `key`, if it lies inside a larger checkpoint).

    Every name and shape must match; the prefixes that DataParallel and torch.compile add are taken off.
    """
    weights = _read_weights(Path(path))
    if key is not None:
        if not isinstance(weights.get(key), Mapping):
            raise InputError(
                f"expected a state dict under {key!r} in {path}, found the keys {_some(weights)}"
            )
        weights = weights[key]
    if not weights or not all(isinstance(value, Tensor) for value in weights.values()):
        raise InputError(
            f"expected a state dict in {path}, found the keys {_some(weights)}; name the one with `key`"
        )
    model = getattr(model, "_orig_mod", model)
    own = model.state_dict()
    weights = {_stripped(name, own): value for name, value in weights.items()}
    check_weights(model, weights, path)
    model.load_state_dict(weights)


def check_weights(
    model: nn.Module, weights: Mapping[str, Tensor], path: str | PathLike[str]
) -> None:
    """Make sure that each name and shape of a state dict, which comes from `path`, is the model's own."""
    own = model.state_dict()
    faults = []
    if missing := own.keys() - weights.keys():
        faults.append(f"it lacks {_some(missing)}")
    if unexpected := weights.keys() - own.keys():
        faults.append(f"the model has no {_some(unexpected)}")
    for name in sorted(own.keys() & weights.keys()):
        if own[name].shape != weights[name].shape:
            faults.append(
                f"{name} is {tuple(weights[name].shape)} there and {tuple(own[name].shape)} in the model"
            )
    if faults:
        more = f"; and {len(faults) - 4} more" if len(faults) > 4 else ""
        raise InputError(f"expected {path} to fit the model: {'; '.join(faults[:4])}{more}")


def _read_weights(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        raise InputError(f"expected a file of weights, found none at {path}")
    try:
        if path.suffix == ".safetensors":
            return read_tensors(path)[0]
        weights = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise InputError(
            f"expected only tensors in {path}, found other Python objects, and reading those could run code; "
            "save model.state_dict() instead of the model"
        ) from error
    except (
        Exception
    ) as error:  # a damaged pickle fails in as many ways as there are instructions in one
        raise InputError(
            f"expected weights in {path}, but the file cannot be read: {first_line(error)}"
        ) from error
    if not isinstance(weights, Mapping):
        raise InputError(f"expected a state dict in {path}, found a {type(weights).__name__}")
    return dict(weights)


def _stripped(name: str, own: Mapping[str, Any]) -> str:
    while name not in own and name.startswith(("module.", "_orig_mod.")):
        name = name.split(".", 1)[1]
    return name


def _some(names: Any) -> str:
    names = sorted(map(str, names))
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def fingerprint(model: nn.Module) -> str:
    """A hash of the kinds of layers and of every weight; of an ONNX model's file. A bare function shows its name only."""
    digest = hashlib.blake2b(digest_size=16)
    for name, module in model.named_modules():
        digest.update(f"{name}:{type(module).__qualname__};".encode())
        if isinstance(module, OnnxModel):
            digest.update(module.path.read_bytes())
        if isinstance(module, NumpyModel):
            digest.update(getattr(module.fn, "__qualname__", type(module.fn).__qualname__).encode())
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        digest.update(f"{name}:{tensor.dtype}{tuple(tensor.shape)};".encode())
        digest.update(tensor_bytes(tensor))
    return digest.hexdigest()
