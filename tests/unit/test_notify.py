from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from qwen_mtp.notify import MAX_STATUS, Notifier, clean


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The service manager's end of the notify socket."""
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(path))
        sock.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", str(path))
        yield sock


def received(manager: socket.socket) -> list[str]:
    return manager.recv(65536).decode("utf-8").splitlines()


def test_status_arrives_as_utf_8(manager: socket.socket) -> None:
    Notifier().status("Gewichte für /modelle/Qwen – 7/15 → bald")
    assert received(manager) == ["STATUS=Gewichte für /modelle/Qwen – 7/15 → bald"]


def test_ready_and_reloading(manager: socket.socket) -> None:
    notifier = Notifier()
    notifier.ready("up")
    assert received(manager) == ["READY=1", "STATUS=up"]
    notifier.reloading("down")
    first, usec, status = received(manager)
    assert (first, status) == ("RELOADING=1", "STATUS=down")
    assert int(usec.removeprefix("MONOTONIC_USEC=")) > 0


def test_extension_is_in_microseconds_and_at_least_a_second(manager: socket.socket) -> None:
    notifier = Notifier()
    notifier.extend(2.5)
    assert received(manager) == ["EXTEND_TIMEOUT_USEC=2500000"]
    notifier.extend(0)
    assert received(manager) == ["EXTEND_TIMEOUT_USEC=1000000"]


def test_a_status_of_several_lines_cannot_inject_an_assignment(manager: socket.socket) -> None:
    Notifier().status("bad\nREADY=1\x1b[31m")
    assert received(manager) == ["STATUS=bad READY=1 [31m"]


def test_clean_keeps_it_on_one_short_line() -> None:
    assert clean("a\n\tb\x00c  d") == "a b c d"
    long = clean("x" * 1000)
    assert len(long) == MAX_STATUS
    assert long.endswith("…")


def test_nothing_is_sent_off_systemd(manager: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET")
    Notifier().ready("up")
    manager.setblocking(False)
    with pytest.raises(BlockingIOError):
        manager.recv(10)


def test_a_notify_socket_that_is_not_there_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "none"))
    Notifier().ready("up")


@pytest.mark.parametrize(
    ("env", "seconds"),
    [
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 15.0),
        ({"WATCHDOG_USEC": "30000000"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, 0.0),
        ({"WATCHDOG_USEC": "soon"}, 0.0),
        ({}, 0.0),
    ],
)
def test_watchdog_interval(env: dict[str, str], seconds: float) -> None:
    assert Notifier(env).watchdog_interval == seconds
