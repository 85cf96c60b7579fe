"""Experiments as data: which methods are fitted on which rows of which record, and tested on which.

experiments/in-distribution-cifar10.toml ──► Experiment ──► run(experiment, records) ──► Results

`trials` lists every method on every draw of the validation rows, after checking that the records
fit the experiment and each other. So a mistake is reported before anything is fitted.
"""

from __future__ import annotations

import os
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, TypeAlias, get_args, get_origin

import torch

from atta._base.errors import InputError, suggest
from atta._base.settings import Count, check_one, hints
from atta.calibrators import Method, find_method
from atta.data.views import Policy
from atta.lab.fits import RECORDED, RULES, Fit, Rows, views_of
from atta.lab.measure import MEASURES
from atta.metrics.scores import METRICS
from atta.record.predictions import Record
from atta.results.words import CLASS_CHANGES, FITTED, OOD_AUROC, REST, RULE

Settings: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One table or figure, of the paper or your own: all that decides its numbers.

    Use `Experiment.read` for a TOML file, whose keys are these arguments.

    Args:
        name: The experiment's name; that of its file if the file does not say.
        dataset: What tables call the dataset.
        fit: The record to fit on: `validation` of its rows, drawn `splits` times.
        methods: By the name in tables: settings, `method` if that is not the name itself, and
            `policy` or `policies` of its own; or, in Python, a `Method`.
        test: "rest" tests on the other rows of that record, "fitted" on the fitted rows; or the
            name of another record.
        aligned: The other record has the last images of the fitted one, in the same order, in
            another state; those that were fitted on are left out.
        policies: The policies of views to try; "recorded" takes the record's views as they are.
        choose: Rules (`fits.RULES`) that choose one of the policies; without any, all are tested.
        validation: Numbers of images to fit on; 0 takes all of them.
        splits: Draws of the validation rows.
        seeds: Seeds of methods that draw random numbers in their fit.
        metrics: The measures to keep (`measure.MEASURES`).
        title: The title of its tables.
        paper: The table or figure of the paper that it reproduces.
        published: The place of the published numbers (`atta.lab.paper.published`).

    >>> Experiment(name="mine", dataset="shop", fit="shop", methods={"v-atta": {}}).splits
    10
    """

    name: str
    dataset: str
    fit: str
    methods: Mapping[str, Settings | Method]
    test: str = REST
    aligned: bool = False
    policies: tuple[str, ...] = (RECORDED,)
    choose: tuple[str, ...] = ()
    validation: tuple[Annotated[int, "≥ 0"], ...] = (1000,)
    splits: Count = 10
    seeds: tuple[int, ...] = (0,)
    metrics: tuple[str, ...] = ("brier", "ece", "mc_brier", "nll", "accuracy", CLASS_CHANGES)
    title: str = ""
    paper: str = ""
    published: str = ""

    def __post_init__(self) -> None:
        try:
            self._check()
        except InputError as error:
            raise InputError(f"experiment {self.name!r}: {error}") from None

    def _check(self) -> None:
        for name, value in vars(self).items():
            _typed(name, value)
            if not value and name not in _OPTIONAL:
                raise InputError(f"{name}: expected at least one, got none")
            if isinstance(value, tuple) and (twice := Counter(value) - Counter(set(value))):
                raise InputError(f"{name}: expected each once, got {next(iter(twice))!r} twice")
        if self.test == self.fit:
            raise InputError(
                f"test: {self.fit} is fitted on; expected {REST!r}, {FITTED!r} or another record"
            )
        if self.aligned and self.test in (REST, FITTED):
            raise InputError(f"aligned: expected another record to test on, got {self.test!r}")
        _check_names("choose: unknown name", self.choose, RULES)
        _check_names("metrics: unknown name", self.metrics, MEASURES)
        for label in self.methods:
            try:
                self.tried(label)
            except InputError as error:
                raise InputError(f"methods: {label}: {error}") from None

    @property
    def records(self) -> list[str]:
        """The names of the records that it needs: the fitted one first."""
        return [name for name in (self.fit, self.test) if name not in (REST, FITTED)]

    @property
    def heading(self) -> str:
        """The heading of its tables, with its place in the paper."""
        return (self.title or self.name) + (f" ({self.paper})" if self.paper else "")

    @property
    def compares_policies(self) -> bool:
        """Whether it compares policies, rather than choosing one."""
        return not self.choose and len(self.policies) > 1

    def seeded(self, label: str) -> dict[int, Method]:
        """The method behind a label, by each of its seeds.

        One without random draws, or with a seed of its own, is fitted once.
        """
        own = self.methods[label]
        if isinstance(own, Method):
            method, seeded = own, True
        else:
            settings = {name: value for name, value in own.items() if name not in _OUTSIDE}
            method, seeded = find_method(str(own.get("method", label)), **settings), "seed" in own
        if seeded or not hasattr(method, "seed"):
            return {getattr(method, "seed", 0): method}
        return {seed: replace(method, seed=seed) for seed in self.seeds}  # type: ignore[call-arg]

    def method(self, label: str) -> Method:
        """The method behind a label, with its first seed."""
        return next(iter(self.seeded(label).values()))

    def tried(self, label: str) -> tuple[str, ...]:
        """The policies that a method is tried with; "" for one that needs no views."""
        if not self.method(label).needs_views:
            return ("",)
        own, given = self.methods[label], self.policies
        if not isinstance(own, Method):
            given = own.get("policies", own.get("policy", given))
        policies = (given,) if isinstance(given, str) else given
        if not isinstance(policies, list | tuple) or not policies:
            raise InputError(
                f"expected a policy, such as 'flip + 5 crop', or a list of them, got {given!r}"
            )
        for policy in policies:
            if policy != RECORDED:
                Policy.parse(check_one("policy", policy, str))
        return tuple(policies)

    def changed(self, *, splits: int | None = None, validation: int | None = None) -> Experiment:
        """The experiment with other draws; `validation` replaces the first of several sizes."""
        sizes = self.validation
        if validation is not None:
            sizes = tuple(
                round(size * validation / sizes[0]) if sizes[0] else validation for size in sizes
            )
            if len(set(sizes)) < len(sizes):
                raise InputError(
                    f"experiment {self.name!r}: {len(sizes)} sizes from {validation} images on "
                    "would not differ"
                )
        return replace(self, splits=self.splits if splits is None else splits, validation=sizes)

    @classmethod
    def of(cls, content: Settings) -> Experiment:
        """Make one from plain values; an unknown key is named, with the known ones."""
        _check_names("unknown key", content, [f.name for f in fields(cls)])
        needed = [f.name for f in fields(cls) if f.default is MISSING and f.name not in content]
        if needed:
            raise InputError(f"expected {', '.join(needed)}, which it does not have")
        return cls(**{name: _typed(name, value) for name, value in content.items()})

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Experiment:
        """Read a TOML file."""
        try:
            content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
            return cls.of({"name": Path(path).stem, **content})
        except FileNotFoundError:
            raise InputError(f"there is no file {path}") from None
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
        except RecursionError:
            raise InputError(f"{path} is nested too deeply") from None
        except (OSError, ValueError) as error:
            raise InputError(f"{path} is not a TOML file ({error})") from None

    def about(self) -> dict[str, Any]:
        """All of it as plain values, for JSON."""
        return {name: _plain(value) for name, value in vars(self).items()}


def described(method: Method) -> dict[str, Any]:
    """A method as plain values: its name and its settings."""
    return {"method": method.name, **_plain(method.settings())}


_OPTIONAL = ("choose", "aligned", "title", "paper", "published")
_OUTSIDE = ("method", "policy", "policies")


def _typed(name: str, value: Any) -> Any:
    """Check the type of a setting; where a list is expected, one value is a list of one."""
    kind = hints(Experiment)[name]
    if name == "methods":
        if isinstance(value, Mapping) and all(
            isinstance(own, Mapping | Method) for own in value.values()
        ):
            return value
        raise InputError(
            f"{name}: expected a table for each, such as [methods.v-atta], got {value!r}"
        )
    if get_origin(kind) is not tuple:
        return check_one(name, value, kind)
    values = value if isinstance(value, list | tuple) else (value,)
    return tuple(check_one(name, one, get_args(kind)[0]) for one in values)


def _check_names(what: str, given: Iterable[str], known: Iterable[str]) -> None:
    for name in given:
        if name not in known:
            raise InputError(f"{what} {name!r}.{suggest(name, known)} Known: {', '.join(known)}")


def _plain(value: Any) -> Any:
    if isinstance(value, Method):
        return described(value)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


# ---- trials


@dataclass(frozen=True)
class Trial:
    """A method on one draw of the validation rows: its candidate fits, one per policy."""

    label: str
    seed: int
    rows: Rows
    candidates: list[Fit]


def trials(experiment: Experiment, records: Mapping[str, Record]) -> Iterator[list[Trial]]:
    """Every method on every draw, the draws one after the other."""
    _check_records(experiment, records)
    images, pixels = len(records[experiment.fit]), records[experiment.fit].predictions.images
    groups: tuple[int, ...] = ()
    if pixels is not None:
        _, counts = pixels.unique_consecutive(return_counts=True)  # type: ignore[no-untyped-call]
        groups = tuple(counts.tolist())
    for validation in experiment.validation:
        size = validation or images
        if size > images - (experiment.test == REST or experiment.aligned):
            raise InputError(
                f"record {experiment.fit} has {images} images: "
                f"expected fewer of them for validation, got {size}; "
                f"try validation={max(1, images // 2)} (--validation)"
            )
        # There is only one way to take all of them.
        for split in range(experiment.splits if size < images else 1):
            rows = Rows(images, size, split, groups=groups)
            fit = partial(Fit, experiment.fit, rows)
            yield [
                Trial(
                    label, seed, rows, [fit(method, policy) for policy in experiment.tried(label)]
                )
                for label in experiment.methods
                for seed, method in experiment.seeded(label).items()
            ]


def fits_of(experiment: Experiment, records: Mapping[str, Record]) -> list[Fit]:
    """The fits of an experiment: the candidates, and what its rules need to choose one of them."""
    found: list[Fit] = []
    for trial in chain.from_iterable(trials(experiment, records)):
        found += trial.candidates
        if len(trial.candidates) > 1 and {*experiment.choose} - {RULE}:
            for fit in trial.candidates:
                found += fit.parted()
    return list(dict.fromkeys(found))


def _check_records(experiment: Experiment, records: Mapping[str, Record]) -> None:
    """Check that the records fit the experiment and each other."""
    used = experiment.records
    for name in used:
        if name not in records:
            raise InputError(
                f"experiment {experiment.name!r} needs the record {name}, "
                f"got: {', '.join(records) or 'none'}"
            )
    record, test = records[used[0]], records[used[-1]]
    try:
        record.require_labels()
    except InputError as error:
        raise InputError(f"record {experiment.fit}: {error}") from None
    if test is not record:
        _check_pair(experiment, record, test)
    for name in reversed(used):
        for label in experiment.methods:
            _check_views(experiment, label, records[name], name)
    for metric in experiment.metrics:
        if metric in METRICS and METRICS[metric].needs_labels and test.labels is None:
            raise InputError(f"{metric} needs labels, and record {experiment.test} has none")
        if metric == OOD_AUROC and test.labels is not None:
            raise InputError(
                f"{metric} needs images of unknown classes, and record {experiment.test} has labels"
            )


def _check_pair(experiment: Experiment, record: Record, test: Record) -> None:
    """Check that a record can be tested with what is fitted on the other."""
    ours, theirs = experiment.fit, experiment.test
    if test.predictions.classes != record.predictions.classes:
        raise InputError(
            f"record {theirs} has {test.predictions.classes} classes, "
            f"{ours}, which is fitted on, has {record.predictions.classes}"
        )
    if experiment.aligned:
        last = record.require_labels()[-len(test) :]
        if len(last) < len(test) or not torch.equal(
            last, last if test.labels is None else test.labels
        ):
            raise InputError(
                f"record {theirs} is not the last {len(test)} images of {ours}, which has "
                f"{len(record)}: their number or their labels differ"
            )
    # A fit to the answers of one network says nothing about another.
    for key in ("model", "trained_on", "training_seed", "recipe"):
        one, other = record.origin.get(key), test.origin.get(key)
        if None not in (one, other) and one != other:
            raise InputError(
                f"records {ours} and {theirs} are not of one network: "
                f"their {key} is {one} and {other}"
            )


def _check_views(experiment: Experiment, label: str, record: Record, name: str) -> None:
    for policy in filter(None, experiment.tried(label)):
        try:
            if not (views := views_of(policy, record)):
                raise InputError("expected the logits of views, got none")
            record.predictions.take(views)
        except InputError as error:
            raise InputError(f"record {name}: {label} with {policy}: {error}") from None
