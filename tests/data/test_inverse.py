"""Inverses of views: the answer to a view comes back to the pixels that it is about."""

import pytest
import torch
from torch import Tensor

from atta import InputError, Policy, View
from atta.data.draws import stratified_numbers
from atta.data.segmentation import INVERSES, SHIFTS, STILL, check_inverses, inverse_of
from atta.data.views import VIEWS


def shown_and_back(view: View, image: Tensor) -> Tensor:
    """What a network that answers every pixel by itself says of a view, mapped back."""
    u = stratified_numbers(view.name, view.count(image), 1)
    shown = view(image, u) if view.random else view(image)
    return inverse_of(view)(shown, image, u)


@pytest.mark.parametrize("name", sorted(INVERSES.keys() - STILL))
def test_flips_and_turns_come_back_exactly(name):
    image = torch.rand(2, 3, 9, 14)
    assert torch.equal(shown_and_back(VIEWS[name], image), image)


@pytest.mark.parametrize("name", SHIFTS)
def test_shifts_come_back_exactly_and_keep_what_left_the_image(name):
    image = torch.rand(1, 3, 32, 48)
    view = VIEWS[name]
    u = stratified_numbers(view.name, 2, 1)
    shown = view(image, u) + 1  # the network's answer to a view differs from that to the image
    back = inverse_of(view)(shown, image, u)
    moved = torch.isclose(back, image + 1)
    assert torch.equal(back[~moved], image[~moved])
    assert 0.7 < moved.float().mean() < 1


@pytest.mark.parametrize("name", [name for name in VIEWS if "scale" in name])
def test_scales_come_back_to_the_size_of_the_image(name):
    ramp = torch.linspace(0, 1, 40).expand(1, 1, 24, 40)
    back = shown_and_back(VIEWS[name], ramp)
    assert back.shape == ramp.shape
    inner = (..., slice(3, -3))
    torch.testing.assert_close(back[inner], ramp[inner], atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", STILL)
def test_views_of_light_move_no_pixel(name):
    answer = torch.rand(1, 5, 8, 8)
    assert torch.equal(inverse_of(VIEWS[name])(answer, answer, torch.rand(1, 1)), answer)


def test_every_view_has_an_inverse_or_is_refused():
    refused = set()
    for name, view in VIEWS.items():
        try:
            inverse_of(view)
        except InputError:
            refused.add(name)
    assert refused == {"crop", "native-crop", "zoom-in", "zoom-out", "rotate"}


def test_a_policy_with_a_crop_is_refused_with_a_sentence():
    with pytest.raises(InputError, match=r"View 'crop': expected a view with an inverse"):
        check_inverses(Policy.parse("flip + crop"))


def test_a_view_of_ones_own_can_have_an_inverse():
    half = View("left-right", lambda x: x.roll(3, -1), inverse=lambda answer: answer.roll(-3, -1))
    image = torch.rand(1, 3, 4, 9)
    assert torch.equal(shown_and_back(half, image), image)
    with pytest.raises(InputError, match="inverse"):
        inverse_of(View.of("mine", lambda x: x))
