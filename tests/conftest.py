"""What the tests share: made-up predictions, and the data root where there is one."""

import copy
import os
from functools import cache

os.environ["COLUMNS"] = "160"  # tables as wide as on a screen, whatever started the tests

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import settings

from atta import Predictions, Record

if TYPE_CHECKING:
    from atta import CalibratedClassifier

torch.set_num_threads(1)  # two workers on two cores

settings.register_profile("brief", max_examples=40)  # of each law; the suite runs often
settings.load_profile("brief")


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


@cache
def _fitted() -> "CalibratedClassifier":
    from atta import VATTA, CalibratedClassifier
    from atta.calibrating import summarise
    from atta.networks import small_cnn

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


@pytest.fixture
def record() -> Record:
    return made_up()


@pytest.fixture(scope="session")
def data_root() -> Path:
    root = os.environ.get("ATTA_DATA")
    if not root:
        pytest.skip("ATTA_DATA is not set: no real data on this machine")
    return Path(root)
