"""A network and a classifier that the tests of this room share and leave as they are."""

import pytest

import atta
from scenarios import POLICY, linear, mostly_right, pixels


@pytest.fixture(scope="session")
def network():
    return linear()


@pytest.fixture(scope="session")
def labels(network):
    return mostly_right(network)


@pytest.fixture(scope="session")
def fitted(network, labels):
    return atta.calibrate(network, pixels(), labels, policy=POLICY, progress=False)
