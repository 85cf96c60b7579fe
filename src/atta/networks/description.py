"""What a network is built from, as JSON, so that a saved one can be built again without running anything from the file.

| network                                    | description                                        | built again          |
|--------------------------------------------|----------------------------------------------------|----------------------|
| atta's adapters (`Normalized`, ...)        | their settings, around that of the network inside  | by itself            |
| `atta.networks.resnet.MODELS`              | the name and its settings                          | by itself            |
| an image classifier of Hugging Face        | its class and configuration                        | by itself            |
| anything else                              | the name of its class                              | from a given `model` |
"""

import json
from typing import Any

from torch import nn

from atta.errors import InputError
from atta.networks.adapters import FromProbabilities, Normalized, NumpyModel, OnnxModel, TorchModel, as_logits
from atta.networks.resnet import MODELS

CLASSIFIERS = "ForImageClassification"  # what the names of Hugging Face's classes of classifiers end in


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
        # Which a configuration leaves out, and rounds otherwise.
        if getattr(config, "_attn_implementation", None) == "eager":
            settings["attn_implementation"] = "eager"
        return {"kind": "transformers", "class": type(model).__name__, "config": settings}
    return {"kind": "other", "class": f"{type(model).__module__}.{type(model).__qualname__}"}


def build(description: dict[str, Any], model: object = None) -> nn.Module:
    """Build the network that `describe` described, without its weights; `model` is it, or stands for the network inside."""
    if model is not None:
        whole = as_logits(model)
        same = describe(whole)["kind"] == description["kind"] and _depth(describe(whole)) == _depth(description)
        return whole if same else _around(description, model)
    return _around(description, None)


def _around(description: dict[str, Any], model: object) -> nn.Module:
    match description["kind"]:
        case "TorchModel":
            return TorchModel(_around(description["model"], model))
        case "FromProbabilities":
            return FromProbabilities(_around(description["model"], model))
        case "Normalized":
            inner, channels = _around(description["model"], model), description.get("channels", "RGB")
            return Normalized(inner, description["mean"], description["std"], channels)
    if model is not None:
        return model if isinstance(model, nn.Module) else as_logits(model)
    match description["kind"]:
        case "atta":
            settings = {key: value for key, value in description.items() if key not in ("kind", "name")}
            return MODELS[description["name"]](**settings)
        case "transformers":
            return _transformer(description["class"], description["config"])
    raise InputError(
        f"expected model=... (--model package.module:name on the command line), a {description['class']} to load the weights "
        "into: its code is not in the file, and nothing in a file is ever run"
    )


def _transformer(name: str, config: dict[str, Any]) -> nn.Module:
    try:
        import transformers
    except (ImportError, RuntimeError) as error:  # a broken torchvision beside it fails at import, too
        raise InputError(f"a {name} needs the transformers library: pip install transformers ({error})") from error
    if not name.endswith(CLASSIFIERS) or not hasattr(transformers, name):
        raise InputError(f"expected an image classifier of transformers {transformers.__version__}, got {name!r}")
    network = getattr(transformers, name)(transformers.AutoConfig.for_model(**config))
    assert isinstance(network, nn.Module)
    return network


def _depth(description: dict[str, Any]) -> list[str]:
    """The adapters, from the outside in."""
    inner = description.get("model")
    return [description["kind"], *_depth(inner)] if isinstance(inner, dict) else []


def has_weights(model: nn.Module) -> bool:
    """Whether the weights of a model are its own tensors; an ONNX file or a function keeps them elsewhere."""
    return not any(isinstance(module, OnnxModel | NumpyModel) for module in model.modules())
