"""A saved log, read as the daemon would have read it: the launch and the evidence of its end."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from datetime import datetime

from qwen_mtp.failures import Catalogue, Collector
from qwen_mtp.grammar import stamp
from qwen_mtp.launch import Launch
from qwen_mtp.logfile import STARTED, read_lines, without_prefixes
from qwen_mtp.states import Phase

_FIRST_LINE = "'python -m sglang.launch_server' is still supported"


class Reader:
    """Folds a log, starting anew with each launch that begins in it: the last one counts.

    Args:
        catalogue: the failure catalogue, or None where only the phases are wanted.

    Attributes:
        launch: phases, facts and figures.
        collector: evidence of failures, if there is a catalogue.
        timed: whether any line had a time stamp.
    """

    def __init__(self, catalogue: Catalogue | None = None) -> None:
        self._catalogue = catalogue
        self._line = 0
        self._begin()

    def _begin(self) -> None:
        self.launch = Launch()
        self.collector = Collector(self._catalogue, self._line) if self._catalogue else None
        self.timed = False
        self._zero: datetime | None = None
        self._at = 0.0
        self._arguments = False

    def feed(self, line: str) -> None:
        """Take the next line, without foreign prefix."""
        if self._starts_anew(line):
            self._begin()
        if not line.startswith("\r"):
            self._line += 1
        if self.collector:
            self.collector.feed("" if line == STARTED else line)
        if line == STARTED:
            return
        if text := stamp(line):
            try:
                time = datetime.fromisoformat(text)
            except ValueError:
                time = None
            if time is not None:
                self._zero = self._zero or time
                self._at = max(self._at, (time - self._zero).total_seconds())
                self.timed = True
        if "server_args=" in line:
            self._arguments = True
        self.launch.feed(line, self._at)

    def _starts_anew(self, line: str) -> bool:
        """Whether another launch begins: the supervisor says so, or what a launch prints once comes again."""
        if line == STARTED:
            return True
        if _FIRST_LINE in line or line.startswith("usage: "):
            return self.launch.phase not in (Phase.SPAWN, Phase.ARGUMENTS)
        return self._arguments and "server_args=" in line and stamp(line) != ""


def read(lines: Iterable[str], catalogue: Catalogue | None = None) -> Reader:
    """Read a whole log."""
    reader = Reader(catalogue)
    for line in without_prefixes(lines):
        reader.feed(line)
    return reader


def open_log(name: str, catalogue: Catalogue | None = None) -> Reader:
    """Read the log in a file; `-` is standard input.

    Raises:
        OSError: it cannot be read.
    """
    if name == "-":
        return read(read_lines(sys.stdin.buffer), catalogue)
    with open(name, "rb") as file:
        return read(read_lines(file), catalogue)
