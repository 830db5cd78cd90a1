"""Lines of a saved log: from a file, without the prefixes that other tools put in front of them.

A log may have been copied out of `docker logs`, `docker compose logs`, `kubectl logs`, journalctl or Ray.
What stands in front of the lines is decided once per file, from its beginning: a guess for each line
could eat SGLang's own text.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from qwen_mtp.lines import LineCutter

_SAMPLE = 300
_SHARE = 0.3
"""Part of the sampled lines that must have a prefix; the others are continuations of long records."""
_READ_BYTES = 1 << 18

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)"
_UNIT = r"(?P<host>\S+) (?P<unit>[^\s:\[\]]+)(?:\[\d+\])?: "

PREFIXES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("docker compose logs", re.compile(r"[\w.-]+ +\| ")),
    ("kubectl logs --prefix", re.compile(r"\[pod/[^\]\s]+\] ")),
    ("journalctl", re.compile(rf"[A-Z][a-z]{{2}} [ \d]\d \d\d:\d\d:\d\d(?:\.\d+)? {_UNIT}")),
    ("journalctl -o short-iso", re.compile(rf"{_TIME} {_UNIT}")),
    ("journalctl -o short-full", re.compile(rf"[A-Z][a-z]{{2}} \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d \S+ {_UNIT}")),
    ("journalctl -o short-monotonic", re.compile(rf"\[ *\d+\.\d+\] {_UNIT}")),
    ("journalctl -o short-unix", re.compile(rf"\d+\.\d+ {_UNIT}")),
    ("docker logs -t, kubectl logs --timestamps", re.compile(rf"{_TIME} ")),
    ("Ray", re.compile(r"\((?:\w[\w.:-]* )?pid=\d+(?:, ip=[\d.]+)?\) ")),
)
_OTHERS = ("qwen-mtpd", "systemd")
"""Journal identifiers of the same unit whose lines are not SGLang's."""

STARTED = "\x00started"
"""Stands in the lines where the supervisor's own journal entry says that it started SGLang."""


def strip_ansi(line: str) -> str:
    """Take colours and other terminal sequences out of a line."""
    return _ANSI.sub("", line) if "\x1b" in line else line


def read_lines(file: BinaryIO) -> Iterator[str]:
    """Yield the lines of a log as `LineCutter` makes them, without colours; memory stays bounded."""
    cutter = LineCutter()
    while data := file.read(_READ_BYTES):
        yield from map(strip_ansi, cutter.feed(data, drained=False))
    yield from map(strip_ansi, cutter.flush())


def without_prefixes(lines: Iterable[str]) -> Iterator[str]:
    """Take what other tools put in front of the lines away; prefixes may be nested."""
    source = iter(lines)
    sample = list(itertools.islice(source, _SAMPLE))
    found: list[re.Pattern[str]] = []
    while len(found) < 3 and (pattern := _prefix_of(sample)):
        found.append(pattern)
        sample_of = [(line, pattern.match(line)) for line in sample]
        # What has no prefix stays as it is: the rest of a record of several lines.
        sample = [_strip(line, match) for line, match in sample_of]
    yield from sample
    for line in source:
        for pattern in found:
            line = _strip(line, pattern.match(line))
        yield line


def _prefix_of(sample: list[str]) -> re.Pattern[str] | None:
    lines = [line for line in sample if line.strip() and not line.startswith(("-- ", "\r"))]
    for _, pattern in PREFIXES:
        if lines and sum(1 for line in lines if pattern.match(line)) >= _SHARE * len(lines):
            return pattern
    return None


def _strip(line: str, match: re.Match[str] | None) -> str:
    if match is None:
        return line
    text = line[match.end() :]
    if match.groupdict().get("unit") in _OTHERS:
        return STARTED if text.startswith("started SGLang as process ") else ""
    return text
