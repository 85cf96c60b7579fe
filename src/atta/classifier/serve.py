"""Answer images that arrive as bytes (`Explainer`), and serve a page to try a classifier (`TryIt`).

An `Explainer` returns plain values, ready for JSON:

| key         | meaning                                                                            |
|-------------|------------------------------------------------------------------------------------|
| class … set | as the columns of `atta predict`; `set` is a list, the most likely class first     |
| top         | the five most likely classes, each with its calibrated probability                 |
| warning     | a sentence if the image is more unusual than 95 % of the validation images         |
| passes      | number of forward passes; null for a graph                                         |
| views       | with `views`: the image and its views, each with the network's answer to it        |

A view is {"view", "repeat", "weight", "picture", "class", "confidence"}. `picture` is a data URI;
`class` and `confidence` are null where the network was not run on the view. A graph shows no views.
Only three numbers of each of the last REMEMBERED images are kept, to estimate `drift`, and the
counts of an alarm, which a stream that does not shift ever raises with a probability of at most
1 %.

The page:

    GET  /              the page, one file with its style and script inside
    POST /answer        the bytes of one image → the values of `Explainer` as JSON, and `drift`
    POST /answers       {"images": [base64, ...]} → {"answers": [...]}, up to SEVERAL images
    POST /reset         forget the images that drift looks at
    GET  /openapi.json  these, in OpenAPI 3.1

Drift is that of one client: of the requests with the same `X-Tab` header, which each tab of a
browser chooses for itself. The TABS most recent ones are kept.

Only this machine can connect, unless another `host` is named. Pages of other sites in the same
browser are refused: `Host` must be an address, localhost or the given name (against DNS rebinding),
`Origin` must equal `Host`, and forms cannot send the content types that are accepted. A request is
one image of at most LARGEST bytes within PATIENCE seconds, and no pause is longer than QUIET. Up to
QUEUE images wait for their turn, in HELD bytes of memory. Another process decodes one at a time
(`Decoder`); nothing is written. Errors are one sentence for the client; the traceback goes to the
terminal.
"""

import base64
import hashlib
import html
import json
import os
import pickle
import re
import socket
import subprocess
import sys
import threading
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from math import prod
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
from torch import Tensor, nn

from atta._base.errors import InputError, require
from atta.calibrators import ViewBlend, shift
from atta.calibrators.alarm import Alarm
from atta.classifier.adapt import Drift
from atta.classifier.estimator import Details
from atta.classifier.export import Graph
from atta.classifier.label_maps import described_map, pictures
from atta.classifier.predict import UNSHOWN, Answerer, described, told
from atta.classifier.segmenter import CalibratedSegmenter, Maps
from atta.data.image_set import data_uri, decode, mode_of
from atta.data.items import check_pixels
from atta.data.preprocess import sheet_of
from atta.run.runner import IMAGE

with require("serve", "a page to try a classifier on"):
    import uvicorn
    from anyio import CapacityLimiter, fail_after, to_thread
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import HTMLResponse, JSONResponse, Response
    from starlette.routing import Route
    from starlette.types import ASGIApp, Message, Receive, Scope, Send
    from uvicorn.protocols.http.h11_impl import H11Protocol

SENT = partial(decode, sent=True)  # decodes with the limits for bytes of a stranger
PAGE = Path(__file__).parent / "page"
LARGEST = 20_000_000  # bytes of an image
PATIENCE = 30.0  # seconds for a request to arrive, and for a client to take the answer
QUIET = 10.0  # seconds until the first byte of a request, and between two
QUEUE = 64  # images that wait for their turn; more are refused
HELD = 256 << 20  # bytes of images that have arrived, in part or whole; more are refused
DECODING = 10.0  # seconds to decode an image
MEMORY = 1 << 30  # bytes to decode an image
HERE = "127.0.0.1"
REMEMBERED = 500  # images that `drift` looks at
TABS = 64  # clients whose images are remembered
TOP = 5  # classes that are listed
UNUSUAL = 0.95  # of the validation images are less unusual: the page warns
SEVERAL = 16  # images of one request
PICTURE, MAP = 192, 480  # pixels of a side; larger pictures are scaled down
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


WARNING = (
    "This image is more unusual than 95 % of the validation images: do not rely on the confidence."
)


class Explainer:
    """Answers images as bytes: `Explainer(open_predictor("classifier.onnx"))(data)["class"]`.

    Args:
        classifier: A classifier, a segmenter, or a graph that `open_predictor` opened.
        coverage: How often the set of classes contains the true class; no sets by default.
        views: Whether to return pictures of what the network saw.
    """

    def __init__(
        self, classifier: Answerer, *, coverage: float | None = None, views: bool = False
    ) -> None:
        self._mode = mode_of(classifier.image_shape[0])  # refuses what Pillow has no images for
        self.classifier, self.coverage, self.views = classifier, coverage, views
        self._names = classifier.names
        self._sets = None if coverage is None else classifier.conformal(coverage)
        self._streams = OrderedDict[str, _Stream]()

    def __call__(self, data: bytes) -> dict[str, Any]:
        """Answer one image, or raise `InputError` with the reason why it cannot be answered."""
        return self.answer(self.read(data))

    def read(self, data: bytes, decoder: Callable[..., Tensor] = SENT) -> Tensor:
        """Decode bytes that were sent to the shape that is answered."""
        where, classifier = "this file", self.classifier
        if classifier.any_size:
            return decoder(data, self._mode, None, where)
        pixels = decoder(data, self._mode, classifier.preprocess, where)
        shape = classifier.image_shape
        return check_pixels(pixels[None], shape, classifier.preprocess, where)[0]

    def stream(self, tab: str = "") -> "_Stream":
        """What is remembered of the images of one client."""
        reference = self.classifier.reference
        if tab not in self._streams:
            alarm = None if reference is None else Alarm(reference)
            self._streams[tab] = _Stream(deque(maxlen=REMEMBERED), alarm)
        self._streams.move_to_end(tab)
        if len(self._streams) > TABS:
            self._streams.popitem(last=False)
        return self._streams[tab]

    def forget(self, tab: str = "") -> None:
        """Forget the images of one client."""
        self._streams.pop(tab, None)

    def answer(self, pixels: Tensor, tab: str = "") -> dict[str, Any]:
        """Answer the decoded pixels of one image of a client."""
        if isinstance(self.classifier, CalibratedSegmenter):
            return self._mapped(pixels, self.classifier.answered_map(pixels))
        details = self.classifier.details(pixels[None].to(self.classifier.device))
        (said,) = described(self.classifier, details, self._sets)
        score, number, largest, _ = (said.pop(name) for name in UNSHOWN[1:])
        if score is not None:
            stream = self.stream(tab)
            stream.seen.append((score, largest, number))
            if stream.alarm is not None:
                stream.alarm.update(torch.tensor([score]))
        said["top"] = self._top(details.probs[0])
        unusual = said.get("ood", 0.0) >= UNUSUAL
        said["warning"] = WARNING if unusual else None
        if self.views:
            said["views"] = list(self._shown(pixels[None], details))
        return said

    def _top(self, probs: Tensor) -> list[dict[str, Any]]:
        """The most likely classes, or those of most pixels."""
        best, order = probs.double().sort(descending=True, stable=True)
        return [
            {"class": self._names[j], "probability": p}
            for j, p in zip(order[:TOP].tolist(), best[:TOP].tolist(), strict=True)
        ]

    def _mapped(self, pixels: Tensor, maps: Maps) -> dict[str, Any]:
        """Answer the pixels of one image: four pictures, with the mean confidence."""
        classes = len(self._names)
        said = described_map(maps, classes)
        said |= {"class": self._names[said["class"]], "passes": None, "warning": None}
        parts = torch.bincount(maps.labels.flatten(), minlength=classes) / maps.labels.numel()
        said |= {"top": self._top(parts), "views": []}
        for one in pictures(pixels, maps, classes, MAP) if self.views else ():
            before = one["view"] in ("the image itself", "confidence before")
            sure = said["confidence_before" if before else "confidence"]
            said["views"].append({**one, "repeat": 0, "class": said["class"], "confidence": sure})
        return said

    def drift(self, tab: str = "") -> Drift | None:
        """Compare the last images of a client with the validation images.

        None without these, or if there are too few images.
        """
        reference = self.classifier.reference
        seen = torch.tensor(list(self.stream(tab).seen), dtype=torch.float64)
        if reference is None or len(seen) < shift.LEAST:
            return None
        scores, confidence, numbers = seen.unbind(dim=1)
        return Drift.of(reference, scores, numbers.long(), confidence)

    def _shown(self, images: Tensor, details: Details) -> Iterator[dict[str, Any]]:
        """The image and its views, each with the network's answer."""
        if isinstance(self.classifier, Graph):
            return
        calibrator, weights = self.classifier.calibrator, dict[str, float]()
        if isinstance(calibrator, ViewBlend) and calibrator.weights.shape[-1] == 1:
            kinds = [*([IMAGE] if calibrator.itself else []), *calibrator.kinds]
            weights = dict(zip(kinds, calibrator.weights[:, 0].tolist(), strict=True))
        for kind, repeat, shown in self.classifier.shown(images.to(self.classifier.device)):
            probs = details.base[0] if kind == IMAGE else details.views[kind][0, repeat]
            confidence, winner = probs.max(dim=0)
            known = bool(torch.isfinite(confidence))
            small = max(shown.shape[2:]) <= PICTURE
            yield {
                "view": kind,
                "repeat": repeat,
                "weight": weights.get(kind),
                "picture": data_uri(shown[0], None if small else PICTURE),
                "class": self._names[int(winner)] if known else None,
                "confidence": float(confidence) if known else None,
            }


@dataclass(frozen=True)
class _Stream:
    """What is remembered of the images of one client."""

    seen: deque[tuple[float, float, int]]
    alarm: Alarm | None


class Decoder:
    """Decodes images in another process: one that takes too long or too much costs a sentence.

    It is called as `decode`. The process starts with the first image or with `start`, ends with
    `close` or with this process, and is replaced after an image that ended it.

    Args:
        seconds: Time of one image.
        memory: Bytes that decoding may allocate, where the system has such limits.
    """

    def __init__(self, seconds: float = DECODING, memory: int = MEMORY) -> None:
        self.seconds, self.memory = seconds, memory
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def start(self) -> subprocess.Popen[bytes]:
        """Start the process, or return the one that runs."""
        if self._process is not None and self._process.poll() is None:
            return self._process
        self.close()
        code = f"decode_requests({self.seconds}, {self.memory})"
        self._process = process = subprocess.Popen(
            [sys.executable, "-P", "-c", f"from atta.data import image_set; image_set.{code}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        if not (process.stdout and process.stdout.readline()):  # it says when it is ready
            raise RuntimeError("the process that decodes images cannot be started")
        return process

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def __call__(self, *arguments: Any) -> Tensor:
        """Decode an image, or raise `InputError` with the reason why it cannot be decoded."""
        late = threading.Event()

        def end() -> None:
            late.set()
            process.kill()

        with self._lock:
            process = self.start()
            assert process.stdin
            assert process.stdout
            timer = threading.Timer(self.seconds, end)
            timer.start()
            try:
                pickle.dump(arguments, process.stdin)
                process.stdin.flush()
                answer = json.loads(process.stdout.readline())
                if "error" not in answer:
                    content = bytearray(process.stdout.read(prod(answer["shape"])))
                    return torch.frombuffer(content, dtype=torch.uint8).reshape(answer["shape"])
                why = answer["error"]
            except (OSError, ValueError, RuntimeError):  # the process ended
                self.close()
                why = "expected an image that can be decoded, got one that ends the decoder"
                if late.is_set():
                    why = (
                        f"expected an image that can be decoded within {self.seconds:g} seconds, "
                        "got one that takes longer"
                    )
            finally:
                timer.cancel()
                timer.join()
                if late.is_set():
                    self.close()
        raise InputError(why)


class TryIt:
    """A page at an address of this machine; `run` serves it until `stop` or a signal.

    Args:
        explainer: Answers the images.
        host: The address; another one than this machine's own lets others connect.
        port: The port; 0 takes a free one, which `url` names.
        title: The name of the classifier.
        note: A sentence below the title.

    Raises:
        InputError: The address is not one of this machine, or the port is taken.
    """

    def __init__(
        self,
        explainer: Explainer,
        *,
        host: str = HERE,
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
            raise InputError(
                "host, port: expected an address of this machine and a port that is free, "
                f"got {host}:{port} ({error})"
            ) from None
        name = f"[{host}]" if ":" in host else host
        self.url = f"http://{name}:{self._socket.getsockname()[1]}/"
        self._decoder = Decoder()
        read = partial(explainer.read, decoder=self._decoder)
        self.app = application(explainer, read, host=host, title=title, note=note)
        config = uvicorn.Config(
            self.app,
            http=Timed,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",
            access_log=False,
            server_header=False,
            proxy_headers=False,
        )
        self._server = uvicorn.Server(config)

    def run(self) -> None:
        """Serve until stopped."""
        self._decoder.start()
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._decoder.close()

    def stop(self) -> None:
        """End `run`, from another thread."""
        self._server.should_exit = True


class Timed(H11Protocol):
    """A connection that ends if the client is silent or slow, so that it keeps no others waiting.

    `sent` does the same for the bytes of an image, with a sentence.
    """

    def connection_made(self, transport: Any) -> None:
        """Begin to watch the clock."""
        super().connection_made(transport)
        self.since = self.heard = self.loop.time()
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Note the time of the last bytes."""
        self.heard = self.loop.time()
        super().data_received(data)

    def _watch(self) -> None:
        """End the connection if the client is to send or to receive, and takes too long."""
        now, answering = self.loop.time(), self.cycle and not self.cycle.response_complete
        if answering:
            self.heard = now
        if answering and not self.flow.write_paused:
            self.since = now
        if now - self.heard > QUIET or now - self.since > PATIENCE:
            self.transport.abort()
        elif self in self.connections:
            self.loop.call_later(QUIET / 4, self._watch)


def is_here(host: str) -> bool:
    """Whether only this machine reaches a server at this address."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def application(
    explainer: Explainer,
    read: Callable[[bytes], Tensor],
    *,
    host: str = HERE,
    title: str = "",
    note: str = "",
) -> "Guarded":
    """The page and its answers as an ASGI application, for clients that name `host`."""
    page, policy = _page(explainer, title, note)
    desk = _Desk(explainer, read, page)
    openapi = json.loads((PAGE / "openapi.json").read_text(encoding="utf-8"))
    routes = [
        Route("/", desk.index),
        Route("/answer", desk.answer, methods=["POST"]),
        Route("/answers", desk.answers, methods=["POST"]),
        Route("/reset", desk.reset, methods=["POST"]),
        Route("/openapi.json", lambda request: JSONResponse(openapi)),
    ]
    return Guarded(Starlette(routes=routes, exception_handlers=SENTENCES), host, policy)


class _Desk:
    """Answers one image after the other, and refuses more than may wait."""

    def __init__(self, explainer: Explainer, read: Callable[[bytes], Tensor], page: str) -> None:
        self.explainer, self.read, self.page = explainer, read, page
        self.waiting = self.held = 0
        # All cores are for the network.
        self.decoding, self.one_at_a_time = CapacityLimiter(1), CapacityLimiter(1)

    async def index(self, request: Request) -> Response:
        """The page."""
        return HTMLResponse(self.page)

    async def answer(self, request: Request) -> Response:
        """Answer the bytes of one image."""
        async with self._body(request) as data:
            return JSONResponse(await self._said(data, _tab(request)))

    async def answers(self, request: Request) -> Response:
        """Answer several images; one that cannot be answered costs only its own answer."""
        found: list[dict[str, Any]] = []
        async with self._body(request, kinds=("application/json",)) as data:
            for image in _several(data):
                try:
                    found.append(await self._said(image, _tab(request)))
                except InputError as error:
                    found.append({"error": str(error)})
        return JSONResponse({"answers": found})

    async def reset(self, request: Request) -> Response:
        """Forget the images of this client."""
        self.explainer.forget(_tab(request))
        return JSONResponse({"drift": None})

    @asynccontextmanager
    async def _body(self, request: Request, **how: Any) -> AsyncIterator[bytes]:
        """The body of a request, as far as there is room for it."""
        own = 0

        def keep(more: int) -> None:
            nonlocal own
            self.held, own = self.held + more, own + more
            if self.held > HELD or self.waiting >= QUEUE:
                why = f"{self.waiting} images are waiting for an answer already: try again later"
                raise HTTPException(503, why, {"Retry-After": "5"})

        try:
            # Slow clients wait for nobody, and nobody for them.
            data = await sent(request, keep=keep, **how)
            keep(0)
            yield data
        finally:
            self.held -= own

    async def _said(self, data: bytes, tab: str) -> dict[str, Any]:
        self.waiting += 1
        try:
            pixels = await to_thread.run_sync(self.read, data, limiter=self.decoding)
            explain = partial(self._explain, pixels, tab)
            return await to_thread.run_sync(explain, limiter=self.one_at_a_time)
        finally:
            self.waiting -= 1

    def _explain(self, pixels: Tensor, tab: str) -> dict[str, Any]:
        said, drift = self.explainer.answer(pixels, tab), self.explainer.drift(tab)
        watched = self.explainer.stream(tab).alarm
        raised = None if watched is None else watched.raised
        alarm = "" if raised is None else f" Alarm since image {raised}: a shift."
        promise = self.explainer.classifier.promise
        return said | {"drift": None if drift is None else told(drift, promise) + alarm}


def _tab(request: Request) -> str:
    """The name that a client gives itself."""
    return request.headers.get("x-tab", "")[:64]


def _several(data: bytes) -> list[bytes]:
    """The images of a request in JSON."""
    try:
        images = json.loads(data)["images"]
        if isinstance(images, list) and 0 < len(images) <= SEVERAL:
            return [base64.b64decode(image, validate=True) for image in images]
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise InputError(
        f'expected {{"images": [...]}} with 1 to {SEVERAL} images in base64, got something else'
    )


async def sent(
    request: Request,
    largest: int = LARGEST,
    *,
    keep: Callable[[int], None] | None = None,
    kinds: tuple[str, ...] = ("application/octet-stream", "image/"),
) -> bytes:
    """Read the body of a request, up to `largest` bytes and PATIENCE seconds.

    `keep` is told the number of bytes of each part, and may raise. `kinds` are the content types
    that are accepted, or their beginnings.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    # The form of another page cannot send these types.
    if not kind.startswith(kinds):
        what = "JSON" if "application/json" in kinds else "an image"
        types = " or ".join(kinds).replace("image/", "image/...")
        raise HTTPException(415, f"expected {what}, with Content-Type: {types}")
    data, parts = bytearray(), aiter(request.stream())
    try:
        with fail_after(PATIENCE):
            while len(data) <= largest:
                with fail_after(QUIET):
                    part = await anext(parts)
                data += part
                if keep is not None:
                    keep(len(part))
        raise HTTPException(413, f"expected an image of at most {largest / 1e6:g} MB, got more")
    except StopAsyncIteration:
        return bytes(data)
    except TimeoutError:
        raise HTTPException(
            408, f"expected the image within {PATIENCE:g} seconds, without a pause of {QUIET:g}"
        ) from None
    except ClientDisconnect:
        raise HTTPException(400, "the connection ended before the image did") from None


async def _refused(request: Request, error: Exception) -> Response:
    known = error if isinstance(error, HTTPException) else HTTPException(422, str(error))
    return JSONResponse({"error": known.detail}, known.status_code, known.headers)


async def _failed(request: Request, error: Exception) -> Response:
    """Starlette also raises the error, so that the terminal shows it."""
    sentence = "this image could not be answered; the terminal of `atta serve` says why"
    return JSONResponse({"error": sentence}, 500)


SENTENCES: Any = {HTTPException: _refused, InputError: _refused, Exception: _failed}
"""Handlers that answer an error with {"error": a sentence}."""


class Guarded:
    """An application that refuses other sites and sets headers for the browser."""

    def __init__(self, app: ASGIApp, host: str, policy: str = "default-src 'none'") -> None:
        self.app, self.host = app, host
        headers = {**HEADERS, "Content-Security-Policy": policy}
        self.headers = [(name.lower().encode(), value.encode()) for name, value in headers.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer as the application does, or refuse."""

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *self.headers]
            await send(message)

        why = self._refusal(
            {key.decode(): value.decode("latin-1") for key, value in scope["headers"]}
        )
        app: ASGIApp = JSONResponse({"error": why}, 403) if why else self.app
        await app(scope, receive, with_headers)

    def _refusal(self, headers: dict[str, str]) -> str | None:
        """Why a client is not answered."""
        host, origin = headers.get("host", ""), headers.get("origin")
        if not self._known(host):
            return (
                "expected the address of this machine, localhost or the name given as --host, "
                "got another name"
            )
        try:
            elsewhere = origin is not None and urlsplit(origin).netloc.lower() != host.lower()
        except ValueError:  # an address that cannot be read
            elsewhere = True
        if elsewhere or headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return "expected a request from this page itself, got one from another page"
        return None

    def _known(self, host: str) -> bool:
        """Whether a client may use this name; an address cannot be rebound to another machine."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
            if name in ("localhost", self.host.lower()):
                return True
            return ip_address(name).is_loopback or not is_here(self.host)
        except ValueError:
            return False


def about(classifier: Answerer) -> tuple[str, ...]:
    """Return network, method and quality of a classifier; a graph does not know them."""
    if isinstance(classifier, Graph):
        return ()
    inner: nn.Module = classifier.model
    while isinstance(inside := getattr(inner, "model", None), nn.Module):
        inner = inside  # of the normalisation
    network = getattr(inner, "built", {}).get("name") or type(inner).__name__
    facts = () if classifier.summary is None else classifier.summary.facts
    return (f"network: {network}", *facts)


def _page(explainer: Explainer, title: str, note: str) -> tuple[str, str]:
    """The page with its style and script, and the content security policy for it."""
    classifier = explainer.classifier
    sheet, classes = sheet_of(classifier.preprocess), len(classifier.names)
    size = " × ".join(map(str, sheet.size if sheet else classifier.image_shape[1:]))
    facts = [*about(classifier), f"{classes} classes · images of {size} pixels"]
    facts += [note] if note else []
    if explainer.coverage is not None:
        share = f"{100 * explainer.coverage:g} %"
        facts.append(
            f"A {share} set holds the true class of {share} of all images "
            "that are like those it was calibrated on."
        )
    if classifier.promise is not None:
        facts.append(f"{classifier.promise} The others are called unsure.")
    template, style, script = (
        (PAGE / f"page.{kind}").read_text(encoding="utf-8") for kind in ("html", "css", "js")
    )
    filled = {
        "title": html.escape(title or "a calibrated classifier"),
        "facts": "<br>".join(map(html.escape, facts)),
        "known": json.dumps({"coverage": explainer.coverage, "largest": LARGEST}),
        "style": style,
        "script": script,
    }
    # In one go, so that the inserted texts are not searched for placeholders.
    page = re.sub(r"{{(\w+)}}", lambda place: filled[place[1]], template)
    policy = (
        f"default-src 'none'; script-src {_hashed(script)}; style-src {_hashed(style)}; "
        "img-src data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    return page, policy


def _hashed(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
