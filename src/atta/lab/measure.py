"""All that can be measured of a calibrator on a record."""

from __future__ import annotations

import torch

from atta.calibrators import Calibrator
from atta.calibrators.conformal import Conformal, cross_checked, fewest
from atta.metrics.scores import METRICS, class_changes, evaluate, ood_auroc
from atta.record.predictions import Record
from atta.results.words import CLASS_CHANGES, COVERAGE, OOD_AUROC, PASSES, SET_SIZE

MEASURES = (*METRICS, CLASS_CHANGES, OOD_AUROC, PASSES, COVERAGE, SET_SIZE)
"""Its names: METRICS, how many predicted classes changed, how well entropy tells foreign images, how often the network runs
for an image on average, and how often conformal sets hold the label and how large they are."""
ROWS = 4096  # images that are looked at together
COVERED = 0.98
SETS = Conformal(coverage=COVERED)
"""The conformal sets that are measured: larger than one class even for a network that is right 19 times in 20."""


def measure(
    calibrator: Calibrator, test: Record, reference: Record | None = None
) -> dict[str, float]:
    """Measure what there is to measure; `reference` are images of known classes, to tell others from."""
    probs = calibrator(test.predictions)
    simplex = calibrator.method.on_simplex
    numbers = evaluate(probs, test.labels, simplex=simplex)
    alone = test.predictions.select(()).unrehearsed()
    both = zip(torch.split(probs, ROWS), alone.chunks(ROWS), strict=True)
    numbers[CLASS_CHANGES] = float(
        sum(class_changes(p, part.logits.softmax(dim=-1)) for p, part in both)
    )
    numbers[PASSES] = calibrator.passes(test.predictions).double().mean().item()
    if test.labels is not None and len(test) >= 2 * fewest(COVERED):
        numbers[COVERAGE], numbers[SET_SIZE] = cross_checked(
            SETS, probs, test.labels, simplex=simplex
        )
    if test.labels is None and reference is not None:
        numbers[OOD_AUROC] = ood_auroc(calibrator(reference.predictions), probs, simplex=simplex)
    return numbers
