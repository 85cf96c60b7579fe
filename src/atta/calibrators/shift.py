"""Dataset shift: estimate the accuracy on unlabelled images, and soften a calibrator to it.

Under a shift, one number per domain helps: the accuracy. Three things tell it without labels.

**The fall of ATC** (Garg et al., "Leveraging unlabeled data to predict out-of-distribution
performance", ICLR 2022). An image is *sure* if its score, the negative entropy of softmax(logits /
T), reaches a threshold that as many validation images reach as are classified correctly. With A the
fraction of sure images (on the validation images a0, the accuracy), fall = a0 - A.

**The skew of the answers.** Networks that are lost answer few classes, and are sure of them: ATC is
10 to 20 points too high exactly there. With s_j the share of the answers that class j has among
n images, m_j that among the N validation images,

    g = log max(1, Σ_j s_j (c_j - 1) / (n - 1) · (1 - v_j) / m_j) / log k       c_j = n s_j

measures it from 0 (the shares of the validation images) to 1 (one class). Pairs of different images
are counted, so that few images do not look skewed; v_j, the relative variance of m_j, takes off
what the noise of m_j adds. It is a Rényi divergence of order 2.

**The guard against label shift.** If other classes occur than before, the answers are skewed, too,
but the classes that are answered more often than before are right as often as ever: only the
others become unsure. With F the fall among the images of either kind (drawn towards A),

    r = F(answered more often) / F(others)             w = (r - 0.3) / 0.3, between 0 and 1

    â = a0 - b · fall - c · w · A · g                  at least a0 - 2.5 fall, and 1.5 / k

If A has not fallen, â = A. b and c, near 1, are fitted to the rehearsals of the validation images,
in groups of one family of corruption at one severity: the fall of the accuracy over the fall of A
and A · g, by least squares with the prior b = 1 ± 0.3, c = 1 ± 0.5. The form and the constants were
chosen on public CIFAR networks under other corruptions (docs/shift.md); the weight of the
guard on rehearsals that were left out, the balance on corruptions of a network that is not among
those of docs/adapting.md.

**The balance.** Under a shift, the classes that are answered too often are wrong most often. With
m_j as above and q_j the mean probability of class j among the images (16 images with m_j added),
the probability of class j is multiplied by (m_j / q_j)^(w'/2). The exponent is 1/2, half-way to the
shares of the validation images, times the guard, in which r is lowered by its standard error: few
images, or images of other classes, change nothing. The class stays, by the guard of the blend.

**The rule.** Nothing changes unless the images are significantly less certain than the validation
images, by a one-sided rank test (Mann & Whitney) of the scores with a false-alarm rate of LEVEL.
Then κ ≤ 1 is the largest softness at which the mean confidence of the *hedged* calibrator, after
the balance, is at most â plus its standard error: with few images, it changes less.

**The second opinion** is the same network with the statistics of the new images. Its logits
(`networks.borrowing`) are one more view, with SECOND of the weight, softened to the accuracy that
is estimated for them. It is used if the images have drifted, that accuracy is at least RISE higher
than the network's own, and the guard (w' > 0) sees a shift that collapses the answers. If other
classes occur than before, statistics of their images make the network worse, and more certain.

**Pixels.** The pixels of an image are not independent, and new images also have pixels that no mask
labels. The scores of the validation images are therefore those of any pixels. Errors go by image:
m pixels of an image count as m / (1 + (m - 1) ρ), with ρ the correlation of their scores' ranks.
The shares of classes differ from scene to scene without any shift: there is neither a skew (c = 0)
nor a balance. b is 1 or more: under rehearsals, pixels lose more confidence than accuracy.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from atta._base.errors import InputError
from atta._base.types import Labels, Logits, PerImage
from atta.calibrators.atta import ViewBlend
from atta.calibrators.base import Calibrator
from atta.calibrators.fitting import standard_error
from atta.calibrators.hedged import rehearsing
from atta.calibrators.scaling import Temperature, fit_temperature, scaled
from atta.record.predictions import Predictions, group_count

LEVEL = 0.01
"""The false-alarm rate of the test for drift."""
LEAST = 32
"""The fewest unlabelled images to adapt to."""
LEAST_OF_PIXELS = 8
"""The fewest unlabelled images to adapt a segmenter to."""
QUANTILES = 256
CELLS = 20
NORMAL = 1.96
GROUP = 20
"""The fewest rehearsed images of one family and severity to learn from."""
PRIOR, PRIOR_DEVIATION = np.array([1.0, 1.0]), np.array([0.3, 0.5])
"""What is expected of b and c before the rehearsals."""
GROUP_DEVIATION = 0.03
"""How far the accuracy of a group lies from the formula, besides the noise of its images."""
DRAWN = 10
"""As many images with the mean of all are added to either kind in the guard."""
NOISE = 1.3
"""The variance of the sample over that of the linearised formula, which leaves out the guard."""
DEVIATION, DEVIATION_PER_FALL = 0.01, 0.07
"""How far the accuracy of a domain lies from the formula, besides the noise of its images."""
STEEPEST = 2.5
STATISTICS = "statistics"
"""The view whose logits are those of the network with statistics of the new images."""
SECOND = 0.9
"""Its part of the weights: with less, sets of images with half of the classes were harmed."""
RISE = 0.03
BALANCE, SHARES = 0.5, 16
"""How far the classes are drawn to the shares of the validation images, and images added to q."""


@dataclass(frozen=True, kw_only=True)
class Reference:
    """What a classifier remembers of the validation images to compare other images with them.

    Args:
        images: The number of validation images.
        classes: The number of classes.
        accuracy: The accuracy on them.
        confidence: The mean confidence of the calibrator.
        temperature: The temperature of the scores.
        threshold: The score that as many images reach as are classified correctly.
        quantiles: Quantiles of the scores.
        histogram: The fraction of the images in each of CELLS cells of the confidence.
        answers: How often each class was answered; files of older versions have no such counts.
        slope: b, how much faster the accuracy falls than A does; None without rehearsals.
        skew: c, how much the accuracy falls with the skew of the answers.
        alike: ρ, the correlation of pixels of an image; 0 if the rows are images.
        per_image: How many rows each image has.
        unlabelled: The mean confidence of any pixels, minus that of labelled ones.
    """

    images: int
    classes: int
    accuracy: float
    confidence: float
    temperature: float
    threshold: float
    quantiles: tuple[float, ...]
    histogram: tuple[float, ...] = ()
    answers: tuple[int, ...] = ()
    slope: float | None = None
    skew: float = 0.0
    alike: float = 0.0
    per_image: float = 1.0
    unlabelled: float = 0.0

    @classmethod
    def of(
        cls,
        calibrator: Calibrator,
        predictions: Predictions,
        labels: Labels,
        families: Mapping[str, Labels] | None = None,
        anywhere: Predictions | None = None,
    ) -> Reference:
        """Make one of the images that a calibrator was fitted to, and of their rehearsals.

        Args:
            calibrator: The calibrator.
            predictions: Its images.
            labels: Their classes.
            families: The family of corruption of each image, by rehearsal; by default one.
                Without rehearsals, views that lower the accuracy replace them.
            anywhere: For pixels: pixels with and without a label, as other images will have.
        """
        temperature = float(fit_temperature(predictions.logits.double(), labels))
        hits = predictions.logits.argmax(dim=1) == labels
        sample = predictions if anywhere is None else anywhere
        seen, answers = scores(sample.logits, temperature), sample.logits.argmax(dim=1)
        count = round(float(hits.double().mean()) * len(seen))
        threshold = float(seen.sort(descending=True).values[count - 1]) if count else 1.0
        confidence = calibrator(sample).double().amax(dim=1)
        labelled = confidence if anywhere is None else calibrator(predictions).double().amax(dim=1)
        kept = min(QUANTILES, len(seen))
        places = (torch.arange(kept, dtype=torch.float64) + 0.5) / kept
        found = cls(
            images=len(sample),
            classes=predictions.classes,
            accuracy=float(hits.double().mean()),
            confidence=float(confidence.mean()),
            temperature=temperature,
            threshold=threshold,
            quantiles=tuple(torch.quantile(seen, places.to(seen)).tolist()),
            histogram=histogram(confidence),
            answers=tuple(torch.bincount(answers, minlength=predictions.classes).tolist()),
            alike=_alike(seen, sample.images),
            per_image=len(sample) / sample.image_count,
            unlabelled=float(confidence.mean() - labelled.mean()),
        )
        return found._taught(predictions, labels, families)

    def _taught(
        self, predictions: Predictions, labels: Labels, families: Mapping[str, Labels] | None
    ) -> Reference:
        """Fit b and c to the rehearsals, in groups of one family and severity; see above."""
        right = (predictions.logits.argmax(dim=1) == labels).double()
        sure = self.sure(scores(predictions.logits, self.temperature)).double()
        rows = [np.zeros((0, 3))]
        kinds = predictions.rehearsals or rehearsing(predictions, labels)
        for kind in kinds:
            group = (families or {}).get(kind, torch.zeros_like(labels)).to(labels)
            for view in predictions.views[kind].unbind(dim=1):
                now = self.sure(scores(view, self.temperature)).double()
                answers = view.argmax(dim=1)
                lost = right - (answers == labels).double()
                for family in range(int(group.max()) + 1):
                    here = group == family
                    if (n := self.worth(here, predictions.images)) >= GROUP:
                        part, fall, lower = (float(x[here].mean()) for x in (now, sure - now, lost))
                        error = math.hypot(GROUP_DEVIATION, 0.5 / math.sqrt(n))
                        counts = torch.bincount(answers[here], minlength=self.classes)
                        skewed = part * self.skewness(counts.cpu().numpy())
                        rows.append(np.array([[fall, skewed, lower]]) / error)
        if not kinds:
            return self
        known = np.concatenate(rows)
        x, y, precision = known[:, :2], known[:, 2], PRIOR_DEVIATION**-2.0
        slope, skew = np.linalg.solve(x.T @ x + np.diag(precision), x.T @ y + precision * PRIOR)
        if predictions.images is not None:
            return replace(self, slope=max(1.0, float(slope)))
        return replace(self, slope=float(slope), skew=float(skew))

    def worth(self, rows: Tensor, images: Labels | None) -> float:
        """Return how many independent rows these rows are worth."""
        count = float(rows.sum())
        if images is None or not count:
            return count
        each = count / group_count(images[rows])
        return count / (1 + (each - 1) * self.alike)

    def sure(self, seen: PerImage) -> Tensor:
        """Return which scores reach the threshold."""
        return seen >= self.threshold

    @property
    def shares(self) -> np.ndarray:
        """How often each class was answered, with one answer more for each."""
        return (np.array(self.answers) + 1) / (self.images + self.classes)

    def skewness(self, counts: np.ndarray) -> float:
        """Return g for images that were answered so often in each class; see above."""
        n, part = counts.sum(), np.array(self.answers) / self.images
        noise = part * (1 - part) * self.images / (self.images + self.classes) ** 2 / self.shares**2
        pairs = counts * (counts - 1) / (n * (n - 1))
        excess = (pairs * (1 - noise.clip(max=0.5)) / self.shares).sum()
        return math.log(max(1.0, excess)) / math.log(self.classes)

    @classmethod
    def read(cls, about: dict[str, Any]) -> Reference:
        """Make one of what `json` returned, in this version or an older one."""
        known: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in about.items()
            if name in cls.__dataclass_fields__
        }
        return cls(**known)

    def json(self) -> dict[str, Any]:
        """Return plain numbers and tuples of them."""
        return asdict(self)


def _alike(seen: PerImage, images: Labels | None) -> float:
    """Return the correlation of the ranks of pixels of an image (analysis of variance)."""
    if images is None:
        return 0.0
    rank = seen.argsort().argsort().double() / len(seen)
    mean = float(rank.mean())
    between = standard_error(rank, images) ** 2 * len(rank)
    within = max(float((rank - mean).square().mean()), 1e-12)
    more = len(rank) / group_count(images) - 1
    return float(min(max((between / within - 1) / max(more, 1.0), 0.0), 1.0))


def check_enough(predictions: Predictions) -> None:
    """Refuse too few unlabelled images."""
    count, least = predictions.image_count, LEAST if predictions.images is None else LEAST_OF_PIXELS
    if count < least:
        raise InputError(f"expected at least {least} images, got {count}, which say too little")


def histogram(confidence: PerImage) -> tuple[float, ...]:
    """Return the fraction of the images in each of CELLS equal cells of [0, 1]."""
    counts = torch.histc(confidence.double().cpu(), CELLS, 0, 1)
    return tuple((counts / max(1, len(confidence))).tolist())


def scores(logits: Logits, temperature: float) -> PerImage:
    """Return the negative entropy of softmax(logits / temperature): 0 for a certain image."""
    wide = logits.double()
    negative: Tensor = -torch.special.entr(scaled(wide, wide.new_tensor(temperature))).sum(dim=1)
    return negative


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The estimated accuracy on unlabelled images.

    Args:
        images: The number of images.
        accuracy: The estimated accuracy.
        low: The lower end of its 95 % interval.
        high: The upper end of its 95 % interval.
        p_value: How often images without a shift would look as uncertain as these.
        error: The standard error of the accuracy; 0 in files of older versions.
    """

    images: int
    accuracy: float
    low: float
    high: float
    p_value: float
    error: float = 0.0

    @property
    def drifted(self) -> bool:
        """Whether these images are significantly less certain than the validation images."""
        return self.p_value < LEVEL


def unlike(reference: Reference, seen: PerImage) -> PerImage:
    """Return for each score the fraction of the validation images with a higher one."""
    known = torch.tensor(reference.quantiles, dtype=torch.float64)
    below = torch.searchsorted(known, seen.double().cpu().contiguous(), side="right")
    return (len(known) - below.double()) / len(known)  # 0.05, and not 0.050000000000000044


def _guard(
    reference: Reference, sure: np.ndarray, answered: np.ndarray, errors: float = 0.0
) -> float:
    """Return w, with r lowered by so many of its standard errors; see above."""
    often = (np.bincount(answered, minlength=reference.classes) / len(sure) > reference.shares)[
        answered
    ]
    part, ratio, noise = sure.mean(), 1.0, 0.0
    for kind, power in ((often, 1), (~often, -1)):
        images = kind.sum() + DRAWN
        fall = max(0.0, reference.accuracy - (sure[kind].sum() + DRAWN * part) / images) + 0.01
        ratio *= fall**power
        noise += 0.25 / images / fall**2
    return float(np.clip((ratio * (1 - errors * math.sqrt(noise)) - 0.3) / 0.3, 0, 1))


def guarded(reference: Reference, predictions: Predictions) -> float:
    """Return w', the guard of the balance: 0 where other classes may occur; see above."""
    logits = predictions.logits
    sure = reference.sure(scores(logits, reference.temperature)).cpu().numpy()
    pixels = predictions.images is not None
    if pixels or not reference.answers or sure.mean() >= reference.accuracy:
        return 0.0
    return _guard(reference, sure, logits.argmax(dim=1).cpu().numpy(), errors=1.0)


def balanced(hedged: Calibrator, reference: Reference, predictions: Predictions) -> Calibrator:
    """Return the calibrator with the classes drawn to their validation shares; see above."""
    guard = guarded(reference, predictions)
    if guard == 0 or not isinstance(hedged, ViewBlend | Temperature):
        return hedged
    shares = torch.from_numpy(reference.shares)
    total = hedged(predictions).double().cpu().sum(dim=0) + SHARES * shares
    odds = (shares * (len(predictions) + SHARES) / total) ** (BALANCE * guard)
    found = copy.deepcopy(as_blend(hedged))
    found.odds = odds.to(found.weights)
    return found


def as_blend(calibrator: ViewBlend | Temperature) -> ViewBlend:
    """Return a temperature as a blend without views; blends stay."""
    if isinstance(calibrator, ViewBlend):
        return calibrator
    one = calibrator.temperature
    blend = ViewBlend(1 / one.reshape(1, 1), torch.ones_like(one), one, kinds=(), itself=True)
    blend.classes, blend.method = calibrator.classes, calibrator.method
    return blend


def estimate(reference: Reference, logits: Logits, images: Labels | None = None) -> Estimate:
    """Estimate the accuracy on unlabelled images, or on pixels of `images`, from their logits."""
    seen = scores(logits, reference.temperature)
    return estimated(reference, seen, logits.argmax(dim=1), images)


def estimated(
    reference: Reference, seen: PerImage, answers: Labels, images: Labels | None = None
) -> Estimate:
    """Estimate the accuracy from the scores of the images and the classes answered; see above.

    If the rows are pixels, `images` says to which image each belongs.
    """
    n, a0, k = len(seen), reference.accuracy, reference.classes
    sure, answered = reference.sure(seen).cpu().numpy(), answers.cpu().numpy()
    part = sure.mean()
    fall = a0 - part
    slope, lost, more = (reference.slope or 1.0) if fall > 0 else 1.0, 0.0, np.zeros(n)
    if fall > 0 and reference.answers:
        counts = np.bincount(answered, minlength=k)
        weight = _guard(reference, sure, answered) * reference.skew
        lost = weight * reference.skewness(counts)
        # The change of the skew with each image, whose class has this excess.
        excess = (counts / n / reference.shares)[answered]
        more = 2 * weight * part * (excess / excess.mean() - 1) / math.log(k)
    steepest = STEEPEST if fall > 0 else 1.0
    accuracy = max(a0 - slope * fall - lost * part, a0 - steepest * fall, 1.5 / k)
    accuracy = float(min(accuracy, 1.0))
    # Errors of the sample, of the accuracy and threshold of the reference, and of the formula.
    change = (slope - lost) * (sure - part) - more
    known = (slope**2 + (1 - slope) ** 2) * a0 * (1 - a0) / reference.images
    known *= 1 + (reference.per_image - 1) * reference.alike
    alone = reference.worth(torch.ones_like(seen, dtype=torch.bool), images)
    noise = NOISE * change.var() / alone
    if images is not None:
        noise = max(noise, standard_error(torch.from_numpy(change), images.cpu()) ** 2)
    formula = DEVIATION + DEVIATION_PER_FALL * max(0.0, a0 - accuracy)
    error = math.sqrt(noise + known + 1 / (alone + 2) ** 2 + formula**2)
    return Estimate(
        images=n if images is None else group_count(images),
        accuracy=accuracy,
        low=max(0.0, accuracy - NORMAL * error),
        high=min(1.0, accuracy + NORMAL * error),
        p_value=_p_value(reference, seen, images, alone),
        error=error,
    )


def _p_value(reference: Reference, seen: PerImage, images: Labels | None, alone: float) -> float:
    """Return the one-sided p-value of the mean rank of the scores (Mann & Whitney, normal)."""
    known, new = np.array(reference.quantiles), seen.cpu().numpy()
    left, right = (np.searchsorted(known, new, side=side) for side in ("left", "right"))
    ranks = (left + right) / (2 * len(known))
    before = (1 + (reference.per_image - 1) * reference.alike) / reference.images
    deviation = math.sqrt((1 / alone + before) / 12)
    if images is None:
        return float(stats.norm.sf((0.5 - ranks.mean()) / deviation))
    # The images may differ more than those of the validation set.
    error = standard_error(torch.from_numpy(ranks), images.cpu())
    deviation = max(deviation, math.hypot(error, math.sqrt(before / 12)))
    return float(stats.t.sf((0.5 - ranks.mean()) / deviation, group_count(images) - 1))


@dataclass(frozen=True, kw_only=True)
class Adaptation(Estimate):
    """How a calibrator was adapted to a domain, and the estimate behind it.

    Args:
        softness: The factor of all logits; 1 if nothing was softened.
        confidence_before: The mean confidence on the images before.
        confidence: The mean confidence after.
        statistics: What became of the statistics of the images, if they were asked for.
    """

    softness: float
    confidence_before: float
    confidence: float
    statistics: str = ""

    @property
    def changed(self) -> bool:
        """Whether the classifier answers otherwise than before."""
        return self.confidence != self.confidence_before

    def __str__(self) -> str:
        saw = (
            f"of {self.images} images without labels, about {self.accuracy:.0%} are right "
            f"({self.low:.0%} to {self.high:.0%})"
        )
        if not self.drifted:
            kept = f"the mean confidence stays {self.confidence:.0%}"
            return (
                f"Not adapted, because no drift was seen (p = {self.p_value:.2g}): {saw}; {kept}."
            )
        now = (
            f"the mean confidence was {self.confidence_before:.0%} and is {self.confidence:.0%} now"
        )
        more = self.statistics and f" Statistics of the images: {self.statistics}."
        return f"Adapted: {saw}; {now}; the classes stay.{more}"


def adapt(
    calibrator: Calibrator, hedged: Calibrator, reference: Reference, predictions: Predictions
) -> tuple[Calibrator, Adaptation]:
    """Return the calibrator for these images: itself, or after a drift the hedged one, softened.

    Args:
        calibrator: The calibrator in use.
        hedged: The one that takes over if the images have drifted.
        reference: The validation images of both.
        predictions: The unlabelled images.
    """
    check_enough(predictions)
    if predictions.classes != reference.classes:
        raise InputError(
            f"expected predictions of {reference.classes} classes, as the reference has, "
            f"got {predictions.classes}"
        )
    found = estimate(reference, predictions.logits, predictions.images)
    before, softness, now = mean_confidence(calibrator, predictions), 1.0, calibrator
    if found.drifted:
        target = found.accuracy + found.error + reference.unlabelled
        hedged = balanced(hedged, reference, predictions)
        softness = softness_at(
            lambda kappa: mean_confidence(hedged.softened(kappa), predictions), target
        )
        now = hedged if softness == 1 else hedged.softened(softness)
    after = mean_confidence(now, predictions)
    return now, Adaptation(
        **asdict(found), softness=softness, confidence_before=before, confidence=after
    )


def mean_confidence(calibrator: Calibrator, predictions: Predictions) -> float:
    """Return the mean of the largest probabilities."""
    return float(calibrator(predictions).double().amax(dim=1).mean())


def softness_at(confidence: Callable[[float], float], target: float) -> float:
    """Return the largest softness with a mean confidence of at most the target, by bisection."""
    if confidence(1.0) <= target:
        return 1.0
    low, high = 1e-3, 1.0
    for _ in range(30):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if confidence(middle) <= target else (low, middle)
    return low


def refused(reference: Reference, predictions: Predictions, done: Adaptation) -> str:
    """Return why a second opinion is not even asked for, or nothing."""
    if not done.drifted:
        return "not used, because no drift was seen"
    if guarded(reference, predictions) == 0:
        return "not used, because classes may occur in other shares than before"
    return ""


def seconded(
    calibrator: Calibrator,
    hedged: Calibrator,
    reference: Reference,
    predictions: Predictions,
    done: Adaptation,
) -> tuple[Calibrator, Adaptation]:
    """Return the calibrator with a second opinion, if that is more accurate by RISE.

    Args:
        calibrator: The adapted calibrator.
        hedged: The hedged calibrator behind it.
        reference: The validation images of both.
        predictions: The unlabelled images, with the view STATISTICS.
        done: How the calibrator was adapted.
    """
    second = estimate(reference, predictions.views[STATISTICS][:, 0])
    better = f"{second.accuracy:.0%} right instead of {done.accuracy:.0%}"
    if (
        second.accuracy - done.accuracy < RISE
        or not isinstance(hedged, ViewBlend | Temperature)
        or not isinstance(calibrator, ViewBlend | Temperature)
    ):
        return calibrator, replace(done, statistics=f"not used, too little gained ({better})")
    first = as_blend(hedged)
    own = first.weights if first.itself else torch.cat([0 * first.weights[:1], first.weights])
    new = torch.full_like(own[:1], SECOND / reference.temperature)
    weights, temperature = torch.cat([(1 - SECOND) * own, new]), calibrator.temperature

    def blend(softness: float, guarded: bool) -> ViewBlend:
        found = ViewBlend(
            weights * softness,
            torch.ones_like(first.limit),
            temperature,
            kinds=(*first.kinds, STATISTICS),
            itself=True,
            guarded=guarded,
        )
        found.classes, found.method = first.classes, first.method
        return found

    def confidence(softness: float) -> float:
        return mean_confidence(blend(softness, guarded=False), predictions)

    found = blend(softness_at(confidence, second.accuracy + second.error), guarded=True)
    after = mean_confidence(found, predictions)
    return found, replace(done, confidence=after, statistics=f"used, {better} (estimated)")
