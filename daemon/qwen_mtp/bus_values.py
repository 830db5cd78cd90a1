"""From a snapshot to D-Bus values. Pure."""

from __future__ import annotations

from typing import Any

from gi.repository import GLib

from qwen_mtp import __version__
from qwen_mtp.diagnosis import Diagnosis
from qwen_mtp.snapshot import Snapshot


def failure(diagnosis: Diagnosis | None) -> dict[str, GLib.Variant]:
    """Describe a failure as `a{sv}`; empty for None. Its keys are documented in the introspection data."""
    if diagnosis is None:
        return {}
    outcome = diagnosis.outcome
    return {
        "class": GLib.Variant("s", diagnosis.failure_class.value),
        "rule": GLib.Variant("s", diagnosis.rule),
        "summary": GLib.Variant("s", diagnosis.summary),
        "cause": GLib.Variant("s", diagnosis.cause),
        "remedy": GLib.Variant("s", diagnosis.remedy),
        "restart": GLib.Variant("s", diagnosis.restart.value),
        "confidence": GLib.Variant("d", diagnosis.confidence),
        "phase": GLib.Variant("s", diagnosis.phase.value if diagnosis.phase else ""),
        "evidence": GLib.Variant("s", diagnosis.evidence.text),
        "evidence-line": GLib.Variant("u", diagnosis.evidence.line),
        "evidence-process": GLib.Variant("s", diagnosis.evidence.process),
        "outcome": GLib.Variant("s", str(outcome)),
        "exit-status": GLib.Variant("i", -1 if outcome.exit_status is None else outcome.exit_status),
        "signal": GLib.Variant("i", -1 if outcome.signal is None else outcome.signal),
        "facts": GLib.Variant("a{ss}", dict(diagnosis.facts)),
        "also": GLib.Variant("a(ss)", [(kind.value, text) for kind, text in diagnosis.also]),
    }


def properties(snapshot: Snapshot) -> dict[str, Any]:
    """Make the values of all properties."""
    base = snapshot.launch_usec
    return {
        "State": snapshot.state.value,
        "StateChangeTimestamp": snapshot.state_change_usec,
        "StateChangeTimestampMonotonic": snapshot.state_change_monotonic_usec,
        "Phase": snapshot.phase.value if snapshot.phase else "",
        "PhaseProgress": tuple(snapshot.progress),
        "EstimatedReadyUSec": snapshot.estimated_ready_usec,
        "StatusText": snapshot.status,
        "MainPID": snapshot.main_pid,
        "Restarts": snapshot.restarts,
        "NextRestartUSec": snapshot.next_restart_usec,
        "LastFailure": failure(snapshot.last_failure),
        "ModelPath": snapshot.model_path,
        "Endpoint": snapshot.endpoint,
        "SGLangVersion": snapshot.sglang_version,
        "Version": __version__,
        "WeightMemory": dict(snapshot.weight_memory),
        "KVCacheTokens": snapshot.kv_cache_tokens,
        "SpeculativeAlgorithm": snapshot.speculative_algorithm,
        "AcceptLength": snapshot.accept_length,
        "GenerationThroughput": snapshot.generation_throughput,
        "RunningRequests": snapshot.running_requests,
        "QueuedRequests": snapshot.queued_requests,
        "Timeline": [
            (
                span.phase.value,
                span.role.value if span.role else "",
                base + int(span.start * 1e6),
                base + int(span.end * 1e6) if span.end is not None else 0,
                tuple(span.progress),
            )
            for span in snapshot.timeline
        ],
    }
