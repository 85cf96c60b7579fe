"""Write docs/cli.md from the commands' own help: `make docs`."""

from pathlib import Path

import click
import typer
from typer.cli import get_docs_for_click

from atta.cli.app import commands

CLI = Path(__file__).parent / "cli.md"


def cli_page() -> str:
    """Return the page, as Markdown."""
    command = typer.main.get_command(commands)
    text = get_docs_for_click(obj=command, ctx=click.Context(command), name="atta", title="The command line")
    return "<!-- made by `make docs` from the commands' --help -->\n\n" + text.rstrip() + "\n"


if __name__ == "__main__":
    CLI.write_text(cli_page(), encoding="utf-8")
    print(CLI)
