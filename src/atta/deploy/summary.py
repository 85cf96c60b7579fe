"""What calibration did, judged by cross-validation: each image answered by a fit that did not see it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from atta.calibrators import Calibrator
from atta.calibrators.crossval import Candidate
from atta.images.preprocessing import Preprocess
from atta.images.views import Policy
from atta.metrics.binning import reliability_bins
from atta.metrics.scores import class_changes, evaluate
from atta.networks.borrowing import device_of
from atta.predictions import Predictions, Record
from atta.types import Labels, Probs

SHOWN = ("brier", "ece", "nll")


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The method, the views, and the numbers before and after."""

    method: str
    policy: str
    passes: float
    images: int
    classes: int
    before: Mapping[str, float]
    after: Mapping[str, float]
    accuracy: float
    class_changes: int
    bins: Mapping[str, Any]
    candidates: Sequence[Mapping[str, Any]] = ()
    preprocess: str = ""

    def __str__(self) -> str:
        change = "   ".join(
            f"{name.upper() if name != 'brier' else 'Brier'} {self.before[name]:.4f} → {self.after[name]:.4f}"
            for name in self.after
        )
        views = f" · {self.policy}" if self.policy else ""
        passes = "1 pass" if self.passes == 1 else f"{self.passes:.3g} passes"
        lines = [
            f"{self.method}{views} · {passes} an image · {self.classes} classes",
            f"cross-validated on {self.images} images, {self.accuracy:.1%} right: {change}",
            f"class changes: {self.class_changes}",
        ]
        if self.preprocess:
            lines.append(f"photographs: {self.preprocess}")
        if len(self.candidates) > 1:
            lines.append(f"chosen from {len(self.candidates)} policies by cross-validated NLL")
        if self.after["nll"] >= self.before["nll"]:
            lines.append("not better than the network as it is: take more images, other views, or method='temperature'")
        return "\n".join(lines)


def summarise(
    calibrator: Calibrator, policy: Policy, record: Record, answers: Probs, judged: Sequence[Candidate] = ()
) -> Summary:
    """Judge the method by its answers to images that its fits did not see, beside the network as it is."""
    method, predictions, labels = calibrator.method, record.predictions, record.require_labels()
    probs = {"before": predictions.logits.softmax(dim=-1), "after": answers}
    measured = {when: evaluate(found, labels, metrics=SHOWN, simplex=method.on_simplex) for when, found in probs.items()}
    return Summary(
        method=method.name,
        policy=str(policy),
        passes=mean_passes(calibrator, predictions),
        images=len(predictions),
        classes=predictions.classes,
        before=measured["before"],
        after=measured["after"],
        accuracy=evaluate(probs["before"], labels, metrics=("accuracy",))["accuracy"],
        class_changes=class_changes(probs["after"], probs["before"]),
        bins={when: _bins(found, labels) for when, found in probs.items()},
        candidates=[asdict(one) for one in judged],
        preprocess=_photographs(record),
    )


def _photographs(record: Record) -> str:
    """What was done to the images of a record before the network saw them, in words."""
    given = record.origin.get("preprocess")
    return "" if given is None else str(Preprocess.of(json.loads(given)))


def mean_passes(calibrator: Calibrator, predictions: Predictions) -> float:
    """How often the network runs for an image, on average, if only those that go on are shown in the next views."""
    used = predictions.select(calibrator.kinds).to(device_of(calibrator))
    left, passes, seen = torch.arange(len(used), device=used.logits.device), len(used), list[str]()
    for stage in calibrator.stages:
        left = left[calibrator.goes_on(used.logits[left], {kind: used.views[kind][left] for kind in seen})]
        passes += left.shape[0] * sum(used.views[kind].shape[1] for kind in stage)
        seen += stage
    return passes / len(used)


def _bins(probs: Probs, labels: Labels) -> dict[str, Any]:
    confidence, winner = probs.double().max(dim=-1)
    return reliability_bins(confidence.clamp(0, 1), (winner == labels).double())
