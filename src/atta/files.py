"""A file appears whole or not at all: whatever takes long to write is written beside its place and then renamed."""

import hashlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from atta.errors import InputError

_UMASK = os.umask(0o022)
os.umask(_UMASK)  # asking for the mask means setting it


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path in the same folder and rename it to `path` when the block ends without an error.

    A reader, or a run that is stopped half-way, sees the old file or the new one and never a part.
    """
    path = Path(path)
    if path.is_dir():
        raise InputError(f"expected the name of a file to write, got the folder {path}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error}") from None
    if not os.access(path.parent, os.W_OK):
        raise InputError(f"{path} cannot be written: no leave to write into {path.parent}")
    # The process id keeps two processes that write the same file out of each other's way.
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield part
        part.chmod(0o666 & ~_UMASK)  # some libraries write files that only their owner can read
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


# ---- one writer at a time ------------------------------------------------------------------------------------------


@contextmanager
def locked(path: str | os.PathLike[str]) -> Iterator[None]:
    """Be the only run that writes this file, or what it stands for, while the block lasts; a second one is refused.

    The lock is the system's, on a hidden file beside it: it ends with its process, however that ends, and a file that
    a dead one left behind holds nobody up. Where a file system knows no locks, nobody is refused.
    """
    path = Path(os.path.realpath(path))  # whoever comes by a link means the same file
    name = path.name if len(os.fsencode(path.name)) < 200 else hashlib.sha256(os.fsencode(path.name)).hexdigest()
    beside = path.with_name(f".{name}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            path.lstat()  # a name that no file can have is said now, not after the work
        descriptor = _taken(beside)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}") from None
    if descriptor is None:
        raise InputError(f"another run is writing {path}: wait until it ends, or name another output")
    try:
        yield
    finally:
        with suppress(OSError):  # before it is let go, so that nobody else's is taken; Windows leaves an open file there
            beside.unlink(missing_ok=True)
        os.close(descriptor)


def _taken(path: Path) -> int | None:
    """Lock the file and give its descriptor; None if another has it."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            free = _lock(descriptor)
            there = free and path.exists() and os.path.samestat(os.fstat(descriptor), path.stat())
        except FileNotFoundError:
            there = False
        if there:
            return descriptor
        os.close(descriptor)
        if not free:
            return None
        # The run before took its file away between our opening and locking it: that lock keeps nobody out.


if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int) -> bool:
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
else:
    import fcntl

    def _lock(descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # a file system without locks
            return True
        return True


# ---- names ---------------------------------------------------------------------------------------------------------


def readable(text: str) -> str:
    r"""The text, with a number where something of it is none: the name of a file may be any bytes.

    >>> print(readable("caf\udce9.png"))
    caf\udce9.png
    """
    return text.encode(errors="backslashreplace").decode()
