"""Settings are what their annotations say: one check for those of every method and function, and one sentence.

    epochs: Annotated[int, "≥ 1"]                       epochs must be a whole number ≥ 1, got 'a'
    step: Annotated[float, "> 0", "≤ 1"] | None         step must be a number > 0 and ≤ 1 or None, got nan
    space: Literal["logits", "probabilities"]           space must be one of logits, probabilities, got []

What an annotation says in other words than these is left to whoever takes the setting.
"""

import inspect
import math
import operator
import reprlib
from collections.abc import Callable, Mapping
from functools import cache, wraps
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, ParamSpec, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from atta.errors import InputError

P = ParamSpec("P")
T = TypeVar("T")

Count: TypeAlias = Annotated[int, "≥ 1"]
Cells: TypeAlias = Annotated[int, "≥ 1", "≤ 1000000"]
"""How many bins; more would fill the memory and tell nothing."""
Folds: TypeAlias = Annotated[int, "≥ 2"]
Seed: TypeAlias = Annotated[int, "≥ -9223372036854775808", "≤ 9223372036854775807"]
"""What torch's generators take."""
Step: TypeAlias = Annotated[float, "> 0", "≤ 1"] | None
"""A grid of the share with a point in (0, 1], or None for the closed form."""

_SIGNS = {">": operator.gt, "≥": operator.ge, "<": operator.lt, "≤": operator.le}
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 100
_WORDS: dict[Any, str] = {int: "a whole number", float: "a number", bool: "True or False", str: "text", NoneType: "None"}


def checked(function: Callable[P, T]) -> Callable[P, T]:
    """Check the arguments of a function that are given by name, whenever it is called."""

    @wraps(function)
    def door(*args: P.args, **kwargs: P.kwargs) -> T:
        kwargs.update(check(kwargs, hints(function)))
        return function(*args, **kwargs)

    return door


@cache
def hints(of: Any) -> dict[str, Any]:
    """The annotations of a class or a function, with the bounds in them."""
    return get_type_hints(inspect.unwrap(of), include_extras=True)


def check(given: Mapping[str, Any], annotations: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by name, numbers as plain ones of Python; the first that is not what it is said to be is refused."""
    return {name: check_one(name, value, annotations[name]) for name, value in given.items() if name in annotations}


def check_one(name: str, value: Any, annotation: Any) -> Any:
    """A setting, if it is what its annotation says."""
    kinds = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    if not all(_base(kind) in _WORDS or get_origin(kind) is Literal for kind in kinds):
        return value
    for kind in kinds:
        try:
            return _plain(value, kind)
        except (ValueError, OverflowError):
            continue
    raise InputError(f"{name} must be {' or '.join(map(_words, kinds))}, got {shown(value)}")


def shown(value: Any) -> str:
    """What came, in a few words."""
    return " ".join(_SHORT.repr(value).split())


def _base(kind: Any) -> Any:
    base = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    return float if base == float | int else base  # strict checkers of types take no whole number for a float


def _plain(value: Any, kind: Any) -> Any:
    """The value as a plain one of this kind; ValueError, or OverflowError, if it is none."""
    base, flag = _base(kind), isinstance(value, bool | np.bool_)
    if base is bool and (flag or (isinstance(value, Integral) and value in (0, 1))):
        return bool(value)
    if (base is int and isinstance(value, Integral) and not flag) or (base is NoneType and value is None):
        found = value if value is None else int(value)
    elif base is float and isinstance(value, Real) and not flag and math.isfinite(value):
        found = float(value)
    elif isinstance(value, str) and (base is str or (get_origin(kind) is Literal and value in get_args(kind))):
        found = value
    else:
        raise ValueError
    for bound in kind.__metadata__ if get_origin(kind) is Annotated else ():
        sign, number = bound.split()
        if not _SIGNS[sign](found, type(found)(number)):
            raise ValueError
    return found


def _words(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    bounds = kind.__metadata__ if get_origin(kind) is Annotated else ()
    return " ".join([_WORDS[_base(kind)], " and ".join(bounds)]).strip()
