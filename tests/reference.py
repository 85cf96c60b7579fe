"""The methods once more, slowly: per-sample loops straight from the papers, sharing no code with the package.

NumPy in float64 and the standard library only. Nothing here is meant to be quick or to survive bad input.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max())
    return e / e.sum()


def fused(views: np.ndarray, weights: np.ndarray, space: str = "logits") -> np.ndarray:
    """One image: views (m, k), weights (m, k) or (m, 1). The softmax after the sum, as the authors' code has it."""
    if space == "probabilities":
        return sum(softmax(w * z) for w, z in zip(weights, views, strict=True)) / len(views)
    return softmax(sum(w * z for w, z in zip(weights, views, strict=True)))


def algorithm(
    logits: np.ndarray, views: np.ndarray, weights: np.ndarray, limit: float, epsilon: float = 0.01
) -> tuple[np.ndarray, float]:
    """Algorithms 1 and 2 for one image, as printed: walk down while the class differs and the share is positive.

    Returns the last mixture, whether it keeps the class or not, and the share it was mixed with.
    """
    p0, f = softmax(logits), fused(views, weights)
    c0 = int(np.argmax(p0))
    c, share, used, p = -1, limit, limit, p0
    while c != c0 and share > 0:
        p = (1 - share) * p0 + share * f
        c = int(np.argmax(p))
        used, share = share, share - epsilon
    return p, used


def largest_share(p0: np.ndarray, f: np.ndarray, limit: float, near: float = 0.02) -> float:
    """The least upper bound of the shares that keep the class, by bisection: the mixture is linear in the share.

    A rival that is closer than `near` (of the leader's probability) in both answers holds the share back further.
    """
    c = int(np.argmax(p0))

    def keeps(share: float) -> bool:
        p = (1 - share) * p0 + share * f
        return all(p[c] >= p[j] for j in range(len(p)))

    for j in range(len(p0)):
        lead, lag = p0[c] - p0[j], f[c] - f[j]
        distance = near * max(p0[c], f[c])
        if j != c and lead + max(-lag, 0) < distance:
            limit = min(limit, (lead + max(lag, 0)) / distance)
    if keeps(limit):
        return limit
    low, high = 0.0, limit
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return low


def golden_section(
    f: Callable[[float], float], low: float, high: float, tolerance: float = 1e-10
) -> float:
    ratio = (math.sqrt(5) - 1) / 2
    while high - low > tolerance:
        a, b = high - ratio * (high - low), low + ratio * (high - low)
        if f(a) < f(b):
            high = b
        else:
            low = a
    return (low + high) / 2


def nll(probs: Sequence[np.ndarray], labels: Sequence[int]) -> float:
    return -sum(
        math.log(max(p[y], np.finfo(np.float64).tiny)) for p, y in zip(probs, labels, strict=True)
    ) / len(labels)


def temperature(logits: np.ndarray, labels: Sequence[int]) -> float:
    """The temperature of least NLL. The NLL is convex in 1/T, so it has one minimum over log T as well."""

    def loss(log_t: float) -> float:
        z = logits / math.exp(log_t)
        top = z.max(axis=1, keepdims=True)
        log_sum = np.log(np.exp(z - top).sum(axis=1)) + top[:, 0]
        return float(np.mean(log_sum - z[np.arange(len(z)), labels]))

    return math.exp(golden_section(loss, -6.0, 8.0))


def pool_adjacent_violators(
    x: Sequence[float], y: Sequence[float]
) -> tuple[list[float], list[float]]:
    """Isotonic regression of y on x: the distinct x in order and the fitted value at each of them."""
    at: dict[float, list[float]] = {}
    for a, b in zip(x, y, strict=True):
        at.setdefault(float(a), []).append(float(b))
    blocks: list[tuple[float, int, int]] = []  # sum of y, number of points, number of distinct x
    for a in sorted(at):
        blocks.append((sum(at[a]), len(at[a]), 1))
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] >= blocks[-1][0] / blocks[-1][1]:
            (s, n, d), (t, o, e) = blocks[-2:]
            blocks[-2:] = [(s + t, n + o, d + e)]
    return sorted(at), [s / n for s, n, d in blocks for _ in range(d)]


def interpolate(x: float, knots: Sequence[float], values: Sequence[float]) -> float:
    """The straight line between the two neighbouring knots; constant beyond the ends."""
    if x <= knots[0]:
        return values[0]
    for i in range(1, len(knots)):
        if x <= knots[i]:
            part = (x - knots[i - 1]) / (knots[i] - knots[i - 1])
            return values[i - 1] + part * (values[i] - values[i - 1])
    return values[-1]


def histogram(probs: Sequence[float], hits: Sequence[float], count: int = 15) -> list[float]:
    """The accuracy of each bin (a, b], and the midpoint of a bin that is empty."""
    groups: list[list[float]] = [[] for _ in range(count)]
    for p, hit in zip(probs, hits, strict=True):
        groups[bin_of(p, count)].append(hit)
    return [sum(g) / len(g) if g else (i + 0.5) / count for i, g in enumerate(groups)]


def bin_of(p: float, count: int = 15) -> int:
    return next((i for i in range(count) if p <= (i + 1) / count), count - 1)


def carried(mapped: Sequence[float], c: int, floor: float) -> list[float]:
    """The mapped values of one row on the simplex: class c keeps its value, the others share the rest in proportion."""
    v = [min(max(float(x), floor), 1 - floor) for x in mapped]
    rest = sum(x for j, x in enumerate(v) if j != c)
    return [v[c] if j == c else (1 - v[c]) * x / rest for j, x in enumerate(v)]


def odir_loss(
    w: np.ndarray,
    b: np.ndarray,
    log_probs: np.ndarray,
    labels: Sequence[int],
    lam: float,
    mu: float,
    nu: float,
    centre: float,
) -> float:
    """Dirichlet calibration: NLL + λ Σ off-diagonal² + μ Σ b² + ν Σ (diagonal - centre)²."""
    k = len(b)
    fit = nll([softmax(w @ x + b) for x in log_probs], labels)
    off_diagonal = sum(w[i, j] ** 2 for i in range(k) for j in range(k) if i != j)
    return (
        fit
        + lam * off_diagonal
        + mu * sum(b**2)
        + nu * sum((w[i, i] - centre) ** 2 for i in range(k))
    )


def adaptive_tta(
    p0: np.ndarray, views: Sequence[np.ndarray], weights: Sequence[float], limit: float
) -> np.ndarray:
    """One image: views[i] holds the logits (r, k) of one kind. Probabilities are averaged, not logits."""
    total = sum(abs(w) for w in weights)
    f = sum(
        abs(w) / total * np.mean([softmax(z) for z in kind], axis=0)
        for w, kind in zip(weights, views, strict=True)
    )
    share = largest_share(p0, f, limit)
    return (1 - share) * p0 + share * f


def brier(probs: Sequence[np.ndarray], labels: Sequence[int]) -> float:
    return float(
        np.mean([(p.max() - (p.argmax() == y)) ** 2 for p, y in zip(probs, labels, strict=True)])
    )


def smooth_ece(confidence: Sequence[float], correct: Sequence[float], points: int = 4000) -> float:
    """Błasiok & Nakkiran (2023): Gaussians at each confidence and its mirror images, integrated by the midpoint rule.

    The width that equals its own result is found by bisection.
    """
    c, h = np.asarray(confidence, dtype=float), np.asarray(correct, dtype=float)
    t = (np.arange(points) + 0.5) / points

    def left(width: float) -> float:
        smoothed = np.zeros(points)
        for x, y in zip(c, h, strict=True):
            for mirror in range(-4, 5):
                for image in (2 * mirror + x, 2 * mirror - x):
                    z = (t - image) / width
                    smoothed += np.exp(-z * z / 2) / (width * math.sqrt(2 * math.pi)) * (y - x)
        return float(np.abs(smoothed).mean()) / len(c)

    low, high = 0.0, 1.0
    for _ in range(25):
        middle = (low + high) / 2
        low, high = (middle, high) if left(middle) > middle else (low, middle)
    return high


# --- Metrics, straight from their formulas ----------------------------------------------------------------------------


def slow_bin(value: float, count: int = 15) -> int:
    """The bin (i/count, (i+1)/count] by comparison with each edge."""
    return next((i for i in range(count) if value <= (i + 1) / count), count - 1)


def slow_binned(
    pairs: list[tuple[float, float]], count: int = 15
) -> list[list[tuple[float, float]]]:
    groups: list[list[tuple[float, float]]] = [[] for _ in range(count)]
    for confidence, correct in pairs:
        groups[slow_bin(confidence, count)].append((confidence, correct))
    return [group for group in groups if group]


def slow_gap(group: list[tuple[float, float]]) -> float:
    return sum(correct for _, correct in group) / len(group) - sum(
        confidence for confidence, _ in group
    ) / len(group)


def slow_ece(groups: list[list[tuple[float, float]]]) -> float:
    return sum(len(group) * abs(slow_gap(group)) for group in groups) / sum(
        len(group) for group in groups
    )


def slow_equal_mass(
    pairs: list[tuple[float, float]], count: int = 15
) -> list[list[tuple[float, float]]]:
    """Cut the sorted images into `count` parts; whoever ties with the first of its kind follows it."""
    ordered = sorted(confidence for confidence, _ in pairs)
    groups = defaultdict(list)
    for confidence, correct in pairs:
        groups[ordered.index(confidence) * count // len(pairs)].append((confidence, correct))
    return list(groups.values())


def slow_debiased(groups: list[list[tuple[float, float]]]) -> float:
    n, total = sum(len(group) for group in groups), 0.0
    for group in groups:
        accuracy, gap = sum(correct for _, correct in group) / len(group), slow_gap(group)
        sigma = math.sqrt(accuracy * (1 - accuracy) / len(group))
        expected = abs(gap)
        if sigma:
            below = 0.5 * math.erfc(gap / sigma / math.sqrt(2))  # Φ(-gap/σ)
            peak = sigma * math.sqrt(2 / math.pi) * math.exp(-(gap**2) / 2 / sigma**2)
            expected = peak + gap * (1 - 2 * below)
        total += len(group) / n * (abs(gap) - (expected - abs(gap)))
    return total


def slow_aurc(pairs: list[tuple[float, float]]) -> float:
    errors = defaultdict(list)
    for confidence, correct in pairs:
        errors[confidence].append(1 - correct)
    shared = [
        sum(group) / len(group) for _, group in sorted(errors.items(), reverse=True) for _ in group
    ]
    return sum(sum(shared[:i]) / i for i in range(1, len(shared) + 1)) / len(shared)


def slow_answered(pairs: list[tuple[float, float]], permille: int) -> float:
    best = 0
    for least, _ in pairs:
        answered = [correct for confidence, correct in pairs if confidence >= least]
        if 1000 * (len(answered) - sum(answered)) <= permille * len(answered):
            best = max(best, len(answered))
    return best / len(pairs)


def metrics(probs: Any, labels: list[int]) -> dict[str, float]:
    n, k = probs.shape
    rows, tiny = probs.double().tolist(), torch.finfo(probs.dtype).tiny
    winners = [row.index(max(row)) for row in rows]
    pairs = [(max(row), float(w == y)) for row, w, y in zip(rows, winners, labels, strict=True)]
    groups = slow_binned(pairs)
    right = sum(correct for _, correct in pairs) / n
    nats = sum(-p * math.log(p) for row in rows for p in row if p > 0) / n
    return {
        "accuracy": right,
        "brier": sum((c - h) ** 2 for c, h in pairs) / n,
        "ece": slow_ece(groups),
        "mc_brier": sum(
            (p - (j == y)) ** 2
            for row, y in zip(rows, labels, strict=True)
            for j, p in enumerate(row)
        )
        / n,
        "nll": -sum(math.log(max(row[y], tiny)) for row, y in zip(rows, labels, strict=True)) / n,
        "entropy": nats / math.log(2) / k,
        "mce": max(abs(slow_gap(group)) for group in groups),
        "classwise_ece": sum(
            slow_ece(
                slow_binned([(row[j], float(y == j)) for row, y in zip(rows, labels, strict=True)])
            )
            for j in range(k)
        )
        / k,
        "adaptive_ece": slow_ece(slow_equal_mass(pairs)),
        "debiased_ece": slow_debiased(groups),
        "shannon_entropy": nats,
        "brier_reliability": sum(len(g) * slow_gap(g) ** 2 for g in groups) / n,
        "brier_resolution": sum(
            len(g) * (sum(h for _, h in g) / len(g) - right) ** 2 for g in groups
        )
        / n,
        "brier_uncertainty": right * (1 - right),
        "aurc": slow_aurc(pairs),
        **{
            f"answered_{permille / 10:g}": slow_answered(pairs, permille)
            for permille in (5, 10, 20, 50)
        },
    }
