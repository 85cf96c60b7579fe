"""Experiments as data, and the one runner."""

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from atta import METHODS, METRICS, VATTA, Predictions, Record, SelectiveVATTA, TemperatureScaling, Vanilla, find_method
from atta.experiments.experiment import CLASS_CHANGES, MEASURES, OOD_AUROC, Experiment, compare, nested, planned, run
from atta.experiments.fits import Fits, Rows
from atta.metrics.resampling import Resamples, intervals, replicates
from atta.metrics.scores import evaluate
from atta.results.rows import Results
from atta.types import InputError
from scenarios import made_up

QUICK: dict[str, Any] = {"optimizer": "adam", "start": "1/k", "epochs": 3}
POLICIES = ("flip + crop", "flip + 2 crop + brightness", "brightness + contrast")


def small(**changes: Any) -> Experiment:
    content: dict[str, Any] = {
        "name": "small",
        "dataset": "shop",
        "fit": "a",
        "methods": {"vanilla": {}, "temperature": {}, "v-atta": QUICK, "quick": {"method": "m-atta", **QUICK}},
        "policies": POLICIES,
        "choose": ("paper", "cross-validated"),
        "validation": 100,
        "splits": 2,
    }
    return Experiment.of(content | changes)


def values(results: Results, **columns: Any) -> dict[tuple[Any, ...], float]:
    return {
        (r.validation, r.split, r.method, r.policy, r.choice, r.seed, r.metric): r.value
        for r in results.where(**columns)
    }


# ---- as data


@given(
    st.dictionaries(st.text(min_size=1), st.sampled_from([{}, {"method": "temperature"}]), min_size=1, max_size=3),
    st.text(min_size=1),
    st.lists(st.integers(0, 5000), min_size=1, max_size=3, unique=True),
    st.booleans(),
)
def test_toml_gives_the_experiment_back(
    methods: dict[str, dict[str, Any]], title: str, validation: list[int], aligned: bool
) -> None:
    known = {label: {"method": "vanilla", **settings} for label, settings in methods.items()}
    test = "b" if aligned else "rest"
    experiment = small(methods=known, title=title, validation=validation, aligned=aligned, test=test, splits=3)
    assert Experiment.of(tomllib.loads(experiment.toml())) == experiment


def test_a_file_is_named_after_itself(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('dataset = "shop"\nfit = "a"\n[methods.vanilla]\n')
    experiment = Experiment.read(path)
    assert experiment.name == "mine"
    assert experiment == Experiment(name="mine", dataset="shop", fit="a", methods={"vanilla": {}})


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"split": 3}, r"unknown key 'split'. Did you mean 'splits'\? Known: name, dataset, fit, methods, "),
        ({"methods": {"v-ata": {}}}, "unknown method 'v-ata'. Did you mean 'v-atta'"),
        ({"methods": {"v-atta": {"optimiser": "adam"}}}, "v-atta has no setting 'optimiser'. Did you mean 'optimizer'"),
        (
            {"methods": {"v-atta": {"policy": "flip + zoom"}}},
            "v-atta: A view or a policy: expected a name that is known, got 'zoom'",
        ),
        ({"methods": {}}, "methods: expected at least one, got none"),
        ({"methods": ["v-atta"]}, r"methods: expected a table for each, such as \[methods.v-atta\], got"),
        ({"policies": ["aug9"]}, "A view or a policy: expected a name that is known, got 'aug9'"),
        ({"choose": ["best"]}, "choose: unknown name 'best'. Known: paper, cross-validated"),
        ({"metrics": ["briar"]}, "metrics: unknown name 'briar'. Did you mean 'brier'"),
        ({"splits": 0}, "splits: expected at least 1, got 0"),
        ({"splits": "ten"}, "splits: expected a whole number, got 'ten'"),
        ({"validation": [100, 2.5]}, "validation: expected a whole number, got 2.5"),
        ({"validation": -1}, "validation: expected numbers of images, got -1"),
        ({"aligned": 1}, "aligned: expected true or false, got 1"),
        ({"fit": 3}, "fit: expected a text, got 3"),
    ],
)
def test_a_mistake_in_an_experiment_is_one_sentence(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence) as error:
        small(**change)
    assert "\n" not in str(error.value)


def test_what_an_experiment_cannot_do_without_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('dataset = "shop"\n')
    with pytest.raises(InputError, match=r"mine.toml: expected fit, methods, which it does not have"):
        Experiment.read(path)


def test_a_file_that_is_no_toml_or_not_there_is_said(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("splits = = 3")
    with pytest.raises(InputError, match=r"bad\.toml is not a TOML file"):
        Experiment.read(tmp_path / "bad.toml")
    with pytest.raises(InputError, match="there is no file"):
        Experiment.read(tmp_path / "none.toml")


# ---- the runner


def test_there_is_a_row_for_every_method_split_choice_and_metric(record: Record) -> None:
    experiment, told = small(), []
    results = run(experiment, {"a": record}, done=told.append)
    assert len(told) == planned(experiment, {"a": record}) == 2 * (2 + 2 * 3 * (1 + 5))
    chosen = {(m, c) for m in ("v-atta", "quick") for c in ("paper", "cross-validated")}
    assert {(row.method, row.choice) for row in results} == {("vanilla", ""), ("temperature", ""), *chosen}
    assert len(results) == len(values(results)) == 2 * (2 + 2 * 2) * len(experiment.metrics)
    assert {row.policy for row in results if row.choice} <= set(POLICIES)
    assert all(row.value == 0 for row in results if row.metric == CLASS_CHANGES)
    assert {(row.experiment, row.dataset, row.validation) for row in results} == {("small", "shop", 100)}


def test_the_numbers_are_those_of_fitting_and_evaluating_by_hand(record: Record) -> None:
    experiment = small(policies=["flip + 2 crop"], choose=[], methods={"v-atta": {}}, metrics=list(METRICS))
    results = run(experiment, {"a": record})
    assert record.labels is not None
    for split in range(2):
        fit, rest = Rows(300, 100, split).drawn()
        predictions = record.predictions.take({"flip": 1, "crop": 2})
        probs = VATTA().fit(predictions[fit], record.labels[fit])(predictions[rest])
        for metric, value in evaluate(probs, record.labels[rest]).items():
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
    results = run(small(test="fitted", methods={"vanilla": {}}, metrics=["accuracy"]), {"a": record})
    assert record.labels is not None
    right = (record.predictions.logits.argmax(1) == record.labels).double()
    for split in range(2):
        expected = right[Rows(300, 100, split).fitted()].mean().item()
        assert results.where(split=split).rows[0].value == pytest.approx(expected, abs=1e-12)


def test_images_fitted_on_are_not_tested_on_in_another_state(record: Record) -> None:
    """The other record holds the last 250 images, each with its own row number as its only right class pattern."""
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
    results = run(small(test="b", methods={"vanilla": {}}, metrics=["accuracy"]), {"a": record, "b": other})
    right = (other.predictions.logits.argmax(1) == other.labels).double().mean().item()
    assert [row.value for row in results] == [pytest.approx(right, abs=1e-12)] * 2


def test_images_of_no_known_class_have_entropies_and_are_told_from_the_others(record: Record) -> None:
    foreign = Record(
        Predictions(
            torch.zeros(40, 5), {kind: torch.zeros(40, v.shape[1], 5) for kind, v in record.predictions.views.items()}
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
    methods = {"vanilla": {}, "quick": {"method": "v-atta", **QUICK}, "own": {"method": "v-atta", **QUICK, "seed": 7}}
    results = run(small(methods=methods, seeds=[0, 1], choose=[], policies=["flip"], splits=1), {"a": record})
    assert results.where(method="vanilla").names("seed") == [0]
    assert results.where(method="quick").names("seed") == [0, 1]
    assert results.where(method="own").names("seed") == [7]


def test_a_second_run_gives_the_same_numbers_to_the_last_digit(record: Record, tmp_path: Path) -> None:
    experiment = small()
    first = run(experiment, {"a": record})
    assert run(experiment, {"a": record}).to_json() == first.to_json()
    kept = Fits({"a": record}, tmp_path)
    assert run(experiment, {"a": record}, fits=kept).to_json() == first.to_json()
    assert run(experiment, {"a": record}, fits=Fits({"a": record}, tmp_path)).to_json() == first.to_json(), (
        "from the folder"
    )


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
def test_a_changed_setting_changes_only_what_depends_on_it(record: Record, change: dict[str, Any]) -> None:
    before = values(run(small(), {"a": record}))
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


@pytest.mark.parametrize(
    ("records", "change", "sentence"),
    [
        ({}, {}, "experiment 'small' needs the record a, got: none"),
        ({"a": made_up(300)}, {"test": "b"}, "experiment 'small' needs the record b, got: a"),
        (
            {"a": made_up(300), "b": made_up(50, 4)},
            {"test": "b"},
            "record b has 4 classes, a, which is fitted on, has 5",
        ),
        ({"a": made_up(60)}, {}, "record a has 60 images: expected fewer of them for validation, got 100"),
        ({"a": made_up(100)}, {}, "record a has 100 images: expected fewer of them for validation, got 100"),
        (
            {"a": made_up(300)},
            {"policies": ["flip + 5 crop"]},
            r"record a: v-atta with flip \+ 5 crop: expected .* 5 crop .* got 3",
        ),
        (
            {"a": made_up(300)},
            {"policies": ["noise"]},
            "record a: v-atta with noise: expected predictions with the views noise",
        ),
        ({"a": Record(made_up(300).predictions)}, {}, "record a: expected a record with labels, got one without"),
        (
            {"a": made_up(200), "b": made_up(300)},
            {"test": "b", "aligned": True},
            "record b has 300 images, more than the 200 of a",
        ),
    ],
)
def test_records_that_do_not_fit_are_named(records: dict[str, Record], change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        run(small(**change), records)


# ---- compare, the experiment without a file


def test_comparing_gives_a_row_for_every_method_split_and_metric(record: Record) -> None:
    methods = [Vanilla(), TemperatureScaling(), VATTA()]
    rows = list(compare({"a": record}, methods, validation=100, splits=2))
    assert len({(row.method, row.split, row.metric) for row in rows}) == len(rows) == 2 * 3 * (len(METRICS) + 4)
    assert all(row.value == 0 for row in rows if row.metric == CLASS_CHANGES)
    assert {row.policy for row in rows if row.method == "v-atta"} == {"flip + 3 crop + 2 brightness + 2 contrast"}


def test_comparing_takes_the_methods_as_they_are_set(record: Record) -> None:
    method = replace(METHODS["m-atta"](), epochs=2, seed=5)  # type: ignore[call-arg]
    results = compare({"a": record}, [method], validation=100)
    assert record.labels is not None
    probs = method.fit(record.predictions[:100], record.labels[:100])(record.predictions[100:])
    assert [row.value for row in results.where(metric="nll")] == [METRICS["nll"](probs, record.labels[100:])]
    assert results.names("seed") == [5]


def test_fitting_on_one_record_tests_on_all_of_another(record: Record) -> None:
    other = made_up(50, seed=1)
    results = compare({"other": other}, [Vanilla()], fit_on=record, splits=3)
    summary = results.summary(metric="accuracy")
    assert summary is not None
    assert summary.count == 1
    assert summary.mean == (other.predictions.logits.argmax(1) == other.labels).double().mean()


def test_records_of_other_classes_are_refused(record: Record) -> None:
    with pytest.raises(InputError, match="record other has 4 classes, the record to fit on, which is fitted on, has 5"):
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


def test_what_a_selective_method_costs_is_measured_on_the_tested_images(record: Record) -> None:
    settings = {"passes": 1.7, "policy": "flip + 2 crop"}
    experiment = small(methods={"selective-v-atta": settings, "vanilla": {}}, choose=[], metrics=["passes"], splits=1)
    results = run(experiment, {"a": record})
    assert record.labels is not None
    seen = record.predictions.take({"flip": 1, "crop": 2})
    mean = SelectiveVATTA(passes=1.7).fit(seen[:100], record.labels[:100]).passes(seen[100:]).double().mean().item()
    assert 1 < mean < 4
    assert {row.method: row.value for row in results} == {"selective-v-atta": mean, "vanilla": 1}
    assert {d["method"]: d["passes"] for d in results.details} == {"selective-v-atta": round(mean, 2), "vanilla": 1}


def test_views_of_ones_own_have_no_ladder() -> None:
    assert nested({"mine": torch.zeros(3, 2, 5)}) == ()
    assert nested({}) == ()


def test_every_measure_can_be_asked_for() -> None:
    assert set(METRICS) < set(MEASURES)
    small(metrics=list(MEASURES))


# ---- what would be silently wrong


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"test": "a"}, "test: a is fitted on; expected 'rest', 'fitted' or another record"),
        ({"aligned": True}, "aligned: expected another record to test on, got 'rest'"),
        ({"validation": [60, 60]}, "validation: expected each once, got 60 twice"),
        ({"seeds": [1, 1]}, "seeds: expected each once, got 1 twice"),
        ({"published": "nope"}, "the paper has no table 'nope'"),
        (
            {"methods": {"v-atta": {"policy": 3}}},
            "expected a policy, such as 'flip \\+ 5 crop', or a list of them, got 3",
        ),
        ({"methods": {"v-atta": {"policies": []}}}, "expected a policy"),
        ({"methods": {"mine": {"method": 3}}}, "unknown method '3'"),
        ({"methods": {"v-atta": {"epochs": 2.5}}}, "v-atta: epochs must be a whole number, got 2.5"),
        ({"methods": {"v-atta": {"step": "abc"}}}, "v-atta cannot be set so: step='abc'"),
        ({"methods": {"v-atta": {"seed": "x"}}}, "v-atta: seed must be a whole number, got 'x'"),
    ],
)
def test_what_would_go_wrong_later_is_said_at_once(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        small(**change)


def test_shifted_images_in_another_order_are_refused(record: Record) -> None:
    other = record[torch.randperm(300, generator=torch.Generator().manual_seed(1))]
    with pytest.raises(InputError, match="record b is not the last 300 images of a: their labels differ"):
        run(small(test="b", aligned=True), {"a": record, "b": other})


def test_records_of_two_networks_are_refused(record: Record) -> None:
    a, b = (Record(record.predictions, record.labels, {"training_seed": str(seed)}) for seed in (0, 1))
    with pytest.raises(InputError, match="records a and b are not of one network: their training_seed is 0 and 1"):
        run(small(test="b"), {"a": a, "b": b})


def test_numbers_that_there_cannot_be_are_named_before_anything_is_fitted(record: Record) -> None:
    with pytest.raises(InputError, match="brier needs labels, and record b has none"):
        run(small(test="b"), {"a": record, "b": Record(record.predictions)})
    with pytest.raises(InputError, match="ood_auroc is for images of no known class, and record b has labels"):
        run(small(test="b", metrics=[OOD_AUROC]), {"a": record, "b": record})


def test_all_images_can_be_taken_in_one_way_only(record: Record) -> None:
    results = run(small(test="b", validation=0, splits=5, choose=["paper"]), {"a": record, "b": made_up(50, seed=2)})
    assert results.names("split") == [0]
    assert results.names("validation") == [300]
    with pytest.raises(InputError, match="all 300 images are fitted on, and none is left to test"):
        run(small(test="b", aligned=True, validation=0), {"a": record, "b": record})


@pytest.mark.parametrize("classes", ["cat,dog", "3", '{"a": 1}'])
def test_an_origin_that_says_anything_does_no_harm(record: Record, classes: str) -> None:
    odd = Record(record.predictions, record.labels, {"classes": classes})
    results = run(small(splits=1, methods={"vanilla": {}}), {"a": odd})
    assert results.details[0]["per_class"]["names"] == ["0", "1", "2", "3", "4"]


def test_sizes_that_would_not_differ_are_refused() -> None:
    with pytest.raises(InputError, match="3 sizes from 1 images on would not differ"):
        small(validation=[1000, 1100, 1200]).changed(validation=1)


def test_settings_that_are_none_are_left_out_of_toml() -> None:
    experiment = small(methods={"v-atta": {"views": None, **QUICK}})
    again = Experiment.of(tomllib.loads(experiment.toml()))
    assert again.method("v-atta") == experiment.method("v-atta")


# ---- intervals


def test_intervals_are_of_the_mean_over_splits_on_the_same_resamples_of_the_record(record: Record) -> None:
    experiment = small(methods={"vanilla": {}, "temperature": {}}, metrics=["brier", "ece", "class_changes"], splits=2)
    results = run(experiment, {"a": record})
    drawn: dict[str, list[Tensor]] = {"vanilla": [], "temperature": []}
    for split in (0, 1):
        fitted, rest = Rows(len(record), 100, split).drawn()
        part, test = record[fitted], record[rest]
        for name, values in drawn.items():
            probs = find_method(name).fit(part.predictions, part.labels)(test.predictions)
            values.append(replicates(probs, test.labels, Resamples(len(record)), rest, metrics=["ece"])["ece"])
    mean = {name: torch.stack(values).mean(0) for name, values in drawn.items()}
    point = {name: results.summary(method=name, metric="ece").mean for name in mean}  # type: ignore[union-attr]
    ((_, expected),) = intervals(
        {"ece": point["temperature"] - point["vanilla"]}, {"ece": mean["temperature"] - mean["vanilla"]}
    )
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
    experiment = small(methods={"vanilla": {}, "quick": {"method": "m-atta", **QUICK}}, validation=[80, 100])
    found = run(experiment, {"a": record}).intervals
    assert {
        (i.validation, i.method, i.policy, i.choice, i.against) for i in found if i.metric == "nll" and i.against
    } == {
        (size, "quick", "", rule, against)
        for size in (80, 100)
        for rule, against in (("paper", "vanilla"), ("cross-validated", "vanilla"), ("cross-validated", "quick"))
    }


def test_images_without_labels_have_intervals_of_their_entropy(record: Record) -> None:
    foreign = Record(made_up(80, seed=3).predictions)
    experiment = small(
        methods={"vanilla": {}, "temperature": {}}, test="b", metrics=["entropy", "ood_auroc"], choose=[], splits=1
    )
    found = run(experiment, {"a": record, "b": foreign}).intervals
    assert {i.metric for i in found} == {"entropy"}
    assert all(i.low < i.high for i in found)
