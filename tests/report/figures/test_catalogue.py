"""Figures by name show the selected rows and details."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from atta import VATTA, InputError, Vanilla
from atta.cli.app import commands
from atta.lab.compare import compare
from atta.report.figures.comparison import FIGURES, figure
from atta.results.rows import Results, Row
from scenarios import chart_data as data
from scenarios import made_up, many

pytest.importorskip("altair")
pytest.importorskip("vl_convert")


@pytest.mark.parametrize("name", sorted(set(FIGURES) - {"sizes"}))
def test_every_figure_is_drawn_from_results(name: str, results: Results) -> None:
    assert data(figure(name, results))


def test_a_figure_is_of_the_rows_and_details_that_were_asked_for(results: Results) -> None:
    chart = figure("reliability", results, method="temperature")
    assert chart.to_dict()["title"]["text"] == ["temperature"]
    assert {
        row["method"] for row in data(figure("ranking", results, method=["vanilla", "v-atta"]))
    } == {
        "vanilla",
        "v-atta",
    }
    for asked, sentence in (
        ({"method": "none"}, "nothing with method 'none'"),
        ({"name": "pie"}, "no figure 'pie'; expected one of reliability"),
        ({"name": "weights", "method": "vanilla"}, "none of the 1 details has weights"),
    ):
        with pytest.raises(InputError, match=sentence):
            figure(**{"name": "ranking", "results": results, **asked})
    with pytest.raises(
        InputError, match="one dataset to draw, got 2; choose one: --dataset 'd' or 'e'"
    ):
        figure(
            "ranking", Results((*many(1), Row(dataset="e", method="m", metric="brier", value=1.0)))
        )


def test_what_each_pass_buys_stands_in_the_way_of_no_other_figure() -> None:
    methods = [Vanilla(), VATTA(optimizer="adam", epochs=3)]
    results = compare({"shop": made_up(200)}, methods, validation=100, cost=True)
    for name in ("reliability", "confidence", "weights", "shares", "per-class", "ranking"):
        assert figure(name, results, method=[] if name == "ranking" else "v-atta").to_dict()
    text = json.dumps(figure("cost", results).to_dict())
    assert '"passes": 2' in text
    assert '"passes": 1' in text


def test_the_command_writes_a_figure_and_its_help_names_them_all(
    results: Results, tmp_path: Path
) -> None:
    file, picture = results.save(tmp_path / "results.json"), tmp_path / "r.svg"
    asked = ["figure", "reliability", str(file), "-o", str(picture), "--method", "v-atta", "--dark"]
    done = CliRunner().invoke(commands, asked)
    assert done.exit_code == 0, done.output
    assert "v-atta" in picture.read_text(encoding="utf-8")
    page = (Path(__file__).parents[3] / "docs" / "cli.md").read_text(encoding="utf-8")
    assert all(name in page for name in FIGURES)
