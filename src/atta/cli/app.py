"""The command line: each command parses, calls one function, prints one table.

torch takes over a second to import, so the commands import what they need when they run: `atta --help` answers at once.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.text import Text

from atta import __version__
from atta.cli import deploy, experiments, networks, pages, records
from atta.cli.terminal import advised, err, out
from atta.errors import InputError

commands = typer.Typer(
    name="atta",
    help="Trustworthy confidence for image classifiers: learned test-time views that never change the predicted class.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)


def app() -> None:
    """Run the command line; a user's mistake ends in one sentence and exit code 2, not in a traceback."""
    try:
        commands()
    except InputError as error:
        err.print(Text("error: ", style="bold red") + Text(str(error)))
        sys.exit(2)
    except KeyboardInterrupt:
        err.print("interrupted")
        sys.exit(130)


@commands.callback(invoke_without_command=True)
def main(version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False) -> None:
    """Say the version, or go on to the command."""
    if version:
        out.print(__version__)
        raise typer.Exit


for command in (  # in the order of --help
    *(records.methods, records.compare, records.fit, records.evaluate),
    *(networks.train, networks.collect),
    records.search,
    *(deploy.calibrate, deploy.export, deploy.predict),
    *(experiments.run, experiments.reproduce),
    pages.report,
    experiments.demo,
    pages.figure,
):
    commands.command()(advised()(command))
