"""The results of an experiment as tables: ours alone, how sure they are, and which policies were chosen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from atta.errors import InputError
from atta.experiments.experiment import Experiment
from atta.results.rows import NOTHING, Interval, Results, Row, Summary, Table, contender, judged
from atta.results.words import BASELINE, BETTER, DIGITS, RULE, SENSE

WORDS = {1: "better", 0: "unclear", -1: "worse", None: ""}


def label(row: Row | Interval) -> str:
    """What a table calls a row: the method, and the rule by which its policy was chosen unless it is the paper's."""
    return row.method if row.choice in ("", RULE) else f"{row.method} · {row.choice}"


def own_table(results: Results, experiment: Experiment) -> Table:
    """Ours alone, the mean over the splits and its 95 % interval: for every method, policy or size of the validation set."""
    mine = results.where(experiment=experiment.name)
    shape: dict[str, Any] = {"digits": DIGITS, "better": BETTER, "title": titled(experiment)}
    if by_policy(experiment):
        ours = mine.renamed(lambda one: (label(one), one.policy, ""))
        return ours.pivot(("policy",), ("method", "metric"), **shape)
    named = _names(mine)
    ours = mine.renamed(lambda one: (named(one), "", ""))
    if len(experiment.validation) > 1:
        return ours.pivot(("validation",), ("metric", "method"), **shape)
    keeps = {named(row) for row in mine if experiment.method(row.method).keeps_class}
    return ours.pivot(("method",), ("metric",), eligible=keeps.__contains__, baseline=BASELINE, **shape)


def titled(experiment: Experiment) -> str:
    """What stands above the tables of an experiment, and where in the paper its like is."""
    return (experiment.title or experiment.name) + (f" ({experiment.paper})" if experiment.paper else "")


def _names(results: Results) -> Callable[[Row | Interval], str]:
    """What contenders are called: the policy belongs to the name where a method was given several and none was chosen."""
    given = {(row.method, row.policy) for row in results if not row.choice}
    several = {method for method, count in Counter(method for method, _ in given).items() if count > 1}
    return lambda one: f"{label(one)} · {one.policy}" if one.method in several and not one.choice else label(one)


def interval_table(results: Results, *, title: str = "", metrics: Sequence[str] = ()) -> Table:
    """How sure the numbers of one experiment are: each with its interval, and its difference to the baseline with its own.

    The intervals are those of the bootstrap over test images. `metrics` are all that have intervals, or those named.
    """
    named, bounds, base = _names(results), results.bounds(), results.baselines(BASELINE)
    several = len(results.names("validation")) > 1
    values: dict[tuple[str, Any], list[float]] = {}
    names: dict[Any, str] = {}
    for row in results:
        key = contender(row)
        names[key] = f"{named(row)} · {row.validation} images" if several else named(row)
        values.setdefault((row.metric, key), []).append(row.value)
    means = {place: Summary.of(found).mean for place, found in values.items()}
    cells = []
    for metric in metrics or results.names("metric"):
        for key in (key for found, key in means if found == metric and (key, None, metric) in bounds):
            against = base[key[:3]]
            line = (names[key], metric, f"{means[metric, key]:.4f}", _range(*bounds[key, None, metric]))
            difference = bounds.get((key, against, metric))
            if difference is None:
                cells.append((*line, NOTHING, NOTHING, ""))
                continue
            less = means[metric, key] - means[metric, against]
            word = WORDS[judged(*difference, SENSE.get(metric))] if any(difference) else "the same"
            cells.append((*line, f"{less:+.4f}", _range(*difference, sign="+"), word))
    if not cells:
        raise InputError("these results have no intervals: they were written before there were any")
    than = " or ".join(dict.fromkeys(key[3] for key in base.values()))
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
