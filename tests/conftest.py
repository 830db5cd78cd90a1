from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

RECORDINGS = Path(__file__).parent / "recordings"


def pytest_configure() -> None:
    """Clean up on SIGTERM as on Ctrl-C: ./dev sends it, and a time limit too."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def _children() -> set[int]:
    found = set()
    for task in os.listdir("/proc/self/task"):
        try:
            found |= {int(pid) for pid in Path(f"/proc/self/task/{task}/children").read_text().split()}
        except OSError:
            continue
    return found


@pytest.fixture(autouse=True)
def no_child_is_left() -> Iterator[None]:
    """Fail a test that leaves a process behind."""
    before = _children()
    yield
    left = _children() - before
    names = {pid: Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ") for pid in left}
    assert not left, f"left behind: {names}"


@pytest.fixture
def recordings() -> Path:
    return RECORDINGS
