"""Calibrate a segmentation network: `atta.calibrate` comes here if it is given masks.

sample      random labelled pixels of each image, in the views of all candidates and degraded
choose      the policy with the fewest passes that is as good as the best, on images left out
fit         the method, on the pixels of all images
wrap        `CalibratedSegmenter`
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from atta._base.errors import InputError
from atta.calibrators import Method, TemperatureScaling
from atta.calibrators.crossval import check_folds, held_out, rank
from atta.calibrators.hedged import hedge
from atta.calibrators.shift import Reference
from atta.classifier.archive import Kept
from atta.classifier.choice import NO_VIEWS, candidates
from atta.classifier.classifier import used_views
from atta.classifier.segmenter import CalibratedSegmenter
from atta.classifier.summary import summarise
from atta.data.corruptions import families_of, rehearsed
from atta.data.labels import Reading
from atta.data.segmentation import IGNORED, Scenes, check_inverses, scenes
from atta.data.views import Policy
from atta.networks.adapters import as_dense, fitted
from atta.networks.borrowing import class_names_of, dtype_of
from atta.record.predictions import Record
from atta.run.checks import look_over
from atta.run.collect import STREAM_SEVERITIES
from atta.run.pixels import PIXELS, PixelRun
from atta.run.runner import Execution, as_pixels

POLICIES = {
    text: Policy.parse(text)
    for text in (
        "flip + scale-75 + scale-125",
        "flip + scale-125",
        "flip",
        "scale-75 + scale-125",
        "scale-125",
        "flip + scale-50 + scale-75 + scale-125",
        "flip + scale-50 + scale-75 + scale-125 + scale-150",
    )
}
"""The policies that `auto` tries, if they fit the budget; the first that does is the default."""


@dataclass(frozen=True)
class Wanted:
    """What `calibrate` was asked for."""

    method: Method
    policy: Any
    budget: int
    rehearse: bool | Iterable[int]
    execution: Execution
    reading: Reading
    options: Mapping[str, Any]


def calibrate_segmenter(
    model: object, images: Any, masks: Any, wanted: Wanted
) -> CalibratedSegmenter:
    """Turn a segmentation network into a calibrated segmenter; see `atta.calibrate`."""
    method, reading, options = wanted.method, wanted.reading, wanted.options
    policies = candidates(wanted.policy, wanted.budget, method, policies=POLICIES)
    for policy in policies.values():
        check_inverses(policy)
    preprocess = reading.preprocess
    if preprocess is not None and (preprocess.resize or preprocess.crop):
        raise InputError(
            "preprocess: expected only mean and std for segmentation, where images keep their "
            f"size, got '{preprocess}': resize images and masks before"
        )
    run = _prepared(model, scenes(images, masks, reading.channels), wanted)
    severities = STREAM_SEVERITIES if wanted.rehearse is True else wanted.rehearse or ()
    every = Policy.union(*policies.values())
    record, anywhere = run.record(every, rehearsed(severities), dict(options.get("origin") or {}))
    look_over(record)
    labels, predictions = record.require_labels(), record.predictions
    methods = dict.fromkeys(policies, method)
    if method.needs_views and NO_VIEWS in methods:
        methods[NO_VIEWS] = TemperatureScaling()
    seen = {name: predictions.select(one.kinds) for name, one in policies.items()}
    answers = {
        name: (one.passes, held_out(methods[name], seen[name], labels).probs)
        for name, one in policies.items()
    }
    default = None if list(policies) == [NO_VIEWS] else next(iter(policies))
    judged = rank(answers, labels, predictions.images, default=default)
    best = judged[0].policy
    calibrator = methods[best].fit(seen[best], labels)
    policy = used_views(policies[best], calibrator)
    assert predictions.images is not None
    groups = families_of(predictions.rehearsals, predictions.images, run.seed)
    chosen = Record(seen[best], labels, record.origin)
    return CalibratedSegmenter(
        run.network,
        calibrator,
        policy,
        image_shape=tuple(run.scenes[0].pixels.shape),
        class_names=reading.class_names or class_names_of(run.network),
        summary=summarise(calibrator, policy, chosen, answers[best][1], judged),
        preprocess=preprocess,
        reference=Reference.of(calibrator, seen[best], labels, groups, anywhere),
        kept=Kept(hedged=hedge(calibrator, seen[best], labels)),
    )


def _prepared(model: object, found: Scenes, wanted: Wanted) -> PixelRun:
    """Adapt the network to images of this size, and put it together with them."""
    check_folds(len(found))
    network, options = as_dense(model, wanted.reading.preprocess), wanted.options
    device = wanted.execution.device_of(network)
    network.to(device)
    first = found[0].pixels[None].to(device)
    return PixelRun(
        fitted(network.eval(), as_pixels(first, dtype_of(network))),
        found,
        wanted.execution,
        options.get("pixels", PIXELS),
        options.get("ignore_index", IGNORED),
        options["seed"],
    )
