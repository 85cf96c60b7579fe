"""Charts as files: the only effect in this room."""

from __future__ import annotations

import json
import os
from importlib import import_module
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

from atta._base.errors import InputError, require
from atta._base.files import whole_file
from atta.report.figures.theme import alt


class _ForScript(json.JSONEncoder):
    """JSON that may stand in a <script>: no name in it can end that."""

    def encode(self, o: Any) -> str:
        return (
            super()
            .encode(o)
            .replace("<", "\\u003c")
            .replace("\u2028", "\\u2028")
            .replace("\u2029", "\\u2029")
        )


_FORMATS: dict[str, dict[str, Any]] = {
    "svg": {},
    "png": {"scale_factor": 2},
    "pdf": {},
    "json": {"json_kwds": {"indent": 1, "ensure_ascii": False, "allow_nan": False}},
    "html": {"inline": True, "json_kwds": {"cls": _ForScript}},
}


def picture(chart: alt.TopLevelMixin, path: str | os.PathLike[str]) -> Path:
    """Write a chart as .svg, .png, .pdf, .json (Vega-Lite) or .html (by itself, without a network), by its suffix.

    >>> picture(reliability(probs, labels), "reliability.svg")  # doctest: +SKIP
    """
    path = Path(path)
    kind = path.suffix.lower().removeprefix(".")
    if kind not in _FORMATS:
        raise InputError(f"expected a file that ends in .{', .'.join(_FORMATS)}, got {path.name!r}")
    if kind != "json":
        with require("report", "a picture"):
            import_module("vl_convert")  # which altair has drawn
    with whole_file(path) as part:
        chart.save(part, **{"format": kind, **_FORMATS[kind]})
        if kind == "svg":  # with its description, which Vega gives to pages alone
            aloud = f'<svg role="img" aria-label={quoteattr(chart.description)} '  # type: ignore[attr-defined]
            part.write_text(
                part.read_text(encoding="utf-8").replace("<svg ", aloud, 1), encoding="utf-8"
            )
    return path
