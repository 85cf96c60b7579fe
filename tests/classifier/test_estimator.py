"""Many images from any container, and the interface of scikit-learn."""

import copy

import numpy as np
import pytest
import torch
from sklearn.base import clone, is_classifier
from sklearn.calibration import calibration_curve
from sklearn.ensemble import VotingClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import accuracy_score, get_scorer, log_loss
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils.validation import check_is_fitted
from torch.utils.data import DataLoader, TensorDataset

import atta
from atta._base.errors import InputError
from atta.data.image_set import ImageSet
from atta.results.words import BY_CONFIDENCE
from scenarios import POLICY, SHAPE, Items, Stream, made_classifier, pixels

NAMES = ("cat", "dog", "emu", "fox", "gnu")


def test_predictions_are_the_same_from_whatever_holds_the_images(fitted, labels, tmp_path):
    images = pixels()
    expected = fitted(images).numpy()
    array = images.numpy()
    holders = {
        "tensor": images,
        "array": array,
        "channels last": array.transpose(0, 2, 3, 1),
        "channels last, as floats": (array.transpose(0, 2, 3, 1) / 255).astype(np.float32),
        "dataset": Items(images, labels.tolist()),
        "loader": DataLoader(TensorDataset(images, labels), batch_size=7),
        "stream": Stream(images),
        "image set": ImageSet("made up", images, labels, ("a", "b", "c")),
        "list": list(images),
    }
    for name, holder in holders.items():
        for size, workers in ((None, 0), (13, 2)):
            probs = fitted.predict_proba(holder, batch_size=size, workers=workers)
            assert np.allclose(probs, expected, atol=1e-5), name
    assert np.array_equal(fitted.predict(images), expected.argmax(1))
    assert fitted.classes_.tolist() == [0, 1, 2]


def test_predictions_come_from_a_folder_of_image_files(fitted, tmp_path):
    from PIL import Image

    (tmp_path / "a").mkdir()
    images = pixels(4)
    for i, image in enumerate(images):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(tmp_path / "a" / f"{i}.png")
    assert np.allclose(fitted.predict_proba(tmp_path), fitted(images).numpy(), atol=1e-5)


def test_progress_is_shown_on_the_error_stream_if_it_is_asked_for(fitted, capsys):
    fitted.predict_proba(pixels(5))
    assert capsys.readouterr() == ("", "")
    fitted.predict_proba(pixels(5), progress=True)
    out, err = capsys.readouterr()
    assert "predicting" in err
    assert "5/5" in err
    assert not out


@pytest.mark.parametrize(
    ("images", "how", "message"),
    [
        (
            np.zeros((2, 3, 9, 9), np.uint8),
            {},
            r"expected images of the shape \(3, 8, 8\), got \(3, 9, 9\) in the images",
        ),
        (np.zeros((0, *SHAPE), np.uint8), {}, "expected at least one image"),
        (Stream([]), {}, "expected at least one image in Stream, found none"),
        (
            np.zeros((2, *SHAPE), np.uint8),
            {"batch_size": 0},
            "batch_size: expected 1 or more, got 0",
        ),
        (np.zeros((2, 192)), {}, r"expected images of shape \(n, c, h, w\), got \(2, 192\)"),
        ("nowhere", {}, "nowhere"),
    ],
)
def test_what_cannot_be_predicted_is_refused(fitted, images, how, message):
    with pytest.raises(InputError, match=message):
        fitted.predict_proba(images, **how)


# ---- scikit-learn


def test_scikit_learn_takes_it_for_a_fitted_classifier(fitted, labels):
    images, truth = pixels().numpy(), labels.numpy()
    probs = fitted.predict_proba(images)
    check_is_fitted(fitted)
    assert is_classifier(fitted)
    assert get_scorer("neg_log_loss")(fitted, images, truth) == pytest.approx(
        -log_loss(truth, probs)
    )
    assert get_scorer("accuracy")(fitted, images, truth) == fitted.score(images, truth)
    assert fitted.score(images, truth) == accuracy_score(truth, fitted.predict(images)) == 0.75
    for scorer in ("neg_brier_score", "roc_auc_ovr", "top_k_accuracy"):
        assert np.isfinite(get_scorer(scorer)(fitted, images, truth))
    assert len(calibration_curve(truth == 0, probs[:, 0], n_bins=4)) == 2


def test_scikit_learn_leaves_a_frozen_one_as_it_is(fitted, labels):
    images, truth = pixels().numpy(), labels.numpy()
    frozen = FrozenEstimator(fitted)
    voting = VotingClassifier([("a", frozen), ("b", frozen)], voting="soft").fit(images, truth)
    for model in (frozen, voting, make_pipeline(frozen)):
        assert np.allclose(model.predict_proba(images), fitted.predict_proba(images), atol=1e-5)


def test_scikit_learn_cross_validates_it(fitted, labels):
    images, truth = pixels().numpy(), labels.numpy()
    before = fitted.predict_proba(images)
    scores = cross_val_score(clone(fitted), images, truth, cv=2, scoring="neg_log_loss")
    halves = [
        copy.deepcopy(fitted).fit(images[fit], truth[fit]).calibrator.weights[0].item()
        for fit in (slice(0, 30), slice(30, None))
    ]
    assert np.isfinite(scores).all()
    assert halves[0] != halves[1]
    assert np.array_equal(fitted.predict_proba(images), before)


def test_fitting_again_is_fitting_anew(network, labels):
    method = atta.MeanTTATemperature()
    images, truth = pixels()[20:], labels[20:]
    first, anew = (
        atta.calibrate(network, x, y, policy=POLICY, method=method, progress=False)
        for x, y in ((pixels(), labels), (images, truth))
    )
    again = copy.deepcopy(first).fit(images.permute(0, 2, 3, 1).numpy(), truth.numpy())
    assert again.summary is None
    assert torch.equal(again(images), anew(images))
    assert not torch.equal(again(images), first(images))


def test_a_keyword_that_fit_does_not_take_is_named(fitted):
    with pytest.raises(InputError, match=r"fit takes no 'batchsize'\. Did you mean 'batch_size'"):
        copy.deepcopy(fitted).fit(pixels(), batchsize=3)
    with pytest.raises(InputError, match="fit takes no 'rehearse'"):
        copy.deepcopy(fitted).fit(pixels(), rehearse=True)


@pytest.mark.parametrize("method", ["temperature", "isotonic"])
def test_a_classifier_is_evaluated_on_images(network, labels, method):
    classifier = atta.calibrate(network, pixels(), labels, method=method, progress=False)
    simplex = classifier.calibrator.method.on_simplex
    expected = atta.evaluate(classifier(pixels()), labels, simplex=simplex)
    assert atta.evaluate(classifier, pixels(), labels) == pytest.approx(expected)
    assert atta.evaluate(classifier, Items(pixels(), labels.tolist())) == pytest.approx(expected)
    with pytest.raises(
        InputError, match="expected a classifier before images and labels, got a Tensor"
    ):
        atta.evaluate(classifier(pixels()), pixels(), labels)


def test_a_classifier_is_evaluated_by_the_names_of_its_classes():
    classifier = made_classifier(names=NAMES, summary=False)
    images, numbers = pixels(20), torch.arange(20) % len(NAMES)
    named = atta.evaluate(classifier, images, [NAMES[int(number)] for number in numbers])
    assert named == atta.evaluate(classifier, images, numbers)
    with pytest.raises(
        InputError, match=r"expected names of the network's classes .*, got 'nobody'"
    ):
        atta.evaluate(classifier, images, ["nobody"] * 20)


# ---- records and numbers of other images


def test_a_record_holds_the_views_of_the_classifier_and_what_it_answers_from(fitted, labels):
    images = pixels(20, seed=1)
    record = fitted.record(images, labels[:20], batch_size=7, origin={"camera": "new"})
    assert record.predictions.kinds == fitted.policy.kinds
    assert torch.equal(record.labels, labels[:20])
    assert (record.origin["draws"], record.origin["camera"]) == ("stratified", "new")
    assert torch.allclose(fitted.calibrator(record.predictions), fitted(images), atol=1e-5)
    last = fitted.record(images.permute(0, 2, 3, 1).numpy(), rehearse=[3])
    assert torch.allclose(last.predictions.logits, record.predictions.logits, atol=1e-5)
    assert (last.labels, last.predictions.rehearsals) == (None, ("rehearse-3",))
    named = made_classifier(names=NAMES).record(images, ["fox", "cat"] * 10)
    assert named.labels.tolist() == [3, 0] * 10


def test_a_record_leaves_the_classifier_as_it_is_and_takes_files_as_predictions_do(
    fitted, tmp_path
):
    from PIL import Image

    for i, image in enumerate(pixels(4)):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(tmp_path / f"{i}.png")
    before = fitted(pixels(4))
    record = fitted.record(tmp_path)
    assert torch.allclose(fitted.calibrator(record.predictions), before, atol=1e-5)
    assert torch.equal(fitted(pixels(4)), before)
    Image.new("RGB", (9, 8)).save(tmp_path / "4.png")
    with pytest.raises(InputError, match=r"got \(3, 8, 9\) in .*4\.png; .*need preprocessing"):
        fitted.record(tmp_path)
    (tmp_path / "4.png").write_bytes(b"no image")
    with pytest.warns(atta.Advice, match=r"left out: .*4\.png"):
        assert len(fitted.record(tmp_path, skip_bad=True)) == 4


def test_a_classifier_is_measured_next_to_its_network(fitted, network, labels):
    images = pixels()
    found = fitted.evaluate(images, labels, batch_size=7)
    assert [*found] == ["vanilla", fitted.calibrator.method.name]
    probs = {"vanilla": network(images / 255).softmax(1), "c-atta": fitted(images)}
    for name, metrics in found.items():
        expected = atta.evaluate(probs[name].detach(), labels)
        plain = {one: value for one, value in metrics.items() if one not in BY_CONFIDENCE}
        expected = {one: value for one, value in expected.items() if one not in BY_CONFIDENCE}
        assert plain == pytest.approx(expected, abs=1e-4)
        assert metrics.keys() >= {*BY_CONFIDENCE}
    assert found["vanilla"]["accuracy"] == found["c-atta"]["accuracy"]
    assert fitted.evaluate(Items(images, labels.tolist()), batch_size=7) == found
    with pytest.raises(InputError, match="labels"):
        fitted.evaluate(images)


def test_a_classifier_is_evaluated_on_whatever_it_can_be_calibrated_on(labels, tmp_path):
    from PIL import Image

    classifier, images, names = made_classifier(names=NAMES, summary=False), pixels(20), []
    numbers = torch.arange(20) % len(NAMES)
    flat, nested = tmp_path / "flat", tmp_path / "nested"
    for i, image in enumerate(images):
        names.append(NAMES[int(numbers[i])])
        for folder in (flat, nested / names[-1]):
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image.permute(1, 2, 0).numpy()).save(folder / f"{i:02d}.png")
    lines = [f"{i:02d}.png,{name}" for i, name in enumerate(names)]
    (tmp_path / "labels.csv").write_text("\n".join(["file,label", *lines]))
    dataset = TensorDataset(images, numbers)
    given = {
        "tensors": (images, numbers),
        "arrays": (images.numpy(), numbers.numpy()),
        "channels last": (images.permute(0, 2, 3, 1).numpy(), numbers.tolist()),
        "names": (images, names),
        "a folder and a table": (flat, tmp_path / "labels.csv"),
        "a folder of folders": (nested,),
        "a dataset": (dataset,),
        "a loader": (DataLoader(dataset, batch_size=7),),
        "a shuffled loader": (DataLoader(dataset, batch_size=7, shuffle=True),),
    }
    expected = classifier.evaluate(images, numbers, checks=False)
    assert [*expected] == ["vanilla", classifier.calibrator.method.name]
    for what, arguments in given.items():
        found = classifier.evaluate(*arguments, checks=False)
        for name, metrics in found.items():
            assert metrics == pytest.approx(expected[name], abs=1e-4), what


@pytest.mark.parametrize("name", ["predict", "predict_proba", "confidence"])
def test_an_unknown_option_ends_in_a_sentence(name):
    classifier = made_classifier()
    with pytest.raises(InputError, match="got 'skip_bad': every image gets an answer; `atta pred"):
        getattr(classifier, name)(pixels(3), skip_bad=True)
