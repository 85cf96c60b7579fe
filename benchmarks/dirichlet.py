"""Dirichlet calibration with its search for λ and μ, on one core: 1000 images of 100 classes, and 5000 of 1000.

What the peers do of it, one fit with λ and μ given, is in `benchmarks.baselines`.

    python -m benchmarks.dirichlet [--quick]
"""

from functools import partial

from atta import Dirichlet, Predictions
from benchmarks.measured import OURS, Asked, Measured, Steps, alone, seconds, sized, too_sure


def measure(images: int, classes: int) -> list[Measured]:
    """Time one search."""
    logits, labels = too_sure(images, classes)
    fits = 5 * len(Dirichlet().pairs(classes)) + 1
    taken = seconds(lambda: Dirichlet().fit(Predictions(logits), labels))
    return [
        Measured(
            f"Dirichlet with its search, {sized(images, classes)}",
            OURS,
            {"seconds": taken, "fits": fits},
        )
    ]


def steps(asked: Asked) -> Steps:
    """Two sizes."""
    sizes = ((100, 5),) if asked.quick else ((1000, 100), (5000, 1000))
    return {sized(*size): partial(measure, *size) for size in sizes}


if __name__ == "__main__":
    alone(steps, __doc__)
