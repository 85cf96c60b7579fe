"""Match the names of classes to class numbers, so that a missing or moved class moves no other.

Names are compared without case, spaces, dashes and underscores. One of several names between commas
is enough, as in ImageNet ("tench, Tinca tinca"). A number is a class number. A WordNet id
(n02123045) is a class of ImageNet if the network has 1000 classes.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from atta._base.errors import InputError, suggest

IMAGENET = 1000
"""Number of classes of ImageNet."""
is_number = re.compile("0*[0-9]{1,5}").fullmatch
"""Whether the name of a class is its number; a larger one is a date or a serial number."""


def numbers_of(found: Iterable[str], names: Sequence[str], what: str = "labels") -> dict[str, int]:
    """Return the class number of each name found, given the names of the network's classes.

    >>> numbers_of(["Polar-Bear", "2"], ["ant", "polar bear", "cat"])
    {'Polar-Bear': 1, '2': 2}
    """
    found = list(dict.fromkeys(found))
    folded = {name: re.sub(r"[\s_\-]+", "", name.casefold()) for name in (*names, *found)}
    whole, parts = defaultdict[str, set[int]](set), defaultdict[str, set[int]](set)
    for i, name in enumerate(names):
        whole[folded[name]].add(i)
        for part in folded[name].split(","):
            parts[part].add(i)
    numbers: dict[str, int] = {}
    for name in found:
        places = whole[folded[name]] or _by_number(name, len(names)) or parts[folded[name]]
        if len(places) != 1:
            raise _unmatched(name, names, places, what)
        (numbers[name],) = places
    return numbers


def _by_number(name: str, classes: int) -> set[int]:
    """The class that a class number or a WordNet id refers to."""
    if is_number(name):
        return {int(name)} & set(range(classes))
    wnid = re.match(r"n\d{8}(?!\d)", name)
    known = imagenet() if wnid and classes == IMAGENET else {}
    return {known[wnid[0]]} if wnid and wnid[0] in known else set()


def _unmatched(name: str, names: Sequence[str], places: set[int], what: str) -> InputError:
    """The error for a name that belongs to no class, or to several."""
    listed = ", ".join(names[:5]) + (f", ... ({len(names)} in all)" if len(names) > 5 else "")
    reason = f"no class has that name.{suggest(name, names)}"
    if places:
        reason = f"classes {', '.join(map(str, sorted(places)))} have that name."
    return InputError(
        f"{what}: expected names of the network's classes ({listed}), got {name!r}: {reason} "
        "Give other names as class_names=... (--classes FILE or a,b,c), in the network's order, or "
        "use class numbers"
    )


@cache
def imagenet() -> dict[str, int]:
    """ImageNet's 1000 classes by WordNet id, in the order of every network trained on it."""
    text = Path(__file__).with_name("imagenet_wnids.txt").read_text(encoding="ascii")
    return {wnid: i for i, wnid in enumerate(text.split())}


@cache
def imagenet_names() -> tuple[str, ...]:
    """Names of ImageNet's classes in their order: words if timm is installed, else WordNet ids."""
    timm = find_spec("timm")
    words = dict[str, str]()
    with suppress(OSError, ValueError):
        info = Path(str(timm and timm.origin)).parent / "data" / "_info"
        rows = (info / "imagenet_synset_to_lemma.txt").read_text(encoding="utf-8").splitlines()
        words = dict(row.split("\t") for row in rows)
    names = [words.get(wnid, wnid) for wnid in imagenet()]
    twice = {name for name, count in Counter(names).items() if count > 1}  # the bird, the machine
    return tuple(
        f"{name} ({wnid})" if name in twice else name
        for name, wnid in zip(names, imagenet(), strict=True)
    )
