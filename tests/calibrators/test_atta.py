"""M-ATTA and V-ATTA against the paper's formula, a global search, and a loop over Adam; and many fits at once."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize
from torch import Tensor

import reference
from atta import Predictions, calibrators, functional
from atta.calibrators import (
    MATTA,
    VATTA,
    load,
)
from atta.calibrators.atta import _SumOfKinds, blended_nll
from atta.calibrators.fitting import nll
from atta.functional import blend, fuse, largest_share
from scenarios import check_same, toy


@pytest.fixture(params=[1, 2], ids=["1 thread", "2 threads"])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("space", ["logits", "probabilities"])
@pytest.mark.parametrize("step", [None, 0.01])
@pytest.mark.parametrize("method", [MATTA, VATTA])
def test_adam_gives_the_same_bits_in_whatever_company(method, step, space, dtype, monkeypatch):
    """Kinds, classes and sizes of all sorts, in any order and in chunks of any length."""
    adam = method(
        optimizer="adam", start="1/k", epochs=2, batch=50, lr=0.05, step=step, space=space
    )
    many = {"flip": 1, "crop": 2, "brightness": 1, "contrast": 1, "blur": 3, "noise": 1}
    shapes = [(80, 7, 4), (80, 10, 4), (81, 10, 4), (80, 10, 6), (60, 30, 3), (55, 100, 2)] * 3
    sets = [
        toy(n, k, seed=i, dtype=dtype, signal=1.0, kinds=dict(list(many.items())[:m]))
        for i, (n, k, m) in enumerate(shapes)
    ]
    alone = [adam.fit(*one) for one in sets]
    check_same(adam.fit_many(sets), alone)
    check_same(adam.fit_many(sets[::-1]), alone[::-1])
    monkeypatch.setattr(calibrators.atta, "ADAM_LOGITS", 2 * 50 * 4 * 10)
    check_same(adam.fit_many(sets), alone)


@pytest.mark.parametrize("step", [None, 0.01])
@pytest.mark.parametrize("method", [MATTA, VATTA])
def test_adam_gives_the_same_bits_on_any_number_of_threads(method, step, threads):
    """Twelve fits are enough numbers for torch to call a second thread, one is not."""
    adam = method(optimizer="adam", start="1/k", epochs=2, batch=400, lr=0.05, step=step)
    sets = [toy(500, 10, seed=seed, signal=1.0) for seed in range(12)]
    together = adam.fit_many(sets)
    check_same(together, [adam.fit(*one) for one in sets])
    torch.set_num_threads(3 - threads)
    check_same(together, adam.fit_many(sets))


@given(st.lists(st.integers(0, 7), max_size=12), st.sampled_from([None, 0.01]), st.booleans())
@settings(max_examples=25, deadline=None)
def test_any_sets_may_be_fitted_together_some_of_them_twice(chosen, step, wide):
    sets = [toy(33, 10, seed=seed, signal=1.0) for seed in range(8)]
    adam = (MATTA if wide else VATTA)(
        optimizer="adam", start=0.5, epochs=2, batch=20, lr=0.05, step=step
    )
    check_same(adam.fit_many([sets[i] for i in chosen]), [adam.fit(*sets[i]) for i in chosen])


def test_only_the_weights_that_ran_away_are_fitted_again(monkeypatch):
    timid = {
        "signal": 8.0,
        "confidence": 0.1,
    }  # right throughout, and not sure of it: ever larger weights are better
    sets = [toy(40, seed=seed, **kind) for seed, kind in enumerate(({}, timid, {}, timid))]
    for method in (MATTA(epochs=40, lr=0.3), VATTA(optimizer="adam", epochs=40, lr=0.3)):
        together = method.fit_many(sets)
        check_same(together, [method.fit(*one) for one in sets])
        monkeypatch.setattr(calibrators.atta, "LARGEST_SUM", math.inf)
        untamed = method.fit_many(sets)
        monkeypatch.undo()
        again = [
            not torch.equal(a.weights, b.weights) for a, b in zip(together, untamed, strict=True)
        ]
        assert again == [False, True, False, True]


def test_calibrators_fitted_together_share_no_memory(tmp_path):
    first, second = MATTA(epochs=2).fit_many([toy(seed=0), toy(seed=1)])
    before = second.weights.clone()
    first.weights.zero_()
    assert torch.equal(second.weights, before)
    assert torch.equal(load(second.save(tmp_path / "second.safetensors")).weights, before)


def test_the_papers_recipe_has_the_papers_settings():
    for method in (MATTA.paper(), VATTA.paper()):
        assert dataclasses.asdict(method) == {
            "views": None,
            "optimizer": "adam",
            "start": "1/k",
            "epochs": 500,
            "batch": 500,
            "lr": 1e-3,
            "decay": 1e-5,
            "step": 0.01,
            "space": "logits",
            "seed": 0,
        }
    assert MATTA.paper(views=["crop"], seed=3) == MATTA(views=("crop",), seed=3, step=0.01)
    assert (VATTA().optimizer, VATTA().start, MATTA().optimizer, MATTA().start) == (
        "lbfgs",
        "1/m",
        "adam",
        "1/k",
    )


def blended(
    predictions: Predictions, kinds: tuple[str, ...], weights: np.ndarray, limit: float
) -> list[np.ndarray]:
    """The paper's formula image by image, the share in closed form."""
    answer = []
    for i in range(len(predictions)):
        views = np.stack(
            [predictions.views[kind][i].double().mean(dim=0).numpy() for kind in kinds]
        )
        p0 = reference.softmax(predictions.logits[i].double().numpy())
        f = reference.fused(views, weights)
        share = reference.largest_share(p0, f, limit)
        answer.append((1 - share) * p0 + share * f)
    return answer


@pytest.mark.parametrize(
    "method",
    [VATTA(), MATTA(epochs=8, batch=32), MATTA(optimizer="lbfgs", views=["flip", "crop"])],
    ids=str,
)
def test_a_fitted_calibrator_answers_with_the_papers_formula(method):
    test, _ = toy(40, seed=1, dtype=torch.float64)
    found = method.fit(*toy(dtype=torch.float64))
    slow = blended(test, found.kinds, found.weights.numpy(), found.limit.item())
    np.testing.assert_allclose(found(test).numpy(), slow, atol=1e-4)


def validation_loss(predictions: Predictions, labels: Tensor, width: int):
    """The loss that M-ATTA and V-ATTA minimise, of a flat vector: weights, then the limit."""
    base_probs, views = predictions.logits.softmax(-1), predictions.view_logits(predictions.kinds)

    def loss(flat: np.ndarray) -> float:
        weights = torch.from_numpy(flat[:-1]).reshape(-1, width)
        fused = fuse(views, weights)
        share = largest_share(base_probs, fused, float(np.clip(flat[-1], 0, 1)))
        return nll(blend(base_probs, fused, share), labels).item()

    return loss


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 12])  # 12: L-BFGS alone stops in a kink
def test_v_atta_on_an_over_confident_network_is_at_the_optimum_that_a_global_search_finds(seed):
    """Not a theorem: the loss is not convex. Seed 4 has a second minimum, 1e-4 lower, that a local search does not see, and
    under-confident networks (confidence=0.5) have many, 1e-2 apart and less. There V-ATTA's is one of them."""
    predictions, labels = toy(
        120, seed=seed, signal=1.0, dtype=torch.float64, kinds={"flip": 1, "crop": 3}
    )
    loss = validation_loss(predictions, labels, 1)
    found = VATTA().fit(predictions, labels)
    ours = loss(np.r_[found.weights.numpy().ravel(), found.limit.item()])
    box = [(-1, 2), (-1, 2), (0, 1)]
    searched = optimize.differential_evolution(
        loss, box, seed=0, maxiter=25, popsize=8, polish=False
    )
    settled = optimize.minimize(
        loss, searched.x, method="Nelder-Mead", bounds=box, options={"fatol": 1e-11}
    )
    assert ours <= settled.fun + 1e-6


@pytest.mark.parametrize("seed", range(2))
def test_no_small_change_of_the_weights_betters_a_converged_fit(seed):
    predictions, labels = toy(120, seed=seed, signal=1.0, dtype=torch.float64)
    rng = np.random.default_rng(0)
    # A line search can stop in one of M-ATTA's many kinks; V-ATTA's few weights are settled.
    for method, width, tolerance in ((VATTA(), 1, 1e-8), (MATTA(optimizer="lbfgs"), 4, 1e-3)):
        found = method.fit(predictions, labels)
        loss = validation_loss(predictions, labels, width)
        best = np.r_[found.weights.numpy().ravel(), found.limit.item()]
        here = loss(best)
        for size in (1e-2, 1e-3, 1e-5):
            gains = [here - loss(best + size * rng.standard_normal(best.shape)) for _ in range(40)]
            assert max(gains) < tolerance


def test_the_adam_path_is_a_loop_over_the_formula():
    """torch.optim.Adam on the paper's formula, image by image, with the shuffles of the seed."""
    predictions, labels = toy(23, k=3, dtype=torch.float64)
    found = MATTA(epochs=3, batch=10, lr=0.05, decay=0.01, seed=4, start=0.7).fit(
        predictions, labels
    )
    base_probs = predictions.logits.softmax(-1)
    views = torch.stack([view.mean(dim=1) for view in predictions.views.values()], dim=1)
    weights = torch.full((3, 3), 0.7, dtype=torch.float64, requires_grad=True)
    limit = torch.ones((), dtype=torch.float64, requires_grad=True)
    adam = torch.optim.Adam([weights, limit], lr=0.05, weight_decay=0.01)
    shuffle = torch.Generator().manual_seed(4)
    for _ in range(3):
        for rows in torch.randperm(23, generator=shuffle).split(10):
            losses = []
            for i in rows.tolist():
                p0, f = (
                    base_probs[i],
                    sum(w * z for w, z in zip(weights, views[i], strict=True)).softmax(-1),
                )
                c, share = int(p0.argmax()), limit
                for j in range(3):
                    if j != c and f[j] > f[c]:
                        bound = (1 - 1e-4) * (p0[c] - p0[j]) / (p0[c] - p0[j] + f[j] - f[c])
                        share = torch.minimum(share, bound)
                losses.append(-((1 - share) * p0 + share * f)[labels[i]].log())
            adam.zero_grad()
            torch.stack(losses).mean().backward()
            adam.step()
            limit.data.clamp_(0, 1)
    torch.testing.assert_close(found.weights, weights.detach(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found.limit, limit.detach(), rtol=1e-6, atol=1e-6)


def test_the_shuffles_follow_the_seed():
    predictions, labels = toy()
    first, second = (
        MATTA(epochs=3, batch=20, seed=seed).fit(predictions, labels).weights for seed in (0, 1)
    )
    assert not torch.equal(first, second)


@pytest.mark.parametrize(("start", "value"), [("1/m", 1 / 3), ("1/k", 1 / 4), (0.9, 0.9)])
def test_the_weights_start_where_they_are_told_to(start, value):
    found = VATTA(optimizer="adam", start=start, epochs=1, lr=1e-9, decay=0.0).fit(*toy())
    torch.testing.assert_close(found.weights, torch.full((3, 1), value))
    assert found.limit.item() == pytest.approx(1.0)


def test_more_kinds_of_view_never_fit_worse():
    predictions, labels = toy(80, signal=1.0, dtype=torch.float64)
    losses = []
    for kinds in (("flip",), ("flip", "crop"), ("flip", "crop", "brightness")):
        found = VATTA(views=kinds).fit(predictions, labels)
        assert found.kinds == kinds
        losses.append(nll(found(predictions), labels).item())
    assert losses[0] >= losses[1] - 1e-6 >= losses[2] - 2e-6


@pytest.mark.parametrize("step", [None, 0.01], ids=["closed form", "grid"])
@given(st.integers(0, 10_000), st.sampled_from([0.3, 2.0, 20.0]), st.sampled_from([0.0, 0.4, 1.0]))
def test_the_loss_of_a_fit_is_that_of_the_method_itself(step, seed, scale, limit):
    generator = torch.Generator().manual_seed(seed)
    logits, *views = (
        scale * torch.randn(60, 5, generator=generator, dtype=torch.float64) for _ in range(3)
    )
    logits[:2] = views[0][:2] = 0.0  # ties
    views, labels = torch.stack(views, dim=1), torch.randint(5, (60,), generator=generator)

    def found(loss):
        parameters = [
            torch.tensor([[0.7], [0.4]]).double().requires_grad_(),
            torch.tensor(limit).double().requires_grad_(),
        ]
        value = loss(*parameters)
        return value, *torch.autograd.grad(value, parameters)

    blended = blended_nll(logits.softmax(dim=-1), labels, step=step)
    ours = found(lambda weights, limit: blended(fuse(views, weights), limit))
    method = found(
        lambda weights, limit: nll(
            functional.atta(logits, views, weights, limit, step=step), labels
        )
    )
    for one, other in zip(ours, method, strict=True):
        assert torch.allclose(one, other, rtol=1e-9, atol=1e-12)


def test_the_sum_and_its_gradient_on_a_gpu_are_those_of_autograd():
    views = torch.randn(3, 7, 5, dtype=torch.float64)
    weights = torch.randn(3, 1, dtype=torch.float64, requires_grad=True)
    expected = torch.einsum("mo,mnk->nk", weights, views)
    assert torch.allclose(_SumOfKinds.apply(weights, views), expected, rtol=1e-14)
    assert torch.autograd.gradcheck(lambda weights: _SumOfKinds.apply(weights, views), (weights,))
