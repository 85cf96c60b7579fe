"""The metrics against formulas written as loops, against scikit-learn and torchmetrics, and against their own laws."""

import math
from collections import defaultdict
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score
from torch import Tensor
from torchmetrics.classification import MulticlassAccuracy, MulticlassCalibrationError

import reference
from atta.metrics import scores as metrics
from atta.metrics.scores import METRICS, Bins, Sums, bin_index, bins, class_changes, evaluate, ood_auroc
from atta.results.words import DIRECTION
from atta.types import InputError

RANKED = {"adaptive_ece", "aurc", "smooth_ece"}  # which Sums knows by cells only
SUMMED = [name for name in METRICS if name != "smooth_ece"]  # which a loop gives to the last digits
UNLABELLED = {"entropy", "shannon_entropy"}


# --- Slow references, straight from the formulas, sharing no code -----------------------------------------------------


def slow_bin(value: float, count: int = 15) -> int:
    """The bin (i/count, (i+1)/count] by comparison with each edge."""
    return next((i for i in range(count) if value <= (i + 1) / count), count - 1)


def slow_binned(pairs: list[tuple[float, float]], count: int = 15) -> list[list[tuple[float, float]]]:
    groups: list[list[tuple[float, float]]] = [[] for _ in range(count)]
    for confidence, correct in pairs:
        groups[slow_bin(confidence, count)].append((confidence, correct))
    return [group for group in groups if group]


def slow_gap(group: list[tuple[float, float]]) -> float:
    return sum(correct for _, correct in group) / len(group) - sum(confidence for confidence, _ in group) / len(group)


def slow_ece(groups: list[list[tuple[float, float]]]) -> float:
    return sum(len(group) * abs(slow_gap(group)) for group in groups) / sum(len(group) for group in groups)


def slow_equal_mass(pairs: list[tuple[float, float]], count: int = 15) -> list[list[tuple[float, float]]]:
    """Cut the sorted images into `count` parts; whoever ties with the first of its kind follows it."""
    ordered = sorted(confidence for confidence, _ in pairs)
    groups = defaultdict(list)
    for confidence, correct in pairs:
        groups[ordered.index(confidence) * count // len(pairs)].append((confidence, correct))
    return list(groups.values())


def slow_debiased(groups: list[list[tuple[float, float]]]) -> float:
    n, total = sum(len(group) for group in groups), 0.0
    for group in groups:
        accuracy, gap = sum(correct for _, correct in group) / len(group), slow_gap(group)
        sigma = math.sqrt(accuracy * (1 - accuracy) / len(group))
        expected = abs(gap)
        if sigma:
            below = 0.5 * math.erfc(gap / sigma / math.sqrt(2))  # Φ(-gap/σ)
            peak = sigma * math.sqrt(2 / math.pi) * math.exp(-(gap**2) / 2 / sigma**2)
            expected = peak + gap * (1 - 2 * below)
        total += len(group) / n * (abs(gap) - (expected - abs(gap)))
    return total


def slow_aurc(pairs: list[tuple[float, float]]) -> float:
    errors = defaultdict(list)
    for confidence, correct in pairs:
        errors[confidence].append(1 - correct)
    shared = [sum(group) / len(group) for _, group in sorted(errors.items(), reverse=True) for _ in group]
    return sum(sum(shared[:i]) / i for i in range(1, len(shared) + 1)) / len(shared)


def slow(probs: Tensor, labels: list[int]) -> dict[str, float]:
    n, k = probs.shape
    rows, tiny = probs.double().tolist(), torch.finfo(probs.dtype).tiny
    winners = [row.index(max(row)) for row in rows]
    pairs = [(max(row), float(w == y)) for row, w, y in zip(rows, winners, labels, strict=True)]
    groups = slow_binned(pairs)
    right = sum(correct for _, correct in pairs) / n
    nats = sum(-p * math.log(p) for row in rows for p in row if p > 0) / n
    return {
        "accuracy": right,
        "brier": sum((c - h) ** 2 for c, h in pairs) / n,
        "ece": slow_ece(groups),
        "mc_brier": sum((p - (j == y)) ** 2 for row, y in zip(rows, labels, strict=True) for j, p in enumerate(row))
        / n,
        "nll": -sum(math.log(max(row[y], tiny)) for row, y in zip(rows, labels, strict=True)) / n,
        "entropy": nats / math.log(2) / k,
        "mce": max(abs(slow_gap(group)) for group in groups),
        "classwise_ece": sum(
            slow_ece(slow_binned([(row[j], float(y == j)) for row, y in zip(rows, labels, strict=True)]))
            for j in range(k)
        )
        / k,
        "adaptive_ece": slow_ece(slow_equal_mass(pairs)),
        "debiased_ece": slow_debiased(groups),
        "shannon_entropy": nats,
        "brier_reliability": sum(len(g) * slow_gap(g) ** 2 for g in groups) / n,
        "brier_resolution": sum(len(g) * (sum(h for _, h in g) / len(g) - right) ** 2 for g in groups) / n,
        "brier_uncertainty": right * (1 - right),
        "aurc": slow_aurc(pairs),
    }


# --- Inputs -----------------------------------------------------------------------------------------------------------


def sample(n: int = 500, k: int = 5, *, scale: float = 2.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    """An over-confident classifier, in float64."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(k, (n,), generator=draw)
    logits = torch.randn(n, k, generator=draw, dtype=torch.float64)
    logits[torch.arange(n), labels] += 1
    return (scale * logits).softmax(1), labels


@st.composite
def cases(draw: st.DrawFn) -> tuple[Tensor, list[int]]:
    """Probabilities in multiples of 1/15, so with ties, exact edges and one-hot rows, or as a softmax gives them."""
    n, k = draw(st.integers(1, 12)), draw(st.integers(2, 4))
    labels = draw(st.lists(st.integers(0, k - 1), min_size=n, max_size=n))
    dtype = draw(st.sampled_from([torch.float16, torch.float32, torch.float64]))
    if draw(st.booleans()):
        cuts = [sorted(draw(st.lists(st.integers(0, 15), min_size=k - 1, max_size=k - 1))) for _ in range(n)]
        probs = [[(b - a) / 15 for a, b in zip([0, *cut], [*cut, 15], strict=True)] for cut in cuts]
        return torch.tensor(probs, dtype=torch.float64).to(dtype), labels
    logits = draw(st.lists(st.floats(-20, 20), min_size=n * k, max_size=n * k))
    return torch.tensor(logits, dtype=torch.float64).reshape(n, k).softmax(1).to(dtype), labels


# --- Definitions ------------------------------------------------------------------------------------------------------


@given(cases())
@settings(deadline=None, max_examples=100)
def test_every_metric_equals_its_formula_written_as_a_loop(case: tuple[Tensor, list[int]]) -> None:
    probs, labels = case
    expected = slow(probs, labels)
    assert list(expected) == SUMMED
    assert evaluate(probs, labels, metrics=SUMMED) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_metric_equals_its_formula_on_an_ordinary_sample(dtype: torch.dtype) -> None:
    probs, labels = sample(200)
    probs = probs.to(dtype)
    assert evaluate(probs, labels, metrics=SUMMED) == pytest.approx(slow(probs, labels.tolist()), abs=1e-12)


@pytest.mark.parametrize(("n", "gap"), [(1, 0.1), (3, 0.0), (20, 0.1), (40, 0.0)])
def test_smooth_ece_equals_gaussians_that_are_added_one_by_one(n: int, gap: float) -> None:
    draw = torch.Generator().manual_seed(n)
    confidence = 0.5 + 0.5 * torch.rand(n, generator=draw, dtype=torch.float64) ** 0.5
    correct = torch.rand(n, generator=draw, dtype=torch.float64) < confidence - gap
    probs = torch.stack([confidence, 1 - confidence], 1)
    found = metrics.smooth_ece(probs, (~correct).long())
    assert found == pytest.approx(reference.smooth_ece(confidence.tolist(), correct.tolist(), 1000), rel=1e-4)


def test_smooth_ece_equals_that_of_its_authors() -> None:
    relplot = pytest.importorskip(
        "relplot", reason="relplot, the library of the authors of smooth ECE, is not installed"
    )
    probs, labels = sample(2000)
    confidence, winner = probs.max(1)
    theirs = relplot.smECE(confidence.numpy(), (winner == labels).double().numpy())
    assert metrics.smooth_ece(probs, labels) == pytest.approx(theirs, abs=2e-3)


@given(cases())
@settings(deadline=None, max_examples=50)
def test_smooth_ece_lies_between_the_gap_of_all_images_and_that_of_each(case: tuple[Tensor, list[int]]) -> None:
    probs, labels = case
    confidence, winner = probs.double().max(1)
    gaps = (winner == torch.tensor(labels)).double() - confidence
    found = metrics.smooth_ece(probs, labels)
    assert gaps.mean().abs().item() - 1e-4 <= found <= gaps.abs().mean().item() + 1e-4


def test_smooth_ece_does_not_jump_where_a_confidence_crosses_the_edge_of_a_bin() -> None:
    def measured(name: str, step: float) -> float:
        probs = torch.tensor([[0.8 + step, 0.2 - step]] * 4 + [[0.79, 0.21]] * 4, dtype=torch.float64)
        return METRICS[name](probs, [0] * 4 + [1] * 4)

    assert abs(measured("ece", 1e-6) - measured("ece", -1e-6)) > 0.1
    assert abs(measured("smooth_ece", 1e-6) - measured("smooth_ece", -1e-6)) < 1e-5


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_alone_says_what_evaluate_says(name: str) -> None:
    probs, labels = sample(50)
    value = METRICS[name](probs, labels)
    assert type(value) is float
    assert value == evaluate(probs, labels)[name] == getattr(metrics, name)(probs, labels)


def test_the_papers_metrics_come_first_and_each_has_a_direction() -> None:
    assert list(METRICS)[:6] == ["accuracy", "brier", "ece", "mc_brier", "nll", "entropy"]
    assert list(DIRECTION) == list(METRICS)
    assert {name for name, better in DIRECTION.items() if better == "higher"} == {"accuracy", "brier_resolution"}
    assert {name for name, better in DIRECTION.items() if better is None} == UNLABELLED | {"brier_uncertainty"}


def test_numbers_worked_out_by_hand() -> None:
    probs = torch.tensor([[0.5, 0.25, 0.25], [0.125, 0.75, 0.125], [1.0, 0.0, 0.0], [0.25, 0.25, 0.5]])
    found = evaluate(probs, [0, 1, 0, 0])
    assert found["accuracy"] == 0.75
    assert found["brier"] == (0.25 + 0.0625 + 0 + 0.25) / 4
    assert found["mc_brier"] == (0.375 + 0.09375 + 0 + 0.875) / 4
    assert found["ece"] == (abs(1 - 2 * 0.5) + 0.25 + 0) / 4  # the two of 0.5 share a bin and are half right
    assert found["nll"] == pytest.approx((math.log(2) + math.log(4 / 3) + 0 + math.log(4)) / 4)
    sure = 0.75 * math.log2(4 / 3) + 2 * 0.125 * 3  # bits in the second row; 1.5 in the first and the last
    assert found["shannon_entropy"] == pytest.approx((1.5 + sure + 0 + 1.5) / 4 * math.log(2))


def test_entropy_is_base_2_divided_by_the_number_of_classes() -> None:
    found = evaluate(torch.full((3, 8), 1 / 8))
    assert found["entropy"] == pytest.approx(3 / 8)
    assert found["shannon_entropy"] == pytest.approx(math.log(8))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_nll_of_an_impossible_label_is_finite_and_set_by_the_dtype(dtype: torch.dtype) -> None:
    probs = torch.tensor([[1.0, 0.0]], dtype=dtype)
    assert metrics.nll(probs, [1]) == pytest.approx(-math.log(torch.finfo(dtype).tiny))
    assert metrics.nll(probs, [0]) == 0


def test_the_debiased_ece_takes_off_a_good_part_of_the_bias_of_a_calibrated_classifier() -> None:
    draw = torch.Generator().manual_seed(0)
    plain, debiased = [], []
    for _ in range(50):
        top = torch.rand(300, generator=draw, dtype=torch.float64) / 2 + 0.5
        labels = (torch.rand(300, generator=draw) > top).long()
        found = evaluate(torch.stack([top, 1 - top], 1), labels, metrics=["ece", "debiased_ece"])
        plain.append(found["ece"])
        debiased.append(found["debiased_ece"])
    assert 0 < np.mean(debiased) < 0.65 * np.mean(plain)  # the truth is 0; the gap observed already holds the noise


def test_the_folded_normal_mean_is_the_average_of_draws() -> None:
    probs, labels = sample(40, 3, scale=0.7)
    b = bins(*tops(probs, labels))
    b = Bins(b.edges, *(x[b.counts > 0] for x in (b.counts, b.confidence, b.accuracy)))
    draw = torch.Generator().manual_seed(0)
    noise = torch.randn(400_000, b.counts.shape[0], generator=draw, dtype=torch.float64)
    gap, sigma = b.accuracy - b.confidence, (b.accuracy * (1 - b.accuracy) / b.counts).sqrt()
    bias = (gap + sigma * noise).abs().mean(0) - gap.abs()
    expected = (b.counts * (gap.abs() - bias)).sum() / b.counts.sum()
    assert metrics.debiased_ece(probs, labels) == pytest.approx(expected.item(), abs=1e-3)


def test_brier_splits_exactly_where_confidence_is_constant_in_each_bin() -> None:
    draw = torch.Generator().manual_seed(0)
    top = torch.tensor([0.55, 0.7, 0.75, 0.95], dtype=torch.float64)[torch.randint(4, (300,), generator=draw)]
    probs, labels = torch.stack([top, 1 - top], 1), torch.randint(2, (300,), generator=draw)
    found = evaluate(probs, labels)
    parts = found["brier_reliability"] - found["brier_resolution"] + found["brier_uncertainty"]
    assert found["brier"] == pytest.approx(parts, abs=1e-12)
    smooth = evaluate(*sample(2000, 2))
    parts = smooth["brier_reliability"] - smooth["brier_resolution"] + smooth["brier_uncertainty"]
    assert smooth["brier"] != parts
    assert smooth["brier"] == pytest.approx(parts, abs=2 / 15)


def test_aurc_does_not_depend_on_the_order_of_ties() -> None:
    probs = torch.tensor([[0.8, 0.2]] * 4, dtype=torch.float64)
    values = {metrics.aurc(probs, labels) for labels in ([0, 0, 1, 1], [1, 1, 0, 0], [0, 1, 0, 1])}
    assert len(values) == 1
    assert values.pop() == pytest.approx(0.5)


def test_aurc_is_zero_without_errors_and_one_without_hits() -> None:
    probs, _ = sample(100)
    assert metrics.aurc(probs, probs.argmax(1)) == 0
    assert metrics.aurc(probs, probs.argmin(1)) == pytest.approx(1)


# --- Bins -------------------------------------------------------------------------------------------------------------


def tops(probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    confidence, winner = probs.max(1)
    return confidence, winner == labels


@pytest.mark.parametrize("count", [1, 2, 7, 10, 15, 49, 100])
def test_an_edge_belongs_to_the_bin_below_it(count: int) -> None:
    edges = bins(torch.tensor([0.5]), torch.tensor([True]), count=count).edges
    inner = torch.tensor([float(Fraction(i, count)) for i in range(count + 1)], dtype=torch.float64)
    assert torch.equal(edges, inner)
    assert bin_index(inner, edges).tolist() == [0, *range(count)]
    above = torch.nextafter(inner[:-1], inner.new_tensor(2.0))
    assert bin_index(above, edges).tolist() == list(range(count))


def test_two_tenths_are_in_the_third_of_fifteen_bins_in_float64_and_a_rounding_above_in_float32() -> None:
    edges = bins(torch.tensor([0.5]), torch.tensor([True])).edges
    assert bin_index(torch.tensor([0.2, 0.4, 0.6, 0.8], dtype=torch.float64), edges).tolist() == [2, 5, 8, 11]
    assert bin_index(torch.tensor([0.2]), edges).tolist() == [3]  # which is 0.20000000298


def test_bin_index_keeps_the_shape_and_takes_strided_values() -> None:
    edges = bins(torch.tensor([0.5]), torch.tensor([True])).edges
    values = torch.rand(4, 6, generator=torch.Generator().manual_seed(0)).T
    assert torch.equal(bin_index(values, edges), torch.tensor([[slow_bin(v) for v in row] for row in values.tolist()]))


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


@given(st.lists(st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.7, 0.99, 1.0]), min_size=1, max_size=40), st.integers(1, 8))
@settings(deadline=None, max_examples=100)
def test_equal_mass_never_parts_ties_and_equals_the_slow_cut(values: list[float], count: int) -> None:
    confidence = torch.tensor(values, dtype=torch.float64)
    b = bins(confidence, torch.ones_like(confidence), count=count, equal_mass=True)
    index = bin_index(confidence, b.edges)
    assert all(index[confidence == v].unique().numel() == 1 for v in values)
    groups = slow_equal_mass([(v, 1.0) for v in values], count)
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


# --- Second opinions --------------------------------------------------------------------------------------------------


def test_torchmetrics_agrees_away_from_the_edges() -> None:
    probs, labels = sample()
    for norm, name in (("l1", "ece"), ("max", "mce")):
        theirs = MulticlassCalibrationError(num_classes=5, n_bins=15, norm=norm)(probs, labels)
        assert METRICS[name](probs, labels) == pytest.approx(theirs.item(), abs=1e-6)
    assert metrics.accuracy(probs, labels) == pytest.approx(
        MulticlassAccuracy(num_classes=5, average="micro")(probs, labels).item(), abs=1e-6
    )


def test_torchmetrics_puts_exact_ones_into_a_sixteenth_bin_and_we_do_not() -> None:
    probs = torch.tensor([[1.0, 0.0], [0.95, 0.05]], dtype=torch.float64)
    labels = torch.tensor([1, 0])  # sure and wrong, nearly sure and right: together in (14/15, 1]
    theirs = {
        norm: MulticlassCalibrationError(num_classes=2, n_bins=15, norm=norm)(probs, labels).item()
        for norm in ("l1", "max")
    }
    assert theirs["l1"] == pytest.approx((1 + 0.05) / 2)  # two bins of one image
    assert theirs["max"] == pytest.approx(1)
    assert metrics.ece(probs, labels) == metrics.mce(probs, labels) == pytest.approx(abs(1 / 2 - 1.95 / 2))


def test_torchmetrics_puts_an_edge_into_the_bin_above() -> None:
    probs = torch.tensor([[0.75, 0.25], [0.7, 0.3]], dtype=torch.float64)
    labels = torch.tensor([0, 1])
    theirs = MulticlassCalibrationError(num_classes=2, n_bins=4, norm="l1")(probs, labels).item()
    assert theirs == pytest.approx((0.25 + 0.7) / 2)  # [0.5, 0.75) and [0.75, 1)
    assert evaluate(probs, labels, metrics=["ece"], count=4)["ece"] == pytest.approx(abs(0.5 - 0.725))  # (0.5, 0.75]


def test_scikit_learn_agrees_on_the_log_loss_and_clips_impossible_labels_higher() -> None:
    probs, labels = sample()
    assert metrics.nll(probs, labels) == pytest.approx(log_loss(labels, probs.numpy(), labels=range(5)))
    impossible = np.array([[1.0, 0.0]])
    assert log_loss([1], impossible, labels=[0, 1]) == pytest.approx(-math.log(np.finfo(np.float64).eps))
    assert metrics.nll(impossible, [1]) == pytest.approx(-math.log(np.finfo(np.float64).tiny))


def test_scikit_learn_agrees_on_both_brier_scores() -> None:
    probs, labels = sample()
    confidence, correct = tops(probs, labels)
    assert metrics.brier(probs, labels) == pytest.approx(brier_score_loss(correct, confidence))
    assert metrics.mc_brier(probs, labels) == pytest.approx(
        brier_score_loss(labels, probs.numpy(), labels=range(5), scale_by_half=False)
    )


def test_scikit_learn_agrees_on_the_calibration_curve_but_for_edges_it_rounds() -> None:
    confidence, correct = tops(*sample())
    b = bins(confidence, correct)
    accuracy, mean = calibration_curve(correct, confidence, n_bins=15)
    assert b.accuracy[b.counts > 0].numpy() == pytest.approx(accuracy)
    assert b.confidence[b.counts > 0].numpy() == pytest.approx(mean)
    pair = np.array([5 / 7, 5.5 / 7])  # the upper edge of a bin, and the middle of the next
    assert bins(pair, np.array([0, 1]), count=7).counts.tolist() == [0, 0, 0, 0, 1, 1, 0]
    assert np.linspace(0, 1, 8)[5] < 5 / 7  # a multiple of a rounded 1/7: the edge slips into the bin above
    assert calibration_curve([0, 1], pair, n_bins=7)[0].tolist() == [0.5]


def test_scikit_learn_agrees_on_the_auroc_with_ties() -> None:
    inside, outside = sample(80, 4, scale=3)[0], sample(60, 4, scale=1, seed=1)[0]
    inside[:20], outside[:10] = torch.eye(4, dtype=torch.float64)[0], torch.eye(4, dtype=torch.float64)[2]
    outside[10:20] = 0.25
    entropies = [torch.special.entr(p).sum(1) for p in (inside, outside)]
    expected = roc_auc_score([0] * 80 + [1] * 60, torch.cat(entropies))
    assert ood_auroc(inside, outside) == pytest.approx(expected, abs=1e-12)
    assert ood_auroc(inside, inside) == 0.5
    assert ood_auroc(inside, outside) + ood_auroc(outside, inside) == pytest.approx(1)


def test_class_changes_counts_rows_and_the_first_of_equals_is_the_class() -> None:
    base = np.array([[0.6, 0.4], [0.5, 0.5], [0.1, 0.9]])
    assert class_changes(base, base) == 0
    assert class_changes(np.array([[0.5, 0.5], [0.5, 0.5], [0.9, 0.1]]), base) == 1
    assert class_changes(torch.tensor([[0.4, 0.6], [0.4, 0.6], [0.9, 0.1]]), base) == 3


# --- Laws -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_images_does_not_matter(seed: int) -> None:
    probs, labels = sample(seed=seed)
    order = torch.randperm(500, generator=torch.Generator().manual_seed(seed))
    assert evaluate(probs[order], labels[order]) == pytest.approx(evaluate(probs, labels), abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_classes_does_not_matter(seed: int) -> None:
    probs, labels = sample(seed=seed)
    order = torch.randperm(5, generator=torch.Generator().manual_seed(seed))
    assert evaluate(probs[:, order], order.argsort()[labels]) == pytest.approx(evaluate(probs, labels), abs=1e-12)


def test_every_kind_of_array_is_the_same_input() -> None:
    probs, labels = sample(30)
    expected = evaluate(probs, labels)
    frozen = probs.numpy().copy()
    frozen.flags.writeable = False
    assert evaluate(probs.numpy(), labels.numpy().astype(np.uint8)) == expected
    assert evaluate(frozen, tuple(labels.tolist())) == expected
    assert evaluate(np.asfortranarray(probs.numpy()), labels.int()) == expected
    assert evaluate(probs.numpy()[::-1], labels.numpy()[::-1]) == pytest.approx(expected, abs=1e-12)
    assert evaluate(probs.clone().requires_grad_(), labels.tolist()) == expected


def test_the_input_is_left_as_it_was() -> None:
    probs, labels = sample(30)
    before = probs.clone()
    evaluate(probs, labels)
    Sums(5).update(probs, labels)
    assert torch.equal(probs, before)


def test_classes_absent_from_the_labels_count() -> None:
    probs, _ = sample(60, 30)
    labels = [y % 10 for y in range(60)]
    assert evaluate(probs, labels, metrics=SUMMED) == pytest.approx(slow(probs, labels), abs=1e-12)


def test_the_size_of_the_chunks_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    probs, labels = sample()
    whole = evaluate(probs, labels), ood_auroc(probs, probs[:50]), class_changes(probs, probs.roll(1, 0))
    for size in (37, 1000):
        monkeypatch.setattr(metrics, "CHUNK", size)
        chunked = evaluate(probs, labels), ood_auroc(probs, probs[:50]), class_changes(probs, probs.roll(1, 0))
        assert chunked[0] == pytest.approx(whole[0], abs=1e-12)
        assert chunked[1:] == whole[1:]


def test_values_a_rounding_outside_the_unit_interval_are_clamped() -> None:
    found = evaluate(torch.tensor([[1.00005, -0.00005]], dtype=torch.float64), [0])
    assert found == evaluate(torch.tensor([[1.0, 0.0]], dtype=torch.float64), [0])


def test_unnormalised_rows_pass_when_they_are_announced() -> None:
    probs, labels = torch.tensor([[0.9, 0.9, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64), [1, 0]
    found = evaluate(probs, labels, simplex=False, metrics=SUMMED)
    assert found == pytest.approx(slow(probs, labels), abs=1e-12)
    assert metrics.brier(probs, labels, simplex=False) == pytest.approx((0.81 + 1) / 2)


def test_without_labels_there_are_the_entropies() -> None:
    probs, labels = sample(20)
    assert set(evaluate(probs)) == UNLABELLED
    assert evaluate(probs) == {name: evaluate(probs, labels)[name] for name in evaluate(probs)}
    assert Sums(5).update(probs).compute() == evaluate(probs)
    assert metrics.entropy(probs) == evaluate(probs)["entropy"]


def test_named_metrics_come_in_the_order_named() -> None:
    probs, labels = sample(20)
    assert list(evaluate(probs, labels, metrics=("nll", "ece"))) == ["nll", "ece"]
    assert list(evaluate(probs, labels, metrics="nll")) == ["nll"]
    assert evaluate(probs, labels, metrics=[]) == {}


# --- Sums -------------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 60), max_size=4), st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=15)
def test_the_sums_of_any_partition_merge_into_those_of_the_whole(cuts: list[int], random: object) -> None:
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
def test_sums_keep_the_ranked_metrics_within_the_bound_they_state(scale: float, honest: bool) -> None:
    probs, labels = sample(10_000, scale=scale)
    if honest:  # labels as likely as said: the bins' gaps then have either sign, and do not merely add up
        labels = probs.multinomial(1, generator=torch.Generator().manual_seed(0))[:, 0]
    sums = Sums(5).update(probs, labels)
    exact, close = evaluate(probs, labels), sums.compute()

    mass = [int(m) for m in sums.state["cells"][0].tolist() if m]
    n, start, cut = sum(mass), 0, 0
    for m in mass:  # a cell is cut by a quantile when its first and last image belong to different bins
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


def test_input_that_is_refused_leaves_the_sums_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "CHUNK", 5)
    probs, labels = sample(10)
    sums = Sums(5).update(probs, labels)
    before = sums.compute()
    probs[9, 0] = math.nan
    with pytest.raises(InputError, match="nan in row 9"):
        sums.update(probs, labels)
    assert sums.compute() == before


# --- Sentences --------------------------------------------------------------------------------------------------------

GOOD = torch.tensor([[0.5, 0.5], [0.25, 0.75]])
NOT_PROBABILITIES = r"these are not probabilities; if they are logits, take their softmax first"


@pytest.mark.parametrize(
    ("probs", "labels", "sentence"),
    [
        (torch.ones(3), [0], r"probs: expected images × classes, at least 1 × 1, got shape \(3,\)"),
        (torch.ones(0, 3), [], r"probs: expected images × classes, at least 1 × 1, got shape \(0, 3\)"),
        (torch.ones(2, 0), [0, 0], r"got shape \(2, 0\)"),
        (torch.ones(2, 1, dtype=torch.int64), [0, 0], r"probs: expected floating point numbers, got torch.int64"),
        (np.array([["a", "b"]]), [0], r"probs: expected an array of numbers, got ndarray"),
        (torch.tensor([[0.5, 0.5], [math.nan, 1]]), [0, 0], r"probs: expected finite numbers, got nan in row 1"),
        (torch.tensor([[0.5, 0.5], [0.0, math.inf]]), [0, 0], r"probs: expected finite numbers, got inf in row 1"),
        (torch.tensor([[0.5, 0.5], [-2.0, 3.0]]), [0, 0], r"in \[0, 1\], got -2 in row 1: " + NOT_PROBABILITIES),
        (torch.tensor([[0.0, 1.001]]), [0], r"in \[0, 1\], got 1.001 in row 0: " + NOT_PROBABILITIES),
        (torch.tensor([[0.5, 0.5], [0.5, 0.4]]), [0, 0], r"rows that sum to 1, got a sum of 0.9 in row 1 \(simplex=F"),
        (GOOD, [0], r"labels: expected one for each of 2 images, got shape \(1,\)"),
        (GOOD, [], r"labels: expected one for each of 2 images, got shape \(0,\)"),
        (GOOD, [[0], [1]], r"labels: expected one for each of 2 images, got shape \(2, 1\)"),
        (GOOD, [0, 2], r"labels: expected integers in 0..1, got 2 in row 1"),
        (GOOD, [-1, 0], r"labels: expected integers in 0..1, got -1 in row 0"),
        (GOOD, [0.0, 1.0], r"labels: expected integers in 0..1, got torch.float64"),
        (GOOD, [True, False], r"labels: expected integers in 0..1, got torch.bool"),
        (GOOD, ["cat", "dog"], r"labels: expected an array of numbers, got list"),
        (GOOD, [[0], [1, 2]], r"labels: expected an array of numbers, got list"),
    ],
)
def test_the_door_says_what_it_expected_and_what_came(probs: Tensor, labels: list[int], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        evaluate(probs, labels)
    with pytest.raises(InputError, match=sentence):
        Sums(probs.shape[-1]).update(probs, labels)
    with pytest.raises(InputError, match=sentence):
        metrics.brier(probs, labels)


def test_the_row_in_a_sentence_is_that_of_the_whole_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "CHUNK", 4)
    for value, sentence in ((math.nan, "nan in row 7"), (5.0, "5 in row 7"), (0.9, "sum of 1.4 in row 7")):
        probs = torch.full((9, 2), 0.5)
        probs[7, 1] = value
        with pytest.raises(InputError, match=sentence):
            evaluate(probs)


def test_an_unknown_metric_is_told_its_nearest_neighbour() -> None:
    for call in (lambda: evaluate(GOOD, [0, 1], metrics=["brie"]), lambda: Sums(2, metrics=["brie"])):
        with pytest.raises(InputError, match=r"got 'brie'; did you mean 'brier'\?"):
            call()


def test_a_metric_that_needs_labels_asks_for_them() -> None:
    with pytest.raises(InputError, match="labels: expected for ece, got None"):
        evaluate(GOOD, metrics=["entropy", "ece"])
    with pytest.raises(InputError, match="labels: expected for nll, got None"):
        metrics.nll(GOOD)


def test_sums_say_what_does_not_belong_together() -> None:
    with pytest.raises(InputError, match="probs: expected 3 classes, got 2"):
        Sums(3).update(GOOD, [0, 1])
    with pytest.raises(InputError, match=r"merge: expected sums of the same \(classes, count, metrics\)"):
        Sums(3).merge(Sums(3, count=10))
    with pytest.raises(InputError, match="got 0 labels for 0 images"):
        Sums(3).compute()
    with pytest.raises(InputError, match="labels for all or none, got 2 labels for 4 images"):
        Sums(2).update(GOOD, [0, 1]).update(GOOD).compute()


def test_bins_and_pairs_of_probabilities_have_a_door_too() -> None:
    half, one = torch.tensor([0.5]), torch.tensor([1.0])
    with pytest.raises(InputError, match="count: expected at least 1 bin, got 0"):
        bins(half, one, count=0)
    with pytest.raises(InputError, match=r"got shapes \(1,\) and \(2,\)"):
        bins(half, torch.ones(2))
    with pytest.raises(InputError, match=r"got shapes \(0,\) and \(0,\)"):
        bins(torch.ones(0), torch.ones(0))
    with pytest.raises(InputError, match=r"confidence: expected values in \[0, 1\], got 7 in row 0"):
        bins(7 * one, one)
    with pytest.raises(InputError, match=r"correct: expected finite numbers, got nan in row 0"):
        bins(half, math.nan * one)
    with pytest.raises(InputError, match="probs_out: expected 2 classes as in probs_in, got 5"):
        ood_auroc(GOOD, sample(3)[0])
    with pytest.raises(InputError, match=r"base: expected shape \(2, 2\) as probs, got \(3, 5\)"):
        class_changes(GOOD, sample(3)[0])
