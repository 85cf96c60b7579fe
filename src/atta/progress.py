"""A line on the error stream that says how far long work is."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def counted(title: str, total: int | None, *, shown: bool, done: int = 0) -> Iterator[Callable[[int], None]]:
    """Show how many of `total` images are through, and how fast; without `shown`, nothing. Give the function to tell it."""
    if not shown:
        yield lambda completed: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[speed]}"))
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        task, begun = bar.add_task(title, total=total, completed=done, speed=""), time.monotonic()

        def tell(completed: int) -> None:
            speed = (completed - done) / max(time.monotonic() - begun, 1e-9)
            bar.update(task, completed=completed, speed=f"{speed:,.1f} images/s")

        yield tell
