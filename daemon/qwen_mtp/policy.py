"""The restart policy: what follows a failure. Pure; time and chance are passed in."""

from __future__ import annotations

from dataclasses import dataclass

from qwen_mtp.diagnosis import Diagnosis
from qwen_mtp.settings import SupervisorSettings
from qwen_mtp.states import FailureClass, Restart

_MAX_SUMMARY = 200


@dataclass(frozen=True)
class Decision:
    """What is to be done.

    Attributes:
        action: `"restart"` or `"give-up"`.
        delay: seconds until the restart.
        reason: a sentence for the journal.
        exhausted: whether it was the budget that ended the attempts.
    """

    action: str
    delay: float
    reason: str
    exhausted: bool = False


@dataclass
class _Restart:
    """A restart that was decided.

    Attributes:
        time: when.
        served: whether a server became ready after it.
    """

    time: float
    served: bool = False


_DETERMINED = frozenset({FailureClass.GPU_OUT_OF_MEMORY, FailureClass.WARMUP_FAILED, FailureClass.UNKNOWN_EXCEPTION})
"""Classes that are retried because they may heal, but that the configuration alone can bring about."""


class Policy:
    """Decides by the failure's class and by what happened before.

    `never` gives up at once. `slow` and `backoff` restart after delays that double, each with its own
    beginning and cap, and share one budget. A restart leaves the budget after the window, but only if a
    server became ready since: launches that take longer than the window and never become ready end, too. A
    server that was ready for as long as the window starts with a clean slate. What the configuration alone can
    bring about, and fails twice in the same way, counts as `never`.

    Args:
        settings: delays and budget.
    """

    def __init__(self, settings: SupervisorSettings) -> None:
        self._settings = settings
        self._restarts: list[_Restart] = []
        self._last: tuple[object, ...] = ()

    def was_ready(self, seconds: float) -> None:
        """Take note of how long the server that has ended now was ready."""
        if seconds >= self._settings.restart_window:
            self._restarts.clear()
        for restart in self._restarts:
            restart.served = True
        self._last = ()

    def decide(self, diagnosis: Diagnosis, now: float, chance: float) -> Decision:
        """Decide about a failure.

        Args:
            diagnosis: the failure.
            now: seconds of a monotonic clock.
            chance: a number from 0 to 1, drawn by the caller.
        """
        settings = self._settings
        what = _shorten(diagnosis.summary)
        if diagnosis.restart is Restart.NEVER:
            return Decision("give-up", 0.0, f"{what}; not trying again, because this cannot heal by itself")
        if self._is_repeated(diagnosis):
            return Decision("give-up", 0.0, f"{what}; not trying again, because it failed in the same way before")
        self._restarts = [
            restart for restart in self._restarts if not restart.served or now - restart.time < settings.restart_window
        ]
        attempt = len(self._restarts) + 1
        budget = settings.restart_budget
        if attempt > budget:
            why = f"{budget} restarts did not help" if budget else "restarts are switched off (restart-budget = 0)"
            return Decision("give-up", 0.0, f"{what}; giving up, because {why}", exhausted=True)
        self._restarts.append(_Restart(now))
        delay = self._delay(diagnosis.restart, attempt, chance)
        return Decision("restart", delay, f"{what}; trying again in {delay:.0f} s (attempt {attempt} of {budget})")

    def _is_repeated(self, diagnosis: Diagnosis) -> bool:
        """Tell whether this is the same failure as the one before, with no ready server in between."""
        before = self._last
        self._last = (diagnosis.failure_class, diagnosis.rule, diagnosis.phase, diagnosis.summary)
        return self._settings.repeat_gives_up and diagnosis.failure_class in _DETERMINED and before == self._last

    def _delay(self, restart: Restart, attempt: int, chance: float) -> float:
        settings = self._settings
        if restart is Restart.SLOW:
            first, cap = settings.slow_initial, settings.slow_max
        else:
            first, cap = settings.backoff_initial, settings.backoff_max
        delay = min(first * 2.0 ** min(attempt - 1, 60), cap)
        spread = settings.backoff_jitter * (2 * min(max(chance, 0.0), 1.0) - 1)
        return min(max(delay * (1 + spread), 0.0), cap)


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_SUMMARY else text[: _MAX_SUMMARY - 1] + "…"
