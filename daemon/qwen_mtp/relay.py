"""SGLang's output on its way to the journal: forward first, read second."""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Sequence

import structlog

from qwen_mtp.lines import Forwarder, LineCutter, Masker
from qwen_mtp.loop import IN, OUT, Source, on_fd

_READ_BYTES = 128 * 1024
_LAST_READS = 64
"""Reads that `finish` does at most, 8 MiB: all that a dead SGLang can have left in the pipe."""


class Sink:
    """Where SGLang's output goes; lives as long as the daemon, so that no launch's last bytes are lost.

    Args:
        fd: non-blocking descriptor to write to.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._unwritten = b""
        self._broken = False
        self._writing: Source | None = None
        self.on_free: Callable[[], None] = lambda: None
        """Called when everything is written after the sink was `blocked`."""

    @property
    def blocked(self) -> bool:
        """Whether bytes wait for the other side; whoever writes should stop until `on_free`."""
        return bool(self._unwritten)

    def write(self, data: bytes) -> None:
        """Write now what goes, the rest as soon as it goes."""
        self._unwritten = self._unwritten + data if self._unwritten else data
        self._drain()
        if self._unwritten and self._writing is None:
            self._writing = on_fd(self._fd, OUT, self._writable)

    def close(self, seconds: float) -> None:
        """Write what is left, waiting no longer than this; what cannot be written is counted in the log."""
        if self._writing:
            self._writing.cancel()
            self._writing = None
        if self._unwritten and select.select([], [self._fd], [], seconds)[1]:
            self._drain()
        if self._unwritten:
            structlog.get_logger().warning(
                "output-lost", message=f"{len(self._unwritten)} bytes of SGLang's output could not be written"
            )
        os.close(self._fd)

    def _writable(self) -> bool:
        self._drain()
        if self._unwritten:
            return True
        self._writing = None
        self.on_free()
        return False

    def _drain(self) -> None:
        while self._unwritten:
            try:
                written = os.write(self._fd, self._unwritten)
            except BlockingIOError:
                return
            except OSError as error:
                if not self._broken:
                    self._broken = True
                    structlog.get_logger().error(
                        "journal-unwritable", message=f"SGLang's output cannot be written any more: {error}"
                    )
                self._unwritten = b""
                return
            self._unwritten = self._unwritten[written:]


class Relay:
    """Copies a pipe to the sink and hands the lines on.

    While the sink takes nothing (journald is stopped), the pipe is not read: memory stays bounded, the
    loop keeps turning, and SGLang waits at its own writes, as it would without us.

    Args:
        source: non-blocking read end of SGLang's pipe; owned by the caller.
        sink: where the bytes go.
        secrets: byte strings to mask.
        on_lines: gets each batch of lines, after their bytes were written.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        source: int,
        sink: Sink,
        secrets: Sequence[bytes],
        on_lines: Callable[[list[str]], None],
        clock: Callable[[], float],
    ) -> None:
        self._source_fd = source
        self._sink = sink
        self._masker = Masker(secrets)
        self._forwarder = Forwarder()
        self._cutter = LineCutter()
        self._on_lines = on_lines
        self._clock = clock
        self._at_end = False
        self._reading: Source | None = None
        sink.on_free = self._resume
        self._resume()

    def finish(self) -> None:
        """Stop: take what is still in the pipe, and hand on the last lines.

        To be called when SGLang has ended. A process that still holds the pipe open does not keep this
        waiting.
        """
        self._sink.on_free = lambda: None
        self._pause()
        for _ in range(_LAST_READS):
            if not self._read_once():
                break
        held, now = self._masker.flush(), self._clock()
        self._sink.write(self._forwarder.feed(held, now) + self._forwarder.flush(now))
        self._hand_on(self._cutter.feed(held) + self._cutter.flush())

    def _resume(self) -> None:
        if not self._at_end and self._reading is None and not self._sink.blocked:
            self._reading = on_fd(self._source_fd, IN, self._readable)

    def _pause(self) -> None:
        if self._reading:
            self._reading.cancel()
            self._reading = None

    def _readable(self) -> None:
        self._read_once()
        if self._at_end or self._sink.blocked:
            self._pause()

    def _read_once(self) -> bool:
        """Move one block; returns whether more may be there."""
        try:
            data = os.read(self._source_fd, _READ_BYTES)
        except BlockingIOError:
            return False
        except OSError as error:
            structlog.get_logger().error("output-unreadable", message=f"SGLang's output cannot be read: {error}")
            data = b""
        if not data:
            self._at_end = True
            return False
        drained = len(data) < _READ_BYTES
        data = self._masker.feed(data)
        self._sink.write(self._forwarder.feed(data, self._clock(), drained))
        self._hand_on(self._cutter.feed(data, drained))
        return True

    def _hand_on(self, lines: list[str]) -> None:
        if lines:
            self._on_lines(lines)
