"""Shrunk M-ATTA with its search for λ, in units of one M-ATTA by the paper's recipe: 1000 images, 100 classes, four kinds.

Classes that are alike end the search early; where each kind of view knows about some of the classes alone it goes further down.

    python -m benchmarks.shrunk
"""

import time

import torch
from torch import Tensor

from atta import MATTA, Method, Predictions, ShrunkMATTA

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
    return Predictions(1.7 * (clean + torch.randn(IMAGES, CLASSES, generator=generator)), views), labels


def seconds(method: Method, predictions: Predictions, labels: Tensor) -> float:
    start = time.perf_counter()
    method.fit(predictions, labels)
    return time.perf_counter() - start


def main() -> None:
    seconds(ShrunkMATTA(strengths=[1.0]), *data(differing=False))  # warm up
    print(f"{IMAGES} images, {CLASSES} classes, {KINDS} kinds of view, {torch.get_num_threads()} threads\n")
    print("| classes | fits tried at most | times one M-ATTA by the paper's recipe | asked |")
    print("|---|---|---|---|")
    fits = 5 * (1 + len(ShrunkMATTA().strengths)) + 1
    for name, differing in (("alike", False), ("differing", True)):
        paper = seconds(MATTA.paper(), *data(differing=differing))
        ours = seconds(ShrunkMATTA(), *data(differing=differing))
        print(f"| {name} | {fits} | {ours / paper:.2f} ({ours:.1f} s) | under 5 s |")


if __name__ == "__main__":
    main()
