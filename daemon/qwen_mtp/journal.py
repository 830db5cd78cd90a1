"""The supervisor's own log: structlog events as structured journal entries, or as text off systemd.

Only this module talks to journald. Entries go out on a thread with a bounded queue, because
sd_journal_send blocks while journald is stopped, and the main loop must not.
"""

from __future__ import annotations

import logging
import os
import queue
import sys
import threading
from collections.abc import Mapping, MutableMapping
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, WrappedLogger

from qwen_mtp.messages import BY_NAME

IDENTIFIER = "qwen-mtpd"
"""SYSLOG_IDENTIFIER= of the supervisor's entries."""
SGLANG_IDENTIFIER = "sglang"
"""SYSLOG_IDENTIFIER= of SGLang's lines."""

_PRIORITY = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}
_QUEUE_LENGTH = 1000
_FLUSH_SECONDS = 2.0


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


class JournalSender:
    """Sends entries on a thread of its own; a full queue drops entries and counts them."""

    def __init__(self) -> None:
        self._queue: queue.Queue[dict[str, Any] | None] = queue.Queue(_QUEUE_LENGTH)
        self._dropped = 0
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    def __call__(self, _logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
        """Queue an entry: the last processor of structlog's chain."""
        try:
            self._queue.put_nowait(entry(method, event))
        except queue.Full:
            self._dropped += 1
        raise structlog.DropEvent

    def close(self) -> None:
        """Wait until the queue is sent, two seconds at most."""
        try:
            self._queue.put(None, timeout=_FLUSH_SECONDS)
        except queue.Full:
            return
        self._thread.join(_FLUSH_SECONDS)

    def _run(self) -> None:
        from systemd import journal  # not needed off systemd

        while (fields := self._queue.get()) is not None:
            dropped, self._dropped = self._dropped, 0
            if dropped:
                lost: EventDict = {
                    "event": "journal-events-dropped",
                    "message": f"{dropped} events were lost",
                }
                journal.send(**entry("warning", lost))
            # Named, because else they would name this module for every entry.
            journal.send(**fields, CODE_FILE=None, CODE_LINE=None, CODE_FUNC=None)


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
