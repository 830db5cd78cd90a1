from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from qwen_mtp.relay import Relay, Sink

from .looping import turn, turn_until


class Pipes:
    """SGLang's pipe in front of a relay, the journal's behind it."""

    def __init__(self) -> None:
        self.out, self.child = os.pipe()
        self.journal, self.sink = os.pipe()
        for fd in (self.out, self.sink, self.journal):
            os.set_blocking(fd, False)
        self.to_journal = Sink(self.sink)
        self.relays: list[Relay] = []
        self.lines: list[str] = []
        self.written = b""

    def relay(self, *secrets: bytes) -> Relay:
        made = Relay(self.out, self.to_journal, secrets, self.lines.extend, time.monotonic)
        self.relays.append(made)
        return made

    def read(self) -> bytes:
        try:
            while data := os.read(self.journal, 1 << 20):
                self.written += data
        except BlockingIOError:
            pass
        return self.written

    def close(self) -> None:
        for relay in self.relays:
            relay.finish()
        self.to_journal.close(0.0)
        for fd in (self.out, self.child, self.journal):
            try:
                os.close(fd)
            except OSError:  # closed by the test
                continue


@pytest.fixture
def pipes() -> Iterator[Pipes]:
    made = Pipes()
    yield made
    made.close()


def test_bytes_are_forwarded_before_the_line_is_complete(pipes: Pipes) -> None:
    relay = pipes.relay()
    os.write(pipes.child, b"half a line \x00\xff")
    turn_until(lambda: pipes.read() == b"half a line \x00\xff")
    assert pipes.lines == []
    os.write(pipes.child, b" and the rest\n")
    turn_until(lambda: pipes.lines == ["half a line \x00� and the rest"])
    relay.finish()


def test_a_stopped_journal_stops_the_reading_and_not_the_loop(pipes: Pipes) -> None:
    pipes.relay()
    os.set_blocking(pipes.child, False)
    sent = 0
    line = b"x" * 99 + b"\n"
    for _ in range(200):
        with contextlib.suppress(BlockingIOError):
            sent += os.write(pipes.child, line * 500)
        turn(0.005)
    # The child's pipe is full: it was told to wait, and nothing piles up in the relay.
    with pytest.raises(BlockingIOError):
        os.write(pipes.child, line * 500)
    assert len(pipes.to_journal._unwritten) <= 128 * 1024
    turn_until(lambda: len(pipes.read()) == sent)
    assert pipes.written == (line * (sent // 100 + 1))[:sent]
    assert pipes.lines == ["x" * 99] * (sent // 100)


def test_what_a_dead_child_left_is_written_when_the_journal_is_back(pipes: Pipes) -> None:
    relay = pipes.relay()
    for _ in range(30):
        with contextlib.suppress(BlockingIOError):
            os.set_blocking(pipes.child, False)
            os.write(pipes.child, b"x" * 4095 + b"\n")
        turn(0.001)
    relay.finish()
    pipes.relays.clear()
    assert pipes.to_journal.blocked
    turn_until(lambda: len(pipes.read()) == 30 * 4096)
    assert not pipes.to_journal.blocked


def test_finish_takes_what_is_left_also_from_a_pipe_that_is_still_open(pipes: Pipes) -> None:
    relay = pipes.relay()
    os.write(pipes.child, b"last words\n\r1/2\r2/2")
    relay.finish()
    assert pipes.read() == b"last words\n1/2\n2/2\n"
    assert pipes.lines == ["last words", "", "\r1/2", "\r2/2"]


def test_a_secret_reaches_neither_the_journal_nor_the_grammar(pipes: Pipes) -> None:
    relay = pipes.relay(b"very-secret-key")
    os.write(pipes.child, b"server_args={'api_key': 'very-sec")
    turn(0.05)
    os.write(pipes.child, b"ret-key', 'port': 1}\nvery-")
    turn(0.05)
    relay.finish()
    assert pipes.read() == b"server_args={'api_key': '[masked]', 'port': 1}\nvery-\n"
    assert pipes.lines == ["server_args={'api_key': '[masked]', 'port': 1}", "very-"]


def test_a_journal_that_is_gone_is_said_once_and_reading_goes_on(pipes: Pipes) -> None:
    relay = pipes.relay()
    os.close(pipes.journal)
    with capture_logs() as logs:
        for _ in range(3):
            os.write(pipes.child, b"line\n")
            turn(0.02)
        relay.finish()
    assert [entry["event"] for entry in logs] == ["journal-unwritable"]
    assert pipes.lines == ["line"] * 3


def test_the_end_of_the_pipe_is_noticed(pipes: Pipes) -> None:
    relay = pipes.relay()
    os.write(pipes.child, b"bye")
    os.close(pipes.child)
    turn_until(lambda: relay._at_end)
    relay.finish()
    assert pipes.read() == b"bye\n"
