"""Parameters as a table: name, type and default from the signature, meaning from the docstring.

A signature above a table names its arguments and defaults only.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from docutils import nodes
from sphinx import addnodes

HEADER = ("argument", "type", "default", "meaning")
LONGEST = 40  # letters of a default
SEPARATORS = (" -- ", " \N{EN DASH} ")
"""What Sphinx puts between a name and its meaning, before and after it sets quotes."""
Cell = Sequence[nodes.Node]


def _tables(app: Any, tree: nodes.document) -> None:
    """Replace each list of parameters."""
    for described in list(tree.findall(addnodes.desc)):
        for body in _lists(described):
            rows = [row for paragraph in body.findall(nodes.paragraph) for row in _row(paragraph)]
            if rows:
                signature = described.next_node(addnodes.desc_signature)
                parameters = _parameters(signature)
                table = _table(rows, parameters)
                body.clear()
                body += table
                _without_types(parameters.values())


def _lists(described: addnodes.desc) -> Iterator[nodes.Element]:
    """The lists of parameters of this object itself, not of its methods."""
    for content in described.children:
        if not isinstance(content, addnodes.desc_content):
            continue
        for fields in content.children:
            if isinstance(fields, nodes.field_list):
                for field in fields.children:
                    name, body = field.children
                    if name.astext() == "Parameters":
                        yield body


def _row(paragraph: nodes.paragraph) -> Iterator[tuple[str, Cell]]:
    """The name and the meaning of a parameter, if the paragraph describes one."""
    name, *rest = paragraph.children
    if isinstance(name, addnodes.literal_strong) and rest and isinstance(rest[0], nodes.Text):
        for separator in SEPARATORS:
            if rest[0].startswith(separator):
                yield name.astext(), [nodes.Text(rest[0].removeprefix(separator)), *rest[1:]]


def _parameters(signature: Any) -> dict[str, addnodes.desc_parameter]:
    """The parameters of a signature, by their names."""
    found = signature.findall(addnodes.desc_parameter) if signature is not None else ()
    names = ((one.next_node(addnodes.desc_sig_name), one) for one in found)
    return {name.astext(): one for name, one in names if name is not None}


def _without_types(parameters: Any) -> None:
    """Leave the names and the defaults: `name=default`."""
    for parameter in parameters:
        kept: list[nodes.Node] = []
        for child in parameter.children:
            if isinstance(child, addnodes.desc_sig_punctuation) and child.astext() == ":":
                continue
            if isinstance(child, addnodes.desc_sig_space):
                continue
            named = any(isinstance(one, addnodes.desc_sig_name) for one in kept)
            if not (named and isinstance(child, addnodes.desc_sig_name)):
                kept.append(child)
        parameter.clear()
        parameter.extend(kept)
        for default in parameter.findall(nodes.inline):
            if "default_value" in default["classes"] and len(default.astext()) > LONGEST:
                default.clear()
                default += nodes.Text("...")


def _table(rows: list[tuple[str, Cell]], parameters: dict[str, Any]) -> nodes.table:
    lines = []
    for name, meaning in rows:
        kind, default = _type_and_default(parameters.get(name.lstrip("*")))
        lines.append(([nodes.literal("", name)], kind, default, meaning))
    filled = [column for column in range(4) if any(line[column] for line in lines)]
    head = [[nodes.Text(HEADER[column])] for column in filled]
    group = nodes.tgroup(cols=len(filled))
    group += [nodes.colspec(colwidth=1) for _ in filled]
    group += nodes.thead("", _cells(head))
    group += nodes.tbody("", *(_cells([line[column] for column in filled]) for line in lines))
    return nodes.table("", group, classes=["parameters"])


def _cells(cells: Sequence[Cell]) -> nodes.row:
    entries = (nodes.entry("", *_paragraph(cell)) for cell in cells)
    return nodes.row("", *entries)


def _paragraph(cell: Cell) -> list[nodes.Node]:
    return [nodes.paragraph("", "", *(one.deepcopy() for one in cell))] if cell else []


def _type_and_default(parameter: Any) -> tuple[Cell, Cell]:
    """The parts of `name: type = default`."""
    if parameter is None:
        return [], []
    names = [child for child in parameter.children if isinstance(child, addnodes.desc_sig_name)]
    defaults = [
        one
        for one in parameter.children
        if isinstance(one, nodes.inline) and "default_value" in one["classes"]
    ]
    kind = [nodes.literal("", one.astext()) for one in names[1:2]]
    return kind, [
        nodes.literal("", one.astext()) for one in defaults if len(one.astext()) <= LONGEST
    ]


def setup(app: Any) -> dict[str, Any]:
    """Rewrite trees as soon as they are read."""
    app.connect("doctree-read", _tables)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
