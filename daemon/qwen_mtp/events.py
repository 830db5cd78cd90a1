"""What SGLang's log says, as typed events. Sizes are in GB as SGLang prints them, times in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from qwen_mtp.states import Role


@dataclass(frozen=True)
class Source:
    """Which scheduler process printed a line; SGLang names only dimensions greater than one."""

    tp: int = 0
    pp: int = 0
    dp: int = 0
    named: bool = False


@dataclass(frozen=True)
class ArgumentsFinal:
    """The `server_args=` line.

    Attributes:
        values: those of its values that are of use, by SGLang's own names.
    """

    values: Mapping[str, object]


@dataclass(frozen=True)
class DistributedBegin:
    """A rank begins to initialise torch.distributed."""


@dataclass(frozen=True)
class DistributedEnd:
    """A rank has initialised torch.distributed."""

    seconds: float


@dataclass(frozen=True)
class WeightsBegin:
    """A rank begins to load a model's weights."""

    available: float


@dataclass(frozen=True)
class WeightsEnd:
    """A rank has loaded a model's weights."""

    seconds: float
    model_class: str
    available: float
    used: float

    @property
    def role(self) -> Role:
        """Whether it was the target or the draft; SGLang's draft classes are named so (models/qwen3_5_mtp.py)."""
        names = ("MTP", "NextN", "Eagle", "Draft", "Medusa")
        return Role.DRAFT if any(name in self.model_class for name in names) else Role.TARGET


@dataclass(frozen=True)
class Bar:
    """One drawing of a progress bar.

    Attributes:
        what: `"shards"`, `"graphs"`, `"kernels"` or, for a bar that has no title yet, `""`.
    """

    what: str
    done: int
    total: int


@dataclass(frozen=True)
class StateCache:
    """The GDN (Mamba) state pool of a hybrid model is allocated."""

    slots: int
    size: float


@dataclass(frozen=True)
class KVCache:
    """A KV cache is allocated."""

    tokens: int
    size: float


@dataclass(frozen=True)
class PoolsBegin:
    """The memory pools of a model are about to be made."""


@dataclass(frozen=True)
class PoolsEnd:
    """The memory pools of a model are made."""

    available: float


@dataclass(frozen=True)
class GraphsBegin:
    """Capture of a set of CUDA graphs begins.

    Attributes:
        what: SGLang's words, such as `"target verify"`; empty for the target's in old versions.
    """

    what: str
    role: Role


@dataclass(frozen=True)
class GraphsEnd:
    """Capture of a set of CUDA graphs ended."""

    what: str
    role: Role
    seconds: float
    used: float
    available: float


@dataclass(frozen=True)
class Working:
    """A step that may be silent for minutes afterwards: autotuning, compilation."""

    what: str


@dataclass(frozen=True)
class Capacity:
    """The scheduler is ready; what it can take."""

    tokens: int
    running_requests: int
    context_length: int
    available: float


@dataclass(frozen=True)
class Listening:
    """The HTTP server is bound."""

    url: str


@dataclass(frozen=True)
class BindFailed:
    """The HTTP server could not be bound; SGLang lingers and may even say that it is ready."""

    text: str


@dataclass(frozen=True)
class FiredUp:
    """SGLang says that it is ready."""


@dataclass(frozen=True)
class DummyServer:
    """A node of rank above 0 has its health endpoint up, which is all that it ever serves."""


@dataclass(frozen=True)
class Prefill:
    """A prefill batch."""

    running: int
    queued: int
    token_usage: float
    throughput: float


@dataclass(frozen=True)
class Decode:
    """A report on decoding, every 40 steps by default (--decode-log-interval).

    Attributes:
        accept_length: tokens per verification step, the sure one included; 0.0 without speculation.
        accept_rate: as SGLang prints it; its meaning changed with 0.5.11.
    """

    running: int
    queued: int
    token_usage: float
    throughput: float
    accept_length: float
    accept_rate: float


@dataclass(frozen=True)
class Draining:
    """SGLang got SIGTERM and waits for requests.

    Attributes:
        remaining: how many, or None when it just begins.
    """

    remaining: int | None


@dataclass(frozen=True)
class HealthFailed:
    """SGLang's own health check got no token in time."""


Event = (
    ArgumentsFinal
    | DistributedBegin
    | DistributedEnd
    | WeightsBegin
    | WeightsEnd
    | Bar
    | StateCache
    | KVCache
    | PoolsBegin
    | PoolsEnd
    | GraphsBegin
    | GraphsEnd
    | Working
    | Capacity
    | Listening
    | BindFailed
    | FiredUp
    | DummyServer
    | Prefill
    | Decode
    | Draining
    | HealthFailed
)
