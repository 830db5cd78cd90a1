from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from qwen_mtp.command import Endpoint
from qwen_mtp.containment import DescendantContainment
from qwen_mtp.job import Job
from qwen_mtp.readiness import Readiness
from qwen_mtp.settings import make
from tests.integration.looping import turn, turn_until

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


@pytest.fixture
def hung() -> Iterator[socket.socket]:
    """A server that takes connections, as the kernel does for it, and answers none."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as sock:
        sock.setblocking(False)
        yield sock


def taken(server: socket.socket) -> list[socket.socket]:
    """The connections since the last call."""
    found = []
    while True:
        try:
            found.append(server.accept()[0])
        except BlockingIOError:
            return found


def test_a_hung_server_is_asked_one_question_at_a_time(hung: socket.socket) -> None:
    changes: list[bool] = []
    host, port = hung.getsockname()
    job = Job((), os.environ, "/", Endpoint(host, host, port))
    settings = make({"health-interval": 0.02, "health-timeout": 0.3, "health-failures": 2}, {})
    readiness = Readiness(job, settings, DescendantContainment(), lambda: None, lambda ok, _: changes.append(ok))
    readiness.watch()
    turn_until(lambda: changes == [False])
    assert taken(hung)
    readiness.stop()
    turn(1.0)
    late = taken(hung)
    assert len(late) <= 1, "questions had piled up behind the hung one"

    readiness.watch()
    answered: list[socket.socket] = []

    def good_again() -> bool:
        for connection in taken(hung):
            connection.sendall(OK)
            answered.append(connection)
        return len(answered) >= 3

    turn_until(good_again)
    readiness.close()
    for connection in late + answered:
        connection.close()
