"""Cuts what can decide a diagnosis out of SGLang's output: tracebacks, crash dumps and telling lines.

A stream of lines goes in, `Block`s come out. Memory is bounded whatever the log holds, and a line of
ordinary serving costs a few comparisons. What the blocks mean is none of this module's business.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

MAX_TEXT = 8192
"""Characters of one exception's message that are kept: the sgl_kernel and torchcodec ones have up to 6000."""
_MAX_LINE = 2000
_MAX_FRAMES = 60
_MAX_ERRORS = 12
_HARMLESS_REACH = 3
"""Lines between a harmless announcement and its traceback (asyncio puts the repr of a future there)."""

_TRACEBACK = "Traceback (most recent call last):"
_FAULT = "Fatal Python error: "
_CHAIN = ("During handling of the above exception", "The above exception was the direct cause")
_NESTED = ("[start of libtorchcodec loading traceback]", "[end of libtorchcodec loading traceback]")
"""Bracket tracebacks that torchcodec prints as part of a message, one per FFmpeg version it tried."""

# SGLang's log records: "[2026-12-01 05:19:06 TP1] text"; the ranks stand there only with TP, PP, DP or EP > 1.
_STAMP = re.compile(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?(?P<ranks>(?: [A-Z]+\d+)*)\] ")
_ROUTINE = ("Decode batch", "Prefill batch", "INFO:  ")
"""Records of ordinary serving: scheduler figures and uvicorn's access log."""

_FRAME = re.compile(r'  File "(?P<file>[^"]*)", line (?P<line>\d+),? in (?P<function>.*)')
_EXCEPTION = re.compile(r"(?P<type>[A-Za-z_][\w.]*(?:\[\w+\])?)(?:: ?(?P<message>.*))?$")
_CHILD = re.compile(r"Process \S+:$")


class Frame(NamedTuple):
    """One frame of a traceback."""

    file: str
    line: str
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


class Error(NamedTuple):
    """One exception of a traceback, or the fault that faulthandler reports.

    Attributes:
        number: number of the line that names it.
        text: `Type: message`, with the message's further lines.
        frames: innermost last, the outermost ones left out if there are many.
    """

    number: int
    text: str
    frames: tuple[Frame, ...]


class Strength(Enum):
    """How sure it is that a block tells of the end of SGLang."""

    FATAL = "fatal"
    """SGLang ends itself where it prints this."""
    WEAK = "weak"
    """May have been caught: an unannounced traceback, a warning."""


@dataclass(frozen=True)
class Block:
    """Something in the log that may say why SGLang ended.

    Attributes:
        number: number of its first line.
        process: who printed it: `"scheduler TP0"`, `"detokenizer"`, `"parent"`.
        strength: whether it is known to be the end.
        errors: the exceptions of a traceback, the first cause first; empty for a single line.
        text: the single line, without its time stamp; empty for a traceback.
        records: log records that SGLang had printed before it.
    """

    number: int
    process: str
    strength: Strength
    errors: tuple[Error, ...] = ()
    text: str = ""
    records: int = 0


class Head(NamedTuple):
    """What a log record announces by its first words.

    Attributes:
        pattern: matched at the beginning of the record's text.
        process: who prints it; empty if that is not known.
        strength: what the traceback that follows is worth; None for a harmless one.
    """

    pattern: re.Pattern[str]
    process: str
    strength: Strength | None


class BlockReader:
    """Reads lines, hands out blocks.

    Args:
        heads: what announces a traceback.
        telling: says whether a line outside tracebacks is worth a block.
        emit: takes each finished block.
    """

    def __init__(self, heads: Sequence[Head], telling: Callable[[str], bool], emit: Callable[[Block], None]) -> None:
        self._heads = tuple(heads)
        self._any_head = re.compile("|".join(f"(?:{head.pattern.pattern})" for head in heads) or "(?!)")
        self._telling = telling
        self._emit = emit
        self._state = self._outside
        self._nested_return = self._outside
        self._harmless_until = 0
        self._process = "parent"
        self._strength: Strength | None = Strength.WEAK
        self._start = 0
        self._errors: list[Error] = []
        self._frames: list[Frame] = []
        self._text: list[str] = []
        self._text_size = 0
        self._error_number = 0
        self._records_at_start = 0
        self.number = 0
        self.records = 0

    def feed(self, line: str) -> None:
        """Take the next line."""
        self.number += 1
        if line.startswith("["):
            end = line.find("] ", 20, 60)
            if end > 0:
                if line.startswith(_ROUTINE, end + 2):
                    self.records += 1
                    if self._state != self._outside:
                        self._close()
                    return
                if stamp := _STAMP.match(line):
                    self._record(line[stamp.end() : _MAX_LINE], stamp["ranks"].strip())
                    return
        self._state(line[:_MAX_LINE])

    def finish(self) -> None:
        """Hand out what is open; the output has ended."""
        self._close()

    # -- states -----------------------------------------------------------------------------------

    def _outside(self, line: str) -> None:
        if line.startswith(_TRACEBACK):
            harmless = self.number <= self._harmless_until
            self._open("parent", None if harmless else Strength.WEAK)
        elif line.startswith(_FAULT):
            self._open("", Strength.FATAL)
            self._name(line)
            self._state = self._in_fault
        elif line.startswith(_NESTED[0]):
            self._nest()
        elif line:
            self._plain(line, "parent")

    def _in_frames(self, line: str) -> None:
        if line.startswith(" "):
            self._frame(line)
        elif found := _EXCEPTION.match(line):
            # Interleaved output of another process looks like this only by chance: a type has no blanks.
            self._name(line if found["message"] is not None else line.rstrip(":"))
            self._state = self._in_message
        elif line.startswith(_TRACEBACK):
            self._frames.clear()

    def _in_message(self, line: str) -> None:
        if line.startswith(_TRACEBACK):
            self._close()
            self._outside(line)
        elif line.startswith(_CHAIN):
            self._keep_error()
            self._state = self._between
        elif line.startswith(_NESTED[0]):
            self._nest()
        elif _CHILD.match(line) or line.startswith(_FAULT):
            self._close()
            self._outside(line)
        else:
            # A message may have empty lines in it, so only what comes next can end it.
            self._add(line)
            if line:
                self._plain(line, self._process, quiet=True)

    def _between(self, line: str) -> None:
        if line.startswith(_TRACEBACK):
            self._state = self._in_frames
        elif line:
            self._close()
            self._outside(line)

    def _in_fault(self, line: str) -> None:
        # The thread at fault is the "current" one; the others may stand before or after it.
        if line.startswith("Current thread"):
            self._state = self._in_fault_frames
        elif line.startswith((_TRACEBACK, _FAULT)):
            self._close()
            self._outside(line)

    def _in_fault_frames(self, line: str) -> None:
        if line.startswith("  File "):
            # faulthandler prints the innermost frame first.
            if len(self._frames) < _MAX_FRAMES and (found := _FRAME.match(line)):
                self._frames.insert(0, Frame(found["file"], found["line"], found["function"]))
        else:
            self._state = self._after_fault
            self._after_fault(line)

    def _after_fault(self, line: str) -> None:
        if line.startswith((_TRACEBACK, _FAULT)):
            self._close()
            self._outside(line)

    def _in_nested(self, line: str) -> None:
        if self._nested_return == self._in_message:
            self._add(line)
        if line.startswith(_NESTED[1]):
            self._state = self._nested_return

    # -- steps ------------------------------------------------------------------------------------

    def _record(self, text: str, ranks: str) -> None:
        """Take a log record; it ends whatever was open."""
        self._close()
        self.records += 1
        head = self._head(text)
        process = head.process if head and head.process else "parent" if not ranks else "scheduler"
        process = f"{process} {ranks}" if ranks else process
        if text.endswith(_TRACEBACK):
            self._open(process, head.strength if head else Strength.WEAK)
        elif not head or head.strength is not None:
            self._plain(text, process, quiet=True)

    def _head(self, text: str) -> Head | None:
        """Find what a line announces, and remember a harmless announcement."""
        if not self._any_head.match(text):
            return None
        head = next(head for head in self._heads if head.pattern.match(text))
        if head.strength is None:
            self._harmless_until = self.number + _HARMLESS_REACH
        return head

    def _plain(self, text: str, process: str, quiet: bool = False) -> None:
        if not quiet and (head := self._head(text)) and head.strength is None:
            return
        if self._telling(text):
            self._emit(Block(self.number, process, Strength.WEAK, text=text, records=self.records))

    def _open(self, process: str, strength: Strength | None) -> None:
        self._process, self._strength, self._start = process, strength, self.number
        self._records_at_start = self.records
        self._errors.clear()
        self._frames.clear()
        self._clear_text()
        self._state = self._in_frames

    def _frame(self, line: str) -> None:
        if line.startswith("  File ") and (found := _FRAME.match(line)):
            if len(self._frames) >= _MAX_FRAMES:
                del self._frames[0]
            self._frames.append(Frame(found["file"], found["line"], found["function"]))

    def _name(self, line: str) -> None:
        self._error_number = self.number
        self._add(line)

    def _add(self, line: str) -> None:
        if self._text_size < MAX_TEXT:
            self._text.append(line)
            self._text_size += len(line) + 1

    def _nest(self) -> None:
        self._nested_return = self._state
        self._state = self._in_nested

    def _keep_error(self) -> None:
        if self._text:
            text = "\n".join(self._text).rstrip()
            if len(self._errors) >= _MAX_ERRORS:
                del self._errors[1]  # the first cause and the latest ones are worth most
            self._errors.append(Error(self._error_number, text, tuple(self._frames)))
        self._frames.clear()
        self._clear_text()

    def _clear_text(self) -> None:
        self._text.clear()
        self._text_size = 0

    def _close(self) -> None:
        if self._state == self._outside:
            return
        self._state = self._outside
        self._keep_error()
        if self._errors and self._strength is not None:
            self._emit(
                Block(
                    self._start,
                    self._process,
                    self._strength,
                    tuple(self._errors),
                    records=self._records_at_start,
                )
            )
        self._errors.clear()
