"""TOML files with the line of each key: what the standard parser leaves out and an error message needs."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

KeyPath = tuple[str, ...]

_AT_LINE = re.compile(r" \(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)$")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_SPACE = re.compile(r"[ \t]*")


class TomlError(Exception):
    """A file that cannot be used, in one line.

    Attributes:
        line: line number, 0 where it is about the file as a whole.
        errno: why the file cannot be read, None where it was.
    """

    def __init__(self, message: str, line: int = 0, errno: int | None = None) -> None:
        super().__init__(message)
        self.line = line
        self.errno = errno


def read(path: Path) -> tuple[dict[str, Any], dict[KeyPath, int]]:
    """Read a file.

    Returns:
        The tables, and the line of each key and table header that the file spells out.

    Raises:
        TomlError: the file cannot be read, or is no TOML.
    """
    try:
        data = path.read_bytes()
    except IsADirectoryError:
        raise TomlError("is a directory, not a file") from None
    except OSError as error:
        raise TomlError(f"cannot be read: {error.strerror}", errno=error.errno) from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TomlError("is not UTF-8 text", data[: error.start].count(b"\n") + 1) from None
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        message = str(error)
        found = _AT_LINE.search(message)
        line = int(found["line"]) if found and found["line"] else text.count("\n") + 1
        where = f" (column {found['column']})" if found and found["column"] else ""
        raise TomlError(f"no valid TOML: {_AT_LINE.sub('', message)}{where}", line) from None
    except RecursionError:
        raise TomlError("no valid TOML: nested too deeply") from None
    except ValueError:  # int() refuses more than sys.get_int_max_str_digits()
        raise TomlError("no valid TOML: a number has too many digits") from None
    return tables, lines_of_keys(text)


def lines_of_keys(text: str) -> dict[KeyPath, int]:
    """Find the line of each key of a valid TOML text; keys inside inline tables are left out."""
    found: dict[KeyPath, int] = {}
    table: KeyPath = ()
    for line, statement in _statements(text):
        if statement.startswith("["):
            keys = _keys(statement.lstrip("["))
            if keys:
                table = keys[0]
                found.setdefault(table, line)
            continue
        keys = _keys(statement)
        if keys:
            for depth in range(1, len(keys[0]) + 1):
                found.setdefault(table + keys[0][:depth], line)
    return found


def lines_of_items(text: str, name: str) -> list[int]:
    """Find the line of each `[[name]]` of a valid TOML text, in order."""
    return [line for line, statement in _statements(text) if re.match(rf"\[\[\s*{re.escape(name)}\s*\]\]", statement)]


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Yield each statement with the line that it begins on, values over several lines being one statement."""
    position, line = 0, 1
    while position < len(text):
        start, start_line = position, line
        depth = 0
        while position < len(text):
            char = text[position]
            if char in "\"'":
                position = _string_end(text, position)
                continue
            if char == "#":
                end = text.find("\n", position)
                position = len(text) if end < 0 else end
                continue
            if char in "[{":
                depth += 1
            elif char in "]}":
                depth -= 1
            elif char == "\n" and depth <= 0:
                break
            position += 1
        statement = text[start:position].strip()
        line += text.count("\n", start, position) + 1
        position += 1
        if statement and not statement.startswith("#"):
            # Comments and blank lines inside a bracket belong to the statement; none stands before it.
            yield start_line, statement


def _string_end(text: str, start: int) -> int:
    """Return the position behind the string that begins here."""
    quote = text[start]
    marks = quote * 3 if text.startswith(quote * 3, start) else quote
    position = start + len(marks)
    while position < len(text):
        if quote == '"' and text[position] == "\\":
            position += 2
        elif text.startswith(marks, position):
            position += len(marks)
            # Up to two more quotes may belong to the end of a multi-line string.
            while len(marks) == 3 and position < len(text) and text[position] == quote:
                position += 1
            return position
        else:
            position += 1
    return len(text)


def _keys(text: str) -> tuple[KeyPath, int] | None:
    """Read a dotted key at the beginning of a statement; returns it with its end."""
    parts: list[str] = []
    position = 0
    while True:
        position = _skip(text, position)
        if position < len(text) and text[position] in "\"'":
            end = _string_end(text, position)
            parts.append(next(iter(tomllib.loads(f"{text[position:end]} = 0"))))
            position = end
        else:
            bare = _BARE.match(text, position)
            if bare is None:
                return None
            parts.append(bare.group())
            position = bare.end()
        position = _skip(text, position)
        if position >= len(text) or text[position] != ".":
            return tuple(parts), position
        position += 1


def _skip(text: str, position: int) -> int:
    found = _SPACE.match(text, position)
    return found.end() if found else position
