"""A section in plain words, built from its numbers: what the model says and how often it is right, what helps, how clearly.

Numbers are formatted here and the exact one stays beside its text as <data value="...">. All text is escaped where it is
put in.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from markupsafe import Markup

from atta.report.sections import Difference, Line, Section
from atta.results.words import CLASS_CHANGES, metric_name


def verdict(section: Section) -> list[Markup]:
    """The section in plain sentences: what happened, then why this method and how clearly."""
    return [_say(" ").join(sentences) for sentences in _what_and_why(section) if sentences]


def short(section: Section) -> Markup | None:
    """The verdict in a line of the contents."""
    if section.advised is None or not section.criterion:
        return None
    one = section.contenders[section.advised]
    return _say(
        "{}, {} {}", one.label, metric_name(section.criterion), exact(one.mean(section.criterion))
    )


def _what_and_why(section: Section) -> tuple[list[Markup], list[Markup]]:
    """What happened, in sentences; and why this method, how clearly, at what cost."""
    if section.criterion is None:
        return list(_without_labels(section)), []
    vanilla = None if section.vanilla is None else section.contenders[section.vanilla]
    best = section.contenders[section.ranked[0]] if section.ranked else None
    advised = None if section.advised is None else section.contenders[section.advised]
    what, why = list(_as_it_is(section, vanilla)), list[Markup]()
    if best is None or advised is None:
        what.append(
            _say(
                "None of the methods here is known to keep the predicted class, so none is recommended."
            )
        )
    elif len(section.ranked) == 1:
        what.append(_alone(section, best))
    elif advised is vanilla:
        what.append(_nothing_helps(section))
        why += [_lowest(section, best), *_cost(section, best, advised)]
    else:
        reasons = [_lowest(section, best), *_cost(section, best, advised)]
        what, why = (
            (what + list(_helps(section, vanilla, advised)), reasons)
            if vanilla
            else (reasons, what)
        )
    if section.fitted:
        what.append(
            _say("These are the images that it was fitted on: of others this says nothing.")
        )
    if section.splits == 1 and len(section.contenders) > 1 and not section.intervals:
        count = "" if section.images is None else _say(" of {} images", exact(section.images, 0))
        what.append(_say("One split{}: differences this small may be noise.", count))
    return what, why


def _as_it_is(section: Section, vanilla: Line | None) -> Iterator[Markup]:
    if vanilla is None and len(section.contenders) > 1:
        yield _say(
            "The model as it is (vanilla) was not run, so there is no before to compare with."
        )
    elif vanilla and vanilla.detail.get("accuracy") is not None:
        yield _say(
            "The model says {} and is right {} of the time ({}{} test images).",
            *(percent(vanilla.detail[name]) for name in ("confidence", "accuracy")),
            f"first of {section.splits} splits, " if section.splits > 1 else "",
            exact(vanilla.detail["images"], 0),
        )


def _helps(section: Section, vanilla: Line, best: Line) -> Iterator[Markup]:
    criterion = section.criterion or ""
    over = f" over {section.splits} splits" if section.splits > 1 else ""
    start = _say("With {}{}", _name(best), over)
    if vanilla.detail.get("accuracy") is not None and best.detail.get("confidence") is not None:
        yield _say("With {} it says {}.", _name(best), percent(best.detail["confidence"]))
        start = _say(over.strip().capitalize() or "At the same time")
    changes = [
        _change(metric, vanilla, best) for metric in ("brier", "nll") if metric in best.values
    ]
    changes = changes or [_change(criterion, vanilla, best)]
    yield _say("{} {}.", start, _say(", ").join(changes))
    found = Difference.between(best, vanilla, criterion)
    if found and found.better == 0:
        yield _say(
            "But the difference in {} is within its 95 % interval ({}): it may be no difference at all.",
            metric_name(criterion),
            signed(found),
        )
    if CLASS_CHANGES in best.values:
        count = (
            "every image"
            if section.images is None
            else _say("all {} images", exact(section.images, 0))
        )
        yield _say(
            "The predicted class is unchanged on {}{}.",
            count,
            " of every split" if section.splits > 1 else "",
        )


def _alone(section: Section, best: Line) -> Markup:
    criterion = section.criterion or ""
    number = exact(best.mean(criterion))
    if len(section.contenders) == 1:
        return _say("Only {} was run; its {} is {}.", _name(best), metric_name(criterion), number)
    return _say(
        "Of the methods here only {} is known to keep the predicted class; its {} is {}.",
        _name(best),
        metric_name(criterion),
        number,
    )


def _nothing_helps(section: Section) -> Markup:
    others = len(section.ranked) - 1
    if section.ranked[0] != section.vanilla:
        sentence = "No method that keeps the predicted class has a surely lower {}: the model is best left as it is."
        return _say(sentence, metric_name(section.criterion or ""))
    who = (
        "The one other method that keeps"
        if others == 1
        else f"None of the {others} other methods that keep"
    )
    has = "has no" if others == 1 else "has a"
    called = metric_name(section.criterion or "")
    return _say(
        "{} the predicted class {} lower {}: the model is best left as it is.", who, has, called
    )


def _lowest(section: Section, best: Line) -> Markup:
    """Why this one, and how clearly."""
    criterion = section.criterion or ""
    methods = {section.contenders[i].key.method for i in section.ranked}
    why = _say(
        "Of the {} {} that keep the predicted class, {} has the lowest {} ({})",
        len(section.ranked),
        "candidates" if len(methods) < len(section.ranked) else "methods",
        _name(best),
        metric_name(criterion),
        exact(best.mean(criterion)),
    )
    second = section.contenders[section.ranked[1]]
    found = Difference.between(second, best, criterion)
    if found is None or found.better is None:
        return why + _say("; next is {} ({}).", _name(second), exact(second.mean(criterion)))
    how = "clearly behind" if found.better else "not clearly behind"
    return why + _say("; next is {}, {} ({}).", _name(second), how, signed(found))


def _cost(section: Section, best: Line, advised: Line) -> Iterator[Markup]:
    """What passes buy, and the rule of the recommendation, where passes differ."""
    known = {section.contenders[i].passes for i in section.ranked} - {None}
    if best.passes is None or len(known) < 2:
        return
    criterion = section.criterion or ""
    if advised is not best:
        found = Difference.between(best, advised, criterion)
        yield _say(
            "{} takes {:g} passes an image and {} {:g}: what it takes more would buy {} in {}, which may be nothing.",
            *(_name(best), best.passes, _name(advised), advised.passes),
            *("" if found is None else signed(found), metric_name(criterion)),
        )
    elif best.passes > 1:
        cheap = next(
            (section.contenders[i] for i in section.ranked if section.contenders[i].passes == 1),
            None,
        )
        found = Difference.between(best, cheap, criterion) if cheap else None
        number = cheap and exact(cheap.mean(criterion))
        other = (
            _say("; of those that need 1 pass {} is best ({})", _name(cheap), number)
            if cheap
            else ""
        )
        buys = (
            _say(", and what it takes more buys {}", signed(found))
            if found and found.better == 1
            else ""
        )
        yield _say(
            "{} runs the network {:g} times an image{}{}.", _name(best), best.passes, other, buys
        )
    yield _say(
        "Recommended is, of those that are not surely worse than the best, the one of the fewest passes."
    )


def _without_labels(section: Section) -> Iterator[Markup]:
    yield _say("These images have no labels, so nothing here says how often the model is right.")
    vanilla = None if section.vanilla is None else section.contenders[section.vanilla]
    if vanilla and vanilla.detail.get("confidence") is not None:
        yield _say("The model says {} on average.", percent(vanilla.detail["confidence"]))
    for metric, sentence in (
        ("entropy", "{} has the highest entropy, {}"),
        ("ood_auroc", "With {} entropy tells these images from known ones best, AUROC {}"),
    ):
        means = {
            one: one.mean(metric) for one in section.contenders if not math.isnan(one.mean(metric))
        }
        if len(means) < 2:
            continue
        top = max(means, key=means.__getitem__)
        beside = (
            ""
            if vanilla is None or vanilla is top
            else _say("; the model as it is has {}", exact(means[vanilla]))
        )
        yield _say(sentence + "{}.", _name(top), exact(means[top]), beside)


def _change(metric: str, before: Line, after: Line) -> Markup:
    was, now = before.mean(metric), after.mean(metric)
    verb = "falls" if now < was else "rises"
    step = (now - was) / was if was else 0.0
    part = (
        _say(" ({})", exact(step, text=f"{100 * step:+.{int(abs(step) < 0.01)}f} %")) if was else ""
    )
    return _say(
        "the {} {} from {} to {}{}", metric_name(metric), verb, exact(was), exact(now), part
    )


def guarded(one: Line) -> Markup:
    """What the class guard does, in words."""
    views, images = one.detail["views"], one.detail["images"]
    return _say(
        "{} gives its views a share of at most {}, on average {}. The class guard holds {} of {} images ({}) below that limit.",
        _name(one),
        exact(views["limit"], 3),
        exact(views["mean_share"], 3),
        exact(views["limited"], 0),
        exact(images, 0),
        percent(views["limited"] / images),
    )


def _say(sentence: str, *parts: Any) -> Markup:
    """Fill a sentence; what is put in is escaped."""
    return Markup(sentence).format(*parts)


def _name(one: Line) -> Markup:
    return _say("<strong>{}</strong>", one.label)


def exact(value: float | int, digits: int = 4, *, text: str = "") -> Markup:
    """A number as people read it, with the exact one beside it."""
    return _say(
        '<data value="{}">{}</data>', repr(value), (text or f"{value:.{digits}f}").replace("-", "−")
    )


def percent(value: float | int) -> Markup:
    """A part of one as a percentage."""
    return exact(value, text=f"{100 * value:.1f} %")


def signed(found: Difference, digits: int = 4) -> Markup:
    """A difference with its sign, and its interval where there is one."""
    mean = exact(found.mean, text=f"{found.mean:+.{digits}f}")
    return mean if found.interval is None else _say("{} ± {}", mean, exact(found.interval, digits))
