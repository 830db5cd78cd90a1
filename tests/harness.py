"""The real daemon outside of systemd: on a private bus, with a notify socket that is read here.

Used by the integration tests, by the tests with the real SGLang and by both demos.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHON = "/usr/bin/python3"
BUS = ("org.qwenmtp.Supervisor1", "/org/qwenmtp/Supervisor1", "org.qwenmtp.Supervisor1")


def free_port() -> int:
    """Return a TCP port that nobody has."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class PrivateBus:
    """A dbus-daemon of our own, listening on a socket in a directory."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "bus"
        self.address = f"unix:path={self.path}"
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start it, and return when it listens."""
        self.path.unlink(missing_ok=True)
        self.process = subprocess.Popen(
            ["dbus-daemon", "--session", f"--address={self.address}", "--nofork", "--nopidfile", "--nosyslog"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        end = time.monotonic() + 20
        while not self.path.exists():
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError("dbus-daemon did not start")
            time.sleep(0.01)

    def kill(self) -> None:
        """End it as a crash would."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


class Daemon:
    """The daemon at work; use it in a with block.

    Args:
        directory: for its files.
        config: text of its configuration.
        credentials: secrets by name.
        environment: added to its environment.
        bus: its bus, or None to start one.
        on_status: called with each STATUS= text, from a thread.
        notify: whether it gets a notify socket.
    """

    def __init__(
        self,
        directory: Path,
        config: str,
        credentials: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        bus: PrivateBus | None = None,
        on_status: Callable[[str], None] | None = None,
        notify: bool = True,
    ) -> None:
        self.directory = directory
        self.bus = bus or PrivateBus(directory)
        self._own_bus = bus is None
        self._on_status = on_status
        self.notifications: list[str] = []
        self.config = directory / "qwen-mtp.toml"
        self.config.write_text(config, encoding="utf-8")
        for name in ("state", "cache", "runtime", "credentials"):
            (directory / name).mkdir(exist_ok=True)
        for name, secret in (credentials or {}).items():
            (directory / "credentials" / name).write_text(secret)
        self.output = directory / "output"
        self.errors = directory / "errors"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        path = directory / "notify"
        path.unlink(missing_ok=True)
        self._socket.bind(str(path))
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        env = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "PYTHONPATH": str(ROOT / "daemon"),
            "LANG": "C.UTF-8",
            "DBUS_SYSTEM_BUS_ADDRESS": self.bus.address,
            "STATE_DIRECTORY": str(directory / "state"),
            "CACHE_DIRECTORY": str(directory / "cache"),
            "RUNTIME_DIRECTORY": str(directory / "runtime"),
            "CREDENTIALS_DIRECTORY": str(directory / "credentials"),
            **({"NOTIFY_SOCKET": str(path)} if notify else {}),
            **(environment or {}),
        }
        with open(self.output, "wb") as output, open(self.errors, "wb") as errors:
            self.process = subprocess.Popen(
                [PYTHON, "-m", "qwen_mtp.daemon", "--config", str(self.config)],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
            )

    def __enter__(self) -> Daemon:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the daemon, SGLang with it, and the bus."""
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(5)
            if self.process.poll() is None:
                self.process.terminate()  # a second time: at once
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(20)
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
        if self._own_bus:
            self.bus.kill()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _read(self) -> None:
        while True:
            try:
                message = self._socket.recv(65536).decode()
            except OSError:
                return
            if not message:
                return
            for line in message.splitlines():
                self.notifications.append(line)
                if line.startswith("STATUS=") and self._on_status:
                    self._on_status(line.removeprefix("STATUS="))

    # -- looking ----------------------------------------------------------------------------------

    def events(self) -> str:
        """What the daemon itself logged."""
        return self.errors.read_text(encoding="utf-8", errors="replace")

    def log(self) -> str:
        """What SGLang printed, as the daemon forwarded it."""
        return self.output.read_text(encoding="utf-8", errors="replace")

    def statuses(self) -> list[str]:
        """All STATUS= texts so far."""
        return [line.removeprefix("STATUS=") for line in self.notifications if line.startswith("STATUS=")]

    def busctl(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run busctl on the private bus."""
        return subprocess.run(
            ["busctl", f"--address={self.bus.address}", *words], capture_output=True, text=True, check=False
        )

    def get(self, *properties: str) -> list[str]:
        """Read D-Bus properties as busctl shows them."""
        return self.busctl("get-property", *BUS, *properties).stdout.splitlines()

    def call(self, method: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Call a D-Bus method."""
        return self.busctl("call", *BUS, method, *arguments)

    def state(self) -> str:
        """State as D-Bus shows it; empty while the daemon is not on the bus."""
        lines = self.get("State")
        return lines[0].split()[-1].strip('"') if lines else ""

    def wait(self, condition: Callable[[], bool], what: str, seconds: float = 60) -> None:
        """Wait until something holds, at most so long."""
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"not within {seconds} s: {what}\n{self.events()}\n{self.log()[-3000:]}"
            time.sleep(0.05)

    def wait_state(self, state: str, seconds: float = 60) -> None:
        """Wait until D-Bus shows a state."""
        self.wait(lambda: self.state() == state, f"state {state}", seconds)

    def wait_end(self, seconds: float = 60) -> int:
        """Wait until the daemon has ended; returns its exit status."""
        self.wait(lambda: self.process.poll() is not None, "the daemon's end", seconds)
        return self.process.returncode

    def stop(self, seconds: float = 60) -> int:
        """Send SIGTERM and wait for the end."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait_end(seconds)


def descendants(pid: int) -> list[int]:
    """All living processes below one, by their parents."""
    parents: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
                if fields[0] != "Z":
                    parents.setdefault(int(fields[1]), []).append(int(name))
    found: list[int] = []
    level = parents.get(pid, [])
    while level:
        found += level
        level = [child for parent in level for child in parents.get(parent, [])]
    return found


def sglang_pids(directory: Path) -> list[int]:
    """Processes that carry this daemon's state directory in their environment: SGLang's, wherever they went."""
    mark = f"HOME={directory / 'state'}".encode()
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                if mark in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                    found.append(int(name))
    return found


if __name__ == "__main__":
    sys.exit("this is a library")
