"""What a terminal shows: answers on `out`; progress, notes and errors on `err`.

Text is printed as it is: a name like `[bold]` is not markup. Printing never ends a command
(`unfailing`): characters that the output cannot encode are replaced, and a closed or full output is
given up and reported at the end.
"""

import codecs
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from io import StringIO
from itertools import count
from pathlib import Path
from typing import Any, TextIO, cast

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from atta._base import display
from atta._base.errors import InputError
from atta._base.files import readable, whole_file
from atta.results.table import Table

_WIDE = "COLUMNS" in os.environ or (sys.stdout is not None and sys.stdout.isatty())
# Numbers must not be cut in a pipe.
out = Console(width=None if _WIDE else 160, markup=False, highlight=False, emoji=False)
err = Console(stderr=True, markup=False, highlight=False, emoji=False)


def tell(answer: str, *, folded: bool = False) -> None:
    """Print an answer; `folded` breaks long lines between words if this is a terminal."""
    out.print(readable(answer), soft_wrap=not (folded and _WIDE))


def say(line: str) -> None:
    """Print one line, however long, on the error stream."""
    err.print(readable(line), soft_wrap=True)


def say_written(**paths: Path | None) -> None:
    """Name the files that were written."""
    for what, path in paths.items():
        if path is not None:
            say(f"{what}: {path}")


def write_numbers(file: Path | None, text: str) -> Path | None:
    """Write JSON to a file; - prints it, and sends all later answers to the error stream."""
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
    """Print the error that ends the command."""
    err.print(Text("error: ", style="bold red") + Text(readable(as_options(sentence))))


def as_options(sentence: str) -> str:
    """Write the Python arguments in a message as options, if a command has them.

    >>> as_options("give labels=... (--labels FILE), or method='temperature', and skip_bad=True")
    'give --labels FILE, or --method temperature, and --skip-bad'
    >>> as_options("pass ignore_index=11")
    'pass --ignore-index 11'
    """
    if "=" not in sentence:
        return sentence
    from typer.main import get_command

    from atta.cli.app import commands  # which imports this module

    group: Any = get_command(commands)
    every = [option for command in group.commands.values() for option in command.params]
    known = {name for option in every for name in (*option.opts, *option.secondary_opts)}

    def option(found: re.Match[str]) -> str:
        name, value = found[1].replace("_", "-"), found[2].strip("'")
        flags = {"True": f"--{name}", "False": f"--no-{name}"}
        written = flags.get(value, f"--{name} {value}")
        return written if written.split()[0] in known else found[0]

    sentence = re.sub(r"\b[a-z_]+=\.\.\. \((--[^)]+)\)", r"\1", sentence)
    return re.sub(r"\b([a-z_]+)=('[^']+'|True|False|-?\d+)", option, sentence)


GAP = 2
"""Columns of space between cells."""
WORDS = 24
"""Width of a column of sentences, at least."""


def show(table: Table) -> None:
    """Print a table, the best cells bold, and its legend.

    Numbers are never cut or folded: a table that is too wide is printed in blocks of columns.
    """
    heads = list(map(readable, table.header))
    cells = [
        [readable(table.shown(i, j)) for j in range(len(row))] for i, row in enumerate(table.cells)
    ]
    numeric = [table.is_numeric(j) for j in range(len(heads))]
    columns = list(zip(heads, *cells, strict=True))
    widths = [max(map(cell_len, column)) for column in columns]
    if sum(widths) + GAP * (len(widths) - 1) > out.width:
        most = [out.width if number else WORDS for number in numeric]
        most[0] = out.width // 3  # the names of the lines
        widths = list(map(_least_width, columns, most))
    title = Text(readable(table.title))
    for block in _blocks(widths, numeric):
        rich = RichTable(
            title_justify="left", title_style="bold", header_style="bold", box=None, pad_edge=False
        )
        rich.title, title = title, Text()
        for j in block:
            if numeric[j]:
                head = Text(_folded(heads[j], widths[j]))
                rich.add_column(head, justify="right", no_wrap=True)
            else:
                rich.add_column(Text(heads[j]), overflow="fold")
        for i, row in enumerate(cells):
            style = ["bold green" if (i, j) in table.best else "" for j in range(len(row))]
            rich.add_row(*(Text(row[j], style[j]) for j in block))
        out.print()
        out.print(rich)
    if table.legend:
        out.print(table.legend, style="dim")
    out.print()


def _least_width(column: Sequence[str], most: int) -> int:
    """Return the least width of a column: each part of its name, and cells up to `most`."""
    head, *cells = column
    least = min(most, max(map(cell_len, cells), default=0))
    return min(out.width, max([least, *(cell_len(part.rstrip()) for part in _parts(head))]))


def _blocks(widths: list[int], numeric: list[bool]) -> list[list[int]]:
    """Deal columns into blocks that fit; the columns that name the lines begin every block."""
    names = numeric.index(True) if True in numeric else len(numeric)
    if sum(widths[:names]) + GAP * names > out.width * 2 // 3:
        names = 1
    blocks = [list(range(names))]
    for j in range(names, len(widths)):
        full = sum(widths[i] + GAP for i in blocks[-1]) + widths[j] > out.width
        if full and len(blocks[-1]) > names:
            blocks.append(list(range(names)))
        blocks[-1].append(j)
    return blocks


def _parts(head: str) -> list[str]:
    """Split the name of a column after spaces and underscores."""
    return re.findall(r"[^ _]*[ _]+|[^ _]+", head)


def _folded(head: str, width: int) -> str:
    """Break the name of a column into lines of this width."""
    lines = [""]
    for part in _parts(head):
        if lines[-1] and cell_len(lines[-1] + part.rstrip()) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(line.rstrip() for line in lines)


def formatted(style: str) -> Callable[[Table], None]:
    """Return the function that prints a table in a style."""
    styles: dict[str, Callable[[Table], None]] = {
        "table": show,
        "markdown": lambda table: _plain(f"{table.markdown()}\n\n{table.legend}".rstrip() + "\n"),
        "csv": lambda table: _plain(table.csv().removesuffix("\n")),
        "latex": lambda table: _plain(table.latex()),
    }
    if style not in styles:
        raise InputError(f"--format: expected {', '.join(styles)}, got {style!r}")
    return styles[style]


def _plain(text: str) -> None:
    print(readable(text), file=out.file, flush=True)


@contextmanager
def advised() -> Iterator[None]:
    """Print each different warning once, as a note."""
    said = set[str]()

    def once(
        message: Warning | str, category: type[Warning], *where: object, **more: object
    ) -> None:
        if not issubclass(category, UserWarning):
            before(message, category, *where, **more)  # type: ignore[arg-type]
        elif str(message) not in said:
            said.add(str(message))
            say(f"note: {as_options(str(message))}")

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        before, warnings.showwarning = warnings.showwarning, once
        try:
            yield
        finally:
            out.stderr = False  # `write_numbers` may have set it


@contextmanager
def bar(title: str, total: int) -> Iterator[Callable[[str], None]]:
    """Show progress; the function that is yielded counts a step, with a word on it."""
    steps = count(1)
    with display.bar(title, total, shown=True, transient=True) as tell:
        yield lambda what: tell(next(steps), what)


@contextmanager
def waiting(title: str) -> Iterator[None]:
    """Show that something of unknown length is running."""
    with err.status(Text(readable(title))):
        yield


@contextmanager
def resumable(output: Path) -> Iterator[None]:
    """Say, if the work is interrupted, that it can be resumed."""
    try:
        yield
    except KeyboardInterrupt:
        say(f"Stopped. What is finished is kept for {output}: the same command resumes.")
        raise


# ---- outputs that fail ---------------------------------------------------------------------------

PLAIN = {
    "→": "->",
    "✓": "+",
    "✗": "x",
    "±": "+-",
    "·": "|",
    "–": "-",
    "×": "x",
    "−": "-",
    "…": "...",
}
"""Replacements for characters that an output cannot encode; all others become ?."""


class Unfailing:
    """A stream that stops writing, and keeps the error, once it is closed or full."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.failed: OSError | None = None
        with suppress(AttributeError, ValueError, OSError):  # not a stream of bytes
            stream.reconfigure(errors="atta-plain")

    def write(self, text: str) -> int:
        """Write, or do nothing after an error."""
        self._try(self.stream.write, text)
        return len(text)

    def flush(self) -> None:
        """Flush, or do nothing after an error."""
        self._try(self.stream.flush)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def _try(self, act: Callable[..., object], *text: str) -> None:
        if self.failed is None:
            try:
                act(*text)
            except OSError as error:
                self.failed = error
                # The rest of its buffer would fail again when the interpreter ends.
                with suppress(OSError, ValueError):
                    os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())


@contextmanager
def unfailing() -> Iterator[Unfailing]:
    """Keep printing from raising; yield the stream of answers, which keeps the first error."""
    codecs.register_error("atta-plain", _replaced)  # type: ignore[arg-type]
    streams = (sys.stdout, sys.stderr)  # None where a shell closed it
    answers, rest = (Unfailing(StringIO() if stream is None else stream) for stream in streams)
    with redirect_stdout(cast(TextIO, answers)), redirect_stderr(cast(TextIO, rest)):
        try:
            yield answers
        finally:
            answers.flush()
            rest.flush()


def _replaced(error: UnicodeEncodeError) -> tuple[str, int]:
    letters = error.object[error.start : error.end]
    return "".join(PLAIN.get(letter, "?") for letter in letters), error.end
