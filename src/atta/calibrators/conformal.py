"""Sets of classes that hold the true one as often as promised, on top of any calibrator (split conformal prediction).

A score says how strange a class would be for an image. With the scores s_1 … s_n of the true classes of n labelled images that
neither the network nor the calibrator was fitted on,

    threshold = the ⌈(n + 1) · coverage⌉-th smallest of s_1 … s_n
    set(image) = the classes whose score is at most the threshold, and always the predicted one

holds the true class of a new image with probability `coverage` or more, whatever the network (Vovk et al. 2005). Sharper
probabilities do not change that promise. They make the sets smaller, which is what calibration buys here.

| score     | of class j, with p_(1) ≥ p_(2) ≥ … and r the rank of j                  | reference                    |
|-----------|-------------------------------------------------------------------------|------------------------------|
| threshold | 1 - p_j: the smallest sets on average                                   | Sadinle et al. 2019          |
| aps       | p_(1) + … + p_(r-1): hard images get larger sets, easy ones smaller     | Romano et al. 2020           |
| raps      | aps + penalty · max(0, r - allowed): no long tail of unlikely classes   | Angelopoulos et al. 2021     |

The sums of aps and raps end before class j. The papers add a random part of p_j, which makes coverage exact below the accuracy
of the network, too. A deployed answer is deterministic, and a set that holds the predicted class covers as often as the network
is right, whatever is promised. Counting p_j whole, the other deterministic choice, gives sets of several classes to images of
which the network is sure.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, Any, Literal, TypeAlias, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from atta._base.errors import InputError
from atta._base.settings import Count, check_one, hints, shown
from atta._base.types import Labels, Probs
from atta.metrics.per_image import as_tensor, per_image, validate
from atta.record.predictions import as_labels

Score: TypeAlias = Literal["threshold", "aps", "raps"]
SCORES = get_args(Score)
KEPT = 2000  # scores that a classifier remembers


def fewest(coverage: float) -> int:
    """The fewest images that a coverage can be promised with: the n for which ⌈(n + 1) · coverage⌉ is at most n.

    >>> fewest(0.95)
    19
    """
    return math.ceil(round(coverage / (1 - coverage), 9))


@dataclass(frozen=True, kw_only=True)
class Conformal:
    """How sets are made: the promised `coverage`, the `score`, and for raps the `penalty` of each rank beyond `allowed`.

    Of several coverages, `coverage=[0.9, 0.95]`, `fit` finds the sets of each, by coverage. The scores are those of Sadinle et
    al. 2019 (arXiv 1609.00451), Romano et al. 2020 (2006.02544) and Angelopoulos et al. 2021 (2009.14193).
    """

    coverage: float | Sequence[float] = 0.95
    score: Score = "threshold"
    penalty: Annotated[float, "≥ 0"] = 0.01
    allowed: Count = 1

    def __post_init__(self) -> None:
        for name in ("score", "penalty", "allowed"):
            object.__setattr__(
                self, name, check_one(name, getattr(self, name), hints(Conformal)[name])
            )
        if isinstance(self.coverage, Iterable) and not isinstance(self.coverage, str):
            object.__setattr__(self, "coverage", tuple(self.coverage))
        promised = self.coverage if isinstance(self.coverage, tuple) else (self.coverage,)
        if not promised or not all(isinstance(one, float) and 0 < one < 1 for one in promised):
            raise InputError(
                f"coverage must lie between 0 and 1, such as 0.95, or be a list of such, got {shown(self.coverage)}"
            )

    def fit(
        self, probs: Any, labels: Any, *, simplex: bool = True
    ) -> "ConformalSets | dict[float, ConformalSets]":
        """Find the threshold from the probabilities of labelled images that the calibrator was not fitted on.

        `simplex=False` takes rows that do not sum to 1, here and in the sets.
        """
        probs = _as_probs(probs, simplex)
        labels = as_labels(labels, images=probs.shape[0], classes=probs.shape[1]).to(probs.device)
        own = self.scores(probs).gather(1, labels[:, None])[:, 0].sort().values
        if isinstance(self.coverage, tuple):
            return {coverage: self._sets(coverage, own, simplex) for coverage in self.coverage}
        assert isinstance(self.coverage, float)
        return self._sets(self.coverage, own, simplex)

    def _sets(self, coverage: float, own: Float[Tensor, " n"], simplex: bool) -> "ConformalSets":
        """The sets of one coverage, from the scores of the true classes in order."""
        n = own.shape[0]
        if n < fewest(coverage):
            raise InputError(
                f"a coverage of {coverage} needs at least {fewest(coverage)} labelled images, got {n}"
            )
        return ConformalSets(
            replace(self, coverage=coverage), own[math.ceil((n + 1) * coverage) - 1].item(), simplex
        )

    def scores(self, probs: Probs) -> Float[Tensor, "n k"]:
        """How strange each class would be."""
        probs = probs.double()
        if self.score == "threshold":
            return 1 - probs
        order = probs.argsort(dim=1, descending=True, stable=True)
        ranked = probs.gather(1, order)
        sums = ranked.cumsum(dim=1) - ranked
        if self.score == "raps":
            rank = torch.arange(1, probs.shape[1] + 1, device=probs.device)
            sums = sums + self.penalty * (rank - self.allowed).clamp(min=0)
        return torch.empty_like(sums).scatter_(1, order, sums)


@dataclass(frozen=True)
class ConformalSets:
    """A threshold that was found: `sets(probs)` says of each image which classes are in its set."""

    how: Conformal
    threshold: float
    simplex: bool = True

    def __call__(self, probs: Any) -> Bool[Tensor, "n k"]:
        """Mark the classes of each image's set; the predicted class is always among them."""
        probs = _as_probs(probs, self.simplex)
        inside = self.how.scores(probs) <= self.threshold
        return inside.scatter(1, probs.argmax(dim=1, keepdim=True), True)


@dataclass(frozen=True)
class ConformityScores:
    """How strange the true classes of held-out images were, in order: sets of any coverage are cut from it.

    `scores` are those of `Conformal(score="threshold")`, of every image or, of many, quantiles that err to the safe side.
    """

    images: int
    scores: tuple[float, ...]

    @classmethod
    def of(cls, probs: Any, labels: Labels, *, simplex: bool = True) -> "ConformityScores":
        """Look at the answers to labelled images, each by a calibrator that was not fitted on it."""
        probs = _as_probs(probs, simplex).double()
        own = (
            1 - probs.gather(1, labels[:, None].to(probs.device))[:, 0].sort(descending=True).values
        )
        kept = min(len(own), KEPT)
        places = (
            torch.arange(1, kept + 1, dtype=torch.float64) * len(own) / kept
        ).ceil().long() - 1
        return cls(len(own), tuple(own.cpu()[places].tolist()))

    @classmethod
    def read(cls, about: Mapping[str, Any]) -> "ConformityScores":
        """Make one of what a file says, if that can be one."""
        scores = tuple(float(score) for score in about["scores"])
        if (
            not scores
            or any(not 0 <= a <= b <= 1 for a, b in pairwise((*scores, 1.0)))
            or int(about["images"]) < len(scores)
        ):
            raise InputError(
                "conformity scores: expected numbers between 0 and 1 in ascending order, got others"
            )
        return cls(int(about["images"]), scores)

    def sets(self, coverage: float) -> ConformalSets:
        """The sets that hold the true class so often."""
        how = Conformal(coverage=coverage)
        if self.images < fewest(coverage):
            raise InputError(
                f"a coverage of {coverage} needs at least {fewest(coverage)} labelled images, got {self.images} to calibrate on"
            )
        rank = math.ceil((self.images + 1) * coverage)
        return ConformalSets(
            how, self.scores[math.ceil(rank * len(self.scores) / self.images) - 1], simplex=False
        )


def covered(sets: Bool[Tensor, "n k"], labels: Labels) -> float:
    """The part of the images whose set holds their label."""
    return sets.gather(1, labels[:, None]).double().mean().item()


def mean_size(sets: Bool[Tensor, "n k"]) -> float:
    """How many classes a set holds on average."""
    return sets.sum(dim=1).double().mean().item()


def cross_checked(
    how: Conformal, probs: Probs, labels: Labels, *, seed: int = 0, simplex: bool = True
) -> tuple[float, float]:
    """Coverage and mean size on images that the threshold was not found on: each half of them by the other half's."""
    order = torch.randperm(probs.shape[0], generator=torch.Generator().manual_seed(seed)).to(
        probs.device
    )
    found = []
    for here, there in zip(order.chunk(2), reversed(order.chunk(2)), strict=True):
        fitted = how.fit(probs[here], labels[here], simplex=simplex)
        assert isinstance(fitted, ConformalSets)
        sets = fitted(probs[there])
        found.append((covered(sets, labels[there]), mean_size(sets)))
    return sum(one for one, _ in found) / 2, sum(size for _, size in found) / 2


def _as_probs(probs: Any, simplex: bool) -> Tensor:
    """The door of the metrics: types, shapes, and values row by row."""
    tensor, _ = validate(as_tensor(probs, "probs"), None)
    if tensor.shape[1] < 2:
        raise InputError(f"probs: expected at least two classes, got shape {tuple(tensor.shape)}")
    for _ in per_image(tensor, None, simplex=simplex):
        pass  # which has looked at them
    return tensor
