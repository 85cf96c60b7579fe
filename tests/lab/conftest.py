"""What the tests of images share."""

import datasets as hf
import pytest


@pytest.fixture
def apart(monkeypatch, tmp_path_factory):
    """No data of this machine's, and a cache of the tests' own."""
    monkeypatch.delenv("ATTA_DATA", raising=False)
    monkeypatch.setattr(hf.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
