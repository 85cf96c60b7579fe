"""The results that the figures show."""

from typing import Any

import pytest

from atta import VATTA, TemperatureScaling, Vanilla
from atta.lab.compare import compare
from atta.results.rows import Results
from scenarios import made_up


@pytest.fixture(scope="session")
def results() -> Results:
    methods = [Vanilla(), TemperatureScaling(), VATTA(optimizer="adam", epochs=20)]
    return compare({"made up": made_up(400, seed=3)}, methods, validation=100, splits=3)


@pytest.fixture(scope="session")
def detail(results: Results) -> dict[str, Any]:
    return dict(next(d for d in results.details if d["method"] == "v-atta"))
