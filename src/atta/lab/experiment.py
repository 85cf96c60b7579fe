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
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeAlias, get_args, get_origin

import torch

from atta._base.errors import InputError, suggest
from atta._base.settings import Count, check_one, hints
from atta.calibrators import Method, find_method
from atta.data.views import Policy
from atta.lab.fits import RECORDED, RULES, Fit, Rows, parted, views_of
from atta.lab.measure import MEASURES
from atta.metrics.scores import METRICS
from atta.record.predictions import Record
from atta.results.words import CLASS_CHANGES, FITTED, OOD_AUROC, REST

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
        for name, value in vars(self).items():
            _typed(f"experiment {self.name!r}: {name}", name, value)
            if not value and name not in _OPTIONAL:
                self._refuse(f"{name}: expected at least one, got none")
            if isinstance(value, tuple) and (twice := Counter(value) - Counter(set(value))):
                self._refuse(f"{name}: expected each once, got {next(iter(twice))!r} twice")
        if self.test == self.fit:
            self._refuse(
                f"test: {self.fit} is fitted on; expected {REST!r}, {FITTED!r} or another record"
            )
        if self.aligned and self.test in (REST, FITTED):
            self._refuse(f"aligned: expected another record to test on, got {self.test!r}")
        _check_names(f"experiment {self.name!r}: choose", self.choose, RULES)
        _check_names(f"experiment {self.name!r}: metrics", self.metrics, MEASURES)
        for label in self.methods:
            try:
                self.tried(label)
            except InputError as error:
                self._refuse(f"methods: {label}: {error}")

    def _refuse(self, what: str) -> NoReturn:
        raise InputError(f"experiment {self.name!r}: {what}") from None

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
            return {getattr(own, "seed", 0): own}
        settings = {name: value for name, value in own.items() if name not in _OUTSIDE}
        method = find_method(str(own.get("method", label)), **settings)
        if "seed" in own or not hasattr(method, "seed"):
            return {getattr(method, "seed", 0): method}
        return {seed: replace(method, seed=seed) for seed in self.seeds}  # type: ignore[call-arg]

    def method(self, label: str) -> Method:
        """The method behind a label, with its first seed."""
        return next(iter(self.seeded(label).values()))

    def tried(self, label: str) -> tuple[str, ...]:
        """The policies that a method is tried with; "" for one that needs no views."""
        if not self.method(label).needs_views:
            return ("",)
        own = self.methods[label]
        given = self.policies
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
                self._refuse(f"{len(sizes)} sizes from {validation} images on would not differ")
        return replace(self, splits=self.splits if splits is None else splits, validation=sizes)

    @classmethod
    def of(cls, content: Settings, source: str = "an experiment") -> Experiment:
        """Make one from plain values; an unknown key is named, with the known ones."""
        _check_names(source, content, [f.name for f in fields(cls)], "key")
        needed = [f.name for f in fields(cls) if f.default is MISSING and f.name not in content]
        if needed:
            raise InputError(f"{source}: expected {', '.join(needed)}, which it does not have")
        return cls(
            **{name: _typed(f"{source}: {name}", name, value) for name, value in content.items()}
        )

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Experiment:
        """Read a TOML file."""
        try:
            content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise InputError(f"there is no file {path}") from None
        except (OSError, ValueError, RecursionError) as error:
            raise InputError(f"{path} is not a TOML file ({error})") from None
        return cls.of({"name": Path(path).stem, **content}, str(path))

    def about(self) -> dict[str, Any]:
        """All of it as plain values, for JSON."""
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self)}


def described(method: Method) -> dict[str, Any]:
    """A method as plain values: its name and its settings."""
    return {"method": method.name, **_plain(method.settings())}


_OPTIONAL = ("choose", "aligned", "title", "paper", "published")
_OUTSIDE = ("method", "policy", "policies")


def _typed(where: str, name: str, value: Any) -> Any:
    """Check the type of a setting; where a list is expected, one value is a list of one."""
    kind = hints(Experiment)[name]
    if name == "methods":
        if isinstance(value, Mapping) and all(
            isinstance(own, Mapping | Method) for own in value.values()
        ):
            return value
        raise InputError(
            f"{where}: expected a table for each, such as [methods.v-atta], got {value!r}"
        )
    if get_origin(kind) is not tuple:
        return check_one(where, value, kind)
    values = value if isinstance(value, list | tuple) else (value,)
    return tuple(check_one(where, one, get_args(kind)[0]) for one in values)


def _check_names(
    where: str, given: Iterable[str], known: Iterable[str], what: str = "name"
) -> None:
    for name in given:
        if name not in known:
            raise InputError(
                f"{where}: unknown {what} {name!r}.{suggest(name, known)} Known: {', '.join(known)}"
            )


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
    candidates: tuple[Fit, ...]


def trials(experiment: Experiment, records: Mapping[str, Record]) -> Iterator[Trial]:
    """Every method on every draw."""
    _check_records(experiment, records)
    images, pixels = len(records[experiment.fit]), records[experiment.fit].predictions.images
    of_pixels = [] if pixels is None else groupby(pixels.tolist())
    groups = tuple(len(list(rows)) for _, rows in of_pixels)
    for validation in experiment.validation:
        size = validation or images
        if size > images - (experiment.test == REST or experiment.aligned):
            raise InputError(
                f"record {experiment.fit} has {images} images: "
                f"expected fewer of them for validation, got {size}"
            )
        # There is only one way to take all of them.
        for split in range(experiment.splits if size < images else 1):
            rows = Rows(images, size, split, groups=groups)
            for label in experiment.methods:
                policies = experiment.tried(label)
                for seed, method in experiment.seeded(label).items():
                    fits = (Fit(experiment.fit, rows, method, policy) for policy in policies)
                    yield Trial(label, seed, rows, tuple(fits))


def fits_of(experiment: Experiment, records: Mapping[str, Record]) -> list[Fit]:
    """The fits of an experiment: the candidates, and what its rules need to choose one of them."""
    found: list[Fit] = []
    for trial in trials(experiment, records):
        found += trial.candidates
        if len(trial.candidates) > 1 and "cross-validated" in experiment.choose:
            for fit in trial.candidates:
                found += parted(fit)
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
    if len(used) > 1:
        _check_pair(experiment, record, test)
    for name in reversed(used):
        _check_views(experiment, records[name], name)
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
        if len(last) < len(test) or (
            test.labels is not None and not torch.equal(last, test.labels)
        ):
            raise InputError(
                f"record {theirs} is not the last {len(test)} images of {ours}, which has "
                f"{len(record)}: their number or their labels differ"
            )
    # A fit to the answers of one network says nothing about another.
    for key in ("model", "trained_on", "training_seed", "recipe"):
        one, other = record.origin.get(key), test.origin.get(key)
        if one is not None and other is not None and one != other:
            raise InputError(
                f"records {ours} and {theirs} are not of one network: "
                f"their {key} is {one} and {other}"
            )


def _check_views(experiment: Experiment, record: Record, name: str) -> None:
    for label in experiment.methods:
        for policy in filter(None, experiment.tried(label)):
            try:
                if not views_of(policy, record):
                    raise InputError("expected the logits of views, got none")
                record.predictions.take(views_of(policy, record))
            except InputError as error:
                raise InputError(f"record {name}: {label} with {policy}: {error}") from None
