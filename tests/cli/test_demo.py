"""The demo's first half, and the records that its second half stands on."""

import shutil
import sys
from pathlib import Path

import pytest

import atta
from atta.cli.experiments import EXPERIMENT, PHOTOGRAPHS, type_commands
from atta.data.folder import Origin
from atta.lab.compare import compare, comparison_tables
from atta.lab.paper.reproduce import find_experiments, needed, record_file
from atta.record.predictions import BUNDLED
from atta.results.rows import Results
from scenarios import command, made_up

PHOTOGRAPHS_FOLDER = Path(__file__).parents[2] / "examples" / "cifar10"


def test_the_demo_calibrates_photographs_and_ends_with_a_gain_and_a_page(tmp_path: Path) -> None:
    few = tmp_path / "photographs"
    for part, images in (("validation", 100), ("test", 200)):
        for file in sorted((PHOTOGRAPHS_FOLDER / part).glob("*/*.png"))[:: 1000 // images]:
            (few / part / file.parent.name).mkdir(parents=True, exist_ok=True)
            shutil.copy(file, few / part / file.parent.name)
    shutil.copy(PHOTOGRAPHS_FOLDER / "resnet20.safetensors", few)
    line = PHOTOGRAPHS[0] + " --policy flip"
    collect = PHOTOGRAPHS[2].replace("/test", "/validation")
    type_commands((line, PHOTOGRAPHS[1], collect), tmp_path, few)
    results = Results.load(tmp_path / "evaluation.json")
    vanilla, _, ours = results.names("method")
    assert (vanilla, ours) == ("vanilla", "c-atta")
    values = {(row.method, row.metric): row.value for row in results}
    assert values[vanilla, "accuracy"] == values[ours, "accuracy"] > 0.88
    assert values[ours, "nll"] < values[vanilla, "nll"]
    assert values[ours, "class_changes"] == 0
    origin = Origin.of(atta.Record.load(tmp_path / "photographs.safetensors").origin)
    assert origin.files  # so that the report finds the photographs again, for its thumbnails
    assert len(origin.images(few / "validation", 100)) == 100


def test_the_demo_says_at_once_what_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "altair", None)
    result = command("demo", "-o", str(tmp_path / "demo"), ok=False)
    assert "the demo needs more than was installed" in str(result.exception)
    assert "pip install 'atta[data,report]'" in str(result.exception)
    assert not (tmp_path / "demo").exists()


def test_the_network_and_photographs_of_the_demo_stay_small_and_out_of_the_wheel() -> None:
    size = sum(file.stat().st_size for file in PHOTOGRAPHS_FOLDER.rglob("*") if file.is_file())
    assert size < 6e6
    assert len(list(PHOTOGRAPHS_FOLDER.glob("*/*/*.png"))) == 2000
    assert not list((Path(atta.__file__).parent).rglob("*.png"))


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

    real = Path.is_dir
    monkeypatch.setattr("atta.lab.paper.reproduce.run_alone", experiment)
    monkeypatch.setattr(
        "atta.lab.run.own_table", lambda results, chosen: next(comparison_tables(results))
    )
    monkeypatch.setattr("pathlib.Path.is_dir", lambda path: path.name != "cifar10" and real(path))
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    monkeypatch.delitem(
        sys.modules, "atta.report.page", raising=False
    )  # imported again, it looks for them again
    result = command("demo", "-o", str(tmp_path))
    assert (
        "left out: a report needs more than was installed: pip install 'atta[report]'"
        in result.output
    )
    assert (tmp_path / f"{EXPERIMENT}.json").is_file()
