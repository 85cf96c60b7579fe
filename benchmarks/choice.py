"""Choosing a policy in rounds against recording every view of every image: the choice, and what it costs in passes.

FOLDER holds stratified records, `<name>_<anything>.safetensors` of the same images in the same order; they are replayed in the
place of a network, so that every pass is counted and none is run. A view that a policy repeats less often than it was recorded
is stood in for by the first of its repeats. Each draw takes some images to choose and fit on; the others tell what the choice
is worth: the NLL of what rounds chose, less that of what all views chose.

    python -m benchmarks.choice FOLDER [--names aid,cifar100,...] [--draws 3] [--images 1000]
"""

import argparse
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from atta import Predictions, Record
from atta.calibrators import CATTA, Method, TemperatureScaling
from atta.calibrators.crossval import held_out, losses, rank
from atta.classifier.choice import NO_VIEWS, Recorder, choose
from atta.data.views import POLICIES, Policy, View

NAMES = ("aid", "cifar100", "cifar100_shift")
BUDGET = 4


def pooled(folder: Path, name: str) -> Record:
    """One record of all views that were recorded of these images, each with the most repeats."""
    parts = [
        Record.load(path)
        for kind in ("rich", "nudge", "spread")
        if (path := folder / f"{name}_{kind}.safetensors").exists()
    ]
    if not parts:
        raise SystemExit(
            f"expected {name}_rich.safetensors, {name}_nudge.safetensors, ... in {folder}, found none"
        )
    views: dict[str, Tensor] = {}
    for part in parts:
        more = {
            kind: view
            for kind, view in part.predictions.views.items()
            if view.shape[1] > views.get(kind, view[:, :0]).shape[1]
        }
        views |= more
    return Record(Predictions(parts[0].predictions.logits, views), parts[0].labels, {})


class Replayed(Recorder):
    """Answers out of a record, and counts the passes that a network would have run."""

    def __init__(self, base: Record) -> None:
        self.base, self.passes = base, len(base)
        self._known = {}

    def extend(self, policies: Iterable[Policy], rows: Tensor) -> None:
        """Count what has not been counted before."""
        for view, repeats in {
            (v.name, r): (v, r) for policy in policies for v, r in policy.terms
        }.values():
            known = self._known.setdefault(
                (view.name, repeats), torch.zeros(len(self.base), dtype=torch.bool)
            )
            self.passes += repeats * int((~known[rows]).sum())
            known[rows] = True

    def record(self, policy: Policy, rows: Tensor | None = None) -> Record:
        """What was recorded of a policy on these rows, all of them by default."""
        whole = Record(shown(self.base.predictions, policy), self.base.labels, {})
        return whole if rows is None else whole[rows]


def shown(predictions: Predictions, policy: Policy) -> Predictions:
    """The views of a policy, out of all that were recorded."""
    return Predictions(
        predictions.logits,
        {view.name: predictions.views[view.name][:, :r] for view, r in policy.terms},
    )


def there(view: View, repeats: int, record: Record) -> bool:
    views = record.predictions.views
    return view.name in views and views[view.name].shape[1] >= repeats


def compared(record: Record, images: int, seed: int) -> dict[str, Any]:
    """Choose both ways on some images, and test both choices on the others."""
    order = torch.randperm(len(record), generator=torch.Generator().manual_seed(seed))
    drawn, others = record[order[:images]], record[order[images:]]
    policies: dict[str, Policy] = {NO_VIEWS: Policy(())}
    policies |= {
        n: p
        for n, p in POLICIES.items()
        if p.passes <= BUDGET and all(there(*term, record) for term in p.terms)
    }
    methods: Mapping[str, Method] = {
        name: TemperatureScaling() if name == NO_VIEWS else CATTA() for name in policies
    }
    recorder = Replayed(drawn)
    chosen = choose(recorder, policies, methods).policy
    labels, everything = drawn.require_labels(), Replayed(drawn)
    everything.extend(policies.values(), torch.arange(len(drawn)))
    answers = {
        name: held_out(methods[name], shown(drawn.predictions, policies[name]), labels)
        for name in policies
    }
    best = rank({name: (policies[name].passes, probs) for name, probs in answers.items()}, labels)[
        0
    ].policy

    def tested(name: str) -> float:
        fitted = methods[name].fit(shown(drawn.predictions, policies[name]), labels)
        return float(
            losses(
                fitted(shown(others.predictions, policies[name])), others.require_labels()
            ).mean()
        )

    lost = 0.0 if chosen == best else tested(chosen) - tested(best)
    return {
        "policies": len(policies),
        "rounds": chosen,
        "all": best,
        "part": recorder.passes / everything.passes,
        "lost": lost,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--names", default=",".join(NAMES))
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--images", type=int, default=1000)
    given = parser.parse_args()
    print(
        "| record | draw | policies | in rounds | all views | passes, of all views' | NLL lost on other images |",
        flush=True,
    )
    print("|---|---|---|---|---|---|---|", flush=True)
    found = []
    for name in given.names.split(","):
        record = pooled(given.folder, name)
        for seed in range(given.draws):
            one = compared(record, given.images, seed)
            cells = (
                name,
                seed,
                one["policies"],
                one["rounds"],
                one["all"],
                f"{one['part']:.2f}",
                f"{one['lost']:+.4f}",
            )
            print("| " + " | ".join(map(str, cells)) + " |", flush=True)
            found.append(one)
    same = sum(one["rounds"] == one["all"] for one in found)
    parts, lost = ([one[key] for one in found] for key in ("part", "lost"))
    print(
        f"\nthe same choice in {same} of {len(found)}, at {sum(parts) / len(parts):.2f} of the passes; NLL lost on average "
        f"{sum(lost) / len(lost):+.4f}, at most {max(lost):+.4f}"
    )


if __name__ == "__main__":
    main()
