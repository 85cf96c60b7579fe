"""The exception and the warning that users see, and helpers for their messages."""

import difflib
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class InputError(ValueError):
    """Input that cannot be used; the message says what was expected, what came, what to do.

    Catch it to handle every mistake in the arguments or files that this package is given.

    >>> import atta
    >>> try:
    ...     atta.Sums(classes=2, metrics=["brie"])
    ... except atta.InputError as error:
    ...     print(str(error)[-21:])
    Did you mean 'brier'?
    """


class MissingExtra(InputError):
    """A library is not installed; the message says how to install it."""


class Advice(UserWarning):
    """A warning about input that can be used and looks wrong; the message says why.

    Use `warnings.filterwarnings("error", category=atta.Advice)` to make it an error.
    """


_OURS = {"atta", "torch", "jaxtyping", "beartype"}  # the package, and what wraps its functions


def advise(sentence: str) -> None:
    """Warn with one sentence, at the line outside this package that led here."""
    frame, level = sys._getframe(1), 2
    while (
        frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _OURS
    ):
        frame, level = frame.f_back, level + 1
    warnings.warn(sentence, Advice, stacklevel=level)


def suggest(name: object, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: the nearest known one, if any is near.

    >>> "unknown method 'v-ata'." + suggest("v-ata", ["v-atta", "temperature"])
    "unknown method 'v-ata'. Did you mean 'v-atta'?"
    """
    near = difflib.get_close_matches(str(name), list(known), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, which may be pages long."""
    return next(
        (line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__
    )


@contextmanager
def require(extra: str, what: str) -> Iterator[None]:
    """Raise `MissingExtra` with what to install if an import in the block fails.

    >>> with require("report", "a report"):  # doctest: +ELLIPSIS
    ...     import no_such_library
    Traceback (most recent call last):
    atta._base.errors.MissingExtra: a report needs more than was installed: pip install ...
    """
    try:
        yield
    except (ImportError, RuntimeError) as error:  # a broken binary says RuntimeError
        raise MissingExtra(
            f"{what} needs more than was installed: pip install 'atta[{extra}]' ({error})"
        ) from error
