"""Defines how every chart looks in light and dark mode. Only this module imports altair.

Everything that depends on the mode is in the chart's `config`, which is `theme(dark)`. A page can
therefore replace one config by the other.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from atta._base.errors import require

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


def unchecked() -> AbstractContextManager[None]:
    """Skip altair's schema checks inside this context: they take longer than drawing a chart."""
    check: AbstractContextManager[None] = alt.utils.schemapi.debug_mode(False)
    return check
