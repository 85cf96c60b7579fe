"""A line on the error stream that says how far long work is. The only bar there is.

Where nobody watches, in a file or a pipe, the bar is a plain line now and then.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

MINUTE = 60.0
SOON = 10.0  # the first line: long enough to know a speed, short enough to know that it runs


@contextmanager
def bar(
    title: str,
    total: int | None,
    *,
    shown: bool,
    done: int = 0,
    transient: bool = False,
    every: float = MINUTE,
) -> Iterator[Callable[[int, str], None]]:
    """Give the function to tell how much of `total` is done, and a few words; without `shown`, nothing is seen.

    A `transient` bar goes away in the end. What is no terminal gets a line soon, then one `every` so many seconds, and the last
    one unless that would have gone away.
    """
    if not shown:
        yield lambda completed, state: None
        return
    from rich.console import Console  # here: what shows nothing need not wait for it

    if not Console(stderr=True).is_terminal:
        with _lines(title, total, every, transient) as tell:
            yield tell
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    title_column, state_column = (
        TextColumn(what, markup=False) for what in ("{task.description}", "{task.fields[state]}")
    )
    columns = (title_column, BarColumn(), MofNCompleteColumn(), state_column)
    with Progress(
        *columns, TimeRemainingColumn(), console=Console(stderr=True), transient=transient
    ) as line:
        task = line.add_task(title, total=total, completed=done, state="")
        yield lambda completed, state: line.update(task, completed=completed, state=state)


@contextmanager
def _lines(
    title: str, total: int | None, every: float, transient: bool
) -> Iterator[Callable[[int, str], None]]:
    said, last = time.monotonic() - max(0.0, every - SOON), ""

    def line(completed: int, state: str) -> None:
        nonlocal said, last
        last = f"{title} {completed}/{'?' if total is None else total} {state}".rstrip()
        if time.monotonic() - said >= every:
            print(last, file=sys.stderr, flush=True)
            said, last = time.monotonic(), ""

    try:
        yield line
    finally:
        if last and not transient:
            print(last, file=sys.stderr, flush=True)


@contextmanager
def counted(
    title: str, total: int | None, *, shown: bool, done: int = 0
) -> Iterator[Callable[[int], None]]:
    """Show how many of `total` images are through, and how fast; without `shown`, nothing. Give the function to tell it."""
    with bar(title, total, shown=shown, done=done) as tell:
        begun = time.monotonic()

        def count(completed: int) -> None:
            speed = (completed - done) / max(time.monotonic() - begun, 1e-9)
            tell(completed, f"{speed:,.1f} images/s")

        yield count


def spoken(seconds: float) -> str:
    """A time as people say it.

    >>> spoken(0.4), spoken(75.0), spoken(5000.0)
    ('about 1 s', 'about 1 min', 'about 1.4 h')
    """
    if seconds < 60:
        return f"about {max(1, round(seconds))} s"
    return f"about {seconds / 60:.0f} min" if seconds < 3600 else f"about {seconds / 3600:.1f} h"
