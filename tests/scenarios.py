"""The toy data of all tests: made-up predictions, small networks, and classifiers that need no fit."""

import copy
import json
from functools import cache
from typing import Any

import numpy as np
import torch
import transformers
from hypothesis import strategies as st
from torch import nn

import atta
from atta import Predictions, Record
from atta.calibrators import Calibrator, ViewBlend
from atta.deploy.classifier import CalibratedClassifier
from atta.networks.adapters import MODELS
from atta.results.rows import Results, Row

POLICY = "flip + 2 crop"
SHAPE = (3, 8, 8)


def made_up(
    n: int = 300, k: int = 5, *, seed: int = 0, dtype: torch.dtype = torch.float32, labels: int | None = None
) -> Record:
    """An over-confident classifier with four kinds of view, right on about four images of five."""
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randint(labels or k, (n,), generator=generator)
    clean = torch.randn(n, k, generator=generator, dtype=dtype)
    clean[torch.arange(n), truth] += 2.5

    def look(repeats: int) -> torch.Tensor:
        return 2.5 * (clean[:, None] + 0.7 * torch.randn(n, repeats, k, generator=generator, dtype=dtype))

    views = {"flip": look(1), "crop": look(3), "brightness": look(2), "contrast": look(2)}
    return Record(Predictions(look(1)[:, 0], views), truth, {"dataset": "made up"})


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
        "views": {**detail["views"], "weights": draw.normal(size=(len(detail["views"]["kinds"]), count)).tolist()},
        "per_class": {
            "names": names,
            "counts": [10 if there else 0 for there in known],
            **{name: [draw.random() if there else None for there in known] for name in ("confidence", "accuracy")},
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
    from atta.deploy.calibrate import summarise
    from atta.networks.resnet import small_cnn

    record = made_up(60)
    record = Record(record.predictions.take({"flip": 1, "brightness": 2}), record.labels)
    calibrator = VATTA().fit(record.predictions, record.require_labels())
    torch.manual_seed(0)
    classifier = CalibratedClassifier(small_cnn(5), calibrator, "flip + 2 brightness", image_shape=(3, 8, 8))
    classifier.summary = summarise(classifier, record, calibrator(record.predictions), [])
    return classifier


def made_classifier(*, names: tuple[str, ...] = (), summary: bool = True) -> "CalibratedClassifier":
    """A small network on 3 x 8 x 8 images, calibrated on made-up predictions of five classes."""
    classifier = copy.deepcopy(_fitted())
    classifier.class_names = names
    if not summary:
        classifier.summary = None
    return classifier


def pixels(n=60, shape=SHAPE, seed=0):
    return torch.randint(0, 256, (n, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def linear(classes=3, shape=SHAPE, scale=8.0):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), classes))
    with torch.no_grad():
        network[1].weight *= scale
    return network.eval()


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
        return torch.where(one, torch.where(two, (flip + views["crop"].softmax(-1).mean(1)) / 2, flip), base)


class Counting(nn.Module):
    """Counts the images that it is shown."""

    def __init__(self):
        super().__init__()
        self.inner, self.seen = linear(), 0

    def forward(self, images):
        self.seen += images.shape[0]
        return self.inner(images)


class Own(nn.Module):
    """A network whose code no file can hold."""

    def __init__(self, classes=3, features=192):
        super().__init__()
        self.head = nn.Linear(features, classes)
        self.register_buffer("shift", torch.rand(()))

    def forward(self, images):
        return self.head(images.flatten(1)) + self.shift


def vit(**settings):
    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
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
