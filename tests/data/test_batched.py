"""All views of a batch in one go are the views one by one, bit for bit, in few operations."""

import pytest
import torch
from torch import Tensor

from atta.data.batched import MOVES, BatchedViews
from atta.data.views import POLICIES, VIEWS, Policy, View
from scenarios import counted

SHAPES = [(3, 32, 32), (1, 10, 9), (3, 8, 13)]


def photos(n: int, shape: tuple[int, int, int], dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.rand(
        n, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    ).to(dtype)


def assert_one_by_one(policy: Policy, images: Tensor) -> None:
    """The numbers that a policy draws stratified, and the same bits."""
    batched = BatchedViews(policy, images.shape[1:])
    found = batched.show(images, batched.passes(policy.kinds))
    for (kind, repeat, shown), (name, number, alone) in zip(
        found, policy.render(images, torch.arange(images.shape[0]), draws="stratified"), strict=True
    ):
        assert (kind, repeat, shown.dtype) == (name, number, images.dtype)
        assert torch.equal(shown, alone), (kind, repeat)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", VIEWS)
def test_every_view_shows_what_it_shows_by_itself(name, shape):
    view = VIEWS[name]
    policy = Policy(((view, 4 if view.random else 1),))
    for images in (photos(5, shape), photos(1, shape, torch.float64)):
        assert_one_by_one(policy, images)


@pytest.mark.parametrize("name", [name for name, one in POLICIES.items() if not one.photographs])
def test_every_policy_shows_what_its_views_show(name):
    assert_one_by_one(POLICIES[name], photos(3, (3, 16, 16)))


def test_some_repeats_in_any_order_are_those_of_all_of_them():
    policy, images = (
        Policy.parse("flip + 5 crop + 3 shift + vflip + 2 gamma"),
        photos(4, (3, 16, 16)),
    )
    batched = BatchedViews(policy, images.shape[1:])
    passes = batched.passes(policy.kinds)
    every = {key[:2]: key[2] for key in batched.show(images, passes)}
    for some in (
        passes[::-1],
        passes[2:7],
        passes[1::3],
        [("shift", 2), ("flip", 0), ("shift", 1)],
        [],
    ):
        shown = batched.show(images, some)
        assert [key[:2] for key in shown] == some
        assert all(torch.equal(view, every[kind, repeat]) for kind, repeat, view in shown)


def test_the_views_of_others_are_called_for_each_repeat():
    batches = []

    def mean_taken(
        images: Tensor, u: Tensor
    ) -> Tensor:  # which would tell one repeat from another in one call
        batches.append(images.shape[0])
        return images - images.mean() * u[:, :1, None, None]

    policy = Policy(((View("mean-taken", mean_taken, numbers=2), 3),))
    assert_one_by_one(policy, photos(4, (3, 8, 8)))
    assert set(batches) == {4}


def test_a_view_that_has_a_name_of_ours_and_does_something_else_is_called():
    assert_one_by_one(Policy(((View("flip", lambda images: 1 - images), 1),)), photos(4, (3, 8, 8)))


@pytest.mark.parametrize(
    "policy", ["shift-mix-17", "dihedral-8", " + ".join(sorted(MOVES - {"native-crop"}))]
)
def test_all_moves_are_one_gather(policy):
    parsed, images = Policy.parse(policy), photos(4, (3, 16, 16))
    batched = BatchedViews(parsed, images.shape[1:])
    work = counted(lambda: batched.show(images, batched.passes(parsed.kinds)))
    assert work == {"gather": 1}


def test_repeats_cost_no_more_operations_than_a_pair():
    images = photos(4, (3, 16, 16))

    def work(repeats: int) -> dict[str, int]:
        policy = Policy.parse(
            " + ".join(f"{repeats} {name}" for name, view in VIEWS.items() if view.random)
        )
        batched = BatchedViews(policy, images.shape[1:])
        return counted(lambda: batched.show(images, batched.passes(policy.kinds)))

    assert work(2) == work(5)
