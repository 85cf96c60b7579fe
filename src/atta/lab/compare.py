"""Compares methods on records, without the file of an experiment.

compare({"mine": record}, [Vanilla(), VATTA(), VATTA.paper()])  ──►  Results, one method per label
"""

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, replace
from typing import Any

import torch

from atta._base.errors import InputError
from atta._base.settings import shown
from atta.calibrators import METHODS, VATTA, Method, find_method
from atta.data.views import VIEWS
from atta.lab.experiment import Experiment
from atta.lab.fits import Fits, written
from atta.lab.measure import CONFIDENCE
from atta.lab.run import interval_table, joined, run
from atta.lab.workers import Tell, silent
from atta.metrics.scores import METRICS
from atta.record.predictions import Record, unfair
from atta.results.rows import Results
from atta.results.table import Table
from atta.results.words import (
    ANSWERED,
    BASELINE,
    BETTER,
    CLASS_CHANGES,
    COST,
    COVERAGE,
    DIGITS,
    PASSES,
    REST,
    SET_SIZE,
)

FITTED_ON = "the record to fit on"
SHOWN = ("brier", "ece", "smooth_ece", "mc_brier", "nll", "accuracy", CLASS_CHANGES)
"""The metrics in the table of a comparison."""
ACTED = (*CONFIDENCE, *ANSWERED)
"""The metrics in the table that says how good `confidence` is to act on."""


def compare(
    records: Mapping[str, Record],
    methods: Sequence[Any],
    *,
    validation: int = 1000,
    splits: int = 1,
    fit_on: Record | None = None,
    cost: bool = False,
    done: Tell = silent,
) -> Results:
    """Fit methods on validation rows of each record and test them on the other rows.

    Use it to choose a method for your network: all are fitted on the same rows, with all views.

    Args:
        records: The records by name.
        methods: Any methods, also your own, and `Peer` for those of other libraries.
        validation: Images of each record to fit on.
        splits: How often they are drawn; the first draw takes the first rows as they stand.
        fit_on: Fit on all of this record instead, and test on all of the others, once.
        cost: Also test V-ATTA with fewer views: what each pass of the network gains.
        done: Is called with the name of the method after each fit.

    Returns:
        The numbers of each method; settings follow its name where two methods share it.

    >>> from atta import TemperatureScaling, Vanilla, find_record
    >>> record = find_record("cifar10-resnet50")[:500]
    >>> compare({"a": record}, [Vanilla(), TemperatureScaling()], validation=200).names("method")
    ['vanilla', 'temperature']
    """
    known, own = dict(records), fit_on is None
    if fit_on is not None:
        known[FITTED_ON], validation, splits = fit_on, 0, 1
    _warn_of_unfair_splits(records, validation)
    fits, results = Fits(known), list[Results]()
    for name in records:
        experiment = Experiment(
            name=name,
            dataset=name,
            fit=name if own else FITTED_ON,
            test=REST if own else name,
            methods=labelled(methods),
            validation=(validation,),
            splits=splits,
            metrics=(*METRICS, *CONFIDENCE, CLASS_CHANGES, PASSES, COVERAGE, SET_SIZE),
        )
        results.append(run(experiment, known, fits=fits, done=done))
        results += _costs(experiment, fits) if cost else ()
    return joined(results)


def _costs(experiment: Experiment, fits: Fits) -> Iterator[Results]:
    """Test V-ATTA alone with more and more views, if there are several."""
    policies = nested(fits.records[experiment.fit].predictions.repeats)
    if len(policies) > 1:
        ladder = replace(
            experiment,
            name=experiment.name + COST,
            methods=labelled([VATTA()]),
            policies=policies,
            metrics=("brier", "nll"),
        )
        yield run(ladder, fits.records, fits=fits)


def _warn_of_unfair_splits(records: Mapping[str, Record], validation: int) -> None:
    """Warn of each record whose first split also separates the classes."""
    for name, record in records.items():
        if record.labels is None or not 0 < validation < len(record):
            continue
        if sentence := unfair(record.labels, torch.arange(validation)):
            warnings.warn(f"{name}: {sentence} (--shuffle), or take more --splits", stacklevel=3)


def labelled(methods: Sequence[Any]) -> dict[str, Method]:
    """Label each method by its name and, if several share it, by its settings.

    >>> list(labelled([VATTA(), VATTA(step=0.01)]))
    ['v-atta', 'v-atta (step=0.01)']
    """
    for i, method in enumerate(methods):
        if not isinstance(method, Method):
            raise InputError(
                f"expected methods, got {shown(method)}; "
                "atta.Peer(called=..., estimator=...) makes it one"
            )
        if method in methods[:i]:
            raise InputError(f"expected each method once, got {method!r} twice")
    names = Counter(method.name for method in methods)
    found: dict[str, Method] = {}
    for method in methods:
        label = method.name if names[method.name] == 1 else f"{method.name}{_unusual(method)}"
        if label in found:  # a class of the user's with the name and settings of another
            label = f"{label} ({type(method).__name__})"
        numbered = (f"{label} #{n}" for n in range(2, len(methods) + 1))
        found[next(one for one in (label, *numbered) if one not in found)] = method
    return found


def _unusual(method: Method) -> str:
    """The settings that differ from the defaults: " (optimizer=adam, step=0.01)"."""
    changed = []
    for f in fields(method):
        usual = f.default if f.default_factory is MISSING else f.default_factory()
        value = getattr(method, f.name)
        if value not in (usual, method.name):
            changed.append(f"{f.name}={value}")
    return f" ({', '.join(changed)})" if changed else ""


def nested(most: Mapping[str, int]) -> tuple[str, ...]:
    """Policies from one view up to so many of each kind, each part of the next; for VIEWS only."""
    if not most or not most.keys() <= VIEWS.keys():
        return ()
    rounds = [dict.fromkeys(list(most)[:1], 1)]
    for repeats in range(1, max(most.values()) + 1):
        rounds.append({kind: min(repeats, count) for kind, count in most.items()})
    return tuple(dict.fromkeys(map(written, rounds)))


def suitable(
    records: Sequence[Record], images: int, splits: int
) -> tuple[list[Method], dict[str, list[str]]]:
    """Methods that records allow and that fit in about a minute; the others, by the reason."""
    views = all(record.predictions.kinds for record in records)
    classes = max(record.predictions.classes for record in records)
    found: list[Method] = []
    left_out: dict[str, list[str]] = {}
    for name in METHODS:
        method = find_method(name)
        minutes = splits * method.minutes(images, classes)
        if method.needs_views and not views:
            left_out.setdefault("because a record has no views", []).append(name)
        elif minutes > 1:
            left_out[f"about {minutes:.0f} min (--methods includes it)"] = [name]
        else:
            found.append(method)
    return found, left_out


def comparison_tables(results: Results, *, intervals: bool = False) -> Iterator[Table]:
    """Lay out each dataset as the paper does, and its intervals; the cost has its own chart."""
    keeps = {detail["method"] for detail in results.details if detail["keeps_class"]}
    for name in results.names("dataset"):
        for title, metrics in ((name, SHOWN), (f"{name}: answering at a risk", ACTED)):
            if not {*metrics} & {*results.names("metric")}:
                continue  # without labels
            yield results.pivot(
                where={"experiment": name, "metric": metrics},
                better=BETTER,
                eligible=keeps.__contains__,
                digits=DIGITS,
                baseline=BASELINE,
                title=title,
            )
        if intervals:
            title = f"{name}: 95 % intervals"
            yield interval_table(results.where(experiment=name), title=title, metrics=SHOWN)
