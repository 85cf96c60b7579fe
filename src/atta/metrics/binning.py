"""Images by confidence: the one binning that the ECE, reliability diagrams and histogram calibration share."""

import math
from dataclasses import dataclass
from typing import TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from atta._base.errors import InputError
from atta._base.settings import Cells, check_one, checked
from atta.metrics.per_image import Array, as_tensor, check_unit

Table: TypeAlias = Float[Tensor, "3 *b"]
"""What each bin keeps of its images: how many, the sum of their confidence, how many are right."""

COUNT = 15
GRID = 512  # cells of the smooth ECE
Z = 1.959963984540054  # of 95 %


@dataclass(frozen=True)
class Bins:
    """Images by confidence. An empty bin has NaN for its means, so that no diagram draws it as a perfect one."""

    edges: Float[Tensor, "edges"]
    counts: Float[Tensor, "b"]
    confidence: Float[Tensor, "b"]
    accuracy: Float[Tensor, "b"]


@checked
def bins(
    confidence: Array, correct: Array, *, count: Cells = COUNT, equal_mass: bool = False
) -> Bins:
    """Sort images into `count` bins (a, b] of equal width, or of equal mass.

    Equal mass takes quantiles for edges. Images of equal confidence stay together: a network that says exactly 1.0 to
    half of its images has one bin for all of these, and empty ones (1, 1] after it.

    >>> bins(torch.tensor([0.2, 0.9, 1.0]), torch.tensor([0, 1, 1]), count=2).accuracy
    tensor([0., 1.], dtype=torch.float64)
    """
    values, hits = (
        as_tensor(confidence, "confidence").double(),
        as_tensor(correct, "correct").double(),
    )
    if values.ndim != 1 or values.shape != hits.shape or values.shape[0] == 0:
        shapes = f"{tuple(values.shape)} and {tuple(hits.shape)}"
        raise InputError(
            f"confidence and correct: expected one number each for at least 1 image, got shapes {shapes}"
        )
    check_unit(values, "confidence")
    check_unit(hits, "correct")
    values, edges = values.clamp(0, 1), even_edges(count).to(values.device)
    if equal_mass:
        edges = equal_mass_edges(values.sort().values, torch.ones_like(values), count)
    total, confident, right = tally(bin_index(values, edges), count, values, hits.to(values.device))
    return Bins(edges, total, confident / total, right / total)  # 0/0 is the NaN of an empty bin


def bin_index(
    values: Float[Tensor, "*shape"], edges: Float[Tensor, "edges"]
) -> Int[Tensor, "*shape"]:
    """The bin (a, b] of each value, in float64; what lies on or below the first edge goes into the first bin."""
    return torch.bucketize(values.double().contiguous(), edges.double()[1:-1])


def even_edges(count: int) -> Float[Tensor, "edges"]:
    """The edges of `count` bins of equal width."""
    count = check_one("count", count, Cells)
    # A division rounds once, so that 3/15 is the 0.2 a user writes; linspace adds rounded steps and misses 11/15.
    return torch.arange(count + 1, dtype=torch.float64) / count


def equal_mass_edges(values: Tensor, counts: Tensor, count: int) -> Float[Tensor, "edges"]:
    """Edges at the quantiles of ascending `values` that occur `counts` times. Equal edges have an empty bin between."""
    below = counts.cumsum(0)
    ranks = torch.arange(1, count, dtype=torch.float64, device=values.device) * below[-1]
    quantiles = values[
        torch.searchsorted(below * count, ranks)
    ]  # both sides times `count`: whole numbers are exact
    return torch.cat([values.new_zeros(1), quantiles, values.new_ones(1)])


def cell_edges() -> Float[Tensor, "edges"]:
    """Some 4000 cells for what depends on ranks: half of them even, half ever finer towards 1.

    A good network is more than 99.9 % sure of most images; even cells would throw all of these into a few.
    """
    even = torch.arange(2049, dtype=torch.float64) / 2048
    near_one = 1 - torch.exp2(
        -torch.arange(53 * 40, dtype=torch.float64) / 40
    )  # float64 ends at 1 - 2^-53
    return torch.cat([even, near_one]).sort().values


def mass_index(
    levels: Float[Tensor, "g"], total: Float[Tensor, "g"], count: int
) -> Int[Tensor, "g"]:
    """The bin of equal mass of ascending `levels` that `total` images have."""
    return bin_index(levels, equal_mass_edges(levels, total, count))


def class_index(probs: Float[Tensor, "n k"], count: int) -> Int[Tensor, "n k"]:
    """The bin of each probability, those of one class after those of another."""
    return bin_index(probs, even_edges(count).to(probs.device)) + count * torch.arange(
        probs.shape[1], device=probs.device
    )


def on_grid(confidence: Float[Tensor, "n"]) -> tuple[Int[Tensor, "2 n"], Float[Tensor, "2 n"]]:
    """The two cells of the grid whose centres a confidence lies between, and its part in each; the ends reflect."""
    place = confidence * GRID - 0.5
    left = place.floor()
    part = place - left
    return torch.stack([left, left + 1]).clamp(0, GRID - 1).long(), torch.stack([1 - part, part])


def tally(
    index: Int[Tensor, "n"], size: int, confidence: Tensor, correct: Tensor
) -> Float[Tensor, "3 size"]:
    """The table of `size` bins, from the bin of each image."""
    # Row by row: on the CPU index_add is a plain loop in one dimension and a call per column in two.
    rows = (torch.ones_like(confidence), confidence, correct)
    return torch.stack([row.new_zeros(size).index_add_(0, index, row) for row in rows])


# --- What a reliability diagram draws ---------------------------------------------------------------------------------


def reliability_bins(
    confidence: Tensor, correct: Tensor, *, count: int = COUNT
) -> dict[str, list[float | None]]:
    """What a reliability diagram draws: the bins of the ECE, and the 95 % interval of the accuracy in each."""
    found = bins(confidence, correct, count=count)
    low, high = zip(*map(wilson, found.counts.tolist(), found.accuracy.tolist()), strict=True)
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
