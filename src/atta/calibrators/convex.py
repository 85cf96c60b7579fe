"""C-ATTA: V-ATTA with the image itself among its views, and a fit that has one minimum.

V-ATTA adds up what the views say and blends it into the softmax of the image, which is as over-confident as it was. With
seventeen passes the image's own logits are hardly missed in the sum. With two they are half of what is known, and they cost
nothing, for the network has answered the image anyway:

    fused = softmax( w_0 · logits + Σ_i w_i · view_logits_i )        probs = as much of `fused` as keeps the class

blended into softmax(logits / T), where T is the temperature of temperature scaling: an answer that is sure of itself for no
reason is no better a start where the views disagree.

The weights are those of least NLL of `fused` itself, which is convex in them: a logistic regression with m + 1 parameters.
There is one minimum, no start to choose, no limit to learn (it is 1), and temperature scaling is the special case w_i = 0, so
that views that do not help are given no weight. V-ATTA's loss looks at the guarded blend instead, where a mistake costs no more
than a tie: it has kinks, several minima, and a reason to be too sure.

**Shrunk towards equal.** A few hundred images say little of how much more the image counts than its mirror image. With `equal`
the weights by which every pass counts the same, at the scale of least NLL, the weights are (1 - s) · free + s · equal, with s
of SHARES by the NLL of images that were held out, and 0 where equal weights are surely worse than free ones: some of the views
deserve none there, and a step towards equal that seems to help is luck.

**Without the guard** (`keep_class=False`) the answer is `fused` itself: more often right, of a lower NLL, and of another class
than the network's for some images in a hundred.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from atta._base.types import Labels, Probs, ViewLogits
from atta.calibrators.atta import RUNAWAY, ViewBlend, penalty
from atta.calibrators.base import ViewMethod
from atta.calibrators.fitting import folds, laplace_smoothing, newton, newton_over, nll, prepared
from atta.calibrators.scaling import temperature_of
from atta.record.predictions import Predictions, mean_views

SHARES = (0.0, 0.5, 1.0)
FOLDS = 5
FEWEST = 50  # images by which to choose how far to shrink
AGAIN = 2  # steps from the minimum of all images to that without a fold, which is near


@dataclass(frozen=True, kw_only=True)
class GuardedMethod(ViewMethod):
    """A method whose guard can be left out: with `keep_class=False` the answer is what the passes say together."""

    keep_class: bool = True

    @property
    def keeps_class(self) -> bool:
        """Whether the guard is there."""
        return self.keep_class


class Fit(NamedTuple):
    """What is fitted: the passes in units of the temperature, the labels, how often each kind is seen, and the weights."""

    rows: ViewLogits
    labels: Labels
    passes: Float[Tensor, " m"]
    free: Float[Tensor, " m"]
    equal: Float[Tensor, " m"]

    def weights(self, share: float) -> Float[Tensor, " m"]:
        """Between free and equal."""
        return (1 - share) * self.free + share * self.equal


@dataclass(frozen=True, kw_only=True)
class CATTA(GuardedMethod):
    """A weight for the image itself and for each kind of view, by least NLL; `views` are the kinds, by default all.

    `shrink=True` draws the weights towards equal ones as far as held-out images ask, at three times the cost of a fit.
    """

    shrink: bool = False

    name: ClassVar[str] = "c-atta"
    summary: ClassVar[str] = (
        "v-atta with the image itself among its views, fitted as a convex problem (ours)"
    )

    def learn(self, predictions: Predictions, labels: Labels) -> ViewBlend:
        """Go down from temperature scaling; again with V-ATTA's weak prior where no mistake keeps the weights from growing.

        In units of the temperature, so that the scale of the logits does not matter, and never to an answer that is worse
        than temperature scaling on the images it is fitted to: the guard may cost more than the views gain.
        """
        kinds = self.kinds_of(predictions)
        used = predictions.select(kinds).unrehearsed()
        temperature = temperature_of(used, labels)

        def ready(part: Predictions, labels: Labels) -> tuple[ViewLogits, Labels, Predictions]:
            wide = part.to(torch.float64)
            rows = (
                torch.cat([wide.logits.unsqueeze(1), mean_views(wide.views, kinds)], dim=1)
                / temperature
            )
            return rows, labels, wide

        parts = prepared(used, labels, ready)
        passes = temperature.new_tensor([1, *(used.counts[kind] for kind in kinds)])
        alone = torch.zeros_like(passes)
        alone[0] = 1  # the image itself: temperature scaling

        def blend(weights: Tensor) -> ViewBlend:
            limit = temperature.new_ones(())
            return ViewBlend(
                weights[:, None] / temperature,
                limit,
                temperature,
                kinds=kinds,
                itself=True,
                guarded=self.keep_class,
            )

        if self.shrink and len(predictions) >= FEWEST:
            rows, _, wide = ready(used, labels)  # all at once: images are held out by what they are
            found = fitted(rows, labels, passes, alone)
            share = held_share(
                found,
                lambda weights, part: blend(weights).calibrate(wide[part].logits, wide[part].views),
            )
            weights = found.weights(share)
        else:
            weights = free_weights(
                lambda: ((rows, own) for rows, own, _ in parts()), alone, len(labels)
            )
        blends, losses = [blend(weights), blend(alone)], [0.0, 0.0]
        for _, own, wide in parts():
            for i, one in enumerate(blends):
                losses[i] += float(nll(one.calibrate(wide.logits, wide.views), own)) * len(own)
        return blends[0] if losses[0] <= losses[1] else blends[1]


def fitted(
    rows: ViewLogits,
    labels: Labels,
    passes: Float[Tensor, " m"],
    start: Float[Tensor, " m"],
    most: int = 100,
) -> Fit:
    """Find the weights of least NLL, and those of them by which every pass counts the same."""
    smoothing = laplace_smoothing(rows[:, 0], labels)
    free = free_weights(lambda: [(rows, labels)], start, len(labels), most)
    same = passes / passes.sum()
    mean = torch.einsum("m,nmk->nk", same, rows).unsqueeze(1)
    return Fit(
        rows,
        labels,
        passes,
        free,
        same * newton(mean, labels, start=rows.new_ones(1), smoothing=smoothing),
    )


def free_weights(
    parts: Callable[[], Iterable[tuple[ViewLogits, Labels]]],
    start: Float[Tensor, " m"],
    images: int,
    most: int = 100,
) -> Float[Tensor, " m"]:
    """Find the weights of least NLL of so many images, with V-ATTA's weak prior where they would run away."""
    right = all(laplace_smoothing(rows[:, 0], labels) for rows, labels in parts())
    smoothing = 1 / (images + 2) if right else 0.0
    free = newton_over(parts, start, smoothing=smoothing, iterations=most)
    if free.abs().sum() > RUNAWAY:
        free = newton_over(
            parts, start, smoothing=smoothing, prior=penalty(images), iterations=most
        )
    return free


def held_share(fit: Fit, answers: Callable[[Tensor, Tensor], Probs]) -> float:
    """How far towards equal: the share by which images that were held out are answered best; 0 where equal is surely worse."""
    order = fit.rows[
        :, 0, 0
    ].argsort()  # by what the images are, so that their order does not matter
    parts = [order[part.to(order.device)] for part in folds(len(fit.labels), FOLDS)]
    losses = fit.rows.new_zeros(len(SHARES), len(fit.labels))
    for part in parts:
        rest = torch.cat([other for other in parts if other is not part])
        near = fitted(fit.rows[rest], fit.labels[rest], fit.passes, fit.free, AGAIN)
        for i, share in enumerate(SHARES):
            own = answers(near.weights(share), part).gather(1, fit.labels[part, None])[:, 0]
            losses[i, part] = -own.clamp(min=torch.finfo(own.dtype).tiny).log()
    above = losses[-1] - losses[0]
    if above.mean() > above.std() / len(above) ** 0.5:
        return SHARES[0]
    return SHARES[int(losses.mean(dim=1).argmin())]
