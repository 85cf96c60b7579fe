"""What calibration did, judged by cross-validation: each image answered by a fit that did not see it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from textwrap import wrap
from typing import Any

from atta._base.html import html_table
from atta._base.types import Labels, Probs
from atta.calibrators import Calibrator, TemperatureScaling, Vanilla
from atta.calibrators.crossval import Candidate, held_out
from atta.data.preprocess import Preprocess
from atta.data.views import Policy
from atta.metrics.binning import reliability_bins
from atta.metrics.scores import class_changes, evaluate
from atta.record.predictions import Record

SHOWN = ("brier", "ece", "nll")
RIVALS = ("", "Brier of the top label", "NLL", "ECE", "passes")
NAME = 30  # letters of a method and its policy in a line: with the numbers, 80


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The method, the views, and the numbers before and after."""

    method: str
    policy: str
    passes: float
    images: int
    classes: int
    before: Mapping[str, float]
    after: Mapping[str, float]
    accuracy: float
    class_changes: int
    bins: Mapping[str, Any]
    candidates: Sequence[Mapping[str, Any]] = ()
    preprocess: str = ""
    rivals: Sequence[Mapping[str, Any]] = field(default_factory=list)  # as JSON gives it back
    """The network as it is, temperature scaling, and what was chosen: method, policy, passes and metrics of each."""
    accuracy_after: float | None = None
    """Where the class may change; else it is as before."""

    def __str__(self) -> str:
        change = "   ".join(
            f"{name.upper() if name != 'brier' else 'Brier'} {self.before[name]:.4f} → {self.after[name]:.4f}"
            for name in self.after
        )
        views = f" · {self.policy}" if self.policy else ""
        passes = "1 pass" if self.passes == 1 else f"{self.passes:.3g} passes"
        lines = [
            f"{self.method}{views} · {passes} an image · {self.classes} classes",
            f"cross-validated on {self.images} images, {self.accuracy:.1%} right: {change}",
            self._changes(),
        ]
        if self.preprocess:
            lines.append(f"photographs: {self.preprocess}")
        if self.rivals:
            lines += _aligned([RIVALS, *self._rows()])
        if len(self.candidates) > 1:
            lines.append(f"chosen from {len(self.candidates)} policies by cross-validated NLL")
            lines.append("tried, and how far above the best: " + "; ".join(self._tried()))
        if self.after["nll"] >= self.before["nll"]:
            lines.append(
                "not better than the network as it is: take more images, other views, or method='temperature'"
            )
        return "\n".join(lines)

    def _changes(self) -> str:
        """How many classes changed, and what came of it."""
        if self.accuracy_after is None:
            return f"class changes: {self.class_changes}"
        return f"class changes: {self.class_changes} of {self.images}, so that {self.accuracy_after:.1%} are right"

    def _repr_html_(self) -> str:
        """The same for a notebook."""
        head, right, *rest = str(self).splitlines()
        below = [line for line in rest if line not in _aligned([RIVALS, *self._rows()])]
        return html_table(RIVALS, self._rows(), title=head, note=" · ".join([right, *below]))

    def _rows(self) -> list[tuple[str, ...]]:
        """A line for each rival."""
        return [
            (
                f"{one['method']} · {one['policy']}" if one["policy"] else one["method"],
                *(f"{one[name]:.4f}" for name in ("brier", "nll", "ece")),
                f"{one['passes']:.3g}",
            )
            for one in self.rivals
        ]

    def _tried(self) -> list[str]:
        """The policies that were tried, together with those that were out after as many images."""
        found: dict[int, list[str]] = {}
        for one in self.candidates:
            found.setdefault(one.get("images") or 0, []).append(
                f"{one['policy']} {one['above']:+.4f}"
            )
        return [
            (f"out after {images} images: " if images else "") + ", ".join(names)
            for images, names in found.items()
        ]


def summarise(
    calibrator: Calibrator,
    policy: Policy,
    record: Record,
    answers: Probs,
    judged: Sequence[Candidate] = (),
) -> Summary:
    """Judge the method by its answers to images that its fits did not see, beside the network as it is."""
    method, predictions, labels = calibrator.method, record.predictions, record.require_labels()
    probs = {"before": predictions.logits.softmax(dim=-1), "after": answers}
    passes = calibrator.passes(predictions).double().mean().item()
    measured = {
        when: evaluate(found, labels, metrics=SHOWN, simplex=method.on_simplex)
        for when, found in probs.items()
    }
    return Summary(
        method=method.name,
        policy=str(policy),
        passes=passes,
        images=len(predictions),
        classes=predictions.classes,
        before=measured["before"],
        after=measured["after"],
        accuracy=evaluate(probs["before"], labels, metrics=("accuracy",))["accuracy"],
        class_changes=class_changes(probs["after"], probs["before"]),
        bins={when: _bins(found, labels) for when, found in probs.items()},
        candidates=[asdict(one) for one in judged],
        preprocess=_photographs(record),
        rivals=_rivals((method.name, str(policy), passes), record, measured),
        accuracy_after=None
        if method.keeps_class
        else float((answers.argmax(dim=-1) == labels).double().mean()),
    )


def _photographs(record: Record) -> str:
    """What was done to the images of a record before the network saw them, in words."""
    given = record.origin.get("preprocess")
    return "" if given is None else str(Preprocess.of(json.loads(given)))


def _rivals(
    chosen: tuple[str, str, float], record: Record, measured: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """The network as it is, temperature scaling, both in one pass, and what was chosen; each image held out."""
    predictions, labels = record.predictions, record.require_labels()
    found: list[tuple[str, str, float, Mapping[str, float]]] = [
        (Vanilla.name, "", 1, measured["before"])
    ]
    if chosen[0] != TemperatureScaling.name:
        tempered = held_out(TemperatureScaling(), predictions.select(()), labels)
        found.append((TemperatureScaling.name, "", 1, evaluate(tempered, labels, metrics=SHOWN)))
    if chosen[0] != Vanilla.name:
        found.append((*chosen, measured["after"]))
    return [
        {"method": name, "policy": views, "passes": passes, **numbers}
        for name, views, passes, numbers in found
    ]


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines of a terminal's width, the first column to the left and in as many lines as it takes."""
    names = [wrap(row[0], NAME) or [""] for row in rows]
    first = max(len(line) for lines in names for line in lines)
    widths = [max(map(len, column)) for column in zip(*(row[1:] for row in rows), strict=True)]
    found = []
    for (name, *more), row in zip(names, rows, strict=True):
        found.append(
            "  ".join(
                [
                    name.ljust(first),
                    *(cell.rjust(w) for cell, w in zip(row[1:], widths, strict=True)),
                ]
            ).rstrip()
        )
        found += more
    return found


def _bins(probs: Probs, labels: Labels) -> dict[str, Any]:
    confidence, winner = probs.double().max(dim=-1)
    return reliability_bins(confidence.clamp(0, 1), (winner == labels).double())
