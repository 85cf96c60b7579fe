"""Summarise what calibration changed, by cross-validation: each fit is judged on unseen images."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from textwrap import wrap
from typing import Any

from atta._base.display import html_table
from atta._base.types import Probs
from atta.calibrators import Calibrator, TemperatureScaling, Vanilla
from atta.calibrators.crossval import Candidate, held_out, note_on_views
from atta.data.preprocess import Preprocess
from atta.data.views import Policy
from atta.functional import guard_class
from atta.metrics.binning import reliability_bins
from atta.metrics.scores import class_changes, evaluate
from atta.record.predictions import Record
from atta.results.table import Table

SHOWN = ("brier", "ece", "nll")
COLUMNS = ("", "Brier of the top label", "NLL", "ECE", "passes")
NAME = 30  # letters per line of a method and its policy: with the numbers, 80


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The method, its views, and its metrics before and after calibration.

    `print(classifier.summary)` shows it. All metrics are cross-validated on the labelled images.

    Attributes:
        method: Name of the method.
        policy: The views, as text.
        passes: Mean number of forward passes per image.
        images: Number of labelled images.
        classes: Number of classes.
        before: Brier score, ECE and NLL of the network.
        after: The same metrics of the calibrated probabilities.
        accuracy: Accuracy of the network.
        class_changes: Number of images whose predicted class changed.
        bins: Reliability bins "before" and "after".
        candidates: The policies that were tried, with their NLL relative to the best.
        preprocess: The preprocessing in words.
        rivals: The network, temperature scaling and the chosen method: passes and metrics of each.
        accuracy_after: Accuracy after calibration; None if the method keeps the class.
        pixels: For segmentation: number of labelled pixels of the images; 0 otherwise.
    """

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
    rivals: Sequence[Mapping[str, Any]] = field(default_factory=list)  # a list, as JSON returns it
    accuracy_after: float | None = None
    pixels: int = 0

    @classmethod
    def read(cls, about: Mapping[str, Any]) -> "Summary":
        """Make one of what a file says."""
        made = cls(**about)
        str(made)  # refuses numbers that are not numbers
        return made

    def __str__(self) -> str:
        table = _aligned([COLUMNS, *self._rows()]) if self.rivals else []
        return "\n".join([*self._facts(), *table, *self._choice()])

    def _repr_html_(self) -> str:
        """The same for a notebook."""
        head, *facts = self._facts()
        note = " · ".join([*facts, *self._choice()])
        return html_table(COLUMNS, self._rows(), title=head, note=note)

    def _facts(self) -> list[str]:
        """The lines above the table."""
        names = {"brier": "Brier", "ece": "ECE", "nll": "NLL"}
        change = "   ".join(
            f"{names.get(name, name)} {self.before[name]:.4f} → {after:.4f}"
            for name, after in self.after.items()
        )
        views = f" · {self.policy}" if self.policy else ""
        pixels = f"{self.pixels:,} pixels of " if self.pixels else ""
        passes = "1 pass" if self.passes == 1 else f"{self.passes:.3g} passes"
        changes = f"class changes: {self.class_changes}"
        if self.accuracy_after is not None:
            changes += (
                f" of {self.pixels or self.images}, so that {self.accuracy_after:.1%} are right"
            )
        return [
            f"{self.method}{views} · {passes} per image · {self.classes} classes",
            f"cross-validated on {pixels}{self.images} images, {self.accuracy:.1%} right: {change}",
            changes,
            *([f"photographs: {self.preprocess}"] if self.preprocess else []),
        ]

    def _choice(self) -> list[str]:
        """The lines below the table: the policies that were tried, and whether it helped."""
        lines = []
        if len(self.candidates) > 1:
            tried: dict[int, list[str]] = {}
            for one in self.candidates:
                policy = f"{one['policy']} {one['above']:+.4f}"
                tried.setdefault(one.get("images") or 0, []).append(policy)
            groups = [
                (f"dropped after {images} images: " if images else "") + ", ".join(policies)
                for images, policies in tried.items()
            ]
            lines.append(f"chosen from {len(self.candidates)} policies by cross-validated NLL")
            lines.append("tried, with NLL above the best: " + "; ".join(groups))
        else:
            lines += note_on_views(self.rivals)
        if self.after["nll"] >= self.before["nll"]:
            lines.append(
                "not better than the network itself: "
                "use more images, other views, or temperature scaling"
            )
        return lines

    @property
    def facts(self) -> tuple[str, str]:
        """What it is, and how good it was on the validation images: two lines."""
        what, quality, *_ = self._facts()
        return what, quality

    @property
    def verdict(self) -> str:
        """One sentence: what calibration gained, cross-validated, next to temperature scaling."""
        gains = {
            one["method"]: " and ".join(
                f"{called} {one[name] / self.before[name] - 1:+.0%}"
                for name, called in (("brier", "Brier score"), ("nll", "NLL"))
                if self.before[name]
            )
            for one in self.rivals[1:]
        }
        alone = gains.pop(TemperatureScaling.name, "") if len(gains) > 1 else ""
        gain = next(iter(gains.values()), "")
        if not gain or self.after["nll"] >= self.before["nll"]:
            return "Leave the network as it is: nothing was gained on these images."
        than = f" (temperature scaling alone: {alone})" if alone else ""
        kept = "; every class stays the same" if self.class_changes == 0 else ""
        return f"Use it: {gain}{than}{kept}."

    def _rows(self) -> list[tuple[str, ...]]:
        """A row of the table for each method."""
        return [
            (
                f"{one['method']} · {one['policy']}" if one["policy"] else one["method"],
                *(f"{one[name]:.4f}" for name in ("brier", "nll", "ece")),
                f"{one['passes']:.3g}",
            )
            for one in self.rivals
        ]


def summarise(
    calibrator: Calibrator,
    policy: Policy,
    record: Record,
    answers: Probs,
    judged: Sequence[Candidate] = (),
) -> Summary:
    """Compare held-out `answers` of a method with the network itself, on the images of `record`."""
    method = calibrator.method
    predictions = record.predictions
    labels = record.require_labels()
    base = guard_class(predictions.logits.softmax(dim=-1), predictions.logits)
    found = []
    bins = {}
    for when, probs in (("before", base), ("after", answers)):
        metrics = (*SHOWN, "accuracy")
        found.append(evaluate(probs, labels, metrics=metrics, simplex=method.on_simplex))
        confidence, winner = probs.double().max(dim=-1)
        bins[when] = reliability_bins(confidence.clamp(0, 1), (winner == labels).double())
    before, after = found
    accuracy, accuracy_after = before.pop("accuracy"), after.pop("accuracy")
    passes = calibrator.passes(predictions).double().mean().item()
    rivals = [(Vanilla.name, "", 1.0, before)]
    if method.name != TemperatureScaling.name:
        tempered = held_out(TemperatureScaling(), predictions.select(()), labels).probs
        scores = evaluate(tempered, labels, metrics=SHOWN)
        rivals.append((TemperatureScaling.name, "", 1.0, scores))
    if method.name != Vanilla.name:
        rivals.append((method.name, str(policy), passes, after))
    given = record.origin.get("preprocess")
    return Summary(
        method=method.name,
        policy=str(policy),
        passes=passes,
        images=predictions.image_count,
        pixels=0 if predictions.images is None else len(predictions),
        classes=predictions.classes,
        before=before,
        after=after,
        accuracy=accuracy,
        class_changes=class_changes(answers, predictions.logits),
        bins=bins,
        candidates=[asdict(one) for one in judged],
        preprocess="" if given is None else str(Preprocess.of(json.loads(given))),
        rivals=[
            {"method": name, "policy": views, "passes": count, **scores}
            for name, views, count, scores in rivals
        ],
        accuracy_after=None if method.keeps_class else accuracy_after,
    )


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines of a terminal: the first column is wrapped at NAME letters."""
    names = [wrap(name, NAME) or [""] for name, *_ in rows]
    header, *cells = ((name[0], *row[1:]) for name, row in zip(names, rows, strict=True))
    lines = Table("", header, tuple(cells)).text().splitlines()
    return [line for name, text in zip(names, lines, strict=True) for line in (text, *name[1:])]
