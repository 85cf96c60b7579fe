"""Compare intervals with drawn resamples, with normal theory, and with their stated coverage."""

import math
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from atta._base.errors import InputError
from atta.metrics import resampling
from atta.metrics.resampling import Resamples, bootstrap, intervals, paired, replicates
from atta.metrics.scores import METRICS, evaluate
from scenarios import answers

LINEAR = ("accuracy", "brier", "mc_brier", "nll", "entropy", "shannon_entropy")
FIXED = "adaptive_ece"  # whose bins stay where all images put them


def sample(n: int = 300, k: int = 4, **more: Any) -> tuple[Tensor, Tensor]:
    return answers(n, k, **more)


def drawn(resamples: Resamples) -> np.ndarray:
    return np.concatenate(list(resamples), axis=1)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_a_replicate_is_the_metric_of_the_images_that_were_drawn(scale: float, ties: bool) -> None:
    probs, labels = sample(scale=scale, ties=ties)
    resamples = Resamples(300, 5, seed=3)
    found = replicates(probs, labels, resamples)
    assert list(found) == list(METRICS)
    for i, counts in enumerate(drawn(resamples).T):
        rows = torch.arange(300).repeat_interleave(torch.from_numpy(counts).long())
        expected = evaluate(probs[rows], labels[rows])
        for name in METRICS.keys() - {FIXED}:
            assert found[name][i].item() == pytest.approx(expected[name], rel=2e-4, abs=2e-6), name
        confidence, winner = probs.max(1)
        gaps, order = ((winner == labels).double() - confidence)[rows], confidence.sort().values
        edges = torch.stack([order[math.ceil(j * 300 / 15) - 1] for j in range(1, 15)])
        bins = torch.bucketize(confidence[rows], edges)
        by_bin = sum(abs(gaps[bins == b].sum().item()) for b in range(15)) / 300
        assert found[FIXED][i].item() == pytest.approx(by_bin, rel=2e-4, abs=2e-6)


def test_images_that_are_part_of_a_larger_set_share_its_resamples() -> None:
    probs, labels = sample()
    resamples, rows = (
        Resamples(300, 20),
        torch.randperm(300, generator=torch.Generator().manual_seed(0))[:120],
    )
    part = replicates(probs[rows], labels[rows], resamples, rows, metrics=LINEAR)
    counts = torch.from_numpy(drawn(resamples)).double()[rows]
    correct = (probs.argmax(1) == labels).double()[rows]
    assert torch.allclose(part["accuracy"], correct @ counts / counts.sum(0), atol=1e-6)


def test_counts_add_up_to_the_images_and_depend_on_the_seed_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = drawn(Resamples(50, 40, seed=1))
    assert whole.shape == (50, 40)
    assert (whole.sum(0) == 50).all()
    assert not np.array_equal(whole, drawn(Resamples(50, 40, seed=2)))
    monkeypatch.setattr(resampling, "CELLS", 170)  # three resamples at a time
    assert [part.shape[1] for part in Resamples(50, 40, seed=1)][:2] == [3, 3]
    assert np.array_equal(whole, drawn(Resamples(50, 40, seed=1)))


def test_the_interval_of_a_mean_is_that_of_normal_theory() -> None:
    probs, labels = sample(2000)
    found = bootstrap(probs, labels, metrics=["brier", "accuracy"])
    confidence, winner = probs.max(1)
    correct = (winner == labels).double()
    for name, terms in (("brier", (confidence - correct) ** 2), ("accuracy", correct)):
        half = 1.96 * terms.std().item() / math.sqrt(2000)
        low, high = found[name]
        assert low == pytest.approx(terms.mean().item() - half, abs=0.15 * half)
        assert high == pytest.approx(terms.mean().item() + half, abs=0.15 * half)


@pytest.mark.parametrize("scale", [0.5, 1.0, 4.0])
def test_every_metric_lies_in_its_own_interval_and_none_of_these_is_negative(scale: float) -> None:
    probs, labels = sample(scale=scale)
    points, found = evaluate(probs, labels), bootstrap(probs, labels, resamples=200)
    assert list(found) == list(METRICS)
    for name, (low, high) in found.items():
        assert min(0, points[name]) <= low <= points[name] <= high
        assert low < high


def test_no_interval_of_a_share_exceeds_1() -> None:
    probs = torch.linspace(0.6, 0.99, 120, dtype=torch.float64)
    probs = torch.stack([probs, 1 - probs], dim=1)
    labels = [int(i in (0, 1, 2, 40, 80)) for i in range(120)]
    found = bootstrap(probs, labels, resamples=200)
    for name in ("accuracy", "answered_0.5", "answered_1", "answered_2", "answered_5"):
        assert evaluate(probs, labels)[name] <= found[name][1] <= 1
    assert found["answered_5"][1] == 1


def test_a_resampled_ece_is_too_large_and_its_interval_is_not() -> None:
    probs, _ = sample(scale=0.7)
    labels = probs.multinomial(1, generator=torch.Generator().manual_seed(0))[
        :, 0
    ]  # perfectly calibrated
    point, values = evaluate(probs, labels)["ece"], replicates(probs, labels, Resamples(300))["ece"]
    low, high = bootstrap(probs, labels, metrics=["ece"])["ece"]
    assert values.mean().item() > 1.15 * point
    assert abs((low + high) / 2 - point) < 0.2 * (values.mean().item() - point)


def test_intervals_cover_what_they_promise_about_as_often_as_they_say() -> None:
    """Check the coverage for a calibrated classifier and for an over-confident one."""
    names, n, sets = ("brier", "ece", "smooth_ece"), 200, 60
    for scale in (1.0, 2.0):
        measured, intervals = [], []
        for seed in range(sets):
            draw = torch.Generator().manual_seed(seed)
            logits = 1.5 * torch.randn(n, 4, generator=draw, dtype=torch.float64)
            labels = logits.softmax(1).multinomial(1, generator=draw)[:, 0]
            probs = (scale * logits).softmax(1)
            measured.append(evaluate(probs, labels, metrics=names))
            intervals.append(bootstrap(probs, labels, metrics=names, resamples=100))
        for name in names:
            target = fmean(one[name] for one in measured)
            covered = fmean(one[name][0] <= target <= one[name][1] for one in intervals)
            assert covered > 0.86, (
                scale,
                name,
                covered,
            )  # 0.95 less three standard errors of 60 sets


def test_a_difference_on_the_same_images_is_surer_than_two_numbers() -> None:
    sharp, labels = sample(1000)
    soft = sharp**0.8 / (sharp**0.8).sum(1, keepdim=True)
    (low, high), one, other = (
        paired(sharp, soft, labels, metrics=["nll"])["nll"],
        *(bootstrap(p, labels, metrics=["nll"])["nll"] for p in (sharp, soft)),
    )
    difference = evaluate(sharp, labels)["nll"] - evaluate(soft, labels)["nll"]
    assert 0 < low < difference < high
    assert other[1] > one[0]  # by themselves the two could be the same
    assert paired(soft, sharp, labels, metrics=["nll"])["nll"] == pytest.approx(
        (-high, -low), rel=1e-6
    )


def test_no_difference_is_exactly_none() -> None:
    probs, labels = sample()
    assert set(paired(probs, probs.clone(), labels, resamples=50).values()) == {(0.0, 0.0)}


def test_a_seed_decides_every_bit_and_another_one_little() -> None:
    probs, labels = sample(1000)
    first, again, other = (bootstrap(probs, labels, seed=seed, resamples=400) for seed in (0, 0, 1))
    assert first == again
    assert first != other
    for name in LINEAR:
        width = first[name][1] - first[name][0]
        assert other[name] == pytest.approx(first[name], abs=0.2 * width)


def test_without_labels_there_are_intervals_of_the_entropies() -> None:
    probs, labels = sample()
    assert bootstrap(probs) == bootstrap(probs, labels, metrics=["entropy", "shannon_entropy"])


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=30), st.floats(-1, 1))
@settings(deadline=None)
def test_a_number_is_never_outside_of_its_own_interval(values: list[float], point: float) -> None:
    low, high = intervals({"a": point}, {"a": torch.tensor(values, dtype=torch.float64)})["a"]
    assert low <= point <= high


def test_of_one_image_among_many_a_resample_may_hold_none() -> None:
    probs, labels = sample()
    found = replicates(probs[:1], labels[:1], Resamples(300, 50), torch.tensor([7]))
    assert (drawn(Resamples(300, 50))[7] == 0).any()
    for name, value in evaluate(probs[:1], labels[:1]).items():
        assert found[name].tolist() == pytest.approx([value] * 50, rel=2e-4, abs=2e-6), name


def test_bad_input_is_refused_in_a_sentence() -> None:
    probs, labels = sample(10)
    with pytest.raises(InputError, match="confidence must be a number > 0 and < 1, got 95"):
        bootstrap(probs, labels, confidence=95.0)
    with pytest.raises(InputError, match="resamples must be a whole number ≥ 2, got 1"):
        bootstrap(probs, labels, resamples=1)
    with pytest.raises(InputError, match="resamples must be a whole number ≥ 2, got 'many'"):
        bootstrap(probs, labels, resamples="many")
    with pytest.raises(InputError, match="seed must be a whole number ≥ 0, got -1"):
        paired(probs, probs, labels, seed=-1)
    with pytest.raises(InputError, match="Did you mean 'brier'"):
        bootstrap(probs, labels, metrics=["brjer"])
    with pytest.raises(InputError, match="probs_b: expected 10 images as in probs_a, got 9"):
        paired(probs, probs[:9])
    with pytest.raises(InputError, match="labels: expected for nll, got None"):
        bootstrap(probs, metrics=["nll"])
