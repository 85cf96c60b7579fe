"""Rehearsals: images made worse on purpose, each in a way of its own, so that a fit sees what a shift does to the network.

`REHEARSALS[3]` shows each image in one family of `corruptions` at severity 3; which one is the image's own random number. So
one pass over the validation images meets every family, and a ladder of passes (1 … 5) meets them at growing severity. They
are for fits alone: a record holds them beside its views, under the names `rehearse-1` … `rehearse-5`, and no method blends
them. They are drawn by (seed, index) always, never stratified: stratified numbers are the same for every image, and would show
all of them in one family.
"""

from collections.abc import Iterable
from functools import partial

from jaxtyping import Float, Int
from torch import Tensor

from atta._base.errors import InputError
from atta._base.types import Images
from atta.data.corruptions import CONSTANTS, CORRUPTIONS, SEVERITIES
from atta.data.views import REHEARSAL, Policy, View

FAMILIES = tuple(CONSTANTS)


def rehearse(images: Images, u: Float[Tensor, "n d"], *, severity: int) -> Images:
    """Show each image in the family that its first number picks, drawn with the numbers after it."""
    picked = family_of(u)
    shown = images.clone()
    for number, family in enumerate(FAMILIES):
        rows = (picked == number).nonzero()[:, 0]
        if not rows.shape[0]:
            continue
        view = CORRUPTIONS[f"{family}-{severity}"]
        given = (u[rows, 1 : 1 + view.count(images)],) if view.random else ()
        shown[rows] = view(images[rows], *given)
    return shown


def family_of(u: Float[Tensor, "n d"]) -> Int[Tensor, " n"]:
    """The number of each image's family in FAMILIES, by the first of its numbers."""
    return (u[:, 0] * len(FAMILIES)).long().clamp(max=len(FAMILIES) - 1)


def _numbers(c: int, h: int, w: int, *, severity: int) -> int:
    """One to pick the family, and as many as the family that needs most."""
    views = (CORRUPTIONS[f"{family}-{severity}"] for family in FAMILIES)
    return 1 + max(
        view.numbers if isinstance(view.numbers, int) else view.numbers(c, h, w) for view in views
    )


REHEARSALS: dict[int, View] = {
    severity: View(
        f"{REHEARSAL}{severity}",
        partial(rehearse, severity=severity),
        partial(_numbers, severity=severity),
        stratified=False,
    )
    for severity in SEVERITIES
}
"""By their severity."""


def rehearsed(severities: Iterable[int]) -> Policy:
    """The rehearsals of these severities as a policy of one pass each."""
    asked = list(severities)
    if wrong := [one for one in asked if one not in REHEARSALS or isinstance(one, bool)]:
        raise InputError(
            f"rehearse: expected severities from 1 to {max(SEVERITIES)}, got {wrong[0]!r}"
        )
    return Policy(tuple((REHEARSALS[severity], 1) for severity in dict.fromkeys(asked)))
