r"""Write a table as CSV, JSON lines or Parquet.

Names that are not text are escaped, as in `\udcff`. In a CSV file, a name of which a spreadsheet
would take a line for a formula (it begins with = + - @, a tab or a line break) gets a ' in front of
it, and a name with a line break is quoted.
"""

import csv
import json
import re
from collections.abc import Iterable, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

from atta._base.errors import InputError, require
from atta._base.files import readable

GROUP = 10_000  # rows written together
FORMULA = re.compile(r"(?:^|(?<=[\r\n]))(?=[=+\-@\t\r\n])")
"""Where a formula begins in a spreadsheet: some programs read a new row after any line break."""
ENDINGS = (".csv", ".jsonl", ".parquet")
Rows = Iterable[Sequence[Any]]


def check_format(output: Path) -> None:
    """Refuse a table that cannot be written, before any work is done."""
    if output.suffix not in ENDINGS:
        raise InputError(f"expected a file that ends in {', '.join(ENDINGS)}, got {output.name!r}")
    if output.suffix == ".parquet":
        _arrow()


def write_table(path: Path, columns: Sequence[str], rows: Rows, *, ending: str) -> None:
    """Write rows: text (`file`, `set`), name or number (`class`), boolean (`answered`), numbers."""
    names = [readable(name) for name in columns]
    plain = ([readable(cell) if isinstance(cell, str) else cell for cell in row] for row in rows)
    if ending == ".parquet":
        _write_parquet(path, names, plain)
        return
    with path.open("w", encoding="utf-8", newline="") as file:
        if ending == ".jsonl":
            for row in plain:
                line = json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False)
                file.write(f"{line}\n")
        else:
            writer = csv.writer(file, lineterminator="\n")
            whole = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_ALL)
            for row in chain([names], plain):
                cells = [FORMULA.sub("'", cell) if isinstance(cell, str) else cell for cell in row]
                broken = any("\r" in cell for cell in cells if isinstance(cell, str))
                # Python 3.11 does not quote a carriage return of itself.
                (whole if broken else writer).writerow(cells)


def _write_parquet(path: Path, columns: Sequence[str], rows: Rows) -> None:
    arrow, parquet = _arrow()
    rows = iter(rows)
    group = list(islice(rows, GROUP))
    name = arrow.string() if group and isinstance(group[0][1], str) else arrow.int64()
    known = {
        "file": arrow.string(),
        "class": name,
        "set": arrow.string(),
        "answered": arrow.bool_(),
    }
    schema = arrow.schema([(each, known.get(each, arrow.float64())) for each in columns])
    with parquet.ParquetWriter(path, schema) as writer:
        while group:
            cells = [list(column) for column in zip(*group, strict=True)]
            writer.write_table(arrow.table(cells, schema=schema))
            group = list(islice(rows, GROUP))


def _arrow() -> tuple[Any, Any]:
    with require("data", "a .parquet file"):
        import pyarrow
        import pyarrow.parquet
    return pyarrow, pyarrow.parquet
