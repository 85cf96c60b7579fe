"""The mergeable sums as a torchmetrics metric, for training loops, Lightning and DDP.

Every state is a plain sum: torchmetrics adds them up over processes, and memory does not grow with
the images. Loops without torchmetrics use `atta.Sums`, which computes the same.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any, final

import torch
from torch import Tensor

from atta._base.errors import require
from atta.metrics.binning import COUNT
from atta.metrics.scores import Sums

with require("torchmetrics", "atta.metrics.running"):
    from torchmetrics import Metric


@final
class Calibration(Metric):
    """The metrics of `atta.Sums` as a torchmetrics metric.

    Args:
        classes: The number of classes.
        metrics: Names of `atta.METRICS`; all by default.
        count: The number of bins; 15 as in the paper.
        settings: Options of `torchmetrics.Metric`.

    >>> metric = Calibration(classes=2, metrics=["accuracy"])
    >>> metric.update(torch.tensor([[0.75, 0.25], [0.25, 0.75]]), torch.tensor([0, 0]))
    >>> metric.compute()
    {'accuracy': tensor(0.5000, dtype=torch.float64)}
    """

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
        names = None if metrics is None else list(metrics)
        self.new_sums = partial(Sums, classes, count=count, metrics=names)
        for name, zeros in self.new_sums().state.items():
            self.add_state(name, default=zeros, dist_reduce_fx="sum")

    def update(self, probs: Tensor, labels: Tensor) -> None:
        """Add probabilities, images × classes, and labels; refused input changes nothing."""
        for name, more in self.new_sums().update(probs, labels).state.items():
            old: Tensor = getattr(self, name)
            setattr(self, name, old + more.to(old.device))

    def compute(self) -> dict[str, Tensor]:
        """Return what `atta.evaluate` would return for all images so far, as tensors."""
        sums = self.new_sums()
        sums.state = {name: getattr(self, name).cpu() for name in sums.state}
        found = sums.compute().items()
        return {name: torch.tensor(value, dtype=torch.float64) for name, value in found}
