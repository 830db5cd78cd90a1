from __future__ import annotations

import http.server
import json
import os
import re
import signal
import socket
import stat
import threading
import time
import urllib.request
from pathlib import Path

import pytest

from tests.harness import ROOT, Daemon, PrivateBus, descendants, free_port, sglang_pids

READY = "0.5.11/90-27b-mtp-success"


def config(recording: str = READY, *faults: str, port: int, speed: float = 30, more: str = "") -> str:
    command = ["/usr/bin/python3", "-m", "qwen_mtp.standin", "--recording", str(ROOT / "tests/recordings" / recording)]
    command += ["--speed", str(speed), "--children", *faults]
    return (
        f"[sglang]\ncommand = {json.dumps(command)}\n[env]\nPYTHONPATH = {json.dumps(str(ROOT / 'daemon'))}\n"
        f'[args]\nmodel-path = "Qwen/Qwen3.6-27B"\nspeculative-algorithm = "NEXTN"\nport = {port}\n{more}'
    )


@pytest.fixture
def port() -> int:
    return free_port()


def test_from_start_to_ready_to_stop(tmp_path: Path, port: int) -> None:
    with Daemon(tmp_path, config(port=port)) as daemon:
        daemon.wait_state("ready")
        assert "READY=1" in daemon.notifications
        before = daemon.notifications[: daemon.notifications.index("READY=1")]
        assert [line for line in before if line.startswith("EXTEND_TIMEOUT_USEC=")]
        assert any("loading weights" in text or "capturing" in text for text in daemon.statuses())
        assert daemon.get("EstimatedReadyUSec") == ["t 0"]
        assert daemon.stop() == 0
        assert "STOPPING=1" in daemon.notifications
        assert daemon.log().count("fired up and ready to roll") == 1
    assert sglang_pids(tmp_path) == []


def test_the_output_is_forwarded_byte_for_byte_but_for_bars(tmp_path: Path, port: int) -> None:
    with Daemon(tmp_path, config("0.5.11/10-draft-tokens-1-only", port=port)) as daemon:
        assert daemon.wait_end() == 69
        recorded = (ROOT / "tests/recordings/0.5.11/10-draft-tokens-1-only/log").read_bytes()
        assert b"\r" not in recorded
        assert daemon.output.read_bytes() == recorded


def test_an_estimate_comes_from_earlier_launches(tmp_path: Path, port: int) -> None:
    text = config(port=port, speed=15)
    with Daemon(tmp_path, text) as daemon:
        daemon.wait_state("ready")
        daemon.stop()
    with Daemon(tmp_path, text) as daemon:
        daemon.wait(lambda: any("to ready" in text for text in daemon.statuses()), "an estimate")
        daemon.wait(lambda: daemon.get("EstimatedReadyUSec") not in ([], ["t 0"]), "the property")
        usec = int(daemon.get("EstimatedReadyUSec")[0].split()[1])
        assert -1 < usec / 1e6 - time.time() < 20


@pytest.mark.parametrize(
    ("recording", "failure_class"),
    [
        ("0.5.11/12-mamba-strategy-unset", "config-assertion"),
        ("0.5.23/missing-lib-ffmpeg-torchcodec", "missing-library"),
        ("0.5.11/21-unknown-argument", "bad-argument"),
    ],
)
def test_what_cannot_heal_is_tried_once(tmp_path: Path, port: int, recording: str, failure_class: str) -> None:
    with Daemon(tmp_path, config(recording, port=port, speed=100)) as daemon:
        assert daemon.wait_end() == 69
        assert daemon.events().count("started SGLang as process") == 1
        assert daemon.statuses()[-1].startswith(f"{failure_class}: ")
        assert any(line.startswith("BUSERROR=org.qwenmtp.Failure.") for line in daemon.notifications)
        assert "READY=1" not in daemon.notifications


def test_a_port_conflict_ends_the_lingering_server(tmp_path: Path, port: int) -> None:
    # Taken only after the preflight, as the real conflict would be.
    with Daemon(tmp_path, config(port=port, speed=10, more="[supervisor]\nrestart-budget = 0\n")) as daemon:
        daemon.wait(lambda: "phase arguments" in daemon.events(), "the arguments")
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind(("127.0.0.1", port))
            other.listen()
            assert daemon.wait_end() == 75
        assert f"port-in-use: port {port} is taken" in daemon.events()
    assert sglang_pids(tmp_path) == []


class _Healthy(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def test_a_server_that_is_not_ours_does_not_make_it_ready(tmp_path: Path, port: int) -> None:
    """SGLang may say that it is ready while another answers on its port (0.5.23/port-in-use-other-http-server)."""
    ready = "[2026-12-01 06:00:37] The server is fired up and ready to roll!"
    made = script(tmp_path, f"sleep 1; echo '{ready}'; exec sleep 600", port=port)
    with Daemon(tmp_path, made + "[supervisor]\nrestart-budget = 0\nready-timeout = 2\n") as daemon:
        daemon.wait(lambda: "started SGLang" in daemon.events(), "the spawn")
        with http.server.ThreadingHTTPServer(("127.0.0.1", port), _Healthy) as other:
            threading.Thread(target=other.serve_forever, daemon=True).start()
            try:
                assert daemon.wait_end() == 75
            finally:
                other.shutdown()
        assert "READY=1" not in daemon.notifications
        assert "phase ready after" in daemon.events()


def test_a_node_of_higher_rank_is_ready_when_its_health_endpoint_answers(tmp_path: Path, port: int) -> None:
    more = 'nnodes = 2\nnode-rank = 1\ndist-init-addr = "192.0.2.1:5000"\n'
    with Daemon(tmp_path, config("0.5.23/serve-multinode-rank1", port=port, more=more)) as daemon:
        daemon.wait_state("ready")
        assert daemon.stop() == 0


def test_ready_may_ask_for_a_generated_token_too(tmp_path: Path, port: int) -> None:
    with Daemon(tmp_path, config(port=port, more="[supervisor]\nready-generate = true\n")) as daemon:
        daemon.wait_state("ready")
        assert '"POST /generate HTTP/1.1" 200 OK' in daemon.log()


def test_a_request_over_d_bus_restarts_it(tmp_path: Path, port: int) -> None:
    with Daemon(tmp_path, config(port=port)) as daemon:
        daemon.wait_state("ready")
        first = daemon.get("MainPID")
        assert daemon.call("Restart", "s", "new weights").returncode == 0
        daemon.wait(lambda: daemon.get("Restarts") == ["u 1"], "the restart")
        daemon.wait_state("ready")
        assert daemon.get("MainPID") != first
        assert any(line.startswith("RELOADING=1") for line in daemon.notifications)
        assert daemon.notifications.count("READY=1") == 2
        refused = daemon.call("Restart", "s", "x" * 300)
        assert refused.returncode != 0
        assert "at most 200" in refused.stderr


def test_a_second_request_while_it_drains_is_refused(tmp_path: Path, port: int) -> None:
    with Daemon(
        tmp_path, config(READY, "--ignore-sigterm", port=port, more="[supervisor]\nstop-timeout = 3\n")
    ) as daemon:
        daemon.wait_state("ready")
        assert daemon.call("Restart", "s", "one").returncode == 0
        second = daemon.call("Restart", "s", "two")
        assert second.returncode != 0
        assert "draining" in second.stderr
        daemon.wait(lambda: daemon.get("Restarts") == ["u 1"], "the restart")


def test_running_requests_are_finished_before_the_end(tmp_path: Path, port: int) -> None:
    with Daemon(tmp_path, config(port=port, speed=2)) as daemon:
        daemon.wait_state("ready", 120)
        body = json.dumps({"prompt": "x", "max_tokens": 400}).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", body)
        pid = os.fork()
        if pid == 0:
            with urllib.request.urlopen(request) as answer:  # noqa: S310
                os._exit(0 if answer.status == 200 else 1)
        daemon.wait(lambda: daemon.get("RunningRequests") == ["u 1"], "the request")
        assert daemon.stop() == 0
        assert os.waitpid(pid, 0)[1] == 0
        assert "Remaining number of requests 1" in daemon.log()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_hurries(tmp_path: Path, port: int, number: int) -> None:
    with Daemon(tmp_path, config(READY, "--ignore-sigterm", port=port)) as daemon:
        daemon.wait_state("ready")
        daemon.process.send_signal(number)
        daemon.wait_state("draining")
        daemon.process.send_signal(number)
        assert daemon.wait_end(20) == 0
    assert sglang_pids(tmp_path) == []


def test_sighup_only_warns(tmp_path: Path, port: int) -> None:
    with Daemon(tmp_path, config(port=port)) as daemon:
        daemon.wait_state("ready")
        daemon.process.send_signal(signal.SIGHUP)
        daemon.wait(lambda: "SIGHUP does nothing" in daemon.events(), "the warning")
        assert daemon.state() == "ready"


def test_orphans_are_ended_with_a_server_that_dies(tmp_path: Path, port: int) -> None:
    with Daemon(tmp_path, config(READY, "--daemonize", port=port, more="[supervisor]\nrestart-budget = 0\n")) as daemon:
        daemon.wait_state("ready")
        assert len(descendants(daemon.process.pid)) == 4
        os.kill(int(daemon.get("MainPID")[0].split()[1]), signal.SIGKILL)
        assert daemon.wait_end() == 75
        assert re.search(r"left \d processes behind", daemon.events())
    assert sglang_pids(tmp_path) == []


# -- surroundings that fail ----------------------------------------------------------------------------


def test_without_a_bus_and_without_systemd_it_still_runs(tmp_path: Path, port: int) -> None:
    bus = PrivateBus(tmp_path)
    bus.kill()
    bus.path.unlink(missing_ok=True)
    with Daemon(tmp_path, config(port=port), bus=bus, notify=False) as daemon:
        daemon.wait(lambda: "ready on http" in daemon.events(), "ready")
        assert "no system bus" in daemon.events()
        assert daemon.notifications == []
        bus.start()
        try:
            daemon.wait_state("ready", 20)
        finally:
            daemon.close()
            bus.kill()


def test_a_notify_socket_that_is_gone_is_survived(tmp_path: Path, port: int) -> None:
    with Daemon(tmp_path, config(port=port), environment={"NOTIFY_SOCKET": str(tmp_path / "gone")}) as daemon:
        daemon.wait_state("ready")


def test_a_killed_bus_is_found_again(tmp_path: Path, port: int) -> None:
    with Daemon(tmp_path, config(port=port)) as daemon:
        daemon.wait_state("ready")
        daemon.bus.kill()
        daemon.wait(lambda: "the connection to the bus was lost" in daemon.events(), "the loss")
        daemon.bus.start()
        daemon.wait_state("ready", 20)
        assert daemon.process.poll() is None


def test_a_name_that_another_has_is_said_and_waited_for(tmp_path: Path, port: int) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    with Daemon(first, config(port=port)) as one:
        one.wait_state("ready")
        with Daemon(second, config(port=free_port()), bus=one.bus) as two:
            two.wait(lambda: "belongs to another process" in two.events(), "the warning")
            two.wait(lambda: "ready on http" in two.events(), "ready")
            one.stop()
            two.wait_state("ready", 20)


def test_a_state_directory_that_cannot_be_written_costs_only_the_history(tmp_path: Path, port: int) -> None:
    state = {"STATE_DIRECTORY": "/proc/self/fdinfo"}  # nothing can be created there
    with Daemon(tmp_path, config(port=port), environment=state) as daemon:
        daemon.wait_state("ready")
        assert "launches.json cannot be written" in daemon.events()


def test_a_configuration_error_is_one_line_and_exit_78(tmp_path: Path, port: int) -> None:
    with Daemon(tmp_path, config(port=port, more="[supervisor]\nstop-timout = 1\n")) as daemon:
        assert daemon.wait_end() == 78
        (line,) = [line for line in daemon.events().splitlines() if "error" in line]
        assert f"{daemon.config}:" in line
        assert "[supervisor] stop-timout: unknown key; did you mean stop-timeout?" in line
        assert daemon.statuses()[-1] in line


# -- commands that are no SGLang ------------------------------------------------------------------------


def script(tmp_path: Path, text: str, mode: int = 0o755, port: int = 0) -> str:
    file = tmp_path / "sglang"
    file.write_text("#!/bin/sh\n" + text)
    file.chmod(mode)
    return f'[sglang]\ncommand = ["{file}"]\n[args]\nmodel-path = "m"\nport = {port or free_port()}\n'


NO_RETRY = "[supervisor]\nrestart-budget = 0\n"

COMMANDS = [
    ("exits at once with 0", "exit 0", NO_RETRY, 75, "unexpected-exit: "),
    ("exits at once with 3", "exit 3", NO_RETRY, 75, "unexpected-exit: "),
    ("kills itself", "kill -SEGV $$", NO_RETRY, 75, "crash: "),
    ("prints nothing for ever", "exec sleep 600", NO_RETRY + "[supervisor.phase-timeout]\nspawn = 1\n", 75, "hang: "),
    ("forks a daemon and exits", "setsid sleep 600 & exit 0", NO_RETRY, 75, "unexpected-exit: "),
    ("no interpreter", None, NO_RETRY, 69, "broken-environment: "),
]


@pytest.mark.parametrize(("what", "text", "more", "status", "words"), COMMANDS, ids=[case[0] for case in COMMANDS])
def test_commands_that_are_no_sglang(
    tmp_path: Path, what: str, text: str | None, more: str, status: int, words: str
) -> None:
    made = script(tmp_path, text or "")
    if text is None:
        (tmp_path / "sglang").write_text("#!/no/such/interpreter\n")
    with Daemon(tmp_path, made + more) as daemon:
        assert daemon.wait_end() == status
        assert words in daemon.statuses()[-1]
    assert sglang_pids(tmp_path) == []


def test_a_command_that_is_not_there_or_not_executable(tmp_path: Path) -> None:
    made = script(tmp_path, "", 0o644)
    with Daemon(tmp_path, made) as daemon:
        assert daemon.wait_end() == 69
        assert daemon.statuses()[-1].startswith(f"broken-environment: {tmp_path}/sglang is not executable")
    (tmp_path / "sglang").unlink()
    with Daemon(tmp_path, made) as daemon:
        assert daemon.wait_end() == 69
        assert f"{tmp_path}/sglang does not exist" in daemon.statuses()[-1]


def test_a_model_directory_that_is_missing_is_found_before_the_launch(tmp_path: Path) -> None:
    made = script(tmp_path, "exec sleep 600").replace('"m"', '"/no/model here/模型"')
    with Daemon(tmp_path, made) as daemon:
        assert daemon.wait_end() == 69
        assert daemon.statuses()[-1].startswith("model-not-found: /no/model here/模型 does not exist")
        assert "started SGLang" not in daemon.events()


def test_a_flood_of_200_megabytes_keeps_the_daemon_answering_in_little_memory(tmp_path: Path, port: int) -> None:
    with Daemon(tmp_path, config(READY, "--flood", "200", port=port)) as daemon:
        daemon.wait(lambda: daemon.state() == "starting", "the bus")
        answers = 0
        while daemon.state() == "starting":
            answers += 1
        assert answers > 3
        daemon.wait_state("ready")
        assert daemon.output.stat().st_size > 200 * 2**20 * 0.99
        peak = int(
            next(
                line for line in Path(f"/proc/{daemon.process.pid}/status").read_text().splitlines() if "VmHWM" in line
            ).split()[1]
        )
        assert peak < 100_000


def test_a_secret_is_masked_and_shows_nowhere(tmp_path: Path, port: int) -> None:
    key = "sk-0123456789abcdef"
    # This recording prints its server_args with the key that the recorder had given.
    with Daemon(tmp_path, config("0.5.23/serve-api-key", port=port), {"api-key": key + "\n"}) as daemon:
        daemon.wait_state("ready")
        file = tmp_path / "runtime/sglang-secrets.yaml"
        assert json.loads(file.read_text()) == {"api-key": key}
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        for pid in [daemon.process.pid, *descendants(daemon.process.pid)]:
            assert key.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
            assert key.encode() not in Path(f"/proc/{pid}/environ").read_bytes()
        assert key not in daemon.busctl("introspect", "org.qwenmtp.Supervisor1", "/org/qwenmtp/Supervisor1").stdout
    assert key not in daemon.log() + daemon.events()


def test_a_secret_that_sglang_prints_is_masked(tmp_path: Path) -> None:
    key = "sk-0123'456789abcdef"
    # The last argument is the file of --config; SGLang prints the key in the repr of its arguments.
    printer = """
for file; do :; done
/usr/bin/python3 -c "import json, sys; print('server_args=' + repr(json.load(open(sys.argv[1]))))" "$file"
exit 3
"""
    with Daemon(tmp_path, script(tmp_path, printer) + NO_RETRY, {"api-key": key}) as daemon:
        assert daemon.wait_end() == 75
        assert "server_args={'api-key': " in daemon.log()
        assert "[masked]" in daemon.log()
    assert "456789abcdef" not in daemon.log()


def test_a_stopped_bus_does_not_keep_it_from_ending(tmp_path: Path, port: int) -> None:
    with Daemon(tmp_path, config(port=port)) as daemon:
        daemon.wait_state("ready")
        assert daemon.bus.process is not None
        daemon.bus.process.send_signal(signal.SIGSTOP)
        try:
            assert daemon.stop(20) == 0
        finally:
            daemon.bus.process.send_signal(signal.SIGCONT)


def test_a_broken_rule_of_the_administrator_is_named_and_a_good_one_counts(tmp_path: Path) -> None:
    (tmp_path / "failures.d").mkdir()
    (tmp_path / "failures.d/site.toml").write_text(
        '[[rule]]\nid = "bad"\nclass = "no-such-class"\nline = "x"\nneedle = "x"\nsummary = "s"\ncause = "c"\nremedy = "r"\n'
        '[[rule]]\nid = "site"\nclass = "disk-full"\nneedle = "quota"\nline = "quota of (?P<who>[a-z]+)"\n'
        'summary = "the quota of {who} is used up"\ncause = "c"\nremedy = "Tidy up."\nrestart = "never"\n'
    )
    with Daemon(tmp_path, script(tmp_path, "echo 'quota of models exceeded'; exit 1")) as daemon:
        assert daemon.wait_end() == 69
        assert daemon.statuses()[-1] == "disk-full: the quota of models is used up. Tidy up."
        assert f"{tmp_path}/failures.d/site.toml:1: rule bad: 'no-such-class'" in daemon.events()


def test_a_missing_shard_is_found_before_the_launch(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "qwen3_5"}')
    (model / "model.safetensors.index.json").write_text('{"weight_map": {"x": "one.safetensors"}}')
    made = script(tmp_path, "exec sleep 600").replace('"m"', json.dumps(str(model)))
    with Daemon(tmp_path, made) as daemon:
        assert daemon.wait_end() == 69
        assert "model-corrupt: 1 of 1 shards are missing" in daemon.statuses()[-1]
        assert "started SGLang" not in daemon.events()
