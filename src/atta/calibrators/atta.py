"""M-ATTA and V-ATTA: `functional.atta` with weights (m, k) or (m, 1) and a limit, learned by NLL.

Two ways to fit: Adam, as the paper does, many fits of one shape side by side; or L-BFGS, to convergence, in float64.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from atta._base.settings import Count, Seed, Step
from atta._base.types import Labels, Logits, Probs, RepeatLogits, ViewLogits, ViewWeights
from atta.calibrators.base import Calibrator, Kinds, Sets, ViewMethod, base_probs
from atta.calibrators.fitting import descend, few, minimize, prepared, some
from atta.calibrators.scaling import scaled
from atta.calibrators.slopes import Slopes
from atta.functional import (
    NEAR,
    Space,
    blend,
    fuse,
    guarded_blend,
    largest_share,
    leader,
    mix,
    weighted_sum,
)
from atta.record.predictions import Predictions, mean_views, repeat_mean

Start: TypeAlias = Literal["1/m", "1/k"] | Annotated[float, "≥ -1e9", "≤ 1e9"]
LIMIT = {"limit": (0.0, 1.0)}
# The guard caps what a mistake can cost, so that with few mistakes to learn from more certainty may seem better without end.
# Weights add up to one over the temperature: beyond RUNAWAY they are fitted again, as if drawn with deviation PRIOR.
RUNAWAY, PRIOR = 10.0, 3.0
CLEAR = 1e-9  # relative: what no rounding of float64 makes up for
TOGETHER = (
    3 << 18
)  # logits of views in the batches of the fits that Adam takes together: few enough for the caches
Fit: TypeAlias = tuple[
    Predictions, Int[Tensor, "_"], tuple[str, ...]
]  # with the kinds of view to use


class ViewBlend(Calibrator):
    """The views, weighted and fused, blended into the softmax as far as the class admits: `functional.atta`.

    With `itself` the first row of the weights is that of the image itself; with a `temperature` the views are blended into
    softmax(logits / temperature), whose class is the same. Where it is not `guarded`, what the passes say is the answer, of
    whatever class.
    """

    def __init__(
        self,
        weights: Tensor,
        limit: Tensor,
        temperature: Tensor | None = None,
        *,
        kinds: Sequence[str],
        step: float | None = None,
        space: Space = "logits",
        itself: bool = False,
        guarded: bool = True,
    ) -> None:
        super().__init__(weights=weights, limit=limit, temperature=temperature)
        self.kinds, self.step, self.space, self.itself, self.guarded = (
            tuple(kinds),
            step,
            space,
            itself,
            guarded,
        )

    weights: Tensor
    limit: Tensor
    temperature: Tensor | None

    @property
    def options(self) -> dict[str, Any]:
        """What the constructor needs besides the buffers."""
        plain = {
            "kinds": list(self.kinds),
            "step": self.step,
            "space": self.space,
            "itself": self.itself,
        }
        return plain | {"guarded": self.guarded}

    def fused(self, logits: Logits, views: Mapping[str, RepeatLogits]) -> Probs:
        """Average the repeats and fuse the kinds: what the views say."""
        weights, rows = self.weights.to(logits), [repeat_mean(views[kind]) for kind in self.kinds]
        rows = [logits, *rows] if self.itself else rows
        if self.space == "logits":
            return weighted_sum(rows, weights).softmax(dim=-1)
        return fuse(torch.stack(rows, dim=1), weights, space=self.space)

    def softened(self, softness: float) -> Calibrator:
        """Scale the weights down and the temperature up, so that both sides of the blend are softer."""
        before = torch.ones_like(self.limit) if self.temperature is None else self.temperature
        return self._like(
            ViewBlend(self.weights * softness, self.limit, before / softness, **self.options)
        )

    def base(self, logits: Logits) -> Probs:
        """What the views are blended into: the softmax, at its temperature if there is one."""
        return (
            base_probs(logits)
            if self.temperature is None
            else scaled(logits, self.temperature.to(logits))
        )

    def calibrate(self, logits: Logits, views: Mapping[str, RepeatLogits]) -> Probs:
        """Blend what the views say into what the network says, or leave it at that."""
        fused = self.fused(logits, views)
        return (
            guarded_blend(self.base(logits), fused, self.limit.to(logits), step=self.step)
            if self.guarded
            else fused
        )


@dataclass(frozen=True, kw_only=True)
class _Atta(ViewMethod):
    """The settings that M-ATTA and V-ATTA share; they differ in the width of the weights and in the default optimiser.

    `optimizer`  "lbfgs": full batch, to convergence; "adam": `epochs` over batches of `batch`, `lr`, `decay`
    `start`      the weights' start: "1/m" (kinds), "1/k" (classes) or a number
    `step`       None: the share in closed form; 0.01: the paper's grid
    `space`      where the views are summed
    """

    optimizer: Literal["lbfgs", "adam"]
    start: Start
    epochs: Count = 500
    batch: Count = 500
    lr: Annotated[float, "> 0"] = 1e-3
    decay: Annotated[float, "≥ 0"] = 1e-5
    step: Step = None
    space: Space = "logits"
    seed: Seed = 0

    polish: ClassVar[bool] = (
        True  # whether a fit to convergence goes to the bottom of the kinks of the share, too
    )

    @abstractmethod
    def width(self, classes: int) -> int:
        """Return the number of columns of the weights."""

    def learn(self, predictions: Predictions, labels: Labels) -> ViewBlend:
        """Learn weights and limit by NLL."""
        return self.learn_many([(predictions, labels)])[0]

    def learn_many(self, sets: Sets) -> list[ViewBlend]:
        """Learn weights and limit by NLL, again with the prior where the weights run away. Adam takes like sets together."""
        fits = [(*one, self.kinds_of(one[0])) for one in sets]
        learned = self._optimize(fits)
        again = [
            i for i, found in enumerate(learned) if found.weights.abs().sum(dim=0).mean() > RUNAWAY
        ]
        for i, found in zip(
            again, self._optimize([fits[i] for i in again], prior=True), strict=True
        ):
            learned[i] = found
        return learned

    def _optimize(self, fits: Sequence[Fit], *, prior: bool = False) -> list[ViewBlend]:
        if self.optimizer == "lbfgs":
            return [self._by_lbfgs(fit, prior) for fit in fits]
        alike: dict[Any, list[int]] = {}
        for i, (predictions, _, kinds) in enumerate(fits):
            shape = (len(predictions), predictions.classes)
            alike.setdefault((shape, len(kinds), predictions.dtype, predictions.device), []).append(
                i
            )
        learned: dict[int, ViewBlend] = {}
        for (shape, count, *_), members in alike.items():
            together = max(1, TOGETHER // (min(self.batch, shape[0]) * count * shape[1]))
            even = -(-len(members) // -(-len(members) // together))
            for start in range(0, len(members), even):
                chunk = members[start : start + even]
                learned.update(
                    zip(chunk, self._by_adam([fits[i] for i in chunk], prior), strict=True)
                )
        return [learned[i] for i in range(len(fits))]

    def _by_adam(self, fits: Sequence[Fit], prior: bool) -> list[ViewBlend]:
        """Take Adam's steps for fits of one shape."""
        images = len(fits[0][0])
        dtype = torch.promote_types(fits[0][0].dtype, torch.float32)
        base, views = map(
            torch.stack, zip(*(_base_and_views(fit, dtype) for fit in fits), strict=True)
        )
        labels = torch.stack([labels for _, labels, _ in fits])
        start = {
            name: value.expand(len(fits), *value.shape)
            for name, value in self._start(views[0]).items()
        }
        weak = penalty(images) if prior else 0.0
        slopes = Slopes(base, views, labels, step=self.step, space=self.space, prior=weak)
        adam = {
            "epochs": self.epochs,
            "batch": self.batch,
            "lr": self.lr,
            "decay": self.decay,
            "seed": self.seed,
        }
        found = descend(slopes, start, LIMIT, images=images, **adam)  # type: ignore[arg-type]
        pairs = zip(fits, found["weights"], found["limit"], strict=True)
        return [
            self._blend(weights.clone(), limit.clone(), kinds)
            for (_, _, kinds), weights, limit in pairs
        ]

    def _by_lbfgs(self, fit: Fit, prior: bool) -> ViewBlend:
        """Go to the minimum with L-BFGS, in float64."""
        predictions, labels, kinds = fit
        predictions = predictions.select(kinds).unrehearsed()
        images, alone = len(predictions), few(predictions)
        weak = penalty(images) if prior else 0.0

        def ready(
            part: Predictions, labels: Labels
        ) -> tuple[Tensor, Callable[[Probs, Tensor], Tensor]]:
            base, views = _base_and_views((part, labels, kinds), torch.float64)
            return views.transpose(0, 1).contiguous(), blended_nll(base, labels, step=self.step)

        parts = prepared(predictions, labels, ready)

        def losses(parameters: Mapping[str, Tensor]) -> Iterator[Tensor]:
            weights, limit = parameters["weights"], parameters["limit"]
            cost = weak * weights.square().sum(dim=0).mean() if weak else 0.0
            for views, of in parts():
                value = of(_fused(views, weights, self.space), limit)
                yield (value if alone else value * (views.shape[1] / images)) + cost
                cost = 0.0

        start = self._start(next(iter(parts()))[0].transpose(0, 1))
        if not alone:  # The kinks of many images are small: what some of them are polished to is near the bottom.
            near = self._by_lbfgs(
                (predictions[some(predictions)], labels[some(predictions)], kinds), prior
            )
            start = {"weights": near.weights, "limit": near.limit}
        found = minimize(
            losses, start, LIMIT, tolerance=1e-11 if alone else 1e-9, polish=self.polish and alone
        )
        return self._blend(found["weights"], found["limit"], kinds)

    def _start(self, views: ViewLogits) -> dict[str, Tensor]:
        _, kinds, classes = views.shape
        value = {"1/m": 1 / kinds, "1/k": 1 / classes}.get(self.start, self.start)  # type: ignore[arg-type]
        return {
            "weights": views.new_full((kinds, self.width(classes)), float(value)),
            "limit": views.new_ones(()),
        }

    def _blend(self, weights: Tensor, limit: Tensor, kinds: tuple[str, ...]) -> ViewBlend:
        return ViewBlend(weights, limit, kinds=kinds, step=self.step, space=self.space)


def _base_and_views(fit: Fit, dtype: torch.dtype) -> tuple[Probs, ViewLogits]:
    predictions, _, kinds = fit
    return base_probs(predictions.logits.to(dtype)), mean_views(predictions.views, kinds).to(dtype)


def _fused(views: Float[Tensor, "m n k"], weights: ViewWeights, space: Space) -> Probs:
    """What `functional.fuse` returns, from views of a kind that lie together: a weight for each is one matrix product."""
    if space == "probabilities":
        return fuse(views.transpose(0, 1), weights, space=space)
    one = weights.shape[-1] == 1
    logits = (
        (weights.mT @ views.flatten(1)).view(views.shape[1:])
        if one
        else weighted_sum(views.unbind(), weights)
    )
    return logits.softmax(dim=-1)


def blended_nll(
    base: Probs, labels: Labels, *, step: float | None
) -> Callable[[Probs, Tensor], Tensor]:
    """Return the function from what the views say, and the limit, to the mean NLL of both blended.

    Only the label's probability counts, and in most rows nobody comes near the class in front, in `base` or in what the views
    say: these are given the limit, and only the others are looked at whole.
    """
    first, label = leader(base), labels.unsqueeze(-1)
    ahead, label_base = base.gather(-1, first), base.gather(-1, label)
    lead = ahead - base.scatter(-1, first, 0.0).amax(dim=-1, keepdim=True)
    tiny = torch.finfo(base.dtype).tiny

    def value(fused: Probs, limit: Tensor) -> Tensor:
        with torch.no_grad():
            level = fused.gather(-1, first)
            second = fused.scatter(-1, first, 0.0).amax(dim=-1, keepdim=True)
            clear = (level * (1 - CLEAR) > second) & (lead > 2 * NEAR * torch.maximum(ahead, level))
            clear &= limit > 0  # on the grid no share moves with a limit of 0
            hard = torch.where(~clear)[0]
        picked = mix(label_base, fused.gather(-1, label), limit.expand(len(labels)))
        whole, held, front = base[hard], fused.index_select(0, hard), first[hard]
        share = largest_share(whole, held, limit, step=step, first=front)
        picked = picked.index_copy(
            0, hard, blend(whole, held, share, first=front).gather(-1, label[hard])
        )
        return -picked.clamp(min=tiny).log().mean()

    return value


def penalty(images: int) -> float:
    """The weak prior, as what the squares of the weights cost beside the mean NLL of so many images."""
    return 1 / (2 * PRIOR**2 * images)


@dataclass(frozen=True, kw_only=True)
class MATTA(_Atta):
    """M-ATTA: a weight for each kind of view and class (Conde et al. 2023, arXiv 2304.05104).

    By default the paper's recipe with the share in closed form. Run to convergence (`optimizer="lbfgs"`) it over-fits a
    small validation set badly: the short Adam run is its hidden early stopping.
    """

    optimizer: Literal["lbfgs", "adam"] = "adam"
    start: Start = "1/k"

    name: ClassVar[str] = "m-atta"
    summary: ClassVar[str] = "a learned weight for each kind of view and class (Conde et al. 2023)"

    def width(self, classes: int) -> int:
        """Return a column a class."""
        return classes

    @classmethod
    def paper(cls, *, views: Kinds = None, seed: int = 0) -> MATTA:
        """Return exactly the paper's recipe: Adam, 500 epochs, batches of 500, and the share on a grid of 0.01."""
        return cls(views=views, seed=seed, optimizer="adam", start="1/k", step=0.01)


@dataclass(frozen=True, kw_only=True)
class VATTA(_Atta):
    """V-ATTA: a weight for each kind of view (Conde et al. 2023, arXiv 2304.05104).

    By default fitted to convergence, in well under a second.
    """

    optimizer: Literal["lbfgs", "adam"] = "lbfgs"
    start: Start = "1/m"

    name: ClassVar[str] = "v-atta"
    summary: ClassVar[str] = "a learned weight for each kind of view (Conde et al. 2023)"

    def width(self, classes: int) -> int:
        """Return one column for all classes."""
        return 1

    @classmethod
    def paper(cls, *, views: Kinds = None, seed: int = 0) -> VATTA:
        """Return exactly the paper's recipe: Adam, 500 epochs, batches of 500, and the share on a grid of 0.01."""
        return cls(views=views, seed=seed, optimizer="adam", start="1/k", step=0.01)
