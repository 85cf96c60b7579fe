"""What comes in: every kind of array, checked once, and looked at some images at a time."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from atta._base.errors import InputError
from atta.metrics import per_image
from atta.metrics.scores import METRICS, Sums, class_changes, evaluate, ood_auroc
from scenarios import answers as sample

GOOD = torch.tensor([[0.5, 0.5], [0.25, 0.75]])
NOT_PROBABILITIES = r"these are not probabilities; if they are logits, take their softmax first"


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


def test_metrics_of_confidences_alone_make_no_float64_copy_and_the_others_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    probs, labels = sample(30)
    parts: list[per_image.Images] = []
    looked = per_image.per_image
    monkeypatch.setattr(
        "atta.metrics.scores.per_image",
        lambda *given, **how: map(_kept(parts), looked(*given, **how)),
    )
    every = evaluate(probs, labels)
    made = ["probs" in vars(parts.pop())]
    for name in ("ece", "accuracy", "brier", "nll", "mce", "aurc"):
        assert evaluate(probs, labels, metrics=[name]) == {name: every[name]}
        made.append("probs" in vars(parts.pop()))
    assert made == [True] + [False] * 6


def _kept(parts: list[per_image.Images]) -> Callable[[per_image.Images], per_image.Images]:
    return lambda part: parts.append(part) or part  # type: ignore[func-returns-value]


def test_a_sum_that_float32_rounds_over_the_tolerance_is_judged_in_float64() -> None:
    probs = torch.full((1, 3), (1 + per_image.SUM_TOLERANCE) / 3, dtype=torch.float64)
    for dtype in (torch.float64, torch.float32):
        p = probs.to(dtype)
        if float((p.double().sum() - 1).abs()) > per_image.SUM_TOLERANCE:
            with pytest.raises(InputError, match="sum to 1"):
                evaluate(p)
        else:
            evaluate(p)


def test_the_size_of_the_chunks_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    probs, labels = sample()
    whole = (
        evaluate(probs, labels),
        ood_auroc(probs, probs[:50]),
        class_changes(probs, probs.roll(1, 0)),
    )
    for size in (37, 1000):
        monkeypatch.setattr(per_image, "CHUNK", size)
        chunked = (
            evaluate(probs, labels),
            ood_auroc(probs, probs[:50]),
            class_changes(probs, probs.roll(1, 0)),
        )
        assert chunked[0] == pytest.approx(whole[0], abs=1e-12)
        assert chunked[1:] == whole[1:]


def test_values_a_rounding_outside_the_unit_interval_are_clamped() -> None:
    found = evaluate(torch.tensor([[1.00005, -0.00005]], dtype=torch.float64), [0])
    assert found == evaluate(torch.tensor([[1.0, 0.0]], dtype=torch.float64), [0])


@pytest.mark.parametrize(
    ("probs", "labels", "sentence"),
    [
        (torch.ones(3), [0], r"probs: expected images × classes, at least 1 × 1, got shape \(3,\)"),
        (
            torch.ones(0, 3),
            [],
            r"probs: expected images × classes, at least 1 × 1, got shape \(0, 3\)",
        ),
        (torch.ones(2, 0), [0, 0], r"got shape \(2, 0\)"),
        (
            torch.ones(2, 1, dtype=torch.int64),
            [0, 0],
            r"probs: expected floating point numbers, got torch.int64",
        ),
        (np.array([["a", "b"]]), [0], r"probs: expected an array of numbers, got ndarray"),
        (
            torch.tensor([[0.5, 0.5], [math.nan, 1]]),
            [0, 0],
            r"probs: expected finite numbers, got nan in row 1",
        ),
        (
            torch.tensor([[0.5, 0.5], [0.0, math.inf]]),
            [0, 0],
            r"probs: expected finite numbers, got inf in row 1",
        ),
        (
            torch.tensor([[0.5, 0.5], [-2.0, 3.0]]),
            [0, 0],
            r"in \[0, 1\], got -2 in row 1: " + NOT_PROBABILITIES,
        ),
        (
            torch.tensor([[0.0, 1.001]]),
            [0],
            r"in \[0, 1\], got 1.001 in row 0: " + NOT_PROBABILITIES,
        ),
        (
            torch.tensor([[0.5, 0.5], [0.5, 0.4]]),
            [0, 0],
            r"rows that sum to 1, got a sum of 0.9 in row 1 \(simplex=F",
        ),
        (GOOD, [0], "expected 2 labels, one for each image, got 1"),
        (GOOD, [], "labels must be integers, got torch.float32"),
        (GOOD, [[0], [1]], r"labels must have shape \(images,\), got \(2, 1\)"),
        (GOOD, [0, 2], "labels must lie in 0 … 1, got 2 in row 1"),
        (GOOD, [-1, 0], "labels must lie in 0 … 1, got -1 in row 0"),
        (GOOD, [0.0, 1.0], "labels must be integers, got torch.float32"),
        (GOOD, [True, False], "labels must be integers, got torch.bool"),
        (
            GOOD,
            ["cat", "dog"],
            "labels: expected a list, an array or a tensor of class numbers, got list",
        ),
        (
            GOOD,
            [[0], [1, 2]],
            "labels: expected a list, an array or a tensor of class numbers, got list",
        ),
    ],
)
def test_validation_says_what_it_expected_and_what_came(
    probs: Tensor, labels: list[int], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        evaluate(probs, labels)
    with pytest.raises(InputError, match=sentence):
        Sums(probs.shape[-1]).update(probs, labels)
    with pytest.raises(InputError, match=sentence):
        METRICS["brier"](probs, labels)


def test_the_row_in_a_sentence_is_that_of_the_whole_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(per_image, "CHUNK", 4)
    for value, sentence in (
        (math.nan, "nan in row 7"),
        (5.0, "5 in row 7"),
        (0.9, "sum of 1.4 in row 7"),
    ):
        probs = torch.full((9, 2), 0.5)
        probs[7, 1] = value
        with pytest.raises(InputError, match=sentence):
            evaluate(probs)
