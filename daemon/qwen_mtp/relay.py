"""SGLang's output on its way to the journal: forward first, read second."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import structlog

from qwen_mtp.lines import Forwarder, LineCutter, Masker
from qwen_mtp.loop import IN, OUT, Source, on_fd

_READ_BYTES = 128 * 1024
_DRAIN_READS = 4096
"""Reads that `finish` does at most: what a dead SGLang left in the pipe, but not an endless flood."""


class Relay:
    """Copies a pipe to the journal and hands the lines on.

    While the sink takes nothing (journald is stopped), the pipe is not read: memory stays bounded, the
    loop keeps turning, and SGLang waits at its own writes, as it would without us.

    Args:
        source: non-blocking read end of SGLang's pipe; owned by the caller.
        sink: non-blocking descriptor to write to; owned by the caller.
        secrets: byte strings to mask.
        on_lines: gets each batch of lines, after their bytes were written.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        source: int,
        sink: int,
        secrets: Sequence[bytes],
        on_lines: Callable[[list[str]], None],
        clock: Callable[[], float],
    ) -> None:
        self._source_fd = source
        self._sink_fd = sink
        self._forwarder = Forwarder()
        self._cutter = LineCutter()
        self._masker = Masker(secrets)
        self._on_lines = on_lines
        self._clock = clock
        self._unwritten = b""
        self._sink_broken = False
        self.at_end = False
        """Whether every process that could write has closed the pipe."""
        self.bytes_read = 0
        self._reading: Source | None = on_fd(source, IN, self._readable)
        self._writing: Source | None = None

    def finish(self) -> None:
        """Stop: take what is still in the pipe, write it if the sink takes it, and hand on the last lines.

        To be called when SGLang has ended. A grandchild that still holds the pipe open does not keep
        this waiting.
        """
        if self._reading:
            self._reading.cancel()
            self._reading = None
        for _ in range(_DRAIN_READS):
            if self._unwritten or not self._read_once():
                break
        held = self._masker.flush()
        now = self._clock()
        self._write(self._forwarder.feed(held, now) + self._forwarder.flush(now))
        self._hand_on(self._cutter.feed(held) + self._cutter.flush())
        if self._writing:
            self._writing.cancel()
            self._writing = None
        if self._unwritten:
            structlog.get_logger().warning(
                "output-lost", message=f"{len(self._unwritten)} bytes of SGLang's output could not be written"
            )

    def _readable(self) -> bool:
        self._read_once()
        return not self.at_end

    def _read_once(self) -> bool:
        """Move one block; returns whether more may be there."""
        try:
            data = os.read(self._source_fd, _READ_BYTES)
        except BlockingIOError:
            return False
        except OSError as error:
            structlog.get_logger().error(
                "output-unreadable", message=f"SGLang's output cannot be read: {error}"
            )
            data = b""
        if not data:
            self.at_end = True
            return False
        self.bytes_read += len(data)
        drained = len(data) < _READ_BYTES
        clean = self._masker.feed(data)
        self._write(self._forwarder.feed(clean, self._clock(), drained))
        self._hand_on(self._cutter.feed(clean, drained))
        return True

    def _hand_on(self, lines: list[str]) -> None:
        if lines:
            self._on_lines(lines)

    def _write(self, data: bytes) -> None:
        self._unwritten = self._unwritten + data if self._unwritten else data
        self._drain()
        if self._unwritten and self._writing is None and self._reading is not None:
            self._reading.cancel()
            self._writing = on_fd(self._sink_fd, OUT, self._writable)

    def _writable(self) -> bool:
        self._drain()
        if self._unwritten:
            return True
        self._writing = None
        self._reading = on_fd(self._source_fd, IN, self._readable)
        return False

    def _drain(self) -> None:
        while self._unwritten:
            try:
                written = os.write(self._sink_fd, self._unwritten)
            except BlockingIOError:
                return
            except OSError as error:
                if not self._sink_broken:
                    self._sink_broken = True
                    structlog.get_logger().error(
                        "journal-unwritable", message=f"SGLang's output cannot be written any more: {error}"
                    )
                self._unwritten = b""
                return
            self._unwritten = self._unwritten[written:]
