"""Why SGLang ended: evidence gathered from its log line by line, weighed at its end. Pure.

A failing SGLang prints several tracebacks of several processes, chained exceptions, warnings that look like
errors, and last of all that a child has died. The first finding of the lowest tier is the cause, what the
kernel says outranks text, and the exit status alone says little: -9 is how SGLang up to 0.5.18 ends
normally, how it ends after a failure, and how the kernel ends it.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from qwen_mtp.catalogue import Catalogue, Rule, fill
from qwen_mtp.catalogue import load as load_catalogue
from qwen_mtp.diagnosis import Diagnosis, Evidence, Outcome
from qwen_mtp.packages import debian_package

__all__ = ["Catalogue", "Collector", "load_catalogue"]

MAX_FINDINGS = 60
"""Findings that are kept; later ones are consequences."""
SURVIVED = 20
"""So many log records after an exception that nothing announced as the end, it was not the end."""
_MAX_FRAMES = 80
_MAX_MESSAGE_LINES = 40
_MAX_LINE = 4096
_MAX_IGNORED = 1000
_MAX_TEXT = 500
_MAX_ALSO = 5
_CONSEQUENCE = 3
"""Tier of rules about what follows from something else."""

_STAMP = re.compile(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?(?P<ranks>(?: [A-Z_]+\d+)*)\] ")
_TRACEBACK = "Traceback (most recent call last):"
_EXCEPTION = re.compile(r"(?P<type>[A-Za-z_][\w.]*)(?::(?: (?P<message>.*))?)?$")
_LONE_EXCEPTION = re.compile(r"(?:\w+\.)*\w*(?:Error|Exception): ")
_HANDLING = "During handling of the above exception"
_CAUSE = "The above exception was the direct cause"
_FRAME = re.compile(r'  File "(?P<file>[^"]*)", line (?P<line>\d+), in (?P<function>\S+)')
_CHATTY = ("Decode batch", "Prefill batch", "INFO: ")
_HARMLESS = re.compile(
    r"Ignore import error when loading|Local snapshot incomplete for|Pyspy failed|OpenAI Responses API"
    r"|resource_tracker: "
)
_HARMLESS_HEADER = re.compile(
    r"post-warmup freeze_gc failed|_fix_v5_|(?:ERROR: +)?Exception in ASGI application|Exception ignored in"
    r"|Exception in callback|(?:Task|Future) exception was never retrieved|--- Logging error ---"
)
"""Log lines whose traceback, which follows them, did not end anything."""
_TORCHCODEC = "Could not load libtorchcodec"
_TORCHCODEC_END = "[end of libtorchcodec loading traceback]"
_FATAL_HEADER = re.compile(r"(?P<who>\w+) hit an exception: |Initialization failed\. warmup error")
_SHELL_SIGNAL = 128
"""A shell, and env wrappers like it, report a child's death by signal N as exit status 128 + N."""


@dataclass
class _Traceback:
    """A traceback that is being read, and then its exception."""

    header: str
    process: str
    line: int
    frames: list[str] = field(default_factory=list)
    exception: list[str] = field(default_factory=list)
    exception_line: int = 0
    fatal: bool = False
    handling: bool = False
    first_finding: int = 0


@dataclass(frozen=True)
class _Finding:
    """A rule that matched, with what it captured.

    Attributes:
        rule: the rule.
        facts: what it captured.
        evidence: where.
        fatal: whether SGLang said there that a process of it ends.
        records: log records before it.
        overruled: whether a later finding explains it away.
    """

    rule: Rule
    facts: Mapping[str, str]
    evidence: Evidence
    fatal: bool = False
    records: int = 0
    overruled: bool = False

    @property
    def summary(self) -> str:
        return fill(self.rule.summary, self.facts)


class Collector:
    """Gathers findings from a log in bounded memory; `conclude` weighs them.

    Args:
        catalogue: the rules.
        lines_before: number of the line before the first one, where a log holds several launches.
    """

    def __init__(self, catalogue: Catalogue, lines_before: int = 0) -> None:
        self._catalogue = catalogue
        self._needles = tuple(dict.fromkeys(rule.needle for rule in catalogue.line_rules))
        self._findings: list[_Finding] = []
        self._number = self._lines_before = lines_before
        self._records = 0
        self._traceback: _Traceback | None = None
        self._chain: tuple[bool, _Traceback] | None = None
        self._ignoring = 0
        self._ignored = 0
        self._record = ""

    def feed(self, line: str) -> None:
        """Take the next line, without line end, colours and foreign prefixes.

        A carriage return in front marks a bar that redraws its line: not a line of its own.
        """
        if line.startswith("\r"):
            line = line.lstrip("\r")
        else:
            self._number += 1
        stamped = None
        if line.startswith("[20"):
            if line.startswith(_CHATTY, line.find("] ", 20, 60) + 2):
                if self._traceback is not None:
                    self._end_traceback()
                self._records += 1
                if self._findings and ("batch" in line or '" 200 OK' in line):
                    self._still_serving()
                return
            stamped = _STAMP.match(line)
        if stamped is not None:
            self._end_traceback()
            self._records += 1
            self._record = line[stamped.end() :]
            self._chain = None
        if _TORCHCODEC in line and _HARMLESS.search(line):
            # Several ranks may print this at once, their lines mixed: count beginnings and ends.
            self._ignoring += 1
            self._ignored = 0
        elif self._ignoring:
            self._ignored += 1
            if _TORCHCODEC_END in line or self._ignored > _MAX_IGNORED:
                self._ignoring -= 1
        elif line.endswith(_TRACEBACK):
            self._begin_traceback(line, stamped)
        elif self._traceback is not None:
            self._go_on(line)
        elif stamped is None and not self._records and self._is_headless(line):
            self._traceback = _Traceback(line, "parent", self._number, first_finding=len(self._findings))
            self._go_on(line)
        else:
            self._look(line, stamped)

    def found_anything(self) -> bool:
        """Tell whether the log, which has ended, names anything that may have ended SGLang."""
        self._end_traceback()
        return any(not item.overruled and (item.fatal or not self._survived(item)) for item in self._findings)

    def conclude(self, outcome: Outcome) -> Diagnosis:
        """Weigh what was found and how the process ended; to be called once, at the end."""
        self._end_traceback()
        # What SGLang lived on after, until the supervisor ended it, did not end it.
        told = [
            item
            for item in self._findings
            if not item.overruled and (item.fatal or not (outcome.ended_by or self._survived(item)))
        ]
        ended = [
            _Finding(rule, _outcome_facts(outcome), Evidence(0, str(outcome)))
            for rule in self._catalogue.outcome_rules
            if rule.when and rule.when.holds(_plain(outcome), silent=self._number == self._lines_before)
        ]
        # The sort is stable: within a tier the log comes before the end, and what came first before the rest.
        ranked = sorted([*told, *ended], key=lambda item: item.rule.tier)
        best = self._with_all_libraries(ranked[0])
        also = dict.fromkeys(
            (item.rule.failure_class, item.summary)
            for item in ranked[1:]
            if item.rule.failure_class is not best.rule.failure_class and item.rule.tier < _CONSEQUENCE
        )
        return Diagnosis(
            best.rule.failure_class,
            best.rule.id,
            best.summary,
            fill(best.rule.cause, best.facts),
            fill(best.rule.remedy, best.facts),
            best.rule.restart,
            best.rule.confidence,
            best.evidence,
            best.facts,
            outcome.phase,
            outcome,
            tuple(also)[:_MAX_ALSO],
        )

    # -- reading ----------------------------------------------------------------------------------

    def _still_serving(self) -> None:
        """Drop what did not keep SGLang from serving: an exception of one request is no cause of its end."""
        self._findings = [finding for finding in self._findings if finding.fatal]

    def _survived(self, finding: _Finding) -> bool:
        return not finding.fatal and self._records - finding.records >= SURVIVED

    @staticmethod
    def _is_headless(line: str) -> bool:
        """Tell whether a log that was cut at its beginning starts inside a traceback."""
        return _FRAME.match(line) is not None or _LONE_EXCEPTION.match(line) is not None

    def _begin_traceback(self, line: str, stamped: re.Match[str] | None) -> None:
        self._end_traceback()
        text = line[stamped.end() :] if stamped else line
        header = text if text != _TRACEBACK else self._record
        announced = text == _TRACEBACK and _HARMLESS_HEADER.match(header) is not None
        self._record = ""
        fatal = _FATAL_HEADER.match(header)
        process = _process(stamped["ranks"]) if stamped is not None else "parent"
        if fatal is not None and fatal["who"]:
            name = fatal["who"].removesuffix("Manager").lower()
            ranks = stamped["ranks"] if stamped else ""
            process = f"{name}{ranks}"
        self._traceback = _Traceback(
            header, process, self._number, fatal=fatal is not None, first_finding=len(self._findings)
        )
        chain, self._chain = self._chain, None
        if chain is not None and text == _TRACEBACK:
            # The next link of a chain belongs to the same record as the one before.
            handling, before = chain
            self._traceback = replace(before, frames=[], exception=[], line=self._number, handling=handling)
        if announced or (stamped is not None and _HARMLESS.search(header)):
            self._traceback.process = ""  # read to its end, then dropped

    def _go_on(self, line: str) -> None:
        traceback = self._traceback
        assert traceback is not None  # noqa: S101
        line = line[:_MAX_LINE]
        if line.startswith((_HANDLING, _CAUSE)):
            self._end_traceback()
            self._chain = (line.startswith(_HANDLING), traceback)
        elif not traceback.exception:
            if line.startswith((" ", "\t")):
                if len(traceback.frames) < _MAX_FRAMES:
                    traceback.frames.append(line)
                else:
                    traceback.frames[_MAX_FRAMES // 2 :] = [*traceback.frames[_MAX_FRAMES // 2 + 1 :], line]
            elif _EXCEPTION.match(line):
                traceback.exception.append(line)
                traceback.exception_line = self._number
            elif line.strip():
                self._traceback = None
        elif len(traceback.exception) < _MAX_MESSAGE_LINES:
            traceback.exception.append(line)

    def _end_traceback(self) -> None:
        traceback, self._traceback = self._traceback, None
        if traceback is None or not traceback.exception or not traceback.process:
            return
        text = "\n".join(traceback.exception)
        frames = "\n".join(traceback.frames)
        for rule in self._catalogue.exception_rules:
            found = rule.exception.match(text) if rule.exception else None
            if found is None or (rule.frame and not rule.frame.search(frames)):
                continue
            if rule.header and not rule.header.search(traceback.header):
                continue
            if traceback.handling and rule.tier == 1:
                # Raised while those before were handled: they were expected, this one was not.
                first = traceback.first_finding
                self._findings[first:] = [replace(before, overruled=True) for before in self._findings[first:]]
            evidence = Evidence(traceback.exception_line, _shorten(" ".join(text.split())), traceback.process)
            self._add(rule, {**_exception_facts(text, frames), **_captured(found)}, evidence, traceback.fatal)
            return

    def _look(self, line: str, stamped: re.Match[str] | None) -> None:
        needles = [needle for needle in self._needles if needle in line]
        if not needles:
            return
        line = line[:_MAX_LINE]
        for rule in self._catalogue.line_rules:
            if rule.needle in needles and rule.line and (found := rule.line.search(line)):
                text = line[stamped.end() :] if stamped else line
                process = _process(stamped["ranks"]) if stamped else ""
                self._add(rule, _captured(found), Evidence(self._number, _shorten(text), process), fatal=True)
                return

    def _add(self, rule: Rule, facts: dict[str, str], evidence: Evidence, fatal: bool) -> None:
        if "library" in facts:
            facts["package"] = debian_package(facts["library"])
        if fatal and any(known.fatal and known.rule is rule and known.facts == facts for known in self._findings):
            return  # a line that is printed again and again, such as c10d's retries, must not fill the room
        if len(self._findings) >= MAX_FINDINGS:
            self._findings = [finding for finding in self._findings if not self._survived(finding)]
        if len(self._findings) < MAX_FINDINGS:
            self._findings.append(_Finding(rule, facts, evidence, fatal, self._records))

    # -- weighing ---------------------------------------------------------------------------------

    def _with_all_libraries(self, finding: _Finding) -> _Finding:
        """Name every library that was tried: torchcodec, for one, looks for each version of FFmpeg in turn."""
        if "library" not in finding.facts:
            return finding
        same = [other.facts for other in self._findings if other.rule is finding.rule]
        joined = {name: " or ".join(dict.fromkeys(facts[name] for facts in same)) for name in ("library", "package")}
        return replace(finding, facts={**finding.facts, **joined})


def _process(ranks: str) -> str:
    return f"scheduler{ranks}" if ranks else "parent"


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 1] + "…"


def _captured(found: re.Match[str]) -> dict[str, str]:
    return {name: _shorten(value) for name, value in found.groupdict().items() if value}


def _exception_facts(text: str, frames: str) -> dict[str, str]:
    """Say what any exception says: its type, its message, and the innermost place in SGLang's own code."""
    lines = text.split("\n")
    kind, _, message = lines[0].partition(":")
    message = message.strip() or next((line.strip() for line in lines[1:] if line.strip()), "")
    places = list(_FRAME.finditer(frames))
    inner = next((place for place in reversed(places) if "/sglang/" in place["file"]), places[-1] if places else None)
    return {
        "type": kind,
        "message": _shorten(message),
        "place": f"{_below_sglang(inner['file'])}:{inner['line']}" if inner else "",
    }


def _below_sglang(path: str) -> str:
    return "sglang/" + path.rpartition("/sglang/")[2] if "/sglang/" in path else path


def _plain(outcome: Outcome) -> Outcome:
    """Take a shell's word for a signal."""
    status = outcome.exit_status
    if status is None or status - _SHELL_SIGNAL not in signal.valid_signals():
        return outcome
    return replace(outcome, exit_status=None, signal=status - _SHELL_SIGNAL)


def _outcome_facts(outcome: Outcome) -> dict[str, str]:
    plain = _plain(outcome)
    return {
        "outcome": str(outcome),
        "signal": _signal_name(plain.signal) if plain.signal is not None else "",
        "phase": outcome.phase.value if outcome.phase else "",
        "oom_kills": str(outcome.oom_kills),
        "status": "" if outcome.exit_status is None else str(outcome.exit_status),
    }


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
