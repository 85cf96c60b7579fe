"""Is a stated risk kept, and how many images does it answer? Resamples of the records of three networks.

    python -m benchmarks.risk [--draws 1000] [--page docs/risk.md]

Each draw takes 1000 labelled images to calibrate on, cross-validates on them, finds the threshold of each risk, and counts the
errors among the answered images of all others. A promise is broken if more of them are wrong than was promised. The records are
those of `benchmarks.records`.
"""

from collections import defaultdict

import numpy as np
import torch

from atta import CATTA, Predictions, TemperatureScaling
from atta.calibrators import Method
from atta.calibrators.crossval import held_answers
from atta.calibrators.risk import DELTA, USUAL, threshold
from benchmarks.records import described, networks, run

VALIDATION = 1000
METHODS: dict[str, Method] = {
    "temperature": TemperatureScaling(),
    "C-ATTA": CATTA(),
}
NETWORKS = {"CIFAR-10": "flip", "CIFAR-100": "nudge", "AID": "flip"}
"""Networks, and the view that C-ATTA blends on each."""


def tried(
    predictions: Predictions, labels: torch.Tensor, draws: int
) -> dict[tuple[str, float], np.ndarray]:
    """For each method and risk, the coverage and whether the promise was broken, draw by draw."""
    found = defaultdict(list)
    right = (predictions.logits.argmax(dim=1) == labels).numpy()
    for draw in range(draws):
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(draw))
        rows, rest = order[:VALIDATION], order[VALIDATION:]
        for name, method in METHODS.items():
            held = held_answers(method, predictions[rows], labels[rows]).confidence
            calibrator = method.fit(predictions[rows], labels[rows])
            confidence = calibrator.confidence(predictions[rest]).numpy()
            for risk in USUAL:
                limit = threshold(held.numpy(), right[rows], risk)
                answered = confidence > (np.inf if limit is None else limit)
                wrong = 1 - right[rest][answered].mean() if answered.any() else 0.0
                found[name, risk].append((answered.mean(), wrong > risk, limit is None))
    return {key: np.array(values, dtype=float).mean(axis=0) for key, values in found.items()}


def page(draws: int) -> str:
    """The tables in words and numbers."""
    lines = [
        "# A stated risk, measured",
        "",
        f"`classifier.at_risk(r)` promises that at most r of the answered images are wrong, with probability {1 - DELTA:.0%}. "
        f"Here it was tried {draws} times on each of these networks, each time with {VALIDATION} other images to calibrate on and all "
        "others to test. *Broken* is how often more of the answers were wrong than promised, which should be at most "
        f"{DELTA:.0%}. *Answered* is the mean share of the test images that get an answer; a draw in which no threshold can "
        "promise the risk answers none, and *none* is how often that happens.",
        "",
        "| network | risk | temperature: broken | answered | none | C-ATTA: broken | answered | none |",
        "|---|---|---|---|---|---|---|---|",
    ]
    records = networks()
    for name, kind in NETWORKS.items():
        seen = records[name].predictions.select([kind], rehearsals=False)
        found = tried(seen, records[name].require_labels(), draws)
        for risk in USUAL:
            cells = [
                f"{broken:.1%} | {answered:.1%} | {none:.0%}"
                for method in METHODS
                for answered, broken, none in [found[method, risk]]
            ]
            lines.append(f"| {name} | {risk:.1%} | {' | '.join(cells)} |")
    lines += ["", f"Measured by `python -m benchmarks.risk --draws {draws}` on {described()}.", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    run(__doc__, page, draws=1000)
