"""Charts hold the numbers they were given, whatever the names, and are drawn in every format."""

import json
import math
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import atta
from atta import METRICS, VATTA, InputError, TemperatureScaling, Vanilla
from atta.cli.app import commands
from atta.experiments.details import details as look
from atta.experiments.experiment import compare
from atta.figures.catalogue import FIGURES, figure
from atta.figures.comparison import cost, cost_points, entropy, ranking, sizes
from atta.figures.detail import confidence_histogram, per_class, shares, weights
from atta.figures.parts import told_apart
from atta.figures.reliability import compare_plot, reliabilities, reliability_of
from atta.figures.theme import theme
from atta.figures.write import picture
from atta.results.rows import Results, Row
from scenarios import made_up

pytest.importorskip("altair")
pytest.importorskip("vl_convert")

ODD = ['</script><script>alert("x")</script>', "a.b[0]", 'it\'s "quoted"', "back\\slash", "a\nb", "", "ü → 𝔘", "a.b[0]"]


@pytest.fixture(scope="module")
def results() -> Results:
    methods = [Vanilla(), TemperatureScaling(), VATTA(optimizer="adam", epochs=20)]
    return compare({"made up": made_up(400, seed=3)}, methods, validation=100, splits=3)


@pytest.fixture(scope="module")
def detail(results: Results) -> dict[str, Any]:
    return dict(next(d for d in results.details if d["method"] == "v-atta"))


def with_classes(detail: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """The detail as M-ATTA would have it, with these classes; every fifth is never predicted."""
    draw, count = np.random.default_rng(0), len(names)
    known = [i % 5 != 4 for i in range(count)]
    return {
        **detail,
        "views": {**detail["views"], "weights": draw.normal(size=(len(detail["views"]["kinds"]), count)).tolist()},
        "per_class": {
            "names": names,
            "counts": [10 if there else 0 for there in known],
            **{name: [draw.random() if there else None for there in known] for name in ("confidence", "accuracy")},
        },
    }


def many(count: int, metric: str = "brier", **columns: Any) -> list[Row]:
    return [
        Row(
            dataset="d",
            method=f"method {i}",
            metric=metric,
            value=0.1 + 0.01 * i + 0.001 * split,
            split=split,
            **columns,
        )
        for i in range(count)
        for split in range(3)
    ]


def drawings(results: Results, detail: dict[str, Any]) -> dict[str, Callable[..., Any]]:
    sized = [row for size in (10, 100) for row in many(2, validation=size)]
    points = [{"policy": "aug4", "passes": 12, "method": "v-atta", "value": 0.04, "low": None, "high": None}]
    return {
        "reliability_of": lambda **look: reliability_of(detail, **look),
        "reliabilities": lambda **look: reliabilities(results.details, **look),
        "confidence_histogram": lambda **look: confidence_histogram(results.details[:2], **look),
        "weights": lambda **look: weights(detail, **look),
        "shares": lambda **look: shares(detail, **look),
        "per_class": lambda **look: per_class(detail, **look),
        "ranking": lambda **look: ranking(results, **look),
        "entropy": lambda **look: entropy(results, **look),
        "sizes": lambda **look: sizes(sized, **look),
        "cost": lambda **look: cost(points, **look),
    }


NAMES = list(drawings(Results(()), {}))


def data(chart: Any) -> list[dict[str, Any]]:
    """The rows of all the data of a chart, as they are written."""
    spec = json.loads(json.dumps(chart.to_dict(), allow_nan=False))
    return [row for rows in spec["datasets"].values() for row in rows]


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (text for inner in value.values() for text in strings(inner))
    elif isinstance(value, list):
        yield from (text for inner in value for text in strings(inner))
    elif isinstance(value, str):
        yield value


# --- All of them -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_chart_is_valid_and_says_what_it_shows(name: str, results: Results, detail: dict[str, Any]) -> None:
    spec = drawings(results, detail)[name]().to_dict()  # which checks the schema of Vega-Lite
    assert len(spec["description"]) > 30
    assert '"tooltip"' in json.dumps(spec, allow_nan=False)
    assert spec["config"]["background"] == "transparent"


@pytest.mark.parametrize("name", NAMES)
def test_dark_differs_from_light_in_the_config_alone(name: str, results: Results, detail: dict[str, Any]) -> None:
    draw = drawings(results, detail)[name]
    light, dark = draw().to_dict(), draw(dark=True).to_dict()
    assert light.pop("config") == json.loads(json.dumps(theme()))
    assert dark.pop("config") == json.loads(json.dumps(theme(dark=True)))
    assert light == dark


@pytest.mark.parametrize(
    "name", ["confidence_histogram", "weights", "shares", "per_class", "ranking", "entropy", "cost"]
)
def test_one_panel_can_fill_its_container(name: str, results: Results, detail: dict[str, Any]) -> None:
    assert drawings(results, detail)[name](width="container").to_dict()["width"] == "container"


def test_no_name_from_a_file_becomes_the_name_of_a_field(detail: dict[str, Any]) -> None:
    odd = with_classes(detail, ODD)
    rows = [
        Row(dataset="d", method=name, metric="brier", value=0.1, validation=n) for name in ODD[:7] for n in (10, 20)
    ]
    ten = [row for row in rows if row.validation == 10]
    charts = {
        "weights": weights(odd),
        "per_class": per_class(odd),
        "ranking": ranking(ten, baseline=ODD[0]),
        "sizes": sizes(rows),
        "reliabilities": reliabilities([{**detail, "method": name} for name in ODD]),
    }
    for name, chart in charts.items():
        spec = chart.to_dict()
        for field in re.findall(r'"field": "(.*?)"', json.dumps(spec)):
            assert field.isidentifier(), (name, field)
        assert any(ODD[0] in text for text in strings(spec)), name
    names = {row["class"] for row in data(charts["weights"])}
    assert names == {*ODD[:1], "a.b[0] (1)", *ODD[2:7], "a.b[0] (7)"}, "two classes of one name stay two"


# --- Reliability -------------------------------------------------------------------------------------------------------


def test_the_bins_of_a_diagram_are_those_of_the_detail_and_empty_ones_are_absent(detail: dict[str, Any]) -> None:
    bins = detail["bins"]
    assert 0 in bins["counts"]
    drawn = [row for row in data(reliability_of(detail)) if "images" in row]
    expected = [i for i, count in enumerate(bins["counts"]) if count]
    assert [row["from"] for row in drawn] == [bins["edges"][i] for i in expected]
    assert [row["to"] for row in drawn] == [bins["edges"][i + 1] for i in expected]
    for field, part in (("images", "counts"), *((name, name) for name in ("confidence", "accuracy", "low", "high"))):
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
    assert len([row for row in data(atta.reliability(probs, labels, bins=1)) if "images" in row]) == 1


def test_a_chart_without_a_title_still_says_its_numbers(detail: dict[str, Any]) -> None:
    assert reliability_of(detail, title="").to_dict()["title"]["text"][0].startswith("300 images · ECE")


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


def test_without_labels_there_is_confidence_but_no_accuracy(detail: dict[str, Any]) -> None:
    record = made_up(100, seed=8)
    calibrator = Vanilla().fit(record.predictions, record.require_labels())
    bare = look(calibrator, atta.Record(record.predictions))
    with pytest.raises(InputError, match="needs labels"):
        reliability_of(bare)
    with pytest.raises(InputError, match="needs labels"):
        per_class(bare)
    assert sum(row["images"] for row in data(confidence_histogram([bare]))) == 100
    with pytest.raises(InputError, match="no weights of views"):
        weights(bare)


# --- The other details -------------------------------------------------------------------------------------------------


def test_a_histogram_shows_the_counts_before_and_after(results: Results) -> None:
    before, after = results.details[:2]
    rows = data(confidence_histogram([before, after]))
    counts = [row["images"] for row in rows if row["method"] == after["method"]]
    assert counts == after["histogram"]
    line = [row for row in rows if row["method"] == before["method"]]
    assert [row["images"] for row in line[:-1]] == before["histogram"]
    assert (line[-1]["from"], line[-1]["images"]) == (1, before["histogram"][-1]), "the last step has its end"
    assert len(confidence_histogram(results.details).to_dict()["concat"]) == len(results.details) - 1


def test_the_weights_are_drawn_to_the_last_bit(detail: dict[str, Any]) -> None:
    views = detail["views"]
    rows = data(weights(detail))
    assert [(row["kind"], row["class"]) for row in rows] == [(kind, "all classes") for kind in views["kinds"]]
    assert [[row["weight"]] for row in rows] == views["weights"]
    assert f"limit {views['limit']:.3f}" in json.dumps(weights(detail).to_dict())


@pytest.mark.parametrize(("classes", "labels"), [(10, True), (40, True), (100, False), (1000, False)])
def test_many_classes_have_no_names_on_the_axis(
    classes: int, labels: bool, detail: dict[str, Any], tmp_path: Path
) -> None:
    chart = weights(with_classes(detail, [f"class {i}" for i in range(classes)]))
    assert len(data(chart)) == classes * len(detail["views"]["kinds"])
    svg = picture(chart, tmp_path / "weights.svg").read_text(encoding="utf-8")
    assert (">class 7</text>" in svg) is labels


def test_a_weight_that_is_no_number_is_no_number_of_the_chart(detail: dict[str, Any]) -> None:
    broken = {**detail, "views": {**detail["views"], "weights": [["nan"], [math.inf], [0.5]]}}
    broken["views"]["kinds"] = ["a", "b", "c"]
    assert [row["weight"] for row in data(weights(broken))] == [None, None, 0.5]


def test_the_shares_say_how_many_the_class_guard_holds(detail: dict[str, Any]) -> None:
    views, rows = detail["views"], data(shares(detail))
    assert [row["images"] for row in rows if "images" in row] == views["shares"]
    assert [row["limit"] for row in rows if "limit" in row] == [views["limit"]]
    said = shares(detail).to_dict()["description"]
    assert f"holds {views['limited']:,} of {detail['images']:,} images" in said


def test_of_many_classes_those_of_the_largest_gaps_are_shown_and_the_rest_said(detail: dict[str, Any]) -> None:
    odd = with_classes(detail, [f"class {i}" for i in range(1000)])
    per_class = odd["per_class"]
    chart = per_class(odd)
    rows = [row for row in data(chart) if "gap" in row]
    gaps = [row["gap"] for row in rows]
    everything = sorted(
        (abs(c - a) for c, a in zip(per_class["confidence"], per_class["accuracy"], strict=True) if c is not None),
        reverse=True,
    )
    assert gaps == sorted(gaps, reverse=True)
    assert sorted(map(abs, gaps), reverse=True) == everything[:30]
    for row in rows:
        i = int(row["class"].removeprefix("class "))
        assert (row["confidence"], row["accuracy"]) == (per_class["confidence"][i], per_class["accuracy"][i])
        assert row["low"] <= row["gap"] <= row["high"]
    said = chart.to_dict()["description"]
    assert (
        f"30 largest gaps of 800 classes; the other 770 are within ±{everything[30]:.3f}; 200 never predicted" in said
    )


# --- Rows --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 30])
def test_methods_are_ranked_by_their_mean_the_best_first(count: int) -> None:
    rows = many(count)
    drawn = [row for row in data(ranking(rows[::-1], "brier", "method 0")) if "runs" in row]
    assert [row["method"] for row in drawn][-count:] == [f"method {i}" for i in range(count)]
    for row in drawn:
        summary = Results(tuple(rows)).summary(method=row["method"])
        assert summary is not None
        assert summary.interval is not None
        assert row["value"] == pytest.approx(summary.mean, abs=0)
        assert (row["low"], row["high"]) == (row["value"] - summary.interval, row["value"] + summary.interval)
    best = [row["method"] for row in data(ranking(many(count, "accuracy"), "accuracy", "none")) if "runs" in row]
    assert best == [f"method {i}" for i in reversed(range(count))], "more accuracy is better"


def test_one_run_has_no_interval_and_nan_no_place() -> None:
    rows = [Row(dataset="d", method=m, metric="nll", value=v) for m, v in (("a", 0.5), ("b", math.nan), ("c", 0.25))]
    drawn = data(ranking(rows, "nll"))
    assert [(row["method"], row["value"], row["low"]) for row in drawn] == [
        ("c", 0.25, None),
        ("a", 0.5, None),
        ("b", None, None),
    ]
    with pytest.raises(InputError, match="finite"):
        ranking(rows[1:2], "nll")
    with pytest.raises(InputError, match="no rows of ece"):
        ranking(rows, "ece")


def test_what_differs_is_not_averaged() -> None:
    with pytest.raises(InputError, match="dataset"):
        ranking([Row(dataset=d, method="a", metric="brier", value=1.0) for d in ("x", "y")])


def test_a_policy_is_named_where_there_are_several_and_a_rule_where_it_is_not_the_papers() -> None:
    shared: dict[str, Any] = {"dataset": "d", "metric": "brier", "value": 0.1}
    rows = [
        Row(method="plain", policy="aug4", **shared),
        *(Row(method="given", policy=policy, **shared) for policy in ("aug1", "aug2")),
        *(Row(method="chosen", policy=f"aug{split}", split=split, choice="paper", **shared) for split in (1, 2)),
        *(
            Row(method="chosen", policy=f"aug{split}", split=split, choice="cross-validated", **shared)
            for split in (1, 2)
        ),
    ]
    names = {row["method"] for row in data(ranking(rows))}
    assert names == {"plain", "given · aug1", "given · aug2", "chosen", "chosen · cross-validated"}


def test_entropy_on_foreign_images_is_better_the_higher_it_is() -> None:
    drawn = data(entropy(many(3, "entropy")))
    assert [row["method"] for row in drawn] == ["method 2", "method 1", "method 0"]


def test_sizes_have_a_panel_a_metric_and_a_line_a_method() -> None:
    rows = [row for size in (100, 1000) for metric in ("brier", "a.b[0]") for row in many(9, metric, validation=size)]
    spec = sizes(rows).to_dict()
    assert len(spec["concat"]) == 2
    drawn = data(sizes(rows, ["brier"]))
    assert {(row["method"], row["validation"]) for row in drawn} == {
        (f"method {i}", n) for i in range(9) for n in (100, 1000)
    }
    looks = told_apart([f"method {i}" for i in range(140)])
    ranges = zip(
        *(looks[channel].to_dict()["scale"]["range"] for channel in ("color", "shape", "strokeDash")), strict=True
    )
    assert len({str(look) for look in ranges}) == 140, "no two methods look the same"
    with pytest.raises(InputError, match="how many images"):
        sizes(many(2))


def test_the_cost_of_a_policy_is_its_passes() -> None:
    rows = [
        Row(dataset="d", method=method, policy=policy, metric="brier", value=value + split / 1000, split=split)
        for method, policy, value in (
            ("vanilla", "", 0.05),
            ("v-atta", "aug4", 0.04),
            ("v-atta", "flip + 2 crop", 0.045),
        )
        for split in (0, 1)
    ]
    points = cost_points(Results(tuple(rows)))
    assert [(p["method"], p["policy"], p["passes"]) for p in points] == [
        ("vanilla", "", 1),
        ("v-atta", "aug4", 12),
        ("v-atta", "flip + 2 crop", 4),
    ]
    drawn = [row for row in data(cost(points)) if "runs" in row]
    assert [row["value"] for row in drawn] == [point["value"] for point in points]
    assert "best: v-atta with aug4" in cost(points).to_dict()["description"]


def test_names_of_policies_that_would_lie_over_each_other_are_one_text() -> None:
    shared: dict[str, Any] = {"method": "m", "low": None, "high": None}
    points = [
        {"policy": policy, "passes": passes, "value": value, **shared}
        for policy, passes, value in (
            ("aug1", 7, 0.0400),
            ("aug2", 7, 0.0401),
            ("aug3", 7, 0.0500),
            ("aug4", 12, 0.0400),
        )
    ]
    texts = [row["policy"] for row in data(cost(points)) if "method" not in row]
    assert texts == ["aug1, aug2", "aug3", "aug4"]


# --- By name, and written ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(set(FIGURES) - {"sizes"}))
def test_every_figure_is_drawn_from_results(name: str, results: Results) -> None:
    assert data(figure(name, results))


def test_a_figure_is_of_the_rows_and_details_that_were_asked_for(results: Results) -> None:
    chart = figure("reliability", results, method="temperature")
    assert chart.to_dict()["title"]["text"] == ["temperature"]
    assert {row["method"] for row in data(figure("ranking", results, method=["vanilla", "v-atta"]))} == {
        "vanilla",
        "v-atta",
    }
    for asked, sentence in (
        ({"method": "none"}, "nothing with method 'none'"),
        ({"name": "pie"}, "no figure 'pie'; expected one of reliability"),
        ({"name": "weights", "method": "vanilla"}, "none of the 1 details here has weights"),
    ):
        with pytest.raises(InputError, match=sentence):
            figure(**{"name": "ranking", "results": results, **asked})
    with pytest.raises(InputError, match="one dataset to draw, got 2; choose one: --dataset 'd' or 'e'"):
        figure("ranking", Results((*many(1), Row(dataset="e", method="m", metric="brier", value=1.0))))


@pytest.mark.parametrize(
    ("suffix", "start"),
    [("svg", b"<svg"), ("png", b"\x89PNG"), ("pdf", b"%PDF"), ("json", b"{"), ("html", b"\n<!DOCTYPE")],
)
def test_a_picture_is_written_by_its_suffix(suffix: str, start: bytes, detail: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "new folder" / f"picture.{suffix}"
    assert picture(reliability_of(detail, title=ODD[0]), path) == path
    content = path.read_bytes()
    assert content.lstrip().startswith(start.lstrip())
    assert list(path.parent.iterdir()) == [path], "and nothing beside it"
    if suffix == "json":
        assert json.loads(content)["$schema"].startswith("https://vega.github.io/schema/vega-lite")
    if suffix == "svg":
        assert ElementTree.fromstring(content).attrib["aria-label"].startswith("Reliability diagram of </script>")
    if suffix == "html":
        page = content.decode()
        assert ODD[0] not in page, "a name cannot end the script"
        assert not re.search(r"<(script|link)[^>]+(src|href)=", page), "nothing is fetched"


def test_what_cannot_be_written_leaves_nothing_behind(
    detail: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chart = shares(detail)
    with pytest.raises(InputError, match=r"\.svg, \.png, \.pdf, \.json, \.html, got 'x\.gif'"):
        picture(chart, tmp_path / "x.gif")
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(InputError, match=r"a picture needs more than was installed: pip install 'atta\[report\]'"):
        picture(chart, tmp_path / "x.png")
    assert not list(tmp_path.iterdir())


def test_without_altair_one_sentence_says_so_when_a_figure_is_asked_for() -> None:
    program = (
        "import sys; sys.modules['altair'] = None\n"
        "import atta\n"
        "draw = atta.reliability\n"
        "try:\n    draw(__import__('numpy').eye(2), [0, 1])\n"
        "except atta.InputError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("a figure needs more than was installed: pip install 'atta[report]'")


def test_the_command_writes_a_figure_and_its_help_names_them_all(results: Results, tmp_path: Path) -> None:
    file, picture = results.save(tmp_path / "results.json"), tmp_path / "r.svg"
    asked = ["figure", "reliability", str(file), "-o", str(picture), "--method", "v-atta", "--dark"]
    done = CliRunner().invoke(commands, asked)
    assert done.exit_code == 0, done.output
    assert "v-atta" in picture.read_text(encoding="utf-8")
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
    assert all(name in page for name in FIGURES)


def test_what_each_pass_buys_stands_in_the_way_of_no_other_figure() -> None:
    methods = [Vanilla(), VATTA(optimizer="adam", epochs=3)]
    results = compare({"shop": made_up(200)}, methods, validation=100, cost=True)
    for name in ("reliability", "confidence", "weights", "shares", "per-class", "ranking"):
        assert figure(name, results, method=[] if name == "ranking" else "v-atta").to_dict()
    text = json.dumps(figure("cost", results).to_dict())
    assert '"passes": 2' in text
    assert '"passes": 1' in text


def test_one_set_of_probabilities_is_not_several() -> None:
    with pytest.raises(InputError, match=r"compare_plot takes {name: probs}, got Tensor; for one set, reliability"):
        compare_plot(torch.ones(2, 2) / 2, [0, 1])
