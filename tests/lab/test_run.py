"""The one runner of all experiments."""

from pathlib import Path
from typing import Any

import pytest
import torch

from atta import METRICS, VATTA, Predictions, Record, SelectiveVATTA
from atta.lab.experiment import Experiment, fits_of
from atta.lab.fits import Fits, Rows
from atta.lab.run import run
from atta.metrics.scores import evaluate
from atta.results.rows import Results
from atta.results.words import ANSWERED, CLASS_CHANGES, OOD_AUROC
from scenarios import POLICIES, QUICK, made_up
from scenarios import small_experiment as small

pytestmark = pytest.mark.usefixtures("few_resamples")


def values(results: Results, **columns: Any) -> dict[tuple[Any, ...], float]:
    return {
        (r.validation, r.split, r.method, r.policy, r.choice, r.seed, r.metric): r.value
        for r in results.where(**columns)
    }


@pytest.fixture(scope="module")
def told() -> list[str]:
    """What is said while the usual experiment runs."""
    return []


@pytest.fixture(scope="module")
def usual(few_resamples: None, told: list[str]) -> Results:
    """The small experiment as it is, on the usual record."""
    return run(small(), {"a": made_up()}, done=told.append)


def test_there_is_a_row_for_every_method_split_choice_and_metric(
    usual: Results, told: list[str], record: Record
) -> None:
    experiment, results = small(), usual
    assert len(told) == len(fits_of(experiment, {"a": record})) == 2 * (2 + 2 * 3 * (1 + 5))
    chosen = {(m, c) for m in ("v-atta", "quick") for c in ("paper", "cross-validated")}
    assert {(row.method, row.choice) for row in results} == {
        ("vanilla", ""),
        ("temperature", ""),
        *chosen,
    }
    assert len(results) == len(values(results)) == 2 * (2 + 2 * 2) * len(experiment.metrics)
    assert {row.policy for row in results if row.choice} <= set(POLICIES)
    assert all(row.value == 0 for row in results if row.metric == CLASS_CHANGES)
    assert {(row.experiment, row.dataset, row.validation) for row in results} == {
        ("small", "shop", 100)
    }


def test_the_numbers_are_those_of_fitting_and_evaluating_by_hand(record: Record) -> None:
    experiment = small(
        policies=["flip + 2 crop"], choose=[], methods={"v-atta": {}}, metrics=list(METRICS)
    )
    results = run(experiment, {"a": record})
    assert record.labels is not None
    for split in range(2):
        fit, rest = Rows(300, 100, split).drawn()
        predictions = record.predictions.take({"flip": 1, "crop": 2})
        fitted, labels = VATTA().fit(predictions[fit], record.labels[fit]), record.labels[rest]
        probs, confidence = fitted(predictions[rest]), fitted.confidence(predictions[rest])
        expected = evaluate(probs, labels)
        expected |= {
            name: evaluate(probs, labels, confidence=confidence)[name] for name in ANSWERED
        }
        for metric, value in expected.items():
            assert [row.value for row in results.where(split=split, metric=metric)] == [value]


def test_without_a_rule_every_policy_has_its_rows(record: Record) -> None:
    results = run(small(choose=[], metrics=["brier"]), {"a": record})
    assert results.where(method="v-atta").names("policy") == list(POLICIES)
    assert results.where(method="vanilla").names("policy") == [""]
    assert results.names("choice") == [""]


def test_a_method_has_its_own_policy_where_it_says_so(record: Record) -> None:
    methods = {"v-atta": {"policy": "contrast"}, "mean-tta": {"policies": ["flip", "crop"]}}
    results = run(small(methods=methods, choose=[]), {"a": record})
    assert results.where(method="v-atta").names("policy") == ["contrast"]
    assert results.where(method="mean-tta").names("policy") == ["flip", "crop"]


def test_the_fitted_images_can_be_the_tested_ones(record: Record) -> None:
    results = run(
        small(test="fitted", methods={"vanilla": {}}, metrics=["accuracy"]), {"a": record}
    )
    assert record.labels is not None
    right = (record.predictions.logits.argmax(1) == record.labels).double()
    for split in range(2):
        expected = right[Rows(300, 100, split).folded()[0]].mean().item()
        assert results.where(split=split).rows[0].value == pytest.approx(expected, abs=1e-12)


def test_images_fitted_on_are_not_tested_on_in_another_state(record: Record) -> None:
    """The other record holds the last 250 images."""
    other = Record(record.predictions[50:], record.labels[50:])  # type: ignore[index]
    experiment = small(test="b", aligned=True, methods={"vanilla": {}}, metrics=["accuracy"])
    results = run(experiment, {"a": record, "b": other})
    right = (record.predictions.logits.argmax(1) == record.labels).double()
    for split in range(2):
        rest = Rows(300, 100, split).drawn()[1]
        expected = right[rest[rest >= 50]].mean().item()
        assert results.where(split=split).rows[0].value == pytest.approx(expected, abs=1e-12)


def test_a_record_of_other_images_is_tested_whole(record: Record) -> None:
    other = made_up(80, seed=4)
    results = run(
        small(test="b", methods={"vanilla": {}}, metrics=["accuracy"]), {"a": record, "b": other}
    )
    right = (other.predictions.logits.argmax(1) == other.labels).double().mean().item()
    assert [row.value for row in results] == [pytest.approx(right, abs=1e-12)] * 2


def test_images_of_no_known_class_have_entropies_and_are_told_from_the_others(
    record: Record,
) -> None:
    foreign = Record(
        Predictions(
            torch.zeros(40, 5),
            {kind: torch.zeros(40, v.shape[1], 5) for kind, v in record.predictions.views.items()},
        )
    )
    experiment = small(test="b", metrics=["entropy", "shannon_entropy", OOD_AUROC])
    results = run(experiment, {"a": record, "b": foreign})
    for row in results.where(metric="shannon_entropy"):
        assert row.value == pytest.approx(torch.tensor(5.0).log().item())
    assert {row.value for row in results.where(metric=OOD_AUROC)} == {1.0}


def test_several_sizes_of_the_validation_set_are_run(record: Record) -> None:
    results = run(small(validation=[60, 100], splits=1), {"a": record})
    assert results.names("validation") == [60, 100]


def test_seeds_are_for_methods_that_draw(record: Record) -> None:
    methods = {
        "vanilla": {},
        "quick": {"method": "v-atta", **QUICK},
        "own": {"method": "v-atta", **QUICK, "seed": 7},
    }
    results = run(
        small(methods=methods, seeds=[0, 1], choose=[], policies=["flip"], splits=1), {"a": record}
    )
    assert results.where(method="vanilla").names("seed") == [0]
    assert results.where(method="quick").names("seed") == [0, 1]
    assert results.where(method="own").names("seed") == [7]


def test_a_second_run_gives_the_same_numbers_to_the_last_digit(
    usual: Results, record: Record, tmp_path: Path
) -> None:
    experiment, first = small(), usual
    kept = Fits({"a": record}, tmp_path)
    assert run(experiment, {"a": record}, fits=kept).to_json() == first.to_json()
    assert (
        run(experiment, {"a": record}, fits=Fits({"a": record}, tmp_path)).to_json()
        == first.to_json()
    ), "from the folder"


@pytest.mark.parametrize(
    "change",
    [
        {"splits": 3},
        {"validation": (60, 100)},
        {"metrics": ("brier", "nll")},
        {"choose": ("paper",)},
        {"seeds": (0, 1)},
        {"methods": {"quick": {"method": "m-atta", **QUICK}, "m-atta": {"epochs": 2}}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_changed_setting_changes_only_what_depends_on_it(
    usual: Results, record: Record, change: dict[str, Any]
) -> None:
    before = values(usual)
    after = values(run(small(**change), {"a": record}))
    both = before.keys() & after.keys()
    assert both
    assert before != after
    assert {key: before[key] for key in both} == {key: after[key] for key in both}


def test_another_policy_changes_no_other_policys_numbers(record: Record) -> None:
    before = values(run(small(choose=[]), {"a": record}))
    after = values(run(small(choose=[], policies=[*POLICIES, "crop"]), {"a": record}))
    assert before.items() <= after.items()


def test_what_is_known_of_the_run_goes_with_it(record: Record) -> None:
    results = run(small(splits=1), {"a": record})
    about = results.about
    assert Experiment.of(about["experiments"]["small"]) == small(splits=1)
    assert about["records"]["a"]["dataset"] == "made up"
    assert len(about["records"]["a"]["sha256"]) == 64


def test_what_a_selective_method_costs_is_measured_on_the_tested_images(record: Record) -> None:
    settings = {"passes": 1.7, "policy": "flip + 2 crop"}
    experiment = small(
        methods={"selective-v-atta": settings, "vanilla": {}},
        choose=[],
        metrics=["passes"],
        splits=1,
    )
    results = run(experiment, {"a": record})
    assert record.labels is not None
    seen = record.predictions.take({"flip": 1, "crop": 2})
    mean = (
        SelectiveVATTA(passes=1.7)
        .fit(seen[:100], record.labels[:100])
        .passes(seen[100:])
        .double()
        .mean()
        .item()
    )
    assert 1 < mean < 4
    assert {row.method: row.value for row in results} == {"selective-v-atta": mean, "vanilla": 1}
    assert {d["method"]: d["passes"] for d in results.details} == {
        "selective-v-atta": round(mean, 2),
        "vanilla": 1,
    }


@pytest.mark.parametrize("classes", ["cat,dog", "3", '{"a": 1}'])
def test_an_origin_that_says_anything_does_no_harm(record: Record, classes: str) -> None:
    odd = Record(record.predictions, record.labels, {"classes": classes})
    results = run(small(splits=1, methods={"vanilla": {}}), {"a": odd})
    assert results.details[0]["per_class"]["names"] == ["0", "1", "2", "3", "4"]


def test_what_is_tested_in_other_processes_has_the_same_bits(
    record: Record, tmp_path: Path
) -> None:
    file = record.save(tmp_path / "a.safetensors")
    # Few methods, without intervals: other processes take all resamples.
    experiment = small(
        methods={"vanilla": {}, "v-atta": {}}, policies=["flip"], metrics=[CLASS_CHANGES, "passes"]
    )
    here = run(experiment, {"a": record}, fits=Fits({"a": record}, tmp_path / "fits"))
    fits = Fits({"a": record}, tmp_path / "fits", workers=2, files={"a": file})
    there = run(experiment, {"a": record}, fits=fits)
    assert there.rows == here.rows
    assert [detail["method"] for detail in there.details] == [
        detail["method"] for detail in here.details
    ]
    assert there.about == here.about
