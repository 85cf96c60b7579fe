"""What the tests share: made-up predictions, and the data root where there is one."""

import os

os.environ["COLUMNS"] = "160"  # tables as wide as on a screen, whatever started the tests

from pathlib import Path

import pytest
import torch

from atta import Predictions, Record

torch.set_num_threads(1)  # two workers on two cores


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


@pytest.fixture
def record() -> Record:
    return made_up()


@pytest.fixture(scope="session")
def data_root() -> Path:
    root = os.environ.get("ATTA_DATA")
    if not root:
        pytest.skip("ATTA_DATA is not set: no real data on this machine")
    return Path(root)
