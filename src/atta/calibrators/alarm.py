"""An alarm for a stream of images: a test that may be repeated after every batch.

A test with a false-alarm rate of 1 % that is repeated until it fires fires for certain. The alarm
bets instead (Vovk, "Testing randomness online", Statistical Science 2021). The rank of the score of
each image among the validation images and all earlier images, ties and gaps drawn at random,

    p = (images with a lower score + u · images in the same cell) / all images

is uniform and independent of the past, as long as the images are exchangeable. Low scores are those
of uncertain images (`shift.scores`). A bet of size λ on such images multiplies the capital by
1 + λ (1 - 2p), whose mean is then 1. A shift may begin at any batch: of a capital of 1, the part
1 / (t (t + 1)) is first bet in batch t, and each part is split over the bets BETS.

By Ville's inequality, the capital of a stream that does not shift ever reaches 1 / rate with a
probability of at most `rate`, however long the stream is. Memory is constant: the scores are
counted in the cells between the quantiles that `Reference` stores.
"""

import math

import numpy as np

from atta._base.errors import InputError
from atta._base.types import PerImage
from atta.calibrators.shift import Reference

RATE = 0.01
"""The probability that a stream that does not shift ever raises the alarm."""
BETS = np.array([0.25, 0.5, 1.0])


class Alarm:
    """Watches the scores of a stream of images; `raised` says since which image, if it has.

    Args:
        reference: The validation images.
        rate: The probability that a stream that does not shift ever raises the alarm.
        seed: The seed of the numbers that break ties.
    """

    def __init__(self, reference: Reference, *, rate: float = RATE, seed: int = 0) -> None:
        if not 0 < rate < 1:
            raise InputError(f"rate: expected a probability between 0 and 1, got {rate}")
        self.rate, self.images, self.batches = rate, 0, 0
        self.raised: int | None = None
        self._quantiles = np.array(reference.quantiles)
        cells = np.ones(len(self._quantiles) + 1)
        cells[[0, -1]] = 0.5
        self._cells = cells * reference.images / cells.sum()
        self._random = np.random.default_rng(seed)
        self._capital = np.full(len(BETS), -math.inf)  # logarithms, of what has been bet

    @property
    def evidence(self) -> float:
        """The capital: 1 at the beginning, and large after a shift."""
        with np.errstate(over="ignore"):
            return float(np.exp(self._capital).mean() + 1 / (self.batches + 1))

    def update(self, seen: PerImage) -> bool:
        """Bet on the scores of one batch; return whether the alarm is raised."""
        self.images += len(seen)
        if self.raised is not None or not len(seen):
            return self.raised is not None
        ranks, self.batches = self._ranks(seen.double().cpu().numpy()), self.batches + 1
        begun = np.logaddexp(self._capital, -math.log(self.batches * (self.batches + 1)))
        self._capital = begun + np.log1p(BETS[:, None] * (1 - 2 * ranks)).sum(axis=1)
        if self.evidence >= 1 / self.rate:
            self.raised = self.images
        return self.raised is not None

    def _ranks(self, seen: np.ndarray) -> np.ndarray:
        """Return the rank of each score among all before it, and count it."""
        first, last = (np.searchsorted(self._quantiles, seen, side) for side in ("left", "right"))
        places = self._random.integers(first, last, endpoint=True)
        total, drawn = self._cells.sum(), self._random.random(len(seen))
        ranks = np.empty(len(seen))
        for i, (cell, part) in enumerate(zip(places, drawn, strict=True)):
            below = self._cells[:cell].sum() + part * (self._cells[cell] + 1)
            ranks[i] = below / (total + i + 1)
            self._cells[cell] += 1
        return ranks
