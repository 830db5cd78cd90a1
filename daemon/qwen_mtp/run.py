"""One run of SGLang, from its spawn to the diagnosis of its end."""

from __future__ import annotations

import dataclasses
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import structlog

from qwen_mtp import loop
from qwen_mtp.containment import Containment
from qwen_mtp.diagnosis import Diagnosis, Outcome
from qwen_mtp.failures import Catalogue, Collector
from qwen_mtp.launch import Launch
from qwen_mtp.process import spawn
from qwen_mtp.relay import Relay, Sink

_GONE_POLL = 0.02
_GONE_LIMIT = 10.0
_IO_STEP = 16 * 2**20
"""Bytes of file or network traffic that count as progress; log lines and heartbeats stay far below."""


def _io_bytes(pids: Sequence[int]) -> int:
    """Bytes that the processes have read and written so far (proc(5), /proc/PID/io)."""
    total = 0
    for pid in pids:
        try:
            fields = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
            total += int(fields["rchar"]) + int(fields["wchar"]) + int(fields["read_bytes"])
        except (OSError, ValueError, KeyError):
            continue
    return total


class Run:
    """SGLang running: its process, its output, and what both have told so far.

    Args:
        argv: command line.
        env: environment.
        cwd: working directory.
        containment: where its processes live.
        sink: takes its output.
        secrets: byte strings to mask in the output.
        catalogue: the failure catalogue.
        on_change: called when `launch` changed.
        on_end: called once, when no process is left or the rest cannot be killed.

    Raises:
        SpawnError: the command cannot be started.
    """

    def __init__(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str,
        containment: Containment,
        sink: Sink,
        secrets: Sequence[bytes],
        catalogue: Catalogue,
        on_change: Callable[[], None],
        on_end: Callable[[Diagnosis], None],
    ) -> None:
        self._containment = containment
        self._collector = Collector(catalogue)
        self._on_change = on_change
        self._on_end = on_end
        self._oom_kills = containment.oom_kills()
        self._ended_by = ""
        self._outcome: Outcome | None = None
        self._io_seen = 0
        self._io_advanced_at = 0.0
        self._ended_at = 0.0
        self.launch = Launch()
        self.started = time.monotonic()
        self._process = spawn(argv, env, cwd, containment.procs_file)
        self.pid = self._process.pid
        self._relay = Relay(self._process.output, sink, secrets, self._take, time.monotonic)
        self._exit = loop.on_fd(self._process.pidfd, loop.IN, self._exited)

    @property
    def elapsed(self) -> float:
        """Seconds since the spawn."""
        return time.monotonic() - self.started

    @property
    def ending(self) -> bool:
        """Whether it was told to end."""
        return bool(self._ended_by)

    @property
    def advanced_at(self) -> float:
        """Seconds from the spawn to the last sign of progress."""
        return max(self.launch.advanced_at, self._io_advanced_at)

    def look_at_io(self) -> None:
        """Count file and network traffic as progress: a download or a slow disk may print nothing."""
        seen = _io_bytes(self._containment.pids())
        if abs(seen - self._io_seen) >= _IO_STEP:
            self._io_seen = seen
            self._io_advanced_at = self.elapsed

    def terminate(self) -> None:
        """Ask SGLang to end: SIGTERM to its main process, which then drains if it serves."""
        self._ended_by = self._ended_by or "stop"
        self._process.send(signal.SIGTERM)

    def kill(self, reason: str) -> None:
        """End every process of SGLang at once.

        Args:
            reason: `"stop"`, `"hang"`, `"port-in-use"` or `"bind-error"`, for the diagnosis.
        """
        self._ended_by = self._ended_by or reason
        self._containment.kill()
        self._process.send(signal.SIGKILL)  # should it have left its control group

    def _take(self, lines: list[str]) -> None:
        at = self.elapsed
        changed = False
        for line in lines:
            self._collector.feed(line)
            changed |= self.launch.feed(line, at)
        if changed:
            self._on_change()

    def _exited(self) -> bool:
        outcome = self._process.reap()
        if outcome is None:
            return True
        self._outcome = outcome
        self._ended_at = time.monotonic()
        left = self._containment.pids()
        if left and not self._ended_by:
            structlog.get_logger().info(
                "leftovers-killed",
                message=f"SGLang ended ({outcome}) and left {len(left)} processes behind; killing them",
                pids=" ".join(map(str, left)),
            )
        if left:
            self._containment.kill()
        self._await_gone()
        return False

    def _await_gone(self) -> None:
        left = self._containment.pids()
        if not left:
            self._conclude()
            return
        if time.monotonic() - self._ended_at > _GONE_LIMIT:
            structlog.get_logger().error(
                "leftovers-alive",
                message=f"processes of SGLang cannot be killed: {', '.join(map(_describe, left))}",
                pids=" ".join(map(str, left)),
            )
            self._conclude()
            return
        self._containment.kill()
        loop.after(_GONE_POLL, self._await_gone)

    def _conclude(self) -> None:
        self._relay.finish()
        self._process.close()
        assert self._outcome is not None  # noqa: S101
        outcome = dataclasses.replace(
            self._outcome,
            oom_kills=max(self._containment.oom_kills() - self._oom_kills, 0),
            ended_by=self._ended_by,
            phase=self.launch.phase,
        )
        self._on_end(self._collector.conclude(outcome))


def _describe(pid: int) -> str:
    """Name a process that does not die, with what it waits for in the kernel."""
    try:
        name = Path(f"/proc/{pid}/comm").read_text().strip()
        place = Path(f"/proc/{pid}/wchan").read_text().strip()
    except OSError:
        return str(pid)
    return f"{pid} ({name}, in {place or 'unknown'})"
