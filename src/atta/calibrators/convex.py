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
scale with the lowest NLL. The weights are then (1 - s) · free + s · equal, with s of SHARES chosen
by the NLL of held-out images. s is 0 if equal weights are significantly worse than free ones: some
views then deserve no weight, and a step towards equal that seems to help is luck.

**Without the guard** (`keep_class=False`) the answer is `fused` itself: it is more often correct,
has a lower NLL, and changes the class of a few images in a hundred.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from atta._base.types import Labels, Probs, ViewLogits
from atta.calibrators.atta import LARGEST_SUM, ViewBlend, prior_penalty
from atta.calibrators.base import ViewMethod
from atta.calibrators.crossval import FOLDS, losses
from atta.calibrators.fitting import (
    Pieces,
    Weights,
    fold_splits,
    laplace_smoothing,
    newton,
    prepared,
    sample,
    standard_error,
)
from atta.calibrators.scaling import fit_temperature
from atta.record.predictions import Predictions, mean_views

SHARES = (0.0, 0.5, 1.0)
FEWEST_IMAGES = 50  # that a share can be chosen by
FOLD_STEPS = 2  # steps from the minimum for all images to that without a fold, which is near


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
        shrink: Whether to shrink the weights towards equal ones, as far as held-out images ask; a
            fit then takes three times as long.

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

        def prepare(part: Predictions, labels: Labels) -> tuple[ViewLogits, Labels, Predictions]:
            wide = part.to(torch.float64)
            rows = torch.cat([wide.logits.unsqueeze(1), mean_views(wide.views, kinds)], dim=1)
            return rows / temperature, labels, wide

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
        if self.shrink and len(predictions) >= FEWEST_IMAGES:
            rows, _, wide = prepare(used, labels)  # all at once: the folds are made of all images
            free, equal = _free_and_equal(rows, labels, passes, alone)
            share = _best_share(
                rows,
                labels,
                passes,
                free,
                lambda found, part: blend(found).calibrate(wide[part].logits, wide[part].views),
            )
            weights = (1 - share) * free + share * equal
        else:
            start = alone
            if some := sample(used, labels):
                start = self.learn(*some).weights[:, 0] * temperature
            weights = _free_weights(lambda: ((rows, own) for rows, own, _ in parts()), start)
        blends, sums = [blend(weights), blend(alone)], [0.0, 0.0]
        for _, own, wide in parts():
            for i, one in enumerate(blends):
                sums[i] += float(losses(one.calibrate(wide.logits, wide.views), own).sum())
        return blends[0] if sums[0] <= sums[1] else blends[1]


def _free_and_equal(
    rows: ViewLogits, labels: Labels, passes: Weights, start: Weights, most: int = 100
) -> tuple[Weights, Weights]:
    """Fit free weights, and weights by which every pass counts the same."""
    same = passes / passes.sum()
    mean = torch.einsum("m,nmk->nk", same, rows).unsqueeze(1)
    smoothing = laplace_smoothing([(rows[:, 0], labels)])
    scale = newton(lambda: [(mean, labels)], rows.new_ones(1), smoothing=smoothing)
    return _free_weights(lambda: [(rows, labels)], start, most), same * scale


def _free_weights(parts: Pieces, start: Weights, most: int = 100) -> Weights:
    """Fit the weights by NLL, once more with the prior of V-ATTA if they diverge."""
    smoothing = laplace_smoothing((rows[:, 0], labels) for rows, labels in parts())
    free = newton(parts, start, smoothing=smoothing, iterations=most)
    if free.abs().sum() > LARGEST_SUM:
        prior = prior_penalty(sum(len(labels) for _, labels in parts()))
        free = newton(parts, start, smoothing=smoothing, prior=prior, iterations=most)
    return free


def _best_share(
    rows: ViewLogits,
    labels: Labels,
    passes: Weights,
    start: Weights,
    answers: Callable[[Weights, Tensor], Probs],
) -> float:
    """Return the share with the lowest held-out NLL; 0 if equal weights are significantly worse."""
    order = rows[:, 0, 0].argsort()  # so that the order of the images does not matter
    found = rows.new_zeros(len(SHARES), len(labels))
    for split in fold_splits(len(labels), FOLDS):
        rest, part = (order[picked.to(order.device)] for picked in split)
        free, equal = _free_and_equal(rows[rest], labels[rest], passes, start, FOLD_STEPS)
        for i, share in enumerate(SHARES):
            between = (1 - share) * free + share * equal
            found[i, part] = losses(answers(between, part), labels[part])
    above = found[-1] - found[0]
    if above.mean() > standard_error(above):
        return SHARES[0]
    return SHARES[int(found.mean(dim=1).argmin())]
