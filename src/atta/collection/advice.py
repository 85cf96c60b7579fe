"""Say what looks wrong in what a network answered: signs of a mistake that no check can be sure of, a sentence each."""

from atta.errors import advise
from atta.predictions import Record, look_like_probabilities

FEW = 200  # images: below it, fits and their numbers are noise
JUDGED = 20  # images from which on an accuracy is a sign of anything
SURE = 0.9999  # a confidence that is as good as 1
PIECE = 1 << 20  # logits looked at together


def advice(record: Record) -> list[str]:
    """What looks wrong in a record, of which some rows are read at a time."""
    images, classes, labels = len(record), record.predictions.classes, record.labels
    normal, sure, right, at = True, 0, 0, 0
    for part in record.predictions.select(()).unrehearsed().chunks(max(1, PIECE // classes)):
        normal = normal and look_like_probabilities(part.logits)
        sure += int((part.logits.double().softmax(dim=-1).amax(dim=-1) > SURE).sum())
        right += 0 if labels is None else int((part.logits.argmax(dim=-1) == labels[at : at + len(part)]).sum())
        at += len(part)
    found = list[str]()
    if normal:
        found.append(
            "the network answers with rows that are not negative and sum to 1: where these are probabilities, write "
            "atta.FromProbabilities(model)"
        )
    if images < FEW:
        found.append(f"{images} images are few to fit on and to judge by: {FEW} or more give numbers that can be trusted")
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
    if accuracy == 1:
        found.append("all images are right: were these images trained on? Confidence is fitted on images that were not")
    return found


def look_over(record: Record) -> None:
    """Warn of what looks wrong in a record."""
    for sentence in advice(record):
        advise(sentence)
