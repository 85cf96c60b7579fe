"""ECE and Brier score of a million images and 100 classes, ours and those of the peers, each in a process of its own.

The limits: the largest probability of each image, without which there is no ECE, and a copy of the probabilities.

    python -m benchmarks.scores [--quick]
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

import atta
from benchmarks import children
from benchmarks.measured import (
    OURS,
    Asked,
    Measured,
    Steps,
    alone,
    extra_megabytes,
    role_of,
    seconds,
    sized,
    too_sure,
    usual_seconds,
)

BINS = 15
IMAGES, CLASSES = 1_000_000, 100
Score = Callable[[Any, Any], Any]


def _atta(metric: str) -> Score:
    return lambda probs, labels: atta.evaluate(probs, labels, metrics=[metric])[metric]


def _torchmetrics() -> Score:
    from torchmetrics.functional.classification import multiclass_calibration_error

    return lambda probs, labels: multiclass_calibration_error(
        probs, labels, probs.shape[1], n_bins=BINS
    )


def _netcal() -> Score:
    from netcal.metrics import ECE

    return lambda probs, labels: ECE(BINS).measure(probs.numpy(), labels.numpy())


def _probmetrics(name: str) -> Score:
    from probmetrics.metrics import Metrics

    metrics = Metrics.from_names([name])
    return lambda probs, labels: metrics.compute_all_from_labels_probs(labels, probs)[name]


def _sklearn() -> Score:
    from sklearn.metrics import brier_score_loss

    def score(probs: Tensor, labels: Tensor) -> float:
        return brier_score_loss(
            labels.numpy(), probs.numpy(), labels=np.arange(probs.shape[1]), scale_by_half=False
        )

    return score


LIMITS: Mapping[str, Callable[[], Score]] = {
    "the largest of each image": lambda: lambda probs, labels: probs.amax(dim=1),
    "a copy of the probabilities": lambda: lambda probs, labels: probs.clone(),
}
SCORES: Mapping[str, Mapping[str, Callable[[], Score]]] = {
    "ECE": {
        OURS: lambda: _atta("ece"),
        "torchmetrics": _torchmetrics,
        "netcal": _netcal,
        "probmetrics": lambda: _probmetrics(f"ece-{BINS}"),
    },
    "Brier score, multi-class": {
        OURS: lambda: _atta("mc_brier"),
        "probmetrics": lambda: _probmetrics("brier"),
        "scikit-learn": _sklearn,
    },
}


def measure(metric: str, who: str, images: int, classes: int) -> dict[str, float]:
    """Score made-up probabilities in this process."""
    score = (dict(LIMITS) | dict(SCORES[metric]))[who]()
    logits, labels = too_sure(images, classes)
    probs = logits.softmax(dim=1)
    del logits
    score(probs[:1000], labels[:1000])  # warm up
    values: list[Any] = []
    taken: list[float] = []
    megabytes = extra_megabytes(
        lambda: taken.append(seconds(lambda: values.append(score(probs, labels))))
    )
    if taken[0] < 1:
        taken[0] = usual_seconds(lambda: score(probs, labels), 2.0)
    numbers = {"seconds": taken[0], "mb": megabytes}
    return numbers if who in LIMITS else {**numbers, "value": float(values[0])}


def contest(metric: str, images: int, classes: int) -> list[Measured]:
    """Everyone who has the metric."""
    what = f"{metric}, {sized(images, classes)}"
    return [
        children.measured(
            what,
            who,
            role_of(who, LIMITS),
            "benchmarks.scores:measure",
            metric,
            who,
            images,
            classes,
        )
        for who in (*SCORES[metric], *LIMITS)
    ]


def steps(asked: Asked) -> Steps:
    """Each metric."""
    size = asked.few(IMAGES, 2000), asked.few(CLASSES, 10)
    return {metric: partial(contest, metric, *size) for metric in SCORES}


if __name__ == "__main__":
    alone(steps, __doc__)
