"""Write examples/notebooks from the examples: run each, and put its output under its cells.

`python docs/notebooks.py` writes all of them, `python docs/notebooks.py from_model` only one. The
first picture that an example saves becomes its thumbnail in docs/gallery.
"""

import base64
import contextlib
import io
import json
import re
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any, NamedTuple

EXAMPLES = Path(__file__).parent.parent / "examples"
NOTEBOOKS = EXAMPLES / "notebooks"
THUMBNAILS = Path(__file__).parent / "gallery"
PICTURES = {".svg": "image/svg+xml", ".png": "image/png"}
WAITING = {"serve"}
"""Examples that wait for requests and never end."""


def scripts() -> list[Path]:
    """The examples that become notebooks."""
    return sorted(path for path in EXAMPLES.glob("*.py") if path.stem not in WAITING)


def cells(script: Path) -> list[tuple[str, str]]:
    """The cells of a script, as (kind, text): its docstring as text, then its code.

    A cell ends at an empty line before a line that is not indented. Imports, functions and classes
    stay with what follows.
    """
    text = script.read_text(encoding="utf-8")
    _, docstring, code = text.split('"""', 2)
    title, _, rest = docstring.partition("\n")
    found, held = [("markdown", f"# {title}\n{rest}".strip())], ""
    for piece in re.split(r"\n\n+(?=\S)", code.strip()):
        held = f"{held}\n\n{piece}" if held else piece
        if not piece.startswith(("import ", "from ", "def ", "class ", "@")):
            found.append(("code", held))
            held = ""
    return [*found, *([("code", held)] if held else [])]


class Output(NamedTuple):
    """What one cell printed, and the pictures that it saved, by their names."""

    printed: str
    pictures: dict[str, bytes]


def notebook(script: Path, outputs: list[Output] | None = None) -> dict[str, Any]:
    """The notebook of a script (nbformat 4), with the output of each cell."""
    made, shown = [], iter(outputs or [])
    for number, (kind, text) in enumerate(cells(script)):
        cell: dict[str, Any] = {
            "cell_type": kind,
            "id": f"cell-{number}",
            "metadata": {},
            "source": text.splitlines(keepends=True),
        }
        if kind == "code":
            output = next(shown, Output("", {}))
            cell |= {"execution_count": number, "outputs": _outputs(output)}
        made.append(cell)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": made, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def _outputs(output: Output) -> list[dict[str, Any]]:
    """The output of a cell, as nbformat has it."""
    found: list[dict[str, Any]] = []
    if output.printed:
        text = output.printed.splitlines(keepends=True)
        found.append({"name": "stdout", "output_type": "stream", "text": text})
    for name, content in output.pictures.items():
        kind = PICTURES[Path(name).suffix]
        data = content.decode() if name.endswith(".svg") else base64.b64encode(content).decode()
        found.append(
            {
                "output_type": "display_data",
                "data": {kind: data},
                "metadata": {"alt": Path(name).stem},
            }
        )
    return found


def run(script: Path) -> list[Output]:
    """What each cell of code prints and draws; the names of temporary folders are left out."""
    names: dict[str, Any] = {"__name__": "__main__"}
    found, known = [], set()
    with tempfile.TemporaryDirectory() as folder:
        before, tempfile.tempdir = tempfile.tempdir, folder  # where the example puts its files
        try:
            for kind, text in cells(script):
                if kind != "code":
                    continue
                with contextlib.redirect_stdout(io.StringIO()) as out:
                    exec(compile(text, script.name, "exec"), names)
                printed = re.sub(re.escape(folder) + r"/tmp\w+/", "", out.getvalue())
                paths = [path for path in Path(folder).glob("*/*") if path.suffix in PICTURES]
                drawn = sorted(path for path in paths if path not in known)
                known |= set(drawn)
                found.append(Output(printed, {path.name: path.read_bytes() for path in drawn}))
        finally:
            tempfile.tempdir = before
    return found


if __name__ == "__main__":
    sys.path.insert(0, str(EXAMPLES.parent / "tests" / "beside"))
    import torchvision_operators  # noqa: F401  # for a torch of another build than torchvision

    warnings.simplefilter("ignore")  # atta warns of the few images
    NOTEBOOKS.mkdir(exist_ok=True)
    THUMBNAILS.mkdir(exist_ok=True)
    for example in scripts():
        if sys.argv[1:] and example.stem not in sys.argv[1:]:
            continue
        outputs = run(example)
        made = notebook(example, outputs)
        path = NOTEBOOKS / f"{example.stem}.ipynb"
        path.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(path)
        for name, content in [pair for out in outputs for pair in out.pictures.items()][:1]:
            (THUMBNAILS / example.stem).with_suffix(Path(name).suffix).write_bytes(content)
