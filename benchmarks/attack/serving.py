"""`atta serve` and its clients: those who are silent or slow, bad headers, and images that take long to decode.

An honest client comes after them, and has to be answered in time.
"""

import http.client
import io
import json
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.attack import toys
from benchmarks.attack.children import Child, command, last_lines
from benchmarks.attack.tally import Attack, Effort, Tally

IN_TIME = 45.0  # seconds until an honest client has its answer
DECODED = 25.0  # seconds for any image
CLIENTS, SLOW = 80, 16
TYPE = {"Content-Type": "application/octet-stream"}


@dataclass(frozen=True)
class Server:
    """A running `atta serve`: its port, what it prints, and an honest image."""

    port: int
    log: Path
    photo: bytes

    def connect(self, limit: float = 5.0) -> socket.socket:
        """A connection that says nothing yet."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=limit)

    def ask(self, data: bytes, limit: float = IN_TIME) -> tuple[int, str]:
        """Send an image, and give the status and the text of the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=limit)
        try:
            connection.request("POST", "/answer", data, TYPE)
            answer = connection.getresponse()
            return answer.status, answer.read().decode(errors="replace")
        finally:
            connection.close()

    def honest(self) -> str:
        """What is wrong with the answer to an honest client, who asks again if all are busy; or ""."""
        began, said = time.monotonic(), ""
        while time.monotonic() - began < IN_TIME:
            try:
                status, text = self.ask(self.photo, IN_TIME - (time.monotonic() - began))
            except (OSError, http.client.HTTPException) as error:
                status, text = 0, f"{type(error).__name__}: {error}"
            if status == 200 and "class" in json.loads(text):
                return ""
            said = f"{status} {text[:100]}"
            time.sleep(1)
        return f"an honest client was not answered within {IN_TIME:.0f} s: {said}"


@contextmanager
def served() -> Iterator[Server]:
    """`atta serve` in a child, for as long as the block lasts."""
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        photo = (toys.photos(folder / "photos") / "dark" / "000.png").read_bytes()
        path = toys.classifier().save(folder / "classifier.safetensors")
        words = ("serve", str(path), "--port", "0", "--no-browser")
        child = Child(command(*words), log=folder / "log.txt")
        try:
            yield Server(_port(folder / "log.txt"), folder / "log.txt", photo)
        finally:
            child.kill()
            child.wait()


def _port(log: Path) -> int:
    """The port that the server names when it is ready."""
    for _ in range(600):
        said = log.read_text(errors="replace") if log.exists() else ""
        if "http://127.0.0.1:" in said:
            return int(said.partition("http://127.0.0.1:")[2].partition("/")[0])
        time.sleep(0.1)
    raise RuntimeError(f"atta serve does not start: {said[-300:]}")


# ---- clients -------------------------------------------------------------------------------------------------------


def _head(length: int, *more: str) -> bytes:
    """The lines before an image."""
    lines = ["POST /answer HTTP/1.1", "Host: 127.0.0.1", "Content-Type: image/png", *more]
    return "\r\n".join([*lines, f"Content-Length: {length}", "", ""]).encode("latin-1")


def silent_clients(tally: Tally, effort: Effort) -> None:
    """Many connections that say nothing, or begin and stop: honest clients are answered meanwhile."""
    kinds = {
        "say nothing": (CLIENTS, b"", b""),
        "stop within the headers": (CLIENTS, _head(1000)[:40], b""),
        "stop before the image": (CLIENTS, _head(1000), b""),
        "send a byte a second": (SLOW, _head(10_000), b"x"),
        "send a header a second": (SLOW, _head(1000)[:40], b"x"),
    }
    for what, (count, first, then) in kinds.items():
        with served() as server, _holding(server, count, first, then):
            time.sleep(1)
            trouble = server.honest()
            tally.count(not trouble, f"{count} clients that {what}: {trouble}")
            tally.count("Traceback" not in server.log.read_text(errors="replace"), _end(server))


@contextmanager
def _holding(server: Server, count: int, first: bytes, then: bytes) -> Iterator[None]:
    """Keep connections open; each sends `first` once and `then` every second."""
    clients, over = [server.connect() for _ in range(count)], threading.Event()

    def send(words: bytes) -> None:
        for client in clients:
            with suppress(OSError):  # the server has closed it, as it may
                client.sendall(words)

    def trickle() -> None:
        while not over.wait(1):
            send(then)

    send(first)
    thread = threading.Thread(target=trickle if then else bool, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        for client in clients:
            client.close()


def _end(server: Server) -> str:
    return f"the server printed {last_lines(server.log.read_text(errors='replace'))}"


# ---- headers -------------------------------------------------------------------------------------------------------

ORIGINS = (
    "http://[", "http://[::1", "http://]", "http://[x]", "//", "null", "", "x" * 5000, "http://evil.example",
    "http://127.0.0.1.evil.example", "http://127.0.0.1@evil.example", "http://127.0.0.1:x", "http://127.0.0.1:99999999",
    "\xff\xfe", "javascript:alert(1)", "http://[::ffff:1.2.3.4%25x]", "http://\u00b9\u00b2\u00b3",
)  # fmt: skip
HOSTS = (
    "[",
    "[::1",
    "",
    "evil.example",
    "127.0.0.1.evil.example",
    "127.0.0.1:x",
    "x" * 5000,
    "\xff",
    "a b",
    "[x]",
)
LINES = (
    "Content-Length: -1", "Content-Length: x", "Content-Length: 99999999999999999999", "Transfer-Encoding: chunked",
    "Transfer-Encoding: x", "Content-Type: text/html", "Content-Type: \xff", "Sec-Fetch-Site: cross-site",
    "Host: evil.example", "Expect: 100-continue", "X: " + "y" * 100_000, "no colon", "Connection: upgrade",
)  # fmt: skip


def bad_headers(tally: Tally, effort: Effort) -> None:
    """Headers of every kind: an answer of 4xx or the right one, and no traceback."""
    with served() as server:
        plain = _head(len(server.photo))
        requests = {
            f"Origin: {origin[:40]!r}": _head(len(server.photo), f"Origin: {origin}")
            for origin in ORIGINS
        }
        requests |= {
            f"Host: {host[:40]!r}": plain.replace(
                b"Host: 127.0.0.1", f"Host: {host}".encode("latin-1")
            )
            for host in HOSTS
        }
        requests |= {line[:40]: _head(len(server.photo), line) for line in LINES}
        requests |= {
            "no headers": b"POST /answer HTTP/1.1\r\n\r\n",
            "HTTP/0.9": b"GET /\r\n",
            "HTTP/9.9": plain.replace(b"HTTP/1.1", b"HTTP/9.9"),
            "bytes": bytes(range(256)),
            "a method of another kind": plain.replace(b"POST", b"BREW"),
            "another path": plain.replace(b"/answer", b"/../../etc/passwd"),
            "a path of bytes": plain.replace(b"/answer", b"/%ff%00"),
        }
        for what, head in requests.items():
            status = _status(server, head + server.photo)
            right = status in (100, 200) or 400 <= status < 500
            tally.count(right, f"{what}: expected an answer or a refusal, got {status}")
        trouble = server.honest()
        tally.count(not trouble, trouble)
        tally.count("Traceback" not in server.log.read_text(errors="replace"), _end(server))


def _status(server: Server, request: bytes) -> int:
    """The status of the answer to these bytes; 400 if the connection is ended without one, 0 if there is none."""
    with server.connect(limit=15) as connection:
        try:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            line = connection.recv(100)
        except TimeoutError:
            return 0
        except OSError:
            return 400
    return int(line.split()[1]) if line.startswith(b"HTTP/1.1 ") else 400


# ---- images --------------------------------------------------------------------------------------------------------


def many_scans(side: int, scans: int) -> bytes:
    """A progressive JPEG whose last scan, of a few bytes, is repeated: each goes over all pixels."""
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (side, side), (1, 2, 3)).save(file, "JPEG", progressive=True)
    whole = file.getvalue()
    last = whole.rindex(b"\xff\xda")
    return whole[:-2] + whole[last:-2] * scans + whole[-2:]


def slow_images() -> dict[str, Callable[[], bytes]]:
    """Images that are small as files, and take long or much memory to decode."""
    from PIL import Image

    def saved(kind: str, size: tuple[int, int], **settings: object) -> bytes:
        file = io.BytesIO()
        Image.new("RGB", size, (1, 2, 3)).save(file, kind, **settings)
        return file.getvalue()

    def frames() -> bytes:
        file = io.BytesIO()
        pictures = [Image.new("L", (1000, 1000), i % 250) for i in range(100)]
        pictures[0].save(file, "GIF", save_all=True, append_images=pictures[1:])
        return file.getvalue()

    return {
        "a JPEG of 2000 scans": lambda: many_scans(7000, 2000),
        "a PNG of 7000 x 7000": lambda: saved("PNG", (7000, 7000)),
        "a PNG of 8000 x 8000": lambda: saved("PNG", (8000, 8000)),
        "a PNG of 1 x 60,000": lambda: saved("PNG", (60_000, 1)),
        "a JPEG of 7000 x 7000": lambda: saved("JPEG", (7000, 7000)),
        "a WebP of 7000 x 7000": lambda: saved("WEBP", (7000, 7000)),
        "a TIFF of 7000 x 7000": lambda: saved("TIFF", (7000, 7000), compression="tiff_deflate"),
        "a GIF of 100 frames": frames,
    }  # fmt: skip


def slow_to_decode(tally: Tally, effort: Effort) -> None:
    """Each is answered or refused in time, and an honest client who comes next is answered, too."""
    for what, make in slow_images().items():
        data = make()
        with served() as server:
            answers, began = list[int](), time.monotonic()
            thread = threading.Thread(target=lambda d=data, a=answers: a.append(_sent(server, d)))
            thread.start()
            time.sleep(0.2)
            trouble = server.honest()
            tally.count(not trouble, f"after {what} of {len(data):,} bytes: {trouble}")
            thread.join()
            seconds = time.monotonic() - began
            right = answers[0] in (200, 413, 422) and seconds < DECODED
            wrong = f"status {answers[0]} after {seconds:.0f} s"
            tally.count(right, f"{what} of {len(data):,} bytes: {wrong}")
            tally.count("Traceback" not in server.log.read_text(errors="replace"), _end(server))


def _sent(server: Server, data: bytes) -> int:
    try:
        return server.ask(data)[0]
    except (OSError, http.client.HTTPException):
        return 0


ATTACKS = (
    Attack(
        "serve: clients",
        "many silent or slow clients: an honest one is answered meanwhile",
        silent_clients,
        300,
    ),
    Attack(
        "serve: headers", "bad Origin, Host and other headers: refused in a sentence", bad_headers
    ),
    Attack(
        "serve: images",
        "small files that take long to decode: refused in time",
        slow_to_decode,
        400,
    ),
)
