"""Charts of one method show the numbers of its detail."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

import atta
from atta import Vanilla
from atta.lab.measure import details as look
from atta.report.figures.detail import confidence_histograms, per_class, shares, weights
from atta.report.figures.theme import picture
from atta.results.rows import Results
from scenarios import chart_data as data
from scenarios import made_up, with_classes

pytest.importorskip("altair")
pytest.importorskip("vl_convert")


def test_without_labels_there_is_confidence_but_no_accuracy(detail: dict[str, Any]) -> None:
    record = made_up(100, seed=8)
    calibrator = Vanilla().fit(record.predictions, record.require_labels())
    bare = look(calibrator, atta.Record(record.predictions))
    assert sum(row["images"] for row in data(confidence_histograms([bare]))) == 100


def test_a_histogram_shows_the_counts_before_and_after(results: Results) -> None:
    before, after = results.details[:2]
    rows = data(confidence_histograms([before, after]))
    counts = [row["images"] for row in rows if row["method"] == after["method"]]
    assert counts == after["histogram"]
    line = [row for row in rows if row["method"] == before["method"]]
    assert [row["images"] for row in line[:-1]] == before["histogram"]
    assert (line[-1]["from"], line[-1]["images"]) == (1, before["histogram"][-1]), (
        "the last step has its end"
    )
    assert (
        len(confidence_histograms(results.details).to_dict()["concat"]) == len(results.details) - 1
    )


def test_the_weights_are_drawn_to_the_last_bit(detail: dict[str, Any]) -> None:
    views = detail["views"]
    rows = data(weights(detail, ""))
    assert [(row["kind"], row["class"]) for row in rows] == [
        (kind, "all classes") for kind in views["kinds"]
    ]
    assert [[row["weight"]] for row in rows] == views["weights"]
    assert f"limit {views['limit']:.3f}" in json.dumps(weights(detail, "").to_dict())


@pytest.mark.parametrize(
    ("classes", "labels"), [(10, True), (40, True), (100, False), (1000, False)]
)
def test_many_classes_have_no_names_on_the_axis(
    classes: int, labels: bool, detail: dict[str, Any], tmp_path: Path
) -> None:
    chart = weights(with_classes(detail, [f"class {i}" for i in range(classes)]), "")
    assert len(data(chart)) == classes * len(detail["views"]["kinds"])
    svg = picture(chart, tmp_path / "weights.svg").read_text(encoding="utf-8")
    assert (">class 7</text>" in svg) is labels


def test_a_weight_that_is_no_number_is_no_number_of_the_chart(detail: dict[str, Any]) -> None:
    broken = {**detail, "views": {**detail["views"], "weights": [["nan"], [math.inf], [0.5]]}}
    broken["views"]["kinds"] = ["a", "b", "c"]
    assert [row["weight"] for row in data(weights(broken, ""))] == [None, None, 0.5]


def test_the_shares_say_how_many_the_class_guard_holds(detail: dict[str, Any]) -> None:
    views, rows = detail["views"], data(shares(detail, ""))
    assert [row["images"] for row in rows if "images" in row] == views["shares"]
    assert [row["limit"] for row in rows if "limit" in row] == [views["limit"]]
    said = shares(detail, "").to_dict()["description"]
    assert f"holds {views['limited']:,} of {detail['images']:,} images" in said


def test_of_many_classes_those_of_the_largest_gaps_are_shown_and_the_rest_said(
    detail: dict[str, Any],
) -> None:
    odd = with_classes(detail, [f"class {i}" for i in range(1000)])
    found = odd["per_class"]
    chart = per_class(odd, "")
    rows = [row for row in data(chart) if "gap" in row]
    gaps = [row["gap"] for row in rows]
    everything = sorted(
        (
            abs(c - a)
            for c, a in zip(found["confidence"], found["accuracy"], strict=True)
            if c is not None
        ),
        reverse=True,
    )
    assert gaps == sorted(gaps, reverse=True)
    assert sorted(map(abs, gaps), reverse=True) == everything[:30]
    for row in rows:
        i = int(row["class"].removeprefix("class "))
        assert (row["confidence"], row["accuracy"]) == (
            found["confidence"][i],
            found["accuracy"][i],
        )
        assert row["low"] <= row["gap"] <= row["high"]
    said = chart.to_dict()["description"]
    assert (
        "30 largest gaps of 800 classes; "
        f"the other 770 are within ±{everything[30]:.3f}; 200 never predicted" in said
    )
