"""The gradient of the loss of M-ATTA and V-ATTA, in closed form, for many fits at once.

A step of Adam is about forty operations on a batch of 500 images and 10 classes. Autograd takes
longer to record them than the processor to compute them, and an operation on sixteen fits costs
little more than on one: sixteen fits take 1 s instead of 7. With c the predicted class, y the label
and the names of `functional`,

    loss = -ln p_y,   p_y = (1 - share) · base_y + share · fused_y
    ∂loss/∂fused_y = -share / p_y           ∂loss/∂share = -(fused_y - base_y) / p_y

The share moves with the limit if the limit or the grid below it decides. Otherwise it moves with
the rival j that draws level first: share = (1 - MARGIN) · lead_j / (lead_j + gain_j) with gain_j =
fused_j - fused_c, hence

    ∂share/∂fused_j = -share / (lead_j + gain_j) = -∂share/∂fused_c

except for rivals that are near in both answers (see `functional`). Through p = softmax(z),
∂/∂z = p ⊙ (∂/∂p - Σ p ⊙ ∂/∂p). The tests compare all of it with autograd on `functional`.

**The bits of a fit depend neither on the other fits nor on the threads.** Operations that give a
number the same bits wherever it lies (+, -, ·, /, √, comparisons, and exp) work on all fits at
once. Other operations do not: sums, softmax and lerp of torch treat the last few numbers of a
vector differently. So sums are computed by halving (`total`), and the others are avoided.

Axes: fits, kinds, classes, images. Each operation should run along a few hundred numbers: with few
classes the images are contiguous in memory, with many classes the classes of an image.
"""

import math
from typing import TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from atta.calibrators.fitting import Parameters
from atta.functional import MARGIN, NEAR, TINY, Space, slack

MANY_CLASSES = 64
SAFE_RANGE = 80.0  # logits this close leave every probability a normal number

FitProbs: TypeAlias = Float[Tensor, "fits k n"]
FitShares: TypeAlias = Float[Tensor, "fits 1 n"]
FitMask: TypeAlias = Bool[Tensor, "fits 1 n"]


class Slopes:
    """Computes the gradient of the mean loss over some rows, for all fits.

    The loss is the NLL of `functional.atta` plus `prior` times the squared weights, summed over the
    kinds and averaged over the columns.
    """

    def __init__(
        self,
        base: Float[Tensor, "fits n k"],
        view_logits: Float[Tensor, "fits n m k"],
        labels: Int[Tensor, "fits n"],
        *,
        step: float | None = None,
        space: Space = "logits",
        prior: float = 0.0,
    ) -> None:
        self.step, self.space, self.prior = step, space, prior
        # Rows are picked while the numbers of an image are contiguous, and transposed afterwards.
        self.many_classes = base.shape[-1] >= MANY_CLASSES
        images = torch.cat([base.unsqueeze(2), view_logits], dim=2)
        self.images = images.transpose(1, 2).contiguous() if self.many_classes else images
        self.marks = torch.stack([base.max(dim=-1).indices, labels], dim=-1)
        self.range = 2 * view_logits.abs().amax(dim=(1, 3))  # of each kind

    def __call__(self, parameters: Parameters, rows: Int[Tensor, " batch"]) -> dict[str, Tensor]:
        """Return the gradient of the mean loss over these rows by `weights` and `limit`."""
        weights, limit = parameters["weights"], parameters["limit"][:, None, None]
        images = self.images.index_select(2 if self.many_classes else 1, rows)
        seen = images.mT if self.many_classes else images.permute(0, 2, 3, 1).contiguous()
        base, views = seen[:, 0], seen[:, 1:]
        first, label = self.marks.index_select(1, rows).mT.chunk(2, dim=1)

        logits = weights.unsqueeze(-1) * views
        if self.space == "logits":
            logits = total(logits, dim=1)
        wide = bool((weights.abs().amax(dim=2) * self.range).sum(dim=1).amax() > SAFE_RANGE)
        parts = softmax(logits, wide=wide)
        fused = parts[:, 0]
        if self.space == "probabilities":
            fused = total(parts.clone(), dim=1)[:, 0] / parts.shape[1]
        if self.step is None:
            share, limited, rival, fall = _shares(base, fused, limit, first)
        else:
            share = _shares_on_grid(base, fused, limit, first, self.step)
            limited, rival, fall = share > 0, first, torch.zeros_like(share)
        label_base, label_fused = base.gather(1, label), fused.gather(1, label)
        p = mix(label_base, label_fused, share)
        tiny = torch.finfo(p.dtype).tiny
        # `fitting.nll` clamps a probability of 0, so its gradient is 0.
        by_p = (p >= tiny) / (p.clamp(min=tiny) * -p.shape[-1])
        by_share = by_p * (label_fused - label_base)
        by_fused = torch.zeros_like(fused).scatter_add_(1, label, by_p * share)
        by_gain = by_share * fall
        by_fused.scatter_add_(1, rival, -by_gain).scatter_add_(1, first, by_gain)
        by_parts = by_fused.unsqueeze(1) / parts.shape[1]
        by_terms = (by_parts - total(by_parts * parts, dim=2)).mul_(parts)
        by_weights = total(by_terms * views, dim=3)
        if weights.shape[2] == 1:
            by_weights = total(by_weights, dim=2)
        by_weights = by_weights.squeeze(3)
        if self.prior:
            by_weights = by_weights + weights * (2 * self.prior / weights.shape[2])
        return {"weights": by_weights, "limit": total(by_share * limited, dim=2)[:, 0, 0]}


def _shares(
    base: FitProbs, fused: FitProbs, limit: Tensor, first: Tensor
) -> tuple[FitShares, FitMask, Tensor, FitShares]:
    """Return the shares, which of them move with the limit, and the rivals of the others.

    The last are how fast these shares fall with the gain of their rival.
    """
    ahead, level = base.gather(1, first), fused.gather(1, first)
    size = torch.maximum(ahead, level)
    lead, gain = (ahead - slack(base) * size - base).clamp_(min=0), fused - level
    apart, near = gain.clamp(min=0).add_(lead), NEAR * size
    reach = torch.maximum(apart, near)
    catch_up, rival = (
        ((lead - gain.clamp(max=0)) / reach).scatter_(1, first, 1.0).min(dim=1, keepdim=True)
    )
    bound = (1 - MARGIN) * catch_up
    limited = (catch_up >= 1) | (limit < bound)
    share = torch.where(limited, limit, bound)
    kept = _keeps(base, fused, share, first)
    gains, held_back = gain.gather(1, rival) > 0, apart.gather(1, rival) < near
    fall = torch.where(gains, torch.where(held_back, 0.0, bound), 1 - MARGIN) / reach.gather(
        1, rival
    )
    return share * kept, limited & kept, rival, fall * (~limited & kept)


def _shares_on_grid(
    base: FitProbs, fused: FitProbs, limit: Tensor, first: Tensor, step: float
) -> FitShares:
    """Walk down from the limit, as `functional` does, to the first share that keeps the class."""
    ahead, level = base.gather(1, first), fused.gather(1, first)
    lead = (ahead - slack(base) * torch.maximum(ahead, level) - base).clamp_(min=TINY)
    catch_up = (lead / (fused - level).clamp_(min=0).add_(lead)).amin(dim=1, keepdim=True)
    steps = ((limit - catch_up) / step).ceil_().clamp_(min=0)
    share = torch.zeros_like(catch_up)
    for more in (1, 0, -1):
        candidate = limit - (steps + more).clamp_(min=0) * step
        kept = (candidate > 0) & _keeps(base, fused, candidate, first)
        share = torch.where(kept, candidate, share)
    return share


def _keeps(base: FitProbs, fused: FitProbs, share: FitShares, first: Tensor) -> FitMask:
    """Return for each image whether this share leaves its class strictly ahead of all others."""
    mixed = mix(base, fused, share)
    return mixed.gather(1, first) > mixed.scatter_(1, first, -1.0).amax(dim=1, keepdim=True)


def mix(base: Tensor, fused: Tensor, share: Tensor) -> Tensor:
    """Return (1 - share) · base + share · fused, in a form that is exact for a small `fused`."""
    return ((1 - share) * base).add_(share * fused)


def softmax(logits: Float[Tensor, "fits m k n"], *, wide: bool) -> Float[Tensor, "fits m k n"]:
    """Return the softmax over the classes, without subnormal numbers, which are very slow."""
    powers = logits - logits.amax(dim=-2, keepdim=True)
    if wide:
        powers.clamp_(min=math.log(torch.finfo(logits.dtype).tiny))
    powers.exp_()
    return powers / total(powers.clone(), dim=-2)


def total(values: Tensor, *, dim: int) -> Tensor:
    """Sum over an axis, which stays with length 1, by adding its second half to its first.

    The order of the additions depends only on the length of the axis. `values` is overwritten.

    >>> total(torch.tensor([1.0, 2.0, 3.0]), dim=0)     # (1 + 3) + 2
    tensor([6.])
    """
    while values.shape[dim] > 1:
        values, rest = values.chunk(2, dim)  # of odd lengths, the first is the longer
        values.narrow(dim, 0, rest.shape[dim]).add_(rest)
    return values
