from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator

import pytest

from qwen_mtp.ports import bind_error, listener


@pytest.fixture(params=[("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6), ("0.0.0.0", socket.AF_INET)])
def server(request: pytest.FixtureRequest) -> Iterator[tuple[str, socket.socket]]:
    host, family = request.param
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        try:
            sock.bind((host, 0))
        except OSError:
            pytest.fail(f"this machine has no {host}")
        sock.listen()
        yield host, sock


def test_the_listener_is_found_among_the_pids(server: tuple[str, socket.socket]) -> None:
    port = server[1].getsockname()[1]
    assert listener(port, [1, os.getpid()]) == os.getpid()


def test_a_listener_that_is_none_of_the_pids_does_not_count(server: tuple[str, socket.socket]) -> None:
    assert listener(server[1].getsockname()[1], [1]) is None


def test_a_port_that_is_only_connected_from_is_no_listener(server: tuple[str, socket.socket]) -> None:
    host, sock = server
    with socket.create_connection((host, sock.getsockname()[1])) as client:
        assert listener(client.getsockname()[1], [os.getpid()]) is None


def test_a_taken_port_is_seen_before_the_launch(server: tuple[str, socket.socket]) -> None:
    host, sock = server
    error = bind_error(host, sock.getsockname()[1])
    assert error is not None
    assert error.errno == errno.EADDRINUSE


def test_a_free_port_stays_free() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    assert bind_error("127.0.0.1", port) is None
    assert bind_error("127.0.0.1", port) is None


def test_a_port_in_time_wait_counts_as_free_as_it_does_for_uvicorn() -> None:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        port = sock.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        accepted, _ = sock.accept()
        accepted.close()  # the server closes first: its end is left in TIME_WAIT
        client.close()
    assert bind_error("127.0.0.1", port) is None


def test_an_address_of_another_machine() -> None:
    error = bind_error("192.0.2.1", 30000)  # TEST-NET-1, RFC 5737
    assert error is not None
    assert error.errno == errno.EADDRNOTAVAIL


def test_a_name_that_does_not_resolve() -> None:
    error = bind_error("no-such-host.invalid", 30000)
    assert error is not None
    assert error.errno == errno.EADDRNOTAVAIL
