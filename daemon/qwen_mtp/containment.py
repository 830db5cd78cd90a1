"""Where SGLang's processes are kept, so that none of them outlives it.

Under systemd with Delegate= SGLang lives in a control group of its own below the unit's. Elsewhere (a
checkout, a container without delegation) its processes are found as our descendants, which works for
those that daemonize too, because the supervisor is a child subreaper. Processes are never found by name.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import structlog

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_CGROUP_ROOTS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))


class Containment(Protocol):
    """What the supervisor asks of the place that SGLang runs in."""

    @property
    def procs_file(self) -> str:
        """File that a process writes "0" to in order to enter; empty if nothing has to be done."""

    def pids(self) -> list[int]:
        """Return the processes in it, zombies left out."""

    def kill(self) -> None:
        """Send SIGKILL to every process in it."""

    def oom_kills(self) -> int:
        """How many of its processes the kernel's OOM killer has ended so far."""


def become_subreaper() -> None:
    """Make orphaned descendants our children, so that they can be found and reaped (prctl(2))."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap_orphans(main_pid: int) -> None:
    """Reap adopted children that have ended, but not SGLang's main process."""
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is None or found.si_pid == main_pid:
                return
            os.waitid(os.P_PID, found.si_pid, os.WEXITED | os.WNOHANG)
        except ChildProcessError:
            return


def _stat(pid: int) -> tuple[str, int] | None:
    """State letter and parent of a process, from /proc/PID/stat (proc(5)); None if it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()
    return fields[0], int(fields[1])


def _alive(pid: int) -> bool:
    stat = _stat(pid)
    return stat is not None and stat[0] not in "ZX"


class CgroupContainment:
    """SGLang's control group, `sglang/` below the unit's, the supervisor itself being in `supervisor/`.

    A group with controllers enabled for its children may hold no process itself (cgroups(7), "no
    internal processes"), so the supervisor moves into a leaf first.
    """

    def __init__(self, unit_group: Path) -> None:
        self._group = unit_group / "sglang"
        (unit_group / "supervisor").mkdir(exist_ok=True)
        (unit_group / "supervisor/cgroup.procs").write_text("0")
        try:
            # For memory.events; not there in a container whose host gave it no controllers.
            (unit_group / "cgroup.subtree_control").write_text("+memory")
        except OSError as error:
            structlog.get_logger().debug("no-memory-controller", message=f"no memory figures: {error}")
        self._group.mkdir(exist_ok=True)

    @property
    def procs_file(self) -> str:
        """See `Containment`."""
        return str(self._group / "cgroup.procs")

    def _groups(self) -> Iterator[Path]:
        yield self._group
        for directory, names, _ in os.walk(self._group):
            yield from (Path(directory, name) for name in names)

    def pids(self) -> list[int]:
        """See `Containment`."""
        found = []
        for group in self._groups():
            try:
                found += [int(pid) for pid in (group / "cgroup.procs").read_text().split()]
            except OSError:
                continue
        return [pid for pid in found if _alive(pid)]

    def kill(self) -> None:
        """See `Containment`. Uses cgroup.kill (Linux 5.14), or signals until none is left."""
        try:
            (self._group / "cgroup.kill").write_text("1")
        except OSError:
            _kill_all(self)

    def oom_kills(self) -> int:
        """See `Containment`."""
        try:
            text = (self._group / "memory.events").read_text()
        except OSError:
            return 0
        return int(dict(line.split() for line in text.splitlines()).get("oom_kill", 0))


class DescendantContainment:
    """Our descendants, where there is no control group of our own."""

    procs_file = ""

    def pids(self) -> list[int]:
        """See `Containment`."""
        children: dict[int, list[int]] = {}
        for name in os.listdir("/proc"):
            if name.isdigit() and (stat := _stat(int(name))) is not None and stat[0] not in "ZX":
                children.setdefault(stat[1], []).append(int(name))
        found, level = [], children.get(os.getpid(), [])
        while level:
            found += level
            level = [child for pid in level for child in children.get(pid, [])]
        return found

    def kill(self) -> None:
        """See `Containment`."""
        _kill_all(self)

    def oom_kills(self) -> int:
        """Unknown without a control group: always 0."""
        return 0


def _kill_all(containment: Containment) -> None:
    """SIGKILL each process by a pidfd, again until no new one appears; forks may outrun one round."""
    killed: set[int] = set()
    for _ in range(10):
        new = set(containment.pids()) - killed
        if not new:
            return
        for pid in new:
            try:
                fd = os.pidfd_open(pid)
            except OSError:
                continue
            try:
                # Asked again with the descriptor in hand: the number may have been given to another since.
                if pid in containment.pids():
                    signal.pidfd_send_signal(fd, signal.SIGKILL)
            except ProcessLookupError:
                pass
            finally:
                os.close(fd)
        killed |= new


def _own_group() -> Path | None:
    """Our cgroup v2 directory, if it is a delegated service's (the line `0::/…` of /proc/self/cgroup)."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    path = next((line[4:] for line in lines if line.startswith("0::/")), "")
    # After an exec of the supervisor it is in the leaf already.
    path = path.removesuffix("/supervisor")
    if not path.endswith(".service") or "INVOCATION_ID" not in os.environ:
        return None
    for root in _CGROUP_ROOTS:
        group = root / path
        if (group / "cgroup.procs").exists() and os.access(group, os.W_OK):
            return group
    return None


def contain() -> Containment:
    """Prepare the place for SGLang: a control group if systemd delegated one, else our descendants."""
    become_subreaper()
    group = _own_group()
    if group is None:
        return DescendantContainment()
    try:
        return CgroupContainment(group)
    except OSError as error:
        structlog.get_logger().warning(
            "no-control-group",
            message=f"no control group for SGLang ({error}); its processes are tracked by descent",
        )
        return DescendantContainment()
