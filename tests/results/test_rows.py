import csv
import io
import itertools
import json
import math
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from atta.results.contenders import bounds, judged
from atta.results.rows import Interval, Results, Row
from atta.results.table import Summary, Table, comparison
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


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=30))
def test_the_interval_is_that_of_student(values: list[float]) -> None:
    summary = Summary.of(values)
    assert summary.mean == pytest.approx(sum(values) / len(values), abs=1e-9)
    error = scipy.stats.sem(values)
    low, high = scipy.stats.t.interval(0.95, len(values) - 1, loc=0, scale=error) if error else (0, 0)
    assert summary.interval == pytest.approx((high - low) / 2, rel=1e-9, abs=1e-9)


def test_a_number_is_written_as_mean_and_interval() -> None:
    assert Summary.of([1.0, 2.0, 4.0]).text(2) == "2.33 ± 3.79"


@given(st.lists(st.floats(), min_size=1, max_size=4))
def test_no_float_is_too_odd_to_summarise(values: list[float]) -> None:
    summary = Summary.of(values)
    assert summary.count == len(values)
    assert math.isnan(summary.mean) or not any(map(math.isnan, values))
    assert (summary.interval is None) == (len(values) == 1)


def test_one_split_has_neither_deviation_nor_interval() -> None:
    summary = rows(a=[1.0]).summary(method="a")
    assert summary is not None
    assert (summary.deviation, summary.interval) == (None, None)
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


# --- Pivots ------------------------------------------------------------------------------------------------------------


def grid(value: Callable[[int], float] = float, **columns: list[Any]) -> Results:
    """Every combination of the columns, the last one fastest, each with the value of its number."""
    names = {"dataset": ["set"], "method": ["a"], "metric": ["brier"]} | columns
    combinations = itertools.product(*names.values())
    return Results(
        tuple(Row(**dict(zip(names, values, strict=True)), value=value(i)) for i, values in enumerate(combinations))
    )


@given(st.data())
def test_a_cell_is_the_mean_by_hand(data: st.DataObject) -> None:
    draw = data.draw(st.lists(st.floats(0, 1), min_size=48, max_size=48))
    everything = grid(
        draw.__getitem__,
        dataset=["c10", "c100"],
        method=["a", "b"],
        metric=["brier", "ece"],
        split=[0, 1, 2],
        seed=[0, 1],
    ).rows
    kept = data.draw(st.lists(st.sampled_from(everything), unique=True, min_size=1))
    axes = data.draw(st.permutations(["dataset", "method", "metric"]))
    cut = data.draw(st.integers(1, 2))
    table = Results(tuple(kept)).pivot(axes[:cut], axes[cut:])
    lines = {row[0]: i for i, row in enumerate(table.cells)}
    seen = 0
    for values in itertools.product(["c10", "c100"], ["a", "b"], ["brier", "ece"]):
        names = dict(zip(["dataset", "method", "metric"], values, strict=True))
        i = lines.get(" · ".join(names[name] for name in axes[:cut]))
        head = " · ".join(names[name] for name in axes[cut:])
        mine = [row.value for row in kept if (row.dataset, row.method, row.metric) == values]
        if not mine:
            assert i is None or head not in table.header or table.cells[i][table.header.index(head)] == "–"
            continue
        assert i is not None
        summary = table.numbers[i, table.header.index(head)]
        assert (summary.mean, summary.count) == (pytest.approx(sum(mine) / len(mine)), len(mine))
        assert table.cells[i][table.header.index(head)] == summary.text()
        seen += summary.count
    assert seen == len(kept)


def test_names_come_in_the_order_they_appear_and_joined() -> None:
    results = grid(dataset=["c100", "c10"], method=["b", "a"], metric=["nll", "brier"], policy=["", "aug3"])
    table = results.pivot(["method", "policy"], ["dataset", "metric"], title="all")
    assert table.title == "all"
    assert table.header == ("method · policy", "c100 · nll", "c100 · brier", "c10 · nll", "c10 · brier")
    assert [row[0] for row in table.cells] == ["b", "b · aug3", "a", "a · aug3"]


def test_a_list_in_where_orders_what_it_allows() -> None:
    results = grid(method=["a", "b"], metric=["brier", "ece", "nll"])
    table = results.pivot(where={"metric": ["nll", "none", "brier"], "method": "b"})
    assert table.header == ("method", "nll", "none", "brier")
    assert table.cells == (("b", "5.0000", "–", "3.0000"),)


def test_numbers_over_a_column_say_what_they_count() -> None:
    table = grid(validation=[500, 1000]).pivot(columns=["validation", "metric"])
    assert table.header == ("method", "validation 500 · brier", "validation 1000 · brier")
    assert grid(validation=[500, 1000]).pivot(["validation"]).cells == (("500", "0.0000"), ("1000", "1.0000"))


def test_digits_go_by_metric() -> None:
    table = grid(metric=["brier", "changes"]).pivot(digits={"changes": 0})
    assert table.cells == (("a", "0.0000", "1"),)
    assert grid().pivot(digits=1).cells == (("a", "0.0"),)


@pytest.mark.parametrize("column", ["experiment", "dataset", "validation", "policy", "choice", "metric"])
def test_a_cell_averages_over_splits_and_seeds_alone(column: str) -> None:
    mixed: list[Any] = [1, 2] if column == "validation" else ["x", "y"]
    results = grid(**{column: mixed}, split=[0, 1], seed=[0, 1])
    others = {"columns": ["dataset"]} if column == "metric" else {}
    with pytest.raises(InputError, match=rf"would average over {column} \(.*put {column} into rows, columns or where"):
        results.pivot(**others)
    assert results.pivot(["method", column], **others).numbers[0, 1].count == 4
    assert results.pivot(where={column: mixed[0]}, **others).numbers[0, 1].count == 4


def test_no_number_counts_twice() -> None:
    with pytest.raises(InputError, match="the cell a · brier would count split 1, seed 0 twice"):
        Results((*grid(split=[0, 1]), *grid(split=[1]))).pivot()


@pytest.mark.parametrize(
    ("results", "settings", "sentence"),
    [
        (grid(), {"rows": ["colour"]}, "there is no column 'colour'.*expected some of experiment, "),
        (grid(), {"columns": ["value"]}, "there is no column 'value'"),
        (grid(), {"where": {"metric": "bier"}}, "no row has metric 'bier'; there are 'brier'"),
        (grid(), {"better": {"brier": "smaller"}}, '"lower", "higher" or None, got \'smaller\''),
        (Results(()), {}, "no rows"),
    ],
)
def test_a_pivot_of_nothing_is_refused(results: Results, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        results.pivot(**settings)


def test_the_best_is_sought_among_methods_and_policies_and_not_across_datasets_or_metrics() -> None:
    results = grid(dataset=["x", "y"], metric=["brier", "accuracy"], method=["a", "b"])  # the later, the larger
    better = {"brier": "lower", "accuracy": "higher"}
    marked = (
        {"rows": ["dataset", "method"], "columns": ["metric"]},
        {"rows": ["metric"], "columns": ["dataset", "method"]},
    )
    down = results.pivot(**marked[0], better=better)
    assert down.best == {(0, 1), (2, 1), (1, 2), (3, 2)}, "x · a, y · a by brier; x · b, y · b by accuracy"
    across = results.pivot(**marked[1], better=better)
    assert across.best == {(0, 1), (0, 3), (1, 2), (1, 4)}
    policies = grid(policy=["aug1", "aug2"], validation=[10, 20]).pivot(["validation"], ["policy"], better=better)
    assert policies.best == {(0, 1), (1, 1)}


def test_what_is_not_a_number_is_never_the_best() -> None:
    results = grid([math.nan, 2.0, 1.0].__getitem__, method=["a", "b", "c"])
    assert results.pivot(better={"brier": "lower"}).best == {(2, 1)}


# --- Writing -----------------------------------------------------------------------------------------------------------

TABLE = Results(
    (
        Row(dataset="set", method="mean_tta|x", metric="brier", value=1 / 3),
        Row(dataset="set", method="mean_tta|x", metric="brier", value=0.5, split=1),
        Row(dataset="set", method="v-atta", metric="brier", value=-0.25),
        Row(dataset="set", method="v-atta", metric="50 %", value=2.0),
    )
).pivot(better={"brier": "lower"}, title="CIFAR-10*")


def test_text_is_aligned() -> None:
    assert TABLE.text().splitlines() == [
        "CIFAR-10*",
        "method                brier     50 %",
        "mean_tta|x  0.4167 ± 1.0589        –",
        "v-atta              -0.2500*  2.0000",
    ]


def test_markdown_escapes_what_would_end_a_cell() -> None:
    assert TABLE.markdown().splitlines()[2:] == [
        "| mean_tta\\|x | 0.4167 ± 1.0589 | – |",
        "| v-atta | **-0.2500** | 2.0000 |",
    ]


def test_csv_of_a_table_has_every_digit() -> None:
    interval = TABLE.numbers[0, 1].interval
    assert list(csv.reader(io.StringIO(TABLE.csv()))) == [
        ["method", "brier", "brier interval", "50 %"],
        ["mean_tta|x", repr((1 / 3 + 0.5) / 2), repr(interval), ""],
        ["v-atta", "-0.25", "", "2.0"],
    ]


def test_csv_of_a_table_of_words_is_the_words() -> None:
    assert Table("Methods", ("name", "what"), (("a", "b, c"),)).csv() == 'name,what\na,"b, c"\n'


def test_latex_is_a_tabular_with_booktabs() -> None:
    assert TABLE.latex().splitlines() == [
        "% CIFAR-10*",
        r"\begin{tabular}{lrr}",
        r"\toprule",
        r"method & brier & 50 \% \\",
        r"\midrule",
        r"mean\_tta\textbar{}x & 0.4167 $\pm$ 1.0589 & -- \\",
        r"v-atta & \textbf{$-$0.2500} & 2.0000 \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


@given(st.lists(ROWS, min_size=1, max_size=4, unique_by=lambda row: (row.method, row.metric)), st.text())
def test_no_name_breaks_a_table(rows: list[Row], title: str) -> None:
    table = Results(tuple(rows)).pivot(better={row.metric: "lower" for row in rows}, title=title)
    latex = table.latex().split("\n")
    assert len(latex) == len(table.cells) + 6 + bool(title), "a row a line, whatever is in the names"
    body = "\n".join(latex[bool(title) :])
    bare = re.sub(r"\\\\$|\\[_%&#${}]|\\[a-zA-Z]+", "", body, flags=re.MULTILINE)  # neither escapes nor commands
    assert not set(bare) & set("\\%#_^~±·–"), "nothing special is left"
    assert bare.count("{") == bare.count("}")
    assert not any(line.lstrip().startswith(("[", "*")) for line in body.split("\n")), "options of the \\\\ before"
    assert all(line.count("$") % 2 == 0 for line in bare.split("\n"))
    for line in bare.split("\n")[2:-2]:
        assert not line or line.count("&") == len(table.header) - 1
    for line in table.markdown().split("\n"):
        assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) == len(table.header) + 1
    assert len(table.text().split("\n")) == len(table.cells) + 1 + bool(title)
    again = list(csv.reader(io.StringIO(table.csv(), newline="")))
    assert [line[0] for line in again] == ["method", *(row[0] for row in table.cells)]


@given(st.lists(ROWS, max_size=4))
def test_csv_gives_back_every_bit_of_every_row(rows: list[Row]) -> None:
    lines = list(csv.DictReader(io.StringIO(Results(tuple(rows)).csv(), newline="")))
    kinds = {"validation": int, "split": int, "seed": int, "value": float}
    again = [Row(**{name: kinds.get(name, str)(text) for name, text in line.items()}) for line in lines]
    assert repr(again) == repr(rows)


# --- Together ----------------------------------------------------------------------------------------------------------

ABOUTS = st.dictionaries(st.sampled_from(["atta", "seed"]), st.integers(0, 1))


@given(ABOUTS, ABOUTS, ABOUTS)
def test_adding_results_loses_nothing_in_any_order_of_brackets(
    a: dict[str, int], b: dict[str, int], c: dict[str, int]
) -> None:
    x, y, z = (Results(grid(method=[name]).rows, about) for name, about in [("x", a), ("y", b), ("z", c)])
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


# --- Files -------------------------------------------------------------------------------------------------------------


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


# ---- intervals


def sure(method: str, low: float, high: float, **columns: Any) -> Interval:
    return Interval(dataset="set", metric="brier", method=method, low=low, high=high, **columns)


ODD = st.floats() | st.sampled_from([math.nan, math.inf, -math.inf, -0.0, 5e-324])


@given(st.lists(st.builds(sure, st.text(), ODD, ODD, against=st.text(), validation=st.integers(0, 9)), max_size=3))
def test_json_gives_back_every_bit_of_every_interval(intervals: list[Interval]) -> None:
    again = written(Results((), {}, (), tuple(intervals)).to_json()).intervals
    assert [repr(vars(one)) for one in again] == [repr(vars(one)) for one in intervals]


def test_a_file_without_intervals_has_none_and_a_wrong_one_is_named() -> None:
    content = json.loads(Results(rows(a=[0.1]).rows, {}, (), (sure("a", 0.0, 0.2),)).to_json())
    content["intervals"][0]["low"] = "zero"
    with pytest.raises(InputError, match=r"interval 1: expected low to be a number.*got 'zero'"):
        written(json.dumps(content))
    del content["intervals"]
    assert written(json.dumps(content)).intervals == ()


def test_intervals_go_with_their_rows_and_those_of_all_splits_are_none_of_some() -> None:
    both = (sure("a", 0.0, 0.2), sure("b", 0.1, 0.3), sure("b", 0.05, 0.1, against="a"))
    results = Results(rows(a=[0.1, 0.1], b=[0.2, 0.2]).rows, {}, (), both)
    assert results.where(method="b").intervals == (both[1],)
    assert results.where(method=["a", "b"]).intervals == both
    assert results.where(split=0).intervals == ()
    assert (results + results).intervals == both + both


def test_a_difference_can_be_looked_up_in_both_directions() -> None:
    results = Results((), {}, (), (sure("b", 0.05, 0.1, against="a"), sure("a", 0.0, 0.2)))
    (a, b) = (("", "set", 0, name, "", "") for name in "ab")
    assert bounds(results.intervals) == {
        (b, a, "brier"): (0.05, 0.1),
        (a, b, "brier"): (-0.1, -0.05),
        (a, None, "brier"): (0, 0.2),
    }


@pytest.mark.parametrize(
    ("low", "high", "better", "found"),
    [
        (-0.2, -0.1, "lower", 1),
        (0.1, 0.2, "lower", -1),
        (0.1, 0.2, "higher", 1),
        (-0.2, -0.1, "higher", -1),
        (-0.1, 0.1, "lower", 0),
        (0.0, 0.1, "lower", 0),
        (0.0, 0.0, "lower", 0),
        (0.1, 0.2, None, None),
        (math.nan, 0.2, "lower", None),
    ],
)
def test_only_an_interval_that_excludes_0_is_sure(
    low: float, high: float, better: str | None, found: int | None
) -> None:
    assert judged(low, high, better) == found


def test_sure_differences_to_the_baseline_are_marked_and_the_others_not() -> None:
    against = (
        sure("a", -0.2, -0.1, against="base"),
        sure("b", -0.2, 0.1, against="base"),
        sure("base", -0.2, -0.1, against="c"),  # the other way round: c is worse
    )
    results = Results(rows(a=[0.1], base=[0.3], b=[0.2], c=[0.5]).rows, {}, (), against)
    table = results.pivot(better={"brier": "lower"}, baseline="base")
    assert dict(table.sure) == {(0, 1): 1, (3, 1): -1}
    assert [line.split()[1:] for line in table.text().splitlines()[1:]] == [
        ["0.1000", "✓*"],
        ["0.3000"],
        ["0.2000"],
        ["0.5000", "✗"],
    ]
    assert "| **0.1000 ✓** |" in table.markdown()
    assert "than base on the same test images" in table.legend
    assert table.is_numeric(1)
    assert not results.pivot(better={"brier": "lower"}).sure
    assert not results.pivot(better={}, baseline="base").sure


def test_new_names_are_those_of_rows_and_of_both_sides_of_an_interval() -> None:
    results = Results(rows(a=[0.1], b=[0.2]).rows, {}, (), (sure("b", 0.05, 0.1, against="a", against_policy="flip"),))
    renamed = results.renamed(lambda one: (f"{one.method} {one.policy}".strip(), "", ""))
    (one,) = renamed.intervals
    assert (one.method, one.against, one.against_policy) == ("b", "a flip", "")
    assert renamed.names("method") == ["a", "b"]
