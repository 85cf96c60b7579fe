"""How cost grows with images, classes and views: time on one thread, as curves.

From a middle size, one of the three is varied at a time.

    python -m benchmarks.growth [--quick]
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from atta import CATTA, VATTA, Predictions, TemperatureScaling, evaluate
from atta.report.figures.theme import alt, chart_of, finished, grid, picture, told_apart
from benchmarks.measured import (
    OURS,
    Asked,
    Measured,
    Steps,
    alone,
    by_what,
    too_sure,
    usual_seconds,
)

MIDDLE = {"images": 10_000, "classes": 100, "views": 4}
VARIED = {
    "images": (1000, 3162, 10_000, 31_623, 100_000),
    "classes": (10, 32, 100, 316, 1000),
    "views": (1, 2, 4, 8, 16),
}
QUICK = {"images": (100, 200, 400), "classes": (4, 8), "views": (1, 2)}
COLUMNS = 3


def data(images: int, classes: int, views: int) -> tuple[Predictions, torch.Tensor]:
    """Made-up logits, and views that differ from them by noise; each view a kind of its own, the hardest case."""
    logits, labels = too_sure(images, classes)
    generator = torch.Generator().manual_seed(1)
    noisy = {
        f"kind{i}": (logits + 2 * torch.randn(logits.shape, generator=generator))[:, None]
        for i in range(views)
    }
    return Predictions(logits, noisy), labels


def works(
    predictions: Predictions, labels: torch.Tensor
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """What is done with them, by name."""
    calibrator = CATTA().fit(predictions[:500], labels[:500])
    probs = calibrator(predictions)
    yield "temperature, fit", lambda: TemperatureScaling().fit(predictions, labels)
    yield "C-ATTA, fit", lambda: CATTA().fit(predictions, labels)
    yield "V-ATTA, fit", lambda: VATTA().fit(predictions, labels)
    yield "C-ATTA, predict", lambda: calibrator(predictions)
    yield "all metrics", lambda: evaluate(probs, labels)
    yield "a softmax (limit)", lambda: predictions.logits.softmax(dim=1)


def measure(varied: str, size: int, middle: dict[str, int]) -> list[Measured]:
    """All works at one size."""
    predictions, labels = data(**{**middle, varied: size})
    return [
        Measured(f"{name}, by {varied}", OURS, {"size": size, "seconds": usual_seconds(work, 0.5)})
        for name, work in works(predictions, labels)
    ]


def steps(asked: Asked) -> Steps:
    """Each of the three at each of its sizes."""
    middle = {"images": 200, "classes": 5, "views": 2} if asked.quick else MIDDLE
    return {
        f"{size:,} {varied}": partial(measure, varied, size, middle)
        for varied, sizes in (QUICK if asked.quick else VARIED).items()
        for size in sizes
    }


def curves(rows: Sequence[Measured]) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Points (size, seconds) by what is varied and what is done."""
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for what, points in by_what(rows).items():
        name, _, varied = what.rpartition(", by ")
        found.setdefault(varied, {})[name] = [
            (row.numbers["size"], row.numbers["seconds"]) for row in points
        ]
    return found


DECADES = [10.0**power for power in range(-6, 4)]


def draw(rows: Sequence[Measured], path: Path) -> None:
    """The curves, a panel for each of the three, both axes logarithmic."""
    found = curves(rows)
    names = list(dict.fromkeys(name for lines in found.values() for name in lines))
    panels = []
    for varied, lines in found.items():
        values = [
            {"method": name, "size": x, "seconds": y}
            for name, points in lines.items()
            for x, y in points
        ]
        sizes = sorted({value["size"] for value in values})
        base = (
            chart_of(values)
            .properties(width=230, height=260)
            .encode(
                x=alt.X(
                    "size:Q",
                    title=varied,
                    scale=alt.Scale(type="log", nice=False),
                    axis=alt.Axis(values=sizes, format=".2~s"),
                ),
                y=alt.Y(
                    "seconds:Q",
                    title="seconds",
                    scale=alt.Scale(type="log"),
                    axis=alt.Axis(values=DECADES, format="~g"),
                ),
                **told_apart(names, orient="bottom", columns=COLUMNS),
            )
        )
        said = f"Seconds by {varied}, from {sizes[0]:g} to {sizes[-1]:g}: {', '.join(lines)}."
        panels.append(
            alt.layer(base.mark_line(), base.mark_point(filled=True, size=40)).properties(
                description=said
            )
        )
    picture(finished(grid(panels, COLUMNS), dark=False), path)


if __name__ == "__main__":
    alone(steps, __doc__)
