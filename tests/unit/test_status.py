from __future__ import annotations

from dataclasses import replace

import pytest

from qwen_mtp.diagnosis import Diagnosis, Evidence
from qwen_mtp.snapshot import Progress, Snapshot
from qwen_mtp.states import FailureClass, Phase, Restart, State
from qwen_mtp.status import duration, sentence

STARTING = Snapshot(
    state=State.STARTING, phase=Phase.WEIGHTS, progress=Progress(7, 15), endpoint="http://127.0.0.1:30000"
)
FAILURE = Diagnosis(
    FailureClass.MISSING_LIBRARY,
    "rule",
    "libavutil.so.58 is missing",
    "cause",
    "apt install libavutil58",
    Restart.NEVER,
    0.9,
    Evidence(1, "OSError"),
)


def test_every_state_has_a_sentence_for_people() -> None:
    for state in State:
        for phase in (None, *Phase):
            text = sentence(Snapshot(state=state, phase=phase, last_failure=FAILURE, endpoint="http://h:1"), 0)
            assert text
            assert "None" not in text


def test_loading_weights_says_shards_size_and_time_left() -> None:
    snapshot = replace(STARTING, estimated_ready_usec=140_000_000)
    assert sentence(snapshot, 100_000_000, 51.75) == "loading weights 7/15, 24.1 of 51.8 GB, about 40 s to ready"


def test_without_estimate_no_time_is_invented() -> None:
    assert sentence(STARTING, 0) == "loading weights 7/15"


def test_an_estimate_that_has_passed() -> None:
    assert sentence(replace(STARTING, estimated_ready_usec=5), 10_000_000).endswith("ready any moment")


def test_graphs_say_what_the_weights_take() -> None:
    snapshot = replace(STARTING, phase=Phase.CUDA_GRAPHS, progress=Progress(), weight_memory={0: 25.64, 1: 25.6})
    assert sentence(snapshot, 0) == "capturing CUDA graphs, weights take 25.6 GB per GPU"


def test_ready_shows_the_serving_figures_once_there_are_any() -> None:
    ready = replace(STARTING, state=State.READY)
    assert sentence(ready, 0) == "ready on http://127.0.0.1:30000"
    busy = replace(ready, running_requests=8, queued_requests=1, generation_throughput=492.8, accept_length=1.41)
    assert sentence(busy, 0).endswith(", 8 running, 1 queued, 493 tokens/s, accept length 1.41")


def test_a_failure_says_cause_and_remedy() -> None:
    failed = Snapshot(state=State.FAILED, last_failure=FAILURE)
    assert sentence(failed, 0) == "missing-library: libavutil.so.58 is missing. apt install libavutil58"


def test_backing_off_says_when() -> None:
    waiting = Snapshot(state=State.BACKING_OFF, last_failure=FAILURE)
    assert sentence(waiting, 0, next_restart="at 12:00:00").endswith("; next start at 12:00:00")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "1 s"), (40.4, "40 s"), (89, "89 s"), (170, "3 min"), (3900, "65 min"), (7500, "2 h 5 min")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
