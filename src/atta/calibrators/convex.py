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
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from atta.calibrators.atta import RUNAWAY, ViewBlend, penalty
from atta.calibrators.base import ViewMethod
from atta.calibrators.fitting import laplace_smoothing, newton, nll
from atta.calibrators.scaling import fit_temperature
from atta.predictions import Predictions, mean_views
from atta.types import Labels


@dataclass(frozen=True, kw_only=True)
class CATTA(ViewMethod):
    """A weight for the image itself and for each kind of view, by least NLL; `views` are the kinds, by default all."""

    name: ClassVar[str] = "c-atta"
    summary: ClassVar[str] = "v-atta with the image itself among its views, fitted as a convex problem (ours)"

    def learn(self, predictions: Predictions, labels: Labels) -> ViewBlend:
        """Go down from temperature scaling; again with V-ATTA's weak prior where no mistake keeps the weights from growing.

        In units of the temperature, so that the scale of the logits does not matter, and never to an answer that is worse
        than temperature scaling on the images it is fitted to: the guard may cost more than the views gain.
        """
        kinds = self.kinds_of(predictions)
        logits = predictions.logits.double()
        temperature = fit_temperature(logits, labels)
        rows = torch.cat([logits.unsqueeze(1), mean_views(predictions.views, kinds).double()], dim=1) / temperature
        alone = torch.zeros_like(rows[0, :, 0])
        alone[0] = 1  # the image itself: temperature scaling
        smoothing = laplace_smoothing(logits, labels)
        weights = newton(rows, labels, start=alone, smoothing=smoothing)
        if weights.abs().sum() > RUNAWAY:
            weights = newton(rows, labels, start=alone, smoothing=smoothing, prior=penalty(len(predictions)))
        blends = [
            ViewBlend(w[:, None] / temperature, logits.new_ones(()), temperature, kinds=kinds, itself=True)
            for w in (weights, alone)
        ]
        losses = [nll(blend.calibrate(logits, predictions.to(torch.float64).views), labels) for blend in blends]
        return blends[0] if losses[0] <= losses[1] else blends[1]
