"""The one place where parameters are optimised.

Images come in `pieces`: all at once where they are few; else some at a time, and beyond a bound as often as a step asks for
them, so that memory does not grow with them. Losses, slopes and curvatures are sums over the pieces.

Three ways to the minimum of a mean loss over the validation images:

- `minimize`: L-BFGS-B on the full batch, in float64, to convergence. Float32 is where others go wrong: differences of the
  loss drown in its rounding and the start comes back as the answer.
- `descend`: the paper's recipe, a fixed number of Adam steps on shuffled batches. Not run to convergence on purpose: how
  far it gets is part of that method.
- `newton`: for a weighted sum of logits, whose NLL is convex and whose few weights make the curvature cheap to write out.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TypeAlias, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy import optimize
from torch import Tensor
from torch.nn import functional as F

from atta._base.types import Labels, Logits, Probs, ViewLogits
from atta.record.predictions import Predictions

Parameters: TypeAlias = Mapping[str, Tensor]
Loss: TypeAlias = Callable[[Parameters], Tensor | Iterator[Tensor]]
"""A loss, or terms that add up to it: each is let go before the next one is made."""
Bounds: TypeAlias = Mapping[str, tuple[float, float]]
FEW = 8  # parameters up to which a simplex is quick
WHOLE = 1 << 20  # logits of a pass up to which all images are one piece
PIECE = (
    1 << 17
)  # logits of a pass in a piece where there are more: few enough for the caches, and for memory that is at hand
HELD = 1 << 24  # logits of all passes that are made ready once and kept, in float64: 128 MB
SOME = 1 << 21  # logits of all passes that a fit to more than WHOLE begins with
Ready = TypeVar("Ready")
BETA, BETA_SQUARE, EPSILON = 0.9, 0.999, 1e-8  # Adam's, as Kingma and Ba give them


def nll(probs: Probs, labels: Labels) -> Tensor:
    """Return the mean negative log-likelihood; a vanishing probability counts as the smallest one there is."""
    picked = probs.gather(-1, labels.unsqueeze(-1))
    return -picked.clamp(min=torch.finfo(probs.dtype).tiny).log().mean()


def pieces(
    predictions: Predictions, labels: Labels, rows: int
) -> Iterator[tuple[Predictions, Labels]]:
    """The images with their labels, at most so many at a time."""
    start = 0
    for part in predictions.chunks(rows):
        yield part, labels[start : start + len(part)]
        start += len(part)


def few(predictions: Predictions) -> bool:
    """Whether all images are one piece."""
    return len(predictions) * predictions.classes <= WHOLE


def prepared(
    predictions: Predictions, labels: Labels, ready: Callable[[Predictions, Labels], Ready]
) -> Callable[[], Iterable[Ready]]:
    """Make images ready for a fit, in pieces, as often as they are asked for, or once where there is room to keep them."""
    rows = len(predictions) if few(predictions) else max(1, PIECE // predictions.classes)
    if _work(predictions) > HELD:
        return lambda: (ready(*one) for one in pieces(predictions, labels, rows))
    kept = [ready(*one) for one in pieces(predictions, labels, rows)]
    return lambda: kept


def some(predictions: Predictions) -> Int[Tensor, " s"]:
    """Rows from all over the images: where a fit to all of them begins."""
    return torch.arange(0, len(predictions), -(-_work(predictions) // SOME))


def _work(predictions: Predictions) -> int:
    return len(predictions) * predictions.classes * (1 + len(predictions.kinds))


def laplace_smoothing(scores: Logits, labels: Labels) -> float:
    """Return how much to smooth the labels: 1/(n + 2) if each of the n images is classified right, and 0 otherwise.

    Without a mistake among them, more confidence is always better and the NLL has no minimum. Laplace's rule of succession
    says how sure n right answers out of n let one be of the next.

    >>> laplace_smoothing(torch.eye(2), torch.tensor([0, 1])), laplace_smoothing(torch.eye(2), torch.tensor([1, 1]))
    (0.25, 0.0)
    """
    return 1 / (labels.shape[0] + 2) if bool((scores.argmax(dim=-1) == labels).all()) else 0.0


def minimize(
    loss: Loss,
    start: Parameters,
    bounds: Bounds | None = None,
    *,
    tolerance: float = 1e-14,
    iterations: int = 500,
    polish: bool = False,
) -> dict[str, Tensor]:
    """Return the parameters at a minimum of `loss`, inside `bounds`; stop once a step gains less than `tolerance`.

    The loss is computed wherever `start` lies. A line search that fails at a kink of the loss (the share has some) starts
    again from where it stopped, for as long as that still helps. It can still get stuck in one, some 1e-4 above the minimum:
    `polish` then takes a few parameters to the bottom by Nelder-Mead, which asks for no slope.
    """
    names = list(start)
    shapes = [start[name].shape for name in names]
    sizes = [start[name].numel() for name in names]
    device = next(iter(start.values())).device
    walls = [
        [(bounds or {}).get(name, (None, None))] * size
        for name, size in zip(names, sizes, strict=True)
    ]
    box = list(chain.from_iterable(walls))

    def unpack(flat: np.ndarray) -> dict[str, Tensor]:
        parts = torch.split(torch.from_numpy(flat).to(device), sizes)
        return {
            name: part.reshape(shape)
            for name, part, shape in zip(names, parts, shapes, strict=True)
        }

    def value_and_gradient(flat: np.ndarray) -> tuple[float, np.ndarray]:
        parameters = {name: part.clone().requires_grad_() for name, part in unpack(flat).items()}
        value, slopes = 0.0, np.zeros(sum(sizes))
        for term in _terms(loss(parameters)):
            gradients = torch.autograd.grad(term, list(parameters.values()))
            value += term.item()
            slopes += (
                torch.cat([gradient.flatten() for gradient in gradients]).double().cpu().numpy()
            )
        return value, slopes

    flat = torch.cat([start[name].detach().double().flatten() for name in names]).cpu().numpy()
    best = np.inf
    for _ in range(5):
        answer = optimize.minimize(
            value_and_gradient,
            flat,
            jac=True,
            method="L-BFGS-B",
            bounds=box if bounds else None,  # a box without walls costs time
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
    if polish and flat.size <= FEW:

        @torch.no_grad()
        def value(flat: np.ndarray) -> float:
            return sum(term.item() for term in _terms(loss(unpack(flat))))

        flat = _polish(value, flat, box)
    return unpack(flat)


def _terms(found: Tensor | Iterator[Tensor]) -> Iterable[Tensor]:
    return (found,) if isinstance(found, Tensor) else found


def newton(
    rows: ViewLogits,
    labels: Labels,
    *,
    start: Float[Tensor, " m"] | None = None,
    smoothing: float = 0.0,
    prior: float = 0.0,
    iterations: int = 100,
) -> Float[Tensor, " m"]:
    """Return what `newton_over` does for images that are all there, from `start` on or from equal weights."""
    weights = rows.new_full((rows.shape[1],), 1 / rows.shape[1]) if start is None else start
    return newton_over(
        lambda: [(rows, labels)], weights, smoothing=smoothing, prior=prior, iterations=iterations
    )


@torch.no_grad()
def newton_over(
    parts: Callable[[], Iterable[tuple[ViewLogits, Labels]]],
    start: Float[Tensor, " m"],
    *,
    smoothing: float = 0.0,
    prior: float = 0.0,
    iterations: int = 100,
) -> Float[Tensor, " m"]:
    """Return the weights of least NLL of softmax(Σ_i w_i · rows_i), plus `prior` · |w|², from `start` on.

    A step that would go uphill is halved, so that the answer is never worse than the start. Directions that the loss does not
    know, as when two rows are equal, are left as they are. It ends where a step promises less than rounding, or after
    `iterations`, when the weights grow without end. From where all answers are one-hot there is no way down: start elsewhere.
    """
    weights, eye = start, torch.eye(len(start)).to(start)

    def look(weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The loss there, its slope and its curvature."""
        n, loss, slope, curvature = (
            0,
            weights.new_zeros(()),
            torch.zeros_like(weights),
            torch.zeros_like(eye),
        )
        for rows, labels in parts():
            target = (
                F.one_hot(labels, rows.shape[2]).to(rows) * (1 - smoothing)
                + smoothing / rows.shape[2]
            )
            log_probs = torch.einsum("m,nmk->nk", weights, rows).log_softmax(dim=-1)
            probs = log_probs.exp()
            around = rows - torch.einsum("nk,nmk->nm", probs, rows).unsqueeze(-1)
            spread = (around * probs.sqrt().unsqueeze(1)).transpose(0, 1).flatten(1)
            n, loss = n + len(labels), loss - (target * log_probs).sum()
            slope, curvature = (
                slope + torch.einsum("nk,nmk->m", probs - target, rows),
                curvature + spread @ spread.T,
            )
        return (
            loss / n + prior * weights.square().sum(),
            slope / n + 2 * prior * weights,
            curvature / n + 2 * prior * eye,
        )

    loss, slope, curvature = look(weights)
    for _ in range(iterations):
        # In units in which each curvature is 1: the kinds of view may differ in scale by many powers of ten.
        unit = curvature.diagonal().clamp(min=torch.finfo(start.dtype).tiny).rsqrt()
        inverse = torch.linalg.pinv(unit[:, None] * curvature * unit, rtol=1e-12, hermitian=True)
        step = unit * (inverse @ (unit * slope))
        promise = slope @ step
        if not promise > 1e-15:
            break
        size = 1.0
        while not (tried := look(weights - size * step))[0] <= loss and size > 1e-6:
            size /= 2
        if not tried[0] <= loss:
            break
        weights, (loss, slope, curvature) = weights - size * step, tried
    return weights


def _polish(
    value: Callable[[np.ndarray], float],
    flat: np.ndarray,
    box: Sequence[tuple[float | None, float | None]],
) -> np.ndarray:
    """Finish at a kink: Nelder-Mead from a simplex of about 1 % around the point, inside the box."""
    size = 0.01 * np.maximum(np.abs(flat), 0.1)
    ceiling = np.array([np.inf if high is None else high for _, high in box])
    corners = flat + np.diag(np.where(flat + size > ceiling, -size, size))
    answer = optimize.minimize(
        value,
        flat,
        method="Nelder-Mead",
        bounds=box,
        options={"initial_simplex": np.vstack([flat, corners]), "xatol": 1e-5, "fatol": 1e-9},
    )
    return np.asarray(answer.x)


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
    """Take `epochs` rounds of Adam steps over shuffled batches of rows, clamping to `bounds` after each.

    `slopes` returns those of the mean loss over some rows. The last batch of a round may be smaller: no image is left out.
    Each number of the parameters goes its own way, so those of many fits may lie side by side. And it goes the same way in
    whatever company: Adam is written out because fused kernels round differently in a vector's body and in its tail.
    """
    parameters = {name: value.detach().clone() for name, value in start.items()}
    mean = {name: torch.zeros_like(value) for name, value in parameters.items()}
    square = {name: torch.zeros_like(value) for name, value in parameters.items()}
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
    """Return L with L Lᵀ = curvature, eased as far as rounding asks for: the coordinates of a search need not be exact."""
    size = (
        curvature.diagonal(dim1=1, dim2=2).mean(dim=1).clamp(min=torch.finfo(curvature.dtype).tiny)
    )
    eye = torch.eye(curvature.shape[-1]).to(curvature)
    for ease in (0.0, *(10.0**power for power in range(-14, 1))):
        factor, failed = torch.linalg.cholesky_ex(curvature + (ease * size)[:, None, None] * eye)
        if not failed.any():
            return torch.as_tensor(factor)
    return size.sqrt()[:, None, None] * eye


def folds(images: int, count: int, *, seed: int = 0) -> list[Int[Tensor, " rows"]]:
    """Deal the rows into `count` parts of nearly equal size, at random but always alike."""
    generator = torch.Generator().manual_seed(seed)
    return list(torch.randperm(images, generator=generator).tensor_split(count))
