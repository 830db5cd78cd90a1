"""From SGLang's bytes to the journal's bytes, and to the lines that are interpreted.

All incremental, bounded in memory and without I/O. `Masker` takes secrets out; then two readings of
the same stream: `Forwarder` makes what the journal gets, `LineCutter` what the grammar gets. What is
forwarded is SGLang's output unaltered, but for two things that are done on purpose: secrets are masked,
and progress bars, which redraw themselves with a carriage return, become lines of their own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

MASK = b"[masked]"
"""What stands in the journal instead of a secret."""

MAX_LINE = 64 * 1024
"""Bytes of one line that are interpreted; SGLang's longest telling line (server_args) has 25 kB."""

MAX_DRAWING = 4096
"""Bytes of a bar's drawing; up to PIPE_BUF (pipe(7)) one write arrives in one piece."""

_BREAK = re.compile(rb"[\r\n]")


class Masker:
    """Replaces secrets in a stream, also where a read cuts one in two.

    Args:
        secrets: the byte strings to mask, none of them empty.
    """

    def __init__(self, secrets: Sequence[bytes] = ()) -> None:
        # Longest first: a shorter secret may be part of a longer one.
        self._secrets = sorted(set(secrets), key=len, reverse=True)
        self._pattern = re.compile(b"|".join(map(re.escape, self._secrets))) if self._secrets else None
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """Return the masked stream as far as it is certain; the rest is held until more is known."""
        if self._pattern is None:
            return data
        data = self._pattern.sub(MASK, self._held + data)
        keep = self._open_prefix(data)
        self._held = data[len(data) - keep :]
        return data[: len(data) - keep]

    def flush(self) -> bytes:
        """Return what was held; the stream has ended."""
        held, self._held = self._held, b""
        return held

    def _open_prefix(self, data: bytes) -> int:
        """Length of the longest end of `data` that could be the beginning of a secret."""
        for size in range(min(len(self._secrets[0]) - 1, len(data)), 0, -1):
            tail = data[len(data) - size :]
            if any(secret.startswith(tail) for secret in self._secrets):
                return size
        return 0


class Forwarder:
    r"""Makes the journal's bytes of SGLang's.

    Text without a carriage return passes unchanged and at once, partial lines included. tqdm redraws a
    bar as `\r` + text and ends the last drawing with `\n`; journald
    would store all of them as one unprintable entry. Each drawing becomes a line instead, thinned to
    one per `interval`, the first and the last always kept.

    Args:
        interval: seconds between two drawings of a bar that are kept.
    """

    def __init__(self, interval: float = 1.0) -> None:
        self._interval = interval
        self._in_bar = False
        self._at_line_start = True
        self._pending_return = False
        self._drawing = b""
        self._thinned = b""
        self._drawn_at = float("-inf")

    def feed(self, data: bytes, now: float, drained: bool = True) -> bytes:
        """Turn the next piece of output into what is to be written.

        Args:
            data: bytes as read.
            now: seconds of a monotonic clock.
            drained: whether the pipe is empty now. A bar is drawn by one write, so a drawing that
                stands at the end of a drained pipe is whole although its end is not there yet.
        """
        if not self._in_bar and not self._pending_return and b"\r" not in data:
            if data:
                self._at_line_start = data.endswith(b"\n")
            return data
        out: list[bytes] = []
        self._walk(data, now, out)
        if drained and 0 < len(self._drawing) <= MAX_DRAWING and self._due(now):
            self._draw(self._drawing, now, out)
            self._drawing = b""
        return b"".join(out)

    def flush(self, now: float) -> bytes:
        """End the stream: return all that was held back, and end the last line."""
        out: list[bytes] = []
        if self._in_bar:
            last = self._drawing or self._thinned
            if last:
                self._draw(last, now, out)
            self._leave_bar()
        elif not self._at_line_start:
            out.append(b"\n")
        self._at_line_start = True
        self._pending_return = False
        return b"".join(out)

    def _walk(self, data: bytes, now: float, out: list[bytes]) -> None:
        position = 0
        if self._pending_return and data:
            self._pending_return = False
            if data[:1] == b"\n":
                out.append(b"\n")
                self._at_line_start = True
                position = 1
            else:
                self._enter_bar(out)
        for found in _BREAK.finditer(data, position):
            if found.start() < position:
                continue
            text, position = data[position : found.start()], found.end()
            if self._in_bar:
                self._end_drawing(text, found.group() == b"\n", now, out)
                continue
            if text:
                out.append(text)
                self._at_line_start = False
            if found.group() == b"\n":
                out.append(b"\n")
                self._at_line_start = True
            elif position == len(data):
                self._pending_return = True  # the next byte tells a line end (\r\n) from a bar
            elif data[position : position + 1] == b"\n":
                out.append(b"\n")
                self._at_line_start = True
                position += 1
            else:
                self._enter_bar(out)
        rest = data[position:]
        if not rest:
            return
        if not self._in_bar:
            out.append(rest)
            self._at_line_start = False
        elif len(self._drawing) + len(rest) > MAX_LINE:
            out.append(self._drawing + rest)  # no bar is that long: it is text, and memory stays bounded
            self._leave_bar()
            self._at_line_start = False
        else:
            self._drawing += rest

    def _enter_bar(self, out: list[bytes]) -> None:
        if not self._at_line_start:
            out.append(b"\n")
        self._in_bar = True
        self._at_line_start = True
        self._drawn_at = float("-inf")

    def _leave_bar(self) -> None:
        self._in_bar = False
        self._drawing = self._thinned = b""

    def _end_drawing(self, text: bytes, last: bool, now: float, out: list[bytes]) -> None:
        drawing, self._drawing = self._drawing + text, b""
        if last:
            drawing = drawing or self._thinned
            if drawing:
                self._draw(drawing, now, out)
            self._leave_bar()
        elif drawing and self._due(now):
            self._draw(drawing, now, out)
        elif drawing:
            self._thinned = drawing

    def _due(self, now: float) -> bool:
        return now - self._drawn_at >= self._interval

    def _draw(self, drawing: bytes, now: float, out: list[bytes]) -> None:
        out += (drawing, b"\n")
        self._thinned = b""
        self._drawn_at = now


class LineCutter:
    r"""Cuts the stream into lines for interpretation, each drawing of a bar being one.

    Lines are decoded as UTF-8 with U+FFFD for what is not, and cut at `MAX_LINE` bytes. A drawing keeps the
    `\r` in front: it redraws the line that it stands on and is no new one, so that lines can be counted as
    editors and grep count them. For the same reason empty lines are returned, too.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._skipping = False
        self._shown = b""

    def feed(self, data: bytes, drained: bool = True) -> list[str]:
        """Return the lines that are complete now.

        Args:
            data: bytes as read.
            drained: whether the pipe is empty now; then an unfinished drawing of a bar counts as a line.
        """
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n\r")
        pieces = data.split(b"\n")
        pieces[0] = self._rest + pieces[0]
        if self._skipping and len(pieces) > 1:
            self._skipping = False
            del pieces[0]  # the end of a line whose beginning was returned
        self._rest = pieces.pop()
        lines = []
        for piece in pieces:
            if piece not in (b"\r", self._shown):
                lines.append(piece[:MAX_LINE].decode("utf-8", "replace"))
            elif not piece:
                lines.append("")
            self._shown = b""
        if len(self._rest) > MAX_LINE:
            if not self._skipping:
                lines.append(self._rest[:MAX_LINE].decode("utf-8", "replace"))
            self._skipping, self._rest = True, b""
        elif self._skipping:
            self._rest = b""
        elif drained and self._is_drawing() and self._rest != self._shown:
            self._shown = self._rest
            lines.append(self._rest.decode("utf-8", "replace"))
        return lines

    def flush(self) -> list[str]:
        """End the stream: return the last line if it had no end."""
        last = self._rest if self._rest not in (b"", b"\r", self._shown) else b""
        self._rest, self._skipping, self._shown = b"", False, b""
        return [last.decode("utf-8", "replace")] if last else []

    def _is_drawing(self) -> bool:
        return self._rest.startswith(b"\r") and 1 < len(self._rest) <= MAX_DRAWING
