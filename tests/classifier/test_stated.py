"""Classes that the user states: probabilities are weighted, the class may change, and promises are withdrawn."""

from functools import partial

import numpy as np
import pytest
import torch

import atta
from atta import InputError
from atta.classifier.classifier import CalibratedClassifier
from atta.classifier.export import open_graph
from atta.classifier.predict import open_predictor, predict
from atta.data.folder import find_images
from scenarios import linear, pixels

NAMES = ("ant", "bee", "cat")


@pytest.fixture(scope="module")
def classifier() -> CalibratedClassifier:
    network, images = linear(), pixels(200)
    labels = network(images / 255).argmax(1)
    labels[::5] = (labels[::5] + 1) % 3
    return atta.calibrate(
        network, images, labels, policy="flip", class_names=NAMES, rehearse=False, progress=False
    )


def test_classes_that_do_not_occur_get_nothing_and_the_others_keep_their_odds(classifier):
    images = pixels(50, seed=3) / 255
    before, after = classifier(images), classifier.with_classes(["ant", 2])(images)
    assert (after[:, 1] == 0).all()
    expected = before[:, [0, 2]] / before[:, [0, 2]].sum(1, keepdim=True)
    torch.testing.assert_close(after[:, [0, 2]], expected)
    assert not torch.equal(after.argmax(1), before.argmax(1))
    assert torch.equal(classifier.with_classes(NAMES)(images), before)


def test_a_prior_divides_by_the_shares_of_the_validation_images(classifier):
    images = pixels(50, seed=3) / 255
    after = classifier.with_prior({"ant": 3, "bee": 1})(images)
    expected = (
        classifier(images)
        * torch.tensor([0.75, 0.25, 0])
        / torch.tensor(classifier.reference.shares)
    )
    torch.testing.assert_close(after, (expected / expected.sum(1, keepdim=True)).float())


def test_every_way_to_ask_gives_the_same_answer(classifier, tmp_path):
    told, images = classifier.with_prior({"ant": 0.2, "cat": 0.8}), pixels(40, seed=3)
    probs = told.predict_proba(images)
    np.testing.assert_allclose(told.labelled_proba(images)[0].numpy(), probs, atol=1e-6)
    np.testing.assert_allclose(told.confidence(images), probs.max(1), atol=1e-6)
    loaded = CalibratedClassifier.load(told.save(tmp_path / "told"), linear())
    np.testing.assert_array_equal(loaded.predict_proba(images), probs)
    told.export(tmp_path / "told.onnx")
    graph, *_ = open_graph(tmp_path / "told.onnx").run(images[:8].float() / 255)
    np.testing.assert_allclose(graph.numpy(), probs[:8], atol=1e-5)
    assert told.about()["keeps_class"] is False
    right = (probs.argmax(1) == 0).mean()
    assert told.evaluate(images, [0] * 40, checks=False)["c-atta"]["accuracy"] == pytest.approx(
        right
    )


def test_nothing_is_promised_for_stated_classes(classifier):
    told = classifier.with_classes(["ant", "bee"])
    with pytest.raises(InputError, match="told its classes"):
        told.predict_set(pixels(3))
    with pytest.raises(InputError, match="told its classes"):
        told.at_risk(0.2)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda one: one.with_classes(["ants"]), "classes: expected names .* 'ants'.*'ant'"),
        (lambda one: one.with_classes([3]), "3 classes, got 3"),
        (lambda one: one.with_classes([]), "at least one class"),
        (lambda one: one.with_prior({"ant": -1}), "share ≥ 0 of class 'ant', got -1"),
        (lambda one: one.told("ant=0.5,bee"), "a share for each"),
    ],
)
def test_what_cannot_be_stated_is_refused(classifier, ask, message):
    with pytest.raises(InputError, match=message):
        ask(classifier)


def test_a_table_says_how_many_classes_changed(classifier, tmp_path):
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    for i, one in enumerate(pixels(12, seed=3)):
        image.fromarray(one.permute(1, 2, 0).numpy()).save(tmp_path / f"{i:02}.png")
    files = find_images([tmp_path])
    classifier.save(tmp_path / "classifier")
    predictor = open_predictor(tmp_path / "classifier", linear(), classes="ant=0.5,cat=0.5")
    done = predict(predictor, files, tmp_path / "out.csv")
    changed = int(
        (classifier.predict(files) != classifier.told("ant=0.5,cat=0.5").predict(files)).sum()
    )
    told = classifier.told("ant=0.5,cat=0.5")
    assert done.changed == changed == told.changed(files).sum() > 0
    assert not classifier.changed(files).any()
    assert f"{changed} classes changed" in str(done)
    classifier.export(tmp_path / "graph.onnx")
    with pytest.raises(InputError, match="or its classes, and export that"):
        open_predictor(tmp_path / "graph.onnx", classes="ant")


def test_a_segmenter_is_told_that_this_is_for_classifiers():
    network = torch.nn.Conv2d(3, 4, 3, padding=1)
    images, masks = torch.rand(20, 3, 8, 8), torch.randint(4, (20, 8, 8))
    segmenter = atta.calibrate(network, images, masks, policy="flip", progress=False)
    for ask in (
        lambda: segmenter.with_classes([0, 1]),
        segmenter.watch,
        partial(segmenter.at_risk, 0.1),
    ):
        with pytest.raises(InputError, match="expected a classifier of images, got a segmenter"):
            ask()
