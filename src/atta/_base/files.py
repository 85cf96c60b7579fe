"""Write files completely or not at all, lock them, and hash their content.

    whole_file(path)    write a file: into a temporary one that is renamed at the end
    whole_folder(path)  make a new folder with all its files likewise
    alone(folder)       one writer at a time in a folder of several files: the next one waits
    locked(path)        one run at a time: a second one is refused
    digest(words, ...)  hash JSON and named buffers, to notice changed files

Every failure to write becomes one `InputError`, and the old file stays. A writer that was killed
leaves a folder `.name.host-process-number.part`; the next writer into that folder removes it.
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
from itertools import chain, count
from pathlib import Path
from typing import Any, Literal

from atta._base.errors import InputError

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

_UMASK = os.umask(0o022)
os.umask(_UMASK)  # the mask can only be read by setting it

LONG_NAME = 200  # bytes: file systems accept 255, and temporary files have longer names
DAY = 86400.0  # after this time, unfinished files of any machine are removed
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
"""Errors of the disk, as opposed to errors of what is written."""


# ---- hash content


def content_hash(parts: Iterable[str | Any], kind: Literal["sha256", "blake2b"] = "sha256") -> str:
    """Return the hash of text and buffers, one after the other, as hexadecimal digits.

    Args:
        parts: Text (encoded as UTF-8) and anything with bytes, which is not copied.
        kind: "sha256", or "blake2b" of 16 bytes, which older files and shards hold.

    >>> content_hash(["a", b"b"])[:8], content_hash(["ab"], "blake2b")[:8]
    ('fb8e20fc', '3dc9ae22')
    """
    found = hashlib.sha256() if kind == "sha256" else hashlib.blake2b(digest_size=16)
    for part in parts:
        found.update(part.encode(errors="surrogateescape") if isinstance(part, str) else part)
    return found.hexdigest()


def digest(words: Any, numbers: Iterable[tuple[str, Any]] = ()) -> str:
    """Hash JSON values, whatever the order of their keys, and named buffers of numbers."""
    text = json.dumps(words, sort_keys=True, ensure_ascii=False).encode("utf-8", "surrogatepass")
    buffers = (part for name, buffer in numbers for part in (f"\n{name}\n", buffer))
    return content_hash(chain([text], buffers))


def check_digest(path: str | os.PathLike[str], expected: object, found: str) -> None:
    """Raise `InputError` if a file's content does not have the digest that the file states."""
    if expected != found:
        raise InputError(
            f"{path} was changed after it was saved, or is damaged: expected the digest "
            f"{str(expected)[:12]}…, got {found[:12]}…; use a copy or make it again"
        )


# ---- write


_HOST = hashlib.sha256(platform.node().encode()).hexdigest()[:8]
_PART = re.compile(r"\..+\.([0-9a-f]{8})-(\d+)-\d+\.part", re.DOTALL)
_numbers = count()
_writing: set[Path] = set()  # by this process


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path, and rename it to `path` if the block ends without an error.

    Readers see the old file or the new one, never a part, even if the process is killed. A link
    stays, and its target is replaced. A device or a pipe receives the complete content. Libraries
    may write other files next to the temporary one; they are removed.
    """
    path = named(path)
    if path.is_dir():
        raise InputError(f"expected the name of a file to write, got the folder {path}")
    place = _follow_links(path)
    if place.is_symlink() or (place.exists() and not place.is_file()):  # a device or a pipe
        with _place_errors(path, place), tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "file")
            yield file
            with file.open("rb") as source, place.open("ab") as sink:
                shutil.copyfileobj(source, sink)
        return
    with _temporary_folder(place, path) as part:
        file = part / "file"
        yield file
        file.chmod(0o666 & ~_UMASK)  # some libraries write files that only their owner can read
        _flush(file)
        file.replace(place)
        _flush_folder(place.parent)


@contextmanager
def whole_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary folder, and rename it to the new `path` if the block ends well."""
    path = named(path)
    with _temporary_folder(path, path) as part:
        yield part
        _flush_folder(part)
        part.rename(path)
        _flush_folder(path.parent)


def named(path: str | os.PathLike[str]) -> Path:
    """Return the path, or raise `InputError` if the file system accepts no such name."""
    path = Path(path)
    why = ""
    try:
        path.lstat()
    except ValueError:  # a zero byte, or text that has no bytes
        why = "no file can have it"
    except OSError as error:
        why = "it is too long" if error.errno == errno.ENAMETOOLONG else ""
    if why:
        raise InputError(f"expected the name of a file, got {str(path)[:60]!r}: {why}")
    return path


@contextmanager
def _temporary_folder(place: Path, path: Path) -> Iterator[Path]:
    """Make a folder next to `place` and remove it at the end; messages call the place `path`."""
    with _place_errors(path, place.parent):
        place.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(place.parent)
    # Machine, process and number keep all writers of the same file apart.
    part = _hidden(place, f"{_HOST}-{os.getpid()}-{next(_numbers)}.part")
    _writing.add(part)
    try:
        with _place_errors(path, part):
            part.mkdir()
            yield part
    finally:
        shutil.rmtree(part, ignore_errors=True)
        _writing.discard(part)


def _hidden(path: Path, ending: str) -> Path:
    """Return a hidden path next to this one; a long name is replaced by its hash."""
    name = os.fsencode(path.name)
    short = path.name if len(name) < LONG_NAME else hashlib.sha256(name).hexdigest()
    return path.with_name(f".{short}.{ending}")


def _follow_links(path: Path) -> Path:
    """Return the target of links, except in /proc: /dev/stdout is an open file, not a name."""
    place = path
    for _ in range(40):
        if not place.is_symlink() or os.path.realpath(place.parent).startswith("/proc/"):
            return place
        place = place.parent / place.readlink()
    raise InputError(f"{path} cannot be written: it is a link that leads in a circle")


def _flush(path: Path) -> None:
    """Wait until the content is on the disk; a power cut may keep a rename and lose the content."""
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _flush_folder(folder: Path) -> None:
    with suppress(OSError):  # not every system can; a power cut may then bring the old name back
        _flush(folder)


@contextmanager
def _place_errors(path: Path, part: Path) -> Iterator[None]:
    """Turn errors of the disk, however a library words them, into one `InputError`."""
    try:
        yield
    except Exception as error:
        reason = _disk_error(error, part)
        if reason is None:
            raise
        raise InputError(f"{path} cannot be written: {os.strerror(reason).lower()}") from error


def _disk_error(error: BaseException | None, part: Path) -> int | None:
    """Return the number of a disk error that this error is, wraps or quotes; None if none."""
    while error is not None:
        if isinstance(error, OSError) and str(error.filename) in (str(part), str(part / "file")):
            return error.errno
        if not isinstance(error, InputError):
            text = str(error)
            quoted = re.search(r"(?i)\b(?:os error|errno) (\d+)\b", text)
            for number in DISK:
                if (quoted and int(quoted[1]) == number) or os.strerror(number) in text:
                    return number
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return None


# ---- remove what killed writers left


def _remove_leftovers(folder: Path) -> None:
    """Remove temporary folders of dead writers of this machine, and those that are a day old."""
    for part in folder.glob(".*.part"):
        found = _PART.fullmatch(part.name)
        if found is None or part in _writing:
            continue
        with suppress(OSError, OverflowError):  # of another user, or another process removed it
            old = time.time() - part.stat().st_mtime > DAY
            if old or (found[1] == _HOST and _is_dead(int(found[2]))):
                shutil.rmtree(part)


def _is_dead(process: int) -> bool:
    if os.name != "nt":  # where os.kill would end the process
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return True
    return process == os.getpid()  # an earlier process of that number: ours are in `_writing`


# ---- one writer at a time


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Wait until no other process is in such a block for this folder, and keep others waiting."""
    if fcntl is None:
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        _flock(descriptor, wait=True)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def locked(path: str | os.PathLike[str]) -> Iterator[None]:
    """Be the only run that writes this file during the block; a second run is refused.

    The operating system's lock on a hidden file next to it ends with its process, so that a file
    left by a dead one blocks nobody. File systems without locks refuse nobody.
    """
    path = Path(os.path.realpath(named(path)))  # a link means the same file
    if not path.name:
        raise InputError(f"expected the name of a file, got {path}")
    lock = _hidden(path, "lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = _take(lock)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}") from None
    if descriptor is None:
        raise InputError(
            f"another run is writing {path}: wait until it ends, or name another output"
        )
    try:
        yield
    finally:
        with suppress(OSError):  # Windows cannot remove an open file
            lock.unlink(missing_ok=True)  # before it is released, as the next one is another's
        _held.discard(descriptor)
        os.close(descriptor)


_held = set[int]()  # descriptors of locks


def _let_go() -> None:
    """Close the locks of the process that this one was forked from: they end with that process."""
    while _held:
        os.close(_held.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)


def _take(path: Path) -> int | None:
    """Lock the file and return its descriptor; None if another run has the lock."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        free = _flock(descriptor, wait=False)
        with suppress(FileNotFoundError):
            if free and os.path.samestat(os.fstat(descriptor), path.stat()):
                _held.add(descriptor)
                return descriptor
        os.close(descriptor)
        if not free:
            return None
        # Another run removed its file between our opening and locking it: try again.


def _flock(descriptor: int, *, wait: bool) -> bool:
    """Return whether this process has the lock now; without such locks every process has it."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return not isinstance(error, BlockingIOError)
    return True


# ---- names


def readable(text: str) -> str:
    r"""Return text that can be printed: bytes of a file name that are not UTF-8 are escaped.

    >>> print(readable("caf\udce9.png"))
    caf\udce9.png
    """
    return text.encode(errors="backslashreplace").decode()
