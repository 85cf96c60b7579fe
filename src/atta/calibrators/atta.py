"""M-ATTA and V-ATTA: `functional.atta` with weights (m, k) or (m, 1) and a limit, fitted by NLL.

There are two ways to fit: Adam, as in the paper, which fits many sets of one shape at once; or
L-BFGS, to convergence, in float64.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from atta._base.settings import Count, Seed, Step
from atta._base.types import Labels, Logits, PerImage, Probs, ViewLogits, ViewWeights
from atta.calibrators.base import Calibrator, Kinds, Sets, ViewMethod, Views
from atta.calibrators.fitting import (
    Parameters,
    descend,
    logits_of,
    minimize,
    prepared,
    sample,
)
from atta.calibrators.scaling import scaled
from atta.calibrators.slopes import Slopes
from atta.functional import (
    NEAR,
    Space,
    fuse,
    guarded_blend,
    leader,
    weighted_sum,
)
from atta.record.predictions import Predictions, repeat_mean

Optimizer: TypeAlias = Literal["lbfgs", "adam"]
Start: TypeAlias = Literal["1/m", "1/k"] | Annotated[float, "≥ -1e9", "≤ 1e9"]
Fit: TypeAlias = tuple[Predictions, Int[Tensor, "_"], tuple[str, ...]]  # the kinds of view to use
Own = TypeVar("Own", bound="_Atta")
LIMIT_BOUNDS = {"limit": (0.0, 1.0)}
# The guard limits the loss of a mistake. With few mistakes, the weights can grow without bound.
# They sum to one over the temperature: fits with a sum above LARGEST_SUM are repeated with a
# Gaussian prior of deviation PRIOR_DEVIATION.
LARGEST_SUM, PRIOR_DEVIATION = 10.0, 3.0
ROUNDING = 1e-9  # relative: more than all roundings of float64
EXACT_LOGITS = 1 << 22  # logits of all passes up to which a fit ends at a kink, if it has to
ADAM_LOGITS = 3 << 18  # logits of views in the batches of the fits that Adam runs at once


class Blend(Calibrator):
    """A calibrator that blends what the views say into the softmax, as far as the class stays."""

    weights: Tensor
    limit: Tensor
    step: float | None = None
    guarded: bool = True

    @abstractmethod
    def parts(self, logits: Logits, views: Views) -> tuple[Probs, Probs]:
        """Return the probabilities of the network and those of the views, to be blended."""

    def calibrate(self, logits: Logits, views: Views) -> Probs:
        """Blend both, or return the probabilities of the views if there is no guard."""
        base, fused = self.parts(logits, views)
        if not self.guarded:
            return fused
        return guarded_blend(base, fused, self.limit.to(logits), logits, step=self.step)

    def certainty(self, logits: Logits, views: Views) -> PerImage:
        """Return the probability of the network's class with the largest share of the views.

        The guard takes a smaller share where the views prefer another class.
        """
        if not self.keeps_class:
            return super().certainty(logits, views)
        own = logits.argmax(dim=-1, keepdim=True)
        base, fused = (part.gather(-1, own).squeeze(-1) for part in self.parts(logits, views))
        return torch.lerp(base, fused, self.limit.to(logits))


class ViewBlend(Blend):
    """The weighted and fused views, blended into the softmax: `functional.atta`.

    Args:
        weights: One row per kind of view, and one column or one per class.
        limit: The largest share of the views.
        temperature: If given, the views are blended into softmax(logits / temperature).
        kinds: The kinds of view.
        step: None for the share in closed form, or the step of the paper's grid.
        space: Where the views are summed.
        itself: Whether the first row of the weights is that of the image itself.
        guarded: Whether the class is kept; otherwise the answer is that of the views.
        odds: One factor per class for the fused probabilities, as `shift` learns them.
    """

    temperature: Tensor | None
    odds: Tensor | None
    space: Space
    itself: bool

    def __init__(
        self,
        weights: Tensor,
        limit: Tensor,
        temperature: Tensor | None = None,
        odds: Tensor | None = None,
        *,
        kinds: Sequence[str],
        step: float | None = None,
        space: Space = "logits",
        itself: bool = False,
        guarded: bool = True,
    ) -> None:
        options = {"step": step, "space": space, "itself": itself, "guarded": guarded}
        super().__init__(weights=weights, limit=limit, kinds=tuple(kinds), **options)
        self.register_buffer("temperature", temperature)
        self.register_buffer("odds", odds)

    def parts(self, logits: Logits, views: Views) -> tuple[Probs, Probs]:
        """Return the softmax, at the temperature if there is one, and the fused kinds of view."""
        weights, rows = self.weights.to(logits), [repeat_mean(views[kind]) for kind in self.kinds]
        rows = [logits, *rows] if self.itself else rows
        if self.space == "logits":
            fused = weighted_sum(rows, weights).softmax(dim=-1)
        else:
            fused = fuse(torch.stack(rows, dim=1), weights, space=self.space)
        if self.odds is not None:
            fused = fused * self.odds.to(logits)
            fused = fused / fused.sum(dim=-1, keepdim=True)
        if self.temperature is None:
            return logits.softmax(dim=-1), fused
        return scaled(logits, self.temperature.to(logits)), fused

    def softened(self, softness: float) -> Calibrator:
        """Lower the weights and raise the temperature by the same factor."""
        softer = copy.deepcopy(self)
        softer.weights = self.weights * softness
        before = torch.ones_like(self.limit) if self.temperature is None else self.temperature
        softer.temperature = before / softness
        return softer


@dataclass(frozen=True, kw_only=True)
class _Atta(ViewMethod):
    """The settings of M-ATTA and V-ATTA, which differ in the width of the weights and defaults."""

    optimizer: Optimizer
    start: Start
    epochs: Count = 500
    batch: Count = 500
    lr: Annotated[float, "> 0", "≤ 1e6"] = 1e-3
    decay: Annotated[float, "≥ 0", "≤ 1e6"] = 1e-5
    step: Step = None
    space: Space = "logits"
    seed: Seed = 0

    takes_many = True
    per_class: ClassVar[bool]  # whether there is one column of weights per class
    polish: ClassVar[bool] = True  # whether L-BFGS is followed by Nelder-Mead

    @classmethod
    def paper(cls: type[Own], *, views: Kinds = None, seed: int = 0) -> Own:
        """Return the paper's recipe: Adam, 500 epochs, batches of 500, shares on a grid of 0.01.

        Args:
            views: The kinds of view to use; None uses all kinds in the predictions.
            seed: The seed that shuffles the batches.

        >>> VATTA.paper().step, VATTA.paper().optimizer
        (0.01, 'adam')
        """
        return cls(views=views, seed=seed, optimizer="adam", start="1/k", step=0.01)

    def learn(self, predictions: Predictions, labels: Labels) -> ViewBlend:
        """Learn weights and limit by NLL."""
        return self.learn_many([(predictions, labels)])[0]

    def learn_many(self, sets: Sets) -> list[ViewBlend]:
        """Learn weights and limit by NLL, once more with a prior if the weights diverge."""
        fits = [(*one, self.kinds_of(one[0])) for one in sets]
        learned = self._optimize(fits)
        sums = [one.weights.abs().sum(dim=0).mean() for one in learned]
        large = [i for i, one in enumerate(sums) if one > LARGEST_SUM]
        repeated = self._optimize([fits[i] for i in large], prior=True)
        for i, one in zip(large, repeated, strict=True):
            learned[i] = one
        return learned

    def _optimize(self, fits: Sequence[Fit], *, prior: bool = False) -> list[ViewBlend]:
        """Fit by the chosen optimiser; Adam runs neighbours of equal shape at once."""
        if self.optimizer == "lbfgs":
            return [self._by_lbfgs(fit, prior) for fit in fits]
        learned: list[ViewBlend] = []
        for (images, kinds, classes, *_), group in groupby(
            fits,
            lambda fit: (len(fit[0]), len(fit[2]), fit[0].classes, fit[0].dtype, fit[0].device),
        ):
            alike = list(group)
            most = max(1, ADAM_LOGITS // (min(self.batch, images) * kinds * classes))
            for start in range(0, len(alike), most):
                learned += self._by_adam(alike[start : start + most], prior)
        return learned

    def _by_adam(self, fits: Sequence[Fit], prior: bool) -> list[ViewBlend]:
        """Run Adam for fits of one shape."""
        images = len(fits[0][0])
        dtype = torch.promote_types(fits[0][0].dtype, torch.float32)
        base = torch.stack([one.logits.to(dtype).softmax(dim=-1) for one, _, _ in fits])
        views = torch.stack([one.view_logits(kinds).to(dtype) for one, _, kinds in fits])
        labels = torch.stack([labels for _, labels, _ in fits])
        weak = prior * prior_penalty(images)
        found = descend(
            Slopes(base, views, labels, step=self.step, space=self.space, prior=weak),
            {name: torch.stack([one] * len(fits)) for name, one in self._start(views[0]).items()},
            LIMIT_BOUNDS,
            images=images,
            epochs=self.epochs,
            batch=self.batch,
            lr=self.lr,
            decay=self.decay,
            seed=self.seed,
        )
        return [
            self._blend({name: value[i].clone() for name, value in found.items()}, kinds)
            for i, (_, _, kinds) in enumerate(fits)
        ]

    def _by_lbfgs(self, fit: Fit, prior: bool) -> ViewBlend:
        """Minimise by L-BFGS, in float64."""
        predictions, labels, kinds = fit
        predictions = predictions.select(kinds, rehearsals=False)
        images = len(predictions)
        weak = prior * prior_penalty(images)

        def prepare(
            part: Predictions, labels: Labels
        ) -> tuple[Tensor, Callable[[Probs, Tensor], Tensor]]:
            views = torch.stack([repeat_mean(part.views[kind]) for kind in kinds])
            views = views.double() if views.is_cuda else views  # on a CPU each piece, in the cache
            base = part.logits.double().softmax(dim=-1)
            return views, blended_nll(base, labels, step=self.step)

        parts = prepared(predictions, labels, prepare)

        def losses(parameters: Parameters) -> Iterator[Tensor]:
            weights, limit = parameters["weights"], parameters["limit"]
            cost = weak * weights.square().sum(dim=0).mean() if prior else 0.0
            for views, loss in parts():
                value = loss(_fused(views.double(), weights, self.space), limit)
                yield value * (views.shape[1] / images) + cost
                cost = 0.0

        start = self._start(next(iter(parts()))[0].transpose(0, 1).double())
        if some := sample(predictions, labels):
            near = self._by_lbfgs((*some, kinds), prior)
            start = {"weights": near.weights, "limit": near.limit}
        # The kinks of many images are small, and to find the lowest takes any number of steps.
        exact = logits_of(predictions) <= EXACT_LOGITS
        found = minimize(
            losses,
            start,
            LIMIT_BOUNDS,
            tolerance=1e-11 if exact else 1e-9,
            polish=self.polish and exact,
        )
        return self._blend(found, kinds)

    def _start(self, views: ViewLogits) -> dict[str, Tensor]:
        _, kinds, classes = views.shape
        start = self.start
        if isinstance(start, str):
            start = 1 / kinds if start == "1/m" else 1 / classes
        weights = views.new_full((kinds, classes if self.per_class else 1), start)
        return {"weights": weights, "limit": views.new_ones(())}

    def _blend(self, found: Parameters, kinds: tuple[str, ...]) -> ViewBlend:
        weights, limit = found["weights"], found["limit"]
        return ViewBlend(weights, limit, kinds=kinds, step=self.step, space=self.space)


class _SumOfKinds(torch.autograd.Function):
    """Σ_i weights_i · views_i on a GPU, where the gradient is one dot product per kind of view.

    Autograd would multiply few rows with millions of columns, which keeps one core of a GPU busy.
    """

    @staticmethod
    def forward(ctx: Any, weights: ViewWeights, views: Float[Tensor, "m n k"]) -> Logits:
        ctx.save_for_backward(views)
        return torch.mv(views.flatten(1).T, weights[:, 0]).view(views.shape[1:])

    @staticmethod
    def backward(ctx: Any, slope: Logits) -> tuple[ViewWeights, None]:
        (views,) = ctx.saved_tensors
        flat = slope.flatten()
        return torch.stack([torch.dot(row, flat) for row in views.flatten(1)])[:, None], None


def _fused(views: Float[Tensor, "m n k"], weights: ViewWeights, space: Space) -> Probs:
    """Return what `functional.fuse` does, kind by kind: one weight each is a matrix product."""
    if space == "probabilities":
        return fuse(views.transpose(0, 1), weights, space=space)
    if weights.shape[-1] == 1 and views.is_cuda:
        logits: Tensor = _SumOfKinds.apply(weights, views)  # type: ignore[no-untyped-call]
    elif weights.shape[-1] == 1:
        logits = (weights.mT @ views.flatten(1)).view(views.shape[1:])
    else:
        logits = weighted_sum(views.unbind(), weights)
    return logits.softmax(dim=-1)


def blended_nll(
    base: Probs, labels: Labels, *, step: float | None
) -> Callable[[Probs, Tensor], Tensor]:
    """Return the function from the probabilities of the views and the limit to the mean NLL.

    Only the probability of the label counts. In most rows no rival comes near the predicted class:
    their share is the limit. Only the other rows are blended as a whole.
    """
    first, label = leader(base), labels.unsqueeze(-1)
    ahead, label_base = base.gather(-1, first), base.gather(-1, label)
    lead = ahead - base.scatter(-1, first, 0.0).amax(dim=-1, keepdim=True)
    tiny = torch.finfo(base.dtype).tiny

    def value(fused: Probs, limit: Tensor) -> Tensor:
        with torch.no_grad():
            level = fused.gather(-1, first)
            second = fused.scatter(-1, first, 0.0).amax(dim=-1, keepdim=True)
            clear = level * (1 - ROUNDING) > second
            clear &= lead > 2 * NEAR * torch.maximum(ahead, level)
            clear &= limit > 0  # on the grid, no share moves with a limit of 0
            hard = torch.where(~clear)[0]
        picked = torch.lerp(label_base, fused.gather(-1, label), limit.expand(len(labels), 1))
        blended = guarded_blend(
            base[hard], fused.index_select(0, hard), limit, base[hard], step=step
        )
        picked = picked.index_copy(0, hard, blended.gather(-1, label[hard]))
        return -picked.clamp(min=tiny).log().mean()

    return value


def prior_penalty(images: int) -> float:
    """Return the factor of the squared weights that is added to the mean NLL for the prior."""
    return 1 / (2 * PRIOR_DEVIATION**2 * images)


@dataclass(frozen=True, kw_only=True)
class MATTA(_Atta):
    """M-ATTA: one weight per kind of view and class (Conde et al. 2023, arXiv 2304.05104).

    The default is the paper's recipe with the share in closed form. Use `VATTA` or `CATTA` unless
    there are thousands of validation images. To convergence (`optimizer="lbfgs"`), M-ATTA over-fits
    a small validation set badly: the short Adam run is a hidden early stopping.

    Its settings are those of `VATTA`; the defaults of `optimizer` and `start` differ.

    >>> logits, labels = 4 * torch.eye(3).repeat(4, 1), [0, 1, 2, 0, 1, 2, 0, 1, 2, 1, 2, 0]
    >>> predictions = Predictions(logits, {"flip": logits.unsqueeze(1)})
    >>> MATTA(epochs=5).fit(predictions, labels)
    ViewBlend(m-atta, classes=3, views=flip)
    """

    optimizer: Optimizer = "adam"
    start: Start = "1/k"

    name = "m-atta"
    summary = "a learned weight for each kind of view and class (Conde et al. 2023)"
    per_class = True


@dataclass(frozen=True, kw_only=True)
class VATTA(_Atta):
    """V-ATTA: one weight per kind of view (Conde et al. 2023, arXiv 2304.05104).

    Use it with many views per image. It is fitted to convergence, in well under a second.

    Args:
        views: The kinds of view to use; None uses all kinds in the predictions.
        optimizer: "lbfgs" (full batch, to convergence), or "adam" (the paper's recipe).
        start: The initial weights: "1/m" (kinds), "1/k" (classes) or a number.
        epochs: The epochs of Adam.
        batch: The batch size of Adam.
        lr: The learning rate of Adam.
        decay: The weight decay of Adam.
        step: None for the share in closed form, 0.01 for the paper's grid.
        space: Where the views are summed: "logits" or "probabilities".
        seed: The seed that shuffles the batches.

    >>> logits, labels = 4 * torch.eye(3).repeat(4, 1), [0, 1, 2, 0, 1, 2, 0, 1, 2, 1, 2, 0]
    >>> predictions = Predictions(logits, {"flip": logits.unsqueeze(1)})
    >>> VATTA().fit(predictions, labels)(predictions).argmax(dim=1)
    tensor([0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2])
    """

    optimizer: Optimizer = "lbfgs"
    start: Start = "1/m"

    name = "v-atta"
    summary = "a learned weight for each kind of view (Conde et al. 2023)"
    per_class = False
