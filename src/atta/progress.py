"""A line on the error stream that says how far long work is."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def counted(title: str, total: int | None, *, shown: bool, done: int = 0) -> Iterator[Callable[..., None]]:
    """Show how many of `total` are through; without `shown`, nothing. Give the function to tell it.

    It is told how many, and what to say beside it, which is how many images a second if nothing is said.
    """
    if not shown:
        yield lambda completed, state="": None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[state]}"))
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        task, begun = bar.add_task(title, total=total, completed=done, state=""), time.monotonic()

        def tell(completed: int, state: str = "") -> None:
            speed = (completed - done) / max(time.monotonic() - begun, 1e-9)
            bar.update(task, completed=completed, state=state or f"{speed:,.1f} images/s")

        yield tell
