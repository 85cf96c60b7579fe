"""What each image adds to the metrics: probabilities, checked once, and the terms of every mean, some images at a time."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import log
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from atta._base.errors import InputError
from atta._base.types import dense

Array: TypeAlias = Tensor | np.ndarray
LabelArray: TypeAlias = Tensor | np.ndarray | Sequence[Any]

CHUNK = 2**18  # probabilities looked at together: 2 MB, whatever the size of the set
RANGE_TOLERANCE = 1e-4
SUM_TOLERANCE = 1e-3


def validate(
    probs: Array, labels: LabelArray | None
) -> tuple[Float[Tensor, "n k"], Int[Tensor, "n"] | None]:
    """Types, shapes and labels; the values of `probs` are checked on the way, in `per_image`."""
    p = as_tensor(probs, "probs")
    if p.ndim != 2 or 0 in p.shape:
        raise InputError(
            f"probs: expected images × classes, at least 1 × 1, got shape {tuple(p.shape)}"
        )
    if not p.is_floating_point():
        raise InputError(f"probs: expected floating point numbers, got {p.dtype}")
    if labels is None:
        return p, None
    (n, k), y = p.shape, as_tensor(labels, "labels")
    if y.shape != (n,):
        raise InputError(f"labels: expected one for each of {n} images, got shape {tuple(y.shape)}")
    if y.is_floating_point() or y.is_complex() or y.dtype is torch.bool:
        raise InputError(f"labels: expected integers in 0..{k - 1}, got {y.dtype}")
    y = y.to(p.device, torch.int64)
    wrong = (y < 0) | (y >= k)
    if wrong.any():
        raise InputError(f"labels: expected integers in 0..{k - 1}, got {_first(y, wrong)}")
    return p, y


@dataclass(frozen=True)
class Images:
    """Images that were validated; what takes time, float64 and a matrix of hits, is made where somebody asks."""

    raw: Float[Tensor, "n k"]
    labels: Int[Tensor, "n"] | None
    confidence: Float[Tensor, "n"]
    winner: Int[Tensor, "n"]
    tiny: float

    @cached_property
    def probs(self) -> Float[Tensor, "n k"]:
        """In float64, a rounding outside [0, 1] clamped."""
        return torch.clamp(self.raw.double(), 0, 1)

    @cached_property
    def correct(self) -> Float[Tensor, "n"]:
        """1 where the predicted class is the true one; 0 without labels."""
        return (
            torch.zeros_like(self.confidence)
            if self.labels is None
            else torch.eq(self.winner, self.labels).double()
        )

    @cached_property
    def hits(self) -> Float[Tensor, "n k"] | None:
        """1 for the true class of an image, 0 for the others; None without labels."""
        return (
            None
            if self.labels is None
            else torch.zeros_like(self.probs).scatter_(1, self.labels[:, None], 1)
        )

    @cached_property
    def nats(self) -> Float[Tensor, "n"]:
        """The entropy of each image."""
        nats: Tensor = torch.special.entr(self.probs).sum(1)
        return nats

    def term(self, name: str) -> Float[Tensor, "n"]:
        """What each image adds to a metric that is a mean."""
        return TERMS[name](self)

    def terms(self, names: Iterable[str]) -> dict[str, Float[Tensor, "n"]]:
        """Those of these metrics that are means; without labels, those that need none."""
        known = TERMS if self.labels is not None else UNLABELLED
        return {name: self.term(name) for name in names if name in known}


def _own(images: Images) -> Float[Tensor, "n"]:
    """The probability of each image's true class."""
    assert images.labels is not None
    return images.raw.gather(1, images.labels[:, None])[:, 0].double().clamp(0, 1)


UNLABELLED = ("entropy", "shannon_entropy")
TERMS: dict[str, Callable[[Images], Float[Tensor, "n"]]] = {
    "accuracy": lambda images: images.correct,
    "brier": lambda images: (images.confidence - images.correct).square(),
    "mc_brier": lambda images: (images.probs - images.hits).square_().sum(1),  # type: ignore[operator]
    "nll": lambda images: -_own(images).clamp_min(images.tiny).log(),
    "entropy": lambda images: images.nats / log(2) / images.probs.shape[1],
    "shannon_entropy": lambda images: images.nats,
}


def per_image(
    probs: Float[Tensor, "n k"], labels: Int[Tensor, "n"] | None, *, simplex: bool
) -> Iterator[Images]:
    """The images, some at a time, their values checked in the dtype they are given in, where that is float32 or wider."""
    finfo, step = torch.finfo(probs.dtype), max(1, CHUNK // probs.shape[1])
    # Half precision rounds a sum by up to its eps, which for bfloat16 is more than the usual tolerance.
    tolerance = max(SUM_TOLERANCE, finfo.eps)
    for start in range(0, probs.shape[0], step):
        p = probs[start : start + step]
        p = p.to(torch.promote_types(p.dtype, torch.float32))
        check_unit(
            p,
            "probs",
            start,
            ": these are not probabilities; if they are logits, take their softmax first",
        )
        if (
            simplex and ((p.sum(1) - 1).abs() > 0.9 * tolerance).any()
        ):  # float64 decides, where it may be close
            total = p.sum(1, dtype=torch.float64)
            off = (total - 1).abs() > tolerance
            if off.any():
                got = f"{_first(total, off, start)} (simplex=False takes rows that are left unnormalised)"
                raise InputError(f"probs: expected rows that sum to 1, got a sum of {got}")
        winner = first_largest(p)
        y = None if labels is None else labels[start : start + step]
        yield Images(
            p, y, p.gather(1, winner[:, None])[:, 0].double().clamp_(0, 1), winner, finfo.tiny
        )


def first_largest(p: Float[Tensor, "n k"]) -> Int[Tensor, "n"]:
    """The class of each image, the first of the largest; on a CPU NumPy finds it in a fifth of the time."""
    return p.argmax(1) if p.device.type != "cpu" else torch.from_numpy(p.numpy().argmax(1))


def as_tensor(x: Any, name: str) -> Tensor:
    """Numbers as a tensor that can be taken to float64; `name` is what a refusal calls them."""
    if not isinstance(x, Tensor):
        try:  # torch shares the memory of an array that is contiguous and writeable; numpy copies the others
            array = np.require(x, requirements=["C", "W"])
            x = torch.as_tensor(array.astype(array.dtype.newbyteorder("="), copy=False))
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise InputError(
                f"{name}: expected an array of numbers, got {type(x).__name__}: {error}"
            ) from error
    tensor = dense(x.detach(), name)
    if tensor.is_complex():
        raise InputError(f"{name}: expected real numbers, got {tensor.dtype}")
    return tensor.cpu() if tensor.device.type == "mps" else tensor  # which has no float64


def check_unit(x: Tensor, name: str, start: int = 0, hint: str = "") -> None:
    """Refuse what is not in [0, 1], but for its rounding."""
    low, high = x.aminmax()  # NaN if any value is, and then no comparison holds
    if low >= -RANGE_TOLERANCE and high <= 1 + RANGE_TOLERANCE:
        return
    if not x.isfinite().all():
        raise InputError(f"{name}: expected finite numbers, got {_first(x, ~x.isfinite(), start)}")
    outside = (x < -RANGE_TOLERANCE) | (x > 1 + RANGE_TOLERANCE)
    raise InputError(f"{name}: expected values in [0, 1], got {_first(x, outside, start)}{hint}")


def _first(x: Tensor, wrong: Tensor, start: int = 0) -> str:
    place = wrong.nonzero()[0].tolist()
    return f"{x[tuple(place)].item():.6g} in row {start + place[0]}"
