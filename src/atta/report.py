"""Results as one page to hand on: a single HTML file that opens anywhere and asks no network for anything.

    Results ──► sections, one an experiment and dataset ──► verdict · table · charts ──┐
            └─► the paper's claims · what was run ─────────────────────────────────────┴─► page/ ──► report.html

Numbers are formatted at the very end, and the exact one stays beside its text as <data value="...">: a page can be checked.
All text is escaped where it is put in: nothing that a file says becomes markup.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, TypeAlias

from atta import __version__, figures
from atta.claims import RULE, claims_table
from atta.errors import InputError
from atta.experiment import CLASS_CHANGES, COST, FITTED, Experiment
from atta.files import whole_file
from atta.holding import BETTER, DIGITS, NAMES, against
from atta.results import Results, Row, Summary, Table

try:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup
    from vl_convert import javascript_bundle
except ImportError as error:
    raise InputError("a report needs Jinja and vl-convert: pip install 'atta[report]'") from error

FOLDER = Path(__file__).parent / "page"
VANILLA = "vanilla"
LABELLED = ("brier", "ece", "mc_brier", "nll", "accuracy")
UNLABELLED = ("entropy", "shannon_entropy", "ood_auroc")
CRITERIA = ("nll", "brier", "mc_brier", "ece")
"""What a method is recommended by: the first of these that was measured."""
CALLED = {
    "brier": "Brier score",
    "ece": "ECE",
    "mc_brier": "multi-class Brier score",
    "nll": "NLL",
    "shannon_entropy": "Shannon entropy",
    "ood_auroc": "AUROC by entropy",
    CLASS_CHANGES: "class changes",
}
HEADINGS = {"weights": "Weights of the views", "shares": "Shares of the views", "per_class": "By predicted class"}
"""Of charts that are otherwise titled by their method alone."""
WORDS = {1: ("better", "better"), 0: ("unclear", "no clear difference"), -1: ("worse", "worse")}
BUDGET = 250_000
"""Characters of chart data, after which no more diagrams are offered: the page stays small enough to be mailed."""
DIRECTION: Mapping[str, str | None] = {**BETTER, "accuracy": "higher"}
Pictures: TypeAlias = Mapping[tuple[str, int], Mapping[str, str]]
"""By dataset and row of the tested images: data URIs, by what they show ("image", "flip", ...)."""
_Key: TypeAlias = tuple[str, str, str, int]


def report(results: Results, *, title: str = "", pictures: Pictures | None = None) -> str:
    """Write results as one self-contained HTML page; the same results make the same page.

    `pictures` are thumbnails for the images whose confidence changed the most, whose rows are in `results.details`.
    """
    if not results.rows:
        raise InputError("there are no rows to report")
    sections = _sections(results)
    charts = Charts(sections)
    data = {
        **charts.data(),
        "sections": {section.id: section.data(charts.shown[section.id]) for section in sections},
        "pictures": _pictures(pictures or {}, sections),
        "words": WORDS,
    }
    claims = claims_table(_known(results), names=lambda name: NAMES.get(name, name))
    page = _environment().get_template("page.html.jinja")
    return page.render(
        title=title or "Calibration report",
        sections=sections,
        charts=charts,
        claims=claims if claims.cells else None,
        published=list(_published(results)),
        about=results.about,
        about_json=json.dumps(results.about, indent=2, ensure_ascii=False, sort_keys=True, default=str),
        data=inlined(data),
        vega=_vega(),
        version=__version__,
    )


def write_report(
    results: Results, path: str | os.PathLike[str], *, title: str = "", pictures: Pictures | None = None
) -> Path:
    """Write the page to a file, whole or not at all."""
    text = report(results, title=title, pictures=pictures)
    with whole_file(path) as part:
        part.write_text(text, encoding="utf-8", newline="\n")
    return Path(path)


# ---- what is compared


@dataclass(frozen=True, eq=False)
class Contender:
    """A line of the table: a method and, where it was run with several, its policy, rule of choice or number of images."""

    label: str
    method: str
    size: int
    """How many images it was fitted on; the others are tested on, so that other sizes have other tests."""
    values: Mapping[str, Mapping[int, float]]
    """By metric and split; the seeds of one split are averaged, as they saw the same images."""
    detail: Mapping[str, Any]
    """What `atta.details` saw on the first split; empty for results that were made without."""

    @property
    def keeps_class(self) -> bool:
        """Whether it leaves the predicted class alone: it did so in every split and, as far as is known, promises it."""
        changes = self.values.get(CLASS_CHANGES, {})
        return bool(self.detail.get("keeps_class", changes)) and not any(changes.values())

    @property
    def changes_class(self) -> bool:
        """Whether it is known to have changed a class, or not to promise otherwise."""
        return self.detail.get("keeps_class") is False or any(self.values.get(CLASS_CHANGES, {}).values())

    @property
    def passes(self) -> int | None:
        """How often the network runs for an image, views and all."""
        return self.detail.get("passes")

    def mean(self, metric: str) -> float:
        """The mean over the splits, nan where it was not measured."""
        values = self.values.get(metric)
        return fmean(values.values()) if values else math.nan


@dataclass(frozen=True)
class Difference:
    """One contender less another, paired split by split, and half its 95 % interval (Student's t)."""

    mean: float
    interval: float | None
    better: int | None
    """1 or -1 where the interval excludes 0, 0 where it does not, None where one split allows no such claim."""

    @classmethod
    def between(cls, one: Contender, other: Contender, metric: str) -> Difference | None:
        """Compare on the splits that both were run on; None where there are none, or where their images differ."""
        mine, theirs = one.values.get(metric, {}), other.values.get(metric, {}) if one.size == other.size else {}
        paired = [mine[split] - theirs[split] for split in mine if split in theirs]
        if not paired:
            return None
        found = Summary.of(paired)
        return cls(found.mean, found.interval, _judged(found, DIRECTION.get(metric)))

    @property
    def none(self) -> bool:
        """Whether the two are the same in every split."""
        return self.mean == 0 == self.interval

    @property
    def word(self) -> tuple[str, str] | None:
        """What the page calls it: a class of its style sheet, and the word itself."""
        if self.none:
            return "unclear", "the same"
        return None if self.better is None else WORDS[self.better]


def _judged(found: Summary, direction: str | None) -> int | None:
    if found.interval is None or not math.isfinite(found.interval) or direction is None:
        return None
    if abs(found.mean) <= found.interval:
        return 0
    return 1 if (found.mean < 0) == (direction == "lower") else -1


@dataclass(frozen=True)
class Section:
    """One experiment on one dataset."""

    id: str
    name: str
    dataset: str
    rows: tuple[Row, ...]
    details: tuple[Mapping[str, Any], ...]
    experiment: Mapping[str, Any]
    """What is known of the experiment, as in its TOML file."""
    record: Mapping[str, Any]
    """What is known of the record that was fitted on."""
    fewer: Section | None = None
    """The same with fewer and fewer views, which goes into the chart of the cost."""

    @property
    def title(self) -> str:
        """What the page calls it."""
        return str(self.experiment.get("title") or NAMES.get(self.dataset, self.dataset))

    @cached_property
    def contenders(self) -> tuple[Contender, ...]:
        """Everything that is compared, in the order of the rows."""
        found: dict[_Key, list[Row]] = {}
        for row in self.rows:
            found.setdefault(_key(vars(row)), []).append(row)
        seen = {_key(detail): detail for detail in reversed(self.details)}
        return tuple(
            Contender(label, key[0], key[-1], _values(rows), seen.get(key, {}))
            for (key, rows), label in zip(found.items(), _labels(list(found)), strict=True)
        )

    @cached_property
    def metrics(self) -> tuple[str, ...]:
        """The columns of the table: those that need labels, or those that do not where there are none."""
        there = dict.fromkeys(row.metric for row in self.rows)
        main = [m for m in LABELLED if m in there] or [m for m in UNLABELLED if m in there]
        main = main or [metric for metric in there if metric != CLASS_CHANGES]
        return (*main, *(metric for metric in (CLASS_CHANGES,) if metric in there))

    @cached_property
    def table(self) -> Table:
        """Contenders × metrics, as `atta compare` prints them; the best are those of the ones that keep the class."""
        return self._pivot(self.metrics)

    @cached_property
    def others(self) -> Table | None:
        """The metrics that have no place in the table."""
        rest = tuple(dict.fromkeys(row.metric for row in self.rows if row.metric not in self.metrics))
        return self._pivot(rest) if rest else None

    def _pivot(self, metrics: tuple[str, ...]) -> Table:
        keys = dict.fromkeys(_key(vars(row)) for row in self.rows)
        names = dict(zip(keys, (one.label for one in self.contenders), strict=True))
        rows = tuple(replace(row, method=names[_key(vars(row))], policy="", choice="") for row in self.rows)
        keeps = {one.label for one in self.contenders if one.keeps_class and one.size == self.size}
        where = {"method": tuple(names.values()), "metric": metrics}
        # More entropy is better on images of no known class, and on no others.
        better = BETTER if self.criterion is None else {**BETTER, **dict.fromkeys(UNLABELLED)}
        return Results(rows).pivot(where=where, better=better, eligible=keeps.__contains__, digits=DIGITS)

    @cached_property
    def size(self) -> int:
        """How many images those were fitted on that the verdict is about: the most there are."""
        return max(row.validation for row in self.rows)

    @property
    def mixed(self) -> bool:
        """Whether contenders were fitted on different numbers of images."""
        return any(one.size != self.size for one in self.contenders)

    @cached_property
    def splits(self) -> int:
        """How many draws of the validation images there are."""
        return len({row.split for row in self.rows})

    @cached_property
    def images(self) -> int | None:
        """How many images were tested on; None where nobody wrote it down."""
        found = (one.detail.get("images") for one in self.contenders if one.size == self.size)
        return next((images for images in found if images), None)

    @cached_property
    def vanilla(self) -> int | None:
        """Which contender is the model as it is."""
        compared = enumerate(self.contenders)
        return next((i for i, one in compared if one.method == VANILLA and one.size == self.size), None)

    @property
    def baseline(self) -> int:
        """What differences are taken to at first."""
        compared = (i for i, one in enumerate(self.contenders) if one.size == self.size)
        return next(compared) if self.vanilla is None else self.vanilla

    @cached_property
    def criterion(self) -> str | None:
        """The metric that decides; None without labels."""
        return next((metric for metric in CRITERIA if metric in self.metrics), None)

    @cached_property
    def ranked(self) -> list[int]:
        """The contenders that keep the class, best first."""
        criterion = self.criterion or ""
        compared = (i for i, one in enumerate(self.contenders) if one.keeps_class and one.size == self.size)
        means = {i: self.contenders[i].mean(criterion) for i in compared}
        return sorted((i for i, mean in means.items() if not math.isnan(mean)), key=means.__getitem__)

    @property
    def fitted(self) -> bool:
        """Whether it was tested on the images it was fitted on, of which nothing follows for others."""
        return self.experiment.get("test") == FITTED

    @property
    def recommended(self) -> int | None:
        """The best of several that keep the class, unless that is the model as it is."""
        best = self.ranked[0] if len(self.ranked) > 1 else None
        return None if best == self.vanilla or self.fitted else best

    @property
    def costs(self) -> bool:
        """Whether it is known how often the network runs."""
        return any(one.passes for one in self.contenders)

    @property
    def changed(self) -> bool:
        """Whether it is known which images changed the most."""
        return any(one.detail.get("changed") for one in self.contenders)

    @property
    def short(self) -> Markup | None:
        """The verdict in a line of the contents."""
        if not self.ranked or not self.criterion:
            return None
        best = self.contenders[self.ranked[0]]
        return _say("{}, {} {}", best.label, _called(self.criterion), _number(best.mean(self.criterion)))

    @property
    def chosen(self) -> int:
        """What stands beside the baseline at first: the recommended method, or what comes closest to one."""
        others = [i for i in (*self.ranked, len(self.contenders) - 1) if i != self.baseline]
        return others[0] if others else self.baseline

    @cached_property
    def order(self) -> list[int]:
        """The contenders, those first that a reader looks at first."""
        return list(dict.fromkeys((self.baseline, self.chosen, *self.ranked, *range(len(self.contenders)))))

    @property
    def cells(self) -> list[list[dict[str, Any]]]:
        """The table as the page needs it: a summary each, whether it is a best one, and the difference to the baseline."""
        base = self.contenders[self.baseline]
        return [
            [
                {
                    "metric": metric,
                    "summary": self.table.numbers.get((i, j)),
                    "best": (i, j) in self.table.best,
                    "difference": None if i == self.baseline else _difference(one, base, metric),
                }
                for j, metric in enumerate(self.metrics, 1)
            ]
            for i, one in enumerate(self.contenders)
        ]

    @property
    def verdict(self) -> list[Markup]:
        """The section in plain sentences: what happened, then why this method and how clearly."""
        return [_say(" ").join(sentences) for sentences in _verdict(self) if sentences]

    @property
    def note(self) -> str:
        """How the table is to be read."""
        among = f", fitted on {self.size} images" if self.mixed else ""
        return " ".join(
            sentence
            for sentence in (
                f"Mean over {self.splits} splits ± half its 95 % interval (Student’s t); the splits share images, so an "
                "interval says how much the choice of the validation images matters."
                if self.splits > 1
                else "One split: no intervals, and no difference is called clear.",
                f"★ and bold: the best of the methods that keep the predicted class{among}." if self.table.best else "",
            )
            if sentence
        )

    @property
    def facts(self) -> list[str]:
        """What was run, in one line."""
        sizes = sorted({row.validation for row in self.rows} - {0})
        classes = next((one.detail["classes"] for one in self.contenders if "classes" in one.detail), None)
        found = [
            self.record.get("model"),
            f"{classes} classes" if classes else None,
            f"{_listed(sizes)} images to fit on" if sizes else None,
            f"{self.images} to test on" if self.images and len(sizes) < 2 else None,
            "1 split" if self.splits == 1 else f"{self.splits} splits",
            self.experiment.get("paper"),
        ]
        return [str(fact) for fact in found if fact]

    def data(self, shown: Sequence[int]) -> dict[str, Any]:
        """What the switches of the page need; `shown` are the contenders that have diagrams."""
        names = next((one.detail["per_class"]["names"] for one in self.contenders if one.detail.get("per_class")), None)
        return {
            "metrics": [metric for metric in self.metrics if metric != CLASS_CHANGES],
            "differences": {
                f"{i} {j}": [_plain(_difference(one, other, m)) for m in self.metrics if m != CLASS_CHANGES]
                for i, one in enumerate(self.contenders)
                for j, other in enumerate(self.contenders[:i])
            },
            "changed": {i: _packed(self.contenders[i].detail.get("changed") or ()) for i in shown},
            "classes": names,
            "dataset": self.dataset,
        }


def _difference(one: Contender, other: Contender, metric: str) -> Difference | None:
    return None if metric == CLASS_CHANGES else Difference.between(one, other, metric)


def _plain(found: Difference | None) -> list[Any] | None:
    return None if found is None else [found.mean, found.interval, found.better]


def _key(columns: Mapping[str, Any]) -> _Key:
    """What makes a contender: a policy that a rule chose may differ from split to split, and is none of its own."""
    choice = columns.get("choice", "")
    policy = "" if choice else columns.get("policy", "")
    return columns.get("method", ""), policy, choice, columns.get("validation", 0)


def _labels(keys: Sequence[_Key]) -> Iterator[str]:
    """Name the contenders of a section, with no more words than tell them apart."""
    sizes = {size for *_, size in keys}
    for method, policy, choice, size in keys:
        policies = {key[1] for key in keys if key[0] == method}
        words = (
            method,
            policy if len(policies) > 1 else "",
            choice if choice != RULE else "",
            f"{size} images" if len(sizes) > 1 else "",
        )
        yield " · ".join(filter(None, words))


def _values(rows: Sequence[Row]) -> dict[str, dict[int, float]]:
    found: dict[str, dict[int, list[float]]] = {}
    for row in rows:
        found.setdefault(row.metric, {}).setdefault(row.split, []).append(row.value)
    return {
        metric: {split: sum(values) / len(values) for split, values in splits.items()}
        for metric, splits in found.items()
    }


def _sections(results: Results) -> list[Section]:
    parts: dict[tuple[str, str], list[Row]] = {}
    for row in results:
        parts.setdefault((row.experiment, row.dataset), []).append(row)
    experiments, records = _under(results.about, "experiments"), _under(results.about, "records")
    sections = []
    for i, ((name, dataset), rows) in enumerate(parts.items(), 1):
        seen = tuple(d for d in results.details if (d.get("experiment", ""), d.get("dataset")) == (name, dataset))
        experiment = experiments.get(name, {})
        record = records.get(str(experiment.get("fit", "")), {})
        sections.append(Section(f"s{i}", name, dataset, tuple(rows), seen, experiment, record))
    fewer = {(s.name.removesuffix(COST), s.dataset): s for s in sections if s.name.endswith(COST)}
    own = (replace(s, fewer=fewer.pop((s.name, s.dataset), None)) for s in sections if not s.name.endswith(COST))
    return [*own, *fewer.values()]


def _under(about: Mapping[str, Any], name: str) -> dict[str, Mapping[str, Any]]:
    """What is known of each experiment or record, of one run or of several that were added."""
    runs = about.get("runs")
    found: dict[str, Mapping[str, Any]] = {}
    for run in runs if isinstance(runs, list | tuple) else (about,):
        inside = run.get(name, {}) if isinstance(run, Mapping) else {}
        if isinstance(inside, Mapping):
            found |= {str(key): value for key, value in inside.items() if isinstance(value, Mapping)}
    return found


# ---- the verdict


def _verdict(section: Section) -> tuple[list[Markup], list[Markup]]:
    """What happened, in sentences; and why this method, how clearly, at what cost."""
    if section.criterion is None:
        return list(_without_labels(section)), []
    vanilla = None if section.vanilla is None else section.contenders[section.vanilla]
    best = section.contenders[section.ranked[0]] if section.ranked else None
    what, why = list(_as_it_is(section, vanilla)), list[Markup]()
    if best is None:
        what.append(_say("None of the methods here is known to keep the predicted class, so none is recommended."))
    elif len(section.ranked) == 1:
        what.append(_alone(section, best))
    elif best is vanilla:
        what.append(_nothing_helps(section))
        why.append(_lowest(section, best))
    else:
        reasons = [_lowest(section, best), *_cost(section, best)]
        what, why = (what + list(_helps(section, vanilla, best)), reasons) if vanilla else (reasons, what)
    if section.fitted:
        what.append(_say("These are the images that it was fitted on: of others this says nothing."))
    if section.splits == 1 and len(section.contenders) > 1:
        count = "" if section.images is None else _say(" of {} images", _number(section.images, 0))
        what.append(_say("One split{}: differences this small may be noise.", count))
    return what, why


def _as_it_is(section: Section, vanilla: Contender | None) -> Iterator[Markup]:
    if vanilla is None and len(section.contenders) > 1:
        yield _say("The model as it is (vanilla) was not run, so there is no before to compare with.")
    elif vanilla and vanilla.detail.get("accuracy") is not None:
        yield _say(
            "The model says {} and is right {} of the time ({}{} test images).",
            *(_percent(vanilla.detail[name]) for name in ("confidence", "accuracy")),
            f"first of {section.splits} splits, " if section.splits > 1 else "",
            _number(vanilla.detail["images"], 0),
        )


def _helps(section: Section, vanilla: Contender, best: Contender) -> Iterator[Markup]:
    criterion = section.criterion or ""
    over = f" over {section.splits} splits" if section.splits > 1 else ""
    start = _say("With {}{}", _name(best), over)
    if vanilla.detail.get("accuracy") is not None and best.detail.get("confidence") is not None:
        yield _say("With {} it says {}.", _name(best), _percent(best.detail["confidence"]))
        start = _say(over.strip().capitalize() or "At the same time")
    changes = [_change(metric, vanilla, best) for metric in ("brier", "nll") if metric in best.values]
    changes = changes or [_change(criterion, vanilla, best)]
    yield _say("{} {}.", start, _say(", ").join(changes))
    found = Difference.between(best, vanilla, criterion)
    if found and found.better == 0:
        yield _say(
            "But the difference in {} is within its 95 % interval ({}): it may be no difference at all.",
            _called(criterion),
            _signed(found),
        )
    if CLASS_CHANGES in best.values:
        count = "every image" if section.images is None else _say("all {} images", _number(section.images, 0))
        yield _say("The predicted class is unchanged on {}{}.", count, " of every split" if section.splits > 1 else "")


def _alone(section: Section, best: Contender) -> Markup:
    criterion = section.criterion or ""
    number = _number(best.mean(criterion))
    if len(section.contenders) == 1:
        return _say("Only {} was run; its {} is {}.", _name(best), _called(criterion), number)
    return _say(
        "Of the methods here only {} is known to keep the predicted class; its {} is {}.",
        _name(best),
        _called(criterion),
        number,
    )


def _nothing_helps(section: Section) -> Markup:
    others = len(section.ranked) - 1
    who = "The one other method that keeps" if others == 1 else f"None of the {others} other methods that keep"
    has = "has no" if others == 1 else "has a"
    called = _called(section.criterion or "")
    return _say("{} the predicted class {} lower {}: the model is best left as it is.", who, has, called)


def _lowest(section: Section, best: Contender) -> Markup:
    """Why this one, and how clearly."""
    criterion = section.criterion or ""
    why = _say(
        "Of the {} {} that keep the predicted class, {} has the lowest {} ({})",
        len(section.ranked),
        "methods" if len(section.ranked) == len(set(_methods(section))) else "candidates",
        _name(best),
        _called(criterion),
        _number(best.mean(criterion)),
    )
    second = section.contenders[section.ranked[1]]
    found = Difference.between(second, best, criterion)
    if found is None or found.better is None:
        return why + _say("; next is {} ({}).", _name(second), _number(second.mean(criterion)))
    how = "clearly behind" if found.better else "not clearly behind"
    return why + _say("; next is {}, {} ({}).", _name(second), how, _signed(found))


def _methods(section: Section) -> Iterator[str]:
    return (section.contenders[i].label.split(" · ")[0] for i in section.ranked)


def _cost(section: Section, best: Contender) -> Iterator[Markup]:
    if best.passes is None or best.passes == 1:
        return
    cheap = next((section.contenders[i] for i in section.ranked if section.contenders[i].passes == 1), None)
    number = cheap and _number(cheap.mean(section.criterion or ""))
    other = _say("; of those that need 1 pass {} is best ({})", _name(cheap), number) if cheap else ""
    yield _say("It runs the network {} times an image{}.", best.passes, other)


def _without_labels(section: Section) -> Iterator[Markup]:
    yield _say("These images have no labels, so nothing here says how often the model is right.")
    vanilla = None if section.vanilla is None else section.contenders[section.vanilla]
    if vanilla and vanilla.detail.get("confidence") is not None:
        yield _say("The model says {} on average.", _percent(vanilla.detail["confidence"]))
    for metric, sentence in (
        ("entropy", "{} has the highest entropy, {}"),
        ("ood_auroc", "With {} entropy tells these images from known ones best, AUROC {}"),
    ):
        means = {one: one.mean(metric) for one in section.contenders if not math.isnan(one.mean(metric))}
        if len(means) < 2:
            continue
        top = max(means, key=means.__getitem__)
        beside = (
            "" if vanilla is None or vanilla is top else _say("; the model as it is has {}", _number(means[vanilla]))
        )
        yield _say(sentence + "{}.", _name(top), _number(means[top]), beside)


def _change(metric: str, before: Contender, after: Contender) -> Markup:
    was, now = before.mean(metric), after.mean(metric)
    verb = "falls" if now < was else "rises"
    part = _say(" ({})", _number((now - was) / was, text=f"{100 * (now - was) / was:+.0f} %")) if was else ""
    return _say("the {} {} from {} to {}{}", _called(metric), verb, _number(was), _number(now), part)


def _guarded(one: Contender) -> Markup:
    """What the class guard does, in words."""
    views, images = one.detail["views"], one.detail["images"]
    return _say(
        "{} gives its views a share of at most {}, on average {}. The class guard holds {} of {} images ({}) below that limit.",
        _name(one),
        _number(views["limit"], 3),
        _number(views["mean_share"], 3),
        _number(views["limited"], 0),
        _number(images, 0),
        _percent(views["limited"] / images),
    )


def _called(metric: str) -> str:
    return CALLED.get(metric, metric.replace("_", " "))


def _say(sentence: str, *parts: Any) -> Markup:
    """Fill a sentence; what is put in is escaped."""
    return Markup(sentence).format(*parts)


def _name(one: Contender) -> Markup:
    return _say("<strong>{}</strong>", one.label)


def _number(value: float | int, digits: int = 4, *, text: str = "") -> Markup:
    """A number as people read it, with the exact one beside it."""
    return _say('<data value="{}">{}</data>', repr(value), (text or f"{value:.{digits}f}").replace("-", "−"))


def _percent(value: float | int) -> Markup:
    return _number(value, text=f"{100 * value:.1f} %")


def _signed(found: Difference, digits: int = 4) -> Markup:
    mean = _number(found.mean, text=f"{found.mean:+.{digits}f}")
    return mean if found.interval is None else _say("{} ± {}", mean, _number(found.interval, digits))


def _listed(values: Sequence[int]) -> str:
    return str(values[0]) if len(values) == 1 else f"{values[0]} to {values[-1]}"


# ---- the charts


class Charts:
    """The charts of a page by "section/kind/contender", as Vega-Lite specifications that share what they have in common."""

    def __init__(self, sections: Sequence[Section]) -> None:
        self.specs: dict[str, Any] = {}
        self.parts: list[Any] = []
        self.shown: dict[str, list[int]] = {section.id: [] for section in sections}
        """Of each section, the contenders that have diagrams."""
        self._places: dict[str, int] = {}
        self._size = 0
        for section in sections:
            for kind, draw in _of_all(section).items():
                self._add(f"{section.id}/{kind}", draw)
        # In turns, so that a page with more than it can hold still has the best of every section.
        for rank in range(max(len(section.contenders) for section in sections)):
            for section in sections:
                if rank < len(section.contenders) and self._size < BUDGET:
                    self._add_contender(section, section.order[rank])
        for shown in self.shown.values():
            shown.sort()

    def _add_contender(self, section: Section, i: int) -> None:
        drawn = _of_one(section.contenders[i])
        for kind, draw in drawn.items():
            self._add(f"{section.id}/{kind}/{i}", draw)
        if drawn:
            self.shown[section.id].append(i)

    def _add(self, key: str, draw: Callable[[], Any]) -> None:
        spec = draw().to_dict(validate=False)  # the charts are tested where they are drawn
        del spec["config"], spec["$schema"]
        if heading := HEADINGS.get(key.split("/")[1]):
            spec["title"]["text"] = [heading, *spec["title"]["text"]]
        datasets = spec.pop("datasets", {})
        text = json.dumps(spec)
        for n, name in enumerate(datasets):
            text = text.replace(name, f"data-{n}")
        packed = {f"data-{n}": _packed(rows) for n, rows in enumerate(datasets.values())}
        self.specs[key] = [self._shared(json.loads(text)), packed]
        self._size += len(inlined(packed))

    def _shared(self, node: Any) -> Any:
        """Put every object into `parts`, once, and leave its place: axes and tooltips are the same in all charts."""
        if isinstance(node, list):
            return [self._shared(inner) for inner in node]
        if not isinstance(node, dict):
            return node
        node = {key: self._shared(inner) for key, inner in node.items()}
        text = json.dumps(node, sort_keys=True)
        if len(text) < 40:
            return node
        if text not in self._places:
            self._places[text] = len(self.parts)
            self.parts.append(node)
            self._size += len(text)
        return {"$": self._places[text]}

    def of(self, section: Section, *kinds: str) -> bool:
        """Tell whether a section has charts of one of these kinds."""
        return any(key.split("/")[:2] == [section.id, kind] for kind in kinds for key in self.specs)

    def data(self) -> dict[str, Any]:
        """All of it for the page, with the two looks of every chart."""
        themes = {"light": figures.theme(), "dark": figures.theme(dark=True)}
        return {"charts": self.specs, "parts": self.parts, "themes": themes}


def _of_one(one: Contender) -> dict[str, Callable[[], Any]]:
    seen = {**one.detail, "method": one.label, "policy": "", "choice": ""}
    found: dict[str, Callable[[], Any]] = {}
    if seen.get("bins"):
        found["reliability"] = lambda: figures.reliability_of(seen, title=one.label, width=300)
    if seen.get("histogram"):
        found["histogram"] = lambda: figures.confidence_histogram([seen], width=300)
    if seen.get("views"):
        found["weights"] = lambda: figures.weights(seen, title=one.label)
        found["shares"] = lambda: figures.shares(seen, title=one.label, width=300)
    if seen.get("per_class"):
        found["per_class"] = lambda: figures.per_class(seen, title=one.label, width=320)
    return found


def _of_all(section: Section) -> dict[str, Callable[[], Any]]:
    several = len(section.contenders) > 1
    sizes = {row.validation for row in section.rows}
    found: dict[str, Callable[[], Any]] = {}
    if len(sizes) > 1:
        wanted = [metric for metric in section.metrics if metric in CRITERIA]
        found["sizes"] = lambda: figures.sizes(section.rows, wanted)
        return found
    if section.criterion and several:
        metric = section.criterion
        found["ranking"] = lambda: figures.ranking(
            section.rows, metric, title=f"Methods by {_called(metric)}", width=340
        )
        if "brier" in section.metrics and len({one.passes for one in section.contenders} - {None}) > 1:
            found["cost"] = lambda: figures.cost(_points(section), title="Brier score by passes", width=400)
    if not section.criterion and "entropy" in section.metrics:
        found["entropy"] = lambda: figures.entropy(section.rows)
    return found


def _points(section: Section) -> list[dict[str, Any]]:
    """What each contender costs and gains; the policy stands beside a point, not in the name of its method."""
    points = [] if section.fewer is None else _points(section.fewer)
    for one, line in zip(section.contenders, section.cells, strict=True):
        found = next(cell["summary"] for cell in line if cell["metric"] == "brier")
        if found and one.passes:
            policy = str(one.detail.get("policy", ""))
            half = math.nan if found.interval is None else found.interval
            points.append(
                {
                    "method": one.label.replace(f" · {policy}", "") if policy else one.label,
                    "policy": policy,
                    "passes": one.passes,
                    "value": found.mean,
                    "low": found.mean - half,
                    "high": found.mean + half,
                }
            )
    return points


def _packed(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Rows as columns and cells: each name once."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return {"columns": columns, "rows": [[row.get(name) for name in columns] for row in rows]}


# ---- the paper


def _known(results: Results) -> Results:
    """The rows, with what the claims need to know of their experiments."""
    experiments = {name: {"paper": "", **known} for name, known in _under(results.about, "experiments").items()}
    return Results(results.rows, {"experiments": experiments})


def _published(results: Results) -> Iterator[Table]:
    """Ours beside the paper's, for each experiment of the paper that is there and whose numbers it prints."""
    for name, content in _under(results.about, "experiments").items():
        if not content.get("published"):
            continue
        try:
            table = against(results, Experiment.of(content, name))
        except InputError:  # an experiment, or a table, of another version
            continue
        if table is not None:
            yield table


# ---- the page


def _pictures(pictures: Pictures, sections: Sequence[Section]) -> dict[str, Mapping[str, str]]:
    """The pictures that the page shows, by "dataset/row"."""
    for (dataset, row), shown in pictures.items():
        for name, uri in shown.items():
            if not uri.startswith("data:image/"):
                raise InputError(f"picture {name} of {dataset}, row {row}: expected a data URI of an image")
    wanted = {
        (section.dataset, image["row"])
        for section in sections
        for one in section.contenders
        for image in one.detail.get("changed") or ()
    }
    return {f"{dataset}/{row}": dict(pictures[dataset, row]) for dataset, row in sorted(wanted & set(pictures))}


def inlined(data: Any) -> str:
    """JSON that no part of can end the script element around it, or open a comment in it."""
    text = json.dumps(_finite(data), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _finite(value: Any) -> Any:
    """Nothing where there is no number: JSON has no nan."""
    if isinstance(value, Mapping):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@cache
def _vega() -> str:
    """Vega, Vega-Lite and vega-embed as one script."""
    return (
        str(javascript_bundle("window.vegaEmbed = vegaEmbed;"))
        .replace("</script", r"<\/script")
        .replace("<!--", r"<\!--")
    )


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "called": _called,
        "number": _number,
        "signed": _signed,
        "guarded": _guarded,
        "better": DIRECTION.get,
        "tight": lambda text: Markup(re.sub(r"\s*\n\s*", "\n", text)),
        "digits": lambda metric: DIGITS.get(metric, 4),
    }
    return environment
