"""Check probabilities and labels once, and compute what each image adds to every metric.

`validate` checks types, shapes and labels. `per_image` reads the images in chunks, checks the
values and yields `Images`, and TERMS are the summands of the metrics that are means.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import log
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from atta._base import tensors
from atta._base.errors import InputError
from atta._base.tensors import piece_rows
from atta._base.types import Labels, PerImage, Probs
from atta.record.predictions import as_labels

Array: TypeAlias = Tensor | np.ndarray
LabelArray: TypeAlias = Tensor | np.ndarray | Sequence[Any]

CHUNK = 2**18  # probabilities per chunk: 2 MB in float64, whatever the size of the set
RANGE_TOLERANCE = 1e-4
SUM_TOLERANCE = 1e-3


@dataclass(frozen=True)
class LazyProbs:
    """Probabilities, images × classes, that are computed for the rows that are asked for.

    Metrics read some rows at a time, so memory does not grow with the images.
    """

    shape: tuple[int, int]
    dtype: torch.dtype
    device: torch.device
    read: Callable[[slice], Probs]
    ndim: int = 2

    def is_floating_point(self) -> bool:
        """Whether the dtype is that of probabilities."""
        return self.dtype.is_floating_point

    def __getitem__(self, rows: slice) -> Probs:
        return self.read(rows)

    def __len__(self) -> int:
        return self.shape[0]


AnyProbs: TypeAlias = Array | LazyProbs


def validate(probs: Any, labels: Any) -> tuple[Probs | LazyProbs, Labels | None]:
    """Check types, shapes and labels; `per_image` checks the values of `probs`."""
    p = probs if isinstance(probs, LazyProbs) else as_tensor(probs, "probs")
    if p.ndim != 2 or 0 in p.shape:
        raise InputError(
            f"probs: expected images × classes, at least 1 × 1, got shape {tuple(p.shape)}"
        )
    if not p.is_floating_point():
        raise InputError(f"probs: expected floating point numbers, got {p.dtype}")
    if labels is None:
        return p, None
    images, classes = p.shape
    return p, as_labels(labels, images=images, classes=classes).to(p.device)


@dataclass(frozen=True)
class Images:
    """A chunk of validated images; float64 copies are made when a metric first needs them.

    Without labels, `correct` and `true`, the probability of the true class, are 0.
    """

    raw: Probs
    labels: Labels | None
    confidence: PerImage
    winner: Labels
    correct: PerImage
    true: PerImage
    tiny: float

    @cached_property
    def probs(self) -> Probs:
        """The probabilities in float64, rounding errors outside [0, 1] clamped."""
        return self.raw.to(torch.float64, copy=True).clamp_(0, 1)

    @property
    def excess(self) -> Probs:
        """The probabilities minus 1 for the true class and 0 for the others."""
        assert self.labels is not None
        return self.probs.scatter(1, self.labels[:, None], self.true[:, None].clamp(0, 1) - 1)

    @cached_property
    def nats(self) -> PerImage:
        """The entropy of each image."""
        return torch.special.entr(self.probs).sum(1)  # type: ignore[no-any-return]


UNLABELLED = ("entropy", "shannon_entropy")
TERMS: dict[str, Callable[[Images], PerImage]] = {
    "accuracy": lambda images: images.correct,
    "brier": lambda images: (images.confidence - images.correct).square(),
    "mc_brier": lambda images: images.excess.norm(dim=1).square_(),
    "nll": lambda images: -images.true.clamp(images.tiny, 1).log(),
    "entropy": lambda images: images.nats / log(2) / images.probs.shape[1],
    "shannon_entropy": lambda images: images.nats,
}
"""What each image adds to the metrics that are means."""


def per_image(
    probs: Probs | LazyProbs,
    labels: Labels | None,
    *,
    simplex: bool,
    confidence: Array | None = None,
) -> Iterator[Images]:
    """Yield the images in chunks, their values checked in the given dtype, at least float32.

    The confidence of an image is its largest probability if none is given.
    """
    given = None if confidence is None else as_tensor(confidence, "confidence").to(probs.device)
    if given is not None:
        if given.shape != probs.shape[:1]:
            raise InputError(
                f"confidence: expected one for each of {len(probs)} images, got shape "
                f"{tuple(given.shape)}"
            )
        check_unit(given, "confidence")
    finfo, step = torch.finfo(probs.dtype), piece_rows(CHUNK, probs.shape[1], probs.device)
    # Half precision rounds a sum by up to its eps, which for bfloat16 exceeds the usual tolerance.
    tolerance = max(SUM_TOLERANCE, finfo.eps)
    hint = ": these are not probabilities; if they are logits, take their softmax first"
    for start in range(0, probs.shape[0], step):
        p = probs[start : start + step]
        p = p.to(torch.promote_types(p.dtype, torch.float32))
        check_unit(p, "probs", start, hint)
        total = p.sum(1, dtype=torch.float64)
        off = (total - 1).abs() > tolerance
        if simplex and off.any():
            raise InputError(
                f"probs: expected rows that sum to 1, got a sum of {_first(total, off, start)} "
                "(simplex=False accepts rows that are not normalised)"
            )
        # The first of equal ones is the class; NumPy is 5 times faster on a CPU.
        winner = torch.from_numpy(p.numpy().argmax(1)) if p.device.type == "cpu" else p.argmax(1)
        sure = p.gather(1, winner[:, None])[:, 0] if given is None else given[start : start + step]
        sure = sure.double().clamp(0, 1)
        y, correct, true = None, torch.zeros_like(sure), torch.zeros_like(sure)
        if labels is not None:
            y = labels[start : start + step]
            correct, true = (winner == y).double(), p.gather(1, y[:, None])[:, 0].double()
        yield Images(p, y, sure, winner, correct, true, finfo.tiny)


def as_tensor(x: Any, name: str) -> Tensor:
    """Return real numbers as a tensor; error messages call them `name`."""
    tensor = tensors.as_tensor(x, name, "an array of numbers", lists_as_numpy=True).detach()
    if tensor.is_complex():
        raise InputError(f"{name}: expected real numbers, got {tensor.dtype}")
    return tensor.cpu() if tensor.device.type == "mps" else tensor  # MPS has no float64


def check_unit(x: Tensor, name: str, start: int = 0, hint: str = "") -> None:
    """Raise `InputError` for values outside [0, 1], up to rounding; `start` is the first row."""
    low, high = x.aminmax()  # NaN if any value is NaN: then the comparison is false
    if low >= -RANGE_TOLERANCE and high <= 1 + RANGE_TOLERANCE:
        return
    if not x.isfinite().all():
        raise InputError(f"{name}: expected finite numbers, got {_first(x, ~x.isfinite(), start)}")
    outside = (x < -RANGE_TOLERANCE) | (x > 1 + RANGE_TOLERANCE)
    raise InputError(f"{name}: expected values in [0, 1], got {_first(x, outside, start)}{hint}")


def _first(x: Tensor, wrong: Tensor, start: int = 0) -> str:
    """Name the first wrong value and its row."""
    place = wrong.nonzero()[0].tolist()
    return f"{x[tuple(place)].item():.6g} in row {start + place[0]}"
