"""What a report shows of one calibrator besides its metrics: plain numbers and lists, which go into results.json.

bins        how many images at which confidence, and how many of them right, with a 95 % interval (Wilson)
histogram   how many images at which confidence, finely
per_class   the same by predicted class
views       the learned weights and limit; the shares, and how many the class guard holds below the limit
changed     the images whose confidence changed the most
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from atta._base.types import Probs
from atta.calibrators import AverageBlend, Calibrator, ViewBlend
from atta.functional import largest_share
from atta.metrics.binning import bin_index, even_edges, known_means, reliability_bins
from atta.metrics.scores import class_changes
from atta.record.predictions import Record

FINE, SHARES, CHANGED = 50, 20, 12


def details(calibrator: Calibrator, test: Record, names: Sequence[str] = ()) -> dict[str, Any]:
    """Look at a calibrator on images; `names` are those of the classes, their numbers otherwise."""
    predictions, labels = test.predictions, test.labels
    base, probs = predictions.logits.softmax(dim=-1), calibrator(predictions)
    confidence, winner = (x.cpu() for x in probs.max(dim=-1))
    confidence = confidence.double().clamp(0, 1)
    before = base.gather(-1, probs.argmax(dim=-1, keepdim=True))[:, 0].double().cpu()
    correct = None if labels is None else (winner == labels.cpu()).double()
    return {
        "images": len(predictions),
        "classes": predictions.classes,
        "passes": round(calibrator.passes(predictions).double().mean().item(), 2),
        "keeps_class": calibrator.keeps_class,
        "class_changes": class_changes(probs, base),
        "accuracy": None if correct is None else correct.mean().item(),
        "confidence": confidence.mean().item(),
        "bins": None if correct is None else reliability_bins(confidence, correct),
        "histogram": _counts(confidence, FINE),
        "per_class": None
        if correct is None
        else _per_class(confidence, correct, winner, predictions.classes, names),
        "views": _views(calibrator, test, base),
        "changed": _changed(before, confidence, winner, labels),
    }


def _counts(values: Tensor, cells: int) -> list[int]:
    return torch.bincount(bin_index(values, even_edges(cells)), minlength=cells).tolist()


def _per_class(
    confidence: Tensor, correct: Tensor, winner: Tensor, classes: int, names: Sequence[str]
) -> dict[str, Any]:
    counts = torch.bincount(winner, minlength=classes).double()
    sums = {
        name: torch.zeros(classes, dtype=torch.float64).index_add_(0, winner, values) / counts
        for name, values in (("confidence", confidence), ("accuracy", correct))
    }
    return {
        "names": [str(name) for name in names]
        if len(names) == classes
        else [str(i) for i in range(classes)],
        "counts": [int(count) for count in counts],
        **{name: known_means(values) for name, values in sums.items()},
    }


def _views(calibrator: Calibrator, test: Record, base: Probs) -> dict[str, Any] | None:
    if not isinstance(calibrator, ViewBlend | AverageBlend):
        return None
    logits = test.predictions.logits
    fused, limit = calibrator.fused(logits, test.predictions.views), calibrator.limit.to(base)
    start = calibrator.base(logits)
    shares = largest_share(start, fused, limit, step=calibrator.step).double().clamp(0, 1).cpu()
    weights = calibrator.weights.double().cpu()
    itself = isinstance(calibrator, ViewBlend) and calibrator.itself
    kinds = [*(["the image"] if itself else []), *calibrator.kinds]
    return {
        "kinds": kinds,
        "weights": weights.reshape(len(kinds), -1).tolist(),
        "limit": float(limit),
        "shares": _counts(shares, SHARES),
        "mean_share": shares.mean().item(),
        "limited": int((shares < float(limit) - 1e-6).sum()),
    }


def _changed(
    before: Tensor, after: Tensor, winner: Tensor, labels: Tensor | None
) -> list[dict[str, Any]]:
    rows = (after - before).abs().argsort(descending=True, stable=True)[:CHANGED].tolist()
    known = {row: None if labels is None else int(labels[row]) for row in rows}
    return [
        {
            "row": i,
            "predicted": int(winner[i]),
            "label": known[i],
            "before": before[i].item(),
            "after": after[i].item(),
        }
        for i in rows
    ]
