"""What a pass of the network buys: V-ATTA, all of it or within a budget of passes an image, against temperature scaling.

"kept" is the part of V-ATTA's gain over temperature scaling that is left; everything is a mean over splits of 1000 images to
fit on and the rest to test on. With --fits, selective-v-atta is also put together from parts that were fitted, as a variant,
on their own side of the gate alone, and with other gates than the confidence.

    python -m benchmarks.cost [RECORD] [--policy "flip + crop + brightness"] [--splits 3] [--budgets 1.2 1.7 3 5] [--fits]
"""

import argparse
from collections import defaultdict
from collections.abc import Mapping

import torch
from torch import Tensor

from atta import (
    VATTA,
    Predictions,
    Record,
    SelectiveVATTA,
    SequentialVATTA,
    TemperatureScaling,
    evaluate,
    find_record,
)
from atta.data.views import Policy
from atta.lab.fits import Rows

BUDGETS = (1.2, 1.7, 3.0, 5.0)
GATES = {
    "confidence": lambda logits: logits.softmax(dim=1).amax(dim=1),
    "margin": lambda logits: -logits.softmax(dim=1).topk(2).values.diff(dim=1)[:, 0],
    "entropy": lambda logits: (logits.softmax(dim=1) * logits.log_softmax(dim=1)).sum(dim=1),
}


def fronts(
    fitted: Record, test: Record, budgets: list[float], fits: bool
) -> dict[str, tuple[float, float, float]]:
    """Passes, Brier and NLL of every method at every budget."""
    predictions, labels = fitted.predictions, fitted.require_labels()
    methods = {"temperature": TemperatureScaling(), "v-atta": VATTA()}
    for budget in budgets:
        if budget < predictions.passes:
            staged = (m(passes=budget, blend="v-atta") for m in (SelectiveVATTA, SequentialVATTA))
            methods |= {f"{method.name} {budget:g}": method for method in staged}
    found = {}
    for name, method in methods.items():
        calibrator = method.fit(predictions, labels)
        passes = calibrator.passes(test.predictions).double().mean().item()
        found[name] = (passes, *score(calibrator(test.predictions), test.require_labels()))
    for budget in budgets if fits else ():
        if budget < predictions.passes:
            variants = other_fits(predictions, labels, test.predictions, budget)
            found |= {
                f"{name}, {budget:g}": (passes, *score(probs, test.require_labels()))
                for name, (passes, probs) in variants.items()
            }
    return found


def other_fits(
    predictions: Predictions, labels: Tensor, test: Predictions, budget: float
) -> Mapping[str, tuple[float, Tensor]]:
    """Both parts fitted on their own side of the gate, by three gates."""
    found = {}
    count = int((budget - 1) / (predictions.passes - 1) * len(predictions))
    for name, gate in GATES.items():
        values, others = gate(predictions.logits), gate(test.logits)
        level = values.sort().values[count]
        below, unsure = values < level, others < level
        views = VATTA().fit(predictions[below], labels[below])(test)
        scaled = TemperatureScaling().fit(predictions[~below], labels[~below])(test)
        passes = 1 + (predictions.passes - 1) * unsure.double().mean().item()
        found[f"own sides, {name}"] = (passes, torch.where(unsure[:, None], views, scaled))
    return found


def score(probs: Tensor, labels: Tensor) -> tuple[float, float]:
    numbers = evaluate(probs, labels, metrics=["brier", "nll"])
    return numbers["brier"], numbers["nll"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("record", nargs="?", default="cifar10-resnet50")
    parser.add_argument("--policy", default="aug8")
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--budgets", type=float, nargs="+", default=BUDGETS)
    parser.add_argument("--fits", action="store_true")
    asked = parser.parse_args()
    whole = find_record(asked.record)
    record = Record(whole.predictions.take(Policy.parse(asked.policy).repeats), whole.labels)
    numbers = defaultdict(list)
    for split in range(asked.splits):
        fitted, test = (record[rows] for rows in Rows(len(record), 1000, split).drawn())
        for name, values in fronts(fitted, test, asked.budgets, asked.fits).items():
            numbers[name].append(values)
    means = {
        name: torch.tensor(values, dtype=torch.float64).mean(dim=0)
        for name, values in numbers.items()
    }
    print(f"{asked.record}, {asked.policy}, {asked.splits} splits\n")
    print("| method, budget | passes | brier | nll | brier kept | nll kept |")
    print("|---|---|---|---|---|---|")
    worst, best = means["temperature"], means["v-atta"]
    for name, mean in means.items():
        passes, brier, nll = mean.tolist()
        kept = ((worst - mean) / (worst - best))[1:].tolist()
        print(
            f"| {name} | {passes:.2f} | {brier:.4f} | {nll:.4f} | {kept[0]:.0%} | {kept[1]:.0%} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
