"""The one sentence of STATUS=, from a snapshot. Pure."""

from __future__ import annotations

from qwen_mtp.snapshot import Progress, Snapshot
from qwen_mtp.states import Phase, State

_PHASES = {
    Phase.SPAWN: "starting SGLang, Python imports its modules",
    Phase.ARGUMENTS: "SGLang checks its arguments and starts its processes",
    Phase.DISTRIBUTED: "initialising torch.distributed",
    Phase.WEIGHTS: "loading weights",
    Phase.KV_CACHE: "allocating the KV cache",
    Phase.DRAFT_WEIGHTS: "loading the draft model's weights",
    Phase.DRAFT_KV_CACHE: "allocating the draft model's KV cache",
    Phase.CUDA_GRAPHS: "capturing CUDA graphs",
    Phase.HTTP: "starting the HTTP server",
    Phase.WARMUP: "warming up",
    Phase.READY: "SGLang says it is ready, asking for its health",
}


def duration(seconds: float) -> str:
    """Say a duration as people do: `40 s`, `3 min`, `1 h 5 min`."""
    if seconds < 90:
        return f"{max(round(seconds), 1)} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def sentence(snapshot: Snapshot, now_usec: int, checkpoint_gb: float = 0.0, next_restart: str = "") -> str:
    """Compose the status of a snapshot.

    Args:
        snapshot: what to describe.
        now_usec: the present, microseconds of CLOCK_REALTIME, for the time left.
        checkpoint_gb: size of the model's files, 0.0 if not known.
        next_restart: when the next start follows, as people read it.
    """
    failure = snapshot.last_failure
    if snapshot.state is State.PREFLIGHT:
        return "checking the configuration and the surroundings"
    if snapshot.state is State.STARTING and snapshot.phase is not None:
        return _starting(snapshot, now_usec, checkpoint_gb)
    if snapshot.state is State.READY:
        return _ready(snapshot)
    if snapshot.state is State.UNRESPONSIVE:
        return f"SGLang on {snapshot.endpoint} does not answer its health check"
    if snapshot.state is State.DRAINING:
        return f"draining, {snapshot.running_requests} requests still run"
    if snapshot.state is State.STOPPING:
        return "ending what is left of SGLang"
    if snapshot.state is State.BACKING_OFF and failure is not None:
        return f"{failure.failure_class.value}: {failure.summary}; next start {next_restart}"
    if snapshot.state is State.FAILED and failure is not None:
        return f"{failure.failure_class.value}: {failure.summary}. {failure.remedy}".rstrip()
    return str(snapshot.state.value)


def _starting(snapshot: Snapshot, now_usec: int, checkpoint_gb: float) -> str:
    assert snapshot.phase is not None  # noqa: S101
    text = _PHASES[snapshot.phase]
    if snapshot.progress.total:
        text += f" {snapshot.progress.done}/{snapshot.progress.total}"
        if snapshot.phase is Phase.WEIGHTS and checkpoint_gb:
            text += f", {_loaded(snapshot.progress, checkpoint_gb)}"
    elif snapshot.phase in (Phase.KV_CACHE, Phase.CUDA_GRAPHS) and snapshot.weight_memory:
        text += f", weights take {max(snapshot.weight_memory.values()):.1f} GB per GPU"
    if snapshot.estimated_ready_usec:
        left = (snapshot.estimated_ready_usec - now_usec) / 1e6
        text += f", about {duration(left)} to ready" if left > 1 else ", ready any moment"
    return text


def _loaded(progress: Progress, checkpoint_gb: float) -> str:
    return f"{checkpoint_gb * progress.done / progress.total:.1f} of {checkpoint_gb:.1f} GB"


def _ready(snapshot: Snapshot) -> str:
    text = f"ready on {snapshot.endpoint}"
    if snapshot.generation_throughput:
        text += (
            f", {snapshot.running_requests} running, {snapshot.queued_requests} queued,"
            f" {snapshot.generation_throughput:.0f} tokens/s"
        )
    if snapshot.accept_length:
        text += f", accept length {snapshot.accept_length:.2f}"
    return text
