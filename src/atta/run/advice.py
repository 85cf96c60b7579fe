"""Say what looks wrong in what a network answered: signs of a mistake that no check can be sure of, a sentence each."""

import torch

from atta._base.errors import advise
from atta._base.types import Labels
from atta.record.predictions import Predictions, Record, look_like_probabilities

FEW = 200  # images: below it, fits and their numbers are noise
JUDGED = 20  # images from which on an accuracy is a sign of anything
SEEN = 5  # images of a class from which on it is said what it is taken for
SURE = 0.9999  # a confidence that is as good as 1
PIECE = 1 << 20  # logits looked at together


def advice(record: Record) -> list[str]:
    """What looks wrong in a record, of which some rows are read at a time."""
    images, classes, labels = len(record), record.predictions.classes, record.labels
    normal, sure, right, at = True, 0, 0, 0
    for part in record.predictions.select(()).unrehearsed().chunks(max(1, PIECE // classes)):
        normal = normal and look_like_probabilities(part.logits)
        sure += int((part.logits.double().softmax(dim=-1).amax(dim=-1) > SURE).sum())
        right += (
            0
            if labels is None
            else int((part.logits.argmax(dim=-1) == labels[at : at + len(part)]).sum())
        )
        at += len(part)
    found = list[str]()
    if normal:
        found.append(
            "the network answers with rows that are not negative and sum to 1: where these are probabilities, write "
            "atta.FromProbabilities(model)"
        )
    if images < FEW:
        found.append(
            f"{images} images are few to fit on and to judge by: {FEW} or more give numbers that can be trusted"
        )
    if images >= JUDGED and sure / images > 0.99:
        found.append(
            "the network is sure of every image, confidence 1.0: are its logits scaled, or were these images trained on?"
        )
    if labels is None or images < JUDGED:
        return found
    accuracy, chance = right / images, 1 / classes
    if accuracy <= chance + 2 * (chance * (1 - chance) / images) ** 0.5:
        found.append(
            f"{accuracy:.1%} right of {classes} classes is no better than chance: are mean and std those of the network "
            "(atta.Normalized), and the classes in its order?"
        )
    elif moved := _moved(record.predictions, labels):
        found.append(
            "most images of class {} are taken for class {}, and most of that for class {}, counted from 0: are the classes in "
            "the network's order?".format(*moved)
        )
    if accuracy == 1:
        found.append(
            "all images are right: were these images trained on? Confidence is fitted on images that were not"
        )
    return found


def _moved(predictions: Predictions, labels: Labels) -> tuple[int, int, int] | None:
    """A class that the network mostly takes for a second, which it mostly takes for a third: classes that changed places.

    A network that takes dogs for cats is a poor one; one that also takes cats for something else has other numbers for them.
    """
    classes = predictions.classes
    parts = predictions.select(()).unrehearsed().chunks(max(1, PIECE // classes))
    answers = torch.cat([part.logits.argmax(dim=-1) for part in parts])
    taken = torch.zeros(classes, classes, dtype=torch.long, device=labels.device)
    taken.index_put_((labels, answers), torch.ones_like(labels), accumulate=True)
    most, count = taken.max(dim=1).indices, taken.sum(dim=1)
    rows = torch.arange(classes, device=labels.device)
    moved = (most != rows) & (count >= SEEN) & (taken.amax(dim=1) > 0.5 * count)
    if not (moved & moved[most]).any():
        return None
    first = int((moved & moved[most]).nonzero()[0])
    return first, int(most[first]), int(most[most[first]])


def look_over(record: Record) -> None:
    """Warn of what looks wrong in a record."""
    for sentence in advice(record):
        advise(sentence)
