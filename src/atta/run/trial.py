"""Check first, run later: what can be told without the network is told before its first pass, the rest by a few images.

    labels · class names · device · views  no pass: views are made and looked at
    a few images, spread over the set      the network takes them, its logits are finite and as many as there are classes

A mistake costs eight passes, not the thousands that come after. The second pass is timed: `Trial.seconds` is what one image
takes, and what all of them will.
"""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.data import RandomSampler

from atta._base.errors import InputError, advise
from atta.data.labels import Truth
from atta.data.parts import part_of, readable
from atta.data.source import Source, StreamSource
from atta.data.views import Policy
from atta.networks.adapters import left_unnormalised, watched_spread
from atta.networks.borrowing import borrowed, device_of, dtype_of, find_device
from atta.record.predictions import as_labels, look_like_probabilities
from atta.run.runner import as_pixels, failing_on, logits_of

IMAGES = 8
SAID = 20  # images that cannot be read, a line each; of more it is said how many they are
ROUNDING = 1e-5  # by which a view may leave [0, 1] unnoticed
NO_LOGITS = (
    "expected a model that returns logits, got rows that are not negative and sum to 1, which are probabilities: "
    "leave the softmax out, or write atta.FromProbabilities(model)"
)


@dataclass(frozen=True)
class Trial:
    """What a few images tell: whether there are labels, what a pass takes an image, whether these are probabilities.

    `spread` is the part of its training's variance that the network's first batch normalisation was given, if it has one.
    """

    labelled: bool
    seconds: float
    probabilities: bool
    spread: float | None


def as_device(asked: str | int | torch.device | None, network: nn.Module) -> torch.device:
    """The device that was asked for, if it is there; the network's own if none was."""
    return device_of(network) if asked is None else find_device(asked)


@contextmanager
def running(
    network: nn.Module, device: torch.device, channels_last: bool, half: torch.dtype | None
) -> Iterator[None]:
    """Borrow the network to run it, without gradients; one context for many passes.

    Autocast keeps the weights it has cast, and casting them takes as long as a small batch.
    """
    mixed = torch.autocast(device.type, half) if half else nullcontext()
    with torch.no_grad(), borrowed(network, device, channels_last), mixed:
        yield


def check_names(class_names: Sequence[str]) -> None:
    """Check what can be told of class names before anything is read."""
    if isinstance(class_names, str) or not all(isinstance(name, str) for name in class_names):
        raise InputError(f"class_names: expected a list of texts, one a class, got {class_names!r}")
    if len(set(class_names)) < len(class_names):
        twice = next(name for name in class_names if list(class_names).count(name) > 1)
        raise InputError(
            f"class_names: expected a different name for each class, got {twice!r} twice"
        )


def without_bad(source: Source, truth: Truth, workers: int = 0) -> tuple[Source, dict[str, str]]:
    """Leave out the images that cannot be decoded, with their labels: say which, a line each, and what a record says of it."""
    rows, reasons = readable(source, workers)
    if not reasons:
        return source, {}
    for reason in reasons[:SAID]:
        advise(f"left out: {reason}")
    if len(reasons) > SAID:
        advise(
            f"left out: {len(reasons) - SAID} more, {len(reasons)} of {source.count} images in all"
        )
    truth.labels = truth.labels[rows] if truth.labels is not None else None
    left_out = sorted({*range(source.count or 0)} - {*rows.tolist()})
    return part_of(source, rows), {"left_out": json.dumps([source.where(row) for row in left_out])}


def check_labels(truth: Truth, images: object, source: Source) -> None:
    """Check what can be told of labels and class names before the number of classes is known."""
    labels = truth.labels
    if labels is None:
        return
    if isinstance(
        getattr(images, "sampler", None), RandomSampler
    ):  # a DataLoader in an order of its own
        advise(
            "the DataLoader is shuffled and the labels come apart from it: give shuffle=False, or a dataset with its labels"
        )
    count = len(labels) if source.count is None and labels.ndim else source.count or 0
    whole = not (labels.is_floating_point() or labels.is_complex())
    most = max(int(labels.to(torch.int64).max()), 0) if whole and labels.numel() else 0
    as_labels(labels, images=count, classes=most + 1)
    if truth.classes and most >= len(truth.classes):
        raise InputError(
            f"class_names: expected {most + 1} or more, one a class, got {len(truth.classes)}: the labels go up to {most}"
        )


def check_views(policy: Policy, pixels: Tensor) -> None:
    """Show a few images in every view: whether each can be made, and stays in [0, 1], is known before the network runs."""
    for view, repeats in policy.terms:
        for *_, shown in Policy(((view, repeats),)).render(pixels, draws="stratified"):
            if not torch.isfinite(shown).all():
                raise InputError(
                    f"View {view.name!r}: expected pixels in [0, 1], got some that are not finite"
                )
        if view.own:
            continue
        u = (torch.full((pixels.shape[0], view.count(pixels)), 0.5),) if view.random else ()
        low, high = (float(value) for value in view.transform(pixels, *u).aminmax())
        if low < -ROUNDING or high > 1 + ROUNDING:
            advise(
                f"the view {view.name!r} leaves [0, 1] (from {low:.3g} to {high:.3g}) and is clipped: a view changes pixels, "
                "and normalisation belongs around the network, as atta.Normalized"
            )


def try_out(
    network: nn.Module,
    source: Source,
    truth: Truth,
    policy: Policy,
    *,
    device: torch.device,
    half: torch.dtype | None = None,
) -> Trial:
    """Run the network on a few images, and hold all that was given against what it answers."""
    if (wanted := left_unnormalised(network)) is not None:
        advise(
            f"the network itself says that it wants photographs as '{wanted}', and is given pixels that are not normalised: "
            "preprocess=model says all of it (--resize, --crop, --mean, --std)"
        )
    images, own, places = _few(source)
    check_views(policy, as_pixels(images, torch.float32))
    pixels = as_pixels(images.to(device), dtype_of(network))
    answers, begun = list[Tensor](), 0.0
    with running(network, device, False, half), watched_spread(network) as spread:
        for part in pixels.tensor_split(
            min(2, len(pixels))
        ):  # the first pass warms up, the last one is timed
            begun = time.perf_counter()
            with failing_on(part):
                answers.append(logits_of(network, part, dtype_of(network)).cpu())
    seconds = (time.perf_counter() - begun) / len(answers[-1])
    logits = torch.cat(answers)
    if not (known := torch.isfinite(logits).all(dim=1)).all():
        which = source.where(places[int(known.long().argmin())])
        raise InputError(f"expected finite logits, got {float(logits[~known].sum())} for {which}")
    if (classes := logits.shape[1]) < 2:
        raise InputError(f"expected the model to return at least two classes, got {classes}")
    if classes == 2 and not logits[:, 0].any():
        _say_one(logits[:, 1])
    truth.settle(classes)
    labels = truth.labels if truth.labels is not None else truth.own(own)
    if labels is not None:
        as_labels(labels, images=len(labels), classes=classes)
    return Trial(labels is not None, seconds, look_like_probabilities(logits), spread())


def _say_one(answers: Tensor) -> None:
    """Say what is made of a network with one output, and that it looks like a probability where it does."""
    sentence = "the network answers with one number an image: it is taken for the logit of class 1, beside 0 for class 0"
    if ((answers >= 0) & (answers <= 1)).all():
        sentence += "; all lie in [0, 1]: where these are probabilities, after a sigmoid, write atta.FromProbabilities(model)"
    advise(sentence)


def _few(source: Source) -> tuple[Tensor, Tensor | None, list[int]]:
    """A few images, from the first to the last of a set: of a folder of classes, from most of them."""
    if (
        isinstance(source, StreamSource) or source.count is None
    ):  # which is read from its beginning, and goes on from there
        block = next(source.read([(0, IMAGES)]), None)
        if block is None:
            raise InputError(f"expected at least one image in {source.name}, found none")
        return *block, list(range(IMAGES))
    places = torch.linspace(0, source.count - 1, min(IMAGES, source.count)).round().long().tolist()
    blocks = list(source.read((place, place + 1) for place in places))
    labels = [own for _, own in blocks if own is not None]
    return (
        torch.cat([pixels for pixels, _ in blocks]),
        torch.cat(labels) if labels else None,
        places,
    )
