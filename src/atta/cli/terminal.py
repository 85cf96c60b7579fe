"""What a person sees in a terminal: tables, bars, and that something is going on. Answers go to `out`, all else to `err`.

What is printed is said as it is: a name like `[bold]` is a name. Printing never ends a command (`unfailing`): what an output's
encoding has no letter for is replaced, and an output that is closed or full is given up, and told at the end.
"""

import codecs
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import StringIO
from itertools import count
from pathlib import Path
from typing import Any, TextIO, cast

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from atta import progress
from atta.errors import Advice, InputError
from atta.files import readable, whole_file
from atta.results.table import Table

_WIDE = "COLUMNS" in os.environ or (sys.stdout is not None and sys.stdout.isatty())
out = Console(width=None if _WIDE else 160)  # a pipe must not cut numbers off
err = Console(stderr=True)


def tell(answer: str, **style: Any) -> None:
    """Give an answer, a line however long."""
    out.print(readable(answer), soft_wrap=True, markup=False, highlight=False, emoji=False, **style)


def say(line: str) -> None:
    """Say one line, however long, beside the answers."""
    err.print(readable(line), soft_wrap=True, markup=False, highlight=False, emoji=False)


def say_written(**paths: Path | None) -> None:
    """Say where what was asked for is; it is there before anything is printed."""
    for what, path in paths.items():
        if path is not None:
            say(f"{what}: {path}")


def write_numbers(file: Path | None, text: str) -> Path | None:
    """Write JSON to a file; to the output itself if that is -, and what else the command answers beside it from then on."""
    if file is None:
        return None
    if str(file) == "-":
        _plain(text.rstrip("\n"))
        out.stderr = True
        return None
    with whole_file(file) as part:
        part.write_text(text, encoding="utf-8", newline="\n")
    return file


def fail(sentence: str) -> None:
    """Say what ends the command."""
    err.print(Text("error: ", style="bold red") + Text(readable(sentence)))


def show(table: Table) -> None:
    """Print a table, the best cells bold, and below it what its marks say."""
    rich = RichTable(title_justify="left", title_style="bold", header_style="bold", box=None, pad_edge=False)
    rich.title = Text(readable(table.title))
    for j, name in enumerate(table.header):
        rich.add_column(Text(readable(name)), justify="right" if table.is_numeric(j) else "left", no_wrap=j == 0)
    for i, row in enumerate(table.cells):
        styles = ("bold green" if (i, j) in table.best else "" for j in range(len(row)))
        rich.add_row(*(Text(readable(table.shown(i, j)), style=style) for j, style in enumerate(styles)))
    out.print()
    out.print(rich)
    if table.legend:
        out.print(table.legend, style="dim", markup=False, highlight=False)
    out.print()


def formatted(style: str) -> Callable[[Table], None]:
    """Return what prints a table in that style."""
    styles: dict[str, Callable[[Table], None]] = {
        "table": show,
        "markdown": lambda table: _plain("\n\n".join(filter(None, (table.markdown(), table.legend))), end="\n\n"),
        "csv": lambda table: _plain(table.csv(), end=""),
        "latex": lambda table: _plain(table.latex()),
    }
    if style not in styles:
        raise InputError(f"--format takes {', '.join(styles)}, got {style!r}")
    return styles[style]


def _plain(text: str, end: str = "\n") -> None:
    print(readable(text), end=end, file=out.file, flush=True)


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
        try:
            yield
        finally:
            out.stderr = False  # where `write_numbers` may have sent it


@contextmanager
def bar(title: str, total: int) -> Iterator[Callable[[str], None]]:
    """Show a bar that goes away when done, or a line a minute; the body calls what it is given after each step."""
    steps = count(1)
    with progress.bar(title, total, shown=True, transient=True) as tell:
        yield lambda what: tell(next(steps), what)


@contextmanager
def waiting(title: str) -> Iterator[None]:
    """Show that something is going on whose length nobody knows."""
    with err.status(Text(readable(title))):
        yield


@contextmanager
def resumable(folder: Path) -> Iterator[None]:
    """Say, when the work is interrupted, that it is not lost."""
    try:
        yield
    except KeyboardInterrupt:
        say(f"Stopped. What is finished is in {folder}: the same command goes on from there.")
        raise


# ---- outputs that fail ---------------------------------------------------------------------------------------------

PLAIN = {"→": "->", "✓": "+", "✗": "x", "±": "+-", "·": "|", "–": "-", "×": "x", "−": "-", "…": "..."}
"""What stands for a sign where an output has no letter for it; for all others it is ?."""


class Unfailing:
    """A stream that is written to as long as it can be: one that is closed or full is given up, with `failed` as the reason."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.failed: OSError | None = None
        with suppress(AttributeError, ValueError, OSError):  # a stream of letters, not of bytes
            stream.reconfigure(errors="atta-plain")

    def write(self, text: str) -> int:
        """Write, or do as if."""
        self._try(lambda: self.stream.write(text))
        return len(text)

    def flush(self) -> None:
        """Flush, or do as if."""
        self._try(self.stream.flush)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def _try(self, act: Callable[[], object]) -> None:
        if self.failed is not None:
            return
        try:
            act()
        except OSError as error:
            self.failed = error
            with suppress(OSError, ValueError):  # what it still holds would fail again when the interpreter ends
                os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())


@contextmanager
def unfailing() -> Iterator[Unfailing]:
    """Let nothing that is printed in the block raise; give the stream of answers, which says how it went."""
    codecs.register_error("atta-plain", _replaced)
    before = sys.stdout, sys.stderr  # None where a shell closed it
    answers, rest = (Unfailing(StringIO() if stream is None else stream) for stream in before)
    sys.stdout, sys.stderr = cast(TextIO, answers), cast(TextIO, rest)
    try:
        yield answers
    finally:
        answers.flush()
        rest.flush()
        sys.stdout, sys.stderr = before


def _replaced(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(PLAIN.get(letter, "?") for letter in error.object[error.start : error.end]), error.end
