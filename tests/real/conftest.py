from __future__ import annotations

import pytest

from .environment import Environment, ensure


@pytest.fixture(scope="session")
def environment() -> Environment:
    return ensure()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/real/" in item.nodeid:
            item.add_marker(pytest.mark.real)
