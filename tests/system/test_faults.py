from __future__ import annotations

import json

import pytest

from qwen_mtp.standin import FLOOD_LINE

from .service import PORT, Service, field


def test_every_line_reaches_the_journal_in_spite_of_what_it_holds(service: Service) -> None:
    service.configure(service_recording(), "--garbage")
    assert service.start()[0] == 0
    entries = [json.loads(line) for line in service.journal("-t", "sglang", "-o", "json", "--all").splitlines()]
    # The journal would take the prefix away and make an error of it.
    (prefixed,) = [entry for entry in entries if "not an error" in entry["MESSAGE"]]
    assert (prefixed["MESSAGE"], prefixed["PRIORITY"]) == ("<3>not an error", "6")
    text = service.journal("-t", "sglang", "-o", "cat", "--all")
    assert "bad UTF-8" in text
    assert text.count("x" * 1000) >= 9000  # ten million of them, in pieces of LineMax=
    assert "bar 1/2" in text
    assert "bar 2/2" in text
    assert "\r" not in text
    assert "The server is fired up and ready to roll!" in text


def service_recording() -> str:
    return "0.5.11/90-27b-mtp-success"


def test_a_flood_neither_stops_the_loop_nor_loses_a_line(service: Service) -> None:
    service.configure(service_recording(), "--flood", "40")
    starting = service.box.start("systemctl", "start", "qwen-mtp")
    answers = 0
    while starting.poll() is None:
        status, _, _ = service.box.result("busctl", "get-property", "--timeout=5", "org.qwenmtp.Supervisor1",
                                          "/org/qwenmtp/Supervisor1", "org.qwenmtp.Supervisor1", "State")  # fmt: skip
        answers += status == 0
    starting.communicate()
    assert starting.returncode == 0
    assert answers > 3
    count = service.box.run(
        "sh", "-c", f"journalctl -u qwen-mtp --since=@{service.since} -t sglang -o cat | grep -c 'flood of lines'"
    )
    assert int(count) == 40 * (2**20 // len(FLOOD_LINE))
    memory = service.box.run("grep", "VmHWM", f"/proc/{service.show('MainPID')['MainPID']}/status")
    assert int(memory.split()[1]) < 100_000  # kB


def test_a_stopped_journal_loses_nothing_and_stops_nothing_but_the_output(service: Service) -> None:
    service.configure(speed=5)
    journald = service.box.run("systemctl", "show", "-p", "MainPID", "--value", "systemd-journald").strip()
    starting = service.box.start("systemctl", "start", "qwen-mtp", "--no-block")
    starting.communicate()
    service.wait_state("starting")
    service.box.run("kill", "-STOP", journald)
    try:
        service.wait_state("ready")
        assert service.get("State") == ['s "ready"']
    finally:
        service.box.run("kill", "-CONT", journald)
    service.wait(
        lambda: "fired up and ready to roll" in service.journal("-t", "sglang", "-o", "cat"), "the lines in the journal"
    )
    assert len(service.events("phase-entered")) == 12


def test_a_killed_bus_is_survived(service: Service) -> None:
    service.configure()
    assert service.start()[0] == 0
    before = service.show("MainPID")["MainPID"]
    service.box.run("sh", "-c", "kill -KILL $(systemctl show -p MainPID --value dbus.service)")
    service.wait_state("ready")
    assert service.show("MainPID")["MainPID"] == before
    assert service.get("State", "Restarts") == ['s "ready"', "u 0"]
    assert (
        service.box.run("curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", f"http://127.0.0.1:{PORT}/health")
        == "200"
    )


def test_names_that_are_not_ascii_arrive_everywhere(service: Service) -> None:
    service.configure()
    service.box.write(
        "/etc/qwen-mtp/qwen-mtp.toml.d/60-test.toml", '[args]\nmodel-path = "/srv/Große Modelle/Qwen 3.6"\n'
    )
    status, _ = service.start()
    assert status != 0
    shown = service.show("ExecMainStatus", "StatusText")
    assert shown["ExecMainStatus"] == "69"
    assert shown["StatusText"].startswith("model-not-found: ")
    assert "/srv/Große Modelle/Qwen 3.6" in shown["StatusText"]
    (failure,) = service.events("failure-diagnosed")
    assert "/srv/Große Modelle/Qwen 3.6" in failure["MESSAGE"]


def test_a_state_directory_that_cannot_be_written_does_not_keep_the_model_down(service: Service) -> None:
    service.configure()
    service.box.run("install", "-d", "-o", "qwen-mtp", "-g", "qwen-mtp", "-m", "750", "/var/lib/qwen-mtp")
    service.box.run("mount", "--bind", "/var/lib/qwen-mtp", "/var/lib/qwen-mtp")
    service.box.run("mount", "-o", "remount,bind,ro", "/var/lib/qwen-mtp")
    try:
        assert service.start()[0] == 0
        assert service.get("State") == ['s "ready"']
    finally:
        service.box.run("systemctl", "stop", "qwen-mtp")
        service.box.run("umount", "/var/lib/qwen-mtp")


def test_what_systemd_cannot_set_up_is_tried_once(service: Service) -> None:
    service.configure()
    service.box.write("/etc/systemd/system/qwen-mtp.service.d/test.conf", "[Service]\nUser=nobody-of-this-name\n")
    service.box.run("systemctl", "daemon-reload")
    try:
        assert service.start()[0] != 0
        shown = service.show("ActiveState", "ExecMainStatus", "NRestarts")
        assert shown == {"ActiveState": "failed", "ExecMainStatus": "217", "NRestarts": "0"}
    finally:
        service.box.run("rm", "/etc/systemd/system/qwen-mtp.service.d/test.conf")
        service.box.run("systemctl", "daemon-reload")


STATES = [
    ("starting", ("--hang-at", "Load weight begin"), ""),
    ("ignoring SIGTERM while starting", ("--hang-at", "Load weight begin", "--ignore-sigterm"), "stop-timeout = 2\n"),
    ("ignoring SIGTERM while serving", ("--ignore-sigterm",), "stop-timeout = 2\n"),
    ("hung while serving", ("--unhealthy-after", "3"), "stop-timeout = 2\nhealth-interval = 1\nhealth-timeout = 1\n"),
    ("with a daemonized orphan", ("--daemonize",), ""),
    ("backing off", ("--exit-at", "Load weight begin", "3"), "backoff-initial = 600\nbackoff-max = 600\n"),
]


@pytest.mark.parametrize(("state", "faults", "settings"), STATES, ids=[state for state, _, _ in STATES])
def test_stop_leaves_nothing_in_whatever_state(
    service: Service, state: str, faults: tuple[str, ...], settings: str
) -> None:
    service.configure(service_recording(), *faults, more=f"[supervisor]\n{settings}")
    service.box.start("systemctl", "start", "qwen-mtp", "--no-block").communicate()
    if "start" in state:
        service.wait(lambda: "weights" in field(service.events("phase-entered"), "QWEN_MTP_PHASE"), "the weights")
    elif state == "backing off":
        service.wait_state("backing-off")
    elif "hung" in state:
        service.wait_state("unresponsive")
    else:
        service.wait_state("ready")
    service.box.run("systemctl", "stop", "qwen-mtp", timeout=60)
    assert service.processes() == []
    assert service.show("ActiveState", "Result") == {"ActiveState": "inactive", "Result": "success"}


def test_a_start_that_makes_no_progress_is_ended_and_one_that_does_is_not(service: Service) -> None:
    limits = "[supervisor]\nrestart-budget = 0\n[supervisor.phase-timeout]\nweights = 3\n"
    service.configure(service_recording(), "--hang-at", "Load weight begin", more=limits)
    status, _ = service.start()
    assert status != 0
    (failure,) = service.events("failure-diagnosed")
    assert (failure["QWEN_MTP_FAILURE_CLASS"], failure["QWEN_MTP_PHASE"]) == ("hang", "weights")
    assert service.processes() == []

    # Slower than TimeoutStartSec= of the unit, but always getting on.
    service.reset()
    service.box.write("/etc/systemd/system/qwen-mtp.service.d/test.conf", "[Service]\nTimeoutStartSec=2s\n")
    service.box.run("systemctl", "daemon-reload")
    try:
        service.configure(speed=8, more="[supervisor]\n")
        assert service.start()[0] == 0
    finally:
        service.box.run("rm", "/etc/systemd/system/qwen-mtp.service.d/test.conf")
        service.box.run("systemctl", "daemon-reload")


def test_a_taken_port_is_found_before_the_launch_and_waited_for(service: Service) -> None:
    service.configure(more="[supervisor]\nslow-initial = 1\nbackoff-jitter = 0\n")
    other = service.box.start("python3", "-m", "http.server", str(PORT), "--bind", "127.0.0.1")
    try:
        service.wait(lambda: service.box.result("curl", "-s", f"http://127.0.0.1:{PORT}/")[0] == 0, "the other server")
        service.box.start("systemctl", "start", "qwen-mtp", "--no-block").communicate()
        service.wait_state("backing-off")
        assert f"127.0.0.1:{PORT} is taken" in service.status()
        assert service.events("launch-started") == []
    finally:
        service.box.run("pkill", "-f", f"http.server {PORT}")
        other.communicate()
    service.wait_state("ready")


def test_a_hung_supervisor_is_ended_by_systemds_watchdog(service: Service) -> None:
    service.box.write("/etc/systemd/system/qwen-mtp.service.d/test.conf", "[Service]\nWatchdogSec=2s\nRestartSec=1s\n")
    service.box.run("systemctl", "daemon-reload")
    try:
        service.configure()
        assert service.start()[0] == 0
        before = service.show("MainPID")["MainPID"]
        service.box.run("kill", "-STOP", before)
        service.wait(lambda: service.show("NRestarts")["NRestarts"] == "1", "the watchdog")
        service.wait_state("ready")
        assert service.show("MainPID")["MainPID"] != before
        assert len(service.group("sglang")) == 3
    finally:
        service.box.run("rm", "/etc/systemd/system/qwen-mtp.service.d/test.conf")
        service.box.run("systemctl", "daemon-reload")


@pytest.mark.parametrize("number", ["HUP", "INT", "TERM"])
def test_signals_to_the_supervisor(service: Service, number: str) -> None:
    service.configure()
    assert service.start()[0] == 0
    service.box.run("systemctl", "kill", "--kill-who=main", "-s", number, "qwen-mtp")
    if number == "HUP":
        service.wait(lambda: bool(service.events("reload-refused")), "the warning")
        assert service.get("State") == ['s "ready"']
        return
    service.wait(lambda: service.show("ActiveState")["ActiveState"] == "inactive", "the end")
    assert service.processes() == []
