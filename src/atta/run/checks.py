"""Checks before and after a run: a mistake costs eight passes, not thousands.

before    labels, class names, device and views, without a pass; then eight images, spread over
          the set: does the network take them, are its logits finite, does one match each class?
after     what looks wrong in the answers, one sentence each
"""

import math
import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from atta._base.errors import InputError, advise, first_line
from atta._base.types import Labels
from atta.data.labels import Labelling
from atta.data.loading import Positions
from atta.data.photographs import is_larger
from atta.data.preprocess import sheet_of
from atta.data.source import Batch, Source, copies
from atta.data.views import Policy
from atta.networks.borrowing import (
    contradictions,
    dtype_of,
    left_unnormalised,
    watched_spread,
)
from atta.record.predictions import Record, as_labels, look_like_probabilities
from atta.run.runner import Execution, as_pixels, failing_on, logits_of, running

IMAGES = 8
ROUNDING = 1e-5  # by which a view may leave [0, 1] unnoticed
FEW = 200  # images: with fewer, fits and their numbers are noise
JUDGED = 20  # images from which on an accuracy means something
ACCIDENT = 0.01  # probability below which confusions are no accident
SEEN = 5  # images of a class from which on its confusions mean something
CERTAIN = 0.9999  # a confidence that is practically 1
SURE = 0.9  # a confidence that nearly all training images have
LEARNED = 0.98  # accuracy from which on images may be those of the training
# passes in each memory layout; part of the time that is less
LAYOUT_TRIALS = 3
CLEARLY = 0.9
PIECE = 1 << 20  # logits that are looked at together
NOT_LOGITS = (
    "expected a model that returns logits, got rows that are not negative and sum to 1, which are "
    "probabilities: leave the softmax out, or write atta.FromProbabilities(model)"
)
NO_LABELS = (
    "labels: expected a class number for every image, given as labels=... (--labels FILE), by a "
    "dataset of images and labels, or by a folder with a subfolder for each class; got none"
)


@dataclass(frozen=True)
class Trial:
    """What a few images show.

    Args:
        labelled: Whether every image has a label.
        pixels: The images.
        reading, showing, seconds: Time of reading one image, of a view, and of a pass.
        probabilities: Whether the answers look like probabilities.
        spread: Variance that the first batch normalisation gets, as a part of that in training.
        fixed: Why the network cannot show the view `larger`, if it cannot.
    """

    labelled: bool
    pixels: Tensor
    reading: float
    showing: float
    seconds: float
    probabilities: bool
    spread: float | None
    fixed: str = ""


def check_labels(labelling: Labelling, source: Source) -> None:
    """Check labels and class names as far as possible without knowing the number of classes."""
    labels = labelling.labels
    if labels is None:
        return
    count = len(labels) if source.count is None and labels.ndim else source.count or 0
    whole = not (labels.is_floating_point() or labels.is_complex())
    most = max(int(labels.to(torch.int64).max()), 0) if whole and labels.numel() else 0
    as_labels(labels, images=count, classes=most + 1)
    if labelling.classes and most >= len(labelling.classes):
        raise InputError(
            f"class_names: expected {most + 1} or more, one for each class, got "
            f"{len(labelling.classes)}: the labels go up to {most}"
        )


def check_views(policy: Policy, pixels: Tensor) -> None:
    """Check that every view can be made of a few images, and that it stays in [0, 1]."""
    for view, repeats in policy.terms:
        if view.photograph:
            continue
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
                f"the view {view.name!r} leaves [0, 1] (from {low:.3g} to {high:.3g}) and is "
                "clipped: a view changes pixels, and normalisation belongs around the network, as "
                "atta.Normalized"
            )


def try_out(
    network: nn.Module,
    source: Source,
    labelling: Labelling,
    policy: Policy,
    execution: Execution,
) -> Trial:
    """Run the network on a few images, and compare its answers with all that was given."""
    if (wanted := left_unnormalised(network)) is not None:
        advise(
            f"the network states that it wants photographs as '{wanted}', and is given pixels that "
            "are not normalised: preprocess=model does all of it (--resize, --crop, --mean, --std)"
        )
    few: Positions = range(IMAGES)
    if source.count is not None and not source.once:  # from the first to the last
        few = torch.linspace(0, source.count - 1, min(IMAGES, source.count)).round().long().tolist()
    begun = time.perf_counter()
    batch = next(source.read([few]))
    reading = (time.perf_counter() - begun) / len(batch.pixels)
    sheet = sheet_of(source.preprocess)
    sheets, cropped = batch.pixels, sheet.crop(batch.pixels) if sheet else batch.pixels
    for sentence in contradictions(network, cropped, source.preprocess):
        advise(sentence)
    begun = time.perf_counter()
    check_views(policy, as_pixels(cropped, torch.float32))
    showing = (time.perf_counter() - begun) / (len(cropped) * max(policy.passes - 1, 1))
    there = execution.engine and not torch.cuda.is_available()  # the cluster has other devices
    device = torch.device("cpu") if there else execution.device_of(network)
    pixels = as_pixels(cropped.to(device), dtype_of(network))
    answers, fixed = list[Tensor](), ""
    with running(network, device, False, execution.half):
        with watched_spread(network) as spread:
            for part in pixels.tensor_split(min(2, len(pixels))):  # the first pass warms up
                begun = time.perf_counter()
                with failing_on(part):
                    answers.append(logits_of(network, part, dtype_of(network)).cpu())
        seconds = (time.perf_counter() - begun) / len(answers[-1])
        large = [term for term in policy.photographs if is_larger(term[0])]
        if sheet and large:
            shown = as_pixels(sheet.views(sheets[:1], *large[0])[0], dtype_of(network))
            fixed = _fixed_size(network, shown.to(device), answers[0].shape[1])
    logits = torch.cat(answers)
    _check_logits(logits, batch, source)
    labelling = labelling.settled(logits.shape[1])
    labels = labelling.labels if labelling.labels is not None else labelling.own(batch.labels)
    if labels is not None:
        as_labels(labels, images=len(labels), classes=logits.shape[1])
    probabilities, times = look_like_probabilities(logits), (reading, showing, seconds)
    ratio = spread[0] if spread and wanted is None else None  # else it was said above
    return Trial(labels is not None, cropped, *times, probabilities, ratio, fixed)


def _check_logits(logits: Tensor, batch: Batch, source: Source) -> None:
    """Check that the answers are finite, for two classes or more."""
    if not (known := torch.isfinite(logits).all(dim=1)).all():
        which = source.where(batch.positions[int(known.long().argmin())])
        raise InputError(f"expected finite logits, got {float(logits[~known].sum())} for {which}")
    if (classes := logits.shape[1]) < 2:
        raise InputError(f"expected the model to return at least two classes, got {classes}")
    if classes == 2 and not logits[:, 0].any():
        sentence = (
            "the network returns one number for each image: it is taken as the logit of class 1, "
            "with 0 for class 0"
        )
        if ((logits >= 0) & (logits <= 1)).all():
            sentence += (
                "; all lie in [0, 1]: if these are probabilities, after a sigmoid, write "
                "atta.FromProbabilities(model)"
            )
        advise(sentence)


def _fixed_size(network: nn.Module, pixels: Tensor, classes: int) -> str:
    """Say why a network does not take larger images than its own; nothing if it does."""
    try:
        answered = logits_of(network, pixels, dtype_of(network)).shape[1]
        why = f"it returns {answered} classes instead of {classes}" if answered != classes else ""
    except Exception as error:  # whatever a network says of images that it cannot take
        why = first_line(error)
    size = " x ".join(map(str, pixels.shape[2:]))
    return why and (
        f"the view 'larger': expected a network that also takes {size} pixels, got one that does "
        f"not ({why}): take 'tight' or 'whole', or make the network accept other sizes "
        "(timm.create_model(..., dynamic_img_size=True))"
    )


def faster_layout(
    network: nn.Module, pixels: Tensor, execution: Execution
) -> tuple[bool, float] | None:
    """Return whether channels-last is clearly faster, and the time of a pass.

    None if the layout was asked for, or off a CPU.
    """
    device = execution.device_of(network)
    dtype = dtype_of(network)
    given = execution.channels_last is not None or execution.engine
    if given or device.type != "cpu" or all(each.ndim != 4 for each in network.parameters()):
        return None
    seconds = {False: list[float](), True: list[float]()}
    images = as_pixels(pixels, dtype)
    for last in (False, True) * LAYOUT_TRIALS:
        layout = torch.channels_last if last else torch.contiguous_format
        part = images.contiguous(memory_format=layout)
        with running(network, device, last, execution.half):
            begun = time.perf_counter()
            logits_of(network, part, dtype)
            seconds[last].append(time.perf_counter() - begun)
    last = min(seconds[True]) < CLEARLY * min(seconds[False])
    return last, sum(seconds[last]) / (LAYOUT_TRIALS * len(images))


def look_over(record: Record, source: Source | None = None) -> None:
    """Warn of what looks wrong in a record and its images, one sentence each."""
    if source is not None and (twice := copies(source)):
        advise(
            f"{twice} of {source.count} images occur more than once: the copies of an image fall "
            "into several folds, so that cross-validated numbers look too good. Keep one of each"
        )
    images = len(record)
    classes = record.predictions.classes
    labels = record.labels
    normal, unit, certain, confident, winners = True, classes > 2, 0, 0, list[Tensor]()
    for part in record.predictions.select((), rehearsals=False).chunks(max(1, PIECE // classes)):
        normal = normal and look_like_probabilities(part.logits)
        unit = unit and bool(((part.logits >= 0) & (part.logits <= 1)).all())
        confidence = part.logits.double().softmax(dim=-1).amax(dim=-1)
        certain += int((confidence > CERTAIN).sum())
        confident += int((confidence > SURE).sum())
        winners.append(part.logits.argmax(dim=-1))
    answers = torch.cat(winners)
    right = 0 if labels is None else int((answers == labels).sum())
    found = list[str]()
    if normal:
        found.append(
            "the network returns rows that are not negative and sum to 1: if these are "
            "probabilities, write atta.FromProbabilities(model)"
        )
    elif unit:
        found.append(
            "all outputs of the network lie in [0, 1] and are taken as logits: if the network ends "
            "in a sigmoid, leave it out"
        )
    if images < FEW:  # half of the 95 % interval of an accuracy of 80 %
        here, there = (1.96 * math.sqrt(0.16 / count) for count in (images, FEW))
        found.append(
            f"{images} images are few: an accuracy measured on them has an error of up to "
            f"±{here:.0%} (on {FEW} images ±{there:.0%}), and metrics of calibration are no more "
            "precise"
        )
    nearly = images >= FEW and min(right, confident) >= LEARNED * images
    if labels is not None and images >= JUDGED and (nearly or right == images):
        found.append(
            f"{right / images:.1%} of these images are classified correctly: was the network "
            "trained on them? Calibration needs images that it was not trained on"
        )
    elif images >= JUDGED and certain > 0.99 * images:
        found.append("the confidence of every image is 1.0: are the logits scaled?")
    if labels is not None and images >= JUDGED:
        found += _look_over_labels(answers, labels, right / images, classes)
    for sentence in found:
        advise(sentence)


def _look_over_labels(answers: Labels, labels: Labels, accuracy: float, classes: int) -> list[str]:
    """Return what looks wrong in the labels, one sentence at most."""
    images = len(labels)
    chance = 1 / classes
    if bool((labels == labels[0]).all()):
        return [
            f"all labels are class {int(labels[0])}, counted from 0: calibration needs images of "
            "all classes, as they will come"
        ]
    for higher, said in ((1, "counted from 1"), (-1, "were one higher")):
        shifted = float((answers + higher == labels).double().mean())
        if shifted > accuracy + 0.3:
            return [
                f"{accuracy:.1%} are right, and {shifted:.1%} would be if labels {said}: "
                "expected class numbers from 0, in the network's order"
            ]
    if accuracy <= chance + 2 * (chance * (1 - chance) / images) ** 0.5:
        return [
            f"{accuracy:.1%} accuracy on {classes} classes is no better than chance: are mean and "
            "std those of the network (atta.Normalized), and the classes in its order?"
        ]
    if moved := _moved(answers, labels, classes):
        return [
            "most images of class {} are predicted as class {}, and most of that as class {}, "
            "counted from 0: are the classes in the network's order?".format(*moved)
        ]
    return []


def _moved(answers: Labels, labels: Labels, classes: int) -> tuple[int, int, int] | None:
    """Find a class that is mostly predicted as a second, which is mostly predicted as a third.

    A poor network may confuse two classes; a chain of three suggests that classes are permuted. Of
    fewer images, all are predicted as the other of two classes, which is no accident if few others
    are wrong.
    """
    taken = torch.bincount(labels * classes + answers, minlength=classes**2)
    taken = taken.reshape(classes, classes)
    every = torch.arange(classes, device=labels.device)
    (count_most, most), count = taken.max(dim=1), taken.sum(dim=1)
    wrong = 1 - float(taken.diagonal().sum()) / len(labels)
    moved = (most != every) & (count > 0)
    chain = moved & (count >= SEEN) & (count_most > 0.5 * count)
    pair = moved & (most[most] == every)
    pair &= (count_most == count) & (classes * wrong ** (count + count[most]) < ACCIDENT)
    found = chain & chain[most] | pair & pair[most]
    if not found.any():
        return None
    first = int(found.nonzero()[0])
    return first, int(most[first]), int(most[most[first]])
