"""Experiments as data: read, checked, and refused in one sentence."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atta import MATTA, METRICS
from atta._base.errors import InputError
from atta.lab.experiment import Experiment
from atta.lab.measure import MEASURES
from scenarios import small_experiment as small


def test_a_file_is_named_after_itself(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('dataset = "shop"\nfit = "a"\n[methods.vanilla]\n')
    experiment = Experiment.read(path)
    assert experiment.name == "mine"
    assert experiment == Experiment(name="mine", dataset="shop", fit="a", methods={"vanilla": {}})


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"split": 3},
            r"unknown key 'split'. Did you mean 'splits'\? Known: name, dataset, fit, methods, ",
        ),
        ({"methods": {"v-ata": {}}}, "unknown method 'v-ata'. Did you mean 'v-atta'"),
        (
            {"methods": {"v-atta": {"optimiser": "adam"}}},
            "v-atta has no setting 'optimiser'. Did you mean 'optimizer'",
        ),
        (
            {"methods": {"v-atta": {"policy": "flip + zoom"}}},
            "v-atta: A view or a policy: expected a known name, got 'zoom'",
        ),
        ({"methods": {}}, "methods: expected at least one, got none"),
        (
            {"methods": ["v-atta"]},
            r"methods: expected a table for each, such as \[methods.v-atta\], got",
        ),
        ({"policies": ["aug9"]}, "A view or a policy: expected a known name, got 'aug9'"),
        ({"choose": ["best"]}, "choose: unknown name 'best'. Known: paper, cross-validated"),
        ({"metrics": ["briar"]}, "metrics: unknown name 'briar'. Did you mean 'brier'"),
        ({"splits": 0}, "splits must be a whole number ≥ 1, got 0"),
        ({"splits": "ten"}, "splits must be a whole number ≥ 1, got 'ten'"),
        ({"validation": [100, 2.5]}, "validation must be a whole number ≥ 0, got 2.5"),
        ({"validation": -1}, "validation must be a whole number ≥ 0, got -1"),
        ({"aligned": "yes"}, "aligned must be True or False, got 'yes'"),
        ({"fit": 3}, "fit must be text, got 3"),
    ],
)
def test_a_mistake_in_an_experiment_is_one_sentence(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence) as error:
        small(**change)
    assert "\n" not in str(error.value)


def test_what_an_experiment_cannot_do_without_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('dataset = "shop"\n')
    with pytest.raises(
        InputError, match=r"mine.toml: expected fit, methods, which it does not have"
    ):
        Experiment.read(path)


def test_a_file_that_is_no_toml_or_not_there_is_said(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("splits = = 3")
    with pytest.raises(InputError, match=r"bad\.toml is not a TOML file"):
        Experiment.read(tmp_path / "bad.toml")
    with pytest.raises(InputError, match="there is no file"):
        Experiment.read(tmp_path / "none.toml")


def test_every_measure_can_be_asked_for() -> None:
    assert set(METRICS) < set(MEASURES)
    small(metrics=list(MEASURES))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"test": "a"}, "test: a is fitted on; expected 'rest', 'fitted' or another record"),
        ({"aligned": True}, "aligned: expected another record to test on, got 'rest'"),
        ({"validation": [60, 60]}, "validation: expected each once, got 60 twice"),
        ({"seeds": [1, 1]}, "seeds: expected each once, got 1 twice"),
        (
            {"methods": {"v-atta": {"policy": 3}}},
            "expected a policy, such as 'flip \\+ 5 crop', or a list of them, got 3",
        ),
        ({"methods": {"v-atta": {"policies": []}}}, "expected a policy"),
        ({"methods": {"mine": {"method": 3}}}, "unknown method '3'"),
    ],
)
def test_what_would_go_wrong_later_is_said_at_once(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        small(**change)


def test_sizes_that_would_not_differ_are_refused() -> None:
    with pytest.raises(InputError, match="3 sizes from 1 images on would not differ"):
        small(validation=[1000, 1100, 1200]).changed(validation=1)


def test_a_method_is_taken_as_it_is_or_by_its_settings() -> None:
    experiment = small(methods={"mine": {"method": "m-atta", "epochs": 2}}, seeds=[3, 4])
    assert experiment.seeded("mine") == {seed: MATTA(epochs=2, seed=seed) for seed in (3, 4)}
    objects = replace(experiment, methods={"mine": MATTA(epochs=2, seed=7)})
    assert objects.seeded("mine") == {7: MATTA(epochs=2, seed=7)}
    again = Experiment.of(objects.about())
    assert again.method("mine") == objects.method("mine")
