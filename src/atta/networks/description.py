"""What a network is built from, as JSON, so that a saved one can be built again without running anything from the file.

| network                                    | description                                        | built again          |
|--------------------------------------------|----------------------------------------------------|----------------------|
| atta's adapters (`Normalized`, ...)        | their settings, around that of the network inside  | by itself            |
| `atta.networks.resnet.MODELS`              | the name and its settings                          | by itself            |
| an image classifier of Hugging Face        | its class and configuration                        | by itself            |
| anything else                              | the name of its class                              | from a given `model` |
"""

import json
from collections.abc import Mapping
from typing import Any

from torch import nn

from atta._base.errors import InputError, first_line
from atta.networks.adapters import (
    FromProbabilities,
    Normalized,
    NumpyModel,
    OnnxModel,
    TorchModel,
    as_logits,
)
from atta.networks.resnet import MODELS

CLASSIFIERS = (
    "ForImageClassification"  # what the names of Hugging Face's classes of classifiers end in
)
DTYPES = ("float32", "float16", "bfloat16", "float64")
"""The precisions that a file may name: any other attribute of torch is none."""
ATTENTION = (
    "eager",
    "sdpa",
)  # transformers looks for any other name on the hub, and runs what it finds
ORIGIN = (
    "_name_or_path",
    "name_or_path",
    "transformers_version",
)  # where a configuration came from, which builds nothing
LABELS = ("id2label", "label2id")  # names of classes, which may be any text
CODE = {
    "auto_map",
    "backbone",
    "custom_pipelines",
    "kernel_config",
    "quantization_config",
    "trust_remote_code",
}
CODE |= {"use_kernels", "use_pretrained_backbone"}
WEIGHTLESS = tuple(
    f"atta.{home}.{kind.__qualname__}"
    for home in ("networks.adapters", "models")
    for kind in (OnnxModel, NumpyModel)
)
"""The classes whose weights lie elsewhere, under the names that they have and had."""


def describe(model: nn.Module) -> dict[str, Any]:
    """Say in plain words and numbers what `model` is."""
    match model:
        case Normalized():
            return {
                "kind": "Normalized",
                "mean": model.mean.tolist(),
                "std": model.std.tolist(),
                **({} if model.channels == "RGB" else {"channels": model.channels}),
                "model": describe(model.model),
            }
        case TorchModel() | FromProbabilities():
            return {"kind": type(model).__name__, "model": describe(model.model)}
    built = getattr(model, "built", None)
    if isinstance(built, dict) and built.get("name") in MODELS:
        return {"kind": "atta", **built}
    config = getattr(model, "config", None)
    if type(model).__name__.endswith(CLASSIFIERS) and config is not None:
        settings = json.loads(config.to_json_string())
        for name in (
            "_name_or_path",
            "auto_map",
        ):  # a place on this machine or a hub, which a file must not name
            settings.pop(name, None)
        # Which a configuration leaves out, and rounds otherwise.
        if getattr(config, "_attn_implementation", None) == "eager":
            settings["attn_implementation"] = "eager"
        return {"kind": "transformers", "class": type(model).__name__, "config": settings}
    return {"kind": "other", "class": f"{type(model).__module__}.{type(model).__qualname__}"}


def builds_itself(description: Mapping[str, Any]) -> bool:
    """Whether `build` needs no `model` for it."""
    while "model" in description:
        description = description["model"]
    return bool(description["kind"] != "other")


def build(description: dict[str, Any], model: object = None) -> nn.Module:
    """Build the network that `describe` described, without its weights; `model` is it, or stands for the network inside."""
    if model is not None:
        whole = as_logits(model)
        same = describe(whole)["kind"] == description["kind"] and _depth(describe(whole)) == _depth(
            description
        )
        return whole if same else _around(description, model)
    return _around(description, None)


def _around(description: dict[str, Any], model: object) -> nn.Module:
    match description["kind"]:
        case "TorchModel":
            return TorchModel(_around(description["model"], model))
        case "FromProbabilities":
            return FromProbabilities(_around(description["model"], model))
        case "Normalized":
            inner, channels = (
                _around(description["model"], model),
                description.get("channels", "RGB"),
            )
            return Normalized(inner, description["mean"], description["std"], channels)
    if model is not None:
        return model if isinstance(model, nn.Module) else as_logits(model)
    match description["kind"]:
        case "atta":
            settings = {
                key: value for key, value in description.items() if key not in ("kind", "name")
            }
            return MODELS[description["name"]](**settings)
        case "transformers":
            return _transformer(description["class"], description["config"])
    if (
        description["class"].endswith(f".{OnnxModel.__qualname__}")
        and description["class"] in WEIGHTLESS
    ):
        raise InputError(
            "expected model=... (--model network.onnx on the command line), the ONNX file that it was fitted with"
        )
    raise InputError(
        f"expected model=... (--model package.module:name on the command line), {description['class']}, to load the weights "
        "into: its code is not in the file, and nothing in a file is ever run"
    )


def _transformer(name: str, config: dict[str, Any]) -> nn.Module:
    try:
        import transformers
    except (
        ImportError,
        RuntimeError,
    ) as error:  # a broken torchvision beside it fails at import, too
        raise InputError(
            f"a {name} needs the transformers library: pip install transformers ({error})"
        ) from error
    if (
        not isinstance(name, str)
        or not name.endswith(CLASSIFIERS)
        or not hasattr(transformers, name)
    ):
        raise InputError(
            f"expected an image classifier of transformers {transformers.__version__}, got {name!r}"
        )
    settings = _without_code(config)
    try:
        network = getattr(transformers, name)(transformers.AutoConfig.for_model(**settings))
        assert isinstance(network, nn.Module)
    except (
        Exception
    ) as error:  # each of its classes checks its configuration in its own way, or not at all
        raise InputError(
            f"transformers {transformers.__version__} cannot build a {name}: {first_line(error)}"
        ) from error
    return network


def _without_code(config: Any) -> dict[str, Any]:
    """A configuration from a file, without where it came from; what names code, a hub or a path is refused, at any depth."""
    if not isinstance(config, dict):
        raise InputError(
            f"expected the configuration of a network as a table, got {type(config).__name__}"
        )
    return {
        key: value if key in LABELS else _setting(key, value)
        for key, value in config.items()
        if key not in ORIGIN
    }


def _setting(key: str, value: Any) -> Any:
    choices = (
        ATTENTION
        if key.endswith("_implementation")
        else DTYPES
        if key in ("dtype", "torch_dtype")
        else ()
    )
    if key in CODE and value:
        raise InputError(
            f"expected settings of a network, and its {key} names code to run or to fetch: refused"
        )
    if isinstance(value, dict):  # of some choices, there is one for each part of a network
        return (
            {part: _setting(key, one) for part, one in value.items()}
            if choices
            else _without_code(value)
        )
    if isinstance(value, list):
        return [_setting(key, one) for one in value]
    if choices and value is not None and str(value) not in choices:
        raise InputError(
            f"expected {key} to be {' or '.join(choices)}, got {value!r}: another could name code to fetch"
        )
    if isinstance(value, str) and any(mark in value for mark in "/\\:"):
        raise InputError(
            f"expected settings of a network, and its {key} names a place to fetch from, {value!r}: refused"
        )
    return value


def _depth(description: dict[str, Any]) -> list[str]:
    """The adapters, from the outside in."""
    inner = description.get("model")
    return [description["kind"], *_depth(inner)] if isinstance(inner, dict) else []


def says_weights(description: Mapping[str, Any]) -> bool:
    """Whether a file that describes the network so has its weights, too."""
    inner = description.get("model")
    return (
        says_weights(inner)
        if isinstance(inner, dict)
        else description.get("class") not in WEIGHTLESS
    )


def has_weights(model: nn.Module) -> bool:
    """Whether the weights of a model are its own tensors; an ONNX file or a function keeps them elsewhere."""
    return not any(isinstance(module, OnnxModel | NumpyModel) for module in model.modules())
