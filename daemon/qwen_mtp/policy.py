"""The restart policy: what follows a failure. Pure; time and chance are passed in."""

from __future__ import annotations

from dataclasses import dataclass

from qwen_mtp.diagnosis import Diagnosis
from qwen_mtp.settings import SupervisorSettings
from qwen_mtp.states import Restart


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


class Policy:
    """Decides by the failure's class and by what happened before.

    `never` gives up at once. `slow` and `backoff` restart after delays that double, each with its own
    beginning and cap, and share one budget: so many restarts within the window. A server that was ready for
    as long as the window starts with a clean slate.

    Args:
        settings: delays and budget.
    """

    def __init__(self, settings: SupervisorSettings) -> None:
        self._settings = settings
        self._restarts: list[float] = []

    def was_ready(self, seconds: float) -> None:
        """Take note of how long the server that has ended now was ready."""
        if seconds >= self._settings.restart_window:
            self._restarts.clear()

    def decide(self, diagnosis: Diagnosis, now: float, chance: float) -> Decision:
        """Decide about a failure.

        Args:
            diagnosis: the failure.
            now: seconds of a monotonic clock.
            chance: a number from 0 to 1, drawn by the caller.
        """
        settings = self._settings
        name = diagnosis.failure_class.value
        if diagnosis.restart is Restart.NEVER:
            return Decision("give-up", 0.0, f"{name} cannot heal by itself: SGLang is not started again")
        self._restarts = [time for time in self._restarts if now - time < settings.restart_window]
        attempt = len(self._restarts) + 1
        if attempt > settings.restart_budget:
            budget = settings.restart_budget
            why = (
                f"{budget} restarts within {settings.restart_window:.0f} s did not help"
                if budget
                else "restarts are switched off (restart-budget = 0)"
            )
            return Decision("give-up", 0.0, f"{name}: {why}: SGLang is not started again", exhausted=True)
        self._restarts.append(now)
        if diagnosis.restart is Restart.SLOW:
            first, cap = settings.slow_initial, settings.slow_max
        else:
            first, cap = settings.backoff_initial, settings.backoff_max
        delay = min(first * 2.0 ** min(attempt - 1, 60), cap)
        delay = max(delay * (1 + settings.backoff_jitter * (2 * min(max(chance, 0.0), 1.0) - 1)), 0.0)
        delay = min(delay, cap)
        return Decision(
            "restart",
            delay,
            f"{name}: starting SGLang again in {delay:.0f} s (restart {attempt} of {settings.restart_budget})",
        )
