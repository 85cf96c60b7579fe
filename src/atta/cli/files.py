"""The commands that look at files: whether they are whole, and which records are at hand."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from atta._base.errors import InputError, suggest
from atta.cli.terminal import say, show, tell
from atta.results.table import Table
from atta.results.words import dataset_name


def check(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Files and folders that atta wrote.")
    ],
) -> None:
    """Say what each file is and whether it is whole: a record, a calibrator, a classifier, results, a graph, a training."""
    from atta.classifier.check import check as look

    found = [look(file) for file in files]
    for one in found:
        tell(str(one))
    if not all(one.whole for one in found):
        raise typer.Exit(1)


def records(
    name: Annotated[
        str | None,
        typer.Argument(help="One of them, to see all that is known of where it came from."),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Those in this folder, instead of atta's own."),
    ] = None,
) -> None:
    """List the records that come with atta, or lie in a folder: what they are of, and where they came from."""
    from atta.record.predictions import Record, own_records
    from atta.record.store import INDEX

    if folder is not None and not folder.is_dir():
        raise InputError(f"--folder: there is no folder {folder}")
    found = (
        own_records()
        if folder is None
        else {path.stem: path for path in sorted(folder.glob("*.safetensors"))}
    )
    found |= (
        {}
        if folder is None
        else {path.parent.name: path.parent for path in sorted(folder.glob(f"*/{INDEX}"))}
    )
    if name is not None and name not in found:
        raise InputError(
            f"there is no record {name!r}.{suggest(name, found)} There are: {', '.join(found) or 'none'}"
        )
    cells = []
    for one in found if name is None else [name]:
        try:
            record = Record.load(found[one])
        except InputError as error:
            if name is not None:
                raise
            say(f"left out: {error}")
            continue
        origin, seen = record.origin, record.predictions
        network = ", ".join(origin[key] for key in ("model", "trained_on") if key in origin)
        of = dataset_name(origin.get("dataset", "?"))
        cells.append((one, of, *map(str, (len(record), seen.classes, seen.passes)), network or "?"))
    show(Table("Records", ("name", "of", "images", "classes", "passes", "network"), tuple(cells)))
    if name is not None:
        show(Table(f"Origin of {name}", ("", ""), tuple(sorted(origin.items()))))
    for place in dict.fromkeys(found[one[0]].parent for one in cells):
        tell(f"in {place}")
