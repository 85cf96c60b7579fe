"""How sure a number is: what it would have been with other test images, by the bootstrap.

A resample draws as many images as there are, with replacement: image i counts w_i times, Σ w = n. With the calibrator held
fixed, the spread of a metric θ* over resamples is that of the metric θ over test sets. Intervals are

    θ + quantiles of (θ* - mean θ*)

Centred, because metrics with an absolute value in them (ece, mce, smooth_ece, ...) are too large by their noise: a perfectly
calibrated classifier has a positive one. A resample adds that noise a second time, so θ* lies above θ, and percentiles of θ*
itself may leave θ out. What is covered is the mean of the metric over test sets of this size, which is the number that tables
hold. For metrics that are means (brier, nll, ...) mean θ* is θ but for the luck of the draw, and centring takes that out.

Two methods are compared on the same resamples: the interval of θ_a - θ_b knows that they err on the same images, and is far
narrower than the two intervals suggest.

No image is drawn. The sums that a metric is made of are linear in the counts, so all resamples of all sums are one product,

    sums [s, resamples] = what each image adds [s, n] · counts [n, resamples]

and the formulas of `atta.metrics` read them as they read one set. Bins of equal mass are held where all images put them. An
image is told from its neighbours by its confidence only where an error makes it count: aurc is exact.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from scipy.sparse import csr_array
from torch import Tensor

from atta._base.errors import InputError
from atta._base.settings import checked
from atta.metrics.binning import (
    COUNT,
    GRID,
    bin_index,
    class_index,
    even_edges,
    mass_index,
    on_grid,
)
from atta.metrics.per_image import TERMS, Array, Images, LabelArray, per_image, validate
from atta.metrics.scores import METRICS, evaluate, known, measurable

CELLS = 2**21  # counts looked at together: 2 MB as bytes, 8 MB as they are multiplied
RESAMPLES, CONFIDENCE = 1000, 0.95
Interval: TypeAlias = tuple[float, float]


@checked
def bootstrap(
    probs: Array,
    labels: LabelArray | None = None,
    *,
    metrics: Iterable[str] | None = None,
    resamples: Annotated[int, "≥ 2"] = RESAMPLES,
    confidence: Annotated[float, "> 0", "< 1"] = CONFIDENCE,
    seed: Annotated[int, "≥ 0"] = 0,
    simplex: bool = True,
) -> dict[str, Interval]:
    """The interval of every metric, or of the named ones, as (low, high): what other test images would have changed.

    >>> bootstrap(torch.tensor([[0.75, 0.25]] * 100), [0] * 75 + [1] * 25, metrics=["accuracy"])
    {'accuracy': (0.66..., 0.83...)}
    """
    names = None if metrics is None else known(metrics)
    drawn = Resamples(validate(probs, labels)[0].shape[0], resamples, seed)
    found = replicates(probs, labels, drawn, metrics=names, simplex=simplex)
    points = evaluate(probs, labels, metrics=names, simplex=simplex)
    return {
        name: (max(low, min(points[name], 0.0)), high)
        for name, (low, high) in intervals(points, found, confidence)
    }


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
) -> dict[str, Interval]:
    """The interval of each metric of `probs_a` less that of `probs_b`, answers to the same images, as (low, high).

    Where it excludes 0, the difference is not the luck of the test images.
    """
    names = None if metrics is None else known(metrics)
    a, b = (validate(probs, labels)[0] for probs in (probs_a, probs_b))
    if a.shape[0] != b.shape[0]:
        raise InputError(f"probs_b: expected {a.shape[0]} images as in probs_a, got {b.shape[0]}")
    drawn = Resamples(a.shape[0], resamples, seed)
    mine, theirs = (
        replicates(p, labels, drawn, metrics=names, simplex=simplex) for p in (probs_a, probs_b)
    )
    one, other = (evaluate(p, labels, metrics=names, simplex=simplex) for p in (probs_a, probs_b))
    points = {name: one[name] - other[name] for name in one}
    return dict(intervals(points, {name: mine[name] - theirs[name] for name in one}, confidence))


def intervals(
    points: Mapping[str, float], values: Mapping[str, Tensor], confidence: float = CONFIDENCE
) -> Iterator[tuple[str, Interval]]:
    """The centred intervals around numbers, from what resamples make of these; none is outside of its own."""
    if not points:
        return
    tail, spread = (1 - confidence) / 2, torch.stack([values[name] for name in points])
    spread = spread - spread.mean(1, keepdim=True)
    below, above = torch.quantile(spread, spread.new_tensor([tail, 1 - tail]), dim=1).tolist()
    for (name, point), low, high in zip(points.items(), below, above, strict=True):
        yield name, (point + min(low, 0.0), point + max(high, 0.0))


# --- Counts -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Resamples:
    """How often each of `images` is drawn, `count` times over: the same for every method, which is what pairs them."""

    images: int
    count: int = RESAMPLES
    seed: int = 0

    def __post_init__(self) -> None:
        if self.count < 2:
            raise InputError(f"resamples: expected at least 2, got {self.count}")

    def __iter__(self) -> Iterator[UInt8[np.ndarray, "n r"]]:
        """Counts of some resamples at a time; memory stays bounded, whatever the number of images."""
        step = max(1, CELLS // self.images)
        for first in range(0, self.count, step):
            yield _counts(self.images, first, min(first + step, self.count), self.seed)


@lru_cache(maxsize=16)  # 32 MB: those of 10,000 images stay, those of a million are drawn again
def _counts(images: int, first: int, last: int, seed: int) -> UInt8[np.ndarray, "n r"]:
    found = np.empty((last - first, images), dtype=np.uint8)  # nothing is drawn 256 times
    for i, resample in enumerate(range(first, last)):
        found[i] = np.bincount(
            np.random.default_rng([seed, resample]).integers(images, size=images), minlength=images
        )
    return np.ascontiguousarray(found.T)


# --- Sums over resamples ----------------------------------------------------------------------------------------------


def replicates(
    probs: Array,
    labels: LabelArray | None,
    resamples: Resamples,
    rows: Int[Tensor, " n"] | None = None,
    *,
    metrics: Iterable[str] | None = None,
    simplex: bool = True,
    count: int = COUNT,
) -> dict[str, Float[Tensor, " r"]]:
    """What each resample makes of each metric; `rows` says which of the resampled images these are, all by default."""
    p, y = validate(probs, labels)
    names = measurable(None if metrics is None else known(metrics), y is not None)
    sums = _Sums.of(per_image(p, y, simplex=simplex), names, count)
    index = None if rows is None else rows.numpy()
    found: list[list[Tensor]] = []
    for counts in resamples:
        these = torch.from_numpy(counts if index is None else counts[index]).float()
        these[:, these.sum(0) == 0] = (
            1  # of very few images none may be drawn: they stand for themselves
        )
        summary = sums(these)
        found.append([METRICS[name].formula(summary).double() for name in names])
    return {
        name: torch.cat(parts) for name, parts in zip(names, zip(*found, strict=True), strict=True)
    }


_BINNED = {
    "ece",
    "mce",
    "debiased_ece",
    "brier_reliability",
    "brier_resolution",
    "brier_uncertainty",
}


@dataclass(frozen=True)
class _Sums:
    """What each image adds to every sum: to the few as a dense matrix, to those by class, level and cell as a sparse one."""

    means: Mapping[str, float]
    dense: Float[Tensor, "s n"]
    """A row of ones, the terms less their means (float32 then loses nothing), and the table of the bins."""
    bins: int
    sparse: csr_array | None
    tables: Mapping[str, tuple[int, ...]]
    """The shapes of what the sparse matrix makes, in its order."""

    @classmethod
    def of(cls, parts: Iterable[Images], names: list[str], count: int) -> "_Sums":
        columns: dict[str, list[Tensor]] = {}
        for part in parts:  # none of which is kept: its float64 copy is as large as all else
            found = {"confidence": part.confidence, "right": part.correct, **part.terms(names)}
            if "classwise_ece" in names and part.hits is not None:
                found |= {
                    "class index": class_index(part.probs, count),
                    "class gap": part.hits - part.probs,
                }
            for name, column in found.items():
                columns.setdefault(name, []).append(column.cpu())
        every = {name: torch.cat(column) for name, column in columns.items()}
        confidence, correct = every["confidence"], every["right"]
        gaps = correct - confidence
        terms = {name: every[name] for name in names if name in TERMS}
        dense = [
            torch.ones_like(gaps)[None],
            *(term[None] - term.mean() for term in terms.values()),
        ]
        if _BINNED & set(names):
            hot = torch.nn.functional.one_hot(
                bin_index(confidence, even_edges(count)), count
            ).T.double()
            dense += [hot, hot * gaps, hot * correct]
        levels, level = confidence.unique(return_inverse=True)  # type: ignore[no-untyped-call]
        sparse: dict[
            str, tuple[tuple[int, ...], Tensor, Tensor]
        ] = {}  # shape, index and value(s) of each image
        if "adaptive_ece" in names:
            total = torch.bincount(level).double()
            sparse["mass_gaps"] = (
                (count,),
                mass_index(levels, total, count)[level][None],
                gaps[None],
            )
        if "classwise_ece" in names:
            index, gap = every["class index"], every["class gap"]
            sparse["class_gaps"] = (index.shape[1], count), index.T, gap.T
        if "smooth_ece" in names:
            cells, weights = on_grid(confidence)
            sparse["residual"] = (GRID,), cells, weights * gaps
        if "aurc" in names:
            group = _groups(level, correct)
            size = int(group.max()) + 1
            sparse["tied"] = (
                (2, size),
                torch.stack([group, group + size]),
                torch.stack([torch.ones_like(gaps), correct]),
            )
        return cls(
            {name: float(term.mean()) for name, term in terms.items()},
            torch.cat(dense).float(),
            count if _BINNED & set(names) else 0,
            _stacked(list(sparse.values()), len(gaps)),
            {name: shape for name, (shape, _, _) in sparse.items()},
        )

    def __call__(self, counts: Float[Tensor, "n r"]) -> dict[str, Tensor]:
        """The summary that formulas read, an axis of resamples in front of the bins."""
        images, *rest = self.dense @ counts
        few = len(self.means)
        summary = {
            name: mean + rest[i] / images for i, (name, mean) in enumerate(self.means.items())
        }
        if self.bins:
            total, gaps, correct = (
                torch.stack(rest[few:]).view(3, self.bins, -1).double().transpose(1, 2)
            )
            summary["bins"] = torch.stack([total, correct - gaps, correct])
        if self.sparse is not None:
            made = torch.from_numpy(self.sparse @ counts.numpy()).T  # resamples in front
            sizes = [int(np.prod(shape)) for shape in self.tables.values()]
            for (name, shape), table in zip(
                self.tables.items(), torch.split(made, sizes, dim=1), strict=True
            ):
                summary[name] = table.reshape(-1, *shape)
            for name in {"mass_gaps", "class_gaps", "residual"} & summary.keys():
                summary[name] = summary[name] / images.view(-1, *[1] * (summary[name].ndim - 1))
            if "tied" in summary:
                total, correct = summary["tied"].double().unbind(1)
                summary["tied"] = torch.stack([total, torch.zeros_like(total), correct])
        return summary


def _groups(level: Int[Tensor, " n"], correct: Float[Tensor, " n"]) -> Int[Tensor, " n"]:
    """Runs of levels without an error as one: they add nothing to aurc but their number."""
    wrong = torch.bincount(level, 1 - correct) > 0
    starts = wrong | wrong.roll(1)
    starts[0] = False
    return starts.cumsum(0)[level]


def _stacked(tables: list[tuple[tuple[int, ...], Tensor, Tensor]], images: int) -> csr_array | None:
    """Tables one below the other as a sparse matrix of float32: sums × images; None of none."""
    rows, columns, values, offset = [], [], [], 0
    for shape, index, value in tables:
        rows.append((index + offset).flatten())
        columns.append(torch.arange(images).expand_as(index).flatten())
        values.append(value.flatten())
        offset += int(np.prod(shape))
    if not tables:
        return None
    places = (torch.cat(rows).numpy(), torch.cat(columns).numpy())
    return csr_array((torch.cat(values).float().numpy(), places), shape=(offset, images))
