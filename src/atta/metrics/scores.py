"""How good the probabilities are: every metric from one pass over them.

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

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import log, pi, sqrt
from typing import Any, TypeAlias, final

import torch
from jaxtyping import Float
from torch import Tensor

from atta._base.errors import InputError, suggest
from atta._base.settings import Cells, checked, shown
from atta.metrics.binning import (
    COUNT,
    GRID,
    Table,
    bin_index,
    class_index,
    even_edges,
    mass_index,
    on_grid,
    tally,
)
from atta.metrics.per_image import TERMS, Array, Images, LabelArray, per_image, validate
from atta.results.words import DIRECTION, Better

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


def _debiased_ece(table: Table) -> Tensor:
    """The normal model of Kumar, Liang & Ma, Verified Uncertainty Calibration (2019), in closed form.

    The mean of the folded normal is E abs(N(g, σ²)) = σ √(2/π) exp(-g²/2σ²) + g erf(g/σ√2).
    """
    share, accuracy, gap = _gaps(table)
    deviation = (accuracy * (1 - accuracy) / table[0].clamp_min(1)).sqrt()
    z = (
        gap / deviation.clamp_min(torch.finfo(torch.float64).tiny) / sqrt(2)
    )  # σ = 0: z is 0 or infinite, never NaN
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


def _smooth_ece(residual: Float[Tensor, "*r grid"]) -> Tensor:
    """Błasiok & Nakkiran, Smooth ECE (2023): the gaps are smoothed as widely as they turn out to be large.

    A Gaussian that is reflected at 0 and 1 damps cos(π m t) by exp(-(π m s)²/2), so the smoothing is a product in Fourier
    space, where the width of the grid's cells is taken out as well. The more it smooths the less is left: log(left/s)
    falls in log s with a slope of -1 or steeper. So there is one s with left = s, it lies between any s and what that one
    leaves, and a secant that is kept there finds it.
    """
    wave = torch.arange(GRID + 1, dtype=residual.dtype, device=residual.device)
    spectrum = (
        torch.fft.rfft(torch.cat([residual, residual.flip(-1)], -1))
        / torch.sinc(wave / (2 * GRID)) ** 2
    )
    tolerance = 1e-6 if residual.dtype == torch.float64 else 1e-4
    width = residual.new_full(residual.shape[:-1], log(0.05))  # log s
    low, high, slope = (
        torch.full_like(width, log(0.1 / GRID)),
        torch.zeros_like(width),
        torch.full_like(width, -1.25),
    )
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


# --- Metrics, by name -------------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class Metric:
    """A function of probabilities and labels, `metric(probs, labels) -> float`; the formulas open this module."""

    name: str
    formula: Callable[[Summary], Tensor]
    needs_labels: bool = True

    @property
    def better(self) -> Better:
        """Which way it is better, if either is."""
        return DIRECTION[self.name]

    def __call__(
        self, probs: Array, labels: LabelArray | None = None, *, simplex: bool = True
    ) -> float:
        """This metric alone; the arguments are those of `evaluate`."""
        return evaluate(probs, labels, simplex=simplex, metrics=[self.name])[self.name]


accuracy = Metric("accuracy", lambda s: s["accuracy"])
brier = Metric("brier", lambda s: s["brier"])
ece = Metric("ece", lambda s: _ece(s["bins"]))
mc_brier = Metric("mc_brier", lambda s: s["mc_brier"])
nll = Metric("nll", lambda s: s["nll"])
entropy = Metric("entropy", lambda s: s["entropy"], needs_labels=False)
mce = Metric("mce", lambda s: _gaps(s["bins"])[2].abs().amax(-1))
classwise_ece = Metric("classwise_ece", lambda s: s["class_gaps"].abs().sum(-1).mean(-1))
adaptive_ece = Metric("adaptive_ece", lambda s: s["mass_gaps"].abs().sum(-1))
debiased_ece = Metric("debiased_ece", lambda s: _debiased_ece(s["bins"]))
shannon_entropy = Metric("shannon_entropy", lambda s: s["shannon_entropy"], needs_labels=False)
brier_reliability = Metric("brier_reliability", lambda s: _murphy(s["bins"])[0])
brier_resolution = Metric("brier_resolution", lambda s: _murphy(s["bins"])[1])
brier_uncertainty = Metric("brier_uncertainty", lambda s: _murphy(s["bins"])[2])
aurc = Metric("aurc", lambda s: _aurc(s["tied"]))
smooth_ece = Metric("smooth_ece", lambda s: _smooth_ece(s["residual"]))

METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        *(accuracy, brier, ece, mc_brier, nll, entropy),  # the paper's, in its order
        *(mce, classwise_ece, adaptive_ece, debiased_ece, shannon_entropy),
        *(brier_reliability, brier_resolution, brier_uncertainty, aurc, smooth_ece),
    )
}


# --- One pass ---------------------------------------------------------------------------------------------------------


@checked
def evaluate(
    probs: Any,
    labels: Any = None,
    truth: Any = None,
    *,
    simplex: bool = True,
    metrics: Iterable[str] | None = None,
    count: Cells = COUNT,
) -> dict[str, float]:
    """All METRICS, or the named ones, in one pass; without labels (images of no known class) the entropies.

    A classifier is evaluated on images: `evaluate(classifier, images, labels)`, where images may bring their labels along.

    `simplex=False` takes rows that do not sum to 1, as pooled isotonic and histogram calibration may leave them.

    >>> evaluate(torch.tensor([[0.75, 0.25], [0.25, 0.75]]), [0, 0], metrics=["accuracy", "brier"])
    {'accuracy': 0.5, 'brier': 0.3125}
    """
    if hasattr(probs, "predict_proba"):
        probs, labels, simplex = _answered(probs, labels, truth, simplex)
    elif truth is not None:
        got = type(probs).__name__
        raise InputError(
            f"expected probabilities and labels, or a classifier, images and labels, got a {got} first"
        )
    p, y = validate(probs, labels)
    names = measurable(None if metrics is None else known(metrics), y is not None)
    seen = Seen(p.shape[1], names, count, p.device)
    for part in per_image(p, y, simplex=simplex):
        seen.add(part)
    return seen.compute()


def _answered(classifier: Any, images: Any, labels: Any, simplex: bool) -> tuple[Any, Any, bool]:
    """What a classifier says of images, and their labels: those given, or those that come with the images."""
    simplex = simplex and getattr(classifier, "on_simplex", True)
    if hasattr(classifier, "labelled_proba"):  # ours, which also knows classes by their names
        return *classifier.labelled_proba(images, labels), simplex
    return classifier.predict_proba(images), labels, simplex


TOTALS = ("images", "labelled", *TERMS)
RANKED = {"adaptive_ece", "aurc", "smooth_ece"}
"""The metrics that ask for each confidence, in order."""


def no_images(
    classes: int, count: int, *, classwise: bool, device: torch.device | str
) -> dict[str, Tensor]:
    """Sums over no images; those by class only where they are wanted, as they cost memory and time."""
    shapes: dict[str, tuple[int, ...]] = {
        "totals": (len(TOTALS),),
        "bins": (3, even_edges(count).shape[0] - 1),
    }
    if classwise:
        shapes["class_bins"] = (3, classes, count)
    return {
        name: torch.zeros(shape, dtype=torch.float64, device=device)
        for name, shape in shapes.items()
    }


def add_images(state: Mapping[str, Tensor], part: Images, names: Iterable[str] = METRICS) -> None:
    """Add images to sums, in their place: to those of these metrics."""
    n = part.confidence.new_tensor(part.confidence.shape[0])
    means = {name: term.sum() for name, term in part.terms(names).items()}
    totals = dict.fromkeys(TOTALS, 0 * n) | {"images": n} | means
    if part.labels is not None:
        totals["labelled"] = n
        count = state["bins"].shape[1]
        index = bin_index(part.confidence, even_edges(count).to(n.device))
        state["bins"].add_(tally(index, count, part.confidence, part.correct))
        if "class_bins" in state and part.hits is not None:
            by_class = state["class_bins"]
            index = class_index(part.probs, count).flatten()
            found = tally(index, by_class[0].numel(), part.probs.flatten(), part.hits.flatten())
            by_class.add_(found.view_as(by_class))
    state["totals"].add_(torch.stack(list(totals.values())))


class Seen:
    """The metrics of images that come some at a time: their sums, and each confidence where a metric asks for it."""

    def __init__(
        self, classes: int, names: Sequence[str], count: int, device: torch.device
    ) -> None:
        self.names = names
        self.state = no_images(classes, count, classwise="classwise_ece" in names, device=device)
        self._ranked: list[tuple[Tensor, Tensor]] = []
        self._ranks = bool(RANKED & set(names))

    def add(self, part: Images) -> None:
        """Add images."""
        add_images(self.state, part, self.names)
        if self._ranks:
            self._ranked.append((part.confidence, part.correct))

    def compute(self) -> dict[str, float]:
        """The metrics of all of them."""
        levels, tied = torch.zeros(0), None
        if self._ranks:
            confidence, correct = (torch.cat(column) for column in zip(*self._ranked, strict=True))
            levels, index = confidence.unique(return_inverse=True)  # type: ignore[no-untyped-call]
            tied = tally(index, levels.shape[0], confidence, correct)
        summary = summarised(self.state, levels, tied)
        return {name: float(METRICS[name].formula(summary)) for name in self.names}


def summarised(
    state: Mapping[str, Tensor], levels: Float[Tensor, "g"], tied: Table | None
) -> Summary:
    """What formulas read, from sums and from what is known of the images by their confidence, for those that are RANKED."""
    total = dict(zip(TOTALS, state["totals"], strict=True))
    images = total["images"]
    summary = {name: value / images for name, value in total.items()}
    if not total["labelled"]:
        return summary
    by_class = state.get("class_bins", images.new_zeros(3, 0))
    summary |= {"bins": state["bins"], "class_gaps": (by_class[2] - by_class[1]) / images}
    if tied is None:
        return summary
    count, gaps = state["bins"].shape[1], (tied[2] - tied[1]) / images
    cells, parts = on_grid(tied[1] / tied[0])
    return summary | {
        "tied": tied,
        "mass_gaps": gaps.new_zeros(count).index_add_(0, mass_index(levels, tied[0], count), gaps),
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
        if not isinstance(name, str) or name not in METRICS:
            raise InputError(
                f"metrics: expected some of {', '.join(METRICS)}, got {shown(name)}.{suggest(name, METRICS)}"
            )
    return names


# --- Two sets of probabilities ----------------------------------------------------------------------------------------


def ood_auroc(probs_in: Array, probs_out: Array, *, simplex: bool = True) -> float:
    """How well entropy tells foreign images: the chance that one of them has the higher entropy, ties counting half."""
    a, b = (validate(probs, None)[0] for probs in (probs_in, probs_out))
    if a.shape[1] != b.shape[1]:
        raise InputError(
            f"probs_out: expected {a.shape[1]} classes as in probs_in, got {b.shape[1]}"
        )
    inside, outside = (
        torch.cat([rows.nats for rows in per_image(p, None, simplex=simplex)]) for p in (a, b)
    )
    inside, outside = inside.sort().values, outside.to(inside.device)
    lower, not_higher = (
        torch.searchsorted(inside, outside, right=right) for right in (False, True)
    )
    return float((lower + not_higher).double().mean() / 2 / inside.shape[0])


def class_changes(probs: Array, base: Array) -> int:
    """The number of images whose class, the first of the largest, differs between the two."""
    a, b = (validate(p, None)[0] for p in (probs, base))
    if a.shape != b.shape:
        raise InputError(f"base: expected shape {tuple(a.shape)} as probs, got {tuple(b.shape)}")
    return sum(
        int((x.winner != z.winner.to(x.winner.device)).sum())
        for x, z in zip(*(per_image(p, None, simplex=False) for p in (a, b)), strict=True)
    )
