"""Starts of the real SGLang that cannot succeed: the daemon ends after one try and says why."""

from __future__ import annotations

import shutil
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.harness import Daemon, free_port

from .environment import Environment
from .launches import NEXTN, configuration, processes

EX_UNAVAILABLE = 69


@dataclass(frozen=True)
class End:
    """How a start ended.

    Attributes:
        exit_status: the daemon's.
        notifications: what the service manager was told.
        events: what the daemon logged.
        log: what SGLang printed.
        left: processes of SGLang that are still there.
        lag: seconds from SGLang's last line to the daemon's end.
    """

    exit_status: int
    notifications: list[str]
    events: str
    log: str
    left: list[int]
    lag: float


def run(config: str) -> End:
    with (
        tempfile.TemporaryDirectory(prefix="qwen-mtp-", ignore_cleanup_errors=True) as directory,
        Daemon(Path(directory), config) as daemon,
    ):
        status = daemon.wait_end(240)
        lag = time.time() - daemon.output.stat().st_mtime
        return End(status, list(daemon.notifications), daemon.events(), daemon.log(), processes(daemon), lag)


def without_its_library(environment: Environment, directory: Path) -> Path:
    """Put a copy of pyzmq before SGLang's that lacks the shared library which its extension module is linked to."""
    shutil.copytree(environment.site_packages / "zmq", directory / "zmq")
    return directory


@pytest.fixture(scope="module")
def ends(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> dict[str, End]:
    """All failing starts, two at a time: most of each is the import of SGLang."""
    broken = without_its_library(environment, tmp_path_factory.mktemp("broken"))
    path = {"PYTHONPATH": f"{broken}:{environment.shim}"}
    port = free_port()
    configs = {
        # The first failure of the incident: draft tokens without steps and top-k.
        "draft-tokens-alone": configuration(
            environment, port, {"speculative-algorithm": "NEXTN", "speculative-num-draft-tokens": 2}
        ),
        "unknown-option": configuration(environment, port, NEXTN, {"no-such-option": 1}),
        "missing-library": configuration(environment, port, NEXTN, env=path),
    }
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(configs, pool.map(run, configs.values()), strict=True))


@pytest.fixture(params=["draft-tokens-alone", "unknown-option", "missing-library"])
def end(request: pytest.FixtureRequest, ends: dict[str, End]) -> End:
    return ends[request.param]


def test_the_daemon_ends_at_once_with_the_status_that_systemd_does_not_restart(end: End) -> None:
    assert end.exit_status == EX_UNAVAILABLE, f"{end.events}\n{end.log[-3000:]}"
    assert end.events.count("started SGLang as process") == 1
    assert "READY=1" not in end.notifications
    assert end.lag < 30  # a second in truth; the machine may be busy


def test_nothing_of_sglang_is_left(end: End) -> None:
    assert end.left == []


EXPECTED = {
    "draft-tokens-alone": ("config-assertion", "AssertionError", "speculative-num-steps"),
    "unknown-option": ("bad-argument", "unrecognized arguments: --no-such-option", "no-such-option"),
    "missing-library": ("missing-library", "cannot open shared object file", "libzmq"),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_status_and_log_name_cause_and_remedy(ends: dict[str, End], name: str) -> None:
    failure_class, words_of_sglang, named = EXPECTED[name]
    end = ends[name]
    status = [line for line in end.notifications if line.startswith("STATUS=")][-1]
    assert status.startswith(f"STATUS={failure_class}: ")
    assert named in status
    assert words_of_sglang in end.log
    assert f"qwen-mtpd: error: {failure_class}: " in end.events
    camel = "".join(part.capitalize() for part in failure_class.split("-"))
    assert end.notifications[-1] == f"BUSERROR=org.qwenmtp.Failure.{camel}"
