"""Check arguments and settings by their annotations, with one message for all of them.

    epochs: Annotated[int, "≥ 1"]                  epochs must be a whole number ≥ 1, got 'a'
    step: Annotated[float, "> 0", "≤ 1"] | None    step must be a number > 0 and ≤ 1 or None, got 2
    space: Literal["logits", "probabilities"]      space must be one of logits, ..., got []

An annotation that is a class, such as `Mapping[str, str] | None`, is checked with `isinstance`.
Items of containers and other annotations are not checked here.
"""

import inspect
import math
import operator
import os
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
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
"""The number of bins."""
Folds: TypeAlias = Annotated[int, "≥ 2"]
Seed: TypeAlias = Annotated[int, "≥ -9223372036854775808", "≤ 9223372036854775807"]
"""The seeds that torch accepts."""
Step: TypeAlias = Annotated[float, "> 0", "≤ 1"] | None
"""The step of a grid of shares, or None for the closed form."""

_SIGNS = {">": operator.gt, "≥": operator.ge, "<": operator.lt, "≤": operator.le}
_SHORT = reprlib.Repr()
_SHORT.maxstring, _SHORT.maxother, _SHORT.maxdict = 100, 100, 1
_WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    str: "text",
    NoneType: "None",
    os.PathLike: "a path",
    Mapping: "a mapping",
    Sequence: "a list",
    Iterable: "a list",
}


def checked(function: Callable[P, T]) -> Callable[P, T]:
    """Check the keyword-only arguments of a function at every call."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        plain = check(kwargs, _named(function))
        return function(*args, **(kwargs | plain))  # type: ignore[arg-type]

    return call


@cache
def hints(of: Any) -> dict[str, Any]:
    """Return the annotations of a class or a function, including bounds."""
    return get_type_hints(inspect.unwrap(of), include_extras=True)


@cache
def _named(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations of keyword-only arguments, and of those in `**rest: Unpack[...]`."""
    every, names = hints(function), inspect.getfullargspec(inspect.unwrap(function))
    found = {name: every.get(name, Any) for name in names.kwonlyargs}
    for rest in get_args(every.get(names.varkw or "")):
        found |= hints(rest)
    return found


def check(given: Mapping[str, Any], annotations: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings by name, numbers as plain Python ones; raise `InputError` if wrong."""
    return {
        name: check_one(name, value, annotations[name])
        for name, value in given.items()
        if name in annotations
    }


def check_one(name: str, value: Any, annotation: Any) -> Any:
    """Return a setting if it fits its annotation, or raise `InputError`."""
    kinds, text = _kinds(annotation), isinstance(value, str | bytes)
    flag = isinstance(value, bool | np.bool_)
    for base, bounds in kinds:
        if base is Literal:
            right = text and value in bounds
        elif base is bool:
            right = flag or (isinstance(value, Integral) and value in (0, 1))
        elif base in (int, float):
            right = isinstance(value, Integral if base is int else Real) and not flag
        else:  # text is rarely meant as a list of letters
            right = base is Any or (isinstance(value, base) and not (text and base is Sequence))
        if not right:
            continue
        if base not in (bool, int, float):
            return value
        with suppress(OverflowError):  # a whole number too large for a float
            plain, limits = base(value), map(str.split, bounds)
            within = (_SIGNS[sign](plain, base(number)) for sign, number in limits)
            if abs(plain) < math.inf and all(within):
                return plain
    words = " or ".join(_words(base, bounds) for base, bounds in kinds)
    raise InputError(f"{name} must be {words}, got {shown(value)}")


def shown(value: Any) -> str:
    """Return a short representation of a value for a message."""
    return " ".join(_SHORT.repr(value).split())


@cache
def _kinds(annotation: Any) -> list[tuple[Any, tuple[str, ...]]]:
    """Return each class that an annotation allows with its bounds, or Literal and its choices.

    It is Any alone if one of them cannot be checked.
    """
    union, found = get_origin(annotation) in (Union, UnionType), []
    for kind in get_args(annotation) if union else (annotation,):
        base, *bounds = get_args(kind) if get_origin(kind) is Annotated else (kind,)
        if base == float | int:
            base = float  # strict type checkers do not accept an int for a float
        choices = get_args(base) if get_origin(base) is Literal else bounds
        found.append((get_origin(base) or base, tuple(choices)))
    known = all(
        base is Literal or (base is not Any and isinstance(base, type)) for base, _ in found
    )
    return found if known else [(Any, ())]


def _words(base: Any, bounds: Sequence[str]) -> str:
    if base is Literal:
        return f"one of {', '.join(bounds)}"
    return " ".join([_WORDS.get(base, f"a {base.__name__}"), " and ".join(bounds)]).strip()
