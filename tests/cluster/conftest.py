"""One deployment for the tests that leave it as they found it; every test here starts processes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.deployment import Deployment, deployed, deployed_on_ray


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks everything in this folder."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="module")
def deployment() -> Iterator[Deployment]:
    """A running `segue serve`."""
    with deployed() as running:
        yield running


@pytest.fixture(scope="session")
def on_ray() -> Iterator[Deployment]:
    """A running `segue serve` under Ray; there is one for all tests, because Ray takes its time to start."""
    with deployed_on_ray() as running:
        yield running
