"""Wrong arguments, to Python and to the command line: each is refused in one sentence, or answered rightly."""

import contextlib
import dataclasses
import io
import itertools
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

import atta
from benchmarks.attack import toys
from benchmarks.attack.children import command, time_limit
from benchmarks.attack.tally import Attack, Effort, Tally, refusal

SECONDS = 20.0  # for one call


class Given(NamedTuple):
    """A value, and what is right: it is refused ("refuse"), as good as the plain one ("same"), or either ("any")."""

    name: str
    value: Any
    right: str = "refuse"


def not_numbers() -> list[Given]:
    """What is no array, whatever array is expected."""
    return [
        *(
            Given(repr(value), value)
            for value in ("text", b"bytes", True, 5, 0.5, 1j, {}, {"a": 1}, object, print, Ellipsis)
        ),
        *(
            Given(repr(value), value)
            for value in (
                [],
                (),
                [None],
                ["a", "b"],
                [[1.0], [1.0, 2.0]],
                [[None] * 3] * 40,
                {1, 2},
            )
        ),
        Given("an iterator", iter([1.0])),
        Given("an array of text", np.full((40, 3), "x")),
        Given("an array of objects", np.full((40, 3), None)),
        Given("dates", np.zeros((40, 3), "datetime64[s]")),
        Given("a table of two columns", np.zeros(40, [("a", "f4"), ("b", "f4")])),
        Given("a module", nn.Linear(3, 3)),
        Given("a tensor on no device", torch.empty(40, 3, device="meta")),
    ]


def matrices(plain: np.ndarray) -> list[Given]:
    """Variations of an array of floats, images first; what is not finite, or of another shape, is wrong."""
    holes = {name: plain.copy() for name in ("nan", "inf", "-inf")}
    for name, array in holes.items():
        array.flat[-1] = float(name)
    shapes = [
        np.zeros(0),
        plain[:0],
        plain[..., :0],
        plain[0],
        plain[None],
        plain[None, None],
        np.float32(0.5),
    ]
    return [
        *not_numbers(),
        *(Given(name, array) for name, array in holes.items()),
        *(
            Given(f"shape {np.shape(array)}", array)
            for array in shapes
            if np.shape(array) != plain.shape
        ),
        Given("complex", plain + 1j),
        Given("bool", plain > 0),
        Given("bytes as numbers", plain.astype(np.uint8)),
        Given("None", None),
        Given("big-endian", plain.astype(">f4"), "same"),
        Given("big-endian float64", plain.astype(">f8"), "same"),
        Given("backwards twice", plain[::-1].copy()[::-1], "same"),
        Given("columns backwards", np.ascontiguousarray(plain[..., ::-1])[..., ::-1], "same"),
        Given("Fortran order", np.asfortranarray(plain), "same"),
        Given("read-only", _read_only(plain), "same"),
        Given("float64", plain.astype(np.float64), "same"),
        Given("long double", plain.astype(np.longdouble), "same"),
        Given("objects that are floats", plain.astype(object), "same"),
        Given("nested lists", plain.tolist(), "same"),
        Given("a masked array", np.ma.masked_array(plain, plain > 1e9), "same"),
        Given("a tensor with a gradient", torch.tensor(plain, requires_grad=True), "same"),
        Given("a parameter", nn.Parameter(torch.tensor(plain)), "same"),
        Given(
            "a transposed tensor",
            torch.tensor(plain).transpose(0, -1).contiguous().transpose(0, -1),
            "same",
        ),
        Given("a sparse tensor", torch.tensor(plain).to_sparse(), "same"),
        Given("half precision", plain.astype(np.float16), "any"),
        Given("bfloat16", torch.tensor(plain).bfloat16(), "any"),
        Given("huge", plain * 1e37, "any"),
        Given("larger than float32", plain.astype(np.float64) * 1e300, "any"),
        Given("tiny", plain * 1e-44, "any"),
    ]


def columns(plain: np.ndarray, classes: int) -> list[Given]:
    """Variations of labels."""
    far, below = plain.copy(), plain.copy()
    far[3], below[3] = classes, -1
    wide = plain.astype(np.int64).copy()
    wide[0] = 2**62
    return [
        *not_numbers(),
        *(
            Given(name, value)
            for name, value in {"too large": far, "negative": below, "2**62": wide}.items()
        ),
        *(Given(f"{n} labels", plain[:n]) for n in (0, 1, len(plain) - 1)),
        *(
            Given(name, plain.astype(kind))
            for name, kind in {"floats": "f4", "complex": "c8", "bool": bool, "text": "U2"}.items()
        ),
        *(Given(f"shape {one.shape}", one) for one in (plain[:, None], plain[None], np.int64(1))),
        Given("NaN", np.full(len(plain), np.nan)),
        Given("2**64 - 1", np.full(len(plain), 2**64 - 1, np.uint64)),
        *(
            Given(kind, plain.astype(kind), "same")
            for kind in ("u1", "i1", "u2", "i2", "u4", "i4", "u8", ">i8", ">u2")
        ),
        Given("backwards twice", plain[::-1].copy()[::-1], "same"),
        Given("read-only", _read_only(plain), "same"),
        Given("a list", plain.tolist(), "same"),
        Given("objects", plain.astype(object), "same"),
        Given("a tensor of uint16", torch.tensor(plain.astype(np.uint16)), "same"),
        Given("a tensor of int32", torch.tensor(plain.astype(np.int32)), "same"),
        Given("one class only", np.zeros_like(plain), "any"),
    ]


def scalars() -> list[Given]:
    """Values for a setting; some of them may be right for it."""
    values = [
        None,
        "a",
        "",
        -1,
        0,
        1.5,
        -0.5,
        float("nan"),
        float("inf"),
        1e308,
        [],
        {},
        object(),
        torch.ones(2),
    ]
    return [Given(repr(value)[:30], value, "any") for value in values]


def _read_only(array: np.ndarray) -> np.ndarray:
    copy = array.copy()
    copy.setflags(write=False)
    return copy


# ---- trying --------------------------------------------------------------------------------------------------------


def attempt(
    tally: Tally, what: str, given: Given, call: Callable[[Any], Any], plain: Any = None
) -> None:
    """Call it; count whether it was refused in one sentence, or answered as it should be."""
    what = f"{what}, given {given.name}"
    try:
        with (
            time_limit(SECONDS),
            warnings.catch_warnings(),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            got = _numbers(call(given.value))
    except Exception as error:
        return tally.count(not refusal(error), f"{what}: {refusal(error)}")
    if given.right == "refuse":
        return tally.count(False, f"{what}: expected a refusal, got an answer")
    if given.right == "same" and plain is not None:
        same = got.shape == plain.shape and np.allclose(
            got, plain, rtol=1e-3, atol=1e-5, equal_nan=True
        )
        return tally.count(bool(same), f"{what}: expected the answer to plain numbers, got another")
    return tally.count(not np.isnan(got).any(), f"{what}: the answer is not a number")


def _numbers(found: Any) -> np.ndarray:
    """An answer of any kind, as numbers."""
    match found:
        case torch.Tensor():
            return found.detach().double().numpy()
        case np.ndarray() if found.dtype.kind in "fiub":
            return found.astype(float)
        case Mapping():
            return np.concatenate(
                [np.ravel(_numbers(value)) for value in found.values()] or [np.zeros(0)]
            )
        case tuple() | list():
            return np.concatenate([np.ravel(_numbers(value)) for value in found] or [np.zeros(0)])
        case bool() | int() | float():
            return np.array([found], float)
        case atta.Predictions():
            return _numbers([found.logits, *found.views.values()])
        case atta.Record():
            return _numbers([found.predictions, [] if found.labels is None else found.labels])
    return np.zeros(0)


def arrays_to_functions(tally: Tally, effort: Effort) -> None:
    """Arrays that are wrong, for whatever takes arrays of logits or probabilities."""
    rows, labels = toys.plain()
    logits, probs = rows.logits.numpy(), rows.logits.softmax(-1).numpy()
    sets = atta.Conformal(coverage=0.8).fit(probs, labels)
    few: dict[str, Any] = {"metrics": ["brier", "ece"], "resamples": 20}
    takes: dict[str, tuple[np.ndarray, Callable[[Any], Any]]] = {
        "Predictions(logits)": (logits, lambda x: atta.Predictions(x)),
        "Predictions(views)": (
            rows.views["brightness"].numpy(),
            lambda x: atta.Predictions(logits, {"brightness": x}),
        ),
        "evaluate(probs)": (probs, lambda x: atta.evaluate(x, labels)),
        "evaluate(probs) without labels": (probs, lambda x: atta.evaluate(x)),
        "bootstrap(probs)": (probs, lambda x: atta.bootstrap(x, labels, **few)),
        "paired(probs_a)": (probs, lambda x: atta.paired(x, probs, labels, **few)),
        "paired(probs_b)": (probs, lambda x: atta.paired(probs, x, labels, **few)),
        "reliability(probs)": (probs, lambda x: atta.reliability(x, labels)),
        "compare_plot(probs)": (probs, lambda x: atta.compare_plot({"one": x}, labels)),
        "Conformal.fit(probs)": (
            probs,
            lambda x: atta.Conformal(coverage=0.8).fit(x, labels).threshold,
        ),
        "ConformalSets(probs)": (probs, lambda x: sets(x)),
        "bins(confidence)": (probs.max(1), lambda x: vars(atta.bins(x, np.ones(40)))["counts"]),
        "bins(correct)": (
            np.ones(40, np.float32),
            lambda x: vars(atta.bins(probs.max(1), x))["counts"],
        ),
    }
    for what, (plain, call) in takes.items():
        expected = _numbers(call(plain))
        for given in matrices(plain):
            right = given
            if given.name in ("huge", "larger than float32") and "Predictions" not in what:
                right = given._replace(right="refuse")
            if what == "bins(correct)" and given.name in (
                "bool",
                "bytes as numbers",
                "half precision",
                "bfloat16",
            ):
                right = given._replace(right="same")
            if "bins" in what and given.name.startswith(
                ("tiny", "huge", "larger", "bool", "bytes as")
            ):
                right = given._replace(right="any")
            attempt(tally, what, right, call, expected)


def labels_to_functions(tally: Tally, effort: Effort) -> None:
    """Labels that are wrong, for whatever takes labels, every method's fit among them."""
    rows, labels = toys.plain()
    probs, plain = rows.logits.softmax(-1).numpy(), labels.numpy()
    few: dict[str, Any] = {"metrics": ["brier", "ece"], "resamples": 20}
    takes: dict[str, Callable[[Any], Any]] = {
        "Record(labels)": lambda y: atta.Record(rows, y),
        "evaluate(labels)": lambda y: atta.evaluate(probs, y),
        "bootstrap(labels)": lambda y: atta.bootstrap(probs, y, **few),
        "paired(labels)": lambda y: atta.paired(probs, probs[:, ::-1].copy(), y, **few),
        "reliability(labels)": lambda y: atta.reliability(probs, y),
        "Conformal.fit(labels)": lambda y: atta.Conformal(coverage=0.8).fit(probs, y).threshold,
        "collect(labels)": lambda y: atta.collect(
            toys.network(), toys.images(40), y, policy="flip", progress=False
        ),
    }
    for name in atta.METHODS:
        takes[f"{name}.fit(labels)"] = lambda y, name=name: atta.find_method(name).fit(rows, y)(
            rows
        )
    for what, call in takes.items():
        expected = _numbers(call(plain))
        for given in columns(plain, toys.CLASSES):
            given = (
                given._replace(right="any")
                if what == "collect(labels)" and given.name == "text"
                else given
            )  # names of classes
            attempt(tally, what, given, call, expected)


def objects_to_methods(tally: Tally, effort: Effort) -> None:
    """What is no predictions, or those of something else, to every method's fit and every calibrator; and odd settings."""
    rows, labels = toys.plain()
    bare, other = atta.Predictions(rows.logits), toys.predictions(40, 4)[0]
    flips = atta.Predictions(rows.logits, {"flip": rows.views["flip"]})
    strange = [Given(repr(v)[:30], v) for v in (None, "record", 5, [rows], {}, labels, object())]
    plain = [
        Given(type(v).__name__, v) for v in (rows.logits, rows.logits.numpy())
    ]  # which will do where no views are needed
    strange += [Given("a record", atta.Record(rows, labels)), Given("the class", atta.Predictions)]
    for name in atta.METHODS:
        method = atta.find_method(name)
        fitted = method.fit(rows, labels)
        taken = [given._replace(right="refuse" if method.needs_views else "any") for given in plain]
        for given in (*strange, *taken):
            attempt(tally, f"{name}.fit(predictions)", given, lambda p, m=method: m.fit(p, labels))
            attempt(tally, f"calibrator of {name}", given, fitted)
        attempt(tally, f"calibrator of {name}", Given("other classes", other), fitted)
        for what, few in {"no views": bare, "other views": flips}.items():
            attempt(
                tally,
                f"calibrator of {name}",
                Given(what, few, "refuse" if fitted.kinds else "any"),
                fitted,
            )
        attempt(
            tally,
            f"{name}.fit",
            Given("one image", rows[:1], "any"),
            lambda p, m=method: m.fit(p, labels[:1])(p),
        )


def views_and_records(tally: Tally, effort: Effort) -> None:
    """Names of views, origins, rows, and other parts of predictions and records: a list of them, and so longer than a page."""
    rows, labels = toys.plain()
    logits, view = rows.logits, rows.views["flip"]
    cases: list[tuple[str, Given, Callable[[Any], Any]]] = []
    for value in (
        None,
        5,
        "flip",
        [view],
        {"flip"},
        {5: view},
        {"": view},
        {None: view},
        {"flip": None},
        {"flip": view[0]},
        view,
    ):
        right = "any" if value is None else "refuse"
        cases.append(
            (
                "Predictions(views)",
                Given(repr(value)[:30], value, right),
                lambda v: atta.Predictions(logits, v),
            )
        )
    for value in (None, "text", 5, logits, [rows], {"logits": logits}, atta.Record(rows)):
        cases.append(
            (
                "Record(predictions)",
                Given(repr(value)[:30], value),
                lambda v: atta.Record(v, labels),
            )
        )
    for value in (
        None,
        "text",
        5,
        [1],
        {"a"},
        {None: 1},
        {"a": object()},
        {"kinds": "x"},
        {"é\0": "\ud800"},
        {"a": "x" * 10**6},
    ):
        cases.append(
            (
                "Record(origin)",
                Given(repr(value)[:30], value, "any"),
                lambda v: _round_trip(atta.Record(rows, labels, v)),
            )
        )
    for value in (
        "a",
        None,
        1.5,
        [99],
        [-99],
        [[0]],
        [],
        slice(5, 5),
        "0:3",
        np.array([0.5]),
        np.zeros(40),
        torch.zeros(39) > 0,
        {},
    ):
        cases.append(
            (
                "Record[rows]",
                Given(repr(value)[:30], value, "any"),
                lambda v: atta.Record(rows, labels)[v],
            )
        )
    for value in (
        "a,b",
        "kinds",
        "logits",
        "view.x",
        "é",
        "a b",
        "x" * 300,
        "[bold]",
        "../x",
        "a\nb",
        "\ud800",
        "labels",
        "__metadata__",
    ):
        given = Given(repr(value)[:30], value, "same")
        cases.append(
            (
                "a view's name",
                given,
                lambda v: _round_trip(
                    atta.Record(atta.Predictions(logits, {v: view, "b": view.clone()}), labels)
                ),
            )
        )
    shared = {"flip": logits[:, None], "crop": logits[:, None].expand(40, 3, 3)}
    cases.append(
        (
            "Record.save",
            Given("views in the memory of the logits", shared, "any"),
            lambda v: _round_trip(atta.Record(atta.Predictions(logits, v))),
        )
    )
    for what, given, call in cases:
        attempt(tally, what, given, call)
    loaders = {
        "Record": atta.Record,
        "atta": atta,
        "CalibratedClassifier": atta.CalibratedClassifier,
        "Results": atta.Results,
    }
    for (what, home), path in itertools.product(
        loaders.items(), ("", "nope", ".", "/", "x" * 300, "a/" * 3000, "\0", "\ud800", __file__)
    ):
        attempt(tally, f"{what}.load", Given(repr(path)[:30], path), home.load)


def _round_trip(record: atta.Record) -> atta.Record:
    """Save and load; an answer that is not the same is an error of another kind."""
    with tempfile.TemporaryDirectory() as folder:
        back = atta.Record.load(record.save(Path(folder) / "r.safetensors"))
    if back.predictions.kinds != record.predictions.kinds or dict(back.origin) != dict(
        record.origin
    ):
        raise RuntimeError(
            f"went out as {record.predictions.kinds} {dict(record.origin)}, came back otherwise"[
                :300
            ]
        )
    if not np.array_equal(_numbers(back), _numbers(record)):
        raise RuntimeError("the numbers came back otherwise")
    return back


def settings_of_every_kind(tally: Tally, effort: Effort) -> None:
    """Settings of methods and functions, each with values of every kind."""
    rows, labels = toys.plain()
    for name, method in atta.METHODS.items():
        for field, given in itertools.product(dataclasses.fields(method), scalars()):
            setting = {field.name: given.value}
            what = f"{name}({field.name}=...)"
            attempt(
                tally, what, given, lambda _, m=method, s=setting: m(**s).fit(rows, labels)(rows)
            )
    probs = rows.logits.softmax(-1)
    few: dict[str, Any] = {"metrics": ["brier"], "resamples": 20}
    takes: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
        "Conformal": (
            lambda **s: atta.Conformal(**s).fit(probs, labels)(probs),
            ("coverage", "score", "penalty", "allowed"),
        ),
        "bins": (
            lambda **s: atta.bins(probs.amax(1), torch.ones(40), **s).counts,
            ("count", "equal_mass"),
        ),
        "evaluate": (lambda **s: atta.evaluate(probs, labels, **s), ("metrics", "simplex")),
        "bootstrap": (
            lambda **s: atta.bootstrap(probs, labels, **{**few, **s}),
            ("metrics", "resamples", "confidence", "seed"),
        ),
        "paired": (
            lambda **s: atta.paired(probs, probs, labels, **{**few, **s}),
            ("metrics", "resamples", "confidence", "seed"),
        ),
        "reliability": (
            lambda **s: atta.reliability(probs, labels, **s),
            ("bins", "title", "width"),
        ),
        "find_method": (lambda name: atta.find_method(name), ("name",)),
        "Policy.parse": (lambda text: atta.Policy.parse(text), ("text",)),
    }
    for what, (call, names) in takes.items():
        for name, given in itertools.product(names, scalars()):
            attempt(
                tally,
                f"{what}({name}=...)",
                given,
                lambda value, call=call, name=name: call(**{name: value}),
            )


POLICIES = (
    *(
        "",
        " ",
        "+",
        "flip +",
        "+ flip",
        "flip + + crop",
        "flip + flip",
        "0 flip",
        "-1 crop",
        "1.5 crop",
        "5",
        "5 5 crop",
        "2 flip",
    ),
    *(
        "99999999 crop",
        "99999999999999999999999 crop",
        "crop 5",
        "flip; rm",
        "flip, crop",
        "FLIP",
        "flop",
        "x crop",
        "5 x x crop",
    ),
    *(
        "5 ** crop",
        "nan crop",
        "inf crop",
        "1e3 crop",
        "٣ crop",
        "²crop",
        "flip\x00",
        "flip\ncrop",
        "é",
        "\ud800",
        "a" * 10_000,
    ),
    *(
        "+".join(["flip"] * 5000),
        "(" * 500,
        "__class__",
        "aug",
        "aug99",
        "auto",
        "5crop+5crop",
        "0x5 crop",
        "５ crop",
        "1_0 crop",
    ),
)


def policies(tally: Tally, effort: Effort) -> None:
    """Policies as text, and mixtures of their letters."""
    draw = effort.random("policies")
    texts = [
        *POLICIES,
        *(
            "".join(draw.choices("0159 +*x.-flipcrop", k=draw.randint(1, 14)))
            for _ in range(effort.times(300))
        ),
    ]
    for text in texts:
        attempt(
            tally,
            "Policy.parse",
            Given(repr(text)[:40], text, "any"),
            lambda t: atta.Policy.parse(t).passes,
        )


class Answers(nn.Module):
    """A network that answers as it is told."""

    def __init__(self, of: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.of = of

    def forward(self, images: torch.Tensor) -> Any:
        """Answer."""
        return self.of(images)


def _raise(error: Exception) -> Any:
    raise error


def models() -> Iterator[Given]:
    """What is no model, and models that answer wrongly."""
    for value in (None, "model", 5, [], {}, object(), torch.ones(3), nn.Linear, "missing.onnx"):
        yield Given(repr(value)[:30], value)
    answers: dict[str, Callable[[torch.Tensor], Any]] = {
        "None": lambda x: None,
        "text": lambda x: "a",
        "an empty list": lambda x: [],
        "one row for all": lambda x: torch.zeros(3),
        "a row too few": lambda x: torch.zeros(len(x) - 1, 3),
        "one class": lambda x: torch.zeros(len(x), 1),
        "no class": lambda x: torch.zeros(len(x), 0),
        "NaN": lambda x: torch.full((len(x), 3), float("nan")),
        "whole numbers": lambda x: torch.zeros(len(x), 3, dtype=torch.int64),
        "complex": lambda x: torch.zeros(len(x), 3, dtype=torch.complex64),
        "maps": lambda x: torch.zeros(len(x), 3, 8, 8),
        "KeyError": lambda x: _raise(KeyError("layer")),
        "TypeError": lambda x: _raise(TypeError("forward() wants a mask")),
        "RuntimeError": lambda x: _raise(RuntimeError("mat1 and mat2 shapes cannot be multiplied")),
        "IndexError": lambda x: _raise(IndexError("out of range")),
        "StopIteration": lambda x: _raise(StopIteration()),
    }
    for name, of in answers.items():  # one class is one logit, of two classes
        yield Given(
            f"a network that answers with {name}",
            Answers(of),
            "any" if name == "one class" else "refuse",
        )


def images_and_models(tally: Tally, effort: Effort) -> None:
    """Images, models and settings for collect, calibrate and a classifier."""
    network, pixels, labels = toys.network(), toys.images(24), torch.arange(24) % toys.CLASSES
    floats = (pixels.float() / 255).numpy()
    classifier = toys.classifier()
    easy: dict[str, Any] = {"policy": "flip", "progress": False}

    def calibrate(model: object, images: object, **how: Any) -> Any:
        made = atta.calibrate(model, images, labels, **{**easy, "method": "v-atta", **how})
        return made(pixels)

    takes: dict[str, Callable[[Any], Any]] = {
        "collect(images)": lambda x: atta.collect(network, x, **easy),
        "calibrate(images)": lambda x: calibrate(network, x),
        "classifier(images)": classifier,
        "classifier.predict_proba(images)": classifier.predict_proba,
    }
    for what, call in takes.items():
        expected = _numbers(call(torch.from_numpy(floats)))
        for given in matrices(floats):
            right = (
                "refuse"
                if given.name in ("huge", "larger than float32")
                else "any"
                if given.name in ("None", "[]", "()")
                else given.right
            )
            if given.name in ("bytes as numbers", "shape (0, 3, 8, 8)", "shape (3, 8, 8)"):
                right = "any"  # black images, no images for a classifier, and one image
            attempt(tally, what, given._replace(right=right), call, expected)
    for given in models():
        attempt(tally, "collect(model)", given, lambda m: atta.collect(m, pixels, **easy))
        attempt(tally, "calibrate(model)", given, lambda m: calibrate(m, pixels))
        attempt(
            tally,
            "CalibratedClassifier(model)",
            given,
            lambda m: atta.CalibratedClassifier(
                m, classifier.calibrator, toys.POLICY, image_shape=toys.SHAPE
            ).check(),
        )
    _settings_of_deployment(tally, network, pixels, classifier, calibrate, easy)


def _settings_of_deployment(
    tally: Tally, network: Any, pixels: Any, classifier: Any, calibrate: Any, easy: dict[str, Any]
) -> None:
    """Settings of collect, calibrate and a classifier."""
    settings = (
        "policy",
        "seed",
        "draws",
        "channels",
        "device",
        "batch_size",
        "workers",
        "output",
        "autocast",
        "origin",
    )
    values = [
        *scalars(),
        *(
            Given(text, text, "any")
            for text in ("cuda", "meta", "nope", "cpu:7", "stratified", "last")
        ),
    ]
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for name, given in itertools.product(settings, values):
            attempt(
                tally,
                f"collect({name}=...)",
                given,
                lambda v, n=name: atta.collect(network, pixels, **{**easy, n: v}),
            )
        for name, given in itertools.product(
            ("policy", "budget", "method", "class_names", "device", "seed"), values
        ):
            attempt(
                tally,
                f"calibrate({name}=...)",
                given,
                lambda v, n=name: calibrate(network, pixels, **{n: v}),
            )
        for name, given in itertools.product(
            ("policy", "image_shape", "class_names", "calibrator"), values
        ):
            plain = {
                "calibrator": classifier.calibrator,
                "policy": toys.POLICY,
                "image_shape": toys.SHAPE,
            }
            attempt(
                tally,
                f"CalibratedClassifier({name}=...)",
                given,
                lambda v, n=name, p=plain: atta.CalibratedClassifier(network, **{**p, n: v}),
            )


# ---- the command line ----------------------------------------------------------------------------------------------

LONG_NAME = "x" * 300
NUMBERS = ("-1", "0", "1e9", "99999999999999999999", "nan", "a", "", "1.5", "٣")
NAMES = (
    "",
    ".",
    "/",
    "nope",
    "..",
    "photos",
    "results.json",
    "record.safetensors",
    "own_network.py",
    LONG_NAME,
    "é[bold]",
    "-",
)
DEVICES = ("nope", "cuda", "meta", "cpu:99", "cuda:-1", "", "mps", "xla", "CPU")
MODELS = (
    "os:path",
    ":x",
    "..:x",
    "nope:x",
    "own_network:nope",
    "own_network:raises",
    "own_network:odd",
    "json:loads",
    "own_network",
    ".a:b",
)
OUTPUTS = (
    "",
    ".",
    "/",
    "/dev",
    "photos",
    "nope/../..",
    f"{LONG_NAME}.csv",
    "x.txt",
    "x.onnx",
    "x.pt2",
    "record.safetensors/x",
)
USUAL: dict[str, list[str]] = {
    "compare": [
        "compare",
        "record.safetensors",
        "--validation",
        "100",
        "--methods",
        "vanilla,temperature",
    ],
    "fit": ["fit", "record.safetensors", "-o", "made.safetensors"],
    "evaluate": ["evaluate", "record.safetensors", "--calibrator", "calibrator.safetensors"],
    "search": ["search", "record.safetensors", "--budget", "4"],
    "collect": [
        "collect",
        "own_network:network",
        "photos",
        "-o",
        "made.safetensors",
        "--policy",
        "flip",
    ],
    "calibrate": ["calibrate", "own_network:network", "photos", "-o", "made", "--policy", "flip"],
    "export": ["export", "classifier", "-o", "made.pt2"],
    "predict": ["predict", "classifier", "photos", "-o", "made.csv"],
    "run": ["run", "experiment.toml", "--records", "."],
    "report": ["report", "results.json", "-o", "made.html"],
    "figure": ["figure", "reliability", "results.json", "-o", "made.json"],
    "train": ["train", "digits", "-o", "trained", "--model", "small_cnn", "--steps", "1"],
}
BAD: dict[str, dict[str, tuple[str, ...]]] = {
    "compare": {"--validation": NUMBERS, "--splits": ("-1", "0", "a"), "--methods": ("", ",", "nope", "v-ata"), "--fit": NAMES, "--json": OUTPUTS[:7]},
    "fit": {"--method": ("", "nope", "é"), "--set": ("", "=", "a", "a=1", "step=a", "step=[", "views=x", "epochs=1e400"), "--rows": ("", ":", "a", "5:5", "1:2:3", "999:", "-1"), "-o": OUTPUTS[:7]},
    "evaluate": {"--calibrator": NAMES, "--rows": ("a", "9:1")},
    "search": {"--folds": (*NUMBERS, "1"), "--budget": NUMBERS, "--seed": ("-1", "a", str(2**64)), "--test": ("a", ":", "0:100"), "--method": ("nope", "temperature")},
    "collect": {"--device": DEVICES, "--policy": POLICIES[:28], "--shuffle": ("-1", "99999999999999999999", "a"), "--batch-size": NUMBERS, "--seed": ("-1", "a", str(2**70)), "--draws": ("", "nope"), "--image-size": ("0", "-5", "a"), "--rows": ("a", "999:"), "-o": OUTPUTS[:7], "--columns": (",", "a,b,c"), "--shift": ("-1", "a")},
    "calibrate": {"--device": DEVICES, "--budget": NUMBERS, "--method": ("", "nope"), "--policy": POLICIES[:12], "-o": OUTPUTS, "--set": ("a", "limit=2")},
    "export": {"-o": OUTPUTS, "--opset": ("-1", "0", "9999", "a"), "--pixels": ("", "int8")},
    "predict": {"-o": OUTPUTS, "--batch-size": NUMBERS, "--device": DEVICES, "--model": MODELS},
    "run": {"--records": NAMES, "--splits": ("-1", "0", "a"), "--validation": NUMBERS, "--format": ("", "pdf"), "-o": OUTPUTS[:7]},
    "report": {"-o": OUTPUTS[:7]},
    "figure": {"-o": OUTPUTS, "--method": ("nope", ""), "--dataset": ("nope",), "--metric": ("nope", "[bold]"), "--validation": ("-1", "a")},
    "train": {"--model": ("", "nope"), "--steps": ("-1", "0", "a"), "--set": ("a", "batch_size=0", "batch_size=a", "epochs=-1"), "--seed": ("-1", str(2**70)), "--device": DEVICES, "--image-size": ("0", "-5")},
}  # fmt: skip
FIRST: dict[str, dict[int, tuple[str, ...]]] = {
    **{
        name: {1: NAMES}
        for name in (
            "compare",
            "fit",
            "evaluate",
            "search",
            "report",
            "export",
            "predict",
            "run",
            "train",
        )
    },
    "collect": {1: (*MODELS, *NAMES), 2: NAMES},
    "calibrate": {1: (*MODELS, *NAMES), 2: NAMES},
    "figure": {1: ("", "nope", "Reliability"), 2: NAMES},
}


def command_lines() -> Iterator[list[str]]:
    """Every command with one word of it wrong."""
    yield from ([], ["nope"], ["--nope"], ["fit"], ["fit", "a", "b", "c"], ["\ud800"])
    for name, usual in USUAL.items():
        for option, values in BAD.get(name, {}).items():
            base = [
                word
                for i, word in enumerate(usual)
                if word != option and (i == 0 or usual[i - 1] != option)
            ]
            yield from ([*base, option, value] for value in values)
        for place, values in FIRST.get(name, {}).items():
            yield from ([*usual[:place], value, *usual[place + 1 :]] for value in values)


def wrong_commands(tally: Tally, effort: Effort) -> None:
    """Run each in this process: exit code 0, 1 or 2, and words rather than a traceback."""
    words = effort.random("commands")
    lines = list(command_lines())
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(toys.workshop(Path(folder) / "shop")),
    ):
        sys.path.insert(0, str(Path.cwd()))
        for line in lines if effort.scale >= 1 else words.sample(lines, effort.times(len(lines))):
            trouble = typed(line)
            tally.count(
                not trouble,
                f"atta {' '.join(word if len(word) < 50 else word[:50] + '…' for word in line)!r}: {trouble}",
            )


def typed(line: list[str]) -> str:
    """What is wrong with how a command ended, or ""."""
    said, answered, argv = io.StringIO(), io.StringIO(), sys.argv
    code: Any = 0
    try:
        with (
            time_limit(2 * SECONDS),
            contextlib.redirect_stderr(said),
            contextlib.redirect_stdout(answered),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            command(*line)()
    except SystemExit as end:
        code = end.code or 0
    except BaseException as error:
        return f"{type(error).__module__}.{type(error).__qualname__}: {error}"
    finally:
        sys.argv = argv
    if code not in (0, 1, 2):
        return f"exit code {code}: {said.getvalue()[-200:]}"
    if "Traceback (most recent" in said.getvalue():
        return f"a traceback: {said.getvalue()[-200:]}"
    return (
        f"exit code {code} without a word"
        if code and not (said.getvalue() + answered.getvalue()).strip()
        else ""
    )


os.environ.setdefault("COLUMNS", "200")
ATTACKS = (
    Attack(
        "inputs: arrays",
        "arrays of the wrong type, shape, order or content, for 13 functions",
        arrays_to_functions,
    ),
    Attack(
        "inputs: labels",
        "labels of the wrong type, range or number, for 7 functions and every method",
        labels_to_functions,
    ),
    Attack(
        "inputs: methods",
        "objects that are no predictions, for the fit and the calibrator of every method",
        objects_to_methods,
    ),
    Attack("inputs: records", "names of views, origins, rows and paths", views_and_records),
    Attack(
        "inputs: settings",
        "settings of every method and of eight functions, with values of every kind",
        settings_of_every_kind,
        400,
    ),
    Attack("inputs: policies", "policies as text", policies),
    Attack(
        "inputs: images",
        "images, models and settings, for `collect`, `calibrate` and a classifier",
        images_and_models,
        400,
    ),
    Attack("inputs: commands", "every command with one word of it wrong", wrong_commands, 600),
)
