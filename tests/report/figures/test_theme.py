"""Every chart: valid, told in words, the same in light and dark, and safe from the names in a file."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from atta.report.figures.comparison import cost, entropy, ranking, sizes
from atta.report.figures.detail import confidence_histogram, per_class, shares, weights
from atta.report.figures.reliability import reliabilities, reliability_of
from atta.report.figures.theme import theme
from atta.results.rows import Results, Row
from scenarios import chart_data as data
from scenarios import many, with_classes

pytest.importorskip("altair")
pytest.importorskip("vl_convert")


ODD = [
    '</script><script>alert("x")</script>',
    "a.b[0]",
    'it\'s "quoted"',
    "back\\slash",
    "a\nb",
    "",
    "ü → 𝔘",
    "a.b[0]",
]


def drawings(results: Results, detail: dict[str, Any]) -> dict[str, Callable[..., Any]]:
    sized = [row for size in (10, 100) for row in many(2, validation=size)]
    points = [
        {
            "policy": "aug4",
            "passes": 12,
            "method": "v-atta",
            "value": 0.04,
            "low": None,
            "high": None,
        }
    ]
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


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (text for inner in value.values() for text in strings(inner))
    elif isinstance(value, list):
        yield from (text for inner in value for text in strings(inner))
    elif isinstance(value, str):
        yield value


@pytest.mark.parametrize("name", NAMES)
def test_a_chart_is_valid_and_says_what_it_shows(
    name: str, results: Results, detail: dict[str, Any]
) -> None:
    spec = drawings(results, detail)[name]().to_dict()  # which checks the schema of Vega-Lite
    assert len(spec["description"]) > 30
    assert '"tooltip"' in json.dumps(spec, allow_nan=False)
    assert spec["config"]["background"] == "transparent"


@pytest.mark.parametrize("name", NAMES)
def test_dark_differs_from_light_in_the_config_alone(
    name: str, results: Results, detail: dict[str, Any]
) -> None:
    draw = drawings(results, detail)[name]
    light, dark = draw().to_dict(), draw(dark=True).to_dict()
    assert light.pop("config") == json.loads(json.dumps(theme()))
    assert dark.pop("config") == json.loads(json.dumps(theme(dark=True)))
    assert light == dark


@pytest.mark.parametrize(
    "name", ["confidence_histogram", "weights", "shares", "per_class", "ranking", "entropy", "cost"]
)
def test_one_panel_can_fill_its_container(
    name: str, results: Results, detail: dict[str, Any]
) -> None:
    assert drawings(results, detail)[name](width="container").to_dict()["width"] == "container"


def test_no_name_from_a_file_becomes_the_name_of_a_field(detail: dict[str, Any]) -> None:
    odd = with_classes(detail, ODD)
    rows = [
        Row(dataset="d", method=name, metric="brier", value=0.1, validation=n)
        for name in ODD[:7]
        for n in (10, 20)
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
    assert names == {*ODD[:1], "a.b[0] (1)", *ODD[2:7], "a.b[0] (7)"}, (
        "two classes of one name stay two"
    )


def test_without_altair_one_sentence_says_so_when_a_figure_is_asked_for() -> None:
    program = (
        "import sys; sys.modules['altair'] = None\n"
        "import atta\n"
        "draw = atta.reliability\n"
        "try:\n    draw(__import__('numpy').eye(2), [0, 1])\n"
        "except atta.InputError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(
        "a figure needs more than was installed: pip install 'atta[report]'"
    )
