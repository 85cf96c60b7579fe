"""Adapting with the statistics of the new images: a public ResNet-20 on CIFAR-10 in 15 families of corruption.

    python -m benchmarks.statistics [--draws 1] [--device cuda] [--numbers docs/statistics.json]
    python -m benchmarks.statistics --page docs/statistics.md --picture docs/under-shift.png      from the numbers

The network and the images are under $ATTA_DATA. Validation images are the first 1000 of the test set; the next 750 are corrupted. Each
draw adapts to 500 of these without labels, or to two thirds of half of the classes, and tests on the others.
"""

import argparse
import json
import warnings
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import atta
from atta import TemperatureScaling
from atta.data.corruptions import CORRUPTIONS, FAMILIES
from atta.data.draws import random_numbers
from atta.lab.datasets import load
from atta.lab.workers import machine
from benchmarks.adapting import drawn
from benchmarks.records import DATA
from benchmarks.shift import ResNet20

VALIDATION, SHIFTED = 1000, 750
SEVERITIES, SETS = (5, 3), ((500, False), (500, True))
FELL, WORSE = 0.1, 2.0  # points of accuracy; standard errors of a paired difference
NAMES = {
    "temperature": "temperature scaling",
    "before": "calibrated (atta.calibrate)",
    "hedged": "hedged",
    "adapted": "adapted",
    "statistics": "adapted, with statistics",
}


def corrupted(images: Tensor, name: str) -> Tensor:
    """Images in one corruption, as pixels in [0, 1]."""
    view, shown = CORRUPTIONS[name], []
    for places in torch.arange(len(images)).split(250):
        pixels = images[places]
        numbers = (random_numbers(name, view.count(pixels), places),) if view.random else ()
        shown.append(view(pixels, *numbers))
    return torch.cat(shown)


def terms(probs: Tensor, labels: Tensor) -> np.ndarray:
    """The Brier score of the top class, of each image."""
    confidence, winner = probs.double().cpu().max(dim=1)
    return (confidence - (winner == labels).double()).square().numpy()


def measured(draws: int, device: str) -> Iterator[dict[str, Any]]:
    """One row for each condition, size and choice of classes. The network runs once on each image and its flip."""
    data = load("cifar10", "test", data=DATA).decoded()
    images, labels = data.images[: VALIDATION + SHIFTED].float() / 255, data.labels
    network = ResNet20.trained().to(device, memory_format=torch.channels_last)
    first = slice(0, VALIDATION)
    classifier = atta.calibrate(
        network, images[first], labels[first], policy="flip", progress=False
    )
    record = classifier.record(images[first], labels[first])
    temperature = TemperatureScaling().fit(record.predictions, record.require_labels())
    clean, truth = images[VALIDATION:], labels[VALIDATION : VALIDATION + SHIFTED]
    plain = (
        ("temperature", temperature),
        ("before", classifier.calibrator),
        ("hedged", classifier.kept.hedged),
    )
    for name in ("clean", *(f"{family}-{one}" for one in SEVERITIES for family in FAMILIES)):
        shown = clean if name == "clean" else corrupted(clean, name)
        every = classifier.record(shown).predictions
        right = float((every.logits.argmax(dim=1).cpu() == truth).double().mean())
        for size, half in SETS:
            found = defaultdict(list)
            for seed in range(draws):
                here, there = drawn(truth, 10, size, seed, half)
                adapted = classifier._adapted_to(every[here])
                both = classifier._seconded(adapted, every[here], shown[here], None)
                test, known = every[there], truth[there]
                for which, one in (*plain, ("adapted", adapted.calibrator)):
                    found[which].append(terms(one(test), known))
                used = both.second is not None
                last = (
                    terms(both.labelled_proba(shown[there])[0], known)
                    if used
                    else found["adapted"][-1]
                )
                found["statistics"].append(last)
                found["used"].append(np.array([used], float))
            more = [a - b for a, b in zip(found["statistics"], found["adapted"], strict=True)]
            yield {
                "condition": name,
                "accuracy": right,
                "size": size,
                "half": half,
                "difference": float(np.mean([one.mean() for one in more])),
                "error": float(np.mean([one.std() / len(one) ** 0.5 for one in more])),
                **{which: float(np.mean([one.mean() for one in v])) for which, v in found.items()},
            }


def page(numbers: dict[str, Any]) -> str:
    """The tables."""
    rows, where = numbers["rows"], numbers["machine"]
    clean = next(row["accuracy"] for row in rows if row["condition"] == "clean")
    lines = [
        "# Adapting with statistics, measured",
        "",
        "![Bars: with statistics, the Brier score falls most where accuracy fell by 10 points or more](charts/statistics.svg)",
        "",
        f"A public ResNet-20 on CIFAR-10 in {len(FAMILIES)} families of corruption at {len(SEVERITIES)} severities, calibrated by "
        f"`atta.calibrate` on {VALIDATION} images ({numbers['draws']} draw of the images). Brier score of the top class relative to temperature scaling, "
        "mean over the sets. *Used*: how often the statistics were used. *Worse*: sets on which `statistics=True` is significantly "
        f"worse than `adapt` without it (by more than {WORSE:g} standard errors of the paired difference over images).",
        "",
        "| sets | images | classes | number of sets | hedged | adapted | with statistics | used | worse |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    groups = {
        "accuracy fell by 10 points or more": lambda row: row["accuracy"] <= clean - FELL,
        "accuracy fell by less": lambda row: (
            clean - FELL < row["accuracy"] and row["condition"] != "clean"
        ),
        "not shifted": lambda row: row["condition"] == "clean",
    }
    for title, belongs in groups.items():
        for size, half in SETS:
            group = [r for r in rows if belongs(r) and r["size"] == size and r["half"] == half]
            means = [
                np.mean([row[which] / row["temperature"] - 1 for row in group])
                for which in ("hedged", "adapted", "statistics")
            ]
            worse = sum(row["difference"] > WORSE * row["error"] > 0 for row in group)
            lines.append(
                f"| {title} | {size} | {'half of them' if half else 'all'} | {len(group)} | "
                + " | ".join(f"{one:+.1%}" for one in means)
                + f" | {np.mean([row['used'] for row in group]):.0%} | {worse} |"
            )
    lines += [
        "",
        f"Measured by `python -m benchmarks.statistics --draws {numbers['draws']}` on {where['processor']}, "
        f"{'GPU ' + where['gpu'] + ', ' if where['gpu'] != 'none' else ''}torch {where['torch']}, commit {where['commit']}. One network, "
        "with batch normalisation; the gate was chosen on corruptions of the same network and other images.",
        "",
    ]
    return "\n".join(lines)


def picture(numbers: dict[str, Any], path: Path) -> Path:
    """The Brier score over the severity, mean over the families, adapted to 500 images."""
    from atta.report.figures import theme
    from atta.report.figures.theme import BLUE, ORANGE, PURPLE, VERMILION, alt

    found = defaultdict(list)
    for row in numbers["rows"]:
        if row["size"] == SETS[0][0] and not row["half"]:
            _, _, severity = row["condition"].rpartition("-")
            for which in NAMES:
                found[which, int(severity) if severity.isdecimal() else 0].append(row[which])
    data = [
        {"severity": severity, "Brier score": float(np.mean(values)), "name": NAMES[which]}
        for (which, severity), values in found.items()
    ]
    colours = ["#777777", ORANGE, VERMILION, BLUE, PURPLE]
    chart = (
        alt.Chart(alt.Data(values=data), width=560, height=300)
        .mark_line(point=True, strokeWidth=2)
        .encode(
            alt.X(
                "severity:O", title="severity of the shift (0: none)", axis=alt.Axis(labelAngle=0)
            ),
            alt.Y("Brier score:Q", title="Brier score of the top class"),
            alt.Color(
                "name:N",
                title=None,
                scale=alt.Scale(domain=[*NAMES.values()], range=colours),
                sort=[*NAMES.values()],
                legend=alt.Legend(orient="top-left", fillColor="white", padding=6),
            ),
        )
        .properties(
            title="Fewer wrong confidences under shift (lower is better)",
            description="Brier score over severity.",
        )
    )
    return theme.picture(chart, path)


def main() -> None:
    """Measure, or write a page and a picture from numbers."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--numbers", type=Path, default=Path("docs/statistics.json"))
    parser.add_argument("--page", type=Path)
    parser.add_argument("--picture", type=Path)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    if not asked.page and not asked.picture:
        numbers = {"machine": machine(), "draws": asked.draws, "rows": []}
        for row in measured(asked.draws, asked.device):
            numbers["rows"].append(row)
            print(json.dumps(row), flush=True)
        asked.numbers.write_text(json.dumps(numbers) + "\n", encoding="utf-8")
        return
    numbers = json.loads(asked.numbers.read_text(encoding="utf-8"))
    if asked.page:
        asked.page.write_text(page(numbers), encoding="utf-8")
    if asked.picture:
        picture(numbers, asked.picture)


if __name__ == "__main__":
    main()
