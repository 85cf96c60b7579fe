"""The site: `make site` builds it from the Markdown of docs/ and of the root, and the docstrings.

The root of the repository is the source, so that a relative link means the same here, on GitHub and
in an editor. Neither the build nor the pages fetch anything: search and fonts work from a disk.
"""

import inspect
import re
import sys
from pathlib import Path
from typing import Any

from sphinx.util.inspect import stringify_signature

import atta

sys.path.insert(0, str(Path(__file__).parent / "site"))  # the extensions of this site

project = "atta"
author = "The atta authors"
copyright = "the atta authors, Apache-2.0"
version = release = atta.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",  # Args, Returns and Raises become lists
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "mathml",
    "notebook_pages",
    "parameter_tables",
    "folded_tables",
]
root_doc = "docs/index"
include_patterns = [
    "docs/*.md",
    "docs/api/*.md",
    "examples/notebooks/*.ipynb",
    "CHANGELOG.md",
    "CODE_OF_CONDUCT.md",
    "CONTRIBUTING.md",
    "ROADMAP.md",
    "SECURITY.md",
]
exclude_patterns = [".*", "build", "dist", "site"]  # not even walked through

myst_enable_extensions = ["dollarmath"]
myst_fence_as_directive = ["math"]  # ```math, as on GitHub
myst_heading_anchors = 4  # as GitHub makes them
myst_links_external_new_tab = False
highlight_language = "text"  # of blocks that name none
default_role = "code"  # docstrings mark code as Markdown does, with one backtick

autodoc_default_options = {"members": True, "exclude-members": "width, train, learn_many, fit_many"}
toc_object_entries_show_parents = "hide"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"

copybutton_prompt_text = "$ "
html_math_renderer = "mathml"
html_theme = "furo"
pygments_dark_style = "github-dark"  # furo's own underlines names of modules like links
html_title = "atta"
html_static_path = ["site/static"]
html_extra_path = ["site/extra"]
html_css_files = ["atta.css"]
html_js_files = ["atta.js"]
html_show_sourcelink = False
html_copy_source = False

ALIASES = {
    "Kinds": "Sequence[str] | None",
    "Space": "Literal['logits', 'probabilities']",
    "Step": "float | None",
    **dict.fromkeys(("Cells", "Count", "Folds", "Seed"), "int"),
}
"""What short names of types stand for in signatures."""


def setup(app: Any) -> None:
    """Read pages, docstrings and signatures as they are written here."""
    app.connect("source-read", _unbroken)
    app.connect("autodoc-process-docstring", _laid_out)
    app.connect("autodoc-process-signature", _own_signature)


def _unbroken(app: Any, name: str, source: list[str]) -> None:
    """Keep a number of a table together with its sign, its mark and its interval."""
    tied = "\u00a0"
    lines = source[0].splitlines(keepends=True)
    for number, line in enumerate(lines):
        if line.startswith("|"):
            line = re.sub(r" ([±%✓✗])", rf"{tied}\1", line).replace("± ", f"±{tied}")
            line = re.sub(r"% (−|=|\*\*\+\*\*) ", rf"%{tied}\1 ", line)
            lines[number] = re.sub(r"(\(\S+) to (\S+\))", rf"\1{tied}to{tied}\2", line)
    source[0] = "".join(lines)


def _laid_out(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Show indented text as code, keep lines that begin with a name, add settings of a parent."""
    parent = obj.__mro__[1] if what == "class" else object
    if parent.__name__.startswith("_") and parent.__module__.startswith("atta."):
        lines += (inspect.getdoc(parent) or "").splitlines()[1:]
    text, before = [], ""
    for line in lines:
        if line.startswith("    ") and not before.startswith("    ") and text and not text[-1]:
            text += ["::", ""]
        text.append(f"| {line}" if line.startswith("`") and "`  " in line else line)
        before = line or before
    lines[:] = text


def _own_signature(
    app: Any,
    what: str,
    name: str,
    obj: Any,
    options: Any,
    arguments: str | None,
    returns: str | None,
) -> Any:
    """Show the arguments of the class itself, not those of the hub's mixin; shorten types."""
    if what == "class" and arguments == "(*args, **kwargs)":
        signature = inspect.signature(obj)
        arguments = stringify_signature(
            signature, show_return_annotation=False, unqualified_typehints=True
        )
    if arguments is not None:
        arguments = re.sub(r"Annotated\[([^,\]]+)(?:, '[^']*')+\]", r"\1", arguments)
        arguments = re.sub(
            rf": ({'|'.join(ALIASES)}) =", lambda found: f": {ALIASES[found[1]]} =", arguments
        )
        names = vars(sys.modules.get(getattr(obj, "__module__", ""), object))
        arguments = re.sub(
            r"= ([A-Z_]+)\b", lambda found: f"= {_value(names, found[1])}", arguments
        )
    return arguments, returns


def _value(names: Any, constant: str) -> str:
    """The value of a constant that is the default of an argument, if it is short."""
    value = repr(names.get(constant, ...))
    return value if len(value) <= 40 and value[0] not in "<E" else constant
