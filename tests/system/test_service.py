from __future__ import annotations

import json

import pytest

from .service import PORT, READY, Service, field

BUS_TYPES = {
    "State": "s", "Phase": "s", "PhaseProgress": "(uu)", "EstimatedReadyUSec": "t", "StateChangeTimestamp": "t",
    "MainPID": "u", "Restarts": "u", "LastFailure": "a{sv}", "NextRestartUSec": "t", "ModelPath": "s", "Endpoint": "s",
    "SGLangVersion": "s", "WeightMemory": "a{ud}", "KVCacheTokens": "t", "SpeculativeAlgorithm": "s",
    "AcceptLength": "d", "GenerationThroughput": "d", "RunningRequests": "u", "QueuedRequests": "u",
    "Timeline": "a(sstt(uu))",
}  # fmt: skip


def test_start_returns_when_the_model_answers(service: Service) -> None:
    service.configure(more='speculative-algorithm = "NEXTN"\n')
    starting = service.box.start("systemctl", "start", "qwen-mtp")
    seen = set()

    def look() -> bool:
        seen.add(service.show("StatusText")["StatusText"])
        return starting.poll() is not None

    service.wait(look, "systemctl start to return")
    starting.communicate()
    assert starting.returncode == 0
    assert any("loading weights" in text or "capturing CUDA graphs" in text for text in seen), seen
    assert service.show("ActiveState", "SubState") == {"ActiveState": "active", "SubState": "running"}
    assert f'Status: "ready on http://127.0.0.1:{PORT}' in service.status()
    assert (
        service.box.run("curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", f"http://127.0.0.1:{PORT}/health")
        == "200"
    )

    # D-Bus, as anyone may read it.
    assert service.get("State", "Phase", "ModelPath", "Endpoint", "SpeculativeAlgorithm", "KVCacheTokens") == [
        's "ready"', 's "ready"', 's "Qwen/Qwen3.6-27B"', f's "http://127.0.0.1:{PORT}"', 's "NEXTN"', "t 416856",
    ]  # fmt: skip
    assert service.get("WeightMemory") == ["a{ud} 1 0 51.05"]
    introspected = service.box.run("busctl", "introspect", *("org.qwenmtp.Supervisor1", "/org/qwenmtp/Supervisor1"))
    types = {
        words[0][1:]: words[2] for words in map(str.split, introspected.splitlines()) if words[1:2] == ["property"]
    }
    assert {name: types.get(name) for name in BUS_TYPES} == BUS_TYPES

    # The journal: SGLang's own lines under their identifier, and one entry per phase.
    lines = service.journal("-t", "sglang", "-o", "cat")
    assert "The server is fired up and ready to roll!" in lines
    assert "Multi-thread loading shards: 100% Completed | 15/15" in lines
    phases = field(service.events("phase-entered"), "QWEN_MTP_PHASE")
    assert phases == [
        "spawn", "arguments", "distributed", "weights", "kv-cache", "cuda-graphs", "draft-weights", "draft-kv-cache",
        "cuda-graphs", "http", "warmup", "ready",
    ]  # fmt: skip
    ready = service.events("ready")
    assert len(ready) == 1
    assert ready[0]["MESSAGE_ID"] == "f5f9f6a2ed504613bc42eba5c9901151"

    # Supervisor and SGLang have a control group each.
    main = int(service.show("MainPID")["MainPID"])
    assert service.group("supervisor") == [main]
    sglang = service.group("sglang")
    assert len(sglang) == 3
    assert int(service.get("MainPID")[0].split()[1]) in sglang

    # SGLang's environment is its own.
    pid = int(service.get("MainPID")[0].split()[1])
    environment = service.box.run("cat", f"/proc/{pid}/environ").split("\0")
    assert "HOME=/var/lib/qwen-mtp" in environment
    assert not [item for item in environment if item.startswith(("NOTIFY_SOCKET", "WATCHDOG", "INVOCATION", "JOURNAL"))]


def test_stop_leaves_nothing(service: Service) -> None:
    service.configure()
    assert service.start()[0] == 0
    service.box.run("systemctl", "stop", "qwen-mtp")
    assert service.processes() == []
    assert service.show("Result", "ExecMainStatus") == {"Result": "success", "ExecMainStatus": "0"}
    assert "SIGTERM received" in service.journal("-t", "sglang", "-o", "cat")


def test_figures_of_serving_reach_status_and_bus(service: Service) -> None:
    service.configure()
    assert service.start()[0] == 0
    service.box.run("curl", "-s", "-d", '{"prompt": "x", "max_tokens": 80}', f"http://127.0.0.1:{PORT}/v1/completions")
    service.wait(lambda: service.get("AcceptLength") == ["d 1.43"], "the accept length")
    assert float(service.get("GenerationThroughput")[0].split()[1]) > 0
    assert "accept length 1.43" in service.status()


INCIDENT = [
    ("0.5.11/10-draft-tokens-1-only", "config-assertion", "speculative-num-steps"),
    ("0.5.11/12-mamba-strategy-unset", "config-assertion", "mamba-scheduler-strategy extra_buffer"),
    ("0.5.23/missing-lib-ffmpeg-torchcodec", "missing-library", "libavutil.so.58"),
]


@pytest.mark.parametrize(("recording", "failure_class", "words"), INCIDENT)
def test_the_failures_of_the_incident_end_at_once_with_reason_and_remedy(
    service: Service, recording: str, failure_class: str, words: str
) -> None:
    service.configure(recording)
    status, _ = service.start()
    assert status != 0
    shown = service.show("Result", "ExecMainStatus", "NRestarts", "StatusText", "ExecMainExitTimestampMonotonic")
    assert (shown["Result"], shown["ExecMainStatus"], shown["NRestarts"]) == ("exit-code", "69", "0")
    assert shown["StatusText"].startswith(f"{failure_class}: ")
    assert words in shown["StatusText"]
    assert failure_class in service.status()
    (failure,) = service.events("failure-diagnosed")
    assert failure["QWEN_MTP_FAILURE_CLASS"] == failure_class
    assert failure["QWEN_MTP_REMEDY"]
    assert len(service.events("launch-started")) == 1
    explained = service.journal("-x", "-t", "qwen-mtpd")
    assert f"Subject: SGLang failed: {failure_class}" in explained
    # From SGLang's last line to the supervisor's end; the limit that is promised is a second.
    last = json.loads(service.journal("-t", "sglang", "-o", "json", "-n", "1"))["__MONOTONIC_TIMESTAMP"]
    seconds = (int(shown["ExecMainExitTimestampMonotonic"]) - int(last)) / 1e6
    assert seconds < 3, seconds


def test_a_killed_server_comes_back_and_the_unit_never_looks_active_meanwhile(service: Service) -> None:
    service.configure(more="[supervisor]\nbackoff-initial = 2\nbackoff-jitter = 0\n")
    assert service.start()[0] == 0
    pid = service.get("MainPID")[0].split()[1]
    service.box.run("kill", "-KILL", pid)
    service.wait_state("backing-off")
    assert service.show("ActiveState")["ActiveState"] == "reloading"
    assert "killed: " in service.status()
    service.wait_state("ready")
    assert service.show("ActiveState", "NRestarts") == {"ActiveState": "active", "NRestarts": "0"}
    assert service.get("Restarts") == ["u 1"]
    assert service.get("MainPID")[0].split()[1] != pid
    assert field(service.events("failure-diagnosed"), "QWEN_MTP_FAILURE_CLASS") == ["killed"]


def test_the_budget_ends_the_attempts(service: Service) -> None:
    more = "[supervisor]\nbackoff-initial = 0.1\nrestart-budget = 2\n"
    service.configure(READY, "--exit-at", "Load weight begin", "3", speed=100, more=more)
    status, _ = service.start()
    assert status != 0
    assert service.show("ExecMainStatus", "NRestarts") == {"ExecMainStatus": "75", "NRestarts": "0"}
    assert field(service.events("failure-diagnosed"), "QWEN_MTP_FAILURE_CLASS") == ["unexpected-exit"] * 3
    assert "unexpected-exit" in service.status()


def test_the_same_lack_of_memory_twice_ends_the_attempts(service: Service) -> None:
    service.configure("0.5.11/51-oom-draft-kv-pool", speed=100, more="[supervisor]\nbackoff-initial = 0.1\n")
    status, _ = service.start()
    assert status != 0
    assert service.show("ExecMainStatus")["ExecMainStatus"] == "69"
    assert field(service.events("failure-diagnosed"), "QWEN_MTP_FAILURE_CLASS") == ["gpu-out-of-memory"] * 2
    assert "mem-fraction-static = 0.80" in service.status()


def test_methods_need_root_or_polkit(service: Service) -> None:
    service.configure()
    assert service.start()[0] == 0
    status, output = service.call("Restart", "s", "because", user="nobody")
    assert status != 0
    assert "not allowed to restart" in output
    status, output = service.call("Diagnose", user="nobody")
    assert "not allowed to diagnose" in output
    status, output = service.call("Diagnose")
    assert "has not failed" in output
    status, output = service.call("Restart", "s", "two\nlines")
    assert "one line" in output

    service.box.write(
        "/etc/polkit-1/rules.d/50-test.rules",
        "polkit.addRule(function(action, subject) {\n"
        ' if (action.id == "org.qwenmtp.Supervisor1.restart" && subject.user == "nobody") return polkit.Result.YES;\n});\n',
    )
    service.wait(lambda: service.call("Restart", "s", "new weights", user="nobody")[0] == 0, "polkit to allow it", 15)
    service.wait(lambda: service.get("Restarts") == ["u 1"], "the restart")
    service.wait_state("ready")
    assert field(service.events("restart-requested"), "QWEN_MTP_REASON") == ["new weights"]
    status, output = service.call("Restart", "s", "again")
    assert status == 0


def test_the_secret_shows_nowhere(service: Service) -> None:
    secret = "sk-0123456789abcdef"  # noqa: S105
    service.box.write("/etc/credstore/qwen-mtp.api-key", secret + "\n", 0o600)
    service.configure()
    assert service.start()[0] == 0
    code = ("curl", "-s", "-o", "/dev/null", "-w", "%{http_code}")
    assert service.box.run(*code, f"http://127.0.0.1:{PORT}/v1/models") == "401"
    assert (
        service.box.run(*code, "-H", f"Authorization: Bearer {secret}", f"http://127.0.0.1:{PORT}/v1/models") == "200"
    )
    assert secret not in service.box.run("sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
    assert secret not in service.box.run(
        "sh", "-c", "cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n'", check=False
    )
    assert secret not in service.journal("-o", "json", "--all")
    assert secret not in service.box.run("busctl", "introspect", "org.qwenmtp.Supervisor1", "/org/qwenmtp/Supervisor1")
    assert service.box.run("stat", "-c", "%a %U", "/run/qwen-mtp/sglang-secrets.yaml").split() == ["600", "qwen-mtp"]
