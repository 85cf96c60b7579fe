"""Defines how every chart looks in light and dark mode. Only this module imports altair.

Everything that depends on the mode is in the chart's `config`, which is `theme(dark)`. A page can
therefore replace one config by the other.
"""

from __future__ import annotations

import json
import os
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import quoteattr

from atta._base.errors import InputError, require
from atta._base.files import whole_file

if TYPE_CHECKING:
    import altair

    alt = altair
else:

    class _Altair:
        """Imports altair when a figure is first drawn: other code neither needs nor loads it."""

        def __getattr__(self, name: str) -> Any:
            with require("report", "a figure"):
                import altair
            return getattr(altair, name)

    alt = _Altair()

# The colours of Okabe and Ito, which colour-blind readers can tell apart. Black and yellow are left
# out because they are hard to see on dark and light backgrounds.
BLUE, VERMILION, GREEN = "#0072B2", "#D55E00", "#009E73"
PURPLE, ORANGE, SKY = "#CC79A7", "#E69F00", "#56B4E9"
GREY = "#8A8A8A"
# 7 colours, 5 shapes and 4 dashes distinguish 140 methods.
COLOURS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, GREY)
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross")
DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3])
FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif'


def theme(dark: bool = False) -> dict[str, Any]:
    """The config of every chart: fonts, sizes and all colours that depend on the mode."""
    ink, soft, grid = (
        ("#E6E6E6", "#B3B3B3", "#3A3A3A") if dark else ("#1F1F1F", "#5A5A5A", "#E2E2E2")
    )
    text = {
        "labelColor": soft,
        "titleColor": ink,
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": 500,
    }
    axis = {"domainColor": soft, "tickColor": soft, "gridColor": grid, "labelLimit": 190}
    legend = {"labelLimit": 240, "symbolLimit": 0, "symbolStrokeWidth": 2, "titleLimit": 300}
    return {
        "background": "transparent",
        "font": FONT,
        "padding": 8,
        "view": {"stroke": None, "continuousWidth": 300, "continuousHeight": 300},
        "title": {
            "anchor": "start",
            "frame": "group",
            "fontSize": 15,
            "fontWeight": 600,
            "offset": 10,
            "color": ink,
            "subtitleFontSize": 12,
            "subtitleColor": soft,
            "subtitlePadding": 5,
            "subtitleLineHeight": 16,
        },
        "axis": {**text, **axis, "titlePadding": 8, "labelOverlap": "greedy"},
        "legend": {**text, **legend},
        "range": {
            "diverging": [BLUE, "#1E1E1E", "#B24E00"] if dark else [SKY, "#FFFFFF", "#F0A04B"]
        },
        "style": _styles(dark, ink, soft, grid),
    }


def _styles(dark: bool, ink: str, soft: str, grid: str) -> dict[str, Any]:
    """The styles that marks refer to by name."""
    return {
        "diagonal": {"color": ink, "strokeDash": [4, 4], "strokeWidth": 1.5},
        "whisker": {"color": ink, "strokeWidth": 1.5},
        "dot": {"color": ink, "filled": True, "size": 26, "opacity": 1},
        "count": {"color": GREY},
        "guide": {"color": ink, "strokeDash": [6, 3], "strokeWidth": 1.5},
        "measured": {"color": SKY if dark else BLUE, "opacity": 1},
        "zero": {"color": soft, "strokeWidth": 1},
        "note": {"color": soft, "fontSize": 11},
        "value": {"color": ink, "fontSize": 11},
        "grid": {"stroke": grid, "strokeWidth": 0.5},
        "dense": {"strokeWidth": 0},
    }


def finished(chart: Any, dark: bool = False) -> alt.TopLevelMixin:
    """Apply the theme to a chart."""
    themed: alt.TopLevelMixin = chart.configure(**theme(dark))
    return themed


# ---- writing charts ------------------------------------------------------------------------------


class ForScript(json.JSONEncoder):
    """Encodes JSON for a <script> element, which no text in it can end."""

    def encode(self, o: Any) -> str:
        """Return a value as JSON."""
        text = super().encode(o)
        for character in "<>&\u2028\u2029":
            text = text.replace(character, f"\\u{ord(character):04x}")
        return text


_FORMATS: dict[str, dict[str, Any]] = {
    "svg": {},
    "png": {"scale_factor": 2},
    "pdf": {},
    "json": {"json_kwds": {"indent": 1, "ensure_ascii": False, "allow_nan": False}},
    "html": {"inline": True, "json_kwds": {"cls": ForScript}},
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
