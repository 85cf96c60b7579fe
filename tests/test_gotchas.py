"""Each mistake of docs/gotchas.md ends in the sentence that the page shows."""

import re
import warnings
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import nn

import atta
from scenarios import linear, pixels

PAGE = Path(__file__).parent.parent / "docs" / "gotchas.md"
IMAGES = pixels(300)
HOW = {"policy": "flip", "method": "temperature", "rehearse": False, "progress": False}


class Answers(nn.Module):
    """A network whose answer is wrapped, as some networks return theirs."""

    def __init__(self, wrap):
        super().__init__()
        self.network, self.wrap = network(), wrap

    def forward(self, images):
        return self.wrap(self.network(images))


@cache
def network():
    """It predicts each class for a fifth of the images."""
    balanced = linear(classes=5, scale=3.0)
    with torch.no_grad():
        balanced[1].bias -= balanced(IMAGES / 255).mean(0)
    return balanced


@cache
def labels():
    """The network is right about most images, and wrong about a fifth."""
    answers = network()(IMAGES / 255).argmax(1)
    return torch.where(torch.arange(300) % 5 == 0, (answers + 1) % 5, answers)


def calibrate(model=None, images=IMAGES, truth=None, **how):
    truth = labels() if truth is None else truth
    return atta.calibrate(model or network(), images, truth, **{**HOW, **how})


def own():
    return network()(IMAGES / 255).argmax(1)


def one_class():
    return calibrate(images=IMAGES[labels() == 1], truth=labels()[labels() == 1])


MISTAKES = {
    "trained on them?": lambda: calibrate(truth=own()),
    "all labels are class 1": one_class,
    "labels must lie in 0 … 4, got 5": lambda: calibrate(truth=labels() + 1),
    "would be if labels counted from 1": lambda: calibrate(truth=(labels() + 1) % 5),
    "are the classes in the network's order?": lambda: calibrate(
        truth=torch.tensor([0, 2, 1, 3, 4])[labels()]
    ),
    "divide by 255": lambda: calibrate(images=IMAGES.float()),
    "take the normalisation out of the data": lambda: calibrate(images=(IMAGES / 255 - 0.5) / 0.2),
    "state channels='last'": lambda: calibrate(images=IMAGES.permute(0, 2, 3, 1)),
    "leave the softmax out": lambda: calibrate(nn.Sequential(network(), nn.Softmax(1))),
    "leave it out": lambda: calibrate(nn.Sequential(network(), nn.Sigmoid())),
    "return the logits alone": lambda: calibrate(Answers(lambda logits: (logits, logits))),
    "call classifier.eval()": lambda: trained(calibrate()),
}


def trained(classifier):
    classifier.model.train()
    return classifier(IMAGES[:2])


def said(mistake):
    """The error and the warnings of a call."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            mistake()
        except atta.InputError as error:
            return [str(error)]
    return [str(one.message) for one in caught]


@pytest.mark.parametrize("sentence", MISTAKES)
def test_a_mistake_ends_in_one_sentence_which_the_page_shows(sentence):
    (found,) = [one for one in said(MISTAKES[sentence]) if " are few" not in one]
    assert sentence in found
    assert sentence in re.sub(r"\s+", " ", PAGE.read_text(encoding="utf-8"))


def test_what_is_right_is_silent():
    assert said(calibrate) == []


@pytest.mark.parametrize("wrap", [lambda one: {"out": one}, lambda one: [one]])
def test_other_containers_of_logits_are_refused_with_what_to_do(wrap):
    (found,) = said(lambda: calibrate(Answers(wrap)))
    assert found.endswith("return the logits alone")


def test_a_model_in_training_mode_is_calibrated_in_evaluation_mode():
    model = nn.Sequential(nn.Dropout(0.9), network())
    assert calibrate(model.train()).summary.accuracy == calibrate().summary.accuracy


def test_evaluation_says_what_looks_wrong_and_that_labels_are_missing():
    classifier = calibrate()
    assert said(lambda: classifier.evaluate(IMAGES, labels())) == []
    (found,) = said(lambda: classifier.evaluate(IMAGES, (labels() + 1) % 5))
    assert "would be if labels counted from 1" in found
    assert said(lambda: classifier.evaluate(IMAGES, (labels() + 1) % 5, checks=False)) == []
    (found,) = said(lambda: classifier.evaluate(IMAGES))
    assert found.startswith("labels: expected a class number for every image")
