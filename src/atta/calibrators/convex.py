"""C-ATTA: V-ATTA with the image itself among its views, and a fit that has one minimum.

V-ATTA adds up what the views say and blends it into the softmax of the image, which is as over-confident as it was. With
seventeen passes the image's own logits are hardly missed in the sum. With two they are half of what is known, and they cost
nothing, for the network has answered the image anyway:

    fused = softmax( w_0 · logits + Σ_i w_i · view_logits_i )        probs = as much of `fused` as keeps the class

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
from atta.calibrators.fitting import laplace_smoothing, newton
from atta.predictions import Predictions, mean_views
from atta.types import Labels


@dataclass(frozen=True, kw_only=True)
class CATTA(ViewMethod):
    """A weight for the image itself and for each kind of view, by least NLL; `views` are the kinds, by default all."""

    name: ClassVar[str] = "c-atta"
    summary: ClassVar[str] = "v-atta with the image itself among its views, fitted as a convex problem (ours)"

    def learn(self, predictions: Predictions, labels: Labels) -> ViewBlend:
        """Go to the minimum; again with V-ATTA's weak prior where no mistake keeps the weights from growing."""
        kinds = self.kinds_of(predictions)
        logits = predictions.logits.double()
        rows = torch.cat([logits.unsqueeze(1), mean_views(predictions.views, kinds).double()], dim=1)
        smoothing = laplace_smoothing(logits, labels)
        weights = newton(rows, labels, smoothing=smoothing)
        if weights.abs().sum() > RUNAWAY:
            weights = newton(rows, labels, smoothing=smoothing, prior=penalty(len(predictions)))
        return ViewBlend(weights[:, None], logits.new_ones(()), kinds=kinds, itself=True)
