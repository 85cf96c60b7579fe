"""What every method and every calibrator does at its door."""

import pytest
import torch

from atta import InputError, Predictions
from atta.calibrators import (
    CATTA,
    MATTA,
    VATTA,
    AdaptiveTTA,
    MeanTTA,
    MeanTTATemperature,
    SelectiveVATTA,
    SequentialVATTA,
    ShrunkMATTA,
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
    [VATTA, MATTA, ShrunkMATTA, CATTA, AdaptiveTTA, MeanTTA, MeanTTATemperature, SelectiveVATTA, SequentialVATTA],
)
def test_an_empty_list_of_views_is_no_choice(method):
    with pytest.raises(InputError, match="needs at least one kind of view, got an empty list"):
        method(views=()).fit(*toy(5))
