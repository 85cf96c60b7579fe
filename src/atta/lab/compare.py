"""Methods side by side on records: an experiment without a file.

compare({"mine": record}, [Vanilla(), VATTA(), VATTA.paper()])  ──►  Results, a method a label
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, replace
from typing import Any

import torch

from atta._base.errors import InputError
from atta._base.settings import shown
from atta.calibrators import VATTA, Method
from atta.data.views import VIEWS
from atta.lab.experiment import Experiment
from atta.lab.fits import Fits, written
from atta.lab.run import joined, run
from atta.metrics.scores import METRICS
from atta.record.predictions import Record, unfair
from atta.results.rows import Results
from atta.results.words import CLASS_CHANGES, COST, COVERAGE, PASSES, REST, SET_SIZE

FITTED_ON = "the record to fit on"


def compare(
    records: Mapping[str, Record],
    methods: Sequence[Any],
    *,
    validation: int = 1000,
    splits: int = 1,
    fit_on: Record | None = None,
    cost: bool = False,
    done: Callable[[str], None] = lambda what: None,
) -> Results:
    """Fit every method on validation rows of each record and evaluate it on the others, with all the views there are.

    Methods are any objects of `Method`, one's own as well, and `Peer`s of other libraries; `labelled` says what rows call them.
    With `fit_on`, they are fitted on all of that record and tested on all of the others, once. With `cost`, V-ATTA is also run
    with fewer and fewer of the views, as an experiment of its own: what each pass of the network buys.
    """
    if splits < 1:
        raise InputError(f"expected at least 1 split, got {splits}")
    known = dict(records) if fit_on is None else {**records, FITTED_ON: fit_on}
    for sentence in unfair_splits(records, validation) if fit_on is None else ():
        warnings.warn(sentence, stacklevel=2)
    fits = Fits(known)
    results = []
    for name in records:
        experiment = Experiment(
            name=name,
            dataset=name,
            fit=name if fit_on is None else FITTED_ON,
            test=REST if fit_on is None else name,
            methods=labelled(methods),
            validation=(validation if fit_on is None else 0,),
            splits=splits if fit_on is None else 1,
            metrics=(*METRICS, CLASS_CHANGES, PASSES, COVERAGE, SET_SIZE),
        )
        results.append(run(experiment, known, fits=fits, done=done))
        fewer = nested(known[experiment.fit].predictions.repeats)
        if cost and len(fewer) > 1:
            v_atta = labelled([VATTA()])
            less = replace(
                experiment,
                name=name + COST,
                methods=v_atta,
                policies=fewer,
                metrics=("brier", "nll"),
            )
            results.append(run(less, known, fits=fits))
    return joined(results)


def unfair_splits(records: Mapping[str, Record], validation: int) -> list[str]:
    """What is to be said of records whose first split, the rows as they stand, divides the classes as well."""
    found = []
    for name, record in records.items():
        if record.labels is not None and 0 < validation < len(record):
            sentence = unfair(record.labels, torch.arange(validation))
            found += [f"{name}: {sentence} (--shuffle), or take more --splits"] if sentence else []
    return found


def labelled(methods: Sequence[Any]) -> dict[str, Method]:
    """Give each method a label of its own: its name and, where several have that name, what is not as usual about it.

    >>> list(labelled([VATTA(), VATTA(step=0.01)]))
    ['v-atta', 'v-atta (step=0.01)']
    """
    for i, method in enumerate(methods):
        if not isinstance(method, Method):
            raise InputError(
                f"expected methods, got {shown(method)}; atta.Peer(called=..., estimator=...) makes one of it"
            )
        if method in methods[:i]:
            raise InputError(f"expected each method once, got {method!r} twice")
    names = Counter(method.name for method in methods)
    found: dict[str, Method] = {}
    for method in methods:
        label = method.name if names[method.name] == 1 else f"{method.name}{_unusual(method)}"
        if label in found:  # a class of one's own, under a name and with settings that another has
            label = f"{label} ({type(method).__name__})"
        numbered = (f"{label} #{n}" for n in range(2, len(methods) + 1))
        found[next(one for one in (label, *numbered) if one not in found)] = method
    return found


def _unusual(method: Method) -> str:
    """The settings that are not the method's own defaults, as a label ends: " (optimizer=adam, step=0.01)"."""
    usual = {
        f.name: f.default_factory() if f.default_factory is not MISSING else f.default
        for f in fields(method)
    }
    changed = {
        name: getattr(method, name)
        for name in usual
        if getattr(method, name) not in (usual[name], method.name)
    }
    return (
        f" ({', '.join(f'{name}={value}' for name, value in changed.items())})" if changed else ""
    )


def nested(most: Mapping[str, int]) -> tuple[str, ...]:
    """Policies from one view to so many of each kind, each a part of the next; none where a kind is not atta's own."""
    if not most or not most.keys() <= VIEWS.keys():
        return ()
    rounds = (
        {kind: min(repeats, count) for kind, count in most.items()}
        for repeats in range(1, max(most.values()) + 1)
    )
    return tuple(dict.fromkeys(map(written, ({next(iter(most)): 1}, *rounds))))
