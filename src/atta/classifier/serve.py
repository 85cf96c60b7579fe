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
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import lru_cache, partial
from ipaddress import ip_address
from math import prod
from pathlib import Path
from string import Template
from typing import Any
from urllib.parse import urlsplit

import torch
from torch import Tensor

from atta._base.errors import InputError, require
from atta.calibrators import ViewBlend, shift
from atta.calibrators.alarm import Alarm
from atta.calibrators.risk import Promise
from atta.calibrators.shift import Reference
from atta.classifier.adapt import Drift
from atta.classifier.estimator import Details
from atta.classifier.export import Graph
from atta.classifier.label_maps import described_map, pictures
from atta.classifier.predict import UNSHOWN, Answerer, Line, described, told
from atta.classifier.segmenter import CalibratedSegmenter, Maps
from atta.data.image_set import data_uri, decode, mode_of
from atta.data.items import check_pixels
from atta.data.preprocess import sheet_of
from atta.networks.description import describe, inside
from atta.run.runner import IMAGE

with require("serve", "a page to try a classifier on"):
    import uvicorn
    from anyio import CapacityLimiter, fail_after, to_thread
    from starlette.applications import Starlette
    from starlette.datastructures import Headers, MutableHeaders
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
        self._sets = None if coverage is None else classifier.conformal(coverage)
        self.stream = lru_cache(TABS)(lambda tab: Stream(classifier.reference))

    def __call__(self, data: bytes) -> Line:
        """Answer one image, or raise `InputError` with the reason why it cannot be answered."""
        return self.answer(self.read(data))

    def read(self, data: bytes, decoder: Callable[..., Tensor] = SENT) -> Tensor:
        """Decode bytes that were sent to the shape that is answered."""
        where, classifier = "this file", self.classifier
        preprocess = None if classifier.any_size else classifier.preprocess
        pixels = decoder(data, self._mode, preprocess, where)
        if classifier.any_size:
            return pixels
        return check_pixels(pixels[None], classifier.image_shape, preprocess, where)[0]

    def answer(self, pixels: Tensor, tab: str = "") -> Line:
        """Answer the decoded pixels of one image of a client."""
        if isinstance(self.classifier, CalibratedSegmenter):
            return self._mapped(pixels, self.classifier.answered_map(pixels))
        details = self.classifier.details(pixels[None].to(self.classifier.device))
        (said,) = described(self.classifier, details, self._sets)
        score, number, largest, _ = (said.pop(name, None) for name in UNSHOWN[1:])
        self.stream(tab).add(score, largest, number)
        said.setdefault("passes", None)
        said["top"] = self._top(details.probs[0])
        said["warning"] = WARNING if said.get("ood", 0.0) >= UNUSUAL else None
        if self.views:
            said["views"] = list(self._shown(pixels[None], details))
        return said

    def _top(self, probs: Tensor) -> list[Line]:
        """The most likely classes, or those of most pixels."""
        best, order = probs.double().sort(descending=True, stable=True)
        return [
            {"class": self.classifier.names[j], "probability": p}
            for j, p in zip(order[:TOP].tolist(), best[:TOP].tolist(), strict=True)
        ]

    def _mapped(self, pixels: Tensor, maps: Maps) -> Line:
        """Answer the pixels of one image: four pictures, with the mean confidence."""
        classes = len(self.classifier.names)
        said = described_map(maps, classes)
        said |= {"class": self.classifier.names[said["class"]], "passes": None, "warning": None}
        parts = torch.bincount(maps.labels.flatten(), minlength=classes) / maps.labels.numel()
        said |= {"top": self._top(parts), "views": []}
        for one in pictures(pixels, maps, classes, MAP) if self.views else ():
            before = one["view"] in ("the image itself", "confidence before")
            sure = said["confidence_before" if before else "confidence"]
            said["views"].append({**one, "repeat": 0, "class": said["class"], "confidence": sure})
        return said

    def drift(self, tab: str = "") -> Drift | None:
        """Compare the last images of a client with the validation images, if there are enough."""
        return self.stream(tab).drift()

    def _shown(self, images: Tensor, details: Details) -> Iterator[Line]:
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
                "class": self.classifier.names[int(winner)] if known else None,
                "confidence": float(confidence) if known else None,
            }


class Stream:
    """What is remembered of the images of one client, if the validation images are known."""

    def __init__(self, reference: Reference | None) -> None:
        self.reference = reference
        self.forget()

    def forget(self) -> None:
        """Start again."""
        self.seen = deque[tuple[float, float, int]](maxlen=REMEMBERED)
        self.alarm = None if self.reference is None else Alarm(self.reference)

    def add(self, score: float | None, confidence: float, number: int) -> None:
        """Remember the score and the confidence of an image, and the number of its class."""
        if self.alarm is not None and score is not None:
            self.seen.append((score, confidence, number))
            self.alarm.update(torch.tensor([score]))

    def drift(self) -> Drift | None:
        """Compare the images with the validation images, if there are enough."""
        if self.reference is None or len(self.seen) < shift.LEAST:
            return None
        scores, confidence, numbers = torch.tensor(list(self.seen), dtype=torch.float64).unbind(1)
        return Drift.of(self.reference, scores, numbers.long(), confidence)

    def sentence(self, promise: Promise | None) -> str | None:
        """Say how the images have drifted, if a stated risk holds, and if an alarm is raised."""
        if not (drift := self.drift()):
            return None
        since = self.alarm and self.alarm.raised
        return told(drift, promise) + (f" Alarm since image {since}: a shift." if since else "")


class Decoder:
    """Decodes images in another process: one that takes too long or too much costs a sentence.

    It is called as `decode`. The process starts with the first image or with `start`, ends with
    `close` or with this process, and is replaced after an image that ended it.
    """

    def __init__(self) -> None:
        self.seconds, self.memory = DECODING, MEMORY  # of one image, where there are such limits
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
        with self._lock:
            process = self.start()
            assert process.stdin
            assert process.stdout
            timer = threading.Timer(self.seconds, process.kill)
            deadline = time.monotonic() + self.seconds
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
                if time.monotonic() >= deadline:
                    why = (
                        f"expected an image that can be decoded within {self.seconds:g} seconds, "
                        "got one that takes longer"
                    )
            finally:
                timer.cancel()
                timer.join()
                if time.monotonic() >= deadline:  # the process may be ending just now
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
        config = uvicorn.Config(
            Application(explainer, self._decoder, host, title, note),
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


class Application:
    """The page and its answers, as an ASGI application for clients that name `host`.

    It answers one image after the other, refuses more than may wait, refuses other sites, and sets
    headers for the browser.
    """

    def __init__(
        self, explainer: Explainer, decoder: Decoder, host: str, title: str, note: str
    ) -> None:
        page, policy = _page(explainer, title, note)
        openapi = (PAGE / "openapi.json").read_text(encoding="utf-8")
        interface = Response(openapi, media_type="application/json")
        routes = [
            Route("/", HTMLResponse(page), methods=["GET"]),
            Route("/openapi.json", interface, methods=["GET"]),
            Route("/answer", self.answer, methods=["POST"]),
            Route("/answers", self.answers, methods=["POST"]),
            Route("/reset", self.reset, methods=["POST"]),
        ]
        self.app: ASGIApp = Starlette(routes=routes, exception_handlers=SENTENCES)
        self.host, self.headers = host, {**HEADERS, "Content-Security-Policy": policy}
        self.explainer, self.read = explainer, partial(explainer.read, decoder=decoder)
        self.waiting = self.held = 0
        # All cores are for the network.
        self.decoding, self.one_at_a_time = CapacityLimiter(1), CapacityLimiter(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(self.headers)
            await send(message)

        why = _refusal(Headers(scope=scope), self.host)
        app = JSONResponse({"error": why}, 403) if why else self.app
        await app(scope, receive, with_headers)

    async def answer(self, request: Request) -> Response:
        """Answer the bytes of one image."""
        async with self._body(request) as data:
            return JSONResponse(await self._said(data, request))

    async def answers(self, request: Request) -> Response:
        """Answer several images; one that cannot be answered costs only its own answer."""
        found: list[Line] = []
        async with self._body(request, kinds=("application/json",)) as data:
            for image in _several(data):
                try:
                    found.append(await self._said(image, request))
                except InputError as error:
                    found.append({"error": str(error)})
        return JSONResponse({"answers": found})

    async def reset(self, request: Request) -> Response:
        """Forget the images of this client."""
        self.explainer.stream(_tab(request)).forget()
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
            yield await sent(request, keep=keep, **how)
        finally:
            self.held -= own

    async def _said(self, data: bytes, request: Request) -> Line:
        self.waiting += 1
        try:
            pixels = await to_thread.run_sync(self.read, data, limiter=self.decoding)
            explain = partial(self._explain, pixels, _tab(request))
            return await to_thread.run_sync(explain, limiter=self.one_at_a_time)
        finally:
            self.waiting -= 1

    def _explain(self, pixels: Tensor, tab: str) -> Line:
        said, promise = self.explainer.answer(pixels, tab), self.explainer.classifier.promise
        return said | {"drift": self.explainer.stream(tab).sentence(promise)}


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


async def _sentence(request: Request, error: Exception) -> Response:
    """Answer an error; Starlette also raises one of another kind, for the terminal."""
    why = "this image could not be answered; the terminal of `atta serve` says why"
    known = HTTPException(500, why)
    if isinstance(error, InputError):
        known = HTTPException(422, str(error))
    elif isinstance(error, HTTPException):
        known = error
    return JSONResponse({"error": known.detail}, known.status_code, known.headers)


SENTENCES: Any = dict.fromkeys((HTTPException, InputError, Exception), _sentence)
"""Handlers that answer an error with {"error": a sentence}."""


def _refusal(headers: Headers, own: str) -> str | None:
    """Why a client of the server at `own` is not answered."""
    host, origin = headers.get("host", ""), headers.get("origin")
    if not known_host(host, own):
        return (
            "expected the address of this machine, localhost or the name given as --host, "
            "got another name"
        )
    elsewhere = origin is not None and origin.partition("://")[2].lower() != host.lower()
    if elsewhere or headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return "expected a request from this page itself, got one from another page"
    return None


def is_here(host: str) -> bool:
    """Whether only this machine reaches a server at this address."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def known_host(host: str, own: str) -> bool:
    """Whether a client may use this name of a server at `own`: no address can be rebound."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        if name in ("localhost", own.lower()):
            return True
        return ip_address(name).is_loopback or not is_here(own)
    except ValueError:
        return False


def about(classifier: Answerer) -> tuple[str, ...]:
    """Return network, method and quality of a classifier; a graph does not know them."""
    if isinstance(classifier, Graph):
        return ()
    network = inside(describe(classifier.model))
    name = network.get("name") or network["class"].rpartition(".")[2]
    return (f"network: {name}", *(classifier.summary.facts if classifier.summary else ()))


def _page(explainer: Explainer, title: str, note: str) -> tuple[str, str]:
    """The page with its style and script, and the content security policy for it."""
    classifier = explainer.classifier
    sheet, classes = sheet_of(classifier.preprocess), len(classifier.names)
    size = " × ".join(map(str, sheet.size if sheet else classifier.image_shape[1:]))
    facts = [*about(classifier)]
    if not any(f"{classes} classes" in fact for fact in facts):
        facts.append(f"{classes} classes")
    facts.append(f"images of {size} pixels")
    facts += [note] if note else []
    if explainer.coverage is not None:
        share = f"{100 * explainer.coverage:g} %"
        facts.append(
            f"A {share} set contains the true class of {share} of all images "
            "that are like those it was calibrated on."
        )
    if classifier.promise is not None:
        facts.append(f"{classifier.promise} The others are called unsure.")
    template, style, script = (
        (PAGE / f"page.{kind}").read_text(encoding="utf-8") for kind in ("html", "css", "js")
    )
    page = Template(template).substitute(
        title=html.escape(title or "a calibrated classifier"),
        facts="<br>".join(map(html.escape, facts)),
        known=json.dumps({"coverage": explainer.coverage, "largest": LARGEST}),
        style=style,
        script=script,
    )
    policy = (
        f"default-src 'none'; script-src {_hashed(script)}; style-src {_hashed(style)}; "
        "img-src data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    return page, policy


def _hashed(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
