"""What every method and every calibrator does at its door."""

import pytest
import torch

from atta import Advice, InputError, Predictions, ShrunkMATTA
from atta.calibrators import (
    CATTA,
    MATTA,
    VATTA,
    AdaptiveTTA,
    MeanTTA,
    MeanTTATemperature,
    SelectiveVATTA,
    SequentialVATTA,
    TemperatureScaling,
    find_method,
)
from scenarios import toy


def test_what_is_wrong_with_one_of_many_sets_is_said_as_for_one():
    good = toy(3)
    for name in ("temperature", "m-atta", "v-atta"):
        for labels, sentence in (([0, 1], "expected 3 labels"), ([0, 1, 4], "got 4 in row 2")):
            with pytest.raises(InputError, match=sentence):
                find_method(name).fit_many([good, (good[0], labels), good])
    with pytest.raises(InputError, match="needs the logits of views"):
        MATTA().fit_many([good, (Predictions(torch.zeros(3, 4)), [0, 1, 2])])


def test_labels_come_as_lists_arrays_and_tensors():
    predictions, labels = toy()
    temperature = TemperatureScaling().fit(predictions, labels).temperature
    for same in (labels.tolist(), labels.numpy(), labels.to(torch.int32), labels.to(torch.uint8)):
        other = TemperatureScaling().fit(predictions, same)
        assert torch.equal(other.temperature, temperature)


@pytest.mark.parametrize(
    "method",
    [
        VATTA,
        MATTA,
        ShrunkMATTA,
        CATTA,
        AdaptiveTTA,
        MeanTTA,
        MeanTTATemperature,
        SelectiveVATTA,
        SequentialVATTA,
    ],
)
def test_an_empty_list_of_views_is_no_choice(method):
    with pytest.raises(InputError, match="needs the logits of views, got an empty list"):
        method(views=()).fit(*toy(5))


@pytest.mark.parametrize(
    "make", [lambda t: t, lambda t: t.numpy(), lambda t: t.double().numpy(), lambda t: t.tolist()]
)
def test_plain_logits_are_taken_where_no_views_are_needed(record, make):
    logits, labels = record.predictions.logits, record.labels
    plain = TemperatureScaling().fit(make(logits), labels.numpy())
    wrapped = TemperatureScaling().fit(Predictions(make(logits)), labels)
    assert torch.equal(plain.temperature, wrapped.temperature)
    assert torch.equal(plain(make(logits)), wrapped(Predictions(make(logits))))
    assert torch.equal(plain.passes(make(logits)), torch.ones(len(logits)).long())


def test_plain_logits_are_refused_where_views_are_needed_and_probabilities_are_said(record):
    logits, labels = record.predictions.logits, record.labels
    with pytest.raises(
        InputError, match=r"v-atta takes atta.Predictions \(of logits and views.*\), got Tensor"
    ):
        VATTA().fit(logits, labels)
    with pytest.raises(InputError, match=r"this calibrator takes atta.Predictions .*, got ndarray"):
        VATTA().fit(record.predictions, labels)(logits.numpy())
    with pytest.raises(InputError, match="or an array or tensor of logits, got Record"):
        TemperatureScaling().fit(record, labels)
    with pytest.warns(Advice, match="expected logits, got rows that are not negative and sum to 1"):
        TemperatureScaling().fit(logits.softmax(1), labels)
    with pytest.warns(
        Advice, match="expected logits, got rows that are not negative and sum to 1"
    ) as caught:
        VATTA().fit(Predictions(logits.softmax(1), record.predictions.views), labels)
    assert len(caught) == 1
