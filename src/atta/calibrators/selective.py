"""V-ATTA at a part of its cost: the network looks again only at images that it is not sure of.

selective-v-atta     temperature where the softmax is sure, V-ATTA where it is not
sequential-v-atta    the same, a kind of view at a time: V-ATTA with the kinds so far, until the answer is sure

"V-ATTA" is C-ATTA here, with the image itself among its views, unless `blend="v-atta"` asks for the paper's: few views need it.
Stage 0 is the softmax at a temperature, stage s = 1 … S is V-ATTA with the kinds of view of the first s stages. An image goes
on from stage s while its confidence is below the gate of that stage,

    confidence_0 = max softmax(logits / T)    confidence_s = max V-ATTA_s        goes on if confidence_s < gate_s

and is answered by the stage that it stops at. Every stage keeps the class, so the whole does.

**The budget** is `passes`, what an image may cost on average: 1 for itself and, for each stage that it reaches, the repeats of
that stage's kinds. With one stage of r views, the part (passes - 1) / r of the validation images goes on, the least confident.
With several, the numbers of images j_1 ≥ j_2 ≥ … that reach them are those that leave the answers closest to V-ATTA's own,

    minimise  Σ_i CE( V-ATTA_S of image i, answer of image i )     subject to     1 + Σ_s r_s j_s / n ≤ passes

by dynamic programming over whole per cents, the images ranked by confidence_0. The target is the full answer and not the
label: among a thousand images are some sixty mistakes, too few to tell which per cent of them needs a fourth kind of view. The
order of the kinds is learned in the same way: next comes the kind that gains most, a pass, on the full answer.

**Temperature and weights are fitted on all images**, also on those that another stage will answer. Fitted on their own side of
the gate alone they were worse (docs/method.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated, Any, ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from atta._base.types import Labels, Logits, Probs, RepeatLogits, Shares
from atta.calibrators.atta import VATTA, ViewBlend
from atta.calibrators.base import CHUNK, Calibrator, ViewMethod, base_probs
from atta.calibrators.convex import CATTA
from atta.calibrators.scaling import scaled, temperature_of
from atta.functional import guarded_blend, weighted_sum
from atta.record.predictions import Predictions, repeat_mean

PER_CENT = 100  # how finely the budget is dealt out to the stages
NOBODY, EVERYBODY = 0.0, 2.0  # gates below and above every confidence
BLENDS: dict[str, type[CATTA | VATTA]] = {"c-atta": CATTA, "v-atta": VATTA}


class StagedBlend(Calibrator):
    """A temperature for the images that are sure, and V-ATTA with more and more kinds of view for those that are not.

    `weights` has a row a stage and a column a kind, zero for kinds of later stages, before them one for the image if `itself`;
    `sizes` says how many kinds a stage adds, and `expected` what an image cost on average where this was fitted. If `tempered`,
    the views are blended into the softmax at its temperature, whose confidence is asked first, and else into the plain one.
    """

    def __init__(
        self,
        temperature: Tensor,
        gates: Tensor,
        weights: Tensor,
        limits: Tensor,
        expected: Tensor,
        *,
        kinds: Sequence[str],
        sizes: Sequence[int],
        itself: bool = False,
        tempered: bool = False,
    ) -> None:
        super().__init__(
            temperature=temperature, gates=gates, weights=weights, limits=limits, expected=expected
        )
        self.kinds, self.sizes, self.itself, self.tempered = (
            tuple(kinds),
            tuple(sizes),
            itself,
            tempered,
        )

    temperature: Tensor
    gates: Tensor
    weights: Tensor
    limits: Tensor
    expected: Tensor

    @property
    def options(self) -> dict[str, Any]:
        """What the constructor needs besides the buffers."""
        return {
            "kinds": list(self.kinds),
            "sizes": list(self.sizes),
            "itself": self.itself,
            "tempered": self.tempered,
        }

    @property
    def expected_passes(self) -> float:
        """How often the network runs for an image, on average over the images that this was fitted on."""
        return float(self.expected)

    @property
    def stages(self) -> tuple[tuple[str, ...], ...]:
        """The kinds of view that each stage adds."""
        ends = accumulate(self.sizes)
        return tuple(
            self.kinds[end - size : end] for end, size in zip(ends, self.sizes, strict=True)
        )

    def goes_on(self, logits: Logits, views: Mapping[str, RepeatLogits]) -> Bool[Tensor, " n"]:
        """Say of each image whether no stage has been sure of it yet."""
        going = torch.ones(logits.shape[0], dtype=torch.bool, device=logits.device)
        for (_, confidence), gate in zip(
            self.answers(logits, views), self.gates.to(logits), strict=False
        ):
            going = torch.logical_and(going, confidence < gate)
        return going

    def calibrate(self, logits: Logits, views: Mapping[str, RepeatLogits]) -> Probs:
        """Answer each image by the stage that it stops at."""
        (probs, confidence), *later = self.answers(logits, views)
        going = torch.ones_like(confidence, dtype=torch.bool)
        for gate, (blended, next_confidence) in zip(self.gates.to(logits), later, strict=True):
            going = torch.logical_and(going, confidence < gate)
            probs = torch.where(going.unsqueeze(-1), blended, probs)
            confidence = next_confidence
        return probs

    def answers(
        self, logits: Logits, views: Mapping[str, RepeatLogits]
    ) -> Iterator[tuple[Probs, Shares]]:
        """Each stage's probabilities and how sure it is of them, for as many stages as there are views."""
        cooled = scaled(logits, self.temperature.to(logits))
        base = cooled if self.tempered else base_probs(logits)
        yield cooled, base.amax(dim=-1)
        rows = [logits] if self.itself else []
        for kinds, weights, limit in zip(
            self.stages, self.weights.to(logits), self.limits.to(logits), strict=True
        ):
            if not all(kind in views for kind in kinds):
                return
            rows += [repeat_mean(views[kind]) for kind in kinds]
            fused = weighted_sum(rows, weights[: len(rows), None]).softmax(dim=-1)
            probs = guarded_blend(base, fused, limit)
            yield probs, probs.amax(dim=-1)

    def extra_repr(self) -> str:
        """Name the method, what it was fitted on, and what an image costs."""
        return f"{super().extra_repr()}, expected_passes={self.expected_passes:.2f}"


@dataclass(frozen=True, kw_only=True)
class _Staged(ViewMethod):
    """What both methods are told: the kinds of view, the passes that an image may cost on average, and the `blend`.

    With 1 pass they are temperature scaling, with as many as the blend takes they are the blend.
    """

    passes: Annotated[float | int, "≥ 1", "≤ 1e9"] = 1.7
    blend: Literal["c-atta", "v-atta"] = "c-atta"

    def whole(self, predictions: Predictions, labels: Labels) -> ViewBlend:
        """Fit the blend with every view."""
        return BLENDS[self.blend](views=self.kinds_of(predictions)).learn(predictions, labels)


@dataclass(frozen=True, kw_only=True)
class SelectiveVATTA(_Staged):
    """V-ATTA for the images that the softmax is least sure of, within a budget of `passes`; temperature for the others."""

    name: ClassVar[str] = "selective-v-atta"
    summary: ClassVar[str] = (
        "v-atta for the least confident images, within a budget of passes; temperature otherwise"
    )

    def learn(self, predictions: Predictions, labels: Labels) -> StagedBlend:
        """Fit both on all images, and put the gate where the budget is spent."""
        whole = self.whole(predictions, labels)
        found = _with_open_gates(temperature_of(predictions, labels), [whole])
        part = (self.passes - 1) / (predictions.select(whole.kinds).passes - 1)
        return _with_gates(found, predictions, [_whole(part * len(predictions))])


@dataclass(frozen=True, kw_only=True)
class _Prefix(VATTA):
    """V-ATTA with some of the kinds: many are fitted to find the order of the kinds, none to the last digit."""

    polish: ClassVar[bool] = False


PREFIXES: dict[str, type[CATTA | VATTA]] = {"c-atta": CATTA, "v-atta": _Prefix}


@dataclass(frozen=True, kw_only=True)
class SequentialVATTA(_Staged):
    """V-ATTA with one kind of view after the other, for each image until it is sure, within a budget of `passes`.

    The order of the kinds is that of `views`, and is learned where none are given.
    """

    name: ClassVar[str] = "sequential-v-atta"
    summary: ClassVar[str] = (
        "v-atta a kind of view at a time until an image is sure, within a budget of passes"
    )

    def learn(self, predictions: Predictions, labels: Labels) -> StagedBlend:
        """Fit each stage on all images, and put the gates where the budget brings the answers closest to V-ATTA's."""
        whole = self.whole(predictions, labels)
        temperature = temperature_of(predictions, labels)
        found = _with_open_gates(temperature, self._blends(predictions, labels, temperature, whole))
        return _with_gates(found, predictions, self._reaching(found, predictions))

    def _blends(
        self, predictions: Predictions, labels: Labels, temperature: Tensor, whole: ViewBlend
    ) -> list[ViewBlend]:
        """V-ATTA with one kind, with two, … with all of them; next comes the kind that gains most, a pass, on the whole."""
        logits, views = predictions.logits.double(), predictions.to(torch.float64).views
        target = whole.calibrate(logits, views)
        far = cross_entropy(target, scaled(logits, temperature)).mean()
        found: list[ViewBlend] = []
        chosen: tuple[str, ...] = ()
        left = list(whole.kinds)
        while len(left) > 1:
            tried = [
                PREFIXES[self.blend](views=(*chosen, kind)).learn(predictions, labels)
                for kind in left[: 1 if self.views else None]
            ]
            near = [cross_entropy(target, blend.calibrate(logits, views)).mean() for blend in tried]
            gains = [
                float(far - value) / views[kind].shape[1]
                for kind, value in zip(left, near, strict=False)
            ]
            best = gains.index(max(gains))
            far = near[best]
            found.append(tried[best])
            chosen = (*chosen, left.pop(best))
        order = (*chosen, *left)
        own = [0] if whole.itself else []
        weights = whole.weights[[*own, *(whole.kinds.index(kind) + len(own) for kind in order)]]
        return [
            *found,
            ViewBlend(weights, whole.limit, whole.temperature, kinds=order, itself=whole.itself),
        ]

    def _reaching(self, found: StagedBlend, predictions: Predictions) -> list[int]:
        """How many images shall reach each stage."""
        used, images = predictions.select(found.kinds).to(torch.float64), len(predictions)
        if self.passes >= used.passes:
            return [images] * len(found.stages)
        (first, confidence), *later = found.answers(used.logits, used.views)
        target = later[-1][0]
        losses = torch.stack(
            [cross_entropy(target, probs) for probs in (first, *(probs for probs, _ in later))]
        )
        ranked = torch.nn.functional.pad(losses[:, confidence.argsort()].cumsum(dim=1), (1, 0))
        counts = [images * level // PER_CENT for level in range(PER_CENT + 1)]
        costs = [sum(used.views[kind].shape[1] for kind in stage) for stage in found.stages]
        levels = allocate(
            ranked[:, counts].diff(dim=0).cpu(), costs, _whole((self.passes - 1) * PER_CENT)
        )
        return [counts[level] for level in levels]


def allocate(losses: Float[Tensor, "s levels"], costs: Sequence[int], budget: int) -> list[int]:
    """Return levels l_1 ≥ l_2 ≥ … with Σ_s costs_s · l_s within the budget and the least Σ_s losses[s, l_s].

    From the last stage to the first: `least[l, b]` is what the stages from s on can do with levels up to l and b to spend.

    >>> losses = torch.tensor([[0.0, -3.0, -4.0], [0.0, -2.0, -3.0]])    # of two stages, at the levels 0, 1 and 2
    >>> allocate(losses, costs=[1, 1], budget=2)
    [1, 1]
    """
    least = losses.new_zeros(losses.shape[1], budget + 1)
    choices = []
    for loss, cost in zip(losses.flip(0), reversed(costs), strict=True):
        taken = torch.full_like(least, math.inf)
        for level in range(min(losses.shape[1] - 1, budget // cost) + 1):
            spent = cost * level
            taken[level, spent:] = loss[level] + least[level, : budget + 1 - spent]
        least, choice = taken.cummin(dim=0)
        choices.append(choice)
    levels, level, left = [], losses.shape[1] - 1, budget
    for choice, cost in zip(reversed(choices), costs, strict=True):
        level = int(choice[level, left])
        left -= cost * level
        levels.append(level)
    return levels


def cross_entropy(target: Probs, probs: Probs) -> Shares:
    """Return -Σ_j target_j log probs_j of each image: least where the two are equal."""
    return -(target * probs.clamp(min=torch.finfo(probs.dtype).tiny).log()).sum(dim=-1)


def _with_open_gates(temperature: Tensor, blends: Sequence[ViewBlend]) -> StagedBlend:
    """Put the stages together, with every gate open."""
    ends = [len(blend.kinds) for blend in blends]
    weights = temperature.new_zeros(len(blends), blends[-1].weights.shape[0])
    for row, blend in zip(weights, blends, strict=True):
        row[: blend.weights.shape[0]] = blend.weights[:, 0]
    return StagedBlend(
        temperature,
        temperature.new_full((len(blends),), EVERYBODY),
        weights,
        torch.stack([blend.limit for blend in blends]),
        torch.ones_like(temperature),
        kinds=blends[-1].kinds,
        sizes=[end - start for start, end in zip([0, *ends], ends, strict=False)],
        itself=blends[-1].itself,
        tempered=blends[-1].temperature is not None,
    )


def _with_gates(found: StagedBlend, predictions: Predictions, counts: Sequence[int]) -> StagedBlend:
    """Set each gate so that so many of the images reach the next stage, by the very numbers that are deployed."""
    found = found.to(predictions.dtype)
    going = torch.ones(len(predictions), dtype=torch.bool, device=predictions.device)
    sure: list[list[Tensor]] = [[] for _ in counts]
    for part in (
        predictions.select(found.kinds).unrehearsed().chunks(max(1, CHUNK // predictions.classes))
    ):
        for known, (_, confidence) in zip(
            sure, found.answers(part.logits, part.views), strict=False
        ):
            known.append(confidence)
    for stage, (count, confidence) in enumerate(zip(counts, map(torch.cat, sure), strict=True)):
        found.gates[stage] = _gate(confidence[going], count)
        going = torch.logical_and(going, confidence < found.gates[stage])
    found.classes = predictions.classes
    found.expected.copy_(found.passes(predictions).double().mean())
    return found


def _gate(confidence: Shares, count: int) -> float | Tensor:
    """The gate that the `count` least confident are below; fewer, where one more is as confident as the last of them."""
    if count == 0:
        return NOBODY
    return EVERYBODY if count >= confidence.shape[0] else confidence.sort().values[count]


def _whole(number: float) -> int:
    """The whole number below; one that rounding has put a hair below a whole number is that number."""
    return math.floor(number + 1e-9)
