"""Which policy of views a method should use, told from its validation images alone.

| rule            | the best Brier score ...                                                                          |
|-----------------|---------------------------------------------------------------------------------------------------|
| paper           | on the very images it was fitted on: optimistic, and the more so the more parameters there are    |
| cross-validated | on images held out: five fits, each tested on the fifth that it did not see                       |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from atta.lab.fits import Fit, Fits
from atta.metrics.scores import METRICS


@dataclass(frozen=True)
class Rule:
    """A way to choose: the fits it looks at besides the candidate itself, and how good that makes the candidate."""

    summary: str
    needs: Callable[[Fit], list[Fit]]
    score: Callable[[Fits, Fit], float]


def choose(fits: Fits, candidates: Sequence[Fit], rule: str) -> Fit:
    """Return the candidate with the lowest score; of equal ones, the first."""
    return min(candidates, key=lambda fit: fits.remembered(rule, fit, RULES[rule].score))


def _on_fitted(fits: Fits, fit: Fit) -> float:
    part = fits.part(fit)
    return METRICS["brier"](
        fits[fit](part.predictions), part.require_labels(), simplex=fit.method.on_simplex
    )


def _parted(fit: Fit) -> list[Fit]:
    return [replace(fit, rows=rows) for rows in fit.rows.parted()]


def _on_held_out(fits: Fits, fit: Fit) -> float:
    probs, labels = [], []
    for part in _parted(fit):
        unseen = fits.seen(part, fits.records[part.record])[part.rows.held_out()]
        probs.append(fits[part](unseen.predictions))
        labels.append(unseen.require_labels())
    return METRICS["brier"](torch.cat(probs), torch.cat(labels), simplex=fit.method.on_simplex)


RULES: dict[str, Rule] = {
    "paper": Rule("best Brier score on the fitted images", lambda fit: [], _on_fitted),
    "cross-validated": Rule("best Brier score on held-out fifths", _parted, _on_held_out),
}
