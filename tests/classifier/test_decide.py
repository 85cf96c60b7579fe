"""What people do with a confidence: answer, hand over, or take what costs least."""

import numpy as np
import pytest
import torch

import atta
from atta import InputError
from atta.classifier.classifier import CalibratedClassifier
from scenarios import linear, pixels


@pytest.fixture(scope="module")
def classifier() -> CalibratedClassifier:
    network = linear(scale=20.0)
    chances = network(pixels(600) / 255).softmax(1)  # as sure as it is right
    labels = torch.multinomial(chances, 1, generator=torch.Generator().manual_seed(1))[:, 0]
    return atta.calibrate(
        network, pixels(600), labels, policy="flip", method="temperature", progress=False
    )


def test_confidence_is_that_of_the_networks_own_class(classifier):
    images = pixels(20, seed=3)
    confidence = classifier.confidence(images)
    assert confidence.shape == (20,)
    assert confidence == pytest.approx(classifier.predict_proba(images).max(1), abs=1e-6)


def test_a_promise_is_made_saved_and_withdrawn(classifier, tmp_path):
    careful = classifier.at_risk(0.1)
    assert "At most 10.00% of the answers are wrong" in str(careful.promise)
    images = pixels(200, seed=4)
    answered = careful.answered(images)
    limit = careful.promise.thresholds[0]
    assert answered.tolist() == (careful.confidence(images) > limit).tolist()
    assert classifier.promise is None
    again = CalibratedClassifier.load(careful.save(tmp_path / "careful"), linear())
    assert again.promise == careful.promise
    assert again.kept.held_out == careful.kept.held_out
    assert again.answered(images).tolist() == answered.tolist()
    faded = (pixels(200, seed=5).float() / 255 - 0.5) * 0.25 + 0.5
    adapted = again.adapt(faded)
    assert adapted.promise is None
    with pytest.raises(InputError, match="nothing can be promised"):
        adapted.at_risk(0.1)


@pytest.mark.parametrize(
    "asked", [{"risk": 2.0}, {"risk": float("nan")}, {"risk": 0.1, "delta": 0.0}]
)
def test_a_risk_that_is_no_share_is_refused(classifier, asked):
    with pytest.raises(InputError, match=r"must be a number > 0 and < 1, got"):
        classifier.at_risk(**asked)


def test_batches_do_not_change_what_is_answered(classifier):
    careful, images = classifier.at_risk(0.1), pixels(50, seed=8)
    assert careful.answered(images, batch_size=7).tolist() == careful.answered(images).tolist()
    confidence = careful.confidence(images, batch_size=7)
    assert confidence == pytest.approx(careful.confidence(images), abs=1e-6)


def test_evaluation_says_how_many_images_are_answered_at_a_risk(classifier):
    images = pixels(300, seed=9)
    labels = linear(scale=20.0)(images / 255).argmax(1)
    labels[::10] = (labels[::10] + 1) % 3
    found = classifier.evaluate(images, labels, checks=False)["temperature"]
    right = classifier.predict(images) == labels.numpy()
    order = np.argsort(-classifier.confidence(images), kind="stable")
    risk = np.cumsum(~right[order]) / np.arange(1, 301)
    kept = np.flatnonzero(risk <= 0.05)
    assert found["answered_5"] == pytest.approx((kept.max() + 1 if len(kept) else 0) / 300)
    assert found["answered_0.5"] <= found["answered_1"] <= found["answered_2"]
    assert found["confidence_brier"] == pytest.approx(found["brier"])


def test_confidence_is_of_the_class_that_is_answered():
    record = atta.find_record("cifar10-resnet50")
    predictions, labels = record.predictions[:600], record.labels[:600]
    free = atta.CATTA(views=["flip", "crop"], keep_class=False).fit(predictions, labels)
    assert not free(predictions).argmax(1).equal(predictions.logits.argmax(1))
    assert free.confidence(predictions).equal(free(predictions).amax(1))


def test_what_cannot_be_promised_is_refused(classifier):
    with pytest.raises(InputError, match=r"cannot promise a risk of 0.10%; the least that can be"):
        classifier.at_risk(0.001)
    with pytest.raises(InputError, match="at_risk"):
        classifier.answered(pixels(4))
    by_hand = CalibratedClassifier(
        classifier.model, classifier.calibrator, image_shape=classifier.image_shape
    )
    with pytest.raises(InputError, match="calibrate it again"):
        by_hand.at_risk(0.1)


def test_a_decision_by_costs(classifier):
    images = pixels(10, seed=6)
    choice, cost = classifier.decide(images, 1 - np.eye(3))
    assert choice.tolist() == classifier.predict_proba(images).argmax(1).tolist()
    assert cost == pytest.approx(1 - classifier.predict_proba(images).max(1), abs=1e-6)
    handed, _ = classifier.decide(images, 1 - np.eye(3), abstain=0.0)
    assert set(handed) <= {-1, *choice}


def test_decisions_cost_what_was_expected_and_abstaining_saves(classifier):
    images, costs = pixels(1500, seed=11), np.array([[0, 1, 4], [2, 0, 4], [9, 9, 0]])
    chances = linear(scale=20.0)(images / 255).softmax(1)
    truth = torch.multinomial(chances, 1, generator=torch.Generator().manual_seed(2))[:, 0].numpy()
    choice, expected = classifier.decide(images, costs)
    paid = costs[truth, choice]
    assert paid.mean() == pytest.approx(expected.mean(), abs=4 * paid.std() / len(paid) ** 0.5)
    abstained, less = classifier.decide(images, costs, abstain=0.5)
    saved = np.where(abstained < 0, 0.5, costs[truth, np.maximum(abstained, 0)])
    assert saved.mean() < paid.mean()
    assert (less <= np.minimum(expected, 0.5) + 1e-12).all()
    top = classifier.predict(images)
    assert paid.mean() < costs[truth, top].mean()  # the likeliest class costs more
