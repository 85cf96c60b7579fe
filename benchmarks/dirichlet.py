"""Dirichlet calibration with its search for λ and μ, on one core: 1000 images of 100 classes, and 5000 of 1000.

python -m benchmarks.dirichlet
"""

import time

import torch

from atta import Dirichlet, Predictions


def seconds(images: int, classes: int) -> float:
    """Time one fit to logits that are too sure of themselves."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(classes, (images,), generator=generator)
    logits = torch.randn(images, classes, generator=generator) * 2
    logits[torch.arange(images), labels] += 6
    start = time.perf_counter()
    Dirichlet().fit(Predictions(1.7 * logits), labels)
    return time.perf_counter() - start


def main() -> None:
    torch.set_num_threads(1)
    for images, classes, asked in ((1000, 100, "under 5 s"), (5000, 1000, "minutes")):
        fits = 5 * len(Dirichlet().pairs(classes)) + 1
        taken = seconds(images, classes)
        print(f"{images} images, {classes} classes, 1 thread: {taken:.1f} s for {fits} fits (asked: {asked})")


if __name__ == "__main__":
    main()
