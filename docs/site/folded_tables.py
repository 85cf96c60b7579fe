"""Fold long tables of measurements: the site shows their size, a click shows the rows."""

import html
from typing import Any

from docutils import nodes

LONGEST = 10  # rows of a table that is not folded
PAGES = (
    "method",
    "past-the-paper",
    "reliability",
    "risk",
    "segmentation",
    "shift",
    "speed",
    "which-method",
)


def _fold(app: Any, tree: nodes.document) -> None:
    """Put each long table into an element that opens."""
    if app.env.docname.removeprefix("docs/") not in PAGES:
        return
    for table in list(tree.findall(nodes.table)):
        rows = sum(len(body.children) for body in table.findall(nodes.tbody))
        if rows > LONGEST:
            header = next(iter(table.findall(nodes.thead)), None)
            names = [cell.astext() for cell in header.findall(nodes.entry)] if header else []
            columns = ", ".join(dict.fromkeys(name for name in names if name))
            said = html.escape(columns or "numbers")
            opened = f'<details class="folded"><summary>Table, {rows} rows: {said}</summary>'
            place = table.parent.index(table)
            table.parent.insert(place, nodes.raw("", opened, format="html"))
            table.parent.insert(place + 2, nodes.raw("", "</details>", format="html"))


def setup(app: Any) -> dict[str, Any]:
    """Fold tables as soon as a page is read."""
    app.connect("doctree-read", _fold)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
