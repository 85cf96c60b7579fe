"""How sure the numbers of an experiment are."""

import pytest
import torch
from torch import Tensor

from atta import Record, find_method
from atta.lab.fits import Rows
from atta.lab.run import run
from atta.metrics.resampling import Resamples, intervals, replicates
from scenarios import QUICK, made_up
from scenarios import small_experiment as small


def test_intervals_are_of_the_mean_over_splits_on_the_same_resamples_of_the_record(
    record: Record,
) -> None:
    experiment = small(
        methods={"vanilla": {}, "temperature": {}},
        metrics=["brier", "ece", "class_changes"],
        splits=2,
    )
    results = run(experiment, {"a": record})
    drawn: dict[str, list[Tensor]] = {"vanilla": [], "temperature": []}
    for split in (0, 1):
        fitted, rest = Rows(len(record), 100, split).drawn()
        part, test = record[fitted], record[rest]
        for name, values in drawn.items():
            probs = find_method(name).fit(part.predictions, part.labels)(test.predictions)
            values.append(
                replicates(probs, test.labels, Resamples(len(record)), rest, metrics=["ece"])["ece"]
            )
    mean = {name: torch.stack(values).mean(0) for name, values in drawn.items()}
    point = {name: results.summary(method=name, metric="ece").mean for name in mean}  # type: ignore[union-attr]
    expected = intervals(
        {"ece": point["temperature"] - point["vanilla"]},
        {"ece": mean["temperature"] - mean["vanilla"]},
    )["ece"]
    (found,) = (i for i in results.intervals if i.metric == "ece" and i.against)
    assert (found.method, found.against) == ("temperature", "vanilla")
    assert (found.low, found.high) == pytest.approx(expected, abs=1e-12)
    assert {(i.method, i.against, i.metric) for i in results.intervals} == {
        (*pair, metric)
        for pair in (("vanilla", ""), ("temperature", ""), ("temperature", "vanilla"))
        for metric in ("brier", "ece")
    }


def test_every_two_contenders_of_one_size_have_a_difference_and_a_chosen_policy_is_none_of_its_own(
    record: Record,
) -> None:
    experiment = small(
        methods={"vanilla": {}, "quick": {"method": "m-atta", **QUICK}}, validation=[80, 100]
    )
    found = run(experiment, {"a": record}).intervals
    assert {
        (i.validation, i.method, i.policy, i.choice, i.against)
        for i in found
        if i.metric == "nll" and i.against
    } == {
        (size, "quick", "", rule, against)
        for size in (80, 100)
        for rule, against in (
            ("paper", "vanilla"),
            ("cross-validated", "vanilla"),
            ("cross-validated", "quick"),
        )
    }


def test_images_without_labels_have_intervals_of_their_entropy(record: Record) -> None:
    foreign = Record(made_up(80, seed=3).predictions)
    experiment = small(
        methods={"vanilla": {}, "temperature": {}},
        test="b",
        metrics=["entropy", "ood_auroc"],
        choose=[],
        splits=1,
    )
    found = run(experiment, {"a": record, "b": foreign}).intervals
    assert {i.metric for i in found} == {"entropy"}
    assert all(i.low < i.high for i in found)
