"""From a model and labelled images to a calibrated classifier: record, choose the policy, fit, wrap.

record      the network runs over the images and all views of the policies in question, once, with stratified draws
choose      the policy with the fewest passes within one standard error of the best, by cross-validation
fit         the method, on all of the images
wrap        CalibratedClassifier, with a summary that cross-validation wrote, not the fitted images
"""

from collections.abc import Iterable, Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor

from atta.calibrators import Method, TemperatureScaling, find_method
from atta.calibrators.crossval import held_out, rank
from atta.calibrators.shift import Reference
from atta.collection.collect import Collecting, collect, refuse_unknown
from atta.collection.runner import as_pixels, read_batches
from atta.deploy.classifier import CalibratedClassifier
from atta.deploy.summary import summarise
from atta.errors import InputError
from atta.images.sources import Channels, StreamSource, as_source
from atta.images.views import POLICIES, Policy
from atta.predictions import Predictions, Record
from atta.settings import checked
from atta.types import Labels

BUDGET = 4  # passes an image, if nobody says otherwise
CHUNK = 256  # images read at a time
NO_VIEWS = "temperature"  # what is left of any method without views


@checked
def calibrate(
    model: object,
    images: Any,
    labels: Any = None,
    *,
    policy: str | int | Policy = "auto",
    budget: int = BUDGET,
    method: str | Method = "c-atta",
    class_names: Sequence[str] = (),
    channels: Channels = None,
    rehearse: bool | Iterable[int] = True,
    progress: bool = True,
    **collecting: Unpack[Collecting],
) -> CalibratedClassifier:
    """Turn a trained model and a few hundred labelled images that it was not trained on into a calibrated classifier.

    `policy` is "auto" (the best of `POLICIES` within `budget` passes an image, by cross-validation, or temperature scaling and
    one pass where no views are clearly better), a budget, the name of a policy, or one as text: "flip + 2 shift". `method` is
    a name of `METHODS`, or a method with its settings. `rehearse` also shows the network the images made worse on purpose, at
    most three passes more, from which hedged methods, `classifier.adapt` and `classifier.drift` learn. `images`, `labels`,
    `channels` and the rest (`device`, `batch_size`, `autocast`, `workers`, `shards`, ...) are what `collect` takes.
    """
    method = find_method(method) if isinstance(method, str) else method
    source = as_source(images, channels)
    if isinstance(source, StreamSource):  # which may come in another order the next time
        images, labels, channels = *_read(source, labels), "first"
    if "draws" in collecting:
        raise InputError("draws: a classifier shows every image in the same, stratified views; expected none to be named")
    own = [name for name in signature(calibrate).parameters if name != "collecting"]
    refuse_unknown("calibrate", collecting, [*own, *Collecting.__annotations__])
    policies = {NO_VIEWS: Policy(())}
    if method.needs_views:
        image = next(as_source(images, channels).read([(0, 1)]))[0]
        policies = candidates(policy, budget, image, method)
    how = {"channels": channels, "progress": progress, "draws": "stratified", "rehearse": rehearse, **collecting}
    records = record_policies(model, images, labels, policies, **how)
    first = next(iter(records.values()))
    truth = _labels(first)
    _refuse_probabilities(first)
    methods = {name: TemperatureScaling() if name == NO_VIEWS and method.needs_views else method for name in records}
    answers = {name: held_out(methods[name], record.predictions, truth) for name, record in records.items()}
    judged = rank({name: (records[name].predictions.passes, probs) for name, probs in answers.items()}, truth)
    name = judged[0].policy
    chosen = records[name]
    classifier = CalibratedClassifier(
        model,
        methods[name].fit(chosen.predictions, truth),
        policies[name],
        image_shape=[int(side) for side in chosen.origin["image_shape"].split(" x ")],
        class_names=class_names or source.classes,
    )
    classifier.reference = Reference.of(classifier.calibrator, chosen.predictions, truth)
    classifier.summary = summarise(classifier.calibrator, classifier.policy, chosen, answers[name], judged)
    return classifier


def candidates(policy: str | int | Policy, budget: int, image: Tensor, method: Method) -> dict[str, Policy]:
    """The policies to choose from: the given one, or those of the library that the budget and such an image allow.

    A method that keeps the class is left with temperature scaling where it has no views: one pass is a candidate, too.
    """
    if isinstance(policy, int):
        return candidates("auto", policy, image, method)
    if policy != "auto":
        return {str(policy): Policy.parse(policy)}
    found = {name: one for name, one in POLICIES.items() if one.passes <= budget and _suits(one, image)}
    found = {NO_VIEWS: Policy(()), **found} if method.keeps_class and budget >= 1 else found
    if not found:
        raise InputError(f"budget: expected passes enough for {method.name}, 2 or more (1 is temperature), got {budget}")
    return found


def _labels(record: Record) -> Labels:
    if record.labels is None:
        raise InputError(
            "labels: expected a class number for every image, given as labels=..., by a dataset of images and labels, or by a "
            "folder with a subfolder for each class; got none"
        )
    return record.labels


def _refuse_probabilities(record: Record) -> None:
    """Refuse a network that ends in a softmax: no logits are of that form."""
    logits = record.predictions.logits.double()
    if logits.min() >= 0 and (logits.sum(dim=1) - 1).abs().max() < 1e-3:
        raise InputError(
            "expected a model that returns logits, got rows that are not negative and sum to 1, which are probabilities: "
            "leave the softmax out, or write atta.FromProbabilities(model)"
        )


def _suits(policy: Policy, image: Tensor) -> bool:
    """Whether each view of the policy takes such an image and leaves its size, which most networks depend on."""
    pixels = as_pixels(image, torch.float32)
    try:
        return all(shown.shape == pixels.shape for *_, shown in policy.render(pixels, draws="stratified"))
    except InputError:
        return False


def record_policies(model: object, images: Any, labels: Any, policies: Mapping[str, Policy], **how: Any) -> dict[str, Record]:
    """Record the views of all policies, each view of several of them once, and give each policy its own.

    Stratified numbers depend on how many repeats there are, so policies that disagree about a view are recorded apart.
    """
    groups: list[dict[str, Policy]] = []
    for name, policy in policies.items():
        for group in groups:
            if all(_agree(policy, other) for other in group.values()):
                group[name] = policy
                break
        else:
            groups.append({name: policy})
    records: dict[str, Record] = {}
    shards, rehearse = how.pop("shards", None), how.pop("rehearse", False)
    rehearsed: dict[str, Tensor] = {}
    for i, group in enumerate(groups):
        if shards is not None:
            how["shards"] = Path(shards) / str(i)
        together = collect(model, images, labels, policy=Policy.union(*group.values()), rehearse=rehearse, **how)
        if rehearse:  # once: they do not depend on the views
            rehearsed = {kind: together.predictions.views[kind] for kind in together.predictions.rehearsals}
            rehearse = False
        for name, policy in group.items():
            taken = together.predictions.take(policy.repeats).unrehearsed()
            views = Predictions(taken.logits, {**taken.views, **rehearsed})
            records[name] = Record(views, together.labels, {**together.origin, "policy": str(policy)})
    return {name: records[name] for name in policies}


def _agree(one: Policy, other: Policy) -> bool:
    return all(one.repeats[kind] == other.repeats[kind] for kind in one.kinds if kind in other.repeats)


def _read(source: StreamSource, labels: Any) -> tuple[Tensor, Any]:
    """All of it, in the order in which it comes once."""
    batches = list(read_batches(source, CHUNK))
    if not batches:
        raise InputError(f"expected at least one image in {source.name}, found none")
    own = [batch.labels for batch in batches if batch.labels is not None]
    return torch.cat([batch.pixels for batch in batches]), torch.cat(own) if labels is None and own else labels
