"""The slope of the loss that M-ATTA and V-ATTA minimise, written out, for many fits at once.

A step of Adam is some forty operations on a batch of 500 images and 10 classes: autograd takes longer to record them than
the processor to do them, and one operation on sixteen fits costs little more than on one. With c the predicted class, y the
label and the names of `functional`,

    loss = -ln p_y,   p_y = (1 - share) · base_y + share · fused_y
    ∂loss/∂fused_y = -share / p_y           ∂loss/∂share = -(fused_y - base_y) / p_y

The share moves with the limit where the limit or the grid below it decides, and elsewhere with the rival j who is the first
to draw level: share = (1 - MARGIN) · lead_j / (lead_j + gain_j) and gain_j = fused_j - fused_c, hence

    ∂share/∂fused_j = -share / (lead_j + gain_j) = -∂share/∂fused_c

but for rivals that are near in both answers, who hold it back by what `functional` says,

and through p = softmax(z), ∂/∂z = p ⊙ (∂/∂p - Σ p ⊙ ∂/∂p). The tests hold all of it against autograd on `functional`.

**The bits of a fit do not depend on which fits are computed beside it, nor on the threads.** Operations that give a number
the same bits wherever it lies (+, -, ·, /, √, comparisons, and exp) work on all fits together. Others do not: torch's sums,
softmax and lerp go another way about the last few numbers of a piece. So sums are folded (`total`), and the rest avoided.

Axes: fits, kinds, classes, images. Each operation is to run along a few hundred numbers at a stretch: in memory images lie
together where there are few classes, and where there are many, the classes of an image do, as in a record.
"""

import math
from collections.abc import Callable
from typing import TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from atta.calibrators.fitting import Parameters
from atta.functional import MARGIN, NEAR, TINY, Space, slack

MANY = 64  # classes
CLOSE = 1e-5  # relative: some eighty roundings of float32

FitProbs: TypeAlias = Float[Tensor, "fits k n"]
FitShares: TypeAlias = Float[Tensor, "fits 1 n"]
FitMask: TypeAlias = Bool[Tensor, "fits 1 n"]


def nll_slopes(
    base: Float[Tensor, "fits n k"],
    view_logits: Float[Tensor, "fits n m k"],
    labels: Int[Tensor, "fits n"],
    *,
    step: float | None = None,
    space: Space = "logits",
    prior: float = 0.0,
) -> Callable[[Parameters, Int[Tensor, " batch"]], dict[str, Tensor]]:
    """Return the function from `weights` (fits, m, k or 1), `limit` (fits) and rows to the slopes of the mean loss over them.

    The loss is the NLL of `functional.atta` plus `prior` times the sum of the squares of the weights, a mean over columns.
    Longer than a page: it is one formula, forth and back, whose steps share what they have worked out.
    """
    # Rows are picked where an image's numbers lie together, and turned afterwards: picking single numbers misses the caches.
    many = base.shape[-1] >= MANY
    images = view_logits if step is not None else torch.cat([base.unsqueeze(2), view_logits], dim=2)
    images = images.transpose(1, 2).contiguous() if many else images
    marks = torch.stack([base.max(dim=-1).indices, labels], dim=-1)
    known = base.gather(2, marks)
    apart = _apart(base.scatter(2, marks[..., :1], 0.0).amax(dim=-1), known[..., 0])

    def slopes(parameters: Parameters, rows: Int[Tensor, " batch"]) -> dict[str, Tensor]:
        weights, limit = parameters["weights"].unsqueeze(-1), parameters["limit"][:, None, None]
        views = images.index_select(2, rows).mT if many else images.index_select(1, rows).permute(0, 2, 3, 1).contiguous()
        first, label = marks.index_select(1, rows).mT.chunk(2, dim=1)
        label_base = known[..., 1].index_select(1, rows).unsqueeze(1)
        if step is None:
            these, views = views[:, 0], views[:, 1:]

        terms = weights * views
        parts = softmax(total(terms, dim=1) if space == "logits" else terms)  # one, or one a kind
        fused = parts[:, 0] if space == "logits" else total(parts, dim=1, keep=True)[:, 0] / parts.shape[1]

        if step is None:
            share, limited, rival, fall = _shares(these, fused, limit, first)
        else:
            hard = _close(fused, first, apart.index_select(1, rows).unsqueeze(1))
            share = _shares_on_grid(base, rows, fused, limit, first, hard, step)
            limited = share > 0
        label_fused = fused.gather(1, label)
        p = mix(label_base, label_fused, share)
        tiny = torch.finfo(p.dtype).tiny
        # A vanished probability counts as tiny in `fitting.nll`, and so has no slope.
        by_p = (p >= tiny) / (p.clamp(min=tiny) * -p.shape[-1])
        by_share = by_p * (label_fused - label_base)
        if step is not None and space == "logits":
            # Only the label's probability has a slope: what stands below is nearly all zeros, and comes to the same bits.
            by_label = by_p * share
            level = by_label * label_fused
            by_terms = parts * -level.unsqueeze(1)
            by_terms.squeeze(1).scatter_(1, label, (by_label - level) * label_fused)
        else:
            by_fused = torch.zeros_like(fused).scatter_add_(1, label, by_p * share)
            if step is None:
                by_gain = by_share * fall
                by_fused.scatter_add_(1, rival, -by_gain).scatter_add_(1, first, by_gain)
            by_parts = by_fused.unsqueeze(1) / parts.shape[1]
            by_terms = (by_parts - total(by_parts * parts, dim=2)).mul_(parts)
        by_weights = total(by_terms * views, dim=3)
        if weights.shape[2] == 1:
            by_weights = total(by_weights, dim=2)
        if prior:
            by_weights = by_weights + weights * (2 * prior / weights.shape[2])
        by_limit = total(torch.where(limited, by_share, 0.0), dim=2)
        return {"weights": by_weights.squeeze(3), "limit": by_limit[:, 0, 0]}

    return slopes


def _shares(base: FitProbs, fused: FitProbs, limit: Tensor, first: Tensor) -> tuple[FitShares, FitMask, Tensor, FitShares]:
    """Return the shares; which of them move with the limit; the rivals that others move with, and how fast those fall."""
    ahead, level = base.gather(1, first), fused.gather(1, first)
    size = torch.maximum(ahead, level)
    lead, gain = (ahead - slack(base) * size - base).clamp_(min=0), fused - level
    apart, near = gain.clamp(min=0).add_(lead), NEAR * size
    reach = torch.maximum(apart, near)
    catch_up, rival = ((lead - gain.clamp(max=0)) / reach).scatter_(1, first, 1.0).min(dim=1, keepdim=True)
    bound = (1 - MARGIN) * catch_up
    limited = (catch_up >= 1) | (limit < bound)
    share = torch.where(limited, limit, bound)
    kept = _keeps(base, fused, share, first)
    gains, held_back = gain.gather(1, rival) > 0, apart.gather(1, rival) < near
    fall = torch.where(gains, torch.where(held_back, 0.0, bound), 1 - MARGIN) / reach.gather(1, rival)
    return share * kept, limited & kept, rival, fall * (~limited & kept)


def _apart(second: Tensor, ahead: Tensor) -> Tensor:
    """Whether one probability is ahead of another by more than roundings can make up for."""
    return ahead * (1 - CLOSE) > second


def _close(fused: FitProbs, first: Tensor, apart: FitMask) -> FitMask:
    """Which images are not plain: the class in front is clearly so in `base` and in `fused`, and so in every mixture."""
    level = fused.gather(1, first)
    second = fused.scatter_(1, first, 0.0).amax(dim=1, keepdim=True)
    fused.scatter_(1, first, level)
    return ~(apart & _apart(second, level))


def _shares_on_grid(
    bases: Float[Tensor, "fits all k"],
    rows: Tensor,
    fused: FitProbs,
    limit: Tensor,
    first: Tensor,
    hard: FitMask,
    step: float,
) -> FitShares:
    """Walk down from the limit as `functional` does: the fewest steps win, and where they do not keep the class, one more.

    Plain images take the limit itself. Few are left to look at: those that a rival may hold back.
    """
    share = limit.expand(hard.shape).clone()
    fits, _, images = torch.where(hard)
    base, fused = bases[fits, rows[images]].unsqueeze(-1), fused.mT[fits, images].unsqueeze(-1)
    first, limit = first[fits, :, images, None], limit[fits]
    ahead, level = base.gather(1, first), fused.gather(1, first)
    lead = (ahead - slack(base) * torch.maximum(ahead, level) - base).clamp_(min=TINY)
    catch_up = (lead / (fused - level).clamp_(min=0).add_(lead)).amin(dim=1, keepdim=True)
    steps = ((limit - catch_up) / step).ceil_().clamp_(min=0)
    found = torch.zeros_like(catch_up)
    for more in (-1, 0, 1):
        candidate = limit - (steps + more).clamp_(min=0) * step
        kept = (found == 0) & (candidate > 0) & _keeps(base, fused, candidate, first)
        found = torch.where(kept, candidate, found)
    share[fits, :, images] = found.squeeze(-1)
    return share


def _keeps(base: FitProbs, fused: FitProbs, share: FitShares, first: Tensor) -> FitMask:
    """Say for each image whether this share leaves its class strictly ahead of every other."""
    mixed = mix(base, fused, share)
    return mixed.gather(1, first) > mixed.scatter_(1, first, -1.0).amax(dim=1, keepdim=True)


def mix(base: Tensor, fused: Tensor, share: Tensor) -> Tensor:
    """Return (1 - share) · base + share · fused; base + share · (fused - base) would drown a small `fused` in rounding."""
    return ((1 - share) * base).add_(share * fused)


def softmax(logits: Float[Tensor, "*fits k n"]) -> Float[Tensor, "*fits k n"]:
    """Return the softmax over the classes. No part of it is subnormal: a processor takes a hundred times longer over those."""
    floor = math.log(torch.finfo(logits.dtype).tiny)
    powers = (logits - logits.amax(dim=-2, keepdim=True)).clamp_(min=floor).exp_()
    return powers.div_(total(powers, dim=-2, keep=True))


def total(values: Tensor, *, dim: int, keep: bool = False) -> Tensor:
    """Sum over an axis, which stays with length 1, by adding its second half to its first until one is left.

    The order of the additions follows from the length of the axis alone. `values` is used up, unless it is to be kept.

    >>> total(torch.tensor([1.0, 2.0, 3.0]), dim=0)     # (1 + 3) + 2
    tensor([6.])
    """
    while values.shape[dim] > 1:
        values, rest = values.chunk(2, dim)  # where they differ in length, the first is the longer
        values, keep = values.clone() if keep else values, False
        values.narrow(dim, 0, rest.shape[dim]).add_(rest)
    return values
