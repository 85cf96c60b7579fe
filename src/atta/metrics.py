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


def _door(probs: Array, labels: LabelArray | None) -> tuple[Float[Tensor, "n k"], Int[Tensor, "n"] | None]:
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
"""All that a formula reads: means over the images by name; the tables `bins`, `class_bins`, and `tied` by `levels`."""


def _gaps(table: Table) -> tuple[Tensor, Tensor, Tensor]:
    """Share of the images, accuracy, and accuracy minus confidence, of the bins that are not empty."""
    total, confidence, correct = table[:, table[0] > 0].unbind()
    return total / total.sum(), correct / total, (correct - confidence) / total


def _ece(table: Table) -> Tensor:
    total, confidence, correct = table.unbind()
    return (correct - confidence).abs().sum(-1) / total.sum(-1)


def _adaptive_ece(levels: Float[Tensor, "g"], tied: Table, count: int) -> Tensor:
    index = bin_index(levels, _equal_mass_edges(levels, tied[0], count))
    return _ece(_pool(index, count, tied))


def _debiased_ece(table: Table) -> Tensor:
    """The normal model of Kumar, Liang & Ma, Verified Uncertainty Calibration (2019), in closed form.

    The mean of the folded normal is E abs(N(g, σ²)) = σ √(2/π) exp(-g²/2σ²) + g erf(g/σ√2).
    """
    share, accuracy, gap = _gaps(table)
    deviation = (accuracy * (1 - accuracy) / (share * table[0].sum())).sqrt()
    z = gap / deviation.clamp_min(torch.finfo(torch.float64).tiny) / sqrt(2)  # σ = 0: z is 0 or infinite, never NaN
    folded = deviation * sqrt(2 / pi) * torch.exp(-z.square()) + gap * torch.erf(z)
    return (share * (2 * gap.abs() - folded)).sum()


def _murphy(table: Table) -> tuple[Tensor, Tensor, Tensor]:
    """Reliability, resolution and uncertainty (Murphy 1973)."""
    share, accuracy, gap = _gaps(table)
    overall = (share * accuracy).sum()
    return (share * gap**2).sum(), (share * (accuracy - overall) ** 2).sum(), overall * (1 - overall)


def _aurc(tied: Table) -> Tensor:
    """Σ_g (mean error of g) · (A(last rank of g) - A(last rank before g)), the most confident group first.

    An error at rank j counts 1/(n i) at each i ≥ j; over all ranks up to J that adds up to A(J) = J/n (1 + H_n - H_J).
    """
    total, _, correct = tied.flip(1).unbind()
    last = total.cumsum(0)
    area = last / last[-1] * (1 + torch.digamma(last[-1] + 1) - torch.digamma(last + 1))
    return ((1 - correct / total) * area.diff(prepend=area.new_zeros(1))).sum()


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
mce = Metric("mce", "lower", lambda s: _gaps(s["bins"])[2].abs().amax())
classwise_ece = Metric("classwise_ece", "lower", lambda s: _ece(s["class_bins"]).mean())
adaptive_ece = Metric("adaptive_ece", "lower", lambda s: _adaptive_ece(s["levels"], s["tied"], s["bins"].shape[1]))
debiased_ece = Metric("debiased_ece", "lower", lambda s: _debiased_ece(s["bins"]))
shannon_entropy = Metric("shannon_entropy", None, lambda s: s["shannon_entropy"], needs_labels=False)
brier_reliability = Metric("brier_reliability", "lower", lambda s: _murphy(s["bins"])[0])
brier_resolution = Metric("brier_resolution", "higher", lambda s: _murphy(s["bins"])[1])
brier_uncertainty = Metric("brier_uncertainty", None, lambda s: _murphy(s["bins"])[2])
aurc = Metric("aurc", "lower", lambda s: _aurc(s["tied"]))

METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        *(accuracy, brier, ece, mc_brier, nll, entropy),  # the paper's, in its order
        *(mce, classwise_ece, adaptive_ece, debiased_ece, shannon_entropy),
        *(brier_reliability, brier_resolution, brier_uncertainty, aurc),
    )
}
DIRECTION: dict[str, Better] = {name: metric.better for name, metric in METRICS.items()}
"""Which way is better, so that a table knows what to embolden; None where neither is."""


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
    p, y = _door(probs, labels)
    sums = Sums(p.shape[1], count=count, metrics=metrics, device=p.device)
    seen = [sums._add(rows) for rows in _chunks(p, y, simplex)]
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

    Equal to `evaluate` up to float64 rounding, but for the two that depend on ranks. These know a confidence by its
    cell (`_cell_edges`) and take the images of a cell as tied: adaptive_ece is off by at most 2/n times the images in
    cells that a quantile cuts, aurc by Σ_cells m/4 · (w_first - w_last), m images whose error at rank j weighs w_j. In
    practice that is far less: on 10,000 images under 1e-3 and 1e-4.
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
        self.metrics = None if metrics is None else _known(metrics)
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
        p, y = _door(probs, labels)
        if p.shape[1] != self.classes:
            raise InputError(f"probs: expected {self.classes} classes, got {p.shape[1]}")
        fresh = Sums(self.classes, count=self.count, metrics=self.metrics, device=p.device)
        for rows in _chunks(p, y, simplex):
            fresh._add(rows)
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

    def _add(self, rows: _Rows) -> tuple[Tensor, Tensor]:
        p, y, confidence, winner, tiny = rows
        n, nats = p.new_tensor(p.shape[0]), torch.special.entr(p).sum()
        totals = dict.fromkeys(self._TOTALS, 0 * n)
        totals |= {"images": n, "entropy": nats / log(2) / self.classes, "shannon_entropy": nats}
        correct = torch.zeros_like(confidence)
        if y is not None:
            correct, hits = (winner == y).double(), torch.zeros_like(p).scatter_(1, y[:, None], 1)
            totals |= {
                "labelled": n,
                "accuracy": correct.sum(),
                "brier": (confidence - correct).square().sum(),
                "mc_brier": (p - hits).square().sum(),
                "nll": -p.gather(1, y[:, None]).clamp_min(tiny).log().sum(),
            }
            for name, edges in (("bins", self._edges), ("cells", self._cells)):
                self.state[name] += _tally(bin_index(confidence, edges), edges.shape[0] - 1, confidence, correct)
            if "class_bins" in self.state:
                index = bin_index(p, self._edges) + self.count * torch.arange(self.classes, device=p.device)
                tally = _tally(index.flatten(), self.classes * self.count, p.flatten(), hits.flatten())
                self.state["class_bins"] += tally.view(3, self.classes, self.count)
        self.state["totals"] += torch.stack(list(totals.values()))
        return confidence, correct

    def _report(self, levels: Float[Tensor, "g"], tied: Table) -> dict[str, float]:
        total = dict(zip(self._TOTALS, self.state["totals"], strict=True))
        images, labelled = int(total["images"]), int(total["labelled"])
        if not images or labelled not in (0, images):
            raise InputError(f"expected images, with labels for all or none, got {labelled} labels for {images} images")
        names = list(METRICS) if self.metrics is None else self.metrics
        if not labelled:
            if self.metrics and (lost := [name for name in names if METRICS[name].needs_labels]):
                raise InputError(f"labels: expected for {', '.join(lost)}, got None")
            names = [name for name in names if not METRICS[name].needs_labels]
        means = {name: value / images for name, value in total.items()}
        summary = {**self.state, **means, "levels": levels, "tied": tied}
        return {name: float(METRICS[name].formula(summary)) for name in names}


def _known(names: Iterable[str]) -> list[str]:
    names = [names] if isinstance(names, str) else list(names)
    for name in names:
        if name not in METRICS:
            nearest = get_close_matches(name, METRICS, n=1, cutoff=0)[0]
            raise InputError(f"metrics: expected some of {', '.join(METRICS)}, got {name!r}; did you mean {nearest!r}?")
    return names


# --- Two sets of probabilities ----------------------------------------------------------------------------------------


def ood_auroc(probs_in: Array, probs_out: Array, *, simplex: bool = True) -> float:
    """How well entropy tells foreign images: the chance that one of them has the higher entropy, ties counting half."""
    a, b = (_door(probs, None)[0] for probs in (probs_in, probs_out))
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
    a, b = (_door(p, None)[0] for p in (probs, base))
    if a.shape != b.shape:
        raise InputError(f"base: expected shape {tuple(a.shape)} as probs, got {tuple(b.shape)}")
    return sum(
        int((x.winner != z.winner.to(x.winner.device)).sum())
        for x, z in zip(_chunks(a, None, False), _chunks(b, None, False), strict=True)
    )
