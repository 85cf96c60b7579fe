"""The one exception and the one warning that a user is meant to read, and what many messages end with."""

import difflib
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class InputError(ValueError):
    """Input that cannot be used. The message says what was expected and what came."""


class MissingExtra(InputError):
    """What was asked for needs libraries that were not installed. The message says how to install them."""


class Advice(UserWarning):
    """Something that can be used and looks wrong. The message says what was seen and what it is often the sign of."""


_OURS = {"atta", "torch", "jaxtyping", "beartype"}  # the package, and what wraps its functions


def advise(sentence: str) -> None:
    """Warn with one sentence, at the line outside of this package that led here."""
    frame, level = sys._getframe(1), 2
    while (
        frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _OURS
    ):
        frame, level = frame.f_back, level + 1
    warnings.warn(sentence, Advice, stacklevel=level)


def suggest(name: object, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the nearest known one as a question, or nothing if none is near.

    >>> "unknown method 'v-ata'." + suggest("v-ata", ["v-atta", "temperature"])
    "unknown method 'v-ata'. Did you mean 'v-atta'?"
    """
    near = difflib.get_close_matches(str(name), list(known), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def first_line(error: BaseException) -> str:
    """What an error of some library says, in a line: they go on for pages."""
    return next(
        (line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__
    )


@contextmanager
def require(extra: str, what: str) -> Iterator[None]:
    """Import optional libraries inside: one that is absent, or does not load, is answered with what to install.

    >>> with require("report", "a report"):  # doctest: +ELLIPSIS
    ...     import no_such_library
    Traceback (most recent call last):
    atta._base.errors.MissingExtra: a report needs more than was installed: pip install 'atta[report]' (No module named ...)
    """
    try:
        yield
    except (ImportError, RuntimeError) as error:  # a broken binary says RuntimeError
        raise MissingExtra(
            f"{what} needs more than was installed: pip install 'atta[{extra}]' ({error})"
        ) from error
