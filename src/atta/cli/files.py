"""The command that looks at files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from atta.cli.terminal import tell


def check(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Files and folders that atta wrote.")],
) -> None:
    """Say what each file is and whether it is whole: a record, a calibrator, a classifier, results, a graph, a training."""
    from atta.deploy.check import check as look

    found = [look(file) for file in files]
    for one in found:
        tell(str(one))
    if not all(one.whole for one in found):
        raise typer.Exit(1)
