"""The paper's experiments from start to end, on made-up data in the layouts it is published in."""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atta import Record
from atta._base.errors import InputError
from atta.calibrators import Calibrator
from atta.lab import fits
from atta.lab.experiment import Experiment
from atta.lab.paper.published import against, published
from atta.lab.paper.records import RECORDINGS, Making
from atta.lab.paper.reproduce import (
    Places,
    Reproduction,
    experiments_folder,
    find_experiments,
    needed,
    reproduce,
    results_page,
    write_page,
)
from atta.lab.run import chosen, own_table
from atta.results.rows import Results, Row
from layouts_made import classic
from scenarios import command, made_up

pytestmark = [
    pytest.mark.xdist_group("reproduce"),  # one worker makes what all of them look at
    pytest.mark.usefixtures("few_resamples"),
]

FILES = sorted(experiments_folder().glob("*.toml"))
MAKING = Making(
    model="small_cnn", steps=2, image_size=16, validation=5, device="cpu", progress=False
)


@pytest.fixture(autouse=True, scope="module")
def no_data_of_this_machine() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("ATTA_DATA", raising=False)
        yield


def quick(experiment: Experiment) -> Experiment:
    """The same experiment on a handful of images, with a few steps of Adam."""
    methods: dict[str, dict[str, Any]] = {
        label: dict(own) for label, own in experiment.methods.items()
    }
    for label, own in methods.items():
        match own.get("method", label):
            case "m-atta" | "v-atta":
                own |= {"optimizer": "adam", "epochs": 2}
            case "shrunk-m-atta":
                own |= {"strengths": [1.0], "folds": 2}
        if label == "dirichlet":
            own["method"] = "temperature"  # a fit of 100 x 100 weights takes seconds
    if experiment.name.startswith("past-the-paper"):
        methods = {
            label: own
            for label, own in methods.items()
            if label in ("vanilla", "m-atta", "c-atta, 3 nudges")
        }
    few = {"policies": ("aug1", "aug8")} if experiment.choose else {}
    sizes = (
        tuple(range(2, 2 + len(experiment.validation))) if len(experiment.validation) > 1 else (5,)
    )
    return replace(experiment, methods=methods, splits=2, validation=sizes, **few)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    classic(root)
    return root


@pytest.fixture(scope="module")
def whole(
    few_resamples: None, data: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Reproduction, Places, list[str]]:
    """Everything the paper has, from images to numbers."""
    said: list[str] = []
    places = Places(output=tmp_path_factory.mktemp("out"), data=data)
    return (
        reproduce([quick(e) for e in find_experiments()], places, MAKING, say=said.append),
        places,
        said,
    )


# ---- the files


def test_there_is_a_file_for_every_table_and_figure() -> None:
    of = [experiment.paper for experiment in map(Experiment.read, FILES) if experiment.paper]
    assert set(of) == {
        *(f"Table {i}" for i in range(2, 6)),
        "Supplement, Table 1",
        "Figure 2",
        "Figure 3",
        "Figure 4",
    }
    assert len(of) == 3 + 3 + 3 + 2 + 2 + 2


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_states_its_command_its_runtime_and_what_was_published(path: Path) -> None:
    experiment, text = Experiment.read(path), path.read_text(encoding="utf-8")
    assert f"#   atta run experiments/{path.name}\n" in text
    assert re.search(r"^# Runtime: .*minute", text, flags=re.MULTILINE)
    assert "# Published" in text
    assert experiment.splits >= 10 or experiment.validation == (0,)  # or all images at once
    if experiment.published:
        for method, numbers in published(experiment.published).items():
            line = next(line for line in text.splitlines() if line.startswith(f"#   {method} "))
            assert [float(cell) for cell in line.split()[2:]] == list(numbers.values())


def test_the_papers_recipe_is_that_of_the_methods_own_preset() -> None:
    from atta import MATTA, VATTA

    for experiment in filter(lambda experiment: experiment.paper, map(Experiment.read, FILES)):
        assert experiment.method("m-atta") == MATTA.paper()
        assert experiment.method("v-atta") == VATTA.paper()


def test_experiments_are_found_by_name_beginning_or_pattern() -> None:
    assert [e.name for e in find_experiments(["shift-cifar10"])] == ["shift-cifar10"]
    assert [e.name for e in find_experiments(["shift"])] == ["shift-cifar10", "shift-aid"]
    assert {e.dataset for e in find_experiments(["*-cifar100"])} == {"cifar100"}
    tables = [find_experiments([text]) for text in ("table3", "Table 3", "table-3")]
    assert {tuple(e.name for e in found) for found in tables} == {
        tuple(f"in-distribution-{of}" for of in ("cifar10", "cifar100", "aid"))
    }
    assert len(find_experiments()) == len(FILES)
    with pytest.raises(
        InputError,
        match=r"there is no experiment 'shft'. Did you mean 'shift-aid'\? There are: corr",
    ):
        find_experiments(["shft"])


def test_the_experiments_lie_beside_the_source_or_inside_the_installed_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Path(__file__).parents[3]
    assert experiments_folder().samefile(root / "experiments")
    build = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"][
        "build"
    ]
    inside = tmp_path / build["targets"]["wheel"]["force-include"]["experiments"]
    inside.mkdir(parents=True)
    monkeypatch.setattr(
        "atta.lab.paper.reproduce.__file__",
        str(tmp_path / "atta" / "lab" / "paper" / "reproduce.py"),
    )
    assert experiments_folder() == inside


def test_a_table_that_the_paper_does_not_have_is_named_when_the_file_is_read(
    tmp_path: Path,
) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        'published = "in_distribution.cifr10"\ndataset = "shop"\n'
        'fit = "cifar10"\n[methods.vanilla]\n'
    )
    sentence = (
        "mine.toml: published: the paper has no table 'in_distribution.cifr10'. "
        "Did you mean 'in_distribution.cif"
    )
    assert sentence in str(command("run", str(file), ok=False).exception)
    with pytest.raises(InputError, match=re.escape(sentence)):
        find_experiments(folder=tmp_path)


# ---- from images to the page


def test_everything_runs_from_data_alone(whole: tuple[Reproduction, Places, list[str]]) -> None:
    done, places, said = whole
    assert set(done.skipped) == {"corruptions-cifar10", "segmentation-camvid"}
    assert all(
        "the file of the experiment says what makes it" in why for why in done.skipped.values()
    )
    assert [e.name for e in done.experiments] == [
        e.name for e in find_experiments() if e.name not in done.skipped
    ]
    assert set(done.results.known("records")) == set(RECORDINGS)
    assert sum(line.startswith("training") for line in said) == 3
    assert sum(line.startswith("recording") for line in said) == 9
    assert Results.load(places.output / "results.json") == done.results
    for experiment in done.experiments:
        saved = Results.load(places.output / f"{experiment.name}.json")
        assert saved.rows == done.results.where(experiment=experiment.name).rows
        assert {row.method for row in saved} == set(experiment.methods)


def test_a_second_run_makes_nothing_and_gives_the_same_numbers(
    whole: tuple[Reproduction, Places, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    done, places, _ = whole
    names = ("policies-validation-cifar10", "shift-cifar10", "ood-aid", "past-the-paper-cifar10")
    files = [places.output / f"{name}.json" for name in ("results", *names)]
    before, *each = [path.read_bytes() for path in files]
    monkeypatch.setattr("atta.lab.paper.reproduce.make", lambda *_, **__: pytest.fail("made again"))
    monkeypatch.setattr(fits.Fits, "_fit", lambda *_: pytest.fail("fitted again"))
    reproduce(
        [e for e in done.experiments if e.name in names],
        places,
        MAKING,
        say=lambda line: pytest.fail(line),
    )
    assert [path.read_bytes() for path in files[1:]] == each
    files[0].write_bytes(before)  # of all experiments, for the tests after this one


def test_a_run_that_was_stopped_goes_on_and_ends_with_the_same_numbers(
    whole: tuple[Reproduction, Places, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, places, _ = whole
    again = Places(output=tmp_path, records=places.made)
    some = [e for e in done.experiments if e.name in ("in-distribution-cifar10", "shift-cifar10")]
    keep, count = Calibrator.save, 0

    def stop(*arguments: Any) -> None:
        nonlocal count
        count += 1
        if count > 40:
            raise KeyboardInterrupt
        keep(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Calibrator, "save", stop)
        with pytest.raises(KeyboardInterrupt):
            reproduce(some, again)
    assert len(list((tmp_path / "fits").rglob("*.safetensors"))) == 40
    rows = reproduce(some, again).results.rows
    assert rows == tuple(row for row in done.results if row.experiment in {e.name for e in some})


def test_the_page_says_on_what_it_ran_and_what_differs_and_shows_the_papers_figures(
    whole: tuple[Reproduction, Places, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, *_ = whole
    here = {"processor": "an abacus", "commit": "abc"}
    monkeypatch.setattr("atta.lab.paper.reproduce.machine", lambda: here)
    write_page(done, tmp_path / "mine.md", command="atta reproduce")
    drawn = sorted(path.stem for path in (tmp_path / "mine").iterdir())
    assert drawn == [
        "ood-aid",
        "ood-cifar10",
        "validation-size-cifar10",
        "validation-size-cifar100",
    ]
    page = (tmp_path / "mine.md").read_text(encoding="utf-8")
    assert all(f"](mine/{name}.svg)" in page for name in drawn)
    for text in (
        "an abacus",
        "abc",
        "`atta reproduce`",
        "seed",
        "sha256",
        "[past-the-paper.md](past-the-paper.md)",
    ):
        assert text in page
    for difference in (
        "Network",
        "Crop",
        "Clip",
        "Start of the optimiser",
        "Adaptive-TTA",
        "reconstructed",
    ):
        assert difference in page.partition("## Differences")[2]
    for experiment in done.experiments:
        assert f"`atta run experiments/{experiment.name}.toml`" in page
    assert page.count("does not hold") + page.count("holds") >= 3 * 5
    assert page.count("<details>") == page.count("</details>") > 20
    for place in (
        "Table 2",
        "Table 3",
        "Table 4",
        "Table 5",
        "Figure 2",
        "Figure 3",
        "Figure 4",
        "Supplement, Table 1",
    ):
        assert f"- {place}: [" in page
    anchors = {
        re.sub(r"[^\w\- ]", "", line[3:].lower()).replace(" ", "-")
        for line in page.splitlines()
        if line.startswith("## ")
    }
    assert set(re.findall(r"\]\(#([^)]*)\)", page)) <= anchors
    assert "all of them | 16 of 18 | " in page
    assert "Our network is right on" in page
    lines = [line for line in page.splitlines() if line.startswith("|")]
    assert len(lines) > 100


def test_the_words_follow_from_the_numbers(whole: tuple[Reproduction, Places, list[str]]) -> None:
    done, *_ = whole
    (experiment,) = (e for e in done.experiments if e.name == "policies-test-cifar10")
    theirs = published("policy_test_brier.cifar10")
    rows = [
        Row(
            experiment=experiment.name,
            dataset="cifar10",
            method=method,
            policy=policy,
            metric="brier",
            value=value + 0.5,
        )
        for method, values in theirs.items()
        for policy, value in values.items()
    ]
    results = Results(tuple(rows), {"records": {}})
    told = results_page(Reproduction(results, [experiment]), {}, command="x")
    best = min(theirs["v-atta"], key=lambda policy: theirs["v-atta"][policy])
    assert f"v-atta: best with {best} (" in told
    assert (
        told.count("Ours are +0.5000 from them on average; the two orders correlate by +1.00") == 2
    )


def test_the_difference_is_ours_less_the_published(
    whole: tuple[Reproduction, Places, list[str]],
) -> None:
    done, *_ = whole
    experiment = next(e for e in done.experiments if e.name == "in-distribution-cifar10")
    table = against(done.results, experiment)
    assert table is not None
    row = next(cells for cells in table.cells if cells[0] == "temperature")
    where = {"experiment": experiment.name, "method": "temperature", "metric": "brier"}
    mean = done.results.summary(**where)
    first = done.results.summary(**where, split=0)
    assert mean is not None
    assert first is not None
    assert row[1:4] == ("0.0390", f"{mean.mean:.4f}", f"{mean.mean - 0.039:+.4f}")
    alone = against(done.results, experiment, first=True)
    assert alone is not None
    assert (
        next(cells for cells in alone.cells if cells[0] == "temperature")[2] == f"{first.mean:.4f}"
    )


def test_policies_are_compared_with_policies(whole: tuple[Reproduction, Places, list[str]]) -> None:
    done, *_ = whole
    experiment = next(e for e in done.experiments if e.name == "policies-test-aid")
    table = against(done.results, experiment)
    assert table is not None
    assert [cells[0] for cells in table.cells] == [f"aug{i}" for i in range(1, 9)]
    assert table.cells[4][1] == "0.0259"


def test_figures_have_tables_of_our_own_only(whole: tuple[Reproduction, Places, list[str]]) -> None:
    done, *_ = whole
    for experiment in done.experiments:
        if experiment.paper.startswith("Figure"):
            assert against(done.results, experiment) is None
            assert own_table(done.results, experiment).cells


def test_how_often_each_rule_chose_which_policy_is_told(
    whole: tuple[Reproduction, Places, list[str]],
) -> None:
    done, *_ = whole
    experiment = next(e for e in done.experiments if e.choose)
    table = chosen(done.results, experiment)
    assert table is not None
    assert {cells[1] for cells in table.cells} == {"paper", "cross-validated"}
    for cells in table.cells:
        assert sum(int(n) for n in re.findall(r"(\d+)x", cells[2])) == 2


# ---- what is missing or broken


def test_what_cannot_be_had_is_skipped_with_a_line(tmp_path: Path) -> None:
    record = made_up(40, 10)
    record.save(tmp_path / "records" / "cifar10.safetensors")
    Record(record.predictions).save(tmp_path / "records" / "cifar10_ood.safetensors")
    said: list[str] = []
    some = [
        quick(e) for e in find_experiments(["ood-cifar10", "shift-cifar10", "in-distribution-aid"])
    ]
    some = [
        replace(e, methods={"vanilla": {}, "temperature": {}}, policies=("flip",)) for e in some
    ]
    done = reproduce(
        some, Places(output=tmp_path / "out", records=tmp_path / "records"), say=said.append
    )
    assert [e.name for e in done.experiments] == ["ood-cifar10"]
    assert len(said) == 2
    assert said[0].startswith("skipped shift-cifar10: no ")
    assert "cifar10_shift.safetensors" in said[0]


def test_records_that_come_with_atta_serve_where_no_folder_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Places(output=tmp_path)
    bundled = {"cifar10", "cifar10_nudged", "cifar10_shift", "cifar10_ood"}
    assert {name for name in RECORDINGS if plain.find(name)} == set(RECORDINGS)  # from a clone
    with monkeypatch.context() as installed:
        installed.setattr("atta.record.predictions.CLONE", tmp_path)
        assert {name for name in RECORDINGS if plain.find(name)} == bundled
    assert not any(Places(output=tmp_path, records=tmp_path).find(name) for name in RECORDINGS)
    assert not any(Places(output=tmp_path, data=tmp_path).find(name) for name in RECORDINGS)


def test_the_records_an_experiment_needs_are_known() -> None:
    assert needed(find_experiments(["*-aid"])) == ["aid", "aid_shift", "aid_ood"]


def test_a_record_made_with_other_settings_is_refused(
    whole: tuple[Reproduction, Places, list[str]],
) -> None:
    done, places, _ = whole
    with pytest.raises(
        InputError,
        match=r"cifar10.safetensors to .*, but its steps is 2 and not 4; choose another folder",
    ):
        reproduce(done.experiments[:1], places, replace(MAKING, steps=4))
    with pytest.raises(InputError, match="its model is small_cnn and not resnet50"):
        reproduce(done.experiments[:1], places, replace(MAKING, model="resnet50"))


def test_no_new_network_stands_in_for_that_of_a_record(data: Path, tmp_path: Path) -> None:
    made_up(40, 10).save(tmp_path / "cifar10.safetensors")
    said: list[str] = []
    done = reproduce(
        [quick(e) for e in find_experiments(["shift-cifar10"])],
        Places(output=tmp_path / "out", records=tmp_path, data=data),
        MAKING,
        say=said.append,
    )
    assert not done.experiments
    assert "the network of cifar10.safetensors is missing" in said[0]


def test_records_that_do_not_fit_skip_one_experiment_and_not_the_others(tmp_path: Path) -> None:
    made_up(40, 10).save(tmp_path / "cifar10.safetensors")
    made_up(40, 5).save(tmp_path / "cifar10_shift.safetensors")
    some = [quick(e) for e in find_experiments(["shift-cifar10", "space"])]
    some = [replace(e, methods={"vanilla": {}}) for e in some]
    done = reproduce(some, Places(output=tmp_path / "out", records=tmp_path))
    assert [e.name for e in done.experiments] == ["space-cifar10"]
    assert "cifar10_shift has 5 classes" in done.skipped["shift-cifar10"]
    assert results_page(done, {}, command="x")
