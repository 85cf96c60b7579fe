"""Tables for people: rows laid out, a summary in each cell, as text, Markdown, CSV or LaTeX.

pivot(results, rows=["method"], columns=["dataset", "metric"])  →  Table  →  text, Markdown, CSV, LaTeX
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from statistics import fmean, stdev
from typing import Any

from atta._base.errors import InputError
from atta._base.html import html_table
from atta.results.contenders import baselines, bounds, contender, judged
from atta.results.rows import (
    COLUMNS,
    COUNTED,
    Key,
    Results,
    Row,
    check_columns,
    csv_text,
    one_of,
    values_of,
)

REPEATS = ("split", "seed")  # the columns a summary may average over
SETTINGS = tuple(name for name in COLUMNS if name not in (*REPEATS, "value"))
CONTENDERS = {
    "method",
    "policy",
    "choice",
}  # what is compared; the other settings are what it is compared on
NOTHING = "–"  # what a table shows where there is nothing
MARKS = {1: "✓", 0: " ", -1: "✗"}
Cell = tuple[int, int]


@dataclass(frozen=True)
class Summary:
    """A number over several rows: its mean and, from two rows on, how far to trust it."""

    mean: float
    deviation: float | None
    """The sample standard deviation."""
    interval: float | None
    """Half the width of the 95 % Student-t interval of the mean: t(0.975, count - 1) · deviation / √count."""
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Summary:
        """Summarise at least one value; what nan or ±inf leave undefined is nan."""
        count = len(values)
        try:
            mean = fmean(values)
            deviation = None if count < 2 else stdev(values) if math.isfinite(mean) else math.nan
        except (OverflowError, ValueError):  # inf - inf, or beyond the largest float
            mean, deviation = sum(values) / count, math.nan if count > 1 else None
        interval = (
            None if deviation is None else _t_quantile(count - 1) * deviation / math.sqrt(count)
        )
        return cls(mean, deviation, interval, count)

    def text(self, digits: int = 4) -> str:
        """Write it as a table shows it: mean ± interval."""
        spread = "" if self.interval is None else f" ± {self.interval:.{digits}f}"
        return f"{self.mean:.{digits}f}{spread}"


@cache
def _t_quantile(freedom: int) -> float:
    from scipy.special import stdtrit  # here, as `atta --help` must not wait for it

    return float(stdtrit(freedom, 0.975))


@dataclass(frozen=True)
class Table:
    """Cells for people: a header, rows of text, and which cells are the best of their column.

    `numbers` are the summaries behind the texts, by row and column of `cells`: files for machines are written from these.
    `sure` are the cells that are surely better (1) or worse (-1) than `against`, which people see as ✓ and ✗.
    """

    title: str
    header: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]
    best: frozenset[tuple[int, int]] = frozenset()
    numbers: Mapping[tuple[int, int], Summary] = field(default_factory=dict, hash=False)
    sure: Mapping[tuple[int, int], int] = field(default_factory=dict, hash=False)
    against: str = ""

    @property
    def legend(self) -> str:
        """What ±, ✓ and ✗ say, of those that are there."""
        spread = any(number.interval is not None for number in self.numbers.values())
        said = (
            "± is half the 95 % interval of the mean over the splits (Student's t)."
            if spread
            else ""
        )
        if not self.sure:
            return said
        marks = f"✓ surely better, ✗ surely worse than {self.against} on the same test images:"
        return f"{said} {marks} the 95 % bootstrap interval of the difference excludes 0.".lstrip()

    def shown(self, i: int, j: int) -> str:
        """The text of a cell and, if it is surely better or worse, its mark; the others of its column leave room for it."""
        if all(column != j for _, column in self.sure):
            return self.cells[i][j]
        return f"{self.cells[i][j]} {MARKS[self.sure.get((i, j), 0)]}"

    def is_numeric(self, column: int) -> bool:
        """Tell whether a column holds numbers, and dashes for those that are missing, and belongs to the right."""
        return column > 0 and all(_is_number(row[column]) for row in self.cells)

    def _repr_html_(self) -> str:
        """Write it for a notebook."""
        rows = (
            [self.shown(i, j) + "*" * ((i, j) in self.best) for j in range(len(row))]
            for i, row in enumerate(self.cells)
        )
        return html_table(self.header, rows, title=self.title, note=self.legend)

    def text(self) -> str:
        """Write it as plain aligned columns, the best marked by a star."""
        starred = {j for _, j in self.best}
        shown = (
            tuple(self.shown(i, j) for j in range(len(row))) for i, row in enumerate(self.cells)
        )
        lines = [
            [
                _line(cell) + ("*" if (i, j) in self.best else " " if j in starred else "")
                for j, cell in enumerate(row)
            ]
            for i, row in enumerate((self.header, *shown), start=-1)
        ]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        numeric = [self.is_numeric(j) for j in range(len(self.header))]
        aligned = [
            "  ".join(
                cell.rjust(w) if right else cell.ljust(w)
                for cell, w, right in zip(line, widths, numeric, strict=True)
            )
            for line in lines
        ]
        return "\n".join(
            line.rstrip() for line in ([_line(self.title)] if self.title else []) + aligned
        )

    def markdown(self) -> str:
        """Write it as a Markdown table, the best in bold."""
        lines = [tuple(map(_markdown, self.header)), ("---",) * len(self.header)]
        for i, row in enumerate(self.cells):
            texts = (_markdown(self.shown(i, j)).rstrip() for j in range(len(row)))
            lines.append(
                tuple(
                    f"**{text}**" if (i, j) in self.best else text for j, text in enumerate(texts)
                )
            )
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)

    def csv(self) -> str:
        """Write it as CSV with every digit: the mean of each number and, where there is one, its interval beside it.

        What is missing is empty. Columns without numbers are written as they are.
        """
        columns = range(len(self.header))
        counted = {j for _, j in self.numbers}
        spread = {j for (_, j), number in self.numbers.items() if number.interval is not None}
        lines: list[list[Any]] = [
            [
                text
                for j in columns
                for text in (self.header[j], f"{self.header[j]} interval")[: 1 + (j in spread)]
            ]
        ]
        for i, row in enumerate(self.cells):
            line: list[Any] = []
            for j in columns:
                number = self.numbers.get((i, j))
                line.append(number.mean if number else None if j in counted else row[j])
                if j in spread:
                    line.append(number.interval if number else None)
            lines.append(line)
        return csv_text(lines)

    def latex(self) -> str:
        r"""Write it as a tabular for LaTeX with \usepackage{booktabs}, the best in bold, the title as a comment."""
        numeric = [self.is_numeric(j) for j in range(len(self.header))]
        lines = [
            *([f"% {_line(self.title)}"] if self.title else []),
            rf"\begin{{tabular}}{{{''.join('r' if right else 'l' for right in numeric)}}}",
            r"\toprule",
            _latex_line([_latex(name) for name in self.header]),
            r"\midrule",
        ]
        for i, row in enumerate(self.cells):
            texts = [_latex(cell, numeric=right) for cell, right in zip(row, numeric, strict=True)]
            lines.append(
                _latex_line(
                    [
                        rf"\textbf{{{text}}}" if (i, j) in self.best else text
                        for j, text in enumerate(texts)
                    ]
                )
            )
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])


def _line(text: str) -> str:
    return " ".join(text.splitlines())


def _is_number(cell: str) -> bool:
    try:
        float(cell.split(" ± ")[0])
    except ValueError:
        return cell == NOTHING
    return True


MARKDOWN = str.maketrans({character: f"\\{character}" for character in r"\|*`<"})
LATEX = str.maketrans(
    {character: f"\\{character}" for character in "_%&#${}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}
    | {"±": r"$\pm$", "·": r"$\cdot$", "×": r"$\times$", "−": "$-$", "–": "--", "—": "---"}
)


def _markdown(text: str) -> str:
    return _line(text).translate(MARKDOWN)


def _latex(text: str, *, numeric: bool = False) -> str:
    text = _line(text).translate(LATEX)
    return text.replace("-", "$-$") if numeric and text != "--" else text


def _latex_line(cells: Sequence[str]) -> str:
    # The \\ of the line before would take a bracket or star for its own.
    guard = "{}" if cells[0].lstrip().startswith(("[", "*")) else ""
    return guard + " & ".join(cells) + r" \\"


# --- Laying out -------------------------------------------------------------------------------------------------------


def pivot(
    results: Results,
    rows: Sequence[str] = ("method",),
    columns: Sequence[str] = ("metric",),
    *,
    where: Mapping[str, Any] | None = None,
    digits: int | Mapping[str, int] = 4,
    better: Mapping[str, str | None] | None = None,
    eligible: Callable[[str], bool] = lambda method: True,
    baseline: str = "",
    title: str = "",
) -> Table:
    """Lay out a table: a line for each value of `rows`, a column for each value of `columns`, a summary in each cell.

    A cell summarises splits and seeds and nothing else: where it would mix two policies, say, it is refused. Names come
    in the order they first appear; a list in `where` orders what it allows and, if it is all of an axis, is shown whole.

    `better` says of a metric whether "lower" or "higher" wins; the best among `eligible` methods are marked, in each
    column where methods or policies are rows, else in each row, and never across datasets or metrics. `digits` are
    those after the point, for all metrics or by metric. Cells that are surely better or worse than `baseline`, by the
    interval of their difference, are marked; where there is no such method, the first one takes its place.
    """
    rows, columns = ((axis,) if isinstance(axis, str) else tuple(axis) for axis in (rows, columns))
    where, better = dict(where or {}), dict(better or {})
    check_columns([*rows, *columns, *where], besides="value")
    if wrong := set(better.values()) - {"lower", "higher", None}:
        raise InputError(f'better is "lower", "higher" or None, got {", ".join(map(repr, wrong))}')
    here = results.where(**where)
    if not here.rows:
        raise InputError(_nothing(results, where))

    layout = _Layout.of(here, rows, columns, where)
    numbers = {
        cell: Summary.of([row.value for row in group]) for cell, group in layout.groups.items()
    }
    texts = [[name, *(NOTHING for _ in layout.header)] for name in layout.names]
    shown: dict[Cell, float] = {}
    for (i, j), summary in numbers.items():
        metric = layout.groups[i, j][0].metric
        places = digits if isinstance(digits, int) else digits.get(metric, 4)
        texts[i][j] = summary.text(places)
        shown[i, j] = round(summary.mean, places)
    sure, against = _sure(here, layout, better, baseline) if baseline else ({}, "")
    head = (" · ".join(rows), *layout.header)
    best = _best(layout, shown, better, eligible)
    return Table(title, head, tuple(map(tuple, texts)), best, numbers, sure, against)


@dataclass(frozen=True)
class _Layout:
    """The rows by cell, and what the lines and columns are called."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    names: list[str]
    header: list[str]
    groups: dict[Cell, list[Row]]

    @classmethod
    def of(
        cls,
        results: Results,
        rows: tuple[str, ...],
        columns: tuple[str, ...],
        where: Mapping[str, Any],
    ) -> _Layout:
        found: dict[tuple[Key, Key], list[Row]] = {}
        for row in results:
            found.setdefault((values_of(row, rows), values_of(row, columns)), []).append(row)
        lines = _axis(rows, [line for line, _ in found], where)
        heads = _axis(columns, [head for _, head in found], where)
        names = [_joined(map(str, line)) for line in lines]
        header = [_joined(_counted(columns, head)) for head in heads]
        places = {
            (line, head): (i, j) for i, line in enumerate(lines) for j, head in enumerate(heads, 1)
        }
        groups = {place: found[key] for key, place in places.items() if key in found}
        for (i, j), group in groups.items():
            _check_cell(group, f"{names[i]} · {header[j - 1]}")
        return cls(rows, columns, names, header, groups)


def _best(
    layout: _Layout,
    means: Mapping[Cell, float],
    better: Mapping[str, str | None],
    eligible: Callable[[str], bool],
) -> frozenset[Cell]:
    """The best of every race: cells of one metric that differ in the method or policy alone, as they are shown."""
    by_line = bool(CONTENDERS & set(layout.rows))
    others = [
        name for name in (layout.rows if by_line else layout.columns) if name not in CONTENDERS
    ]
    races: dict[Key, dict[Cell, float]] = {}
    for (i, j), group in layout.groups.items():
        one = group[0]
        if better.get(one.metric) and eligible(one.method) and not math.isnan(means[i, j]):
            race = (one.metric, j if by_line else i, values_of(one, others))
            races.setdefault(race, {})[i, j] = means[i, j]
    best: set[Cell] = set()
    for (metric, *_), run in races.items():
        top = max(run.values()) if better[metric] == "higher" else min(run.values())
        if len(run) > 1:
            best |= {cell for cell, mean in run.items() if mean == top}
    return frozenset(best)


def _sure(
    results: Results, layout: _Layout, better: Mapping[str, str | None], baseline: str
) -> tuple[dict[Cell, int], str]:
    """The cells that are surely better or worse than the baseline, and what that is called."""
    known, base, sure = bounds(results.intervals), baselines(results, baseline), dict[Cell, int]()
    for cell, group in layout.groups.items():
        key, metric = contender(group[0]), group[0].metric
        between = known.get((key, base[key.setting], metric))
        if between and (found := judged(*between, better.get(metric))):
            sure[cell] = found
    return sure, _joined(dict.fromkeys(key.method for key in base.values())) if sure else ""


def _joined(parts: Iterable[str]) -> str:
    return " · ".join(filter(None, parts)) or NOTHING


def _counted(columns: Sequence[str], key: Key) -> list[str]:
    """Name the numbers of a key: over a column of a table nothing else says that 1000 is that of validation images."""
    return [
        f"{name} {part}" if name in COUNTED else part
        for name, part in zip(columns, key, strict=True)
    ]


def _axis(columns: Sequence[str], found: Iterable[Key], where: Mapping[str, Any]) -> list[Key]:
    """Order the keys of an axis level by level: as `where` lists them, or as they first appear."""
    keys = dict.fromkeys(found)
    listed = [
        where[name] if isinstance(where.get(name), (list, tuple)) else None for name in columns
    ]
    if len(listed) == 1 and listed[0] is not None:
        return [(value,) for value in dict.fromkeys(listed[0])]
    levels = [dict.fromkeys(listed[n] or (key[n] for key in keys)) for n in range(len(columns))]
    ranks = [{value: rank for rank, value in enumerate(level)} for level in levels]
    return sorted(keys, key=lambda key: [rank[part] for rank, part in zip(ranks, key, strict=True)])


def _check_cell(group: Sequence[Row], cell: str) -> None:
    """Refuse to average over anything but splits and seeds, and to count a number twice."""
    found = {name: list(dict.fromkeys(getattr(row, name) for row in group)) for name in SETTINGS}
    if mixed := [name for name, values in found.items() if len(values) > 1]:
        listing = ", ".join(f"{name} ({_some(found[name])})" for name in mixed)
        raise InputError(
            f"the cell {cell} would average over {listing}: put {' and '.join(mixed)} into rows, columns or where"
        )
    seen: set[Key] = set()
    for row in group:
        repeat = values_of(row, REPEATS)
        if repeat in seen:
            raise InputError(
                f"the cell {cell} would count split {row.split}, seed {row.seed} twice: expected it once"
            )
        seen.add(repeat)


def _some(values: Sequence[Any]) -> str:
    return ", ".join(map(repr, values[:8])) + (", ..." if len(values) > 8 else "")


def _nothing(results: Results, where: Mapping[str, Any]) -> str:
    """Say why no row is left."""
    if not results.rows:
        return "there are no rows to lay out"
    for name, value in where.items():
        if not results.where(**{name: value}).rows:
            wanted = " or ".join(map(repr, one_of(value)))
            return f"no row has {name} {wanted}; there are {_some(results.names(name))}"
    return f"no row has all of {', '.join(f'{name} {value!r}' for name, value in where.items())}"
