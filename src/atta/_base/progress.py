"""A progress bar on the error stream; without a terminal, a plain line now and then."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

MINUTE = 60.0
SOON = 10.0  # seconds to the first line: long enough to know the speed


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
    """Yield a function that shows how much of `total` is done, and a few words.

    A `transient` bar disappears at the end. Without a terminal there is a line soon, then one
    `every` so many seconds, and a last one unless the bar is transient.
    """
    if not shown:
        yield lambda completed, state: None
        return
    from rich import progress  # here: imported only if something is shown
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
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
        return
    columns = (
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TextColumn("{task.fields[state]}", markup=False),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=console, transient=transient) as shown_bar:
        task = shown_bar.add_task(title, total=total, completed=done, state="")
        yield lambda completed, state: shown_bar.update(task, completed=completed, state=state)


@contextmanager
def counted(
    title: str, total: int | None, *, shown: bool, done: int = 0
) -> Iterator[Callable[[int], None]]:
    """Yield a function that shows how many of `total` images are done, and how fast."""
    with bar(title, total, shown=shown, done=done) as tell:
        begun = time.monotonic()

        def count(completed: int) -> None:
            speed = (completed - done) / max(time.monotonic() - begun, 1e-9)
            tell(completed, f"{speed:,.1f} images/s")

        yield count
