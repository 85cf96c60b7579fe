"""Chooses a policy of views from validation images alone.

Each candidate is judged by the NLL of images that its fit did not see, and chosen by the
one-standard-error rule (`atta.calibrators.crossval`). The candidates are few and named: those of
`POLICIES` that a `Pool` of records holds, several records of the same images as one. A free search
over hundreds of views finds what fits the noise of the validation images. `greedy` shows this:

    passes = {};  while the budget lasts and it helps:  passes ∪= the pass that lowers the loss most

Its loss is the least of many, and not an estimate for new images.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from atta._base.errors import InputError
from atta._base.settings import Folds, check, hints
from atta._base.types import Labels, Probs
from atta.calibrators import CATTA, Method
from atta.calibrators.crossval import FOLDS, GAIN, Candidate, held_out, losses, rank
from atta.calibrators.fitting import standard_error
from atta.data.views import POLICIES, Policy, View
from atta.lab.fits import written
from atta.metrics.scores import evaluate
from atta.record.predictions import Predictions, Record, Rows, as_index, as_labels
from atta.results.rows import Results, Row
from atta.results.words import PASSES

BUDGET = 4  # passes per image
TESTED = ("brier", "nll")
# Of the largest logit: batches or half precision change less, other images or networks more.
ROUNDING = 0.01


# ---- records as one


class Pass(NamedTuple):
    """One pass over the images: its record, the kind of view, and the repeat."""

    record: int
    kind: str
    repeat: int


@dataclass(frozen=True, eq=False)
class Pool:
    """Records of the same images by the same network, as one.

    Policies with different numbers of stratified repeats need records of their own.
    """

    records: tuple[Record, ...]
    labels: Labels

    @classmethod
    def of(cls, records: Record | Sequence[Record], labels: Any = None) -> "Pool":
        """Check that the records agree; `labels` are needed where no record has them."""
        records = (records,) if isinstance(records, Record) else tuple(records)
        if not records:
            raise InputError("expected at least one record to search, got none")
        first = records[0].predictions
        for i, record in enumerate(records[1:], start=2):
            if not _same(record.predictions.logits, first.logits):
                raise InputError(
                    "expected records of the same images by the same network, got other logits "
                    f"in record {i} than in record 1: {record.predictions!r} and {first!r}"
                )
        known = [record.labels for record in records if record.labels is not None]
        if labels is not None:
            known.append(as_labels(labels, images=len(first), classes=first.classes))
        if not known:
            raise InputError(f"expected a record with labels, got {len(records)} without")
        if not all(torch.equal(one, known[0]) for one in known):
            raise InputError(
                "expected records of the same images, got different labels for the same logits"
            )
        return cls(records, known[0])

    def __len__(self) -> int:
        return len(self.records[0])

    def __getitem__(self, rows: Rows) -> "Pool":
        """Return the pool of some of the images."""
        labels = self.labels[as_index(rows, len(self))]
        return Pool(tuple(record[rows] for record in self.records), labels)

    def find(self, policy: Policy) -> list[Pass] | None:
        """The passes of a policy, or None if the records lack one of its views.

        Stratified draws are those of a deployed classifier and come first. They depend on their
        number: such a record holds a view with exactly its repeats; one of random draws also holds
        it with fewer.
        """
        passes: list[Pass] = []
        for view, repeats in policy.terms:
            holding = [i for i, record in enumerate(self.records) if _holds(record, view, repeats)]
            if not holding:
                return None
            first = max(holding, key=lambda i: _stratified(self.records[i]))
            passes += (Pass(first, view.name, repeat) for repeat in range(repeats))
        return passes

    def within(self, budget: int) -> tuple[dict[str, list[Pass]], list[str]]:
        """The library's policies within a budget: passes of those held, names of the others."""
        looked = {
            name: self.find(policy) for name, policy in POLICIES.items() if policy.passes <= budget
        }
        held = {name: passes for name, passes in looked.items() if passes is not None}
        if not held:
            views = "; ".join(
                (written(record.predictions.repeats) or "none")
                + " (stratified)" * _stratified(record)
                for record in self.records
            )
            raise InputError(
                f"expected records that hold one of the policies within {budget} passes, "
                f"{', '.join(looked)}; got the views {views}. Record one: atta collect MODEL "
                f"DATASET --draws stratified --policy {next(iter(looked))} -o FILE"
            )
        return held, [name for name in looked if name not in held]

    def passes(self) -> list[Pass]:
        """All passes of the records, each once: a flip in three records is one."""
        found = defaultdict[str, list[Pass]](list)
        for i, record in enumerate(self.records):
            for kind, repeats in record.predictions.repeats.items():
                for new in (Pass(i, kind, repeat) for repeat in range(repeats)):
                    if not any(_same(self._look(new), self._look(one)) for one in found[kind]):
                        found[kind].append(new)
        return list(chain.from_iterable(found.values()))

    def pick(self, passes: Iterable[Pass]) -> Predictions:
        """The predictions with these passes only; those of one kind are its repeats."""
        views = defaultdict[str, list[Tensor]](list)
        for one in passes:
            views[one.kind].append(self._look(one))
        looks = {kind: torch.stack(found, dim=1) for kind, found in views.items()}
        return Predictions(self.records[0].predictions.logits, looks)

    def _look(self, one: Pass) -> Tensor:
        return self.records[one.record].predictions.views[one.kind][:, one.repeat]


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether two runs of a network saw the same images."""
    return one.shape == other.shape and bool(
        (one - other).abs().max() <= ROUNDING * one.abs().max()
    )


def _holds(record: Record, view: View, repeats: int) -> bool:
    """Whether a record has the views that so many repeats would be drawn with."""
    have = record.predictions.repeats.get(view.name, 0)
    return have == repeats or (have > repeats and not (view.random and _stratified(record)))


def _stratified(record: Record) -> bool:
    return record.origin.get("draws") == "stratified"


# ---- searches


@dataclass(frozen=True, kw_only=True)
class Findings:
    """The result of a search: the library's candidates, the choice first, and the greedy choice."""

    candidates: list[Candidate]
    missing: list[str]
    """The policies within the budget that the records do not hold."""
    free: Candidate | None = None
    """The greedy choice; its loss was selected on."""
    tested: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Metrics on test images, of a fit on all searched ones, by policy."""

    @property
    def choice(self) -> Candidate:
        """The chosen candidate."""
        return self.candidates[0]

    def results(self, dataset: str, *, method: str, images: int) -> Results:
        """All numbers as rows; `choice` marks the chosen policy and the greedy one."""
        chosen = {id(self.choice): "one-standard-error", id(self.free): "greedy"}
        found = list[Row]()
        for one in filter(None, [*self.candidates, self.free]):
            numbers = {
                PASSES: float(one.passes),
                "cv_nll": one.nll,
                "cv_nll_above": one.above,
                "cv_nll_error": one.error,
                **self.tested.get(one.policy, {}),
            }
            row = partial(Row, dataset=dataset, validation=images, method=method)
            choice = chosen.get(id(one), "")
            found += (
                row(policy=one.policy, choice=choice, metric=metric, value=value)
                for metric, value in numbers.items()
            )
        return Results(tuple(found))


@dataclass(frozen=True, kw_only=True)
class Search:
    """How policies are judged.

    Args:
        budget: The most passes per image: the image itself and its views.
        method: The method that is fitted.
        folds: Parts of the images, of which each is held out once.
        seed: Seed of the folds.
    """

    budget: Annotated[int, "≥ 2"] = BUDGET
    method: Method = field(default_factory=CATTA)
    folds: Folds = FOLDS
    seed: int = 0

    def __post_init__(self) -> None:
        check(vars(self), hints(Search))
        if not self.method.needs_views:  # every policy would get the same answer
            raise InputError(
                f"expected a method that uses views, such as c-atta, got {self.method.name}"
            )

    def explore(self, pool: Pool, *, free: bool = False, test: Pool | None = None) -> Findings:
        """Judge the library and, if `free`, a greedy choice; measure their fits on `test`."""
        looks, missing = pool.within(self.budget)
        answers = {name: self._answer(pool, passes) for name, passes in looks.items()}
        candidates, free_choice = rank(answers, pool.labels), None
        if free:
            taken = self.greedy(pool)
            best = min(candidates, key=lambda one: one.nll).policy
            count, probs = self._answer(pool, taken)
            loss = losses(probs, pool.labels)
            above = loss - losses(answers[best][1], pool.labels)
            free_choice = Candidate(
                policy=described(taken),
                passes=count,
                nll=loss.mean().item(),
                above=above.mean().item(),
                error=standard_error(above),
            )
            looks[free_choice.policy] = taken
        tested = {}
        if test is not None:
            for name, passes in looks.items():
                probs = self.method.fit(pool.pick(passes), pool.labels)(test.pick(passes))
                tested[name] = evaluate(
                    probs, test.labels, metrics=TESTED, simplex=self.method.on_simplex
                )
        return Findings(candidates=candidates, missing=missing, free=free_choice, tested=tested)

    def greedy(self, pool: Pool) -> list[Pass]:
        """Add the pass that lowers the held-out loss most, until the budget ends or none lowers it.

        This over-fits. A first pass is always taken.
        """
        taken, left, least = list[Pass](), pool.passes(), float("inf")
        if not left:
            raise InputError("expected records with views, got none")
        while left and len(taken) < self.budget - 1:
            found = {}
            for one in left:
                _, probs = self._answer(pool, [*taken, one])
                found[one] = losses(probs, pool.labels).mean().item()
            best = min(left, key=found.__getitem__)
            if found[best] > least - GAIN:
                break
            least = found[best]
            taken.append(best)
            left.remove(best)
        return taken

    def _answer(self, pool: Pool, passes: Sequence[Pass]) -> tuple[int, Probs]:
        """The passes per image, and the held-out probabilities."""
        seen = pool.pick(passes)
        probs = held_out(self.method, seen, pool.labels, count=self.folds, seed=self.seed).probs
        return seen.passes, probs


def search(records: Record | Sequence[Record], labels: Any = None, **how: Any) -> list[Candidate]:
    """Judge the policies of the library that the records hold; the choice comes first.

    Use it to see what each policy gains before you choose one.

    Args:
        records: One record, or several of the same images by the same network.
        labels: The labels, if no record has them.
        how: The settings of `Search`: `budget`, `method`, `folds`, `seed`.

    Returns:
        The candidates, each with its passes and its held-out NLL.

    >>> from atta import find_record
    >>> record = find_record("cifar10-resnet50-nudged")[:300]
    >>> search(record)[0].passes <= 4
    True
    """
    return Search(**how).explore(Pool.of(records, labels)).candidates


def described(passes: Iterable[Pass]) -> str:
    """Write passes as a policy, without the numbers of the repeats: flip + 2 shift."""
    return written(Counter(one.kind for one in passes))
