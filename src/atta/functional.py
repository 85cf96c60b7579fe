"""The method: M-ATTA and V-ATTA (Conde et al., arXiv 2304.05104) on logits.

A network answers an image with `logits`, and `base = softmax(logits)`. The same image seen through
m kinds of view gives `view_logits`, one row per kind. Weights W, learned on a validation set, say
how much each view counts,

    fused = softmax( Σ_i W_i ⊙ view_logits_i )                          (fuse)
    probs = (1 - share) · base + share · fused                          (blend)

W has one column per class in M-ATTA, `(m, k)`, and one column for all classes in V-ATTA, `(m, 1)`.
The share is the largest one that a learned `limit` in [0, 1] allows and that **keeps the predicted
class**. The paper finds it by walking down from the limit in steps of 0.01. But `probs` is linear
in the share, so with c = argmax(logits),

    lead_j = base_c - base_j     how far rival j is behind
    gain_j = fused_j - fused_c   how fast it comes up as the share grows

rival j draws level at share = lead_j / (lead_j + gain_j) if gain_j > 0, and never otherwise. Hence

    share = min( limit,  min over rivals with gain_j > 0 of  lead_j / (lead_j + gain_j) )
                                                                        (largest_share)

without a loop or an epsilon. `step=0.01` gives the paper's grid instead.

**For every input, ties included, argmax(probs) == argmax(logits)**, the first of equal classes. At
the bound two classes tie, and rounding would decide between them. So leads count as a few rounding
errors shorter (`slack`), and the share stays a relative `MARGIN` below the bound. Softmax itself
rounds logits that are nearly equal to equal probabilities: where another class is first after all,
the class of the logits gets a few rounding errors more than it (`put_first`).

**The answer is continuous** in `base` and `fused`, so that a batch, a graph or a GPU that rounds
differently gives the same answer. The bound above is not continuous: if a rival is level with the
leader in both, lead and gain are 0/0, and the last bit would decide between all of the views and
none of them. So a rival that is `near` in both limits the share, the more the nearer it is,

    (lead_j + loss_j) / max(lead_j + gain_j, near)
    near = NEAR · max(base_c, fused_c),   loss_j = max(0, fused_c - fused_j)

instead of lead_j / (lead_j + gain_j). The two are equal if the classes are apart by `near` in
either answer. The new bound is never larger, and its slope is at most 1 / near. Half-precision
inputs are computed and answered in float32.
"""

from collections.abc import Sequence
from typing import Literal, TypeAlias

import torch
from jaxtyping import Int
from torch import Tensor

from atta._base.types import Logits, Probs, Scalar, Shares, ViewLogits, ViewWeights

Space: TypeAlias = Literal["logits", "probabilities"]
First: TypeAlias = Int[Tensor, "n 1"]

MARGIN = 1e-4  # ONNX exporters drop a factor closer to 1 than about 1e-5, and the ties come back
TINY = 1e-30  # a lead that counts as none; float32 can represent its reciprocal, too
NEAR = 0.02  # of the leader's probability: rivals closer than this in both answers limit the share
MANY = 1 << 16  # numbers from which looking for the few rows that need more arithmetic pays


def fuse(view_logits: ViewLogits, weights: ViewWeights, *, space: Space = "logits") -> Probs:
    """Combine the views into one answer.

    The paper prints the softmax before the sum, which does not sum to one; its authors' code takes
    it after the sum. The sum of logits measured better (docs/results.md), hence the default.

    Args:
        view_logits: The logits (images, kinds, classes).
        weights: The weights (kinds, classes) or (kinds, 1).
        space: "logits" for the softmax of the weighted sum, "probabilities" for the mean of the
            softmaxes of the weighted views.

    Returns:
        The probabilities (images, classes).

    >>> two_views = torch.tensor([[[2.0, 0.0], [0.0, 1.0]]])
    >>> fuse(two_views, weights=torch.ones(2, 1))       # softmax(2, 1)
    tensor([[0.7311, 0.2689]])
    """
    if space == "probabilities":
        return (weights * view_logits).softmax(dim=-1).mean(dim=-2)
    if weights.shape[-1] == 1:  # V-ATTA: matrix-vector products, without an (n, m, k) in between
        return (weights.mT @ view_logits).squeeze(-2).softmax(dim=-1)
    return (weights * view_logits).sum(dim=-2).softmax(dim=-1)


def weighted_sum(rows: Sequence[Logits], weights: ViewWeights) -> Logits:
    """Return Σ_i weights_i ⊙ rows_i without stacking the rows first: the copy costs more."""
    total = weights[0] * rows[0]
    # torch.export fails on an empty unbind
    for weight, row in zip(weights.unbind()[1:], rows[1:], strict=True):
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
    """Return the share of the views in each answer: the limit, or less if a rival would overtake.

    Args:
        base: The probabilities of the network (images, classes).
        fused: The probabilities of the views.
        limit: The largest share.
        step: None for the closed form, or the step of the paper's grid.
        first: The class to keep, `leader(logits)`; None takes that of `base`.

    Returns:
        One share per image.

    >>> base, fused = torch.tensor([[0.6, 0.4]]), torch.tensor([[0.2, 0.8]])
    >>> largest_share(base, fused, limit=1.0)           # 0.2 / (0.2 + 0.6): then the rival leads
    tensor([0.2500])
    """
    first = leader(base) if first is None else first
    limit = torch.as_tensor(limit, dtype=base.dtype, device=base.device)
    # Not a clamp alone: at 0 and 1 themselves it has slope 1 in torch 2.13 and 0 in torch 2.15.
    within = limit.detach().clamp(0, 1)
    limit = torch.where(within == limit, limit, within) if limit.requires_grad else within
    ahead, level = base.gather(-1, first), fused.gather(-1, first)
    size = torch.maximum(ahead, level).detach()  # of the numbers that are rounded
    lead, gain = ahead - slack(base) * size - base, fused - level
    if step is not None:
        lead = lead.clamp(min=TINY)
        catch_up = (lead / (lead + gain.clamp(min=0))).amin(dim=-1)
        # The paper's walk down from the limit, from near its end; detached: only the limit moves.
        steps = ((limit - catch_up) / step).detach().ceil().clamp(min=0)
        share = torch.zeros_like(catch_up)
        for nearby in (1, 0, -1):  # rounding can move the end of the walk by one step
            candidate = limit - (steps + nearby).clamp(min=0) * step
            mixed = torch.lerp(base, fused, candidate.unsqueeze(-1))
            rival = mixed.scatter(-1, first, -1.0).amax(dim=-1)
            keeps = (candidate > 0) & (mixed.gather(-1, first).squeeze(-1) > rival)
            share = torch.where(keeps, candidate, share)
        return share
    lead = lead.clamp_(min=0)  # in place: allocating memory costs as much as the arithmetic
    reach = torch.maximum(lead + gain.clamp(min=0), NEAR * size)
    catch_up = ((lead - gain.clamp(max=0)) / reach).scatter(-1, first, 1.0).amin(dim=-1)
    # Rows without a bound take the limit itself: a minimum with 1 would halve its slope at 1.
    return torch.where(catch_up < 1, torch.minimum(limit, (1 - MARGIN) * catch_up), limit)


def blend(base: Probs, fused: Probs, share: Shares, *, first: First | None = None) -> Probs:
    """Return (1 - share) · base + share · fused, or `base` for a row whose class would change.

    Args:
        base: The probabilities of the network (images, classes).
        fused: The probabilities of the views.
        share: One share per image.
        first: The class to keep, `leader(logits)`; None takes that of `base`.

    Returns:
        The probabilities (images, classes).

    >>> blend(torch.tensor([[0.6, 0.4]]), torch.tensor([[0.2, 0.8]]), torch.tensor([0.1]))
    tensor([[0.5600, 0.4400]])
    """
    mixed = torch.lerp(base, fused, share.unsqueeze(-1))
    first = leader(base) if first is None else first
    return put_first(torch.where(leader(mixed) == first, mixed, base), first)


def atta(
    logits: Logits,
    view_logits: ViewLogits,
    weights: ViewWeights,
    limit: Scalar | float,
    *,
    step: float | None = None,
    space: Space = "logits",
) -> Probs:
    """Return calibrated probabilities, whose class is always argmax(logits).

    Args:
        logits: The logits of the images (images, classes).
        view_logits: The logits of their views (images, kinds, classes).
        weights: The weights (kinds, classes) or (kinds, 1).
        limit: The largest share of the views.
        step: None for the share in closed form, 0.01 for the paper's grid.
        space: Where the views are combined, see `fuse`.

    Returns:
        The probabilities (images, classes).

    >>> logits = torch.tensor([[2.0, 1.0, 0.0]])        # softmax: 0.665 0.245 0.090
    >>> views = torch.tensor([[[0.0, 3.0, 0.0]]])       # one view, which prefers another class
    >>> atta(logits, views, weights=torch.ones(1, 1), limit=1.0)
    tensor([[0.4623, 0.4623, 0.0754]])
    """
    dtype = torch.promote_types(logits.dtype, torch.float32)
    base = logits.to(dtype).softmax(dim=-1)
    fused = fuse(view_logits.to(dtype), weights.to(dtype), space=space)
    return guarded_blend(base, fused, limit, logits, step=step)


def guarded_blend(
    base: Probs, fused: Probs, limit: Scalar | float, logits: Logits, *, step: float | None = None
) -> Probs:
    """Blend in as much of `fused` as the limit and the class of `logits` allow.

    `base` is softmax(logits) at any temperature.
    """
    first = leader(logits)
    if step is None and can_look(base, fused, limit) and base.numel() >= MANY:
        return _blend_close_calls(base, fused, limit, first)
    share = largest_share(base, fused, limit, step=step, first=first)
    return put_first(torch.lerp(base, fused, share.unsqueeze(-1)), first)


def _blend_close_calls(base: Probs, fused: Probs, limit: Scalar | float, first: First) -> Probs:
    """Return what `guarded_blend` does, bit for bit, in half the time.

    Where the class leads by more than `near` at the limit, the limit itself is the share: a rival
    with a positive gain has not drawn level, and no rival is near in both answers. Only the
    other rows need the rest of the formula.
    """
    most = torch.as_tensor(limit, dtype=base.dtype, device=base.device).clamp(0, 1)
    mixed = torch.lerp(base, fused, most)
    ahead = mixed.gather(-1, first)
    lead = ahead - mixed.scatter_(-1, first, -1.0).amax(dim=-1, keepdim=True)
    mixed.scatter_(-1, first, ahead)
    near = NEAR * torch.maximum(base.gather(-1, first), fused.gather(-1, first))
    close = (~(lead > 1.25 * near)).squeeze(-1).nonzero().squeeze(-1)
    if len(close):
        base, fused, first = base[close], fused[close], first[close]
        share = largest_share(base, fused, limit, first=first)
        mixed[close] = put_first(torch.lerp(base, fused, share.unsqueeze(-1)), first)
    return mixed


def can_look(*values: Tensor | float) -> bool:
    """Whether code may branch on values: not in a graph, and not where a gradient is wanted."""
    return not torch.compiler.is_compiling() and not any(
        isinstance(value, Tensor) and value.requires_grad for value in values
    )


def guard_class(probs: Probs, logits: Logits) -> Probs:
    """Return `probs` with the class of `logits` first, where rounding made it tie or fall behind.

    >>> guard_class(torch.tensor([[0.5, 0.5]]), torch.tensor([[1.0, 1.0000001]])).argmax()
    tensor(1)
    """
    return put_first(probs, leader(logits))


def put_first(probs: Probs, first: First) -> Probs:
    """Raise the probability of the class `first` just above all others, where it is not first."""
    most, winner = probs.max(dim=-1, keepdim=True)
    above = torch.add(most, most, alpha=slack(probs))  # exporters drop a factor close to 1
    return probs.scatter(-1, first, torch.where(winner == first, most, above))


def slack(base: Tensor) -> float:
    """Return by how much leads are shortened, so that rounding errors cannot change the class."""
    return 4 * torch.finfo(base.dtype).eps


def leader(scores: Logits) -> First:
    """Return the class with the largest score in each row; the first one in a tie."""
    return scores.max(dim=-1, keepdim=True).indices  # like argmax, in half the time
