"""The numbers the paper published (Conde et al., arXiv 2304.05104v2), as data.

    published("in_distribution.cifar10")["v-atta"]["brier"]  →  0.0358

A table is method → metric → number, or method → policy → Brier score where it compares policies. Of its figures (OOD
entropy, the size of the validation set) the paper prints no numbers.
"""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from atta._base.errors import InputError, suggest

PublishedTable: TypeAlias = Mapping[str, Mapping[str, float]]
FILE = Path(__file__).parent / "published.json"


@cache
def paper() -> Mapping[str, Any]:
    """All of it: the tables, and what the paper says of the networks, splits and policies behind them."""
    content: Mapping[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return content


def published(place: str) -> PublishedTable:
    """A table by its place, such as "in_distribution.cifar10" or "shift_cifar10"."""
    tables: Mapping[str, PublishedTable] = paper()["tables"]
    if place not in tables:
        raise InputError(
            f"the paper has no table {place!r}.{suggest(place, tables)} It has: {', '.join(tables)}"
        )
    return tables[place]
