"""Lay out rows as tables of text, with a summary in each cell: text, Markdown, CSV, LaTeX, HTML.

pivot(results, rows=["method"], columns=["dataset", "metric"])  →  Table
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any, TypeAlias

from atta._base.display import html_table
from atta._base.errors import InputError
from atta.results.rows import (
    COLUMNS,
    COUNTED,
    Key,
    Results,
    Row,
    check_columns,
    csv_text,
    values_of,
)
from atta.results.words import baselines, bounds, contender, judged

SETTINGS = tuple(name for name in COLUMNS if name not in ("split", "seed", "value"))
CONTENDERS = {"method", "policy", "choice"}  # what is compared
NOTHING = "–"  # the text of an empty cell
MARKS = {1: "✓", 0: " ", -1: "✗"}
Cell = tuple[int, int]


@dataclass(frozen=True)
class Summary:
    """The mean of several numbers, with its deviation and interval if there are at least two.

    Attributes:
        mean: The mean.
        deviation: The sample standard deviation.
        interval: Half the width of the mean's 95 % Student-t interval,
            t(0.975, count - 1) · deviation / √count.
        count: How many numbers there are.
    """

    mean: float
    deviation: float | None
    interval: float | None
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Summary:
        """Summarise at least one value; what nan or ±inf leave undefined is nan."""
        count = len(values)
        try:
            mean = fmean(values)
            deviation = stdev(values) if count > 1 and math.isfinite(mean) else math.nan
        except (OverflowError, ValueError):  # inf - inf, or beyond the largest float
            mean, deviation = sum(values) / count, math.nan
        if count == 1:
            return cls(mean, None, None, count)
        from scipy.special import stdtrit  # here, as `atta --help` must not wait for it

        quantile = float(stdtrit(count - 1, 0.975))
        return cls(mean, deviation, quantile * deviation / math.sqrt(count), count)

    @property
    def ends(self) -> tuple[float, float] | None:
        """The ends of the interval, if there is one."""
        half = self.interval
        return None if half is None else (self.mean - half, self.mean + half)

    def text(self, digits: int = 4) -> str:
        """Return mean ± interval with so many digits after the point."""
        spread = "" if self.interval is None else f" ± {self.interval:.{digits}f}"
        return f"{self.mean:.{digits}f}{spread}"


@dataclass(frozen=True)
class Table:
    """A table for people: a header and rows of text, with the best cells marked.

    Args:
        title: Stands above the table; may be empty.
        header: The names of the columns.
        cells: The rows of text.
        best: The best cells of each race, by row and column of `cells`.
        numbers: The summaries behind the texts; files for machines are written from them.
        sure: Cells that are significantly better (1, ✓) or worse (-1, ✗) than `against`.
        against: What the marked cells are compared with.
    """

    title: str
    header: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]
    best: frozenset[Cell] = frozenset()
    numbers: Mapping[Cell, Summary] = field(default_factory=dict)
    sure: Mapping[Cell, int] = field(default_factory=dict)
    against: str = ""

    @property
    def legend(self) -> str:
        """Explain ±, ✓ and ✗, as far as the table has them."""
        said = []
        if any(number.interval is not None for number in self.numbers.values()):
            said.append("± is half the 95 % interval of the mean over the splits (Student's t).")
        if self.sure:
            said.append(
                f"✓ significantly better, ✗ worse than {self.against} on the same test images: "
                "the 95 % bootstrap interval of the difference excludes 0."
            )
        return " ".join(said)

    def shown(self, i: int, j: int) -> str:
        """Return the text of a cell and its mark; columns with marks leave room for them."""
        if all(column != j for _, column in self.sure):
            return self.cells[i][j]
        return f"{self.cells[i][j]} {MARKS[self.sure.get((i, j), 0)]}"

    def is_numeric(self, column: int) -> bool:
        """Return whether a column holds only numbers and dashes, and is aligned to the right."""
        cells = {row[column].split(" ± ")[0] for row in self.cells} - {NOTHING}
        try:
            return column > 0 and all(float(cell) is not None for cell in cells)
        except ValueError:
            return False

    def _rows(self, write: Callable[[int, int], str], best: str) -> list[list[str]]:
        """Return the cells as `write` writes them, the best ones in the format `best`."""
        return [
            [(best if (i, j) in self.best else "{}").format(write(i, j)) for j in range(len(row))]
            for i, row in enumerate(self.cells)
        ]

    def _repr_html_(self) -> str:
        """Return the table for notebooks, the best marked by a star."""
        rows = self._rows(self.shown, "{}*")
        return html_table(self.header, rows, title=self.title, note=self.legend)

    def text(self) -> str:
        """Return plain aligned columns, the best marked by a star."""
        starred = {j for _, j in self.best}
        columns = []
        rows = self._rows(self.shown, "{}*")
        for j, column in enumerate(zip(self.header, *rows, strict=True)):
            cells = list(map(_line, column))
            if j in starred:  # the numbers stay below each other
                cells = [c if (i, j) in self.best else f"{c} " for i, c in enumerate(cells, -1)]
            align = str.rjust if self.is_numeric(j) else str.ljust
            columns.append([align(cell, max(map(len, cells))) for cell in cells])
        lines = ["  ".join(line).rstrip() for line in zip(*columns, strict=True)]
        return "\n".join([_line(self.title).rstrip(), *lines] if self.title else lines)

    def markdown(self) -> str:
        """Return a Markdown table, the best in bold."""
        rows = self._rows(lambda i, j: _markdown(self.shown(i, j)).rstrip(), "**{}**")
        lines = [list(map(_markdown, self.header)), ["---"] * len(self.header), *rows]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)

    def csv(self) -> str:
        """Return CSV with every digit: each mean and, if there is one, its interval after it.

        Missing numbers are empty. Columns without numbers are written as they are.
        """
        columns: list[list[Any]] = []
        for j, (name, *texts) in enumerate(zip(self.header, *self.cells, strict=True)):
            numbers = [self.numbers.get((i, j)) for i in range(len(texts))]
            if not any(numbers):
                columns.append([name, *texts])
                continue
            columns.append([name, *(number and number.mean for number in numbers)])
            spread = [number and number.interval for number in numbers]
            if any(interval is not None for interval in spread):
                columns.append([f"{name} interval", *spread])
        return csv_text(zip(*columns, strict=True))

    def latex(self) -> str:
        r"""Return a tabular for LaTeX with \usepackage{booktabs}, the best in bold."""
        numeric = [self.is_numeric(j) for j in range(len(self.header))]
        rows = self._rows(
            lambda i, j: _latex(self.cells[i][j], numeric=numeric[j]), r"\textbf{{{}}}"
        )
        lines = [
            *([f"% {_line(self.title)}"] if self.title else []),
            rf"\begin{{tabular}}{{{''.join('r' if right else 'l' for right in numeric)}}}",
            r"\toprule",
            _latex_line([_latex(name) for name in self.header]),
            r"\midrule",
            *map(_latex_line, rows),
            r"\bottomrule",
            r"\end{tabular}",
        ]
        return "\n".join(lines)


def _line(text: str) -> str:
    return " ".join(text.splitlines())


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
    # A bracket or star would become an option of the \\ before it.
    guard = "{}" if cells[0].lstrip().startswith(("[", "*")) else ""
    return guard + " & ".join(cells) + r" \\"


# --- Layout ---------------------------------------------------------------------------------


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
    """Lay out a table with a summary in each cell, over splits and seeds only.

    Args:
        results: The rows to lay out.
        rows: The columns whose values become lines.
        columns: The columns whose values become columns.
        where: Allowed values by column; a list also sets the order of an axis.
        digits: Digits after the point, for all metrics or by metric.
        better: "lower", "higher" or None by metric; the best methods and policies are marked.
        eligible: Which methods may be marked as the best.
        baseline: Mark cells that differ significantly from this method, or else the first one.
        title: The title of the table.

    Raises:
        InputError: A column is unknown, no row is left, or a cell would mix two policies, say.
    """
    rows, columns = ((axis,) if isinstance(axis, str) else tuple(axis) for axis in (rows, columns))
    where, better = dict(where or {}), dict(better or {})
    check_columns([*rows, *columns, *where], besides="value")
    if wrong := set(better.values()) - {"lower", "higher", None}:
        raise InputError(f'better is "lower", "higher" or None, got {", ".join(map(repr, wrong))}')
    here = results.where(**where)
    if not here.rows:
        raise InputError(_why_empty(results, where))
    names, header, groups = _lay_out(here, rows, columns, where)
    numbers = {cell: Summary.of([row.value for row in group]) for cell, group in groups.items()}
    texts = [[name, *(NOTHING for _ in header)] for name in names]
    shown: dict[Cell, float] = {}
    for (i, j), summary in numbers.items():
        metric = groups[i, j][0].metric
        places = digits if isinstance(digits, int) else digits.get(metric, 4)
        texts[i][j] = summary.text(places)
        shown[i, j] = round(summary.mean, places)
    best = _best(groups, rows, columns, shown, better, eligible)
    sure, against = _significant(here, groups, better, baseline) if baseline else ({}, "")
    head = (" · ".join(rows), *header)
    return Table(title, head, tuple(map(tuple, texts)), best, numbers, sure, against)


Groups: TypeAlias = dict[Cell, list[Row]]


def _lay_out(
    results: Results, rows: Sequence[str], columns: Sequence[str], where: Mapping[str, Any]
) -> tuple[list[str], list[str], Groups]:
    """Return the names of the lines and of the columns, and the rows of each cell."""
    found: dict[tuple[Key, Key], list[Row]] = {}
    for row in results:
        found.setdefault((values_of(row, rows), values_of(row, columns)), []).append(row)
    lines = _axis(rows, [line for line, _ in found], where)
    heads = _axis(columns, [head for _, head in found], where)
    names = [_joined(map(str, line)) for line in lines]
    # A bare 1000 above a column would not say that it is the number of validation images.
    header = [
        _joined(
            f"{name} {part}" if name in COUNTED else part
            for name, part in zip(columns, head, strict=True)
        )
        for head in heads
    ]
    groups = {}
    for (line, head), group in found.items():
        i, j = lines.index(line), heads.index(head)
        _check_cell(group, f"{names[i]} · {header[j]}")
        groups[i, j + 1] = group
    return names, header, groups


def _axis(columns: Sequence[str], found: Iterable[Key], where: Mapping[str, Any]) -> list[Key]:
    """Order the keys of an axis level by level: as `where` lists them, or as they first appear."""
    keys = list(dict.fromkeys(found))
    levels = []
    for name, there in zip(columns, zip(*keys, strict=True), strict=True):
        listed = where.get(name)
        levels.append(list(dict.fromkeys(listed if isinstance(listed, list | tuple) else there)))
    if len(levels) == 1:  # also what was not found
        return [(value,) for value in levels[0]]
    return sorted(keys, key=lambda key: list(map(list.index, levels, key)))


def _best(
    groups: Groups,
    rows: Sequence[str],
    columns: Sequence[str],
    means: Mapping[Cell, float],
    better: Mapping[str, str | None],
    eligible: Callable[[str], bool],
) -> frozenset[Cell]:
    """Return the best of every race: cells of one metric that differ in method or policy alone."""
    by_line = bool(CONTENDERS & set(rows))
    others = [name for name in (rows if by_line else columns) if name not in CONTENDERS]
    races: dict[Key, dict[Cell, float]] = {}
    for cell, (one, *_) in groups.items():
        if better.get(one.metric) and eligible(one.method) and not math.isnan(means[cell]):
            race = races.setdefault((one.metric, cell[by_line], values_of(one, others)), {})
            race[cell] = means[cell] * (-1 if better[one.metric] == "higher" else 1)
    return frozenset(
        cell
        for race in races.values()
        for cell, mean in race.items()
        if len(race) > 1 and mean == min(race.values())
    )


def _significant(
    results: Results, groups: Groups, better: Mapping[str, str | None], baseline: str
) -> tuple[dict[Cell, int], str]:
    """Return the cells significantly better or worse than the baseline, and its name."""
    known, base, found = bounds(results.intervals), baselines(results, baseline), dict[Cell, int]()
    for cell, (one, *_) in groups.items():
        key = contender(one)
        between = known.get((key, base[key.setting], one.metric))
        if between and (sign := judged(*between, better.get(one.metric))):
            found[cell] = sign
    return found, _joined(dict.fromkeys(key.method for key in base.values())) if found else ""


def _joined(parts: Iterable[str]) -> str:
    return " · ".join(filter(None, parts)) or NOTHING


def _check_cell(group: Sequence[Row], cell: str) -> None:
    """Refuse to average over anything but splits and seeds, and to count a number twice."""
    found = {name: list(dict.fromkeys(getattr(row, name) for row in group)) for name in SETTINGS}
    if mixed := [name for name, values in found.items() if len(values) > 1]:
        listing = ", ".join(f"{name} ({_some(found[name])})" for name in mixed)
        raise InputError(
            f"the cell {cell} would average over {listing}: "
            f"put {' and '.join(mixed)} into rows, columns or where"
        )
    ((split, seed), times), *_ = Counter((row.split, row.seed) for row in group).most_common(1)
    if times > 1:
        raise InputError(
            f"the cell {cell} would count split {split}, seed {seed} twice: expected it once"
        )


def _some(values: Sequence[Any]) -> str:
    return ", ".join(map(repr, values[:8])) + (", ..." if len(values) > 8 else "")


def _why_empty(results: Results, where: Mapping[str, Any]) -> str:
    """Say why no row is left."""
    if not results.rows:
        return "there are no rows to lay out"
    asked = " and ".join(f"{name} {value!r}" for name, value in where.items())
    there = "; ".join(f"{name} {_some(results.names(name))}" for name in where)
    return f"no row has {asked}; there are {there}"
