"""A recorded launch of SGLang: its output with the times of arrival, and how it ended."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


class RecordingError(Exception):
    """A directory does not hold a recording; the text names it and says why."""


@dataclass(frozen=True)
class Recording:
    """What was recorded; tests/recordings/README.md describes the files.

    Attributes:
        log: both streams in order of arrival, bytes untouched.
        arrivals: seconds since the spawn, stream and size of each piece of `log`.
        version: SGLang's version.
        returncode: exit status, or a negative signal.
        ended_by_recorder: whether SGLang would have gone on.
    """

    log: bytes
    arrivals: tuple[tuple[float, str, int], ...]
    version: str
    returncode: int
    ended_by_recorder: bool

    def pieces(self) -> Iterator[tuple[float, str, bytes]]:
        """Yield time, stream and bytes of each piece."""
        position = 0
        for seconds, stream, size in self.arrivals:
            yield seconds, stream, self.log[position : position + size]
            position += size


def load(directory: Path) -> Recording:
    """Read a recording.

    Raises:
        RecordingError: files are missing or damaged.
    """
    try:
        meta = json.loads((directory / "meta.json").read_text(encoding="utf-8"))
        rows = (directory / "arrivals.tsv").read_text(encoding="ascii").splitlines()[1:]
        arrivals = []
        for row in rows:
            seconds, stream, size = row.split("\t")
            arrivals.append((float(seconds), stream, int(size)))
        log = (directory / "log").read_bytes()
        if sum(size for _, _, size in arrivals) != len(log):
            raise RecordingError(f"{directory}: arrivals.tsv does not fit the log")
        return Recording(
            log, tuple(arrivals), str(meta["sglang"]), int(meta["returncode"]), bool(meta["ended_by_recorder"])
        )
    except OSError as error:
        raise RecordingError(f"{directory}: {error.filename or ''}: {error.strerror}") from None
    except (KeyError, TypeError, ValueError) as error:
        raise RecordingError(f"{directory} is no recording: {error}") from None
