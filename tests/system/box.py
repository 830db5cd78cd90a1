"""Throw-away Debian containers with systemd as PID 1, over a cached root file system.

    python3 -m tests.system.box SUITE    a shell in a fresh container with the package installed

A container is an overlay over the cached root file system, its changes in memory; it boots in a second or
two. Needs root, mmdebstrap and systemd-container, and works where PID 1 is not systemd.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

CACHE = Path(os.environ.get("QWEN_MTP_CACHE", "/var/tmp/qwen-mtp"))
SUITES = ("bookworm", "trixie")
ROOT = Path(__file__).parents[2]
# What the package depends on is here already, so that installing it needs no network.
PACKAGES = (
    "systemd-sysv,dbus,polkitd,python3-gi,python3-pydbus,python3-systemd,python3-sdnotify,python3-httpx,"
    "python3-structlog,python3-tomli,man-db,procps,curl"
)
GENERATION = "1"
"""Part of the cache's name; another number builds it anew."""
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    "DEBIAN_FRONTEND": "noninteractive",
    "SYSTEMD_PAGER": "",
    "SYSTEMD_COLORS": "0",
}


class BoxError(Exception):
    """A container could not be made; the text says why and shows its console."""


def base(suite: str) -> Path:
    """Return the cached root file system of a suite, made where it is missing."""
    target = CACHE / f"rootfs-{suite}-{GENERATION}"
    if target.is_dir():
        return target
    CACHE.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(CACHE).free / 2**30
    if free < 2:
        raise BoxError(f"{CACHE} has {free:.1f} GiB free, and a root file system takes 1 GiB; set QWEN_MTP_CACHE")
    print(f"making {target} by mmdebstrap; it takes 1 GiB of the {free:.0f} GiB free there", file=sys.stderr)
    new = CACHE / f"rootfs-{suite}-{GENERATION}.{os.getpid()}"
    command = ["mmdebstrap", "--variant=apt", "--quiet", f"--include={PACKAGES}", *_proxy()]
    command += [suite, str(new), *_mirror(suite)]
    try:
        for attempt in range(3):
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                break
            shutil.rmtree(new, ignore_errors=True)
            time.sleep(5 * (attempt + 1))
        else:
            raise BoxError(f"mmdebstrap {suite} failed:\n{done.stderr}")
        with contextlib.suppress(OSError):
            new.rename(target)
    finally:
        shutil.rmtree(new, ignore_errors=True)  # interrupted, or another run was faster
    return target


def _mirror(suite: str) -> list[str]:
    """Take the mirror of Debian that this machine's own apt uses; mmdebstrap has a default where there is none."""
    lines = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages", "Origin: Debian"],
        capture_output=True, text=True, check=False,
    ).stdout.split()  # fmt: skip
    sites = [site for site in dict.fromkeys(lines) if "security" not in site]
    return [f"deb {site} {suite} main" for site in sites[:1]]


def _proxy() -> list[str]:
    """Take the proxies that this machine's own apt uses."""
    lines = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=False).stdout.splitlines()
    return [f"--aptopt={line}" for line in lines if re.match(r"Acquire::https?::Proxy ", line)]


def sweep() -> None:
    """Remove what killed runs have left: processes, mounts and control groups of their containers."""
    for left in (CACHE / "run").glob("*"):
        pid = left.name.rpartition("-")[2]
        if pid.isdigit() and not Path("/proc", pid).exists():
            _discard(left)


def _discard(run: Path) -> None:
    """Remove all that there is of a container."""
    groups = [place / run.name for place in _cgroup_roots()]
    end = time.monotonic() + 10
    while (pids := {pid for group in groups for pid in _processes(group)}) and time.monotonic() < end:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    for group in groups:
        _remove_group(group)
    for mount in (run / "fs/root", run / "fs"):
        subprocess.run(["umount", "-l", str(mount)], stderr=subprocess.DEVNULL, check=False)
    shutil.rmtree(run, ignore_errors=True)


def _cgroup_roots() -> list[Path]:
    """Where to make a control group for a container: else all of them would share this machine's units."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.partition(" ")
        if kind == "cgroup2" or (kind == "cgroup" and "name=systemd" in options):
            found.append(Path(before.split()[4]))
    return found


def _processes(group: Path) -> list[int]:
    """Return all processes of a control group and of those below it."""
    found = []
    for directory, _, _ in os.walk(group):
        with contextlib.suppress(OSError):
            found += [int(pid) for pid in Path(directory, "cgroup.procs").read_text().split()]
    return found


def _remove_group(group: Path) -> None:
    for directory, _, _ in os.walk(group, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(directory)


class Box:
    """A booted container.

    Args:
        suite: bookworm or trixie.
        name: of the container, also of its directory.
        binds: directories of this machine to show in it, read-only, at the same path.
    """

    def __init__(self, suite: str, name: str, binds: Sequence[Path] = ()) -> None:
        self.suite = suite
        self._run = CACHE / "run" / name
        self.init = 0
        lower = base(suite)
        sweep()
        _discard(self._run)
        (self._run / "fs").mkdir(parents=True)
        self._mount("-t", "tmpfs", "-o", "mode=755", "box", str(self._run / "fs"))
        for part in ("upper", "work", "root"):
            (self._run / "fs" / part).mkdir()
        self.root = self._run / "fs/root"
        layers = f"lowerdir={lower},upperdir={self._run}/fs/upper,workdir={self._run}/fs/work"
        self._mount("-t", "overlay", "overlay", "-o", layers, str(self.root))
        self._console = open(self._run / "console", "wb")  # noqa: SIM115
        groups = [place / name for place in _cgroup_roots()]
        for group in groups:
            group.mkdir(exist_ok=True)
        enter = "".join(f'echo 0 >"{group}/cgroup.procs"; ' for group in groups)
        nspawn = ["systemd-nspawn", "--quiet", "--boot", "--register=no", "--keep-unit", f"--machine={name}"]
        nspawn += [f"--directory={self.root}", "--console=pipe", "--link-journal=no", "--resolv-conf=copy-host"]
        self._nspawn = subprocess.Popen(
            ["/bin/sh", "-c", f'{enter}exec "$@"', "box", *nspawn, *(f"--bind-ro={path}" for path in binds)],
            stdin=subprocess.DEVNULL,
            stdout=self._console,
            stderr=self._console,
            start_new_session=True,
            env={**os.environ, "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"},
        )
        try:
            self._boot()
        except BaseException:
            self.close()
            raise

    @staticmethod
    def _mount(*words: str) -> None:
        subprocess.run(["mount", *words], check=True)

    def _boot(self) -> None:
        end = time.monotonic() + 120
        while not self.init:
            self.init = self._leader()
            self._wait(end)
        while self.run("systemctl", "is-system-running", "--wait", check=False).strip() not in ("running", "degraded"):
            self._wait(end)

    def _wait(self, end: float) -> None:
        if self._nspawn.poll() is not None or time.monotonic() > end:
            raise BoxError(f"{self.suite} did not boot:\n{(self._run / 'console').read_text(errors='replace')}")
        time.sleep(0.05)

    def _leader(self) -> int:
        """Find the container's PID 1: nspawn's child whose innermost number is 1."""
        try:
            children = Path(f"/proc/{self._nspawn.pid}/task/{self._nspawn.pid}/children").read_text().split()
            for child in children:
                for line in Path(f"/proc/{child}/status").read_text().splitlines():
                    if line.startswith("NSpid:") and line.split()[-1] == "1" and len(line.split()) > 2:
                        return int(child)
        except OSError:
            pass
        return 0

    def start(self, *argv: str, **options: object) -> subprocess.Popen[str]:
        """Start a command in the container, as its root."""
        command = ["nsenter", "-t", str(self.init), "--all", "--wdns=/root", "--", *argv]
        return subprocess.Popen(
            command, env=ENVIRONMENT, text=True, stdin=subprocess.DEVNULL, errors="replace",
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options,  # type: ignore[call-overload]
        )  # fmt: skip

    def result(self, *argv: str, timeout: float = 120) -> tuple[int, str, str]:
        """Run a command; returns exit status, stdout and stderr."""
        process = self.start(*argv)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise AssertionError(f"{argv} did not end within {timeout} s\n{self.report()}") from None
        return process.returncode, out, err

    def run(self, *argv: str, check: bool = True, timeout: float = 120) -> str:
        """Run a command and return its stdout; a failure is an AssertionError that shows the journal."""
        status, out, err = self.result(*argv, timeout=timeout)
        if check and status:
            raise AssertionError(f"{' '.join(argv)} ended with {status}\n{out}{err}\n{self.report()}")
        return out

    def report(self) -> str:
        """Return the end of the unit's journal, for messages."""
        return self.result("journalctl", "-u", "qwen-mtp", "-n", "60", "--no-pager")[1]

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        """Write a file in the container."""
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        file.chmod(mode)

    def install(self, package: Path) -> str:
        """Install a .deb by apt; returns what apt printed."""
        shutil.copy(package, self.root / "root" / package.name)
        return self.run("apt-get", "install", "-y", "--no-install-recommends", f"./{package.name}", timeout=300)

    def close(self) -> None:
        """Power the container off and remove everything of it."""
        with contextlib.suppress(ProcessLookupError):
            if self.init:
                os.kill(self.init, signal.SIGRTMIN + 4)  # systemd(1): start poweroff.target
        try:
            self._nspawn.wait(30)
        except subprocess.TimeoutExpired:
            for pid in (self.init, self._nspawn.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._nspawn.wait(10)
        self._console.close()
        _discard(self._run)


def package() -> Path:
    """Return the package that ./dev deb built."""
    found = sorted((ROOT / "dist").glob("qwen-mtp_*_all.deb"))
    if not found:
        raise BoxError("there is no package; run ./dev deb")
    return found[-1]


@contextlib.contextmanager
def booted(suite: str, name: str = "") -> Iterator[Box]:
    """Boot a container for the length of a with block."""
    box = Box(suite, name or f"qwen-mtp-{suite}-{os.getpid()}")
    try:
        yield box
    finally:
        box.close()


def shell(box: Box) -> None:
    """Give the user a shell in a container, on a terminal of the container's own, so that Ctrl-C is the shell's."""
    inside = ["nsenter", "-t", str(box.init), "--all", "--wdns=/root", "--", "script", "-qc", "bash -l", "/dev/null"]
    signal.signal(signal.SIGINT, lambda *_: None)
    subprocess.run(inside, env={**ENVIRONMENT, "TERM": os.environ.get("TERM", "dumb")}, check=False)


def main(words: Sequence[str]) -> int:
    """Make a root file system, or give a shell in a container; returns the exit status."""
    making = words[:1] == ["--base"]
    suite = (words[1:] or [""])[0] if making else (words or SUITES)[0]
    if suite not in SUITES:
        print(f"there is no suite {suite!r}; there are {' and '.join(SUITES)}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if making:
            base(suite)
        else:
            with booted(suite) as box:
                box.install(package())
                shell(box)
    except BoxError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
