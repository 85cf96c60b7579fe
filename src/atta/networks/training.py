"""Train the networks of the experiments: one recipe for every dataset, and a run that can be stopped and continued.

The recipe counts steps, not epochs, so that 50,000 small images and 7,000 large ones get the same number of updates. It
mirrors images along an axis only where the training images themselves do not tell the two sides apart: photographs from
left to right, aerial images in every direction, digits in none. The rest is the usual: SGD with Nesterov momentum, a
linear rise and a cosine fall of the learning rate, weight decay, shifted and zoomed crops.

Shuffling, crops and dropout are functions of the seed and the epoch, and the learning rate of the step. A run that was
stopped therefore needs only the weights and the momentum to go on exactly as if nothing had happened.
"""

import difflib
import json
import math
import pickle
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.nn import functional as F

from atta.files import whole_file
from atta.images.sets import Bytes, ImageSet
from atta.networks.adapters import MODELS, Normalized, load_weights, save_weights
from atta.networks.augment import MIRRORS, NUMBERS, augment, symmetries
from atta.types import InputError, Labels


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What decides the trained weights, beside the data, the network and the seed."""

    steps: int = 8000
    """Updates in all; 8000 of 256 images are 41 epochs of CIFAR and 296 of AID."""
    batch_size: int = 256
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
    """The part of the images that is zoomed; the others keep their pixels, and so the sharpness of a test image."""
    mirrors: tuple[str, ...] | None = None
    """Some of MIRRORS; None takes those the training images are symmetric in."""

    def __post_init__(self) -> None:
        if min(self.steps, self.batch_size) < 1:
            raise InputError(f"expected at least 1 step and 1 image a batch, got {self.steps} and {self.batch_size}")
        if unknown := set(self.mirrors or ()) - set(MIRRORS):
            raise InputError(f"expected mirrors among {', '.join(MIRRORS)}, got {', '.join(sorted(unknown))}")

    @classmethod
    def of(cls, **settings: Any) -> "Recipe":
        """The recipe with some settings changed; one that it does not have is named."""
        known = [field.name for field in fields(cls)]
        for name in settings:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f" Did you mean {near[0]!r}?" if near else ""
                raise InputError(f"the recipe has no setting {name!r}.{hint} It has: {', '.join(known)}")
        return cls(**settings)

    def epochs(self, images: int) -> int:
        """Whole passes over that many images that come closest to `steps`."""
        return max(1, round(self.steps / max(1, images // self.batch_size)))

    def learning_rate(self, done: float) -> float:
        """The rate when this part of the run, 0 to 1, is done."""
        if done < self.rise:
            return self.peak_lr * done / self.rise
        return self.peak_lr * (1 + math.cos(math.pi * (done - self.rise) / (1 - self.rise))) / 2


@dataclass(frozen=True)
class Epoch:
    """How one pass over the training images went; the accuracy is that on the augmented images."""

    epoch: int
    of: int
    loss: float
    accuracy: float
    images_per_second: float


@dataclass(frozen=True)
class TrainingResult:
    """The trained model, in evaluation mode, and what is known about it; `accuracy` is that on the test set."""

    model: Normalized
    accuracy: float | None
    history: tuple[Epoch, ...]
    metadata: Mapping[str, Any]
    path: Path | None


def train(
    model: str | nn.Module,
    train_set: ImageSet,
    *,
    test_set: ImageSet | None = None,
    recipe: Recipe | None = None,
    seed: int = 0,
    output: str | Path | None = None,
    resume: bool = True,
    checkpoint_seconds: float = 30.0,
    device: str | torch.device | None = None,
    amp: bool | None = None,
    channels_last: bool = True,
    compile: bool = False,
    progress: bool = True,
    on_epoch: Callable[[Epoch], None] | None = None,
) -> TrainingResult:
    """Train a network, named as in MODELS or given, and look at the test set once, at the end.

    With an `output` folder the model is written there as `model.safetensors`, and on the way a `checkpoint.pt`, after
    the first epoch and whenever `checkpoint_seconds` have passed; `resume` goes on from it, or returns a finished model
    at once. `amp` computes in bfloat16, by default on a GPU only. `on_epoch` is told how every epoch went.
    """
    recipe = recipe or Recipe()
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    images, labels = _on(device, train_set)
    mean, std = pixel_statistics(images)
    mirrors = symmetries(images, labels) if recipe.mirrors is None else recipe.mirrors
    layout = torch.channels_last if channels_last else torch.contiguous_format
    autocast = device.type == "cuda" if amp is None else amp
    run = _Run(images, labels, recipe, mirrors, recipe.epochs(images.shape[0]), seed, autocast, layout)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        network, architecture = _build(model, train_set)
        metadata: dict[str, Any] = {
            "architecture": architecture,
            "dataset": train_set.name,
            "images": len(train_set),
            "shape": list(images.shape[1:]),
            "classes": list(train_set.classes),
            "mean": mean,
            "std": std,
            "recipe": asdict(recipe) | {"mirrors": list(mirrors)},
            "seed": seed,
        }
        normalized = Normalized(network, mean, std).to(device)
        network.to(memory_format=layout)  # type: ignore[call-overload]
        final = None if output is None else Path(output) / "model.safetensors"
        if final is not None and resume and final.is_file():
            return _finished(final, normalized, metadata)
        optimizer = torch.optim.SGD(_groups(network, recipe), lr=0.0, momentum=recipe.momentum, nesterov=True)
        checkpoint = None if output is None else Path(output) / "checkpoint.pt"
        history: list[Epoch] = []
        if checkpoint is not None and resume and checkpoint.is_file():
            history = _resume(checkpoint, network, optimizer, metadata)

        normalized.train()
        forward = torch.compile(normalized) if compile else normalized
        saved = -math.inf
        with _bar(progress, run.epochs, len(history)) as tell:
            for epoch in range(len(history), run.epochs):
                done = run.epoch(forward, optimizer, epoch)
                if not math.isfinite(done.loss):
                    raise InputError(
                        f"expected a finite loss, got {done.loss} in epoch {epoch + 1}; a lower peak_lr may help"
                    )
                history.append(done)
                tell(done)
                if on_epoch is not None:
                    on_epoch(done)
                if checkpoint is not None and time.monotonic() - saved > checkpoint_seconds:
                    _checkpoint(checkpoint, network, optimizer, history, metadata)
                    saved = time.monotonic()

    normalized.eval()
    accuracy = None if test_set is None else accuracy_on(normalized, test_set)
    metadata |= {"accuracy": accuracy, "history": [asdict(row) for row in history]}
    if final is not None and checkpoint is not None:
        save_weights(network, final, {"atta": json.dumps(metadata)})
        checkpoint.unlink(missing_ok=True)
    return TrainingResult(normalized, accuracy, tuple(history), metadata, final)


def load_trained(path: str | Path, model: nn.Module | None = None) -> tuple[Normalized, dict[str, Any]]:
    """Rebuild what `train` wrote, in evaluation mode, with what is known about it.

    A network of your own cannot be rebuilt from a file: give it as `model`.
    """
    metadata = _read_metadata(Path(path))
    if model is None:
        name = metadata["architecture"].get("name")
        if name not in MODELS:
            raise InputError(f"expected one of {', '.join(MODELS)} in {path}, found {name!r}: give the model as well")
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
    _same_run(path, metadata, expected)


def about(metadata: Mapping[str, Any]) -> dict[str, str]:
    """What the origin of a record says of a trained network."""
    return {
        "model": metadata["architecture"].get("name", "network"),
        "trained_on": metadata["dataset"],
        "training_seed": json.dumps(metadata["seed"]),
        "recipe": json.dumps(metadata["recipe"]),
    }


def accuracy_on(model: nn.Module, images: ImageSet, batch_size: int = 500) -> float:
    """The part of the images whose most likely class is their label."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    pixels, labels = _on(device, images)
    right = torch.zeros((), device=device)
    with torch.inference_mode():
        for rows in torch.split(torch.arange(pixels.shape[0], device=device), batch_size):
            right += (model(pixels[rows].float() / 255).argmax(dim=1) == labels[rows]).sum()
    return right.item() / pixels.shape[0]


def pixel_statistics(images: Bytes) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel of the pixels in [0, 1]."""
    total = torch.zeros(2, images.shape[1], dtype=torch.float64, device=images.device)
    for piece in torch.split(images, 256):
        pixels = piece.double() / 255
        total += torch.stack([pixels.sum(dim=(0, 2, 3)), pixels.square().sum(dim=(0, 2, 3))])
    mean, square = total / (images.shape[0] * images.shape[2] * images.shape[3])
    std = (square - mean**2).clamp(min=255**-2).sqrt()  # A constant channel would divide by zero.
    return mean.tolist(), std.tolist()


@dataclass(frozen=True)
class _Run:
    """All that stays the same from one epoch to the next."""

    images: Bytes
    labels: Labels
    recipe: Recipe
    mirrors: tuple[str, ...]
    epochs: int
    seed: int
    amp: bool
    layout: torch.memory_format

    def epoch(self, model: Callable[[Tensor], Tensor], optimizer: torch.optim.SGD, epoch: int) -> Epoch:
        """Pass once over the images, in an order and with crops that depend on the seed and the epoch alone."""
        recipe, n, device = self.recipe, self.images.shape[0], self.images.device
        torch.manual_seed(1_000_003 * self.seed + epoch)  # dropout and the like, in networks that have them
        generator = torch.Generator().manual_seed(1_000_003 * self.seed + epoch)
        order = torch.randperm(n, generator=generator).to(device)
        numbers = torch.rand(n, NUMBERS, generator=generator).to(device)
        size = min(recipe.batch_size, n)
        steps = n // size  # A last, smaller batch would have noisier statistics; the next epoch shuffles anew.
        loss_sum, right = torch.zeros((), device=device), torch.zeros((), device=device)
        start = time.perf_counter()
        for step in range(steps):
            rows = order[step * size : (step + 1) * size]
            batch = augment(
                self.images[rows].float() / 255,
                numbers[rows],
                shift=recipe.shift,
                zoom=recipe.zoom,
                zoomed=recipe.zoomed,
                mirrors=self.mirrors,
            ).contiguous(memory_format=self.layout)
            with torch.autocast(device.type, torch.bfloat16) if self.amp else nullcontext():
                logits = model(batch)
            loss = F.cross_entropy(logits.float(), self.labels[rows], label_smoothing=recipe.label_smoothing)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            for group in optimizer.param_groups:
                group["lr"] = recipe.learning_rate((epoch * steps + step + 1) / (self.epochs * steps + 1))
            optimizer.step()
            # Kept on the device: asking for a number at every step would make a GPU wait.
            loss_sum += loss.detach()
            right += (logits.detach().argmax(dim=1) == self.labels[rows]).sum()
        loss_mean, accuracy = loss_sum.item() / steps, right.item() / (steps * size)
        return Epoch(epoch + 1, self.epochs, loss_mean, accuracy, steps * size / (time.perf_counter() - start))


def _build(model: str | nn.Module, images: ImageSet) -> tuple[nn.Module, dict[str, Any]]:
    if isinstance(model, nn.Module):
        return model, {"class": type(model).__name__}
    if model not in MODELS:
        raise InputError(f"expected one of {', '.join(MODELS)} or a module, got {model!r}")
    c, h, w = images.shape
    # The one choice a dataset makes: above 64 pixels the network's first layers reduce the image by four.
    settings = {"num_classes": len(images.classes), "in_channels": c, "small_images": max(h, w) <= 64}
    return MODELS[model](**settings), {"name": model, **settings}


def _on(device: torch.device, images: ImageSet) -> tuple[Bytes, Labels]:
    if images.labels is None:
        raise InputError(f"expected labels with {images.name}, found none")
    return images.tensors().to(device), images.labels.to(device)


def _groups(network: nn.Module, recipe: Recipe) -> list[dict[str, Any]]:
    """Decay the weights of layers; biases and the scales of batch norm cannot over-fit and are left alone."""
    parameters = [p for p in network.parameters() if p.requires_grad]
    return [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": recipe.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]


def _checkpoint(
    path: Path, network: nn.Module, optimizer: torch.optim.SGD, history: list[Epoch], metadata: dict[str, Any]
) -> None:
    state = {"network": network.state_dict(), "optimizer": optimizer.state_dict()}
    with whole_file(path) as part:
        torch.save(state | {"history": [asdict(row) for row in history], "metadata": json.dumps(metadata)}, part)


def _resume(path: Path, network: nn.Module, optimizer: torch.optim.SGD, metadata: dict[str, Any]) -> list[Epoch]:
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        found = json.loads(state["metadata"])
    except (pickle.UnpicklingError, RuntimeError, EOFError, KeyError, TypeError) as error:
        raise InputError(f"expected a checkpoint of `train` at {path}, but it cannot be read: {error}") from error
    _same_run(path, found, metadata)
    network.load_state_dict(state["network"])
    optimizer.load_state_dict(state["optimizer"])
    return [Epoch(**row) for row in state["history"]]


def _finished(path: Path, normalized: Normalized, metadata: dict[str, Any]) -> TrainingResult:
    found = _read_metadata(path)
    _same_run(path, found, metadata)
    load_weights(normalized.model, path)
    history = tuple(Epoch(**row) for row in found["history"])
    return TrainingResult(normalized.eval(), found["accuracy"], history, found, path)


def _same_run(path: Path, found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    expected = json.loads(json.dumps(expected))
    for key, value in expected.items():
        there = found.get(key)
        if there == value:
            continue
        if isinstance(there, dict) and isinstance(value, dict):  # of a recipe, only what is different
            pairs = {name: (there.get(name, "absent"), value.get(name, "absent")) for name in {**value, **there}}
            inner = next(name for name, (old, new) in pairs.items() if old != new)
            key, (there, value) = f"{key}.{inner}", pairs[inner]
        raise InputError(
            f"expected {path} to belong to this run, but its {key} is {there} and not {value}; choose another folder, "
            "or delete this file to start again"
        )


def _read_metadata(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise InputError(f"expected a trained model, found no file at {path}")
    try:
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get("atta")
    except SafetensorError as error:
        raise InputError(f"expected a trained model at {path}, but it cannot be read: {error}") from error
    if text is None:
        raise InputError(f"expected a model that `train` wrote, but {path} says nothing of its training")
    metadata: dict[str, Any] = json.loads(text)
    return metadata


@contextmanager
def _bar(shown: bool, epochs: int, done: int) -> Iterator[Callable[[Epoch], None]]:
    """A line that says how far the training is; without `shown`, nothing."""
    if not shown:
        yield lambda epoch: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("training"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[state]}"))
    with Progress(*columns, TimeRemainingColumn()) as bar:
        task = bar.add_task("training", total=epochs, completed=done, state="")

        def tell(epoch: Epoch) -> None:
            speed = f"{epoch.images_per_second:,.0f} images/s"
            state = f"loss {epoch.loss:.3f} · accuracy {epoch.accuracy:.1%} · {speed}"
            bar.update(task, completed=epoch.epoch, state=state)

        yield tell
