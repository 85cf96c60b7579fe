"""Sort images into bins by confidence, for the ECE, reliability diagrams and calibrators."""

import math
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from atta._base.errors import InputError
from atta._base.settings import Cells, checked
from atta._base.types import Labels, PerImage, Probs
from atta.metrics.per_image import Array, as_tensor, check_unit

Edges: TypeAlias = Float[Tensor, "edges"]
PerBin: TypeAlias = Float[Tensor, "b"]
Table: TypeAlias = Float[Tensor, "3 *b"]
"""Of each bin: the number of images, the sum of their confidence, the number of correct ones."""

COUNT = 15
GRID = 512  # cells of the smooth ECE
_Z = 1.959963984540054  # the normal quantile of a two-sided 95 % interval


@dataclass(frozen=True)
class Bins:
    """Images by confidence, as `bins` returns them; the means of empty bins are NaN.

    Attributes:
        edges: The edges of the bins, ascending.
        counts: The number of images in each bin.
        confidence: The mean confidence in each bin.
        accuracy: The accuracy in each bin.
    """

    edges: Edges
    counts: PerBin
    confidence: PerBin
    accuracy: PerBin


@checked
def bins(
    confidence: Array, correct: Array, *, count: Cells = COUNT, equal_mass: bool = False
) -> Bins:
    """Sort images into bins by confidence and return the mean confidence and accuracy of each.

    Use it to draw a reliability diagram by yourself; `atta.reliability` draws one.

    Args:
        confidence: The largest probability of each image, in [0, 1].
        correct: 1 or True for each image whose predicted class is the true one, else 0.
        count: The number of bins; 15 as in the paper.
        equal_mass: Take quantiles as edges instead of equal widths. Images of equal confidence
            stay in one bin, so that bins after it may be empty.

    Returns:
        The edges of the bins (a, b], with counts, mean confidence and accuracy in float64.

    Raises:
        InputError: Shapes differ, there is no image, or values lie outside [0, 1].

    >>> bins(torch.tensor([0.2, 0.9, 1.0]), torch.tensor([0, 1, 1]), count=2).accuracy
    tensor([0., 1.], dtype=torch.float64)
    """
    values = as_tensor(confidence, "confidence").double()
    hits = as_tensor(correct, "correct").double()
    if values.ndim != 1 or values.shape != hits.shape or values.shape[0] == 0:
        raise InputError(
            "confidence and correct: expected one number each for at least 1 image, "
            f"got shapes {tuple(values.shape)} and {tuple(hits.shape)}"
        )
    check_unit(values, "confidence")
    check_unit(hits, "correct")
    values = values.clamp(0, 1)
    if equal_mass:
        edges = equal_mass_edges(values.sort().values, torch.ones_like(values), count)
    else:
        edges = even_edges(count).to(values.device)
    total, confident, right = tally(bin_index(values, edges), count, values, hits.to(values.device))
    return Bins(edges, total, confident / total, right / total)  # 0/0 is the NaN of an empty bin


def bin_index(values: Tensor, edges: Edges) -> Tensor:
    """Return the bin (a, b] of each value, in float64; the first bin includes its lower edge."""
    return torch.bucketize(values.double().contiguous(), edges.double()[1:-1])


def even_edges(count: int) -> Edges:
    """Return the edges of `count` bins of equal width."""
    # A division rounds once, so 3/15 is the 0.2 a user writes; linspace misses 11/15.
    return torch.arange(count + 1, dtype=torch.float64) / count


def equal_mass_edges(values: Tensor, counts: Tensor, count: int) -> Edges:
    """Return the quantiles of ascending `values` that occur `counts` times, as edges."""
    below = counts.cumsum(0)
    ranks = torch.arange(1, count, dtype=torch.float64, device=values.device) * below[-1]
    # Both sides are multiplied by `count`: whole numbers compare exactly.
    quantiles = values[torch.searchsorted(below * count, ranks)]
    return torch.cat([values.new_zeros(1), quantiles, values.new_ones(1)])


@cache
def cell_edges() -> Edges:
    """Return about 4000 cells for metrics of ranks: half of them even, half finer towards 1.

    A good network is more than 99.9 % confident of most images, which share a few even cells.
    """
    even = torch.arange(2049, dtype=torch.float64) / 2048
    steps = torch.arange(53 * 40, dtype=torch.float64) / 40  # float64 ends at 1 - 2^-53
    return torch.cat([even, 1 - torch.exp2(-steps)]).sort().values


def mass_index(levels: PerImage, total: PerImage, count: int) -> Labels:
    """Return the equal-mass bin of ascending `levels`, each the confidence of `total` images."""
    return bin_index(levels, equal_mass_edges(levels, total, count))


def class_index(probs: Probs, count: int) -> Tensor:
    """Return the bin of each probability; class j has the bins from j · count on."""
    first = count * torch.arange(probs.shape[1], device=probs.device)
    return bin_index(probs, even_edges(count).to(probs.device)) + first


def on_grid(confidence: PerImage) -> tuple[Tensor, Tensor]:
    """Return the two grid cells around each confidence and its share in each; the ends reflect."""
    place = confidence * GRID - 0.5
    left = place.floor()
    part = place - left
    return torch.stack([left, left + 1]).clamp(0, GRID - 1).long(), torch.stack([1 - part, part])


def tally(index: Tensor, size: int, confidence: Tensor, correct: Tensor) -> Table:
    """Return the table of `size` bins, given the bin of each image."""
    rows = (torch.ones_like(confidence), confidence, correct)
    return torch.stack([binned(index, row, size) for row in rows])


def binned(index: Tensor, values: Tensor, size: int) -> PerBin:
    """Return the sum of the values in each of `size` bins, given the bin of each value."""
    return torch.bincount(index.flatten(), values.flatten(), minlength=size)


def reliability_bins(
    confidence: Tensor, correct: Tensor, *, count: int = COUNT
) -> dict[str, list[float | None]]:
    """Return what a reliability diagram draws: bins and the 95 % interval of each accuracy."""
    found = bins(confidence, correct, count=count)
    table = torch.stack([found.counts, found.confidence, found.accuracy], 1).tolist()
    rows = [
        [int(n), mean, right, *wilson(n, right)] if n else [0, *[None] * 4]
        for n, mean, right in table
    ]
    names = ("counts", "confidence", "accuracy", "low", "high")
    columns = map(list, zip(*rows, strict=True))
    return {"edges": found.edges.tolist(), **dict(zip(names, columns, strict=True))}


def risk_curve(confidence: Tensor, correct: Tensor, *, count: int = 50) -> dict[str, list[float]]:
    """Return the part of the answers that is wrong if the most confident images are answered.

    Each of up to `count` points has the part of the images that is answered (`coverage`), its
    `risk`, and the 95 % interval of the risk. Images of equal confidence are answered together.
    """
    ranked, order = confidence.double().sort(descending=True, stable=True)
    wrong = (1 - correct.double()[order]).cumsum(0)
    ends = (ranked.diff(append=ranked.new_tensor([-1.0])) < 0).nonzero()[:, 0] + 1
    wanted = torch.linspace(len(ranked) / count, len(ranked), count, dtype=torch.float64)
    ends = ends[sorted({*torch.searchsorted(ends.double(), wanted).tolist()})]
    risk = wrong[ends - 1] / ends
    low, high = zip(*map(wilson, ends.double().tolist(), risk.tolist()), strict=True)
    return {
        "coverage": (ends / len(ranked)).tolist(),
        "risk": risk.tolist(),
        "low": list(low),
        "high": list(high),
    }


def wilson(count: float, part: float) -> tuple[float, float]:
    """Return the Wilson 95 % interval of a proportion, which holds for few images as well."""
    centre, scale = part + _Z * _Z / (2 * count), 1 + _Z * _Z / count
    half = _Z * math.sqrt(part * (1 - part) / count + _Z * _Z / (4 * count * count))
    return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)
