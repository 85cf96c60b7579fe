"""Ours beside the paper's: published | ours | difference, table by table, and all of it as one page.

The page (docs/results.md is one) is written from results alone: no number in it was typed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from atta.experiments.experiment import Experiment
from atta.paper.claims import claims_table
from atta.paper.published import published
from atta.paper.reproduce import Reproduction
from atta.results.contenders import Contender, baselines, bounds, contender, judged, label, labels
from atta.results.rows import Results
from atta.results.table import NOTHING, Summary, Table
from atta.results.words import BASELINE, BETTER, DIGITS, RULE, SENSE, dataset_name
from atta.types import InputError

WORDS = {1: "better", 0: "unclear", -1: "worse", None: ""}

DIFFERENCES = """\
- **Network.** The paper says ResNet-50 and its accuracy (94.21 % on CIFAR-10), not how it was trained. Ours has a 3x3 stem
  for 32-pixel images and the recipe of `atta.training`; for CIFAR without its zoomed crops (`zoomed=0`): they are slightly
  blurred, and a network that knows blur makes CIFAR-10* easy.
- **Validation images.** The paper has one draw of 1000. Ours are {splits} draws; the first one alone is "as in the paper", the
  mean and its 95 % interval (Student's t over the draws) is what to believe. The draws share images, so the interval says
  how much the choice of the validation images matters, not how much other test images would.
- **Crop.** "Approximately 0.8" is round(0.8 × side), resized bilinearly to the input size.
- **Clip.** Brightness and contrast clip to [0, 1]; the paper does not say.
- **Start of the optimiser.** The paper says that weights start at 1, its authors' code at 1/k with weight decay 1e-5. Ours
  is the code's: started at 1, M-ATTA stays over-confident.
- **Softmax.** After the sum of the views, as in the authors' code, not before it, as printed.
- **Class.** Where no positive share keeps the class, the paper's algorithm returns the last mixture; ours returns the
  network's own answer. `class_changes` counts what each method changes.
- **Adaptive-TTA** is reconstructed from how the paper describes it; its own text was not at hand.
- **Isotonic regression and histogram binning** are pooled over all classes and renormalised; the confidence of the
  predicted class keeps its mapped value wherever possible.
- **Dirichlet calibration** chooses its two penalties by 5-fold cross-validation over 15 pairs; its authors try 432.
- **Policies for the sizes of the validation set** are those that the paper's Table 2 chose.
- **CIFAR-10***: noise first, then blur; an even kernel size covers half of its two outermost pixels."""


def against(results: Results, experiment: Experiment, *, first: bool = False) -> Table | None:
    """Published, ours and the difference, for each method and metric; None if the paper prints no numbers.

    Ours is the mean over the splits, with the policy chosen by the paper's rule; with `first`, the first split alone.
    """
    if not experiment.published:
        return None
    theirs = published(experiment.published)
    rows = [
        r for r in results if r.experiment == experiment.name and r.choice in ("", RULE) and (r.split == 0 or not first)
    ]
    policies = by_policy(experiment)
    ours: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        ours.setdefault((row.method, row.policy if policies else row.metric), []).append(row.value)
    columns = list(next(iter(theirs.values())))
    lines: list[tuple[str, ...]] = []
    if policies:
        header = ("policy", *(f"{m} {what}" for m in theirs for what in ("published", "ours", "difference")))
        for policy in columns:
            cells = (cell for method in theirs for cell in _three(theirs[method][policy], ours.get((method, policy))))
            lines.append((policy, *cells))
    else:
        header = ("method", *(f"{metric} {what}" for metric in columns for what in ("published", "ours", "difference")))
        for method, numbers in theirs.items():
            cells = (cell for metric in columns for cell in _three(numbers[metric], ours.get((method, metric))))
            lines.append((method, *cells))
    how = "first split alone" if first else "mean of all splits"
    return Table(f"{experiment.title or experiment.name} ({experiment.paper}), {how}", header, tuple(lines))


def _three(theirs: float, ours: list[float] | None) -> tuple[str, str, str]:
    if not ours:
        return f"{theirs:.4f}", "–", "–"
    mean = sum(ours) / len(ours)
    return f"{theirs:.4f}", f"{mean:.4f}", f"{mean - theirs:+.4f}"


def own_table(results: Results, experiment: Experiment) -> Table:
    """Ours alone, the mean over the splits and its 95 % interval: for every method, policy or size of the validation set."""
    mine = results.where(experiment=experiment.name)
    shape: dict[str, Any] = {"digits": DIGITS, "better": BETTER, "title": _title(experiment)}
    if by_policy(experiment):
        ours = mine.renamed(lambda one: (label(one.method, one.choice), one.policy, ""))
        return ours.pivot(("policy",), ("method", "metric"), **shape)
    named = labels(map(contender, mine))
    ours = mine.renamed(lambda one: (named[contender(one)], "", ""))
    if len(experiment.validation) > 1:
        return ours.pivot(("validation",), ("metric", "method"), **shape)
    keeps = {name for key, name in named.items() if experiment.method(key.method).keeps_class}
    return ours.pivot(("method",), ("metric",), eligible=keeps.__contains__, baseline=BASELINE, **shape)


def _title(experiment: Experiment) -> str:
    return f"{experiment.title or experiment.name}" + (f" ({experiment.paper})" if experiment.paper else "")


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
        for key in (key for found, key in means if found == metric and (key, None, metric) in known):
            against = base[key.setting]
            line = (names[key], metric, f"{means[metric, key]:.4f}", _range(*known[key, None, metric]))
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


# ---- the page


def results_page(done: Reproduction, machine: Mapping[str, str], *, command: str) -> str:
    """Everything as Markdown: what it ran on, the records, the conclusions, each experiment, what differs from the paper."""
    experiments = done.experiments
    splits = max(experiment.splits for experiment in experiments)
    about = done.results.about
    parts = [
        "# Results",
        f"The paper's evaluation, reproduced. Written by `{command}`; no number on this page was typed. What lies past the "
        "paper, on three networks, is in [past-the-paper.md](past-the-paper.md).",
        _table({"": machine}),
        f"{splits} draws of the validation images: the first takes the first rows of a record as they stand, draw s a "
        f"permutation seeded with s. Adam's shuffles have seed {', '.join(map(str, experiments[0].seeds))}. Cells are the mean "
        "over the draws ± half of its 95 % interval; in bold, the best of the methods that keep every predicted class. ✓ and "
        "✗: surely better or worse than vanilla on the same test images, by the 95 % bootstrap interval of the difference.",
        "## The paper's conclusions",
        "On the paper's own numbers, on the first draw alone (as the paper measured), and on the mean of all draws; the policy "
        "of views chosen by the paper's rule. Among the paper's methods only.",
        claims_table(done.results, names=dataset_name).markdown(),
    ]
    for experiment in experiments:
        parts += _section(done.results, experiment)
    parts += ["## Differences to the paper that we know of", DIFFERENCES.format(splits=splits)]
    parts += ["## The records", _table(about["records"])]
    if done.skipped:
        parts += ["## Not run", "\n".join(f"- {name}: {why}" for name, why in done.skipped.items())]
    return "\n\n".join(parts) + "\n"


def _section(results: Results, experiment: Experiment) -> list[str]:
    parts = [
        f"## {experiment.title or experiment.name}" + (f" ({experiment.paper})" if experiment.paper else ""),
        f"`atta run experiments/{experiment.name}.toml`",
        own_table(results, experiment).markdown(),
    ]
    policies = chosen(results, experiment)
    if policies is not None:
        parts += ["Policies that were chosen:", policies.markdown()]
    for first, title in (
        (False, "Published, ours (mean of all draws) and the difference:"),
        (True, "The first draw alone:"),
    ):
        table = against(results, experiment, first=first)
        if table is not None:
            parts += [title, table.markdown()]
    return parts


def _table(columns: Mapping[str, Mapping[str, str]]) -> str:
    """What is known of several things, side by side."""
    names = sorted({name for column in columns.values() for name in column})
    if len(columns) == 1:
        names = list(*columns.values())
    cells = ((name, *(str(column.get(name, "–")) for column in columns.values())) for name in names)
    return Table("", ("", *columns), tuple(cells)).markdown()
