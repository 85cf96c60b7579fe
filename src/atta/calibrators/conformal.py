"""Conformal sets: classes that hold the true one as often as promised, for any calibrator.

A score says how unusual a class would be for an image. With the scores s_1 … s_n of the true
classes of n labelled images that neither the network nor the calibrator was fitted on,

    threshold = the ⌈(n + 1) · coverage⌉-th smallest of s_1 … s_n
    set(image) = the classes whose score is at most the threshold, and always the predicted one

holds the true class of a new image with a probability of at least `coverage`, for any network (Vovk
et al. 2005). Better calibration does not change that. It makes the sets smaller.

| score     | of class j, with p_(1) ≥ p_(2) ≥ … and r the rank of j   | reference                |
|-----------|----------------------------------------------------------|--------------------------|
| threshold | 1 - p_j: the smallest sets on average                    | Sadinle et al. 2019      |
| aps       | p_(1) + … + p_(r-1): larger sets for hard images         | Romano et al. 2020       |
| raps      | aps + penalty · max(0, r - allowed): no unlikely classes | Angelopoulos et al. 2021 |

The sums of aps and raps end before class j. The papers add a random fraction of p_j, which makes
the coverage exact even below the accuracy of the network. Our sets are deterministic and hold the
predicted class, so they cover at least as often as the network is correct. Adding all of p_j, the
other deterministic choice, gives sets of several classes to images with a certain answer.

**The sets of a classifier** (`ConformityScores`) must not be small where the classifier is lost.
The promise is a mean over images, so a threshold can give one class to an image with a confidence
of 5 %. They use aps, hold at least `coverage` of the probability of each image, and hold all
classes of an image with a lower confidence than every validation image. An image that is not
answered at a stated risk (`risk`) has two classes at least. All of this only adds classes, so the
promise holds.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, Any, Literal, TypeAlias, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from atta._base.errors import InputError
from atta._base.settings import Count, check, check_one, hints
from atta._base.types import Labels, PerImage, Probs
from atta.metrics.per_image import LazyProbs, per_image, validate
from atta.record.predictions import as_labels

Score: TypeAlias = Literal["threshold", "aps", "raps"]
SCORES = get_args(Score)
Coverage: TypeAlias = Annotated[float, "> 0", "< 1"]
KEPT = 2000  # scores that a classifier remembers


def fewest(coverage: float) -> int:
    """Return the fewest images for a coverage: the least n with ⌈(n + 1) · coverage⌉ ≤ n.

    >>> fewest(0.95)
    19
    """
    return math.ceil(round(coverage / (1 - coverage), 9))


def _rank(coverage: float, images: int) -> int:
    """Return which of the sorted scores is the threshold, counting from 1."""
    if images < fewest(coverage):
        raise InputError(
            f"a coverage of {coverage} needs at least {fewest(coverage)} labelled images, "
            f"got {images}: use more images or a lower coverage"
        )
    return math.ceil((images + 1) * coverage)


def _threshold(scores: PerImage, coverage: float) -> Tensor:
    """Return the threshold of this coverage."""
    return scores.sort().values[_rank(coverage, len(scores)) - 1]


@dataclass(frozen=True, kw_only=True)
class Conformal:
    """Split conformal prediction: sets that hold the true class with a promised probability.

    Use it on the probabilities of any calibrator, if one class per image is not enough.

    Args:
        coverage: How often a set holds the true class, between 0 and 1, or several such numbers.
        score: "threshold" (Sadinle et al. 2019, arXiv 1609.00451; the smallest sets), "aps" (Romano
            et al. 2020, 2006.02544) or "raps" (Angelopoulos et al. 2021, 2009.14193).
        penalty: For raps, what each rank beyond `allowed` adds to the score.
        allowed: For raps, the number of ranks without a penalty.

    >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.6, 0.4]])
    >>> Conformal(coverage=0.75).fit(probs, [0, 0, 1, 1])(torch.tensor([[0.55, 0.45]]))
    tensor([[True, True]])
    """

    coverage: Coverage | Iterable[float] = 0.95
    score: Score = "threshold"
    penalty: Annotated[float, "≥ 0"] = 0.01
    allowed: Count = 1

    def __post_init__(self) -> None:
        for name, value in check(vars(self), hints(Conformal)).items():
            object.__setattr__(self, name, value)
        if isinstance(self.coverage, Iterable):
            several = tuple(check_one("coverage", one, Coverage) for one in self.coverage)
            object.__setattr__(self, "coverage", several)
            if not several:
                raise InputError("coverage: expected a number or several, got none")

    def fit(
        self, probs: Any, labels: Any, *, simplex: bool = True
    ) -> "ConformalSets | dict[float, ConformalSets]":
        """Find the threshold on labelled images that the calibrator was not fitted on.

        Args:
            probs: The probabilities (images, classes).
            labels: The class numbers, one per image.
            simplex: False accepts rows that do not sum to 1, here and in the sets.

        Returns:
            The sets; with several coverages, a dictionary of them by coverage.

        Raises:
            InputError: If there are too few images for the coverage.
        """
        own = self.own_scores(probs, labels, simplex=simplex)

        def sets(coverage: float) -> ConformalSets:
            threshold = _threshold(own, coverage).item()
            return ConformalSets(replace(self, coverage=coverage), threshold, simplex)

        if isinstance(self.coverage, Iterable):
            return {coverage: sets(coverage) for coverage in self.coverage}
        return sets(self.coverage)

    def own_scores(self, probs: Any, labels: Any, *, simplex: bool = True) -> PerImage:
        """Return the score of the true class of each image, a chunk of images at a time."""
        probs = _at_least_two(probs)
        labels = as_labels(labels, images=probs.shape[0], classes=probs.shape[1]).to(probs.device)
        scores = (
            self.scores(part.raw).gather(1, part.labels[:, None])[:, 0]
            for part in per_image(probs, labels, simplex=simplex)
            if part.labels is not None
        )
        return torch.cat([*scores])

    def scores(self, probs: Probs) -> Float[Tensor, "n k"]:
        """Return how unusual each class would be."""
        if self.score == "threshold":
            return 1 - probs.double()
        ranked, order = probs.sort(dim=1, descending=True, stable=True)
        ranked = ranked.double()
        sums = ranked.cumsum(dim=1) - ranked
        if self.score == "raps":
            rank = torch.arange(1, probs.shape[1] + 1, device=probs.device)
            sums = sums + self.penalty * (rank - self.allowed).clamp(min=0)
        return torch.empty_like(sums).scatter_(1, order, sums)


@dataclass(frozen=True)
class ConformalSets:
    """Sets of classes at a fitted threshold; `Conformal.fit` returns them.

    Args:
        how: The settings.
        threshold: The largest score of a class in a set.
        simplex: Whether rows of probabilities have to sum to 1.
        least: A lower confidence than this makes a set of all classes.

    >>> sets = ConformalSets(Conformal(), threshold=0.7)
    >>> sets(torch.tensor([[0.6, 0.35, 0.05]]))
    tensor([[ True,  True, False]])
    """

    how: Conformal
    threshold: float
    simplex: bool = True
    least: float = 0.0

    def __call__(
        self, probs: Any, answered: Bool[Tensor, " n"] | None = None
    ) -> Bool[Tensor, "n k"]:
        """Return which classes are in the set of each image; the predicted class always is.

        Args:
            probs: Probabilities, images × classes.
            answered: Images that are not answered (`at_risk`) have two classes at least.
        """
        probs = _at_least_two(probs)
        parts = per_image(probs, None, simplex=self.simplex)
        sets = torch.cat([_near(self.how, part.raw, self.threshold, self.least) for part in parts])
        if answered is None:
            return sets
        winner = probs.argmax(dim=1, keepdim=True)
        second = probs.scatter(1, winner, -1.0).argmax(dim=1, keepdim=True)
        return sets.scatter(1, second, sets.gather(1, second) | ~answered[:, None])


def _near(how: Conformal, probs: Probs, threshold: Any, least: float = 0.0) -> Bool[Tensor, "n k"]:
    """Return which scores are at most the threshold, one for all images or one for each."""
    confidence, winner = probs.max(dim=1, keepdim=True)
    near = how.scores(probs) <= threshold
    return torch.logical_or(near, confidence < least).scatter(1, winner, True)


@dataclass(frozen=True)
class ConformityScores:
    """The sorted scores of the true classes of held-out images, for sets of any coverage.

    Args:
        images: The number of images.
        scores: The scores: all of them or, with many images, quantiles that are rounded up.
        score: Which scores they are; files of older versions have those of "threshold".
        least: The lowest confidence of these images; 0 if it is unknown.
    """

    images: int
    scores: tuple[float, ...]
    score: Score = "threshold"
    least: float = 0.0

    @classmethod
    def of(cls, probs: Probs, labels: Labels) -> "ConformityScores":
        """Make them of the probabilities of labelled images that no fit has seen.

        Rows that do not sum to 1, as raw maps return them, have no adaptive sets.
        """
        score: Score = "aps" if (probs.sum(dim=1) - 1).abs().amax() < 1e-3 else "threshold"
        how = Conformal(score=score)
        own = how.own_scores(probs, labels, simplex=False).clamp(0, 1).sort().values
        kept = min(len(own), KEPT)
        ranks = (torch.arange(1, kept + 1, dtype=torch.float64) * len(own) / kept).ceil()
        scores = tuple(own.cpu()[ranks.long() - 1].tolist())
        return cls(len(own), scores, score, probs.amax(dim=1).min().item())

    @classmethod
    def read(cls, about: Mapping[str, Any]) -> "ConformityScores":
        """Make them of what a file says, after checking it."""
        images, scores = int(about["images"]), tuple(float(score) for score in about["scores"])
        ordered = all(0 <= a <= b <= 1 for a, b in pairwise((*scores, 1.0)))
        if not scores or not ordered or images < len(scores):
            raise InputError(
                "conformity scores: expected numbers between 0 and 1 in ascending order, got others"
            )
        least = check_one("least", about.get("least", 0.0), float)
        score = check_one("score", about.get("score", "threshold"), Score)
        return cls(images, scores, score, least)

    def sets(self, coverage: float) -> ConformalSets:
        """Return the sets that hold the true class with this probability."""
        how = Conformal(coverage=coverage, score=self.score)
        place = math.ceil(_rank(coverage, self.images) * len(self.scores) / self.images)
        threshold = self.scores[place - 1]
        if self.score == "aps":  # the classes of a set hold at least `coverage` of the probability
            threshold = max(threshold, coverage)
        return ConformalSets(how, threshold, simplex=False, least=self.least)


def cross_checked(
    how: Conformal,
    probs: Probs | LazyProbs,
    labels: Labels,
    *,
    seed: int = 0,
    simplex: bool = True,
) -> tuple[float, float]:
    """Return coverage and mean size: each half of the images with the threshold of the other."""
    assert isinstance(how.coverage, float)
    generator = torch.Generator().manual_seed(seed)
    halves = torch.randperm(probs.shape[0], generator=generator).to(probs.device).chunk(2)
    own = how.own_scores(probs, labels, simplex=simplex)
    limits, start, found = torch.empty_like(own), 0, []
    for here, there in zip(halves, reversed(halves), strict=True):
        limits[there] = _threshold(own[here], how.coverage)
    for part in per_image(probs, labels, simplex=simplex):
        assert part.labels is not None
        sets = _near(how, part.raw, limits[start : start + len(part.raw), None])
        start += len(part.raw)
        hits = sets.gather(1, part.labels[:, None])
        found.append(torch.cat([hits, sets.sum(dim=1, keepdim=True)], dim=1).double())
    coverage, size = torch.stack([torch.cat(found)[half].mean(dim=0) for half in halves]).mean(0)
    return float(coverage), float(size)


def _at_least_two(probs: Any) -> Any:
    """Check types and shapes."""
    found, _ = validate(probs, None)
    if found.shape[1] < 2:
        raise InputError(f"probs: expected at least two classes, got shape {tuple(found.shape)}")
    return found
