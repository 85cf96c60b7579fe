"""Small tables for notebooks: every word in them is escaped."""

from collections.abc import Iterable, Sequence
from html import escape


def html_table(header: Sequence[object], rows: Iterable[Sequence[object]], *, title: str = "", note: str = "") -> str:
    """A table as HTML: the first column to the left, the others to the right.

    >>> html_table([""], [["<b>"]])
    '<table><tbody><tr><td style="text-align:left">&lt;b&gt;</td></tr></tbody></table>'
    """

    def line(tag: str, cells: Sequence[object]) -> str:
        sides = ("left", *("right" for _ in cells[1:]))
        pairs = zip(sides, cells, strict=True)
        inside = (f'<{tag} style="text-align:{side}">{escape(str(cell))}</{tag}>' for side, cell in pairs)
        return f"<tr>{''.join(inside)}</tr>"

    body = "".join(line("td", row) for row in rows)
    head = f"<thead>{line('th', header)}</thead>" if any(map(str, header)) else ""
    caption = f'<caption style="text-align:left">{escape(title)}</caption>' if title else ""
    below = f"<p>{escape(note)}</p>" if note else ""
    return f"<table>{caption}{head}<tbody>{body}</tbody></table>{below}"
