"""One launch of SGLang, folded out of its log: phase, progress, facts, serving figures. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from qwen_mtp import events
from qwen_mtp.events import Event, Source
from qwen_mtp.grammar import parse, stamp, unglue
from qwen_mtp.snapshot import NO_PROGRESS, Progress, Span
from qwen_mtp.states import Phase, Role

MAX_SPANS = 100
"""Spans that are kept; a launch has a dozen. Only a log made of nonsense has more."""


@dataclass(frozen=True)
class Facts:
    """What the log told about the launch; zero or empty where it did not. Memory is in GB.

    Attributes:
        weight_memory: of the target's weights, per rank.
        draft_weight_memory: of the draft's weights, per rank.
        memory_left: free memory as last printed, per rank.
        model_class: SGLang's class of the target.
        kv_cache_tokens: tokens that the target's KV cache holds, per rank.
        kv_cache_gb: its size per rank.
        state_cache_gb: size of the GDN (Mamba) state pool per rank.
        graph_memory: of all captured CUDA graphs on the first rank.
    """

    model_path: str = ""
    served_model_name: str = ""
    host: str = ""
    port: int = 0
    tp_size: int = 0
    pp_size: int = 1
    dp_size: int = 1
    nnodes: int = 1
    node_rank: int = 0
    speculative_algorithm: str = ""
    speculative_num_steps: int = 0
    speculative_eagle_topk: int = 0
    speculative_num_draft_tokens: int = 0
    model_class: str = ""
    draft_model_class: str = ""
    weight_memory: Mapping[int, float] = field(default_factory=dict)
    draft_weight_memory: Mapping[int, float] = field(default_factory=dict)
    memory_left: Mapping[int, float] = field(default_factory=dict)
    kv_cache_tokens: int = 0
    kv_cache_gb: float = 0.0
    draft_kv_cache_gb: float = 0.0
    state_cache_gb: float = 0.0
    graph_memory: float = 0.0
    max_total_tokens: int = 0
    max_running_requests: int = 0
    context_length: int = 0
    url: str = ""


@dataclass(frozen=True)
class Serving:
    """Figures of the last batch that SGLang reported; an idle SGLang reports none, so they grow old."""

    running_requests: int = 0
    queued_requests: int = 0
    token_usage: float = 0.0
    generation_throughput: float = 0.0
    accept_length: float = 0.0
    accept_rate: float = 0.0
    draining: bool = False
    remaining_requests: int = 0


_ORDER = {phase: number for number, phase in enumerate(Phase)}
_TEXT_FACTS = ("model_path", "served_model_name", "host", "speculative_algorithm")
_NUMBER_FACTS = (
    "port",
    "tp_size",
    "pp_size",
    "dp_size",
    "nnodes",
    "node_rank",
    "speculative_num_steps",
    "speculative_eagle_topk",
    "speculative_num_draft_tokens",
)
# SGLang's argument code at work, where it says nothing by its logger: argparse's usage and errors, warnings
# before logging is set up (0.5.9, 0.5.10), frames of a traceback. An import of that code is not it.
_RESOLVING = re.compile(
    r"^usage: |^[\w. ]+: error: |^WARNING:sglang"
    r"""|(?:server_args|server_args_config_parser|/arg_groups/\w+)\.py", line \d+, in \w"""
)
_SERVING = (events.Prefill, events.Decode, events.Draining, events.HealthFailed)


class Launch:
    """State of one launch; `feed` it every line of the log.

    Attributes:
        timeline: the phases so far, the last one open.
        facts: what is known.
        serving: figures of serving.
        ready: whether SGLang said that it is ready, with its port bound.
        bind_error: why its port could not be bound, empty if nothing said so.
        advanced_at: when the launch last got on: a phase, a step, a fact. Warnings that repeat do not count.
    """

    def __init__(self) -> None:
        self.timeline: list[Span] = [Span(Phase.SPAWN, None, 0.0)]
        self.facts = Facts()
        self.serving = Serving()
        self.ready = False
        self.bind_error = ""
        self.advanced_at = 0.0
        self._pools = 0
        self._target_loaded = False

    @property
    def phase(self) -> Phase:
        """The present phase."""
        return self.timeline[-1].phase

    @property
    def role(self) -> Role | None:
        """The model that the present phase is about."""
        return self.timeline[-1].role

    @property
    def progress(self) -> Progress:
        """Steps in the present phase."""
        return self.timeline[-1].progress

    def feed(self, line: str, at: float) -> bool:
        """Take the next line.

        Args:
            line: text without line end and colours; a carriage return in front marks a redrawn bar.
            at: when it was printed, in seconds since the spawn.

        Returns:
            Whether anything changed that a report shows.
        """
        line = line.lstrip("\r")
        changed = False
        if self.phase is Phase.SPAWN and (stamp(line) or _RESOLVING.search(line)):
            changed = self._enter(Phase.ARGUMENTS, None, at)
        for part in unglue(line):
            parsed = parse(part)
            if parsed is not None:
                changed |= self._apply(parsed.event, parsed.source, at)
        return changed

    # -- folding ----------------------------------------------------------------------------------

    def _apply(self, event: Event, source: Source, at: float) -> bool:
        if isinstance(event, _SERVING):
            return self._serve(event, at)
        before = (self.facts, self.timeline[-1], self.ready, self.bind_error)
        self._learn(event, source)
        if self._leads(source):
            self._move(event, at)
        changed = before != (self.facts, self.timeline[-1], self.ready, self.bind_error)
        if changed or isinstance(event, events.Working):
            self.advanced_at = at
        return changed

    def _serve(self, event: Event, at: float) -> bool:
        before = self.serving
        if isinstance(event, events.Decode):
            self.serving = replace(
                before,
                running_requests=event.running,
                queued_requests=event.queued,
                token_usage=event.token_usage,
                generation_throughput=event.throughput,
                accept_length=event.accept_length or before.accept_length,
                accept_rate=event.accept_rate or before.accept_rate,
            )
        elif isinstance(event, events.Prefill):
            if self.phase is Phase.WARMUP:
                self.advanced_at = at
            self.serving = replace(before, queued_requests=event.queued, token_usage=event.token_usage)
        elif isinstance(event, events.Draining):
            left = before.remaining_requests if event.remaining is None else event.remaining
            self.serving = replace(before, draining=True, remaining_requests=left)
        return self.serving != before

    def _learn(self, event: Event, source: Source) -> None:
        facts, rank = self.facts, self._rank(source)
        if isinstance(event, events.ArgumentsFinal):
            values = event.values
            texts = {name: values[name] for name in _TEXT_FACTS if isinstance(values.get(name), str)}
            numbers = {
                name: values[name]
                for name in _NUMBER_FACTS
                if isinstance(values.get(name), int) and not isinstance(values[name], bool)
            }
            self.facts = replace(facts, **texts, **numbers)  # type: ignore[arg-type]
        elif isinstance(event, events.WeightsEnd):
            left = {**facts.memory_left, rank: event.available}
            if event.role is Role.DRAFT:
                memory = {**facts.draft_weight_memory, rank: event.used}
                self.facts = replace(
                    facts, draft_weight_memory=memory, draft_model_class=event.model_class, memory_left=left
                )
            else:
                memory = {**facts.weight_memory, rank: event.used}
                self.facts = replace(facts, weight_memory=memory, model_class=event.model_class, memory_left=left)
        elif isinstance(event, (events.PoolsEnd, events.GraphsEnd)):
            self.facts = facts = replace(facts, memory_left={**facts.memory_left, rank: event.available})
            if isinstance(event, events.GraphsEnd) and self._leads(source):
                self.facts = replace(facts, graph_memory=round(facts.graph_memory + event.used, 2))
        elif isinstance(event, events.StateCache) and self._leads(source):
            self.facts = replace(facts, state_cache_gb=event.size)
        elif isinstance(event, events.KVCache) and self._leads(source):
            if self._is_draft_pool():
                self.facts = replace(facts, draft_kv_cache_gb=event.size)
            else:
                self.facts = replace(facts, kv_cache_tokens=event.tokens, kv_cache_gb=event.size)
        elif isinstance(event, events.Capacity):
            self.facts = replace(
                facts,
                max_total_tokens=event.tokens,
                kv_cache_tokens=facts.kv_cache_tokens or event.tokens,
                max_running_requests=event.running_requests,
                context_length=event.context_length,
            )
        elif isinstance(event, events.Listening):
            self.facts = replace(facts, url=event.url)

    def _rank(self, source: Source) -> int:
        size = max(self.facts.tp_size, 1)
        return (source.dp * max(self.facts.pp_size, 1) + source.pp) * size + source.tp

    def _leads(self, source: Source) -> bool:
        """Tell whether the phases follow this process: the first rank of this node, or one without a name."""
        facts = self.facts
        first = facts.node_rank * facts.tp_size // max(facts.nnodes, 1)
        return not source.named or (source.tp == first and not source.pp and not source.dp)

    def _is_draft_pool(self) -> bool:
        """Tell whether the next pool is the draft's: it comes second, and only where a draft was loaded."""
        return self._pools > 0 and bool(self.facts.draft_weight_memory)

    def _move(self, event: Event, at: float) -> None:
        if isinstance(event, events.ArgumentsFinal):
            self._enter(Phase.ARGUMENTS, None, at)
        elif isinstance(event, events.DistributedBegin):
            self._enter(Phase.DISTRIBUTED, None, at)
        elif isinstance(event, events.WeightsBegin):
            if self._target_loaded:
                self._enter(Phase.DRAFT_WEIGHTS, Role.DRAFT, at)
            else:
                self._enter(Phase.WEIGHTS, Role.TARGET, at)
        elif isinstance(event, events.WeightsEnd):
            self._target_loaded = True
        elif isinstance(event, (events.PoolsBegin, events.StateCache, events.KVCache)):
            if self._is_draft_pool():
                self._enter(Phase.DRAFT_KV_CACHE, Role.DRAFT, at)
            else:
                self._enter(Phase.KV_CACHE, Role.TARGET, at)
        elif isinstance(event, events.PoolsEnd):
            self._pools += 1
        elif isinstance(event, events.GraphsBegin):
            self._enter(Phase.CUDA_GRAPHS, event.role, at)
        elif isinstance(event, events.Bar):
            self._step(event)
        elif isinstance(event, events.Capacity):
            self._enter(Phase.HTTP, None, at)
        elif isinstance(event, events.Listening):
            self._enter(Phase.WARMUP, None, at)
        elif isinstance(event, events.BindFailed):
            self.bind_error = self.bind_error or event.text
        elif isinstance(event, (events.FiredUp, events.DummyServer)) and not self.bind_error:
            self.ready = True
            self._enter(Phase.READY, None, at)

    def _step(self, bar: events.Bar) -> None:
        fits = {
            "shards": self.phase in (Phase.WEIGHTS, Phase.DRAFT_WEIGHTS),
            "graphs": self.phase is Phase.CUDA_GRAPHS,
            "": self.phase is Phase.CUDA_GRAPHS,
            "kernels": True,
        }[bar.what]
        if fits and 0 <= bar.done <= bar.total:
            self.timeline[-1] = replace(self.timeline[-1], progress=Progress(bar.done, bar.total))

    def _enter(self, phase: Phase, role: Role | None, at: float) -> bool:
        """Go on to a phase, never back but for what old versions do: the draft's after the target's graphs."""
        last = self.timeline[-1]
        if last.phase is phase and last.role is role:
            return False
        backwards = _ORDER[phase] < _ORDER[last.phase]
        late_draft = role is Role.DRAFT and last.phase is Phase.CUDA_GRAPHS and last.role is Role.TARGET
        # The target's pools follow the draft's weights since 0.5.14.
        late_pools = phase is Phase.KV_CACHE and last.phase is Phase.DRAFT_WEIGHTS and self._pools == 0
        if backwards and not late_draft and not late_pools:
            return False
        if len(self.timeline) >= MAX_SPANS:
            return False
        at = max(at, last.start)
        self.timeline[-1] = replace(last, end=at)
        self.timeline.append(Span(phase, role, at, None, NO_PROGRESS))
        return True
