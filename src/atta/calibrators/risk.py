"""A stated risk: answer only where at most so many answers are wrong, with a guarantee.

An image is answered if its confidence is above a threshold λ, and handed over otherwise. The risk
of λ is the probability that an answered image is wrong. `threshold` finds the λ that answers most
images among those whose risk is at most `risk`, with probability 1 - δ over the validation images:

    p(λ) = P(Binomial(n_λ, risk) ≤ e_λ)         n_λ images above λ, e_λ of them wrong

is the chance of so few errors if the risk were larger (Clopper & Pearson). Thresholds are tested in
a fixed sequence from strict to lenient while p(λ) is small enough, so that no correction for many
tests is needed: Angelopoulos et al., "Learn then Test" (2021), after Geifman & El-Yaniv, "Selective
classification for deep neural networks" (NeurIPS 2017). A sequence that starts at too few images
ends at the first error, one that starts at too many never begins: STARTS of them share δ.

The thresholds are confidences of validation images. Given the threshold, those above it are
independent images above it, and the test holds for them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import torch
from jaxtyping import Bool
from scipy import stats
from torch import Tensor

from atta._base.errors import InputError
from atta._base.settings import check_one
from atta._base.types import Labels, PerImage

DELTA = 0.05
"""The probability that a promise is broken."""
STARTS = 3
STEPS = 200
"""How many thresholds are tested at most."""
MOST_CLASSES = 1_000_000
NEVER, ALWAYS = 2.0, -1.0
"""Thresholds that no confidence, and every confidence, exceeds."""
Part = Annotated[float, "> 0", "< 1"]


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """Validation images as classified by calibrators that were fitted without them.

    Args:
        confidence: How likely the answered class of each image was said to be right.
        right: Whether it was.
        answers: The class answered.
    """

    confidence: tuple[float, ...]
    right: tuple[bool, ...]
    answers: tuple[int, ...]

    @classmethod
    def of(cls, confidence: PerImage, answers: Labels, labels: Labels) -> HeldOut:
        """Make them of cross-validated confidences, the network's classes and the true ones."""
        return cls(
            confidence=tuple(confidence.double().clamp(0, 1).tolist()),
            right=tuple((answers == labels).tolist()),
            answers=tuple(answers.tolist()),
        )

    @classmethod
    def read(cls, about: dict[str, Any]) -> HeldOut:
        """Make them of what a file says, after checking it."""
        confidence = tuple(map(float, about["confidence"]))
        right, answers = tuple(map(bool, about["right"])), tuple(map(int, about["answers"]))
        alike = len(confidence) == len(right) == len(answers) > 0
        known = all(0 <= one <= 1 for one in confidence)
        if not alike or not known or not 0 <= min(answers) <= max(answers) < MOST_CLASSES:
            raise InputError(
                "held-out answers: expected a confidence between 0 and 1, a class and whether it "
                "was right for each image, got others"
            )
        return cls(confidence=confidence, right=right, answers=answers)

    def promise(self, risk: float, *, delta: float = DELTA, by_class: bool = False) -> Promise:
        """Find the threshold, or one for each class, that keeps the risk.

        Raises:
            InputError: No threshold can promise it; the error names the risk that can be.
        """
        risk, delta = check_one("risk", risk, Part), check_one("delta", delta, Part)
        confidence, right = np.array(self.confidence), np.array(self.right)
        groups: list[Any] = [slice(None)]
        if by_class:
            answers = np.array(self.answers)
            groups = [answers == one for one in range(max(answers.max() + 1, 2))]
        found = [threshold(confidence[one], right[one], risk, delta) for one in groups]
        if all(one is None for one in found):
            best = least_risk(confidence, right, delta) if not by_class else None
            least = f"; the least that can be is {math.ceil(1e4 * best) / 1e4:.2%}" if best else ""
            raise InputError(
                f"{len(right)} validation images cannot promise a risk of {risk:.2%}{least}: "
                f"use a larger risk, or calibrate on more images"
            )
        limits = tuple(NEVER if one is None else one for one in found)
        made = Promise(risk=risk, delta=delta, thresholds=limits, coverage=0.0, images=len(right))
        above = made.answered(torch.from_numpy(confidence), torch.tensor(self.answers))
        return replace(made, coverage=float(above.double().mean()))


@dataclass(frozen=True, kw_only=True)
class Promise:
    """At most `risk` of the answers are wrong, with probability 1 - `delta`.

    Args:
        risk: The largest fraction of the answered images that may be wrong.
        delta: The probability that the promise is broken, over the draw of validation images.
        thresholds: Confidences above which images are answered: one, or one for each class, and
            then each class has a promise of its own. Classes beyond the last are never answered.
        coverage: The fraction of the validation images that are answered.
        images: The number of validation images.
    """

    risk: float
    delta: float
    thresholds: tuple[float, ...]
    coverage: float
    images: int

    @classmethod
    def read(cls, about: dict[str, Any]) -> Promise:
        """Make one of what a file says."""
        made = cls(**{**about, "thresholds": tuple(map(float, about["thresholds"]))})
        str(made)  # refuses numbers that are not numbers
        return made

    def answered(self, confidence: PerImage, answers: Labels) -> Bool[Tensor, " n"]:
        """Return which images are answered, by their confidence and the network's classes."""
        limits = torch.tensor(self.thresholds, dtype=torch.float64, device=confidence.device)
        if len(limits) > 1:  # a class that was never answered has none
            limits = torch.cat([limits, limits.new_tensor([NEVER])])[answers.clamp(max=len(limits))]
        return confidence.double() > limits

    def __str__(self) -> str:
        what = "the answers" if len(self.thresholds) == 1 else "a class's answers"
        return (
            f"At most {self.risk:.2%} of {what} are wrong, with probability "
            f"{1 - self.delta:.0%}; {self.coverage:.0%} of {self.images} validation images are "
            "answered."
        )


def threshold(
    confidence: np.ndarray, right: np.ndarray, risk: float, delta: float = DELTA
) -> float | None:
    """Return the confidence above which the risk is promised, or None if none is.

    >>> sure = np.linspace(0, 1, 1000)
    >>> round(threshold(sure, sure > 0.3, 0.05), 2)
    0.28
    """
    order = np.argsort(-confidence, kind="stable")
    ranked, wrong = confidence[order], np.concatenate([[0], np.cumsum(~right[order])])
    # Images of equal confidence are answered together: counts end where the confidence falls.
    ends = np.flatnonzero(np.diff(ranked, append=-math.inf) < 0) + 1
    least = math.log(delta / STARTS) / math.log1p(-risk)  # fewer images prove nothing
    ends = ends[ends >= least]
    if not len(ends):
        return None
    ends = ends[np.unique(np.linspace(0, len(ends) - 1, STEPS).round().astype(int))]
    good = stats.binom.cdf(wrong[ends], ends, risk) <= delta / STARTS
    answered = 0
    for start in np.linspace(0, len(ends), STARTS, endpoint=False).astype(int):
        run = good[start:]
        length = len(run) if run.all() else int(np.argmin(run))
        answered = max(answered, ends[start + length - 1] if length else 0)
    if not answered:
        return None
    return float(ranked[answered]) if answered < len(ranked) else ALWAYS


def least_risk(confidence: np.ndarray, right: np.ndarray, delta: float = DELTA) -> float | None:
    """Return the smallest risk in steps of a tenth that can be promised, or None."""
    risks = np.geomspace(0.001, 0.5, 66).tolist()
    return next(
        (one for one in risks if threshold(confidence, right, one, delta) is not None), None
    )


def expected_cost(
    probs: np.ndarray, costs: Any, abstain: float | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the decision of least expected cost for each image, and that cost.

    Args:
        probs: Calibrated probabilities, (n, k).
        costs: What each decision costs if a class is the true one: (k, decisions).
        abstain: The cost of handing an image over; that is decision -1.
    """
    matrix = np.asarray(costs, dtype=float)
    if abstain is not None and not math.isfinite(abstain):
        raise InputError(f"abstain: expected a finite cost, got {abstain!r}")
    if matrix.ndim != 2 or len(matrix) != probs.shape[1] or not np.isfinite(matrix).all():
        raise InputError(
            f"costs: expected finite numbers shaped ({probs.shape[1]}, decisions), a row for each "
            f"true class, got shape {matrix.shape}"
        )
    expected = probs @ matrix
    choice, cost = expected.argmin(axis=1), expected.min(axis=1)
    if abstain is not None:
        choice, cost = np.where(cost > abstain, -1, choice), np.minimum(cost, abstain)
    return choice, cost
