"""Makes tables of the results of an experiment: the means, their intervals, the chosen policies."""

from collections import Counter
from collections.abc import Sequence
from functools import partial

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
from atta.results.table import NOTHING, Summary, Table, pivot
from atta.results.words import BASELINE, BETTER, DIGITS, SENSE

WORDS = {1: "better", 0: "unclear", -1: "worse", None: ""}


def own_table(results: Results, experiment: Experiment) -> Table:
    """The mean over the splits with its 95 % interval, by method, policy or validation size."""
    mine = results.where(experiment=experiment.name)
    lay_out = partial(pivot, digits=DIGITS, better=BETTER, title=experiment.heading)
    if experiment.compares_policies:
        ours = mine.renamed(lambda one: (label(one.method, one.choice), one.policy, ""))
        return lay_out(ours, ("policy",), ("method", "metric"))
    ours, named = relabelled(mine), labels(map(contender, mine))
    if len(experiment.validation) > 1:
        return lay_out(ours, ("validation",), ("metric", "method"))
    keeps = {name for key, name in named.items() if experiment.method(key.method).keeps_class}
    return lay_out(ours, ("method",), ("metric",), eligible=keeps.__contains__, baseline=BASELINE)


def interval_table(results: Results, *, title: str = "", metrics: Sequence[str] = ()) -> Table:
    """The numbers of one experiment and their differences to the baseline, with 95 % intervals.

    The intervals are those of the bootstrap over test images. By default all metrics that have
    intervals are shown.
    """
    known, base = bounds(results.intervals), baselines(results, BASELINE)
    names = labels(map(contender, results), sizes=True)
    values: dict[tuple[str, Contender], list[float]] = {}
    for row in results:
        values.setdefault((row.metric, contender(row)), []).append(row.value)
    means = {place: Summary.of(found).mean for place, found in values.items()}
    cells = []
    for metric in metrics or results.names("metric"):
        for (found, key), mean in means.items():
            if found != metric or (key, None, metric) not in known:
                continue
            against = base[key.setting]
            line = (names[key], metric, f"{mean:.4f}", _range(*known[key, None, metric]))
            difference = known.get((key, against, metric))
            if difference is None:
                cells.append((*line, NOTHING, NOTHING, ""))
                continue
            less = mean - means[metric, against]
            word = WORDS[judged(*difference, SENSE.get(metric))] if any(difference) else "the same"
            cells.append((*line, f"{less:+.4f}", _range(*difference, sign="+"), word))
    if not cells:
        raise InputError("these results have no intervals: an older version wrote them")
    than = " or ".join(dict.fromkeys(key.method for key in base.values()))
    header = ("method", "metric", "mean", "95 % interval", f"− {than}", "95 % interval", "so it is")
    return Table(title, header, tuple(cells))


def _range(low: float, high: float, sign: str = "") -> str:
    return f"{low:{sign}.4f} to {high:{sign}.4f}"


def chosen(results: Results, experiment: Experiment) -> Table | None:
    """How often each rule chose each policy; None if there was nothing to choose."""
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
