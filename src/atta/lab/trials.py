"""What an experiment comes to on given records: every method on every draw of the validation rows, and the fits it takes.

What does not fit together is said here, before anything is fitted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from atta._base.errors import InputError
from atta.data.views import Policy
from atta.lab.experiment import Experiment
from atta.lab.fits import RECORDED, Fit, Rows
from atta.lab.policy_rules import RULES
from atta.metrics.scores import METRICS
from atta.record.predictions import Record
from atta.results.words import FITTED, OOD_AUROC, REST


@dataclass(frozen=True)
class Trial:
    """A method on one draw of the validation rows: its candidate fits, one a policy."""

    label: str
    seed: int
    rows: Rows
    candidates: tuple[Fit, ...]


def trials(experiment: Experiment, records: Mapping[str, Record]) -> Iterator[Trial]:
    """Every method on every draw."""
    record = _check_records(experiment, records)
    images = len(record)
    for validation in experiment.validation:
        size = validation or images
        if size > images or (size == images and experiment.test == REST):
            raise InputError(
                f"record {experiment.fit} has {images} images: expected fewer of them for validation, got {size}"
            )
        if size == images and experiment.aligned:
            raise InputError(
                f"record {experiment.fit}: all {images} images are fitted on, and none is left to test"
            )
        for split in range(
            experiment.splits if size < images else 1
        ):  # there is one way to take all of them
            rows = Rows(images, size, split)
            for label in experiment.methods:
                for seed in experiment.seeded(label):
                    method = experiment.method(label, seed)
                    fits = tuple(
                        Fit(experiment.fit, rows, method, policy)
                        for policy in experiment.tried(label)
                    )
                    yield Trial(label, seed, rows, fits)


def fits_of(experiment: Experiment, found: Sequence[Trial]) -> Iterator[Fit]:
    """The fits that trials ask for: their candidates, and what the rules look at to choose one of several."""
    for trial in found:
        yield from trial.candidates
        if len(trial.candidates) > 1:
            for rule in experiment.choose:
                for fit in trial.candidates:
                    yield from RULES[rule].needs(fit)


def planned(experiment: Experiment, records: Mapping[str, Record]) -> int:
    """How many fits the experiment asks for."""
    return len(set(fits_of(experiment, list(trials(experiment, records)))))


# ---- whether the records fit the experiment, and each other


def _check_records(experiment: Experiment, records: Mapping[str, Record]) -> Record:
    """Check the records, and return the one to fit on."""
    record = _find(experiment, records, experiment.fit)
    test = (
        record if experiment.test in (REST, FITTED) else _find(experiment, records, experiment.test)
    )
    try:
        record.require_labels()
    except InputError as error:
        raise InputError(f"record {experiment.fit}: {error}") from None
    if test is not record:
        if test.predictions.classes != record.predictions.classes:
            raise InputError(
                f"record {experiment.test} has {test.predictions.classes} classes, {experiment.fit}, which is fitted on, "
                f"has {record.predictions.classes}"
            )
        if experiment.aligned:
            _check_aligned(experiment, record, test)
        _check_network(experiment, record, test)
        _check_views(experiment, test, experiment.test)
    _check_views(experiment, record, experiment.fit)
    _check_metrics(experiment, test)
    return record


def _find(experiment: Experiment, records: Mapping[str, Record], name: str) -> Record:
    if name not in records:
        raise InputError(
            f"experiment {experiment.name!r} needs the record {name}, got: {', '.join(records) or 'none'}"
        )
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
            raise InputError(
                f"records {both} are not of one network: their {key} is {ours} and {theirs}"
            )


def _check_metrics(experiment: Experiment, test: Record) -> None:
    """Say before the fits which numbers there will not be."""
    for metric in experiment.metrics:
        if metric in METRICS and METRICS[metric].needs_labels and test.labels is None:
            raise InputError(f"{metric} needs labels, and record {experiment.test} has none")
        if metric == OOD_AUROC and test.labels is not None:
            raise InputError(
                f"{metric} is for images of no known class, and record {experiment.test} has labels"
            )


def _check_views(experiment: Experiment, record: Record, name: str) -> None:
    for label in experiment.methods:
        for policy in experiment.tried(label):
            if policy == RECORDED and not record.predictions.kinds:
                raise InputError(
                    f"record {name}: {label} needs the logits of views, and it has none"
                )
            if policy and policy != RECORDED:
                try:
                    record.predictions.take(Policy.parse(policy).repeats)
                except InputError as error:
                    raise InputError(f"record {name}: {label} with {policy}: {error}") from None
