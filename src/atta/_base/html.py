"""Small tables for notebooks: every word in them is escaped. And lists of a thousand names as the first few of them."""

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from html import escape

LONG = 160  # letters that are read at a glance
FEW = 5


def listed(value: object) -> list[str]:
    """What a list, or a text that is one in JSON, holds; any other value is all there is.

    >>> listed('["ant", "bee"]'), listed("a word")
    (['ant', 'bee'], ['a word'])
    """
    if isinstance(value, str) and value.startswith("["):
        with suppress(ValueError, RecursionError):
            value = json.loads(value)
    return [str(one) for one in value] if isinstance(value, list | tuple) else [str(value)]


def shortened(value: object) -> str:
    """A value as people read it at a glance: of many names the first few and how many there are.

    >>> shortened([f"class {i} with a long name" for i in range(1000)])
    'class 0 with a long name · class 1 with a long name · class 2 with a long name · … (1000 in all)'
    """
    every = listed(value)
    whole = str(value) if len(every) == 1 else ", ".join(every)
    if len(whole) <= LONG:
        return whole
    first = every[:FEW]
    while len(first) > 1 and sum(map(len, first)) > LONG // 2:
        first.pop()
    shown = " · ".join(one if len(one) <= LONG // 2 else one[: LONG // 2] + "…" for one in first)
    return f"{shown} · … ({len(every)} in all)" if len(every) > len(first) else shown


def html_table(
    header: Sequence[object], rows: Iterable[Sequence[object]], *, title: str = "", note: str = ""
) -> str:
    """A table as HTML: the first column to the left, the others to the right.

    >>> html_table([""], [["<b>"]])
    '<table><tbody><tr><td style="text-align:left">&lt;b&gt;</td></tr></tbody></table>'
    """

    def line(tag: str, cells: Sequence[object]) -> str:
        sides = ("left", *("right" for _ in cells[1:]))
        pairs = zip(sides, cells, strict=True)
        inside = (
            f'<{tag} style="text-align:{side}">{escape(str(cell))}</{tag}>' for side, cell in pairs
        )
        return f"<tr>{''.join(inside)}</tr>"

    body = "".join(line("td", row) for row in rows)
    head = f"<thead>{line('th', header)}</thead>" if any(map(str, header)) else ""
    caption = f'<caption style="text-align:left">{escape(title)}</caption>' if title else ""
    below = f"<p>{escape(note)}</p>" if note else ""
    return f"<table>{caption}{head}<tbody>{body}</tbody></table>{below}"
