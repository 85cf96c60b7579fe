"""C-ATTA: V-ATTA with the image itself among its views, and a fit that has one minimum.

V-ATTA sums the views and blends the sum into the softmax of the image, which stays over-confident.
With seventeen passes, the logits of the image itself are hardly missed in the sum. With two passes
they are half of the information, and they are free, because the network has run on the image
anyway:

    fused = softmax( w_0 · logits + Σ_i w_i · view_logits_i )
    probs = as much of `fused` as keeps the class, blended into softmax(logits / T)

where T is the temperature of temperature scaling: where the views disagree, an over-confident
softmax would be no better a start.

The weights minimise the NLL of `fused` itself. This is a logistic regression with m + 1 parameters,
so it is convex: there is one minimum, no start to choose, and no limit to learn (it is 1).
Temperature scaling is the special case w_i = 0, so views that do not help get no weight. The loss
of V-ATTA uses the guarded blend instead, where a mistake costs no more than a tie: it has kinks,
several minima, and favours over-confidence.

**Shrinking towards equal weights.** A few hundred images say little about how much more the image
counts than its mirror image. Let `equal` be the weights by which every pass counts the same, at the
scale with the lowest NLL, and D twice the NLL that free weights save on all images together. Where
equal weights are right, D is m on average, by chance alone. So the weights are

    (1 - s) · free + s · equal        s = min(1, m / D)

as by the rule of James and Stein: D grows with the images, and views that deserve no weight make it
large at once.

**Without the guard** (`keep_class=False`) the answer is `fused` itself: it is more often correct,
has a lower NLL, and changes the class of a few images in a hundred.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from atta._base.types import Labels, ViewLogits
from atta.calibrators.atta import LARGEST_SUM, ViewBlend, prior_penalty
from atta.calibrators.base import ViewMethod
from atta.calibrators.crossval import losses
from atta.calibrators.fitting import (
    Pieces,
    Weights,
    laplace_smoothing,
    newton,
    pieces,
    prepared,
    sample,
)
from atta.calibrators.scaling import fit_temperature
from atta.record.predictions import Predictions


@dataclass(frozen=True, kw_only=True)
class GuardedMethod(ViewMethod):
    """A method with an optional guard.

    Args:
        views: The kinds of view to use; None uses all kinds in the predictions.
        keep_class: Whether the class is kept; otherwise the answer is that of all passes together.
    """

    keep_class: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "keeps_class", self.keep_class)


@dataclass(frozen=True, kw_only=True)
class CATTA(GuardedMethod):
    """C-ATTA: one weight for the image itself and one per kind of view, fitted as a convex problem.

    Use it with few views per image; it is the default of `atta.calibrate`.

    Args:
        views: The kinds of view to use; None uses all kinds in the predictions.
        keep_class: Whether the class is kept; otherwise the answer is that of all passes together.
        shrink: Whether to shrink the weights towards equal ones, as far as few images ask for.
            `atta.calibrate` does.

    >>> logits, labels = 4 * torch.eye(3).repeat(4, 1), [0, 1, 2, 0, 1, 2, 0, 1, 2, 1, 2, 0]
    >>> predictions = Predictions(logits, {"flip": logits.unsqueeze(1)})
    >>> CATTA().fit(predictions, labels)(predictions).amax()     # 9 of 12 are right
    tensor(0.7500)
    """

    shrink: bool = False

    name = "c-atta"
    summary = "v-atta with the image itself among its views, fitted as a convex problem (ours)"

    def learn(self, predictions: Predictions, labels: Labels) -> ViewBlend:
        """Fit from temperature scaling on, in units of its temperature.

        The result is never worse than temperature scaling on the images it is fitted to: the guard
        may cost more than the views gain.
        """
        kinds = self.kinds_of(predictions)
        used = predictions.select(kinds, rehearsals=False)
        temperature = fit_temperature(used, labels)

        def prepare(part: Predictions, labels: Labels) -> tuple[ViewLogits, Labels]:
            wide = part.to(torch.float64)
            rows = torch.cat([wide.logits.unsqueeze(1), wide.view_logits(kinds)], dim=1)
            return rows.div_(temperature), labels

        def blend(weights: Tensor) -> ViewBlend:
            return ViewBlend(
                weights[:, None] / temperature,
                temperature.new_ones(()),
                temperature,
                kinds=kinds,
                itself=True,
                guarded=self.keep_class,
            )

        passes = temperature.new_tensor([1, *(used.counts[kind] for kind in kinds)])
        alone = torch.zeros_like(passes)
        alone[0] = 1  # the image itself: temperature scaling
        parts = prepared(used, labels, prepare)
        start = alone
        if some := sample(used, labels):
            start = self.learn(*some).weights[:, 0] * temperature
        smoothing = laplace_smoothing((rows[:, 0], own) for rows, own in parts())
        weights = newton(parts, start, smoothing=smoothing)
        if weights.abs().sum() > LARGEST_SUM:  # they diverge: once more, with the prior of V-ATTA
            prior = prior_penalty(len(used))
            weights = newton(parts, start, smoothing=smoothing, prior=prior)
        if self.shrink:
            weights = _towards_equal(parts, weights, passes, smoothing)
        blends, sums = [blend(weights), blend(alone)], [0.0, 0.0]
        for part, own in pieces(used, labels):
            wide = part.to(torch.float64)
            for i, one in enumerate(blends):
                sums[i] += float(losses(one.calibrate(wide.logits, wide.views), own).sum())
        return blends[0] if sums[0] <= sums[1] else blends[1]


def _towards_equal(parts: Pieces, free: Weights, passes: Weights, smoothing: float) -> Weights:
    """Shrink free weights towards those by which every pass counts the same."""
    same = passes / passes.sum()

    def means() -> Iterator[tuple[ViewLogits, Labels]]:
        return (((same @ rows)[:, None], own) for rows, own in parts())

    equal = same * newton(means, free.new_ones(1), smoothing=smoothing)
    saved = 0.0
    for rows, labels in parts():
        both = torch.stack([free, equal])
        log_probs = torch.einsum("sm,nmk->snk", both, rows).log_softmax(dim=-1)
        of_free, of_equal = log_probs.gather(-1, labels.expand(2, -1).unsqueeze(-1)).sum(dim=(1, 2))
        saved += float(of_free - of_equal)
    kinds = len(free) - 1
    share = kinds / max(2 * saved, kinds)
    return (1 - share) * free + share * equal
