"""The `atta` command: all commands, and what ends them.

torch takes over a second to import, so commands import what they need when they run.
"""

import errno
import os
import sys
import traceback
from collections.abc import Callable
from typing import Annotated, Any

from typer import Exit, Option, Typer
from typer.core import TyperCommand, TyperGroup

from atta import __version__
from atta._base.errors import InputError, first_line
from atta.cli import deploy, experiments, records
from atta.cli.terminal import advised, fail, say, tell, unfailing


class _Untyped:
    """Names no type for options without a value in the help; only some versions of typer do."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options."""
        options: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for one in options:
            if getattr(one, "is_bool_flag", False):
                one.display_type_rich = lambda ctx: None
        return options


class _Command(_Untyped, TyperCommand):
    """A command."""


class _Group(_Untyped, TyperGroup):
    """The command `atta`, which has the others."""


commands = Typer(
    name="atta",
    cls=_Group,
    help="Trustworthy confidence for image classifiers: learned test-time views that never change "
    "the predicted class.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)


MISNAMED = {
    errno.ENAMETOOLONG,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ELOOP,
    errno.EINVAL,
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
}
"""Errors of a name that was typed: the user's mistake."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of a disk, which messages of writers contain."""
USAGE = 2
"""The exit code of a user's mistake."""
CLOSED = 141
"""The exit code of a shell for a program that a closed pipe ended."""


def app() -> None:
    """Run the command line, and exit with 0, 1 or 2.

    A user's mistake is one sentence and exit code 2. What this machine refuses, such as a full disk
    or too little memory, is one sentence and exit code 1. A bug prints its traceback. An output
    that cannot be written does not stop the work; it is reported at the end.
    """
    with unfailing() as answers:
        code = _run()
        answers.flush()
        if isinstance(answers.failed, BrokenPipeError):
            code = code or CLOSED
        elif answers.failed is not None:
            reason = answers.failed.strerror
            fail(f"the answers could not all be printed ({reason}); requested files are written")
            code = code or 1
    sys.exit(code)


def _run() -> int:
    """Run the command, print the error that ends it, and return the exit code."""
    try:
        commands()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except InputError as error:
        fail(str(error))
        return 1 if _full(error) else USAGE
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    except RecursionError:
        fail("the input is nested too deeply")
        return USAGE
    except OSError as error:
        named = isinstance(error.filename, str | bytes)
        where = f"{os.fsdecode(error.filename)}: " if named else ""
        fail(f"{where}{error.strerror or error}")
        return USAGE if error.errno in MISNAMED else 1
    except Exception as error:
        if _too_large(error):
            fail(f"there is not enough memory for this: {first_line(error)}")
        elif _full(error):
            fail(first_line(error))
        else:
            traceback.print_exc()
            say("This is a bug in atta. Please report it, with the command and the lines above.")
        return 1
    return 0


def _full(error: Exception) -> bool:
    """Whether a disk is full or broken, by the text: torch has no error of its own for it."""
    return any(os.strerror(number).lower() in str(error).lower() for number in FULL)


def _too_large(error: Exception) -> bool:
    """Whether memory ran out; torch has its own error for a GPU, and only a text for the CPU."""
    names = {kind.__name__ for kind in type(error).__mro__}  # torch may not be imported
    out_of_memory = names & {"MemoryError", "OutOfMemoryError"}
    return bool(out_of_memory) or "can't allocate memory" in str(error)


@commands.callback(invoke_without_command=True)
def main(
    version: Annotated[bool, Option("--version", help="Print the version and stop.")] = False,
) -> None:
    """Print the version, or run the command."""
    if version:
        tell(__version__)
        raise Exit


GROUPS: dict[str, tuple[Callable[..., None], ...]] = {  # in the order of --help
    "Use it": (
        experiments.demo,
        deploy.calibrate,
        records.evaluate,
        deploy.predict,
        deploy.serve,
        deploy.drift,
        deploy.adapt,
        deploy.export,
    ),
    "Study methods": (
        records.compare,
        experiments.collect,
        records.methods,
        records.fit,
        records.search,
        experiments.train,
        experiments.run,
        experiments.reproduce,
    ),
    "Files": (records.report, records.figure, records.records, records.check),
}
for group, members in GROUPS.items():
    for command in members:
        commands.command(rich_help_panel=group, cls=_Command)(advised()(command))
