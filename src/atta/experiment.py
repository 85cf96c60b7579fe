"""Experiments on records: split, fit, evaluate, as rows.

record ──► validation rows ──► method.fit ──► calibrator ──► test rows ──► evaluate ──► Results
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

import torch
from jaxtyping import Int
from torch import Tensor

from atta import __version__
from atta.calibrators import Calibrator, Method
from atta.metrics import class_changes, evaluate
from atta.predictions import Record
from atta.results import Results, Row
from atta.types import InputError

CLASS_CHANGES = "class_changes"


def split_rows(images: int, validation: int, split: int) -> tuple[Int[Tensor, " v"], Int[Tensor, " t"]]:
    """Return the rows to fit on and the rows to test on.

    Split 0 takes the first rows as they stand, as in the paper; split s > 0 the first of a permutation seeded with s.
    """
    if not 0 < validation < images:
        raise InputError(f"expected between 1 and {images - 1} validation images out of {images}, got {validation}")
    rows = (
        torch.arange(images) if split == 0 else torch.randperm(images, generator=torch.Generator().manual_seed(split))
    )
    return rows[:validation], rows[validation:]


def score(name: str, method: Method, calibrator: Calibrator, test: Record, *, split: int = 0) -> list[Row]:
    """Evaluate a calibrator on a record: one row a metric, and how many predicted classes it changed."""
    probs = calibrator(test.predictions)
    numbers = evaluate(probs, test.labels, simplex=method.on_simplex)
    numbers[CLASS_CHANGES] = float(class_changes(probs, test.predictions.logits.softmax(dim=-1)))
    return [
        Row(dataset=name, split=split, method=method.name, metric=metric, value=value)
        for metric, value in numbers.items()
    ]


def compare(
    records: Mapping[str, Record],
    methods: Sequence[Method],
    *,
    validation: int = 1000,
    splits: int = 1,
    fit_on: Record | None = None,
    done: Callable[[str], None] = lambda what: None,
) -> Results:
    """Fit every method on validation rows and evaluate it on the others, one row a number; `done` is told each step.

    Each record is split into `validation` rows to fit on and the rest to test on, `splits` times. With `fit_on`, the methods
    are fitted on all of that record and tested on all of the others, once.
    """
    if splits < 1:
        raise InputError(f"expected at least 1 split, got {splits}")
    if fit_on is not None:
        splits = 1
        for name, record in records.items():
            expected, got = fit_on.predictions.classes, record.predictions.classes
            if expected != got:
                raise InputError(f"{name} has {got} classes, the record to fit on has {expected}")
    rows: list[Row] = []
    for split in range(splits):
        for name, record in records.items():
            fit, test = (fit_on, record) if fit_on is not None else parts(record, validation, split)
            for method in methods:
                rows += score(name, method, method.fit(fit.predictions, fit.require_labels()), test, split=split)
                done(f"{name}: {method.name}")
    about = {
        "atta": __version__,
        "torch": torch.__version__,
        "validation": validation if fit_on is None else len(fit_on),
        "splits": splits,
        "records": {name: dict(record.origin) for name, record in records.items()},
        "methods": {method.name: asdict(method) for method in methods},
    }
    return Results(tuple(rows), about)


def parts(record: Record, validation: int, split: int) -> tuple[Record, Record]:
    """Cut a record into the part to fit on and the part to test on."""
    record.require_labels()
    rows, rest = split_rows(len(record), validation, split)
    return record[rows], record[rest]
