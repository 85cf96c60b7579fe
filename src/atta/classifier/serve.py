"""A page on which people try a classifier out: they drop images, and see what it makes of each.

    GET  /         the page, one file, with its style and its script inside; it fetches nothing from elsewhere
    POST /answer   the bytes of one image → what `Explainer` says of it, as JSON, and `drift`

Who may ask: this machine, unless another `host` is named. A page of somebody else's, open in the same browser, may not: neither
by a name of its own that it has turned to this machine (DNS rebinding: `Host` must be an address, localhost or the name that
was given), nor by a post across (`Origin` must be `Host`, and a form cannot send what is taken). What is sent: one image a
request, of at most LARGEST bytes, within PATIENCE seconds; it is decoded one at a time, and never written. No name or path
of the client's is taken. What fails is told in a sentence; where it failed stands in the terminal alone.
"""

import base64
import hashlib
import html
import json
import re
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from ipaddress import ip_address
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from atta._base.errors import InputError, require
from atta.classifier.explain import Explainer

with require("serve", "a page to try a classifier on"):
    import uvicorn
    from anyio import CapacityLimiter, fail_after, to_thread
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import HTMLResponse, JSONResponse, Response
    from starlette.routing import Route

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Application: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]

PAGE = Path(__file__).parent / "page"
LARGEST = 20_000_000  # bytes of an image
PATIENCE = 30  # seconds for them to come
CALLERS = 32  # connections at a time
HERE = ("127.0.0.1", "localhost", "::1")


class TryIt:
    """The page at an address of this machine, from now on; `run` answers until `stop`, or a signal.

    `port` 0 takes a free one: `url` says which. `title` is what the classifier is called, `note` a sentence below it.
    """

    def __init__(
        self,
        explainer: Explainer,
        *,
        host: str = HERE[0],
        port: int = 8000,
        title: str = "",
        note: str = "",
    ) -> None:
        try:
            if not 0 <= port < 2**16:
                raise OSError("there is no such port")
            family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            self._socket = socket.create_server(address[:2], family=family)
        except (OSError, UnicodeError) as error:
            where = f"{host}:{port} ({error})"
            raise InputError(
                f"host, port: expected an address of this machine and a port that is free, got {where}"
            ) from None
        name = f"[{host}]" if ":" in host else host
        self.url = f"http://{name}:{self._socket.getsockname()[1]}/"
        self.app = application(explainer, host=host, title=title, note=note)
        quiet: Any = {
            "log_config": None,
            "log_level": "error",
            "access_log": False,
            "server_header": False,
        }
        only: Any = {"http": "h11", "ws": "none", "lifespan": "off", "proxy_headers": False}
        self._server = uvicorn.Server(
            uvicorn.Config(self.app, limit_concurrency=CALLERS, **quiet, **only)
        )

    def run(self) -> None:
        """Answer until it is stopped."""
        self._server.run(sockets=[self._socket])

    def stop(self) -> None:
        """End `run`, from another thread."""
        self._server.should_exit = True


def is_here(host: str) -> bool:
    """Whether nobody but this machine reaches a server at such an address."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def application(
    explainer: Explainer, *, host: str = HERE[0], title: str = "", note: str = ""
) -> "Guarded":
    """The page and its answers as an ASGI application, for callers who name `host` or an address."""
    page, policy = _page(explainer, title, note)
    one_at_a_time = CapacityLimiter(1)  # the memory of one image, and all cores for the network

    def explain(data: bytes) -> dict[str, Any]:
        said, drift = explainer(data), explainer.drift()
        return said | {"drift": None if drift is None else drift.sentence}

    async def answer(request: Request) -> Response:
        data = await sent(request)
        return JSONResponse(await to_thread.run_sync(explain, data, limiter=one_at_a_time))

    async def index(request: Request) -> Response:
        return HTMLResponse(page)

    routes = [Route("/", index), Route("/answer", answer, methods=["POST"])]
    return Guarded(Starlette(routes=routes, exception_handlers=SENTENCES), host, policy)


async def sent(request: Request, largest: int = LARGEST) -> bytes:
    """The bytes of the one image that a request brings, if they are not too many and do not take too long."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/octet-stream" and not kind.startswith(
        "image/"
    ):  # what a form of another page cannot send
        raise HTTPException(
            415,
            "expected the bytes of an image, with Content-Type: application/octet-stream or image/...",
        )
    parts, size = list[bytes](), 0
    try:
        with fail_after(PATIENCE):
            async for part in request.stream():
                parts.append(part)
                if (size := size + len(part)) > largest:
                    raise HTTPException(
                        413, f"expected an image of at most {largest / 1e6:g} MB, got more"
                    )
    except TimeoutError:
        raise HTTPException(408, f"expected the image within {PATIENCE} seconds") from None
    except ClientDisconnect:
        raise HTTPException(400, "the image did not come to its end") from None
    return b"".join(parts)


async def _refused(request: Request, error: Exception) -> Response:
    known = error if isinstance(error, HTTPException) else HTTPException(422, str(error))
    return JSONResponse({"error": known.detail}, known.status_code, known.headers)


async def _failed(request: Request, error: Exception) -> Response:
    """The error goes on, to the terminal."""
    return JSONResponse(
        {"error": "this image could not be answered; the terminal of `atta serve` says why"}, 500
    )


SENTENCES: Any = {HTTPException: _refused, InputError: _refused, Exception: _failed}
"""What is answered where something is wrong: {"error": a sentence}."""


class Guarded:
    """An application behind a door: who may ask, and what a browser may do with the answers."""

    def __init__(self, app: Application, host: str, policy: str = "default-src 'none'") -> None:
        self.app, self.host, self.policy = app, host, policy

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer as the application does, or refuse."""

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *self._headers()]
            await send(message)

        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        if why := self._stranger(headers):
            await JSONResponse({"error": why}, 403)(scope, receive, with_headers)
        else:
            await self.app(scope, receive, with_headers)

    def _stranger(self, headers: dict[str, str]) -> str | None:
        """Why a caller is not answered."""
        host, origin = headers.get("host", ""), headers.get("origin")
        if not self._known(host):
            return "expected a call by the address of this machine, localhost or the name given as --host, got another name"
        if (origin is not None and urlsplit(origin).netloc.lower() != host.lower()) or (
            headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
        ):
            return "expected a call by this page itself, got one by another page"
        return None

    def _known(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
            if name in ("localhost", self.host.lower()):
                return True
            return ip_address(name).is_loopback or not is_here(
                self.host
            )  # an address is no name that could be turned
        except ValueError:
            return False

    def _headers(self) -> list[tuple[bytes, bytes]]:
        values = {
            "Content-Security-Policy": self.policy,
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cache-Control": "no-store",
        }
        return [(name.lower().encode(), value.encode()) for name, value in values.items()]


def _page(explainer: Explainer, title: str, note: str) -> tuple[str, str]:
    """The page with all that belongs to it, and what a browser may do with it."""
    predictor = explainer.predictor
    size = " × ".join(map(str, predictor.shape[1:]))
    facts = [f"{predictor.classes} classes · images of {size} pixels", *([note] if note else [])]
    if explainer.coverage is not None:
        share = f"{100 * explainer.coverage:g} %"
        facts.append(
            f"A {share} set holds the true class of {share} of all images that are like those it was calibrated on."
        )
    known = {"coverage": explainer.coverage, "largest": LARGEST}
    style, script = ((PAGE / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    filled = {
        "title": html.escape(title or "a calibrated classifier"),
        "facts": "<br>".join(map(html.escape, facts)),
        "known": json.dumps(known),
        "style": style,
        "script": script,
    }
    template = (PAGE / "page.html").read_text(encoding="utf-8")
    page = re.sub(
        r"{{(\w+)}}", lambda place: filled[place[1]], template
    )  # at once: what is filled in is not read again
    allowed = {
        "default-src": "'none'",
        "script-src": _hashed(script),
        "style-src": _hashed(style),
        "img-src": "data: blob:",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    return page, "; ".join(f"{what} {where}" for what, where in allowed.items())


def _hashed(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
