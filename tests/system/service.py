"""The installed service as an administrator handles it: drop-ins, systemctl, journalctl, busctl."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from .box import SUITES, Box

RECORDINGS = "/usr/share/qwen-mtp/recordings"
READY = "0.5.11/90-27b-mtp-success"
BUS = ("org.qwenmtp.Supervisor1", "/org/qwenmtp/Supervisor1", "org.qwenmtp.Supervisor1")
WANTED = os.environ.get("QWEN_MTP_SUITES", " ".join(SUITES)).split()
"""Suites to run; ./dev runs one process for each, side by side."""
PORT = 30123 + SUITES.index(WANTED[0])
"""Containers share this machine's network, so suites that run side by side need a port each."""


class Service:
    """qwen-mtp in a container."""

    def __init__(self, box: Box) -> None:
        self.box = box

    def configure(self, recording: str = READY, *faults: str, speed: float = 20, more: str = "") -> None:
        """Put the stand-in with a recording into SGLang's place."""
        command = ["/usr/bin/python3", "-m", "qwen_mtp.standin", "--recording", f"{RECORDINGS}/{recording}"]
        command += ["--speed", str(speed), "--children", *faults]
        text = (
            f'[sglang]\ncommand = {json.dumps(command)}\n[args]\nmodel-path = "Qwen/Qwen3.6-27B"\nport = {PORT}\n{more}'
        )
        self.box.write("/etc/qwen-mtp/qwen-mtp.toml.d/50-test.toml", text)

    def reset(self) -> None:
        """Stop it and take its drop-ins, credentials and journal marks away."""
        self.box.run("systemctl", "stop", "qwen-mtp", check=False)
        self.box.run("systemctl", "reset-failed", "qwen-mtp", check=False)
        for place in ("etc/qwen-mtp/qwen-mtp.toml.d", "etc/credstore", "etc/polkit-1/rules.d"):
            for file in (self.box.root / place).glob("*"):
                if "test" in file.name or file.name.startswith("qwen-mtp."):
                    file.unlink()
        self.since = self.box.run("date", "+%s.%N").strip()

    def start(self) -> tuple[int, str]:
        """`systemctl start`; returns exit status and what it printed."""
        status, out, err = self.box.result("systemctl", "start", "qwen-mtp")
        return status, out + err

    def show(self, *properties: str) -> dict[str, str]:
        """`systemctl show`."""
        text = self.box.run("systemctl", "show", "qwen-mtp", *(f"--property={name}" for name in properties))
        return dict(line.split("=", 1) for line in text.splitlines())

    def status(self) -> str:
        """`systemctl status`."""
        return self.box.run("systemctl", "status", "qwen-mtp", "--no-pager", "--full", check=False)

    def journal(self, *options: str) -> str:
        """This test's part of the unit's journal."""
        return self.box.run("journalctl", "-u", "qwen-mtp", f"--since=@{self.since}", "--no-pager", *options)

    def events(self, name: str = "") -> list[dict[str, str]]:
        """The supervisor's own entries, oldest first."""
        lines = self.journal("-t", "qwen-mtpd", "-o", "json", "--all").splitlines()
        found = [json.loads(line) for line in lines]
        return [entry for entry in found if not name or entry.get("QWEN_MTP_EVENT") == name]

    def get(self, *properties: str, user: str = "nobody") -> list[str]:
        """Read D-Bus properties as an unprivileged user, one line each."""
        command = ["busctl", "get-property", *BUS, *properties]
        return self.box.run("runuser", "-u", user, "--", *command).splitlines()

    def call(self, method: str, *arguments: str, user: str = "root") -> tuple[int, str]:
        """Call a D-Bus method; returns exit status and output."""
        status, out, err = self.box.result("runuser", "-u", user, "--", "busctl", "call", *BUS, method, *arguments)
        return status, out + err

    def wait(self, condition: Callable[[], bool], what: str, seconds: float = 60) -> None:
        """Wait until something holds."""
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"not within {seconds} s: {what}\n{self.status()}\n{self.box.report()}"
            time.sleep(0.1)

    def wait_state(self, *states: str) -> None:
        """Wait until D-Bus shows one of these states."""

        def shown() -> bool:
            status, out, _ = self.box.result("busctl", "get-property", *BUS, "State")
            return status == 0 and out.split()[-1].strip('"') in states

        self.wait(shown, f"state {states}")

    def processes(self) -> list[str]:
        """Command lines of all processes of the service's user."""
        return self.box.run("ps", "-u", "qwen-mtp", "-o", "pid=,args=", check=False).splitlines()

    def group(self, name: str) -> list[int]:
        """Processes of a control group below the unit's, by their numbers in the container."""
        path = self.show("ControlGroup")["ControlGroup"]
        text = self.box.run("cat", f"/sys/fs/cgroup{path}/{name}/cgroup.procs", check=False)
        return [int(pid) for pid in text.split()]


def field(entries: Iterable[dict[str, str]], name: str) -> list[str]:
    """One field of journal entries."""
    return [str(entry.get(name, "")) for entry in entries]


def exists(box: Box, path: str) -> bool:
    """Whether a path exists in the container."""
    return Path(box.root, path.lstrip("/")).exists()
