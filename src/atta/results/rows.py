"""Results as tidy rows, one number each with everything that identifies it; JSON and CSV.

Results((Row(dataset="cifar10", method="v-atta", metric="brier", value=0.0402), ...))
"""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from atta._base.errors import InputError, suggest
from atta._base.files import check_digest, digest, named, whole_file

if TYPE_CHECKING:
    from atta.results.table import Summary, Table

FORMAT = "atta.results"
FORMAT_VERSION = 1
Form = TypeVar("Form", "Row", "Interval")


@dataclass(frozen=True, order=True, kw_only=True)
class Row:
    """One measured number, and everything that identifies it."""

    experiment: str = ""
    dataset: str
    validation: int = 0
    """The number of validation images that were fitted on; 0 if unknown."""
    split: int = 0
    method: str
    policy: str = ""
    """The name of the policy of views; "" if the method uses none."""
    choice: str = ""
    """The rule that chose the policy; "" if it was given."""
    seed: int = 0
    metric: str
    value: float


@dataclass(frozen=True, order=True, kw_only=True)
class Interval:
    """The 95 % bootstrap interval of a mean over splits, or of a difference of two such means.

    It says how much other test images would change the number (`atta.metrics.resampling`). The
    columns are those of a row; the policy is "" if a rule chose it, as splits may differ in it.
    """

    experiment: str = ""
    dataset: str
    validation: int = 0
    method: str
    policy: str = ""
    choice: str = ""
    metric: str
    against: str = ""
    """The method that is subtracted; "" for the interval of the number itself."""
    against_policy: str = ""
    against_choice: str = ""
    low: float
    high: float

    @property
    def other(self) -> Interval:
        """The same interval with the subtracted method in the place of the method."""
        return replace(
            self, method=self.against, policy=self.against_policy, choice=self.against_choice
        )


_FIELDS = {form: {column.name: column for column in fields(form)} for form in (Row, Interval)}
COLUMNS = tuple(_FIELDS[Row])
COUNTED = {"validation", "split", "seed"}
Key: TypeAlias = tuple[Any, ...]
_NOT_IN_JSON = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}  # written as these strings


@dataclass(frozen=True)
class Results:
    """Rows of numbers, and what is known about the run that made them.

    `atta compare --json FILE` writes results; load, filter, join and tabulate them with this class.

    Args:
        rows: The numbers.
        about: What is known about the run: versions, settings, files.
        details: What a report shows in addition, for a method on a dataset: bins, weights, ...
        intervals: Intervals of means and of differences between methods, each difference once.

    >>> results = Results((Row(dataset="cifar10", method="v-atta", metric="brier", value=0.04),))
    >>> print(results.pivot().text())
    method   brier
    v-atta  0.0400
    """

    rows: tuple[Row, ...]
    about: Mapping[str, Any] = field(default_factory=dict)
    details: tuple[Mapping[str, Any], ...] = ()
    intervals: tuple[Interval, ...] = ()

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __add__(self, other: Results) -> Results:
        """Join the rows; what is known of different runs becomes a list, `about["runs"]`."""
        runs = list(_runs(self.about))
        runs += [about for about in _runs(other.about) if about not in runs]
        return Results(
            self.rows + other.rows,
            {"runs": runs} if len(runs) > 1 else dict(*runs),
            self.details + other.details,
            self.intervals + other.intervals,
        )

    def names(self, column: str) -> list[Any]:
        """Return the different values of a column, in the order they first appear."""
        check_columns([column])
        return list(dict.fromkeys(getattr(row, column) for row in self.rows))

    def where(self, **columns: Any) -> Results:
        """Return the rows with these values in their columns, with their intervals and details.

        Args:
            columns: A value, or a list or tuple of allowed values, by the name of the column. No
                interval is left if a split or seed is named: it belongs to the mean over all.
        """
        check_columns(columns)
        allowed = {
            name: value if isinstance(value, list | tuple) else (value,)
            for name, value in columns.items()
        }

        def kept(one: Mapping[str, Any]) -> bool:
            return all(one[name] in values for name, values in allowed.items() if name in one)

        rows = tuple(row for row in self.rows if kept(vars(row)))
        intervals = tuple(
            one
            for one in self.intervals
            if allowed.keys() <= vars(one).keys()
            if kept(vars(one)) and (not one.against or kept(vars(one.other)))
        )
        return Results(rows, self.about, tuple(filter(kept, self.details)), intervals)

    def summary(self, **columns: Any) -> Summary | None:
        """Return mean and interval of the rows with these values; None if there are no such rows.

        `pivot` summarises many cells at once.
        """
        from atta.results.table import Summary

        values = [row.value for row in self.where(**columns)]
        return Summary.of(values) if values else None

    def pivot(
        self,
        rows: Sequence[str] = ("method",),
        columns: Sequence[str] = ("metric",),
        **settings: Any,
    ) -> Table:
        """Return a table with a summary in each cell.

        Args:
            rows: The columns whose values become the lines of the table.
            columns: The columns whose values become its columns.
            settings: The options of `atta.results.table.pivot`.
        """
        from atta.results.table import pivot  # here, as tables are made of rows

        return pivot(self, rows, columns, **settings)

    def _repr_html_(self) -> str:
        """Return a table for notebooks: a line per method and setting, a column per metric."""
        if not self.rows:
            return "<p>no results</p>"
        names = ("experiment", "dataset", "validation", "policy", "choice")
        differing = [name for name in names if len(self.names(name)) > 1]
        return self.pivot((*differing, "method"))._repr_html_()

    def known(self, what: str) -> dict[str, Mapping[str, Any]]:
        """Return what is known of the "experiments" or "records" by name, of all joined runs."""
        every = (run.get(what) for run in _runs(self.about) if isinstance(run, Mapping))
        return {
            str(name): known
            for inside in every
            if isinstance(inside, Mapping)
            for name, known in inside.items()
            if isinstance(known, Mapping)
        }

    def csv(self) -> str:
        """Return the rows as CSV under the names of the columns; floats keep their last bit."""
        return csv_text([COLUMNS, *(values_of(row, COLUMNS) for row in self.rows)])

    def to_json(self) -> str:
        """Return everything as JSON, a row per line; equal results give equal text.

        Floats keep their last bit; nan and ±inf are written as the strings "nan", "inf" and "-inf".
        The last entry is a digest of the rest, whatever its order and layout.
        """
        dump = partial(json.dumps, ensure_ascii=False)
        rows, intervals, details = (
            ",\n".join(dump(finite(one)) for one in those)
            for those in (map(vars, self.rows), map(vars, self.intervals), self.details)
        )
        about = dump(finite(self.about), indent=1, sort_keys=True)
        body = (
            f'{{\n"format": "{FORMAT}",\n"version": {FORMAT_VERSION},\n"hash": "sha256",\n'
            f'"about": {about},\n"details": [\n{details}\n],\n"rows": [\n{rows}\n],\n'
            f'"intervals": [\n{intervals}\n]'
        )
        return f'{body},\n"digest": "{digest(json.loads(body + "}"))}"\n}}\n'

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write a JSON file, completely or not at all, and return its path."""
        with whole_file(path) as part:
            part.write_text(self.to_json(), encoding="utf-8", newline="\n")
        return Path(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Results:
        """Read results that `save` or `atta compare --json` wrote.

        Raises:
            InputError: There is no such file, or it does not hold results, or it was changed.
        """
        content = _read_json(path)
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise InputError(f"{path} does not hold results: expected format {FORMAT!r}")
        version = content.get("version", 0)
        if not isinstance(version, int) or version > FORMAT_VERSION:
            raise InputError(
                f"{path} has version {version}, this atta reads up to {FORMAT_VERSION}"
            )
        about, rows = content.get("about", {}), content.get("rows", {})
        details, intervals = (content.get(name, []) for name in ("details", "intervals"))
        lists = {type(rows), type(details), type(intervals)} == {list}
        if not lists or not all(isinstance(one, dict) for one in (about, *details)):
            raise InputError(f"{path} is damaged: expected lists of rows, details and intervals")
        results = cls(
            tuple(_read(Row, row, f"{path}, row {i}") for i, row in enumerate(rows, 1)),
            about,
            tuple(details),
            tuple(_read(Interval, x, f"{path}, interval {i}") for i, x in enumerate(intervals, 1)),
        )
        expected = content.pop("digest", None)
        if expected is not None or "hash" in content:  # the oldest files have neither
            check_digest(path, expected, digest(content))
        return results


def _read_json(path: str | os.PathLike[str]) -> Any:
    """Return the content of a JSON file."""
    path = named(path)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"there is no file {path}") from None
    except (OSError, ValueError) as error:
        why = (error.strerror or "").lower() if isinstance(error, OSError) else error
        raise InputError(
            f"{path} is not a whole JSON file ({why}): expected results, as `--json FILE` of "
            "`atta compare` and Results.save write them"
        ) from None
    except RecursionError:
        raise InputError(f"{path} does not hold results: it is nested too deeply") from None


def finite(value: Any, instead: Callable[[float], Any] = str) -> Any:
    """Return the value with `instead` applied to nan and ±inf, however deeply nested."""
    if isinstance(value, Mapping):
        return {str(key): finite(inner, instead) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(inner, instead) for inner in value]
    return instead(value) if isinstance(value, float) and not math.isfinite(value) else value


_WORDS = {"str": "text", "int": "a whole number", "float": 'a number, "nan", "inf" or "-inf"'}


def _read(form: type[Form], content: Any, place: str) -> Form:
    """Return a checked row or interval; error messages begin with `place`."""
    columns = _FIELDS[form]
    needed = {name: 0 for name, column in columns.items() if column.default is MISSING}
    if not isinstance(content, dict) or not needed.keys() <= content.keys() <= columns.keys():
        got = ", ".join(content) if isinstance(content, dict) else repr(content)
        raise InputError(
            f"{place}: expected the columns {', '.join(columns)} and of these at least "
            f"{', '.join(needed)}, got {got}"
        )
    values = {}
    for name, value in content.items():
        kind = str(columns[name].type)
        if kind == "float" and type(value) is str:
            value = _NOT_IN_JSON.get(value, value)
        elif kind == "float" and type(value) is int and abs(value) < 2**1023:
            value = float(value)
        if type(value).__name__ != kind:  # exactly: True is not a number of images
            raise InputError(f"{place}: expected {name} to be {_WORDS[kind]}, got {value!r}")
        values[name] = value
    return form(**values)


def check_columns(names: Iterable[str], *, besides: str = "") -> None:
    """Raise `InputError` for names that are not columns of rows, or are `besides`."""
    known = [name for name in COLUMNS if name != besides]
    for name in names:
        if name not in known:
            raise InputError(
                f"there is no column {name!r}; expected some of {', '.join(known)}."
                f"{suggest(name, known)}"
            )


def _runs(about: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return what is known of each run: the reverse of what `+` does."""
    if about.keys() == {"runs"} and isinstance(about["runs"], list | tuple):
        return about["runs"]
    return (about,) if about else ()


def values_of(row: Row, columns: Sequence[str]) -> Key:
    """Return some columns of a row."""
    return tuple(getattr(row, name) for name in columns)


def csv_text(lines: Iterable[Sequence[Any]]) -> str:
    r"""Return lines as CSV that end in \n; the writer's own \r\n makes it quote a lone \r."""
    written: list[str] = []
    csv.writer(SimpleNamespace(write=written.append)).writerows(lines)
    return "".join(line.removesuffix("\r\n") + "\n" for line in written)
