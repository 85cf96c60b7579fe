"""The command line: each command parses, calls one function, prints one table.

torch takes over a second to import, so the commands import what they need when they run: `atta --help` answers at once.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from typing import Annotated

import typer

from atta import __version__
from atta._base.errors import InputError, first_line
from atta.cli import deploy, experiments, files, networks, pages, records, shift
from atta.cli.terminal import advised, fail, say, tell, unfailing

commands = typer.Typer(
    name="atta",
    help="Trustworthy confidence for image classifiers: learned test-time views that never change the predicted class.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)


MISNAMED = {
    *(errno.ENAMETOOLONG, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EINVAL),
    *(errno.EACCES, errno.EPERM, errno.EROFS),
}
"""What the system says of a name that was typed; all else is the machine's."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""What the system says of a disk; writers say it in their sentence."""
USAGE = 2
"""The exit code of a user's mistake."""
CLOSED = 141
"""The exit code where nobody read the answers to their end: what a shell says of a program that a closed pipe ended."""


def app() -> None:
    """Run the command line; a user's mistake ends in one sentence and exit code 2, not in a traceback.

    What this machine refuses (a full disk, too little memory) is one sentence and exit code 1. An output that cannot take
    the answers changes nothing of the work: it is told at the end. A fault of the package shows where it is.
    """
    with unfailing() as answers:
        code = _run()
        answers.flush()
        if isinstance(answers.failed, BrokenPipeError):
            code = code or CLOSED
        elif answers.failed is not None:
            fail(
                f"the answers could not all be printed ({answers.failed.strerror}); files that were asked for are written"
            )
            code = code or 1
    sys.exit(code)


def _run() -> int:
    """Run the command that was typed, say what ended it, and give the exit code."""
    try:
        commands()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except InputError as error:
        fail(str(error))
        return (
            1
            if any(os.strerror(number).lower() in str(error).lower() for number in FULL)
            else USAGE
        )
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    except RecursionError:
        fail(
            "expected values inside of values no deeper than people write them, got some that are too deep to be read"
        )
        return USAGE
    except OSError as error:
        where = (
            f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
        )
        fail(f"{where}{error.strerror or error}")
        return USAGE if error.errno in MISNAMED else 1
    except Exception as error:
        if _too_large(error):
            fail(f"there is not enough memory for this: {first_line(error)}")
        else:
            traceback.print_exc()
            say(
                "This is a fault of atta and not yours. Please report it, with the command and the lines above."
            )
        return 1
    return 0


def _too_large(error: Exception) -> bool:
    """Whether memory ran out; torch has an error of its own for that, and on the CPU none but a text."""
    names = {kind.__name__ for kind in type(error).__mro__}  # torch need not be here
    return bool(names & {"MemoryError", "OutOfMemoryError"}) or "can't allocate memory" in str(
        error
    )


@commands.callback(invoke_without_command=True)
def main(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    """Say the version, or go on to the command."""
    if version:
        tell(__version__)
        raise typer.Exit


for command in (  # in the order of --help
    *(records.methods, records.compare, records.fit, records.evaluate),
    *(networks.train, networks.collect),
    records.search,
    *(deploy.calibrate, deploy.export, deploy.predict, deploy.serve),
    *(shift.drift, shift.adapt),
    *(experiments.run, experiments.reproduce),
    pages.report,
    experiments.demo,
    pages.figure,
    *(files.records, files.check),
):
    commands.command()(advised()(command))
