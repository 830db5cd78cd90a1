from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qwen_mtp import events
from qwen_mtp.events import Source
from qwen_mtp.grammar import RULES, parse, stamp, unglue
from qwen_mtp.launch import Launch
from qwen_mtp.lines import LineCutter
from qwen_mtp.states import Role

RECORDINGS = Path(__file__).parent.parent / "recordings"
D, T = Role.DRAFT, Role.TARGET

# Lines that no recording holds, filled in from SGLang's own format strings, with what they must say.
TEMPLATES: tuple[tuple[str, str, object], ...] = (
    (
        "0.5.9",
        "Loading safetensors checkpoint shards:  47% Completed | 7/15 [00:10<00:12,  1.49s/it]",
        events.Bar("shards", 7, 15),
    ),
    ("0.5.9", "Loading pt checkpoint shards:  50% Completed | 1/2 [00:01<00:01,  1.0s/it]", events.Bar("shards", 1, 2)),
    (
        "0.5.10",
        "Multi-thread loading pt checkpoint shards: 100% Completed | 2/2 [00:01<00:00,  1.0it/s]",
        events.Bar("shards", 2, 2),
    ),
    (
        "0.5.23",
        "Loading safetensors using Runai Model Streamer:  10% Completed | 3/30 [00:01<00:10,  2.5it/s]",
        events.Bar("shards", 3, 30),
    ),
    (
        "0.5.9",
        "[2026-12-01 04:51:40 TP1] Load weight end. elapsed=40.11 s, type=Qwen3_5ForConditionalGeneration, "
        "dtype=torch.bfloat16, avail mem=51.20 GB, mem usage=25.64 GB.",
        events.WeightsEnd(40.11, "Qwen3_5ForConditionalGeneration", 51.2, 25.64),
    ),
    (
        "0.5.13",
        "[2026-12-01 04:51:40 TP0] Load weight end. elapsed=40.11 s, type=Qwen3_5ForCausalLMMTP, "
        "quant=fp8, bits=8, avail mem=51.20 GB, mem usage=-0.00 GB.",
        events.WeightsEnd(40.11, "Qwen3_5ForCausalLMMTP", 51.2, -0.0),
    ),
    (
        "0.5.12",
        "[2026-12-01 04:51:40 TP0] KV Cache is allocated. #tokens: 416856, KV size: 12.50 GB",
        events.KVCache(416856, 12.5),
    ),
    (
        "0.5.18",
        "[2026-12-01 04:51:40] KV Cache is allocated. dtype: torch.float8_e4m3fn, #tokens: 9, K size: 1.25 GB, V size: 1.00 GB",
        events.KVCache(9, 2.25),
    ),
    (
        "0.5.12",
        "[2026-12-01 04:51:40] Mamba Cache is allocated. max_mamba_cache_size: 158, conv_state size: 0.44GB, ssm_state size: 22.36GB ",
        events.StateCache(158, 22.8),
    ),
    (
        "0.5.9",
        "[2026-12-01 04:51:40 TP0] Capture draft cuda graph begin. This can take up to several minutes. avail mem=5.31 GB",
        events.GraphsBegin("draft", D),
    ),
    (
        "0.5.9",
        "[2026-12-01 04:51:40 TP0] Capture draft cuda graph end. Time elapsed: 3.21 s. mem usage=0.50 GB. avail mem=4.81 GB.",
        events.GraphsEnd("draft", D, 3.21, 0.5, 4.81),
    ),
    (
        "0.5.12",
        "[2026-12-01 04:51:40] Capture piecewise CUDA graph begin. avail mem=5.31 GB",
        events.GraphsBegin("piecewise", T),
    ),
    (
        "0.5.12",
        "[2026-12-01 04:51:40] Capture piecewise CUDA graph end. Time elapsed: 30.50 s. mem usage=0.50 GB. avail mem=4.81 GB.",
        events.GraphsEnd("piecewise", T, 30.5, 0.5, 4.81),
    ),
    (
        "0.5.23",
        "[2026-12-01 04:51:40 TP0] Capture target verify CUDA graph begin. backend=full, num_tokens_per_req=2, avail mem=22.30 GB",
        events.GraphsBegin("target verify", T),
    ),
    (
        "0.5.23",
        "[2026-12-01 04:51:40 TP0] Capture draft decode CUDA graph end. bs=[1, 2, 4], elapsed=5.46 s, mem usage=0.30 GB, avail mem=22.01 GB.",
        events.GraphsEnd("draft decode", D, 5.46, 0.3, 22.01),
    ),
    (
        "0.5.23",
        "Capturing prefill shape (num_tokens=512 avail_mem=5.31 GB):  50%|█████     | 8/16 [00:03<00:03,  2.4it/s]",
        events.Bar("graphs", 8, 16),
    ),
    (
        "0.5.14",
        "Compiling num tokens (num_tokens=512):  25%|██▌       | 4/16 [00:03<00:09,  1.3it/s]",
        events.Bar("graphs", 4, 16),
    ),
    (
        "0.5.23",
        "[2026-12-01 04:51:40] Running FlashInfer autotune with cache: /var/cache/x",
        events.Working("Running FlashInfer autotune"),
    ),
    (
        "0.5.23",
        "[2026-12-01 04:51:40] Entering DeepGEMM JIT Pre-Compile session. It may take a long time (typically 10-20 mins)",
        events.Working("DeepGEMM compilation"),
    ),
    (
        "0.5.23",
        "DeepGEMM warmup:  12%|█▏        | 1000/8192 [00:30<03:35, 33.3it/s]",
        events.Bar("kernels", 1000, 8192),
    ),
    (
        "0.5.9",
        "[2026-12-01 04:51:40] Prefill batch, #new-seq: 1, #new-token: 18, #cached-token: 0, token usage: 0.02, #running-req: 3, "
        "#queue-req: 2, input throughput (token/s): 3.84, cuda graph: False",
        events.Prefill(3, 2, 0.02, 3.84),
    ),
    (
        "0.5.9",
        "[2026-12-01 04:51:40 TP0] Decode batch, #running-req: 1, #token: 502, token usage: 0.12, accept len: 2.50, "
        "accept rate: 0.50, cuda graph: True, gen throughput (token/s): 41.20, #queue-req: 0, ",
        events.Decode(1, 0, 0.12, 41.2, 2.5, 0.5),
    ),
    (
        "0.5.18",
        "[2026-12-01 04:51:40 DP1 TP0] Decode batch [17], #running-req: 8, #full token: 356, full token usage: 0.40, mamba num: 24, "
        "mamba usage: 0.15, accept len: 1.46, cap len: 2.00, accept rate: 0.46, cuda graph: True, gen throughput (token/s): 64.84, #queue-req: 5",
        events.Decode(8, 5, 0.4, 64.84, 1.46, 0.46),
    ),
    (
        "0.5.23",
        "[2026-12-01 04:51:40] Health check failed. Server couldn't get a response from detokenizer for last 20 seconds. tic start",
        events.HealthFailed(),
    ),
)


def recorded_lines() -> set[str]:
    lines: set[str] = set()
    for log in RECORDINGS.glob("*/*/log"):
        cutter = LineCutter()
        lines.update(line.lstrip("\r") for line in cutter.feed(log.read_bytes()) + cutter.flush())
    return lines


@pytest.mark.parametrize(("version", "line", "event"), TEMPLATES)
def test_lines_of_versions_without_recording(version: str, line: str, event: object) -> None:
    parsed = parse(line)
    assert parsed is not None, version
    assert parsed.event == event


def test_every_rule_is_shown_by_a_recording_or_a_template() -> None:
    lines = [part for line in recorded_lines() | {line for _, line, _ in TEMPLATES} for part in unglue(line)]
    texts = {re.sub(r"^\[\d{4}[^\]]*\] ", "", line) for line in lines}
    unused = [rule.pattern.pattern for rule in RULES if not any(rule.pattern.match(text) for text in texts)]
    assert unused == []


def test_every_rule_is_reached_by_its_first_word() -> None:
    """The index by first word must not hide a rule: what a rule matches, parse finds."""
    for line in recorded_lines() | {line for _, line, _ in TEMPLATES}:
        for part in unglue(line):
            text = re.sub(r"^\[\d{4}-[^\]]*\] ", "", part)
            if any(rule.pattern.match(text) for rule in RULES):
                assert parse(part) is not None, part


@pytest.mark.parametrize(
    ("prefix", "source"),
    [
        ("[2026-12-01 04:51:40] ", Source()),
        ("[2026-12-01 04:51:40.123 TP3] ", Source(tp=3, named=True)),
        ("[2026-12-01 04:51:40 DP1 PP2 TP3 EP3] ", Source(tp=3, pp=2, dp=1, named=True)),
        ("[2026-12-01 04:51:40 DP0 PP0 ATTN_CP0 MOE_DP0 TP0 EP0] ", Source(named=True)),
    ],
)
def test_the_prefix_names_the_rank(prefix: str, source: Source) -> None:
    parsed = parse(prefix + "Load weight begin. avail mem=78.58 GB")
    assert parsed is not None
    assert parsed.source == source
    assert parsed.event == events.WeightsBegin(78.58)


def test_both_spellings_of_the_arguments() -> None:
    old = parse(
        "[2026-12-01 06:00:38] server_args=ServerArgs(model_path='/srv/Qwen 3.6\\'s', host='0.0.0.0', port=30000, tp_size=2, x=1)"
    )
    new = parse(
        "[2026-12-01 06:00:38] server_args={'model_path': \"/srv/Qwen 3.6's\", 'host': '0.0.0.0', 'port': 30000, 'tp_size': 2}"
    )
    for parsed in (old, new):
        assert parsed is not None
        assert isinstance(parsed.event, events.ArgumentsFinal)
        assert parsed.event.values == {"model_path": "/srv/Qwen 3.6's", "host": "0.0.0.0", "port": 30000, "tp_size": 2}


def test_a_record_glued_to_a_bar_is_read_too() -> None:
    line = "Multi-thread loading shards:  20% Completed | 3/15 [00:02<00:08, 1.4it/s][2026-12-01 06:00:54 TP1] Memory pool end. avail mem=30.51 GB"
    assert [parse(part).event for part in unglue(line)] == [events.Bar("shards", 3, 15), events.PoolsEnd(30.51)]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "line",
    [
        "",
        "[",
        "[2026-12-01 04:51:40]",
        "Load weight",
        '[2026-12-01 04:51:40] INFO:     127.0.0.1:1 - "GET /health HTTP/1.1" 200 OK',
        "Traceback (most recent call last):",
        "OSError: libavutil.so.58: cannot open shared object file: No such file or directory",
        "[2026-12-01 04:51:40] user text: The server is fired up and ready to roll!",
    ],
)
def test_other_lines_mean_nothing(line: str) -> None:
    assert parse(line) is None


def test_a_stamp_with_milliseconds() -> None:
    assert stamp("[2026-12-01 04:51:40.123 TP0] x") == "2026-12-01 04:51:40.123"
    assert stamp("x [2026-12-01 04:51:40] y") == ""


words = st.sampled_from(
    [line for _, line, _ in TEMPLATES] + ["[2026-12-01 04:51:40] server_args={'port': ", "1e999", "]"]
)


@given(
    st.one_of(
        st.text(),
        st.lists(words, max_size=3).map("".join),
        words.flatmap(lambda w: st.integers(0, len(w)).map(lambda n: w[n:])),
    )
)
def test_no_text_breaks_it(line: str) -> None:
    launch = Launch()
    for part in unglue(line):
        parse(part)
    launch.feed(line, 1.0)
