"""What came out of each table and figure of the paper, in words that are written from the numbers.

Why ours differ is known for some datasets (`WHY`) and typed; all else follows from the results and the published tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from atta.lab.experiment import Experiment
from atta.lab.paper.claims import Numbers
from atta.lab.paper.published import PublishedTable, paper, published
from atta.lab.tables import by_policy
from atta.results.rows import Results
from atta.results.words import METRIC_NAMES, SENSE

RECIPE = "The paper does not say how its network was trained, and ours has a recipe of its own"
WHY = {
    "cifar10": f"{RECIPE}.",
    "cifar10*": f"{RECIPE}; which kinds of noise and blur a network has seen in training decides how it takes CIFAR-10*.",
    "cifar100": f"{RECIPE}: it is right more often, and less sure of itself, than the paper's.",
    "aid": f"{RECIPE}; its AID images had 150 pixels a side and were enlarged to 224.",
    "ucmerced": "Which classes of UC-Merced are which of AID's is our guess, ten that both have: the paper lists none.",
}
COMPARED = ("temperature", "dirichlet", "adaptive-tta", "m-atta", "v-atta")
METRICS = {name: METRIC_NAMES[name] for name in ("brier", "mc_brier", "nll", "ece")}


def said(results: Results, experiment: Experiment) -> str:
    """One paragraph on an experiment: what came out and, where that is known, why it differs from the paper's."""
    rows = [row for row in results if row.experiment == experiment.name]
    numbers = Numbers.of(rows)
    theirs = published(experiment.published) if experiment.published else None
    if by_policy(experiment):
        told = _policies(numbers, theirs)
    elif len(experiment.validation) > 1:
        told = _sizes(numbers)
    elif theirs is not None:
        told = _table(numbers, theirs, experiment)
    else:
        told = _ranked(numbers, rows[0].metric if rows else "brier")
    why = WHY.get(experiment.dataset, "") if theirs is not None else ""
    return " ".join(filter(None, (*told, why)))


def _table(numbers: Numbers, theirs: PublishedTable, experiment: Experiment) -> list[str]:
    told = []
    ours = {
        m: {metric: numbers.table[m, metric] for metric in METRICS if (m, metric) in numbers.table}
        for m in theirs
    }
    right, known = (
        numbers.table.get(("vanilla", "accuracy")),
        paper()["accuracy"].get(experiment.dataset),
    )
    if right is not None:
        beside = f", the paper's on {100 * known:.1f} %" if known else ""
        told.append(f"Our network is right on {100 * right:.1f} % of the test images{beside}.")
    changes = [
        f"{m} {_change(ours, m, 'brier'):+.1f} % ({_change(theirs, m, 'brier'):+.1f} %)"
        for m in COMPARED
        if "brier" in ours.get(m, {}) and "brier" in ours.get("vanilla", {})
    ]
    if changes:
        told.append(
            f"Against vanilla the Brier score moves by (in the paper): {', '.join(changes)}."
        )
    for whose, found in (("ours", ours), ("the paper's", theirs)):
        best = [
            f"{name} {_best(found, metric)}"
            for metric, name in METRICS.items()
            if all(metric in found[m] for m in found)
        ]
        told.append(f"Best of {whose}: {', '.join(best)}.")
    return told


def _change(table: Mapping[str, Mapping[str, float]], method: str, metric: str) -> float:
    return 100 * (table[method][metric] / table["vanilla"][metric] - 1)


def _best(table: Mapping[str, Mapping[str, float]], metric: str) -> str:
    return min(table, key=lambda method: table[method][metric])


def _policies(numbers: Numbers, theirs: PublishedTable | None) -> list[str]:
    told = []
    for method in dict.fromkeys(method for method, _ in numbers.by_policy):
        ours = {policy: value for (m, policy), value in numbers.by_policy.items() if m == method}
        sentence = f"{method}: best with {_first(ours)} ({min(ours.values()):.4f}), worst with {_first(ours, last=True)}"
        if theirs is not None and method in theirs and set(theirs[method]) == set(ours):
            known = theirs[method]
            less = fmean(ours[policy] - known[policy] for policy in ours)
            sentence += (
                f"; in the paper {_first(known)} ({min(known.values()):.4f}) and {_first(known, last=True)}. Ours are "
                f"{less:+.4f} from them on average; the two orders correlate by {_ranks(ours, known):+.2f} (Spearman)"
            )
        told.append(sentence + ".")
    return told


def _first(values: Mapping[str, float], *, last: bool = False) -> str:
    return (max if last else min)(values, key=lambda name: values[name])


def _ranks(a: Mapping[str, float], b: Mapping[str, float]) -> float:
    """Spearman's correlation of two orders of the same names."""
    place = [
        {name: i for i, name in enumerate(sorted(one, key=lambda name: one[name]))}
        for one in (a, b)
    ]
    apart, n = sum((place[0][name] - place[1][name]) ** 2 for name in a), len(a)
    return 1 - 6 * apart / (n * (n * n - 1)) if n > 1 else 1.0


def _sizes(numbers: Numbers) -> list[str]:
    sizes = sorted({size for _, size in numbers.by_size})
    if not all((m, size) in numbers.by_size for m in ("m-atta", "v-atta") for size in sizes):
        return []
    brier = {m: [numbers.by_size[m, size] for size in sizes] for m in ("m-atta", "v-atta")}
    ahead = [
        size for size, m, v in zip(sizes, brier["m-atta"], brier["v-atta"], strict=True) if m < v
    ]
    told = [
        f"From {sizes[0]} to {sizes[-1]} images the Brier score goes from {values[0]:.4f} to {values[-1]:.4f} for {method}."
        for method, values in brier.items()
    ]
    told.append(
        f"M-ATTA is ahead from {ahead[0]} images on." if ahead else "M-ATTA is never ahead."
    )
    return [*told, "Of this figure the paper prints no numbers."]


def _ranked(numbers: Numbers, metric: str) -> list[str]:
    metric = "brier" if ("vanilla", "brier") in numbers.table else metric
    found = {m: value for (m, name), value in numbers.table.items() if name == metric}
    if len(found) < 3:
        return []
    order = sorted(found, key=lambda m: found[m], reverse=SENSE.get(metric) == "higher")
    listed = "; ".join(f"{m}: {found[m]:.4f}" for m in order[:3])
    way = "Highest" if SENSE.get(metric) == "higher" else "Lowest"
    return [
        f"{way} {METRIC_NAMES.get(metric, metric)}, of all: {listed}. Last is {order[-1]} with {found[order[-1]]:.4f}."
    ]
