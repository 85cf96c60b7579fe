"""Every chart is valid, has a description, and is safe from the names in a file."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from atta.report.figures.comparison import cost, entropy, ranking, sizes
from atta.report.figures.detail import (
    confidence_histograms,
    diagram,
    per_class,
    shares,
    side_by_side,
    weights,
)
from atta.report.figures.theme import finished, theme
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
    cheap = Row(dataset="d", method="v-atta", policy="aug4", metric="brier", value=0.04)
    return {
        "diagram": lambda: diagram(detail, "v-atta"),
        "side_by_side": lambda: side_by_side({"a": detail, "b": detail}, 2),
        "confidence_histograms": lambda: confidence_histograms(results.details[:2]),
        "weights": lambda: weights(detail, "v-atta"),
        "shares": lambda: shares(detail, "v-atta"),
        "per_class": lambda: per_class(detail, "v-atta"),
        "ranking": lambda: ranking(results),
        "entropy": lambda: entropy(results),
        "sizes": lambda: sizes(Results(tuple(sized))),
        "cost": lambda: cost(Results((cheap,))),
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
def test_a_chart_is_valid_has_a_description_and_is_dark_in_its_config_alone(
    name: str, results: Results, detail: dict[str, Any]
) -> None:
    chart = drawings(results, detail)[name]()
    spec = finished(chart).to_dict()  # which checks the schema of Vega-Lite
    assert len(spec["description"]) > 30
    assert '"tooltip"' in json.dumps(spec, allow_nan=False)
    dark = finished(chart, dark=True).to_dict()
    assert spec.pop("config") == json.loads(json.dumps(theme()))
    assert dark.pop("config") == json.loads(json.dumps(theme(dark=True)))
    assert spec == dark


def test_no_name_from_a_file_becomes_the_name_of_a_field(detail: dict[str, Any]) -> None:
    odd = with_classes(detail, ODD)
    rows = [
        Row(dataset="d", method=name, metric="brier", value=0.1, validation=n)
        for name in ODD[:7]
        for n in (10, 20)
    ]
    ten = [row for row in rows if row.validation == 10]
    charts = {
        "weights": weights(odd, ""),
        "per_class": per_class(odd, ""),
        "ranking": ranking(Results(tuple(ten))),
        "sizes": sizes(Results(tuple(rows))),
        "side_by_side": side_by_side(dict.fromkeys(ODD, detail), 2),
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
