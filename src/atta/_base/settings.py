"""Settings are what their annotations say: one check for those of every method and function, and one sentence.

    epochs: Annotated[int, "≥ 1"]                       epochs must be a whole number ≥ 1, got 'a'
    step: Annotated[float, "> 0", "≤ 1"] | None         step must be a number > 0 and ≤ 1 or None, got nan
    space: Literal["logits", "probabilities"]           space must be one of logits, probabilities, got []

A class asks for what is one: `Mapping[str, str] | None`, `str | Policy`. What is inside, and what an annotation says in other
words than these, is left to whoever takes the setting.
"""

import inspect
import math
import operator
import os
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, wraps
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    ParamSpec,
    TypeAlias,
    TypeVar,
    Union,
    Unpack,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np

from atta._base.errors import InputError

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
_WORDS: dict[Any, str] = {
    **{
        int: "a whole number",
        float: "a number",
        bool: "True or False",
        str: "text",
        NoneType: "None",
    },
    **{os.PathLike: "a path", Mapping: "a mapping", Sequence: "a list", Iterable: "a list"},
}


def checked(function: Callable[P, T]) -> Callable[P, T]:
    """Check the arguments of a function that are given by name alone, whenever it is called."""

    @wraps(function)
    def door(*args: P.args, **kwargs: P.kwargs) -> T:
        return function(*args, **(kwargs | check(kwargs, _named(function))))  # type: ignore[arg-type]

    return door


@cache
def hints(of: Any) -> dict[str, Any]:
    """The annotations of a class or a function, with the bounds in them."""
    return get_type_hints(inspect.unwrap(of), include_extras=True)


@cache
def _named(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of what a function takes by name alone, and of what is in its `**rest: Unpack[...]`."""
    every, found = hints(function), dict[str, Any]()
    for name, argument in inspect.signature(function).parameters.items():
        if argument.kind is inspect.Parameter.KEYWORD_ONLY:
            found[name] = every.get(name, Any)
        elif (
            argument.kind is inspect.Parameter.VAR_KEYWORD and get_origin(every.get(name)) is Unpack
        ):
            found |= hints(get_args(every[name])[0])
    return found


def check(given: Mapping[str, Any], annotations: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by name, numbers as plain ones of Python; the first that is not what it is said to be is refused."""
    return {
        name: check_one(name, value, annotations[name])
        for name, value in given.items()
        if name in annotations
    }


def check_one(name: str, value: Any, annotation: Any) -> Any:
    """A setting, if it is what its annotation says."""
    kinds = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    if Any in kinds or not all(
        isinstance(_base(kind), type) or get_origin(kind) is Literal for kind in kinds
    ):
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
    if base == float | int:
        return float  # strict checkers of types take no whole number for one
    return get_origin(base) if isinstance(get_origin(base), type) else base


def _plain(value: Any, kind: Any) -> Any:
    """The value as a plain one of this kind; ValueError, or OverflowError, if it is none."""
    base, flag = _base(kind), isinstance(value, bool | np.bool_)
    made: Callable[[Any], Any] | None
    if base is bool:
        right, made = flag or (isinstance(value, Integral) and value in (0, 1)), bool
    elif base is int:
        right, made = isinstance(value, Integral) and not flag, int
    elif base is float:
        right, made = isinstance(value, Real) and not flag and math.isfinite(value), float
    elif get_origin(kind) is Literal:
        right, made = isinstance(value, str) and value in get_args(kind), str
    else:
        letters = base is Sequence and isinstance(
            value, str | bytes
        )  # which are hardly meant as a list
        right, made = isinstance(value, base) and not letters, None
    if not right:
        raise ValueError
    found = value if made is None else made(value)
    for bound in kind.__metadata__ if get_origin(kind) is Annotated else ():
        sign, number = bound.split()
        if not _SIGNS[sign](found, type(found)(number)):
            raise ValueError
    return found


def _words(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    bounds = kind.__metadata__ if get_origin(kind) is Annotated else ()
    base = _base(kind)
    return " ".join([_WORDS.get(base, f"a {base.__name__}"), " and ".join(bounds)]).strip()
