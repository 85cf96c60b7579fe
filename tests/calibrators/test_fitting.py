"""The optimisers on functions whose minimum is known, and how rows are dealt into folds."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from atta.calibrators import fitting
from atta.calibrators.fitting import descend, fold_splits, laplace_smoothing, minimize, nll

seeds = st.integers(0, 2**32 - 1)


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# --- minimize ---------------------------------------------------------------------------------------------------------


@given(seeds, st.integers(1, 6))
@settings(max_examples=25, deadline=None)
def test_finds_the_minimum_of_a_quadratic(seed, size):
    a, b = randn(size, size, seed=seed), randn(size, seed=seed + 1)
    matrix = a @ a.T + torch.eye(size, dtype=torch.float64)
    found = minimize(
        lambda p: p["x"] @ matrix @ p["x"] / 2 - b @ p["x"],
        {"x": torch.zeros(size, dtype=torch.float64)},
    )
    torch.testing.assert_close(found["x"], torch.linalg.solve(matrix, b), rtol=1e-5, atol=1e-5)


def test_finds_the_minimum_at_the_end_of_a_curved_valley():
    start = {
        "x": torch.tensor(-1.2, dtype=torch.float64),
        "y": torch.tensor(1.0, dtype=torch.float64),
    }
    found = minimize(lambda p: (1 - p["x"]) ** 2 + 100 * (p["y"] - p["x"] ** 2) ** 2, start)
    assert found["x"].item() == pytest.approx(1, abs=1e-5)
    assert found["y"].item() == pytest.approx(1, abs=1e-5)


@given(st.floats(-3, 3), st.floats(-1, 0), st.floats(0, 1))
@settings(max_examples=25, deadline=None)
def test_stays_inside_its_bounds_and_reaches_them(target, low, high):
    start = {"x": torch.zeros(2, dtype=torch.float64), "free": torch.zeros((), dtype=torch.float64)}
    found = minimize(
        lambda p: (p["x"] - target).square().sum() + (p["free"] - target) ** 2,
        start,
        {"x": (low, high)},
    )
    expected = min(max(target, low), high)
    assert found["x"].tolist() == pytest.approx([expected] * 2, abs=1e-6)
    assert (found["x"] >= low).all()
    assert (found["x"] <= high).all()
    assert found["free"].item() == pytest.approx(target, abs=1e-6)


@pytest.mark.parametrize("kink", [0.3, -2.0])
def test_finds_the_minimum_at_a_kink(kink):
    """The largest share is a minimum of several lines: the losses of the views' methods have kinks."""
    start = {"x": torch.tensor(1.0, dtype=torch.float64)}
    found = minimize(lambda p: (p["x"] - kink).abs() + 0.1 * p["x"] ** 2, start)
    assert found["x"].item() == pytest.approx(kink, abs=1e-4)


def test_settles_in_the_corner_where_several_kinks_meet():
    """Slopes point along the valley's walls there, and a line search gets stuck on the way."""

    def loss(p):
        x, y = p["x"]
        return 10 * (x - y).abs() + (x + y - 0.6).abs() + torch.maximum(x, 0.3 * y).square()

    found = minimize(
        loss, {"x": torch.tensor([1.0, -2.0], dtype=torch.float64)}, {"x": (-2.0, 1.0)}, polish=True
    )
    slow = min(
        loss({"x": torch.tensor([a / 500, b / 500], dtype=torch.float64)}).item()
        for a in range(100, 200)
        for b in range(100, 200)
    )
    assert loss(found).item() <= slow + 1e-9


def test_float32_data_do_not_keep_it_at_the_start():
    logits, labels = 8 * randn(200, 5).float(), torch.arange(200) % 5
    start = {"b": torch.zeros(5, dtype=torch.float64)}

    def loss(p):
        return torch.nn.functional.cross_entropy(logits + p["b"].float(), labels)

    found = minimize(loss, start, tolerance=1e-7)
    assert loss(found) < loss(start) - 1e-3


def test_keeps_shapes_and_computes_in_float64():
    start = {"a": torch.ones(2, 3), "b": torch.ones(())}
    seen = []

    def loss(p):
        seen.append({name: (value.dtype, value.shape) for name, value in p.items()})
        return p["a"].square().sum() + (p["b"] - 2) ** 2

    found = minimize(loss, start)
    assert found["a"].shape == (2, 3)
    assert found["b"].item() == pytest.approx(2)
    assert all(s == {"a": (torch.float64, (2, 3)), "b": (torch.float64, ())} for s in seen)


def test_leaves_what_it_was_given_as_it_was():
    start = {"x": torch.ones(3, dtype=torch.float64)}
    minimize(lambda p: p["x"].square().sum(), start)
    descend(
        lambda p, rows: {"x": 2 * p["x"]},
        start,
        images=3,
        epochs=2,
        batch=2,
        lr=0.1,
        decay=0.0,
        seed=0,
    )
    assert torch.equal(start["x"], torch.ones(3, dtype=torch.float64))


def newton(rows: Tensor, labels: Tensor, **settings: float) -> Tensor:
    """From equal weights, on images in one piece."""
    start = rows.new_full((rows.shape[1],), 1 / rows.shape[1])
    return fitting.newton(lambda: [(rows, labels)], start, **settings)


# --- newton -----------------------------------------------------------------------------------------------------------


@given(seeds, st.integers(1, 5), st.sampled_from([0.0, 0.05]), st.sampled_from([0.0, 0.01]))
@settings(max_examples=10, deadline=None)
def test_newton_and_minimize_meet_in_the_one_minimum(seed, size, smoothing, prior):
    rows, labels = 3 * randn(80, size, 4, seed=seed), torch.arange(80) % 4

    def loss(p):
        fused = torch.einsum("m,nmk->nk", p["w"], rows)
        return (
            F.cross_entropy(fused, labels, label_smoothing=smoothing)
            + prior * p["w"].square().sum()
        )

    expected = minimize(loss, {"w": torch.zeros(size, dtype=torch.float64)})
    found = newton(rows, labels, smoothing=smoothing, prior=prior)
    torch.testing.assert_close(found, expected["w"], rtol=1e-4, atol=1e-5)


def test_newton_gives_equal_rows_equal_weights_and_leaves_silent_ones():
    row, labels = randn(80, 1, 4), torch.arange(80) % 4
    alone = newton(row, labels)
    twice = newton(torch.cat([row, row], dim=1), labels)
    torch.testing.assert_close(twice, alone.expand(2) / 2, rtol=1e-6, atol=1e-9)
    silent = newton(torch.cat([row, torch.zeros_like(row)], dim=1), labels)
    torch.testing.assert_close(
        silent, torch.stack([alone[0], torch.tensor(0.5, dtype=torch.float64)])
    )


def test_newton_ends_where_weights_grow_without_end():
    labels = torch.arange(80) % 4
    weights = newton(F.one_hot(labels, 4).double().unsqueeze(1), labels)
    assert weights.isfinite().all()
    assert weights.sum() > 10


# --- descend ----------------------------------------------------------------------------------------------------------


@given(st.integers(1, 23), st.integers(1, 30))
@settings(max_examples=25, deadline=None)
def test_every_image_is_used_once_an_epoch_whatever_the_batch(images, batch):
    seen = []

    def slopes(p, rows):
        seen.append(rows.tolist())
        return {"x": 2 * p["x"]}

    descend(
        slopes,
        {"x": torch.ones(())},
        images=images,
        epochs=2,
        batch=batch,
        lr=0.1,
        decay=0.0,
        seed=1,
    )
    rounds = len(seen) // 2
    for epoch in (seen[:rounds], seen[rounds:]):
        assert sorted(row for rows in epoch for row in rows) == list(range(images))
        assert all(len(rows) == batch for rows in epoch[:-1])


def test_adam_steps_are_those_of_the_textbook():
    """Kingma & Ba's algorithm 1 with the decay in the gradient, step by step, clamped after each."""
    target = randn(7, 2)
    found = descend(
        lambda p, rows: {"x": (p["x"] - target[rows]).mean(dim=0)},
        {"x": torch.full((2,), 0.95, dtype=torch.float64)},
        {"x": (0.0, 1.0)},
        images=7,
        epochs=4,
        batch=3,
        lr=0.05,
        decay=0.01,
        seed=3,
    )
    shuffle = torch.Generator().manual_seed(3)
    x, m, v, t = np.full(2, 0.95), np.zeros(2), np.zeros(2), 0
    for _ in range(4):
        order = torch.randperm(7, generator=shuffle).numpy()
        for rows in (order[:3], order[3:6], order[6:]):
            t += 1
            g = 2 * (x - target.numpy()[rows]).sum(axis=0) / (2 * len(rows)) + 0.01 * x
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
            x = np.clip(x - 0.05 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8), 0, 1)
    np.testing.assert_allclose(found["x"].numpy(), x, rtol=1e-9)


def test_the_same_seed_takes_the_same_steps():
    def run(seed: int) -> Tensor:
        data = randn(20)
        return descend(
            lambda p, rows: {"x": 2 * (p["x"] - data[rows]).mean()},
            {"x": torch.zeros((), dtype=torch.float64)},
            images=20,
            epochs=3,
            batch=4,
            lr=0.1,
            decay=0.0,
            seed=seed,
        )["x"]

    assert torch.equal(run(1), run(1))
    assert not torch.equal(run(1), run(2))


@given(
    st.integers(1, 100), st.integers(0, 99), seeds, st.sampled_from([torch.float32, torch.float64])
)
@settings(max_examples=40, deadline=None)
def test_a_number_takes_the_same_steps_in_whatever_company(count, which, seed, dtype):
    slope, start, which = (
        randn(count, seed=seed).to(dtype),
        randn(count, seed=seed + 1).to(dtype),
        which % count,
    )

    def run(slope: Tensor, start: Tensor) -> Tensor:
        recipe = {"images": 5, "epochs": 6, "batch": 2, "lr": 0.03, "decay": 0.01, "seed": 0}
        return descend(lambda p, rows: {"x": slope * (p["x"] + len(rows))}, {"x": start}, **recipe)[
            "x"
        ]

    alone = run(slope[which : which + 1].clone(), start[which : which + 1].clone())
    assert torch.equal(run(slope, start)[which : which + 1], alone)


# --- losses and folds -------------------------------------------------------------------------------------------------


@given(seeds)
@settings(max_examples=25, deadline=None)
def test_the_nll_is_the_mean_of_minus_the_logarithm_of_the_labels_probability(seed):
    logits, labels = 3 * randn(9, 4, seed=seed), torch.arange(9) % 4
    slow = -sum(logits[i].softmax(-1)[y].log().item() for i, y in enumerate(labels)) / 9
    assert nll(logits.softmax(-1), labels).item() == pytest.approx(slow)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_vanished_probability_costs_much_but_not_infinitely_much(dtype):
    probs = torch.tensor([[1.0, 0.0]], dtype=dtype, requires_grad=True)
    loss = nll(probs, torch.tensor([1]))
    (gradient,) = torch.autograd.grad(loss, probs)
    assert 80 < loss.item() < 1000
    assert torch.isfinite(gradient).all()


@given(st.integers(1, 60), st.integers(1, 12), seeds)
@settings(max_examples=50, deadline=None)
def test_folds_hold_each_row_once_and_are_nearly_equal(images, count, seed):
    splits = fold_splits(images, count, seed=seed)
    parts = [part for _, part in splits]
    assert len(parts) == count
    assert all(sorted([*rest, *part]) == list(range(images)) for rest, part in splits)
    assert sorted(torch.cat(parts).tolist()) == list(range(images))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    again = fold_splits(images, count, seed=seed)
    assert all(torch.equal(a, b) for a, (_, b) in zip(parts, again, strict=True))


def test_only_answers_that_are_all_right_leave_a_doubt():
    scores = torch.eye(3)
    assert laplace_smoothing([(scores, torch.tensor([0, 1, 2]))]) == 1 / 5
    assert laplace_smoothing([(scores, torch.tensor([0, 1, 1]))]) == 0
