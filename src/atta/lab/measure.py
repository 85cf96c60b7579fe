"""Measures a calibrator: its metrics, what a report shows of it, and the intervals of its numbers.

`details` returns plain numbers and lists, which go into results.json:

risk        the part of the answers that is wrong, if only the most confident images are answered
bins        images by confidence, and how many of them are right, with a 95 % interval (Wilson)
histogram   images by confidence, in fine bins
per_class   the same by predicted class
views       learned weights and limit; the shares, and how many the class guard limits
changed     the images whose confidence changed the most
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import isnan, prod
from typing import Any

import torch
from torch import Tensor

from atta._base.types import Probs
from atta.calibrators import AverageBlend, Calibrator, TemperatureScaling, Vanilla, ViewBlend
from atta.calibrators.conformal import Conformal, cross_checked, fewest
from atta.calibrators.crossval import FOLDS, held_rows
from atta.functional import largest_share, leader
from atta.metrics.binning import bin_index, even_edges, reliability_bins, risk_curve
from atta.metrics.per_image import LazyProbs
from atta.metrics.resampling import Resamples, bootstrap, intervals, replicates
from atta.metrics.scores import METRICS, by_confidence, class_changes, evaluate, ood_auroc
from atta.record.predictions import Predictions, Record
from atta.results.rows import Interval, Results, Row
from atta.results.words import (
    ANSWERED,
    BY_CONFIDENCE,
    CLASS_CHANGES,
    COVERAGE,
    OOD_AUROC,
    PASSES,
    SET_SIZE,
    Contender,
)

CONFIDENCE = tuple(name for name in BY_CONFIDENCE if name not in ANSWERED)
MEASURES = (*METRICS, *CONFIDENCE, CLASS_CHANGES, OOD_AUROC, PASSES, COVERAGE, SET_SIZE)
"""All that `measure` can give: METRICS, those of `confidence`, changed classes, how well entropy
tells unknown classes, passes per image, and the coverage and size of conformal sets."""
JUDGED = ("accuracy", "brier", "ece", "smooth_ece", "mc_brier", "nll", "entropy", "shannon_entropy")
"""The metrics whose intervals results have. `atta.bootstrap` gives those of all."""
ROWS = 1024  # images per chunk
AT_ONCE = 1 << 24  # probabilities that are kept: 64 MB
TEMPERED = "temperature, cross-validated"
INTERVALS = ("brier", "nll", "ece")
"""The metrics whose intervals `evaluated` gives."""
COVERED = 0.98
SETS = Conformal(coverage=COVERED)
"""These sets have more than one class even if the network is right on 19 of 20 images."""
FINE, SHARES, CHANGED = 50, 20, 12


def measure(
    calibrator: Calibrator, test: Record, reference: Record | None = None
) -> dict[str, float]:
    """All measures that the record allows; `reference` are images of known classes, for OOD."""
    predictions, labels, simplex = test.predictions, test.labels, calibrator.method.on_simplex
    probs = answers(calibrator, predictions)
    numbers = evaluate(probs, labels, simplex=simplex)
    if labels is not None:
        confidence = calibrator.confidence(predictions)
        numbers |= by_confidence(probs, labels, confidence, simplex=simplex)
    alone = predictions.select((), rehearsals=False)
    parts = (slice(at, at + ROWS) for at in range(0, len(test), ROWS))
    changes = (class_changes(probs[part], alone[part].logits) for part in parts)
    numbers[CLASS_CHANGES] = float(sum(changes))
    numbers[PASSES] = calibrator.passes(predictions).double().mean().item()
    if labels is not None and len(test) >= 2 * fewest(COVERED):
        numbers[COVERAGE], numbers[SET_SIZE] = cross_checked(SETS, probs, labels, simplex=simplex)
    if labels is None and reference is not None:
        known = answers(calibrator, reference.predictions)
        numbers[OOD_AUROC] = ood_auroc(known, probs, simplex=simplex)
    return numbers


def answers(calibrator: Calibrator, predictions: Predictions) -> Probs | LazyProbs:
    """Return the probabilities; those of many images are computed again whenever they are read."""
    return _kept(lambda rows: calibrator(predictions[rows]), predictions)


def _kept(read: Callable[[slice], Probs], predictions: Predictions) -> Probs | LazyProbs:
    shape = len(predictions), predictions.classes
    if prod(shape) <= AT_ONCE:
        return read(slice(None))
    dtype = torch.promote_types(predictions.dtype, torch.float32)
    return LazyProbs(shape, dtype, predictions.device, read)


def evaluated(calibrator: Calibrator, record: Record, dataset: str) -> Results:
    """All measures of a calibrator, of the network alone, and of temperature scaling.

    Temperature scaling is cross-validated on these images; with too few it is left out.
    """
    images, labels = record.predictions, record.require_labels()
    found: dict[str, tuple[dict[str, float], Probs | LazyProbs, Tensor | None]] = {}
    for one in (Vanilla().fit(images, labels), calibrator):
        name, numbers = one.method.name, measure(one, record)
        if found and name != TemperatureScaling.name and len(record) >= 2 * FOLDS:
            probs = _kept(held_rows(TemperatureScaling(), images.select(()), labels), images)
            cost = {CLASS_CHANGES: 0.0, PASSES: 1.0}
            found[TEMPERED] = evaluate(probs, labels) | cost, probs, None
        found[name] = numbers, answers(one, images), one.confidence(images)
    rows, bounds, drawn = list[Row](), list[Interval](), Resamples(len(labels))
    for name, (numbers, probs, confidence) in found.items():
        simplex = calibrator.method.on_simplex
        values = replicates(
            probs, labels, drawn, metrics=ANSWERED, simplex=simplex, confidence=confidence
        )
        ends = bootstrap(probs, labels, metrics=INTERVALS, simplex=simplex)
        ends |= intervals({risk: numbers[risk] for risk in ANSWERED}, values)
        rows += (Row(dataset=dataset, method=name, metric=m, value=x) for m, x in numbers.items())
        bounds += (
            Interval(dataset=dataset, method=name, metric=metric, low=low, high=high)
            for metric, (low, high) in ends.items()
        )
    return Results(tuple(rows), intervals=tuple(bounds))


# ---- what a report shows


def details(calibrator: Calibrator, test: Record, names: Sequence[str] = ()) -> dict[str, Any]:
    """What a report shows of a calibrator; classes have numbers where there are no `names`."""
    predictions, labels = test.predictions, test.labels
    base, probs = predictions.logits.softmax(dim=-1), calibrator(predictions)
    confidence, winner = (x.cpu() for x in probs.max(dim=-1))
    confidence = confidence.double().clamp(0, 1)
    before = base.gather(-1, probs.argmax(dim=-1, keepdim=True))[:, 0].double().cpu()
    most = (confidence - before).abs().argsort(descending=True, stable=True)
    found: dict[str, Any] = {
        "images": len(predictions),
        "classes": predictions.classes,
        "passes": round(calibrator.passes(predictions).double().mean().item(), 2),
        "keeps_class": calibrator.keeps_class,
        "class_changes": class_changes(probs, predictions.logits),
        "accuracy": None,
        "confidence": confidence.mean().item(),
        "bins": None,
        "risk": None,
        "histogram": _counts(confidence, FINE),
        "per_class": None,
        "views": _views(calibrator, predictions, base),
        "changed": [
            {
                "row": i,
                "predicted": int(winner[i]),
                "label": None if labels is None else int(labels[i]),
                "before": before[i].item(),
                "after": confidence[i].item(),
            }
            for i in most[:CHANGED].tolist()
        ],
    }
    if labels is not None:
        correct = (winner == labels.cpu()).double()
        found["accuracy"] = correct.mean().item()
        found["bins"] = reliability_bins(confidence, correct)
        found["risk"] = risk_curve(calibrator.confidence(predictions).cpu(), correct)
        found["per_class"] = _per_class(confidence, correct, winner, predictions.classes, names)
    return found


def _counts(values: Tensor, cells: int) -> list[int]:
    return torch.bincount(bin_index(values, even_edges(cells)), minlength=cells).tolist()


def _per_class(
    confidence: Tensor, correct: Tensor, winner: Tensor, classes: int, names: Sequence[str]
) -> dict[str, Any]:
    counts = torch.bincount(winner, minlength=classes)

    def means(values: Tensor) -> list[float | None]:
        found = torch.bincount(winner, values, minlength=classes) / counts
        return [None if isnan(mean) else mean for mean in found.tolist()]

    return {
        "names": list(map(str, names if len(names) == classes else range(classes))),
        "counts": counts.tolist(),
        "confidence": means(confidence),
        "accuracy": means(correct),
    }


def _views(calibrator: Calibrator, predictions: Predictions, base: Probs) -> dict[str, Any] | None:
    if not isinstance(calibrator, ViewBlend | AverageBlend):
        return None
    start, fused = calibrator.parts(predictions.logits, predictions.views)
    limit, first = calibrator.limit.to(base), leader(predictions.logits)
    shares = largest_share(start, fused, limit, step=calibrator.step, first=first)
    shares = shares.double().clamp(0, 1).cpu()
    itself = isinstance(calibrator, ViewBlend) and calibrator.itself
    kinds = ["the image"] * itself + [*calibrator.kinds]
    return {
        "kinds": kinds,
        "weights": calibrator.weights.double().cpu().reshape(len(kinds), -1).tolist(),
        "limit": float(limit),
        "shares": _counts(shares, SHARES),
        "mean_share": shares.mean().item(),
        "limited": int((shares < float(limit) - 1e-6).sum()),
    }


# ---- intervals


def interval_rows(
    found: Iterable[tuple[Contender, Mapping[str, float], Mapping[str, Tensor]]],
) -> Iterator[Interval]:
    """The intervals of each contender, and of its difference to each one before it of its size.

    `found` has, for every split and seed, the contender's numbers and those of the resamples. A
    resample counts the images of a record once for all splits and methods. So its mean over the
    splits is that of the resampled means, and any two contenders are paired.
    """
    parts: dict[Contender, list[tuple[Mapping[str, float], Mapping[str, Tensor]]]] = {}
    for key, numbers, resampled in found:
        parts.setdefault(key, []).append((numbers, resampled))
    # Compared with nobody, a contender has the interval of its own numbers.
    done: list[tuple[Contender, dict[str, float], dict[str, Tensor]]] = [(Contender(), {}, {})]
    for key, splits in parts.items():
        names = list(splits[0][1])
        points = {name: sum(point[name] for point, _ in splits) / len(splits) for name in names}
        values = {name: torch.stack([drawn[name] for _, drawn in splits]).mean(0) for name in names}
        for other, theirs, drawn in done:
            if other.method and other.validation != key.validation:
                continue
            less = {name: points[name] - theirs.get(name, 0.0) for name in names}
            apart = {name: values[name] - drawn.get(name, 0.0) for name in names}
            for metric, (low, high) in intervals(less, apart).items():
                yield Interval(
                    **key._asdict(),
                    against=other.method,
                    against_policy=other.policy,
                    against_choice=other.choice,
                    metric=metric,
                    low=low if other.method else max(low, 0.0),
                    high=high,
                )
        done.append((key, points, values))
