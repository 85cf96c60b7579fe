"""The results that the pages show."""

import pytest

from atta import find_method
from atta.lab.compare import compare
from atta.results.rows import Results
from scenarios import made_up

METHODS = ("vanilla", "temperature", "isotonic", "mean-tta", "adaptive-tta")


@pytest.fixture(scope="session")
def results() -> Results:
    return compare(
        {"made up": made_up(400)}, [find_method(name) for name in METHODS], validation=100, splits=3
    )


@pytest.fixture(scope="session")
def two(results: Results) -> Results:
    """Of two methods alone: most of a page is drawn once for each."""
    return results.where(method=("vanilla", "adaptive-tta"))
