"""The one recipe by which the networks of the experiments are trained, on every dataset.

It counts steps, not epochs, so that 50,000 small images and 7,000 large ones get the same number of updates. It mirrors
images along an axis only where the training images themselves do not tell the two sides apart: photographs from left to
right, aerial images in every direction, digits in none. The rest is the usual: SGD with Nesterov momentum, a linear rise and
a cosine fall of the learning rate, weight decay, shifted and zoomed crops.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from atta._base.errors import InputError, suggest
from atta.lab.training.augment import MIRRORS


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
            raise InputError(
                f"expected at least 1 step and 1 image a batch, got {self.steps} and {self.batch_size}"
            )
        if unknown := [one for one in self.mirrors or () if one not in MIRRORS]:
            raise InputError(
                f"expected mirrors among {', '.join(MIRRORS)}, got {', '.join(sorted(map(str, unknown)))}"
            )

    @classmethod
    def of(cls, **settings: Any) -> "Recipe":
        """The recipe with some settings changed; one that it does not have is named."""
        known = [field.name for field in fields(cls)]
        for name in settings:
            if name not in known:
                hint = suggest(name, known)
                raise InputError(
                    f"the recipe has no setting {name!r}.{hint} It has: {', '.join(known)}"
                )
        for name, value in settings.items():
            kind, right = _wanted(name)
            if not right(value):
                raise InputError(f"recipe: {name}: expected {kind}, got {value!r}")
        if isinstance(mirrors := settings.get("mirrors"), list):
            settings["mirrors"] = tuple(map(str, mirrors))
        return cls(**settings)

    def epochs(self, images: int) -> int:
        """Whole passes over that many images that come closest to `steps`."""
        return max(1, round(self.steps / max(1, images // self.batch_size)))

    def learning_rate(self, done: float) -> float:
        """The rate when this part of the run, 0 to 1, is done."""
        if done < self.rise:
            return self.peak_lr * done / self.rise
        return self.peak_lr * (1 + math.cos(math.pi * (done - self.rise) / (1 - self.rise))) / 2


def _wanted(name: str) -> tuple[str, Callable[[Any], bool]]:
    """What a setting is, and what says whether a value is that."""
    if name == "mirrors":
        return (
            f"a list of {', '.join(MIRRORS)}",
            lambda value: value is None or isinstance(value, tuple | list),
        )
    kinds, called = (
        ((int,), "a whole number")
        if name in ("steps", "batch_size")
        else ((int, float), "a number")
    )
    return called, lambda value: type(value) in kinds and -1e15 < value < 1e15  # nor nan, nor true
