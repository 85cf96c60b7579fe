"""A trained network on disk: the weights, what they were made of, and on the way a checkpoint to go on from.

folder/
    model.safetensors   weights, and in the header architecture, dataset, normalisation, recipe, seed, accuracy, history
    checkpoint.pt       weights, momentum and history so far; gone when the model is there
"""

import json
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from atta._base.errors import InputError
from atta._base.files import whole_file
from atta.lab.training.recipe import Recipe
from atta.networks.adapters import Normalized
from atta.networks.resnet import MODELS
from atta.networks.weights import load_weights, save_weights


def load_trained(
    path: str | Path, model: nn.Module | None = None
) -> tuple[Normalized, dict[str, Any]]:
    """Rebuild what `train` wrote, in evaluation mode, with what is known about it.

    A network of your own cannot be rebuilt from a file: give it as `model`.
    """
    metadata = read_metadata(Path(path))
    if model is None:
        name = metadata["architecture"].get("name")
        if name not in MODELS:
            raise InputError(
                f"expected one of {', '.join(MODELS)} in {path}, found {name!r}: give the model as well"
            )
        settings = {key: value for key, value in metadata["architecture"].items() if key != "name"}
        model = MODELS[name](**settings)
    load_weights(model, path)
    return Normalized(model, metadata["mean"], metadata["std"]).eval(), metadata


def check_trained(
    metadata: Mapping[str, Any],
    path: Path,
    *,
    model: str,
    dataset: str,
    recipe: Recipe,
    seed: int,
    image_size: int | None = None,
) -> None:
    """Refuse a finished network that was trained otherwise; what the images alone decide is taken as it is."""
    settings = {key: value for key, value in asdict(recipe).items() if value is not None}
    expected = {
        "architecture": {**metadata["architecture"], "name": model},
        "dataset": dataset,
        "recipe": {**metadata["recipe"], **settings},
        "seed": seed,
    }
    if image_size is not None:
        expected["shape"] = [*metadata["shape"][:1], image_size, image_size]
    _check_same_run(path, metadata, expected)


def about(metadata: Mapping[str, Any]) -> dict[str, str]:
    """What the origin of a record says of a trained network."""
    return {
        "model": metadata["architecture"].get("name", "network"),
        "trained_on": metadata["dataset"],
        "training_seed": json.dumps(metadata["seed"]),
        "recipe": json.dumps(metadata["recipe"]),
    }


@dataclass(frozen=True)
class RunFolder:
    """Where a run of training keeps its files, and what the run is made of: files of another run are refused."""

    path: Path
    metadata: Mapping[str, Any]

    @property
    def model(self) -> Path:
        """The finished model."""
        return self.path / "model.safetensors"

    @property
    def checkpoint(self) -> Path:
        """What a run that was stopped goes on from."""
        return self.path / "checkpoint.pt"

    def load_finished(self, network: nn.Module) -> dict[str, Any] | None:
        """Load the finished weights into the network and give their metadata; None where there are none yet."""
        if not self.model.is_file():
            return None
        found = read_metadata(self.model)
        _check_same_run(self.model, found, self.metadata)
        load_weights(network, self.model)
        return found

    def resume(self, network: nn.Module, optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
        """Go on from the checkpoint, if there is one; give the rows of the epochs that are done."""
        if not self.checkpoint.is_file():
            return []
        try:
            state = torch.load(self.checkpoint, map_location="cpu", weights_only=True)
            found = json.loads(state["metadata"])
        except (pickle.UnpicklingError, RuntimeError, EOFError, KeyError, TypeError) as error:
            raise InputError(
                f"expected a checkpoint of `train` at {self.checkpoint}, but it cannot be read: {error}"
            ) from error
        _check_same_run(self.checkpoint, found, self.metadata)
        network.load_state_dict(state["network"])
        optimizer.load_state_dict(state["optimizer"])
        history: list[dict[str, Any]] = state["history"]
        return history

    def write_checkpoint(
        self,
        network: nn.Module,
        optimizer: torch.optim.Optimizer,
        history: Sequence[Mapping[str, Any]],
    ) -> None:
        """Keep what is done so far."""
        state = {"network": network.state_dict(), "optimizer": optimizer.state_dict()}
        with (
            whole_file(self.checkpoint) as part,
            part.open("wb") as file,
        ):  # given a path, torch does not tell why it failed
            torch.save(
                state | {"history": list(history), "metadata": json.dumps(self.metadata)}, file
            )

    def finish(self, network: nn.Module, metadata: Mapping[str, Any]) -> None:
        """Write the model; the checkpoint has served."""
        save_weights(network, self.model, {"atta": json.dumps(metadata)})
        self.checkpoint.unlink(missing_ok=True)


def _check_same_run(path: Path, found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    expected = json.loads(json.dumps(expected))
    for key, value in expected.items():
        there = found.get(key)
        if there == value:
            continue
        if isinstance(there, dict) and isinstance(
            value, dict
        ):  # of a recipe, only what is different
            pairs = {
                name: (there.get(name, "absent"), value.get(name, "absent"))
                for name in {**value, **there}
            }
            inner = next(name for name, (old, new) in pairs.items() if old != new)
            key, (there, value) = f"{key}.{inner}", pairs[inner]
        raise InputError(
            f"expected {path} to belong to this run, but its {key} is {there} and not {value}; choose another folder, "
            "or delete this file to start again"
        )


def read_metadata(path: Path) -> dict[str, Any]:
    """What the file of a trained model says of its training."""
    if not path.is_file():
        raise InputError(f"expected a trained model, found no file at {path}")
    try:
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get("atta")
    except SafetensorError as error:
        raise InputError(
            f"expected a trained model at {path}, but it cannot be read: {error}"
        ) from error
    if text is None:
        raise InputError(
            f"expected a model that `train` wrote, but {path} says nothing of its training"
        )
    metadata: dict[str, Any] = json.loads(text)
    return metadata
