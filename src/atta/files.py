"""A file appears whole or not at all: whatever takes long to write is written beside its place and then renamed."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
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
