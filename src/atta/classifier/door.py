"""What `calibrate` is given, checked at the door: whatever can be wrong is said before the network has run for it.

method · policy · class names · device · labels     told from what was given
eight images                                        told by the network (`collection.trial`)
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from atta._base.errors import InputError, advise
from atta.calibrators import Method
from atta.calibrators.base import ViewMethod
from atta.calibrators.convex import GuardedMethod
from atta.calibrators.crossval import check_folds
from atta.data.labels import Truth
from atta.data.source import Source
from atta.data.views import POLICIES, Policy
from atta.record.predictions import Predictions
from atta.run.collect import Collecting, half_of
from atta.run.runner import as_pixels
from atta.run.trial import NO_LOGITS, Trial, as_device, check_labels, try_out

NO_VIEWS = "temperature"  # what is left of any method without views
SPREAD = 3  # times the variance in training, or a part: between them lie images of all kinds, normalised as in training


def as_budget(policy: Any, budget: int) -> tuple[Policy | str, int]:
    """The policy, or "auto" and the most passes that it may take; a policy that is a number is a budget."""
    policy, budget = ("auto", policy) if type(policy) is int else (policy, budget)
    return policy if isinstance(policy, str) and policy.strip() == "auto" else Policy.parse(
        policy
    ), budget


def candidates(policy: Any, budget: int, image: Tensor, method: Method) -> dict[str, Policy]:
    """The policies to choose from: the given one, or those of the library that the budget and such an image allow.

    A method that keeps the class, or could, is temperature scaling where it has no views: one pass is a candidate, too.
    """
    parsed, budget = as_budget(policy, budget)
    if isinstance(parsed, Policy):
        check_kinds(method, parsed)
        return {policy if isinstance(policy, str) else str(parsed): parsed}
    wanted = set(method.views or ()) if isinstance(method, ViewMethod) else set()
    fitting = {
        name: one
        for name, one in POLICIES.items()
        if one.passes <= budget and wanted <= set(one.kinds)
    }
    found = {name: one for name, one in fitting.items() if _suits(one, image)}
    found = (
        {NO_VIEWS: Policy(()), **found}
        if budget >= 1 and (method.keeps_class or isinstance(method, GuardedMethod))
        else found
    )
    if not found:
        raise InputError(
            f"budget: expected passes enough for {method.name}, 2 or more (1 is temperature), got {budget}"
        )
    return found


def check_kinds(method: Method, policy: Policy) -> None:
    """Make sure that the method finds its views in the policy, by what it says of made-up predictions."""
    if isinstance(method, ViewMethod):
        views = {kind: torch.zeros(1, repeats, 2) for kind, repeats in policy.repeats.items()}
        method.kinds_of(Predictions(torch.zeros(1, 2), views))


def check(
    network: nn.Module,
    images: object,
    truth: Truth,
    source: Source,
    policies: Mapping[str, Policy],
    collecting: Collecting,
) -> Trial:
    """Check all that is given against itself, and then against the network's answers to eight images."""
    check_labels(truth, images, source)
    if source.count is not None:
        check_folds(source.count)
    how: Any = {"device": as_device(collecting.get("device"), network), "half": half_of(collecting)}
    trial = try_out(network, source, truth, Policy.union(*policies.values()), **how)
    if not trial.labelled:
        raise InputError(
            "labels: expected a class number for every image, given as labels=... (--labels FILE), by a dataset of images and "
            "labels, or by a folder with a subfolder for each class; got none"
        )
    if trial.probabilities:
        raise InputError(NO_LOGITS)
    if trial.spread is not None and not 1 / SPREAD < trial.spread < SPREAD:
        advise(
            f"the network's first batch normalisation is given {trial.spread:.2g} of the variance that it was trained with: "
            "are the pixels normalised as in training? preprocess=... or atta.Normalized say how (--mean, --std)"
        )
    return trial


def _suits(policy: Policy, image: Tensor) -> bool:
    """Whether each view of the policy takes such an image and leaves its size, which most networks depend on."""
    pixels = as_pixels(image, torch.float32)
    try:
        return all(
            shown.shape == pixels.shape for *_, shown in policy.render(pixels, draws="stratified")
        )
    except InputError:
        return False
