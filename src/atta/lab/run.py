"""Runs experiments: fits every method on every draw, chooses its policy, and tests it.

record ──► validation rows ──► method.fit, for each policy ──► choice of the policy ──► calibrator
                                                                                            │
       ──► the other rows, the fitted ones, or another record ──► measure ──► rows          ◄
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import chain
from statistics import fmean
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from atta import __version__
from atta._base.errors import InputError
from atta.lab.experiment import Experiment, Trial, described, fits_of, trials
from atta.lab.fits import RECORDED, Fit, Fits, choose, written
from atta.lab.measure import JUDGED, answers, details, interval_rows, measure
from atta.lab.workers import Tell, one_thread, silent
from atta.metrics.resampling import CONFIDENCE, RESAMPLES, Resamples, replicates
from atta.record.predictions import Record
from atta.results.rows import Results, Row
from atta.results.table import NOTHING, Table, pivot
from atta.results.words import (
    BASELINE,
    BETTER,
    BY_CONFIDENCE,
    DIGITS,
    FITTED,
    REST,
    SENSE,
    baselines,
    bounds,
    contender,
    judged,
    labels,
    relabelled,
)

Key = TypeVar("Key", bound=Hashable)


def run(
    experiment: Experiment,
    records: Mapping[str, Record],
    *,
    fits: Fits | None = None,
    done: Tell = silent,
) -> Results:
    """Run an experiment on records.

    Use it for an experiment from a file; `compare` needs none.

    Args:
        experiment: What to fit and test.
        records: The records by name.
        fits: Remembers calibrators from one experiment to the next. It changes no number.
        done: Is called with the name of the method after each fit.

    Returns:
        The numbers, their intervals, and what reports show.

    Raises:
        InputError: If a record is missing, or does not fit the experiment.
    """
    fits = Fits(records) if fits is None else fits
    fits.make(fits_of(experiment, records), done)
    return next(examined([experiment], fits))


def examined(
    experiments: Sequence[Experiment], fits: Fits, done: Tell = silent
) -> Iterator[Results]:
    """Test what was fitted, in the workers of `fits`; call `done` after each of the `trials`."""
    work = [(one, part) for one in experiments for part in trials(one, fits.records)]
    foreign = [
        any(fit.method.foreign for trial in part for fit in trial.candidates) for _, part in work
    ]
    found: dict[int, list[Outcome]] = {}
    for place, outcomes in fits.each(_outcomes, work, foreign, what="tested"):
        found[place] = outcomes
        done(work[place][0].name)
    for experiment in experiments:
        own = [found[place] for place, (owner, _) in enumerate(work) if owner is experiment]
        yield _results(experiment, fits, list(chain.from_iterable(own)))


def joined(parts: Sequence[Results]) -> Results:
    """The results of several experiments of one run as one."""
    about: dict[str, Any] = {}
    for part in parts:
        for name, value in part.about.items():
            about[name] = {**about.get(name, {}), **value} if isinstance(value, Mapping) else value
    return replace(sum(parts, Results(())), about=about)


class Outcome(NamedTuple):
    """What was measured of a fit."""

    columns: dict[str, Any]
    """Those of its rows in the results."""
    numbers: dict[str, float]
    resampled: dict[str, Tensor]
    details: dict[str, Any] | None
    """What a report shows of it, for the first split and seed."""


def _outcomes(fits: Fits, experiment: Experiment, part: Sequence[Trial]) -> list[Outcome]:
    """Test a part of an experiment."""
    found, measured = [], cache(partial(_measured, experiment, fits))  # rules may choose one fit
    for trial in part:
        every, chosen = trial.candidates, [("", fit) for fit in trial.candidates]
        if len(every) > 1 and experiment.choose:
            chosen = [(rule, choose(fits, every, rule)) for rule in experiment.choose]
        first = trial.rows.split == 0 and trial.seed == next(iter(experiment.seeded(trial.label)))
        for rule, fit in chosen:
            columns = {
                "experiment": experiment.name,
                "dataset": experiment.dataset,
                "validation": trial.rows.validation,
                "split": trial.rows.split,
                "method": trial.label,
                "policy": written(fits.views(fit)) if fit.policy == RECORDED else fit.policy,
                "choice": rule,
                "seed": trial.seed,
            }
            found.append(Outcome(columns, *measured(fit, first)))
    return found


def _results(experiment: Experiment, fits: Fits, outcomes: Sequence[Outcome]) -> Results:
    """All numbers of an experiment, their intervals, and what is known about the run."""
    about = {
        "atta": __version__,
        "torch": torch.__version__,
        "experiments": {experiment.name: experiment.about()},
        "records": {
            name: {
                "sha256": fits.fingerprint(name),
                **fits.records[name].origin,
                "images": len(fits.records[name]),
            }
            for name in experiment.records
        },
        "methods": {
            experiment.name: {
                label: described(experiment.method(label)) for label in experiment.methods
            }
        },
        "bootstrap": {"resamples": RESAMPLES, "confidence": CONFIDENCE},
    }
    rows = tuple(
        Row(**one.columns, metric=metric, value=value)
        for one in outcomes
        for metric, value in one.numbers.items()
    )
    looked = tuple({**one.columns, **one.details} for one in outcomes if one.details is not None)
    measured = (
        (contender(one.columns), one.numbers, one.resampled) for one in outcomes if one.numbers
    )
    with one_thread():
        intervals = tuple(interval_rows(measured))
    return Results(rows, about, looked, intervals)


def _measured(
    experiment: Experiment, fits: Fits, fit: Fit, detailed: bool
) -> tuple[dict[str, float], dict[str, Tensor], dict[str, Any] | None]:
    """The metrics of the experiment; those that results judge by, on resamples; the details.

    The resamples of a record are the same for every fit and split.
    """
    images, rows, whole, reference = _images(experiment, fits, fit)
    calibrator = fits[fit]
    everything = measure(calibrator, images, reference)
    numbers = {name: everything[name] for name in experiment.metrics if name in everything}
    resampled = {}
    if numbers:
        draw = partial(
            replicates,
            answers(calibrator, images.predictions),
            images.labels,
            Resamples(len(whole), groups=whole.predictions.images),
            rows,
            simplex=calibrator.method.on_simplex,
        )
        resampled = draw(metrics=[name for name in JUDGED if name in numbers])
        if images.labels is not None:
            acted = {name: metric for name, metric in BY_CONFIDENCE.items() if name in numbers}
            confidence = calibrator.confidence(images.predictions)
            drawn = draw(metrics=acted.values(), confidence=confidence)
            resampled |= {name: drawn[metric] for name, metric in acted.items()}
    if not detailed:
        return numbers, resampled, None
    shown = details(calibrator, images, _class_names(fits.records[experiment.fit]))
    for one in shown["changed"]:  # its row in the record, for those who have the images
        one["image"] = one["row"] if rows is None else int(rows[one["row"]])
    return numbers, resampled, shown


def _images(
    experiment: Experiment, fits: Fits, fit: Fit
) -> tuple[Record, Tensor | None, Record, Record | None]:
    """The images to test a fit on, in its views; their rows in a record, and this record.

    Rows are None for a whole record. Where the images have no labels, images of known classes
    come as well.
    """
    record = whole = fits.seen(fit)
    fitted, rest = fit.rows.drawn()
    rows, reference = rest if experiment.test == REST else fitted, None
    if experiment.test not in (REST, FITTED):
        whole = fits.seen(fit, experiment.test)
        if whole.labels is None:
            reference = record[rest] if len(rest) else record
        if not experiment.aligned:
            return whole, None, whole, reference
        first = len(record) - len(whole)
        rows = rest[rest >= first].sort().values - first
    return whole[rows], rows, whole, reference


def _class_names(record: Record) -> list[str]:
    """The names of the classes, if the record's origin has them; its text may say anything."""
    try:
        names = json.loads(record.origin.get("classes", ""))
    except ValueError:
        return []
    return [str(name) for name in names] if isinstance(names, list) else []


# ---- tables --------------------------------------------------------------------------------------

WORDS = {1: "better", 0: "unclear", -1: "worse", None: ""}


def own_table(results: Results, experiment: Experiment) -> Table:
    """The mean over the splits with its 95 % interval, by method, policy or validation size."""
    mine = results.where(experiment=experiment.name)
    lay_out = partial(pivot, digits=DIGITS, better=BETTER, title=experiment.heading)
    if experiment.compares_policies:
        return lay_out(mine, ("policy",), ("method", "metric"))
    ours, named = relabelled(mine), labels(map(contender, mine))
    if len(experiment.validation) > 1:
        return lay_out(ours, ("validation",), ("metric", "method"))
    keeps = {name for key, name in named.items() if experiment.method(key.method).keeps_class}
    return lay_out(ours, eligible=keeps.__contains__, baseline=BASELINE)


def tables_of(
    results: Results, experiment: Experiment, *, intervals: bool = False
) -> Iterator[Table]:
    """The table of an experiment and, if wanted, that of its intervals."""
    yield own_table(results, experiment)
    if intervals:
        title = f"{experiment.title or experiment.name}: 95 % intervals"
        yield interval_table(results, title=title)


def interval_table(results: Results, *, title: str = "", metrics: Sequence[str] = ()) -> Table:
    """The numbers of one experiment and their differences to the baseline, with 95 % intervals.

    The intervals are those of the bootstrap over test images. By default all metrics that have
    intervals are shown.
    """
    known, base = bounds(results.intervals), baselines(results, BASELINE)
    names = labels(map(contender, results), sizes=True)
    means = group_means((row.metric, contender(row), row.value) for row in results)
    cells = []
    for metric in metrics or means:
        for key, mean in means.get(metric, {}).items():
            if (key, None, metric) not in known:
                continue
            against = base[key.setting]
            line = (names[key], metric, f"{mean:.4f}", _range(*known[key, None, metric]))
            difference = known.get((key, against, metric))
            if difference is None:
                cells.append((*line, NOTHING, NOTHING, ""))
                continue
            less = mean - means[metric][against]
            word = WORDS[judged(*difference, SENSE.get(metric))] if any(difference) else "the same"
            cells.append((*line, f"{less:+.4f}", _range(*difference, sign="+"), word))
    if not cells:
        raise InputError("these results have no intervals: an older version wrote them")
    than = " or ".join(dict.fromkeys(key.method for key in base.values()))
    header = ("method", "metric", "mean", "95 % interval", f"− {than}", "95 % interval", "so it is")
    return Table(title, header, tuple(cells))


def group_means(values: Iterable[tuple[str, Key, float]]) -> dict[str, dict[Key, float]]:
    """The mean of the values of each pair of names, such as a method and a metric."""
    groups: dict[str, dict[Key, list[float]]] = {}
    for row, column, value in values:
        groups.setdefault(row, {}).setdefault(column, []).append(value)
    return {row: {c: fmean(v) for c, v in columns.items()} for row, columns in groups.items()}


def _range(low: float, high: float, sign: str = "") -> str:
    return f"{low:{sign}.4f} to {high:{sign}.4f}"


def chosen(results: Results, experiment: Experiment) -> Table | None:
    """How often each rule chose each policy; None if there was nothing to choose."""
    counts = defaultdict[tuple[str, str], Counter[str]](Counter)
    for row in results.where(experiment=experiment.name, metric=experiment.metrics[0]):
        if row.choice:
            counts[row.method, row.choice][row.policy] += 1
    if not counts:
        return None
    cells = tuple(
        (method, rule, ", ".join(f"{policy} {n}x" for policy, n in counter.most_common()))
        for (method, rule), counter in counts.items()
    )
    return Table("Chosen policies", ("method", "rule", "policies, over the splits"), cells)
