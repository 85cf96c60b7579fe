"""Views of the photograph: what the centre crop cuts off, and finer pixels.

A view of pixels can only show what preprocessing left. A view of the photograph is made of the
decoded photograph, like the centre crop, but of another part of it or of more pixels.

| view     | part of the photograph                        | pixels                             |
|----------|-----------------------------------------------|------------------------------------|
| `larger` | that of the centre crop                       | 8/7 of the network's height, width |
| `tight`  | that of the centre crop, divided by 1.22      | those of the network               |
| `wide`   | that of the centre crop, enlarged to an edge  | those of the network               |
| `whole`  | all of it, squashed                           | those of the network               |
| `corner` | a corner of the resized photograph            | those of the network               |
| `window` | the resized photograph at spread positions    | those of the network               |

Each of them is also there mirrored, such as `flip-larger`: it tells more in the same pass. The
first four are resized by Pillow in one step (`Image.resize(box=...)`), so that no pixel is computed
that is cut off. The last two are cut out of the photograph as it is resized for the centre crop.
The pixels travel on a sheet: the centre crop on top, below it one view after the other, all at the
left edge. A `Sheet` knows where each of them is, and cuts them out again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from torch import Tensor

from atta._base.errors import InputError
from atta.data.draws import stratified_numbers

if TYPE_CHECKING:
    from PIL import Image

TIGHT = 1.22
"""How much smaller the frame of `tight` is than that of the centre crop."""
CORNERS = ((0.0, 0.0), (1.0, 1.0), (1.0, 0.0), (0.0, 1.0))
"""Positions of `corner`, (x, y) from 0 to 1, opposite ones after each other."""
GAP = 3.0
"""Photographs of more than so many times twice the pixels are first reduced to whole parts of their
sides: on 12 megapixels, a third of the time."""
MOST = {"larger": 1, "tight": 1, "wide": 1, "whole": 1, "corner": len(CORNERS), "window": 64}
MOST |= {f"flip-{name}": most for name, most in MOST.items()}
"""The views of a photograph, and the most repeats of each."""
Terms: TypeAlias = tuple[tuple[str, int], ...]
"""Names of views and their repeats."""
Box: TypeAlias = tuple[float, float, float, float]
"""Left, top, right and bottom edge in a photograph."""


def larger(side: int) -> int:
    """Return 8/7 of a side, in steps that networks with patches can divide.

    >>> larger(224), larger(240), larger(260), larger(384)
    (256, 272, 296, 432)
    """
    step = gcd(side, 16) if side >= 112 else 1
    return max(1, round(side * 8 / 7 / step)) * step


def is_larger(view: str) -> bool:
    """Whether a view has more pixels than the network's input."""
    return view.endswith("larger")


def named(terms: Terms) -> str:
    """Write views with their repeats as a policy does.

    >>> named((("larger", 1), ("corner", 2)))
    'larger + 2 corner'
    """
    return " + ".join(name if repeats == 1 else f"{repeats} {name}" for name, repeats in terms)


def box_of(view: str, photo: Sequence[int], frame: Sequence[float]) -> Box:
    """Return the part of a photograph that a view shows.

    Args:
        view: Name of the view.
        photo: Width and height of the photograph.
        frame: Width and height of the part that the centre crop shows.

    >>> box_of("tight", (500, 400), (366.0, 366.0))
    (100.0, 50.0, 400.0, 350.0)
    """
    ratios = [whole / part for whole, part in zip(photo, frame, strict=True)]
    scale = {"tight": 1 / TIGHT, "wide": min(ratios)}.get(view, 1.0)
    sides = photo if view == "whole" else [part * scale for part in frame]
    left, top = (max(0.0, (a - b) / 2) for a, b in zip(photo, sides, strict=True))
    return left, top, photo[0] - left, photo[1] - top


@dataclass(frozen=True)
class Sheet:
    """The places of the centre crop and of views of the photograph, one below the other.

    Args:
        size: Height and width of the centre crop, which is the network's input.
        terms: The views, with their repeats.
    """

    size: tuple[int, int]
    terms: Terms

    def __post_init__(self) -> None:
        for name, repeats in self.terms:
            most = MOST.get(name)
            if most is None:
                raise InputError(
                    f"a view of the photograph: expected {', '.join(MOST)}, got {name!r}"
                )
            if not 1 <= repeats <= most:
                raise InputError(f"repeats of {name!r}: expected 1 to {most}, got {repeats}")

    @property
    def places(self) -> dict[tuple[str, int], list[tuple[int, int, int]]]:
        """Top, height and width of each repeat, by view and number of repeats."""
        found, top = {}, self.size[0]
        for name, repeats in self.terms:
            height, width = map(larger, self.size) if is_larger(name) else self.size
            found[name, repeats] = [(top + i * height, height, width) for i in range(repeats)]
            top += repeats * height
        return found

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the sheet."""
        places = [(0, *self.size), *(one for found in self.places.values() for one in found)]
        return max(top + height for top, height, _ in places), max(width for *_, width in places)

    def crop(self, sheets: Tensor) -> Tensor:
        """Cut out the centre crop."""
        height, width = self.size
        return sheets[..., :height, :width].contiguous()

    def views(self, sheets: Tensor, name: str, repeats: int) -> list[Tensor]:
        """Cut out each repeat of a view."""
        return [
            sheets[..., top : top + height, :width].contiguous()
            for top, height, width in self.places[name, repeats]
        ]

    def filled(self, crop: Tensor, resized: Tensor, photo: "Image.Image", resample: int) -> Tensor:
        """Make the views of a photograph, and put them on a sheet with its centre crop.

        Args:
            crop: The centre crop, (c, h, w).
            resized: What it was cut from, the resized photograph.
            photo: The photograph.
            resample: Pillow's number of the interpolation.
        """
        (height, width), (full_height, full_width) = self.size, resized.shape[1:]
        frame = width * photo.width / full_width, height * photo.height / full_height
        sheet = torch.zeros(crop.shape[0], *self.shape, dtype=torch.uint8)
        sheet[:, :height, :width] = crop
        for (term, repeats), places in self.places.items():
            name = term.removeprefix("flip-")
            for (x, y), (top, h, w) in zip(positions(name, repeats), places, strict=True):
                if name in ("corner", "window"):
                    left, up = round(x * (full_width - width)), round(y * (full_height - height))
                    shown = resized[:, up : up + height, left : left + width]
                else:
                    box = box_of(name, photo.size, frame)
                    view = photo.resize((w, h), resample, box=box, reducing_gap=GAP)
                    shown = torch.from_numpy(np.array(view).reshape(h, w, -1)).permute(2, 0, 1)
                sheet[:, top : top + h, :w] = shown if term == name else shown.flip(-1)
        return sheet


def positions(view: str, repeats: int) -> list[tuple[float, float]]:
    """Return where the repeats of a view are, (x, y) from 0 to 1."""
    if view == "corner":
        return list(CORNERS[:repeats])
    if view == "window":
        return [(x, y) for x, y in stratified_numbers(view, 2, repeats).tolist()]
    return [(0.5, 0.5)]
