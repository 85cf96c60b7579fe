"""Ours beside the paper's: published | ours | difference, table by table, and all of it as one page.

The page (docs/results.md is one) is written from results alone: no number in it was typed.
"""

from __future__ import annotations

from collections.abc import Mapping

from atta.experiments.experiment import Experiment
from atta.experiments.tables import chosen, own_table, titled
from atta.paper.claims import claims_table
from atta.paper.comparison import against
from atta.paper.reproduce import Reproduction
from atta.results.rows import Results
from atta.results.table import Table
from atta.results.words import dataset_name

DIFFERENCES = """\
- **Network.** The paper says ResNet-50 and its accuracy (94.21 % on CIFAR-10), not how it was trained. Ours has a 3x3 stem
  for 32-pixel images and the recipe of `atta.networks.training`; for CIFAR without its zoomed crops (`zoomed=0`): they are
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
        f"## {titled(experiment)}",
        f"`atta run experiments/{experiment.name}.toml`",
        own_table(results, experiment).markdown(),
    ]
    if (policies := chosen(results, experiment)) is not None:
        parts += ["Policies that were chosen:", policies.markdown()]
    for first, title in ((False, "Published, ours (mean of all draws) and the difference:"), (True, "The first draw alone:")):
        if (table := against(results, experiment, first=first)) is not None:
            parts += [title, table.markdown()]
    return parts


def _table(columns: Mapping[str, Mapping[str, str]]) -> str:
    """What is known of several things, side by side."""
    names = sorted({name for column in columns.values() for name in column})
    if len(columns) == 1:
        names = list(*columns.values())
    cells = ((name, *(str(column.get(name, "–")) for column in columns.values())) for name in names)
    return Table("", ("", *columns), tuple(cells)).markdown()
