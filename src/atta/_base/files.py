"""A file appears whole or not at all: what is written is written beside its place and then renamed.

    whole_file(path)     a file: through links to what they lead to; into devices and pipes plainly
    whole_folder(path)   a new folder, with all that is in it
    alone(folder)        one writer at a time in a folder of several files: the next one waits
    locked(path)         one run at a time: a second one is refused
    digest(...)          what notices a flipped bit

What cannot be written, whoever finds it out, is one sentence, and leaves the old file as it was. A writer that was killed
leaves `.name.host-process-number.part`; the next one that writes there removes it.
"""

import errno
import hashlib
import json
import os
import platform
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

from atta._base.errors import InputError

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

_UMASK = os.umask(0o022)
os.umask(_UMASK)  # asking for the mask means setting it

NAME_BYTES = 255  # the longest name that file systems take
PATH_BYTES = 4095
DAY = 86400.0  # after which what another machine left unfinished is taken for lost
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
"""What goes wrong with a place and not with what is written there."""

_HOST = hashlib.blake2b(platform.node().encode(), digest_size=4).hexdigest()
_PART = re.compile(
    r"\.(?P<name>.+?)\.(?:(?P<host>[0-9a-f]{8})-)?(?P<process>\d+)(?:-\d+)?\.part", re.DOTALL
)
_numbers = count()
_open: set[Path] = set()  # what this process is writing


# ---- writing


@contextmanager
def whole_file(path: str | os.PathLike[str], *, apart: bool = False) -> Iterator[Path]:
    """Yield a temporary path in the same folder and rename it to `path` when the block ends without an error.

    A reader, or a run that is stopped half-way, sees the old file or the new one and never a part. The link that a path may be
    stays, and what it leads to is replaced. A device or a pipe is given the whole when all of it is there. A library that lays
    files of its own beside the one it writes is given a folder `apart`, so that nothing of them stays after a kill.
    """
    path = named(path)
    if path.is_dir():
        raise InputError(f"expected the name of a file to write, got the folder {path}")
    place = _followed(path)
    if place.is_symlink() or (place.exists() and not place.is_file()):
        with _place_errors(path, place), tempfile.TemporaryDirectory() as folder:
            part = Path(folder, "part")
            yield part
            _pour(part, place)
        return
    with _beside(place, path) as part:
        file = part / "file" if apart else part
        if apart:
            part.mkdir()
        yield file
        file.chmod(0o666 & ~_UMASK)  # some libraries write files that only their owner can read
        _flush(file)
        file.replace(place)
        _flush_folder(place.parent)


@contextmanager
def whole_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a new folder beside `path`, where nothing is yet, and rename it to that when the block ends without an error."""
    path = named(path)
    with _beside(path, path) as part:
        part.mkdir()
        yield part
        _flush_folder(part)
        part.rename(path)
        _flush_folder(path.parent)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Wait until no other process that asks for it writes several files into this folder, and keep the others waiting."""
    if fcntl is None:
        yield
        return
    held = os.open(folder, os.O_RDONLY)
    try:
        with suppress(
            OSError
        ):  # some network file systems lock no folders: as good as it gets there
            fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def named(path: str | os.PathLike[str]) -> Path:
    """Return the path, if no file system would refuse it for its name alone."""
    path = Path(path)
    try:
        if (size := len(os.fsencode(path))) > PATH_BYTES:
            raise InputError(
                f"expected a path of at most {PATH_BYTES} bytes, got one of {size}: {str(path)[:40]}…"
            )
    except UnicodeEncodeError:
        raise InputError(
            f"expected the name of a file, got {str(path)!r}, which no file can have"
        ) from None
    for name in path.parts:
        if "\0" in name:
            raise InputError(
                f"expected the name of a file, got {str(path)!r}, which has a zero byte in it"
            )
        if (size := len(os.fsencode(name))) > NAME_BYTES:
            raise InputError(
                f"expected names of at most {NAME_BYTES} bytes, got one of {size}: {name[:40]}…"
            )
    return path


@contextmanager
def _beside(place: Path, path: Path) -> Iterator[Path]:
    """A free name in the folder of `place`; nothing is left of it in the end. `path` is what the user calls it."""
    with _place_errors(path, place.parent):
        place.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(place.parent, os.W_OK):
        raise InputError(f"{path} cannot be written: no leave to write into {place.parent}")
    _sweep(place)
    name = (
        place.name
        if len(os.fsencode(place.name)) < NAME_BYTES - 50
        else hashlib.sha256(place.name.encode()).hexdigest()
    )
    # Machine, process and number keep all who write the same file out of each other's way.
    part = place.with_name(f".{name}.{_HOST}-{os.getpid()}-{next(_numbers)}.part")
    _open.add(part)
    try:
        with _place_errors(path, part):
            yield part
    finally:
        _remove(part)
        _open.discard(part)


def _followed(path: Path) -> Path:
    """Where links lead to, except those of /proc, such as /dev/stdout, which are open files and not names."""
    place = path
    for _ in range(40):
        if not place.is_symlink() or os.path.realpath(place.parent).startswith("/proc/"):
            return place
        place = place.parent / place.readlink()
    raise InputError(f"{path} cannot be written: it is a link that leads in a circle")


def _pour(part: Path, place: Path) -> None:
    """Write a file into a device or a pipe, which has no old content and no name to rename to."""
    with (
        part.open("rb") as source,
        os.fdopen(os.open(place, os.O_WRONLY | os.O_APPEND), "wb") as sink,
    ):
        shutil.copyfileobj(source, sink)


def _flush(path: Path) -> None:
    """Wait until it is on the disk: a rename may get there before the content does, and a power cut between them."""
    file = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _flush_folder(folder: Path) -> None:
    with suppress(
        OSError
    ):  # not every system can; the name may then be the old one after a power cut
        _flush(folder)


# ---- what went wrong


@contextmanager
def _place_errors(path: Path, part: Path) -> Iterator[None]:
    """Turn what a library says of a full disk, in its own words, into the one sentence that all writers share."""
    try:
        yield
    except Exception as error:
        reason = _reason(error, part)
        if reason is None:
            raise
        raise InputError(f"{path} cannot be written: {os.strerror(reason).lower()}") from error


def _reason(error: BaseException, part: Path) -> int | None:
    """The number of what is wrong with the place, if it is that; libraries wrap it, or only quote it."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno is not None:
            here = isinstance(seen.filename, (str, os.PathLike)) and Path(seen.filename) in (
                part,
                part / "file",
            )
            if seen.errno in DISK or here:
                return seen.errno
        elif not isinstance(seen, InputError):
            text = str(seen)
            quoted = re.search(r"\b(?:os error|errno) (\d+)\b", text)
            for number in DISK:
                if (quoted and int(quoted[1]) == number) or os.strerror(number) in text:
                    return number
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
    return None


# ---- what was left behind


def _sweep(place: Path) -> None:
    """Remove what killed writers left of this file, and in this folder of any that is surely ours."""
    try:
        parts = list(place.parent.iterdir())
    except OSError:  # a folder that can be written and not looked into
        return
    for part in parts:
        found = _PART.fullmatch(part.name)
        if found is None or not (found["name"] == place.name or found["host"]):
            continue
        with suppress(OSError):  # another process may have been quicker
            if part not in _open and _abandoned(found["host"], int(found["process"]), part):
                _remove(part)


def _abandoned(host: str | None, process: int, part: Path) -> bool:
    """Whether nobody writes it any more."""
    if host not in (None, _HOST):
        return time.time() - part.lstat().st_mtime > DAY
    if process == os.getpid():
        return True  # of an earlier process of that number: what this one writes is known
    if os.name == "nt":
        return False  # to ask there is to kill
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False


def _remove(part: Path) -> None:
    if part.is_dir() and not part.is_symlink():
        shutil.rmtree(part, ignore_errors=True)
    else:
        part.unlink(missing_ok=True)


# ---- whether it is the same


def digest(words: Any, numbers: Iterable[tuple[str, Any]] = ()) -> str:
    """Hash words (anything that JSON can say, in whatever order) and named buffers of numbers, which are not copied."""
    found = hashlib.sha256(
        json.dumps(words, sort_keys=True, ensure_ascii=False).encode("utf-8", "surrogatepass")
    )
    for name, buffer in numbers:
        found.update(f"\n{name}\n".encode())
        found.update(buffer)
    return found.hexdigest()


def check_digest(path: str | os.PathLike[str], said: object, found: str) -> None:
    """Refuse a file that says it is another than it is."""
    if said != found:
        raise InputError(
            f"{path} was changed after it was saved, or is damaged: it says that its digest is {str(said)[:12]}…, "
            f"and it is {found[:12]}…"
        )


# ---- one writer at a time ------------------------------------------------------------------------------------------


@contextmanager
def locked(path: str | os.PathLike[str]) -> Iterator[None]:
    """Be the only run that writes this file, or what it stands for, while the block lasts; a second one is refused.

    The lock is the system's, on a hidden file beside it: it ends with its process, however that ends, and a file that
    a dead one left behind holds nobody up. Where a file system knows no locks, nobody is refused.
    """
    path = Path(os.path.realpath(path))  # whoever comes by a link means the same file
    if not path.name:
        raise InputError(f"expected the name of a file, got {path}")
    name = (
        path.name
        if len(os.fsencode(path.name)) < 200
        else hashlib.sha256(os.fsencode(path.name)).hexdigest()
    )
    beside = path.with_name(f".{name}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            path.lstat()  # a name that no file can have is said now, not after the work
        descriptor = _taken(beside)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}") from None
    if descriptor is None:
        raise InputError(
            f"another run is writing {path}: wait until it ends, or name another output"
        )
    try:
        yield
    finally:
        with suppress(
            OSError
        ):  # before it is let go, so that nobody else's is taken; Windows leaves an open file there
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


def _lock(descriptor: int) -> bool:
    """Whether this process has the lock now; where there are no such locks, everybody has it."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


# ---- names ---------------------------------------------------------------------------------------------------------


def readable(text: str) -> str:
    r"""The text, with a number where something of it is none: the name of a file may be any bytes.

    >>> print(readable("caf\udce9.png"))
    caf\udce9.png
    """
    return text.encode(errors="backslashreplace").decode()
