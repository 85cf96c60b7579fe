"""The page to try a classifier, over a real connection: who is answered, what is refused."""

import base64
import http.client
import json
import logging
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import atta
from atta._base.errors import InputError
from atta.calibrators.risk import Promise
from atta.classifier.estimator import Details
from atta.data.image_set import decode
from scenarios import Answerer, answered, encoded, pixels

pytest.importorskip("PIL", reason="Pillow is not installed")
pytest.importorskip("starlette", reason="starlette is not installed")
pytest.importorskip("uvicorn", reason="uvicorn is not installed")

from atta.classifier import serve as service
from atta.classifier.serve import Decoder, Explainer, TryIt, about, is_here, known_host

CHROMIUM = Path("/usr/bin/chromium")


@contextmanager
def open_page(explainer: Explainer, **settings: Any) -> Iterator[int]:
    """The port of a page that is answering."""
    page = TryIt(explainer, port=0, **settings)
    thread = threading.Thread(target=page.run)
    thread.start()
    try:
        yield int(page.url.rstrip("/").rpartition(":")[2])
    finally:
        page.stop()
        thread.join()


@pytest.fixture(scope="module")
def port(fitted: atta.CalibratedClassifier) -> Iterator[int]:
    with open_page(
        Explainer(fitted, coverage=0.9, views=True),
        title="my <network>",
        note="A & B.",
    ) as port:
        yield port


def ask(
    port: int, method: str = "GET", path: str = "/", body: Any = None, **headers: str
) -> tuple[int, http.client.HTTPMessage, str]:
    """Status, headers and text of what is answered."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(
            method, path, body, {name.replace("_", "-"): value for name, value in headers.items()}
        )
        found = connection.getresponse()
        return found.status, found.headers, found.read().decode()
    finally:
        connection.close()


def send(port: int, body: Any, **headers: str) -> tuple[int, dict[str, Any]]:
    status, _, text = ask(port, "POST", "/answer", body, **{"Content_Type": "image/png"} | headers)
    return status, json.loads(text)


def test_the_page_is_one_file_that_fetches_nothing_and_says_what_it_is_of(port: int) -> None:
    status, headers, page = ask(port)
    assert (status, headers.get_content_type()) == (200, "text/html")
    assert "my &lt;network&gt;" in page
    assert "A &amp; B." in page
    assert "A 90 % set contains the true class of 90 % of all images" in page
    assert len(re.findall(r"\b\d+ classes\b", page)) == 1
    assert "{{" not in page
    assert not re.findall(r"""(?:src|href)=["'](?!data:)""", page)
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert (headers["X-Content-Type-Options"], headers["Cache-Control"]) == ("nosniff", "no-store")


def test_an_image_is_answered_as_the_classifier_does(
    port: int, fitted: atta.CalibratedClassifier
) -> None:
    image = pixels()[0]
    status, said = send(port, encoded(image))
    details = fitted.details(image[None])
    assert status == 200
    assert said["confidence"] == pytest.approx(details.confidence.item())
    assert said["confidence_before"] == pytest.approx(details.base.max().item())
    assert said["class"] in said["set"]
    assert (said["passes"], len(said["views"]), said["drift"]) == (4, 4, None)


def test_at_a_stated_risk_the_page_promises_it_and_calls_images_unsure(
    fitted: atta.CalibratedClassifier,
) -> None:
    promise = Promise(risk=0.1, delta=0.05, thresholds=(0.999,), coverage=0.5, images=100)
    careful = fitted._with(promise=promise)
    explainer = Explainer(careful, coverage=0.9)
    with open_page(explainer) as port:
        assert "At most 10.00% of the answers are wrong" in ask(port)[2]
        _, said = send(port, encoded(pixels()[0]))
    assert said["answered"] is False
    assert len(said["set"]) > 1


def test_another_page_in_the_same_browser_is_not_answered(port: int) -> None:
    image, here = encoded(pixels()[0]), f"127.0.0.1:{port}"
    for headers in (
        {"Host": "evil.example"},
        {"Host": f"evil.example:{port}"},
        {"Host": "192.168.0.7"},
        {"Host": "[::1"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://["},
        {"Origin": f"http://127.0.0.1:{port + 1}"},
        {"Sec_Fetch_Site": "cross-site"},
    ):
        status, said = send(port, image, **headers)
        assert (status, set(said)) == (403, {"error"}), headers
        assert ask(port, **headers)[0] == 403
    own = {"Host": "localhost", "Origin": "http://localhost"}
    for headers in ({"Origin": f"http://{here}"}, own, {"Host": f"[::1]:{port}"}):
        assert send(port, image, **headers)[0] == 200, headers
    form = {"Content_Type": "multipart/form-data; boundary=x"}
    assert send(port, image, **form)[0] == 415


def test_others_are_let_in_by_an_address_or_the_name_that_was_given_and_by_no_other() -> None:
    for host in ("192.168.0.7:8000", "[fe80::1]", "localhost"):
        assert known_host(host, "0.0.0.0")
    for host in ("evil.example", "", "a b"):
        assert not known_host(host, "0.0.0.0")
    assert known_host("box.lan:8000", "Box.lan")
    assert all(map(is_here, ("127.0.0.1", "127.1.2.3", "::1", "localhost")))
    assert not any(map(is_here, ("0.0.0.0", "::", "box.lan", "")))


def test_what_cannot_be_answered_is_one_sentence(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, said = send(port, b"no image")
    assert (status, said["error"]) == (
        422,
        "expected an image in this file, but it cannot be decoded: cannot identify image file",
    )
    assert send(port, bytes(service.LARGEST + 1)) == (
        413,
        {"error": "expected an image of at most 20 MB, got more"},
    )
    assert ask(port, "POST", "/answer?file=/etc/passwd", b"", Content_Type="image/png")[0] == 422
    assert ask(port, path="/../../etc/passwd")[0] == 404
    assert ask(port, path="/answer")[0] == 405
    monkeypatch.setattr(service, "PATIENCE", 0.1)
    with socket.create_connection(("127.0.0.1", port), timeout=20) as line:
        head = "POST /answer HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"
        head += "Content-Length: 9\r\n\r\nslow"
        line.sendall(head.encode())
        assert line.recv(100).startswith(b"HTTP/1.1 408")


def test_a_fault_is_told_to_the_terminal_and_not_to_the_client(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(images: Tensor) -> Details:
        raise RuntimeError("secret/path")

    with (
        caplog.at_level(logging.ERROR),
        open_page(Explainer(Answerer(broken, (3, 8, 8), 2))) as port,
    ):
        status, headers, text = ask(
            port, "POST", "/answer", encoded(pixels()[0]), Content_Type="image/png"
        )
    assert status == 500
    assert "secret" not in text
    assert "terminal" in json.loads(text)["error"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert "secret/path" in caplog.text


def test_many_callers_are_answered_one_image_at_a_time() -> None:
    at_once = [0, 0]

    def answer(images: Tensor) -> Details:
        at_once[0] += 1
        at_once[1] = max(at_once)
        time.sleep(0.01)
        at_once[0] -= 1
        return answered(torch.tensor([[0.9, 0.1]]), torch.tensor([[0.8, 0.2]]), None)

    with open_page(Explainer(Answerer(answer, (3, 8, 8), 2), views=True)) as port:
        found: list[int] = []
        callers = [
            threading.Thread(target=lambda: found.append(send(port, encoded(pixels()[0]))[0]))
            for _ in range(40)
        ]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
    assert (found, at_once[1]) == ([200] * 40, 1)


def constant(images: Tensor) -> Details:
    return answered(torch.tensor([[0.9, 0.1]]), torch.tensor([[0.8, 0.2]]), None)


def test_idle_and_slow_connections_are_ended_and_keep_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(service, "QUIET", 4.0)  # looked at each second
    with open_page(Explainer(Answerer(constant, (3, 8, 8), 2))) as port, ExitStack() as stack:
        idle = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))
            for _ in range(40)
        ]
        idle[0].sendall(b"POST /answer HTTP/1.1\r\nHost: local")
        assert send(port, encoded(pixels()[0]))[0] == 200
        monkeypatch.setattr(service, "QUIET", 0.0)
        for line in idle:
            with suppress(ConnectionResetError):
                assert line.recv(100) == b""


def test_an_image_that_pauses_is_refused_in_a_sentence(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "QUIET", 0.5)
    with socket.create_connection(("127.0.0.1", port), timeout=20) as line:
        head = "POST /answer HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"
        line.sendall(f"{head}Content-Length: 9\r\n\r\nslow".encode())
        found = http.client.HTTPResponse(line)
        found.begin()
        assert found.status == 408
        assert b"within 30 seconds, without a pause of 0.5" in found.read()


def test_images_wait_for_their_turn_and_those_beyond_the_queue_are_told_when_to_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(service, "QUEUE", 1)
    begun, go_on, found = threading.Event(), threading.Event(), list[int]()

    def answer(images: Tensor) -> Details:
        begun.set()
        go_on.wait()
        return constant(images)

    image = encoded(pixels()[0])
    with open_page(Explainer(Answerer(answer, (3, 8, 8), 2))) as port:
        first = threading.Thread(target=lambda: found.append(send(port, image)[0]))
        first.start()
        begun.wait()
        status, headers, text = ask(port, "POST", "/answer", image, Content_Type="image/png")
        assert (status, headers["Retry-After"]) == (503, "5")
        assert "1 images are waiting" in json.loads(text)["error"]
        go_on.set()
        first.join()
        assert send(port, image)[0] == 200
    assert found == [200]


@pytest.fixture
def decoder() -> Iterator[Decoder]:
    decoder = Decoder()
    yield decoder
    decoder.close()


def test_another_process_decodes_to_the_same_pixels(decoder: Decoder) -> None:
    image, wanted = pixels(1, (3, 9, 12))[0], atta.Preprocess(resize=8, crop=8)
    for arguments in ((encoded(image, "PNG"), "RGB", None), (encoded(image, "JPEG"), "L", wanted)):
        found = decoder(*arguments, "here")
        assert torch.equal(found, decode(*arguments, "here", sent=True))
    with pytest.raises(InputError, match="expected an image in here, but it cannot be decoded"):
        decoder(b"no image", "RGB", None, "here")


def test_an_image_that_takes_too_long_or_too_much_costs_a_sentence(decoder: Decoder) -> None:
    small, large = encoded(pixels()[0], "PNG"), encoded(torch.zeros(3, 4000, 4000).byte(), "PNG")
    decoder.seconds = 0.0
    with pytest.raises(InputError, match="can be decoded within 0 seconds, got one that takes"):
        decoder(large, "RGB", None, "here")
    decoder.seconds, decoder.memory = 60.0, 20_000_000
    with pytest.raises(InputError, match=r"takes (too much memory|more)"):
        decoder(large, "RGB", None, "here")
    assert torch.equal(decoder(small, "RGB", None, "here"), pixels()[0])
    process = decoder.start()
    process.kill()
    process.wait()
    assert torch.equal(decoder(small, "RGB", None, "here"), pixels()[0])


def test_the_process_that_decodes_ends_with_its_parent() -> None:
    script = (
        "import os, sys; from atta.classifier.serve import Decoder\n"
        "decoder = Decoder(); decoder.start()\n"
        "os.kill(os.getpid(), 9)"
    )
    path = {"PYTHONPATH": str(Path(atta.__file__).parent.parent)}
    parent = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | path,
        stderr=subprocess.PIPE,  # both processes hold it: it ends when both have ended
        check=False,
    )
    assert (parent.returncode, parent.stderr) == (-9, b"")


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="there are no alarms here")
def test_a_process_that_is_stuck_in_an_image_ends_without_its_parent() -> None:
    script = (
        "import time; from atta.data import image_set\n"
        "image_set.decode = lambda *arguments, sent: time.sleep(1e6)\n"
        "image_set.decode_requests(-0.9, 1 << 30)"  # a second is added
    )
    path = {"PYTHONPATH": str(Path(atta.__file__).parent.parent)}
    with subprocess.Popen(
        [sys.executable, "-c", script],
        env=os.environ | path,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    ) as stuck:
        stuck.stdin.write(pickle.dumps(()))  # type: ignore[union-attr]
        stuck.stdin.flush()  # type: ignore[union-attr]
        assert stuck.wait() == -signal.SIGALRM


def test_an_address_that_cannot_be_had_is_said(port: int) -> None:
    explainer = Explainer(Answerer(lambda images: answered(images, images, None), (3, 8, 8), 2))
    for settings in ({"port": port}, {"host": "203.0.113.1", "port": 0}, {"port": 99999}):
        with pytest.raises(
            InputError,
            match="host, port: expected an address of this machine and a port that is free",
        ):
            TryIt(explainer, **settings)  # type: ignore[arg-type]


def test_a_browser_shows_what_was_answered_and_what_was_refused(
    port: int, fitted: atta.CalibratedClassifier
) -> None:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not CHROMIUM.is_file():
        pytest.skip(f"there is no {CHROMIUM}")
    image, wrong = pixels()[0], list[str]()
    files = [
        {"name": "<b>one</b>.png", "mimeType": "image/png", "buffer": encoded(image)},
        {"name": "two.png", "mimeType": "image/png", "buffer": b"no image"},
    ]
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 375, "height": 800})
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda message: wrong.append(message.text))
        page.goto(f"http://localhost:{port}/")
        page.set_input_files("#files", files)
        page.wait_for_selector("#status:has-text('1 image answered')")
        refused, answered = page.query_selector_all("article")
        assert "two.png" in refused.inner_text()
        assert "expected an image in this file" in refused.inner_text()
        assert "<b>one</b>.png" in answered.inner_text()
        assert "4 passes" in answered.inner_text()
        assert len(answered.query_selector_all("img")) == 4
        details = fitted.details(image[None])
        for kind, probs in (("before", details.base), ("after", details.probs)):
            part = page.eval_on_selector(
                f".{kind} .bar span", "span => span.offsetWidth / span.parentElement.offsetWidth"
            )
            assert part == pytest.approx(probs.max().item(), abs=0.02)
            number = page.inner_text(f".{kind} .number").replace("\xa0", " ")
            assert number == f"{100 * probs.max().item():.1f} %"
        assert page.evaluate("document.documentElement.scrollWidth") == 375
        browser.close()
    assert len(wrong) == 1, wrong
    assert "422" in wrong[0]


def test_several_images_are_answered_in_one_request_as_one_by_one(port: int) -> None:
    images = [encoded(image) for image in pixels(3)]
    sent = [base64.b64encode(image).decode() for image in (*images[:2], b"nothing", images[2])]

    def post(body: Any) -> tuple[int, dict[str, Any]]:
        status, _, text = ask(
            port, "POST", "/answers", json.dumps(body), Content_Type="application/json"
        )
        return status, json.loads(text)

    status, found = post({"images": sent})
    one, two, bad, three = found["answers"]
    assert status == 200
    assert "expected an image" in bad["error"]
    for said, image in zip((one, two, three), images, strict=True):
        alone = send(port, image)[1]
        assert (said["class"], said["top"]) == (alone["class"], alone["top"])
        assert said["top"][0]["class"] == said["class"]
        assert sum(each["probability"] for each in said["top"]) <= 1 + 1e-6
    for wrong in ({}, {"images": []}, {"images": ["?"]}, {"images": [sent[0]] * 17}, [1]):
        status, refused = post(wrong)
        assert status == 422
        assert "1 to 16 images" in refused["error"]


def test_drift_is_that_of_a_tab_and_starts_again_after_a_reset(
    fitted: atta.CalibratedClassifier,
) -> None:
    images = [encoded(image) for image in pixels(33)]
    with open_page(Explainer(fitted)) as port:
        for image in images:
            ours = send(port, image, X_Tab="ours")[1]
        assert ours["drift"]
        assert send(port, images[0], X_Tab="theirs")[1]["drift"] is None
        assert ask(port, "POST", "/reset", X_Tab="ours")[0] == 200
        assert send(port, images[0], X_Tab="ours")[1]["drift"] is None


def test_an_image_unlike_the_validation_images_has_a_warning(
    fitted: atta.CalibratedClassifier,
) -> None:
    explain = Explainer(fitted, views=True)
    found = [explain.answer(image) for image in pixels(20)]
    assert all((one["warning"] is not None) == (one["ood"] >= 0.95) for one in found)
    assert about(fitted)[0].startswith("network: ")
    assert "cross-validated on" in about(fitted)[2]


def test_the_interface_is_described(port: int) -> None:
    status, _, text = ask(port, path="/openapi.json")
    assert status == 200
    described = json.loads(text)["components"]["schemas"]["Answer"]["properties"]
    assert send(port, encoded(pixels()[0]))[1].keys() <= described.keys()
