"""A network in files: described as JSON, its weights as safetensors, and a hash of it.

The description builds a saved network again, without running code from a file.

| network                             | description                         | built again          |
|-------------------------------------|-------------------------------------|----------------------|
| atta's adapters (`Normalized`, ...) | settings, and the network inside    | by itself            |
| `atta.networks.resnet.MODELS`       | name and settings                   | by itself            |
| an image classifier of Hugging Face | class and configuration             | by itself            |
| anything else                       | name of its class                   | from a given `model` |
"""

import json
from collections.abc import Callable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from atta._base.errors import InputError, first_line
from atta._base.files import content_hash
from atta._base.tensors import read_tensors, tensor_bytes, write_tensors
from atta.networks.adapters import (
    Dense,
    FromProbabilities,
    Normalized,
    NumpyModel,
    OnnxModel,
    TorchModel,
    as_logits,
)
from atta.networks.resnet import MODELS

ADAPTERS: dict[str, Callable[..., nn.Module]] = {
    "Dense": Dense,
    "FromProbabilities": FromProbabilities,
    "Normalized": Normalized,
    "TorchModel": TorchModel,
}
DTYPES = ("float32", "float16", "bfloat16", "float64")
"""The precisions that a file may name; any other attribute of torch is refused."""
CLASSIFIERS = ("ForImageClassification", "ForSemanticSegmentation")
"""How Hugging Face's names of classifiers end."""
ATTENTION = ("eager", "sdpa")  # transformers looks up other names on the hub and runs the code
ORIGIN = ("_name_or_path", "name_or_path", "transformers_version")  # settings that build nothing
LAYERS, LARGEST = 1000, 10**9  # no forged number keeps the computer busy for hours
LABELS = ("id2label", "label2id")  # class names, which may be any text
CODE = {
    "auto_map",
    "backbone",
    "custom_pipelines",
    "kernel_config",
    "quantization_config",
    "trust_remote_code",
    "use_kernels",
    "use_pretrained_backbone",
}
"""Settings that name code to run or to download."""


def describe(model: nn.Module) -> dict[str, Any]:
    """Describe `model` in words and numbers."""
    settings: dict[str, Any] = {}
    if isinstance(model, Dense):
        settings = {"multiple": model.multiple}
    if isinstance(model, Normalized):
        settings = {"mean": model.mean.tolist(), "std": model.std.tolist()}
        settings |= {} if model.channels == "RGB" else {"channels": model.channels}
    if isinstance(model, Normalized | TorchModel | FromProbabilities):
        return {"kind": type(model).__name__, **settings, "model": describe(model.model)}
    built = getattr(model, "built", None)
    if isinstance(built, dict) and built.get("name") in MODELS:
        return {"kind": "atta", **built}
    config = getattr(model, "config", None)
    if type(model).__name__.endswith(CLASSIFIERS) and config is not None:
        settings = json.loads(config.to_json_string())
        for name in ("_name_or_path", "auto_map"):  # places on this machine or on a hub
            settings.pop(name, None)
        # A configuration leaves this out, and the other implementation rounds differently.
        if getattr(config, "_attn_implementation", None) == "eager":
            settings["attn_implementation"] = "eager"
        return {"kind": "transformers", "class": type(model).__name__, "config": settings}
    return {"kind": "other", "class": f"{type(model).__module__}.{type(model).__qualname__}"}


def _nested(description: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The descriptions of the adapters, from the outside in, and last of the network."""
    found = [description]
    while isinstance(inner := found[-1].get("model"), dict):
        found.append(inner)
    return found


def inside(description: Mapping[str, Any]) -> Mapping[str, Any]:
    """The description of the network inside all adapters."""
    return _nested(description)[-1]


def build(description: Mapping[str, Any], model: object = None) -> nn.Module:
    """Build the described network without its weights; `model` is it, or the network inside."""
    whole = None if model is None else as_logits(model)
    try:
        if whole is not None:
            own, said = (
                [one["kind"] for one in _nested(each)[:-1]]
                for each in (describe(whole), description)
            )
            if own == said:  # the same adapters
                return whole
        return _around(description, model)
    except InputError:
        raise
    except Exception as error:  # forged values can raise anything
        raise InputError(
            "expected a network as atta describes it, got a description that builds none: "
            f"{type(error).__name__} {first_line(error)}"
        ) from error


def _around(description: Mapping[str, Any], model: object) -> nn.Module:
    """Build the adapters around `model` or, without one, around the described network."""
    match dict(description):
        case {"kind": str(kind), "model": inner, **settings} if kind in ADAPTERS:
            return ADAPTERS[kind](_around(inner, model), **settings)
        case _ if model is not None:
            return model if isinstance(model, nn.Module) else as_logits(model)
        case {"kind": "atta", "name": name, **settings}:
            return MODELS[name](**settings)
        case {"kind": "transformers", "class": name, "config": config}:
            return _transformer(name, config)
    if description["class"].endswith(".OnnxModel"):
        raise InputError(
            "expected model=... (--model network.onnx on the command line), the ONNX file that "
            "this classifier was calibrated with"
        )
    raise InputError(
        "expected model=... (--model package.module:name on the command line), the network that "
        f"this classifier was calibrated with, of class {description['class']}: its code is not in "
        "the file, and atta never runs code from a file"
    )


def _transformer(name: Any, config: Any) -> nn.Module:
    """Build an image classifier of Hugging Face from its class and configuration."""
    try:
        import transformers
    except (ImportError, RuntimeError) as error:  # a broken torchvision also fails this import
        raise InputError(
            f"a {name} needs the transformers library: pip install transformers ({error})"
        ) from error
    version = transformers.__version__
    known = isinstance(name, str) and name.endswith(CLASSIFIERS) and hasattr(transformers, name)
    if not known:
        raise InputError(f"expected an image classifier of transformers {version}, got {name!r}")
    if not isinstance(config, dict):
        raise InputError(
            f"expected the configuration of a network as a table, got {type(config).__name__}"
        )
    settings = _harmless("config", config)
    try:
        network = getattr(transformers, name)(transformers.AutoConfig.for_model(**settings))
        assert isinstance(network, nn.Module)
    except Exception as error:  # every class of transformers checks its settings in its own way
        raise InputError(
            f"transformers {version} cannot build a {name}: {first_line(error)}"
        ) from error
    return network


def _harmless(key: str, value: Any) -> Any:
    """Refuse huge numbers and what names code, a hub or a path; drop where settings came from."""
    choices: tuple[str, ...] = ()
    if key.endswith("_implementation"):
        choices = ATTENTION
    elif key in ("dtype", "torch_dtype"):
        choices = DTYPES
    if key in CODE and value:
        raise InputError(
            f"expected settings of a network, but its {key} names code to run or to download: "
            "refused"
        )
    if isinstance(value, dict):
        return {
            # A table of choices has one for each part of a network.
            name: each if name in LABELS else _harmless(key if choices else name, each)
            for name, each in value.items()
            if name not in ORIGIN
        }
    if isinstance(value, list):
        return [_harmless(key, each) for each in value]
    if choices and value is not None and str(value) not in choices:
        raise InputError(
            f"expected {key} to be {' or '.join(choices)}, got {value!r}: "
            "another value could name code to download"
        )
    most = LAYERS if "layer" in key or "depth" in key else LARGEST
    if isinstance(value, int | float) and not -most <= value <= most:
        raise InputError(f"expected {key} of at most {most}, got {value}: refused")
    if isinstance(value, str) and any(mark in value for mark in "/\\:"):
        raise InputError(
            f"expected settings of a network, but its {key} names a place to download from, "
            f"{value!r}: refused"
        )
    return value


def says_weights(description: Mapping[str, Any]) -> bool:
    """Whether a file with this description also has the weights of the network."""
    return not str(inside(description).get("class")).endswith((".OnnxModel", ".NumpyModel"))


def has_weights(model: nn.Module) -> bool:
    """Whether the weights are tensors of the model, and not in an ONNX file or a function."""
    return not any(isinstance(module, OnnxModel | NumpyModel) for module in model.modules())


# ---- weights -------------------------------------------------------------------------------------


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
