"""Inverses of views: map the answer to a view back to the image, pixel by pixel.

| views                                   | inverse                                                |
|-----------------------------------------|--------------------------------------------------------|
| flip, vflip, turns, transpose           | the opposite move                                      |
| scale-50, ..., flip-scale-200           | resize the logits back, bilinear, and mirror them back |
| shift, nudge, flip-shift, ...           | each pixel back to its place; those that left the image|
|                                         | keep the answer to the image itself                    |
| brightness, gamma, jpeg, blur, ...      | none needed: no pixel moves                            |
| crop, native-crop, zoom-in, rotate, ... | refused: they lose a part of the image                 |
"""

from collections.abc import Callable
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from atta._base.errors import InputError
from atta.data import transforms
from atta.data.transforms import Numbers
from atta.data.views import REHEARSAL, Policy, View

LogitMaps: TypeAlias = Float[Tensor, "n k h w"]
Inverse: TypeAlias = Callable[[LogitMaps, LogitMaps, Numbers], LogitMaps]
"""Takes the logits of a view, those of the image itself, and the numbers of the view."""

OPPOSITE = {
    "flip": transforms.flip,
    "vflip": transforms.vflip,
    "rot90": transforms.rot270,
    "rot180": transforms.rot180,
    "rot270": transforms.rot90,
    "transpose": transforms.transpose,
    "antitranspose": transforms.antitranspose,
}
SHIFTS = ("shift", "nudge", "flip-shift", "diagonal-shift", "flip-diagonal-shift")
STILL = (
    *("brightness", "contrast", "noise", "blur", "gamma", "autocontrast", "saturation"),
    *("hue", "grey", "sharpen", "jpeg"),
)


def resize(logits: Tensor, size: tuple[int, ...]) -> Tensor:
    """Resize logits to a height and a width, if they have another size. Bilinear."""
    if tuple(logits.shape[-2:]) == tuple(size):
        return logits
    return F.interpolate(logits, size=list(size), mode="bilinear", align_corners=False)


def inverse_of(view: View) -> Inverse:
    """Return what maps the answer to a view back to the image.

    Raises:
        InputError: The view has no inverse.
    """
    if view.inverse is not None:
        back = view.inverse
        return lambda shown, own, u: back(shown)
    if view.own and view.name in OPPOSITE:
        opposite = OPPOSITE[view.name]
        return lambda shown, own, u: opposite(shown)
    if isinstance(scale := view.transform, transforms.Scale):
        turned = transforms.flip if scale.mirrored else lambda shown: shown
        return lambda shown, own, u: resize(turned(shown), own.shape[-2:])
    if view.own and view.name in SHIFTS:
        return lambda shown, own, u: _unmoved(view, shown, own, u)
    if (view.own and view.name in STILL) or view.name.startswith(REHEARSAL):
        return lambda shown, own, u: shown
    raise InputError(
        f"View {view.name!r}: expected a view with an inverse for segmentation, which moves each "
        "pixel's answer back to its place, got one without: use flips, turns, shifts, scales "
        "(scale-75 is smaller, scale-150 larger, flip-scale-150 also mirrored), views of colours, "
        "or View(..., inverse=...)"
    )


def check_inverses(policy: Policy) -> None:
    """Refuse a policy with a view that has no inverse."""
    for view, _ in policy.terms:
        inverse_of(view)


def _unmoved(view: View, shown: LogitMaps, own: LogitMaps, u: Numbers) -> LogitMaps:
    """Move pixels back to where a shift took them from; of several copies, the first counts."""
    h, w = own.shape[-2:]
    image = torch.arange(h * w, dtype=torch.float64, device=own.device).reshape(1, 1, h, w)
    source = view(image, u[:1]).flatten().long()
    place = torch.arange(h * w, device=own.device)
    back = torch.full_like(place, h * w).scatter_reduce(0, source, place, "amin")
    found = shown.flatten(2)[..., back.clamp(max=h * w - 1)]
    return torch.where(back < h * w, found, own.flatten(2)).reshape(own.shape)
