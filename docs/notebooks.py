"""Write examples/notebooks from the examples: run each, and put its output under its cells.

`python docs/notebooks.py` writes all of them, `python docs/notebooks.py from_model` only one.
"""

import contextlib
import io
import json
import re
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parent.parent / "examples"
NOTEBOOKS = EXAMPLES / "notebooks"
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


def notebook(script: Path, outputs: list[str] | None = None) -> dict[str, Any]:
    """The notebook of a script (nbformat 4), with the output of each cell."""
    made, printed = [], iter(outputs or [])
    for number, (kind, text) in enumerate(cells(script)):
        cell: dict[str, Any] = {
            "cell_type": kind,
            "id": f"cell-{number}",
            "metadata": {},
            "source": text.splitlines(keepends=True),
        }
        if kind == "code":
            said = next(printed, "")
            stream = {
                "name": "stdout",
                "output_type": "stream",
                "text": said.splitlines(keepends=True),
            }
            cell |= {"execution_count": number, "outputs": [stream] if said else []}
        made.append(cell)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": made, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def run(script: Path) -> list[str]:
    """What each cell of code prints, with the names of temporary folders left out."""
    names: dict[str, Any] = {"__name__": "__main__"}
    said = []
    for kind, text in cells(script):
        if kind == "code":
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(text, script.name, "exec"), names)
            said.append(re.sub(re.escape(tempfile.gettempdir()) + r"/tmp\w+/", "", out.getvalue()))
    return said


if __name__ == "__main__":
    sys.path.insert(0, str(EXAMPLES.parent / "tests" / "beside"))
    import torchvision_operators  # noqa: F401  # for a torch of another build than torchvision

    warnings.simplefilter("ignore")  # atta warns of the few images
    NOTEBOOKS.mkdir(exist_ok=True)
    for example in scripts():
        if sys.argv[1:] and example.stem not in sys.argv[1:]:
            continue
        made = notebook(example, run(example))
        path = NOTEBOOKS / f"{example.stem}.ipynb"
        path.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(path)
