"""Which policy, at as few passes as will do: views are recorded in rounds, on the images that are not settled.

The least confident images tell policies apart; what the network is sure of, it is sure of in every view. So the image itself
is shown once for all, and then

    round   an eighth of the images, the least confident: the views of all policies
            a quarter of them: those of the best four;   a half: those of the best two
    last    all images: the views of the one that is left, and every policy that needs no others

A policy that is worse than the best by more than two standard errors is out at once. Rounds of fewer than a hundred images
say too little and are left out: of fewer than 200 images, all views are recorded. On 15 draws of 1000 images (AID, CIFAR-100
and its shifted images; 14 policies) the choice was that of a search with all views of all images each time, at 0.34 of its
passes (`python -m benchmarks.choice FOLDER`).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from atta._base.types import Probs
from atta.calibrators import Method
from atta.calibrators.crossval import Candidate, held_out, rank
from atta.data.parts import part_of
from atta.data.source import Source
from atta.data.views import Policy, View
from atta.record.predictions import Predictions, Record
from atta.run.collect import LADDER, collect

PARTS = (8, 4, 2)  # of the images: a round records an eighth of them, then a quarter, then a half
KEPT = (4, 2, 1)  # policies that go on from the first round, the second, the third
FEWEST = 100  # images that a round needs
SURE = 2  # standard errors above the best


class Choice(NamedTuple):
    """The policy that was chosen, its record of all images, the answers to them held out, and how all others did."""

    policy: str
    record: Record
    answers: Mapping[str, Probs]
    judged: list[Candidate]


def rounds(images: int, policies: Mapping[str, Policy]) -> list[tuple[int, int]]:
    """How many images each round records, and how many policies go on from it."""
    several = sum(bool(policy.terms) for policy in policies.values()) > 1
    sizes = [images // part for part in PARTS if images // part >= FEWEST]
    return list(zip(sizes, KEPT, strict=False)) if several else []


def most_passes(
    images: int, policies: Mapping[str, Policy], rehearse: bool | Iterable[int] = False
) -> int:
    """The most passes that `choose` runs, rehearsals among them."""
    worse = LADDER * rehearse if isinstance(rehearse, bool) else len(list(rehearse))
    total, before, left = images * (1 + worse), 0, list(policies.values())
    for size, keep in [*rounds(images, policies), (images, 0)]:
        total += (size - before) * sum(repeats for _, repeats in _terms(left))
        left = sorted(left, key=lambda policy: -policy.passes)[:keep]
        before = size
    return total


@dataclass
class Recorder:
    """What the network says of the images, and of those of their views that were asked for; each is run once."""

    network: Any
    source: Source
    labels: Any
    how: Mapping[str, Any]
    rehearse: bool | Iterable[int] = False
    told: Callable[[int], None] = lambda passes: None
    passes: int = 0
    base: Record = field(init=False)
    _views: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    _known: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    _runs: int = 0

    def __post_init__(self) -> None:
        self.base = self._run(self.source, Policy(()), labels=self.labels, rehearse=self.rehearse)

    def extend(self, policies: Iterable[Policy], rows: Tensor) -> None:
        """Record the views of these policies for these rows, if that has not been done.

        Stratified numbers depend on how many repeats there are: views that policies repeat differently are recorded apart.
        """
        logits = self.base.predictions.logits
        for terms in _apart(_terms(policies)):
            known = [
                self._known.setdefault(_key(*term), torch.zeros(len(logits), dtype=torch.bool))
                for term in terms
            ]
            new = rows[~torch.stack(known).all(dim=0)[rows]]
            if not len(new):
                continue
            labels = None if self.base.labels is None else self.base.labels[new]
            found = self._run(
                part_of(self.source, new), Policy(tuple(terms)), labels=labels, logits=logits[new]
            )
            for (view, repeats), seen in zip(terms, known, strict=True):
                shape = (len(logits), repeats, logits.shape[1])
                kept = self._views.setdefault(_key(view, repeats), logits.new_zeros(shape))
                kept[new], seen[new] = found.predictions.views[view.name].to(kept), True

    def record(self, policy: Policy, rows: Tensor | None = None) -> Record:
        """What is known of a policy on these rows, all of them by default."""
        views = dict(self.base.predictions.views)  # the rehearsals
        views |= {view.name: self._views[_key(view, repeats)] for view, repeats in policy.terms}
        origin = {**self.base.origin, "policy": str(policy), "passes": str(policy.passes)}
        whole = Record(Predictions(self.base.predictions.logits, views), self.base.labels, origin)
        return whole if rows is None else whole[rows]

    def _run(self, source: Source, policy: Policy, **what: Any) -> Record:
        how = dict(self.how)
        if how.get("shards") is not None:
            how["shards"] = Path(how["shards"]) / str(self._runs)

        def tell(passes: int) -> None:
            self.passes += passes
            self.told(self.passes)

        self._runs += 1
        return collect(
            self.network,
            source,
            policy=policy,
            draws="stratified",
            progress=tell,
            checks=False,
            **what,
            **how,
        )


def choose(
    recorder: Recorder, policies: Mapping[str, Policy], methods: Mapping[str, Method]
) -> Choice:
    """Record in rounds, and choose by cross-validation (`crossval`): the fewest passes that are as good as the best."""
    labels = recorder.base.require_labels()
    confidence = recorder.base.predictions.logits.softmax(dim=-1).amax(dim=-1)
    order, left, out = confidence.argsort(stable=True), list(policies), dict[str, Candidate]()

    def judge(names: Iterable[str], rows: Tensor) -> tuple[list[Candidate], dict[str, Probs]]:
        records = {name: recorder.record(policies[name], rows) for name in names}
        answers = {
            name: held_out(methods[name], one.predictions, labels[rows])
            for name, one in records.items()
        }
        return rank(
            {name: (policies[name].passes, answers[name]) for name in records}, labels[rows]
        ), answers

    for size, keep in rounds(len(recorder.base), policies):
        rows = order[:size].sort().values
        recorder.extend((policies[name] for name in left), rows)
        judged, _ = judge(left, rows)
        on = [
            one.policy for i, one in enumerate(judged) if i == 0 or one.above <= SURE * one.error
        ][:keep]
        left = _served(on, policies)
        out |= {one.policy: replace(one, images=size) for one in judged}
    everything = torch.arange(len(recorder.base))
    recorder.extend((policies[name] for name in left), everything)
    judged, answers = judge(left, everything)
    others = sorted(
        (one for name, one in out.items() if name not in left),
        key=lambda one: (-one.images, one.above),
    )
    return Choice(
        judged[0].policy, recorder.record(policies[judged[0].policy]), answers, [*judged, *others]
    )


def _served(names: Iterable[str], policies: Mapping[str, Policy]) -> list[str]:
    """These policies and all others that need no view beside theirs: those cost nothing."""
    held = {_key(*term) for term in _terms(policies[name] for name in names)}
    return [
        name for name, policy in policies.items() if {_key(*term) for term in policy.terms} <= held
    ]


def _terms(policies: Iterable[Policy]) -> list[tuple[View, int]]:
    """The different terms of some policies, in their order."""
    return list({_key(*term): term for policy in policies for term in policy.terms}.values())


def _key(view: View, repeats: int) -> tuple[str, int]:
    return view.name, repeats


def _apart(terms: Iterable[tuple[View, int]]) -> list[list[tuple[View, int]]]:
    """The terms in as few policies as hold them, each view once in each."""
    layers: list[list[tuple[View, int]]] = []
    for term in terms:
        free = (layer for layer in layers if all(term[0].name != view.name for view, _ in layer))
        if (layer := next(free, None)) is None:
            layers.append(layer := [])
        layer.append(term)
    return layers
