"""The settings of [supervisor], as one table that parsing, `qwen-mtp config` and the manual share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from qwen_mtp.states import Phase

Value = bool | int | float | str


class Setting(NamedTuple):
    """One key of [supervisor].

    Attributes:
        name: the key.
        default: its value when it is not set; also gives the type.
        low: least value that is allowed; for text unused.
        high: greatest value that is allowed.
        unit: of the value, empty for none.
        help: what it does, for the manual.
        choices: allowed texts.
    """

    name: str
    default: Value
    low: float
    high: float
    unit: str
    help: str
    choices: tuple[str, ...] = ()


DAY = 86400.0

SETTINGS: tuple[Setting, ...] = (
    Setting(
        "stop-timeout",
        90.0,
        1,
        DAY,
        "seconds",
        "How long SGLang may take to finish its requests after SIGTERM, at stop and at restart. SGLang itself "
        "has no limit: it waits for every request. What is left then is killed.",
    ),
    Setting(
        "ready-timeout",
        120.0,
        1,
        DAY,
        "seconds",
        "How long the health endpoint may take to answer 200 once SGLang's log says that it is ready.",
    ),
    Setting(
        "ready-generate",
        False,
        0,
        0,
        "",
        "Ask for one generated token by /generate, too, before the service counts as ready. The health endpoint "
        "already makes SGLang generate one, unless SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION=0 is set under [env].",
    ),
    Setting(
        "health-interval",
        30.0,
        1,
        DAY,
        "seconds",
        "Time between two health checks while SGLang serves.",
    ),
    Setting(
        "health-timeout",
        30.0,
        1,
        3600,
        "seconds",
        "How long one health check may take. SGLang gives up after 20 s by itself (SGLANG_HEALTH_CHECK_TIMEOUT).",
    ),
    Setting(
        "health-failures",
        3,
        1,
        1000,
        "",
        "Health checks that must fail in a row before the service counts as unresponsive. A long prefill or a "
        "kernel that is compiled on first use can make a sound server miss some.",
    ),
    Setting(
        "backoff-initial",
        5.0,
        0,
        DAY,
        "seconds",
        "Delay before the first restart after a failure of a class with back-off; it doubles each time.",
    ),
    Setting("backoff-max", 300.0, 0, DAY, "seconds", "Greatest such delay."),
    Setting(
        "backoff-jitter",
        0.2,
        0,
        1,
        "",
        "Part of a delay that is drawn at random, so that several hosts do not start in step.",
    ),
    Setting(
        "slow-initial",
        60.0,
        0,
        DAY,
        "seconds",
        "Delay before the first restart after a failure whose cause lies in the surroundings; it doubles each time.",
    ),
    Setting("slow-max", 900.0, 0, DAY, "seconds", "Greatest such delay."),
    Setting(
        "restart-budget",
        5,
        0,
        1000000,
        "",
        "Restarts after failures, of all classes together, before the service gives up. 0 means that it never "
        "restarts SGLang by itself.",
    ),
    Setting(
        "restart-window",
        3600.0,
        1,
        30 * DAY,
        "seconds",
        "Once a server became ready after it, a restart counts against the budget for so long; until then it counts "
        "on. A server that was ready for so long clears them all.",
    ),
    Setting(
        "repeat-gives-up",
        True,
        0,
        0,
        "",
        "Whether the same failure, with the same figures in the same phase, twice in a row and without a ready "
        "server in between, ends the attempts: a GPU that ran out of memory twice at the same place will do so again. "
        "It applies to classes whose outcome is determined by the configuration: gpu-out-of-memory, warmup-failed, "
        "unknown-exception.",
    ),
    Setting(
        "log-level",
        "info",
        0,
        0,
        "",
        "Least level of the supervisor's own journal entries.",
        ("debug", "info", "warning", "error"),
    ),
)

PHASE_TIMEOUTS: Mapping[Phase, float] = {
    Phase.SPAWN: 300.0,
    Phase.ARGUMENTS: 300.0,
    Phase.DISTRIBUTED: 300.0,
    Phase.WEIGHTS: 900.0,
    Phase.KV_CACHE: 1800.0,
    Phase.DRAFT_WEIGHTS: 900.0,
    Phase.DRAFT_KV_CACHE: 1800.0,
    Phase.CUDA_GRAPHS: 3600.0,
    Phase.HTTP: 300.0,
    Phase.WARMUP: 900.0,
}
"""Default limits without progress, in seconds. Above what SGLang itself allows (600 s for its warm-up) and
what its silent steps take: a DeepGEMM or nvcc compilation before or in graph capture takes up to 20 minutes
(its own log says so: deep_gemm_wrapper/compile_utils.py)."""


@dataclass(frozen=True)
class SupervisorSettings:
    """The values of [supervisor]; `SETTINGS` says what each means."""

    stop_timeout: float
    ready_timeout: float
    ready_generate: bool
    health_interval: float
    health_timeout: float
    health_failures: int
    backoff_initial: float
    backoff_max: float
    backoff_jitter: float
    slow_initial: float
    slow_max: float
    restart_budget: int
    restart_window: float
    repeat_gives_up: bool
    log_level: str
    phase_timeout: Mapping[Phase, float]


def make(values: Mapping[str, Value], phase_timeouts: Mapping[Phase, float]) -> SupervisorSettings:
    """Make settings of checked values; what is not given takes its default."""
    given = {setting.name.replace("-", "_"): values.get(setting.name, setting.default) for setting in SETTINGS}
    return SupervisorSettings(**given, phase_timeout={**PHASE_TIMEOUTS, **phase_timeouts})  # type: ignore[arg-type]
