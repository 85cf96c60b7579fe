import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atta import METRICS, VATTA, Record, TemperatureScaling, Vanilla
from atta.experiment import CLASS_CHANGES, compare, split_rows
from atta.types import InputError
from conftest import made_up


@given(st.integers(2, 60), st.data())
def test_a_split_parts_the_rows(images: int, data: st.DataObject) -> None:
    validation, split = data.draw(st.integers(1, images - 1)), data.draw(st.integers(0, 5))
    fit, test = split_rows(images, validation, split)
    assert fit.shape == (validation,)
    assert sorted(torch.cat([fit, test]).tolist()) == list(range(images))
    again = split_rows(images, validation, split)
    assert torch.equal(fit, again[0])


def test_the_first_split_takes_the_rows_as_they_stand() -> None:
    fit, test = split_rows(10, 3, 0)
    assert fit.tolist() == [0, 1, 2]
    assert test.tolist() == [3, 4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("validation", [0, 10, 11, -1])
def test_a_split_needs_images_on_both_sides(validation: int) -> None:
    with pytest.raises(InputError, match=f"expected between 1 and 9 validation images out of 10, got {validation}"):
        split_rows(10, validation, 0)


def test_comparing_gives_a_row_for_every_method_split_and_metric(record: Record) -> None:
    methods = [Vanilla(), TemperatureScaling(), VATTA()]
    steps: list[str] = []
    rows = list(compare({"a": record}, methods, validation=100, splits=2, done=steps.append))
    assert steps == ["a: vanilla", "a: temperature", "a: v-atta"] * 2
    assert len({(row.method, row.split, row.metric) for row in rows}) == len(rows) == 2 * 3 * (len(METRICS) + 1)
    assert all(row.value == 0 for row in rows if row.metric == CLASS_CHANGES)


def test_the_numbers_are_those_of_fitting_and_evaluating_by_hand(record: Record) -> None:
    results = compare({"a": record}, [VATTA()], validation=100)
    fit, test = record[:100], record[100:]
    assert test.labels is not None
    probs = VATTA().fit(fit.predictions, fit.labels)(test.predictions)
    for name, metric in METRICS.items():
        summary = results.summary(metric=name)
        assert summary is not None
        assert summary.mean == metric(probs, test.labels)


def test_fitting_on_one_record_tests_on_all_of_another(record: Record) -> None:
    other = made_up(50, seed=1)
    results = compare({"other": other}, [Vanilla()], fit_on=record, splits=3)
    summary = results.summary(metric="accuracy")
    assert summary is not None
    assert summary.mean == (other.predictions.logits.argmax(1) == other.labels).double().mean()


def test_records_of_other_classes_are_refused(record: Record) -> None:
    with pytest.raises(InputError, match="other has 4 classes, the record to fit on has 5"):
        compare({"other": made_up(50, 4)}, [Vanilla()], fit_on=record)


def test_a_record_without_labels_cannot_be_compared_on(record: Record) -> None:
    with pytest.raises(InputError, match="expected a record with labels"):
        compare({"a": Record(record.predictions)}, [Vanilla()], validation=10)
