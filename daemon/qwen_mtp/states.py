"""The closed sets of names that users see: supervisor states and start-up phases.

Both are part of the D-Bus interface and of the journal fields, so a member is
added here and documented in org.qwenmtp.Supervisor1(5), never renamed.
"""

from __future__ import annotations

from enum import Enum


class State(str, Enum):
    """What the supervisor is doing with SGLang right now."""

    PREFLIGHT = "preflight"
    """Configuration and surroundings are being checked; nothing runs yet."""
    STARTING = "starting"
    """SGLang runs and has not answered yet; `Phase` says how far it is."""
    READY = "ready"
    """SGLang answered a health request and serves."""
    UNRESPONSIVE = "unresponsive"
    """SGLang was ready and no longer answers its health endpoint."""
    DRAINING = "draining"
    """SGLang was asked to end and finishes the requests it has."""
    STOPPING = "stopping"
    """What is left of SGLang is being killed."""
    BACKING_OFF = "backing-off"
    """SGLang is down and will be started again at `NextRestartUSec`."""
    FAILED = "failed"
    """SGLang is down and stays down; `LastFailure` says why."""


class Phase(str, Enum):
    """How far a launch of SGLang is, in SGLang's own order.

    SGLang up to 0.5.13 loads the draft (MTP) model after it captured the target's CUDA
    graphs, later versions before: the order below is the later one, and a timeline may
    visit CUDA_GRAPHS before DRAFT_WEIGHTS. A phase that SGLang skips is skipped.
    """

    SPAWN = "spawn"
    """Forked and executed; Python imports SGLang, whose log has not begun."""
    ARGUMENTS = "arguments"
    """SGLang resolves and checks its arguments, then starts its children."""
    DISTRIBUTED = "distributed"
    """torch.distributed and NCCL are initialised."""
    WEIGHTS = "weights"
    """The target model's weights are loaded."""
    KV_CACHE = "kv-cache"
    """The KV cache and the GDN (Mamba) state pools are allocated."""
    DRAFT_WEIGHTS = "draft-weights"
    """The draft (MTP) model's weights are loaded."""
    DRAFT_KV_CACHE = "draft-kv-cache"
    """The draft model's KV cache is allocated."""
    CUDA_GRAPHS = "cuda-graphs"
    """CUDA graphs are captured; kernels may be compiled on the way."""
    HTTP = "http"
    """The scheduler is ready and the HTTP server comes up."""
    WARMUP = "warmup"
    """SGLang sends itself a first request."""
    READY = "ready"
    """SGLang said that it is ready to serve."""


class Role(str, Enum):
    """Which of the two models of a speculative launch a phase is about."""

    TARGET = "target"
    DRAFT = "draft"


class FailureClass(str, Enum):
    """What kind of failure ended SGLang; the ids are listed in qwen-mtp(1)."""

    BAD_ARGUMENT = "bad-argument"
    CONFIG_ASSERTION = "config-assertion"
    MISSING_LIBRARY = "missing-library"
    BROKEN_ENVIRONMENT = "broken-environment"
    UNSUPPORTED_MODEL = "unsupported-model"
    MODEL_NOT_FOUND = "model-not-found"
    DOWNLOAD_FAILED = "download-failed"
    MODEL_CORRUPT = "model-corrupt"
    GPU_OUT_OF_MEMORY = "gpu-out-of-memory"
    KV_CACHE_TOO_SMALL = "kv-cache-too-small"
    GPU_UNAVAILABLE = "gpu-unavailable"
    GPU_FAULT = "gpu-fault"
    UNSUPPORTED_GPU = "unsupported-gpu"
    NCCL = "nccl"
    WARMUP_FAILED = "warmup-failed"
    PORT_IN_USE = "port-in-use"
    JIT_COMPILE = "jit-compile"
    HOST_OUT_OF_MEMORY = "host-out-of-memory"
    DISK_FULL = "disk-full"
    PERMISSION_DENIED = "permission-denied"
    HANG = "hang"
    KILLED = "killed"
    CRASH = "crash"
    UNKNOWN_EXCEPTION = "unknown-exception"
    UNEXPECTED_EXIT = "unexpected-exit"


class Restart(str, Enum):
    """What the supervisor does after a failure of a class."""

    NEVER = "never"
    """It cannot heal by itself: the service fails and stays down until someone acts."""
    SLOW = "slow"
    """The surroundings may heal: retried with a long delay."""
    BACKOFF = "backoff"
    """Retried with exponentially growing delays, a cap and a budget."""
