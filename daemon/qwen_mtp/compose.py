"""Composes what is published: the supervisor's standing, the job and the launch, as one snapshot. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from qwen_mtp.diagnosis import Diagnosis
from qwen_mtp.estimate import remaining
from qwen_mtp.history import Durations, durations
from qwen_mtp.job import Job
from qwen_mtp.launch import Facts, Launch, Serving
from qwen_mtp.snapshot import NO_PROGRESS, Snapshot
from qwen_mtp.states import State
from qwen_mtp.status import sentence


@dataclass(frozen=True)
class Standing:
    """Where the supervisor stands. The fields are those of `Snapshot`, and some more.

    Attributes:
        next_restart: when the next start follows, as people read it.
        elapsed: seconds since the spawn, 0.0 while nothing runs.
        idle: whether SGLang has been silent for so long that its serving figures no longer hold.
    """

    state: State
    state_change_usec: int = 0
    state_change_monotonic_usec: int = 0
    restarts: int = 0
    last_failure: Diagnosis | None = None
    next_restart_usec: int = 0
    next_restart: str = ""
    launch_usec: int = 0
    main_pid: int = 0
    elapsed: float = 0.0
    idle: bool = False


def compose(
    standing: Standing, job: Job, launch: Launch | None, earlier: Sequence[Durations], now_usec: int
) -> Snapshot:
    """Make the snapshot.

    Args:
        standing: the supervisor's own part.
        job: what is run.
        launch: what the log has told, None while nothing runs.
        earlier: durations of earlier launches, for the estimate.
        now_usec: the present, microseconds of CLOCK_REALTIME.
    """
    facts = launch.facts if launch else Facts()
    figures = launch.serving if launch else Serving()
    idle = standing.state is State.READY and standing.idle
    snapshot = Snapshot(
        state=standing.state,
        phase=launch.phase if launch else None,
        progress=launch.progress if launch else NO_PROGRESS,
        estimated_ready_usec=_estimate(standing, launch, earlier, now_usec),
        state_change_usec=standing.state_change_usec,
        state_change_monotonic_usec=standing.state_change_monotonic_usec,
        main_pid=standing.main_pid,
        restarts=standing.restarts,
        last_failure=standing.last_failure,
        next_restart_usec=standing.next_restart_usec,
        model_path=job.model_path,
        endpoint=job.endpoint.url,
        sglang_version=job.sglang_version,
        weight_memory=dict(facts.weight_memory),
        kv_cache_tokens=facts.kv_cache_tokens,
        # As configured: SGLang resolves NEXTN to EAGLE, which nobody asked for.
        speculative_algorithm=job.speculative_algorithm or facts.speculative_algorithm,
        accept_length=figures.accept_length,
        generation_throughput=0.0 if idle else figures.generation_throughput,
        # While it drains, SGLang counts what is left itself.
        running_requests=figures.remaining_requests if figures.draining else 0 if idle else figures.running_requests,
        queued_requests=0 if idle else figures.queued_requests,
        launch_usec=standing.launch_usec,
        timeline=tuple(launch.timeline) if launch else (),
    )
    return replace(snapshot, status=sentence(snapshot, now_usec, job.checkpoint_gb, standing.next_restart))


def _estimate(standing: Standing, launch: Launch | None, earlier: Sequence[Durations], now_usec: int) -> int:
    if launch is None or standing.state is not State.STARTING:
        return 0
    spent = durations(launch.timeline)
    last = launch.timeline[-1]
    spent[last.phase] = spent.get(last.phase, 0.0) + standing.elapsed - last.start
    left = remaining(earlier, spent, launch.phase, launch.progress)
    return now_usec + int(left * 1e6) if left is not None else 0
