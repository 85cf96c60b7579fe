"""The mergeable sums as a metric of torchmetrics: for training loops, Lightning and several processes (DDP).

    metric = Calibration(classes=10, metrics=["ece", "brier"])
    for probs, labels in batches:
        metric.update(probs, labels)
    metric.compute()                      # {"ece": ..., "brier": ...}, of all batches of all processes

Every state is a plain sum, so that torchmetrics adds them up over processes and nothing grows with the images. Plain loops need
no torchmetrics: `atta.Sums` is the same. This is the one file that imports it.
"""

from collections.abc import Iterable
from typing import Any, final

import torch
from torch import Tensor

from atta._base.errors import require
from atta.metrics.binning import COUNT
from atta.metrics.sums import Sums

with require("torchmetrics", "atta.metrics.running"):
    from torchmetrics import Metric


@final
class Calibration(Metric):
    """The metrics of `atta.Sums`, or the named ones; `settings` are those of `torchmetrics.Metric`."""

    full_state_update = False
    is_differentiable = False

    def __init__(
        self,
        classes: int,
        *,
        metrics: Iterable[str] | None = None,
        count: int = COUNT,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self.classes, self.count = classes, count
        self.names = None if metrics is None else list(metrics)
        for name, zeros in self._sums().state.items():
            self.add_state(name, default=zeros, dist_reduce_fx="sum")

    def update(self, probs: Tensor, labels: Tensor) -> None:
        """Add images: probabilities, a row an image, and their labels. Input that is refused leaves the sums as they were."""
        for name, more in self._sums().update(probs, labels).state.items():
            setattr(self, name, getattr(self, name) + more.to(getattr(self, name).device))

    def compute(self) -> dict[str, Tensor]:
        """What `atta.evaluate` would say of all images so far."""
        sums = self._sums()
        sums.state = {name: getattr(self, name).cpu() for name in sums.state}
        return {
            name: torch.tensor(value, dtype=torch.float64) for name, value in sums.compute().items()
        }

    def _sums(self) -> Sums:
        return Sums(self.classes, count=self.count, metrics=self.names)
