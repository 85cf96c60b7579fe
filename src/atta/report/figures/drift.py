"""Images without labels beside the validation images: how sure the classifier is of both, and how often it is right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from atta.report.figures import parts
from atta.report.figures.theme import BLUE, SKY, VERMILION, alt, finished

SEEN, EXPECTED = "these images", "validation images"


def drift(
    found: Mapping[str, Any], *, width: parts.Width = 420, dark: bool = False
) -> alt.TopLevelMixin:
    """Draw what `Drift.json` says: histograms of confidence, and accuracy with its interval beside mean confidence."""
    said = [found["sentence"]]
    whole = alt.vconcat(_histograms(found, said, width), _numbers(found, width), spacing=24)
    return finished(whole.properties(description=said[0]), dark)


def _histograms(found: Mapping[str, Any], said: list[str], width: parts.Width) -> Any:
    """Bars for these images, a line over them for the validation images, where those are remembered."""
    tips = parts.tooltips(("of", "of"), ("range", "confidence in"), ("part", "part of them", ".1%"))
    x = parts.unit(alt.X, "from", "confidence")
    y = alt.Y("part:Q", title="part of the images", axis=alt.Axis(format=".0%", tickCount=4))
    bars = alt.Chart(parts.inline(_cells(found["seen_histogram"], SEEN))).mark_rect(color=SKY)
    layers: list[Any] = [bars.encode(x=x, x2="to", y=y, y2=alt.datum(0), tooltip=tips)]
    if cells := _cells(found["expected_histogram"], EXPECTED):
        cells.append({**cells[-1], "from": cells[-1]["to"]})  # a step ends where the next begins
        line = alt.Chart(parts.inline(cells)).mark_line(interpolate="step-after", color=VERMILION)
        layers.append(line.encode(x=x, y=y, tooltip=tips))
    title = f"bars: {SEEN}; line: {EXPECTED}" if cells else f"bars: {SEEN}"
    heading = parts.heading("Confidence, and how often it is right", [*said, title], width)
    return alt.layer(*layers).properties(width=width, height=180, title=heading)


def _cells(histogram: Sequence[float], of: str) -> list[parts.Datum]:
    count = len(histogram)
    return [
        {
            "from": i / count,
            "to": (i + 1) / count,
            "part": part,
            "of": of,
            "range": f"{i / count:.2f} to {(i + 1) / count:.2f}",
        }
        for i, part in enumerate(histogram)
    ]


def _numbers(found: Mapping[str, Any], width: parts.Width) -> Any:
    """A line a number: what the validation images were, and what these are, the estimate with its interval."""
    rows: list[parts.Datum] = [
        {"what": f"accuracy, {EXPECTED}", "value": found["expected_accuracy"], "of": EXPECTED},
        {
            "what": f"estimated accuracy, {SEEN}",
            "value": found["accuracy"],
            "low": found["low"],
            "high": found["high"],
            "of": SEEN,
        },
        {"what": f"confidence, {EXPECTED}", "value": found["expected_confidence"], "of": EXPECTED},
        {"what": f"confidence, {SEEN}", "value": found["seen_confidence"], "of": SEEN},
    ]
    y = alt.Y(
        "what:N", sort=[row["what"] for row in rows], title=None, axis=alt.Axis(labelLimit=220)
    )
    colour = alt.Color(
        "of:N", scale=alt.Scale(domain=[SEEN, EXPECTED], range=[BLUE, VERMILION]), legend=None
    )
    base = alt.Chart(parts.inline(rows))
    tips = parts.tooltips(("what", "what"), ("value", "is", ".1%"))
    points = base.mark_point(filled=True, size=70, opacity=1).encode(
        x=parts.unit(alt.X, "value"), y=y, color=colour, tooltip=tips
    )
    spans = (
        alt.Chart(parts.inline(rows[1:2]))
        .mark_rule(strokeWidth=2)
        .encode(x="low:Q", x2="high:Q", y=y, color=colour)
    )
    words = base.mark_text(dy=-11).encode(
        x="value:Q", y=y, text=alt.Text("value:Q", format=".0%"), color=colour
    )
    return alt.layer(spans, points, words).properties(width=width, height=140)
