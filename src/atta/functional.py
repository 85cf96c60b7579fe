"""The method: M-ATTA and V-ATTA (Conde et al., arXiv 2304.05104) on logits.

A network answers an image with `logits`, and `base = softmax(logits)`. The same image seen through m kinds of view gives
`view_logits`, one row a kind. Weights W, learned on a validation set, say how much each view counts,

    fused = softmax( Σ_i W_i ⊙ view_logits_i )                                                        (fuse)
    probs = (1 - share) · base + share · fused                                                        (blend)

W has a column a class in M-ATTA, `(m, k)`, and one column for all of them in V-ATTA, `(m, 1)`. The share is the largest
one that a learned `limit` in [0, 1] admits and that **leaves the predicted class as it was**. The paper finds it by walking
down from the limit in steps of 0.01. But `probs` is linear in the share, so with c = argmax(base),

    lead_j = base_c - base_j     how far rival j is behind
    gain_j = fused_j - fused_c   how fast it comes up as the share grows

rival j draws level at share = lead_j / (lead_j + gain_j) if gain_j > 0 and never otherwise. Hence

    share = min( limit,  min over rivals with gain_j > 0 of  lead_j / (lead_j + gain_j) )              (largest_share)

without a loop or an epsilon. `step=0.01` gives the paper's grid instead.

**For every input, ties included, argmax(probs) == argmax(base).** At the bound two classes tie, and rounding would decide
between them; so leads count as a few roundings shorter (`slack`), the share stays a relative `MARGIN` below, and a row whose
class would still change is answered with `base`.

**The answer is continuous** in `base` and `fused`, so that a batch, a graph or a GPU that rounds differently answers the same.
The bound above is not: where a rival is level with the leader in both, lead and gain are 0/0, and the last bit would decide
between all of the views and none of them. So a rival that is `near` in both holds the share back, the more the nearer it is,

    (lead_j + loss_j) / max(lead_j + gain_j, near),   near = NEAR · max(base_c, fused_c),   loss_j = max(0, fused_c - fused_j)

in the place of lead_j / (lead_j + gain_j): the same wherever the two are apart by `near` in either, never more than it, and no
steeper than 1 / near. Half-precision inputs are computed and answered in float32.
"""

from collections.abc import Sequence
from typing import Literal, TypeAlias

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from atta._base.types import Logits, Probs, Scalar, Shares, ViewLogits, ViewWeights

Space: TypeAlias = Literal["logits", "probabilities"]
First: TypeAlias = Int[Tensor, "n 1"]

MARGIN = (
    1e-4  # ONNX exporters fold a factor closer to 1 than about 1e-5 away, and the ties come back
)
TINY = 1e-30  # a lead that counts as none; well inside float32's range, its reciprocal too
NEAR = (
    0.02  # of the leader's probability: rivals that are closer in both answers hold the share back
)


def fuse(view_logits: ViewLogits, weights: ViewWeights, *, space: Space = "logits") -> Probs:
    """Combine the views: softmax of the weighted sum, or ("probabilities") the mean of the weighted views' softmaxes.

    The paper prints the softmax before the sum, which does not add up to one; its authors' code takes it after. Measured,
    the sum in logit space is the better one (docs/results.md), hence the default.

    >>> two_views = torch.tensor([[[2.0, 0.0], [0.0, 1.0]]])
    >>> fuse(two_views, weights=torch.ones(2, 1))       # softmax(2, 1)
    tensor([[0.7311, 0.2689]])
    """
    if space == "probabilities":
        return (weights * view_logits).softmax(dim=-1).mean(dim=-2)
    if (
        weights.shape[-1] == 1
    ):  # V-ATTA: a matrix-vector product an image, with no (n, m, k) in between
        return (weights.mT @ view_logits).squeeze(-2).softmax(dim=-1)
    return (weights * view_logits).sum(dim=-2).softmax(dim=-1)


def weighted_sum(rows: Sequence[Logits], weights: ViewWeights) -> Logits:
    """Return Σ_i weights_i ⊙ rows_i, a row a kind, without laying the rows side by side first: the copy costs more."""
    total = weights[0] * rows[0]
    for weight, row in zip(
        weights.unbind()[1:], rows[1:], strict=True
    ):  # torch.export fails to read an empty unbind
        total = torch.addcmul(total, row, weight)
    return total


def largest_share(
    base: Probs,
    fused: Probs,
    limit: Scalar | float,
    *,
    step: float | None = None,
    first: First | None = None,
) -> Shares:
    """Return how much of each answer the views may be given: at most `limit`, and less where a rival would overtake.

    `step=None` is the closed form. A number is the paper's grid: limit, limit - step, ... down to the first share that keeps
    the class, or 0 if no positive one does. `first` is `leader(base)`, for those who have it already.

    >>> base, fused = torch.tensor([[0.6, 0.4]]), torch.tensor([[0.2, 0.8]])
    >>> largest_share(base, fused, limit=1.0)           # 0.2 / (0.2 + 0.6): from there on the rival is ahead
    tensor([0.2500])
    >>> largest_share(base, fused, limit=0.1)
    tensor([0.1000])
    """
    first = leader(base) if first is None else first
    limit = torch.as_tensor(limit, dtype=base.dtype, device=base.device)
    # Not a clamp alone: at 0 and 1 themselves it has slope 1 in torch 2.13 and 0 in torch 2.15.
    within = limit.detach().clamp(0, 1)
    limit = torch.where(within == limit, limit, within) if limit.requires_grad else within
    ahead, level = base.gather(-1, first), fused.gather(-1, first)
    size = torch.maximum(ahead, level).detach()  # of what is rounded
    lead, gain = ahead - slack(base) * size - base, fused - level
    if step is not None:
        return _share_on_grid(base, fused, limit, lead, gain, step, first)
    # In place where it can be, because a fresh piece of memory costs as much as the arithmetic.
    lead = lead.clamp_(min=0)
    reach = torch.maximum(lead + gain.clamp(min=0), NEAR * size)
    catch_up = ((lead - gain.clamp(max=0)) / reach).scatter(-1, first, 1.0).amin(dim=-1)
    # Rows that nobody catches take the limit as it is: a minimum with 1 would halve the slope of a limit of 1.
    return torch.where(catch_up < 1, torch.minimum(limit, (1 - MARGIN) * catch_up), limit)


def _share_on_grid(
    base: Probs, fused: Probs, limit: Scalar, lead: Probs, gain: Probs, step: float, first: First
) -> Shares:
    """Walk down from the limit as Algorithms 1 and 2 do, starting next to where a rival draws level."""
    # Floors instead of masks: the class itself and rivals that do not gain come out at 1, and there is no 0/0.
    lead = lead.clamp(min=TINY)
    catch_up = (lead / (lead + gain.clamp(min=0))).amin(dim=-1)
    steps = (
        ((limit - catch_up) / step).detach().ceil().clamp(min=0)
    )  # detached: the share then moves as the limit does
    share = torch.zeros_like(catch_up)
    for nearby in (
        1,
        0,
        -1,
    ):  # rounding can put the end of the walk one step to either side; the fewest steps win
        candidate = limit - (steps + nearby).clamp(min=0) * step
        keeps = (candidate > 0) & _leads(mix(base, fused, candidate), first)
        share = torch.where(keeps, candidate, share)
    return share


def blend(base: Probs, fused: Probs, share: Shares, *, first: First | None = None) -> Probs:
    """Mix the views in: (1 - share) · base + share · fused, and `base` itself for a row whose class would change."""
    mixed = mix(base, fused, share)
    return torch.where(
        _leads(mixed, leader(base) if first is None else first).unsqueeze(-1), mixed, base
    )


def mix(base: Probs, fused: Probs, share: Shares) -> Probs:
    """Return (1 - share) · base + share · fused, with no eye on the class."""
    return torch.lerp(base, fused, share.unsqueeze(-1))


def atta(
    logits: Logits,
    view_logits: ViewLogits,
    weights: ViewWeights,
    limit: Scalar | float,
    *,
    step: float | None = None,
    space: Space = "logits",
) -> Probs:
    """Return the calibrated probabilities; their class is the class of softmax(logits), always.

    >>> logits = torch.tensor([[2.0, 1.0, 0.0]])        # softmax: 0.665 0.245 0.090
    >>> views = torch.tensor([[[0.0, 3.0, 0.0]]])       # one view, which prefers another class
    >>> atta(logits, views, weights=torch.ones(1, 1), limit=1.0)
    tensor([[0.4623, 0.4623, 0.0754]])
    """
    dtype = torch.promote_types(logits.dtype, torch.float32)
    base = logits.to(dtype).softmax(dim=-1)
    fused = fuse(view_logits.to(dtype), weights.to(dtype), space=space)
    return guarded_blend(base, fused, limit, step=step)


def guarded_blend(
    base: Probs, fused: Probs, limit: Scalar | float, *, step: float | None = None
) -> Probs:
    """Blend in as much of `fused` as the limit and the class allow."""
    first = leader(base)
    return blend(
        base, fused, largest_share(base, fused, limit, step=step, first=first), first=first
    )


def guard_class(probs: Probs, base: Probs) -> Probs:
    """Answer with `base` in rows where rounding would change the class."""
    same: Tensor = probs.argmax(dim=-1, keepdim=True) == base.argmax(dim=-1, keepdim=True)
    return torch.where(same, probs, base)


def slack(base: Tensor) -> float:
    """What rounding may take from a lead: rivals count as so much closer, and the blend never falls behind by rounding."""
    return 4 * torch.finfo(base.dtype).eps


def leader(base: Probs) -> First:
    """Return the class in front of each row: the first of them, where several are."""
    return base.max(dim=-1, keepdim=True).indices  # as argmax does, in half the time


def _leads(probs: Probs, first: First) -> Bool[Tensor, "n"]:
    """Say for each row whether that class is strictly ahead of every other; far cheaper than another argmax."""
    return probs.gather(-1, first).squeeze(-1) > probs.scatter(-1, first, -1.0).amax(dim=-1)
