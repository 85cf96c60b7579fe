"""Children: a copy of this process that does one thing, and may be killed at it, run out of disk, or print into nothing.

Copies start in milliseconds with everything imported. The process that makes them must not have used threads before: it
leaves all computing to its children, and `answer` brings back what one of them found out.
"""

import contextlib
import os
import pickle
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CRASHED = 99
LIMIT = 120.0  # seconds for one child


@dataclass(frozen=True)
class Ended:
    """How a child ended (negative: by that signal), what it printed, and how long it took."""

    code: int
    text: str
    seconds: float

    @property
    def trouble(self) -> str:
        """Why this is no way to end, or "": all went well, or exit code 1 or 2 and a sentence."""
        if self.code < 0:
            return f"ended by signal {-self.code}: {self.text[-200:]}"
        if self.code not in (0, 1, 2) or "Traceback (most recent call last)" in self.text:
            return f"exit code {self.code}: {last_lines(self.text)}"
        if self.code and not self.text.strip():
            return f"exit code {self.code}, without a word"
        return ""


def last_lines(text: str, count: int = 2) -> str:
    """The end of a traceback."""
    return " / ".join([line.strip() for line in text.strip().splitlines() if line.strip()][-count:])


class Child:
    """A running child; what it prints goes to a file beside it."""

    def __init__(
        self,
        action: Callable[[], object],
        *,
        log: Path,
        before: Callable[[], object] = lambda: None,
    ) -> None:
        self.log, self.began = log, time.monotonic()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _live(action, log, before)

    def running(self) -> bool:
        """Whether it has not ended; a child that has can still be waited for."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def kill(self) -> None:
        """End it at once, as a power cut would."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def wait(self, limit: float = LIMIT) -> Ended:
        """Wait for its end, and end it if that takes too long."""
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                code = os.waitstatus_to_exitcode(status)
                break
            if time.monotonic() - self.began > limit:
                self.kill()
                os.waitpid(self.pid, 0)
                code = -signal.SIGALRM
                break
            time.sleep(0.002)
        text = self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""
        return Ended(code, text, time.monotonic() - self.began)


def _live(action: Callable[[], object], log: Path, before: Callable[[], object]) -> None:
    """What a child does, to its end."""
    code = CRASHED
    try:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        where = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        os.dup2(where, 1)
        os.dup2(where, 2)
        sys.stdout = os.fdopen(
            os.dup(1), "w", encoding="utf-8", errors="backslashreplace", buffering=1
        )
        sys.stderr = os.fdopen(
            os.dup(2), "w", encoding="utf-8", errors="backslashreplace", buffering=1
        )
        before()
        action()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        os.write(2, traceback.format_exc().encode(errors="replace"))
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):
                code = code or 120  # as Python does
        os._exit(code)


def run(
    action: Callable[[], object],
    *,
    log: Path,
    before: Callable[[], object] = lambda: None,
    limit: float = LIMIT,
) -> Ended:
    """Let a child do it, and wait."""
    return Child(action, log=log, before=before).wait(limit)


def answer(action: Callable[[], Any], *, log: Path, limit: float = LIMIT) -> Any:
    """What a function returns in a child; an exception of the child is raised here, by its text."""
    found = log.with_suffix(".answer")
    found.unlink(missing_ok=True)
    ended = run(lambda: found.write_bytes(pickle.dumps(action())), log=log, limit=limit)
    if ended.code or not found.exists():
        raise RuntimeError(f"exit code {ended.code}: {last_lines(ended.text)}")
    return pickle.loads(found.read_bytes())  # our own, a moment old


def little_disk(size: int) -> None:
    """No file of this process grows over so many bytes: to a writer, that is a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def little_memory(more: int) -> None:
    """This process takes no more than so many bytes in addition to what it has."""
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + more, resource.getrlimit(resource.RLIMIT_AS)[1]))


def command(*arguments: str) -> Callable[[], None]:
    """The command line with these words, as `atta` would run it."""

    def act() -> None:
        from atta.cli.app import app

        sys.argv = ["atta", *arguments]
        app()

    return act


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError if the block takes longer."""

    def late(*_: object) -> None:
        raise TimeoutError(f"took longer than {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, late)
    left = signal.setitimer(signal.ITIMER_REAL, seconds)[0]
    began = time.monotonic()
    try:
        yield
    finally:
        signal.setitimer(
            signal.ITIMER_REAL, max(0.01, left - (time.monotonic() - began)) if left else 0
        )
        signal.signal(signal.SIGALRM, before)
