"""Methods side by side: as objects, each under a label of its own."""

from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atta import (
    METHODS,
    METRICS,
    VATTA,
    Calibrator,
    Method,
    Predictions,
    Record,
    TemperatureScaling,
    Vanilla,
)
from atta._base.errors import InputError
from atta._base.types import Labels
from atta.calibrators import Temperature
from atta.lab.compare import compare, labelled, nested
from atta.lab.measure import CONFIDENCE
from atta.results.words import CLASS_CHANGES
from scenarios import made_up

pytestmark = pytest.mark.usefixtures("few_resamples")


def test_comparing_gives_a_row_for_every_method_split_and_metric(record: Record) -> None:
    methods = [Vanilla(), TemperatureScaling(), VATTA()]
    rows = list(compare({"a": record}, methods, validation=100, splits=2))
    assert (
        len({(row.method, row.split, row.metric) for row in rows})
        == len(rows)
        == 2 * 3 * (len(METRICS) + len(CONFIDENCE) + 4)
    )
    assert all(row.value == 0 for row in rows if row.metric == CLASS_CHANGES)
    assert {row.policy for row in rows if row.method == "v-atta"} == {
        "flip + 3 crop + 2 brightness + 2 contrast"
    }


def test_comparing_takes_the_methods_as_they_are_set(record: Record) -> None:
    method = replace(METHODS["m-atta"](), epochs=2, seed=5)  # type: ignore[call-arg]
    results = compare({"a": record}, [method], validation=100)
    assert record.labels is not None
    probs = method.fit(record.predictions[:100], record.labels[:100])(record.predictions[100:])
    assert [row.value for row in results.where(metric="nll")] == [
        METRICS["nll"](probs, record.labels[100:])
    ]
    assert results.names("seed") == [5]


def test_fitting_on_one_record_tests_on_all_of_another(record: Record) -> None:
    other = made_up(50, seed=1)
    results = compare({"other": other}, [Vanilla()], fit_on=record, splits=3)
    summary = results.summary(metric="accuracy")
    assert summary is not None
    assert summary.count == 1
    assert summary.mean == (other.predictions.logits.argmax(1) == other.labels).double().mean()


def test_records_of_other_classes_are_refused(record: Record) -> None:
    with pytest.raises(
        InputError,
        match="record other has 4 classes, the record to fit on, which is fitted on, has 5",
    ):
        compare({"other": made_up(50, 4)}, [Vanilla()], fit_on=record)


def test_a_record_without_labels_cannot_be_compared_on(record: Record) -> None:
    with pytest.raises(InputError, match="expected a record with labels"):
        compare({"a": Record(record.predictions)}, [Vanilla()], validation=10)


def test_what_each_pass_buys_is_an_experiment_of_its_own(record: Record) -> None:
    results = compare({"a": record}, [Vanilla()], validation=100, cost=True)
    assert results.names("experiment") == ["a", "a: cost"]
    policies = results.where(experiment="a: cost").names("policy")
    assert policies == [
        "flip",
        "flip + crop + brightness + contrast",
        "flip + 2 crop + 2 brightness + 2 contrast",
        "flip + 3 crop + 2 brightness + 2 contrast",
    ]
    passes = [detail["passes"] for detail in results.details if detail["experiment"] == "a: cost"]
    assert passes == [2, 5, 8, 9]


def test_views_of_ones_own_have_no_ladder() -> None:
    assert nested({"mine": 2}) == ()
    assert nested({}) == ()


# ---- labels


@dataclass(frozen=True, kw_only=True)
class Halved(Method):
    """A method of one's own: a fixed temperature."""

    name = "halved"
    summary = "the logits, halved"
    temperature: float = 2.0

    def learn(self, predictions: Predictions, labels: Labels) -> Calibrator:
        return Temperature(temperature=torch.tensor(self.temperature))


@dataclass(frozen=True, kw_only=True)
class Pretender(TemperatureScaling):
    """A method of one's own under the name and settings of another, and with other answers."""

    def learn(self, predictions: Predictions, labels: Labels) -> Calibrator:
        return Temperature(temperature=torch.tensor(3.0))


def test_two_methods_of_one_name_are_compared_under_labels_that_tell_them_apart(
    record: Record,
) -> None:
    quick = VATTA(optimizer="adam", epochs=2)
    results = compare({"a": record}, [VATTA(), quick], validation=100)
    assert results.names("method") == ["v-atta", "v-atta (optimizer=adam, epochs=2)"]
    assert record.labels is not None
    for label, method in zip(results.names("method"), (VATTA(), quick), strict=True):
        probs = method.fit(record.predictions[:100], record.labels[:100])(record.predictions[100:])
        (row,) = results.where(method=label, metric="nll")
        assert row.value == METRICS["nll"](probs, record.labels[100:])
        assert results.about["methods"]["a"][label]["optimizer"] == method.optimizer
    assert {(i.method, i.against) for i in results.intervals if i.against} == {
        (*reversed(results.names("method")),)
    }


def test_a_method_of_ones_own_is_compared(record: Record) -> None:
    results = compare({"a": record}, [Vanilla(), Halved(), Halved(temperature=4.0)], validation=100)
    assert results.names("method") == ["vanilla", "halved", "halved (temperature=4.0)"]
    assert record.labels is not None
    for label, temperature in (("halved", 2), ("halved (temperature=4.0)", 4)):
        expected = METRICS["nll"](
            (record.predictions.logits[100:] / temperature).softmax(-1), record.labels[100:]
        )
        assert [row.value for row in results.where(method=label, metric="nll")] == [
            pytest.approx(expected, abs=1e-7)
        ]


def test_a_class_of_ones_own_is_not_taken_for_the_one_whose_name_it_has(record: Record) -> None:
    results = compare({"a": record}, [TemperatureScaling(), Pretender()], validation=100)
    assert results.names("method") == ["temperature", "temperature (Pretender)"]
    assert len({row.value for row in results.where(metric="nll")}) == 2


@given(
    st.lists(
        st.sampled_from([Vanilla(), VATTA(), VATTA.paper(), VATTA(step=0.1), Halved(), Pretender()])
    )
)
def test_every_method_has_a_label_and_equal_ones_are_refused(methods: list[Method]) -> None:
    if len(set(methods)) < len(methods):
        with pytest.raises(InputError, match=r"expected each method once, got .* twice"):
            labelled(methods)
    else:
        assert list(labelled(methods).values()) == methods


def test_a_split_that_divides_the_classes_is_said():
    from atta.record.predictions import unfair

    in_order = torch.arange(10).repeat_interleave(30)
    assert (
        unfair(
            in_order[torch.randperm(300, generator=torch.Generator().manual_seed(0))],
            torch.arange(100),
        )
        is None
    )
    assert (
        unfair(torch.arange(164), torch.arange(80)) is None
    )  # an image a class: no order would be fair
    assert "sorted by class" in str(unfair(in_order, torch.arange(100)))
    record = Record(Predictions(torch.randn(300, 10)), in_order)
    with pytest.warns(UserWarning, match=r"mine: 100% of the other images .* --splits"):
        compare({"mine": record}, [Vanilla()], validation=30)
