"""How every chart looks: fonts, sizes, colours, in light and in dark. The one place that knows altair.

All that depends on light or dark lies in the chart's `config`, which is `theme(dark)`: a page may replace one by the other.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from atta._base.errors import require

if TYPE_CHECKING:
    import altair

    alt = altair
else:

    class Altair:
        """altair, from when a figure is asked for: what draws none neither needs it nor waits for it."""

        def __getattr__(self, name: str) -> Any:
            with require("report", "a figure"):
                import altair
            return getattr(altair, name)

    alt = Altair()

# Okabe and Ito's colours, which colour-blind people tell apart, less black and yellow, which dark and light swallow.
BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
)
GREY = "#8A8A8A"
COLOURS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, GREY)
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross")
DASHES = (
    [1, 0],
    [6, 3],
    [2, 2],
    [8, 3, 2, 3],
)  # 7 colours, 5 shapes, 4 dashes: 140 methods before two look the same
FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif'


def theme(dark: bool = False) -> dict[str, Any]:
    """The config of every chart: fonts, sizes and all colours that depend on light or dark."""
    ink, soft, grid = (
        ("#E6E6E6", "#B3B3B3", "#3A3A3A") if dark else ("#1F1F1F", "#5A5A5A", "#E2E2E2")
    )
    middle = [BLUE, "#1E1E1E", "#B24E00"] if dark else ["#56B4E9", "#FFFFFF", "#F0A04B"]
    text = {
        "labelColor": soft,
        "titleColor": ink,
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": 500,
    }
    return {
        "background": "transparent",
        "font": FONT,
        "padding": 8,
        "view": {"stroke": None, "continuousWidth": 300, "continuousHeight": 300},
        "title": {
            **{
                "anchor": "start",
                "frame": "group",
                "fontSize": 15,
                "fontWeight": 600,
                "offset": 10,
                "color": ink,
            },
            **{
                "subtitleFontSize": 12,
                "subtitleColor": soft,
                "subtitlePadding": 5,
                "subtitleLineHeight": 16,
            },
        },
        "axis": {
            **text,
            **{
                "domainColor": soft,
                "tickColor": soft,
                "gridColor": grid,
                "labelLimit": 190,
                "titlePadding": 8,
            },
            "labelOverlap": "greedy",
        },
        "legend": {
            **text,
            "labelLimit": 240,
            "symbolLimit": 0,
            "symbolStrokeWidth": 2,
            "titleLimit": 300,
        },
        "header": {**text},
        "range": {"category": list(COLOURS), "diverging": middle},
        "style": {
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
        },
    }


def finished(chart: Any, dark: bool) -> alt.TopLevelMixin:
    """A chart with its looks."""
    done: alt.TopLevelMixin = chart.configure(**theme(dark))
    return done


def unchecked() -> AbstractContextManager[None]:
    """Draw without looking every part of a chart up in the schema: that takes longer than drawing it."""
    check: AbstractContextManager[None] = alt.utils.schemapi.debug_mode(False)
    return check
