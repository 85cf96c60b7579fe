"""Files that are not on this disk, by an address that fsspec reads: s3://, gs://, hf://, https://.

Names are listed, and files are read one by one, where they are used. Each process opens its own
connection. What a file system needs (keys, regions) is set as fsspec documents it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from os import PathLike, fspath
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

from atta._base.errors import InputError, first_line, require


@dataclass(frozen=True, order=True)
class Address:
    """A file or a folder anywhere, with the methods of `Path` that reading images needs."""

    text: str
    kind: str | None = field(default=None, compare=False)
    """What fsspec listed it as, "file" or "directory"; None if it was not listed."""

    def __str__(self) -> str:
        return self.text

    @property
    def name(self) -> str:
        """The last part."""
        return PurePosixPath(self.text).name

    @property
    def suffix(self) -> str:
        """The ending of the name, with its dot."""
        return PurePosixPath(self.text).suffix

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts between slashes."""
        return PurePosixPath(self.text).parts

    def absolute(self) -> PurePosixPath:
        """Return the address as a path, to compare names by."""
        return PurePosixPath(self.text)

    resolve = absolute

    def is_file(self) -> bool:
        """Whether a file is there."""
        return self._kind() == "file"

    def is_dir(self) -> bool:
        """Whether a folder is there."""
        return self._kind() == "directory"

    def exists(self) -> bool:
        """Whether anything is there."""
        return self._kind() is not None

    def is_symlink(self) -> bool:
        """Return False: addresses have no links."""
        return False

    def read_bytes(self) -> bytes:
        """Read the file."""
        system, path = self._system()
        return bytes(self._asked(system.cat_file, path))

    def open(self) -> Any:
        """Open the file to read it from its beginning."""
        system, path = self._system()
        return self._asked(system.open, path, "rb")

    def iterdir(self) -> Iterator["Address"]:
        """List the folder."""
        system, path = self._system()
        found = self._asked(system.ls, path, detail=True)
        return (
            self._inside(path, one["name"], one["type"]) for one in found if one["name"] != path
        )

    def rglob(self, pattern: str) -> Iterator["Address"]:
        """List all files in the folder, at any depth; the pattern is "*"."""
        system, path = self._system()
        return (self._inside(path, name, "file") for name in self._asked(system.find, path))

    def glob(self) -> Iterator["Address"]:
        """List the files that the address stands for, with its wildcards."""
        system, path = self._system()
        names = (str(name) for name in self._asked(system.glob, path))
        here = "://" not in self.text
        return (Address(name if here else system.unstrip_protocol(name), "file") for name in names)

    def _inside(self, path: str, name: str, kind: str) -> "Address":
        inner = name.strip("/").removeprefix(path.strip("/")).strip("/")
        return Address(f"{self.text.rstrip('/')}/{inner}", kind)

    def _kind(self) -> str | None:
        if self.kind is not None:
            return self.kind
        system, path = self._system()
        try:
            return str(self._asked(system.info, path)["type"])
        except FileNotFoundError:
            return None

    def _system(self) -> tuple[Any, str]:
        """Return the file system of this process, which fsspec keeps, and the path in it."""
        with require("cloud", f"reading {self.text}"):
            from fsspec.core import url_to_fs
        try:
            system, path = url_to_fs(self.text)
        except (ImportError, ValueError) as error:  # no library for it, or no such protocol
            raise InputError(
                f"expected an address that fsspec reads, but {self.text} cannot be: {error}; "
                "pip install 'atta[cloud]' reads s3://, gs:// and hf://"
            ) from error
        return system, str(path)

    def _asked(self, question: Any, *arguments: Any, **how: Any) -> Any:
        """Ask a file system, whose errors may be of any kind."""
        try:
            return question(*arguments, **how)
        except OSError:
            raise
        except Exception as error:
            raise OSError(f"{self.text}: {type(error).__name__}: {first_line(error)}") from error


Place: TypeAlias = Path | Address
"""A file or a folder, here or elsewhere."""


def as_place(name: "str | PathLike[str] | Address") -> Place:
    """Return what a name leads to: an `Address` if it has a protocol, otherwise a `Path`."""
    if isinstance(name, Address):
        return name
    return Address(fspath(name)) if "://" in fspath(name) else Path(name)
