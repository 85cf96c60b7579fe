"""Other people's calibrators as methods: given what they expect, checked in what they answer, and their changes counted."""

import re

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from atta import InputError, Peer, Predictions, Record, TemperatureScaling, Vanilla
from atta.lab.compare import compare
from atta.lab.fits import Fit, Fits, Rows
from atta.report.page import report
from atta.results.words import CLASS_CHANGES
from scenarios import toy


class Prior:
    """In the way of netcal: on probabilities, answered by `transform`; halfway to how frequent each class is."""

    def fit(self, x, y):
        assert np.allclose(x.sum(axis=1), 1)
        self.frequent = np.bincount(y, minlength=x.shape[1]) / len(y)

    def transform(self, x):
        return (x + self.frequent) / 2


def softmax(z):
    return np.exp(z - z.max(axis=1, keepdims=True)) / np.exp(z - z.max(axis=1, keepdims=True)).sum(
        axis=1, keepdims=True
    )


def record(n=300, seed=0):
    predictions, labels = toy(n, seed=seed, confidence=3.0, signal=1.0)
    return Record(predictions, labels)


def test_an_object_with_fit_and_predict_proba_is_a_method_and_stays_as_it_was():
    given, (predictions, labels) = LogisticRegression(max_iter=300), toy(200)
    fitted = Peer(called="logistic", estimator=given).fit(predictions, labels)
    own = LogisticRegression(max_iter=300).fit(predictions.logits.double().numpy(), labels.numpy())
    expected = own.predict_proba(predictions.logits.double().numpy())
    torch.testing.assert_close(fitted(predictions), torch.from_numpy(expected).float())
    assert not hasattr(given, "coef_")


def test_peers_stand_beside_ours_in_a_comparison_and_on_its_page_and_their_class_changes_are_counted(
    few_resamples,
):
    methods = [
        Vanilla(),
        Peer(called="logistic", estimator=LogisticRegression(max_iter=300)),
        Peer(called="logistic", estimator=LogisticRegression(max_iter=300, C=0.01)),
        Peer(called="prior", estimator=Prior(), takes="probabilities"),
        Peer(
            called="half as sure",
            fitting=lambda x, y: 0.5,
            predicting=lambda half, x: softmax(half * x),
        ),
    ]
    results = compare({"a": record()}, methods, validation=150)
    assert results.names("method")[3:] == ["prior", "half as sure"]
    assert results.names("method")[2].startswith("logistic (estimator=LogisticRegression(C=0.01")
    changed = {row.method: row.value for row in results if row.metric == CLASS_CHANGES}
    assert changed["half as sure"] == changed["vanilla"] == 0 < changed[results.names("method")[2]]
    assert not any(
        detail["keeps_class"] for detail in results.details if detail["method"] != "vanilla"
    )
    page = report(results)
    assert "half as sure" in page
    assert "logistic" in page


def test_classes_that_were_not_among_the_labels_are_given_none():
    predictions, labels = toy(60, k=4)
    kept = labels != 2
    fitted = Peer(called="logistic", estimator=LogisticRegression()).fit(
        predictions[kept], labels[kept]
    )
    probs = fitted(predictions)
    assert probs.shape == (60, 4)
    assert not probs[:, 2].any()


ANSWERS = {
    "expected a probability for each of (20, 3) images and classes, got shape (20,)": lambda x: x[
        :, 0
    ],
    "expected a probability for each of (20, 3) images and classes, got shape (3, 20)": lambda x: (
        x.T
    ),
    "expected finite numbers, got nan in row 0": lambda x: x * np.nan,
    "expected rows that sum to 1, got a sum of": lambda x: softmax(x) / 2,
    "expected values in [0, 1], got": lambda x: x,
    "expected an array of numbers, got str": lambda x: "no",
}


@pytest.mark.parametrize("sentence", ANSWERS)
def test_an_answer_that_is_no_probabilities_is_refused_in_the_name_of_whoever_gave_it(sentence):
    predictions, labels = toy(20, k=3)
    fitted = Peer(
        called="odd", fitting=lambda x, y: None, predicting=lambda _, x: ANSWERS[sentence](x)
    ).fit(predictions, labels)
    with pytest.raises(InputError, match=re.escape(f"what odd answers: {sentence}")):
        fitted(predictions)


def test_what_a_peer_raises_is_said_in_its_name():
    def fail(*_):
        raise KeyError("temperature")

    with pytest.raises(InputError, match="odd could not be fitted: KeyError: 'temperature'"):
        Peer(called="odd", fitting=fail, predicting=fail).fit(*toy(20))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, "expected an estimator, or two functions, fitting and predicting"),
        ({"fitting": len}, "expected an estimator, or two functions"),
        (
            {"estimator": LogisticRegression(), "fitting": len},
            "expected an estimator, or two functions",
        ),
        ({"estimator": LogisticRegression}, "got the class LogisticRegression: call it first"),
        ({"estimator": object()}, "expected an estimator with fit and predict_proba"),
    ],
)
def test_what_is_no_peer_is_refused_in_a_sentence(given, sentence):
    with pytest.raises(InputError, match=re.escape(sentence)):
        Peer(called="odd", **given)


def test_an_object_that_is_not_adapted_is_told_how_to_be():
    with pytest.raises(
        InputError, match=r"expected methods, got LogisticRegression\(\); atta.Peer\(called="
    ):
        compare({"a": record()}, [LogisticRegression()], validation=100)


def test_a_peer_is_fitted_here_and_not_kept_in_the_folder_of_fits(tmp_path):
    peer = Peer(called="prior", estimator=Prior(), takes="probabilities")
    fits = Fits({"a": record()}, folder=tmp_path, workers=2)
    wanted = [
        Fit("a", Rows(300, 100, split), method)
        for split in range(2)
        for method in (peer, TemperatureScaling())
    ]
    done: list[str] = []
    fits.make(wanted, done.append)
    assert sorted(done) == ["prior", "prior", "temperature", "temperature"]
    assert len(list(tmp_path.glob("*/*.safetensors"))) == 2
    assert fits[wanted[0]].method is peer


def test_two_peers_that_look_alike_are_two(tmp_path):
    first, second = (
        Peer(called="same", fitting=lambda x, y: None, predicting=lambda _, x, b=b: softmax(x * b))
        for b in (1, 2)
    )
    fits = Fits({"a": record()})
    answers = [fits[Fit("a", Rows(300, 100), peer)](toy(20)[0]) for peer in (first, second)]
    assert not torch.equal(*answers)
    with pytest.raises(
        InputError, match="same is an object of another library, which atta cannot save"
    ):
        fits[Fit("a", Rows(300, 100), first)].save(tmp_path / "same.safetensors")


def test_predictions_of_another_number_of_classes_are_refused():
    fitted = Peer(called="prior", estimator=Prior(), takes="probabilities").fit(*toy(20, k=3))
    with pytest.raises(InputError, match="fitted on 3 classes, got predictions of 4"):
        fitted(Predictions(torch.zeros(2, 4)))
