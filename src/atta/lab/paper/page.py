"""A reproduction as one page: how many claims hold, each table and figure, what differs, and on what it ran.

The page (docs/results.md is one) is written from results alone: no number in it was typed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from atta.lab.experiment import Experiment
from atta.lab.paper.claims import claims_summary, claims_table
from atta.lab.paper.comparison import against, beside
from atta.lab.paper.reproduce import Reproduction
from atta.lab.paper.words import said
from atta.lab.tables import chosen, own_table, titled
from atta.report.figures.catalogue import figure
from atta.results.rows import Results
from atta.results.table import Table
from atta.results.words import dataset_name

DIFFERENCES = """\
- **Network.** The paper says ResNet-50 and its accuracy (94.21 % on CIFAR-10), not how it was trained. Ours has a 3x3 stem
  for 32-pixel images and the recipe of `atta.lab.training.train`; for CIFAR without its zoomed crops (`zoomed=0`): they are
  slightly blurred, and a network that knows blur makes CIFAR-10* easy.
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
- **Dirichlet calibration** chooses its two penalties by 5-fold cross-validation over 15 pairs; its authors try 432. Its
  diagonal is held near temperature scaling, where its authors stop their optimiser early.
- **Policies for the sizes of the validation set** are those that the paper's Table 2 chose.
- **CIFAR-10***: noise first, then blur; an even kernel size covers half of its two outermost pixels."""


FIGURES = {"entropy": "entropy", "sizes": "brier"}
"""The figures of the paper by the name of ours, and what they show."""


def figures(done: Reproduction) -> Iterator[tuple[str, Any]]:
    """The paper's figures, drawn from our results, by the name of their experiment."""
    for experiment in done.experiments:
        if experiment.paper.startswith("Figure"):
            name = "sizes" if len(experiment.validation) > 1 else "entropy"
            yield (
                experiment.name,
                figure(name, done.results, metric=FIGURES[name], experiment=experiment.name),
            )


def results_page(
    done: Reproduction,
    machine: Mapping[str, str],
    *,
    command: str,
    pictures: Mapping[str, str] | None = None,
) -> str:
    """Everything as Markdown: how many claims hold, each table and figure by its number, what differs, on what it ran.

    `pictures` are the files of `figures`, by the name of the experiment, as the page is to name them.
    """
    experiments = sorted(done.experiments, key=_by_number)
    splits = max(experiment.splits for experiment in experiments)
    parts = [
        "# Results",
        f"The paper's evaluation, reproduced. Written by `{command}`; no number on this page was typed. What lies past the "
        "paper, on three networks, is in [past-the-paper.md](past-the-paper.md).",
        "## How many of the paper's conclusions hold",
        "On how many datasets each holds: by the paper's own numbers, by the first draw alone (as the paper measured), and by "
        "the mean of all draws; the policy of views is chosen by the paper's rule. Among the paper's methods only.",
        claims_summary(done.results).markdown(),
        _folded(
            "One by one, on each dataset, and why",
            claims_table(done.results, names=dataset_name).markdown(),
        ),
        "## Where to find what",
        _contents(experiments),
        "## How to read the tables",
        f"{splits} draw{'s' * (splits > 1)} of the validation images: the first takes the first rows of a record as they "
        "stand, draw s a permutation seeded with s. Adam's shuffles have seed "
        f"{', '.join(map(str, experiments[0].seeds))}. Cells are the mean over the draws ± half of its 95 % interval; in "
        "bold, the best of the methods that keep every predicted class. ✓ and "
        "✗: surely better or worse than vanilla on the same test images, by the 95 % bootstrap interval of the difference.",
    ]
    for experiment in experiments:
        parts += _section(done.results, experiment, (pictures or {}).get(experiment.name))
    parts += ["## Differences to the paper that we know of", DIFFERENCES.format(splits=splits)]
    parts += [
        "## On what it ran",
        _table({"": machine}),
        _folded("The records", _table(done.results.about["records"])),
    ]
    if done.skipped:
        parts += ["## Not run", "\n".join(f"- {name}: {why}" for name, why in done.skipped.items())]
    return "\n\n".join(parts) + "\n"


def _by_number(experiment: Experiment) -> tuple[int, str]:
    """The paper's tables, then its figures, then its supplement, each by number; what is ours after it."""
    kinds = ("Table", "Figure", "Supplement", "")
    return next(
        i for i, kind in enumerate(kinds) if experiment.paper.startswith(kind)
    ), experiment.paper


def _contents(experiments: Sequence[Experiment]) -> str:
    """A list of the paper's tables and figures, each with links to its datasets."""
    places: dict[str, list[str]] = {}
    for experiment in experiments:
        link = f"[{experiment.title or experiment.name}](#{_anchor(titled(experiment))})"
        places.setdefault(experiment.paper or "Beside the paper", []).append(link)
    return "\n".join(f"- {place}: {', '.join(links)}" for place, links in places.items())


def _anchor(title: str) -> str:
    """What a heading is linked by: as GitHub does."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def _section(results: Results, experiment: Experiment, picture: str | None) -> list[str]:
    own, paired = own_table(results, experiment).markdown(), beside(results, experiment)
    parts = [f"## {titled(experiment)}", said(results, experiment)]
    if picture is not None:
        parts.append(f"![{titled(experiment)}]({picture})")
    if paired is not None:
        parts += ["Ours, the mean of all draws, and in brackets the published:", paired.markdown()]
    if paired is not None or picture is not None:
        parts.append(_folded("Ours, with intervals", own))
    else:
        parts.append(own)
    for first, title in (
        (False, "Published, ours and the difference"),
        (True, "The same by the first draw alone"),
    ):
        if (table := against(results, experiment, first=first)) is not None:
            parts.append(_folded(title, table.markdown()))
    if (policies := chosen(results, experiment)) is not None:
        parts.append(_folded("Policies that were chosen", policies.markdown()))
    return [*filter(None, parts), f"`atta run experiments/{experiment.name}.toml`"]


def _folded(title: str, text: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{text}\n\n</details>"


def _table(columns: Mapping[str, Mapping[str, str]]) -> str:
    """What is known of several things, side by side."""
    names = sorted({name for column in columns.values() for name in column})
    if len(columns) == 1:
        names = list(*columns.values())
    cells = ((name, *(str(column.get(name, "–")) for column in columns.values())) for name in names)
    return Table("", ("", *columns), tuple(cells)).markdown()
