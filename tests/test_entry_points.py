"""Every entry point gives the same answer to the same photograph, or refuses it in the same words.

The entry points are a table of functions, and so are the odd photographs. A usable photograph gets
the probabilities that `classifier(tensor)` gives to the pixels that Pillow reads. An unusable one
gets the sentence of `classifier.predict_proba(folder)`, except for the name of the image.
"""

import io
import json
import os
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import product
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

import atta
from atta.cli.app import app

NAMES = ["a", "b", "c"]
OWN = "pinned_network:Network"
HOW = {"policy": "flip", "class_names": NAMES, "shuffle": False, "progress": False}
TYPED = ["--policy", "flip", "--classes", "a,b,c", "--shuffle", "no"]
NETWORK = """
import torch
from torch import nn


class Network(nn.Module):
    '''Count the bright pixels of each channel; a rotation and noise change the counts.'''

    def forward(self, x):
        down, right = (torch.linspace(0, 1, side) for side in x.shape[2:])
        return 15 * ((x > 0.75) * (down[:, None] + right**2)).mean((2, 3))
"""


class Refused(Exception):
    """What a command or the service said instead of an answer."""


@dataclass(frozen=True)
class Place:
    """What is asked: a folder (or a file) of photographs, the odd one in it, and the classifier."""

    root: Path
    odd: Path
    classifier: atta.CalibratedClassifier
    saved: Path
    url: str
    output: Path

    @property
    def row(self) -> int:
        """Where the answer to the odd photograph is."""
        return 0 if self.odd.name == "000.png" else -1

    @property
    def options(self) -> list[str]:
        """The options of the commands that record, the same as in Python."""
        return [*TYPED, *(["--resize", "16", "--crop", "16"] if self.classifier.preprocess else [])]


# ---- entry points: each returns the probabilities of the odd photograph, if it gives any ---


def typed(*arguments: object) -> None:
    """Run a command; what it says when it fails is raised."""
    said, argv = io.StringIO(), ["atta", *map(str, arguments)]
    with (
        mock.patch.object(sys, "argv", argv),
        redirect_stdout(io.StringIO()),
        redirect_stderr(said),
        pytest.raises(SystemExit) as end,
    ):
        app()
    if end.value.code:
        raise Refused(said.getvalue())
    sys.stderr.write(said.getvalue())


def network() -> torch.nn.Module:
    return import_module("pinned_network").Network()


def collect(at: Place) -> np.ndarray:
    record = atta.collect(network(), at.root, preprocess=at.classifier.preprocess, **HOW)
    return at.classifier.calibrator(record.predictions).numpy()[at.row]


def calibrate(at: Place) -> None:
    wanted = at.classifier.preprocess
    atta.calibrate(network(), at.root, preprocess=wanted, rehearse=False, **HOW)


def command_collect(at: Place) -> np.ndarray:
    file = at.output / "record.safetensors"
    typed("collect", OWN, at.root, "-o", file, *at.options)
    return at.classifier.calibrator(atta.Record.load(file).predictions).numpy()[at.row]


def command(at: Place, name: str) -> None:
    output = ["-o", at.output / "adapted"] if name == "adapt" else []
    typed(name, at.saved, at.root, "--model", OWN, *output)


def command_predict(at: Place) -> np.ndarray:
    """Read the table. A photograph without a row is named on stderr, and the others have a row."""
    table = at.output / "table.jsonl"
    others = [path for path in at.root.rglob("*.png") if path != at.odd]
    try:
        typed("predict", at.saved, at.root, "--model", OWN, "-o", table, "--probs")
    except Refused:
        assert not others or len(table.read_text().splitlines()) == len(others)
        raise
    found = json.loads(table.read_text().splitlines()[at.row])
    assert found["file"] == str(at.odd)
    return np.array([found[f"p_{name}"] for name in NAMES])


def service(at: Place) -> np.ndarray:
    """Post the bytes to `atta serve`, which answers with a class and its confidence alone."""
    headers = {"Content-Type": "application/octet-stream"}
    request = urllib.request.Request(f"{at.url}answer", at.odd.read_bytes(), headers)
    try:
        with urllib.request.urlopen(request) as reply:
            said = json.load(reply)
    except urllib.error.HTTPError as error:
        raise Refused(json.load(error)["error"]) from None
    return np.array([said["confidence"] if name == said["class"] else np.nan for name in NAMES])


def only_run(ask: Callable[[Place], object]) -> Callable[[Place], None]:
    """An entry point that does not give probabilities."""
    return lambda at: [ask(at), None][1]


RECORDING = {
    "collect": collect,
    "calibrate": calibrate,
    "atta collect": command_collect,
    "atta calibrate": lambda at: typed(
        "calibrate", OWN, at.root, "-o", at.output / "new", *at.options
    ),
}
ANY_NUMBER = {
    "predict_proba": lambda at: at.classifier.predict_proba(at.root)[at.row],
    "predict": only_run(lambda at: at.classifier.predict(at.root)),
    "predict_set": only_run(lambda at: at.classifier.predict_set(at.root, coverage=0.9)),
    "atta predict": command_predict,
}
MANY = {
    "drift": only_run(lambda at: at.classifier.drift(at.root)),
    "adapt": only_run(lambda at: at.classifier.adapt(at.root)),
    "atta evaluate": partial(command, name="evaluate"),
    "atta drift": partial(command, name="drift"),
    "atta adapt": partial(command, name="adapt"),
}
ENTRY_POINTS = RECORDING | ANY_NUMBER | MANY | {"atta serve": service}


# ---- odd photographs: each writes one file ---


def photograph(*shape: int, seed: int = 0, dtype: type = np.uint8) -> Image.Image:
    """Noise, of which one channel is brighter."""
    pixels = np.random.default_rng(seed).normal(100, 60, shape)
    if shape[2:] == (3,):
        pixels[..., seed % 3] += 35
    return Image.fromarray(pixels.clip(0, 255).astype(dtype))


def rotated(path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees to see it upright
    photograph(16, 16, 3).save(path, "JPEG", exif=exif)


def truncated(path: Path) -> None:
    photograph(16, 16, 3).save(path)
    path.write_bytes(path.read_bytes()[:300])


USABLE = {
    "greyscale": lambda path: photograph(16, 16).save(path),
    "RGBA": lambda path: photograph(16, 16, 4).save(path),
    "EXIF-rotated": rotated,
}
UNUSABLE = {
    "another size": lambda path: photograph(20, 24, 3).save(path),
    "truncated": truncated,
    "not an image": lambda path: path.write_bytes(b"not an image"),
    "16 bits": lambda path: photograph(16, 16, dtype=np.uint16).save(path),
    "dangling link": lambda path: path.symlink_to("nowhere.png"),
}
ODD = USABLE | UNUSABLE | {"empty folder": Path.mkdir}


@dataclass
class World:
    """The classifiers, with and without preprocessing, and the pages that serve them."""

    folder: Path
    classifiers: dict[bool, atta.CalibratedClassifier]
    saved: dict[bool, Path]
    urls: dict[bool, str]

    def place(self, odd: str, where: str = "last", *, sized: bool = False) -> Place:
        """Write photographs with the odd one as the last or first of them, or the odd one alone."""
        root = self.folder / odd / where
        file = root / {"last": "c/zzz.png", "first": "a/000.png", "alone": "alone.png"}[where]
        if not root.exists():
            write_photographs(root, 0 if where == "alone" else 36)
            ODD[odd](file)
        asked, output = file if where == "alone" else root, Path(tempfile.mkdtemp(dir=self.folder))
        known = self.classifiers[sized], self.saved[sized], self.urls[sized]
        return Place(asked, file, *known, output)


def write_photographs(root: Path, images: int) -> Path:
    """Write folders of a class each; `drift` and `adapt` need 32 photographs."""
    root.mkdir(parents=True)
    for i in range(images):
        folder = root / NAMES[i % 3]
        folder.mkdir(exist_ok=True)
        photograph(16, 16, 3, seed=i).save(folder / f"{i:03}x.png")
    return root


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("entry_points")
    (folder / "pinned_network.py").write_text(NETWORK)
    photos = write_photographs(folder / "photos", 90)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        saved, classifiers, pages = {}, {}, {}
        for sized in (False, True):
            preprocess = atta.Preprocess(resize=16, crop=16) if sized else None
            classifiers[sized] = atta.calibrate(network(), photos, preprocess=preprocess, **HOW)
            saved[sized] = classifiers[sized].save(folder / f"classifier-{sized}")
            serve = ["serve", str(saved[sized]), "--port", "0", "--no-browser", "--model", OWN]
            pages[sized] = subprocess.Popen(
                [sys.executable, "-m", "atta", *serve],
                stdout=subprocess.PIPE,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
                text=True,
            )
        try:
            urls = {sized: page.stdout.readline().strip() for sized, page in pages.items()}
            (folder / "places").mkdir()
            yield World(folder / "places", classifiers, saved, urls)
        finally:
            for page in pages.values():
                page.terminate()
                page.communicate()


# ---- the rules ---


def check_answered(name: str, at: Place) -> None:
    """The answer is that to the pixels that Pillow reads."""
    with Image.open(at.odd) as image:
        upright = ImageOps.exif_transpose(image).convert("RGB")
    pixels = torch.from_numpy(np.array(upright)).permute(2, 0, 1)
    pixels = at.classifier.preprocess(upright) if at.classifier.preprocess else pixels
    expected, probs = at.classifier(pixels[None])[0].numpy(), ENTRY_POINTS[name](at)
    if probs is not None:
        known = np.isfinite(probs)
        assert known[expected.argmax()]
        assert probs[known] == pytest.approx(expected[known], abs=1e-6)


def refusal(name: str, at: Place) -> str:
    with pytest.raises((atta.InputError, Refused)) as refused:
        ENTRY_POINTS[name](at)
    return str(refused.value)


def check_refused(name: str, at: Place, like: Place) -> None:
    """The sentence is that of `predict_proba` about `like`, around the name of the image."""
    sentence, said = refusal("predict_proba", like), refusal(name, at)
    parts = [part.strip(" ,;:.") for part in sentence.split(str(like.odd))]
    assert len(parts) > 1, f"expected the name of the image in the sentence: {sentence}"
    parts += [] if name == "atta serve" else [str(at.odd)]
    whole = "".join(said.split())  # a terminal breaks lines anywhere
    missing = [part for part in parts if "".join(part.split()) not in whole]
    assert not missing, f"the refusal differs from that of predict_proba: {said}"


def cases(names: Iterable[str], odd: Iterable[str], where: str) -> list[tuple[str, str, str]]:
    nonsense = ("atta serve", "dangling link", where)  # a service receives bytes
    return [case for case in product(names, odd, [where]) if case != nonsense]


ANSWERED = cases(ENTRY_POINTS, USABLE, "last") + cases(ANY_NUMBER, USABLE, "alone")
ANSWERED += cases(ANY_NUMBER | MANY, ["greyscale"], "first")
REFUSED = cases(ENTRY_POINTS, UNUSABLE, "last") + cases(ANY_NUMBER, UNUSABLE, "alone")
REFUSED += cases(ANY_NUMBER | MANY, UNUSABLE, "first")
TOLERANT = ("drift", "adapt", "atta drift", "atta adapt")
LEFT_OUT = [case for case in REFUSED if case[0] in TOLERANT and case[1] != "another size"]
REFUSED = [case for case in REFUSED if case not in LEFT_OUT]


@pytest.mark.parametrize(("name", "odd", "where"), ANSWERED)
def test_a_usable_photograph_is_answered(world: World, name: str, odd: str, where: str) -> None:
    check_answered(name, world.place(odd, where))


@pytest.mark.parametrize("name", ENTRY_POINTS)
def test_preprocessing_takes_photographs_of_another_size(world: World, name: str) -> None:
    check_answered(name, world.place("another size", sized=True))


@pytest.mark.parametrize(("name", "odd", "where"), REFUSED)
def test_an_unusable_photograph_is_refused(world: World, name: str, odd: str, where: str) -> None:
    check_refused(name, world.place(odd, where), like=world.place(odd))


@pytest.mark.parametrize(("name", "odd", "where"), LEFT_OUT)
def test_a_photograph_that_cannot_be_read_is_left_out_of_many_and_named(
    world: World, name: str, odd: str, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    at = world.place(odd, where)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ENTRY_POINTS[name](at)
    said = "".join([capsys.readouterr().err, *(str(one.message) for one in caught)])
    whole = "".join(said.split())  # a terminal breaks lines anywhere
    assert "leftout" in whole
    assert "".join(str(at.odd).split()) in whole


@pytest.mark.parametrize("odd", ["empty folder", "dangling link"])
@pytest.mark.parametrize("name", RECORDING | ANY_NUMBER | MANY)
def test_a_path_without_photographs_is_refused(world: World, name: str, odd: str) -> None:
    check_refused(name, world.place(odd, "alone"), like=world.place(odd, "alone"))
