"""What a person sees in a terminal: tables, bars, and that something is going on. Answers go to `out`, all else to `err`."""

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from atta import progress
from atta.errors import Advice, InputError
from atta.results.table import Table

out = Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 160)  # a pipe must not cut numbers off
err = Console(stderr=True)


def show(table: Table) -> None:
    """Print a table, the best cells bold, and below it what its marks say."""
    rich = RichTable(title=table.title, title_justify="left", title_style="bold", header_style="bold", box=None, pad_edge=False)
    for j, name in enumerate(table.header):
        rich.add_column(name, justify="right" if table.is_numeric(j) else "left", no_wrap=j == 0)
    for i, row in enumerate(table.cells):
        styles = ("bold green" if (i, j) in table.best else "" for j in range(len(row)))
        rich.add_row(*(Text(table.shown(i, j), style=style) for j, style in enumerate(styles)))
    out.print()
    out.print(rich)
    if table.legend:
        out.print(table.legend, style="dim", markup=False, highlight=False)
    out.print()


def formatted(style: str) -> Callable[[Table], None]:
    """Return what prints a table in that style."""
    styles: dict[str, Callable[[Table], None]] = {
        "table": show,
        "markdown": lambda table: print("\n\n".join(filter(None, (table.markdown(), table.legend))), end="\n\n"),
        "csv": lambda table: print(table.csv(), end=""),
        "latex": lambda table: print(table.latex()),
    }
    if style not in styles:
        raise InputError(f"--format takes {', '.join(styles)}, got {style!r}")
    return styles[style]


def say(line: str) -> None:
    """Say one line, however long, beside the answers."""
    err.print(line, soft_wrap=True, markup=False, highlight=False)


@contextmanager
def advised() -> Iterator[None]:
    """Say what looks wrong in a line of its own, each sentence once."""
    said = set[str]()

    def once(message: Warning | str, category: type[Warning], *where: object, **more: object) -> None:
        if not issubclass(category, Advice):
            before(message, category, *where, **more)  # type: ignore[arg-type]
        elif str(message) not in said:
            said.add(str(message))
            say(f"note: {message}")

    with warnings.catch_warnings():
        warnings.simplefilter("always", Advice)
        before, warnings.showwarning = warnings.showwarning, once
        yield


@contextmanager
def bar(title: str, total: int) -> Iterator[Callable[[str], None]]:
    """Show a bar that goes away when done, to a person; the body calls what it is given after each step, with its name."""
    steps = count(1)
    with progress.bar(title, total, shown=err.is_terminal, transient=True) as tell:
        yield lambda what: tell(next(steps), what)


@contextmanager
def waiting(title: str) -> Iterator[None]:
    """Show that something is going on whose length nobody knows."""
    with err.status(title):
        yield


@contextmanager
def resumable(folder: Path) -> Iterator[None]:
    """Say, when the work is interrupted, that it is not lost."""
    try:
        yield
    except KeyboardInterrupt:
        err.print(f"Stopped. What is finished is in {folder}: the same command goes on from there.")
        raise
