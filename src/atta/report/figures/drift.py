"""Draws images without labels next to the validation images: confidence and estimated accuracy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atta.report.figures import parts
from atta.report.figures.theme import BLUE, VERMILION, alt, finished

NEW, VALIDATION = "these images", "validation images"
_WIDTH = 420


def drift(found: Mapping[str, Any]) -> alt.TopLevelMixin:
    """Draw what `Drift.json` returns: histograms of confidence, and the estimated accuracy."""
    both = alt.vconcat(_histograms(found), _numbers(found), spacing=24)
    return finished(both.properties(description=found["sentence"]))


def _histograms(found: Mapping[str, Any]) -> Any:
    """Bars for these images; a line for the validation images, if their histogram was saved."""
    y = alt.Y("part:Q", title="share of images", axis=alt.Axis(format=".0%", tickCount=4))
    bars = parts.bins("part", found["seen_histogram"], set=NEW)
    line = parts.bins("part", found["expected_histogram"], set=VALIDATION)
    tips = parts.tooltips("set", "range", "part")
    layers = parts.histogram(bars, line, "confidence", y, tips)
    legend = f"bars: {NEW}; line: {VALIDATION}" if line else f"bars: {NEW}"
    chart = alt.layer(*layers, width=_WIDTH, height=180)
    title = "Confidence and accuracy"
    return parts.titled(chart, _WIDTH, title, [found["sentence"], legend], title)


def _numbers(found: Mapping[str, Any]) -> Any:
    """Accuracy and mean confidence on both sets; the estimate has its interval."""
    rows: list[parts.Datum] = [
        {"name": f"{what}, {images}", "rate": found[key], "set": images}
        for what, images, key in (
            ("accuracy", VALIDATION, "expected_accuracy"),
            ("estimated accuracy", NEW, "accuracy"),
            ("confidence", VALIDATION, "expected_confidence"),
            ("confidence", NEW, "seen_confidence"),
        )
    ]
    rows[1] |= {"low": found["low"], "high": found["high"]}
    colours = alt.Scale(domain=[NEW, VALIDATION], range=[BLUE, VERMILION])
    base = parts.chart_of(rows).encode(
        y=parts.named_rows("name", rows),
        color=alt.Color("set:N", scale=colours, legend=None),
    )
    points = base.mark_point(filled=True, size=70, opacity=1).encode(
        x=parts.unit(alt.X, "rate"), tooltip=parts.tooltips("name", "rate")
    )
    intervals = base.mark_rule(strokeWidth=2).encode(x="low:Q", x2="high:Q")
    texts = base.mark_text(dy=-11).encode(x="rate:Q", text=alt.Text("rate:Q", format=".0%"))
    return alt.layer(intervals, points, texts, width=_WIDTH, height=140)
