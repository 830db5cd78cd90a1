"""One launch of the real SGLang with the tiny hybrid model and NEXTN, from the spawn to the drain.

The tests build on each other, in this order, because a launch takes minutes on a small machine.
"""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.harness import BUS, Daemon, free_port

from .environment import VERSION, Environment
from .launches import NEXTN, completion, configuration, processes, request, value

KEY = "sk-real-Geheimnis/7'4+9"
"""With characters that Python's repr, JSON and URLs spell differently."""
PORT = free_port()
URL = f"http://127.0.0.1:{PORT}"
SETTINGS = {"ready-generate": True, "stop-timeout": 300, "backoff-initial": 1}


@pytest.fixture(scope="module")
def server(environment: Environment) -> Iterator[Daemon]:
    config = configuration(environment, PORT, NEXTN, supervisor=SETTINGS)
    with (
        tempfile.TemporaryDirectory(prefix="qwen-mtp-", ignore_cleanup_errors=True) as directory,
        Daemon(Path(directory), config, {"api-key": KEY}) as daemon,
    ):
        yield daemon


def wait_ready(server: Daemon, times: int = 1) -> None:
    """Wait until READY=1 was sent so many times."""
    server.wait(
        lambda: server.notifications.count("READY=1") == times or server.process.poll() is not None, "READY=1", 420
    )
    assert server.process.poll() is None, f"{server.events()}\n{server.log()[-5000:]}"


def test_it_becomes_ready(server: Daemon) -> None:
    wait_ready(server)
    assert "STOPPING=1" not in server.notifications
    assert any(line.startswith("EXTEND_TIMEOUT_USEC=") for line in server.notifications)
    assert server.state() == "ready"
    assert value(server, "Restarts") == 0


def test_the_phases_came_in_order_target_and_draft_told_apart(server: Daemon) -> None:
    timeline = value(server, "Timeline")
    assert [phase for phase, *_ in timeline] == [
        "spawn", "arguments", "distributed", "weights", "draft-weights", "kv-cache", "draft-kv-cache",
        "http", "warmup", "ready",
    ]  # fmt: skip
    models = {phase: model for phase, model, *_ in timeline}
    assert (models["weights"], models["draft-weights"]) == ("target", "draft")
    shards = {phase: progress for phase, *_, progress in timeline}
    assert shards["weights"] == [2, 2]
    times = [time for _, _, start, end, _ in timeline for time in (start, end)][:-1]
    assert times == sorted(times)


def test_the_facts_are_on_the_bus(server: Daemon, environment: Environment) -> None:
    assert value(server, "ModelPath") == str(environment.model)
    assert value(server, "SGLangVersion") == VERSION
    assert value(server, "SpeculativeAlgorithm") == "NEXTN"
    assert value(server, "Endpoint") == URL
    assert value(server, "KVCacheTokens") == 4096
    assert value(server, "MainPID") in processes(server)


def test_a_completion_shows_the_accept_length(server: Daemon) -> None:
    answer = request(f"{URL}/v1/completions", completion("a tiny model", 16), KEY)
    assert answer["usage"]["completion_tokens"] == 16
    assert "accept len: " in server.log()
    server.wait(lambda: value(server, "AcceptLength") > 0, "the accept length", 30)
    assert 1.0 < value(server, "AcceptLength") <= 4.0  # some drafts of the MTP head were right
    assert "accept length" in server.statuses()[-1]


def test_the_key_is_asked_for_and_shown_nowhere(server: Daemon) -> None:
    with pytest.raises(httpx.HTTPStatusError) as refused:
        request(f"{URL}/v1/completions", completion("a", 1))
    assert refused.value.response.status_code == 401
    # Who holds it may read it there; so SGLang did take it from its configuration file.
    assert request(f"{URL}/server_info", key=KEY)["api_key"] == KEY
    pids = processes(server)
    assert len(pids) >= 3
    for pid in [*pids, server.process.pid]:
        for name in ("cmdline", "environ"):
            assert KEY.encode() not in Path(f"/proc/{pid}/{name}").read_bytes(), (pid, name)
    assert "server_args=" in server.log()
    shown = server.busctl("introspect", *BUS).stdout
    assert "StatusText" in shown
    assert "Geheimnis" not in server.log() + server.events() + shown + str(server.notifications)


def test_a_killed_scheduler_is_diagnosed_and_sglang_started_again(server: Daemon) -> None:
    before = processes(server)
    (scheduler,) = [pid for pid in before if b"sglang::scheduler" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(scheduler, signal.SIGKILL)
    wait_ready(server, 2)
    assert "RELOADING=1" in server.notifications
    failure = value(server, "LastFailure")
    assert failure["class"]["data"] == "killed"
    assert "scheduler" in failure["summary"]["data"]
    assert value(server, "Restarts") == 1
    assert value(server, "MainPID") in processes(server)
    assert not set(before) & set(processes(server))
    assert request(f"{URL}/v1/completions", completion("again", 4), KEY)["usage"]["completion_tokens"] == 4


def test_sigterm_lets_the_running_request_finish(server: Daemon) -> None:
    answers: list[Any] = []
    printed = len(server.log())
    client = threading.Thread(
        target=lambda: answers.append(request(f"{URL}/v1/completions", completion("one token", 24), KEY, timeout=300))
    )
    client.start()
    server.wait(lambda: "Decode batch" in server.log()[printed:], "the request to run", 120)
    server.process.terminate()
    server.wait(lambda: "STOPPING=1" in server.notifications, "STOPPING=1", 30)
    assert client.is_alive()
    assert server.state() == "draining"
    client.join(300)
    (answer,) = answers
    assert answer["usage"]["completion_tokens"] == 24
    assert server.wait_end(120) == 0
    assert "Gracefully exiting" in server.log()
    assert "killing it" not in server.events()


def test_nothing_is_left(server: Daemon) -> None:
    assert server.process.poll() == 0
    assert processes(server) == []
