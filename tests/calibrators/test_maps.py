"""Isotonic and histogram maps against slow versions, and the class that is carried along."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.isotonic import IsotonicRegression
from torch import Tensor

import reference
from atta import Predictions
from atta.calibrators import (
    Histogram,
    Isotonic,
)
from atta.calibrators.maps import carry_class
from atta.metrics.binning import bin_index
from scenarios import toy

seeds = st.integers(0, 2**32 - 1)


def pairs(predictions: Predictions, labels: Tensor) -> tuple[np.ndarray, np.ndarray]:
    probs = predictions.logits.double().softmax(-1)
    return probs.numpy().ravel(), torch.nn.functional.one_hot(
        labels, probs.shape[1]
    ).numpy().ravel()


@given(seeds, st.integers(2, 40))
@settings(max_examples=25, deadline=None)
def test_raw_isotonic_is_pool_adjacent_violators_and_scikit_learns_line_between(seed, n):
    predictions, labels = toy(n, k=3, seed=seed, dtype=torch.float64)
    test, _ = toy(20, k=3, seed=seed + 1, dtype=torch.float64)
    x, y = pairs(predictions, labels)
    queries = test.logits.softmax(-1).numpy().ravel()
    ours = Isotonic(normalize=False).fit(predictions, labels)(test).numpy().ravel()
    knots, values = reference.pool_adjacent_violators(x, y)
    np.testing.assert_allclose(
        ours, [reference.interpolate(q, knots, values) for q in queries], atol=1e-9
    )
    theirs = IsotonicRegression(out_of_bounds="clip").fit(x, y).predict(queries)
    # scikit-learn takes probabilities closer than 1e-15 to be one.
    np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_one_vs_rest_isotonic_is_an_isotonic_map_a_class():
    predictions, labels = toy(dtype=torch.float64)
    test, _ = toy(30, seed=1, dtype=torch.float64)
    ours = Isotonic(normalize=False, pooled=False).fit(predictions, labels)(test)
    probs, queries = predictions.logits.softmax(-1).numpy(), test.logits.softmax(-1).numpy()
    for c in range(4):
        knots, values = reference.pool_adjacent_violators(
            probs[:, c], (labels == c).double().numpy()
        )
        slow = [reference.interpolate(q, knots, values) for q in queries[:, c]]
        np.testing.assert_allclose(ours[:, c].numpy(), slow, atol=1e-9)


def test_isotonic_is_monotone_and_undisturbed_by_its_own_scale():
    predictions, labels = toy(300)
    raw = Isotonic(normalize=False).fit(predictions, labels)
    line = torch.linspace(0, 1, 1001).reshape(-1, 1)
    values = raw.map(torch.cat([line, 1 - line], dim=1))[:, 0]
    assert (values.diff() >= 0).all()
    assert 0 <= values.min() <= values.max() <= 1


def test_isotonic_copes_with_probabilities_that_are_all_alike():
    predictions = Predictions(torch.zeros(5, 4))
    probs = Isotonic(normalize=False).fit(predictions, [0, 0, 1, 2, 3])(predictions)
    torch.testing.assert_close(probs, torch.full((5, 4), 0.25))


@given(seeds, st.integers(1, 20), st.booleans())
@settings(max_examples=25, deadline=None)
def test_raw_histogram_is_the_accuracy_of_the_bin(seed, bins, pooled):
    predictions, labels = toy(40, k=3, seed=seed, dtype=torch.float64)
    test, _ = toy(20, k=3, seed=seed + 1, dtype=torch.float64)
    ours = (
        Histogram(normalize=False, bins=bins, pooled=pooled).fit(predictions, labels)(test).numpy()
    )
    probs, queries = predictions.logits.softmax(-1).numpy(), test.logits.softmax(-1).numpy()
    hits = torch.nn.functional.one_hot(labels, 3).numpy()
    for c in range(3):
        rows = slice(None) if pooled else (slice(None), c)
        values = reference.histogram(probs[rows].ravel(), hits[rows].ravel(), bins)
        np.testing.assert_allclose(
            ours[:, c], [values[reference.bin_of(q, bins)] for q in queries[:, c]], atol=1e-12
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("k", [3, 5, 15])
def test_a_probability_on_an_edge_is_looked_up_in_the_bin_it_was_counted_in(dtype, k):
    predictions = Predictions(torch.zeros(k, k, dtype=dtype))
    probs = Histogram(normalize=False).fit(predictions, list(range(k)))(predictions)
    torch.testing.assert_close(probs, torch.full((k, k), 1 / k, dtype=dtype))


def test_a_map_a_class_is_fitted_class_by_class_and_never_all_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logits, labels = (
        torch.randn(60, 5, generator=torch.Generator().manual_seed(0)),
        torch.arange(60) % 5,
    )
    sizes: list[int] = []

    def counted(values: Tensor, edges: Tensor) -> Tensor:
        sizes.append(values.numel())
        return bin_index(values, edges)

    monkeypatch.setattr("atta.calibrators.maps.bin_index", counted)
    Histogram(pooled=False).fit(Predictions(logits), labels)
    assert sizes == [60] * 5


def test_a_raw_histogram_changes_classes_and_ours_does_not():
    predictions, labels = toy(400, k=4, confidence=1.0, signal=1.0)
    test, _ = toy(2000, k=4, confidence=1.0, signal=1.0, seed=1)
    first = test.logits.argmax(-1)
    raw = Histogram(normalize=False).fit(predictions, labels)(test)
    ahead = raw.amax(-1) > raw.gather(1, first[:, None])[:, 0]
    assert ahead.any()
    assert torch.equal(Histogram().fit(predictions, labels)(test).argmax(-1), first)


@pytest.mark.parametrize("method", [Isotonic, Histogram])
def test_the_original_class_has_its_mapped_confidence_wherever_that_keeps_it_in_front(method):
    predictions, labels = toy(300, dtype=torch.float64)
    test, _ = toy(500, seed=1, dtype=torch.float64)
    mapped = method(normalize=False).fit(predictions, labels)(test).numpy()
    ours = method().fit(predictions, labels)(test).numpy()
    floor, possible = 1 / (300 * 4), 0
    for row, answer, c in zip(mapped, ours, test.logits.argmax(-1).tolist(), strict=True):
        plain = reference.carried(row, c, floor)
        if plain[c] > max(x for j, x in enumerate(plain) if j != c) * 1.001:
            np.testing.assert_allclose(answer, plain, atol=1e-9)
            possible += 1
        else:
            rivals = [x for j, x in enumerate(answer) if j != c]
            assert max(rivals) < answer[c] < max(rivals) * 1.001 + 1e-9
    assert possible > 400


@given(seeds, st.integers(2, 6), st.floats(1e-6, 0.1))
@settings(max_examples=40, deadline=None)
def test_carrying_the_class_keeps_it_for_any_mapped_values(seed, k, floor):
    g = torch.Generator().manual_seed(seed)
    probs = torch.rand(30, k, generator=g).mul(3).round().softmax(-1)
    mapped = torch.rand(30, k, generator=g).mul(4).round().div(4)
    answer = carry_class(mapped, probs, torch.tensor(floor))
    assert torch.equal(answer.argmax(-1), probs.argmax(-1))
    torch.testing.assert_close(answer.sum(-1), torch.ones(30))
