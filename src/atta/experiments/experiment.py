"""Experiments on records: what is fitted on which rows and tested on which, as data, and one runner for all of them.

experiments/in-distribution-cifar10.toml ──► Experiment ──► run(experiment, records) ──► Results

record ──► validation rows ──► method.fit, for each policy ──► choice of the policy ──► calibrator
                                                                                            │
       ──► the other rows, the fitted ones, or another record ──► evaluate ──► rows         ◄
"""

from __future__ import annotations

import difflib
import json
import os
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from atta import __version__
from atta.calibrators import Calibrator, Method, find_method
from atta.calibrators.conformal import Conformal, cross_checked
from atta.experiments.choice import RULES, choose
from atta.experiments.details import details
from atta.experiments.fits import RECORDED, Fit, Fits, Rows
from atta.experiments.workers import one_thread
from atta.images.views import VIEWS, Policy
from atta.metrics.resampling import CONFIDENCE, RESAMPLES, Resamples, intervals, replicates
from atta.metrics.scores import METRICS, class_changes, evaluate, ood_auroc
from atta.paper.published import published
from atta.predictions import Record
from atta.results.rows import Interval, Results, Row
from atta.results.words import CLASS_CHANGES, COST, COVERAGE, FITTED, OOD_AUROC, PASSES, REST, SET_SIZE
from atta.types import InputError

MEASURES = (*METRICS, CLASS_CHANGES, OOD_AUROC, PASSES, COVERAGE, SET_SIZE)
"""All that can be measured: METRICS, how many predicted classes changed, how well entropy tells foreign images, how often the
network runs for an image on average, and how often conformal sets hold the label and how large they are."""
SETS = Conformal(coverage=0.98)
"""The conformal sets that are measured: larger than one class even for a network that is right 19 times in 20."""
JUDGED = ("accuracy", "brier", "ece", "smooth_ece", "mc_brier", "nll", "entropy", "shannon_entropy")
"""The metrics that tables and verdicts judge by: results have their intervals. `atta.bootstrap` gives those of all."""
Settings: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One table or figure of the paper, or of your own: everything that decides its numbers, as in its TOML file.

    `dataset`     what the tables call it
    `fit`         the record to fit on; `validation` of its rows, drawn `splits` times
    `test`        "rest": the other rows of that record; "fitted": the fitted ones themselves; or another record
    `aligned`     the rows of that other record are the last rows of the fitted one, the same images in another state: those
                  fitted on are left out
    `methods`     by the name the tables give them: settings, and `method` where that is not the name itself, and `policy` or
                  `policies` where a method has its own
    `policies`    the policies of views that methods are tried with; "recorded" takes the record's views as they are
    `choose`      rules by which one of the policies is chosen (atta.choosing.RULES); without any, each stands for itself
    `validation`  numbers of images to fit on; 0 is all of them
    `seeds`       of methods that draw random numbers when they are fitted
    `published`   where in the paper's numbers (atta.published) this experiment's are
    """

    name: str
    dataset: str
    fit: str
    methods: Mapping[str, Settings]
    test: str = REST
    aligned: bool = False
    policies: tuple[str, ...] = (RECORDED,)
    choose: tuple[str, ...] = ()
    validation: tuple[int, ...] = (1000,)
    splits: int = 10
    seeds: tuple[int, ...] = (0,)
    metrics: tuple[str, ...] = ("brier", "ece", "mc_brier", "nll", "accuracy", CLASS_CHANGES)
    title: str = ""
    paper: str = ""
    published: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "methods", MappingProxyType({label: dict(own) for label, own in self.methods.items()}))
        for name in ("name", "dataset", "fit", "test", "methods", "policies", "validation", "seeds", "metrics"):
            if not getattr(self, name):
                raise InputError(f"{self._who()}: {name}: expected at least one, got none")
        for name in ("policies", "choose", "validation", "seeds", "metrics"):
            if twice := [one for one, count in Counter(getattr(self, name)).items() if count > 1]:
                raise InputError(f"{self._who()}: {name}: expected each once, got {twice[0]!r} twice")
        if self.test == self.fit:
            raise InputError(
                f"{self._who()}: test: {self.fit} is fitted on; expected {REST!r}, {FITTED!r} or another record"
            )
        if self.aligned and self.test in (REST, FITTED):
            raise InputError(f"{self._who()}: aligned: expected another record to test on, got {self.test!r}")
        if self.published:
            published(self.published)
        if self.splits < 1:
            raise InputError(f"{self._who()}: splits: expected at least 1, got {self.splits}")
        if min(self.validation) < 0:
            raise InputError(f"{self._who()}: validation: expected numbers of images, got {min(self.validation)}")
        _check_names(f"{self._who()}: choose", self.choose, RULES)
        _check_names(f"{self._who()}: metrics", self.metrics, MEASURES)
        for label in self.methods:
            try:
                self.method(label)
                self.tried(label)
            except InputError as error:
                raise InputError(f"{self._who()}: methods: {label}: {error}") from None

    def _who(self) -> str:
        return f"experiment {self.name!r}"

    def method(self, label: str, seed: int = 0) -> Method:
        """The method behind a name of the tables, with its settings, and this seed where it has one."""
        settings = {name: value for name, value in self.methods[label].items() if name not in _OUTSIDE}
        found = find_method(str(self.methods[label].get("method", label)), **settings)
        return replace(found, seed=seed) if self._draws(found, settings) else found  # type: ignore[call-arg]

    def seeded(self, label: str) -> tuple[int, ...]:
        """The seeds a method is fitted with: one that draws nothing, or says its own seed, is fitted once."""
        settings = self.methods[label]
        return self.seeds if self._draws(self.method(label), settings) else (settings.get("seed", 0),)

    @staticmethod
    def _draws(method: Method, settings: Settings) -> bool:
        return "seed" in {f.name for f in fields(method)} and "seed" not in settings

    def tried(self, label: str) -> tuple[str, ...]:
        """The policies a method is tried with; "" alone for one that needs no views."""
        if not self.method(label).needs_views:
            return ("",)
        own = self.methods[label]
        given = own.get("policies", own.get("policy", self.policies))
        policies = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, list | tuple) else ()
        if not policies or not all(isinstance(policy, str) for policy in policies):
            raise InputError(f"expected a policy, such as 'flip + 5 crop', or a list of them, got {given!r}")
        for policy in policies:
            if policy != RECORDED:
                Policy.parse(policy)
        return policies

    def changed(self, *, splits: int | None = None, validation: int | None = None) -> Experiment:
        """The experiment with other draws; of several sizes of the validation set, the first becomes `validation`."""
        sizes = self.validation
        if validation is not None:
            sizes = tuple(round(size * validation / sizes[0]) if sizes[0] else validation for size in sizes)
            if len(set(sizes)) < len(sizes):
                raise InputError(f"{self._who()}: {len(sizes)} sizes from {validation} images on would not differ")
        return replace(self, splits=self.splits if splits is None else splits, validation=sizes)

    # ---- to and from TOML

    @classmethod
    def of(cls, content: Settings, source: str = "an experiment") -> Experiment:
        """Make one from plain values; a key that it does not have is named, with those it has."""
        known = [f.name for f in fields(cls)]
        _check_names(source, content, known, "key")
        needed = [name for name in ("name", "dataset", "fit", "methods") if name not in content]
        if needed:
            raise InputError(f"{source}: expected {', '.join(needed)}, which it does not have")
        return cls(**{name: _typed(f"{source}: {name}", name, value) for name, value in content.items()})

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Experiment:
        """Read a TOML file."""
        try:
            content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise InputError(f"there is no file {path}") from None
        except (OSError, ValueError) as error:
            raise InputError(f"{path} is not a TOML file ({error})") from None
        return cls.of({"name": Path(path).stem, **content}, str(path))

    def toml(self) -> str:
        """Write it as TOML: `read` gives the same experiment back."""
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "methods"}
        lines = [f"{name} = {_toml(value)}" for name, value in plain.items()]
        for label, settings in self.methods.items():
            lines += [
                "",
                f"[methods.{_toml(label)}]",
                *(f"{name} = {_toml(value)}" for name, value in settings.items() if value is not None),
            ]
        return "\n".join(lines) + "\n"

    def about(self) -> dict[str, Any]:
        """All of it as plain values, for JSON."""
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self)}


_OUTSIDE = ("method", "policy", "policies")
_LISTS: dict[str, type] = {"policies": str, "choose": str, "metrics": str, "validation": int, "seeds": int}
_KINDS: dict[str, type] = {"aligned": bool, "splits": int}
_CALLED: dict[type, str] = {str: "a text", int: "a whole number", bool: "true or false"}


def _typed(where: str, name: str, value: Any) -> Any:
    """A value as the experiment holds it, if it is of the right type; one alone is a list of one."""
    if name == "methods":
        if not isinstance(value, Mapping) or not all(isinstance(own, Mapping) for own in value.values()):
            raise InputError(f"{where}: expected a table for each, such as [methods.v-atta], got {value!r}")
        return value
    if name in _LISTS:
        given = value if isinstance(value, list | tuple) else (value,)
        return tuple(_one(where, _LISTS[name], item) for item in given)
    return _one(where, _KINDS.get(name, str), value)


def _one(where: str, kind: type, value: Any) -> Any:
    if type(value) is not kind:  # exactly: True is no number of images
        raise InputError(f"{where}: expected {_CALLED[kind]}, got {value!r}")
    return value


def _check_names(where: str, given: Any, known: Any, what: str = "name") -> None:
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(str(name), list(known), n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise InputError(f"{where}: unknown {what} {name!r}.{hint} Known: {', '.join(known)}")


def _toml(value: Any) -> str:
    """Write a value; JSON's texts, numbers and lists are TOML's, and its true and false. Only of U+007F they disagree."""
    return json.dumps(_plain(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


# ---- running one


@dataclass(frozen=True)
class _Trial:
    """A method on one draw of the validation rows: its candidate fits, one a policy."""

    label: str
    seed: int
    rows: Rows
    candidates: tuple[Fit, ...]


def run(
    experiment: Experiment,
    records: Mapping[str, Record],
    *,
    fits: Fits | None = None,
    done: Callable[[str], None] = lambda what: None,
) -> Results:
    """Run an experiment on records, by name; `done` is told of each fit of `planned`.

    `fits` remembers calibrators from one experiment to the next. The numbers do not depend on what it remembers.
    """
    fits = Fits(records) if fits is None else fits
    trials = list(_trials(experiment, records))
    fits.make(_needed(experiment, trials), done)
    with one_thread():  # the last digit of a sum depends on how many add it up
        return _tested(experiment, records, fits, trials)


def _tested(experiment: Experiment, records: Mapping[str, Record], fits: Fits, trials: Sequence[_Trial]) -> Results:
    bench = _Bench(experiment, fits)
    surely = _Surely()
    rows: list[Row] = []
    looked: list[dict[str, Any]] = []
    for trial in trials:
        rules = experiment.choose if len(trial.candidates) > 1 else ()
        chosen = [(rule, choose(fits, trial.candidates, rule)) for rule in rules] or [
            ("", fit) for fit in trial.candidates
        ]
        for rule, fit in chosen:
            what: dict[str, Any] = {
                "experiment": experiment.name,
                "dataset": experiment.dataset,
                "validation": trial.rows.validation,
                "split": trial.rows.split,
                "method": trial.label,
                "policy": bench.named(fit),
                "choice": rule,
                "seed": trial.seed,
            }
            rows += (Row(**what, metric=metric, value=value) for metric, value in bench.numbers(fit).items())
            surely.add(what, bench.numbers(fit), bench.resampled(fit))
            if trial.rows.split == 0 and trial.seed == experiment.seeded(trial.label)[0]:
                looked.append({**what, **bench.details(fit)})
    used = [name for name in (experiment.fit, experiment.test) if name not in (REST, FITTED)]
    about = {
        "atta": __version__,
        "torch": torch.__version__,
        "experiments": {experiment.name: experiment.about()},
        "records": {name: {"sha256": fits.fingerprint(name), **records[name].origin} for name in used},
        "methods": {experiment.name: {label: _described(experiment.method(label)) for label in experiment.methods}},
        "bootstrap": {"resamples": RESAMPLES, "confidence": CONFIDENCE},
    }
    return Results(tuple(rows), about, tuple(looked), tuple(surely.intervals()))


def joined(parts: Sequence[Results]) -> Results:
    """The results of several experiments of one run as one: what is known of each stays under its name."""
    about: dict[str, Any] = {}
    for part in parts:
        for name, value in part.about.items():
            about[name] = {**about.get(name, {}), **value} if isinstance(value, Mapping) else value
    rows, details, sure = (
        tuple(one for part in parts for one in getattr(part, name)) for name in ("rows", "details", "intervals")
    )
    return Results(rows, about, details, sure)


def planned(experiment: Experiment, records: Mapping[str, Record]) -> int:
    """How many fits the experiment asks for."""
    return sum(1 for _ in _needed(experiment, list(_trials(experiment, records))))


def _described(method: Method) -> dict[str, Any]:
    return {"method": method.name, **{name: _plain(value) for name, value in asdict(method).items()}}


def _needed(experiment: Experiment, trials: Sequence[_Trial]) -> Iterator[Fit]:
    for trial in trials:
        yield from trial.candidates
        if len(trial.candidates) > 1:
            for rule in experiment.choose:
                for fit in trial.candidates:
                    yield from RULES[rule].needs(fit)


def _trials(experiment: Experiment, records: Mapping[str, Record]) -> Iterator[_Trial]:
    """Every method on every draw; what does not fit together is said before anything is fitted."""
    record = _find(experiment, records, experiment.fit)
    images = len(record)
    try:
        record.require_labels()
    except InputError as error:
        raise InputError(f"record {experiment.fit}: {error}") from None
    if experiment.test not in (REST, FITTED):
        other = _find(experiment, records, experiment.test)
        if other.predictions.classes != record.predictions.classes:
            raise InputError(
                f"record {experiment.test} has {other.predictions.classes} classes, {experiment.fit}, which is fitted on, "
                f"has {record.predictions.classes}"
            )
        if experiment.aligned:
            _check_aligned(experiment, record, other)
        _check_network(experiment, record, other)
        _check_views(experiment, other, experiment.test)
    _check_views(experiment, record, experiment.fit)
    _check_metrics(experiment, record if experiment.test in (REST, FITTED) else other)
    for validation in experiment.validation:
        size = validation or images
        if size > images or (size == images and experiment.test == REST):
            raise InputError(
                f"record {experiment.fit} has {images} images: expected fewer of them for validation, got {size}"
            )
        if size == images and experiment.aligned:
            raise InputError(f"record {experiment.fit}: all {images} images are fitted on, and none is left to test")
        for split in range(experiment.splits if size < images else 1):  # there is one way to take all of them
            rows = Rows(images, size, split)
            for label in experiment.methods:
                for seed in experiment.seeded(label):
                    method = experiment.method(label, seed)
                    fits = tuple(Fit(experiment.fit, rows, method, policy) for policy in experiment.tried(label))
                    yield _Trial(label, seed, rows, fits)


def _find(experiment: Experiment, records: Mapping[str, Record], name: str) -> Record:
    if name not in records:
        raise InputError(f"experiment {experiment.name!r} needs the record {name}, got: {', '.join(records) or 'none'}")
    return records[name]


def _check_aligned(experiment: Experiment, record: Record, other: Record) -> None:
    first = len(record) - len(other)
    if first < 0:
        raise InputError(
            f"record {experiment.test} has {len(other)} images, more than the {len(record)} of {experiment.fit}"
        )
    if other.labels is not None and not torch.equal(record.require_labels()[first:], other.labels):
        raise InputError(
            f"record {experiment.test} is not the last {len(other)} images of {experiment.fit}: their labels differ"
        )


def _check_network(experiment: Experiment, record: Record, other: Record) -> None:
    """What is fitted on one network's answers says nothing of another's."""
    for key in ("model", "trained_on", "training_seed", "recipe"):
        ours, theirs = record.origin.get(key), other.origin.get(key)
        if ours is not None and theirs is not None and ours != theirs:
            both = f"{experiment.fit} and {experiment.test}"
            raise InputError(f"records {both} are not of one network: their {key} is {ours} and {theirs}")


def _check_metrics(experiment: Experiment, test: Record) -> None:
    """Say before the fits which numbers there will not be."""
    for metric in experiment.metrics:
        if metric in METRICS and METRICS[metric].needs_labels and test.labels is None:
            raise InputError(f"{metric} needs labels, and record {experiment.test} has none")
        if metric == OOD_AUROC and test.labels is not None:
            raise InputError(f"{metric} is for images of no known class, and record {experiment.test} has labels")


def _check_views(experiment: Experiment, record: Record, name: str) -> None:
    for label in experiment.methods:
        for policy in experiment.tried(label):
            if policy == RECORDED and not record.predictions.kinds:
                raise InputError(f"record {name}: {label} needs the logits of views, and it has none")
            if policy and policy != RECORDED:
                try:
                    record.predictions.take(Policy.parse(policy).repeats)
                except InputError as error:
                    raise InputError(f"record {name}: {label} with {policy}: {error}") from None


class _Test(NamedTuple):
    """The images to test on: `rows` of a record, or all of it; and those of known classes that were not fitted on."""

    record: Record
    rows: Tensor | None
    reference: Record

    @property
    def images(self) -> Record:
        return self.record if self.rows is None else self.record[self.rows]


@dataclass
class _Bench:
    """Tests calibrators, each once."""

    experiment: Experiment
    fits: Fits
    _seen: dict[str, dict[str, float]] = field(default_factory=dict)
    _resampled: dict[str, dict[str, Tensor]] = field(default_factory=dict)

    def numbers(self, fit: Fit) -> dict[str, float]:
        """Every metric of the experiment."""
        key = self.fits.key(fit)
        if key not in self._seen:
            test = self._test(fit)
            measured = measure(self.fits[fit], self.fits.seen(fit, test.images), self.fits.seen(fit, test.reference))
            self._seen[key] = {name: measured[name] for name in self.experiment.metrics if name in measured}
        return self._seen[key]

    def resampled(self, fit: Fit) -> dict[str, Tensor]:
        """What resamples of the test images make of the metrics that are judged by, the same for every fit and split."""
        key = self.fits.key(fit)
        if key not in self._resampled:
            test, calibrator = self._test(fit), self.fits[fit]
            seen = self.fits.seen(fit, test.images)
            self._resampled[key] = replicates(
                calibrator(seen.predictions),
                seen.labels,
                Resamples(len(test.record)),
                test.rows,
                metrics=[name for name in JUDGED if name in self.numbers(fit)],
                simplex=calibrator.method.on_simplex,
            )
        return self._resampled[key]

    def details(self, fit: Fit) -> dict[str, Any]:
        """What a report shows of the calibrator."""
        seen = self.fits.seen(fit, self._test(fit).images)
        return details(self.fits[fit], seen, class_names(self.fits.records[self.experiment.fit]))

    def named(self, fit: Fit) -> str:
        """What the tables call the policy of a fit."""
        if fit.policy != RECORDED:
            return fit.policy
        return " + ".join(kind if count == 1 else f"{count} {kind}" for kind, count in self.fits.views(fit).items())

    def _test(self, fit: Fit) -> _Test:
        """What to test on; the reference is all of the fitted record, if all was fitted on."""
        record = self.fits.records[self.experiment.fit]
        fitted, rest = fit.rows.drawn()
        reference = record[rest] if len(rest) else record
        if self.experiment.test in (REST, FITTED):
            return _Test(record, rest if self.experiment.test == REST else fitted, reference)
        other = self.fits.records[self.experiment.test]
        first = len(record) - len(other)
        rows = rest[rest >= first].sort().values - first if self.experiment.aligned else None
        return _Test(other, rows, reference)


@dataclass
class _Surely:
    """Collects what resamples make of every contender, and turns it into intervals: of the means, and of all differences.

    A resample counts the images of a record once for all splits and methods. So its mean over splits is the mean of
    those it makes of each, and it is paired in whatever two contenders were tested on.
    """

    _points: dict[tuple[Any, ...], list[Mapping[str, float]]] = field(default_factory=dict)
    _values: dict[tuple[Any, ...], list[Mapping[str, Tensor]]] = field(default_factory=dict)

    def add(self, what: Mapping[str, Any], points: Mapping[str, float], values: Mapping[str, Tensor]) -> None:
        """Take in one split and seed of a contender."""
        policy = "" if what["choice"] else what["policy"]
        key = (what["experiment"], what["dataset"], what["validation"], what["method"], policy, what["choice"])
        self._points.setdefault(key, []).append({name: points[name] for name in values})
        self._values.setdefault(key, []).append(values)

    def intervals(self) -> Iterator[Interval]:
        """Of each contender, and of its difference to each one before it that was fitted on as many images."""
        done: list[tuple[tuple[Any, ...], dict[str, float], dict[str, Tensor]]] = []
        for key, parts in self._points.items():
            points = {name: sum(part[name] for part in parts) / len(parts) for name in parts[0]}
            values = {name: torch.stack([part[name] for part in self._values[key]]).mean(0) for name in points}
            what = dict(zip(("experiment", "dataset", "validation", "method", "policy", "choice"), key, strict=True))
            for metric, (low, high) in intervals(points, values):
                yield Interval(**what, metric=metric, low=max(low, 0.0), high=high)
            for other, theirs, drawn in done:
                if other[2] != key[2]:
                    continue
                against = dict(zip(("against", "against_policy", "against_choice"), other[3:], strict=True))
                differences = {name: points[name] - theirs[name] for name in points}
                for metric, (low, high) in intervals(
                    differences, {name: values[name] - drawn[name] for name in points}
                ):
                    yield Interval(**what, **against, metric=metric, low=low, high=high)
            done.append((key, points, values))


def class_names(record: Record) -> list[str]:
    """The names of the classes, where the record's origin has them; it is text for people, and may say anything."""
    try:
        names = json.loads(record.origin.get("classes", ""))
    except ValueError:
        return []
    return [str(name) for name in names] if isinstance(names, list) else []


def measure(calibrator: Calibrator, test: Record, reference: Record | None = None) -> dict[str, float]:
    """All that can be measured of a calibrator on a record; `reference` are images of known classes, to tell others from."""
    probs = calibrator(test.predictions)
    simplex = calibrator.method.on_simplex
    numbers = evaluate(probs, test.labels, simplex=simplex)
    numbers[CLASS_CHANGES] = float(class_changes(probs, test.predictions.logits.softmax(dim=-1)))
    numbers[PASSES] = calibrator.passes(test.predictions).double().mean().item()
    if test.labels is not None and len(test) >= 2 * SETS.least:
        numbers[COVERAGE], numbers[SET_SIZE] = cross_checked(SETS, probs, test.labels)
    if test.labels is None and reference is not None:
        numbers[OOD_AUROC] = ood_auroc(calibrator(reference.predictions), probs, simplex=simplex)
    return numbers


# ---- without a file


def compare(
    records: Mapping[str, Record],
    methods: Sequence[Method],
    *,
    validation: int = 1000,
    splits: int = 1,
    fit_on: Record | None = None,
    cost: bool = False,
    done: Callable[[str], None] = lambda what: None,
) -> Results:
    """Fit every method on validation rows of each record and evaluate it on the others, with all the views there are.

    With `fit_on`, the methods are fitted on all of that record and tested on all of the others, once. With `cost`, V-ATTA is
    also run with fewer and fewer of the views, as an experiment of its own: what each pass of the network buys.
    """
    if splits < 1:
        raise InputError(f"expected at least 1 split, got {splits}")
    known = dict(records)
    if fit_on is not None:
        known["the record to fit on"] = fit_on
    fits = Fits(known)
    results = []
    for name in records:
        experiment = Experiment(
            name=name,
            dataset=name,
            fit=name if fit_on is None else "the record to fit on",
            test=REST if fit_on is None else name,
            methods={method.name: asdict(method) for method in methods},
            validation=(validation if fit_on is None else 0,),
            splits=splits if fit_on is None else 1,
            metrics=(*METRICS, CLASS_CHANGES, PASSES, COVERAGE, SET_SIZE),
        )
        results.append(run(experiment, known, fits=fits, done=done))
        fewer = nested(known[experiment.fit].predictions.views)
        if cost and len(fewer) > 1:
            v_atta = {"v-atta": asdict(find_method("v-atta"))}
            less = replace(experiment, name=name + COST, methods=v_atta, policies=fewer, metrics=("brier", "nll"))
            results.append(run(less, known, fits=fits))
    return joined(results)


def nested(views: Mapping[str, Any]) -> tuple[str, ...]:
    """Policies from one view to all there are, each a part of the next; none where a kind of view is not atta's own."""
    most = {kind: view.shape[1] for kind, view in views.items()}
    if not most or not most.keys() <= VIEWS.keys():
        return ()
    rounds = (
        {kind: min(repeats, count) for kind, count in most.items()} for repeats in range(1, max(most.values()) + 1)
    )
    found = [{next(iter(most)): 1}, *rounds]
    return tuple(
        dict.fromkeys(" + ".join(f"{n} {kind}" if n > 1 else kind for kind, n in one.items()) for one in found)
    )
