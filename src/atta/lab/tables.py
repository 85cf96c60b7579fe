"""The results of an experiment as tables: ours alone, how sure they are, and which policies were chosen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from atta._base.errors import InputError
from atta.lab.experiment import Experiment
from atta.results.contenders import (
    Contender,
    baselines,
    bounds,
    contender,
    judged,
    label,
    labels,
    relabelled,
)
from atta.results.rows import Results
from atta.results.table import NOTHING, Summary, Table
from atta.results.words import BASELINE, BETTER, DIGITS, SENSE

WORDS = {1: "better", 0: "unclear", -1: "worse", None: ""}


def own_table(results: Results, experiment: Experiment) -> Table:
    """Ours alone, the mean over the splits and its 95 % interval: for every method, policy or size of the validation set."""
    mine = results.where(experiment=experiment.name)
    shape: dict[str, Any] = {"digits": DIGITS, "better": BETTER, "title": titled(experiment)}
    if by_policy(experiment):
        ours = mine.renamed(lambda one: (label(one.method, one.choice), one.policy, ""))
        return ours.pivot(("policy",), ("method", "metric"), **shape)
    ours, named = relabelled(mine), labels(map(contender, mine))
    if len(experiment.validation) > 1:
        return ours.pivot(("validation",), ("metric", "method"), **shape)
    keeps = {name for key, name in named.items() if experiment.method(key.method).keeps_class}
    return ours.pivot(
        ("method",), ("metric",), eligible=keeps.__contains__, baseline=BASELINE, **shape
    )


def titled(experiment: Experiment) -> str:
    """What stands above the tables of an experiment, and where in the paper its like is."""
    return (experiment.title or experiment.name) + (
        f" ({experiment.paper})" if experiment.paper else ""
    )


def interval_table(results: Results, *, title: str = "", metrics: Sequence[str] = ()) -> Table:
    """How sure the numbers of one experiment are: each with its interval, and its difference to the baseline with its own.

    The intervals are those of the bootstrap over test images. `metrics` are all that have intervals, or those named.
    """
    known, base = bounds(results.intervals), baselines(results, BASELINE)
    names = labels(map(contender, results), sizes=True)
    values: dict[tuple[str, Contender], list[float]] = {}
    for row in results:
        values.setdefault((row.metric, contender(row)), []).append(row.value)
    means = {place: Summary.of(found).mean for place, found in values.items()}
    cells = []
    for metric in metrics or results.names("metric"):
        for key in (
            key for found, key in means if found == metric and (key, None, metric) in known
        ):
            against = base[key.setting]
            line = (
                names[key],
                metric,
                f"{means[metric, key]:.4f}",
                _range(*known[key, None, metric]),
            )
            difference = known.get((key, against, metric))
            if difference is None:
                cells.append((*line, NOTHING, NOTHING, ""))
                continue
            less = means[metric, key] - means[metric, against]
            word = WORDS[judged(*difference, SENSE.get(metric))] if any(difference) else "the same"
            cells.append((*line, f"{less:+.4f}", _range(*difference, sign="+"), word))
    if not cells:
        raise InputError("these results have no intervals: they were written before there were any")
    than = " or ".join(dict.fromkeys(key.method for key in base.values()))
    header = ("method", "metric", "mean", "95 % interval", f"− {than}", "95 % interval", "so it is")
    return Table(title, header, tuple(cells))


def _range(low: float, high: float, sign: str = "") -> str:
    return f"{low:{sign}.4f} to {high:{sign}.4f}"


def by_policy(experiment: Experiment) -> bool:
    """Whether the experiment compares policies, rather than choosing one."""
    return not experiment.choose and len(experiment.policies) > 1


def chosen(results: Results, experiment: Experiment) -> Table | None:
    """How often each rule chose each policy; None where there was nothing to choose."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    for row in results:
        if row.experiment == experiment.name and row.choice and row.metric == experiment.metrics[0]:
            counts.setdefault((row.method, row.choice), Counter())[row.policy] += 1
    if not counts:
        return None
    cells = tuple(
        (method, rule, ", ".join(f"{policy} {n}x" for policy, n in counter.most_common()))
        for (method, rule), counter in counts.items()
    )
    return Table("Chosen policies", ("method", "rule", "policies, over the splits"), cells)
