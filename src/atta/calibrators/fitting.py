"""Optimisers for the parameters of calibrators.

Images come in pieces (`prepared`) that fit the processor's caches. Beyond KEPT_LOGITS the pieces
are prepared anew for each step of a fit, so memory does not grow with the number of images. Losses,
gradients and curvatures are sums over the pieces. A fit to more than KEPT_LOGITS starts at the fit
to a sample of the images (`sample`), which leaves few steps to do.

There are three ways to minimise a mean loss over the validation images:

- `minimize`: L-BFGS-B on the full batch, in float64, to convergence. In float32 the rounding of the
loss hides its
  differences, and the optimiser returns its starting point.
- `descend`: the paper's recipe, a fixed number of Adam steps on shuffled batches. It stops before
convergence on
  purpose: this early stopping is part of the method.
- `newton`: for a weighted sum of logits. Its NLL is convex, and with few weights the curvature is
cheap to compute.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import starmap
from typing import TypeAlias, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy import optimize
from torch import Tensor

from atta._base.tensors import piece_rows
from atta._base.types import Labels, Logits, PerImage, Probs, ViewLogits
from atta.record.predictions import Predictions

Parameters: TypeAlias = Mapping[str, Tensor]
Loss: TypeAlias = Callable[[Parameters], Tensor | Iterator[Tensor]]
"""A loss, or terms that add up to it: each is freed before the next one is computed."""
Weights: TypeAlias = Float[Tensor, " m"]
Bounds: TypeAlias = Mapping[str, tuple[float, float]]
Pieces: TypeAlias = Callable[[], Iterable[tuple[ViewLogits, Labels]]]
Prepared = TypeVar("Prepared")

POLISHED_PARAMETERS = 8  # the most parameters for which Nelder-Mead is fast
PIECE_LOGITS = 1 << 15  # logits per pass in a piece: they fit the caches
KEPT_LOGITS = 1 << 25  # logits of all passes that are prepared once and kept: 256 MB in float64
SAMPLE_LOGITS = 1 << 23  # logits of all passes in the sample that a fit to more starts with
BETA, BETA_SQUARE, EPSILON = 0.9, 0.999, 1e-8  # Adam's defaults, as Kingma and Ba give them


def nll(probs: Probs, labels: Labels) -> Tensor:
    """Return the mean negative log-likelihood; a probability of 0 counts as the smallest one."""
    picked = probs.gather(-1, labels.unsqueeze(-1))
    return -picked.clamp(min=torch.finfo(probs.dtype).tiny).log().mean()


def prepared(
    predictions: Predictions,
    labels: Labels,
    prepare: Callable[[Predictions, Labels], Prepared],
) -> Callable[[], Iterable[Prepared]]:
    """Return a function that yields the prepared pieces, and keeps them if they are small.

    On a CPU small is KEPT_LOGITS, on a GPU 1/16 of its memory in float64.
    """

    def anew() -> Iterator[Prepared]:
        return starmap(prepare, pieces(predictions, labels))

    most = KEPT_LOGITS
    if predictions.device.type == "cuda":
        most = torch.cuda.get_device_properties(predictions.device).total_memory >> 7
    kept = list(anew()) if logits_of(predictions) <= most else None
    return lambda: kept or anew()


def pieces(
    predictions: Predictions, labels: Labels, size: int | None = None
) -> Iterator[tuple[Predictions, Tensor]]:
    """Cut into pieces that fit the caches of a CPU or, with the views, the memory of a GPU.

    `size` is the number of logits per pass in a piece, PIECE_LOGITS by default.
    """
    passes = 1 if predictions.device.type == "cpu" else 1 + len(predictions.kinds)
    rows = piece_rows(size or PIECE_LOGITS, predictions.classes * passes, predictions.device)
    return zip(predictions.chunks(rows), torch.split(labels, rows), strict=True)


def sample(predictions: Predictions, labels: Labels) -> tuple[Predictions, Tensor] | None:
    """Return the images that a fit to more than KEPT_LOGITS starts with; None for fewer."""
    logits = logits_of(predictions)
    if logits <= KEPT_LOGITS:
        return None
    rows = torch.arange(0, len(predictions), -(-logits // SAMPLE_LOGITS))
    return predictions[rows], labels[rows]


def logits_of(predictions: Predictions) -> int:
    """Return the number of logits, counting the repeats of a kind of view as one."""
    return len(predictions) * predictions.classes * (1 + len(predictions.kinds))


def laplace_smoothing(parts: Iterable[tuple[Logits, Labels]]) -> float:
    """Return the label smoothing: 1/(n + 2) if all n images are classified correctly, otherwise 0.

    Without a single error, the NLL has no minimum: more confidence is always better. Laplace's rule
    of succession gives the probability of an error after n correct answers out of n.

    >>> laplace_smoothing([(torch.eye(2), torch.tensor([0, 1]))])
    0.25
    >>> laplace_smoothing([(torch.eye(2), torch.tensor([1, 1]))])
    0.0
    """
    images = 0
    for scores, labels in parts:
        if not bool((scores.argmax(dim=-1) == labels).all()):
            return 0.0
        images += len(labels)
    return 1 / (images + 2)


def minimize(
    loss: Loss,
    start: Parameters,
    bounds: Bounds | None = None,
    *,
    tolerance: float = 1e-14,
    iterations: int = 500,
    polish: bool = False,
) -> dict[str, Tensor]:
    """Return the parameters at a minimum of `loss` within `bounds`, found by L-BFGS-B.

    The loss is computed on the device of `start`. It may have kinks (the share has some). If the
    line search fails at a kink, the search starts again from there while that still helps. It can
    remain up to about 1e-4 above the minimum: `polish` then finishes by Nelder-Mead, if the
    parameters are few.
    """
    first = torch.cat([value.detach().double().flatten() for value in start.values()])

    def unpack(flat: np.ndarray) -> dict[str, Tensor]:
        sizes = [value.numel() for value in start.values()]
        parts = torch.split(torch.from_numpy(flat).to(first.device), sizes)
        return {name: part.view_as(start[name]) for name, part in zip(start, parts, strict=True)}

    def value_and_gradient(flat: np.ndarray) -> tuple[float, np.ndarray]:
        parameters = {name: part.clone().requires_grad_() for name, part in unpack(flat).items()}
        value, gradient = 0.0, np.zeros(flat.size)
        for term in _terms(loss(parameters)):
            parts = torch.autograd.grad(term, list(parameters.values()))
            value += term.item()
            gradient += torch.cat([part.flatten() for part in parts]).double().cpu().numpy()
        return value, gradient

    none = (-np.inf, np.inf)
    box = [(bounds or {}).get(name, none) for name in start for _ in range(start[name].numel())]
    flat = _lbfgs(
        value_and_gradient, first.cpu().numpy(), box if bounds else None, tolerance, iterations
    )
    if polish and flat.size <= POLISHED_PARAMETERS:

        @torch.no_grad()
        def total(flat: np.ndarray) -> float:
            return sum(term.item() for term in _terms(loss(unpack(flat))))

        flat = _polish(total, flat, box)
    return unpack(flat)


def _terms(found: Tensor | Iterator[Tensor]) -> Iterable[Tensor]:
    return (found,) if isinstance(found, Tensor) else found


def _lbfgs(
    value_and_gradient: Callable[[np.ndarray], tuple[float, np.ndarray]],
    flat: np.ndarray,
    box: Sequence[tuple[float, float]] | None,  # infinite bounds cost time
    tolerance: float,
    iterations: int,
) -> np.ndarray:
    """Run L-BFGS-B, up to five times, until a run ends normally or no longer lowers the loss."""
    best = np.inf
    for _ in range(5):
        answer = optimize.minimize(
            value_and_gradient,
            flat,
            jac=True,
            method="L-BFGS-B",
            bounds=box,
            options={
                "maxiter": iterations,
                "maxfun": 2 * iterations,
                "ftol": tolerance,
                "gtol": 1e-9,
            },
        )
        improvement = best - float(answer.fun)
        flat, best = answer.x, float(answer.fun)
        if answer.success or tolerance > 1e-12 or improvement < 1e-12 * max(1.0, abs(best)):
            break
    return flat


def _polish(
    value: Callable[[np.ndarray], float],
    flat: np.ndarray,
    box: Sequence[tuple[float, float]],
) -> np.ndarray:
    """Run Nelder-Mead, which needs no gradient, from a simplex of about 1 % around the point."""
    size = 0.01 * np.maximum(np.abs(flat), 0.1)
    corners = flat + np.diag(np.where(flat + size > [high for _, high in box], -size, size))
    answer = optimize.minimize(
        value,
        flat,
        method="Nelder-Mead",
        bounds=box,
        options={"initial_simplex": np.vstack([flat, corners]), "xatol": 1e-5, "fatol": 1e-9},
    )
    return np.asarray(answer.x)


@torch.no_grad()
def newton(
    parts: Pieces,
    start: Weights,
    *,
    smoothing: float = 0.0,
    prior: float = 0.0,
    iterations: int = 100,
) -> Weights:
    """Return the weights w that minimise the NLL of softmax(Σ_i w_i · rows_i) plus `prior` · |w|².

    `parts` yields the rows (n, m, k) and labels in pieces. A step that raises the loss is halved,
    so the result is never worse than the start. Directions without curvature, such as between two
    equal rows, keep their start. The search ends if a step promises less than rounding, or after
    `iterations` if the weights grow without bound. If all probabilities are one-hot at the start,
    there is no gradient: start elsewhere.
    """
    weights = start
    loss, slope, curvature = _nll_derivatives(parts, weights, smoothing, prior)
    for _ in range(iterations):
        # In units in which each curvature is 1: the scales of views may differ widely.
        unit = curvature.diagonal().clamp(min=torch.finfo(start.dtype).tiny).rsqrt()
        inverse = torch.linalg.pinv(unit[:, None] * curvature * unit, rtol=1e-12, hermitian=True)
        step = unit * (inverse @ (unit * slope))
        if not slope @ step > 1e-15:
            break
        size = 1.0
        while True:
            tried = _nll_derivatives(parts, weights - size * step, smoothing, prior)
            if tried[0] <= loss:
                break
            if size <= 1e-6:
                return weights
            size /= 2
        weights, (loss, slope, curvature) = weights - size * step, tried
    return weights


def _nll_derivatives(
    parts: Pieces, weights: Weights, smoothing: float, prior: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the loss of `newton`, its gradient and its curvature."""
    eye = torch.eye(len(weights)).to(weights)
    images, loss = 0, weights.new_zeros(())
    slope, curvature = torch.zeros_like(weights), torch.zeros_like(eye)
    for rows, labels in parts():
        _, kinds, classes = rows.shape
        log_probs = (weights @ rows).log_softmax(dim=-1)
        probs = log_probs.exp()
        centred = rows - rows @ probs.unsqueeze(-1)
        right = log_probs.gather(1, labels.unsqueeze(-1)).sum()
        gain = centred.gather(2, labels[:, None, None].expand(-1, kinds, 1)).sum((0, 2))
        if smoothing:
            right = torch.lerp(right, log_probs.sum() / classes, smoothing)
            gain = torch.lerp(gain, centred.sum((0, 2)) / classes, smoothing)
        centred *= probs.sqrt().unsqueeze(1)
        images += len(labels)
        loss, slope = loss - right, slope - gain
        if centred.is_cuda:  # a product of few rows with millions of columns keeps one core busy
            curvature = curvature + (centred @ centred.mT).sum(0)
        else:
            spread = centred.transpose(0, 1).flatten(1)
            curvature = curvature + spread @ spread.T
    return (
        loss / images + prior * weights.square().sum(),
        slope / images + 2 * prior * weights,
        curvature / images + 2 * prior * eye,
    )


@torch.no_grad()
def descend(
    slopes: Callable[[Parameters, Int[Tensor, " batch"]], Parameters],
    start: Parameters,
    bounds: Bounds | None = None,
    *,
    images: int,
    epochs: int,
    batch: int,
    lr: float,
    decay: float,
    seed: int,
) -> dict[str, Tensor]:
    """Run `epochs` of Adam over shuffled batches of rows, clamping to `bounds` after each step.

    `slopes` returns the gradient of the mean loss over some rows. The last batch of an epoch may be
    smaller. Each number is updated independently, so the parameters may be those of many fits. The
    bits of a number do not depend on the others: Adam is written out here because fused kernels
    round differently at the end of a vector.
    """
    parameters = {name: value.detach().clone() for name, value in start.items()}
    mean, square = (
        {name: torch.zeros_like(value) for name, value in parameters.items()} for _ in range(2)
    )
    generator = torch.Generator().manual_seed(seed)
    device = next(iter(parameters.values())).device
    steps = 0
    for _ in range(epochs):
        for rows in torch.split(torch.randperm(images, generator=generator).to(device), batch):
            steps += 1
            for name, slope in slopes(parameters, rows).items():
                slope = slope + parameters[name] * decay
                mean[name].mul_(BETA).add_(slope * (1 - BETA))
                square[name].mul_(BETA_SQUARE).add_((slope * slope).mul_(1 - BETA_SQUARE))
                size = (square[name] / (1 - BETA_SQUARE**steps)).sqrt_().add_(EPSILON)
                parameters[name].sub_((mean[name] * (lr / (1 - BETA**steps))).div_(size))
            for name, (low, high) in (bounds or {}).items():
                parameters[name].clamp_(low, high)
    return parameters


def cholesky(curvature: Float[Tensor, "b m m"]) -> Float[Tensor, "b m m"]:
    """Return L with L Lᵀ = curvature, plus what makes a singular one positive definite."""
    diagonal = curvature.diagonal(dim1=1, dim2=2)
    size = diagonal.mean(dim=1).clamp(min=torch.finfo(curvature.dtype).tiny)[:, None, None]
    eye = torch.eye(curvature.shape[-1]).to(curvature)
    for added in (0.0, *(10.0**power for power in range(-14, 1))):
        factor, failed = torch.linalg.cholesky_ex(curvature + added * size * eye)
        if not failed.any():
            return torch.as_tensor(factor)
    return size.sqrt() * eye


def fold_splits(
    images: int, count: int, *, seed: int = 0, groups: Labels | None = None
) -> list[tuple[Int[Tensor, " rest"], Int[Tensor, " rows"]]]:
    """Deal the rows at random into `count` folds of nearly equal size, always alike for a seed.

    With `groups`, the rows of a group, such as the pixels of an image, stay together.

    Returns:
        For each fold the rows of the other folds, to fit on, and its own rows.
    """
    generator = torch.Generator().manual_seed(seed)
    group = torch.arange(images)
    if groups is not None:
        _, group = groups.cpu().unique(return_inverse=True)  # type: ignore[no-untyped-call]
    order = torch.randperm(int(group.max()) + 1, generator=generator)
    fold = torch.cat([torch.full((len(p),), i) for i, p in enumerate(order.tensor_split(count))])
    if groups is not None:
        fold, order = fold[order.argsort()][group], torch.arange(images)
    return [(order[fold != i], order[fold == i]) for i in range(count)]


def standard_error(values: PerImage, groups: Labels | None = None) -> float:
    """Return the standard error of the mean; with `groups`, rows of a group are not independent."""
    if groups is None:
        return float(values.std() / len(values) ** 0.5)
    _, group = groups.unique(return_inverse=True)  # type: ignore[no-untyped-call]
    count = int(group.max()) + 1
    sums = values.new_zeros(count).index_add(0, group, values - values.mean())
    return float((sums.square().sum() * count / max(1, count - 1)).sqrt() / len(values))
