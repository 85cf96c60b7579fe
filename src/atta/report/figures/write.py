"""Writes charts to files."""

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
    """Encodes JSON for a <script> element, which no text in it can end."""

    def encode(self, o: Any) -> str:
        text = super().encode(o)
        for character in "<\u2028\u2029":
            text = text.replace(character, f"\\u{ord(character):04x}")
        return text


_FORMATS: dict[str, dict[str, Any]] = {
    "svg": {},
    "png": {"scale_factor": 2},
    "pdf": {},
    "json": {"json_kwds": {"indent": 1, "ensure_ascii": False, "allow_nan": False}},
    "html": {"inline": True, "json_kwds": {"cls": _ForScript}},
}


def picture(chart: alt.TopLevelMixin, path: str | os.PathLike[str]) -> Path:
    """Write a chart as .svg, .png, .pdf, .json (Vega-Lite) or .html (which works offline).

    >>> picture(reliability(probs, labels), "reliability.svg")  # doctest: +SKIP
    """
    path = Path(path)
    kind = path.suffix.lower().removeprefix(".")
    if kind not in _FORMATS:
        raise InputError(f"expected a file that ends in .{', .'.join(_FORMATS)}, got {path.name!r}")
    if kind != "json":
        with require("report", "a picture"):
            import_module("vl_convert")  # which altair draws with
    with whole_file(path) as part:
        chart.save(part, **{"format": kind, **_FORMATS[kind]})
        if kind == "svg":  # Vega writes no description into SVG files
            label = quoteattr(chart.description)  # type: ignore[attr-defined]
            text = part.read_text(encoding="utf-8")
            text = text.replace("<svg ", f'<svg role="img" aria-label={label} ', 1)
            part.write_text(text, encoding="utf-8")
    return path
