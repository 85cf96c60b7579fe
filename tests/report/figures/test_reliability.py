"""Reliability diagrams show the bins of a detail, or those of the ECE for probabilities."""

import inspect
import json
import re
from typing import Any

import pytest
import torch

import atta
from atta import METRICS, InputError
from atta.report.figures.detail import compare_plot, diagram, overlaid
from scenarios import chart_data as data
from scenarios import made_up

pytest.importorskip("altair")
pytest.importorskip("vl_convert")


def test_the_bins_of_a_diagram_are_those_of_the_detail_and_empty_ones_are_absent(
    detail: dict[str, Any],
) -> None:
    bins = detail["bins"]
    assert 0 in bins["counts"]
    drawn = [row for row in data(diagram(detail, "")) if "images" in row]
    expected = [i for i, count in enumerate(bins["counts"]) if count]
    assert [row["from"] for row in drawn] == [bins["edges"][i] for i in expected]
    assert [row["to"] for row in drawn] == [bins["edges"][i + 1] for i in expected]
    for field, part in (
        ("images", "counts"),
        *((name, name) for name in ("confidence", "accuracy", "low", "high")),
    ):
        assert [row[field] for row in drawn] == [bins[part][i] for i in expected]
    assert all(row["gap"] == row["confidence"] - row["accuracy"] for row in drawn)


def test_a_diagram_of_probabilities_shows_their_ece(detail: dict[str, Any]) -> None:
    record = made_up(300, seed=5)
    probs, labels = record.predictions.logits.softmax(-1), record.require_labels()
    chart = atta.reliability(probs, labels, bins=15, title="ours")
    spec = json.dumps(chart.to_dict())
    assert f"ECE {METRICS['ece'](probs, labels):.4f}" in spec
    assert '"ours"' in spec
    array = probs.numpy()
    array.flags.writeable = False
    assert data(atta.reliability(array[::-1], labels.tolist()[::-1])) == data(
        atta.reliability(probs.flip(0), labels.flip(0))
    )
    assert (
        len([row for row in data(atta.reliability(probs, labels, bins=1)) if "images" in row]) == 1
    )


def test_a_chart_without_a_title_still_says_its_numbers(detail: dict[str, Any]) -> None:
    title = diagram(detail, "").to_dict()["title"]
    assert title["text"][0].startswith("300 images · ECE")


def test_what_is_no_probability_is_refused_by_a_diagram() -> None:
    with pytest.raises(InputError, match="logits"):
        atta.reliability(torch.tensor([[3.0, -1.0]]), [0])
    unnormalised = torch.tensor([[0.9, 0.3]])
    with pytest.raises(InputError, match="sum to 1"):
        atta.reliability(unnormalised, [0])
    assert data(atta.reliability(unnormalised, [0], simplex=False))
    with pytest.raises(InputError, match="at least one"):
        atta.compare_plot({}, [0])


def test_methods_stand_side_by_side_with_the_same_axes() -> None:
    record = made_up(200, seed=6)
    probs, labels = record.predictions.logits.softmax(-1), record.require_labels()
    spec = atta.compare_plot(
        {"vanilla": probs, "sharper.[0]": probs**2 / (probs**2).sum(1, keepdim=True)}, labels
    ).to_dict()
    assert [panel["title"]["text"] for panel in spec["concat"]] == [["vanilla"], ["sharper.[0]"]]
    domains = {str(d) for d in re.findall(r'"scale": {"domain": (\[0, 1\])', json.dumps(spec))}
    assert domains == {"[0, 1]"}


def test_one_set_of_probabilities_is_not_several() -> None:
    with pytest.raises(
        InputError,
        match=r"compare_plot takes {name: probs}, got Tensor; for one set .* use reliability",
    ):
        inspect.unwrap(compare_plot)(torch.ones(2, 2) / 2, [0, 1])  # not the checks of the tests


@pytest.mark.parametrize("kind", ["uint8", "uint16", "uint32", "uint64", ">i4"])
def test_labels_of_any_whole_numbers_draw_the_same_diagram(kind: str) -> None:
    record = made_up(50, seed=3)
    probs, labels = record.predictions.logits.softmax(-1), record.require_labels()
    assert data(atta.reliability(probs, labels.numpy().astype(kind))) == data(
        atta.reliability(probs, labels)
    )


def test_before_and_after_lie_over_each_other_in_one_small_diagram(detail: dict[str, Any]) -> None:
    chart = overlaid({"vanilla": detail, "ours": detail})
    filled = sum(count > 0 for count in detail["bins"]["counts"])
    drawn = [row for row in data(chart) if "images" in row]
    assert [row["method"] for row in drawn] == ["vanilla"] * filled + ["ours"] * filled
    spec = json.dumps(chart.to_dict(), ensure_ascii=False)
    assert re.search(r"ECE (0\.\d{4}) → \1", spec)
    assert "Accuracy at each confidence of vanilla and ours" in spec
    assert len(data(overlaid({"alone": detail}))) == filled + 2, "and the two ends of the diagonal"
