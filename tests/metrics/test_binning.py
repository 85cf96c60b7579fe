"""Bins: which one a value belongs to, and what is left of ties and of nothing."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
from atta._base.errors import InputError
from atta.metrics.binning import bin_index, bins, risk_curve, wilson
from atta.metrics.scores import METRICS
from scenarios import answers as sample
from scenarios import tops


def test_the_curve_of_risk_answers_images_of_equal_confidence_together() -> None:
    confidence = torch.tensor([0.5, 0.9, 0.9, 0.7, 0.5])
    found = risk_curve(confidence, torch.tensor([0.0, 1.0, 0.0, 1.0, 1.0]))
    assert found["coverage"] == pytest.approx([0.4, 0.6, 1.0])
    assert found["risk"] == pytest.approx([1 / 2, 1 / 3, 2 / 5])
    assert (found["low"][1], found["high"][1]) == pytest.approx(wilson(3.0, 1 / 3))
    probs, labels = sample(1000)
    curve = risk_curve(probs.amax(1), (probs.argmax(1) == labels).double())
    assert len(curve["risk"]) == 50
    assert curve["risk"][-1] == pytest.approx(1 - METRICS["accuracy"](probs, labels))


@pytest.mark.parametrize("count", [1, 2, 7, 10, 15, 49, 100])
def test_an_edge_belongs_to_the_bin_below_it(count: int) -> None:
    edges = bins(torch.tensor([0.5]), torch.tensor([True]), count=count).edges
    inner = torch.tensor([float(Fraction(i, count)) for i in range(count + 1)], dtype=torch.float64)
    assert torch.equal(edges, inner)
    assert bin_index(inner, edges).tolist() == [0, *range(count)]
    above = torch.nextafter(inner[:-1], inner.new_tensor(2.0))
    assert bin_index(above, edges).tolist() == list(range(count))


def test_0_2_is_in_the_third_of_fifteen_bins_in_float64_and_above_it_in_float32() -> None:
    edges = bins(torch.tensor([0.5]), torch.tensor([True])).edges
    assert bin_index(torch.tensor([0.2, 0.4, 0.6, 0.8], dtype=torch.float64), edges).tolist() == [
        2,
        5,
        8,
        11,
    ]
    assert bin_index(torch.tensor([0.2]), edges).tolist() == [3]  # which is 0.20000000298


def test_bin_index_keeps_the_shape_and_takes_strided_values() -> None:
    edges = bins(torch.tensor([0.5]), torch.tensor([True])).edges
    values = torch.rand(4, 6, generator=torch.Generator().manual_seed(0)).T
    assert torch.equal(
        bin_index(values, edges),
        torch.tensor([[reference.slow_bin(v) for v in row] for row in values.tolist()]),
    )


def test_empty_bins_are_nan_and_never_perfect() -> None:
    b = bins(np.array([0.05, 0.95, 0.97]), np.array([False, True, False]), count=10)
    assert b.counts.tolist() == [1, 0, 0, 0, 0, 0, 0, 0, 0, 2]
    assert b.accuracy.isnan().tolist() == b.confidence.isnan().tolist() == (b.counts == 0).tolist()
    assert (b.accuracy[-1].item(), b.confidence[-1].item()) == (0.5, pytest.approx(0.96))


def test_ece_can_be_read_off_the_bins() -> None:
    probs, labels = sample()
    for name, equal_mass in (("ece", False), ("adaptive_ece", True)):
        b = bins(*tops(probs, labels), equal_mass=equal_mass)
        read_off = (b.counts * (b.accuracy - b.confidence).abs()).nansum() / b.counts.sum()
        assert METRICS[name](probs, labels) == pytest.approx(read_off.item(), abs=1e-12)


@given(
    st.lists(st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.7, 0.99, 1.0]), min_size=1, max_size=40),
    st.integers(1, 8),
)
@settings(deadline=None, max_examples=100)
def test_equal_mass_never_parts_ties_and_equals_the_slow_cut(
    values: list[float], count: int
) -> None:
    confidence = torch.tensor(values, dtype=torch.float64)
    b = bins(confidence, torch.ones_like(confidence), count=count, equal_mass=True)
    index = bin_index(confidence, b.edges)
    assert all(index[confidence == v].unique().numel() == 1 for v in values)
    groups = reference.slow_equal_mass([(v, 1.0) for v in values], count)
    assert sorted(b.counts[b.counts > 0].tolist()) == sorted(len(group) for group in groups)


def test_equal_mass_bins_differ_by_one_image_at_most_without_ties() -> None:
    confidence, correct = tops(*sample(997))
    counts = bins(confidence, correct, equal_mass=True).counts
    assert counts.shape == (15,)
    assert counts.max() - counts.min() <= 1


def test_a_pile_of_exact_ones_fills_one_bin_of_equal_mass() -> None:
    confidence = torch.cat([torch.linspace(0.3, 0.9, 50), torch.ones(50)])
    b = bins(confidence, torch.ones(100), count=10, equal_mass=True)
    assert sorted(b.counts.tolist(), reverse=True)[:6] == [50, 10, 10, 10, 10, 10]


def test_bins_say_what_they_expected_and_what_came() -> None:
    half, one = torch.tensor([0.5]), torch.tensor([1.0])
    with pytest.raises(InputError, match="count must be a whole number ≥ 1 and ≤ 1000000, got 0"):
        bins(half, one, count=0)
    with pytest.raises(
        InputError, match="count must be a whole number ≥ 1 and ≤ 1000000, got None"
    ):
        bins(half, one, count=None)
    assert bins(half, one, count=np.int64(2)).counts.tolist() == [1, 0]
    with pytest.raises(InputError, match=r"got shapes \(1,\) and \(2,\)"):
        bins(half, torch.ones(2))
    with pytest.raises(InputError, match=r"got shapes \(0,\) and \(0,\)"):
        bins(torch.ones(0), torch.ones(0))
    with pytest.raises(
        InputError, match=r"confidence: expected values in \[0, 1\], got 7 in row 0"
    ):
        bins(7 * one, one)
    with pytest.raises(InputError, match=r"correct: expected finite numbers, got nan in row 0"):
        bins(half, math.nan * one)
