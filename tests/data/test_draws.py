"""Numbers that depend on nothing but the image, and numbers that are spread evenly."""

import hashlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from atta.data.draws import _GAMMA, _scramble, random_numbers, stratified_numbers
from atta.data.views import (
    VIEWS,
)


def slow_number(seed: int, index: int, name: str, repeat: int, position: int) -> float:
    """SplitMix64 in whole numbers of Python, seeded with a hash of the label and the image."""

    def output(state: int) -> int:
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB % 2**64
        return state ^ (state >> 31)

    golden = 0x9E3779B97F4A7C15
    key = int.from_bytes(
        hashlib.blake2b(f"{seed}/{name}/{repeat}".encode(), digest_size=8).digest(), "little"
    )
    image = output((key + index * golden) % 2**64)
    return (output((image + (position + 1) * golden) % 2**64) >> 40) / 2**24


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(-(2**70), 2**70),
    index=st.integers(0, 2**62),
    name=st.sampled_from(sorted(VIEWS)),
    repeat=st.integers(0, 100),
    position=st.integers(0, 20),
)
def test_a_number_is_a_function_of_seed_image_view_repeat_and_position(
    seed, index, name, repeat, position
):
    expected = slow_number(seed, index, name, repeat, position)
    for indices in ([index], [3, index, 1], [index] * 8):
        row = indices.index(index)
        u = random_numbers(name, position + 1, torch.tensor(indices), repeat=repeat, seed=seed)
        assert u[row, position].item() == expected
        assert 0 <= expected < 1


def test_splitmix_gives_its_published_outputs():
    """The first outputs of the reference generator from state 1234567."""
    outputs = _scramble(np.uint64(1234567) + np.arange(1, 4, dtype=np.uint64) * _GAMMA)
    assert outputs.tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_the_numbers_are_uniform():
    u = random_numbers("crop", 4, torch.arange(50_000), repeat=1, seed=7)
    assert u.dtype == torch.float32
    for column in u.T:
        counts = torch.histc(column, bins=100, min=0, max=1)
        chi_square = ((counts - 500) ** 2 / 500).sum()
        assert 50 < chi_square < 160  # 99 degrees of freedom: 99 ± 4 standard deviations of 14


def test_neighbouring_images_repeats_views_seeds_and_positions_are_uncorrelated():
    n = 50_000
    images = torch.arange(n)

    def column(name="crop", repeat=0, seed=0, shift=0, position=0) -> Tensor:
        return random_numbers(name, 2, images + shift, repeat=repeat, seed=seed)[:, position]

    neighbours = [
        column(),
        *(column(shift=shift) for shift in (1, 2, 1000)),
        *(column(repeat=repeat) for repeat in (1, 2)),
        *(column(name=name) for name in ("brightness", "contrast", "native-crop")),
        *(column(seed=seed) for seed in (1, 2, -1)),
        column(position=1),
    ]
    correlation = torch.corrcoef(torch.stack(neighbours).double()) - torch.eye(len(neighbours))
    assert correlation.abs().max() < 4.5 / n**0.5


def test_every_crop_window_is_equally_likely():
    n, positions = 40_000, 3
    images = torch.arange(100.0).reshape(1, 1, 10, 10).expand(n, -1, -1, -1)
    corners = VIEWS["native-crop"](images, random_numbers("native-crop", 2, torch.arange(n)))[
        :, 0, 0, 0
    ].long()
    counts = torch.bincount(corners, minlength=100).reshape(10, 10)
    expected = n / positions**2
    assert counts[:positions, :positions].sum() == n
    assert (
        (counts[:positions, :positions] - expected) ** 2 / expected
    ).sum() < 26.1  # 8 degrees of freedom, p = 0.001


@settings(max_examples=50, deadline=None)
@given(name=st.sampled_from(sorted(VIEWS)), count=st.integers(1, 6), repeats=st.integers(1, 40))
def test_stratified_numbers_fall_once_into_each_part_of_the_range(name, count, repeats):
    u = stratified_numbers(name, count, repeats)
    assert 0 <= u.min() <= u.max() < 1
    parts = (
        u.double() * repeats + 1e-5
    ).floor()  # mid-points and jitter are far from a border, but for rounding
    assert torch.equal(
        parts.sort(0).values, torch.arange(repeats, dtype=torch.float64)[:, None].expand(-1, count)
    )


def test_five_brightness_levels_are_five_even_steps():
    torch.testing.assert_close(
        stratified_numbers("brightness", 1, 5), torch.tensor([[0.1], [0.3], [0.5], [0.7], [0.9]])
    )


@pytest.mark.parametrize("repeats", range(2, 33))
def test_stratified_positions_are_well_apart(repeats):
    points = stratified_numbers("crop", 2, repeats)
    apart = torch.cdist(points, points).fill_diagonal_(9).min()
    assert apart >= 0.65 / repeats**0.5  # a perfect square grid has 1


def test_a_single_stratified_repeat_is_the_middle():
    assert stratified_numbers("crop", 2, 1).tolist() == [[0.5, 0.5]]


def test_stratified_noise_is_as_varied_as_random_noise():
    normal = torch.special.ndtri(stratified_numbers("noise", 3 + 3072, 5)[:, 3:])
    assert (normal.std(1) - 1).abs().max() < 0.05
    assert normal.mean(1).abs().max() < 0.07
    assert normal.unique().numel() > 15_000
