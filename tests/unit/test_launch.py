from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qwen_mtp.launch import MAX_SPANS, Launch
from qwen_mtp.lines import LineCutter
from qwen_mtp.snapshot import Progress
from qwen_mtp.states import Phase, Role

HERE = Path(__file__).parent
RECORDINGS = HERE.parent / "recordings"
EXPECTED = [
    line.split(": ", 1) for line in (HERE / "data/expected_phases.txt").read_text().splitlines() if line[0] != "#"
]


def recorded(case: str) -> list[tuple[float, str]]:
    folder = RECORDINGS / case
    data, cutter, position = (folder / "log").read_bytes(), LineCutter(), 0
    lines: list[tuple[float, str]] = []
    for row in (folder / "arrivals.tsv").read_text().splitlines()[1:]:
        seconds, _, size = row.split("\t")
        piece = data[position : position + int(size)]
        position += int(size)
        lines += [(float(seconds), line) for line in cutter.feed(piece)]
    return lines + [(lines[-1][0] if lines else 0.0, line) for line in cutter.flush()]


def launched(case: str) -> Launch:
    launch = Launch()
    for at, line in recorded(case):
        launch.feed(line, at)
    return launch


def spelled(launch: Launch) -> str:
    words = []
    for span in launch.timeline:
        role = f"/{span.role.value}" if span.phase is Phase.CUDA_GRAPHS and span.role else ""
        steps = f"={span.progress.done}:{span.progress.total}" if span.progress.total else ""
        words.append(f"{span.phase.value}{role}{steps}")
    return " ".join(words) + (f" !{launch.bind_error[:10]}" if launch.bind_error else "")


def test_every_recording_has_an_expectation() -> None:
    names = {f"{log.parent.parent.name}/{log.parent.name}" for log in RECORDINGS.glob("*/*/log")}
    assert names == {case for case, _ in EXPECTED}


@pytest.mark.parametrize(("case", "phases"), EXPECTED)
def test_recordings_yield_their_phases(case: str, phases: str) -> None:
    launch = launched(case)
    assert spelled(launch) == phases
    assert launch.ready == (launch.phase is Phase.READY)
    assert all(a.end == b.start >= a.start for a, b in pairwise(launch.timeline))


def test_the_true_shape_with_sglang_0_5_11() -> None:
    launch = launched("0.5.11/90-27b-mtp-success")
    facts = launch.facts
    assert facts.model_path == "/models/Qwen3.6-27B"
    assert facts.weight_memory == {0: 51.05}
    assert facts.draft_weight_memory == {0: 5.53}
    assert (facts.kv_cache_tokens, facts.kv_cache_gb, facts.draft_kv_cache_gb) == (416856, 25.44, 1.6)
    assert facts.state_cache_gb == pytest.approx(0.44 + 22.36 + 9.00 + 0.18)
    assert (facts.context_length, facts.max_running_requests) == (262144, 31)
    assert facts.graph_memory == pytest.approx(0.78 + 0.36)
    assert launch.serving.accept_length == 1.35
    assert launch.serving.draining
    ready = launch.timeline[-1]
    assert ready.start == pytest.approx(66.7, abs=0.1)


def test_the_true_shape_with_sglang_0_5_16() -> None:
    facts = launched("0.5.16/90-27b-mtp-success").facts
    assert facts.weight_memory == {0: 51.05}
    assert (facts.kv_cache_tokens, facts.kv_cache_gb, facts.draft_kv_cache_gb) == (514718, 31.42, 1.96)
    assert facts.speculative_num_draft_tokens == 2


def test_two_ranks_are_told_apart() -> None:
    launch = launched("0.5.23/serve-tp2")
    assert launch.facts.tp_size == 2
    assert set(launch.facts.weight_memory) == {0, 1}


# The launch of the incident as SGLang's format strings make it: two GPUs, 15 shards, 25.64 GB each.
INCIDENT = """\
[2026-05-02 10:00:10] server_args=ServerArgs(model_path='/srv/models/Qwen3.6-27B', tp_size=2, port=30000, nnodes=1, node_rank=0, speculative_algorithm='EAGLE')
[2026-05-02 10:00:30 TP1] Init torch distributed begin.
[2026-05-02 10:00:30 TP0] Init torch distributed begin.
[2026-05-02 10:00:33 TP0] Init torch distributed ends. elapsed=2.81 s, mem usage=0.53 GB
[2026-05-02 10:00:33 TP1] Init torch distributed ends. elapsed=2.85 s, mem usage=0.53 GB
[2026-05-02 10:00:34 TP1] Load weight begin. avail mem=78.41 GB
[2026-05-02 10:00:34 TP0] Load weight begin. avail mem=78.40 GB
Multi-thread loading shards:   0% Completed | 0/15 [00:00<?, ?it/s]
Multi-thread loading shards:  47% Completed | 7/15 [00:10<00:12,  1.49s/it]
Multi-thread loading shards: 100% Completed | 15/15 [00:22<00:00,  1.47s/it]
[2026-05-02 10:00:57 TP1] Load weight end. elapsed=22.51 s, type=Qwen3_5ForConditionalGeneration, avail mem=52.77 GB, mem usage=25.64 GB.
[2026-05-02 10:00:57 TP0] Load weight end. elapsed=22.60 s, type=Qwen3_5ForConditionalGeneration, avail mem=52.76 GB, mem usage=25.64 GB.
[2026-05-02 10:00:58 TP0] Mamba Cache is allocated. max_mamba_cache_size: 96, conv_state size: 0.13GB, ssm_state size: 6.80GB intermediate_ssm_state_cache size: 2.70GB intermediate_conv_window_cache size: 0.05GB
[2026-05-02 10:00:58 TP0] KV Cache is allocated. #tokens: 402112, K size: 6.14 GB, V size: 6.14 GB
[2026-05-02 10:00:58 TP0] Memory pool end. avail mem=14.80 GB
[2026-05-02 10:00:59 TP0] Capture cuda graph begin. This can take up to several minutes. avail mem=14.70 GB
Capturing batches (bs=24 avail_mem=14.31 GB):  50%|█████     | 8/16 [00:03<00:03,  2.4it/s]
[2026-05-02 10:01:10 TP0] Capture cuda graph end. Time elapsed: 11.20 s. mem usage=0.80 GB. avail mem=13.90 GB.
"""


def test_the_incident_step_by_step() -> None:
    launch = Launch()
    seen: list[tuple[Phase, Progress]] = []
    for n, line in enumerate(INCIDENT.splitlines()):
        launch.feed(line, float(n))
        state = (launch.phase, launch.progress)
        if not seen or seen[-1] != state:
            seen.append(state)
    none = Progress()
    assert seen == [
        (Phase.ARGUMENTS, none),
        (Phase.DISTRIBUTED, none),
        (Phase.WEIGHTS, none),
        (Phase.WEIGHTS, Progress(0, 15)),
        (Phase.WEIGHTS, Progress(7, 15)),
        (Phase.WEIGHTS, Progress(15, 15)),
        (Phase.KV_CACHE, none),
        (Phase.CUDA_GRAPHS, none),
        (Phase.CUDA_GRAPHS, Progress(8, 16)),
    ]
    assert launch.facts.weight_memory == {0: 25.64, 1: 25.64}
    assert launch.role is Role.TARGET


def test_repeated_warnings_are_no_progress() -> None:
    launch = Launch()
    launch.feed("[2026-05-02 10:00:34] Load weight begin. avail mem=78.41 GB", 5.0)
    for at in range(6, 100):
        launch.feed(
            "[2026-05-02 10:00:40] TokenizerManager watchdog timeout (self.watchdog_timeout=6, self.soft=True)", at
        )
        launch.feed("Multi-thread loading shards:   0% Completed | 0/15 [00:00<?, ?it/s]", 6.0)
    assert launch.advanced_at == 6.0


def test_autotuning_counts_as_progress_though_it_shows_nothing() -> None:
    launch = Launch()
    launch.feed("[2026-05-02 10:00:40] Running FlashInfer autotune...", 7.0)
    assert launch.advanced_at == 7.0


def test_ready_after_a_bind_error_does_not_count() -> None:
    launch = launched("0.5.23/port-in-use-other-http-server")
    assert launch.bind_error.startswith("[Errno 98]")
    assert not launch.ready


def test_a_node_of_higher_rank_is_ready_with_its_dummy_server() -> None:
    launch = launched("0.5.23/serve-multinode-rank1")
    assert launch.ready
    assert launch.facts.node_rank == 1


ALL = [line for case in ("0.5.11/02-mtp-success", "0.5.23/serve-tp2") for _, line in recorded(case)]


@given(st.lists(st.sampled_from(ALL), max_size=60))
def test_shuffled_lines_keep_the_timeline_in_order(lines: list[str]) -> None:
    launch = Launch()
    for n, line in enumerate(lines):
        launch.feed(line, float(n))
    assert all(a.end == b.start >= a.start for a, b in pairwise(launch.timeline))
    assert launch.timeline[-1].end is None
    assert launch.progress.done <= launch.progress.total


def test_a_log_of_nonsense_stays_bounded() -> None:
    launch = Launch()
    for n in range(1000):
        launch.feed("[2026-05-02 10:00:40] Capture cuda graph begin. x", n)
        launch.feed("[2026-05-02 10:00:40] Capture draft cuda graph begin. x", n)
    assert len(launch.timeline) <= MAX_SPANS
