"""Cross-validation: compare candidates on images that they were not fitted on.

The images are dealt into folds, and each fold is answered by a calibrator fitted on the others
(`held_out`). The candidate with the lowest mean loss is not chosen directly. With a thousand images
many policies lie within noise of each other. So every candidate is compared with the best one image
by image, and

    choice = the candidate with the fewest passes whose mean loss exceeds that of the best by at
    most
             a tenth of a standard error of the difference (one standard error if it has no views);
             among candidates with as few passes, the one with the lowest loss

Views have to be clearly better than none. Among views the usual rule of one standard error saves
too many passes: with it, 4 passes reached 93 % of the Brier gain of 17 passes on CIFAR-10, with a
tenth of a standard error 106 % (docs/method.md).

With a default, known to be sensible before any image is seen, the choice is the default, unless the
best candidate is better by more than one standard error: noise alone does not replace it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from atta._base.errors import InputError
from atta._base.types import Labels, PerImage, Probs
from atta.calibrators.base import Method
from atta.calibrators.fitting import fold_splits, standard_error
from atta.record.predictions import Predictions

FOLDS = 5
CLOSE = 0.1  # standard errors
GAIN = 1e-6  # nats per image: a smaller gain is rounding
NOTED = 5e-4  # relative: a smaller loss by views than this would be written as 0.0 %


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """How a policy does on held-out images.

    Args:
        policy: The policy.
        passes: The passes per image.
        nll: The mean NLL.
        above: How far that is above the mean NLL of the best candidate.
        error: The standard error of this difference.
        images: The number of images it was judged on; 0 for all of them.
    """

    policy: str
    passes: int
    nll: float
    above: float
    error: float
    images: int = 0


class HeldAnswers(NamedTuple):
    """Probabilities and confidence in the network's class, of calibrators fitted on other folds."""

    probs: Probs
    confidence: PerImage


def held_out(
    method: Method, predictions: Predictions, labels: Labels, *, count: int = FOLDS, seed: int = 0
) -> HeldAnswers:
    """Answer each image with a calibrator that was fitted on the other folds."""
    check_folds(predictions.image_count, count)
    splits = fold_splits(len(predictions), count, seed=seed, groups=predictions.images)
    fitted = method.fit_many([(predictions[rest], labels[rest]) for rest, _ in splits])
    parts = [(one, predictions[part]) for one, (_, part) in zip(fitted, splits, strict=True)]
    probs = torch.cat([one(part) for one, part in parts])
    confidence = torch.cat([one.confidence(part) for one, part in parts])
    order = torch.cat([part for _, part in splits]).argsort().to(probs.device)
    return HeldAnswers(probs[order], confidence[order])


def held_rows(method: Method, predictions: Predictions, labels: Labels) -> Callable[[slice], Probs]:
    """Return what answers some rows as `held_out` does, without the probabilities of the others."""
    splits = [(rest.sort().values, part) for rest, part in fold_splits(len(labels), FOLDS)]
    fitted = method.fit_many([(predictions[rest], labels[rest]) for rest, _ in splits])
    fold = torch.empty(len(labels), dtype=torch.int64)
    for number, (_, part) in enumerate(splits):
        fold[part] = number

    def read(rows: slice) -> Probs:
        some, own = predictions[rows], fold[rows]
        held = [(own == number).nonzero()[:, 0] for number in range(FOLDS)]
        probs = [one(some[part]) for one, part in zip(fitted, held, strict=True) if len(part)]
        return torch.cat(probs)[torch.cat(held).argsort()]

    return read


def check_folds(images: int, count: int = FOLDS) -> None:
    """Refuse to deal too few images into folds."""
    if images < 2 * count:
        raise InputError(
            f"expected at least {2 * count} labelled images for {count} folds, got {images}"
        )


def losses(probs: Probs, labels: Labels) -> PerImage:
    """Return the NLL of each image."""
    own = probs.double().gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    return -own.clamp(min=torch.finfo(torch.float32).tiny).log()


def rank(
    answers: Mapping[str, tuple[int, Probs]],
    labels: Labels,
    images: Labels | None = None,
    *,
    default: str | None = None,
    errors: int = 1,
) -> list[Candidate]:
    """Compare policies by their passes and held-out probabilities.

    Args:
        answers: The passes and held-out probabilities of each policy.
        labels: The true classes.
        images: The image of each row, if the rows are pixels.
        default: The choice, unless another is significantly better; None prefers few passes.
        errors: The standard errors by which another has to be better than the default.

    Returns:
        The choice first, then the others by their loss.
    """
    if not answers:
        raise InputError("expected at least one policy to choose from, got none")
    found = {name: losses(probs, labels) for name, (_, probs) in answers.items()}
    best = min(found.values(), key=lambda loss: loss.mean().item())
    judged = [
        Candidate(
            policy=name,
            passes=answers[name][0],
            nll=loss.mean().item(),
            above=(loss - best).mean().item(),
            error=standard_error(loss - best, images),
        )
        for name, loss in found.items()
    ]
    best_first = sorted(judged, key=lambda one: one.nll)
    if default is None:
        close = [  # as good as the best, up to noise and rounding
            one
            for one in judged
            if one.above <= max(one.error if one.passes <= 1 else CLOSE * one.error, GAIN)
        ]
        chosen = min(close, key=lambda one: (one.passes, one.nll))
    else:
        own = next(one for one in judged if one.policy == default)
        alike = [one for one in judged if max(one.above, one.error) <= GAIN]  # for every image
        stays = own not in alike and own.above <= errors * own.error
        chosen = own if stays else min(alike, key=lambda one: one.passes)
    return [chosen, *(one for one in best_first if one is not chosen)]


def note_on_views(rivals: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a sentence if the views, the last of the rivals, are worse than temperature scaling.

    Args:
        rivals: The method, policy, passes and held-out NLL of each.
    """
    plain = next((one["nll"] for one in rivals if one["method"] == "temperature"), math.inf)
    if not rivals or not rivals[-1]["policy"] or rivals[-1]["nll"] <= plain * (1 + NOTED):
        return []
    more = rivals[-1]["nll"] / plain - 1 if plain > 0 else math.inf
    return [
        f"cross-validated, {rivals[-1]['policy']} is {more:.1%} worse in NLL than temperature "
        "scaling: use method='temperature', which needs 1 pass, or policy='auto', which compares"
    ]
