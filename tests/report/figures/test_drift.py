"""The drift chart has two histograms and four numbers, one of them with an interval."""

import json

from atta.report.figures.detail import drift

FOUND = {
    "sentence": "50 images, drifted (p < 0.0001): about 60% are right.",
    "accuracy": 0.6,
    "low": 0.5,
    "high": 0.7,
    "expected_accuracy": 0.9,
    "expected_confidence": 0.91,
    "seen_confidence": 0.8,
    "expected_histogram": [0.0, 0.1, 0.2, 0.7],
    "seen_histogram": [0.1, 0.2, 0.3, 0.4],
}


def values(chart, key):
    """Every value under a key of the chart's data."""
    spec, found = chart.to_dict(), []

    def walk(node):
        if isinstance(node, dict):
            found.extend([node[key]] if key in node and {"set", "method"} & node.keys() else [])
            for one in node.values():
                walk(one)
        elif isinstance(node, list):
            for one in node:
                walk(one)

    walk(spec)
    return found


def test_both_histograms_and_the_interval_are_drawn():
    chart = drift(FOUND)
    assert values(chart, "part") == [0.1, 0.2, 0.3, 0.4, 0.0, 0.1, 0.2, 0.7, 0.7]
    assert set(values(chart, "rate")) == {0.9, 0.6, 0.91, 0.8}
    assert set(values(chart, "low") + values(chart, "high")) == {0.5, 0.7}
    assert chart.to_dict()["description"] == FOUND["sentence"]


def test_what_an_older_classifier_does_not_remember_is_left_out():
    chart = drift({**FOUND, "expected_histogram": []})
    assert values(chart, "part") == [0.1, 0.2, 0.3, 0.4]
    assert "line:" not in json.dumps(chart.to_dict())
