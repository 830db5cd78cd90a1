"""The supervisor's own log: structlog events as structured journal entries, or as text off systemd.

Only this module talks to journald, and never so that the main loop could wait for it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Mapping, MutableMapping
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, WrappedLogger

from qwen_mtp import loop
from qwen_mtp.messages import BY_NAME

IDENTIFIER = "qwen-mtpd"
"""SYSLOG_IDENTIFIER= of the supervisor's entries."""
SGLANG_IDENTIFIER = "sglang"
"""SYSLOG_IDENTIFIER= of SGLang's lines."""

_PRIORITY = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}
_QUEUE_LENGTH = 1000
_FLUSH_SECONDS = 2.0
_RETRY_SECONDS = 0.5
_MAX_FIELD = 48 * 1024
"""Bytes of a field; a datagram of several such still fits the socket, and no text of ours is so long."""


def journal_connected(environ: Mapping[str, str] | None = None, stream: TextIO | None = None) -> bool:
    """Whether our stderr goes to the journal (systemd.exec(5), JOURNAL_STREAM)."""
    device, _, inode = (os.environ if environ is None else environ).get("JOURNAL_STREAM", "").partition(":")
    try:
        info = os.fstat((stream or sys.stderr).fileno())
    except (OSError, ValueError):
        return False
    return (device, inode) == (str(info.st_dev), str(info.st_ino))


def entry(method: str, event: MutableMapping[str, Any]) -> dict[str, Any]:
    """Turn a structlog event into journal fields.

    `message` becomes MESSAGE=, the event's name QWEN_MTP_EVENT=, every other key QWEN_MTP_<KEY>=. The
    MESSAGE_ID= comes from `messages`, or from `message_id` for a failure.
    """
    name = str(event.pop("event", ""))
    kind = BY_NAME.get(name)
    message = str(event.pop("message", "") or name)
    message_id = event.pop("message_id", None) or (kind.message_id if kind else None)
    fields: dict[str, Any] = {"PRIORITY": _PRIORITY.get(method, 6), "SYSLOG_IDENTIFIER": IDENTIFIER}
    if message_id:
        fields["MESSAGE_ID"] = message_id
    fields["QWEN_MTP_EVENT"] = name
    trace = event.pop("exception", None)
    for key, value in event.items():
        if value is not None and value != "":
            fields[f"QWEN_MTP_{key.upper()}"] = str(value)
    fields["MESSAGE"] = f"{message}\n{trace}" if trace else message
    return fields


def serialize(fields: Mapping[str, Any]) -> bytes:
    """Encode fields in journald's native protocol (systemd.io/JOURNAL_NATIVE_PROTOCOL).

    A value with a line break is preceded by its length, any other follows an equals sign.
    """
    parts = []
    for name, value in fields.items():
        data = str(value).encode("utf-8", "replace")[:_MAX_FIELD]
        if b"\n" in data:
            parts.append(name.encode() + b"\n" + struct.pack("<Q", len(data)) + data + b"\n")
        else:
            parts.append(name.encode() + b"=" + data + b"\n")
    return b"".join(parts)


class JournalSender:
    """Sends entries without ever waiting; while journald takes none, they wait in a bounded queue.

    Not by systemd.journal.send: that blocks while journald is stopped, and holds Python's global lock
    while it does, so that not even a thread would keep the main loop turning (seen with python3-systemd 235).

    Args:
        path: journald's socket.
    """

    def __init__(self, path: str = "/run/systemd/journal/socket") -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 * 2**20)
        self._waiting: deque[bytes] = deque()
        self._dropped = 0
        self._retry: loop.Source | None = None

    def __call__(self, _logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
        """Send an entry: the last processor of structlog's chain."""
        if len(self._waiting) < _QUEUE_LENGTH:
            self._waiting.append(serialize(entry(method, event)))
        else:
            self._dropped += 1
        self._flush()
        raise structlog.DropEvent

    def close(self) -> None:
        """Send what waits, two seconds at most."""
        end = time.monotonic() + _FLUSH_SECONDS
        while self._waiting and time.monotonic() < end:
            self._flush()
            if self._waiting:
                time.sleep(0.05)
        if self._retry:
            self._retry.cancel()
        self._socket.close()

    def _flush(self) -> None:
        while self._waiting:
            try:
                self._socket.sendto(self._waiting[0], self._path)
            except OSError:
                # Full, or journald is being restarted. A datagram socket tells no one when there is room again.
                if self._retry is None:
                    self._retry = loop.every(_RETRY_SECONDS, self._try_again)
                return
            self._waiting.popleft()
        if self._dropped:
            lost: EventDict = {"event": "journal-events-dropped", "message": f"{self._dropped} events were lost"}
            self._dropped = 0
            self._waiting.append(serialize(entry("warning", lost)))
            self._flush()

    def _try_again(self) -> bool:
        self._flush()
        if self._waiting:
            return True
        self._retry = None
        return False


def _console(_logger: WrappedLogger, method: str, event: EventDict) -> str:
    fields = entry(method, event)
    return f"qwen-mtpd: {method}: {fields['MESSAGE']}" if method != "info" else f"qwen-mtpd: {fields['MESSAGE']}"


def configure(level: str = "info", stream: TextIO | None = None) -> JournalSender | None:
    """Set structlog up for this process.

    Args:
        level: the least level that is logged.
        stream: where text goes when stderr is not the journal; stderr by default.

    Returns:
        The sender to close at the end, or None when text is written.
    """
    sender = JournalSender() if journal_connected() else None
    output = stream or sys.stderr
    structlog.configure(
        processors=[structlog.processors.format_exc_info, sender or _console],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.WriteLoggerFactory(output),
        cache_logger_on_first_use=False,
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)
    return sender


def sglang_sink() -> int:
    """Open the descriptor that SGLang's lines are written to.

    A journal stream of its own: under the identifier "sglang", without the `<N>` prefix of
    sd-daemon(3) being cut off, and non-blocking without changing our stdout. Off the journal it is
    a copy of stdout.
    """
    if journal_connected():
        from systemd import journal

        stream = journal.stream(SGLANG_IDENTIFIER, level_prefix=False)
        fd = os.dup(stream.fileno())
        stream.close()
    else:
        fd = os.dup(1)
    os.set_blocking(fd, False)
    return fd
