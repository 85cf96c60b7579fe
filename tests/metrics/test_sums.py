"""Sums: what any partition of the images adds up to is what `evaluate` says of them."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from atta._base.errors import InputError
from atta.metrics import per_image
from atta.metrics.scores import METRICS, Sums, evaluate
from scenarios import answers as sample

ANSWERED = {"answered_0.5", "answered_1", "answered_2", "answered_5"}
RANKED = {"adaptive_ece", "aurc", "smooth_ece", *ANSWERED}  # which Sums knows by cells only
GOOD = torch.tensor([[0.5, 0.5], [0.25, 0.75]])


@given(st.lists(st.integers(0, 60), max_size=4), st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=15)
def test_the_sums_of_any_partition_merge_into_those_of_the_whole(
    cuts: list[int], random: object
) -> None:
    probs, labels = sample(60)
    probs[::7] = torch.eye(5, dtype=torch.float64)[0]
    bounds = sorted({0, 60, *cuts})
    parts = [Sums(5).update(probs[a:b], labels[a:b]) for a, b in pairwise(bounds)]
    random.shuffle(parts)  # type: ignore[attr-defined]
    merged = Sums(5)
    for part in parts:
        merged.merge(part)
    whole = Sums(5).update(probs, labels)
    assert merged.compute() == pytest.approx(whole.compute(), abs=1e-12)
    exact = evaluate(probs, labels)
    for name in METRICS.keys() - RANKED:
        assert merged.compute()[name] == pytest.approx(exact[name], abs=1e-12)


def test_the_state_can_be_added_up_by_hand_as_an_all_reduce_does() -> None:
    probs, labels = sample(100)
    one, two = Sums(5).update(probs[:30], labels[:30]), Sums(5).update(probs[30:], labels[30:])
    for name, tensor in one.state.items():
        assert tensor.dtype is torch.float64
        tensor += two.state[name]
    assert one.compute() == pytest.approx(Sums(5).update(probs, labels).compute(), abs=1e-12)


def test_the_memory_of_sums_does_not_grow_with_the_images() -> None:
    few, many = Sums(5).update(*sample(1)), Sums(5).update(*sample(3000))
    assert {k: v.shape for k, v in few.state.items()} == {k: v.shape for k, v in many.state.items()}
    assert sum(v.numel() for v in Sums(5, metrics=["ece"]).state.values()) < 13_000
    assert "class_bins" not in Sums(1000, metrics=["ece"]).state


def test_sums_of_named_metrics_and_other_bins_agree_with_evaluate() -> None:
    probs, labels = sample(100)
    names = ["classwise_ece", "ece"]
    assert Sums(5, count=7, metrics=names).update(probs, labels).compute() == evaluate(
        probs, labels, metrics=names, count=7
    )


@pytest.mark.parametrize("honest", [False, True])
@pytest.mark.parametrize("scale", [0.5, 2.0, 8.0, 30.0])
def test_sums_keep_the_ranked_metrics_within_the_bound_they_state(
    scale: float, honest: bool
) -> None:
    probs, labels = sample(10_000, scale=scale)
    if (
        honest
    ):  # labels as likely as said: the bins' gaps then have either sign, and do not merely add up
        labels = probs.multinomial(1, generator=torch.Generator().manual_seed(0))[:, 0]
    sums = Sums(5).update(probs, labels)
    exact, close = evaluate(probs, labels), sums.compute()

    mass = [int(m) for m in sums.state["cells"][0].tolist() if m]
    n, start, cut = sum(mass), 0, 0
    for (
        m
    ) in mass:  # a cell is cut by a quantile when its first and last image belong to different bins
        cut += m if start * 15 // n != (start + m - 1) * 15 // n else 0
        start += m
    assert abs(close["adaptive_ece"] - exact["adaptive_ece"]) <= 2 * cut / n + 1e-12

    weight = (1 / torch.arange(1, n + 1, dtype=torch.float64)).flip(0).cumsum(0).flip(0) / n
    start, bound = 0, 0.0
    for m in reversed(mass):
        bound += m / 4 * (weight[start] - weight[start + m - 1]).item()
        start += m
    assert abs(close["aurc"] - exact["aurc"]) <= bound + 1e-12

    assert abs(close["adaptive_ece"] - exact["adaptive_ece"]) < 1e-3
    assert abs(close["aurc"] - exact["aurc"]) < 1e-4
    assert abs(close["smooth_ece"] - exact["smooth_ece"]) < 1e-4


def test_input_that_is_refused_leaves_the_sums_as_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(per_image, "CHUNK", 5)
    probs, labels = sample(10)
    sums = Sums(5).update(probs, labels)
    before = sums.compute()
    probs[9, 0] = math.nan
    with pytest.raises(InputError, match="nan in row 9"):
        sums.update(probs, labels)
    assert sums.compute() == before


def test_sums_say_what_does_not_belong_together() -> None:
    with pytest.raises(InputError, match="probs: expected 3 classes, got 2"):
        Sums(3).update(GOOD, [0, 1])
    with pytest.raises(
        InputError, match=r"merge: expected sums of the same \(classes, count, metrics\)"
    ):
        Sums(3).merge(Sums(3, count=10))
    with pytest.raises(InputError, match="got 0 labels for 0 images"):
        Sums(3).compute()
    with pytest.raises(InputError, match="labels for all or none, got 2 labels for 4 images"):
        Sums(2).update(GOOD, [0, 1]).update(GOOD).compute()
