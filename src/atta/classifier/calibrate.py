"""Calibrate a model: from a model and labelled images to a calibrated classifier.

check       everything that is given, before the network runs for long
record      the network runs over the images, and over views of the candidate policies, in rounds
choose      the policy with the fewest passes that is as good as the best, by cross-validation
fit         the method, on all images
wrap        `CalibratedClassifier`, with a summary of cross-validated numbers
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, Unpack

from atta._base.errors import InputError, advise
from atta._base.progress import bar, spoken
from atta._base.settings import checked
from atta.calibrators import METHODS, Method, TemperatureScaling, as_method
from atta.calibrators.conformal import Strangeness
from atta.calibrators.convex import GuardedMethod
from atta.calibrators.crossval import check_folds
from atta.calibrators.shift import Reference
from atta.classifier.choice import (
    NO_VIEWS,
    Choice,
    Recorder,
    as_budget,
    candidates,
    choose,
    most_passes,
)
from atta.classifier.classifier import CalibratedClassifier
from atta.classifier.summary import summarise
from atta.data.labels import labelled_source
from atta.data.preprocess import Preprocess
from atta.data.source import Channels
from atta.data.views import Policy
from atta.networks.adapters import as_logits, class_names_of, normalised
from atta.run.checks import NOT_LOGITS, Trial, check_labels, look_over, try_out
from atta.run.collect import Run, as_seed
from atta.run.execution import ExecutionOptions, split_options

BUDGET = 4
SPREAD = 3  # images normalised as in training have between a third and three times its variance


class CalibrateOptions(ExecutionOptions, total=False):
    """Less common keyword arguments of `calibrate`."""

    seed: int
    shuffle: int | bool | None
    skip_bad: bool
    origin: Mapping[str, str] | None
    cache: str | PathLike[str] | None


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
    **options: Unpack[CalibrateOptions],
) -> CalibratedClassifier:
    """Turn a trained model into a calibrated classifier.

    It needs a few hundred labelled images that the model was not trained on. The predicted class
    stays the model's own. Everything is checked before the network runs for long.

    Args:
        model: An `nn.Module` that returns logits, an ONNX file, or a function (`atta.NumpyModel`).
        images: A tensor, an array, a dataset, a loader, a folder or files.
        labels: Class numbers or names, or a CSV or Parquet file; by default those of the images.
        policy: "auto" chooses views by cross-validation within `budget`; otherwise a name of
            `atta.POLICIES`, text such as "flip + 2 shift", or a number, which is a budget.
        budget: Most passes per image.
        method: A name of `atta.METHODS`, a method with its settings, or its class.
        keep_class: False lets methods that guard the class change it, if that is more often right.
        class_names: Names of the network's classes, in its order.
        channels: Where arrays have their channels: "first" or "last".
        preprocess: How photographs are resized, cropped and normalised (`Preprocess.of`).
        rehearse: Also show degraded images, at most three passes per image: hedged methods,
            `adapt` and `drift` learn from them.
        **options: Fields of `atta.Execution`, and `seed`, `shuffle`, `skip_bad` and `origin` as for
            `collect`; `cache`, a folder that keeps finished passes, so that the same call resumes.

    Returns:
        The classifier; `print(classifier.summary)` compares it with the model.

    Raises:
        InputError: If something does not fit: labels, class names, sizes, probabilities, ...

    Example:
        >>> import torch
        >>> network = nn.Sequential(nn.Flatten(), nn.Linear(48, 3))
        >>> images, labels = torch.rand(60, 3, 4, 4), torch.arange(60) % 3
        >>> classifier = calibrate(network, images, labels, policy="flip", progress=False)
        >>> classifier(images[:2]).shape
        torch.Size([2, 3])
    """
    method, wanted = _as_method(method, keep_class), None
    if preprocess is not None:
        wanted = Preprocess.of(preprocess)
    if "draws" in options:
        raise InputError(
            "draws: a classifier shows every image in the same, stratified views; expected none"
        )
    execution, rest = split_options("calibrate", options, calibrate, CalibrateOptions)
    as_budget(policy, budget)  # a mistake in it need not wait for the images
    network = as_logits(normalised(model, wanted))
    source, labelling, about = labelled_source(
        images,
        labels,
        class_names or class_names_of(network),
        channels=channels,
        preprocess=wanted,
        shuffle=rest.get("shuffle"),
        skip_bad=rest.get("skip_bad", False),
        cache=not execution.on_ray,
        workers=execution.workers,
    )
    image = next(source.read([[0]])).pixels
    policies = candidates(policy, budget, image, method)
    run = Run(network, source, labelling, execution, as_seed(rest.get("seed", 0)), "stratified")
    trial = _check(run, policies)
    about |= dict(rest.get("origin") or {})
    choice = _chosen(run, policies, method, rehearse, trial.seconds, about, rest.get("cache"))
    fitted = _for_policy(method, choice.policy)
    names = trial.labelling.classes
    return _wrapped(run, policies[choice.policy], fitted, choice, names, wanted)


def _chosen(
    run: Run,
    policies: Mapping[str, Policy],
    method: Method,
    rehearse: bool | Iterable[int],
    seconds: float,
    about: Mapping[str, str],
    cache: str | PathLike[str] | None,
) -> Choice:
    """Run the network on the images and on views of the policies, and choose one of these."""
    most = most_passes(run.source.count or 0, policies, rehearse)
    title = f"recording views, at most {most:,} passes, {spoken(most * seconds)}"
    folder, passes = None if cache is None else Path(cache), 0
    progress = run.execution.progress
    with bar(title, most, shown=progress is True) as tell:

        def count(more: int) -> None:
            nonlocal passes
            passes += more
            tell(passes, "")
            if callable(progress):
                progress(more)

        run = replace(run, execution=replace(run.execution, progress=count))
        first = None if folder is None else folder / "0"
        base = run.record(Policy(()), rehearse, about, first, checks=False)
        look_over(base)
        methods = {name: _for_policy(method, name) for name in policies}
        return choose(Recorder(run, base, folder), policies, methods)


def _for_policy(method: Method, policy: str) -> Method:
    """Return the method; without views, one that needs them is temperature scaling."""
    return TemperatureScaling() if policy == NO_VIEWS and method.needs_views else method


def _check(run: Run, policies: Mapping[str, Policy]) -> Trial:
    """Check all that is given against itself, and against the network's answers to eight images."""
    network, execution = run.network, run.execution
    check_labels(run.labelling, run.source)
    if run.source.count is not None:
        check_folds(run.source.count)
    device, views = execution.trial_device(network), Policy.union(*policies.values())
    trial = try_out(network, run.source, run.labelling, views, device, execution.half)
    if not trial.labelled:
        raise InputError(
            "labels: expected a class number for every image, given as labels=... (--labels FILE), "
            "by a dataset of images and labels, or by a folder with a subfolder for each class; got "
            "none"
        )
    if trial.probabilities:
        raise InputError(NOT_LOGITS)
    if trial.spread is not None and not 1 / SPREAD < trial.spread < SPREAD:
        advise(
            f"the network's first batch normalisation gets {trial.spread:.2g} of the variance that "
            "it was trained with: are the pixels normalised as in training? preprocess=... or "
            "atta.Normalized do that (--mean, --std)"
        )
    return trial


def _wrapped(
    run: Run,
    policy: Policy,
    method: Method,
    choice: Choice,
    class_names: Sequence[str],
    preprocess: Preprocess | None,
) -> CalibratedClassifier:
    """Fit the method with the chosen policy, and wrap it with what its images tell of it."""
    chosen, labels = choice.record, choice.record.require_labels()
    answers = choice.answers[choice.policy]
    classifier = CalibratedClassifier(
        run.network,
        method.fit(chosen.predictions, labels),
        policy,
        image_shape=run.source.shape,
        class_names=class_names,
        preprocess=preprocess,
    )
    classifier.reference = Reference.of(classifier.calibrator, chosen.predictions, labels)
    classifier.strangeness = Strangeness.of(answers, labels, simplex=classifier.on_simplex)
    classifier.summary = summarise(
        classifier.calibrator, classifier.policy, chosen, answers, choice.judged
    )
    return classifier


def _as_method(given: Any, keep_class: bool) -> Method:
    """Return the method, without its guard if that is asked for."""
    method = as_method(given)
    if keep_class or not method.keeps_class:
        return method
    if not isinstance(method, GuardedMethod):
        able = ", ".join(name for name, one in METHODS.items() if issubclass(one, GuardedMethod))
        raise InputError(
            f"keep_class=False: expected a method that can do without its guard ({able}), got "
            f"{method.name}"
        )
    return replace(method, keep_class=False)
