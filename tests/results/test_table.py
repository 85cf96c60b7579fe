"""Tables: cells are means over splits and seeds, the best are marked, no name breaks a line."""

import csv
import io
import itertools
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from atta._base.errors import InputError
from atta.results.rows import Interval, Results, Row
from atta.results.table import Summary, Table, pivot
from scenarios import ROWS, rows


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


TABLE = Results(
    (
        Row(dataset="set", method="mean_tta|x", metric="brier", value=1 / 3),
        Row(dataset="set", method="mean_tta|x", metric="brier", value=0.5, split=1),
        Row(dataset="set", method="v-atta", metric="brier", value=-0.25),
        Row(dataset="set", method="v-atta", metric="50 %", value=2.0),
    )
).pivot(better={"brier": "lower"}, title="CIFAR-10*")


def sure(method: str, low: float, high: float, **columns: Any) -> Interval:
    return Interval(dataset="set", metric="brier", method=method, low=low, high=high, **columns)


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
    low, high = (
        scipy.stats.t.interval(0.95, len(values) - 1, loc=0, scale=error) if error else (0, 0)
    )
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
    table = pivot(
        results,
        where={"metric": ("brier",)},
        better={"brier": "lower"},
        eligible=lambda method: method != "c",
    )
    assert table.best == {(1, 1)}
    assert "| b | **0.2000** |" in table.markdown()


def test_methods_that_look_equal_are_best_together() -> None:
    table = pivot(
        rows(a=[0.20001], b=[0.20002]), where={"metric": ("brier",)}, better={"brier": "lower"}
    )
    assert table.best == {(0, 1), (1, 1)}


def test_higher_is_better_where_it_is() -> None:
    table = pivot(rows(a=[0.3], b=[0.2]), where={"metric": ("brier",)}, better={"brier": "higher"})
    assert table.best == {(0, 1)}


def test_a_missing_number_is_a_dash() -> None:
    table = pivot(rows(a=[0.3]), where={"metric": ("brier", "ece")})
    assert table.cells == (("a", "0.3000", "–"),)


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
            assert (
                i is None
                or head not in table.header
                or table.cells[i][table.header.index(head)] == "–"
            )
            continue
        assert i is not None
        summary = table.numbers[i, table.header.index(head)]
        assert (summary.mean, summary.count) == (pytest.approx(sum(mine) / len(mine)), len(mine))
        assert table.cells[i][table.header.index(head)] == summary.text()
        seen += summary.count
    assert seen == len(kept)


def test_names_come_in_the_order_they_appear_and_joined() -> None:
    results = grid(
        dataset=["c100", "c10"], method=["b", "a"], metric=["nll", "brier"], policy=["", "aug3"]
    )
    table = results.pivot(["method", "policy"], ["dataset", "metric"], title="all")
    assert table.title == "all"
    assert table.header == (
        "method · policy",
        "c100 · nll",
        "c100 · brier",
        "c10 · nll",
        "c10 · brier",
    )
    assert [row[0] for row in table.cells] == ["b", "b · aug3", "a", "a · aug3"]


def test_a_list_in_where_orders_what_it_allows() -> None:
    results = grid(method=["a", "b"], metric=["brier", "ece", "nll"])
    table = results.pivot(where={"metric": ["nll", "none", "brier"], "method": "b"})
    assert table.header == ("method", "nll", "none", "brier")
    assert table.cells == (("b", "5.0000", "–", "3.0000"),)


def test_numbers_over_a_column_say_what_they_count() -> None:
    table = grid(validation=[500, 1000]).pivot(columns=["validation", "metric"])
    assert table.header == ("method", "validation 500 · brier", "validation 1000 · brier")
    assert grid(validation=[500, 1000]).pivot(["validation"]).cells == (
        ("500", "0.0000"),
        ("1000", "1.0000"),
    )


def test_digits_go_by_metric() -> None:
    table = grid(metric=["brier", "changes"]).pivot(digits={"changes": 0})
    assert table.cells == (("a", "0.0000", "1"),)
    assert grid().pivot(digits=1).cells == (("a", "0.0"),)


@pytest.mark.parametrize(
    "column", ["experiment", "dataset", "validation", "policy", "choice", "metric"]
)
def test_a_cell_averages_over_splits_and_seeds_alone(column: str) -> None:
    mixed: list[Any] = [1, 2] if column == "validation" else ["x", "y"]
    results = grid(**{column: mixed}, split=[0, 1], seed=[0, 1])
    others = {"columns": ["dataset"]} if column == "metric" else {}
    with pytest.raises(
        InputError,
        match=rf"would average over {column} \(.*put {column} into rows, columns or where",
    ):
        results.pivot(**others)
    assert results.pivot(["method", column], **others).numbers[0, 1].count == 4
    assert results.pivot(where={column: mixed[0]}, **others).numbers[0, 1].count == 4


def test_no_number_counts_twice() -> None:
    with pytest.raises(InputError, match="the cell a · brier would count split 1, seed 0 twice"):
        Results((*grid(split=[0, 1]), *grid(split=[1]))).pivot()


@pytest.mark.parametrize(
    ("results", "settings", "sentence"),
    [
        (
            grid(),
            {"rows": ["colour"]},
            "there is no column 'colour'.*expected some of experiment, ",
        ),
        (grid(), {"columns": ["value"]}, "there is no column 'value'"),
        (
            grid(),
            {"where": {"metric": "bier"}},
            "no row has metric 'bier'; there are metric 'brier'",
        ),
        (grid(), {"better": {"brier": "smaller"}}, '"lower", "higher" or None, got \'smaller\''),
        (Results(()), {}, "no rows"),
    ],
)
def test_a_pivot_of_nothing_is_refused(
    results: Results, settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        results.pivot(**settings)


def test_the_best_is_sought_among_methods_and_policies_and_not_across_datasets_or_metrics() -> None:
    results = grid(
        dataset=["x", "y"], metric=["brier", "accuracy"], method=["a", "b"]
    )  # the later, the larger
    better = {"brier": "lower", "accuracy": "higher"}
    marked = (
        {"rows": ["dataset", "method"], "columns": ["metric"]},
        {"rows": ["metric"], "columns": ["dataset", "method"]},
    )
    down = results.pivot(**marked[0], better=better)
    assert down.best == {(0, 1), (2, 1), (1, 2), (3, 2)}, (
        "x · a, y · a by brier; x · b, y · b by accuracy"
    )
    across = results.pivot(**marked[1], better=better)
    assert across.best == {(0, 1), (0, 3), (1, 2), (1, 4)}
    policies = grid(policy=["aug1", "aug2"], validation=[10, 20]).pivot(
        ["validation"], ["policy"], better=better
    )
    assert policies.best == {(0, 1), (1, 1)}


def test_what_is_not_a_number_is_never_the_best() -> None:
    results = grid([math.nan, 2.0, 1.0].__getitem__, method=["a", "b", "c"])
    assert results.pivot(better={"brier": "lower"}).best == {(2, 1)}


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


@given(
    st.lists(ROWS, min_size=1, max_size=4, unique_by=lambda row: (row.method, row.metric)),
    st.text(),
)
def test_no_name_breaks_a_table(rows: list[Row], title: str) -> None:
    table = Results(tuple(rows)).pivot(better={row.metric: "lower" for row in rows}, title=title)
    latex = table.latex().split("\n")
    assert len(latex) == len(table.cells) + 6 + bool(title), (
        "a row a line, whatever is in the names"
    )
    body = "\n".join(latex[bool(title) :])
    bare = re.sub(
        r"\\\\$|\\[_%&#${}]|\\[a-zA-Z]+", "", body, flags=re.MULTILINE
    )  # neither escapes nor commands
    assert not set(bare) & set("\\%#_^~±·–"), "nothing special is left"
    assert bare.count("{") == bare.count("}")
    assert not any(line.lstrip().startswith(("[", "*")) for line in body.split("\n")), (
        "options of the \\\\ before"
    )
    assert all(line.count("$") % 2 == 0 for line in bare.split("\n"))
    for line in bare.split("\n")[2:-2]:
        assert not line or line.count("&") == len(table.header) - 1
    for line in table.markdown().split("\n"):
        assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) == len(table.header) + 1
    assert len(table.text().split("\n")) == len(table.cells) + 1 + bool(title)
    again = list(csv.reader(io.StringIO(table.csv(), newline="")))
    assert [line[0] for line in again] == ["method", *(row[0] for row in table.cells)]


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


def test_results_show_themselves_in_a_notebook():
    results = Results(
        tuple(
            Row(dataset=d, method=m, metric="brier", value=0.1)
            for d in ("<a>", "b")
            for m in ("vanilla", "v-atta")
        )
    )
    html = results._repr_html_()
    assert html.count("<tr>") == 5
    assert "&lt;a&gt;" in html
    assert Results(())._repr_html_() == "<p>no results</p>"
