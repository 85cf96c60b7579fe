"""Results as tidy rows: one number each, with everything that says what it is. JSON in and out.

Results((Row(dataset="cifar10", method="v-atta", metric="brier", value=0.0402), ...))  →  results.json
"""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from atta._base.errors import InputError, suggest
from atta._base.files import check_digest, digest, named, whole_file

if TYPE_CHECKING:
    from atta.results.table import Summary, Table

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
    """The 95 % interval of a mean over the splits, or of its difference to another's on the same images (`metrics.resampling`).

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
        return replace(
            self, method=self.against, policy=self.against_policy, choice=self.against_choice
        )


COLUMNS = tuple(column.name for column in fields(Row))
COUNTED = {"validation", "split", "seed"}
BOUNDS = ("value", "low", "high")
Key: TypeAlias = tuple[Any, ...]
NOT_IN_JSON = {
    "nan": math.nan,
    "inf": math.inf,
    "-inf": -math.inf,
}  # no numbers to JSON: written as these strings


@dataclass(frozen=True)
class Results:
    """Rows, and what is known about the run that made them (versions, settings, files)."""

    rows: tuple[Row, ...]
    about: Mapping[str, Any] = field(default_factory=dict)
    details: tuple[Mapping[str, Any], ...] = ()
    """What a report shows besides: for a method on a dataset, its bins, weights and so on (`experiments.details`)."""
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
        rows, details, intervals = (
            (*getattr(self, name), *getattr(other, name))
            for name in ("rows", "details", "intervals")
        )
        return Results(rows, about, details, intervals)

    def names(self, column: str) -> list[Any]:
        """Return the different values of a column, in the order they first appear."""
        check_columns([column])
        return list(dict.fromkeys(getattr(row, column) for row in self.rows))

    def where(self, **columns: Any) -> Results:
        """Return the rows whose columns have these values; a list or tuple allows each of its values.

        Intervals go with their rows. Those of a mean over all splits are none of some splits.
        """
        check_columns(columns)
        allowed = {name: one_of(value) for name, value in columns.items()}

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
                replace(
                    one,
                    **dict(
                        zip(("against", "against_policy", "against_choice"), against, strict=True)
                    ),
                )
            )
        return Results(tuple(map(under, self.rows)), self.about, self.details, tuple(intervals))

    def summary(self, **columns: Any) -> Summary | None:
        """Summarise the rows with these values, or return None if there are none; for many cells at once, `pivot`."""
        from atta.results.table import Summary

        values = [row.value for row in self.where(**columns)]
        return Summary.of(values) if values else None

    def pivot(
        self,
        rows: Sequence[str] = ("method",),
        columns: Sequence[str] = ("metric",),
        **settings: Any,
    ) -> Table:
        """Lay out a table, a summary in each cell; the settings are those of `atta.results.table.pivot`."""
        from atta.results.table import pivot  # here, as tables are made of rows

        return pivot(self, rows, columns, **settings)

    def _repr_html_(self) -> str:
        """A line for each thing that was measured, a column for each metric."""
        if not self.rows:
            return "<p>no results</p>"
        differing = [
            name
            for name in ("experiment", "dataset", "validation", "policy", "choice")
            if len(self.names(name)) > 1
        ]
        return self.pivot((*differing, "method"))._repr_html_()

    def known(self, what: str) -> dict[str, Mapping[str, Any]]:
        """What is known of each of the "experiments" or "records", of one run or of several that were added."""
        found: dict[str, Mapping[str, Any]] = {}
        for run in _runs(self.about):
            inside = run.get(what, {}) if isinstance(run, Mapping) else {}
            if isinstance(inside, Mapping):
                found |= {
                    str(key): value for key, value in inside.items() if isinstance(value, Mapping)
                }
        return found

    def csv(self) -> str:
        """Write the rows as CSV, a number a line, under the names of the columns; floats keep their last bit."""
        return csv_text([COLUMNS, *(values_of(row, COLUMNS) for row in self.rows)])

    def to_json(self) -> str:
        """Write everything as JSON, a row a line; floats keep their last bit, equal results make equal text.

        JSON has no numbers for nan and ±inf: these are written as the strings "nan", "inf" and "-inf". At the end stands
        the digest of all the rest, whatever its order and layout.
        """
        rows, intervals = (
            ",\n".join(_json(vars(one)) for one in those) for those in (self.rows, self.intervals)
        )
        about = json.dumps(
            finite(self.about), indent=1, ensure_ascii=False, sort_keys=True, allow_nan=False
        )
        details = ",\n".join(_json(detail) for detail in self.details)
        head = f'"format": "{FORMAT}",\n"version": {FORMAT_VERSION},\n"hash": "sha256",\n"about": {about},\n'
        body = f'{{\n{head}"details": [\n{details}\n],\n"rows": [\n{rows}\n],\n"intervals": [\n{intervals}\n]'
        return f'{body},\n"digest": "{digest(json.loads(body + "}"))}"\n}}\n'

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write a JSON file, whole or not at all."""
        with whole_file(path) as part:
            part.write_text(self.to_json(), encoding="utf-8", newline="\n")
        return Path(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Results:
        """Read what `save` wrote."""
        path = named(path)
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise InputError(f"there is no file {path}") from None
        except (OSError, ValueError) as error:
            why = (error.strerror or "").lower() if isinstance(error, OSError) else error
            raise InputError(
                f"{path} is not a whole JSON file ({why}): expected results, as `--json FILE` of `atta compare` and "
                "Results.save write them"
            ) from None
        except RecursionError:
            raise InputError(
                f"{path} does not hold results: it has values inside of values, too deep to be read"
            ) from None
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise InputError(f"{path} does not hold results: expected format {FORMAT!r}")
        version = content.get("version", 0)
        if not isinstance(version, int) or version > FORMAT_VERSION:
            raise InputError(
                f"{path} has version {version}, this atta reads up to {FORMAT_VERSION}"
            )
        rows, about, details = (
            content.get("rows"),
            content.get("about", {}),
            content.get("details", []),
        )
        intervals = content.get("intervals", [])  # which older files do not have
        if (
            not isinstance(rows, list)
            or not isinstance(about, dict)
            or not all(isinstance(x, list) for x in (details, intervals))
        ):
            raise InputError(
                f"{path} is damaged: expected a list of rows and what is known about them"
            )
        results = cls(
            tuple(_read(Row, row, f"{path}, row {i}") for i, row in enumerate(rows, 1)),
            about,
            tuple(details),
            tuple(
                _read(Interval, one, f"{path}, interval {i}") for i, one in enumerate(intervals, 1)
            ),
        )
        said = content.pop("digest", None)
        if (
            said is not None or "hash" in content
        ):  # either tells that the other was there; older files have none
            check_digest(path, said, digest(content))
        return results


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)


def _json(value: Any) -> str:
    try:
        return _ENCODER.encode(value)
    except (
        ValueError
    ):  # nan or ±inf, somewhere: seldom, and looking for it takes longer than writing
        return _ENCODER.encode(finite(value))


def finite(value: Any, instead: Callable[[float], Any] = str) -> Any:
    """What JSON can hold: `instead` of nan and ±inf, however deep they lie."""
    if isinstance(value, Mapping):
        return {str(key): finite(inner, instead) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(inner, instead) for inner in value]
    return instead(value) if isinstance(value, float) and not math.isfinite(value) else value


_Read = TypeVar("_Read", Row, Interval)
_NEEDED: dict[type, dict[str, bool]] = {
    form: {column.name: column.default is MISSING for column in fields(form)}
    for form in (Row, Interval)
}


def _read(form: type[_Read], content: Any, place: str) -> _Read:
    """Check a row or an interval at the door; `place` is what a refusal calls it."""
    columns = _NEEDED[form]
    if not isinstance(content, dict):
        raise InputError(f"{place}: expected columns and their values, got {content!r}")
    if unknown := [name for name in content if name not in columns]:
        raise InputError(
            f"{place}: unknown column {', '.join(unknown)}; expected {', '.join(columns)}"
        )
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
                raise InputError(
                    f'{place}: expected {name} to be a number, "nan", "inf" or "-inf", got {value!r}'
                )
        elif kind is not (expected := int if name in COUNTED else str):
            what = "a whole number" if expected is int else "text"
            raise InputError(f"{place}: expected {name} to be {what}, got {value!r}")
        values[name] = value
    return form(**values)


def check_columns(names: Iterable[str], *, besides: str = "") -> None:
    """Refuse names of columns that there are not."""
    known = [name for name in COLUMNS if name != besides]
    for name in names:
        if name not in known:
            raise InputError(
                f"there is no column {name!r} to go by; expected some of {', '.join(known)}.{suggest(name, known)}"
            )


def one_of(value: Any) -> Sequence[Any]:
    """The values that a condition allows: those of a list or tuple, else the one."""
    return value if isinstance(value, (list, tuple)) else (value,)


def _runs(about: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Take apart what `+` put together."""
    if not about:
        return ()
    added = about.keys() == {"runs"} and isinstance(about["runs"], list | tuple)
    return about["runs"] if added else (about,)


def values_of(row: Row, columns: Sequence[str]) -> Key:
    """Some columns of a row."""
    return tuple(getattr(row, name) for name in columns)


def csv_text(lines: Iterable[Sequence[Any]]) -> str:
    """Write lines as CSV that end in a plain newline; the writer knows them as \r\n, so that it quotes a lone \r as well."""
    written: list[str] = []
    csv.writer(SimpleNamespace(write=written.append)).writerows(lines)
    return "".join(line.removesuffix("\r\n") + "\n" for line in written)
