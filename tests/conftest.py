"""What the tests share: made-up predictions, and the data root where there is one."""

import os

os.environ["COLUMNS"] = "160"  # tables as wide as on a screen, whatever started the tests

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision_operators
from hypothesis import settings

from atta import Record
from atta.metrics.resampling import Resamples
from scenarios import made_up, twenty

beside = str(Path(torchvision_operators.__file__).parent)
if beside not in (
    path := os.environ.get("PYTHONPATH", "").split(os.pathsep)
):  # that of the processes that tests start
    os.environ["PYTHONPATH"] = os.pathsep.join([beside, *filter(None, path)])
torch.set_num_threads(1)  # two workers on two cores
os.fsync = lambda file: (
    None
)  # nobody cuts the power of the tests, and thousands of files wait for the disk otherwise

settings.register_profile("brief", max_examples=40)  # of each law; the suite runs often
settings.load_profile("brief")


collect_ignore = ["beside"]  # It is imported once: twice, it would define its operators twice.


def pytest_configure(config: pytest.Config) -> None:
    """Toy data look wrong: few images, at chance or all right. Tests of the advice ask for it by pytest.warns."""
    config.addinivalue_line("filterwarnings", "ignore::atta._base.errors.Advice")


@pytest.fixture
def record() -> Record:
    return made_up()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Twenty image files in folders of three classes."""
    from PIL import Image

    for i, image in enumerate(twenty()):
        path = tmp_path / "images" / "abc"[i // 7] / f"{i:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(path)
    return tmp_path / "images"


@pytest.fixture(scope="module")
def few_resamples() -> Iterator[None]:
    """Twenty resamples where experiments take two thousand, for tests that are not about intervals."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("atta.lab.run.Resamples", partial(Resamples, count=20))
        yield


@pytest.fixture(scope="session")
def data_root() -> Path:
    root = os.environ.get("ATTA_DATA")
    if not root:
        pytest.skip("ATTA_DATA is not set: no real data on this machine")
    return Path(root)


@pytest.fixture(scope="session")
def torchvision() -> Any:
    """Torchvision, where it is installed; `beside` lets it import where it is of another build than torch."""
    return pytest.importorskip("torchvision", reason="torchvision is not installed")
