"""Is a stated risk kept, and is `confidence` better than the largest probability? Resamples of the records of the repository.

    python -m benchmarks.risk [--draws 1000] [--page docs/risk.md]

Each draw takes 1000 labelled images to calibrate on, cross-validates on them, finds the threshold of each risk, and counts the
errors among the answered images of all others. A promise is broken if more of them are wrong than was promised. MAPIE is compared
if it is installed: its control of the precision of a binary classifier, whose score is the cross-validated confidence of C-ATTA and
whose label is whether the class is right.
"""

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from atta import CATTA, Predictions, Record, TemperatureScaling, find_record
from atta.calibrators import Method
from atta.calibrators.crossval import held_out
from atta.calibrators.risk import DELTA, threshold
from atta.metrics.scores import evaluate
from benchmarks.records import DATA, described, draw, run

METHODS: dict[str, Method] = {
    "temperature": TemperatureScaling(),
    "C-ATTA": CATTA(),
}
PEER = "MAPIE, C-ATTA's confidence"
GRID = np.sort(1 - np.geomspace(1e-4, 1, 100))
"""Thresholds that MAPIE tests: as many as by default, closer together near 1."""
RISKED = {
    "CIFAR-10": ("cifar10-resnet50-nudged", "flip"),
    "CIFAR-100": ("cifar100_nudged", "nudge"),
    "AID": ("aid", "flip"),
}
CASES = {
    **RISKED,
    "CIFAR-10, 3 nudges": ("cifar10-resnet50-nudged", "nudge"),
    "CIFAR-10, second network": (str(DATA / "logits" / "cifar10.safetensors"), "flip"),
    "CIFAR-100, other training": ("cifar100", "flip"),
    "AID, 5 crops": ("aid", "crop"),
}
"""Records, and the view that C-ATTA blends."""
USUAL = (0.005, 0.01, 0.02, 0.05)
"""Risks that tables show."""
FEW = 10
"""Draws of the table of confidence."""
Find = Callable[[np.ndarray, np.ndarray, float], float | None]


def mapies(confidence: np.ndarray, right: np.ndarray, risk: float) -> float | None:
    """The smallest threshold at which MAPIE promises this risk, or None."""
    control = import_module("mapie.risk_control").BinaryClassificationController(
        predict_function=lambda x: np.stack([1 - x, x], axis=1),
        risk="precision",
        target_level=1 - risk,
        confidence_level=1 - DELTA,
        list_predict_params=GRID,
    )
    with warnings.catch_warnings(action="ignore"):  # it warns where no threshold is found
        control.calibrate(confidence, right.astype(int))
    found = control.best_predict_param
    return None if found is None else float(np.nextafter(found, 0))


def tried(
    predictions: Predictions, labels: torch.Tensor, draws: int
) -> dict[tuple[str, float], np.ndarray]:
    """For each method and risk, the coverage and whether the promise was broken, draw by draw."""
    found = defaultdict(list)
    right = (predictions.logits.argmax(dim=1) == labels).numpy()
    for seed in range(draws):
        rows, rest = draw(len(labels), seed)
        for name, method in METHODS.items():
            held = held_out(method, predictions[rows], labels[rows]).confidence.double().numpy()
            calibrator = method.fit(predictions[rows], labels[rows])
            confidence = calibrator.confidence(predictions[rest]).double().numpy()
            ways: dict[str, Find] = {name: threshold}
            if name == "C-ATTA" and find_spec("mapie"):
                ways[PEER] = mapies
            for risk in USUAL:
                for way, find in ways.items():
                    limit = find(held, right[rows], risk)
                    answered = confidence > (np.inf if limit is None else limit)
                    wrong = 1 - right[rest][answered].mean() if answered.any() else 0.0
                    found[way, risk].append((answered.mean(), wrong > risk, limit is None))
    return {key: np.array(values, dtype=float).mean(axis=0) for key, values in found.items()}


def confident(record: Record, kind: str) -> tuple[float, float, dict[str, float]]:
    """Brier of `confidence` relative to that of the largest probability, half its interval, and ECEs."""
    predictions, labels = (
        record.predictions.select([kind], rehearsals=False),
        record.require_labels(),
    )
    sums, times, base = torch.zeros(3, len(labels), dtype=torch.float64)
    eces = defaultdict(list)
    for seed in range(FEW):
        rows, rest = draw(len(labels), seed)
        plain, blend = (one.fit(predictions[rows], labels[rows]) for one in METHODS.values())
        probs, truth = blend(predictions[rest]), labels[rest]
        confidence, right = blend.confidence(predictions[rest]), probs.argmax(dim=1) == truth
        largest = probs.double().amax(dim=1)
        sums[rest] += (confidence.double() - right.double()) ** 2 - (largest - right.double()) ** 2
        base[rest] += (largest - right.double()) ** 2
        times[rest] += 1
        for name, p, sure in (
            ("temperature", plain(predictions[rest]), None),
            ("largest", probs, None),
            ("confidence", probs, confidence),
        ):
            eces[name].append(evaluate(p, truth, metrics=["ece"], confidence=sure)["ece"])
    seen = times > 0
    apart, brier = sums[seen] / times[seen], (base[seen] / times[seen]).mean()
    half = 1.96 * apart.std() / len(apart) ** 0.5
    means = {name: float(np.mean(values)) for name, values in eces.items()}
    return float(apart.mean() / brier), float(half / brier), means


Tried = dict[str, dict[tuple[str, float], np.ndarray]]
"""What `tried` returns, by network."""


def measured(draws: int) -> Tried:
    """Try all promises."""
    found = {}
    for name, (record, kind) in RISKED.items():
        seen = find_record(record)
        rows = seen.predictions.select([kind], rehearsals=False)
        found[name] = tried(rows, seen.require_labels(), draws)
    return found


def risks(networks: Tried) -> Iterator[str]:
    """The table of promises."""
    ways = [*METHODS, *([PEER] if find_spec("mapie") else [])]
    heads = " | ".join(f"{way}: broken | answered | none" for way in ways)
    yield f"| network | risk | {heads} |"
    yield "|---" * (2 + 3 * len(ways)) + "|"
    for name, found in networks.items():
        for risk in USUAL:
            cells = [
                f"{broken:.1%} | {answered:.1%} | {none:.0%}"
                for way in ways
                for answered, broken, none in [found[way, risk]]
            ]
            yield f"| {name} | {risk:.1%} | {' | '.join(cells)} |"


def confidences() -> Iterator[str]:
    """The table of `confidence`."""
    yield "| network | Brier, `confidence` relative to largest | ECE: temperature | largest | `confidence` |"
    yield "|---|---|---|---|---|"
    for name, (record, kind) in CASES.items():
        if record.endswith(".safetensors") and not Path(record).exists():
            continue  # the records of $ATTA_DATA
        apart, half, eces = confident(find_record(record), kind)
        cells = " | ".join(f"{ece:.4f}" for ece in eces.values())
        yield f"| {name} | {apart:+.2%} ± {half:.2%} | {cells} |"


def page(draws: int) -> str:
    """The tables in words and numbers."""
    found = measured(draws)
    worst = max(seen[way, risk][1] for seen in found.values() for way in METHODS for risk in USUAL)
    peer = f" MAPIE is {version('mapie')}." if find_spec("mapie") else ""
    return "\n".join(
        [
            "# A stated risk, measured",
            "",
            "How many images can a classifier answer, if at most 1 % of its answers may be wrong?",
            "",
            "![Risk against coverage of a network on CIFAR-10](risk.svg)",
            "",
            "Drawn by `atta compare cifar10-resnet50-nudged --methods vanilla,temperature,c-atta --json risk.json` and "
            "`atta figure risk risk.json -o docs/risk.svg`. The lines are found on the test images themselves. To promise a risk for "
            "new images takes a margin:",
            "",
            f"`classifier.at_risk(r)` promises that at most r of the answered images are wrong, with probability {1 - DELTA:.0%}; "
            "[the guide](guide.md#7-deploy-it) says how to use it. "
            f"We tried it {draws} times on each of these networks. Each time, 1000 other images calibrate and all others test it. "
            "*Broken* is how often more of the answers were wrong than promised, which should be at most "
            f"{DELTA:.0%}. It was at most {worst:.1%} on every row. *Answered* is the mean share of the test images that get an "
            "answer. If no threshold can promise the risk, a draw answers no image; *none* is how often that happens.",
            "",
            *risks(found),
            "",
            "MAPIE controls the precision of a binary classifier. Its score here is the cross-validated confidence of C-ATTA; its label "
            "is whether the class is right. It tests 100 thresholds, closer together near 1, with its default correction for many tests "
            "(Bonferroni and Holm). Our thresholds are tested in a fixed sequence, which needs no such correction.",
            "",
            "## Is `confidence` better than the largest probability?",
            "",
            "`classifier.confidence` is the probability of the class without what the guard adds to it. Its Brier score for the "
            "predicted class is compared with that of the largest probability, with the 95 % interval over test images. "
            f"Negative is better. ECEs have 15 bins. All numbers are means over {FEW} draws of 1000 images to calibrate on.",
            "",
            *confidences(),
            "",
            f"Measured by `python -m benchmarks.risk --draws {draws}` on {described()}.{peer}",
            "",
        ]
    )


if __name__ == "__main__":
    run(__doc__, page, draws=1000)
