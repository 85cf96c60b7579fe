"""What a person sees in a terminal: tables, bars, and that something is going on. Answers go to `out`, all else to `err`.

What is printed is said as it is: a name like `[bold]` is a name. Printing never ends a command (`unfailing`): what an output's
encoding has no letter for is replaced, and an output that is closed or full is given up, and told at the end.
"""

import codecs
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import StringIO
from itertools import count, takewhile
from pathlib import Path
from typing import Any, TextIO, cast

from rich.cells import cell_len
from rich.console import Console, JustifyMethod
from rich.table import Table as RichTable
from rich.text import Text

from atta._base import progress
from atta._base.errors import Advice, InputError
from atta._base.files import readable, whole_file
from atta.results.table import Table

_WIDE = "COLUMNS" in os.environ or (sys.stdout is not None and sys.stdout.isatty())
out = Console(width=None if _WIDE else 160)  # a pipe must not cut numbers off
err = Console(stderr=True)


def tell(answer: str, *, folded: bool = False, **style: Any) -> None:
    """Give an answer, a line however long; `folded` breaks it between words where a terminal is narrower."""
    wide = not (folded and _WIDE)
    out.print(readable(answer), soft_wrap=wide, markup=False, highlight=False, emoji=False, **style)


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
    """Print a table, the best cells bold, and below it what its marks say.

    Numbers are never cut or folded: what does not fit the width stands in blocks of columns, one below the other.
    """
    heads = list(map(readable, table.header))
    cells = [
        [readable(table.shown(i, j)) for j in range(len(row))] for i, row in enumerate(table.cells)
    ]
    title = Text(readable(table.title))
    for widths in _blocks(table, heads, cells):
        rich = RichTable(
            title_justify="left", title_style="bold", header_style="bold", box=None, pad_edge=False
        )
        rich.title, title = title, Text()
        for j, width in widths.items():
            side: JustifyMethod = "right" if table.is_numeric(j) else "left"
            rich.add_column(
                Text("\n".join(_folded(heads[j], width))),
                justify=side,
                width=width,
                overflow="fold",
            )
        for i, row in enumerate(cells):
            rich.add_row(
                *(Text(row[j], style="bold green" if (i, j) in table.best else "") for j in widths)
            )
        out.print()
        out.print(rich)
    if table.legend:
        out.print(table.legend, style="dim", markup=False, highlight=False)
    out.print()


GAP = 2  # between columns
WORDS = 24  # letters of what is said in a cell that stand in a line, at least


def _blocks(table: Table, heads: list[str], cells: list[list[str]]) -> list[dict[int, int]]:
    """The columns that stand beside each other with their widths; what names the lines stands at the head of each block."""
    whole = [max(map(cell_len, column)) for column in zip(heads, *cells, strict=True)]
    if sum(whole) + GAP * (len(whole) - 1) <= out.width:
        return [dict(enumerate(whole))]
    ways = [_least(table, heads, cells, out.width // part) for part in (3, 4)]
    columns, least = min(
        ((_dealt(table, least), least) for least in ways), key=lambda way: len(way[0])
    )
    return [_widened(block, least, whole) for block in columns]


def _dealt(table: Table, least: list[int]) -> list[list[int]]:
    named = list(takewhile(lambda j: not table.is_numeric(j), range(len(least))))
    stub = named if sum(least[j] + GAP for j in named) <= out.width * 2 // 3 else [0]
    blocks = [list(stub)]
    for j in range(len(stub), len(least)):
        if (
            len(blocks[-1]) > len(stub)
            and sum(least[i] + GAP for i in blocks[-1]) + least[j] > out.width
        ):
            blocks.append(list(stub))
        blocks[-1].append(j)
    return blocks


def _least(table: Table, heads: list[str], cells: list[list[str]], name: int) -> list[int]:
    """The least width of each column: all of a number, a few words of what is said, `name` letters of what names a line.

    What is short, as "0.12 to 0.34" is, breaks once at most.
    """
    found = []
    for j, head in enumerate(heads):
        column = [row[j] for row in cells]
        words = max((cell_len(word) for text in column for word in text.split()), default=0)
        longest = max(map(cell_len, column), default=0)
        said = WORDS if longest > WORDS else max(words, longest // 2 + 1)
        inside = longest if table.is_numeric(j) else said if j else min(longest, name)
        found.append(
            min(out.width, max(inside, *(cell_len(part.rstrip()) for part in ("", *_parts(head)))))
        )
    return found


def _widened(columns: list[int], least: list[int], whole: list[int]) -> dict[int, int]:
    """Give the room that is left to those that lack the least of being whole, first."""
    widths = {j: least[j] for j in columns}
    left = out.width - sum(widths.values()) - GAP * (len(columns) - 1)
    for j in sorted(columns, key=lambda j: whole[j] - least[j]):
        more = max(0, min(whole[j] - least[j], left))
        widths[j], left = widths[j] + more, left - more
    return widths


def _parts(head: str) -> list[str]:
    """Where the name of a column may be broken: after a space or an underscore."""
    return re.findall(r"[^ _]*[ _]+|[^ _]+", head)


def _folded(head: str, width: int) -> list[str]:
    """The name of a column in lines of that width."""
    lines = [""]
    for part in _parts(head):
        if lines[-1] and cell_len(lines[-1] + part.rstrip()) > width:
            lines.append("")
        lines[-1] += part
    return [line.rstrip() for line in lines]


def formatted(style: str) -> Callable[[Table], None]:
    """Return what prints a table in that style."""
    styles: dict[str, Callable[[Table], None]] = {
        "table": show,
        "markdown": lambda table: _plain(
            "\n\n".join(filter(None, (table.markdown(), table.legend))), end="\n\n"
        ),
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

    def once(
        message: Warning | str, category: type[Warning], *where: object, **more: object
    ) -> None:
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
            with suppress(
                OSError, ValueError
            ):  # what it still holds would fail again when the interpreter ends
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
    return "".join(
        PLAIN.get(letter, "?") for letter in error.object[error.start : error.end]
    ), error.end
