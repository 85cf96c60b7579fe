"""Cross-validation: each image answered by a fit that did not see it, and candidates judged by that.

The images are dealt into folds, and each fold is answered by a calibrator fitted on the others (`held_out`). The best mean
loss is not the choice yet. With a thousand images many policies lie within noise of each other, so that every candidate is
compared with the best one image by image, and

    choice = the candidate with the fewest passes whose mean loss exceeds the best one's by at most a tenth of a standard
             error of the difference, or by one if it has no views; of several with as few passes, the best

Views have to be clearly better than none. Among views the usual rule of one standard error is too thrifty for whoever gave a
budget of passes: by it, 4 passes had 93 % of what 17 gain in Brier on CIFAR-10, by a tenth of one 106 % (docs/method.md).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from atta._base.errors import InputError
from atta._base.types import Labels, Probs
from atta.calibrators.base import Method
from atta.calibrators.fitting import folds
from atta.record.predictions import Predictions

FOLDS = 5
CLOSE = 0.1  # standard errors
GAIN = 1e-6  # nats an image: less is rounding, no gain


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """How a policy did on held-out images: its mean NLL, and how far that is above the best, with its standard error."""

    policy: str
    passes: int
    nll: float
    above: float
    error: float
    images: int = 0
    """On how many images it was judged; 0 where that was all of them."""

    @property
    def close(self) -> bool:
        """Whether it is as good as the best, as far as anybody can say, and as fits are exact."""
        return self.above <= max(self.error if self.passes <= 1 else CLOSE * self.error, GAIN)


def held_out(
    method: Method, predictions: Predictions, labels: Labels, *, count: int = FOLDS, seed: int = 0
) -> Probs:
    """Answer each image with a calibrator that was fitted without it, and without the rest of its fold."""
    images = len(predictions)
    check_folds(images, count)
    parts = folds(images, count, seed=seed)
    rest = [torch.cat([other for other in parts if other is not part]) for part in parts]
    fitted = method.fit_many([(predictions[rows], labels[rows]) for rows in rest])
    order = torch.cat(parts)
    probs = torch.cat(
        [calibrator(predictions[part]) for calibrator, part in zip(fitted, parts, strict=True)]
    )
    return probs[order.argsort().to(probs.device)]


def check_folds(images: int, count: int = FOLDS) -> None:
    """Refuse to deal too few images into folds."""
    if images < 2 * count:
        raise InputError(
            f"expected at least {2 * count} labelled images for {count} folds, got {images}"
        )


def losses(probs: Probs, labels: Labels) -> Float[Tensor, " n"]:
    """The NLL of each image."""
    own = probs.double().gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    return -own.clamp(min=torch.finfo(torch.float32).tiny).log()


def rank(answers: Mapping[str, tuple[int, Probs]], labels: Labels) -> list[Candidate]:
    """Judge policies by their passes and held-out probabilities; the choice comes first, then the others by their loss."""
    if not answers:
        raise InputError("expected at least one policy to choose from, got none")
    found = {name: losses(probs, labels) for name, (_, probs) in answers.items()}
    best = min(found.values(), key=lambda loss: loss.mean().item())
    judged = [judge(name, answers[name][0], loss, best) for name, loss in found.items()]
    chosen = min((one for one in judged if one.close), key=lambda one: (one.passes, one.nll))
    return [chosen, *sorted((one for one in judged if one is not chosen), key=lambda one: one.nll)]


def judge(
    name: str, passes: int, loss: Float[Tensor, " n"], best: Float[Tensor, " n"]
) -> Candidate:
    """Compare the losses of a policy with those of the best one, image by image."""
    above = loss - best
    error = above.std().item() / len(above) ** 0.5
    return Candidate(
        policy=name, passes=passes, nll=loss.mean().item(), above=above.mean().item(), error=error
    )
