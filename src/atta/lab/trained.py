"""Reads and writes trained networks: the weights, their metadata, and checkpoints on the way.

folder/
    model.safetensors   weights; in the header architecture, dataset, normalisation, recipe, seed,
                        accuracy and history
    checkpoint.pt       weights, momentum and history so far; removed when the model is written
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from atta._base.errors import InputError
from atta._base.files import whole_file
from atta._base.tensors import read_header
from atta.networks.adapters import Normalized
from atta.networks.resnet import MODELS
from atta.networks.weights import load_weights, save_weights


def load_trained(
    path: str | Path, model: nn.Module | None = None
) -> tuple[Normalized, dict[str, Any]]:
    """Load what `train` wrote: the network, in evaluation mode, and its metadata.

    A network of your own cannot be built from a file: pass it as `model`.
    """
    metadata = _read_metadata(path)
    if model is None:
        settings = dict(metadata["architecture"])
        name = settings.pop("name", None)
        if name not in MODELS:
            raise InputError(
                f"expected one of {', '.join(MODELS)} in {path}, found {name!r}: "
                "pass the model as well"
            )
        model = MODELS[name](**settings)
    load_weights(model, path)
    return Normalized(model, metadata["mean"], metadata["std"]).eval(), metadata


def about(metadata: Mapping[str, Any]) -> dict[str, str]:
    """What the origin of a record says about a trained network."""
    return {
        "model": metadata["architecture"].get("name", "network"),
        "trained_on": metadata["dataset"],
        "training_seed": json.dumps(metadata["seed"]),
        "recipe": json.dumps(metadata["recipe"]),
    }


@dataclass(frozen=True)
class RunFolder:
    """The folder of a training run and its metadata; files of other runs are refused."""

    path: Path
    metadata: Mapping[str, Any]

    @property
    def model(self) -> Path:
        """The finished model."""
        return self.path / "model.safetensors"

    @property
    def checkpoint(self) -> Path:
        """From which a stopped run resumes."""
        return self.path / "checkpoint.pt"

    def load_finished(self, network: nn.Module) -> dict[str, Any] | None:
        """Load the finished weights and return their metadata; None if there are none yet."""
        if not self.model.is_file():
            return None
        found = _read_metadata(self.model)
        check_same_run(self.model, found, self.metadata)
        load_weights(network, self.model)
        return found

    def resume(self, network: nn.Module, optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
        """Resume from the checkpoint, if there is one, and return the epochs that are done."""
        if not self.checkpoint.is_file():
            return []
        try:
            state = torch.load(self.checkpoint, map_location="cpu", weights_only=True)
            found = json.loads(state["metadata"])
        except Exception as error:  # a damaged checkpoint raises almost anything
            raise InputError(
                f"expected a checkpoint of `train` at {self.checkpoint}, "
                f"but it cannot be read: {error}"
            ) from error
        check_same_run(self.checkpoint, found, self.metadata)
        network.load_state_dict(state["network"])
        optimizer.load_state_dict(state["optimizer"])
        return list(state["history"])

    def write_checkpoint(
        self,
        network: nn.Module,
        optimizer: torch.optim.Optimizer,
        history: Sequence[Mapping[str, Any]],
    ) -> None:
        """Save the state so far."""
        state = {
            "network": network.state_dict(),
            "optimizer": optimizer.state_dict(),
            "history": list(history),
            "metadata": json.dumps(self.metadata),
        }
        # Given a path, torch does not say why writing failed.
        with whole_file(self.checkpoint) as part, part.open("wb") as file:
            torch.save(state, file)

    def finish(self, network: nn.Module, metadata: Mapping[str, Any]) -> None:
        """Write the model and remove the checkpoint."""
        save_weights(network, self.model, {"atta": json.dumps(metadata)})
        self.checkpoint.unlink(missing_ok=True)


def check_same_run(path: Path, found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Refuse a file whose settings are not as expected, as far as these say."""
    for key, value in json.loads(json.dumps(expected)).items():
        there = found.get(key)
        pairs = {key: (there, value)}
        if isinstance(there, dict) and isinstance(value, dict):  # name what differs in a recipe
            pairs = {f"{key}.{name}": (there.get(name, "absent"), value[name]) for name in value}
        for name, (old, new) in pairs.items():
            if old != new:
                raise InputError(
                    f"expected {path} to belong to this run, but its {name} is {old} "
                    f"and not {new}; choose another folder, or delete this file to start again"
                )


def _read_metadata(path: str | Path) -> dict[str, Any]:
    """What the file of a trained model says about its training."""
    text = read_header(path).get("atta")
    if text is None:
        raise InputError(
            f"expected a model that `train` wrote, but {path} says nothing about its training"
        )
    metadata: dict[str, Any] = json.loads(text)
    return metadata
