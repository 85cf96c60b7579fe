"""What a reliability diagram draws: the bins of the ECE, and how sure the accuracy in each of them is."""

import math

from torch import Tensor

from atta.metrics.scores import bins

BINS = 15
Z = 1.959963984540054  # of 95 %


def reliability_bins(confidence: Tensor, correct: Tensor, *, count: int = BINS) -> dict[str, list[float | None]]:
    """What a reliability diagram draws: the bins of the ECE, and the 95 % interval of the accuracy in each."""
    found = bins(confidence, correct, count=count)
    low, high = zip(
        *(wilson(n, a) for n, a in zip(found.counts.tolist(), found.accuracy.tolist(), strict=True)), strict=True
    )
    return {
        "edges": found.edges.tolist(),
        "counts": [int(count) for count in found.counts],
        "confidence": known_means(found.confidence),
        "accuracy": known_means(found.accuracy),
        "low": list(low),
        "high": list(high),
    }


def wilson(count: float, part: float) -> tuple[float | None, float | None]:
    """The 95 % interval of a proportion that also holds for few images, and for none or all of them right."""
    if not count:
        return None, None
    centre, scale = part + Z * Z / (2 * count), 1 + Z * Z / count
    half = Z * math.sqrt(part * (1 - part) / count + Z * Z / (4 * count * count))
    return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)


def known_means(values: Tensor) -> list[float | None]:
    """The mean of nothing is nothing."""
    return [None if math.isnan(value) else value for value in values.tolist()]
