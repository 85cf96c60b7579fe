"""Dirichlet calibration with its search for λ and μ: 1000 images, 100 classes, every core, in seconds and in units of one fit.

python -m benchmarks.dirichlet
"""

import time

import torch

from atta import Dirichlet, Predictions


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(100, (1000,), generator=generator)
    logits = torch.randn(1000, 100, generator=generator) * 2
    logits[torch.arange(1000), labels] += 6
    predictions = Predictions(1.7 * logits)
    start = time.perf_counter()
    Dirichlet(grid=[(0.1, 0.1)]).fit(predictions, labels)
    single = time.perf_counter() - start
    start = time.perf_counter()
    Dirichlet().fit(predictions, labels)
    search = time.perf_counter() - start
    fits = 5 * len(Dirichlet().pairs(100)) + 1
    print(f"1000 images, 100 classes, {torch.get_num_threads()} threads: {search:.1f} s for {fits} fits (asked: under 20 s),")
    print(f"{search / single:.1f} times one fit to convergence with λ and μ given")


if __name__ == "__main__":
    main()
