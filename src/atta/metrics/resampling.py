"""Intervals of metrics, and of differences between two methods, by the bootstrap.

A resample draws as many images as there are, with replacement: image i counts w_i times, Σ w = n.
With a fixed calibrator, the spread of a metric θ* over resamples is that of the metric θ over test
sets. Intervals are

    θ + quantiles of (θ* - mean θ*)

They are centred because metrics with an absolute value (ece, mce, smooth_ece, ...) are biased
upwards by noise: a perfectly calibrated classifier has a positive ECE. A resample adds that noise
a second time, so θ* lies above θ, and percentiles of θ* itself may exclude θ. The intervals cover
the mean of the metric over test sets of this size, which is the number that tables report. For
metrics that are means (brier, nll, ...), mean θ* differs from θ by chance only.

Two methods are compared on the same resamples: the interval of θ_a - θ_b uses that they err on the
same images, and is far narrower than the two intervals suggest.

No image is drawn. The sums of a metric are linear in the counts, so all resamples of all sums are
one matrix product,

    sums [s, resamples] = what each image adds [s, n] · counts [n, resamples]

and the formulas of `atta.metrics.formulas` read them as they read one set. Bins of equal mass stay
where all images put them. For aurc and the answered images, confidences without an error between
them share a group, which keeps both exact.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Annotated, TypeAlias

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from atta._base.errors import InputError
from atta._base.settings import checked
from atta._base.types import Labels, PerImage
from atta.metrics.binning import (
    COUNT,
    GRID,
    bin_index,
    class_index,
    even_edges,
    mass_index,
    on_grid,
)
from atta.metrics.formulas import BINNED, FORMULAS, TIED, Summary, measurable
from atta.metrics.per_image import (
    TERMS,
    AnyProbs,
    Array,
    Images,
    LabelArray,
    as_tensor,
    per_image,
    validate,
)
from atta.metrics.scores import evaluate
from atta.results.words import ANSWERED

CELLS = 2**21  # counts per product: 2 MB as bytes, 8 MB as float32
RESAMPLES, CONFIDENCE = 1000, 0.95
SHARES = {"accuracy", *ANSWERED}
"""Metrics whose best value is 1, which a centred interval could exceed."""
Interval: TypeAlias = tuple[float, float]
SparseTable: TypeAlias = tuple[tuple[int, ...], csr_array]
"""The shape of a table, and the float32 matrix, cells × images, that makes it from counts."""


@checked
def bootstrap(
    probs: AnyProbs,
    labels: LabelArray | None = None,
    *,
    metrics: Iterable[str] | None = None,
    resamples: Annotated[int, "≥ 2"] = RESAMPLES,
    confidence: Annotated[float, "> 0", "< 1"] = CONFIDENCE,
    seed: Annotated[int, "≥ 0"] = 0,
    simplex: bool = True,
    images: LabelArray | None = None,
) -> dict[str, Interval]:
    """Return the confidence interval of each metric: how much other test images would change it.

    Use `paired` to compare two methods on the same images: it is far more precise.

    Args:
        probs: Probabilities, images × classes.
        labels: The class number of each image; None for the entropies alone.
        metrics: Names of `atta.METRICS`; all that the labels allow by default.
        resamples: The number of bootstrap resamples.
        confidence: The coverage of the intervals.
        seed: The seed of the resamples; equal seeds give equal bits.
        simplex: Require rows that sum to 1.
        images: For pixels: the image of each row. Whole images are drawn.

    Returns:
        (low, high) by metric, in the order of `metrics`.

    Raises:
        InputError: The arrays are not probabilities and labels, or a metric is unknown.

    >>> bootstrap(torch.tensor([[0.75, 0.25]] * 100), [0] * 75 + [1] * 25, metrics=["accuracy"])
    {'accuracy': (0.66..., 0.83...)}
    """
    drawn = Resamples(len(validate(probs, labels)[0]), resamples, seed, images)
    points, values = _measure(probs, labels, drawn, metrics, simplex)
    found = {}
    for name, (low, high) in intervals(points, values, confidence).items():
        if name in SHARES:
            high = min(high, 1.0)
        found[name] = max(low, min(points[name], 0.0)), high
    return found


@checked
def paired(
    probs_a: Array,
    probs_b: Array,
    labels: LabelArray | None = None,
    *,
    metrics: Iterable[str] | None = None,
    resamples: Annotated[int, "≥ 2"] = RESAMPLES,
    confidence: Annotated[float, "> 0", "< 1"] = CONFIDENCE,
    seed: Annotated[int, "≥ 0"] = 0,
    simplex: bool = True,
    images: LabelArray | None = None,
) -> dict[str, Interval]:
    """Return the interval of each metric of `probs_a` minus that of `probs_b`.

    Use it to compare two methods on the same images: an interval that excludes 0 is a difference
    that the choice of test images does not explain.

    Args:
        probs_a: Probabilities of one method, images × classes.
        probs_b: Probabilities of the other method for the same images.
        labels: The class number of each image, as for `bootstrap`.
        metrics: The metrics to compare; all that the labels allow by default.
        resamples: How often the images are drawn.
        confidence: The coverage of each interval.
        seed: The seed of the resamples, as for `bootstrap`.
        simplex: Whether rows have to sum to 1.
        images: For pixels: the image of each row, as for `bootstrap`.

    Returns:
        (low, high) of the difference by metric, in the order of `metrics`.

    >>> sharp = torch.tensor([[0.9, 0.1]] * 100)
    >>> paired(sharp, sharp, [0] * 75 + [1] * 25, metrics=["nll"])
    {'nll': (0.0, 0.0)}
    """
    a, b = (len(validate(probs, labels)[0]) for probs in (probs_a, probs_b))
    if a != b:
        raise InputError(f"probs_b: expected {a} images as in probs_a, got {b}")
    drawn = Resamples(a, resamples, seed, images)
    points, values = _measure(probs_a, labels, drawn, metrics, simplex)
    less, fewer = _measure(probs_b, labels, drawn, metrics, simplex)
    return intervals(
        {name: points[name] - less[name] for name in points},
        {name: values[name] - fewer[name] for name in points},
        confidence,
    )


def _measure(
    probs: AnyProbs,
    labels: LabelArray | None,
    drawn: "Resamples",
    metrics: Iterable[str] | None,
    simplex: bool,
) -> tuple[dict[str, float], dict[str, Tensor]]:
    """Return each metric of all images, and of each resample."""
    names = measurable(metrics, labels is not None)
    return (
        evaluate(probs, labels, metrics=names, simplex=simplex),
        replicates(probs, labels, drawn, metrics=names, simplex=simplex),
    )


def intervals(
    points: Mapping[str, float], values: Mapping[str, Tensor], confidence: float = CONFIDENCE
) -> dict[str, Interval]:
    """Return the centred interval of each point from its resampled values; it holds the point."""
    found, tail = {}, (1 - confidence) / 2
    for name, point in points.items():
        spread = values[name] - values[name].mean()
        low, high = spread.quantile(spread.new_tensor([tail, 1 - tail])).tolist()
        found[name] = point + min(low, 0.0), point + max(high, 0.0)
    return found


# --- Counts ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Resamples:
    """How often each image is drawn in each resample; all methods share it, which pairs them.

    If the rows are pixels, `groups` has the image of each of them, and whole images are drawn.
    """

    images: int
    count: int = RESAMPLES
    seed: int = 0
    groups: LabelArray | None = None

    def __iter__(self) -> Iterator[np.ndarray]:
        """Yield the counts of some resamples at a time, so that memory stays bounded."""
        step = max(1, CELLS // self.images)
        images, group = self.images, None
        if self.groups is not None:
            unique, group = np.unique(as_tensor(self.groups, "images").cpu(), return_inverse=True)
            if group.shape != (self.images,):
                raise InputError(
                    f"images: expected one number for each of {self.images} rows, got {group.shape}"
                )
            images = len(unique)
        for first in range(0, self.count, step):
            counts = _counts(images, first, min(first + step, self.count), self.seed)
            yield counts if group is None else counts[group]


@lru_cache(maxsize=16)  # 32 MB: the counts of 10,000 images stay, of a million are drawn again
def _counts(images: int, first: int, last: int, seed: int) -> np.ndarray:
    found = np.empty((images, last - first), dtype=np.uint8)  # no image is drawn 256 times
    for resample in range(first, last):
        drawn = np.random.default_rng([seed, resample]).integers(images, size=images)
        found[:, resample - first] = np.bincount(drawn, minlength=images)
    return found


# --- Sums over resamples --------------------------------------------------------------------


def replicates(
    probs: AnyProbs,
    labels: LabelArray | None,
    resamples: Resamples,
    rows: Labels | None = None,
    *,
    metrics: Iterable[str] | None = None,
    simplex: bool = True,
    confidence: Array | None = None,
) -> dict[str, Tensor]:
    """Return each metric of each resample; `rows` are the resampled images given, all if None."""
    p, y = validate(probs, labels)
    names = measurable(metrics, y is not None)
    summarise = _summariser(
        _columns(per_image(p, y, simplex=simplex, confidence=confidence), names), names
    )
    found: list[list[Tensor]] = []
    for every in resamples:
        counts = torch.from_numpy(every if rows is None else every[rows.numpy()]).float()
        counts[:, counts.sum(0) == 0] = 1  # a resample without any of few images takes them all
        summary = summarise(counts)
        found.append([FORMULAS[name](summary).double() for name in names])
    return {name: torch.cat(parts) for name, *parts in zip(names, *found, strict=True)}


def _columns(parts: Iterable[Images], names: list[str]) -> dict[str, Tensor]:
    """Return what is kept of each image; the float64 copies are as large as all else."""
    found: list[dict[str, Tensor]] = []
    for part in parts:
        some = {"confidence": part.confidence, "correct": part.correct}
        some |= {name: TERMS[name](part) for name in names if name in TERMS}
        if "classwise_ece" in names:
            some["class index"] = class_index(part.probs, COUNT)
            some["class gap"] = -part.excess
        found.append({name: column.cpu() for name, column in some.items()})
    column = {name: torch.cat([some[name] for some in found]) for name in found[0]}
    return column | {"gap": column["correct"] - column["confidence"]}


def _summariser(column: Mapping[str, Tensor], names: list[str]) -> Callable[[Tensor], Summary]:
    """Return the function that makes the summary of resamples from their counts [n, resamples].

    Its tensors have an axis of resamples before the bins.
    """
    means = {name: column[name].mean() for name in names if name in TERMS}
    # A row of ones, the terms minus their means, as float32 is coarse, and the table of the bins.
    rows = [torch.ones_like(column["gap"])[None]]
    rows += [column[name][None] - mean for name, mean in means.items()]
    if BINNED & set(names):
        index = bin_index(column["confidence"], even_edges(COUNT))
        hot = torch.nn.functional.one_hot(index, COUNT).T.double()
        rows += [hot, hot * column["gap"], hot * column["correct"]]
    dense, tables = torch.cat(rows).float(), _tables(column, names)

    def summarise(counts: Tensor) -> Summary:
        images, *rest = dense @ counts
        summary = {name: means[name] + row / images for name, row in zip(means, rest, strict=False)}
        if bins := rest[len(means) :]:
            total, gaps, correct = torch.stack(bins).view(3, COUNT, -1).double().transpose(1, 2)
            summary["bins"] = torch.stack([total, correct - gaps, correct])
        for name, (shape, matrix) in tables.items():
            table = torch.from_numpy(matrix @ counts.numpy()).T.reshape(-1, *shape)
            if name == "tied":
                summary[name] = torch.stack(table.double().unbind(1))
            else:
                summary[name] = table / images.view(-1, *[1] * len(shape))
        return summary

    return summarise


def _tables(column: Mapping[str, Tensor], names: list[str]) -> dict[str, SparseTable]:
    """Return every large table that the metrics need."""
    confidence, correct, gaps = (column[name] for name in ("confidence", "correct", "gap"))
    levels, level = confidence.unique(return_inverse=True)  # type: ignore[no-untyped-call]
    tables: dict[str, SparseTable] = {}
    if "adaptive_ece" in names:
        index = mass_index(levels, torch.bincount(level).double(), COUNT)[level]
        tables["mass_gaps"] = _sparse((COUNT,), index[None], gaps[None])
    if "classwise_ece" in names:
        index = column["class index"].T
        tables["class_gaps"] = _sparse((len(index), COUNT), index, column["class gap"].T)
    if "smooth_ece" in names:
        cells, weights = on_grid(confidence)
        tables["residual"] = _sparse((GRID,), cells, weights * gaps)
    if TIED & set(names):
        group = _groups(level, correct)
        size = int(group.max()) + 1
        values = torch.stack([torch.ones_like(gaps), correct])
        tables["tied"] = _sparse((2, size), torch.stack([group, group + size]), values)
    return tables


def _groups(level: Labels, correct: PerImage) -> Labels:
    """Merge runs of levels without an error: they add nothing to aurc but their number."""
    wrong = torch.bincount(level, 1 - correct) > 0
    starts = wrong | wrong.roll(1)
    starts[0] = False
    return starts.cumsum(0)[level]


def _sparse(shape: tuple[int, ...], index: Tensor, value: Tensor) -> SparseTable:
    """Return the table of this shape, given each image's places in it and the values there."""
    images = torch.arange(index.shape[1]).expand_as(index)
    places = (index.flatten().numpy(), images.flatten().numpy())
    size = (prod(shape), index.shape[1])
    return shape, csr_array((value.flatten().float().numpy(), places), shape=size)
