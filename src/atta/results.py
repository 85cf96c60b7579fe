"""Results as tidy rows: one number each, with everything that says what it is. JSON in and out, tables for people.

    Results([Row(dataset="cifar10", method="v-atta", metric="brier", value=0.0402), ...])  →  results.json  →  tables

Nothing here knows torch.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

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


COLUMNS = tuple(column.name for column in fields(Row))
REQUIRED = tuple(column.name for column in fields(Row) if column.default is MISSING)
_KNOWN = frozenset(COLUMNS)
WHOLE = {"validation", "split", "seed"}
NOT_IN_JSON = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}  # no numbers to JSON: written as these strings


@dataclass(frozen=True)
class Summary:
    """A number over several splits: its mean and, from two splits on, its standard deviation."""

    mean: float
    deviation: float | None
    count: int

    def text(self, digits: int = 4) -> str:
        """Write it as a table shows it."""
        spread = "" if self.deviation is None else f" ± {self.deviation:.{digits}f}"
        return f"{self.mean:.{digits}f}{spread}"


@dataclass(frozen=True)
class Results:
    """Rows, and what is known about the run that made them (versions, settings, files)."""

    rows: tuple[Row, ...]
    about: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", tuple(self.rows))

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __add__(self, other: Results) -> Results:
        return Results((*self.rows, *other.rows), {**self.about, **other.about})

    def names(self, column: str) -> list[Any]:
        """Return the different values of a column, in the order they first appear."""
        return list(dict.fromkeys(getattr(row, column) for row in self.rows))

    def where(self, **columns: Any) -> Results:
        """Return the rows whose columns have these values."""
        keep = tuple(row for row in self.rows if all(getattr(row, name) == value for name, value in columns.items()))
        return Results(keep, self.about)

    def summary(self, **columns: Any) -> Summary | None:
        """Return mean and deviation of the rows with these values, or None if there are none."""
        values = [row.value for row in self.where(**columns)]
        if not values:
            return None
        return Summary(fmean(values), stdev(values) if len(values) > 1 else None, len(values))

    def to_json(self) -> str:
        """Write everything as JSON, a row a line; floats keep their last bit, equal results make equal text.

        JSON has no numbers for nan and ±inf: these are written as the strings "nan", "inf" and "-inf".
        """
        rows = ",\n".join(_json({name: getattr(row, name) for name in COLUMNS}) for row in self.rows)
        about = json.dumps(_finite(self.about), indent=1, ensure_ascii=False, sort_keys=True, allow_nan=False)
        head = f'"format": "{FORMAT}",\n"version": {FORMAT_VERSION},\n"about": {about},\n'
        return f'{{\n{head}"rows": [\n{rows}\n]\n}}\n'

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write a JSON file, whole or not at all."""
        with whole_file(path) as part:
            part.write_text(self.to_json(), encoding="utf-8")
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
        if content.get("version", 0) > FORMAT_VERSION:
            raise InputError(f"{path} has version {content['version']}, this atta reads up to {FORMAT_VERSION}")
        rows, about = content.get("rows"), content.get("about", {})
        if not isinstance(rows, list) or not isinstance(about, dict):
            raise InputError(f"{path} is damaged: expected a list of rows and what is known about them")
        return cls(tuple(_row(row, f"{path}, row {i}") for i, row in enumerate(rows, 1)), about)


def _json(row: dict[str, Any]) -> str:
    value = row["value"]
    return json.dumps(row if math.isfinite(value) else {**row, "value": str(float(value))}, ensure_ascii=False)


def _finite(value: Any) -> Any:
    """Write nan and ±inf as text, however deep they lie."""
    if isinstance(value, Mapping):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _row(content: Any, place: str) -> Row:
    """Check a row at the door; `place` is what a refusal calls it."""
    if not isinstance(content, dict):
        raise InputError(f"{place}: expected columns and their values, got {content!r}")
    if not content.keys() <= _KNOWN:
        unknown = ", ".join(name for name in content if name not in _KNOWN)
        raise InputError(f"{place}: unknown column {unknown}; expected {', '.join(COLUMNS)}")
    if missing := [name for name in REQUIRED if name not in content]:
        raise InputError(f"{place}: without {', '.join(missing)}")
    values = {}
    for name, value in content.items():
        kind = type(value)  # exactly: True is no number of images
        if name == "value":
            if kind is str and value in NOT_IN_JSON:
                value = NOT_IN_JSON[value]
            elif kind is int:
                value = float(value)
            elif kind is not float:
                raise InputError(f'{place}: expected value to be a number, "nan", "inf" or "-inf", got {value!r}')
        elif kind is not (expected := int if name in WHOLE else str):
            what = "a whole number" if expected is int else "text"
            raise InputError(f"{place}: expected {name} to be {what}, got {value!r}")
        values[name] = value
    return Row(**values)


@dataclass(frozen=True)
class Table:
    """Cells for people: a header, rows of text, and which cells are the best of their column."""

    title: str
    header: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]
    best: frozenset[tuple[int, int]] = frozenset()

    def markdown(self) -> str:
        """Write it as a Markdown table, the best in bold."""
        lines = [self.header, ("---",) * len(self.header)]
        for i, row in enumerate(self.cells):
            lines.append(tuple(f"**{cell}**" if (i, j) in self.best else cell for j, cell in enumerate(row)))
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def comparison(
    results: Results,
    dataset: str,
    *,
    metrics: Sequence[str],
    better: Mapping[str, str | None],
    eligible: Callable[[str], bool] = lambda method: True,
    digits: Mapping[str, int] | None = None,
) -> Table:
    """Lay out methods × metrics as the paper does; the best of each column is told by `better`.

    Among `eligible` methods only: one that changes the predicted class is no calibration of that prediction.
    """
    here = results.where(dataset=dataset)
    methods = here.names("method")
    places = {metric: (digits or {}).get(metric, 4) for metric in metrics}
    found = {(i, j): here.summary(method=a, metric=b) for i, a in enumerate(methods) for j, b in enumerate(metrics)}
    best = set()
    for j, metric in enumerate(metrics):
        column = {i: s.mean for i in range(len(methods)) if (s := found[i, j]) and eligible(methods[i])}
        if len(column) > 1 and better.get(metric):
            top = _best(column.values(), better[metric])
            best |= {
                (i, j + 1) for i, mean in column.items() if round(mean, places[metric]) == round(top, places[metric])
            }
    cells = tuple(
        (name, *(s.text(places[metric]) if (s := found[i, j]) else "–" for j, metric in enumerate(metrics)))
        for i, name in enumerate(methods)
    )
    return Table(dataset, ("method", *metrics), cells, frozenset(best))


def _best(values: Iterable[float], direction: str | None) -> float:
    return max(values) if direction == "higher" else min(values)
