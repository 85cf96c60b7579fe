"""Shrunk M-ATTA with its search for λ, in units of one M-ATTA by the paper's recipe: 1000 images, 100 classes, four kinds.

Classes that are alike end the search early; where each kind of view knows about some of the classes alone it goes further down.

    python -m benchmarks.shrunk [--quick]
"""

from functools import partial

import torch
from torch import Tensor

from atta import MATTA, Predictions, ShrunkMATTA
from benchmarks.measured import OURS, Asked, Measured, Steps, alone, seconds, sized

IMAGES, CLASSES, KINDS = 1000, 100, 4


def data(*, differing: bool) -> tuple[Predictions, Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(CLASSES, (IMAGES,), generator=generator)
    clean = torch.randn(IMAGES, CLASSES, generator=generator) * 2
    clean[torch.arange(IMAGES), labels] += 6
    views = {}
    for i in range(KINDS):
        noise = torch.randn(IMAGES, CLASSES, generator=generator)
        unknown = (torch.arange(CLASSES) % KINDS != i) & differing
        views[f"kind{i}"] = 1.7 * (clean + torch.where(unknown, 4 * noise, noise)).unsqueeze(1)
    return Predictions(
        1.7 * (clean + torch.randn(IMAGES, CLASSES, generator=generator)), views
    ), labels


def measure(name: str, images: int) -> list[Measured]:
    """Time the search, and the paper's recipe, which has none, as what it is held against."""
    predictions, labels = data(differing=name == "differing")
    predictions, labels = predictions[:images], labels[:images]
    ShrunkMATTA(strengths=[1.0]).fit(predictions[:100], labels[:100])  # warm up
    what = f"shrunk M-ATTA, {sized(images, CLASSES)} × {KINDS} kinds, classes {name}"
    fits = 5 * (1 + len(ShrunkMATTA().strengths)) + 1
    return [
        Measured(
            what,
            OURS,
            {"seconds": seconds(lambda: ShrunkMATTA().fit(predictions, labels)), "fits": fits},
        ),
        Measured(
            what,
            "M-ATTA, the paper's recipe",
            {"seconds": seconds(lambda: MATTA.paper().fit(predictions, labels))},
            "limit",
        ),
    ]


def steps(asked: Asked) -> Steps:
    """Where the search ends early, and where it does not."""
    return {name: partial(measure, name, asked.few(IMAGES, 200)) for name in ("alike", "differing")}


if __name__ == "__main__":
    alone(steps, __doc__)
