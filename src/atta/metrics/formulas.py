"""The formulas of all metrics, from sums over images.

With p the n × k probabilities, y the labels, c = max_j p_j the confidence of an image (or what
`evaluate` is given as its confidence), h = [argmax p = y] whether it is correct, and bins b of n_b
images with mean confidence conf_b and accuracy acc_b (15 bins (a, b] of equal width; the first
includes 0):

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
| answered_R        | max_i i/n such that at most R % of the i most confident are wrong; all    |
|                   | images of equal confidence count, for R = 0.5, 1, 2, 5                    |
| smooth_ece        | ∫ abs(1/n Σ_i K_s(t, c_i) (h_i - c_i)) dt, K_s a Gaussian reflected at    |
|                   | 0 and 1, with s equal to the result                                       |

Everything is computed in float64, whatever the dtype of the input: `per_image` gives the terms of
each image, `Sums` adds them up, and the formulas read a summary of these sums.
"""

from collections.abc import Callable, Iterable, Mapping
from math import log, pi, sqrt
from operator import itemgetter
from typing import TypeAlias

import torch
from torch import Tensor

from atta._base.errors import InputError, suggest
from atta._base.settings import shown
from atta.metrics.binning import GRID, Table
from atta.metrics.per_image import TERMS, UNLABELLED
from atta.results.words import ANSWERED, DIRECTION

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


def _aurc(tied: Tensor) -> Tensor:
    """Return Σ_g (mean error of g) · (A(last rank of g) - A(last rank before g)).

    The most confident group comes first. An error at rank j counts 1/(n i) at each i ≥ j; over
    all ranks up to J that adds up to A(J) = J/n (1 + H_n - H_J).
    """
    total, correct = tied.flip(-1).unbind()
    last = total.cumsum(-1)
    n = last[..., -1:]
    area = last / n * (1 + torch.digamma(n + 1) - torch.digamma(last + 1))
    return ((1 - correct / total.clamp_min(1)) * area.diff(prepend=torch.zeros_like(n))).sum(-1)


def _answered(tied: Tensor, risk: float) -> Tensor:
    """Return the largest part of the images, the most confident first, with such a risk."""
    total, correct = tied.flip(-1).unbind()
    answered, right = total.cumsum(-1), correct.cumsum(-1)
    kept = answered - right <= risk * answered + 1e-9
    return (answered * kept).amax(-1) / answered[..., -1]


def _smooth_ece(residual: Tensor) -> Tensor:
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
    "ece": lambda s: (s["bins"][2] - s["bins"][1]).abs().sum(-1) / s["bins"][0].sum(-1),
    "mce": lambda s: _gaps(s["bins"])[2].abs().amax(-1),
    "classwise_ece": lambda s: s["class_gaps"].abs().sum(-1).mean(-1),
    "adaptive_ece": lambda s: s["mass_gaps"].abs().sum(-1),
    "debiased_ece": lambda s: _debiased_ece(s["bins"]),
    "brier_reliability": lambda s: _murphy(s["bins"])[0],
    "brier_resolution": lambda s: _murphy(s["bins"])[1],
    "brier_uncertainty": lambda s: _murphy(s["bins"])[2],
    "aurc": lambda s: _aurc(s["tied"]),
    "smooth_ece": lambda s: _smooth_ece(s["residual"]),
    **{
        name: lambda s, risk=risk: _answered(s["tied"], risk)  # type: ignore[misc]
        for name, risk in ANSWERED.items()
    },
}
TIED = {"aurc", *ANSWERED}
RANKED = {"adaptive_ece", "smooth_ece", *TIED}
"""The metrics that need the images in the order of their confidence."""
BINNED = FORMULAS.keys() - TERMS.keys() - RANKED - {"classwise_ece"}
"""The metrics that read the bins."""


def measurable(names: Iterable[str] | None, labelled: bool = True) -> list[str]:
    """Return the names of metrics, checked; by default all that can be computed."""
    wanted = list(DIRECTION if names is None else [names] if isinstance(names, str) else names)
    for name in wanted:
        if not isinstance(name, str) or name not in DIRECTION:
            raise InputError(
                f"metrics: expected some of {', '.join(DIRECTION)}, got {shown(name)}."
                f"{suggest(name, DIRECTION)}"
            )
    lost = [] if labelled else [name for name in wanted if name not in UNLABELLED]
    if names is not None and lost:
        raise InputError(f"labels: expected for {', '.join(lost)}, got None")
    return [name for name in wanted if name not in lost]
