"""Classes by name: a class that is missing, or stands elsewhere, moves no other.

Names are compared without case, spaces, dashes and underscores. One of several names between commas will do, as ImageNet has
them ("tench, Tinca tinca"); a number is a class number; a WordNet id (n02123045) is its class where there are ImageNet's 1000.
"""

import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from atta._base.errors import InputError, suggest

IMAGENET = 1000
WNID = re.compile(r"n\d{8}(?!\d)")
MOST = 100_000  # A number above it is a date or a serial number, and no class.


def folded(name: str) -> str:
    """What is compared of a name."""
    return re.sub(r"[\s_\-]+", "", name.casefold())


def is_number(name: str) -> bool:
    """Whether the name of a class is its number."""
    return name.isascii() and name.isdigit() and int(name) < MOST


def numbers_of(found: Iterable[str], names: Sequence[str], what: str = "labels") -> dict[str, int]:
    """The class number of each name that was found, among the names of the network's classes.

    >>> numbers_of(["Polar-Bear", "2"], ["ant", "polar bear", "cat"])
    {'Polar-Bear': 1, '2': 2}
    """
    whole, parts = _places(names), _places(names, parts=True)
    numbers: dict[str, int] = {}
    for name in dict.fromkeys(found):
        places = (
            whole.get(folded(name))
            or _by_number(name, names)
            or _by_wnid(name, names)
            or parts.get(folded(name), set())
        )
        if len(places) != 1:
            several = (
                f"class {', '.join(map(str, sorted(places)))} have that name"
                if places
                else "no class has that name"
            )
            shown = ", ".join(names[:5]) + (
                f", ... ({len(names)} in all)" if len(names) > 5 else ""
            )
            raise InputError(
                f"{what}: expected names of the network's classes ({shown}), got {name!r}: {several}."
                f"{'' if places else suggest(name, names)} Other names are given as class_names=... (--classes FILE or a,b,c), "
                "in the network's order; class numbers will do as well"
            )
        numbers[name] = next(iter(places))
    return numbers


def _by_number(name: str, names: Sequence[str]) -> set[int]:
    return {int(name)} if is_number(name) and int(name) < len(names) else set()


def _by_wnid(name: str, names: Sequence[str]) -> set[int]:
    wnid = WNID.match(name)
    place = imagenet().get(wnid[0]) if wnid and len(names) == IMAGENET else None
    return set() if place is None else {place}


def _places(names: Sequence[str], parts: bool = False) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for i, name in enumerate(names):
        for text in name.split(",") if parts else (name,):
            found.setdefault(folded(text), set()).add(i)
    return found


@cache
def imagenet() -> dict[str, int]:
    """ImageNet's 1000 classes by their WordNet ids, in the order of every network trained on it."""
    text = Path(__file__).with_name("imagenet_wnids.txt").read_text(encoding="ascii")
    return {wnid: i for i, wnid in enumerate(text.split())}
