"""The supervisor's published state: one immutable value that every reporter renders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from qwen_mtp.diagnosis import Diagnosis
from qwen_mtp.states import Phase, Role, State


class Progress(NamedTuple):
    """Steps done of steps to do within a phase; `(0, 0)` where SGLang shows none."""

    done: int = 0
    total: int = 0


NO_PROGRESS = Progress()


@dataclass(frozen=True)
class Span:
    """One visit of a phase within a launch.

    Attributes:
        phase: which phase.
        role: target or draft model, where the phase tells them apart.
        start: seconds since the launch's spawn.
        end: seconds since the launch's spawn, or None while it lasts.
        progress: the last progress seen in it.
    """

    phase: Phase
    role: Role | None
    start: float
    end: float | None = None
    progress: Progress = NO_PROGRESS


@dataclass(frozen=True)
class Snapshot:
    """Everything that STATUS, D-Bus and the command show.

    Times ending in `_usec` are microseconds of CLOCK_REALTIME, 0 where unknown. Memory is in GB as
    SGLang prints it (it divides by 2**30). Serving figures are those of SGLang's last decode line.
    """

    state: State = State.PREFLIGHT
    phase: Phase | None = None
    progress: Progress = NO_PROGRESS
    status: str = ""
    estimated_ready_usec: int = 0
    state_change_usec: int = 0
    state_change_monotonic_usec: int = 0
    main_pid: int = 0
    restarts: int = 0
    last_failure: Diagnosis | None = None
    next_restart_usec: int = 0
    model_path: str = ""
    endpoint: str = ""
    sglang_version: str = ""
    weight_memory: Mapping[int, float] = field(default_factory=dict)
    kv_cache_tokens: int = 0
    speculative_algorithm: str = ""
    accept_length: float = 0.0
    generation_throughput: float = 0.0
    running_requests: int = 0
    queued_requests: int = 0
    launch_usec: int = 0
    timeline: tuple[Span, ...] = ()
