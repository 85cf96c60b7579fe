"""One runner for all experiments: fits every method on every draw, chooses its policy, tests it, and keeps the numbers.

record ──► validation rows ──► method.fit, for each policy ──► choice of the policy ──► calibrator
                                                                                            │
       ──► the other rows, the fitted ones, or another record ──► evaluate ──► rows         ◄
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from atta import __version__
from atta.lab.details import details
from atta.lab.experiment import Experiment, described
from atta.lab.fits import RECORDED, Fit, Fits, Rows, known_here, written
from atta.lab.intervals import JUDGED, Intervals
from atta.lab.measure import measure
from atta.lab.policy_rules import choose
from atta.lab.trials import Trial, fits_of, trials
from atta.lab.workers import Call, one_thread, spread
from atta.metrics.resampling import CONFIDENCE, RESAMPLES, Resamples, replicates
from atta.record.predictions import Record
from atta.results.rows import Results, Row
from atta.results.words import FITTED, REST


def run(
    experiment: Experiment,
    records: Mapping[str, Record],
    *,
    fits: Fits | None = None,
    done: Callable[[str], None] = lambda what: None,
) -> Results:
    """Run an experiment on records, by name; `done` is told of each of the fits that are `planned`.

    `fits` remembers calibrators from one experiment to the next. The numbers do not depend on what it remembers.
    """
    fits = Fits(records) if fits is None else fits
    fits.make(fits_of(experiment, list(trials(experiment, records))), done)
    return next(examined([experiment], fits))


def examined(
    experiments: Sequence[Experiment], fits: Fits, done: Callable[[str], None] = lambda what: None
) -> Iterator[Results]:
    """Test what was fitted for experiments, one after the other; `done` is told of each of the `parts` of the work.

    They are spread over the processes of `fits`, where there is a folder to meet in.
    """
    work = [
        (i, part)
        for i, experiment in enumerate(experiments)
        for part in parts(experiment, fits.records)
    ]
    found: list[dict[int, list[Outcome]]] = [{} for _ in experiments]
    for (i, place), outcomes in _spread(experiments, fits, work):
        found[i][place] = outcomes
        done(experiments[i].name)
    for experiment, of in zip(experiments, found, strict=True):
        yield _results(experiment, fits, [outcome for place in sorted(of) for outcome in of[place]])


def parts(experiment: Experiment, records: Mapping[str, Record]) -> list[list[Trial]]:
    """The trials of an experiment by the rows that they are fitted on: what is tested in one go."""
    found: dict[Rows, list[Trial]] = {}
    for trial in trials(experiment, records):
        found.setdefault(trial.rows, []).append(trial)
    return list(found.values())


def _spread(
    experiments: Sequence[Experiment], fits: Fits, work: Sequence[tuple[int, list[Trial]]]
) -> Iterator[tuple[tuple[int, int], list[Outcome]]]:
    """Test each part, here or in other processes; it comes back with its experiment's number and its own place."""
    foreign = any(
        fit.method.foreign for _, part in work for trial in part for fit in trial.candidates
    )
    if not fits.apart or len(work) < 2 or foreign:
        with one_thread():  # the last digit of a sum depends on how many add it up
            for place, (i, part) in enumerate(work):
                yield (i, place), _outcomes(Bench(experiments[i], fits), part)
        return
    calls = (
        Call(_tested_there, (experiments[i], part, *fits.abroad()), (i, place))
        for place, (i, part) in enumerate(work)
    )
    yield from spread(calls, fits.workers, what="tested", engine=fits.engine)


def _tested_there(
    experiment: Experiment,
    part: list[Trial],
    files: dict[str, Path],
    folder: Path,
    prints: dict[str, str],
) -> list[Outcome]:
    return _outcomes(Bench(experiment, known_here(files, folder, prints)), part)


def joined(parts: Sequence[Results]) -> Results:
    """The results of several experiments of one run as one: what is known of each stays under its name."""
    about: dict[str, Any] = {}
    for part in parts:
        for name, value in part.about.items():
            about[name] = {**about.get(name, {}), **value} if isinstance(value, Mapping) else value
    rows, details, sure = (
        tuple(one for part in parts for one in getattr(part, name))
        for name in ("rows", "details", "intervals")
    )
    return Results(rows, about, details, sure)


@dataclass(frozen=True)
class Outcome:
    """What came of one fit: whose it is, its numbers, what resamples of the images make of them, and what a report shows."""

    what: dict[str, Any]
    numbers: dict[str, float]
    resampled: dict[str, Tensor]
    details: dict[str, Any] | None


def _outcomes(bench: Bench, part: Sequence[Trial]) -> list[Outcome]:
    experiment, found = bench.experiment, []
    for trial in part:
        for rule, fit in _chosen(experiment, bench.fits, trial):
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
            first = trial.rows.split == 0 and trial.seed == experiment.seeded(trial.label)[0]
            numbers = bench.numbers(fit)
            resampled = bench.resampled(fit) if numbers else {}
            found.append(Outcome(what, numbers, resampled, bench.details(fit) if first else None))
    return found


def _results(experiment: Experiment, fits: Fits, outcomes: Iterable[Outcome]) -> Results:
    rows: list[Row] = []
    looked, sure = [], Intervals()
    for outcome in outcomes:
        measured = [
            Row(**outcome.what, metric=metric, value=value)
            for metric, value in outcome.numbers.items()
        ]
        rows += measured
        if measured:
            sure.add(measured[0], outcome.numbers, outcome.resampled)
        if outcome.details is not None:
            looked.append({**outcome.what, **outcome.details})
    with one_thread():
        return Results(tuple(rows), _about(experiment, fits), tuple(looked), tuple(sure.found()))


def _chosen(experiment: Experiment, fits: Fits, trial: Trial) -> Iterator[tuple[str, Fit]]:
    """The fit that each rule chooses, or every one where there is no rule or nothing to choose."""
    if experiment.choose and len(trial.candidates) > 1:
        yield from ((rule, choose(fits, trial.candidates, rule)) for rule in experiment.choose)
    else:
        yield from (("", fit) for fit in trial.candidates)


def _about(experiment: Experiment, fits: Fits) -> dict[str, Any]:
    """What is known about the run: versions, the experiment, its records and its methods."""
    used = [name for name in (experiment.fit, experiment.test) if name not in (REST, FITTED)]
    return {
        "atta": __version__,
        "torch": torch.__version__,
        "experiments": {experiment.name: experiment.about()},
        "records": {
            name: {
                "sha256": fits.fingerprint(name),
                **fits.records[name].origin,
                "images": len(fits.records[name]),
            }
            for name in used
        },
        "methods": {
            experiment.name: {
                label: described(experiment.method(label)) for label in experiment.methods
            }
        },
        "bootstrap": {"resamples": RESAMPLES, "confidence": CONFIDENCE},
    }


@dataclass(frozen=True)
class Tested:
    """The images to test on: `rows` of a record, or all of it; and those of known classes that were not fitted on."""

    record: Record
    rows: Tensor | None
    known: Record
    rest: Tensor | None

    @cached_property
    def images(self) -> Record:
        """The images themselves."""
        return self.record if self.rows is None else self.record[self.rows]

    @cached_property
    def reference(self) -> Record:
        """Those of known classes, which may be the same."""
        if self.record is self.known and self.rows is self.rest:
            return self.images
        return self.known if self.rest is None else self.known[self.rest]


@dataclass
class Bench:
    """Tests calibrators, each once."""

    experiment: Experiment
    fits: Fits
    _seen: dict[str, dict[str, float]] = field(default_factory=dict)
    _resampled: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    _last: tuple[str, Tested] | None = None

    def numbers(self, fit: Fit) -> dict[str, float]:
        """Every metric of the experiment."""
        key = self.fits.key(fit)
        if key not in self._seen:
            test = self._test(fit)
            measured = measure(
                self.fits[fit], test.images, test.reference if test.images.labels is None else None
            )
            self._seen[key] = {
                name: measured[name] for name in self.experiment.metrics if name in measured
            }
        return self._seen[key]

    def resampled(self, fit: Fit) -> dict[str, Tensor]:
        """What resamples of the test images make of the metrics that are judged by, the same for every fit and split."""
        key = self.fits.key(fit)
        if key not in self._resampled:
            test, calibrator, numbers = self._test(fit), self.fits[fit], self.numbers(fit)
            self._resampled[key] = replicates(
                calibrator(test.images.predictions),
                test.images.labels,
                Resamples(len(test.record)),
                test.rows,
                metrics=[name for name in JUDGED if name in numbers],
                simplex=calibrator.method.on_simplex,
            )
        return self._resampled[key]

    def details(self, fit: Fit) -> dict[str, Any]:
        """What a report shows of the calibrator."""
        test = self._test(fit)
        found = details(
            self.fits[fit], test.images, class_names(self.fits.records[self.experiment.fit])
        )
        for one in found["changed"]:  # where it stands in its record, for whoever has the images
            one["image"] = one["row"] if test.rows is None else int(test.rows[one["row"]])
        return found

    def named(self, fit: Fit) -> str:
        """What the tables call the policy of a fit."""
        return written(self.fits.views(fit)) if fit.policy == RECORDED else fit.policy

    def _test(self, fit: Fit) -> Tested:
        """What to test on, in the views of the fit; the last one is at hand: a fit is asked about several times in a row."""
        key = self.fits.key(fit)
        if self._last is None or self._last[0] != key:
            self._last = (key, self._tested_on(fit))
        return self._last[1]

    def _tested_on(self, fit: Fit) -> Tested:
        """Find the images; the reference is all of the fitted record, if all was fitted on."""
        record = self.fits.seen(fit, self.fits.records[self.experiment.fit])
        fitted, rest = fit.rows.drawn()
        reference = rest if len(rest) else None
        if self.experiment.test in (REST, FITTED):
            return Tested(
                record, rest if self.experiment.test == REST else fitted, record, reference
            )
        other = self.fits.seen(fit, self.fits.records[self.experiment.test])
        first = len(record) - len(other)
        rows = rest[rest >= first].sort().values - first if self.experiment.aligned else None
        return Tested(other, rows, record, reference)


def class_names(record: Record) -> list[str]:
    """The names of the classes, where the record's origin has them; it is text for people, and may say anything."""
    try:
        names = json.loads(record.origin.get("classes", ""))
    except ValueError:
        return []
    return [str(name) for name in names] if isinstance(names, list) else []
