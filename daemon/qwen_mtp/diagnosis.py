"""What is said about the end of SGLang: the outcome as the kernel reports it, and the diagnosis."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field

from qwen_mtp.states import FailureClass, Phase, Restart


@dataclass(frozen=True)
class Outcome:
    """How SGLang's main process ended, as far as anything but its log can tell.

    Attributes:
        exit_status: its exit status, or None if a signal ended it or it is not known.
        signal: number of the signal that ended it, or None.
        core_dumped: whether the kernel says that it dumped core.
        oom_kills: how many processes of its cgroup the kernel's OOM killer ended.
        ended_by: what the supervisor itself did to it (`"stop"`, `"hang"`, `"port-in-use"`), empty if
            nothing: a signal that we sent is no finding.
        phase: the phase that the launch had reached.
    """

    exit_status: int | None = None
    signal: int | None = None
    core_dumped: bool = False
    oom_kills: int = 0
    ended_by: str = ""
    phase: Phase | None = None

    def __str__(self) -> str:
        if self.signal is not None:
            try:
                name = signal.Signals(self.signal).name
            except ValueError:
                name = f"signal {self.signal}"
            return f"killed by {name}" + (", core dumped" if self.core_dumped else "")
        if self.exit_status is None:
            return "end not known"
        return f"exit status {self.exit_status}"


@dataclass(frozen=True)
class Evidence:
    """The line that a diagnosis rests on.

    Attributes:
        line: its number in SGLang's output of this launch, from 1, as editors count; 0 where no line says it.
        text: the line without its time stamp, shortened to 500 characters.
        process: who printed it: `"scheduler TP0"`, `"detokenizer"`, `"parent"`, or empty.
    """

    line: int
    text: str
    process: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """Why SGLang ended, and what to do about it.

    Attributes:
        failure_class: kind of failure.
        rule: id of the catalogue's rule that matched.
        summary: one line with the captured facts filled in.
        cause: the probable cause, a sentence or two.
        remedy: what to type or change.
        restart: what the supervisor does about it.
        confidence: 0.0 to 1.0.
        evidence: the first cause.
        facts: captured values by name.
        phase: the phase that was reached.
        outcome: how the process ended.
        also: further findings of the same launch, most telling first, as `(class, summary)`.
    """

    failure_class: FailureClass
    rule: str
    summary: str
    cause: str
    remedy: str
    restart: Restart
    confidence: float
    evidence: Evidence
    facts: Mapping[str, str] = field(default_factory=dict)
    phase: Phase | None = None
    outcome: Outcome = field(default_factory=Outcome)
    also: tuple[tuple[FailureClass, str], ...] = ()
