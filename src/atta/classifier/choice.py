"""Choose the policy with as few passes as possible: views are recorded in rounds.

The least confident images tell policies apart: the network answers confident images alike in every
view. So the images themselves are run once, and then

    round   an eighth of the images, the least confident: the views of all policies
            a quarter of them: the views of the best four;   a half: those of the best two
    last    all images: the views of the policy that is left, and of every policy that needs no more

A policy that is worse than the best by more than two standard errors is dropped. Rounds of fewer
than a hundred images are noise and left out: with fewer than 200 images, all views are recorded. On
15 draws of 1000 images (AID, CIFAR-100 and its shifted images; 14 policies) the choice was that of
a search with all views of all images, with 0.34 of its passes (`python -m benchmarks.choice
FOLDER`).
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import nan
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from atta._base.errors import InputError
from atta.calibrators import Method
from atta.calibrators.base import ViewMethod
from atta.calibrators.convex import GuardedMethod
from atta.calibrators.crossval import Candidate, HeldAnswers, held_answers, rank
from atta.data.views import POLICIES, Policy, View
from atta.record.predictions import Predictions, Record
from atta.run.collect import MOST_SEVERITIES, Run
from atta.run.runner import as_pixels

NO_VIEWS = "temperature"
"""Name of the candidate without views, which is temperature scaling for any method."""
NOT_TRIED = {
    *("nudge-2", "diagonal-4", "colour-4", "shift-2", "shift-4"),
    *("vflip-2", "dihedral-4", "dihedral-8", "dihedral-photometric-4", "dihedral-photometric-9"),
}
"""Policies that are only used when they are named: they cost passes and were not the best choice.

On records of CIFAR-10, CIFAR-100 with and without noise and blur, and AID, another policy of at
most 4 passes had a lower NLL than each that was recorded; `diagonal-4` and `colour-4` were not.
Photographs are not turned upside down.
"""
PARTS = (8, 4, 2)  # a round records an eighth of the images, then a quarter, then a half
KEPT = (4, 2, 1)  # policies that go on from the first round, the second, the third
FEWEST = 100  # images that a round needs
ERRORS = 2  # standard errors above the best, from which on a policy is dropped
Term: TypeAlias = tuple[View, int]
"""A view and how often it is repeated."""


class Choice(NamedTuple):
    """The chosen policy, its record of all images, cross-validated answers, and all candidates."""

    policy: str
    record: Record
    answers: HeldAnswers
    judged: list[Candidate]


# ---- candidates ----------------------------------------------------------------------------------


def candidates(
    policy: Any, budget: int, method: Method, *, photographs: bool = True
) -> dict[str, Policy]:
    """Return the given policy, or those of the library that fit the budget.

    A policy that is a number is a budget. A method that keeps the class, or could, is temperature
    scaling where it has no views: one pass is a candidate, too. Without `photographs`, policies
    of the library that need them are not.
    """
    policy, budget = ("auto", policy) if type(policy) is int else (policy, budget)
    auto = isinstance(policy, str) and policy.strip() == "auto"
    parsed = Policy(()) if auto else Policy.parse(policy)
    if not method.needs_views:
        return {NO_VIEWS: Policy(())}
    if not auto:
        if isinstance(method, ViewMethod):  # it says if the policy lacks one of its views
            views = {kind: torch.zeros(1, repeats, 2) for kind, repeats in parsed.repeats.items()}
            method.kinds_of(Predictions(torch.zeros(1, 2), views))
        return {policy if isinstance(policy, str) else str(parsed): parsed}
    wanted = set(method.views or ()) if isinstance(method, ViewMethod) else set()
    one_pass = budget >= 1 and (method.keeps_class or isinstance(method, GuardedMethod))
    found = {NO_VIEWS: Policy(())} if one_pass else {}
    for name, one in POLICIES.items():
        if one.photographs and not photographs:
            continue
        if one.passes <= budget and wanted <= set(one.kinds) and (wanted or name not in NOT_TRIED):
            found[name] = one
    if not found:
        raise InputError(
            f"budget: expected enough passes for {method.name}, 2 or more (1 is temperature "
            f"scaling), got {budget}"
        )
    return found


def fitting(policies: Mapping[str, Policy], image: Tensor) -> dict[str, Policy]:
    """Return the policies whose views can be made of such an image and have its size.

    If there are none, return all: the first run says what is wrong with them.
    """
    pixels, found = as_pixels(image, torch.float32), dict[str, Policy]()
    for name, policy in policies.items():
        with suppress(InputError):
            terms = tuple(term for term in policy.terms if not term[0].photograph)
            views = Policy(terms).render(pixels, draws="stratified")
            if all(shown.shape == pixels.shape for *_, shown in views):
                found[name] = policy
    return found or dict(policies)


# ---- recording in rounds -------------------------------------------------------------------------


def rounds(images: int, policies: Mapping[str, Policy]) -> list[tuple[int, int]]:
    """Return how many images each round records, and how many policies go on from it."""
    several = sum(bool(policy.terms) for policy in policies.values()) > 1
    sizes = [images // part for part in PARTS if images // part >= FEWEST]
    return list(zip(sizes, KEPT, strict=False)) if several else []


def most_passes(
    images: int, policies: Mapping[str, Policy], rehearse: bool | Iterable[int] = False
) -> int:
    """Return the most passes that `choose` runs, rehearsals included."""
    worse = MOST_SEVERITIES * rehearse if isinstance(rehearse, bool) else len(list(rehearse))
    total, before, left = images * (1 + worse), 0, list(policies.values())
    for size, keep in [*rounds(images, policies), (images, 0)]:
        total += (size - before) * sum(repeats for _, repeats in _terms(left))
        left = sorted(left, key=lambda policy: -policy.passes)[:keep]
        before = size
    return total


@dataclass
class Recorder:
    """The answers to the images, and to those of their views that were asked for; each is run once.

    Args:
        run: The network and its images.
        base: The record of the images themselves and of rehearsals.
        cache: A folder that keeps finished passes.
    """

    run: Run
    base: Record
    cache: Path | None = None
    _views: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    """Logits of views, by name and repeats: NaN where an image was not shown."""
    _runs: int = 0

    def extend(self, policies: Iterable[Policy], rows: Tensor) -> None:
        """Record the views of these policies for these rows, if that has not been done.

        Stratified numbers depend on the number of repeats, so that views that policies repeat
        differently are recorded separately.
        """
        logits, source = self.base.predictions.logits, self.run.source
        layers, seen = defaultdict[int, list[Term]](list), Counter[str]()
        for term in _terms(policies).values():
            layers[seen[term[0].name]].append(term)  # a policy has each view once
            seen[term[0].name] += 1
        for terms in layers.values():
            for view, repeats in terms:
                nothing = logits.new_full((len(logits), repeats, logits.shape[1]), nan)
                self._views.setdefault((view.name, repeats), nothing)
            kept = {view.name: self._views[view.name, repeats] for view, repeats in terms}
            missing = [view[rows, 0, 0].isnan() for view in kept.values()]
            new = rows[torch.stack(missing).any(dim=0)]
            if not len(new):
                continue
            self._runs += 1
            run = replace(
                self.run, source=source.subset(new) if len(new) != source.count else source
            )
            folder = None if self.cache is None else self.cache / str(self._runs)
            found = run.answers(Policy(tuple(terms)), itself=False, folder=folder).views()
            for name, answers in kept.items():
                answers[new] = found[name].to(answers)

    def record(self, policy: Policy, rows: Tensor | None = None) -> Record:
        """Return the record of a policy on these rows, by default on all of them."""
        rows = torch.arange(len(self.base)) if rows is None else rows
        base = self.base[rows]
        views = dict(base.predictions.views)  # the rehearsals
        views |= {view.name: self._views[view.name, count][rows] for view, count in policy.terms}
        origin = {**base.origin, "policy": str(policy), "passes": str(policy.passes)}
        return Record(Predictions(base.predictions.logits, views), base.labels, origin)


def choose(
    recorder: Recorder, policies: Mapping[str, Policy], methods: Mapping[str, Method]
) -> Choice:
    """Record in rounds, and choose the fewest passes that are as good as the best (`crossval`)."""
    labels, images = recorder.base.require_labels(), len(recorder.base)
    confidence = recorder.base.predictions.logits.softmax(dim=-1).amax(dim=-1)
    order, left, out = confidence.argsort(stable=True), list(policies), dict[str, Candidate]()
    for size, keep in [*rounds(images, policies), (images, 0)]:
        rows = order[:size].sort().values
        recorder.extend((policies[name] for name in left), rows)
        answers = {
            name: held_answers(
                methods[name], recorder.record(policies[name], rows).predictions, labels[rows]
            )
            for name in left
        }
        passes = {name: (policies[name].passes, held.probs) for name, held in answers.items()}
        judged = rank(passes, labels[rows])
        if keep:
            good = [one.policy for one in judged[1:] if one.above <= ERRORS * one.error]
            left = _free([judged[0].policy, *good][:keep], policies)
            out |= {one.policy: replace(one, images=size) for one in judged}
    others = [one for name, one in out.items() if name not in left]
    others.sort(key=lambda one: (-one.images, one.above))
    best = judged[0].policy
    return Choice(best, recorder.record(policies[best]), answers[best], [*judged, *others])


def _free(names: Iterable[str], policies: Mapping[str, Policy]) -> list[str]:
    """Return these policies and all others that need only their views: those cost nothing."""
    there = _terms(policies[name] for name in names).keys()
    return [name for name, policy in policies.items() if _terms([policy]).keys() <= there]


def _terms(policies: Iterable[Policy]) -> dict[tuple[str, int], Term]:
    """Return the different terms of some policies by name and repeats, in their order."""
    terms = (term for policy in policies for term in policy.terms)
    return {(view.name, repeats): (view, repeats) for view, repeats in terms}
