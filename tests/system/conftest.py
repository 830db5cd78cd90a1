from __future__ import annotations

from collections.abc import Iterator

import pytest

from .box import Box, booted, package
from .service import WANTED, Service


@pytest.fixture(scope="session", params=WANTED)
def box(request: pytest.FixtureRequest) -> Iterator[Box]:
    """A booted container of each suite, with nothing of ours in it."""
    with booted(request.param) as container:
        yield container


@pytest.fixture(scope="session")
def installed(box: Box) -> Box:
    """The same container with the package installed."""
    box.install(package())
    return box


@pytest.fixture
def service(installed: Box) -> Iterator[Service]:
    """The service, stopped and without configuration of its own before and after."""
    made = Service(installed)
    made.reset()
    yield made
    made.reset()
