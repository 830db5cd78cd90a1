"""SGLang's main process: its spawn, its end, signals to it. All by pidfd, never by number."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from qwen_mtp.diagnosis import Outcome

_PIPE_BYTES = 1024 * 1024
"""Wished size of the pipe: it takes a burst while the loop is busy (fcntl(2), F_SETPIPE_SZ)."""

# Enters the control group before SGLang's first instruction, so that nothing it forks can be outside.
# A shell does it because Python's own way to run code between fork and exec is not safe with threads.
_ENTER = '[ -z "$1" ] || echo 0 >"$1"; cd "$2" && shift 2 && exec "$@"'


class SpawnError(Exception):
    """SGLang's command cannot be started; the text names it and says why."""


def check_command(argv: Sequence[str], env: Mapping[str, str]) -> None:
    """Raise SpawnError if the command does not exist or may not be executed."""
    command = argv[0]
    if shutil.which(command, path=env.get("PATH", os.defpath)) is not None:
        return
    if os.path.isdir(command):
        raise SpawnError(f"{command} is a directory")
    if os.path.lexists(command) and not os.path.exists(command):
        raise SpawnError(f"{command} is a symbolic link to {os.readlink(command)}, which does not exist")
    if os.path.exists(command):
        raise SpawnError(f"{command} is not executable")
    raise SpawnError(f"{command} does not exist")


class Process(NamedTuple):
    """A started SGLang.

    Attributes:
        pid: its main process, leader of its own session and process group.
        pidfd: readable when the main process has ended.
        output: read end of the pipe that holds stdout and stderr, non-blocking.
    """

    pid: int
    pidfd: int
    output: int

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the main process; nothing happens if it has ended."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, number)

    def reap(self) -> Outcome | None:
        """Take the exit status of a main process that has ended; None if it still runs."""
        try:
            info = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG)
        except ChildProcessError:  # someone else reaped it: the status is lost, the end is not
            return Outcome()
        if info is None:
            return None
        if info.si_code == os.CLD_EXITED:
            return Outcome(exit_status=info.si_status)
        return Outcome(signal=info.si_status, core_dumped=info.si_code == os.CLD_DUMPED)

    def close(self) -> None:
        """Close both descriptors."""
        os.close(self.pidfd)
        os.close(self.output)


def spawn(argv: Sequence[str], env: Mapping[str, str], cwd: str, procs_file: str = "") -> Process:
    """Start SGLang in a session of its own, with stdout and stderr on one pipe and no stdin.

    Args:
        argv: command and arguments.
        env: the whole environment.
        cwd: working directory.
        procs_file: cgroup.procs of the control group to enter, empty for none.

    Raises:
        SpawnError: the command cannot be started.
    """
    check_command(argv, env)
    read_end, write_end = os.pipe()
    try:
        shell = ["/bin/sh", "-c", _ENTER, "qwen-mtpd", procs_file, cwd, *argv]
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, write_end, 1),
            (os.POSIX_SPAWN_DUP2, write_end, 2),
        ]
        pid = os.posix_spawn(
            shell[0],
            shell,
            dict(env),
            file_actions=actions,
            setsid=True,
            setsigmask=[],
            setsigdef=[s for s in signal.valid_signals() if s not in (signal.SIGKILL, signal.SIGSTOP)],
        )
    except (OSError, ValueError) as error:
        os.close(read_end)
        raise SpawnError(f"{argv[0]} cannot be started: {error}") from error
    finally:
        os.close(write_end)
    os.set_blocking(read_end, False)
    _enlarge(read_end)
    return Process(pid, os.pidfd_open(pid), read_end)


def _enlarge(pipe: int) -> None:
    with contextlib.suppress(OSError):  # over the user's limit for pipes: the usual size will do
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
