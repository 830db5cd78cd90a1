"""Whether SGLang answers: first before it counts as ready, then for as long as it serves."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from qwen_mtp import loop
from qwen_mtp.containment import Containment
from qwen_mtp.health import Answer, Prober
from qwen_mtp.job import Job
from qwen_mtp.ports import listener
from qwen_mtp.settings import SupervisorSettings

_AGAIN = 0.25
"""Seconds until a server that is not ready yet is asked again."""


class Readiness:
    """Asks one SGLang after the other; answers about an earlier one are dropped.

    Args:
        job: where SGLang serves.
        settings: how often, how long, how many failures.
        containment: whose listening socket counts: a stranger's on the same port does not.
        on_ready: called when the server that `begin` was called for answers.
        on_change: called with True when a serving SGLang answers again, with False and the last detail
            when it failed several checks in a row.
    """

    def __init__(
        self,
        job: Job,
        settings: SupervisorSettings,
        containment: Containment,
        on_ready: Callable[[], None],
        on_change: Callable[[bool, str], None],
    ) -> None:
        self._endpoint = job.endpoint
        self._settings = settings
        self._containment = containment
        self._on_ready = on_ready
        self._on_change = on_change
        self._prober = Prober(job.endpoint, job.api_key, settings.health_timeout)
        self._round = 0
        self._asking = False
        self._misses = 0
        self._answers = True
        self._pending = False
        self._timer: loop.Source | None = None

    def begin(self) -> None:
        """Ask until the first good answer; does nothing if that is going on."""
        if not self._asking:
            self._asking = True
            self._ask_first(self._round)

    def watch(self) -> None:
        """Ask from now on at intervals."""
        self._answers, self._misses, self._pending = True, 0, False
        number = self._round
        self._timer = loop.every(self._settings.health_interval, lambda: self._ask(number))

    def stop(self) -> None:
        """Ask no more, and forget what is under way."""
        self._round += 1
        self._asking = False
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """Stop for good."""
        self.stop()
        self._prober.close()

    def _ask_first(self, number: int) -> None:
        if number != self._round:
            return
        if listener(self._endpoint.port, self._containment.pids()) is None:
            # Not bound yet (--skip-server-warmup says ready first), or the port is another's.
            loop.after(_AGAIN, lambda: self._ask_first(number))
            return
        self._prober.health(lambda answer: self._first_answer(number, answer, generated=False))

    def _first_answer(self, number: int, answer: Answer, generated: bool) -> None:
        if number != self._round:
            return
        if not answer.ok:
            structlog.get_logger().debug("not-ready-yet", message=f"health check: {answer.detail}")
            loop.after(_AGAIN, lambda: self._ask_first(number))
        elif self._settings.ready_generate and not generated:
            self._prober.generate(lambda second: self._first_answer(number, second, generated=True))
        else:
            self._on_ready()

    def _ask(self, number: int) -> None:
        # A hung SGLang answers slower than it is asked where health-interval is below health-timeout.
        if not self._pending:
            self._pending = True
            self._prober.health(lambda answer: self._watched(number, answer))

    def _watched(self, number: int, answer: Answer) -> None:
        if number != self._round:
            return
        self._pending = False
        if answer.ok:
            self._misses = 0
            if not self._answers:
                self._answers = True
                self._on_change(True, answer.detail)
            return
        self._misses += 1
        if self._misses >= self._settings.health_failures and self._answers:
            self._answers = False
            self._on_change(False, answer.detail)
