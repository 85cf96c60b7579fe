"""Compare the metrics with loops, with scikit-learn and torchmetrics, and with their own laws."""

import math

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
from atta._base.errors import InputError
from atta.metrics.binning import Bins, bins
from atta.metrics.scores import METRICS, Sums, class_changes, evaluate, ood_auroc
from atta.results.words import DIRECTION
from scenarios import answers as sample
from scenarios import tops

SUMMED = [name for name in METRICS if name != "smooth_ece"]  # which a loop gives to the last digits
UNLABELLED = {"entropy", "shannon_entropy"}
GOOD = torch.tensor([[0.5, 0.5], [0.25, 0.75]])


# --- Inputs -----------------------------------------------------------------------------------


@st.composite
def cases(draw: st.DrawFn) -> tuple[Tensor, list[int]]:
    """Probabilities in multiples of 1/15, with ties, exact edges and one-hot rows, or softmax."""
    n, k = draw(st.integers(1, 12)), draw(st.integers(2, 4))
    labels = draw(st.lists(st.integers(0, k - 1), min_size=n, max_size=n))
    dtype = draw(st.sampled_from([torch.float16, torch.float32, torch.float64]))
    if draw(st.booleans()):
        cuts = [
            sorted(draw(st.lists(st.integers(0, 15), min_size=k - 1, max_size=k - 1)))
            for _ in range(n)
        ]
        probs = [[(b - a) / 15 for a, b in zip([0, *cut], [*cut, 15], strict=True)] for cut in cuts]
        return torch.tensor(probs, dtype=torch.float64).to(dtype), labels
    logits = draw(st.lists(st.floats(-20, 20), min_size=n * k, max_size=n * k))
    return torch.tensor(logits, dtype=torch.float64).reshape(n, k).softmax(1).to(dtype), labels


# --- Definitions ------------------------------------------------------------------------------


@given(cases())
@settings(deadline=None, max_examples=100)
def test_every_metric_equals_its_formula_written_as_a_loop(case: tuple[Tensor, list[int]]) -> None:
    probs, labels = case
    expected = reference.metrics(probs, labels)
    assert list(expected) == SUMMED
    assert evaluate(probs, labels, metrics=SUMMED) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_metric_equals_its_formula_on_an_ordinary_sample(dtype: torch.dtype) -> None:
    probs, labels = sample(200)
    probs = probs.to(dtype)
    assert evaluate(probs, labels, metrics=SUMMED) == pytest.approx(
        reference.metrics(probs, labels.tolist()), abs=1e-12
    )


@pytest.mark.parametrize(("n", "gap"), [(1, 0.1), (3, 0.0), (20, 0.1), (40, 0.0)])
def test_smooth_ece_equals_gaussians_that_are_added_one_by_one(n: int, gap: float) -> None:
    draw = torch.Generator().manual_seed(n)
    confidence = 0.5 + 0.5 * torch.rand(n, generator=draw, dtype=torch.float64) ** 0.5
    correct = torch.rand(n, generator=draw, dtype=torch.float64) < confidence - gap
    probs = torch.stack([confidence, 1 - confidence], 1)
    found = METRICS["smooth_ece"](probs, (~correct).long())
    assert found == pytest.approx(
        reference.smooth_ece(confidence.tolist(), correct.tolist(), 1000), rel=1e-4
    )


def test_smooth_ece_equals_that_of_its_authors() -> None:
    relplot = pytest.importorskip(
        "relplot", reason="relplot, the library of the authors of smooth ECE, is not installed"
    )
    probs, labels = sample(2000)
    confidence, winner = probs.max(1)
    theirs = relplot.smECE(confidence.numpy(), (winner == labels).double().numpy())
    assert METRICS["smooth_ece"](probs, labels) == pytest.approx(theirs, abs=2e-3)


@given(cases())
@settings(deadline=None, max_examples=50)
def test_smooth_ece_lies_between_the_gap_of_all_images_and_that_of_each(
    case: tuple[Tensor, list[int]],
) -> None:
    probs, labels = case
    confidence, winner = probs.double().max(1)
    gaps = (winner == torch.tensor(labels)).double() - confidence
    found = METRICS["smooth_ece"](probs, labels)
    assert gaps.mean().abs().item() - 1e-4 <= found <= gaps.abs().mean().item() + 1e-4


def test_smooth_ece_does_not_jump_where_a_confidence_crosses_the_edge_of_a_bin() -> None:
    def measured(name: str, step: float) -> float:
        probs = torch.tensor(
            [[0.8 + step, 0.2 - step]] * 4 + [[0.79, 0.21]] * 4, dtype=torch.float64
        )
        return METRICS[name](probs, [0] * 4 + [1] * 4)

    assert abs(measured("ece", 1e-6) - measured("ece", -1e-6)) > 0.1
    assert abs(measured("smooth_ece", 1e-6) - measured("smooth_ece", -1e-6)) < 1e-5


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_alone_says_what_evaluate_says(name: str) -> None:
    probs, labels = sample(50)
    value = METRICS[name](probs, labels)
    assert type(value) is float
    assert value == evaluate(probs, labels)[name]


def test_the_papers_metrics_come_first_and_each_has_a_direction() -> None:
    assert list(METRICS)[:6] == ["accuracy", "brier", "ece", "mc_brier", "nll", "entropy"]
    assert list(DIRECTION) == list(METRICS)
    assert {name for name, better in DIRECTION.items() if better == "higher"} == {
        "accuracy",
        "brier_resolution",
        *("answered_0.5", "answered_1", "answered_2", "answered_5"),
    }
    assert {name for name, better in DIRECTION.items() if better is None} == UNLABELLED | {
        "brier_uncertainty"
    }


def test_numbers_worked_out_by_hand() -> None:
    probs = torch.tensor(
        [[0.5, 0.25, 0.25], [0.125, 0.75, 0.125], [1.0, 0.0, 0.0], [0.25, 0.25, 0.5]]
    )
    found = evaluate(probs, [0, 1, 0, 0])
    assert found["accuracy"] == 0.75
    assert found["brier"] == (0.25 + 0.0625 + 0 + 0.25) / 4
    assert found["mc_brier"] == (0.375 + 0.09375 + 0 + 0.875) / 4
    assert (
        found["ece"] == (abs(1 - 2 * 0.5) + 0.25 + 0) / 4
    )  # the two of 0.5 share a bin and are half right
    assert found["nll"] == pytest.approx((math.log(2) + math.log(4 / 3) + 0 + math.log(4)) / 4)
    sure = (
        0.75 * math.log2(4 / 3) + 2 * 0.125 * 3
    )  # bits in the second row; 1.5 in the first and the last
    assert found["shannon_entropy"] == pytest.approx((1.5 + sure + 0 + 1.5) / 4 * math.log(2))


def test_entropy_is_base_2_divided_by_the_number_of_classes() -> None:
    found = evaluate(torch.full((3, 8), 1 / 8))
    assert found["entropy"] == pytest.approx(3 / 8)
    assert found["shannon_entropy"] == pytest.approx(math.log(8))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_nll_of_an_impossible_label_is_finite_and_set_by_the_dtype(dtype: torch.dtype) -> None:
    probs = torch.tensor([[1.0, 0.0]], dtype=dtype)
    assert METRICS["nll"](probs, [1]) == pytest.approx(-math.log(torch.finfo(dtype).tiny))
    assert METRICS["nll"](probs, [0]) == 0


def test_the_debiased_ece_takes_off_a_good_part_of_the_bias_of_a_calibrated_classifier() -> None:
    draw = torch.Generator().manual_seed(0)
    plain, debiased = [], []
    for _ in range(50):
        top = torch.rand(300, generator=draw, dtype=torch.float64) / 2 + 0.5
        labels = (torch.rand(300, generator=draw) > top).long()
        found = evaluate(torch.stack([top, 1 - top], 1), labels, metrics=["ece", "debiased_ece"])
        plain.append(found["ece"])
        debiased.append(found["debiased_ece"])
    assert (
        0 < np.mean(debiased) < 0.65 * np.mean(plain)
    )  # the truth is 0; the gap observed already holds the noise


def test_the_folded_normal_mean_is_the_average_of_draws() -> None:
    probs, labels = sample(40, 3, scale=0.7)
    b = bins(*tops(probs, labels))
    b = Bins(b.edges, *(x[b.counts > 0] for x in (b.counts, b.confidence, b.accuracy)))
    draw = torch.Generator().manual_seed(0)
    noise = torch.randn(400_000, b.counts.shape[0], generator=draw, dtype=torch.float64)
    gap, sigma = b.accuracy - b.confidence, (b.accuracy * (1 - b.accuracy) / b.counts).sqrt()
    bias = (gap + sigma * noise).abs().mean(0) - gap.abs()
    expected = (b.counts * (gap.abs() - bias)).sum() / b.counts.sum()
    assert METRICS["debiased_ece"](probs, labels) == pytest.approx(expected.item(), abs=1e-3)


def test_brier_splits_exactly_where_confidence_is_constant_in_each_bin() -> None:
    draw = torch.Generator().manual_seed(0)
    top = torch.tensor([0.55, 0.7, 0.75, 0.95], dtype=torch.float64)[
        torch.randint(4, (300,), generator=draw)
    ]
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
    values = {
        METRICS["aurc"](probs, labels) for labels in ([0, 0, 1, 1], [1, 1, 0, 0], [0, 1, 0, 1])
    }
    assert len(values) == 1
    assert values.pop() == pytest.approx(0.5)


def test_aurc_is_zero_without_errors_and_one_without_hits() -> None:
    probs, _ = sample(100)
    assert METRICS["aurc"](probs, probs.argmax(1)) == 0
    assert METRICS["aurc"](probs, probs.argmin(1)) == pytest.approx(1)


# --- Second opinions --------------------------------------------------------------------------


def test_torchmetrics_agrees_away_from_the_edges() -> None:
    probs, labels = sample()
    for norm, name in (("l1", "ece"), ("max", "mce")):
        theirs = MulticlassCalibrationError(num_classes=5, n_bins=15, norm=norm)(probs, labels)
        assert METRICS[name](probs, labels) == pytest.approx(theirs.item(), abs=1e-6)
    assert METRICS["accuracy"](probs, labels) == pytest.approx(
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
    assert (
        METRICS["ece"](probs, labels)
        == METRICS["mce"](probs, labels)
        == pytest.approx(abs(1 / 2 - 1.95 / 2))
    )


def test_torchmetrics_puts_an_edge_into_the_bin_above() -> None:
    probs = torch.tensor([[0.75, 0.25], [0.7, 0.3]], dtype=torch.float64)
    labels = torch.tensor([0, 1])
    theirs = MulticlassCalibrationError(num_classes=2, n_bins=4, norm="l1")(probs, labels).item()
    assert theirs == pytest.approx((0.25 + 0.7) / 2)  # [0.5, 0.75) and [0.75, 1)
    assert evaluate(probs, labels, metrics=["ece"], count=4)["ece"] == pytest.approx(
        abs(0.5 - 0.725)
    )  # (0.5, 0.75]


def test_scikit_learn_agrees_on_the_log_loss_and_clips_impossible_labels_higher() -> None:
    probs, labels = sample()
    assert METRICS["nll"](probs, labels) == pytest.approx(
        log_loss(labels, probs.numpy(), labels=range(5))
    )
    impossible = np.array([[1.0, 0.0]])
    assert log_loss([1], impossible, labels=[0, 1]) == pytest.approx(
        -math.log(np.finfo(np.float64).eps)
    )
    assert METRICS["nll"](impossible, [1]) == pytest.approx(-math.log(np.finfo(np.float64).tiny))


def test_scikit_learn_agrees_on_both_brier_scores() -> None:
    probs, labels = sample()
    confidence, correct = tops(probs, labels)
    assert METRICS["brier"](probs, labels) == pytest.approx(brier_score_loss(correct, confidence))
    assert METRICS["mc_brier"](probs, labels) == pytest.approx(
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
    assert (
        np.linspace(0, 1, 8)[5] < 5 / 7
    )  # a multiple of a rounded 1/7: the edge slips into the bin above
    assert calibration_curve([0, 1], pair, n_bins=7)[0].tolist() == [0.5]


def test_scikit_learn_agrees_on_the_auroc_with_ties() -> None:
    inside, outside = sample(80, 4, scale=3)[0], sample(60, 4, scale=1, seed=1)[0]
    inside[:20], outside[:10] = (
        torch.eye(4, dtype=torch.float64)[0],
        torch.eye(4, dtype=torch.float64)[2],
    )
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


def test_class_changes_go_by_the_logits_where_their_softmax_is_a_tie() -> None:
    logits = torch.tensor([[0.0, 1e-9], [3.0, 3.0]])
    probs = logits.softmax(dim=1)
    assert probs.argmax(dim=1).tolist() == [0, 0]
    assert class_changes(probs, logits) == 1


# --- Laws -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_images_does_not_matter(seed: int) -> None:
    probs, labels = sample(seed=seed)
    order = torch.randperm(500, generator=torch.Generator().manual_seed(seed))
    assert evaluate(probs[order], labels[order]) == pytest.approx(
        evaluate(probs, labels), abs=1e-12
    )


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_classes_does_not_matter(seed: int) -> None:
    probs, labels = sample(seed=seed)
    order = torch.randperm(5, generator=torch.Generator().manual_seed(seed))
    assert evaluate(probs[:, order], order.argsort()[labels]) == pytest.approx(
        evaluate(probs, labels), abs=1e-12
    )


def test_classes_absent_from_the_labels_count() -> None:
    probs, _ = sample(60, 30)
    labels = [y % 10 for y in range(60)]
    assert evaluate(probs, labels, metrics=SUMMED) == pytest.approx(
        reference.metrics(probs, labels), abs=1e-12
    )


def test_unnormalised_rows_pass_when_they_are_announced() -> None:
    probs, labels = torch.tensor([[0.9, 0.9, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64), [1, 0]
    found = evaluate(probs, labels, simplex=False, metrics=SUMMED)
    assert found == pytest.approx(reference.metrics(probs, labels), abs=1e-12)
    assert METRICS["brier"](probs, labels, simplex=False) == pytest.approx((0.81 + 1) / 2)


def test_without_labels_there_are_the_entropies() -> None:
    probs, labels = sample(20)
    assert set(evaluate(probs)) == UNLABELLED
    assert evaluate(probs) == {name: evaluate(probs, labels)[name] for name in evaluate(probs)}
    assert Sums(5).update(probs).compute() == evaluate(probs)
    assert METRICS["entropy"](probs) == evaluate(probs)["entropy"]


def test_named_metrics_come_in_the_order_named() -> None:
    probs, labels = sample(20)
    assert list(evaluate(probs, labels, metrics=("nll", "ece"))) == ["nll", "ece"]
    assert list(evaluate(probs, labels, metrics="nll")) == ["nll"]
    assert evaluate(probs, labels, metrics=[]) == {}


def test_an_unknown_metric_is_told_its_nearest_neighbour() -> None:
    for call in (
        lambda: evaluate(GOOD, [0, 1], metrics=["brie"]),
        lambda: Sums(2, metrics=["brie"]),
    ):
        with pytest.raises(InputError, match=r"got 'brie'. Did you mean 'brier'\?"):
            call()


def test_a_metric_that_needs_labels_asks_for_them() -> None:
    with pytest.raises(InputError, match="labels: expected for ece, got None"):
        evaluate(GOOD, metrics=["entropy", "ece"])
    with pytest.raises(InputError, match="labels: expected for nll, got None"):
        METRICS["nll"](GOOD)


def test_two_sets_of_probabilities_have_to_belong_together() -> None:
    with pytest.raises(InputError, match="probs_out: expected 2 classes as in probs_in, got 5"):
        ood_auroc(GOOD, sample(3)[0])
    with pytest.raises(InputError, match=r"logits: expected shape \(2, 2\) as probs, got \(3, 5\)"):
        class_changes(GOOD, sample(3)[0])
