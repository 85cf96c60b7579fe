import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atta.results import Results, Row, comparison
from atta.types import InputError


def rows(**values: list[float]) -> Results:
    return Results(
        tuple(
            Row("set", method, split, "brier", value) for method, vs in values.items() for split, value in enumerate(vs)
        )
    )


@given(st.lists(st.floats(allow_nan=False), min_size=1, max_size=5))
def test_json_gives_back_every_bit(values: list[float]) -> None:
    results = rows(a=values)
    again = [Row(**row) for row in json.loads(results.to_json())["rows"]]
    assert again == list(results)


def test_a_file_holds_rows_and_what_is_known_of_the_run(tmp_path: Path) -> None:
    results = Results(rows(a=[0.1]).rows, {"splits": 3})
    loaded = Results.load(results.save(tmp_path / "deep" / "results.json"))
    assert loaded == results
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["results.json"], (
        "no half-written file is left behind"
    )


def test_the_summary_is_the_mean_and_the_sample_deviation() -> None:
    summary = rows(a=[1.0, 2.0, 4.0]).summary(method="a")
    assert summary is not None
    assert summary.mean == pytest.approx(7 / 3)
    assert summary.deviation == pytest.approx(math.sqrt(7 / 3))
    assert summary.text(2) == "2.33 ± 1.53"


def test_one_split_has_no_deviation() -> None:
    summary = rows(a=[1.0]).summary(method="a")
    assert summary is not None
    assert summary.deviation is None
    assert summary.text() == "1.0000"


def test_no_rows_have_no_summary() -> None:
    assert rows(a=[1.0]).summary(method="b") is None


def test_the_best_of_a_column_is_marked_among_eligible_methods() -> None:
    results = rows(a=[0.3], b=[0.2], c=[0.1])
    table = comparison(
        results, "set", metrics=["brier"], better={"brier": "lower"}, eligible=lambda method: method != "c"
    )
    assert table.best == {(1, 1)}
    assert "| b | **0.2000** |" in table.markdown()


def test_methods_that_look_equal_are_best_together() -> None:
    table = comparison(rows(a=[0.20001], b=[0.20002]), "set", metrics=["brier"], better={"brier": "lower"})
    assert table.best == {(0, 1), (1, 1)}


def test_higher_is_better_where_it_is() -> None:
    table = comparison(rows(a=[0.3], b=[0.2]), "set", metrics=["brier"], better={"brier": "higher"})
    assert table.best == {(0, 1)}


def test_a_missing_number_is_a_dash() -> None:
    table = comparison(rows(a=[0.3]), "set", metrics=["brier", "ece"], better={})
    assert table.cells == (("a", "0.3000", "–"),)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{", "not a whole JSON file"),
        ("[]", "does not hold results"),
        ('{"format": "other"}', "does not hold results"),
        ('{"format": "atta.results", "version": 99}', "reads up to 1"),
        ('{"format": "atta.results", "version": 1, "about": {}, "rows": [{"method": "a"}]}', "is damaged"),
    ],
)
def test_other_files_are_refused_with_a_sentence(tmp_path: Path, content: str, sentence: str) -> None:
    path = tmp_path / "results.json"
    path.write_text(content)
    with pytest.raises(InputError, match=sentence):
        Results.load(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no file"):
        Results.load(tmp_path / "none.json")
