"""Sets how the networks of the experiments are trained: one recipe, and its augmentations.

The recipe counts steps, not epochs, so that 50,000 small images and 7,000 large ones get the same
number of updates. It mirrors images only where the training images allow it (`symmetries`):
photographs left-right, aerial images in every direction, digits not at all. The rest is usual: SGD
with Nesterov momentum, a linear rise and a cosine fall of the learning rate, weight decay, shifted
and zoomed crops. `augment` is a pure function of the images and of given numbers in [0, 1).
"""

import importlib
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn
from torch.nn import functional as F

from atta._base.errors import InputError, advise, first_line, suggest
from atta._base.files import check_digest, content_hash, whole_file
from atta._base.settings import Count, check, hints, shown
from atta._base.tensors import read_header, read_tensors
from atta._base.types import Images, Labels
from atta.networks.adapters import Normalized
from atta.networks.description import check_weights, load_weights, save_weights
from atta.networks.resnet import MODELS

MIRRORS = ("left-right", "up-down", "diagonal")
"""The three reflections of a square; together they make its eight symmetries."""
NUMBERS = 4 + len(MIRRORS)
"""Numbers per image: whether it is zoomed, how much, across, down, and one per mirror."""
METADATA: dict[str, Any] = {
    **dict.fromkeys(("architecture", "recipe"), dict),
    **dict.fromkeys(("shape", "classes", "mean", "std", "history"), list),
    **{"dataset": str, "seed": int, "accuracy": float | None},
}
"""The types of what the file of a trained model says about its training."""
SEAL = b"\natta sha256 "
"""At the end of a checkpoint, before the checksum of all bytes before it."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What decides the trained weights, besides the data, the network and the seed."""

    steps: Count = 8000
    """Updates; 8000 with 256 images each are 41 epochs of CIFAR and 296 of AID."""
    batch_size: Count = 256
    peak_lr: float = 0.2
    rise: float = 0.25
    """The part of the run in which the learning rate rises."""
    momentum: float = 0.9
    weight_decay: float = 5e-4
    label_smoothing: float = 0.0
    shift: float = 0.125
    """Crops move by up to this part of the side; what they uncover is mirrored."""
    zoom: float = 0.6
    """The smallest window that a zoomed crop shows, as a part of the side."""
    zoomed: float = 0.5
    """The part of the images that is zoomed; the others stay as sharp as a test image."""
    mirrors: Sequence[str] | None = None
    """Some of MIRRORS; None takes those in which the training images are symmetric."""

    def __post_init__(self) -> None:
        check(vars(self), hints(Recipe))
        if unknown := [one for one in self.mirrors or () if one not in MIRRORS]:
            raise InputError(
                f"expected mirrors among {', '.join(MIRRORS)}, got {', '.join(map(str, unknown))}"
            )

    @classmethod
    def of(cls, **settings: Any) -> "Recipe":
        """The recipe with some settings changed; an unknown setting is named."""
        known = [field.name for field in fields(cls)]
        for name in settings:
            if name not in known:
                hint = suggest(name, known)
                raise InputError(
                    f"the recipe has no setting {name!r}.{hint} It has: {', '.join(known)}"
                )
        return cls(**check(settings, hints(Recipe)))

    def epochs(self, images: int) -> int:
        """The number of passes over that many images that comes closest to `steps`."""
        return max(1, round(self.steps / max(1, images // self.batch_size)))

    def learning_rate(self, done: float) -> float:
        """The learning rate after this part of the run, 0 to 1."""
        if done < self.rise:
            return self.peak_lr * done / self.rise
        return self.peak_lr * (1 + math.cos(math.pi * (done - self.rise) / (1 - self.rise))) / 2


def symmetries(
    images: UInt8[Tensor, "n c h w"], labels: Labels, limit: float = 0.01
) -> tuple[str, ...]:
    """Those of MIRRORS that do not change how a class looks.

    For each class and mirror take d = image - mirrored image, coarse and grey. If the mirror makes
    no difference, the mean of d is 0 up to chance: E(mean²) = variance / n. The excess, as a part
    of the variance and averaged over the images, is 0.000 for CIFAR-10 left-right and 0.11 up-down,
    0.001 for aerial images in every direction, and at least 0.65 for digits.
    """
    side = min(16, images.shape[2], images.shape[3])
    coarse = torch.cat(
        [F.adaptive_avg_pool2d(some.float().mean(dim=1), side) for some in torch.split(images, 256)]
    )
    mirrored = (coarse.flip(2), coarse.flip(1), coarse.transpose(1, 2))
    differences = {name: coarse - other for name, other in zip(MIRRORS, mirrored, strict=True)}
    if images.shape[2] != images.shape[3]:
        del differences["diagonal"]
    return tuple(name for name, d in differences.items() if _asymmetry(d, labels) < limit)


def _asymmetry(differences: Float[Tensor, "n s s"], labels: Labels) -> float:
    excess, count = 0.0, 0
    for label in torch.unique(labels).tolist():
        d = differences[labels == label]
        n = d.shape[0]
        if n < 2:
            continue  # one image says nothing about chance
        variance = d.var(dim=0).mean()
        excess += (
            n * ((d.mean(dim=0).square().mean() - variance / n) / variance.clamp(min=1e-9)).item()
        )
        count += n
    return excess / count if count else math.inf


def augment(images: Images, u: Float[Tensor, "n 7"], recipe: Recipe) -> Images:
    """Shift and mirror each image, and zoom into some of them, as the recipe says.

    One resampling does it all. An image that is not zoomed moves by whole pixels, so that it is not
    blurred. What a shift uncovers is filled by reflection.
    """
    n, _, h, w = images.shape
    window = torch.where(u[:, 0] < recipe.zoomed, recipe.zoom + (1 - recipe.zoom) * u[:, 1], 1.0)
    # In the units of affine_grid the image reaches from -1 to 1, so a side is 2.
    reach = (1 - window) + 2 * recipe.shift
    across = ((2 * u[:, 2] - 1) * reach * w / 2).round() * 2 / w
    down = ((2 * u[:, 3] - 1) * reach * h / 2).round() * 2 / h
    left_right, up_down, diagonal = (
        (u[:, 4 + i] < 0.5) & (name in (recipe.mirrors or ())) for i, name in enumerate(MIRRORS)
    )
    x = torch.where(left_right, -window, window)
    y = torch.where(up_down, -window, window)
    zero = torch.zeros_like(window)
    # The source of each pixel: a diagonal mirror exchanges rows and columns.
    straight = torch.stack([x, zero, across, zero, y, down], dim=1)
    crossed = torch.stack([zero, x, across, y, zero, down], dim=1)
    theta = torch.where(diagonal[:, None], crossed, straight).view(n, 2, 3)
    grid = F.affine_grid(theta, [n, 1, h, w], align_corners=False)
    return F.grid_sample(images, grid, padding_mode="reflection", align_corners=False)


# ---- trained networks ----------------------------------------------------------------------------


def load_trained(
    path: str | Path, model: nn.Module | None = None
) -> tuple[Normalized, dict[str, Any]]:
    """Load what `train` wrote: the network, in evaluation mode, and its metadata.

    A network of your own cannot be built from a file: pass it as `model`.
    """
    metadata = _read_metadata(path)
    try:
        if model is None:
            settings = dict(metadata["architecture"])
            if (name := settings.pop("name", "")) not in MODELS:
                raise InputError(
                    f"expected one of {', '.join(MODELS)} in {path}, found {name!r}: "
                    "pass the model as well"
                )
            with torch.device("meta"):  # takes no memory, whatever size a forged file names
                model = MODELS[name](**settings)
            check_weights(model, read_tensors(path, sealed=False)[0], path)
            model.to_empty(device="cpu")
        load_weights(model, path)
        object.__setattr__(model, "class_names", tuple(map(str, metadata["classes"])))
        return Normalized(model, metadata["mean"], metadata["std"]).eval(), metadata
    except InputError as error:
        raise InputError(str(error) if str(path) in str(error) else f"{path}: {error}") from None
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"{path} does not describe a network: {first_line(error)}; use a copy, or train again"
        ) from error


def find_model(text: str) -> tuple[Any, dict[str, str]]:
    """Load a network, and say what it is: a trained one, an ONNX file, or package.module:name."""
    path = Path(text)
    if path.suffix == ".onnx":
        return text, {"model": text}
    if path.suffix == ".py":
        file = path.with_suffix("")
        module = file.name if file.is_absolute() else ".".join(file.parts)
        raise InputError(
            f"expected package.module:name, got the file {text}: write {module}:NAME, with the "
            "name of the network in it"
        )
    if path.exists():
        model, metadata = load_trained(path / "model.safetensors" if path.is_dir() else path)
        return model, about(metadata)
    return _imported(text), {"model": text}


def _imported(text: str) -> nn.Module:
    """Import package.module:name, a network or a function that makes one."""
    module, _, name = text.partition(":")
    if not module or not name or module.startswith("."):
        raise InputError(
            "expected an existing model file, or package.module:name with a module and a name, "
            f"got {text!r}"
        )
    sys.path.insert(0, "")
    try:
        found = getattr(importlib.import_module(module), name)
        made = found if isinstance(found, nn.Module) or not callable(found) else found()
    except InputError:
        raise
    except (Exception, SystemExit) as error:  # a user's code may raise anything
        raise InputError(
            f"{text} cannot be loaded: {type(error).__name__}: {first_line(error)}"
        ) from error
    if not isinstance(made, nn.Module):
        raise InputError(
            f"expected {text} to be a torch module or a function that makes one, "
            f"got {type(made).__name__}"
        )
    return made


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
            content = _checked(self.checkpoint)
            state = torch.load(BytesIO(content), map_location="cpu", weights_only=True)
            check_same_run(self.checkpoint, json.loads(state["metadata"]), self.metadata)
            network.load_state_dict(state["network"])
            optimizer.load_state_dict(state["optimizer"])
            return list(state["history"])
        except InputError:
            raise
        except Exception as error:  # a damaged checkpoint raises almost anything
            raise InputError(
                f"expected a checkpoint of `train` at {self.checkpoint}, but it cannot be read: "
                f"{first_line(error)}; delete it to start again"
            ) from error

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
        buffer = BytesIO()
        torch.save(state, buffer)
        content = buffer.getbuffer()
        with whole_file(self.checkpoint) as part, part.open("wb") as file:
            file.write(content)
            file.write(SEAL + content_hash([content]).encode())

    def finish(self, network: nn.Module, metadata: Mapping[str, Any]) -> None:
        """Write the model and remove the checkpoint."""
        save_weights(network, self.model, {"atta": json.dumps(metadata)})
        self.checkpoint.unlink(missing_ok=True)


def _checked(path: Path) -> bytes:
    """The content of a checkpoint, if its checksum says that nothing in it has changed."""
    whole = path.read_bytes()
    content, seal, stated = whole.rpartition(SEAL)
    if seal:
        check_digest(path, stated.decode(errors="replace"), content_hash([content]))
        return content
    with ZipFile(BytesIO(whole)) as archive:  # 0.1.0 wrote the checksums of torch's archive alone
        if damaged := archive.testzip():
            raise InputError(f"{path} is damaged at {damaged}: delete it to start again")
    advise(f"{path} has no checksum of its own: version 0.1.0 wrote it; its parts are intact")
    return whole


def check_same_run(
    path: Path, found: Mapping[str, Any], expected: Mapping[str, Any], part: str = ""
) -> None:
    """Refuse a file whose settings are not as expected, as far as these say."""
    for key, new in json.loads(json.dumps(expected)).items():
        old = found.get(key, "absent")
        if isinstance(old, dict) and isinstance(new, dict):  # name what differs in a recipe
            check_same_run(path, old, new, f"{key}.")
        elif old != new:
            raise InputError(
                f"expected {path} to belong to this run, but its {part}{key} is {old} "
                f"and not {new}; choose another folder, or delete this file to start again"
            )


def _read_metadata(path: str | Path) -> dict[str, Any]:
    """What the file of a trained model says about its training."""
    text = read_header(path).get("atta")
    if text is None:
        raise InputError(
            f"expected a model that `train` wrote, but {path} says nothing about its training"
        )
    try:
        metadata = json.loads(text)
    except (ValueError, RecursionError):
        metadata = None
    for name, kind in METADATA.items():
        found = metadata.get(name) if isinstance(metadata, dict) else metadata
        if not isinstance(found, kind):
            raise InputError(
                f"expected what `train` wrote in {path}, got {shown(found)} as its {name}; "
                "use a copy, or train again"
            )
    return dict(metadata)
