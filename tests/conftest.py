"""What the tests share: made-up predictions, and the data root where there is one."""

import os

os.environ["COLUMNS"] = "160"  # tables as wide as on a screen, whatever started the tests

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import settings

from atta import Record
from scenarios import made_up

if TYPE_CHECKING:
    pass

torch.set_num_threads(1)  # two workers on two cores

settings.register_profile("brief", max_examples=40)  # of each law; the suite runs often
settings.load_profile("brief")


@pytest.fixture
def record() -> Record:
    return made_up()


@pytest.fixture(scope="session")
def data_root() -> Path:
    root = os.environ.get("ATTA_DATA")
    if not root:
        pytest.skip("ATTA_DATA is not set: no real data on this machine")
    return Path(root)
