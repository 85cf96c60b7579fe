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
    rows = torch.cat([predictions.logits[:, None], predictions.view_logits(list(KINDS))], dim=1).double()
    weights = torch.zeros(rows.shape[1], dtype=torch.float64)

    def loss(w):
        return F.cross_entropy(torch.einsum("m,nmk->nk", w, rows), labels)

    for _ in range(30):
        slope = torch.autograd.functional.jacobian(loss, weights)
        weights = weights - torch.linalg.solve(torch.autograd.functional.hessian(loss, weights), slope)
    calibrator = CATTA().fit(predictions, labels)
    torch.testing.assert_close(calibrator.weights[:, 0].double(), weights, rtol=1e-4, atol=1e-5)
    assert calibrator.limit == 1
    assert torch.equal(CATTA(views=list(KINDS)).fit(predictions, labels).weights, calibrator.weights)


def test_c_atta_with_views_that_say_nothing_is_temperature_scaling():
    predictions, labels = toy(200)
    silent = Predictions(predictions.logits, {"dark": torch.zeros(200, 1, 4)})
    probs, scaled = (method.fit(silent, labels)(silent) for method in (CATTA(), TemperatureScaling()))
    torch.testing.assert_close(probs, scaled, rtol=1e-5, atol=1e-6)


def test_c_atta_without_a_mistake_stays_finite():
    predictions, _ = toy(60)
    sure = CATTA().fit(predictions, predictions.logits.argmax(dim=1))
    assert sure.weights.abs().sum() < 20
