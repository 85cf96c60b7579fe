"""Results as tidy rows: one number each, with everything that says what it is. JSON in and out, tables for people.

    Results([Row("cifar10", "v-atta", 0, "brier", 0.0402), ...])  →  results.json  →  tables, report

Nothing here knows torch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from atta.errors import InputError
from atta.files import whole_file

FORMAT = "atta.results"
FORMAT_VERSION = 1


@dataclass(frozen=True, order=True)
class Row:
    """One measured number."""

    dataset: str
    method: str
    split: int
    metric: str
    value: float


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
        """Write everything as JSON; floats keep their last bit."""
        content = {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "about": self.about,
            "rows": [asdict(row) for row in self.rows],
        }
        return json.dumps(content, indent=1, ensure_ascii=False)

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
        names = [column.name for column in fields(Row)]
        try:
            return cls(tuple(Row(**{name: row[name] for name in names}) for row in content["rows"]), content["about"])
        except (KeyError, TypeError) as error:
            raise InputError(f"{path} is damaged: expected rows of {', '.join(names)} ({error})") from None


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
