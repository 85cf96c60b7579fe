import json
import math
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atta.results import Results, Row, comparison
from atta.types import InputError


def rows(**values: list[float]) -> Results:
    return Results(
        tuple(
            Row(dataset="set", split=split, method=method, metric="brier", value=value)
            for method, vs in values.items()
            for split, value in enumerate(vs)
        )
    )


NAMES = st.text(max_size=8)
ROWS = st.builds(
    Row,
    experiment=NAMES,
    dataset=NAMES,
    validation=st.integers(),
    split=st.integers(),
    method=NAMES,
    policy=NAMES,
    choice=NAMES,
    seed=st.integers(),
    metric=NAMES,
    value=st.floats(),
)


def written(content: str) -> Results:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "results.json"
        path.write_bytes(content.encode())
        return Results.load(path)


def refuse_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


@given(st.lists(ROWS, max_size=4))
def test_json_gives_back_every_bit_of_every_row(rows: list[Row]) -> None:
    text = Results(tuple(rows), {"limit": math.inf}).to_json()
    json.loads(text, parse_constant=refuse_constant)
    assert repr(written(text).rows) == repr(tuple(rows)), "by repr, which tells -0.0 from 0.0 and finds nan equal"


def test_equal_results_are_equal_bytes(tmp_path: Path) -> None:
    one = Results(rows(a=[0.1]).rows, {"splits": 3, "atta": "1"}).save(tmp_path / "one.json")
    two = Results(rows(a=[0.1]).rows, {"atta": "1", "splits": 3}).save(tmp_path / "two.json")
    assert one.read_bytes() == two.read_bytes() == Results.load(one).save(tmp_path / "three.json").read_bytes()


def test_rows_of_an_older_file_get_the_defaults() -> None:
    old = '{"dataset": "set", "method": "a", "split": 2, "metric": "brier", "value": 1}'
    results = written(f'{{"format": "atta.results", "version": 1, "about": {{}}, "rows": [{old}]}}')
    assert results.rows == (Row(dataset="set", method="a", split=2, metric="brier", value=1.0),)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"value": "a"}, "row 2: expected value to be a number.*got 'a'"),
        ({"value": None}, "row 2: expected value to be a number.*got None"),
        ({"value": True}, "row 2: expected value to be a number.*got True"),
        ({"split": 1.5}, "row 2: expected split to be a whole number, got 1.5"),
        ({"seed": True}, "row 2: expected seed to be a whole number, got True"),
        ({"method": 3}, "row 2: expected method to be text, got 3"),
        ({"colour": "red"}, "row 2: unknown column colour; expected experiment, dataset, "),
    ],
)
def test_a_wrong_row_is_named(change: dict[str, object], sentence: str) -> None:
    content = json.loads(rows(a=[0.1, 0.2, 0.3]).to_json())
    content["rows"][1] |= change
    with pytest.raises(InputError, match=sentence):
        written(json.dumps(content))


def test_many_rows_load_in_a_moment() -> None:
    text = rows(a=[1 / (i + 1) for i in range(20_000)]).to_json()
    start = time.perf_counter()
    assert len(written(text)) == 20_000
    assert time.perf_counter() - start < 5, "a tenth of a second, were the types not checked"


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
        (
            '{"format": "atta.results", "version": 1, "about": {}, "rows": [{"method": "a"}]}',
            "row 1: without dataset, metric, value",
        ),
        ('{"format": "atta.results", "version": 1, "about": {}, "rows": [3]}', "row 1: expected columns"),
        ('{"format": "atta.results", "version": 1, "about": {}}', "is damaged"),
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
