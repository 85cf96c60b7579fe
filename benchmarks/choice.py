"""What `calibrate` chooses within 4 passes, what that costs, and what it is worth on other images.

Records are replayed in the place of a network, so that every pass is counted and none is run. Compared are

    full      `calibrate(...)`: a default, rivals in rounds, weights drawn towards equal
    quick     `effort="quick"`: the default or temperature scaling
    search    every recorded policy of at most 4 passes, for all images, by the rule of `atta search`, with free weights

in NLL and Brier score of the top label, in % of temperature scaling. Passes are without rehearsals, which add 1 to 3.

    python -m benchmarks.choice [--draws 10]
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from atta import CATTA, Predictions, Record, TemperatureScaling
from atta.calibrators.crossval import held_out, rank
from atta.classifier.calibrate import BUDGET, DEFAULT
from atta.classifier.choice import NO_VIEWS, Kind, Recorder, candidates, choose, methods_for
from atta.data.views import POLICIES, Policy
from benchmarks.records import DATA, Means, draw, draws_asked, joined, networks

IMAGES = (160, 300, 500, 1000)
KINDS: Mapping[str, Kind] = {"AID": "photograph"}
TESTED = 2000  # images of each draw
SEARCHED = ("flip-2", "nudge-4", "crop-2", "crop-4", "flip-crop-4", "flip-shift-2", "shift-mix-4")


class Replayed(Recorder):
    """Answers out of a record, and counts the passes that a network would have run."""

    def __init__(self, base: Record) -> None:
        self.base, self.passes = base, len(base)
        self._known: dict[tuple[str, int], Tensor] = {}

    def extend(self, policies: Iterable[Policy], rows: Tensor) -> None:
        """Count what has not been counted before."""
        for name, repeats in {(v.name, r) for policy in policies for v, r in policy.terms}:
            nothing = torch.zeros(len(self.base), dtype=torch.bool)
            known = self._known.setdefault((name, repeats), nothing)
            self.passes += repeats * int((~known[rows]).sum())
            known[rows] = True

    def record(self, policy: Policy, rows: Tensor | None = None) -> Record:
        """What was recorded of a policy on these rows, all of them by default."""
        whole = Record(shown(self.base.predictions, policy), self.base.labels, {})
        return whole if rows is None else whole[rows]


def shown(predictions: Predictions, policy: Policy) -> Predictions:
    """The views of a policy; the first repeats stand for those of a policy with fewer."""
    views = {kind: predictions.views[kind][:, :r] for kind, r in policy.repeats.items()}
    return Predictions(predictions.logits, views)


def searched(base: Record, policies: Mapping[str, Policy]) -> tuple[str, float]:
    """The choice of a search through all views of all images, and its passes per image."""
    methods, labels = methods_for(policies, CATTA()), base.require_labels()
    recorder = Replayed(base)
    recorder.extend(policies.values(), torch.arange(len(base)))
    answers = {
        name: (
            policy.passes,
            held_out(methods[name], shown(base.predictions, policy), labels).probs,
        )
        for name, policy in policies.items()
    }
    return rank(answers, labels)[0].policy, recorder.passes / len(base)


def chosen(base: Record, policies: Mapping[str, Policy]) -> tuple[str, float]:
    """The choice of `calibrate` from these policies, and its passes per image."""
    recorder = Replayed(base)
    found = choose(recorder, policies, methods_for(policies, DEFAULT)).policy
    return found, recorder.passes / len(base)


def measure(network: str, record: Record, images: int, draws: int) -> None:
    """Print the rows of one record and number of images."""
    recorded = {kind: view.shape[1] for kind, view in record.predictions.views.items()}

    def there(policies: Mapping[str, Policy]) -> dict[str, Policy]:
        return {
            name: one
            for name, one in policies.items()
            if all(recorded.get(kind, 0) >= r for kind, r in one.repeats.items())
        }

    kind = KINDS.get(network, "small")
    few = there(candidates("auto", BUDGET, DEFAULT, kind))
    quick = {name: few[name] for name in (next(iter(few)), NO_VIEWS)}
    every = there({NO_VIEWS: Policy(()), **{name: POLICIES[name] for name in SEARCHED}})
    every |= {name: one for name, one in few.items() if name == "photometric-4"}
    means, passes = Means(len(record)), defaultdict[str, list[float]](list)
    labels = record.require_labels()
    for seed in range(draws):
        fit, test = draw(len(record), seed)
        fit, test = fit[:images], test[:TESTED]
        base = record[fit]
        plain = TemperatureScaling().fit(shown(base.predictions, Policy(())), base.require_labels())
        means.add(NO_VIEWS, test, plain(shown(record.predictions[test], Policy(()))), labels[test])
        ways = {
            "full": (chosen(base, few), few, DEFAULT),
            "quick": (chosen(base, quick), quick, DEFAULT),
            "search": (searched(base, every), every, CATTA()),
        }
        for way, ((name, cost), policies, method) in ways.items():
            views = shown(base.predictions, policies[name])
            fitted = methods_for([name], method)[name].fit(views, base.require_labels())
            answers = fitted(shown(record.predictions[test], policies[name]))
            means.add(way, test, answers, labels[test])
            passes[way].append(cost)
    for way, costs in passes.items():
        (nll, _), (brier, _), *_ = means.against(way, NO_VIEWS)
        cells = [
            network,
            str(images),
            way,
            f"{sum(costs) / draws:.1f}",
            f"{nll:+.1f}",
            f"{brier:+.1f}",
        ]
        more = means.against(way, "search")[:2]
        cells += [f"{apart:+.1f} ± {half:.1f}" if way != "search" else "" for apart, half in more]
        print("| " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    """Print a table."""
    draws = draws_asked(__doc__)
    print("| network | images | | passes | NLL | Brier | NLL, to search | Brier, to search |")
    print("|---|---|---|---|---|---|---|---|")
    shifted = {"CIFAR-100, noise and blur": joined(DATA / "records", "cifar100_shift")}
    for network, record in (networks() | shifted).items():
        for images in IMAGES:
            measure(network, record, images, draws)


if __name__ == "__main__":
    main()
