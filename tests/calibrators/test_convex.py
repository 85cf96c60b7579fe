"""C-ATTA is a logistic regression."""

import torch
from torch.nn import functional as F

from atta import Predictions
from atta.calibrators import (
    CATTA,
    TemperatureScaling,
)
from scenarios import KINDS, toy


def test_c_atta_is_the_logistic_regression_on_the_image_and_its_views():
    """Against a plain Newton iteration: the problem is convex, so whoever gets to the minimum gets to this one."""
    predictions, labels = toy(200)
    rows = torch.cat(
        [predictions.logits[:, None], predictions.view_logits(list(KINDS))], dim=1
    ).double()
    weights = torch.zeros(rows.shape[1], dtype=torch.float64)

    def loss(w):
        return F.cross_entropy(torch.einsum("m,nmk->nk", w, rows), labels)

    for _ in range(30):
        slope = torch.autograd.functional.jacobian(loss, weights)
        weights = weights - torch.linalg.solve(
            torch.autograd.functional.hessian(loss, weights), slope
        )
    calibrator = CATTA(shrink=False).fit(predictions, labels)
    torch.testing.assert_close(calibrator.weights[:, 0].double(), weights, rtol=1e-4, atol=1e-5)
    assert calibrator.limit == 1
    assert torch.equal(
        CATTA(views=list(KINDS), shrink=False).fit(predictions, labels).weights, calibrator.weights
    )


def test_c_atta_with_views_that_say_nothing_is_temperature_scaling():
    predictions, labels = toy(200)
    silent = Predictions(predictions.logits, {"dark": torch.zeros(200, 1, 4)})
    probs, scaled = (
        method.fit(silent, labels)(silent) for method in (CATTA(), TemperatureScaling())
    )
    torch.testing.assert_close(probs, scaled, rtol=1e-5, atol=1e-6)


def test_c_atta_without_a_mistake_stays_finite():
    predictions, _ = toy(60)
    sure = CATTA().fit(predictions, predictions.logits.argmax(dim=1))
    assert sure.weights.abs().sum() < 20


def copies(n=400, noise=1.0):
    """An image and a view of it that say the same, each with noise of its own."""
    torch.manual_seed(0)
    truth = 2 * torch.randn(n, 4, dtype=torch.float64)
    labels = torch.distributions.Categorical(logits=truth).sample()
    seen, view = (truth + noise * torch.randn(n, 4, dtype=torch.float64) for _ in "ab")
    return Predictions(seen, {"flip": view[:, None]}), labels


def test_weights_of_passes_that_say_the_same_become_equal():
    free, shrunk = (CATTA(shrink=shrink).fit(*copies()).weights[:, 0] for shrink in (False, True))
    assert abs(shrunk[0] - shrunk[1]) < abs(free[0] - free[1])


def test_views_that_say_nothing_are_not_drawn_towards_equal_weights():
    predictions, labels = copies()
    noise = Predictions(
        predictions.logits, {"noise": 5 * torch.randn_like(predictions.views["flip"])}
    )
    free, shrunk = (CATTA(shrink=shrink).fit(noise, labels) for shrink in (False, True))
    torch.testing.assert_close(free.weights, shrunk.weights, rtol=0.02, atol=0.01)


def test_weights_are_drawn_to_equal_ones_less_with_more_images():
    def distance(n):
        predictions, labels = copies(n)
        views = {"flip": 0.5 * predictions.views["flip"]}  # half as confident: it deserves more
        unequal = Predictions(predictions.logits, views)
        free, shrunk = (CATTA(shrink=shrink).fit(unequal, labels) for shrink in (False, True))
        return (free.weights - shrunk.weights).abs().max() / free.weights.abs().max()

    assert distance(5000) < 0.03 < 0.05 < distance(60)


def test_without_the_guard_the_answer_is_what_the_passes_say_together():
    predictions, labels = copies()
    calibrator = CATTA(keep_class=False).fit(predictions, labels)
    _, fused = calibrator.parts(predictions.logits, predictions.views)
    assert not calibrator.keeps_class
    assert torch.equal(calibrator(predictions), fused)
    accuracy, before = (
        (p.argmax(dim=1) == labels).double().mean() for p in (fused, predictions.logits)
    )
    assert accuracy > before
