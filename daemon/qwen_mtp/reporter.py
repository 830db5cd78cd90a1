"""Takes the supervisor's state to systemd and to the bus, at a sane rate."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from qwen_mtp import loop
from qwen_mtp.diagnosis import Diagnosis
from qwen_mtp.notify import Notifier
from qwen_mtp.snapshot import Snapshot
from qwen_mtp.states import Phase, State

_INTERVAL = 0.5
"""Seconds between two reports of what merely moved on."""


class BusyError(Exception):
    """A request does not fit the present state; the text says why."""


class Bus(Protocol):
    """What the supervisor tells the D-Bus side."""

    def update(self, snapshot: Snapshot) -> None:
        """Publish the state."""

    def phase_changed(self, phase: Phase, usec: int) -> None:
        """Emit PhaseChanged."""

    def failure_diagnosed(self, diagnosis: Diagnosis) -> None:
        """Emit FailureDiagnosed."""

    def close(self) -> None:
        """Send what is pending and leave."""


class Reporter:
    """Publishes snapshots.

    Args:
        notifier: the service manager.
        compose: makes a snapshot of the present state.
    """

    def __init__(self, notifier: Notifier, compose: Callable[[], Snapshot]) -> None:
        self._notifier = notifier
        self._compose = compose
        self._last = 0.0
        self._timer: loop.Source | None = None
        self.bus: Bus | None = None
        self.status = ""
        """The sentence of the last report."""

    def soon(self) -> None:
        """Report before long; calls in between are one report."""
        if self._timer is None:
            self._timer = loop.after(max(self._last + _INTERVAL - time.monotonic(), 0.0), self.now)

    def now(self) -> None:
        """Report at once."""
        if self._timer:
            self._timer.cancel()
            self._timer = None
        self._last = time.monotonic()
        snapshot = self._compose()
        if snapshot.status != self.status:
            self.status = snapshot.status
            if snapshot.state is not State.FAILED:  # goes out together with the reason for the end
                self._notifier.status(self.status)
        if self.bus:
            self.bus.update(snapshot)
