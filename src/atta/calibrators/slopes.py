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
from typing import TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from atta.calibrators.fitting import Parameters
from atta.functional import MARGIN, NEAR, TINY, Space, slack

MANY = 64  # classes
WIDE = 80.0  # between logits: less leaves every part of a softmax a normal number
CLOSE = 1e-5  # relative: some eighty roundings of float32

FitProbs: TypeAlias = Float[Tensor, "fits k n"]
FitShares: TypeAlias = Float[Tensor, "fits 1 n"]
FitMask: TypeAlias = Bool[Tensor, "fits 1 n"]


class Slopes:
    """From `weights` (fits, m, k or 1), `limit` (fits) and rows to the slopes of the mean loss over them.

    The loss is the NLL of `functional.atta` plus `prior` times the sum of the squares of the weights, a mean over columns.
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
        self.base, self.step, self.space, self.prior = base, step, space, prior
        # Rows are picked where an image's numbers lie together, then turned: picking single numbers misses the caches.
        self.many = base.shape[-1] >= MANY
        images = (
            view_logits if step is not None else torch.cat([base.unsqueeze(2), view_logits], dim=2)
        )
        self.images = images.transpose(1, 2).contiguous() if self.many else images
        self.marks = torch.stack([base.max(dim=-1).indices, labels], dim=-1)
        known = base.gather(2, self.marks)
        self.of_label = known[..., 1].contiguous()
        self.apart = _apart(base.scatter(2, self.marks[..., :1], 0.0).amax(dim=-1), known[..., 0])
        self.reach = 2 * view_logits.abs().amax(dim=(1, 3))  # of each kind
        self.rooms: dict[int, Room] = {}

    def __call__(self, parameters: Parameters, rows: Int[Tensor, " batch"]) -> dict[str, Tensor]:
        """Return the slopes of the mean loss over these rows."""
        weights, limit = parameters["weights"].unsqueeze(-1), parameters["limit"][:, None, None]
        images = self.images.index_select(2 if self.many else 1, rows)
        seen = images.mT if self.many else images.permute(0, 2, 3, 1).contiguous()
        views = seen if self.step is not None else seen[:, 1:]
        first, label = self.marks.index_select(1, rows).mT.chunk(2, dim=1)
        if len(rows) not in self.rooms:
            self.rooms[len(rows)] = Room(views, one=self.space == "logits")
        room = self.rooms[len(rows)]

        terms = torch.mul(weights, views, out=room.terms)
        # No part can vanish where the weights leave no way to: then there is nothing to lift.
        wide = bool((parameters["weights"].abs().amax(dim=2) * self.reach).sum(dim=1).amax() > WIDE)
        parts = softmax(
            room.sum_kinds() if self.space == "logits" else terms, room, wide=wide
        )  # one, or one a kind
        fused = (
            parts[:, 0]
            if self.space == "logits"
            else total(parts, dim=1, keep=True)[:, 0] / parts.shape[1]
        )
        moving: tuple[Tensor, Tensor] | None = (
            None  # the rivals that shares move with, and how fast
        )
        if self.step is None:
            share, limited, moving = _shares(seen[:, 0], fused, limit, first)
        else:
            hard = _close(fused, first, self.apart.index_select(1, rows).unsqueeze(1))
            share = _shares_on_grid(self.base, rows, fused, limit, first, hard, self.step)
            limited = share > 0
        label_base, label_fused = (
            self.of_label.index_select(1, rows).unsqueeze(1),
            fused.gather(1, label),
        )
        p = mix(label_base, label_fused, share)
        tiny = torch.finfo(p.dtype).tiny
        # A vanished probability counts as tiny in `fitting.nll`, and so has no slope.
        by_p = (p >= tiny) / (p.clamp(min=tiny) * -p.shape[-1])
        by_share = by_p * (label_fused - label_base)
        if moving is None and self.space == "logits":
            # Only the label's probability has a slope: what stands below is nearly all zeros, and comes to the same bits.
            by_label = by_p * share
            level = by_label * label_fused
            by_terms = parts * -level.unsqueeze(1)
            by_terms.squeeze(1).scatter_(1, label, (by_label - level) * label_fused)
        else:
            by_fused = torch.zeros_like(fused).scatter_add_(1, label, by_p * share)
            if moving is not None:
                rival, fall = moving
                by_gain = by_share * fall
                by_fused.scatter_add_(1, rival, -by_gain).scatter_add_(1, first, by_gain)
            by_parts = by_fused.unsqueeze(1) / parts.shape[1]
            by_terms = (by_parts - total(by_parts * parts, dim=2)).mul_(parts)
        torch.mul(by_terms, views, out=room.terms)
        by_weights = room.sum_images() if weights.shape[2] > 1 else room.sum_all()
        if self.prior:
            by_weights = by_weights + weights * (2 * self.prior / weights.shape[2])
        torch.mul(by_share, limited, out=room.limits)
        return {
            "weights": by_weights.squeeze(3).clone(),
            "limit": room.sum_limits()[:, 0, 0].clone(),
        }


def _shares(
    base: FitProbs, fused: FitProbs, limit: Tensor, first: Tensor
) -> tuple[FitShares, FitMask, tuple[Tensor, FitShares]]:
    """Return the shares; which of them move with the limit; the rivals that others move with, and how fast those fall."""
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
    return share * kept, limited & kept, (rival, fall * (~limited & kept))


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


class Room:
    """Memory for batches of one length, which each of them uses again, and the sums over it, laid out once."""

    def __init__(self, views: Float[Tensor, "fits m k n"], *, one: bool) -> None:
        self.terms = torch.empty_like(views)
        self.sum_kinds, self.sum_images = _Sum(self.terms, 1), _Sum(self.terms, 3)
        self.sum_classes = _Sum(self.sum_images.answer, 2)
        self.powers = torch.empty_like(self.terms[:, :1] if one else self.terms)
        self.sum_powers = _Sum(self.powers, 2, keep=True)
        self.limits = views.new_empty(views.shape[0], 1, views.shape[3])
        self.sum_limits = _Sum(self.limits, 2)

    def sum_all(self) -> Tensor:
        """Sum over images and classes."""
        self.sum_images()
        return self.sum_classes()


class _Sum:
    """`total` over an axis of one piece of memory: what is added to what is found once, not at each of a thousand steps.

    What is there is used up, unless it is to be kept.
    """

    def __init__(self, values: Tensor, dim: int, *, keep: bool = False) -> None:
        self.copy: tuple[Tensor, Tensor] | None = None
        self.steps: list[tuple[Tensor, Tensor]] = []
        while values.shape[dim] > 1:
            values, rest = values.chunk(
                2, dim
            )  # where they differ in length, the first is the longer
            if keep:
                self.copy, keep = (torch.empty_like(values), values), False
                values = self.copy[0]
            self.steps.append((values.narrow(dim, 0, rest.shape[dim]), rest))
        self.answer = values

    def __call__(self) -> Tensor:
        if self.copy is not None:
            self.copy[0].copy_(self.copy[1])
        for first, rest in self.steps:
            first.add_(rest)
        return self.answer


def softmax(
    logits: Float[Tensor, "fits m k n"], room: Room, *, wide: bool
) -> Float[Tensor, "fits m k n"]:
    """Return the softmax over the classes. No part of it is subnormal: a processor takes a hundred times longer over those."""
    powers = torch.sub(logits, logits.amax(dim=-2, keepdim=True), out=room.powers)
    if wide:
        powers.clamp_(min=math.log(torch.finfo(logits.dtype).tiny))
    return powers.exp_().div_(room.sum_powers())


def total(values: Tensor, *, dim: int, keep: bool = False) -> Tensor:
    """Sum over an axis, which stays with length 1, by adding its second half to its first until one is left.

    The order of the additions follows from the length of the axis alone. `values` is used up, unless it is to be kept.

    >>> total(torch.tensor([1.0, 2.0, 3.0]), dim=0)     # (1 + 3) + 2
    tensor([6.])
    """
    return _Sum(values, dim, keep=keep)()
