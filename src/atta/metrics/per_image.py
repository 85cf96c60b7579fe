"""What each image adds to the metrics: probabilities, checked once, and the terms of every mean, some images at a time."""

from collections.abc import Iterator, Sequence
from math import log
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from atta.errors import InputError
from atta.types import dense

Array: TypeAlias = Tensor | np.ndarray
LabelArray: TypeAlias = Tensor | np.ndarray | Sequence[Any]

CHUNK = 2**18  # probabilities looked at together: 2 MB, whatever the size of the set
RANGE_TOLERANCE = 1e-4
SUM_TOLERANCE = 1e-3


def validate(probs: Array, labels: LabelArray | None) -> tuple[Float[Tensor, "n k"], Int[Tensor, "n"] | None]:
    """Types, shapes and labels; the values of `probs` are checked on the way, in `chunks`."""
    p = as_tensor(probs, "probs")
    if p.ndim != 2 or 0 in p.shape:
        raise InputError(f"probs: expected images × classes, at least 1 × 1, got shape {tuple(p.shape)}")
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


class Rows(NamedTuple):
    """Images that were validated: float64, a rounding outside [0, 1] clamped."""

    probs: Float[Tensor, "n k"]
    labels: Int[Tensor, "n"] | None
    confidence: Float[Tensor, "n"]
    winner: Int[Tensor, "n"]
    tiny: float


def chunks(probs: Float[Tensor, "n k"], labels: Int[Tensor, "n"] | None, simplex: bool) -> Iterator[Rows]:
    """Some images at a time, their values checked."""
    finfo, step = torch.finfo(probs.dtype), max(1, CHUNK // probs.shape[1])
    for start in range(0, probs.shape[0], step):
        p = probs[start : start + step].double()
        check_unit(p, "probs", start, ": these are not probabilities; if they are logits, take their softmax first")
        total = p.sum(1)
        # Half precision rounds a sum by up to its eps, which for bfloat16 is more than the usual tolerance.
        off = (total - 1).abs() > max(SUM_TOLERANCE, finfo.eps)
        if simplex and off.any():
            got = f"{_first(total, off, start)} (simplex=False takes rows that are left unnormalised)"
            raise InputError(f"probs: expected rows that sum to 1, got a sum of {got}")
        p, winner = p.clamp(0, 1), p.argmax(1)
        y = None if labels is None else labels[start : start + step]
        yield Rows(p, y, p.gather(1, winner[:, None])[:, 0], winner, finfo.tiny)


class Images(NamedTuple):
    """What images add to the sums: a number each for every metric that is a mean, and what the bins count."""

    terms: dict[str, Float[Tensor, "n"]]
    confidence: Float[Tensor, "n"]
    correct: Float[Tensor, "n"]
    probs: Float[Tensor, "n k"]
    hits: Float[Tensor, "n k"] | None
    """1 for the true class of an image, 0 for the others; None without labels."""


def per_image(probs: Float[Tensor, "n k"], labels: Int[Tensor, "n"] | None, *, simplex: bool) -> Iterator[Images]:
    """The images, once validated, some at a time."""
    for p, y, confidence, winner, tiny in chunks(probs, labels, simplex):
        nats = torch.special.entr(p).sum(1)
        terms = {"entropy": nats / log(2) / p.shape[1], "shannon_entropy": nats}
        if y is None:
            yield Images(terms, confidence, torch.zeros_like(confidence), p, None)
            continue
        correct, hits = (winner == y).double(), torch.zeros_like(p).scatter_(1, y[:, None], 1)
        terms |= {
            "accuracy": correct,
            "brier": (confidence - correct).square(),
            "mc_brier": (p - hits).square().sum(1),
            "nll": -p.gather(1, y[:, None])[:, 0].clamp_min(tiny).log(),
        }
        yield Images(terms, confidence, correct, p, hits)


def as_tensor(x: Any, name: str) -> Tensor:
    """Numbers as a tensor that can be taken to float64; `name` is what a refusal calls them."""
    if not isinstance(x, Tensor):
        try:  # torch shares the memory of an array that is contiguous and writeable; numpy copies the others
            array = np.require(x, requirements=["C", "W"])
            x = torch.as_tensor(array.astype(array.dtype.newbyteorder("="), copy=False))
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise InputError(f"{name}: expected an array of numbers, got {type(x).__name__}: {error}") from error
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
