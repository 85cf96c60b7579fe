"""Writes a reproduction as one page: the claims, each table and figure, what differs, the machine.

The page (docs/results.md is one) is written from results alone: no number in it was typed. Why ours
differ is known for some datasets (`WHY`) and typed.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from atta.lab.experiment import Experiment
from atta.lab.paper.claims import Numbers, claims_summary, claims_table
from atta.lab.paper.published import PublishedTable, against, paper, published, with_published
from atta.lab.paper.reproduce import Reproduction
from atta.lab.tables import chosen, own_table
from atta.report.figures.catalogue import figure
from atta.results.rows import Results
from atta.results.table import Table
from atta.results.words import METRIC_NAMES, SENSE, dataset_name

DIFFERENCES = """\
- **Network.** The paper says ResNet-50 and its accuracy (94.21 % on CIFAR-10), not how it was
  trained. Ours has a 3x3 stem for 32-pixel images and the recipe of `atta.lab.training.train`; for
  CIFAR without its zoomed crops (`zoomed=0`): they are slightly blurred, and a network that knows
  blur makes CIFAR-10* easy.
- **Validation images.** The paper has one draw of 1000. Ours are {splits} draws; the first one
  alone is "as in the paper", the mean and its 95 % interval (Student's t over the draws) is what to
  believe. The draws share images, so the interval says how much the choice of the validation images
  matters, not how much other test images would.
- **Crop.** "Approximately 0.8" is round(0.8 × side), resized bilinearly to the input size.
- **Clip.** Brightness and contrast clip to [0, 1]; the paper does not say.
- **Start of the optimiser.** The paper says that weights start at 1, its authors' code at 1/k with
  weight decay 1e-5. Ours is the code's: started at 1, M-ATTA stays over-confident.
- **Softmax.** After the sum of the views, as in the authors' code, not before it, as printed.
- **Class.** Where no positive share keeps the class, the paper's algorithm returns the last
  mixture; ours returns the network's own answer. `class_changes` counts what each method changes.
- **Adaptive-TTA** is reconstructed from how the paper describes it; its own text was not available.
- **Isotonic regression and histogram binning** are pooled over all classes and renormalised; the
  confidence of the predicted class keeps its mapped value wherever possible.
- **Dirichlet calibration** chooses its two penalties by 5-fold cross-validation over 15 pairs; its
  authors try 432. Its diagonal is held near temperature scaling, where its authors stop their
  optimiser early.
- **Policies for the sizes of the validation set** are those that the paper's Table 2 chose.
- **CIFAR-10***: noise first, then blur; an even kernel size covers half of its two outermost
  pixels."""
ABOUT_CLAIMS = """\
On how many datasets each holds: by the paper's own numbers, by the first draw alone (as the paper
measured), and by the mean of all draws; the policy of views is chosen by the paper's rule. Among
the paper's methods only."""
ABOUT_TABLES = """\
{splits} draw{s} of the validation images: the first takes the first rows of a record as they stand,
draw s a permutation seeded with s. Adam's shuffles have seed {seeds}. Cells are the mean over the
draws ± half of its 95 % interval; in bold, the best of the methods that keep every predicted class.
✓ and ✗: significantly better or worse than vanilla on the same test images, by the 95 % bootstrap
interval of the difference."""
RECIPE = "The paper does not say how its network was trained, and ours has a recipe of its own"
WHY = {
    "cifar10": f"{RECIPE}.",
    "cifar10*": f"{RECIPE}; the noise and blur seen in training decide the result on CIFAR-10*.",
    "cifar100": f"{RECIPE}: it is right more often, and less confident, than the paper's.",
    "aid": f"{RECIPE}; its AID images had 150 pixels a side and were enlarged to 224.",
    "ucmerced": "The paper does not list the classes that UC-Merced and AID share: ours are ten.",
}
COMPARED = ("temperature", "dirichlet", "adaptive-tta", "m-atta", "v-atta")
METRICS = {name: METRIC_NAMES[name] for name in ("brier", "mc_brier", "nll", "ece")}


def figures(done: Reproduction) -> Iterator[tuple[str, Any]]:
    """The paper's figures, drawn from our results, by the name of their experiment."""
    for experiment in done.experiments:
        if experiment.paper.startswith("Figure"):
            several = len(experiment.validation) > 1
            name, metric = ("sizes", "brier") if several else ("entropy", "entropy")
            drawn = figure(name, done.results, metric=metric, experiment=experiment.name)
            yield experiment.name, drawn


def results_page(
    done: Reproduction,
    machine: Mapping[str, str],
    *,
    command: str,
    pictures: Mapping[str, str] | None = None,
) -> str:
    """The whole page as Markdown.

    `pictures` are the files of `figures` by the name of the experiment, as the page links them.
    """
    experiments = sorted(done.experiments, key=_by_number)
    splits = max(experiment.splits for experiment in experiments)
    seeds = ", ".join(map(str, experiments[0].seeds))
    one_by_one = claims_table(done.results, names=dataset_name).markdown()
    parts = [
        "# Results",
        f"The paper's evaluation, reproduced. Written by `{command}`; no number on this page was "
        "typed. Results beyond the paper, on three networks, are in "
        "[past-the-paper.md](past-the-paper.md).",
        "## How many of the paper's conclusions hold",
        ABOUT_CLAIMS,
        claims_summary(done.results).markdown(),
        _folded("One by one, on each dataset, and why", one_by_one),
        "## Where to find what",
        _contents(experiments),
        "## How to read the tables",
        ABOUT_TABLES.format(splits=splits, s="s" * (splits > 1), seeds=seeds),
    ]
    for experiment in experiments:
        parts += _section(done.results, experiment, (pictures or {}).get(experiment.name))
    parts += [
        "## Differences to the paper that we know of",
        DIFFERENCES.format(splits=splits),
        "## On what it ran",
        _columns({"": machine}),
        _folded("The records", _columns(done.results.about["records"])),
    ]
    if done.skipped:
        parts += ["## Not run", "\n".join(f"- {name}: {why}" for name, why in done.skipped.items())]
    return "\n\n".join(parts) + "\n"


def _by_number(experiment: Experiment) -> tuple[int, str]:
    """The paper's tables, figures and supplement, each by number; then what is ours."""
    kinds = ("Table", "Figure", "Supplement", "")
    place = next(i for i, kind in enumerate(kinds) if experiment.paper.startswith(kind))
    return place, experiment.paper


def _contents(experiments: Sequence[Experiment]) -> str:
    """A list of the paper's tables and figures, each with links to its datasets."""
    places: dict[str, list[str]] = {}
    for experiment in experiments:
        link = f"[{experiment.title or experiment.name}](#{_anchor(experiment.heading)})"
        places.setdefault(experiment.paper or "Not in the paper", []).append(link)
    return "\n".join(f"- {place}: {', '.join(links)}" for place, links in places.items())


def _anchor(title: str) -> str:
    """The anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def _section(results: Results, experiment: Experiment, picture: str | None) -> list[str]:
    own, paired = own_table(results, experiment).markdown(), with_published(results, experiment)
    parts = [f"## {experiment.heading}", said(results, experiment)]
    if picture is not None:
        parts.append(f"![{experiment.heading}]({picture})")
    if paired is not None:
        parts += ["Ours, the mean of all draws, and in brackets the published:", paired.markdown()]
    alone = paired is None and picture is None
    parts.append(own if alone else _folded("Ours, with intervals", own))
    folded = {
        "Published, ours and the difference": against(results, experiment),
        "The same by the first draw alone": against(results, experiment, first=True),
        "Policies that were chosen": chosen(results, experiment),
    }
    parts += [_folded(title, table.markdown()) for title, table in folded.items() if table]
    return [*filter(None, parts), f"`atta run experiments/{experiment.name}.toml`"]


def _folded(title: str, text: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{text}\n\n</details>"


def _columns(columns: Mapping[str, Mapping[str, str]]) -> str:
    """What is known about several things, side by side."""
    names = sorted({name for column in columns.values() for name in column})
    if len(columns) == 1:
        names = list(*columns.values())
    cells = ((name, *(str(column.get(name, "–")) for column in columns.values())) for name in names)
    return Table("", ("", *columns), tuple(cells)).markdown()


# ---- in words


def said(results: Results, experiment: Experiment) -> str:
    """One paragraph on an experiment: its result and, if known, why it differs from the paper's."""
    rows = [row for row in results if row.experiment == experiment.name]
    numbers = Numbers.of(rows)
    theirs = published(experiment.published) if experiment.published else None
    if experiment.compares_policies:
        told = _policies(numbers, theirs)
    elif len(experiment.validation) > 1:
        told = _sizes(numbers)
    elif theirs is not None:
        told = _table(numbers, theirs, experiment)
    else:
        told = _ranked(numbers, rows[0].metric if rows else "brier")
    why = WHY.get(experiment.dataset, "") if theirs is not None else ""
    return " ".join(filter(None, (*told, why)))


def _table(numbers: Numbers, theirs: PublishedTable, experiment: Experiment) -> list[str]:
    told = []
    ours = {
        m: {metric: numbers.table[m, metric] for metric in METRICS if (m, metric) in numbers.table}
        for m in theirs
    }
    right = numbers.table.get(("vanilla", "accuracy"))
    known = paper()["accuracy"].get(experiment.dataset)
    if right is not None:
        also = f", the paper's on {100 * known:.1f} %" if known else ""
        told.append(f"Our network is right on {100 * right:.1f} % of the test images{also}.")
    changes = [
        f"{m} {_change(ours, m):+.1f} % ({_change(theirs, m):+.1f} %)"
        for m in COMPARED
        if "brier" in ours.get(m, {}) and "brier" in ours.get("vanilla", {})
    ]
    if changes:
        told.append(
            f"Against vanilla the Brier score moves by (in the paper): {', '.join(changes)}."
        )
    for whose, found in (("ours", ours), ("the paper's", theirs)):
        best = [
            f"{name} {min(found, key=lambda m: found[m][metric])}"
            for metric, name in METRICS.items()
            if all(metric in found[m] for m in found)
        ]
        told.append(f"Best of {whose}: {', '.join(best)}.")
    return told


def _change(table: PublishedTable, method: str) -> float:
    """The change of the Brier score to vanilla, in %."""
    return 100 * (table[method]["brier"] / table["vanilla"]["brier"] - 1)


def _policies(numbers: Numbers, theirs: PublishedTable | None) -> list[str]:
    told = []
    for method in dict.fromkeys(method for method, _ in numbers.by_policy):
        ours = {policy: value for (m, policy), value in numbers.by_policy.items() if m == method}
        order = _ordered(ours)
        sentence = (
            f"{method}: best with {order[0]} ({ours[order[0]]:.4f}), worst with {_worst(ours)}"
        )
        if theirs is not None and set(theirs.get(method, {})) == set(ours):
            known = theirs[method]
            best = _ordered(known)[0]
            less = fmean(ours[policy] - known[policy] for policy in ours)
            sentence += (
                f"; in the paper {best} ({known[best]:.4f}) and {_worst(known)}. Ours are "
                f"{less:+.4f} from them on average; "
                f"the two orders correlate by {_spearman(ours, known):+.2f} (Spearman)"
            )
        told.append(sentence + ".")
    return told


def _ordered(values: Mapping[str, float]) -> list[str]:
    return sorted(values, key=lambda name: values[name])


def _worst(values: Mapping[str, float]) -> str:
    return max(values, key=lambda name: values[name])


def _spearman(a: Mapping[str, float], b: Mapping[str, float]) -> float:
    """Spearman's correlation of two orders of the same names."""
    one, other = _ordered(a), _ordered(b)
    apart, n = sum((one.index(name) - other.index(name)) ** 2 for name in a), len(a)
    return 1 - 6 * apart / (n * (n * n - 1)) if n > 1 else 1.0


def _sizes(numbers: Numbers) -> list[str]:
    sizes = sorted({size for _, size in numbers.by_size})
    try:
        brier = {m: [numbers.by_size[m, size] for size in sizes] for m in ("m-atta", "v-atta")}
    except KeyError:  # other methods
        return []
    told = [
        f"From {sizes[0]} to {sizes[-1]} images the Brier score goes from {values[0]:.4f} to "
        f"{values[-1]:.4f} for {method}."
        for method, values in brier.items()
    ]
    ahead = [size for size, m, v in zip(sizes, *brier.values(), strict=True) if m < v]
    told.append(
        f"M-ATTA is ahead from {ahead[0]} images on." if ahead else "M-ATTA is never ahead."
    )
    return [*told, "Of this figure the paper prints no numbers."]


def _ranked(numbers: Numbers, metric: str) -> list[str]:
    metric = "brier" if ("vanilla", "brier") in numbers.table else metric
    found = {m: value for (m, name), value in numbers.table.items() if name == metric}
    if len(found) < 3:
        return []
    highest = SENSE.get(metric) == "higher"
    order = sorted(found, key=lambda m: found[m], reverse=highest)
    listed = "; ".join(f"{m}: {found[m]:.4f}" for m in order[:3])
    return [
        f"{'Highest' if highest else 'Lowest'} {METRIC_NAMES.get(metric, metric)}, of all: "
        f"{listed}. Last is {order[-1]} with {found[order[-1]]:.4f}."
    ]
