"""The toy data of all tests: made-up predictions, small networks, and classifiers that need no fit."""

import copy
import io
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import Dataset, IterableDataset
from typer.testing import CliRunner, Result

import atta
from atta import Predictions, Record
from atta.calibrators import Calibrator, ViewBlend
from atta.classifier.classifier import CalibratedClassifier
from atta.classifier.estimator import Details
from atta.classifier.export import Graph
from atta.data.image_set import ImageSet
from atta.lab.experiment import Experiment
from atta.lab.recipe import Recipe
from atta.networks.resnet import MODELS
from atta.results.rows import Results, Row
from atta.run.collect import collect

POLICY = "flip + 2 crop"
SHAPE = (3, 8, 8)


def made_up(
    n: int = 300,
    k: int = 5,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    labels: int | None = None,
) -> Record:
    """An over-confident classifier with four kinds of view, right on about four images of five."""
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randint(labels or k, (n,), generator=generator)
    clean = torch.randn(n, k, generator=generator, dtype=dtype)
    clean[torch.arange(n), truth] += 2.5

    def look(repeats: int) -> torch.Tensor:
        return 2.5 * (
            clean[:, None] + 0.7 * torch.randn(n, repeats, k, generator=generator, dtype=dtype)
        )

    views = {"flip": look(1), "crop": look(3), "brightness": look(2), "contrast": look(2)}
    return Record(Predictions(look(1)[:, 0], views), truth, {"dataset": "made up"})


KINDS = {"flip": 1, "crop": 3, "brightness": 2}


def toy(
    n: int = 60,
    k: int = 4,
    seed: int = 0,
    *,
    confidence: float = 3.0,
    signal: float = 2.0,
    dtype=torch.float32,
    kinds=KINDS,
) -> tuple[Predictions, Tensor]:
    """An over-confident network: views that know as much as the image, and each something else."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(k, (n,), generator=g)
    truth = signal * torch.nn.functional.one_hot(labels, k) + torch.randn(
        n, k, generator=g, dtype=torch.float64
    )
    views = {
        kind: confidence
        * (truth[:, None] + (1 + i / 2) * torch.randn(n, r, k, generator=g, dtype=torch.float64))
        for i, (kind, r) in enumerate(kinds.items())
    }
    return Predictions(
        (confidence * truth).to(dtype), {kind: view.to(dtype) for kind, view in views.items()}
    ), labels


def rehearsed(
    n: int = 800, k: int = 6, *, seed: int = 0, fade: float = 0.0
) -> tuple[Predictions, Tensor]:
    """A network, mostly right, its mirror images, and rehearsals in which what it sees fades, as `fade` says of all."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(k, (n,), generator=g)
    truth = 4.0 * torch.nn.functional.one_hot(labels, k)
    common = torch.randn(n, k, generator=g)

    def look(fade: float) -> Tensor:
        return 2.0 * ((1 - fade) * truth + common + torch.randn(n, k, generator=g))

    views = {
        "flip": look(fade)[:, None],
        "rehearse-3": look(0.3)[:, None],
        "rehearse-5": look(0.6)[:, None],
    }
    return Predictions(look(fade), views), labels


def near_ties(logits: Tensor, generator: torch.Generator) -> None:
    """Move a class of most rows to within three roundings of the largest logit, or exactly there."""
    rows = torch.arange(0, len(logits) * 3 // 4)
    which = torch.randint(logits.shape[1], rows.shape, generator=generator)
    steps = torch.randint(-3, 4, rows.shape, generator=generator).to(logits)
    top = logits[rows].amax(dim=1)
    logits[rows, which] = top + top * steps * torch.finfo(logits.dtype).eps


def check_same(together: list[Calibrator], alone: list[Calibrator]) -> None:
    """Two lists of calibrators are the same, bit for bit."""
    assert len(together) == len(alone)
    for one, other in zip(together, alone, strict=True):
        assert type(one) is type(other)
        assert (one.classes, one.kinds, one.options, one.method) == (
            other.classes,
            other.kinds,
            other.options,
            other.method,
        )
        assert one.state_dict().keys() == other.state_dict().keys()
        for key, value in one.state_dict().items():
            assert value.dtype == other.state_dict()[key].dtype
            assert torch.equal(value, other.state_dict()[key])


QUICK: dict[str, Any] = {
    "optimizer": "adam",
    "start": "1/k",
    "epochs": 3,
}  # settings of m-atta and v-atta
POLICIES = ("flip + crop", "flip + 2 crop + brightness", "brightness + contrast")


def small_experiment(**changes: Any) -> Experiment:
    """Four methods on 100 rows of the record "a", each with the policy that two rules choose for it."""
    content: dict[str, Any] = {
        "name": "small",
        "dataset": "shop",
        "fit": "a",
        "methods": {
            "vanilla": {},
            "temperature": {},
            "v-atta": QUICK,
            "quick": {"method": "m-atta", **QUICK},
        },
        "policies": POLICIES,
        "choose": ("paper", "cross-validated"),
        "validation": 100,
        "splits": 2,
    }
    return Experiment.of(content | changes)


def answers(
    n: int = 500, k: int = 5, *, scale: float = 2.0, seed: int = 0, ties: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """An over-confident classifier, as float64 probabilities and labels.

    With ties it knows only few levels of confidence, as histogram binning does.
    """
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(k, (n,), generator=draw)
    logits = torch.randn(n, k, generator=draw, dtype=torch.float64)
    logits[torch.arange(n), labels] += 1
    return (scale * (logits.round() if ties else logits)).softmax(1), labels


def tops(probs: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The confidence of each answer, and whether it is right."""
    confidence, winner = probs.max(1)
    return confidence, winner == labels


def many(count: int, metric: str = "brier", **columns: Any) -> list[Row]:
    """Rows of one metric: three splits of methods, each a little worse than the one before."""
    return [
        Row(
            dataset="d",
            method=f"method {i}",
            metric=metric,
            value=0.1 + 0.01 * i + 0.001 * split,
            split=split,
            **columns,
        )
        for i in range(count)
        for split in range(3)
    ]


def with_classes(detail: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """The detail as M-ATTA would have it, with these classes; every fifth is never predicted."""
    draw, count = np.random.default_rng(0), len(names)
    known = [i % 5 != 4 for i in range(count)]
    return {
        **detail,
        "views": {
            **detail["views"],
            "weights": draw.normal(size=(len(detail["views"]["kinds"]), count)).tolist(),
        },
        "per_class": {
            "names": names,
            "counts": [10 if there else 0 for there in known],
            **{
                name: [draw.random() if there else None for there in known]
                for name in ("confidence", "accuracy")
            },
        },
    }


def chart_data(chart: Any) -> list[dict[str, Any]]:
    """The rows of all the data of a chart, as they are written."""
    spec = json.loads(json.dumps(chart.to_dict(), allow_nan=False))
    return [row for rows in spec["datasets"].values() for row in rows]


def rows(**values: list[float]) -> Results:
    """One metric of methods, a number a split."""
    return Results(
        tuple(
            Row(dataset="set", split=split, method=method, metric="brier", value=value)
            for method, vs in values.items()
            for split, value in enumerate(vs)
        )
    )


TEXTS = st.text(max_size=8)
ROWS = st.builds(
    Row,
    experiment=TEXTS,
    dataset=TEXTS,
    validation=st.integers(),
    split=st.integers(),
    method=TEXTS,
    policy=TEXTS,
    choice=TEXTS,
    seed=st.integers(),
    metric=TEXTS,
    value=st.floats(),
)
"""Rows of anything that a row may hold."""


@cache
def _fitted() -> "CalibratedClassifier":
    from atta import VATTA, CalibratedClassifier
    from atta.classifier.summary import summarise
    from atta.networks.resnet import small_cnn

    record = made_up(60)
    record = Record(record.predictions.take({"flip": 1, "brightness": 2}), record.labels)
    calibrator = VATTA().fit(record.predictions, record.require_labels())
    torch.manual_seed(0)
    classifier = CalibratedClassifier(
        small_cnn(5), calibrator, "flip + 2 brightness", image_shape=(3, 8, 8)
    )
    classifier.summary = summarise(
        calibrator, classifier.policy, record, calibrator(record.predictions)
    )
    return classifier


def made_classifier(*, names: tuple[str, ...] = (), summary: bool = True) -> "CalibratedClassifier":
    """A small network on 3 x 8 x 8 images, calibrated on made-up predictions of five classes."""
    classifier = copy.deepcopy(_fitted())
    classifier.class_names = names
    if not summary:
        classifier.summary = None
    return classifier


def pixels(n=60, shape=SHAPE, seed=0):
    return torch.randint(
        0, 256, (n, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)
    )


class _Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        answer = function(*args, **(kwargs or {}))
        name = function._schema.name.partition("::")[2]
        if name == "lift_fresh" or not (
            function.is_view or name in ("_unsafe_view", "promote_types")
        ):
            self.found[name] += 1
        return answer


def counted(work: Callable[[], object]) -> dict[str, int]:
    """The operators of torch that are called, but for those that only look at a tensor in another shape: a GPU's kernels.

    `lift_fresh` is a number of Python's, which is sent to where the tensors are; `_local_scalar_dense` one that is waited for.
    """
    with _Counting() as counting:
        work()
    return dict(counting.found)


def encoded(image: Tensor, kind: str = "PNG") -> bytes:
    """The bytes of a file with that image, (c, h, w)."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(image.permute(1, 2, 0).numpy()).save(file, kind)
    return file.getvalue()


def linear(classes=3, shape=SHAPE, scale=8.0):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), classes))
    with torch.no_grad():
        network[1].weight *= scale
    return network.eval()


def mostly_right(network, n=60):
    """Labels of `pixels` by which a network of three classes is right on three images of four."""
    own = network(pixels(n) / 255).argmax(1)
    return torch.where(torch.arange(n) % 4 > 0, own, (own + 1) % 3)


class Items(Dataset):
    """Images, or images and labels, one by one."""

    def __init__(self, images, labels=None):
        self.images, self.labels = images, labels

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return self.images[i] if self.labels is None else (self.images[i], self.labels[i])


class Stream(IterableDataset):
    """Images and labels in an order of their own, without a length."""

    def __init__(self, images):
        self.images = images

    def __iter__(self):
        return iter([(image, i % 3) for i, image in enumerate(self.images)])


def blend(model, policy=POLICY, *, shape=SHAPE, classes=3, limit=0.8):
    """A classifier that needs no fit."""
    kinds = atta.Policy.parse(policy).kinds
    calibrator = ViewBlend(torch.full((len(kinds), 1), 0.7), torch.tensor(limit), kinds=kinds)
    calibrator.classes, calibrator.method = classes, atta.VATTA()
    return CalibratedClassifier(model, calibrator, policy, image_shape=shape)


class Doubtful(Calibrator):
    """Looks at a flip if the network is in doubt, and at two crops if the flip is, too."""

    def __init__(self):
        super().__init__()
        self.kinds, self.classes, self.method = ("flip", "crop"), 3, atta.Vanilla()

    @property
    def stages(self):
        return ("flip",), ("crop",)

    def goes_on(self, logits, views):
        seen = views["flip"][:, 0] if "flip" in views else logits
        return seen.softmax(-1).amax(-1) < 0.8

    def calibrate(self, logits, views):
        base, flip = logits.softmax(-1), views["flip"][:, 0].softmax(-1)
        one = self.goes_on(logits, {})[:, None]
        two = self.goes_on(logits, views)[:, None]
        return torch.where(
            one, torch.where(two, (flip + views["crop"].softmax(-1).mean(1)) / 2, flip), base
        )


class Counting(nn.Module):
    """Counts the images that it is shown."""

    def __init__(self):
        super().__init__()
        self.inner, self.seen = linear(), 0

    def forward(self, images):
        self.seen += images.shape[0]
        return self.inner(images)


class Sums(nn.Module):
    """Says exactly what it was shown: whole numbers, so that no order of summation changes a bit.

    Pixels become multiples of 2⁻²⁴, weighted by their place; the sums are exact in float64.
    """

    def forward(self, images):
        whole = (images.double() * 2**24).round().flatten(1)
        weights = torch.arange(whole.shape[1], dtype=torch.float64) % 7 + 1
        return torch.stack([whole.sum(1), (whole * weights).sum(1), whole.amax(1)], dim=1)


class Scripted(nn.Module):
    """Answers as a function of the images and of how often it was asked says."""

    def __init__(self, answer):
        super().__init__()
        self.answer, self.calls = answer, 0

    def forward(self, images):
        self.calls += 1
        return self.answer(images, self.calls)


class Angry(nn.Module):
    """Gives what it is given, and raises at the n-th call."""

    def __init__(self, at, error=None):
        super().__init__()
        self.calls, self.at, self.error = 0, at, error or RuntimeError("no more")

    def forward(self, answer):
        self.calls += 1
        if self.calls == self.at:
            raise self.error
        return answer


class ChannelMeans(nn.Module):
    """Logits that are easy to predict: the mean of each channel, given as `wrap` says."""

    def __init__(self, wrap=lambda logits: logits):
        super().__init__()
        self.wrap = wrap

    def forward(self, images):
        return self.wrap(images.mean(dim=(2, 3)))


class Own(nn.Module):
    """A network whose code no file can hold."""

    def __init__(self, classes=3, features=192):
        super().__init__()
        self.head = nn.Linear(features, classes)
        self.register_buffer("shift", torch.rand(()))

    def forward(self, images):
        return self.head(images.flatten(1)) + self.shift


def small_network(classes=3, channels=3):
    """Three convolutions, with the same weights every time."""
    torch.manual_seed(0)
    return MODELS["small_cnn"](classes, in_channels=channels)


def vit(**settings):

    small = {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 8,
    }
    config = transformers.ViTConfig(image_size=8, patch_size=4, num_labels=3, **small)
    return transformers.ViTForImageClassification._from_config(config, **settings).eval()


def convnext():

    config = transformers.ConvNextConfig(
        hidden_sizes=[4, 4], depths=[1, 1], num_stages=2, patch_size=2, image_size=8, num_labels=3
    )
    return transformers.ConvNextForImageClassification(config).eval()


REBUILT = {
    "resnet18": lambda: MODELS["resnet18"](3),
    "small_cnn": lambda: MODELS["small_cnn"](3, small_images=False),
    "normalised": lambda: atta.Normalized(MODELS["small_cnn"](3), [0.4, 0.5, 0.6], [0.2, 0.3, 0.1]),
    "vit": vit,
    "vit, eager attention": lambda: vit(attn_implementation="eager"),
    "convnext, normalised": lambda: atta.Normalized(convnext(), [0.5] * 3, [0.5] * 3),
}


def command(*arguments: str, ok: bool = True) -> Result:
    """What a command of the command line did, in this process."""
    from atta.cli.app import commands

    result = CliRunner().invoke(commands, list(arguments))
    if ok:
        assert result.exit_code == 0, (result.output, result.exception)
    return result


# ---- collecting

SEVEN = "flip + 2 crop + 2 brightness + contrast"
LABELS = torch.arange(20) % 3


def twenty(n=20, shape=SHAPE, seed=0):
    """Few enough images to look at one by one."""
    return pixels(n, shape, seed)


def run(images, labels=None, model=None, **settings):
    """Collect seven passes an image."""
    return collect(
        model or Sums(),
        images,
        labels,
        **{"policy": SEVEN, "progress": False, "checks": False} | settings,
    )


def tensors(record):
    return [record.predictions.logits, *record.predictions.views.values()]


def same(a, b):
    labels = (a.labels is None) == (b.labels is None) and (
        a.labels is None or torch.equal(a.labels, b.labels)
    )
    return labels and all(torch.equal(x, y) for x, y in zip(tensors(a), tensors(b), strict=True))


def close(a, b):
    return all(torch.allclose(x, y, atol=1e-5) for x, y in zip(tensors(a), tensors(b), strict=True))


# ---- training

BRIEF = Recipe(steps=12, batch_size=16, peak_lr=0.05)


def stripes(n=64, side=8, seed=0):
    """Two classes that a small network tells apart: dark and light images, with noise."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % 2
    noise = torch.randint(0, 90, (n, 3, side, side), generator=generator)
    return ImageSet(
        "stripes", (noise + 120 * labels[:, None, None, None]).byte(), labels, ("dark", "light")
    )


class StopsAt(nn.Module):
    """A network with dropout whose user presses Ctrl-C in the n-th step; it begins with the same weights every time."""

    def __init__(self, stop_at=None):
        super().__init__()
        torch.manual_seed(3)
        layers = (
            nn.Conv2d(3, 4, 3),
            nn.BatchNorm2d(4),
            nn.Dropout(0.5),
            nn.Flatten(),
            nn.Linear(144, 2),
        )
        self.body, self.stop_at, self.calls = nn.Sequential(*layers), stop_at, 0

    def forward(self, x):
        self.calls += 1
        if self.calls == self.stop_at:
            raise KeyboardInterrupt
        return self.body(x)


# ---- what many tests ask


def notices_flipped_bits(path: Path, read: Callable[[Path], object]) -> None:
    """A file in which any bit has flipped is refused."""
    whole = path.read_bytes()
    for place in range(0, 8 * len(whole), 29):
        spoiled = bytearray(whole)
        spoiled[place // 8] ^= 1 << place % 8
        path.write_bytes(spoiled)
        with pytest.raises(
            atta.InputError, match=r"was changed after it was saved|is not a whole safetensors file"
        ):
            read(path)


def said_to_users(setup: str, expressions: Iterable[str]) -> dict[str, str]:
    """What each expression is refused with in another Python, without the hook of these tests, which looks at types first."""
    script = f"""
import json, sys
{setup}
answers = {{}}
for expression in json.load(sys.stdin):
    try:
        eval(expression)
    except Exception as error:
        answers[expression] = f"{{type(error).__name__}}: {{error}}"
json.dump(answers, sys.stdout)
"""
    command = [sys.executable, "-W", "error", "-c", script]
    done = subprocess.run(
        command, input=json.dumps(list(expressions)), capture_output=True, text=True, check=True
    )
    found: dict[str, str] = json.loads(done.stdout)
    return found


class Answerer(Graph):
    """Answers by a function from images to `answered`, in the place of a graph."""

    def details(self, images: Tensor) -> Details:
        return self.run(images)  # type: ignore[return-value]


def answered(probs: Tensor, base: Tensor, passes: Tensor | None = None) -> Details:
    return Details(probs, probs.amax(dim=1), None, base, passes=passes)
