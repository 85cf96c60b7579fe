"""Trains the networks of the experiments, in a run that can be stopped and resumed.

Shuffling, crops and dropout are functions of the seed and the epoch, the learning rate is one of
the step. So a stopped run needs only the weights and the momentum to resume with the same bits.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from atta._base.display import bar
from atta._base.errors import InputError, advise
from atta._base.files import locked
from atta._base.types import Labels
from atta.data.image_set import Bytes, ImageSet
from atta.lab.recipe import NUMBERS, Recipe, RunFolder, augment, symmetries
from atta.networks.adapters import Normalized
from atta.networks.borrowing import device_of, find_device
from atta.networks.resnet import MODELS

SEEDS = 9_000_000_000_000  # with a million epochs each, these fit into the 64 bits of a generator
HALVED = ("cuda",)
"""The devices on which networks compute in bfloat16."""
CHECKPOINT_SECONDS = 30.0
"""The time between two checkpoints: the most work that a killed run has to repeat."""


@dataclass(frozen=True)
class Epoch:
    """One pass over the training images; the accuracy is that on the augmented images."""

    epoch: int
    of: int
    loss: float
    accuracy: float
    images_per_second: float

    def __str__(self) -> str:
        speed = f"{self.images_per_second:,.0f} images/s"
        return f"loss {self.loss:.3f} · accuracy {self.accuracy:.1%} · {speed}"


@dataclass(frozen=True)
class TrainingResult:
    """The trained model, in evaluation mode, and what its file says about it.

    `metadata["history"]` has the numbers of each epoch.
    """

    model: Normalized
    metadata: Mapping[str, Any]
    path: Path

    @property
    def accuracy(self) -> float | None:
        """The accuracy on the test set, if there was one."""
        accuracy: float | None = self.metadata["accuracy"]
        return accuracy


def train(
    model: str | nn.Module,
    train_set: ImageSet,
    output: str | Path,
    *,
    test_set: ImageSet | None = None,
    recipe: Recipe | None = None,
    seed: int = 0,
    resume: bool = True,
    device: str | torch.device | None = None,
    compile: bool = False,
    progress: bool = True,
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
) -> TrainingResult:
    """Train a network, named as in MODELS or given, and test it once, at the end.

    `output` is the folder of `model.safetensors` and, on the way, of `checkpoint.pt`; `resume`
    continues from these. One run at a time trains into a folder. `on_epoch` is called after
    every epoch. On a GPU the network computes in bfloat16.
    """
    recipe = recipe or Recipe()
    if not abs(seed) < SEEDS:
        raise InputError(f"seed: expected a whole number below {SEEDS:.0e}, got {seed}")
    at = find_device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    labels, images = labels_of(train_set).to(at), train_set.tensors().to(at)
    if recipe.mirrors is None:
        recipe = replace(recipe, mirrors=symmetries(images, labels))
    run = _Run(images, labels, recipe, seed)
    with torch.random.fork_rng(devices=[at] if at.type == "cuda" else []):
        torch.manual_seed(seed)
        network, architecture = _build(model, train_set)
        metadata = run.metadata(train_set, architecture)
        normalized = Normalized(network, metadata["mean"], metadata["std"]).to(at)
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        folder = RunFolder(Path(output), metadata)
        found = folder.load_finished(network) if resume else None
        if found is None:
            with locked(folder.model):
                normalized.train()
                forward = torch.compile(normalized) if compile else normalized
                history = run.epochs_in(folder, network, forward, resume, progress, on_epoch)
                accuracy = None if test_set is None else accuracy_on(normalized.eval(), test_set)
                found = {**metadata, "accuracy": accuracy, "history": history}
                folder.finish(network, found)
    return TrainingResult(normalized.eval(), found, folder.model)


def accuracy_on(model: nn.Module, images: ImageSet) -> float:
    """The part of the images whose most likely class is their label."""
    device = device_of(model)
    labels, pixels = labels_of(images).to(device), images.tensors().to(device)
    with torch.inference_mode():
        found = [model(some.float() / 255).argmax(dim=1) for some in torch.split(pixels, 500)]
    return (torch.cat(found) == labels).double().mean().item()


def pixel_statistics(images: Bytes) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel of the pixels in [0, 1]."""
    total = torch.zeros(2, images.shape[1], dtype=torch.float64, device=images.device)
    for piece in torch.split(images, 256):
        pixels = piece.double() / 255
        total += torch.stack([pixels.sum(dim=(0, 2, 3)), pixels.square().sum(dim=(0, 2, 3))])
    mean, square = total / (images.shape[0] * images.shape[2] * images.shape[3])
    std = (square - mean**2).clamp(min=255**-2).sqrt()  # a constant channel would divide by zero
    return mean.tolist(), std.tolist()


@dataclass(frozen=True)
class _Run:
    """All that is the same in every epoch."""

    images: Bytes
    labels: Labels
    recipe: Recipe
    seed: int

    @property
    def epochs(self) -> int:
        """The number of epochs."""
        return self.recipe.epochs(self.images.shape[0])

    def metadata(self, train_set: ImageSet, architecture: Mapping[str, Any]) -> dict[str, Any]:
        """What the file of the model says about its training."""
        mean, std = pixel_statistics(self.images)
        return {
            "architecture": dict(architecture),
            "dataset": train_set.name,
            "images": len(train_set),
            "shape": list(self.images.shape[1:]),
            "classes": list(train_set.classes),
            "mean": mean,
            "std": std,
            "recipe": asdict(self.recipe),
            "seed": self.seed,
        }

    def epochs_in(
        self,
        folder: RunFolder,
        network: nn.Module,
        model: Callable[[Tensor], Tensor],
        resume: bool,
        progress: bool,
        on_epoch: Callable[[Epoch], None],
    ) -> list[dict[str, Any]]:
        """Train the network, from its checkpoint if there is one, and return all epochs."""
        optimizer = torch.optim.SGD(
            _groups(network, self.recipe), lr=0.0, momentum=self.recipe.momentum, nesterov=True
        )
        history = folder.resume(network, optimizer) if resume else []
        saved = -math.inf
        with bar("training", self.epochs, shown=progress, done=len(history), every=0.0) as tell:
            for number in range(len(history), self.epochs):
                epoch = self.epoch(model, optimizer, number)
                if not math.isfinite(epoch.loss):
                    raise InputError(
                        f"expected a finite loss, got {epoch.loss} in epoch {epoch.epoch}; "
                        "a lower peak_lr may help"
                    )
                history.append(asdict(epoch))
                tell(epoch.epoch, str(epoch))
                on_epoch(epoch)
                if time.monotonic() - saved > CHECKPOINT_SECONDS:
                    try:
                        folder.write_checkpoint(network, optimizer, history)
                    except InputError as error:  # a full disk must not end hours of training
                        advise(
                            f"{error}; training continues with the checkpoint before: "
                            "make room before it ends"
                        )
                    saved = time.monotonic()
        return history

    def epoch(
        self, model: Callable[[Tensor], Tensor], optimizer: torch.optim.SGD, epoch: int
    ) -> Epoch:
        """Pass once over the images; order and crops depend on the seed and the epoch alone."""
        recipe, n, device = self.recipe, self.images.shape[0], self.images.device
        seed = 1_000_003 * self.seed + epoch
        torch.manual_seed(seed)  # for dropout and the like
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(n, generator=generator).to(device)
        numbers = torch.rand(n, NUMBERS, generator=generator).to(device)
        size = min(recipe.batch_size, n)
        steps = n // size  # a last, smaller batch would have noisier statistics
        loss_sum, right = torch.zeros(2, device=device)
        start = time.perf_counter()
        for step in range(steps):
            rows = order[step * size : (step + 1) * size]
            batch = augment(self.images[rows].float() / 255, numbers[rows], recipe)
            batch = batch.contiguous(memory_format=torch.channels_last)
            with torch.autocast(device.type, torch.bfloat16, device.type in HALVED):
                logits = model(batch)
            loss = F.cross_entropy(
                logits.float(), self.labels[rows], label_smoothing=recipe.label_smoothing
            )
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            for group in optimizer.param_groups:
                group["lr"] = recipe.learning_rate(
                    (epoch * steps + step + 1) / (self.epochs * steps + 1)
                )
            optimizer.step()
            # Kept on the device: reading a number at every step would make a GPU wait.
            loss_sum += loss.detach()
            right += (logits.detach().argmax(dim=1) == self.labels[rows]).sum()
        loss_mean, accuracy = loss_sum.item() / steps, right.item() / (steps * size)
        speed = steps * size / (time.perf_counter() - start)
        return Epoch(epoch + 1, self.epochs, loss_mean, accuracy, speed)


def _build(model: str | nn.Module, images: ImageSet) -> tuple[nn.Module, dict[str, Any]]:
    if isinstance(model, nn.Module):
        return model, {"class": type(model).__name__}
    if model not in MODELS:
        raise InputError(f"expected one of {', '.join(MODELS)} or a module, got {model!r}")
    c, h, w = images.shape
    # Above 64 pixels the first layers of the network reduce the image by four.
    settings: dict[str, Any] = {
        "num_classes": len(images.classes),
        "in_channels": c,
        "small_images": max(h, w) <= 64,
    }
    return MODELS[model](**settings), {"name": model, **settings}


def labels_of(images: ImageSet) -> Labels:
    """The labels, which have to be there."""
    if images.labels is None:
        raise InputError(f"expected labels with {images.name}, found none")
    return images.labels


def _groups(network: nn.Module, recipe: Recipe) -> list[dict[str, Any]]:
    """Decay the weights of layers; biases and the scales of batch norm cannot over-fit."""
    parameters = [p for p in network.parameters() if p.requires_grad]
    return [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": recipe.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
