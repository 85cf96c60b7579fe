"""V-ATTA with fewer passes: the network looks again only at images that it is not confident about.

selective-v-atta     temperature if the softmax is confident, V-ATTA otherwise
sequential-v-atta    one kind of view at a time: V-ATTA with the kinds so far, until it is confident

"V-ATTA" is C-ATTA here, with the image itself among its views, unless `blend="v-atta"` selects the
paper's. Stage 0 is the softmax at a temperature, stage s = 1 … S is V-ATTA with the kinds of view
of the first s stages. An image goes on from stage s while its confidence is below the gate of that
stage,

    confidence_0 = max softmax(logits / T)   confidence_s = max V-ATTA_s   goes on if below gate_s

and is answered by the stage at which it stops. Every stage keeps the class, so the method does.

**The budget** is `passes`, the mean passes per image: 1 for the image and, for each stage that it
reaches, the repeats of the kinds of that stage. With one stage of r views, the least confident
(passes - 1) / r of the validation images go on. With several stages, the numbers of images
j_1 ≥ j_2 ≥ … that reach them are those that keep the answers closest to V-ATTA with all views,

    minimise    Σ_i CE(V-ATTA_S of image i, answer of image i)
    subject to  1 + Σ_s r_s j_s / n ≤ passes

by dynamic programming over whole per cents, with the images ranked by confidence_0. The target is
the full answer and not the label: a thousand images have about sixty mistakes, too few to tell
which per cent of the images needs a fourth kind of view. The order of the kinds is learned in the
same way: the next kind is the one with the largest gain per pass.

**Temperature and weights are fitted on all images**, also on those that another stage answers.
Fitted only on their own side of the gate they were worse (docs/method.md).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Annotated, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from atta._base.types import Labels, Logits, Probs, Shares
from atta.calibrators.atta import VATTA, ViewBlend
from atta.calibrators.base import Calibrator, ViewMethod, Views
from atta.calibrators.convex import CATTA
from atta.calibrators.scaling import fit_temperature, scaled
from atta.functional import guarded_blend, weighted_sum
from atta.record.predictions import Predictions, repeat_mean

PER_CENT = 100  # the resolution at which the budget is divided among the stages
CLOSED, OPEN = 0.0, 2.0  # gates that no image passes, and that every image passes


class StagedBlend(Calibrator):
    """A temperature for confident images, and V-ATTA with more and more views for the others.

    Args:
        temperature: The temperature of stage 0.
        gates: The confidence below which an image goes on, per stage.
        weights: One row per stage and one column per kind, zero for the kinds of later stages.
        limits: The largest share of the views, per stage.
        expected: The mean passes per image in the fit.
        kinds: The kinds of view, in their order.
        sizes: How many kinds each stage adds.
        itself: Whether the first column of the weights is that of the image itself.
        tempered: Whether the views are blended into the softmax at its temperature.
    """

    temperature: Tensor
    gates: Tensor
    weights: Tensor
    limits: Tensor
    expected: Tensor
    sizes: tuple[int, ...]
    itself: bool = False
    tempered: bool = False

    @property
    def expected_passes(self) -> float:
        """The mean passes per image, over the images that this was fitted on."""
        return float(self.expected)

    @property
    def stages(self) -> tuple[tuple[str, ...], ...]:
        """The kinds of view that each stage adds."""
        ends = accumulate(self.sizes)
        return tuple(
            self.kinds[end - size : end] for end, size in zip(ends, self.sizes, strict=True)
        )

    def goes_on(self, logits: Logits, views: Views) -> Bool[Tensor, " n"]:
        """Return for each image whether no stage has been confident yet."""
        answers, gates = self.answers(logits, views), self.gates.to(logits)
        below = [confidence < gate for (_, confidence), gate in zip(answers, gates, strict=False)]
        return torch.stack(below).all(dim=0)

    def calibrate(self, logits: Logits, views: Views) -> Probs:
        """Answer each image by the stage at which it stops."""
        (probs, confidence), *later = self.answers(logits, views)
        going = torch.ones_like(confidence, dtype=torch.bool)
        for gate, (blended, next_confidence) in zip(self.gates.to(logits), later, strict=True):
            going = torch.logical_and(going, confidence < gate)
            probs = torch.where(going.unsqueeze(-1), blended, probs)
            confidence = next_confidence
        return probs

    def answers(self, logits: Logits, views: Views) -> Iterator[tuple[Probs, Shares]]:
        """Yield the probabilities and confidence of each stage whose views are given."""
        cooled = scaled(logits, self.temperature.to(logits))
        base = cooled if self.tempered else logits.softmax(dim=-1)
        yield cooled, base.amax(dim=-1)
        rows = [logits] if self.itself else []
        for kinds, weights, limit in zip(
            self.stages, self.weights.to(logits), self.limits.to(logits), strict=True
        ):
            if not all(kind in views for kind in kinds):
                return
            rows += [repeat_mean(views[kind]) for kind in kinds]
            fused = weighted_sum(rows, weights[: len(rows), None]).softmax(dim=-1)
            probs = guarded_blend(base, fused, limit, logits)
            yield probs, probs.amax(dim=-1)

    def extra_repr(self) -> str:
        """Return the method, the classes, the views and the expected passes."""
        return f"{super().extra_repr()}, expected_passes={self.expected_passes:.2f}"


@dataclass(frozen=True, kw_only=True)
class _Staged(ViewMethod):
    """The settings of both methods; with 1 pass they are temperature scaling."""

    passes: Annotated[float | int, "≥ 1", "≤ 1e9"] = 1.7
    blend: Literal["c-atta", "v-atta"] = "c-atta"

    def _fit_blend(
        self,
        predictions: Predictions,
        labels: Labels,
        kinds: tuple[str, ...],
        v_atta: type[VATTA] = VATTA,
    ) -> ViewBlend:
        """Fit the blend with these kinds of view."""
        method = CATTA(views=kinds) if self.blend == "c-atta" else v_atta(views=kinds)
        return method.learn(predictions, labels)


@dataclass(frozen=True, kw_only=True)
class _UnpolishedVATTA(VATTA):
    """V-ATTA for comparisons: many are fitted to order the kinds, and none needs the last digit."""

    polish = False


@dataclass(frozen=True, kw_only=True)
class SelectiveVATTA(_Staged):
    """V-ATTA for the images with the lowest confidence, temperature scaling for the others.

    Use it to limit the mean number of passes per image.

    Args:
        views: The kinds of view to use; None uses all kinds in the predictions.
        passes: The mean passes per image, on images like those of the fit.
        blend: "c-atta", or "v-atta" for the paper's method.

    >>> logits, labels = 4 * torch.eye(3).repeat(4, 1), [0, 1, 2, 0, 1, 2, 0, 1, 2, 1, 2, 0]
    >>> predictions = Predictions(logits * torch.arange(1, 13)[:, None], {"flip": logits[:, None]})
    >>> SelectiveVATTA(passes=1.5).fit(predictions, labels)
    StagedBlend(selective-v-atta, classes=3, views=flip, expected_passes=1.50)
    """

    name = "selective-v-atta"
    summary = (
        "v-atta for the least confident images, within a budget of passes; temperature otherwise"
    )

    def learn(self, predictions: Predictions, labels: Labels) -> StagedBlend:
        """Fit both on all images, and set the gate by the budget."""
        whole = self._fit_blend(predictions, labels, self.kinds_of(predictions))
        found = _stages(fit_temperature(predictions, labels), [whole])
        part = (self.passes - 1) / (predictions.select(whole.kinds).passes - 1)
        return _with_gates(found, predictions, [_floor(part * len(predictions))])


@dataclass(frozen=True, kw_only=True)
class SequentialVATTA(_Staged):
    """V-ATTA with one kind of view after the other, for each image until it is confident.

    Use it to limit the mean number of passes per image if there are several kinds of view.

    Its settings are those of `SelectiveVATTA`. The kinds in `views` are used in their order; None
    uses all kinds in a learned order.

    >>> logits, labels = 4 * torch.eye(3).repeat(4, 1), [0, 1, 2, 0, 1, 2, 0, 1, 2, 1, 2, 0]
    >>> predictions = Predictions(logits * torch.arange(1, 13)[:, None], {"flip": logits[:, None]})
    >>> SequentialVATTA(passes=1).fit(predictions, labels)
    StagedBlend(sequential-v-atta, classes=3, views=flip, expected_passes=1.00)
    """

    name = "sequential-v-atta"
    summary = "v-atta a kind of view at a time until it is confident, within a budget of passes"

    def learn(self, predictions: Predictions, labels: Labels) -> StagedBlend:
        """Fit each stage on all images, and set the gates by the budget."""
        whole = self._fit_blend(predictions, labels, self.kinds_of(predictions))
        temperature = fit_temperature(predictions, labels)
        found = _stages(temperature, self._blends(predictions, labels, temperature, whole))
        return _with_gates(found, predictions, self._counts(found, predictions))

    def _blends(
        self, predictions: Predictions, labels: Labels, temperature: Tensor, whole: ViewBlend
    ) -> list[ViewBlend]:
        """Return V-ATTA with one kind, two, … all; next is the kind with most gain per pass."""
        logits, views = predictions.logits.double(), predictions.to(torch.float64).views
        target = whole.calibrate(logits, views)
        far = _cross_entropy(target, scaled(logits, temperature)).mean()
        found: list[ViewBlend] = []
        chosen: tuple[str, ...] = ()
        left = list(whole.kinds)
        while len(left) > 1:
            tried, near = dict[str, ViewBlend](), dict[str, Tensor]()
            for kind in left[: 1 if self.views else None]:
                one = self._fit_blend(predictions, labels, (*chosen, kind), _UnpolishedVATTA)
                near[kind] = _cross_entropy(target, one.calibrate(logits, views)).mean()
                tried[kind] = one
            best = max(tried, key=lambda kind: float(far - near[kind]) / views[kind].shape[1])
            far, chosen = near[best], (*chosen, best)
            found.append(tried[best])
            left.remove(best)
        order = (*chosen, *left)
        own = [0] if whole.itself else []
        weights = whole.weights[[*own, *(whole.kinds.index(kind) + len(own) for kind in order)]]
        last = ViewBlend(weights, whole.limit, whole.temperature, kinds=order, itself=whole.itself)
        return [*found, last]

    def _counts(self, found: StagedBlend, predictions: Predictions) -> list[int]:
        """Return how many images shall reach each stage."""
        used, images = predictions.select(found.kinds).to(torch.float64), len(predictions)
        if self.passes >= used.passes:
            return [images] * len(found.stages)
        answers = list(found.answers(used.logits, used.views))
        target, confidence = answers[-1][0], answers[0][1]
        losses = torch.stack([_cross_entropy(target, probs) for probs, _ in answers])
        ranked = torch.nn.functional.pad(losses[:, confidence.argsort()].cumsum(dim=1), (1, 0))
        counts = [images * level // PER_CENT for level in range(PER_CENT + 1)]
        costs = [sum(used.views[kind].shape[1] for kind in stage) for stage in found.stages]
        budget = _floor((self.passes - 1) * PER_CENT)
        levels = allocate(ranked[:, counts].diff(dim=0).cpu(), costs, budget)
        return [counts[level] for level in levels]


def allocate(losses: Float[Tensor, "s levels"], costs: Sequence[int], budget: int) -> list[int]:
    """Return levels l_1 ≥ l_2 ≥ … of the lowest Σ_s losses[s, l_s] with Σ_s costs_s · l_s ≤ budget.

    From the last stage to the first, `least[l, b]` is the lowest loss of the stages from s on with
    levels up to l and a budget of b.

    >>> losses = torch.tensor([[0.0, -3.0, -4.0], [0.0, -2.0, -3.0]])    # two stages, three levels
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


def _cross_entropy(target: Probs, probs: Probs) -> Shares:
    """Return -Σ_j target_j log probs_j for each image."""
    return -(target * probs.clamp(min=torch.finfo(probs.dtype).tiny).log()).sum(dim=-1)


def _stages(temperature: Tensor, blends: Sequence[ViewBlend]) -> StagedBlend:
    """Combine the stages, with all gates open."""
    ends, last = [len(blend.kinds) for blend in blends], blends[-1]
    weights = temperature.new_zeros(len(blends), last.weights.shape[0])
    for row, blend in zip(weights, blends, strict=True):
        row[: blend.weights.shape[0]] = blend.weights[:, 0]
    return StagedBlend(
        temperature=temperature,
        gates=temperature.new_full((len(blends),), OPEN),
        weights=weights,
        limits=torch.stack([blend.limit for blend in blends]),
        expected=torch.ones_like(temperature),
        kinds=last.kinds,
        sizes=[end - start for start, end in pairwise([0, *ends])],
        itself=last.itself,
        tempered=last.temperature is not None,
    )


def _with_gates(found: StagedBlend, predictions: Predictions, counts: Sequence[int]) -> StagedBlend:
    """Set each gate so that `counts` images reach the next stage, in the dtype that is deployed."""
    found = found.to(predictions.dtype)
    found.classes = predictions.classes
    parts = [
        torch.stack([confidence for _, confidence in found.answers(part.logits, part.views)])
        for part in found._pieces(predictions)[1]
    ]
    going = torch.ones(len(predictions), dtype=torch.bool, device=predictions.device)
    for gate, count, confidence in zip(found.gates, counts, torch.cat(parts, 1), strict=False):
        # Above the `count` lowest confidences, or above fewer if there are ties.
        ranked = torch.nn.functional.pad(confidence[going].sort().values, (0, 1), value=OPEN)
        gate.fill_(ranked[min(count, len(ranked) - 1)] if count else CLOSED)
        going = torch.logical_and(going, confidence < gate)
    found.expected.copy_(found.passes(predictions).double().mean())
    return found


def _floor(number: float) -> int:
    """Round down, except for numbers that are below a whole number only by rounding errors."""
    return math.floor(number + 1e-9)
