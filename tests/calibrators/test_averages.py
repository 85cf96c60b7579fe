"""Adaptive-TTA and the plain averages, image by image."""

import numpy as np
import pytest
import torch
from scipy import optimize

import reference
from atta.calibrators import (
    AdaptiveTTA,
    MeanTTA,
    MeanTTATemperature,
)
from atta.calibrators.fitting import nll
from atta.functional import blend, largest_share
from scenarios import toy


@pytest.mark.parametrize(
    "method", [AdaptiveTTA(), AdaptiveTTA(objective="nll", views=["crop", "flip"])], ids=str
)
def test_adaptive_tta_averages_probabilities_image_by_image(method):
    test, _ = toy(40, seed=1, dtype=torch.float64)
    found = method.fit(*toy(dtype=torch.float64))
    slow = [
        reference.adaptive_tta(
            reference.softmax(test.logits[i].numpy()),
            [test.views[kind][i].numpy() for kind in found.kinds],
            found.weights.tolist(),
            found.limit.item(),
        )
        for i in range(len(test))
    ]
    np.testing.assert_allclose(found(test).numpy(), slow, atol=1e-4)


def test_adaptive_tta_uses_its_own_kinds_where_they_are_and_all_others_else():
    predictions, labels = toy(20, kinds={"contrast": 1, "brightness": 2, "flip": 1})
    assert AdaptiveTTA().fit(predictions, labels).kinds == ("flip", "brightness")
    predictions, labels = toy(20, kinds={"contrast": 1, "blur": 2})
    assert AdaptiveTTA().fit(predictions, labels).kinds == ("contrast", "blur")


@pytest.mark.parametrize("objective", ["brier", "nll"])
@pytest.mark.parametrize("seed", range(3))
def test_adaptive_tta_is_at_the_optimum_that_a_global_search_finds(seed, objective):
    predictions, labels = toy(
        120, seed=seed, signal=1.0, dtype=torch.float64, kinds={"flip": 1, "crop": 3}
    )
    base_probs = predictions.logits.softmax(-1)
    flip, crop = (view.softmax(-1).mean(dim=1) for view in predictions.views.values())
    right = (base_probs.argmax(-1) == labels).double()

    def loss(flat: np.ndarray) -> float:
        fused = flat[0] * flip + (1 - flat[0]) * crop
        probs = blend(base_probs, fused, largest_share(base_probs, fused, float(flat[1])))
        return (
            nll(probs, labels).item()
            if objective == "nll"
            else (probs.amax(-1) - right).square().mean().item()
        )

    found = AdaptiveTTA(objective=objective).fit(predictions, labels)
    weights = found.weights.abs() / found.weights.abs().sum()
    searched = optimize.differential_evolution(
        loss, [(0, 1), (0, 1)], seed=0, maxiter=25, popsize=8, polish=False
    )
    assert loss(np.array([weights[0].item(), found.limit.item()])) <= searched.fun + 1e-6


def test_mean_tta_is_the_mean_over_every_pass():
    test, _ = toy(20, seed=1, dtype=torch.float64)
    for original in (True, False):
        found = MeanTTA(original=original).fit(*toy(dtype=torch.float64))
        for i, answer in enumerate(found(test).numpy()):
            passes = [test.logits[i].numpy()] if original else []
            passes += [z for view in test.views.values() for z in view[i].numpy()]
            np.testing.assert_allclose(
                answer, np.mean([reference.softmax(z) for z in passes], axis=0), atol=1e-12
            )


@pytest.mark.parametrize("original", [True, False])
@pytest.mark.parametrize("space", ["logits", "probabilities"])
def test_mean_tta_temperature_is_temperature_scaling_of_the_mean(original, space):
    predictions, labels = toy(dtype=torch.float64)
    passes = [*([predictions.logits[:, None]] if original else []), *predictions.views.values()]
    mean = torch.cat(passes, dim=1).mean(dim=1)
    if space == "probabilities":
        mean = MeanTTA(original=original).fit(predictions, labels)(predictions).log()
    slow = reference.temperature(mean.numpy(), labels.tolist())
    found = MeanTTATemperature(original=original, space=space).fit(predictions, labels)
    assert found.temperature.item() == pytest.approx(slow, rel=1e-4)
    torch.testing.assert_close(found(predictions), (mean / found.temperature).softmax(-1))
