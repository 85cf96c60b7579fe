"""The slopes against autograd on the method itself, and the promise that a fit's bits are its own."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from atta.calibrators.fitting import nll
from atta.calibrators.slopes import Slopes, softmax, total
from atta.functional import blend, fuse, largest_share

seeds = st.integers(0, 2**32 - 1)
SPACES = st.sampled_from(["logits", "probabilities"])
STEPS = st.sampled_from([None, 0.01, 0.3])
DTYPES = st.sampled_from([torch.float32, torch.float64])


def problem(
    seed: int,
    fits: int,
    n: int,
    m: int,
    k: int,
    *,
    wide: bool = True,
    scale: float = 3.0,
    dtype=torch.float64,
) -> tuple[tuple[Tensor, Tensor, Tensor], dict[str, Tensor]]:
    """Stacked base, view logits and labels; weights and limits."""
    g = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(fits, n, k, generator=g, dtype=torch.float64)
    views = logits.unsqueeze(2) + scale * torch.randn(
        fits, n, m, k, generator=g, dtype=torch.float64
    )
    weights = (1 + torch.randn(fits, m, k if wide else 1, generator=g, dtype=torch.float64)) / m
    limit = torch.rand(fits, generator=g, dtype=torch.float64).mul(1.2).clamp(max=1)
    labels = torch.randint(k, (fits, n), generator=g)
    parameters = {"weights": weights.to(dtype), "limit": limit.to(dtype)}
    return (logits.softmax(-1).to(dtype), views.to(dtype), labels), parameters


def by_autograd(data, parameters, rows, *, step, space, prior) -> dict[str, Tensor]:
    """Fit by fit, through the functions of the method."""
    found = []
    for i in range(len(parameters["limit"])):
        base, views, labels = (part[i][rows] for part in data)
        weights, limit = (
            parameters[name][i].clone().requires_grad_() for name in ("weights", "limit")
        )
        fused = fuse(views, weights, space=space)
        loss = nll(blend(base, fused, largest_share(base, fused, limit, step=step)), labels)
        loss = loss + prior * weights.square().sum(dim=0).mean()
        found.append(torch.autograd.grad(loss, [weights, limit]))
    return {
        name: torch.stack(parts)
        for name, parts in zip(("weights", "limit"), zip(*found, strict=True), strict=True)
    }


@given(
    seeds,
    st.integers(1, 3),
    st.integers(1, 5),
    st.sampled_from([2, 3, 4, 5, 6, 70]),
    st.booleans(),
    SPACES,
    STEPS,
    st.sampled_from([0.0, 0.1]),
)
@settings(max_examples=150, deadline=None)
def test_the_slopes_are_those_of_autograd_on_the_method(seed, fits, m, k, wide, space, step, prior):
    data, parameters = problem(seed, fits, 40, m, k, wide=wide)
    rows = torch.randperm(40, generator=torch.Generator().manual_seed(seed))[:25]
    ours = Slopes(*data, step=step, space=space, prior=prior)(parameters, rows)
    expected = by_autograd(data, parameters, rows, step=step, space=space, prior=prior)
    for name, slope in expected.items():
        torch.testing.assert_close(ours[name], slope, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("step", [None, 0.01])
def test_a_limit_of_zero_leaves_zero_in_closed_form_and_stays_there_on_the_grid(step):
    data, parameters = problem(0, 1, 40, 3, 4)
    parameters["limit"] = torch.zeros(1, dtype=torch.float64)
    rows = torch.arange(40)
    ours = Slopes(*data, step=step)(parameters, rows)
    expected = by_autograd(data, parameters, rows, step=step, space="logits", prior=0.0)
    assert (ours["limit"] != 0).item() == (step is None)
    torch.testing.assert_close(ours["limit"], expected["limit"])
    torch.testing.assert_close(ours["weights"], expected["weights"])


@given(seeds, st.sampled_from([1e-6, 30.0, 1e4, 3e37]), st.booleans(), SPACES, STEPS, DTYPES)
@settings(max_examples=60, deadline=None)
def test_ties_and_extremes_leave_finite_slopes(seed, scale, wide, space, step, dtype):
    (base, views, labels), parameters = problem(seed, 2, 20, 3, 4, wide=wide, dtype=torch.float64)
    base = torch.cat(
        [base[:, :10], base[:, 10:].mul(8).round().clamp(max=1)], dim=1
    )  # ones and zeros, and ties of them
    views = (scale * views.sign()).to(dtype)
    parameters = {name: value.to(dtype) for name, value in parameters.items()}
    found = Slopes(base.to(dtype), views, labels, step=step, space=space)(
        parameters, torch.arange(20)
    )
    assert all(torch.isfinite(slope).all() for slope in found.values())


@given(
    seeds,
    st.integers(1, 6),
    st.integers(0, 5),
    st.sampled_from([1, 2, 17, 33, 64]),
    st.integers(1, 9),
    st.sampled_from([2, 7, 10, 16, 30, 100]),
    st.booleans(),
    SPACES,
    STEPS,
    DTYPES,
    st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_the_bits_of_a_fit_do_not_depend_on_the_fits_beside_it(
    seed, fits, i, n, m, k, wide, space, step, dtype, tied
):
    (base, views, labels), parameters = problem(
        seed, fits, n, m, k, wide=wide, scale=2.0, dtype=dtype
    )
    views = views.round() if tied else views
    rows, i = (
        torch.randperm(n, generator=torch.Generator().manual_seed(seed))[: (n + 1) // 2],
        i % fits,
    )
    together = Slopes(base, views, labels, step=step, space=space)(parameters, rows)
    one = slice(i, i + 1)
    alone = Slopes(
        base[one].clone(), views[one].clone(), labels[one].clone(), step=step, space=space
    )({name: value[one].clone() for name, value in parameters.items()}, rows)
    assert all(torch.equal(together[name][one], alone[name]) for name in alone)


@pytest.mark.parametrize("step", [None, 0.01])
@pytest.mark.parametrize("space", ["logits", "probabilities"])
def test_the_bits_do_not_depend_on_how_numbers_lie_in_memory(step, space, monkeypatch):
    data, parameters = problem(0, 3, 70, 4, 10, dtype=torch.float32)
    rows, found = torch.randperm(70)[:50], []
    for many in (2, 100):
        monkeypatch.setattr("atta.calibrators.slopes.MANY_CLASSES", many)
        found.append(Slopes(*data, step=step, space=space)(parameters, rows))
    assert all(torch.equal(found[0][name], found[1][name]) for name in parameters)


@pytest.mark.parametrize("step", [None, 0.01])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_bits_do_not_depend_on_the_threads(step, dtype):
    data, parameters = problem(0, 9, 700, 4, 10, dtype=dtype)
    rows, before, found = torch.randperm(700)[:500], torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(Slopes(*data, step=step)(parameters, rows))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(found[0][name], other[name]) for other in found[1:] for name in other)


@given(seeds, st.integers(1, 40), st.integers(0, 2))
@settings(max_examples=40, deadline=None)
def test_the_total_is_the_sum(seed, length, dim):
    shape = [3, 2, 4]
    shape[dim] = length
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    torch.testing.assert_close(total(values.clone(), dim=dim), values.sum(dim=dim, keepdim=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_softmax_is_torchs_but_for_what_is_next_to_nothing(dtype):
    logits = torch.randn(
        3, 1, 10, 50, generator=torch.Generator().manual_seed(0), dtype=dtype
    ) * torch.tensor([1.0, 30.0, 1e4], dtype=dtype).reshape(3, 1, 1, 1)
    found = softmax(logits, wide=True)
    torch.testing.assert_close(found, logits.softmax(dim=2), rtol=1e-5, atol=1e-30)
    assert (found > 0).all()


def test_a_fit_whose_logits_are_far_apart_leaves_the_bits_of_those_beside_it():
    """It makes the others clamp what they need not."""
    (base, views, labels), parameters = problem(0, 2, 40, 3, 5, dtype=torch.float32)
    rows, first = torch.arange(40), {name: value[:1] for name, value in parameters.items()}
    alone = Slopes(base[:1], views[:1], labels[:1], step=0.01)(first, rows)
    views[1] *= 1e3
    beside = Slopes(base, views, labels, step=0.01)(parameters, rows)
    assert all(torch.equal(beside[name][:1], alone[name]) for name in alone)
