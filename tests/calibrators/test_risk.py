"""A stated risk: thresholds that keep it, and decisions by cost."""

import json
from dataclasses import asdict

import numpy as np
import pytest
import torch

import atta
from atta import InputError
from atta.calibrators.risk import HeldOut, Promise, expected_cost, least_risk, threshold


def drawn(images: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Calibrated confidences, and whether each answer is right."""
    rng = np.random.default_rng(seed)
    confidence = rng.beta(6, 1, images)
    return confidence, rng.random(images) < confidence


@pytest.mark.parametrize("risk", [0.02, 0.05, 0.1])
def test_a_promise_is_broken_no_more_often_than_stated(risk):
    confidence, right = drawn(200_000, 1)
    broken = kept = 0
    for seed in range(200):
        limit = threshold(*drawn(600, 100 + seed), risk)
        if limit is not None and (confidence > limit).any():
            kept += 1
            broken += (~right[confidence > limit]).mean() > risk
    assert broken <= 0.05 * 200 + 3 * (0.05 * 0.95 * 200) ** 0.5
    assert kept > 0


def test_more_risk_answers_more_images_and_certainty_answers_all():
    confidence, right = drawn(5000, 2)
    limits = [threshold(confidence, right, risk) for risk in (0.02, 0.05, 0.1, 0.3)]
    assert all(one is not None for one in limits)
    assert sorted(limits, reverse=True) == limits
    assert threshold(confidence, np.ones(5000, bool), 0.01) < 0


def test_too_few_images_promise_nothing_and_say_what_they_can():
    confidence, right = drawn(100, 3)
    assert threshold(confidence, right, 0.01) is None
    held = HeldOut(confidence=tuple(confidence), right=tuple(right.tolist()), answers=(0,) * 100)
    with pytest.raises(InputError, match=r"100 validation images cannot promise a risk of 1.00%; "):
        held.promise(0.01)
    least = least_risk(confidence, right)
    assert held.promise(least).risk == least


def test_images_of_equal_confidence_are_answered_together_or_not_at_all():
    confidence = np.repeat([0.99, 0.6], 500)
    right = np.arange(1000) % 10 > 0
    right[:500] = True
    limit = threshold(confidence, right, 0.05)
    assert (confidence > limit).sum() in (500, 1000)


def test_each_class_has_its_threshold_and_files_keep_them():
    confidence, right = drawn(4000, 4)
    answers = np.arange(4000) % 2
    right[answers == 1] &= np.random.default_rng(0).random(2000) < 0.5  # class 1 is hopeless
    held = HeldOut(
        confidence=tuple(confidence), right=tuple(right.tolist()), answers=tuple(answers.tolist())
    )
    again = HeldOut.read(json.loads(json.dumps(asdict(held))))
    assert again == held
    promise = again.promise(0.05, by_class=True)
    answered = promise.answered(torch.tensor(confidence), torch.tensor(answers)).numpy()
    assert not answered[answers == 1].any()
    assert answered[answers == 0].any()
    assert Promise.read(json.loads(json.dumps(asdict(promise)))) == promise
    assert not promise.answered(torch.ones(1), torch.tensor([7])).any()  # never seen in validation
    for forged in ({"confidence": [2.0]}, {"answers": [-1]}, {"answers": [10**9]}, {"right": []}):
        with pytest.raises(InputError, match="between 0 and 1"):
            HeldOut.read({"confidence": [0.5], "right": [True], "answers": [0], **forged})


def test_the_decision_of_least_expected_cost():
    probs = np.array([[0.9, 0.1], [0.5, 0.5], [0.2, 0.8]])
    missed = [[0, 1], [20, 0]]  # calling a true 1 a 0 costs twenty times as much
    choice, cost = expected_cost(probs, missed)
    assert choice.tolist() == [1, 1, 1]
    assert cost == pytest.approx([0.9, 0.5, 0.2])
    choice, cost = expected_cost(probs, missed, abstain=0.4)
    assert choice.tolist() == [-1, -1, 1]
    assert cost == pytest.approx([0.4, 0.4, 0.2])
    with pytest.raises(InputError, match=r"shaped \(2, decisions\).*got shape \(3, 2\)"):
        expected_cost(probs, np.zeros((3, 2)))
    with pytest.raises(InputError, match="abstain: expected a finite cost, got nan"):
        expected_cost(probs, missed, abstain=float("nan"))


def test_confidence_is_not_raised_by_the_guard():
    record = atta.find_record("cifar10-resnet50")
    predictions, labels = record.predictions[:2000], record.labels[:2000]
    fitted = atta.CATTA(views=["flip", "crop"]).fit(predictions[:1000], labels[:1000])
    rest = predictions[1000:]
    right = (rest.logits.argmax(1) == labels[1000:]).double()
    confidence, largest = fitted.confidence(rest).double(), fitted(rest).double().amax(1)
    assert (confidence <= largest + 1e-6).all()
    assert ((confidence - right) ** 2).mean() <= ((largest - right) ** 2).mean()
    plain = atta.TemperatureScaling().fit(predictions[:1000], labels[:1000])
    assert plain.confidence(rest).equal(plain(rest).amax(1))
