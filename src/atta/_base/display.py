"""What is shown: a progress bar on the error stream, small tables for notebooks, short lists."""

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from html import escape

LONG = 160  # characters that are shown completely
FEW = 3
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


def listed(value: object) -> list[str]:
    """Return the items of a list, or of a JSON list in text, as text; other values are one item.

    >>> listed('["ant", "bee"]'), listed("a word")
    (['ant', 'bee'], ['a word'])
    """
    if isinstance(value, str) and value.startswith("["):
        with suppress(ValueError, RecursionError):
            value = json.loads(value)
    return [str(one) for one in value] if isinstance(value, list | tuple) else [str(value)]


def shortened(value: object) -> str:
    """Return a value as short text: of many names the first few and how many there are.

    >>> shortened([f"class {i} has a long name" for i in range(1000)])
    'class 0 has a long name · class 1 has a long name · class 2 has a long name · … (1000 in all)'
    """
    every = listed(value)
    whole = str(value) if len(every) == 1 else ", ".join(every)
    if len(whole) <= LONG:
        return whole
    half = LONG // 2
    shown = " · ".join(one if len(one) <= half else one[:half] + "…" for one in every[:FEW])
    return f"{shown} · … ({len(every)} in all)" if len(every) > FEW else shown


def html_table(
    header: Sequence[object], rows: Iterable[Sequence[object]], *, title: str = "", note: str = ""
) -> str:
    """Return a table as HTML: the first column aligned to the left, the others to the right.

    >>> html_table([""], [["<b>"]])
    '<table><tbody><tr><td style="text-align:left">&lt;b&gt;</td></tr></tbody></table>'
    """

    def line(tag: str, cells: Sequence[object]) -> str:
        inside = ""
        for j, cell in enumerate(cells):
            side = "right" if j else "left"
            inside += f'<{tag} style="text-align:{side}">{escape(str(cell))}</{tag}>'
        return f"<tr>{inside}</tr>"

    body = "".join(line("td", row) for row in rows)
    head = f"<thead>{line('th', header)}</thead>" if any(map(str, header)) else ""
    caption = f'<caption style="text-align:left">{escape(title)}</caption>' if title else ""
    below = f"<p>{escape(note)}</p>" if note else ""
    return f"<table>{caption}{head}<tbody>{body}</tbody></table>{below}"
