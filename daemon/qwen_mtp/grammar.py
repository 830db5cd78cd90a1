"""The grammar of SGLang's log: one table, from line to event. Pure.

`RULES` can be read against SGLang line by line: each names the versions that it holds for and the source
file (of sglang/srt/, in the newest of these versions) that prints the line. A rule is looked up by the first
word of the text behind SGLang's time stamp, so that a line of steady serving costs one lookup and one match.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from typing import NamedTuple

from qwen_mtp import events
from qwen_mtp.events import Event, Source
from qwen_mtp.states import Role

NUMBER = r"-?[\d.]+"

_STAMP = re.compile(r"\[(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?)(?P<ranks>(?: [A-Z_]+\d+)*)\] ")
_GLUED = re.compile(r".(?=\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)")
_RANK = re.compile(r" (TP|PP|DP)(\d+)")
_NO_SOURCE = Source()


class Parsed(NamedTuple):
    """A line that means something.

    Attributes:
        event: what it says.
        source: who printed it.
    """

    event: Event
    source: Source


class Rule(NamedTuple):
    """One line of the grammar.

    Attributes:
        pattern: matches the text behind the time stamp, from its beginning.
        build: makes the event; None says that the match, looked at closely, means nothing.
        versions: SGLang versions it was checked for.
        origin: where SGLang prints it.
    """

    pattern: re.Pattern[str]
    build: Callable[[re.Match[str]], Event | None]
    versions: str
    origin: str


def _rule(pattern: str, build: Callable[[re.Match[str]], Event | None], versions: str, origin: str) -> Rule:
    return Rule(re.compile(pattern), build, versions, origin)


# -- builders that need more than a line -----------------------------------------------------------

_ARGUMENTS = (
    "model_path",
    "served_model_name",
    "host",
    "port",
    "tp_size",
    "pp_size",
    "dp_size",
    "nnodes",
    "node_rank",
    "context_length",
    "mem_fraction_static",
    "speculative_algorithm",
    "speculative_num_steps",
    "speculative_eagle_topk",
    "speculative_num_draft_tokens",
    "quantization",
)
_ARGUMENT = re.compile(
    rf"(?:'(?P<quoted>{'|'.join(_ARGUMENTS)})': |\b(?P<bare>{'|'.join(_ARGUMENTS)})=)"
    r"(?P<value>None|True|False|-?\d[\d.e+-]*|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")"
)


def _arguments(match: re.Match[str]) -> Event:
    values: dict[str, object] = {}
    for found in _ARGUMENT.finditer(match.string, match.end()):
        try:
            values.setdefault(found["quoted"] or found["bare"], ast.literal_eval(found["value"]))
        except (ValueError, SyntaxError):
            continue
    return events.ArgumentsFinal(values)


def _fields(text: str) -> dict[str, str]:
    """Split `a: 1, b: 2`; the order and the number of fields differ between versions."""
    return dict(part.split(": ", 1) for part in text.split(", ") if ": " in part)


def _decimal(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def _usage(fields: dict[str, str]) -> float:
    return _decimal(fields.get("token usage") or fields.get("full token usage", "0"))


def _prefill(match: re.Match[str]) -> Event:
    fields = _fields(match.string[match.end() :])
    return events.Prefill(
        running=int(_decimal(fields.get("#running-req", "0"))),
        queued=int(_decimal(fields.get("#queue-req", "0"))),
        token_usage=_usage(fields),
        throughput=_decimal(fields.get("input throughput (token/s)", "0")),
    )


def _decode(match: re.Match[str]) -> Event:
    fields = _fields(match.string[match.end() :])
    return events.Decode(
        running=int(_decimal(fields.get("#running-req", "0"))),
        queued=int(_decimal(fields.get("#queue-req", "0"))),
        token_usage=_usage(fields),
        throughput=_decimal(fields.get("gen throughput (token/s)", "0")),
        accept_length=_decimal(fields.get("accept len", "0")),
        accept_rate=_decimal(fields.get("accept rate", "0")),
    )


def _kv_cache(match: re.Match[str]) -> Event:
    sizes = re.findall(rf"(?:K |V |KV )size: ({NUMBER}) GB", match.string[match.end() :])
    return events.KVCache(int(match["tokens"]), round(sum(map(_decimal, sizes)), 2))


def _state_cache(match: re.Match[str]) -> Event:
    sizes = re.findall(rf"size: ({NUMBER})GB", match.string[match.end() :])
    return events.StateCache(int(match["slots"]), round(sum(map(_decimal, sizes)), 2))


def _role(what: str) -> Role:
    return Role.DRAFT if "draft" in what else Role.TARGET


def _graphs_begin(match: re.Match[str]) -> Event:
    what = (match["what"] or "").strip().lower()
    return events.GraphsBegin(what, _role(what))


def _graphs_end(match: re.Match[str]) -> Event:
    what = (match["what"] or "").strip().lower()
    seconds, used, available = (_decimal(match[name]) for name in ("seconds", "used", "available"))
    return events.GraphsEnd(what, _role(what), seconds, used, available)


def _bar(what: str) -> Callable[[re.Match[str]], Event]:
    return lambda match: events.Bar(what, int(match["done"]), int(match["total"]))


_COUNT = r"(?P<done>\d+)/(?P<total>\d+) \["
_WHAT = r"(?P<what>(?: ?(?:target|draft|decode|verify|prefill|extend|piecewise))*)"

# -- the grammar, in the order of a start ------------------------------------------------------------

RULES: tuple[Rule, ...] = (
    _rule(r"server_args=", _arguments, "0.5.9-0.5.23", "entrypoints/engine.py"),
    _rule(
        r"Init (?:torch distributed|parallel) begin\.",
        lambda _: events.DistributedBegin(),
        "torch distributed: 0.5.9-0.5.18, parallel: 0.5.23",
        "distributed/bootstrap.py",
    ),
    _rule(
        rf"Init (?:torch distributed|parallel) ends\. elapsed=(?P<s>{NUMBER}) s",
        lambda m: events.DistributedEnd(_decimal(m["s"])),
        "torch distributed: 0.5.9-0.5.18, parallel: 0.5.23",
        "distributed/bootstrap.py",
    ),
    _rule(
        rf"Load weight begin\. avail mem=(?P<avail>{NUMBER}) GB",
        lambda m: events.WeightsBegin(_decimal(m["avail"])),
        "0.5.9-0.5.23",
        "model_executor/model_runner.py",
    ),
    _rule(
        r"(?:Loading|Multi-thread loading) (?:safetensors |pt )?(?:checkpoint )?shards: .*?" + _COUNT,
        _bar("shards"),
        "Loading…: 0.5.9, Multi-thread…: 0.5.10-0.5.23",
        "model_loader/weight_utils.py",
    ),
    _rule(
        r"Loading safetensors using Runai Model Streamer: .*?" + _COUNT,
        _bar("shards"),
        "0.5.9-0.5.23, --load-format runai_streamer",
        "model_loader/weight_utils.py",
    ),
    _rule(
        rf"Load weight end\. elapsed=(?P<s>{NUMBER}) s, (?:dtype=\S+ )?type=(?P<type>\w+), .*?"
        rf"avail mem=(?P<avail>{NUMBER}) GB, mem usage=(?P<used>{NUMBER}) GB",
        lambda m: events.WeightsEnd(_decimal(m["s"]), m["type"], _decimal(m["avail"]), _decimal(m["used"])),
        "0.5.9-0.5.23; dtype in 0.5.9, quant= in between since",
        "model_executor/model_runner.py",
    ),
    _rule(
        rf"Load weight end\. elapsed=(?P<s>{NUMBER}) s, type=(?P<type>\w+), (?:dtype=\S+, )?"
        rf"avail mem=(?P<avail>{NUMBER}) GB, mem usage=(?P<used>{NUMBER}) GB",
        lambda m: events.WeightsEnd(_decimal(m["s"]), m["type"], _decimal(m["avail"]), _decimal(m["used"])),
        "0.5.9",
        "model_executor/model_runner.py",
    ),
    _rule(r"Using KV cache dtype: ", lambda _: events.PoolsBegin(), "0.5.9-0.5.16", "model_executor/model_runner.py"),
    _rule(
        r"Mamba Cache is allocated\. max_mamba_cache_size: (?P<slots>\d+),",
        _state_cache,
        "0.5.9-0.5.23",
        "mem_cache/memory_pool.py",
    ),
    _rule(
        r"KV Cache is allocated\. (?:dtype: \S+, )?#tokens: (?P<tokens>\d+),",
        _kv_cache,
        "0.5.9-0.5.12; with dtype 0.5.13-0.5.23",
        "mem_cache/memory_pool.py",
    ),
    _rule(
        rf"Memory pool end\. avail mem=(?P<avail>{NUMBER}) GB",
        lambda m: events.PoolsEnd(_decimal(m["avail"])),
        "0.5.9-0.5.23",
        "mem_cache/kv_cache_configurator.py",
    ),
    _rule(
        rf"Capture{_WHAT} (?:cuda graph|CUDA graph) begin\.",
        _graphs_begin,
        "cuda graph: 0.5.9-0.5.13, CUDA graph: piecewise 0.5.10-0.5.13, all 0.5.14-0.5.23",
        "model_executor/model_runner_components/cuda_graph_setup.py, speculative/eagle_worker_v2.py",
    ),
    _rule(
        rf"Capture{_WHAT} (?:cuda graph|CUDA graph) end\. .*?(?:Time elapsed: |elapsed=)(?P<seconds>{NUMBER}) s[.,] "
        rf"mem usage=(?P<used>{NUMBER}) GB[.,] avail mem=(?P<available>{NUMBER}) GB",
        _graphs_end,
        "Time elapsed: 0.5.9-0.5.13, elapsed= 0.5.14-0.5.23",
        "model_executor/model_runner_components/cuda_graph_setup.py, speculative/eagle_worker_v2.py",
    ),
    _rule(
        r"Capturing (?:batches|num tokens|prefill shape) \(.*?\): .*?" + _COUNT,
        _bar("graphs"),
        "batches: 0.5.9-0.5.23, num tokens: 0.5.9-0.5.18, prefill shape: 0.5.23",
        "model_executor/*_cuda_graph_runner.py",
    ),
    _rule(
        r"Compiling num tokens \(.*?\): .*?" + _COUNT,
        _bar("graphs"),
        "0.5.9-0.5.23, tc_piecewise",
        "model_executor/piecewise_cuda_graph_runner.py",
    ),
    _rule(r" *\d+%\|.*?\| " + _COUNT, _bar(""), "0.5.9-0.5.23, tqdm before its title is set", "tqdm"),
    _rule(
        r"(?P<what>Running FlashInfer autotune|FlashInfer autotune completed)",
        lambda m: events.Working(m["what"]),
        "0.5.9-0.5.23",
        "model_executor/flashinfer_autotune.py",
    ),
    _rule(
        r"Entering DeepGEMM JIT (?P<what>[\w-]+)",
        lambda _: events.Working("DeepGEMM compilation"),
        "0.5.9-0.5.23, FP8 only",
        "layers/deep_gemm_wrapper/compile_utils.py",
    ),
    _rule(
        r"DeepGEMM warmup: .*?" + _COUNT,
        _bar("kernels"),
        "0.5.9-0.5.23, FP8 only",
        "layers/deep_gemm_wrapper/compile_utils.py",
    ),
    _rule(
        r"max_total_num_tokens=(?P<tokens>\d+), .*?max_running_requests=(?P<running>\d+), "
        rf"context_len=(?P<context>\d+)(?:, available_\w+_mem=(?P<avail>{NUMBER}) GB)?",
        lambda m: events.Capacity(int(m["tokens"]), int(m["running"]), int(m["context"]), _decimal(m["avail"] or "0")),
        "0.5.9-0.5.23",
        "managers/scheduler.py",
    ),
    _rule(
        r"INFO: +Uvicorn running on (?P<url>\S+)",
        lambda m: events.Listening(m["url"]),
        "0.5.9-0.5.23",
        "uvicorn/server.py",
    ),
    _rule(
        r"ERROR: +(?P<text>\[Errno \d+\] error while attempting to bind on address .*)",
        lambda m: events.BindFailed(m["text"]),
        "0.5.9-0.5.23",
        "uvicorn/server.py",
    ),
    _rule(
        r"Dummy health check server started in background thread",
        lambda _: events.DummyServer(),
        "0.5.9-0.5.23, node rank above 0",
        "managers/multi_tokenizer_mixin.py, entrypoints/engine.py",
    ),
    _rule(
        r"The server is fired up and ready to roll!",
        lambda _: events.FiredUp(),
        "0.5.9-0.5.23",
        "entrypoints/http_server.py",
    ),
    _rule(r"Prefill batch(?: \[\d+\])?, ", _prefill, "0.5.9-0.5.23", "managers/scheduler_metrics_mixin.py"),
    _rule(r"Decode batch(?: \[\d+\])?, ", _decode, "0.5.9-0.5.23", "managers/scheduler_metrics_mixin.py"),
    _rule(
        r"Health check failed\. Server couldn't get a response from detokenizer",
        lambda _: events.HealthFailed(),
        "0.5.9-0.5.23",
        "entrypoints/http_server.py",
    ),
    _rule(
        r"SIGTERM received\. signum=",
        lambda _: events.Draining(None),
        "0.5.9-0.5.23",
        "managers/tokenizer_manager.py",
    ),
    _rule(
        r"Gracefully exiting\.\.\. Remaining number of requests (?P<n>\d+)",
        lambda m: events.Draining(int(m["n"])),
        "0.5.9-0.5.23",
        "managers/tokenizer_manager.py",
    ),
)


def _first_words() -> dict[str, tuple[Rule, ...]]:
    """Index the rules by the first word that their lines can begin with."""
    index: dict[str, list[Rule]] = {}
    for rule in RULES:
        pattern = rule.pattern.pattern
        group = re.match(r"\(\?(?::|P<\w+>)([^)]*)\)", pattern)
        for text in group.group(1).split("|") if group else [pattern]:
            word = re.match(r"[A-Za-z_]+", text)
            index.setdefault(word.group() if word else "%", []).append(rule)
    return {word: tuple(rules) for word, rules in index.items()}


_BY_WORD = _first_words()
_FIRST = re.compile(r"[A-Za-z_]+")


def unglue(line: str) -> list[str]:
    """Split a line in which a log record follows an unfinished progress bar."""
    if line.startswith("[") or "[20" not in line:
        return [line]
    found = _GLUED.search(line)
    return [line[: found.end()], line[found.end() :]] if found else [line]


def stamp(line: str) -> str:
    """Return SGLang's time stamp of a line, empty if it has none."""
    found = _STAMP.match(line)
    return found["time"] if found else ""


def parse(line: str) -> Parsed | None:
    """Read one line.

    Args:
        line: text without its line end and without colours.

    Returns:
        What it says, or None if it says nothing about phases or serving.
    """
    start, source = 0, _NO_SOURCE
    if line.startswith("["):
        found = _STAMP.match(line)
        if found is None:
            return None
        start = found.end()
        if found["ranks"]:
            ranks = {name.lower(): int(number) for name, number in _RANK.findall(found["ranks"])}
            source = Source(named=True, **ranks)
    word = _FIRST.match(line, start)
    text = line[start:] if start else line
    for rule in _BY_WORD.get(word.group() if word else "%", ()):
        match = rule.pattern.match(text)
        if match is not None:
            event = rule.build(match)
            if event is not None:
                return Parsed(event, source)
    return None
