"""The random numbers of views, as arguments rather than as state.

Each number is a hash of (seed, image index, view, repeat, its own position). So an image is shown
in the same views whatever the batch, the order, the number of workers or the device, and the third
crop of an image is the same window in every policy that takes three. Stratified numbers are spread
evenly over the repeats instead, and are the same for every image.
"""

import hashlib

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atta.data.transforms import Numbers


def random_numbers(
    name: str, count: int, indices: Tensor, *, repeat: int = 0, seed: int = 0
) -> Numbers:
    """Return `count` uniform numbers in [0, 1) per image, from seed, view, repeat and image index.

    The text `seed/name/repeat` is hashed to a key; key and index give the state of a SplitMix64
    generator (Steele, Lea & Flood, 2014) for each image. Its first outputs, cut to the 24 bits that
    float32 represents exactly, are the numbers. They are independent, as in the paper.
    """
    label = f"{seed}/{name}/{repeat}"
    return torch.from_numpy(_uniform_numbers(label, count, indices.cpu().numpy()))


def stratified_numbers(name: str, count: int, repeats: int) -> Numbers:
    """Return numbers that spread the repeats of a view evenly over [0, 1), without a seed.

    They are the same for every image, which makes a deployed model deterministic.

    Number j of repeat i is (rank_ij + offset_ij) / repeats, where the ranks of each j are a
    permutation of the repeats: every j falls once into each of `repeats` equal parts. A level or a
    position takes the mid-points: five are 0.1, 0.3, 0.5, 0.7, 0.9. The middle one of an odd count,
    and a single repeat, is therefore u = 1/2, which leaves brightness and contrast unchanged.
    Choose an even count where each pass should show something new.

    >>> stratified_numbers("brightness", count=1, repeats=4).flatten()
    tensor([0.1250, 0.3750, 0.6250, 0.8750])
    """
    repeat = np.arange(repeats)
    order = _uniform_numbers(f"{name}/order", count, repeat)
    offset = _uniform_numbers(f"{name}/offset", count, repeat)
    # A level is the first number, a position the first two: mid-points, the second in the order of
    # multiples of the golden ratio, which keeps any count of points in the plane well apart (five
    # crops: knight's moves). From the third number on (noise), mid-points would give all pixels the
    # same few values, so rank and offset are hashed: a Latin hypercube.
    order[:, :2] = np.stack([repeat / repeats, repeat * (5**0.5 - 1) / 2 % 1], 1)[:, :count]
    offset[:, :2] = 0.5
    rank = order.argsort(0, kind="stable").argsort(0)
    below_one = np.float32(1 - 2**-24)
    return torch.from_numpy(((rank + offset) / repeats).astype(np.float32).clip(max=below_one))


_GAMMA = np.uint64(0x9E3779B97F4A7C15)  # the step of SplitMix64: 2⁶⁴ over the golden ratio


def _uniform_numbers(label: str, count: int, indices: NDArray[np.integer]) -> NDArray[np.float32]:
    """Return `count` uniform numbers per index: exact integer arithmetic up to the last step."""
    key = np.frombuffer(hashlib.blake2b(label.encode(), digest_size=8).digest(), dtype="<u8")
    states = _scramble(key + indices.astype(np.uint64) * _GAMMA)
    outputs = _scramble(states[:, None] + np.arange(1, count + 1, dtype=np.uint64) * _GAMMA)
    return (outputs >> np.uint64(40)).astype(np.float32) * np.float32(2**-24)


def _scramble(counters: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's output function, exact modulo 2⁶⁴. Works in place."""
    counters ^= counters >> np.uint64(30)
    counters *= np.uint64(0xBF58476D1CE4E5B9)
    counters ^= counters >> np.uint64(27)
    counters *= np.uint64(0x94D049BB133111EB)
    counters ^= counters >> np.uint64(31)
    return counters
