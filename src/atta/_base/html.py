"""Small HTML tables for notebooks, with every text escaped, and short forms of long lists."""

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from html import escape

LONG = 160  # characters that are shown completely
FEW = 3


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
