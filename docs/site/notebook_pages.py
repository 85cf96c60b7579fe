"""Notebooks as pages of the site: prose, code, what it printed, and its pictures."""

import base64
import html
import json
from pathlib import Path
from typing import Any

from docutils import nodes
from myst_parser.parsers.sphinx_ import MystParser


class NotebookParser(MystParser):
    """Read a notebook as the Markdown that says the same."""

    supported = ("notebook",)

    def parse(self, inputstring: str, document: nodes.document) -> None:
        """Parse one notebook (nbformat 4)."""
        name = Path(document["source"]).stem
        super().parse(markdown(json.loads(inputstring), name), document)


def markdown(notebook: dict[str, Any], name: str) -> str:
    """A notebook as Markdown, with links to its script and to itself below its title."""
    pieces = []
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            pieces.append(text)
            continue
        pieces.append(f"```python\n{text}\n```")
        pieces += [shown for output in cell["outputs"] if (shown := _shown(output, name))]
    title, _, rest = pieces[0].partition("\n")
    links = f"As a script: [{name}.py](../{name}.py). [All examples](../../docs/gallery.md)."
    return "\n\n".join([title.rstrip("."), rest.strip(), links, *pieces[1:]]) + "\n"


def _shown(output: dict[str, Any], name: str) -> str:
    """What a cell printed, or a picture that it made."""
    if output["output_type"] == "stream":
        return f"```{{code-block}} text\n:class: printed\n\n{''.join(output['text'])}\n```"
    for kind, data in output.get("data", {}).items():
        if kind.startswith("image/"):
            content = "".join(data)
            if kind == "image/svg+xml":
                content = base64.b64encode(content.encode()).decode()
            alt = html.escape(output.get("metadata", {}).get("alt", f"Picture of {name}"))
            return f'<img class="chart" alt="{alt}" src="data:{kind};base64,{content.strip()}">'
    return ""


def setup(app: Any) -> dict[str, Any]:
    """Let Sphinx read .ipynb files."""
    app.add_source_suffix(".ipynb", "notebook")
    app.add_source_parser(NotebookParser)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
