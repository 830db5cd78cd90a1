"""What the service manager is told, by sd_notify(3).

Off systemd ($NOTIFY_SOCKET absent) nothing is sent and everything else works as ever.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

import sdnotify

MAX_STATUS = 250
"""Characters of a STATUS= text; `systemctl status` shows it on one line."""


def clean(text: str) -> str:
    """Make a text fit for STATUS=: one line, no control characters, not too long."""
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return text if len(text) <= MAX_STATUS else text[: MAX_STATUS - 1].rstrip() + "…"


class Notifier:
    """Sends state to the service manager; several assignments go out in one message.

    Args:
        environ: where NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID are read from.
    """

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        env = os.environ if environ is None else environ
        self._notifier = sdnotify.SystemdNotifier() if env.get("NOTIFY_SOCKET") else None
        self.watchdog_interval = self._watchdog_interval(env)
        """Seconds between two WATCHDOG=1, half of what the manager allows; 0.0 if it asks for none."""

    @staticmethod
    def _watchdog_interval(env: Mapping[str, str]) -> float:
        if env.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
            return 0.0
        try:
            return max(int(env["WATCHDOG_USEC"]) / 2e6, 0.0)
        except (KeyError, ValueError):
            return 0.0

    def send(self, *assignments: str) -> None:
        """Send raw assignments, such as `"WATCHDOG=1"`."""
        if self._notifier is not None:
            # sdnotify 0.3 encodes as Latin-1; this way the bytes on the socket are UTF-8, as systemd wants.
            self._notifier.notify("\n".join(assignments).encode().decode("latin-1"))

    def status(self, text: str) -> None:
        """Set the line that `systemctl status` shows."""
        self.send(f"STATUS={clean(text)}")

    def ready(self, status: str) -> None:
        """Say that the service is up; also ends `reloading`."""
        self.send("READY=1", f"STATUS={clean(status)}")

    def reloading(self, status: str) -> None:
        """Say that the service is not up at present; the unit shows `reloading` until `ready`."""
        usec = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self.send("RELOADING=1", f"MONOTONIC_USEC={usec}", f"STATUS={clean(status)}")

    def stopping(self, status: str) -> None:
        """Say that the service is going down."""
        self.send("STOPPING=1", f"STATUS={clean(status)}")

    def failed(self, status: str, error_name: str) -> None:
        """Say why the service goes down for good.

        Args:
            status: for STATUS=, which systemd keeps after the end.
            error_name: for BUSERROR=, shown by systemd 257 and later.
        """
        self.send("STOPPING=1", f"STATUS={clean(status)}", f"BUSERROR={error_name}")

    def extend(self, seconds: float) -> None:
        """Ask for that many more seconds until the next sign of life, while starting or stopping."""
        self.send(f"EXTEND_TIMEOUT_USEC={int(max(seconds, 1.0) * 1e6)}")

    def watchdog(self) -> None:
        """Say that the main loop turns."""
        self.send("WATCHDOG=1")
