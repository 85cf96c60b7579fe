"""From a model and labelled images to a calibrated classifier: check, record, choose the policy, fit, wrap.

check       all that is given, before the network runs (`door`)
record      the network runs over the images and views of the policies in question, in rounds (`choice`)
choose      the policy with the fewest passes that is as good as the best, by cross-validation
fit         the method, on all of the images
wrap        CalibratedClassifier, with a summary that cross-validation wrote, not the fitted images
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from inspect import signature
from typing import Any, Unpack

import torch
from torch import nn

from atta._base.errors import InputError
from atta._base.progress import bar, spoken
from atta._base.settings import checked
from atta.calibrators import METHODS, Method, TemperatureScaling, as_method
from atta.calibrators.conformal import ConformityScores
from atta.calibrators.convex import GuardedMethod
from atta.calibrators.shift import Reference
from atta.classifier.choice import Choice, Recorder, choose, most_passes
from atta.classifier.classifier import CalibratedClassifier
from atta.classifier.door import NO_VIEWS, as_budget, candidates, check
from atta.classifier.summary import summarise
from atta.data.preprocess import Preprocess
from atta.data.source import Channels, Source, StreamSource, as_source
from atta.data.views import Policy
from atta.networks.adapters import as_logits, normalised
from atta.run.advice import look_over
from atta.run.collect import Collecting, refuse_unknown
from atta.run.given import take
from atta.run.runner import read_batches

BUDGET = 4  # passes an image, if nobody says otherwise
CHUNK = 256  # images read at a time


@checked
def calibrate(
    model: object,
    images: Any,
    labels: Any = None,
    *,
    policy: Any = "auto",
    budget: int = BUDGET,
    method: Any = "c-atta",
    keep_class: bool = True,
    class_names: Sequence[str] = (),
    channels: Channels = None,
    preprocess: Any = None,
    rehearse: bool | Iterable[int] = True,
    progress: bool = True,
    **collecting: Unpack[Collecting],
) -> CalibratedClassifier:
    """Turn a trained model and a few hundred labelled images that it was not trained on into a calibrated classifier.

    `policy` is "auto" (the best of `POLICIES` within `budget` passes an image, by cross-validation, or temperature scaling and
    one pass where no views are clearly better), a budget, the name of a policy, or one as text: "flip + 2 shift", as a list or
    as whatever else `Policy.parse` takes. `method` is a name of `METHODS`, a method with its settings, or its class.

    The predicted class is always the network's own. With `keep_class=False` methods that guard it do without: C-ATTA is more
    often right then, and the summary says how many classes changed.

    `preprocess` is what the network wants done to a photograph, as anything that `Preprocess.of` reads: the classifier keeps
    it, and does the same to every file that it is shown. `rehearse` also shows the network the images made worse on purpose,
    at most three passes more, from which hedged methods, `classifier.adapt` and `classifier.drift` learn. `images`, `labels`,
    `class_names`, `channels` and the rest (`device`, `batch_size`, `autocast`, `workers`, `shards`, ...) are what `collect`
    takes.

    All of it is checked before the network runs, and by eight images before it runs for long.
    """
    method, wanted = (
        _as_method(method, keep_class),
        None if preprocess is None else Preprocess.of(preprocess),
    )
    if "draws" in collecting:
        raise InputError(
            "draws: a classifier shows every image in the same, stratified views; expected none to be named"
        )
    own = [name for name in signature(calibrate).parameters if name != "collecting"]
    refuse_unknown("calibrate", collecting, [*own, *Collecting.__annotations__])
    as_budget(policy, budget)  # a mistake in it need not wait for the images
    network = as_logits(normalised(model, wanted))
    order: Any = {
        "shuffle": collecting.pop("shuffle", None),
        "skip_bad": collecting.pop("skip_bad", False),
    }
    order |= {
        "channels": channels,
        "preprocess": wanted,
        "workers": collecting.get("workers", 0),
        "held": _held,
    }
    given, source, truth, about = take(images, labels, class_names, network, **order)
    policies = {NO_VIEWS: Policy(())}
    if method.needs_views:
        image = next(source.read([(0, 1)]))[0]
        policies = candidates(policy, budget, image, method)
    trial = check(network, given, truth, source, policies, collecting)
    methods = {
        name: TemperatureScaling() if name == NO_VIEWS and method.needs_views else method
        for name in policies
    }
    most = most_passes(source.count or 0, policies, rehearse)
    how = {
        **collecting,
        "class_names": truth.classes,
        "origin": about | dict(collecting.get("origin") or {}),
    }
    with bar(
        f"recording views, at most {most:,} passes, {spoken(most * trial.seconds)}",
        most,
        shown=progress,
    ) as tell:
        recorder = Recorder(
            network, source, truth.labels, how, rehearse, lambda passes: tell(passes, "")
        )
        look_over(recorder.base)
        choice = choose(recorder, policies, methods)
    return _wrapped(
        network, policies[choice.policy], methods[choice.policy], choice, truth.classes, wanted
    )


def _wrapped(
    network: nn.Module,
    policy: Policy,
    method: Method,
    choice: Choice,
    class_names: Sequence[str],
    preprocess: Preprocess | None,
) -> CalibratedClassifier:
    """Fit the method with the policy that was chosen, and put all together, with what its images tell of it."""
    chosen, held = choice.record, choice.answers[choice.policy]
    classifier = CalibratedClassifier(
        network,
        method.fit(chosen.predictions, chosen.require_labels()),
        policy,
        image_shape=[int(side) for side in chosen.origin["image_shape"].split(" x ")],
        class_names=class_names,
        preprocess=preprocess,
    )
    classifier.reference = Reference.of(
        classifier.calibrator, chosen.predictions, chosen.require_labels()
    )
    classifier.conformity_scores = ConformityScores.of(
        held, chosen.require_labels(), simplex=classifier.on_simplex
    )
    classifier.summary = summarise(
        classifier.calibrator, classifier.policy, chosen, held, choice.judged
    )
    return classifier


def _as_method(given: Any, keep_class: bool) -> Method:
    """The method, without its guard where that is asked for."""
    method = as_method(given)
    if keep_class or not method.keeps_class:
        return method
    if not isinstance(method, GuardedMethod):
        able = ", ".join(name for name, one in METHODS.items() if issubclass(one, GuardedMethod))
        raise InputError(
            f"keep_class=False: expected a method that can do without its guard ({able}), got {method.name}"
        )
    return replace(method, keep_class=False)


def _held(source: Source) -> Source:
    """All of a stream in memory, with its own labels, in the order in which it comes once: the next time may bring another."""
    if not isinstance(source, StreamSource):
        return source
    batches = list(read_batches(source, CHUNK))
    if not batches:
        raise InputError(f"expected at least one image in {source.name}, found none")
    held = as_source(torch.cat([batch.pixels for batch in batches]), "first", source.preprocess)
    own = [batch.labels for batch in batches if batch.labels is not None]
    held.labels, held.classes = torch.cat(own) if own else None, source.classes
    return held
