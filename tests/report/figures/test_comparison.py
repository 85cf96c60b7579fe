"""Methods are ranked with their intervals, and rows of different settings are not averaged."""

import math
from typing import Any

import pytest

from atta import InputError
from atta.report.figures.comparison import cost, cost_points, entropy, ranking, sizes
from atta.report.figures.theme import told_apart
from atta.results.rows import Results, Row
from scenarios import chart_data as data
from scenarios import many

pytest.importorskip("altair")
pytest.importorskip("vl_convert")


@pytest.mark.parametrize("count", [1, 30])
def test_methods_are_ranked_by_their_mean_the_best_first(count: int) -> None:
    rows = many(count)
    drawn = [row for row in data(ranking(Results(tuple(rows[::-1])))) if "runs" in row]
    assert [row["method"] for row in drawn][-count:] == [f"method {i}" for i in range(count)]
    for row in drawn:
        summary = Results(tuple(rows)).summary(method=row["method"])
        assert summary is not None
        assert summary.interval is not None
        assert row["value"] == pytest.approx(summary.mean, abs=0)
        assert (row["low"], row["high"]) == (
            row["value"] - summary.interval,
            row["value"] + summary.interval,
        )
    best = [
        row["method"]
        for row in data(ranking(Results(tuple(many(count, "accuracy"))), "accuracy"))
        if "runs" in row
    ]
    assert best == [f"method {i}" for i in reversed(range(count))], "more accuracy is better"


def test_one_run_has_no_interval_and_nan_no_place() -> None:
    rows = [
        Row(dataset="d", method=m, metric="nll", value=v)
        for m, v in (("a", 0.5), ("b", math.nan), ("c", 0.25))
    ]
    drawn = data(ranking(Results(tuple(rows)), "nll"))
    assert [(row["method"], row["value"], row["low"]) for row in drawn] == [
        ("c", 0.25, None),
        ("a", 0.5, None),
        ("b", None, None),
    ]
    with pytest.raises(InputError, match="finite"):
        ranking(Results(tuple(rows[1:2])), "nll")
    with pytest.raises(InputError, match="no rows of ece"):
        ranking(Results(tuple(rows)), "ece")


def test_what_differs_is_not_averaged() -> None:
    with pytest.raises(InputError, match="dataset"):
        ranking(
            Results(
                tuple(Row(dataset=d, method="a", metric="brier", value=1.0) for d in ("x", "y"))
            )
        )


def test_a_policy_is_named_where_there_are_several_and_a_rule_where_it_is_not_the_papers() -> None:
    shared: dict[str, Any] = {"dataset": "d", "metric": "brier", "value": 0.1}
    rows = [
        Row(method="plain", policy="aug4", **shared),
        *(Row(method="given", policy=policy, **shared) for policy in ("aug1", "aug2")),
        *(
            Row(method="chosen", policy=f"aug{split}", split=split, choice="paper", **shared)
            for split in (1, 2)
        ),
        *(
            Row(
                method="chosen",
                policy=f"aug{split}",
                split=split,
                choice="cross-validated",
                **shared,
            )
            for split in (1, 2)
        ),
    ]
    names = {row["method"] for row in data(ranking(Results(tuple(rows))))}
    assert names == {"plain", "given · aug1", "given · aug2", "chosen", "chosen · cross-validated"}


def test_higher_entropy_is_better_on_images_of_unknown_classes() -> None:
    drawn = data(entropy(Results(tuple(many(3, "entropy")))))
    assert [row["method"] for row in drawn] == ["method 2", "method 1", "method 0"]


def test_sizes_have_a_panel_a_metric_and_a_line_a_method() -> None:
    rows = [
        row
        for size in (100, 1000)
        for metric in ("brier", "a.b[0]")
        for row in many(9, metric, validation=size)
    ]
    spec = sizes(Results(tuple(rows))).to_dict()
    assert len(spec["concat"]) == 2
    drawn = data(sizes(Results(tuple(rows)), ["brier"]))
    assert {(row["method"], row["validation"]) for row in drawn} == {
        (f"method {i}", n) for i in range(9) for n in (100, 1000)
    }
    looks = told_apart([f"method {i}" for i in range(140)])
    ranges = zip(
        *(
            looks[channel].to_dict()["scale"]["range"]
            for channel in ("color", "shape", "strokeDash")
        ),
        strict=True,
    )
    assert len({str(look) for look in ranges}) == 140, "no two methods look the same"
    with pytest.raises(InputError, match="how many images"):
        sizes(Results(tuple(many(2))))


def test_the_cost_of_a_policy_is_its_passes() -> None:
    rows = [
        Row(
            dataset="d",
            method=method,
            policy=policy,
            metric="brier",
            value=value + split / 1000,
            split=split,
        )
        for method, policy, value in (
            ("vanilla", "", 0.05),
            ("v-atta", "aug4", 0.04),
            ("v-atta", "flip + 2 crop", 0.045),
        )
        for split in (0, 1)
    ]
    results = Results(tuple(rows))
    points = cost_points(results)
    assert [(p["method"], p["policy"], p["passes"]) for p in points] == [
        ("vanilla", "", 1),
        ("v-atta", "aug4", 12),
        ("v-atta", "flip + 2 crop", 4),
    ]
    drawn = [row for row in data(cost(results)) if "runs" in row]
    assert [row["value"] for row in drawn] == [point["value"] for point in points]
    assert "best: v-atta with aug4" in cost(results).to_dict()["description"]


def test_names_of_policies_that_would_lie_over_each_other_are_one_text() -> None:
    values = {"aug1": 0.0400, "aug2": 0.0401, "aug3": 0.0500, "aug4": 0.0400}
    rows = tuple(
        Row(dataset="d", method="m", policy=policy, metric="brier", value=value)
        for policy, value in values.items()
    )
    texts = [row["policy"] for row in data(cost(Results(rows))) if "method" not in row]
    assert texts == ["aug1, aug2", "aug3", "aug4"]
