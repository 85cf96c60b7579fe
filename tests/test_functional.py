"""The method against the paper's loops, its own laws, and what exporters make of it."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import reference
from atta import functional
from atta.functional import (
    MARGIN,
    NEAR,
    atta,
    blend,
    fuse,
    guard_class,
    guarded_blend,
    largest_share,
    leader,
)
from scenarios import near_ties

SPACES = ("logits", "probabilities")
seeds = st.integers(0, 2**32 - 1)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def problem(
    seed: int,
    n: int = 40,
    m: int = 3,
    k: int = 5,
    *,
    wide: bool = True,
    scale: float = 3.0,
    dtype=torch.float64,
) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, view logits and weights: the views say what the image says, and something of their own."""
    g = generator(seed)
    logits = scale * torch.randn(n, k, generator=g, dtype=torch.float64)
    views = logits[:, None] + scale * torch.randn(n, m, k, generator=g, dtype=torch.float64)
    weights = torch.randn(m, k if wide else 1, generator=g, dtype=torch.float64)
    return logits.to(dtype), views.to(dtype), weights.to(dtype)


def loops(
    logits: Tensor, views: Tensor, weights: Tensor, limit: float
) -> tuple[np.ndarray, np.ndarray]:
    """Algorithm 1 or 2, image by image."""
    pairs = [
        reference.algorithm(z, v, weights.numpy(), limit)
        for z, v in zip(logits.numpy(), views.numpy(), strict=True)
    ]
    return np.stack([p for p, _ in pairs]), np.array([share for _, share in pairs])


# --- Against the paper's loop -----------------------------------------------------------------------------------------


def guarded(base: Tensor, fused: Tensor, limit: float) -> Tensor:
    return guarded_blend(base, fused, limit, base)


@given(seeds, st.floats(0.005, 1), st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_step_of_001_is_the_papers_loop_wherever_that_loop_keeps_the_class_and_the_base_elsewhere(
    seed, limit, wide
):
    logits, views, weights = problem(seed, wide=wide)
    ours = atta(logits, views, weights, limit, step=0.01)
    slow, _ = loops(logits, views, weights, limit)
    base = logits.softmax(-1)
    kept = torch.from_numpy(slow.argmax(-1)) == base.argmax(-1)
    expected = torch.where(kept[:, None], torch.from_numpy(slow), base)
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-9)


def test_the_papers_loop_can_lose_the_class_and_ours_answers_with_the_base_there():
    logits = torch.tensor([[0.001, 0.0, -1.0]], dtype=torch.float64)
    views = torch.tensor([[[-9.0, 9.0, 0.0]]], dtype=torch.float64)
    weights = torch.ones(1, 1, dtype=torch.float64)
    slow, _ = loops(logits, views, weights, 1.0)
    assert slow.argmax() == 1
    torch.testing.assert_close(
        atta(logits, views, weights, 1.0, step=0.01), logits.softmax(-1), rtol=0, atol=0
    )


def apart(base: Tensor, fused: Tensor) -> Tensor:
    """The rows in which no rival is near the leader in both answers."""
    first = base.argmax(-1, keepdim=True)
    lead, gain = base.gather(-1, first) - base, fused - fused.gather(-1, first)
    distance = (lead + gain.abs()).scatter(-1, first, 2.0)
    return distance.amin(-1) >= NEAR * torch.maximum(base.amax(-1), fused.gather(-1, first)[:, 0])


@given(seeds, st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_the_closed_form_gives_at_least_the_grids_share_and_at_most_a_step_more(seed, limit):
    logits, views, weights = problem(seed)
    base, fused = logits.softmax(-1), fuse(views, weights)
    closed, grid = (largest_share(base, fused, limit, step=step) for step in (None, 0.01))
    assert (closed >= grid * (1 - MARGIN) - 1e-12)[apart(base, fused)].all()
    assert (closed <= grid + 0.01 + 1e-12).all()


@given(seeds, st.floats(0, 1))
@settings(max_examples=30, deadline=None)
def test_the_closed_form_is_the_bound_that_bisection_finds(seed, limit):
    logits, views, weights = problem(seed, n=20)
    base, fused = logits.softmax(-1), fuse(views, weights)
    share = largest_share(base, fused, limit)
    slow = [
        reference.largest_share(b, f, limit)
        for b, f in zip(base.numpy(), fused.numpy(), strict=True)
    ]
    torch.testing.assert_close(
        share, torch.tensor(slow, dtype=torch.float64), rtol=1.01 * MARGIN, atol=1e-12
    )


@given(seeds)
@settings(max_examples=30, deadline=None)
def test_the_share_is_the_largest_and_a_little_more_would_change_the_class(seed):
    logits, views, weights = problem(seed, n=200)
    base, fused = logits.softmax(-1), fuse(views, weights)
    share = largest_share(base, fused, 1.0)
    limited = (share < 1) & apart(base, fused)
    first = base.argmax(-1)
    assert (torch.lerp(base, fused, share[:, None]).argmax(-1) == first).all()
    further = torch.lerp(base, fused, (1 + 3 * MARGIN) * share[:, None])
    assert (further.argmax(-1) != first)[limited].all()


@given(seeds, st.sampled_from(SPACES), st.booleans())
@settings(max_examples=30, deadline=None)
def test_fusing_is_the_sum_over_the_kinds_image_by_image(seed, space, wide):
    _, views, weights = problem(seed, wide=wide)
    slow = np.stack([reference.fused(v, weights.numpy(), space) for v in views.numpy()])
    torch.testing.assert_close(
        fuse(views, weights, space=space), torch.from_numpy(slow), rtol=1e-10, atol=1e-12
    )


# --- Laws -------------------------------------------------------------------------------------------------------------


@given(seeds, st.floats(0, 1), st.sampled_from(SPACES), st.sampled_from([None, 0.01]))
@settings(max_examples=40, deadline=None)
def test_v_atta_is_m_atta_with_rows_that_are_constant(seed, limit, space, step):
    logits, views, weights = problem(seed, wide=False)
    narrow, wide = (
        atta(logits, views, w, limit, step=step, space=space)
        for w in (weights, weights.expand(3, 5))
    )
    torch.testing.assert_close(narrow, wide, rtol=1e-9, atol=1e-10)


@given(seeds, st.floats(0.05, 20))
@settings(max_examples=40, deadline=None)
def test_one_view_that_is_the_image_itself_with_weight_one_over_t_is_temperature_scaling(seed, t):
    logits, _, _ = problem(seed)
    weights = torch.full((1, 1), 1 / t, dtype=torch.float64)
    cooled = (logits / t).softmax(-1)
    rows = apart(logits.softmax(-1), cooled)
    torch.testing.assert_close(atta(logits, logits[:, None], weights, 1.0)[rows], cooled[rows])


# --- Continuity -------------------------------------------------------------------------------------------------------


def test_the_last_bit_does_not_decide_where_two_classes_are_level_in_both_answers():
    base = torch.tensor([[0.4, 0.4, 0.2]])
    fused = torch.tensor([[0.4997, 0.4997, 0.0006]])
    moved = fused + torch.tensor([[0.0, 3e-8, 0.0]])
    assert not torch.equal(moved, fused)
    torch.testing.assert_close(
        guarded(base, moved, 1.0), guarded(base, fused, 1.0), rtol=0, atol=1e-5
    )


@given(seeds, st.sampled_from([1e-3, 1e-5, 1e-7, 0.0]), st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_the_answer_moves_no_further_than_a_fixed_multiple_of_what_moves_it(seed, close, limit):
    """In float64, so that only the formula counts; the two best classes are `close` in both answers."""
    g = generator(seed)

    def answer(n: int) -> Tensor:
        probs = torch.rand(n, 5, generator=g, dtype=torch.float64)
        probs[:, 1] = probs[:, 0] + close * torch.randn(n, generator=g, dtype=torch.float64)
        return probs / probs.sum(-1, keepdim=True)

    base, fused, size = answer(2000), answer(2000), 1e-9
    first = base.argmax(-1)
    nudged = [
        x + size * (2 * torch.rand(x.shape, generator=g, dtype=torch.float64) - 1)
        for x in (base, fused)
    ]
    same = nudged[0].argmax(-1) == first  # another class is another answer
    moved = (guarded(*nudged, limit) - guarded(base, fused, limit)).abs().amax(-1)
    assert (moved <= size * (2 + 6 / (NEAR * base.amax(-1))))[same].all()


@pytest.mark.parametrize("share", ["at the bound", "held back"])
def test_the_share_falls_to_nothing_with_the_lead(share):
    leads = torch.logspace(-12, -1, 50, dtype=torch.float64)
    base = torch.stack([0.4 + leads / 2, 0.4 - leads / 2, torch.full_like(leads, 0.2)], dim=-1)
    fused = torch.tensor(
        [0.1, 0.8, 0.1] if share == "at the bound" else [0.49, 0.49, 0.02], dtype=torch.float64
    )
    found = largest_share(base, fused.expand_as(base), 1.0)
    assert (found.diff() >= 0).all()
    assert found[0] < 1e-9


@given(seeds, st.floats(0, 1), st.sampled_from([0.01, 0.3, 3.0]), st.sampled_from([0.0, 1e-3, 3.0]))
@settings(max_examples=60, deadline=None)
def test_looking_at_close_calls_alone_changes_no_bit(seed, limit, scale, apart):
    g = generator(seed)
    logits = scale * torch.randn(200, 7, generator=g)
    logits[:40, 1] = logits[:40, 0]
    views = logits + apart * torch.randn(200, 7, generator=g)
    answers = logits.softmax(-1), views.softmax(-1), limit
    assert answers[0].numel() < functional.MANY
    expected = guarded_blend(*answers, logits)
    assert torch.equal(functional._blend_close_calls(*answers, leader(logits)), expected)


@given(seeds, st.sampled_from(SPACES), st.sampled_from([None, 0.01]))
@settings(max_examples=20, deadline=None)
def test_a_limit_of_zero_gives_the_base_bit_for_bit(seed, space, step):
    logits, views, weights = problem(seed)
    assert torch.equal(
        atta(logits, views, weights, 0.0, step=step, space=space), logits.softmax(-1)
    )


@given(seeds, st.sampled_from(SPACES), st.sampled_from([None, 0.01]), st.permutations(range(5)))
@settings(max_examples=40, deadline=None)
def test_renaming_the_classes_renames_the_answer(seed, space, step, order):
    logits, views, weights = problem(seed)
    straight = atta(logits, views, weights, 1.0, step=step, space=space)
    renamed = atta(
        logits[:, order], views[:, :, order], weights[:, order], 1.0, step=step, space=space
    )
    torch.testing.assert_close(renamed, straight[:, order], rtol=1e-9, atol=1e-10)


@given(seeds, st.permutations(range(3)))
@settings(max_examples=20, deadline=None)
def test_the_order_of_the_kinds_does_not_matter(seed, order):
    logits, views, weights = problem(seed)
    torch.testing.assert_close(
        atta(logits, views[:, order], weights[order], 1.0), atta(logits, views, weights, 1.0)
    )


@given(seeds, st.sampled_from(SPACES), st.sampled_from([None, 0.01]))
@settings(max_examples=20, deadline=None)
def test_each_image_is_answered_without_a_look_at_the_others(seed, space, step):
    logits, views, weights = problem(seed)
    together = atta(logits, views, weights, 0.9, step=step, space=space)
    alone = [
        atta(z[None], v[None], weights, 0.9, step=step, space=space)
        for z, v in zip(logits, views, strict=True)
    ]
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-9, atol=1e-10)


@given(seeds, st.floats(0, 1), st.sampled_from(SPACES), st.sampled_from([None, 0.01]))
@settings(max_examples=40, deadline=None)
def test_the_answer_lies_on_the_simplex(seed, limit, space, step):
    probs = atta(*problem(seed, dtype=torch.float32), limit, step=step, space=space)
    assert (probs >= 0).all()
    torch.testing.assert_close(probs.sum(-1), torch.ones(40))


def test_views_that_agree_with_the_class_are_given_the_whole_limit():
    logits = torch.tensor([[2.0, 0.0, 0.0]])
    agree = torch.tensor([[[5.0, 1.0, 0.0]]])
    base, fused = logits.softmax(-1), agree[:, 0].softmax(-1)
    for step in (None, 0.01):
        assert largest_share(base, fused, 0.7, step=step).item() == pytest.approx(0.7)
    torch.testing.assert_close(atta(logits, agree, torch.ones(1, 1), 1.0), fused)


def test_the_limit_may_be_a_number_or_a_tensor():
    logits, views, weights = problem(0)
    limit = torch.tensor(0.3, dtype=torch.float64)
    assert torch.equal(atta(logits, views, weights, 0.3), atta(logits, views, weights, limit))


# --- The class never changes ------------------------------------------------------------------------------------------


KINDS_OF_ROW = ("random", "tied", "nearly tied", "one-hot", "extreme", "flat")


def hard_rows(kind: str, n: int, k: int, g: torch.Generator) -> Tensor:
    """Rows on which a careless implementation changes the class."""
    z = torch.randn(n, k, generator=g, dtype=torch.float64)
    if kind == "tied":
        return z.round()
    if kind == "nearly tied":
        return torch.randn(n, 1, generator=g, dtype=torch.float64) + 1e-7 * z
    if kind == "one-hot":
        return 50.0 * nn.functional.one_hot(torch.randint(k, (n,), generator=g), k).double()
    if kind == "extreme":
        return 1e4 * z.sign()
    return torch.zeros_like(z) if kind == "flat" else 3 * z


@given(
    seeds,
    st.sampled_from(KINDS_OF_ROW),
    st.sampled_from(KINDS_OF_ROW),
    st.sampled_from([2, 3, 10, 100, 1000]),
    st.integers(1, 4),
    st.booleans(),
    st.sampled_from([0.0, 0.1, 1.0, -1.0, 1e3, 1e30]),
    st.floats(0, 1),
    st.sampled_from([torch.float16, torch.float32, torch.float64]),
    st.sampled_from(SPACES),
    st.sampled_from([None, 0.01, 0.3]),
)
@settings(max_examples=300, deadline=None)
def test_never_changes_the_predicted_class(
    seed, kind, view_kind, k, m, wide, scale, limit, dtype, space, step
):
    g, n = generator(seed), 64
    logits = hard_rows(kind, n, k, g).to(dtype)
    views = hard_rows(view_kind, n * m, k, g).reshape(n, m, k).to(dtype)
    weights = (scale * torch.randn(m, k if wide else 1, generator=g, dtype=torch.float64)).float()
    probs = atta(logits, views, weights, limit, step=step, space=space)
    assert probs.dtype == torch.promote_types(dtype, torch.float32)
    assert torch.isfinite(probs).all()
    assert torch.equal(probs.argmax(-1), logits.argmax(-1))
    assert ((probs.sum(-1) - 1).abs() < 1e-4).all()


@given(seeds, st.sampled_from(KINDS_OF_ROW), st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_blending_keeps_the_class_whatever_share_it_is_given(seed, kind, share):
    g = generator(seed)
    base, fused = (hard_rows(kind, 50, 7, g).float().softmax(-1) for _ in range(2))
    assert torch.equal(blend(base, fused, torch.full((50,), share)).argmax(-1), base.argmax(-1))


# --- Gradients --------------------------------------------------------------------------------------------------------


TIES = {
    "base ties": ([[1.0, 1.0, 0.0]], [[[0.0, 2.0, 1.0]]]),
    "fused ties": ([[2.0, 1.0, 0.0]], [[[0.0, 1.0, 1.0]]]),
    "two rivals alike": ([[2.0, 1.0, 1.0]], [[[0.0, 1.0, 1.0]]]),
    "one-hot": ([[1e4, 0.0, 0.0]], [[[0.0, 1e4, 0.0]]]),
    "one-hot alike": ([[1e4, 0.0, 0.0]], [[[1e4, 0.0, 0.0]]]),
    "all equal": ([[0.0, 0.0, 0.0]], [[[0.0, 0.0, 0.0]]]),
    "base equals fused": ([[2.0, 1.0, 0.0]], [[[2.0, 1.0, 0.0]]]),
}


@pytest.mark.parametrize("tie", TIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("step", [None, 0.01])
@pytest.mark.parametrize("width", [1, 3])
def test_gradients_are_finite_at_ties(tie, dtype, space, step, width):
    logits, views = (torch.tensor(values, dtype=dtype, requires_grad=True) for values in TIES[tie])
    weights = torch.ones(1, width, dtype=dtype, requires_grad=True)
    limit = torch.ones((), dtype=dtype, requires_grad=True)
    probs = atta(logits, views, weights, limit, step=step, space=space)
    loss = -probs[:, 1].clamp(min=torch.finfo(dtype).tiny).log().sum()
    for gradient in torch.autograd.grad(loss, [logits, views, weights, limit], allow_unused=True):
        assert gradient is None or torch.isfinite(gradient).all()


def test_gradients_are_those_of_finite_differences():
    logits, views, weights = problem(1, n=6)
    limit = torch.tensor(0.6, dtype=torch.float64)
    inputs = [x.requires_grad_() for x in (logits, views, weights, limit)]
    assert torch.autograd.gradcheck(lambda z, v, w, a: atta(z, v, w, a), inputs)


@pytest.mark.parametrize("limit", [0.0, 0.4, 1.0])
def test_the_limit_moves_the_share_of_every_row_that_no_rival_catches_at_its_ends_too(limit):
    logits = torch.tensor([[2.0, 0.0, 0.0]], dtype=torch.float64)
    base, fused = logits.softmax(-1), (2 * logits).softmax(-1)
    a = torch.tensor(limit, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(largest_share(base, fused, a).sum(), a)
    assert gradient.item() == 1


def test_on_the_grid_the_limit_moves_the_share_as_one_to_one():
    logits, views, weights = problem(2)
    limit = torch.tensor(0.973, dtype=torch.float64, requires_grad=True)
    share = largest_share(logits.softmax(-1), fuse(views, weights), limit, step=0.01)
    (gradient,) = torch.autograd.grad(share.sum(), limit)
    assert gradient.item() == pytest.approx((share > 0).sum().item())


# --- Export -----------------------------------------------------------------------------------------------------------


class Deployed(nn.Module):
    """The function as a graph, with the base it must not contradict beside it."""

    def __init__(self, weights: Tensor, limit: float, step: float | None, space: str) -> None:
        super().__init__()
        self.register_buffer("weights", weights)
        self.register_buffer("limit", torch.tensor(limit))
        self.step, self.space = step, space

    def forward(self, logits: Tensor, views: Tensor) -> tuple[Tensor, Tensor]:
        return atta(
            logits, views, self.weights, self.limit, step=self.step, space=self.space
        ), guard_class(logits.softmax(-1), logits)


def close_calls(n: int, m: int = 3, k: int = 10, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Rows nearly tied in the base, with views that prefer a rival."""
    g = generator(seed)
    logits = torch.randn(n, k, generator=g)
    first, rival = torch.randperm(k, generator=g)[:2]
    top = logits.amax(-1)
    logits[:, first] = top + 1
    logits[:, rival] = top + 1 - 10 ** (-6 * torch.rand(n, generator=g))
    views = logits[:, None] + torch.randn(n, m, k, generator=g)
    views[:, :, rival] += 3
    return logits, views


def ties(n: int) -> tuple[Tensor, Tensor]:
    """Rows that softmax rounds to a tie in the base."""
    logits, views = (0.05 * x for x in close_calls(n))
    near_ties(logits, generator(1))
    return logits, views


def exported(
    step: float | None, space: str, weights: Tensor
) -> tuple[Deployed, torch.export.ExportedProgram]:
    module = Deployed(weights, 0.95, step, space).eval()
    batch = torch.export.Dim("batch", min=1)
    program = torch.export.export(module, close_calls(3), dynamic_shapes=({0: batch}, {0: batch}))
    return module, program


CASES = [(None, "logits", 1), (0.01, "logits", 10), (None, "probabilities", 10)]


@pytest.fixture(scope="module", params=CASES, ids=str)
def graph(request):
    step, space, width = request.param
    weights = 0.3 + 0.1 * torch.randn(3, width, generator=generator(3))
    return exported(step, space, weights)


def test_an_exported_graph_takes_any_batch_and_changes_no_class(graph):
    module, program = graph
    run = program.module()
    for n in (1, 2, 7, 256):
        inputs = close_calls(n, seed=n)
        torch.testing.assert_close(run(*inputs), module(*inputs), rtol=0, atol=1e-5)
    for logits, views in (close_calls(200_000), ties(20_000)):
        probs, base = run(logits, views)
        assert torch.equal(probs.argmax(-1), logits.argmax(-1))
        assert torch.equal(base.argmax(-1), logits.argmax(-1))


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)
def test_onnx_runtime_takes_any_batch_and_changes_no_class(graph, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    module, program = graph
    path = tmp_path / "atta.onnx"
    names = {"input_names": ["logits", "views"], "output_names": ["probs", "base"]}
    torch.onnx.export(program, f=path, dynamo=True, verbose=False, **names)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def run(logits: Tensor, views: Tensor) -> list[np.ndarray]:
        return session.run(None, {"logits": logits.numpy(), "views": views.numpy()})

    for n in (1, 2, 7, 256):
        inputs = close_calls(n, seed=n)
        for ours, theirs in zip(module(*inputs), run(*inputs), strict=True):
            torch.testing.assert_close(torch.from_numpy(theirs), ours, rtol=0, atol=1e-5)
    for logits, views in (close_calls(200_000), ties(20_000)):
        for answer in run(logits, views):
            assert (answer.argmax(-1) == logits.argmax(-1).numpy()).all()


@pytest.mark.parametrize("scale", [0.003, 0.03, 0.3])
def test_a_rounding_error_in_the_logits_does_not_make_the_answer_jump(scale):
    """Close calls in float32, and the same with the last bit of each logit changed: another batch, a graph, a GPU."""
    g = torch.Generator().manual_seed(0)
    logits = scale * torch.randn(50_000, 10, generator=g)
    views = 0.7 * (scale * torch.randn(50_000, 2, 10, generator=g) + logits[:, None])
    nearly = logits + 1e-7 * scale * torch.randn(50_000, 10, generator=g)
    weights = torch.tensor([[0.6], [0.5]])
    probs, others = (functional.atta(x, views, weights, 1.0) for x in (logits, nearly))
    assert (probs - others).abs().max() < 1e-5


@pytest.mark.parametrize("classes", [2, 3, 10, 1000])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("step", [None, 0.01])
def test_the_class_is_that_of_the_logits_where_softmax_rounds_them_to_a_tie(classes, dtype, step):
    g = torch.Generator().manual_seed(classes)
    for scale in (1e-3, 0.05, 1.0, 30.0, 1e3):
        logits = (scale * torch.randn(200, classes, generator=g)).to(dtype)
        views = (scale * torch.randn(200, 2, classes, generator=g)).to(dtype)
        near_ties(logits, g)
        for limit in (0.3, 1.0):
            probs = functional.atta(logits, views, torch.tensor([[0.6], [0.5]]), limit, step=step)
            assert torch.equal(probs.argmax(dim=1), logits.argmax(dim=1))
            torch.testing.assert_close(probs.sum(dim=1), torch.ones(200, dtype=probs.dtype))
