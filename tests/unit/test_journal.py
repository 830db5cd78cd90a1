from __future__ import annotations

import contextlib
import io
import os
import re
import socket
import tempfile
from pathlib import Path

import pytest
import structlog

from qwen_mtp import journal
from qwen_mtp.messages import BY_NAME, EVENTS


def test_event_kinds_have_distinct_names_and_message_ids() -> None:
    assert len({kind.name for kind in EVENTS}) == len({kind.message_id for kind in EVENTS}) == len(EVENTS)
    for kind in EVENTS:
        assert re.fullmatch(r"[0-9a-f]{32}", kind.message_id)
        assert re.fullmatch(r"[a-z-]+", kind.name)
        assert kind.subject
        assert kind.text.strip()


def test_an_event_becomes_journal_fields() -> None:
    fields = journal.entry("warning", {"event": "ready", "message": "up", "seconds": 3.5, "empty": "", "none": None})
    assert fields == {
        "MESSAGE": "up",
        "MESSAGE_ID": BY_NAME["ready"].message_id,
        "PRIORITY": 4,
        "SYSLOG_IDENTIFIER": "qwen-mtpd",
        "QWEN_MTP_EVENT": "ready",
        "QWEN_MTP_SECONDS": "3.5",
    }


def test_a_failure_brings_its_own_message_id() -> None:
    assert journal.entry("error", {"event": "failure-diagnosed", "message_id": "0" * 32})["MESSAGE_ID"] == "0" * 32


def test_an_unknown_event_without_message_shows_its_name() -> None:
    fields = journal.entry("info", {"event": "something-new"})
    assert fields["MESSAGE"] == "something-new"
    assert "MESSAGE_ID" not in fields


def test_a_traceback_follows_the_message() -> None:
    fields = journal.entry("error", {"event": "internal-error", "message": "broken", "exception": "Traceback…"})
    assert fields["MESSAGE"] == "broken\nTraceback…"


def test_the_journal_is_recognised_by_device_and_inode() -> None:
    with tempfile.TemporaryFile("w") as stream:
        info = os.fstat(stream.fileno())
        assert journal.journal_connected({"JOURNAL_STREAM": f"{info.st_dev}:{info.st_ino}"}, stream)
        assert not journal.journal_connected({"JOURNAL_STREAM": f"{info.st_dev}:1"}, stream)
        assert not journal.journal_connected({"JOURNAL_STREAM": "nonsense"}, stream)
        assert not journal.journal_connected({}, stream)


def test_a_stream_without_descriptor_is_no_journal() -> None:
    assert not journal.journal_connected({"JOURNAL_STREAM": "1:2"}, io.StringIO())


@pytest.fixture
def _restore() -> object:
    yield
    structlog.reset_defaults()


@pytest.mark.usefixtures("_restore")
def test_off_the_journal_events_are_lines_of_text() -> None:
    output = io.StringIO()
    assert journal.configure("info", output) is None
    log = structlog.get_logger()
    log.debug("hidden", message="not shown")
    log.info("ready", message="up")
    log.error("failure-diagnosed", message="down")
    assert output.getvalue() == "qwen-mtpd: up\nqwen-mtpd: error: down\n"


def test_entries_are_encoded_as_journald_reads_them() -> None:
    data = journal.serialize({"MESSAGE": "one\ntwo", "PRIORITY": 6, "X": "ü"})
    assert data == b"MESSAGE\n" + (7).to_bytes(8, "little") + b"one\ntwo\nPRIORITY=6\nX=\xc3\xbc\n"


def test_a_journal_that_takes_nothing_makes_nobody_wait_and_loses_are_counted(tmp_path: Path) -> None:
    path = str(tmp_path / "journal")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(path)
        sender = journal.JournalSender(path)
        for n in range(3000):
            with pytest.raises(structlog.DropEvent):
                sender(None, "info", {"event": "ready", "message": f"entry {n}"})
        assert sender._dropped > 0
        receiver.setblocking(False)
        received = []
        while sender._waiting or sender._dropped:
            with contextlib.suppress(BlockingIOError):
                while True:
                    received.append(receiver.recv(65536))
            sender._flush()
        with contextlib.suppress(BlockingIOError):
            while True:
                received.append(receiver.recv(65536))
        sender.close()
    assert received[0].startswith(b"PRIORITY=6\n")
    assert b"MESSAGE=entry 999\n" in b"".join(received)
    assert b"events were lost" in received[-1]
