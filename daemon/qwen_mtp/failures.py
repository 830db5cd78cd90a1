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
from qwen_mtp.states import FailureClass

__all__ = ["Catalogue", "Collector", "load_catalogue"]

MAX_FINDINGS = 60
"""Findings that are kept; later ones are consequences."""
_MAX_FRAMES = 80
_MAX_MESSAGE_LINES = 40
_MAX_TEXT = 500

_STAMP = re.compile(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?(?P<ranks>(?: [A-Z_]+\d+)*)\] ")
_TRACEBACK = "Traceback (most recent call last):"
_EXCEPTION = re.compile(r"(?P<type>[A-Za-z_][\w.]*)(?::(?: (?P<message>.*))?)?$")
_HANDLING = "During handling of the above exception"
_CAUSE = "The above exception was the direct cause"
_FRAME = re.compile(r'  File "(?P<file>[^"]*)", line (?P<line>\d+), in (?P<function>\S+)')
_CHATTY = ("Decode batch", "Prefill batch", "INFO: ")
_HARMLESS = re.compile(
    r"Ignore import error when loading|post-warmup freeze_gc failed|_fix_v5_tokenizer_components: unexpected error"
    r"|Local snapshot incomplete for|Pyspy failed|OpenAI Responses API|resource_tracker: "
)
_TORCHCODEC = "Could not load libtorchcodec"
_TORCHCODEC_END = "[end of libtorchcodec loading traceback]"
_FATAL_HEADER = re.compile(r"(?P<who>\w+) hit an exception: ")
_WORTH_A_LOOK = re.compile(
    r"rror\b|rror:|crashed with|watchdog timeout|Watchdog caught|terminate called|SIGQUIT|sigquit|is dead\."
    r"|Exception raised|insufficient shared memory|!!!!!!!"
)
_CRASHES = {
    signal.SIGSEGV: "a segmentation fault",
    signal.SIGABRT: "an abort",
    signal.SIGBUS: "a bus error",
    signal.SIGILL: "an illegal instruction",
    signal.SIGFPE: "an arithmetic fault",
}


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
    rule: Rule | None
    failure_class: FailureClass
    tier: int
    facts: Mapping[str, str]
    evidence: Evidence
    fatal: bool
    overruled: bool = False


class Collector:
    """Gathers findings from a log in bounded memory; `conclude` weighs them.

    Args:
        catalogue: the rules.
    """

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._findings: list[_Finding] = []
        self._number = 0
        self._traceback: _Traceback | None = None
        self._chain: tuple[bool, _Traceback] | None = None
        self._ignoring = False
        self._record = ""

    def feed(self, line: str) -> None:
        """Take the next line, without line end, colours and foreign prefixes."""
        self._number += 1
        stamped = _STAMP.match(line) if line.startswith("[20") else None
        if stamped is not None:
            if self._traceback is not None:
                self._end_traceback()
            if line.startswith(_CHATTY, stamped.end()):
                if self._findings and ("batch" in line or '" 200 OK' in line):
                    self._still_serving()
                return
            self._record = line[stamped.end() :]
        if self._ignoring:
            self._ignoring = _TORCHCODEC_END not in line
            return
        if _TORCHCODEC in line and _HARMLESS.search(line):
            self._ignoring = True
            return
        if line.endswith(_TRACEBACK):
            self._begin_traceback(line, stamped)
        elif self._traceback is not None:
            self._go_on(line)
        elif _WORTH_A_LOOK.search(line) and not _HARMLESS.search(line):
            self._look(line, stamped)

    def conclude(self, outcome: Outcome) -> Diagnosis:
        """Weigh what was found and how the process ended; to be called once, at the end."""
        self._end_traceback()
        findings = [finding for finding in self._findings if not finding.overruled]
        best = min(findings, key=lambda finding: finding.tier, default=None)
        others = tuple(
            dict.fromkeys(
                (finding.failure_class, self._summary(finding))
                for finding in findings
                if best is not None and finding.failure_class is not best.failure_class and finding.tier < 3
            )
        )[:5]
        by_outcome = self._from_outcome(outcome, best)
        if by_outcome is not None:
            seen = ((best.failure_class, self._summary(best)), *others) if best is not None else others
            also = tuple(item for item in seen if item[0] is not by_outcome.failure_class)
            return replace(by_outcome, also=also)
        assert best is not None  # noqa: S101
        return self._from_finding(best, outcome, others)

    # -- reading ----------------------------------------------------------------------------------

    def _still_serving(self) -> None:
        """Drop what did not keep SGLang from serving: an exception of one request is no cause of its end."""
        self._findings = [finding for finding in self._findings if finding.fatal]

    def _begin_traceback(self, line: str, stamped: re.Match[str] | None) -> None:
        self._end_traceback()
        text = line[stamped.end() :] if stamped else line
        header = text if text != _TRACEBACK else self._record
        fatal = _FATAL_HEADER.match(header)
        process = _process(stamped["ranks"]) if stamped is not None else "parent"
        if fatal is not None:
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
        if _HARMLESS.search(header) and stamped is not None:
            self._traceback.process = ""  # read to its end, then dropped

    def _go_on(self, line: str) -> None:
        traceback = self._traceback
        assert traceback is not None  # noqa: S101
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
        evidence = Evidence(traceback.exception_line, _shorten(" ".join(text.split())), traceback.process)
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
            self._add(rule, found, evidence, traceback.fatal)
            return
        self._add_unknown(traceback, text, frames, evidence)

    def _add_unknown(self, traceback: _Traceback, text: str, frames: str, evidence: Evidence) -> None:
        exception = _EXCEPTION.match(traceback.exception[0])
        name = exception["type"] if exception else "exception"
        places = [found for found in _FRAME.finditer(frames) if "/sglang/" in found["file"]] or list(
            _FRAME.finditer(frames)
        )
        inner = places[-1] if places else None
        place = f"{_below_sglang(inner['file'])}:{inner['line']}" if inner else ""
        first_line = text.split("\n", 1)[0]
        message = first_line.partition(": ")[2] or _next_line(text)
        configuring = re.search(r'(?:server_args|/arg_groups/\w+)\.py", line \d+, in [^<]', frames)
        # Argument code raises bare asserts and ValueErrors by the hundred: the place tells, not the text.
        validating = configuring is not None and name in ("AssertionError", "ValueError", "TypeError")
        self._append(
            _Finding(
                None,
                FailureClass.CONFIG_ASSERTION if validating else FailureClass.UNKNOWN_EXCEPTION,
                # What raised another exception is its cause, but less telling than a rule's finding.
                1 if validating else 2,
                {"type": name, "message": _shorten(message), "place": place},
                evidence,
                traceback.fatal,
            )
        )

    def _look(self, line: str, stamped: re.Match[str] | None) -> None:
        for rule in self._catalogue.line_rules:
            found = rule.line.search(line) if rule.line else None
            if found is not None:
                text = line[stamped.end() :] if stamped else line
                process = _process(stamped["ranks"]) if stamped else ""
                self._add(rule, found, Evidence(self._number, _shorten(text), process), fatal=True)
                return

    def _add(self, rule: Rule, found: re.Match[str], evidence: Evidence, fatal: bool) -> None:
        facts = {name: _shorten(value) for name, value in found.groupdict().items() if value}
        if "library" in facts:
            facts["package"] = debian_package(facts["library"])
        self._append(_Finding(rule, rule.failure_class, rule.tier, facts, evidence, fatal))

    def _append(self, finding: _Finding) -> None:
        if len(self._findings) < MAX_FINDINGS:
            self._findings.append(finding)

    # -- weighing ---------------------------------------------------------------------------------

    def _summary(self, finding: _Finding) -> str:
        if finding.rule is not None:
            return fill(finding.rule.summary, finding.facts)
        facts = finding.facts
        text = f"{facts['type']}: {facts['message']}" if facts["message"] else f"a bare {facts['type']}"
        return text + (f" in {facts['place']}" if facts["place"] else "")

    def _from_finding(
        self, finding: _Finding, outcome: Outcome, also: tuple[tuple[FailureClass, str], ...]
    ) -> Diagnosis:
        rule, failure_class = finding.rule, finding.failure_class
        finding = self._with_all_libraries(finding)
        if rule is None:
            validating = failure_class is FailureClass.CONFIG_ASSERTION
            return self._make(
                failure_class,
                "argument-validation" if validating else "unknown-exception",
                self._summary(finding),
                "SGLang's argument code refused the configuration."
                if validating
                else "No rule of the catalogue knows this exception.",
                "Check the options that the exception is about under [args]."
                if validating
                else "Read the traceback in the log: journalctl -u qwen-mtp -t sglang",
                0.7 if validating else 0.5,
                outcome,
                finding.evidence,
                finding.facts,
                also,
            )
        facts = finding.facts
        return Diagnosis(
            failure_class,
            rule.id,
            self._summary(finding),
            fill(rule.cause, facts),
            fill(rule.remedy, facts),
            rule.restart,
            rule.confidence,
            finding.evidence,
            facts,
            outcome.phase,
            outcome,
            also,
        )

    def _with_all_libraries(self, finding: _Finding) -> _Finding:
        """Name every library that was tried: torchcodec, for one, looks for each version of FFmpeg in turn."""
        if "library" not in finding.facts:
            return finding
        same = [other.facts for other in self._findings if other.rule is finding.rule]
        joined = {name: " or ".join(dict.fromkeys(facts[name] for facts in same)) for name in ("library", "package")}
        return replace(finding, facts={**finding.facts, **joined})

    def _from_outcome(self, outcome: Outcome, best: _Finding | None) -> Diagnosis | None:
        """Judge by the end itself, where it outranks the log or the log tells nothing."""
        place = f" in phase {outcome.phase.value}" if outcome.phase else ""
        if outcome.oom_kills and (best is None or best.tier > 1):
            return self._make(
                FailureClass.HOST_OUT_OF_MEMORY,
                "kernel-oom-kill",
                f"the kernel killed {outcome.oom_kills} of SGLang's processes for lack of memory{place}",
                "The machine's memory, or the limit of the unit's control group, was used up.",
                "free -g and systemctl show qwen-mtp -p MemoryMax show the limits; give it more, or load fewer ranks.",
                0.99,
                outcome,
                best.evidence if best else None,
            )
        if outcome.ended_by == "hang":
            return self._make(
                FailureClass.HANG,
                "no-progress",
                f"no progress{place}",
                "SGLang was ended because nothing moved for the time that the phase may take.",
                "If it was only slow, raise the limit under [supervisor.phase-timeout]; else read its last lines.",
                0.9,
                outcome,
                best.evidence if best else None,
            )
        if best is not None and not (best.tier == 3 and self._killed(outcome)):
            return None
        return self._from_end_alone(outcome, place)

    def _killed(self, outcome: Outcome) -> bool:
        return outcome.signal in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP) and not outcome.ended_by

    def _from_end_alone(self, outcome: Outcome, place: str) -> Diagnosis:
        number = outcome.signal
        if number is not None and number in _CRASHES:
            return self._make(
                FailureClass.CRASH,
                "signal",
                f"SGLang crashed by {_CRASHES[signal.Signals(number)]}{place} and said nothing",
                "Native code went wrong; before the first line it is most often a damaged library of SGLang's.",
                "coredumpctl list shows whether there is a core dump; else install SGLang anew.",
                0.8,
                outcome,
            )
        if number is not None:
            name = _signal_name(number)
            return self._make(
                FailureClass.KILLED,
                "signal",
                f"{name} from outside ended SGLang{place}",
                "The supervisor did not send it, and nothing in the log tells why."
                + (" The kernel sends SIGKILL when memory runs out." if number == signal.SIGKILL else ""),
                "journalctl -k -g 'Out of memory' shows whether it was the kernel.",
                0.8,
                outcome,
            )
        status = outcome.exit_status
        if status in (126, 127):
            what = "may not be executed" if status == 126 else "was not found"
            return self._make(
                FailureClass.BROKEN_ENVIRONMENT,
                "not-executable",
                f"SGLang's command {what}",
                "A shell or the loader could not start it.",
                "Check [sglang] command and its interpreter.",
                0.7,
                outcome,
            )
        if status is not None and status > 128 and status - 128 in signal.valid_signals():
            name = _signal_name(status - 128)
            return self._make(
                FailureClass.KILLED,
                "wrapped-signal",
                f"a process that SGLang's command waits for was ended by {name}{place}",
                "The command is a script that passes its child's end on as its exit status.",
                "Let the command exec SGLang, so that its end can be seen.",
                0.5,
                outcome,
            )
        return self._make(
            FailureClass.UNEXPECTED_EXIT,
            "exit",
            f"SGLang ended with {outcome}{place} and gave no reason",
            "Nobody had asked it to end, and no line of its log says why.",
            "Read its last lines: journalctl -u qwen-mtp -t sglang",
            0.6,
            outcome,
        )

    def _make(
        self,
        failure_class: FailureClass,
        rule: str,
        summary: str,
        cause: str,
        remedy: str,
        confidence: float,
        outcome: Outcome,
        evidence: Evidence | None = None,
        facts: Mapping[str, str] | None = None,
        also: tuple[tuple[FailureClass, str], ...] = (),
    ) -> Diagnosis:
        return Diagnosis(
            failure_class,
            rule,
            summary,
            cause,
            remedy,
            self._catalogue.restart(failure_class),
            confidence,
            evidence or Evidence(0, ""),
            facts or {},
            outcome.phase,
            outcome,
            also,
        )


def _process(ranks: str) -> str:
    return f"scheduler{ranks}" if ranks else "parent"


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 1] + "…"


def _next_line(text: str) -> str:
    return next((line.strip() for line in text.split("\n")[1:] if line.strip()), "")


def _below_sglang(path: str) -> str:
    return "sglang/" + path.rpartition("/sglang/")[2] if "/sglang/" in path else path


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
