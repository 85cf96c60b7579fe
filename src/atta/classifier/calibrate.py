"""Calibrate a model: from a model and labelled images to a calibrated classifier.

check       everything that is given, before the network runs for long
record      the network runs over the images, and over views of the candidate policies, in rounds
choose      the policy with the fewest passes that is as good as the best, by cross-validation
fit         the method, on all images
wrap        `CalibratedClassifier`, with a summary of cross-validated numbers
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from math import ceil
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Literal, Unpack

from atta._base.display import bar
from atta._base.errors import InputError, advise
from atta._base.settings import checked
from atta.calibrators import METHODS, Method, as_method
from atta.calibrators.conformal import ConformityScores
from atta.calibrators.convex import CATTA, GuardedMethod
from atta.calibrators.crossval import check_folds
from atta.calibrators.hedged import hedge
from atta.calibrators.risk import HeldOut
from atta.calibrators.shift import Reference
from atta.classifier.archive import Kept
from atta.classifier.choice import (
    PHOTOGRAPH,
    Choice,
    Recorder,
    candidates,
    choose,
    fitting,
    kind_of,
    methods_for,
    most_passes,
)
from atta.classifier.classifier import CalibratedClassifier, used_views
from atta.classifier.segmenter import Wanted, calibrate_segmenter
from atta.classifier.summary import summarise
from atta.data.corruptions import families_of
from atta.data.items import Channels, CroppedAlready
from atta.data.labels import Reading
from atta.data.loading import cores
from atta.data.photographs import is_larger
from atta.data.preprocess import Preprocess, sheet_of, showing
from atta.data.segmentation import has_masks
from atta.data.views import Policy
from atta.record.writer import settings_of
from atta.run.checks import (
    NO_LABELS,
    NOT_LOGITS,
    Trial,
    check_labels,
    faster_layout,
    look_over,
    try_out,
)
from atta.run.cluster import kept_alive
from atta.run.collect import Run, prepared
from atta.run.runner import Execution, ExecutionOptions, split_options

BUDGET = 4
FIRST = "0"  # the folder of the images themselves in a cache
NOT_PHOTOGRAPHS = (
    "views of the photograph were not tried, which often gain more than views of its crop: they "
    "need files or Pillow images, and preprocess=..., got pixels that are cropped already or no "
    "preprocess"
)
DEFAULT = CATTA(shrink=True)
SPREAD = 3  # images normalised as in training have between a third and three times its variance


class CalibrateOptions(ExecutionOptions, total=False):
    """Less common keyword arguments of `calibrate`: those of `atta.Execution`, and

    Args:
        channels: Where arrays have their channels: "first" or "last".
        seed: Seed of rehearsals.
        shuffle: Seed by which a labelled folder is shuffled, 0 by default; False keeps its order.
        skip_bad: Leave out images that cannot be decoded, with a line for each.
        origin: Text for the origin of the record that the summary is made from.
        cache: A folder that keeps finished passes, so that the same call resumes.
        effort: "quick" compares the default views with temperature scaling only.
        ignore_index: For masks: the number of pixels without a class, 255 by default.
        pixels: For masks: how many random labelled pixels of each image are used, 200 by default.
    """

    channels: Channels
    seed: int
    shuffle: int | bool | None
    skip_bad: bool
    origin: Mapping[str, str] | None
    cache: str | PathLike[str] | None
    effort: Literal["full", "quick"]
    ignore_index: int
    pixels: Annotated[int, "≥ 1"]


@checked
def calibrate(
    model: object,
    images: Any,
    labels: Any = None,
    *,
    policy: Any = "auto",
    budget: int = BUDGET,
    method: Any = DEFAULT,
    keep_class: bool = True,
    class_names: Sequence[str] = (),
    preprocess: Any = None,
    rehearse: bool | Iterable[int] = True,
    **options: Unpack[CalibrateOptions],
) -> CalibratedClassifier:
    """Turn a trained model into a calibrated classifier.

    It needs a few hundred labelled images that the model was not trained on. The class is kept.

    Args:
        model: An `nn.Module` that returns logits, an ONNX file, or a function (`atta.NumpyModel`).
        images: A tensor, an array, a dataset, a loader, a folder or files.
        labels: Class numbers or names, or a CSV or Parquet file; by default those of the images.
        policy: "auto" takes the default views of such images, unless others are clearly better;
            or a name of `atta.POLICIES`, text such as "flip + 2 shift", a number as a budget.
        budget: Most passes per image.
        method: A name of `atta.METHODS`, a method with its settings, or its class; by default
            C-ATTA, with weights drawn towards equal ones while images are few.
        keep_class: False lets methods that guard the class change it, if that is more often right.
        class_names: Names of the network's classes, in its order.
        preprocess: How photographs are resized, cropped and normalised (`Preprocess.of`).
        rehearse: Also run up to three degraded copies of each image, for `adapt` and `drift`.
        **options: `CalibrateOptions`: `device`, `batch_size`, `effort`, `channels`, `cache`, ...

    Returns: The classifier; `print(classifier.summary)` compares it with the model. With masks as
        labels, (n, h, w) or a folder, it is a `CalibratedSegmenter`.

    Example:
        >>> import torch
        >>> network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 3))
        >>> images, labels = torch.rand(60, 3, 4, 4), torch.arange(60) % 3
        >>> calibrate(network, images, labels, policy="flip", progress=False)(images[:2]).shape
        torch.Size([2, 3])
    """
    settings = _settings(method, keep_class, class_names, preprocess, options)
    wanted = Wanted(policy, budget, rehearse, *settings)
    if has_masks(images, labels):
        return calibrate_segmenter(model, images, labels, wanted)
    with kept_alive(wanted.execution.engine):
        run, trial, policies = _prepared(model, images, labels, wanted)
        return _wrapped(run, policies, wanted, _chosen(run, trial, policies, wanted))


def _settings(
    given: Any,
    keep_class: bool,
    class_names: Sequence[str],
    preprocess: Any,
    options: Mapping[str, Any],
) -> tuple[Method, Execution, Reading, dict[str, Any]]:
    """Check the arguments of `calibrate` that need neither the network nor the images."""
    method = as_method(given)
    if method.keeps_class and not keep_class:
        if not isinstance(method, GuardedMethod):
            able = [name for name, one in METHODS.items() if issubclass(one, GuardedMethod)]
            raise InputError(
                "keep_class=False: expected a method that can do without its guard "
                f"({', '.join(able)}), got {method.name}"
            )
        method = replace(method, keep_class=False)
    if "draws" in options:
        raise InputError(
            "draws: a classifier shows every image in the same, stratified views; expected none"
        )
    execution, rest = split_options("calibrate", options, calibrate, CalibrateOptions)
    rest["cache"] = None if rest.get("cache") is None else Path(rest["cache"])
    cropped = None if preprocess is None else Preprocess.of(preprocess)
    how = rest.get("channels"), cropped, rest.get("shuffle"), rest.get("skip_bad", False)
    return method, execution, Reading(class_names, *how, cache=True), rest


def _prepared(
    model: object, images: Any, labels: Any, wanted: Wanted
) -> tuple[Run, Trial, dict[str, Policy]]:
    """Prepare the run, with views of the photograph if the images are photographs, and try it.

    Returns:
        The run, what a few images show, and the candidates for such images.
    """
    read = wanted.reading
    rest = wanted.options
    how = wanted.execution, rest.get("seed", 0), "stratified", rest.get("origin")
    quick = rest.get("effort") == "quick"
    find = partial(candidates, wanted.policy, wanted.budget, wanted.method, quick=quick)
    size = read.preprocess and read.preprocess.input_size
    fills = read.preprocess and read.preprocess.fills and size and min(size) >= PHOTOGRAPH
    policies = find("file" if fills else "small")  # a mistake need not wait
    terms = dict.fromkeys(term for one in policies.values() for term in one.photographs)
    views = replace(read, preprocess=showing(read.preprocess, tuple(terms)))
    try:
        run = prepared(model, images, labels, views, *how)
    except CroppedAlready:
        if len(policies) == 1:
            raise
        run = prepared(model, images, labels, read, *how)
    image = next(run.source.read([[0]])).pixels
    if sheet := sheet_of(run.source.preprocess):
        image = sheet.crop(image)
    else:
        policies = find(kind := kind_of(image))
        if kind == "photograph" and len(policies) > 1:
            advise(NOT_PHOTOGRAPHS)
    trial, policies = _checked(run, fitting(policies, image))
    return *_in_faster_layout(run, trial, wanted), policies


def _checked(run: Run, policies: dict[str, Policy]) -> tuple[Trial, dict[str, Policy]]:
    """Check all that is given against itself, and against the network's answers to eight images.

    Returns:
        What the images show, and the policies whose views the network takes.
    """
    check_labels(run.labelling, run.source)
    if run.source.count is not None:
        check_folds(run.source.count)
    views = Policy.union(*policies.values())
    trial = try_out(run.network, run.source, run.labelling, views, run.execution)
    if not trial.labelled:
        raise InputError(NO_LABELS)
    if trial.probabilities:
        raise InputError(NOT_LOGITS)
    if trial.spread is not None and not 1 / SPREAD < trial.spread < SPREAD:
        advise(
            f"the network's first batch normalisation gets {trial.spread:.2g} of the variance that "
            "it was trained with: are the pixels normalised as in training? preprocess=... or "
            "atta.Normalized do that (--mean, --std)"
        )
    if trial.fixed:
        policies = {n: one for n, one in policies.items() if not any(map(is_larger, one.kinds))}
        if not policies:
            raise InputError(trial.fixed)
        advise(trial.fixed)
    return trial, policies


def _in_faster_layout(run: Run, trial: Trial, wanted: Wanted) -> tuple[Run, Trial]:
    """Use the memory layout that was asked for, that of a resumed run, or the faster one."""
    if (found := faster_layout(run.network, trial.pixels, run.execution)) is None:
        return run, trial
    last, seconds = found
    if cache := wanted.options["cache"]:
        last = settings_of(cache / FIRST).get("channels_last", last) is True
    execution = replace(run.execution, channels_last=last)
    return replace(run, execution=execution), replace(trial, seconds=seconds)


def _chosen(run: Run, trial: Trial, policies: Mapping[str, Policy], wanted: Wanted) -> Choice:
    """Record the images, their rehearsals and views, and choose a policy."""
    progress = run.execution.progress
    passes = 0
    images = run.source.count or 0
    cache = wanted.options["cache"]
    workers = run.execution.workers
    most = most_passes(images, policies, wanted.rehearse)
    expected = most - images * (wanted.rehearse is True)  # the last severity is rarely needed
    reading = images * trial.reading / (cores() if workers == "auto" else max(workers, 1))
    seconds = reading + (expected - images) * trial.showing + expected * trial.seconds
    about = f"at most {most:,} passes, about {timedelta(seconds=ceil(seconds))}"
    with bar(f"recording views, {about}", most, shown=progress is True) as tell:

        def count(more: int) -> None:
            nonlocal passes
            passes += more
            tell(passes, "")
            if callable(progress):
                progress(more)

        run = replace(run, execution=replace(run.execution, progress=count))
        base = run.record(Policy(()), wanted.rehearse, cache and cache / FIRST, checks=False)
        look_over(base, run.source)
        recorder = Recorder(run, base, cache)
        return choose(recorder, policies, methods_for(policies, wanted.method))


def _wrapped(
    run: Run, policies: Mapping[str, Policy], wanted: Wanted, choice: Choice
) -> CalibratedClassifier:
    """Fit the method to all images, and put everything together."""
    name, record, answers, judged = choice
    seen = record.predictions
    labels = record.require_labels()
    calibrator = methods_for(policies, wanted.method)[name].fit(seen, labels)
    policy = used_views(policies[name], calibrator)
    groups = families_of(seen.rehearsals, run.source.places(range(len(record))), run.seed)
    held_out = HeldOut.of(answers.confidence, answers.probs.argmax(dim=1), labels)
    return CalibratedClassifier(
        run.network,
        calibrator,
        policy,
        image_shape=run.image_shape,
        class_names=run.labelling.settled(seen.classes).classes,
        summary=summarise(calibrator, policy, record, answers.probs, judged),
        preprocess=run.source.preprocess,
        reference=Reference.of(calibrator, seen, labels, groups),
        conformity=ConformityScores.of(answers.probs, labels),
        kept=Kept(hedged=hedge(calibrator, seen, labels), held_out=held_out),
    )
