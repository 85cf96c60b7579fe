"""Compute every metric of probabilities and labels in one pass: METRICS and `evaluate`.

With p the n × k probabilities, y the labels, c = max_j p_j the confidence of an image,
h = [argmax p = y] whether it is correct, and bins b of n_b images with mean confidence conf_b and
accuracy acc_b (15 bins (a, b] of equal width; the first includes 0):

| name              | formula                                                                   |
|-------------------|---------------------------------------------------------------------------|
| accuracy          | mean h                                                                    |
| brier             | mean (c - h)²                                                             |
| ece               | Σ_b n_b/n · abs(acc_b - conf_b)                                           |
| mc_brier          | mean Σ_j (p_j - [y = j])²                                                 |
| nll               | mean -ln max(p_y, tiny), tiny = smallest normal number of the given dtype |
| entropy           | mean -Σ_j p_j log₂ p_j / k, as in the paper                               |
| mce               | max_b abs(acc_b - conf_b)                                                 |
| classwise_ece     | mean over the k classes of the ECE of p_j against [y = j]                 |
| adaptive_ece      | ECE over bins of equal mass; images of equal confidence share a bin       |
| debiased_ece      | ECE - Σ_b n_b/n · (E abs(N(g_b, v_b)) - abs(g_b)),                        |
|                   | g = acc - conf, v = acc (1 - acc) / n_b                                   |
| shannon_entropy   | mean -Σ_j p_j ln p_j                                                      |
| brier_reliability | Σ_b n_b/n · (acc_b - conf_b)²                                             |
| brier_resolution  | Σ_b n_b/n · (acc_b - acc)²                                                |
| brier_uncertainty | acc (1 - acc);  brier = reliability - resolution + uncertainty            |
|                   | where c is constant in each bin                                           |
| aurc              | 1/n Σ_i (errors among the i most confident) / i; ties share their mean    |
| smooth_ece        | ∫ abs(1/n Σ_i K_s(t, c_i) (h_i - c_i)) dt, K_s a Gaussian reflected at    |
|                   | 0 and 1, with s equal to the result                                       |

Everything is computed in float64, whatever the dtype of the input, in chunks of rows:
`per_image` gives the terms of each image, `add_images` sums them, `summarise` divides the sums,
and the formulas read that summary.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import log, pi, sqrt
from operator import itemgetter
from typing import Any, TypeAlias, final

import torch
from jaxtyping import Float
from torch import Tensor

from atta._base.errors import InputError, suggest
from atta._base.settings import Cells, check_one, checked, shown
from atta.metrics.binning import (
    COUNT,
    GRID,
    Table,
    bin_index,
    cell_edges,
    class_index,
    even_edges,
    mass_index,
    on_grid,
    sum_by,
    tally,
)
from atta.metrics.per_image import (
    TERMS,
    UNLABELLED,
    Array,
    Images,
    LabelArray,
    per_image,
    validate,
)
from atta.results.words import DIRECTION, Better

# --- Formulas, from sums --------------------------------------------------------------------

Summary: TypeAlias = Mapping[str, Tensor]
"""What formulas read, for one set of images or, with an axis more before the bins, for many.

Means over the images by metric; the table `bins`; the number of images and of correct ones that
have each confidence, ascending (`tied`); and the mean of correct - confidence by bins of equal
mass (`mass_gaps`), by class and bin (`class_gaps`) and on the grid (`residual`).
"""


def _gaps(table: Table) -> tuple[Tensor, Tensor, Tensor]:
    """Return each bin's share of the images, accuracy, and accuracy - confidence; 0 if empty."""
    total, confidence, correct = table.unbind()
    some = total.clamp_min(1)
    return total / total.sum(-1, keepdim=True), correct / some, (correct - confidence) / some


def _ece(table: Table) -> Tensor:
    total, confidence, correct = table.unbind()
    return (correct - confidence).abs().sum(-1) / total.sum(-1)


def _debiased_ece(table: Table) -> Tensor:
    """Return the normal model of Kumar, Liang & Ma (2019) in closed form.

    The mean of the folded normal is E abs(N(g, σ²)) = σ √(2/π) exp(-g²/2σ²) + g erf(g/σ√2).
    """
    share, accuracy, gap = _gaps(table)
    deviation = (accuracy * (1 - accuracy) / table[0].clamp_min(1)).sqrt()
    tiny = torch.finfo(torch.float64).tiny
    z = gap / deviation.clamp_min(tiny) / sqrt(2)  # σ = 0: z is 0 or infinite, never NaN
    folded = deviation * sqrt(2 / pi) * torch.exp(-z.square()) + gap * torch.erf(z)
    return (share * (2 * gap.abs() - folded)).sum(-1)


def _murphy(table: Table) -> tuple[Tensor, Tensor, Tensor]:
    """Return reliability, resolution and uncertainty (Murphy 1973)."""
    share, accuracy, gap = _gaps(table)
    overall = (share * accuracy).sum(-1, keepdim=True)
    uncertainty = (overall * (1 - overall))[..., 0]
    return (share * gap**2).sum(-1), (share * (accuracy - overall) ** 2).sum(-1), uncertainty


def _aurc(tied: Float[Tensor, "2 *g"]) -> Tensor:
    """Return Σ_g (mean error of g) · (A(last rank of g) - A(last rank before g)).

    The most confident group comes first. An error at rank j counts 1/(n i) at each i ≥ j; over
    all ranks up to J that adds up to A(J) = J/n (1 + H_n - H_J).
    """
    total, correct = tied.flip(-1).unbind()
    last = total.cumsum(-1)
    n = last[..., -1:]
    area = last / n * (1 + torch.digamma(n + 1) - torch.digamma(last + 1))
    return ((1 - correct / total.clamp_min(1)) * area.diff(prepend=torch.zeros_like(n))).sum(-1)


def _smooth_ece(residual: Float[Tensor, "*r grid"]) -> Tensor:
    """Smooth the gaps by the width that equals the result (Błasiok & Nakkiran 2023).

    A Gaussian reflected at 0 and 1 damps cos(π m t) by exp(-(π m s)²/2), so smoothing is a product
    in Fourier space, which also removes the width of the grid's cells. More smoothing leaves
    less: log(left/s) falls in log s with a slope of -1 or steeper. So exactly one s has left = s.
    It lies between any s and what that s leaves, and a secant kept in there finds it.
    """
    wave = torch.arange(GRID + 1, dtype=residual.dtype, device=residual.device)
    spectrum = torch.fft.rfft(torch.cat([residual, residual.flip(-1)], -1))
    spectrum = spectrum / torch.sinc(wave / (2 * GRID)) ** 2
    tolerance = 1e-6 if residual.dtype == torch.float64 else 1e-4
    smallest = log(0.1 / GRID)
    width = residual.new_full(residual.shape[:-1], log(0.05))  # log s
    low, high = torch.full_like(width, smallest), torch.zeros_like(width)
    slope = torch.full_like(width, -1.25)
    before = None
    for _ in range(60):
        exponent = -(pi * wave * width.exp()[..., None]).square() / 2
        # Below exp(-40) nothing is left, and denormal numbers are slow.
        damped = spectrum * exponent.clamp_min(-40).exp()
        left: Tensor = torch.fft.irfft(damped, n=2 * GRID).abs().mean(-1) * GRID
        excess = left.log().clamp_min(smallest) - width
        if before is not None:
            slope = ((excess - before[1]) / (width - before[0])).nan_to_num(-1).clamp_max(-1)
        low = torch.maximum(low, torch.minimum(width, width + excess))
        high = torch.minimum(high, torch.maximum(width, width + excess))
        before, width = (width, excess), (width - excess / slope).clamp(low, high)
        if float((width - before[0]).abs().amax()) < tolerance:
            break
    return left


FORMULAS: dict[str, Callable[[Summary], Tensor]] = {
    **{name: itemgetter(name) for name in TERMS},
    "ece": lambda s: _ece(s["bins"]),
    "mce": lambda s: _gaps(s["bins"])[2].abs().amax(-1),
    "classwise_ece": lambda s: s["class_gaps"].abs().sum(-1).mean(-1),
    "adaptive_ece": lambda s: s["mass_gaps"].abs().sum(-1),
    "debiased_ece": lambda s: _debiased_ece(s["bins"]),
    "brier_reliability": lambda s: _murphy(s["bins"])[0],
    "brier_resolution": lambda s: _murphy(s["bins"])[1],
    "brier_uncertainty": lambda s: _murphy(s["bins"])[2],
    "aurc": lambda s: _aurc(s["tied"]),
    "smooth_ece": lambda s: _smooth_ece(s["residual"]),
}
RANKED = {"adaptive_ece", "aurc", "smooth_ece"}
"""The metrics that need the images in the order of their confidence."""
BINNED = FORMULAS.keys() - TERMS.keys() - RANKED - {"classwise_ece"}
"""The metrics that read the bins."""


# --- Metrics, by name -----------------------------------------------------------------------


@final
@dataclass(frozen=True)
class Metric:
    """A metric, called as `metric(probs, labels) -> float`; this module's docstring has formulas.

    Use `atta.evaluate` for several metrics: it reads the probabilities once.

    Attributes:
        name: The name in `atta.METRICS`.
    """

    name: str

    @property
    def better(self) -> Better:
        """Whether "lower" or "higher" values are better; None if neither."""
        return DIRECTION[self.name]

    @property
    def needs_labels(self) -> bool:
        """Whether the metric needs labels; the entropies need none."""
        return self.name not in UNLABELLED

    def __call__(
        self, probs: Array, labels: LabelArray | None = None, *, simplex: bool = True
    ) -> float:
        """Return this metric alone; the arguments are those of `evaluate`."""
        return evaluate(probs, labels, simplex=simplex, metrics=[self.name])[self.name]


METRICS: dict[str, Metric] = {name: Metric(name) for name in DIRECTION}
"""All metrics by name: the paper's six come first, in its order.

>>> METRICS["brier"](torch.tensor([[0.75, 0.25], [0.25, 0.75]]), [0, 0])
0.3125
>>> METRICS["brier"].better
'lower'
"""


# --- One pass -------------------------------------------------------------------------------


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
    """Return all METRICS, or the named ones, of probabilities or of a classifier on images.

    `evaluate(probs, labels)` takes probabilities; `evaluate(classifier, images, labels)` runs the
    classifier first. Without labels it returns the entropies. `atta.Sums` takes batches.

    Args:
        probs: Probabilities, images × classes, or a classifier with `predict_proba`.
        labels: The class number of each image, or None; after a classifier, the images.
        truth: The labels, after a classifier and images that do not bring theirs along.
        simplex: Require rows that sum to 1. Isotonic and histogram calibration may need False.
        metrics: Names of METRICS; all that the labels allow by default.
        count: The number of bins of the ECEs and of the Brier decomposition; 15 as in the paper.

    Returns:
        The metrics by name, in the order of `metrics`.

    Raises:
        InputError: The arrays are not probabilities and labels, or a metric is unknown.

    >>> evaluate(torch.tensor([[0.75, 0.25], [0.25, 0.75]]), [0, 0], metrics=["accuracy", "brier"])
    {'accuracy': 0.5, 'brier': 0.3125}
    """
    if hasattr(probs, "predict_proba"):
        probs, labels, simplex = _run_classifier(probs, labels, truth, simplex)
    elif truth is not None:
        raise InputError(
            "expected probabilities and labels, or a classifier, images and labels, "
            f"got a {type(probs).__name__} first"
        )
    p, y = validate(probs, labels)
    names = measurable(metrics, y is not None)
    state = no_images(p.shape[1], count, names, device=p.device)
    ranked: list[tuple[Tensor, Tensor]] = []
    for part in per_image(p, y, simplex=simplex):
        add_images(state, part, names)
        if RANKED & set(names):
            ranked.append((part.confidence, part.correct))
    if not ranked:
        return compute(names, state)
    confidence, correct = (torch.cat(column) for column in zip(*ranked, strict=True))
    levels, index = confidence.unique(return_inverse=True)  # type: ignore[no-untyped-call]
    return compute(names, state, tally(index, levels.shape[0], confidence, correct))


def _run_classifier(
    classifier: Any, images: Any, labels: Any, simplex: bool
) -> tuple[Any, Any, bool]:
    """Return a classifier's probabilities of images, their labels, and whether rows sum to 1."""
    simplex = simplex and getattr(classifier, "on_simplex", True)
    if hasattr(classifier, "labelled_proba"):  # ours, which also reads labels that are names
        return *classifier.labelled_proba(images, labels), simplex
    return classifier.predict_proba(images), labels, simplex


TOTALS = ("images", "labelled", *TERMS)


def no_images(
    classes: int,
    count: int,
    names: Iterable[str],
    *,
    device: torch.device | str,
    cells: bool = False,
) -> dict[str, Tensor]:
    """Return sums over no images; tables by class and by cell cost memory and are optional."""
    shapes: dict[str, tuple[int, ...]] = {
        "totals": (len(TOTALS),),
        "bins": (3, check_one("count", count, Cells)),
    }
    if "classwise_ece" in names:
        shapes["class_bins"] = (3, classes, count)
    if cells:
        shapes["cells"] = (3, len(cell_edges()) - 1)
    return {
        name: torch.zeros(shape, dtype=torch.float64, device=device)
        for name, shape in shapes.items()
    }


def add_images(state: Mapping[str, Tensor], part: Images, names: Iterable[str]) -> None:
    """Add what these metrics need of the images to the sums, in place."""
    confidence = part.confidence
    totals = {name: term.sum() for name, term in part.terms(names).items()}
    totals["images"] = confidence.new_tensor(len(confidence))
    if part.labels is not None:
        totals["labelled"] = totals["images"]
        count = state["bins"].shape[1]
        for name, edges in (("bins", even_edges(count)), ("cells", cell_edges())):
            if name in state:
                index = bin_index(confidence, edges.to(confidence.device))
                state[name].add_(tally(index, len(edges) - 1, confidence, part.correct))
        if "class_bins" in state:
            by_class = state["class_bins"]
            index = class_index(part.probs, count)
            found = tally(index, by_class[0].numel(), part.probs, part.hits)
            by_class.add_(found.view_as(by_class))
    for name, value in totals.items():
        state["totals"][TOTALS.index(name)] += value


def compute(
    names: Iterable[str],
    state: Mapping[str, Tensor],
    tied: Table | None = None,
) -> dict[str, float]:
    """Return metrics from sums; RANKED ones need the table of images by confidence as well."""
    total = dict(zip(TOTALS, state["totals"], strict=True))
    images = total["images"]
    summary = {name: value / images for name, value in total.items()}
    by_class = state.get("class_bins", images.new_zeros(3, 0))
    summary |= {"bins": state["bins"], "class_gaps": (by_class[2] - by_class[1]) / images}
    if tied is not None and total["labelled"]:
        count, gaps = state["bins"].shape[1], (tied[2] - tied[1]) / images
        levels = tied[1] / tied[0]
        index = mass_index(levels, tied[0], count)
        cells, parts = on_grid(levels)
        summary |= {
            "tied": tied[::2],
            "mass_gaps": sum_by(index, count, gaps),
            "residual": sum_by(cells, GRID, parts * gaps),
        }
    return {name: float(FORMULAS[name](summary)) for name in names}


def measurable(names: Iterable[str] | None, labelled: bool) -> list[str]:
    """Return the names of metrics, checked; by default all that can be computed."""
    wanted = list(METRICS) if names is None else known(names)
    lost = [] if labelled else [name for name in wanted if METRICS[name].needs_labels]
    if names is not None and lost:
        raise InputError(f"labels: expected for {', '.join(lost)}, got None")
    return [name for name in wanted if name not in lost]


def known(names: Iterable[str]) -> list[str]:
    """Return the names of metrics, checked."""
    names = [names] if isinstance(names, str) else list(names)
    for name in names:
        if not isinstance(name, str) or name not in METRICS:
            raise InputError(
                f"metrics: expected some of {', '.join(METRICS)}, got {shown(name)}."
                f"{suggest(name, METRICS)}"
            )
    return names


# --- Two sets of probabilities --------------------------------------------------------------


def ood_auroc(probs_in: Array, probs_out: Array, *, simplex: bool = True) -> float:
    """Return the AUROC of telling out-of-distribution images by entropy; ties count half."""
    a, b = (validate(probs, None)[0] for probs in (probs_in, probs_out))
    (_, here), (_, there) = a.shape, b.shape
    if here != there:
        raise InputError(f"probs_out: expected {here} classes as in probs_in, got {there}")
    inside, outside = (
        torch.cat([rows.nats for rows in per_image(p, None, simplex=simplex)]) for p in (a, b)
    )
    inside, outside = inside.sort().values, outside.to(inside.device)
    lower = torch.searchsorted(inside, outside)
    not_higher = torch.searchsorted(inside, outside, right=True)
    return float((lower + not_higher).double().mean() / 2 / len(inside))


def class_changes(probs: Array, base: Array) -> int:
    """Return the number of images whose class, the first of the largest, differs."""
    a, b = (validate(p, None)[0] for p in (probs, base))
    if a.shape != b.shape:
        raise InputError(f"base: expected shape {tuple(a.shape)} as probs, got {tuple(b.shape)}")
    pairs = zip(*(per_image(p, None, simplex=False) for p in (a, b)), strict=True)
    return sum(int((x.winner != z.winner.to(x.winner.device)).sum()) for x, z in pairs)
