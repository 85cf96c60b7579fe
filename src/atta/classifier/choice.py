"""Choose the policy with few passes: a sensible default, few rivals, and views recorded in rounds.

The default is known before any view is recorded: it depends on the kind of image and the budget.
It stays unless a rival is better by more than noise. Rivals are compared on the least confident
images, which tell policies apart, because the network answers confident images alike in every view:

    first     the images themselves
    rounds    the 100 least confident images: the views of all candidates
              200, then 400: the default and its best rival, as long as it is not clear who wins
    last      all images: the views of the winner

A rival replaces the default in a round if its NLL is lower by two standard errors. On all images
one standard error is enough: there the winner is compared with temperature scaling, and with every
policy that needs no more views. With fewer than 200 images, a round is noise, and all views are
recorded. On CIFAR-10, CIFAR-100 and AID this is as good as recording every policy for every image,
better with few images, in about half of the passes (`python -m benchmarks.choice`).
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import nan
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from atta._base.errors import InputError
from atta.calibrators import Method, TemperatureScaling
from atta.calibrators.base import ViewMethod
from atta.calibrators.convex import GuardedMethod
from atta.calibrators.crossval import Candidate, HeldAnswers, held_out, rank
from atta.data.views import POLICIES, Policy, View
from atta.record.predictions import Predictions, Record
from atta.run.collect import MOST_SEVERITIES, Run
from atta.run.runner import as_pixels

NO_VIEWS = "temperature"
"""Name of the candidate without views, which is temperature scaling for any method."""
Kind: TypeAlias = Literal["file", "photograph", "small", "grey"]
"""What the pixels of a network show, as far as that decides which views make sense."""
PHOTOGRAPH = 96  # pixels of the shorter side from which on an image counts as a photograph
RIVALS: Mapping[Kind, Sequence[str]] = {
    "file": ("corner-larger-4", "scales-4", "corner-3", "flip-crop-4", "larger-2", "flip-2"),
    "photograph": ("crop-9", "flip-crop-4", "flip-2", "photometric-4"),
    "small": ("nudge-9", "nudge-4", "flip-2", "photometric-4"),
    "grey": ("shift-5", "shift-4", "photometric-4", "flip-2"),
}
"""Candidates by kind of image; the first within the budget is the default.

Networks for photographs are mostly trained on random crops, those for small images on shifted ones;
digits and letters must not be mirrored. Nothing is turned or flipped vertically.
"""
ROUNDS = {100: 2, 200: 4, 400: 4}  # images that a round records, of so many times as many
CLEAR = 2  # standard errors by which a rival wins a round
Term: TypeAlias = tuple[View, int]
"""A view and how often it is repeated."""


class Choice(NamedTuple):
    """The chosen policy, its record of all images, cross-validated answers, and all candidates."""

    policy: str
    record: Record
    answers: HeldAnswers
    judged: list[Candidate]


# ---- candidates ----------------------------------------------------------------------------------


def kind_of(image: Tensor) -> Kind:
    """Return the kind of an image (1, c, h, w), by its size and its channels."""
    _, channels, *sides = image.shape
    if min(sides) >= PHOTOGRAPH:
        return "photograph"
    return "grey" if channels == 1 else "small"


def rivals(kind: Kind, budget: int) -> dict[str, Policy]:
    """Return the policies to try within a budget, the default first.

    All of their views together need at most twice the budget.
    """
    found = dict[str, Policy]()
    for name in RIVALS[kind]:
        terms = _terms([*found.values(), POLICIES[name]]).values()
        if POLICIES[name].passes <= budget and sum(count for _, count in terms) <= 2 * budget:
            found[name] = POLICIES[name]
    return found


def candidates(
    policy: Any,
    budget: int,
    method: Method,
    kind: Kind = "small",
    *,
    quick: bool = False,
    policies: Mapping[str, Policy] | None = None,
) -> dict[str, Policy]:
    """Return the given policy, or those to try within the budget: the default first.

    A policy that is a number is a budget. A method that keeps the class, or could, is temperature
    scaling where it has no views: one pass is the last candidate. `policies` are tried instead of
    those of this kind of image.
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
    wanted = set((isinstance(method, ViewMethod) and method.views) or ())
    if wanted or policies is not None:
        known = (policies or POLICIES).items()
        found = {n: one for n, one in known if one.passes <= budget and wanted <= set(one.kinds)}
    else:
        found = rivals(kind, budget)
    if quick:
        found = dict(list(found.items())[:1])
    if budget >= 1 and (method.keeps_class or isinstance(method, GuardedMethod)):
        found[NO_VIEWS] = Policy(())
    if not found:
        raise InputError(
            f"budget: expected enough passes for {method.name}, 2 or more (1 is temperature "
            f"scaling), got {budget}"
        )
    return found


def methods_for(policies: Iterable[str], method: Method) -> dict[str, Method]:
    """Return the method of each candidate: temperature scaling for the one without views."""
    methods = dict.fromkeys(policies, method)
    if method.needs_views and NO_VIEWS in methods:
        methods[NO_VIEWS] = TemperatureScaling()
    return methods


def fitting(policies: Mapping[str, Policy], image: Tensor) -> dict[str, Policy]:
    """Return the policies whose views can be made of such an image and have its size.

    If there are none, return all: the first run says what is wrong with them.
    """
    pixels = as_pixels(image, torch.float32)
    found = dict[str, Policy]()
    for name, policy in policies.items():
        with suppress(InputError):
            terms = tuple(term for term in policy.terms if not term[0].photograph)
            views = Policy(terms).render(pixels, draws="stratified")
            if all(shown.shape == pixels.shape for *_, shown in views):
                found[name] = policy
    return found or dict(policies)


# ---- recording in rounds -------------------------------------------------------------------------


def rounds(images: int, policies: Mapping[str, Policy]) -> list[int]:
    """Return how many images the rounds record, if there is a choice and enough of them."""
    if sum(bool(policy.terms) for policy in policies.values()) < 2:
        return []
    return [size for size, times in ROUNDS.items() if images >= times * size]


def most_passes(
    images: int, policies: Mapping[str, Policy], rehearse: bool | Iterable[int] = False
) -> int:
    """Return the most passes that `choose` runs, rehearsals included."""
    worse = MOST_SEVERITIES * rehearse if isinstance(rehearse, bool) else len(list(rehearse))
    few = max(rounds(images, policies), default=images)
    every = sum(count for _, count in _terms(policies.values()).values())
    largest = max(policy.passes for policy in policies.values()) - 1
    return images * (1 + worse) + few * every + (images - few) * largest


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
        logits = self.base.predictions.logits
        source = self.run.source
        layers = defaultdict[int, list[Term]](list)
        seen = Counter[str]()
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
    """Record in rounds, and choose: the first policy, unless another is significantly better."""
    labels = recorder.base.require_labels()
    images = len(recorder.base)
    confidence = recorder.base.predictions.logits.softmax(dim=-1).amax(dim=-1)
    order = confidence.argsort(stable=True)
    out = dict[str, Candidate]()
    left = list(policies)
    sizes = [*rounds(images, policies), images]
    while sizes:
        size, *sizes = sizes
        rows = order[:size].sort().values
        if sizes:
            left = [name for name in left if policies[name].terms]
        else:  # and all policies that need no other views: they cost nothing
            there = _terms(policies[name] for name in left).keys()
            free = [name for name, one in policies.items() if _terms([one]).keys() <= there]
            left = list(dict.fromkeys([*left, *free]))
        recorder.extend((policies[name] for name in left), rows)
        seen = {name: recorder.record(policies[name], rows).predictions for name in left}
        answers = {name: held_out(methods[name], seen[name], labels[rows]) for name in left}
        passes = {name: (policies[name].passes, held.probs) for name, held in answers.items()}
        judged = rank(passes, labels[rows], default=left[0], errors=CLEAR if sizes else 1)
        if sizes:
            first, rival, *_ = judged
            out |= {one.policy: replace(one, images=size) for one in judged}
            unclear = first.policy == left[0] and rival.nll < first.nll and len(sizes) > 1
            left = [first.policy, rival.policy] if unclear else [first.policy]
            sizes = sizes if unclear else [images]
    best = judged[0].policy
    others = [one for name, one in out.items() if name not in left]
    others.sort(key=lambda one: (-one.images, one.above))
    return Choice(best, recorder.record(policies[best]), answers[best], [*judged, *others])


def _terms(policies: Iterable[Policy]) -> dict[tuple[str, int], Term]:
    """Return the different terms of some policies by name and repeats, in their order."""
    terms = (term for policy in policies for term in policy.terms)
    return {(view.name, repeats): (view, repeats) for view, repeats in terms}
