"""Commands that need records alone, as a user types them."""

import json
import re
from pathlib import Path

import pytest

import atta
from atta._base.errors import InputError
from atta.results.rows import Results
from scenarios import command as run
from scenarios import made_up

pytestmark = pytest.mark.usefixtures("few_resamples")


@pytest.fixture(scope="module")
def record_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(made_up(250).save(tmp_path_factory.mktemp("records") / "shop.safetensors"))


def test_methods_lists_every_method_and_whether_it_keeps_the_class() -> None:
    output = run("methods").output
    for name, method in atta.METHODS.items():
        line = next(
            line for line in output.splitlines() if line.split() and line.split()[0] == name
        )
        assert line.split()[1] == ("yes" if method().keeps_class else "no")


def test_compare_prints_the_table_and_writes_its_numbers(record_file: str, tmp_path: Path) -> None:
    numbers = tmp_path / "out.json"
    output = run(
        "compare",
        record_file,
        "--validation",
        "100",
        "--splits",
        "2",
        "--methods",
        "vanilla,v-atta",
        "--json",
        str(numbers),
    ).output
    results = Results.load(numbers)
    assert results.names("method") == ["vanilla", "v-atta"]
    assert results.about["methods"]["shop"]["v-atta"]["optimizer"] == "lbfgs"
    for method in ("vanilla", "v-atta"):
        line = next(line for line in output.splitlines() if line.startswith(method))
        for metric in ("brier", "ece", "mc_brier", "nll"):
            summary = results.summary(method=method, metric=metric)
            assert summary is not None
            assert summary.text() in line


def test_compare_takes_all_methods_by_default(
    monkeypatch: pytest.MonkeyPatch, record_file: str
) -> None:
    taken: list[atta.Method] = []

    def compare(records: object, methods: list[atta.Method], **how: object) -> Results:
        taken.extend(methods)
        raise InputError("seen enough")

    monkeypatch.setattr("atta.lab.compare.compare", compare)
    assert (
        str(run("compare", record_file, "--validation", "20", ok=False).exception) == "seen enough"
    )
    assert taken == [method() for method in atta.METHODS.values()]


def test_compare_leaves_out_what_needs_views_where_there_are_none(tmp_path: Path) -> None:
    record = made_up(60)
    bare = atta.Record(atta.Predictions(record.predictions.logits), record.labels).save(
        tmp_path / "bare.safetensors"
    )
    numbers = tmp_path / "out.json"
    result = run("compare", str(bare), "--validation", "30", "--json", str(numbers))
    names = Results.load(numbers).names("method")
    assert names == [name for name, method in atta.METHODS.items() if not method().needs_views]
    assert "left out, because a record has no views" in result.stderr


def test_a_fitted_calibrator_is_evaluated_beside_the_network(
    record_file: str, tmp_path: Path
) -> None:
    file, numbers = tmp_path / "v.safetensors", tmp_path / "n.json"
    done = run(
        "fit",
        record_file,
        "--method",
        "v-atta",
        "-o",
        str(file),
        "--rows",
        "0:100",
        "--set",
        "views=flip,crop",
    )
    assert "5 passes per image" in done.output
    assert atta.load(file).kinds == ("flip", "crop")
    output = run(
        "evaluate", record_file, "--calibrator", str(file), "--rows", "100:", "--json", str(numbers)
    ).output
    assert re.search(r"metric +vanilla +temperature, cross-validated +v-atta", output)
    assert re.search(r"passes +1.00 +1.00 +5.00", output)
    assert re.search(r"brier +0.\d{4} \[0.\d{4}, 0.\d{4}\]", output)
    assert re.search(r"answered_5 +\d.\d{4} \[\d.\d{4}, \d.\d{4}\]", output)
    assert "classwise_ece" not in output
    every = run("evaluate", record_file, "--calibrator", str(file), "--rows", "100:", "--all")
    assert "classwise_ece" in every.output
    test = made_up(250)[100:]
    expected = atta.evaluate(atta.load(file)(test.predictions), test.labels)
    summary = Results.load(numbers).summary(method="v-atta", metric="brier")
    assert summary is not None
    assert summary.mean == pytest.approx(expected["brier"], abs=1e-12)


def test_comparing_says_how_sure_each_difference_to_vanilla_is(
    record_file: str, tmp_path: Path
) -> None:
    numbers = tmp_path / "n.json"
    methods = ("--methods", "vanilla,temperature,mean-tta", "--validation", "100")
    text = run("compare", record_file, *methods, "--intervals", "--json", str(numbers)).output
    sure = {
        (i.method, i.metric): i for i in Results.load(numbers).intervals if i.against == "vanilla"
    }
    lines = [line.split() for line in text.partition("95 % intervals")[2].splitlines()]
    said = {(line[0], line[1]): line for line in lines if len(line) > 8}
    words = {(False, False): "unclear", (True, False): "better", (False, True): "worse"}
    for method in ("temperature", "mean-tta"):
        for metric in ("brier", "ece", "smooth_ece", "mc_brier", "nll"):
            one = sure[method, metric]
            assert said[method, metric][-4:-1] == [f"{one.low:+.4f}", "to", f"{one.high:+.4f}"]
            assert said[method, metric][-1] == words[one.high < 0, one.low > 0]
    marked = sum(
        one.low * one.high > 0
        for (_, metric), one in sure.items()
        if metric != "accuracy" and "entropy" not in metric
    )
    tables = text.partition("shop: 95 % intervals")[0]
    legends = tables.count("✓ significantly better, ✗ worse")
    assert marked
    assert tables.count("✓") + tables.count("✗") == marked + 2 * legends


def test_search_names_the_policy_and_tests_it_on_other_rows(
    record_file: str, tmp_path: Path
) -> None:
    numbers = tmp_path / "out.json"
    options = (
        "--rows",
        "0:120",
        "--test",
        "120:",
        "--budget",
        "3",
        "--folds",
        "3",
        "--greedy",
        "--json",
        str(numbers),
    )
    result = run("search", record_file, *options)
    results = Results.load(numbers)
    chosen, free = results.where(choice="one-standard-error"), results.where(choice="greedy")
    assert chosen.names("policy") in (
        ["flip-2"],
        ["crop-2"],
    )  # the only ones of two or three passes that are there
    assert {"passes", "cv_nll", "cv_nll_above", "cv_nll_error", "brier", "nll"} == {
        *chosen.names("metric")
    }
    for one, mark in ((chosen, "one-standard-error"), (free, "greedy")):
        name = f"{one.names('policy')[0]} · {mark} "
        line = next(line for line in result.stdout.splitlines() if line.startswith(name))
        for metric in ("cv_nll", "brier", "nll"):
            assert f"{next(row.value for row in one if row.metric == metric):.4f}" in line
    assert "--method c-atta --policy " in result.stdout
    assert "policies within the budget are not in these records" in result.stderr
    assert "over-fits a small validation set" in result.stderr


def test_numbers_go_to_the_output_and_the_table_beside_it(tmp_path):
    done = run("compare", "cifar10-resnet50", "--methods", "vanilla,temperature", "--json", "-")
    results = json.loads(done.stdout)
    assert {row["method"] for row in results["rows"]} >= {"vanilla", "temperature"}
    assert "temperature" in done.stderr
    assert (
        "temperature"
        in run("compare", "cifar10-resnet50", "--methods", "vanilla,temperature").stdout
    )


def test_what_a_hedge_lacks_is_said_once(tmp_path: Path) -> None:
    record = made_up(120)
    views = {"flip": record.predictions.logits[:, None]}  # which hurts nothing
    plain = atta.Record(atta.Predictions(record.predictions.logits, views), record.labels).save(
        tmp_path / "plain.safetensors"
    )
    methods = [
        "--methods",
        "hedged-temperature,hedged-c-atta",
        "--validation",
        "60",
        "--splits",
        "2",
    ]
    said = run("compare", str(plain), *methods).output
    assert said.count("nothing that was recorded lowers") == 1
    assert "--rehearse" in said
