"""Results as tidy rows: one number each, with everything that says what it is. JSON in and out, tables for people.

    Results((Row(dataset="cifar10", method="v-atta", metric="brier", value=0.0402), ...))  →  results.json
            └► pivot(rows=["method"], columns=["dataset", "metric"])  →  Table  →  text, Markdown, CSV, LaTeX

Nothing here knows torch.
"""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from types import SimpleNamespace
from typing import Any, TypeAlias, TypeVar

from atta.errors import InputError
from atta.files import whole_file

FORMAT = "atta.results"
FORMAT_VERSION = 1


@dataclass(frozen=True, order=True, kw_only=True)
class Row:
    """One measured number, and everything that says what it is."""

    experiment: str = ""
    dataset: str
    validation: int = 0
    """Images fitted on; 0 where that is not known."""
    split: int = 0
    method: str
    policy: str = ""
    """The name of the policy of views; "" where the method uses none."""
    choice: str = ""
    """The rule by which the policy was chosen; "" where it was given."""
    seed: int = 0
    metric: str
    value: float


@dataclass(frozen=True, order=True, kw_only=True)
class Interval:
    """The 95 % interval of a mean over the splits, or of its difference to another's on the same images (`atta.resampling`).

    It says what other test images would have changed. The columns are those of a row; the policy is "" where a rule chose
    it, as it may have chosen another one in every split.
    """

    experiment: str = ""
    dataset: str
    validation: int = 0
    method: str
    policy: str = ""
    choice: str = ""
    metric: str
    against: str = ""
    """The method that the difference is taken to; "" where it is the number itself."""
    against_policy: str = ""
    against_choice: str = ""
    low: float
    high: float

    @property
    def other(self) -> Interval:
        """The same with what it is taken to in the place of the method."""
        return replace(self, method=self.against, policy=self.against_policy, choice=self.against_choice)


COLUMNS = tuple(column.name for column in fields(Row))
REPEATS = ("split", "seed")  # the columns a summary may average over
SETTINGS = tuple(name for name in COLUMNS if name not in (*REPEATS, "value"))
CONTENDERS = {"method", "policy", "choice"}  # what is compared; the other settings are what it is compared on
WHOLE = {"validation", "split", "seed"}
BOUNDS = ("value", "low", "high")
NOTHING = "–"  # what a table shows where there is nothing
MARKS = {1: "✓", 0: " ", -1: "✗"}
Key: TypeAlias = tuple[Any, ...]
NOT_IN_JSON = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}  # no numbers to JSON: written as these strings


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
        interval = None if deviation is None else _t_quantile(count - 1) * deviation / math.sqrt(count)
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
class Results:
    """Rows, and what is known about the run that made them (versions, settings, files)."""

    rows: tuple[Row, ...]
    about: Mapping[str, Any] = field(default_factory=dict)
    details: tuple[Mapping[str, Any], ...] = ()
    """What a report shows besides: for a method on a dataset, its bins, weights and so on (`atta.details`)."""
    intervals: tuple[Interval, ...] = ()
    """How sure the means and the differences between methods are; each difference once, in one of its two directions."""

    def __post_init__(self) -> None:
        for name in ("rows", "details", "intervals"):
            object.__setattr__(self, name, tuple(getattr(self, name)))

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __add__(self, other: Results) -> Results:
        """Join the rows. What is known of different runs stays apart, as `about["runs"]`: nothing is overwritten."""
        runs: list[Mapping[str, Any]] = []
        for about in (*_runs(self.about), *_runs(other.about)):
            if about not in runs:
                runs.append(about)
        about = {"runs": runs} if len(runs) > 1 else dict(*runs)
        both = ((*getattr(self, name), *getattr(other, name)) for name in ("rows", "details", "intervals"))
        rows, details, intervals = both
        return Results(rows, about, details, intervals)

    def names(self, column: str) -> list[Any]:
        """Return the different values of a column, in the order they first appear."""
        _check_columns([column])
        return list(dict.fromkeys(getattr(row, column) for row in self.rows))

    def where(self, **columns: Any) -> Results:
        """Return the rows whose columns have these values; a list or tuple allows each of its values.

        Intervals go with their rows. Those of a mean over all splits are none of some splits.
        """
        _check_columns(columns)
        allowed = {name: _allowed(value) for name, value in columns.items()}

        def kept(one: Row | Interval) -> bool:
            return all(getattr(one, name, None) in allowed[name] for name in allowed)

        intervals = (i for i in self.intervals if kept(i) and (not i.against or kept(i.other)))
        return Results(tuple(filter(kept, self.rows)), self.about, self.details, tuple(intervals))

    def renamed(self, name: Callable[[Row | Interval], tuple[str, str, str]]) -> Results:
        """The rows and their intervals under other names: those of the method, the policy and the choice."""

        def under(one: Any) -> Any:
            return replace(one, **dict(zip(("method", "policy", "choice"), name(one), strict=True)))

        intervals = []
        for one in map(under, self.intervals):
            against = name(one.other) if one.against else ("", "", "")
            intervals.append(
                replace(one, **dict(zip(("against", "against_policy", "against_choice"), against, strict=True)))
            )
        return Results(tuple(map(under, self.rows)), self.about, self.details, tuple(intervals))

    def bounds(self) -> dict[tuple[Key, Key | None, str], tuple[float, float]]:
        """Low and high by contender, what it is compared with (None for the number itself) and metric; both directions."""
        found: dict[tuple[Key, Key | None, str], tuple[float, float]] = {}
        for one in self.intervals:
            mine, theirs = contender(one), contender(one.other) if one.against else None
            found[mine, theirs, one.metric] = one.low, one.high
            if theirs is not None:
                found[theirs, mine, one.metric] = -one.high, -one.low
        return found

    def summary(self, **columns: Any) -> Summary | None:
        """Summarise the rows with these values, or return None if there are none; for many cells at once, `pivot`."""
        values = [row.value for row in self.where(**columns)]
        return Summary.of(values) if values else None

    def baselines(self, method: str) -> dict[Key, Key]:
        """What differences are taken to, by experiment, dataset and validation: that method, or else the first one."""
        found: dict[Key, Key] = {}
        for row in sorted(self.rows, key=lambda row: row.method != method):  # the order stays as it is otherwise
            found.setdefault(_setting(row), contender(row))
        return found

    def pivot(
        self,
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
        _check_columns([*rows, *columns, *where], besides="value")
        if wrong := set(better.values()) - {"lower", "higher", None}:
            raise InputError(f'better is "lower", "higher" or None, got {", ".join(map(repr, wrong))}')
        here = self.where(**where)
        if not here.rows:
            raise InputError(_nothing(self, where))

        groups: dict[tuple[Key, Key], list[Row]] = {}
        for row in here.rows:
            groups.setdefault((_key(row, rows), _key(row, columns)), []).append(row)
        lines = _axis(rows, [line for line, _ in groups], where)
        heads = _axis(columns, [head for _, head in groups], where)
        names = [_label(map(str, line)) for line in lines]
        header = [_label(_named(columns, head)) for head in heads]

        numbers: dict[tuple[int, int], Summary] = {}
        sure: dict[tuple[int, int], int] = {}
        bounds = here.bounds() if baseline else {}
        base = here.baselines(baseline)
        texts = [[name, *(NOTHING for _ in heads)] for name in names]
        races: dict[tuple[Any, ...], dict[tuple[int, int], float]] = {}
        contending = rows if CONTENDERS & set(rows) else columns
        for i, line in enumerate(lines):
            for j, head in enumerate(heads):
                group = groups.get((line, head))
                if group is None:
                    continue
                _check_cell(group, f"{names[i]} · {header[j]}")
                cell, one = (i, j + 1), group[0]
                numbers[cell] = summary = Summary.of([row.value for row in group])
                places = digits if isinstance(digits, int) else digits.get(one.metric, 4)
                texts[i][j + 1] = summary.text(places)
                between = bounds.get((contender(one), base.get(_setting(one)), one.metric))
                if between and (found := judged(*between, better.get(one.metric))):
                    sure[cell] = found
                if better.get(one.metric) and eligible(one.method) and not math.isnan(summary.mean):
                    shared = _key(one, [name for name in contending if name not in CONTENDERS])
                    race = (one.metric, head if contending is rows else line, shared)
                    races.setdefault(race, {})[cell] = round(summary.mean, places)
        best: set[tuple[int, int]] = set()
        for (metric, *_), means in races.items():
            top = max(means.values()) if better[metric] == "higher" else min(means.values())
            if len(means) > 1:
                best |= {cell for cell, mean in means.items() if mean == top}
        against = _label(dict.fromkeys(key[3] for key in base.values())) if sure else ""
        head = (" · ".join(rows), *header)
        return Table(title, head, tuple(map(tuple, texts)), frozenset(best), numbers, sure, against)

    def csv(self) -> str:
        """Write the rows as CSV, a number a line, under the names of the columns; floats keep their last bit."""
        return _csv([COLUMNS, *(_key(row, COLUMNS) for row in self.rows)])

    def to_json(self) -> str:
        """Write everything as JSON, a row a line; floats keep their last bit, equal results make equal text.

        JSON has no numbers for nan and ±inf: these are written as the strings "nan", "inf" and "-inf".
        """
        rows, intervals = (",\n".join(_json(vars(one)) for one in those) for those in (self.rows, self.intervals))
        about = json.dumps(_finite(self.about), indent=1, ensure_ascii=False, sort_keys=True, allow_nan=False)
        details = ",\n".join(_json(detail) for detail in self.details)
        head = f'"format": "{FORMAT}",\n"version": {FORMAT_VERSION},\n"about": {about},\n'
        return f'{{\n{head}"details": [\n{details}\n],\n"rows": [\n{rows}\n],\n"intervals": [\n{intervals}\n]\n}}\n'

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write a JSON file, whole or not at all."""
        with whole_file(path) as part:
            part.write_text(self.to_json(), encoding="utf-8", newline="\n")
        return Path(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Results:
        """Read what `save` wrote."""
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise InputError(f"there is no file {path}") from None
        except (OSError, ValueError) as error:
            raise InputError(f"{path} is not a whole JSON file ({error})") from None
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise InputError(f"{path} does not hold results: expected format {FORMAT!r}")
        version = content.get("version", 0)
        if not isinstance(version, int) or version > FORMAT_VERSION:
            raise InputError(f"{path} has version {version}, this atta reads up to {FORMAT_VERSION}")
        rows, about, details = content.get("rows"), content.get("about", {}), content.get("details", [])
        intervals = content.get("intervals", [])  # which older files do not have
        if not (isinstance(rows, list) and isinstance(details, list) and isinstance(intervals, list)) or not isinstance(
            about, dict
        ):
            raise InputError(f"{path} is damaged: expected a list of rows and what is known about them")
        return cls(
            tuple(_read(Row, row, f"{path}, row {i}") for i, row in enumerate(rows, 1)),
            about,
            tuple(details),
            tuple(_read(Interval, one, f"{path}, interval {i}") for i, one in enumerate(intervals, 1)),
        )


def contender(one: Row | Interval) -> Key:
    """What is compared, and on what: a policy that a rule chose may differ from split to split, and is none of its own."""
    return *_setting(one), one.method, "" if one.choice else one.policy, one.choice


def _setting(one: Row | Interval) -> Key:
    return one.experiment, one.dataset, one.validation


def judged(low: float, high: float, better: str | None) -> int | None:
    """1 or -1 for a difference whose interval excludes 0, better or worse; 0 if it does not; None if neither is better."""
    if better is None or not (math.isfinite(low) and math.isfinite(high)):
        return None
    if low <= 0 <= high:
        return 0
    return 1 if (high < 0) == (better == "lower") else -1


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)


def _json(value: Any) -> str:
    try:
        return _ENCODER.encode(value)
    except ValueError:  # nan or ±inf, somewhere: seldom, and looking for it takes longer than writing
        return _ENCODER.encode(_finite(value))


def _finite(value: Any) -> Any:
    """Write nan and ±inf as text, however deep they lie."""
    if isinstance(value, Mapping):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


_Read = TypeVar("_Read", Row, Interval)


_NEEDED: dict[type, dict[str, bool]] = {
    form: {column.name: column.default is MISSING for column in fields(form)} for form in (Row, Interval)
}


def _read(form: type[_Read], content: Any, place: str) -> _Read:
    """Check a row or an interval at the door; `place` is what a refusal calls it."""
    columns = _NEEDED[form]
    if not isinstance(content, dict):
        raise InputError(f"{place}: expected columns and their values, got {content!r}")
    if unknown := [name for name in content if name not in columns]:
        raise InputError(f"{place}: unknown column {', '.join(unknown)}; expected {', '.join(columns)}")
    if missing := [name for name, needed in columns.items() if needed and name not in content]:
        raise InputError(f"{place}: without {', '.join(missing)}")
    values = {}
    for name, value in content.items():
        kind = type(value)  # exactly: True is no number of images
        if name in BOUNDS:
            if kind is str and value in NOT_IN_JSON:
                value = NOT_IN_JSON[value]
            elif kind is int and abs(value) < 2**1023:
                value = float(value)
            elif kind is not float:
                raise InputError(f'{place}: expected {name} to be a number, "nan", "inf" or "-inf", got {value!r}')
        elif kind is not (expected := int if name in WHOLE else str):
            what = "a whole number" if expected is int else "text"
            raise InputError(f"{place}: expected {name} to be {what}, got {value!r}")
        values[name] = value
    return form(**values)


def _check_columns(names: Iterable[str], *, besides: str = "") -> None:
    known = [name for name in COLUMNS if name != besides]
    for name in names:
        if name not in known:
            raise InputError(f"there is no column {name!r} to go by; expected some of {', '.join(known)}")


def _allowed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else (value,)


def _runs(about: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Take apart what `+` put together."""
    if not about:
        return ()
    return about["runs"] if about.keys() == {"runs"} else (about,)


def _key(row: Row, columns: Sequence[str]) -> Key:
    return tuple(getattr(row, name) for name in columns)


def _label(parts: Iterable[str]) -> str:
    return " · ".join(filter(None, parts)) or NOTHING


def _named(columns: Sequence[str], key: Key) -> list[str]:
    """Name the numbers of a key: over a column of a table nothing else says that 1000 is that of validation images."""
    return [f"{name} {part}" if name in WHOLE else part for name, part in zip(columns, key, strict=True)]


def _axis(columns: Sequence[str], found: Iterable[Key], where: Mapping[str, Any]) -> list[Key]:
    """Order the keys of an axis level by level: as `where` lists them, or as they first appear."""
    keys = dict.fromkeys(found)
    listed = [where[name] if isinstance(where.get(name), (list, tuple)) else None for name in columns]
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
        repeat = _key(row, REPEATS)
        if repeat in seen:
            raise InputError(f"the cell {cell} would count split {row.split}, seed {row.seed} twice: expected it once")
        seen.add(repeat)


def _some(values: Sequence[Any]) -> str:
    return ", ".join(map(repr, values[:8])) + (", ..." if len(values) > 8 else "")


def _nothing(results: Results, where: Mapping[str, Any]) -> str:
    """Say why no row is left."""
    if not results.rows:
        return "there are no rows to lay out"
    for name, value in where.items():
        if not results.where(**{name: value}).rows:
            wanted = " or ".join(map(repr, _allowed(value)))
            return f"no row has {name} {wanted}; there are {_some(results.names(name))}"
    return f"no row has all of {', '.join(f'{name} {value!r}' for name, value in where.items())}"


def _csv(lines: Iterable[Sequence[Any]]) -> str:
    """Write lines as CSV that end in a plain newline; the writer knows them as \r\n, so that it quotes a lone \r as well."""
    written: list[str] = []
    csv.writer(SimpleNamespace(write=written.append)).writerows(lines)
    return "".join(line.removesuffix("\r\n") + "\n" for line in written)


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
        return " ".join(
            sentence
            for sentence in (
                "± is half the 95 % interval of the mean over the splits (Student's t)." if spread else "",
                f"✓ surely better, ✗ surely worse than {self.against} on the same test images: "
                "the 95 % bootstrap interval of the difference excludes 0."
                if self.sure
                else "",
            )
            if sentence
        )

    def shown(self, i: int, j: int) -> str:
        """The text of a cell and, if it is surely better or worse, its mark; the others of its column leave room for it."""
        if all(column != j for _, column in self.sure):
            return self.cells[i][j]
        return f"{self.cells[i][j]} {MARKS[self.sure.get((i, j), 0)]}"

    def is_numeric(self, column: int) -> bool:
        """Tell whether a column holds numbers, and dashes for those that are missing, and belongs to the right."""
        return column > 0 and all(_is_number(row[column]) for row in self.cells)

    def text(self) -> str:
        """Write it as plain aligned columns, the best marked by a star."""
        starred = {j for _, j in self.best}
        shown = (tuple(self.shown(i, j) for j in range(len(row))) for i, row in enumerate(self.cells))
        lines = [
            [_line(cell) + ("*" if (i, j) in self.best else " " if j in starred else "") for j, cell in enumerate(row)]
            for i, row in enumerate((self.header, *shown), start=-1)
        ]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        numeric = [self.is_numeric(j) for j in range(len(self.header))]
        aligned = [
            "  ".join(
                cell.rjust(w) if right else cell.ljust(w) for cell, w, right in zip(line, widths, numeric, strict=True)
            )
            for line in lines
        ]
        return "\n".join(line.rstrip() for line in ([_line(self.title)] if self.title else []) + aligned)

    def markdown(self) -> str:
        """Write it as a Markdown table, the best in bold."""
        lines = [tuple(map(_markdown, self.header)), ("---",) * len(self.header)]
        for i, row in enumerate(self.cells):
            texts = (_markdown(self.shown(i, j)).rstrip() for j in range(len(row)))
            lines.append(tuple(f"**{text}**" if (i, j) in self.best else text for j, text in enumerate(texts)))
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)

    def csv(self) -> str:
        """Write it as CSV with every digit: the mean of each number and, where there is one, its interval beside it.

        What is missing is empty. Columns without numbers are written as they are.
        """
        columns = range(len(self.header))
        counted = {j for _, j in self.numbers}
        spread = {j for (_, j), number in self.numbers.items() if number.interval is not None}
        lines: list[list[Any]] = [
            [text for j in columns for text in (self.header[j], f"{self.header[j]} interval")[: 1 + (j in spread)]]
        ]
        for i, row in enumerate(self.cells):
            line: list[Any] = []
            for j in columns:
                number = self.numbers.get((i, j))
                line.append(number.mean if number else None if j in counted else row[j])
                if j in spread:
                    line.append(number.interval if number else None)
            lines.append(line)
        return _csv(lines)

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
                _latex_line([rf"\textbf{{{text}}}" if (i, j) in self.best else text for j, text in enumerate(texts)])
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


def comparison(
    results: Results,
    dataset: str,
    *,
    metrics: Sequence[str],
    better: Mapping[str, str | None],
    eligible: Callable[[str], bool] = lambda method: True,
    digits: Mapping[str, int] | None = None,
    baseline: str = "",
) -> Table:
    """Lay out methods × metrics as the paper does; the best of each column is told by `better`.

    Among `eligible` methods only: one that changes the predicted class is no calibration of that prediction.
    """
    where = {"dataset": dataset, "metric": tuple(metrics)}
    return results.pivot(
        where=where, better=better, eligible=eligible, digits=digits or {}, baseline=baseline, title=dataset
    )
