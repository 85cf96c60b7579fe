"""Vanilla, temperature and Dirichlet against slow versions of themselves."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

import reference
from atta import Predictions
from atta.calibrators import (
    Dirichlet,
    TemperatureScaling,
    Vanilla,
    scaling,
)
from atta.calibrators.fitting import fold_splits
from atta.functional import guard_class
from scenarios import toy

seeds = st.integers(0, 2**32 - 1)


def test_vanilla_is_the_softmax_bit_for_bit():
    test, _ = toy(200, seed=1)
    assert torch.equal(Vanilla().fit(*toy())(test), test.logits.softmax(-1))


@given(
    seeds,
    st.sampled_from([0.05, 0.5, 3.0, 40.0, 1e4]),
    st.sampled_from([torch.float32, torch.float64]),
)
@settings(max_examples=25, deadline=None)
def test_the_temperature_is_at_the_minimum_that_golden_section_finds(seed, confidence, dtype):
    predictions, labels = toy(80, seed=seed, confidence=confidence, signal=1.0, dtype=dtype)
    slow = confidence * reference.temperature(
        predictions.logits.double().numpy() / confidence, labels.tolist()
    )
    found = TemperatureScaling().fit(predictions, labels).temperature
    assert found.dtype == dtype
    assert found.item() == pytest.approx(slow, rel=1e-4)


def test_where_every_image_is_right_the_temperature_stays_finite_and_positive():
    logits = torch.tensor([[3.0, 0.0], [0.0, 2.0], [5.0, -1.0]])
    found = TemperatureScaling().fit(Predictions(logits), [0, 1, 0]).temperature
    confidence = (logits / found).softmax(dim=-1).amax(dim=-1).mean()
    assert 0.5 < confidence < 1, "three right answers out of three do not make the next one certain"
    wrong = TemperatureScaling().fit(Predictions(logits), [1, 0, 1])
    assert 0 < wrong.temperature.item() < math.inf
    assert (wrong(Predictions(logits)) - 0.5).abs().max() < 1e-3


def test_a_fit_of_many_images_begins_with_some_and_works_on_pieces_and_finds_the_same_temperature(
    monkeypatch,
):
    predictions, labels = toy(3000, seed=5, confidence=3.0, signal=1.0)
    whole = scaling.fit_temperature(predictions.logits, labels)
    sizes: list[int] = []
    chunks = Predictions.chunks

    def watched(self, rows):
        sizes.append(rows)
        return chunks(self, rows)

    monkeypatch.setattr(Predictions, "chunks", watched)
    monkeypatch.setattr(scaling, "SAMPLE_LOGITS", 400)
    monkeypatch.setattr(scaling, "PIECE_LOGITS", 1000)
    torch.testing.assert_close(
        scaling.fit_temperature(predictions.logits, labels), whole, rtol=1e-9, atol=0
    )
    assert max(sizes) * predictions.classes <= 1000


@given(
    seeds,
    st.sampled_from([1e-3, 0.7, 1.3, 50.0, 1e6]),
    st.sampled_from([torch.float32, torch.float64]),
)
@settings(max_examples=40, deadline=None)
def test_close_calls_are_guarded_and_all_other_rows_are_the_same_bits(seed, temperature, dtype):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(300, 4, generator=generator, dtype=dtype)
    top = logits.amax(dim=1)
    logits[:200, 2] = top[:200] * (
        1 + torch.randint(-3, 4, (200,), generator=generator) * torch.finfo(dtype).eps
    )
    logits[200:250, 1] = top[200:250] - 10.0 ** torch.randint(-8, 0, (50,), generator=generator)
    t = torch.tensor(temperature, dtype=dtype)
    plain = ((logits - logits.amax(dim=1, keepdim=True)) / t).softmax(dim=1)
    assert torch.equal(scaling.scaled(logits, t), guard_class(plain, logits.softmax(dim=1)))


def odir(
    log_probs: np.ndarray, labels: list[int], lam: float, mu: float, rein: tuple[float, float]
) -> np.ndarray:
    """Fit (W | b) with scipy's BFGS on finite differences of the written-out loss."""
    k = log_probs.shape[1]

    def loss(flat: np.ndarray) -> float:
        return reference.odir_loss(
            flat[: k * k].reshape(k, k), flat[k * k :], log_probs, labels, lam, mu, *rein
        )

    return optimize.minimize(
        loss, np.r_[np.eye(k).ravel(), np.zeros(k)], method="BFGS", options={"gtol": 1e-6}
    ).x


@pytest.mark.parametrize("diagonal", [0.0, 3.0])
@pytest.mark.parametrize(("lam", "mu"), [(1e-2, 1e-2), (1.0, 1e-1)])
def test_dirichlet_is_at_the_minimum_of_its_written_out_loss(lam, mu, diagonal):
    predictions, labels = toy(30, k=3, dtype=torch.float64, confidence=1.5)
    log_probs = predictions.logits.log_softmax(-1).numpy()
    temperature = TemperatureScaling().fit(predictions, labels).temperature.item()
    slow = odir(log_probs, labels.tolist(), lam, mu, (diagonal / 30, 1 / temperature))
    found = Dirichlet(grid=[(lam, mu)], diagonal=diagonal).fit(predictions, labels)
    ours = np.r_[found.weight.numpy().ravel(), found.bias.numpy()]
    np.testing.assert_allclose(ours, slow, atol=2e-3)
    probs = np.stack(
        [reference.softmax(found.weight.numpy() @ x + found.bias.numpy()) for x in log_probs]
    )
    np.testing.assert_allclose(found(predictions).numpy(), probs, atol=1e-9)


def test_dirichlet_chooses_the_pair_that_a_fit_a_fold_and_a_pair_chooses():
    predictions, labels = toy(30, k=3, dtype=torch.float64, confidence=1.5)
    log_probs, grid = predictions.logits.log_softmax(-1), [(0.1, 0.1), (1.0, 1.0), (10.0, 10.0)]
    slow = {}
    for pair in grid:
        total = 0.0
        for kept, held_out in fold_splits(30, 3, seed=2):
            part = Dirichlet(grid=[pair]).fit(predictions[kept], labels[kept])
            probs = [
                reference.softmax(part.weight.numpy() @ x + part.bias.numpy())
                for x in log_probs[held_out].numpy()
            ]
            total += reference.nll(probs, labels[held_out].tolist()) * len(held_out)
        slow[pair] = total
    best = min(slow, key=slow.__getitem__)
    chosen = Dirichlet(grid=grid, folds=3, seed=2).fit(predictions, labels)
    expected = Dirichlet(grid=[best]).fit(predictions, labels)
    torch.testing.assert_close(chosen.weight, expected.weight, atol=1e-5, rtol=1e-3)
    torch.testing.assert_close(chosen.bias, expected.bias, atol=1e-5, rtol=1e-3)


def test_the_authors_grid_is_theirs():
    authors = Dirichlet(grid="authors")
    assert len(set(authors.pairs(10))) == 432
    assert len(set(authors.pairs(100))) == 243
    assert {mu for _, mu in authors.pairs(10)} == {10.0**i for i in range(-5, 7)}
    assert {lam for lam, _ in authors.pairs(100)} == {
        c * 10.0**i for i in range(-2, 7) for c in (1, 0.25, 0.5)
    }
    assert len(Dirichlet().pairs(10)) == 15


def few_a_class():
    """Ten classes, eight images of each, nearly all right: hardly a class has a mistake that would bound its weight."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(1080) % 10
    logits = 3 * torch.randn(1080, 10, generator=generator, dtype=torch.float64)
    logits[torch.arange(1080), labels] += 9
    return Predictions(logits[:80]), labels[:80], Predictions(logits[80:]), labels[80:]


def test_the_diagonal_does_not_run_away_where_classes_have_few_images():
    predictions, labels, others, truth = few_a_class()
    settings = {"grid": [(100.0, 0.01), (10.0, 0.01)], "folds": 3}
    free, held = (
        Dirichlet(diagonal=diagonal, **settings).fit(predictions, labels)
        for diagonal in (0.0, 100.0)
    )
    assert held.weight.diagonal().max() < 1.5 < 3 < free.weight.diagonal().max()
    losses = {
        name: reference.nll(fitted(others).tolist(), truth.tolist())
        for name, fitted in {"free": free, "held": held}.items()
    }
    scaled = TemperatureScaling().fit(predictions, labels)
    assert losses["held"] < losses["free"]
    assert losses["held"] < 1.05 * reference.nll(scaled(others).tolist(), truth.tolist())


def test_a_stiff_dirichlet_is_temperature_scaling():
    predictions, labels = toy(dtype=torch.float64)
    stiff = Dirichlet(grid=[(1e8, 1e8)], diagonal=1e10).fit(predictions, labels)
    torch.testing.assert_close(
        stiff(predictions),
        TemperatureScaling().fit(predictions, labels)(predictions),
        atol=1e-6,
        rtol=0,
    )


def test_a_stiff_odir_is_the_softmax_but_for_its_diagonal():
    predictions, labels = toy(dtype=torch.float64)
    stiff = Dirichlet(grid=[(1e8, 1e8)], diagonal=0.0).fit(predictions, labels)
    off_diagonal = stiff.weight - torch.diag(stiff.weight.diagonal())
    assert off_diagonal.abs().max() < 1e-6
    assert stiff.bias.abs().max() < 1e-6
