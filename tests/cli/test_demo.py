"""The demo's first half, and the records that its second half stands on."""

import sys
from pathlib import Path

import pytest
import torch

import atta
from atta.cli.experiments import DIGITS, EXPERIMENT, type_commands
from atta.lab.compare import compare, comparison_tables
from atta.lab.paper.reproduce import find_experiments, needed, record_file
from atta.record.predictions import BUNDLED
from atta.results.rows import Results
from scenarios import command, made_up


def test_the_digits_are_trained_recorded_and_calibrated(tmp_path: Path) -> None:
    type_commands(DIGITS[:3], tmp_path)
    assert (tmp_path / "network" / "model.safetensors").is_file()
    record = atta.Record.load(tmp_path / "digits.safetensors")
    assert record.origin["dataset"] == "digits"
    base = record.predictions.logits.softmax(dim=-1)
    probs = atta.load(tmp_path / "v-atta.safetensors")(record.predictions)
    assert torch.equal(probs.argmax(dim=-1), base.argmax(dim=-1))
    assert atta.evaluate(base, record.labels)["accuracy"] > 0.9


@pytest.mark.parametrize(
    ("suffix", "images", "passes"),
    [("", 10_000, 17), ("-nudged", 10_000, 20), ("-shift", 10_000, 17), ("-ood", 2_000, 17)],
)
def test_records_of_a_resnet_on_cifar_come_with_the_package(
    suffix: str, images: int, passes: int
) -> None:
    record = atta.find_record("cifar10-resnet50" + suffix)
    assert len(record) == images
    assert record.predictions.passes == atta.Policy.parse(record.origin["policy"]).passes == passes
    assert (record.labels is None) == (suffix == "-ood")


def test_the_second_half_runs_on_a_record_that_comes_with_the_package() -> None:
    assert all(record_file(name) for name in needed(find_experiments([EXPERIMENT])))


@pytest.mark.parametrize("name", ["cifar10-resnet50", "cifar10-resnet50-nudged"])
def test_the_bundled_resnets_are_as_accurate_as_the_papers(name: str) -> None:
    record = atta.find_record(name)
    assert record.labels is not None
    assert (record.predictions.logits.argmax(dim=1) == record.labels).double().mean() > 0.94


def test_bundled_records_stay_small() -> None:
    assert sum(path.stat().st_size for path in BUNDLED.glob("*.safetensors")) < 12e6


def test_the_demo_leaves_out_what_was_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def experiment(chosen: object, records: object, **how: object) -> Results:
        return compare(
            {"cifar10": made_up(60)}, [atta.Vanilla(), atta.TemperatureScaling()], validation=20
        )

    monkeypatch.setattr("atta.lab.paper.reproduce.run_alone", experiment)
    monkeypatch.setattr(
        "atta.lab.run.own_table", lambda results, chosen: next(comparison_tables(results))
    )
    for library in ("sklearn.datasets", "vl_convert"):
        monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(
        sys.modules, "atta.report.page", raising=False
    )  # imported again, it looks for them again
    result = command("demo", "-o", str(tmp_path))
    assert (
        "left out: the dataset digits needs more than was installed: pip install 'atta[sklearn]'"
        in result.output
    )
    assert (
        "left out: a report needs more than was installed: pip install 'atta[report]'"
        in result.output
    )
    assert (tmp_path / f"{EXPERIMENT}.json").is_file()
