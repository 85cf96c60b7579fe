"""What a report shows of a calibrator, counted again by hand."""

import json
from typing import Any

import pytest
import torch
from scipy import stats

from atta import METHODS, METRICS, VATTA, Predictions, Record, TemperatureScaling
from atta.functional import atta as method
from atta.lab.measure import details
from scenarios import made_up


@pytest.fixture(scope="module")
def test_record() -> Record:
    return made_up(400, seed=7)


def fitted(name: str, record: Record) -> dict[str, object]:
    quick: dict[str, dict[str, Any]] = {
        "m-atta": {"epochs": 5},
        "v-atta": {"optimizer": "adam", "epochs": 5},
        "selective-v-atta": {"views": ["flip"]},
        "sequential-v-atta": {"views": ["flip"]},
    }
    settings = quick.get(name, {})
    assert record.labels is not None
    calibrator = METHODS[name](**settings).fit(record.predictions[:100], record.labels[:100])
    return details(calibrator, record)


@pytest.mark.parametrize(
    "name", [name for name in METHODS if name not in ("dirichlet", "shrunk-m-atta")]
)
def test_every_method_has_details_that_json_can_hold(name: str, test_record: Record) -> None:
    found = fitted(name, test_record)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert (
        sum(found["histogram"])
        == sum(found["bins"]["counts"])
        == sum(found["per_class"]["counts"])
        == 400
    )  # type: ignore[index, arg-type]
    assert found["keeps_class"] is METHODS[name]().keeps_class
    if found["keeps_class"]:
        assert found["class_changes"] == 0


def test_the_bins_are_those_of_the_ece(test_record: Record) -> None:
    calibrator = TemperatureScaling().fit(test_record.predictions[:100], test_record.labels[:100])  # type: ignore[index]
    bins = details(calibrator, test_record)["bins"]
    gaps = [
        n * abs(a - c)
        for n, a, c in zip(bins["counts"], bins["accuracy"], bins["confidence"], strict=True)
        if n
    ]
    assert sum(gaps) / 400 == pytest.approx(
        METRICS["ece"](calibrator(test_record.predictions), test_record.labels)
    )
    for n, a, low, high in zip(
        bins["counts"], bins["accuracy"], bins["low"], bins["high"], strict=True
    ):
        if not n:
            assert a is low is high is None, "an empty bin is empty"
        else:
            wilson = stats.binomtest(round(n * a), n).proportion_ci(method="wilson")
            assert (low, high) == (
                pytest.approx(wilson.low, abs=1e-9),
                pytest.approx(wilson.high, abs=1e-9),
            )


def test_the_shares_are_those_that_were_given(test_record: Record) -> None:
    predictions = test_record.predictions
    calibrator = VATTA(optimizer="adam", epochs=200).fit(
        predictions[:100], test_record.labels[:100]
    )  # type: ignore[index]
    views = details(calibrator, test_record)["views"]
    assert views["kinds"] == list(calibrator.kinds)
    weights, limit = torch.tensor(views["weights"], dtype=torch.float32), views["limit"]
    again = method(predictions.logits, predictions.view_logits(calibrator.kinds), weights, limit)
    assert torch.allclose(again, calibrator(predictions), atol=1e-5)
    assert sum(views["shares"]) == 400
    assert 0 < views["limited"] < 400
    assert 0 <= views["mean_share"] <= limit


def test_the_most_changed_images_come_first(test_record: Record) -> None:
    calibrator = TemperatureScaling().fit(test_record.predictions[:100], test_record.labels[:100])  # type: ignore[index]
    changed = details(calibrator, test_record)["changed"]
    by_hand = (
        calibrator(test_record.predictions).amax(1)
        - test_record.predictions.logits.softmax(1).amax(1)
    ).abs()
    assert abs(changed[0]["after"] - changed[0]["before"]) == pytest.approx(by_hand.max().item())
    steps = [abs(one["after"] - one["before"]) for one in changed]
    assert steps == sorted(steps, reverse=True)


def test_without_labels_there_is_no_right_or_wrong(record: Record) -> None:
    calibrator = TemperatureScaling().fit(record.predictions, record.labels)
    found = details(calibrator, Record(record.predictions))
    assert found["bins"] is found["per_class"] is found["accuracy"] is None
    assert {one["label"] for one in found["changed"]} == {None}


def test_classes_have_names_where_there_are_any(record: Record) -> None:
    calibrator = TemperatureScaling().fit(record.predictions, record.labels)
    names = ["<script>", "b", "c", "d", "e"]
    assert details(calibrator, record, names)["per_class"]["names"] == names
    assert details(calibrator, record)["per_class"]["names"] == ["0", "1", "2", "3", "4"]


def test_a_class_never_predicted_has_no_accuracy() -> None:
    record = Record(Predictions(torch.tensor([[3.0, 0, 0], [2.0, 0, 0]])), [0, 1])
    per_class = details(METHODS["vanilla"]().fit(record.predictions, record.labels), record)[
        "per_class"
    ]
    assert per_class["counts"] == [2, 0, 0]
    assert per_class["accuracy"] == [0.5, None, None]
