"""Shrunk M-ATTA: its two ends, its penalty against a slow version of it, and the choice of its strength."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize
from torch import Tensor

import reference
from atta import VATTA, Predictions, ShrunkMATTA
from atta.calibrators.fitting import nll
from atta.functional import leader
from atta.lab import shrunk
from atta.lab.shrunk import Point, Samples

seeds = st.integers(0, 2**32 - 1)


def made(
    n: int, k: int = 4, seed: int = 0, *, differing: bool = False, scale: float = 3.0
) -> tuple[Predictions, Tensor]:
    """An over-confident network, two kinds of view; `differing`: each knows about one half of the classes alone."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(k, (n,), generator=g)
    mark = 2 * torch.nn.functional.one_hot(labels, k)
    truth = mark + torch.randn(n, k, generator=g, dtype=torch.float64)
    lower = torch.arange(k) < k // 2
    views = {}
    for kind, known in (("flip", lower), ("crop", ~lower)):
        noise = torch.randn(n, k, generator=g, dtype=torch.float64)
        blurred = torch.where(known, mark + noise, 2 * noise) if differing else truth + noise
        views[kind] = scale * blurred.unsqueeze(1)
    return Predictions(scale * truth, views), labels


def images_of(predictions: Predictions, labels: Tensor) -> Samples:
    base = predictions.logits.softmax(-1)
    return Samples(base, predictions.view_logits(predictions.kinds), labels, leader(base))


def start(images: Samples) -> Point:
    """The same weight for every view and class, and a sum of the views as large as one of them that is not over-confident."""
    _, m, k = images.views.shape
    weight = 1 / (m * images.views.square().mean().sqrt())
    return Point(weight.expand(m, 1), torch.zeros(m, k).double(), torch.ones(()).double())


@pytest.mark.parametrize("settings", [{}, {"space": "probabilities", "views": ["crop"]}])
def test_where_classes_do_not_differ_it_is_v_atta_bit_for_bit(settings):
    predictions, labels = made(80)
    found = ShrunkMATTA(**settings, strengths=[1.0], folds=2).fit(predictions, labels)
    flat = VATTA(**settings).fit(predictions, labels)
    assert found.weights.shape == (len(found.kinds), 1)
    assert found.options == flat.options
    assert torch.equal(found.weights, flat.weights)
    assert torch.equal(found.limit, flat.limit)


def test_classes_that_differ_get_weights_of_their_own():
    predictions, labels = made(600, differing=True)
    test, test_labels = made(4000, seed=1, differing=True)
    found, flat = (
        method.fit(predictions, labels)
        for method in (ShrunkMATTA(strengths=[30.0, 3.0], folds=2), VATTA())
    )
    assert found.weights.shape == (2, 4)
    flip, crop = found.weights
    assert (flip[:2] > crop[:2]).all()
    assert (crop[2:] > flip[2:]).all()
    assert nll(found(test), test_labels) < nll(flat(test), test_labels) - 0.02


def penalised(predictions: Predictions, labels: Tensor, strength: float):
    """The loss, image by image from the formulas, of a flat vector: v, D, limit."""
    base = [reference.softmax(row) for row in predictions.logits.numpy()]
    views = np.stack([view.mean(dim=1).numpy() for view in predictions.views.values()], axis=1)
    n, m, k = views.shape

    def loss(flat: np.ndarray) -> float:
        v, spread, limit = flat[:m], flat[m:-1].reshape(m, k), float(np.clip(flat[-1], 0, 1))
        total = 0.0
        for p0, z, y in zip(base, views, labels.tolist(), strict=True):
            fused = reference.fused(z, v[:, None] + spread)
            share = reference.largest_share(p0, fused, limit)
            total -= math.log((1 - share) * p0[y] + share * fused[y])
        shift = sum(
            (spread[i, c] ** 2) * np.mean(views[:, i, c] ** 2) for i in range(m) for c in range(k)
        )
        return (total + strength / 2 * shift + sum(v**2) / 18) / n

    return loss


@pytest.mark.parametrize("strength", [30.0, 1.0])
def test_the_fit_is_at_a_minimum_of_the_loss_as_it_is_written(strength):
    predictions, labels = made(40, k=3, differing=True)
    loss = penalised(predictions, labels, strength)
    images = images_of(predictions, labels)
    found = ShrunkMATTA()._fit(strength, images, start(images), tolerance=1e-12, iterations=500)
    flat, before = (
        torch.cat([part.flatten() for part in (p.shared, p.spread, p.limit)]).numpy()
        for p in (found, start(images))
    )
    assert loss(flat) < loss(before) - 1e-3
    searched = optimize.minimize(loss, flat, method="L-BFGS-B", options={"maxiter": 8})
    assert loss(flat) <= searched.fun + 2e-4  # a line search can stop in a kink of the share


def test_more_strength_means_less_spread_and_a_worse_fit_up_to_v_attas():
    predictions, labels = made(200, differing=True)
    images, method, spreads, losses = images_of(predictions, labels), ShrunkMATTA(), [], []
    point = start(images)
    for strength in (1e8, 1e3, 1e2, 1e1, 1e0):
        point = method._fit(strength, images, point, tolerance=1e-10, iterations=500)
        spreads.append(point.spread.square().sum().item())
        losses.append(method._losses(images, point).mean().item())
    assert spreads == sorted(spreads)
    assert losses == sorted(losses, reverse=True)
    flat = VATTA().fit(predictions, labels)(predictions)
    assert losses[0] == pytest.approx(nll(flat, labels).item(), abs=1e-3)


def test_the_scale_of_the_views_does_not_matter():
    predictions, labels = made(100, differing=True)
    images = images_of(predictions, labels)
    scaled = images._replace(views=64 * images.views)
    one, other = (
        ShrunkMATTA()._fit(10.0, these, start(these), tolerance=1e-10) for these in (images, scaled)
    )
    assert one.spread.abs().max() > 0.01
    torch.testing.assert_close(
        64 * other.weights, one.weights, rtol=0.03, atol=0.01
    )  # the weak prior on v has a scale


@given(
    seeds,
    st.integers(2, 12),
    st.integers(2, 6),
    st.integers(1, 6),
    st.sampled_from([0.0, 0.3, 2.0]),
)
@settings(max_examples=60, deadline=None)
def test_the_strength_is_the_largest_within_two_standard_errors_of_the_best(
    seed, n, parts, count, noise
):
    rng = np.random.default_rng(seed)
    tried = [math.inf, *(10.0**-i for i in range(count))]
    # A valley: what comes after the first clear rise is not looked at.
    depth = {
        strength: abs(i - rng.integers(0, count + 1)) + noise * rng.random(n)
        for i, strength in enumerate(tried)
    }
    number = torch.arange(n)
    images = Samples(
        torch.zeros(n, 2), number[:, None, None].expand(n, 1, 2).double(), number, number[:, None]
    )

    class Made(ShrunkMATTA):
        def _fit(self, strength, images, start):
            return start._replace(limit=torch.tensor(strength))

        def _losses(self, images, point):
            strength = (
                math.inf
                if point.limit == shrunk.LARGEST_STRENGTH
                else min(tried, key=lambda s: abs(s - point.limit.item()))
            )
            return torch.from_numpy(depth[strength])[images.labels]

    def worse(strength: float, than: float) -> bool:
        more = depth[strength] - depth[than]
        return bool(np.mean(more) > 2 * np.std(more, ddof=1) / math.sqrt(n))

    seen, best = [], math.inf
    for strength in tried:
        seen.append(strength)
        if depth[strength].mean() < depth[best].mean():
            best = strength
        elif worse(strength, best):
            break
    expected = next(strength for strength in seen if not worse(strength, best))
    assert Made(strengths=tried[1:], folds=parts)._choose(images, start(images)) == expected


def test_views_that_say_nothing_are_fine():
    predictions, labels = made(60)
    silent = Predictions(
        predictions.logits,
        {"flip": 0 * predictions.views["flip"], "crop": predictions.views["crop"]},
    )
    images = images_of(silent, labels)
    found = ShrunkMATTA()._fit(1.0, images, start(images))
    assert all(torch.isfinite(part).all() for part in found)
    assert (found.spread[0] == 0).all()
    assert (found.spread[1] != 0).any()


def test_strengths_are_kept_from_stiff_to_loose_and_once_each():
    assert ShrunkMATTA(strengths=[1.0, 100.0, 1.0]).strengths == (100.0, 1.0)
