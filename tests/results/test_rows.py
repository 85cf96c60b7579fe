"""Rows, and results in and out of their file, to the last bit."""

import csv
import io
import itertools
import json
import math
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atta._base.errors import InputError
from atta.results.rows import Interval, Results, Row
from atta.results.words import relabelled
from scenarios import ROWS, rows


def written(content: str) -> Results:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "results.json"
        path.write_bytes(content.encode())
        return Results.load(path)


def refuse_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def grid(value: Callable[[int], float] = float, **columns: list[Any]) -> Results:
    """Every combination of the columns, the last one fastest, each with the value of its number."""
    names = {"dataset": ["set"], "method": ["a"], "metric": ["brier"]} | columns
    combinations = itertools.product(*names.values())
    return Results(
        tuple(
            Row(**dict(zip(names, values, strict=True)), value=value(i))
            for i, values in enumerate(combinations)
        )
    )


ABOUTS = st.dictionaries(st.sampled_from(["atta", "seed"]), st.integers(0, 1))


def sure(method: str, low: float, high: float, **columns: Any) -> Interval:
    return Interval(dataset="set", metric="brier", method=method, low=low, high=high, **columns)


ODD = st.floats() | st.sampled_from([math.nan, math.inf, -math.inf, -0.0, 5e-324])


@given(st.lists(ROWS, max_size=4))
def test_json_gives_back_every_bit_of_every_row(rows: list[Row]) -> None:
    text = Results(tuple(rows), {"limit": math.inf}).to_json()
    json.loads(text, parse_constant=refuse_constant)
    assert repr(written(text).rows) == repr(tuple(rows)), (
        "by repr, which tells -0.0 from 0.0 and finds nan equal"
    )


def test_equal_results_are_equal_bytes(tmp_path: Path) -> None:
    one = Results(rows(a=[0.1]).rows, {"splits": 3, "atta": "1"}).save(tmp_path / "one.json")
    two = Results(rows(a=[0.1]).rows, {"atta": "1", "splits": 3}).save(tmp_path / "two.json")
    assert (
        one.read_bytes()
        == two.read_bytes()
        == Results.load(one).save(tmp_path / "three.json").read_bytes()
    )


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
        ({"colour": "red"}, "row 2: expected the columns experiment, dataset, .* got .*, colour"),
    ],
)
def test_a_wrong_row_is_named(change: dict[str, object], sentence: str) -> None:
    content = json.loads(rows(a=[0.1, 0.2, 0.3]).to_json())
    content["rows"][1] |= change
    with pytest.raises(InputError, match=sentence):
        written(json.dumps(content))


def test_a_file_holds_rows_and_what_is_known_of_the_run(tmp_path: Path) -> None:
    results = Results(rows(a=[0.1]).rows, {"splits": 3})
    loaded = Results.load(results.save(tmp_path / "deep" / "results.json"))
    assert loaded == results
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["results.json"], (
        "no half-written file is left behind"
    )


@given(st.lists(ROWS, max_size=4))
def test_csv_gives_back_every_bit_of_every_row(rows: list[Row]) -> None:
    lines = list(csv.DictReader(io.StringIO(Results(tuple(rows)).csv(), newline="")))
    kinds = {"validation": int, "split": int, "seed": int, "value": float}
    again = [
        Row(**{name: kinds.get(name, str)(text) for name, text in line.items()}) for line in lines
    ]
    assert repr(again) == repr(rows)


@given(ABOUTS, ABOUTS, ABOUTS)
def test_adding_results_loses_nothing_in_any_order_of_brackets(
    a: dict[str, int], b: dict[str, int], c: dict[str, int]
) -> None:
    x, y, z = (
        Results(grid(method=[name]).rows, about) for name, about in [("x", a), ("y", b), ("z", c)]
    )
    assert (x + y) + z == x + (y + z)
    assert (x + y + z).names("method") == ["x", "y", "z"]
    about = (x + y + z).about
    runs = about.get("runs", [about])
    assert all(part in runs for part in (a, b, c) if part)
    assert x + Results(()) == Results(()) + x == x


def test_what_is_known_of_two_runs_is_kept_apart() -> None:
    one, two = Results((), {"splits": 3, "atta": "1"}), Results((), {"splits": 10, "atta": "1"})
    assert (one + two).about == {"runs": [{"splits": 3, "atta": "1"}, {"splits": 10, "atta": "1"}]}
    assert (one + one).about == one.about


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{", "not a whole JSON file .*: expected results, as `--json FILE` of `atta compare`"),
        ("[]", "does not hold results"),
        ('{"format": "other"}', "does not hold results"),
        ('{"format": "atta.results", "version": 99}', "reads up to 1"),
        (
            '{"format": "atta.results", "version": 1, "about": {}, "rows": [{"method": "a"}]}',
            "row 1: .* at least dataset, method, metric, value, got method",
        ),
        (
            '{"format": "atta.results", "version": 1, "about": {}, "rows": [3]}',
            "row 1: expected the columns .* got 3",
        ),
        ('{"format": "atta.results", "version": 1, "about": {}}', "is damaged"),
    ],
)
def test_other_files_are_refused_with_a_sentence(
    tmp_path: Path, content: str, sentence: str
) -> None:
    path = tmp_path / "results.json"
    path.write_text(content)
    with pytest.raises(InputError, match=sentence):
        Results.load(path)


def test_no_flipped_bit_changes_results_unnoticed() -> None:
    results = Results(
        rows(a=[0.1, 1 / 3]).rows,
        {"atta": "1", 3: [1.0]},
        ({"bins": [1, 2]},),
        (sure("a", 0.0, 0.2),),
    )
    whole = results.to_json().encode()
    assert written(whole.decode()).rows == results.rows
    for place in range(0, 8 * len(whole), 5):
        spoiled = bytearray(whole)
        spoiled[place // 8] ^= 1 << place % 8
        with suppress(InputError), tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "results.json"
            path.write_bytes(spoiled)
            assert Results.load(path).to_json().encode() == whole, "another way to write the same"


def test_another_layout_is_the_same_and_another_number_is_not() -> None:
    results = Results(rows(a=[0.1]).rows, {"atta": "1"})
    content = json.loads(results.to_json())
    assert written(json.dumps(dict(reversed(content.items())), indent=4)) == results
    content["rows"][0]["value"] = 0.2
    for lacks in ("", "hash", "digest"):
        with pytest.raises(InputError, match="was changed after it was saved"):
            written(json.dumps({key: value for key, value in content.items() if key != lacks}))
    old = {key: value for key, value in content.items() if key not in ("hash", "digest")}
    assert written(json.dumps(old)).rows[0].value == 0.2, "of an earlier version"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no file"):
        Results.load(tmp_path / "none.json")


@given(
    st.lists(
        st.builds(sure, st.text(), ODD, ODD, against=st.text(), validation=st.integers(0, 9)),
        max_size=3,
    )
)
def test_json_gives_back_every_bit_of_every_interval(intervals: list[Interval]) -> None:
    again = written(Results((), {}, (), tuple(intervals)).to_json()).intervals
    assert [repr(vars(one)) for one in again] == [repr(vars(one)) for one in intervals]


def test_a_file_without_intervals_has_none_and_a_wrong_one_is_named() -> None:
    content = json.loads(Results(rows(a=[0.1]).rows, {}, (), (sure("a", 0.0, 0.2),)).to_json())
    content["intervals"][0]["low"] = "zero"
    with pytest.raises(InputError, match=r"interval 1: expected low to be a number.*got 'zero'"):
        written(json.dumps(content))
    del content["intervals"], content["hash"], content["digest"]
    assert written(json.dumps(content)).intervals == ()


def test_intervals_go_with_their_rows_and_those_of_all_splits_are_none_of_some() -> None:
    both = (sure("a", 0.0, 0.2), sure("b", 0.1, 0.3), sure("b", 0.05, 0.1, against="a"))
    results = Results(rows(a=[0.1, 0.1], b=[0.2, 0.2]).rows, {}, (), both)
    assert results.where(method="b").intervals == (both[1],)
    assert results.where(method=["a", "b"]).intervals == both
    assert results.where(split=0).intervals == ()
    assert (results + results).intervals == both + both


def test_new_names_are_those_of_rows_and_of_both_sides_of_an_interval() -> None:
    flip, crop = (
        replace(row, policy=p) for row, p in zip(rows(a=[0.1, 0.2]), ("flip", "crop"), strict=True)
    )
    results = Results(
        (flip, crop, *rows(b=[0.2])),
        {},
        (),
        (sure("b", 0.05, 0.1, against="a", against_policy="flip"),),
    )
    renamed = relabelled(results)
    (one,) = renamed.intervals
    assert (one.method, one.against, one.against_policy) == ("b", "a · flip", "")
    assert renamed.names("method") == ["a · flip", "a · crop", "b"]
    assert renamed.names("policy") == [""]
