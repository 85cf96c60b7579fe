"""How good the probabilities are: every metric from one pass over them, and sums that can be merged.

With p the n × k probabilities, y the labels, c = max_j p_j the confidence of an image, h = [argmax p = y] whether it is
right, and bins b of n_b images with mean confidence conf_b and accuracy acc_b (15 equal ones (a, b]; 0 in the first):

| name              | formula                                                                                         |
|-------------------|-------------------------------------------------------------------------------------------------|
| accuracy          | mean h                                                                                          |
| brier             | mean (c - h)²                                                                                   |
| ece               | Σ_b n_b/n · abs(acc_b - conf_b)                                                                 |
| mc_brier          | mean Σ_j (p_j - [y = j])²                                                                       |
| nll               | mean -ln max(p_y, tiny), tiny = the smallest normal number of the dtype given, so it is finite  |
| entropy           | mean -Σ_j p_j log₂ p_j / k, as the paper has it                                                 |
| mce               | max_b abs(acc_b - conf_b)                                                                       |
| classwise_ece     | mean over the k classes of the ECE of p_j against [y = j]                                       |
| adaptive_ece      | the ECE over bins of equal mass; images of equal confidence are never parted                    |
| debiased_ece      | ECE - Σ_b n_b/n · (E abs(N(g_b, v_b)) - abs(g_b)),  g = acc - conf,  v = acc (1 - acc) / n_b    |
| shannon_entropy   | mean -Σ_j p_j ln p_j                                                                            |
| brier_reliability | Σ_b n_b/n · (acc_b - conf_b)²                                                                   |
| brier_resolution  | Σ_b n_b/n · (acc_b - acc)²                                                                      |
| brier_uncertainty | acc (1 - acc);  brier = reliability - resolution + uncertainty where c is constant in each bin  |
| aurc              | 1/n Σ_i (errors among the i most confident) / i; images that tie share their mean error         |
| smooth_ece        | ∫ abs(1/n Σ_i K_s(t, c_i) (h_i - c_i)) dt, K_s a Gaussian reflected at 0 and 1, s = the result  |

Everything is computed in float64, whatever comes in, and in chunks of rows.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from math import log, pi, sqrt
from typing import Any, Literal, NamedTuple, TypeAlias, final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from atta.types import InputError

Array: TypeAlias = Tensor | np.ndarray
LabelArray: TypeAlias = Tensor | np.ndarray | Sequence[Any]
Table: TypeAlias = Float[Tensor, "3 *b"]
"""What each bin keeps of its images: how many, the sum of their confidence, how many are right."""

CHUNK = 2**18  # probabilities looked at together: 2 MB, whatever the size of the set
RANGE_TOLERANCE = 1e-4
SUM_TOLERANCE = 1e-3
GRID = 512  # cells of the smooth ECE


# --- Bins: the one binning that ECE, diagrams and histogram calibration share -----------------------------------------


@dataclass(frozen=True)
class Bins:
    """Images by confidence. An empty bin has NaN for its means, so that no diagram draws it as a perfect one."""

    edges: Float[Tensor, "edges"]
    counts: Float[Tensor, "b"]
    confidence: Float[Tensor, "b"]
    accuracy: Float[Tensor, "b"]


def bins(confidence: Array, correct: Array, *, count: int = 15, equal_mass: bool = False) -> Bins:
    """Sort images into `count` bins (a, b] of equal width, or of equal mass.

    Equal mass takes quantiles for edges. Images of equal confidence stay together: a network that says exactly 1.0 to
    half of its images has one bin for all of these, and empty ones (1, 1] after it.

    >>> bins(torch.tensor([0.2, 0.9, 1.0]), torch.tensor([0, 1, 1]), count=2).accuracy
    tensor([0., 1.], dtype=torch.float64)
    """
    values, hits = _tensor(confidence, "confidence").double(), _tensor(correct, "correct").double()
    if values.ndim != 1 or values.shape != hits.shape or values.shape[0] == 0:
        shapes = f"{tuple(values.shape)} and {tuple(hits.shape)}"
        raise InputError(f"confidence and correct: expected one number each for at least 1 image, got shapes {shapes}")
    _check_unit(values, "confidence")
    _check_unit(hits, "correct")
    values, edges = values.clamp(0, 1), _edges(count).to(values.device)
    if equal_mass:
        edges = _equal_mass_edges(values.sort().values, torch.ones_like(values), count)
    total, confident, right = _tally(bin_index(values, edges), count, values, hits.to(values.device))
    return Bins(edges, total, confident / total, right / total)  # 0/0 is the NaN of an empty bin


def bin_index(values: Float[Tensor, "*shape"], edges: Float[Tensor, "edges"]) -> Int[Tensor, "*shape"]:
    """The bin (a, b] of each value, in float64; what lies on or below the first edge goes into the first bin."""
    return torch.bucketize(values.double().contiguous(), edges.double()[1:-1])


def _edges(count: int) -> Float[Tensor, "edges"]:
    if count < 1:
        raise InputError(f"count: expected at least 1 bin, got {count}")
    # A division rounds once, so that 3/15 is the 0.2 a user writes; linspace adds rounded steps and misses 11/15.
    return torch.arange(count + 1, dtype=torch.float64) / count


def _equal_mass_edges(values: Tensor, counts: Tensor, count: int) -> Float[Tensor, "edges"]:
    """Edges at the quantiles of ascending `values` that occur `counts` times. Equal edges have an empty bin between."""
    below = counts.cumsum(0)
    ranks = torch.arange(1, count, dtype=torch.float64, device=values.device) * below[-1]
    quantiles = values[torch.searchsorted(below * count, ranks)]  # both sides times `count`: whole numbers are exact
    return torch.cat([values.new_zeros(1), quantiles, values.new_ones(1)])


def _cell_edges() -> Float[Tensor, "edges"]:
    """Some 4000 cells for what depends on ranks: half of them even, half ever finer towards 1.

    A good network is more than 99.9 % sure of most images; even cells would throw all of these into a few.
    """
    even = torch.arange(2049, dtype=torch.float64) / 2048
    near_one = 1 - torch.exp2(
        -torch.arange(53 * 40, dtype=torch.float64) / 40
    )  # float64 has no number beyond 1 - 2^-53
    return torch.cat([even, near_one]).sort().values


def _pool(index: Int[Tensor, "n"], size: int, table: Float[Tensor, "3 n"]) -> Float[Tensor, "3 size"]:
    # Row by row: on the CPU index_add is a plain loop in one dimension and a call per column in two.
    return torch.stack([row.new_zeros(size).index_add_(0, index, row) for row in table])


def _tally(index: Int[Tensor, "n"], size: int, confidence: Tensor, correct: Tensor) -> Float[Tensor, "3 size"]:
    return _pool(index, size, torch.stack([torch.ones_like(confidence), confidence, correct]))


# --- The door ---------------------------------------------------------------------------------------------------------


class _Rows(NamedTuple):
    """Images behind the door: float64, a rounding outside [0, 1] clamped."""

    probs: Float[Tensor, "n k"]
    labels: Int[Tensor, "n"] | None
    confidence: Float[Tensor, "n"]
    winner: Int[Tensor, "n"]
    tiny: float


def door(probs: Array, labels: LabelArray | None) -> tuple[Float[Tensor, "n k"], Int[Tensor, "n"] | None]:
    """Types, shapes and labels; the values of `probs` are checked on the way, in `_chunks`."""
    p = _tensor(probs, "probs")
    if p.ndim != 2 or 0 in p.shape:
        raise InputError(f"probs: expected images × classes, at least 1 × 1, got shape {tuple(p.shape)}")
    if not p.is_floating_point():
        raise InputError(f"probs: expected floating point numbers, got {p.dtype}")
    if labels is None:
        return p, None
    (n, k), y = p.shape, _tensor(labels, "labels")
    if y.shape != (n,):
        raise InputError(f"labels: expected one for each of {n} images, got shape {tuple(y.shape)}")
    if y.is_floating_point() or y.is_complex() or y.dtype is torch.bool:
        raise InputError(f"labels: expected integers in 0..{k - 1}, got {y.dtype}")
    y = y.to(p.device, torch.int64)
    wrong = (y < 0) | (y >= k)
    if wrong.any():
        raise InputError(f"labels: expected integers in 0..{k - 1}, got {_first(y, wrong)}")
    return p, y


def _chunks(probs: Float[Tensor, "n k"], labels: Int[Tensor, "n"] | None, simplex: bool) -> Iterator[_Rows]:
    finfo, step = torch.finfo(probs.dtype), max(1, CHUNK // probs.shape[1])
    for start in range(0, probs.shape[0], step):
        p = probs[start : start + step].double()
        _check_unit(p, "probs", start, ": these are not probabilities; if they are logits, take their softmax first")
        total = p.sum(1)
        # Half precision rounds a sum by up to its eps, which for bfloat16 is more than the usual tolerance.
        off = (total - 1).abs() > max(SUM_TOLERANCE, finfo.eps)
        if simplex and off.any():
            got = f"{_first(total, off, start)} (simplex=False takes rows that are left unnormalised)"
            raise InputError(f"probs: expected rows that sum to 1, got a sum of {got}")
        p, winner = p.clamp(0, 1), p.argmax(1)
        y = None if labels is None else labels[start : start + step]
        yield _Rows(p, y, p.gather(1, winner[:, None])[:, 0], winner, finfo.tiny)


class Images(NamedTuple):
    """What images add to the sums: a number each for every metric that is a mean, and what the bins count."""

    terms: dict[str, Float[Tensor, "n"]]
    confidence: Float[Tensor, "n"]
    correct: Float[Tensor, "n"]
    probs: Float[Tensor, "n k"]
    hits: Float[Tensor, "n k"] | None
    """1 for the true class of an image, 0 for the others; None without labels."""


def per_image(probs: Float[Tensor, "n k"], labels: Int[Tensor, "n"] | None, *, simplex: bool) -> Iterator[Images]:
    """The images that came through the `door`, some at a time."""
    for p, y, confidence, winner, tiny in _chunks(probs, labels, simplex):
        nats = torch.special.entr(p).sum(1)
        terms = {"entropy": nats / log(2) / p.shape[1], "shannon_entropy": nats}
        if y is None:
            yield Images(terms, confidence, torch.zeros_like(confidence), p, None)
            continue
        correct, hits = (winner == y).double(), torch.zeros_like(p).scatter_(1, y[:, None], 1)
        terms |= {
            "accuracy": correct,
            "brier": (confidence - correct).square(),
            "mc_brier": (p - hits).square().sum(1),
            "nll": -p.gather(1, y[:, None])[:, 0].clamp_min(tiny).log(),
        }
        yield Images(terms, confidence, correct, p, hits)


def class_index(probs: Float[Tensor, "n k"], count: int) -> Int[Tensor, "n k"]:
    """The bin of each probability, those of one class after those of another."""
    return bin_index(probs, _edges(count).to(probs.device)) + count * torch.arange(probs.shape[1], device=probs.device)


def _tensor(x: LabelArray, name: str) -> Tensor:
    if not isinstance(x, Tensor):
        try:  # torch shares the memory of an array that is contiguous and writeable; numpy copies the others
            x = torch.as_tensor(np.require(x, requirements=["C", "W"]))
        except (TypeError, ValueError) as error:
            raise InputError(f"{name}: expected an array of numbers, got {type(x).__name__}: {error}") from error
    return x.detach().cpu() if x.device.type == "mps" else x.detach()  # which has no float64


def _check_unit(x: Tensor, name: str, start: int = 0, hint: str = "") -> None:
    low, high = x.aminmax()  # NaN if any value is, and then no comparison holds
    if low >= -RANGE_TOLERANCE and high <= 1 + RANGE_TOLERANCE:
        return
    if not x.isfinite().all():
        raise InputError(f"{name}: expected finite numbers, got {_first(x, ~x.isfinite(), start)}")
    outside = (x < -RANGE_TOLERANCE) | (x > 1 + RANGE_TOLERANCE)
    raise InputError(f"{name}: expected values in [0, 1], got {_first(x, outside, start)}{hint}")


def _first(x: Tensor, wrong: Tensor, start: int = 0) -> str:
    place = wrong.nonzero()[0].tolist()
    return f"{x[tuple(place)].item():.6g} in row {start + place[0]}"


# --- Formulas, from sums ----------------------------------------------------------------------------------------------


Summary: TypeAlias = Mapping[str, Tensor]
"""All that a formula reads, for one set of images or, with an axis more in front of the bins, for many sets at once.

Means over the images by name; the tables `bins` and `tied` (images of equal confidence, ascending); and the mean over the
images of correct - confidence, by bins of equal mass (`mass_gaps`), by class and bin (`class_gaps`), on the grid (`residual`).
"""


def _gaps(table: Table) -> tuple[Tensor, Tensor, Tensor]:
    """Share of the images, accuracy, and accuracy minus confidence, of each bin; of an empty one, 0."""
    total, confidence, correct = table.unbind()
    some = total.clamp_min(1)
    return total / total.sum(-1, keepdim=True), correct / some, (correct - confidence) / some


def _ece(table: Table) -> Tensor:
    total, confidence, correct = table.unbind()
    return (correct - confidence).abs().sum(-1) / total.sum(-1)


def mass_index(levels: Float[Tensor, "g"], total: Float[Tensor, "g"], count: int) -> Int[Tensor, "g"]:
    """The bin of equal mass of ascending `levels` that `total` images have."""
    return bin_index(levels, _equal_mass_edges(levels, total, count))


def _debiased_ece(table: Table) -> Tensor:
    """The normal model of Kumar, Liang & Ma, Verified Uncertainty Calibration (2019), in closed form.

    The mean of the folded normal is E abs(N(g, σ²)) = σ √(2/π) exp(-g²/2σ²) + g erf(g/σ√2).
    """
    share, accuracy, gap = _gaps(table)
    deviation = (accuracy * (1 - accuracy) / table[0].clamp_min(1)).sqrt()
    z = gap / deviation.clamp_min(torch.finfo(torch.float64).tiny) / sqrt(2)  # σ = 0: z is 0 or infinite, never NaN
    folded = deviation * sqrt(2 / pi) * torch.exp(-z.square()) + gap * torch.erf(z)
    return (share * (2 * gap.abs() - folded)).sum(-1)


def _murphy(table: Table) -> tuple[Tensor, Tensor, Tensor]:
    """Reliability, resolution and uncertainty (Murphy 1973)."""
    share, accuracy, gap = _gaps(table)
    overall = (share * accuracy).sum(-1, keepdim=True)
    uncertainty = (overall * (1 - overall))[..., 0]
    return (share * gap**2).sum(-1), (share * (accuracy - overall) ** 2).sum(-1), uncertainty


def _aurc(tied: Table) -> Tensor:
    """Σ_g (mean error of g) · (A(last rank of g) - A(last rank before g)), the most confident group first.

    An error at rank j counts 1/(n i) at each i ≥ j; over all ranks up to J that adds up to A(J) = J/n (1 + H_n - H_J).
    """
    total, _, correct = tied.flip(-1).unbind()
    last = total.cumsum(-1)
    n = last[..., -1:]
    area = last / n * (1 + torch.digamma(n + 1) - torch.digamma(last + 1))
    return ((1 - correct / total.clamp_min(1)) * area.diff(prepend=torch.zeros_like(n))).sum(-1)


def on_grid(confidence: Float[Tensor, "n"]) -> tuple[Int[Tensor, "2 n"], Float[Tensor, "2 n"]]:
    """The two cells of the grid whose centres a confidence lies between, and its part in each; the ends reflect."""
    place = confidence * GRID - 0.5
    left = place.floor()
    part = place - left
    return torch.stack([left, left + 1]).clamp(0, GRID - 1).long(), torch.stack([1 - part, part])


def _smooth_ece(residual: Float[Tensor, "*r grid"]) -> Tensor:
    """Błasiok & Nakkiran, Smooth ECE (2023): the gaps are smoothed as widely as they turn out to be large.

    A Gaussian that is reflected at 0 and 1 damps cos(π m t) by exp(-(π m s)²/2), so the smoothing is a product in Fourier
    space, where the width of the grid's cells is taken out as well. The more it smooths the less is left: log(left/s)
    falls in log s with a slope of -1 or steeper. So there is one s with left = s, it lies between any s and what that one
    leaves, and a secant that is kept there finds it.
    """
    wave = torch.arange(GRID + 1, dtype=residual.dtype, device=residual.device)
    spectrum = torch.fft.rfft(torch.cat([residual, residual.flip(-1)], -1)) / torch.sinc(wave / (2 * GRID)) ** 2
    tolerance = 1e-6 if residual.dtype == torch.float64 else 1e-4
    width = residual.new_full(residual.shape[:-1], log(0.05))  # log s
    low, high, slope = torch.full_like(width, log(0.1 / GRID)), torch.zeros_like(width), torch.full_like(width, -1.25)
    before = None
    for _ in range(60):
        exponent = -(pi * wave * width.exp()[..., None]).square() / 2
        damped = (
            spectrum * exponent.clamp_min(-40).exp()
        )  # what is smaller still is nothing, and slow to calculate with
        left: Tensor = torch.fft.irfft(damped, n=2 * GRID).abs().mean(-1) * GRID
        excess = left.log().clamp_min(log(0.1 / GRID)) - width
        if before is not None:
            slope = ((excess - before[1]) / (width - before[0])).nan_to_num(-1).clamp_max(-1)
        low = torch.maximum(low, torch.minimum(width, width + excess))
        high = torch.minimum(high, torch.maximum(width, width + excess))
        before, width = (width, excess), (width - excess / slope).clamp(low, high)
        if float((width - before[0]).abs().amax()) < tolerance:
            break
    return left


Better: TypeAlias = Literal["lower", "higher"] | None


@final
@dataclass(frozen=True)
class Metric:
    """A function of probabilities and labels, `metric(probs, labels) -> float`; the formulas open this module."""

    name: str
    better: Better
    formula: Callable[[Summary], Tensor]
    needs_labels: bool = True

    def __call__(self, probs: Array, labels: LabelArray | None = None, *, simplex: bool = True) -> float:
        """This metric alone; the arguments are those of `evaluate`."""
        return evaluate(probs, labels, simplex=simplex, metrics=[self.name])[self.name]


accuracy = Metric("accuracy", "higher", lambda s: s["accuracy"])
brier = Metric("brier", "lower", lambda s: s["brier"])
ece = Metric("ece", "lower", lambda s: _ece(s["bins"]))
mc_brier = Metric("mc_brier", "lower", lambda s: s["mc_brier"])
nll = Metric("nll", "lower", lambda s: s["nll"])
entropy = Metric("entropy", None, lambda s: s["entropy"], needs_labels=False)
mce = Metric("mce", "lower", lambda s: _gaps(s["bins"])[2].abs().amax(-1))
classwise_ece = Metric("classwise_ece", "lower", lambda s: s["class_gaps"].abs().sum(-1).mean(-1))
adaptive_ece = Metric("adaptive_ece", "lower", lambda s: s["mass_gaps"].abs().sum(-1))
debiased_ece = Metric("debiased_ece", "lower", lambda s: _debiased_ece(s["bins"]))
shannon_entropy = Metric("shannon_entropy", None, lambda s: s["shannon_entropy"], needs_labels=False)
brier_reliability = Metric("brier_reliability", "lower", lambda s: _murphy(s["bins"])[0])
brier_resolution = Metric("brier_resolution", "higher", lambda s: _murphy(s["bins"])[1])
brier_uncertainty = Metric("brier_uncertainty", None, lambda s: _murphy(s["bins"])[2])
aurc = Metric("aurc", "lower", lambda s: _aurc(s["tied"]))
smooth_ece = Metric("smooth_ece", "lower", lambda s: _smooth_ece(s["residual"]))

METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        *(accuracy, brier, ece, mc_brier, nll, entropy),  # the paper's, in its order
        *(mce, classwise_ece, adaptive_ece, debiased_ece, shannon_entropy),
        *(brier_reliability, brier_resolution, brier_uncertainty, aurc, smooth_ece),
    )
}


# --- One pass, and sums that can be merged ----------------------------------------------------------------------------


def evaluate(
    probs: Array,
    labels: LabelArray | None = None,
    *,
    simplex: bool = True,
    metrics: Iterable[str] | None = None,
    count: int = 15,
) -> dict[str, float]:
    """All METRICS, or the named ones, in one pass; without labels (images of no known class) the entropies.

    `simplex=False` takes rows that do not sum to 1, as pooled isotonic and histogram calibration may leave them.

    >>> evaluate(torch.tensor([[0.75, 0.25], [0.25, 0.75]]), [0, 0], metrics=["accuracy", "brier"])
    {'accuracy': 0.5, 'brier': 0.3125}
    """
    p, y = door(probs, labels)
    sums = Sums(p.shape[1], count=count, metrics=metrics, device=p.device)
    seen = [sums._add(part) for part in per_image(p, y, simplex=simplex)]
    confidence, correct = (torch.cat(column) for column in zip(*seen, strict=True))
    levels, index = confidence.unique(return_inverse=True)  # type: ignore[no-untyped-call]
    return sums._report(levels, _tally(index, levels.shape[0], confidence, correct))


@final
class Sums:
    """The same metrics from sums: O(bins) memory however many images, k · bins more for classwise_ece.

        sums = Sums(classes=10)
        for probs, labels in batches:
            sums.update(probs, labels)
        for tensor in sums.state.values():  # on several machines
            torch.distributed.all_reduce(tensor)
        sums.compute()

    Equal to `evaluate` up to float64 rounding, but for the three that ask for each confidence. These know it by its
    cell (`_cell_edges`) and take the images of a cell as tied: adaptive_ece is off by at most 2/n times the images in
    cells that a quantile cuts, aurc by Σ_cells m/4 · (w_first - w_last), m images whose error at rank j weighs w_j. In
    practice that is far less: on 10,000 images under 1e-3 and 1e-4, and under 1e-4 for smooth_ece.
    """

    _TOTALS = ("images", "labelled", "accuracy", "brier", "mc_brier", "nll", "entropy", "shannon_entropy")

    def __init__(
        self,
        classes: int,
        *,
        count: int = 15,
        metrics: Iterable[str] | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.classes, self.count = classes, count
        self.metrics = None if metrics is None else known(metrics)
        self._edges, self._cells = _edges(count).to(device), _cell_edges().to(device)
        shapes: dict[str, tuple[int, ...]] = {
            "totals": (len(self._TOTALS),),
            "bins": (3, count),
            "cells": (3, self._cells.shape[0] - 1),
        }
        if self.metrics is None or "classwise_ece" in self.metrics:  # the one that costs, in memory and in time
            shapes["class_bins"] = (3, classes, count)
        self.state = {k: torch.zeros(shape, dtype=torch.float64, device=device) for k, shape in shapes.items()}
        """Plain sums: those of two sets add up to those of both."""

    def update(self, probs: Array, labels: LabelArray | None = None, *, simplex: bool = True) -> "Sums":
        """Add images. Input that is refused leaves the sums as they were."""
        p, y = door(probs, labels)
        if p.shape[1] != self.classes:
            raise InputError(f"probs: expected {self.classes} classes, got {p.shape[1]}")
        fresh = Sums(self.classes, count=self.count, metrics=self.metrics, device=p.device)
        for part in per_image(p, y, simplex=simplex):
            fresh._add(part)
        return self.merge(fresh)

    def merge(self, other: "Sums") -> "Sums":
        """Add the images of another."""
        mine, theirs = ((s.classes, s.count, s.metrics) for s in (self, other))
        if mine != theirs:
            raise InputError(f"merge: expected sums of the same (classes, count, metrics), got {mine} and {theirs}")
        for name, tensor in self.state.items():
            tensor += other.state[name].to(tensor.device)
        return self

    def compute(self) -> dict[str, float]:
        """What `evaluate` would say of all images so far."""
        seen = self.state["cells"][0] > 0
        return self._report(self._cells[1:][seen], self.state["cells"][:, seen])

    def _add(self, part: Images) -> tuple[Tensor, Tensor]:
        n = part.confidence.new_tensor(part.confidence.shape[0])
        totals = dict.fromkeys(self._TOTALS, 0 * n) | {"images": n}
        totals |= {name: term.sum() for name, term in part.terms.items()}
        if part.hits is not None:
            totals["labelled"] = n
            for name, edges in (("bins", self._edges), ("cells", self._cells)):
                index = bin_index(part.confidence, edges)
                self.state[name] += _tally(index, edges.shape[0] - 1, part.confidence, part.correct)
            if "class_bins" in self.state:
                p, hits = part.probs.flatten(), part.hits.flatten()
                tally = _tally(class_index(part.probs, self.count).flatten(), self.classes * self.count, p, hits)
                self.state["class_bins"] += tally.view(3, self.classes, self.count)
        self.state["totals"] += torch.stack(list(totals.values()))
        return part.confidence, part.correct

    def _report(self, levels: Float[Tensor, "g"], tied: Table) -> dict[str, float]:
        total = dict(zip(self._TOTALS, self.state["totals"], strict=True))
        images, labelled = int(total["images"]), int(total["labelled"])
        if not images or labelled not in (0, images):
            raise InputError(f"expected images, with labels for all or none, got {labelled} labels for {images} images")
        summary = {name: value / images for name, value in total.items()}
        if labelled:
            summary |= self._tables(levels, tied)
        return {name: float(METRICS[name].formula(summary)) for name in measurable(self.metrics, bool(labelled))}

    def _tables(self, levels: Float[Tensor, "g"], tied: Table) -> dict[str, Tensor]:
        """What a summary holds besides means."""
        images = tied[0].sum()
        gaps = (tied[2] - tied[1]) / images
        cells, parts = on_grid(tied[1] / tied[0])
        by_class = self.state.get("class_bins", gaps.new_zeros(3, 0))
        return {
            "bins": self.state["bins"],
            "tied": tied,
            "mass_gaps": gaps.new_zeros(self.count).index_add_(0, mass_index(levels, tied[0], self.count), gaps),
            "class_gaps": (by_class[2] - by_class[1]) / images,
            "residual": gaps.new_zeros(GRID).index_add_(0, cells.flatten(), (parts * gaps).flatten()),
        }


def measurable(names: Sequence[str] | None, labelled: bool) -> list[str]:
    """The metrics asked for, all that can be had by default; without labels only the entropies can."""
    wanted = METRICS if names is None else names
    lost = [] if labelled else [name for name in wanted if METRICS[name].needs_labels]
    if names and lost:
        raise InputError(f"labels: expected for {', '.join(lost)}, got None")
    return [name for name in wanted if name not in lost]


def known(names: Iterable[str]) -> list[str]:
    """Names of metrics, checked."""
    names = [names] if isinstance(names, str) else list(names)
    for name in names:
        if name not in METRICS:
            nearest = get_close_matches(name, METRICS, n=1, cutoff=0)[0]
            raise InputError(f"metrics: expected some of {', '.join(METRICS)}, got {name!r}; did you mean {nearest!r}?")
    return names


# --- Two sets of probabilities ----------------------------------------------------------------------------------------


def ood_auroc(probs_in: Array, probs_out: Array, *, simplex: bool = True) -> float:
    """How well entropy tells foreign images: the chance that one of them has the higher entropy, ties counting half."""
    a, b = (door(probs, None)[0] for probs in (probs_in, probs_out))
    if a.shape[1] != b.shape[1]:
        raise InputError(f"probs_out: expected {a.shape[1]} classes as in probs_in, got {b.shape[1]}")
    inside, outside = (
        torch.cat([torch.special.entr(rows.probs).sum(1) for rows in _chunks(p, None, simplex)]) for p in (a, b)
    )
    inside, outside = inside.sort().values, outside.to(inside.device)
    lower, not_higher = (torch.searchsorted(inside, outside, right=right) for right in (False, True))
    return float((lower + not_higher).double().mean() / 2 / inside.shape[0])


def class_changes(probs: Array, base: Array) -> int:
    """The number of images whose class, the first of the largest, differs between the two."""
    a, b = (door(p, None)[0] for p in (probs, base))
    if a.shape != b.shape:
        raise InputError(f"base: expected shape {tuple(a.shape)} as probs, got {tuple(b.shape)}")
    return sum(
        int((x.winner != z.winner.to(x.winner.device)).sum())
        for x, z in zip(_chunks(a, None, False), _chunks(b, None, False), strict=True)
    )
