"""The state machine: what happens to SGLang, and when. It owns all state and runs on the main loop alone.

          start()                      SGLang says ready, /health answers
PREFLIGHT ───────▶ STARTING ──────────────────────────────▶ READY ◀──▶ UNRESPONSIVE
    ▲                 │ ended, stalled, port taken             │ ended
    │ delay over      ▼                                        ▼
    └──────────── BACKING_OFF ◀──── policy ────▶ FAILED (exit 69 or 75)

stop():    any state ──▶ DRAINING (served before) or STOPPING ──▶ exit 0
restart(): the same way down, then PREFLIGHT again
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import structlog

from qwen_mtp import loop, preflight
from qwen_mtp.compose import Standing, compose
from qwen_mtp.containment import Containment, reap_orphans
from qwen_mtp.diagnosis import Diagnosis
from qwen_mtp.failures import Catalogue
from qwen_mtp.history import History, durations, fingerprint
from qwen_mtp.job import Job
from qwen_mtp.notify import Notifier
from qwen_mtp.policy import Policy
from qwen_mtp.process import SpawnError
from qwen_mtp.readiness import Readiness
from qwen_mtp.relay import Sink
from qwen_mtp.reporter import BusyError, Reporter
from qwen_mtp.run import Run
from qwen_mtp.settings import SupervisorSettings
from qwen_mtp.snapshot import Snapshot
from qwen_mtp.states import Phase, State
from qwen_mtp.status import duration

EX_OK = 0
EX_UNAVAILABLE = 69
"""A failure that cannot heal by itself ended the service (sysexits(3))."""
EX_TEMPFAIL = 75
"""The restart budget is used up."""

_TICK = 1.0
_HOUSE_KEEPING = 30.0
_MARGIN = 30.0
"""Seconds that systemd waits longer than we do: it steps in only if we no longer turn."""
_QUIET = 30.0
"""Seconds without a line after which serving figures no longer hold: an idle SGLang says nothing."""


def _realtime_usec() -> int:
    return time.time_ns() // 1000


class Supervisor:
    """Runs a job, reports on it and decides what follows its end.

    Args:
        job: what to run.
        settings: time limits, probes, restart policy.
        catalogue: the failure catalogue.
        containment: where SGLang's processes live.
        sink: takes SGLang's output.
        notifier: the service manager.
        history: earlier launches.
        quit_loop: ends the main loop.
    """

    def __init__(
        self,
        job: Job,
        settings: SupervisorSettings,
        catalogue: Catalogue,
        containment: Containment,
        sink: Sink,
        notifier: Notifier,
        history: History,
        quit_loop: Callable[[], None],
    ) -> None:
        self._job = job
        self._settings = settings
        self._catalogue = catalogue
        self._containment = containment
        self._sink = sink
        self._notifier = notifier
        self._history = history
        self._quit = quit_loop
        self._policy = Policy(settings)
        self._log = structlog.get_logger()
        self._readiness = Readiness(job, settings, containment, self._ready, self._answers)
        self._earlier = history.load(fingerprint(job.argv))
        self.reporter = Reporter(notifier, self.snapshot)
        self.exit_status = EX_OK

        self._state = State.PREFLIGHT
        self._state_usec = _realtime_usec()
        self._state_monotonic = time.monotonic()
        self._run: Run | None = None
        self._spans_told = 0
        self._was_ready = False
        self._ready_at = 0.0
        self._launch_usec = 0
        self._restarts = 0
        self._failure: Diagnosis | None = None
        self._next_restart_usec = 0
        self._next_restart_text = ""
        self._stop_asked = False
        self._restart_reason = ""
        self._lines_at = 0.0
        self._extended_at = 0.0
        self._tick_timer: loop.Source | None = None
        self._watch_timer: loop.Source | None = None
        self._delay_timer: loop.Source | None = None
        self._kill_timer: loop.Source | None = None

    # -- requests ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin; to be called once, with the main loop about to run."""
        if self._notifier.watchdog_interval:
            loop.every(self._notifier.watchdog_interval, self._notifier.watchdog)
        self._preflight()

    def stop(self) -> None:
        """End SGLang and then the supervisor; asked a second time, kill SGLang at once."""
        if self._stop_asked:
            if self._run:
                self._log.warning("stopping", message="asked to stop a second time: killing SGLang")
                self._set_state(State.STOPPING)
                self._run.kill("stop")
            return
        self._stop_asked = True
        self._log.info("stopping", message="stopping", state=self._state.value)
        if self._delay_timer:
            self._delay_timer.cancel()
        if self._run is None:
            self._finish(EX_OK, "stopped")
            return
        self._notifier.extend(self._settings.stop_timeout + _MARGIN)
        self._take_down()
        self._notifier.stopping(self.reporter.status)

    def restart(self, reason: str) -> None:
        """Restart SGLang on an operator's behalf; not counted against the restart budget.

        Args:
            reason: for the journal.

        Raises:
            BusyError: SGLang is on its way down already.
        """
        if self._stop_asked or self._state in (State.DRAINING, State.STOPPING, State.FAILED):
            raise BusyError(f"the service is {self._state.value}")
        self._log.info("restart-requested", message=f"restart requested: {reason}", reason=reason)
        if self._run is None:
            if self._delay_timer:
                self._delay_timer.cancel()
            self._restarts += 1
            self._preflight()
            return
        self._restart_reason = reason or "requested"
        self._took_off_line(f"restarting SGLang: {self._restart_reason}")
        self._take_down()

    def diagnose(self) -> Diagnosis | None:
        """Return the last failure."""
        return self._failure

    # -- the way up -------------------------------------------------------------------------------

    def _preflight(self) -> None:
        self._set_state(State.PREFLIGHT)
        self._next_restart_usec = 0
        left = self._containment.pids()
        if left:
            # Promise: no second server beside a first. They got SIGKILL; wait for the kernel.
            self._notifier.extend(_MARGIN)
            self._containment.kill()
            self._delay_timer = loop.after(_TICK, self._preflight)
            return
        job = self._job
        found = preflight.check(job.argv, job.env, job.model_path, job.endpoint, job.args)
        if found is None:
            try:
                self._launch()
            except SpawnError as error:
                found = preflight.spawn_failed(error)
        if found is not None:
            self._failed(found)

    def _launch(self) -> None:
        job = self._job
        self._spans_told = 0
        self._launch_usec = _realtime_usec()
        self._run = Run(
            job.argv,
            job.env,
            job.cwd,
            self._containment,
            self._sink,
            job.secrets,
            self._catalogue,
            self._run_changed,
            self._run_ended,
        )
        self._log.info(
            "launch-started",
            message=f"started SGLang as process {self._run.pid}: {' '.join(job.argv)}",
            pid=self._run.pid,
            model_path=job.model_path,
        )
        self._set_state(State.STARTING)
        self._run_changed()
        self._extend()
        self._tick_timer = loop.every(_TICK, self._tick)

    def _run_changed(self) -> None:
        run = self._run
        if run is None:
            return
        self._lines_at = time.monotonic()
        launch = run.launch
        if self._state is State.STARTING:
            self._tell_phases(run)
            if launch.bind_error and not launch.ready and not run.ending:
                self._log.error("bind-failed", message=f"SGLang could not bind its port: {launch.bind_error}")
                run.kill("port-in-use" if "[Errno 98]" in launch.bind_error else "bind-error")
            elif launch.ready:
                self._readiness.begin()
        self.reporter.soon()

    def _tell_phases(self, run: Run) -> None:
        """Report each phase that was entered since the last time; one read may bring several."""
        new = run.launch.timeline[self._spans_told :]
        self._spans_told += len(new)
        for span in new:
            self._log.info(
                "phase-entered",
                message=f"phase {span.phase.value} after {span.start:.1f} s",
                phase=span.phase.value,
                role=span.role.value if span.role else None,
                seconds=f"{span.start:.3f}",
            )
            if self.reporter.bus:
                self.reporter.bus.phase_changed(span.phase, self._launch_usec + int(span.start * 1e6))
        if new:
            self._extend()

    def _tick(self) -> None:
        """Once a second while SGLang starts: stall, extension, time left."""
        run = self._run
        if run is None or self._state is not State.STARTING:
            return
        reap_orphans(run.pid)
        phase = run.launch.phase
        if phase in (Phase.SPAWN, Phase.ARGUMENTS, Phase.WEIGHTS, Phase.DRAFT_WEIGHTS):
            run.look_at_io()
        limit = self._limit(phase)
        if run.elapsed - run.advanced_at > limit:
            self._log.error(
                "phase-stalled",
                message=f"no progress in phase {phase.value} for {duration(limit)}; ending SGLang",
                phase=phase.value,
                limit=limit,
            )
            run.kill("hang")
            return
        if time.monotonic() - self._extended_at > 5:
            self._extend()
        self.reporter.soon()

    def _limit(self, phase: Phase) -> float:
        if phase is Phase.READY:
            return self._settings.ready_timeout
        return self._settings.phase_timeout[phase]

    def _extend(self) -> None:
        """Tell systemd how long the present phase may still be silent."""
        if self._run is not None:
            left = self._run.advanced_at + self._limit(self._run.launch.phase) - self._run.elapsed
            self._extended_at = time.monotonic()
            self._notifier.extend(max(left, 0.0) + _MARGIN)

    def _ready(self) -> None:
        run = self._run
        if run is None or self._state is not State.STARTING:
            return
        self._was_ready = True
        self._ready_at = time.monotonic()
        self._cancel(self._tick_timer)
        spent = durations(run.launch.timeline)
        self._history.add(fingerprint(self._job.argv), spent)
        self._earlier = self._history.load(fingerprint(self._job.argv))
        self._set_state(State.READY)
        self.reporter.now()
        self._notifier.ready(self.reporter.status)
        self._log.info(
            "ready",
            message=f"ready on {self._job.endpoint.url} after {run.elapsed:.1f} s",
            seconds=f"{run.elapsed:.3f}",
            endpoint=self._job.endpoint.url,
        )
        self._readiness.watch()
        self._watch_timer = loop.every(_HOUSE_KEEPING, self._house_keeping)

    # -- serving ----------------------------------------------------------------------------------

    def _answers(self, well: bool, detail: str) -> None:
        if well and self._state is State.UNRESPONSIVE:
            self._log.info("responsive", message="SGLang answers its health check again")
            self._set_state(State.READY)
        elif not well and self._state is State.READY:
            failures = self._settings.health_failures
            self._log.warning("unresponsive", message=f"SGLang failed {failures} health checks in a row: {detail}")
            self._set_state(State.UNRESPONSIVE)

    def _house_keeping(self) -> None:
        """Now and then while SGLang serves: reap what it orphaned, let old figures go."""
        if self._run is not None:
            reap_orphans(self._run.pid)
            self.reporter.soon()

    # -- the way down -----------------------------------------------------------------------------

    def _take_down(self) -> None:
        """SIGTERM now, SIGKILL after stop-timeout."""
        run = self._run
        assert run is not None  # noqa: S101
        self._readiness.stop()
        self._cancel(self._tick_timer)
        self._cancel(self._watch_timer)
        served = self._state in (State.READY, State.UNRESPONSIVE)
        self._set_state(State.DRAINING if served else State.STOPPING)
        self.reporter.now()
        run.terminate()

        def too_late() -> None:
            if self._run is run:
                limit = duration(self._settings.stop_timeout)
                self._log.warning("stopping", message=f"SGLang did not end within {limit}; killing it")
                self._set_state(State.STOPPING)
                run.kill("stop")

        self._kill_timer = loop.after(self._settings.stop_timeout, too_late)

    def _took_off_line(self, status: str) -> None:
        """Take the unit out of `active` while SGLang is down, if it was there."""
        if self._was_ready:
            self._notifier.reloading(status)

    def _run_ended(self, diagnosis: Diagnosis) -> None:
        self._readiness.stop()
        for timer in (self._tick_timer, self._watch_timer, self._kill_timer):
            self._cancel(timer)
        self._run = None
        if self._stop_asked:
            self._log.info("stopped", message=f"SGLang has ended: {diagnosis.outcome}")
            self._finish(EX_OK, "stopped")
        elif self._restart_reason:
            self._restart_reason = ""
            self._restarts += 1
            self._earn_back()
            self._notifier.extend(_MARGIN)
            self._preflight()
        else:
            self._failed(diagnosis)

    def _failed(self, diagnosis: Diagnosis) -> None:
        self._failure = diagnosis
        failure_class = diagnosis.failure_class.value
        self._log.error(
            "failure-diagnosed",
            message=f"{failure_class}: {diagnosis.summary}. {diagnosis.remedy}".rstrip(),
            message_id=self._catalogue.message_id(diagnosis.failure_class),
            failure_class=failure_class,
            rule=diagnosis.rule,
            summary=diagnosis.summary,
            cause=diagnosis.cause,
            remedy=diagnosis.remedy,
            restart=diagnosis.restart.value,
            confidence=f"{diagnosis.confidence:.2f}",
            evidence=diagnosis.evidence.text,
            evidence_line=diagnosis.evidence.line or None,
            process=diagnosis.evidence.process,
            phase=diagnosis.phase.value if diagnosis.phase else None,
            outcome=str(diagnosis.outcome),
        )
        if self.reporter.bus:
            self.reporter.bus.failure_diagnosed(diagnosis)
        self._earn_back()
        decision = self._policy.decide(diagnosis, time.monotonic(), random.random())  # noqa: S311
        if decision.action == "give-up":
            self._give_up(diagnosis, decision.reason, decision.exhausted)
            return
        self._restarts += 1
        self._next_restart_usec = _realtime_usec() + int(decision.delay * 1e6)
        self._next_restart_text = time.strftime("at %H:%M:%S", time.localtime(self._next_restart_usec / 1e6))
        self._log.warning(
            "restart-scheduled",
            message=decision.reason,
            delay=f"{decision.delay:.1f}",
            restarts=self._restarts,
        )
        self._set_state(State.BACKING_OFF)
        self.reporter.now()
        self._took_off_line(self.reporter.status)
        self._notifier.extend(decision.delay + _MARGIN)
        self._delay_timer = loop.after(decision.delay, self._preflight)

    def _earn_back(self) -> None:
        """Tell the policy how long the server that has ended was ready."""
        if self._ready_at:
            self._policy.was_ready(time.monotonic() - self._ready_at)
            self._ready_at = 0.0

    def _give_up(self, diagnosis: Diagnosis, reason: str, exhausted: bool) -> None:
        self._log.error("gave-up", message=reason, failure_class=diagnosis.failure_class.value)
        self._set_state(State.FAILED)
        self.reporter.now()
        camel = "".join(part.capitalize() for part in diagnosis.failure_class.value.split("-"))
        self._notifier.failed(self.reporter.status, f"org.qwenmtp.Failure.{camel}")
        self._finish(EX_TEMPFAIL if exhausted else EX_UNAVAILABLE, "")

    def _finish(self, exit_status: int, status: str) -> None:
        self.exit_status = exit_status
        if status:
            self._notifier.stopping(status)
        self._readiness.close()
        self._quit()

    # -- publishing -------------------------------------------------------------------------------

    def _set_state(self, state: State) -> None:
        if state is not self._state:
            self._state = state
            self._state_usec = _realtime_usec()
            self._state_monotonic = time.monotonic()
            self.reporter.soon()

    def snapshot(self) -> Snapshot:
        """Compose what is published, from the present state."""
        run = self._run
        standing = Standing(
            state=self._state,
            state_change_usec=self._state_usec,
            state_change_monotonic_usec=int(self._state_monotonic * 1e6),
            restarts=self._restarts,
            last_failure=self._failure,
            next_restart_usec=self._next_restart_usec if self._state is State.BACKING_OFF else 0,
            next_restart=self._next_restart_text,
            launch_usec=self._launch_usec,
            main_pid=run.pid if run else 0,
            elapsed=run.elapsed if run else 0.0,
            idle=time.monotonic() - self._lines_at > _QUIET,
        )
        return compose(standing, self._job, run.launch if run else None, self._earlier, _realtime_usec())

    @staticmethod
    def _cancel(timer: loop.Source | None) -> None:
        if timer:
            timer.cancel()
