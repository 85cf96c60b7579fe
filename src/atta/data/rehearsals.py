"""Rehearsals: corrupted images on which a fit learns how the network reacts to dataset shift.

`REHEARSALS[3]` shows each image in one family of `corruptions` at severity 3; the image's own
random number picks the family. One pass over the validation images covers every family, and passes
of severity 1 to 5 cover them at growing severity. Rehearsals are for fits only: a record keeps them
with its views, under the names `rehearse-1` to `rehearse-5`, and no method blends them. They are
always drawn by seed and image index. Stratified numbers are the same for every image and would show
all images in one family.
"""

from collections.abc import Iterable
from functools import partial

import torch

from atta._base.errors import InputError
from atta._base.types import Images, Labels
from atta.data.corruptions import CONSTANTS, CORRUPTIONS, SEVERITIES
from atta.data.transforms import Numbers, pick
from atta.data.views import REHEARSAL, Policy, View

FAMILIES = tuple(CONSTANTS)


def family_of(u: Numbers) -> Labels:
    """Return the position of each image's family in FAMILIES, by the first of its numbers."""
    return pick(u[:, 0], len(FAMILIES))


def _rehearse(images: Images, u: Numbers, *, severity: int) -> Images:
    """Show each image in the family that its first number picks; the others are the family's."""
    picked, shown = family_of(u), images.clone()
    for number in set(picked.tolist()):
        rows = picked == number
        view = CORRUPTIONS[f"{FAMILIES[number]}-{severity}"]
        own = [u[rows, 1 : 1 + view.count(images)]] if view.random else []
        shown[rows] = view.transform(images[rows], *own)
    return shown


def _numbers(c: int, h: int, w: int, *, severity: int) -> int:
    """One number to pick the family, and as many as the family that needs most."""
    image = torch.empty(1, c, h, w)
    return 1 + max(CORRUPTIONS[f"{family}-{severity}"].count(image) for family in FAMILIES)


REHEARSALS: dict[int, View] = {
    severity: View(
        f"{REHEARSAL}{severity}",
        partial(_rehearse, severity=severity),
        partial(_numbers, severity=severity),
        stratified=False,
    )
    for severity in SEVERITIES
}
"""The rehearsals by severity."""


def rehearsed(severities: Iterable[int]) -> Policy:
    """Return the rehearsals of these severities as a policy of one pass each."""
    asked = dict.fromkeys(severities)
    if wrong := [one for one in asked if one not in REHEARSALS or isinstance(one, bool)]:
        raise InputError(
            f"rehearse: expected severities from 1 to {max(SEVERITIES)}, got {wrong[0]!r}"
        )
    return Policy(tuple((REHEARSALS[severity], 1) for severity in asked))
