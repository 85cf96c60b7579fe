"""A table of rows as a file: CSV, lines of JSON, or Parquet.

Names are written so that any program reads them: what is no text becomes `\\udcff`, and in a CSV, which spreadsheets open,
a name that one would take for a formula (it begins with = + - @, a tab or a line's end) has a ' in front.
"""

import csv
import json
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from atta._base.errors import InputError, require
from atta._base.files import readable

GROUP = 10_000  # rows written together
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""What a spreadsheet takes for the beginning of something to work out."""


def check_format(output: Path) -> None:
    """Make sure that such a table can be written, before any work is done."""
    if output.suffix not in _WRITERS:
        raise InputError(f"expected a file that ends in {', '.join(_WRITERS)}, got {output.name!r}")
    if output.suffix == ".parquet":
        _arrow()


def write_table(
    path: Path, columns: Sequence[str], rows: Iterable[list[Any]], *, ending: str
) -> None:
    """Write the rows as the ending says: `file` and `set` are texts, `class` is a name or a number, the others are numbers."""
    said = ([readable(cell) if isinstance(cell, str) else cell for cell in row] for row in rows)
    _WRITERS[ending](path, [readable(name) for name in columns], said)


def _harmless(cell: Any) -> Any:
    """A name that no spreadsheet works out; numbers stay numbers."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA) else cell


def _write_csv(path: Path, columns: Sequence[str], rows: Iterable[list[Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([_harmless(cell) for cell in row] for row in rows)


def _write_jsonl(path: Path, columns: Sequence[str], rows: Iterable[list[Any]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False) + "\n")


def _write_parquet(path: Path, columns: Sequence[str], rows: Iterable[list[Any]]) -> None:
    arrow, parquet = _arrow()
    rows = iter(rows)
    group = list(islice(rows, GROUP))
    name = arrow.string() if group and isinstance(group[0][1], str) else arrow.int64()
    known = {"file": arrow.string(), "class": name, "set": arrow.string()}
    schema = arrow.schema([(each, known.get(each, arrow.float64())) for each in columns])
    with parquet.ParquetWriter(path, schema) as writer:
        while group:
            writer.write_table(
                arrow.table([list(column) for column in zip(*group, strict=True)], schema=schema)
            )
            group = list(islice(rows, GROUP))


_WRITERS = {".csv": _write_csv, ".jsonl": _write_jsonl, ".parquet": _write_parquet}


def _arrow() -> tuple[Any, Any]:
    with require("data", "a .parquet file"):
        import pyarrow
        import pyarrow.parquet
    return pyarrow, pyarrow.parquet
