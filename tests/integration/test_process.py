from __future__ import annotations

import os
import signal
import stat
import time
from pathlib import Path

import pytest

from qwen_mtp.containment import DescendantContainment, become_subreaper, reap_orphans
from qwen_mtp.diagnosis import Outcome
from qwen_mtp.process import Process, SpawnError, spawn

ENV = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}


def wait(process: Process) -> Outcome:
    end = time.monotonic() + 20
    while (outcome := process.reap()) is None:
        assert time.monotonic() < end
        time.sleep(0.01)
    return outcome


def run(*argv: str, env: dict[str, str] = ENV, procs_file: str = "") -> tuple[Outcome, bytes]:
    process = spawn(argv, env, "/", procs_file)
    outcome = wait(process)
    try:
        output = os.read(process.output, 65536)
    finally:
        process.close()
    return outcome, output


def test_output_of_both_streams_is_one_pipe_in_order() -> None:
    outcome, output = run("/bin/sh", "-c", "echo a; echo b >&2; echo c")
    assert output == b"a\nb\nc\n"
    assert outcome == Outcome(exit_status=0)


def test_arguments_with_spaces_quotes_and_other_scripts_arrive_as_they_are() -> None:
    argv = ["/usr/bin/printf", "%s|", "a b", "$HOME", "'x'", '"', "", "/模型/Qwen 3.6", "*"]
    assert run(*argv)[1].decode() == "|".join(argv[2:]) + "|"


def test_the_environment_is_exactly_what_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/x")
    output = run("/usr/bin/env", env={"ONLY": "this one"})[1].decode().splitlines()
    # A shell starts it, which adds PWD and nothing that comes from us.
    assert [line for line in output if not line.startswith(("PWD=", "OLDPWD=", "_=", "SHLVL="))] == ["ONLY=this one"]


def test_it_leads_a_session_of_its_own_and_has_no_stdin() -> None:
    pid, sid, pgrp, read = run("/bin/sh", "-c", 'cut -d" " -f 1,5,6 /proc/$$/stat; cat; echo end')[1].split()
    assert pid == sid == pgrp
    assert read == b"end"


def test_it_has_no_signal_blocked_or_ignored() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    old = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    try:
        output = run("/bin/grep", "-E", "Sig(Blk|Ign)", "/proc/self/status")[1]
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
        signal.signal(signal.SIGUSR2, old)
    # Signals 1 to 31; 32 and 33 belong to the C library, and nobody can set them.
    assert [int(line.split()[1], 16) & 0x7FFFFFFF for line in output.splitlines()] == [0, 0]


def test_no_descriptor_of_ours_is_inherited() -> None:
    ours = os.open("/dev/zero", os.O_RDONLY)
    try:
        output = run("/bin/sh", "-c", "for fd in /proc/self/fd/*; do readlink $fd; done")[1].decode()
    finally:
        os.close(ours)
    assert "/dev/null" in output
    assert "/dev/zero" not in output


def test_exit_status_and_signal_are_told_apart() -> None:
    assert run("/bin/sh", "-c", "exit 78")[0] == Outcome(exit_status=78)
    assert run("/bin/sh", "-c", "kill -KILL $$")[0] == Outcome(signal=signal.SIGKILL)


def test_entering_a_control_group_comes_before_the_command(tmp_path: Path) -> None:
    procs = tmp_path / "procs"
    assert run("/bin/cat", str(procs), procs_file=str(procs))[1] == b"0\n"


def test_a_control_group_that_cannot_be_entered_does_not_stop_the_launch(tmp_path: Path) -> None:
    outcome, output = run("/bin/echo", "on", procs_file=str(tmp_path / "no/procs"))
    assert outcome.exit_status == 0
    assert output.endswith(b"on\n")


@pytest.mark.parametrize("kind", ["absent", "directory", "not executable", "dangling"])
def test_a_command_that_cannot_be_executed_is_named_before_anything_starts(tmp_path: Path, kind: str) -> None:
    command = tmp_path / "python"
    if kind == "directory":
        command.mkdir()
    elif kind == "not executable":
        command.write_text("#!/bin/sh\n")
        command.chmod(stat.S_IRUSR)
    elif kind == "dangling":
        command.symlink_to(tmp_path / "nowhere")
    words = {
        "absent": "does not exist",
        "directory": "is a directory",
        "not executable": "is not executable",
        "dangling": f"is a symbolic link to {tmp_path}/nowhere, which does not exist",
    }
    with pytest.raises(SpawnError, match=f"^{command} {words[kind]}$"):
        spawn([str(command)], ENV, "/")


def test_an_argument_with_a_nul_byte_is_refused() -> None:
    with pytest.raises(SpawnError, match="cannot be started"):
        spawn(["/bin/echo", "a\0b"], ENV, "/")


def test_descendants_that_daemonize_are_found_and_killed() -> None:
    become_subreaper()
    containment = DescendantContainment()
    # The shell ends at once; its grandchild sits in a session of its own and ignores signals.
    process = spawn(
        ["/bin/sh", "-c", "setsid sh -c 'trap \"\" TERM HUP; echo up; sleep 600 & wait' & sleep 0.3"],
        ENV,
        "/",
    )
    wait(process)
    left = containment.pids()
    assert left
    containment.kill()
    end = time.monotonic() + 10
    while containment.pids():
        assert time.monotonic() < end
        time.sleep(0.01)
    reap_orphans(0)
    process.close()


def test_orphans_are_reaped_but_never_the_main_process() -> None:
    become_subreaper()
    process = spawn(["/bin/sh", "-c", "exit 3"], ENV, "/")
    end = time.monotonic() + 10
    while Path(f"/proc/{process.pid}/stat").read_text().split()[2] != "Z":
        assert time.monotonic() < end
        time.sleep(0.01)
    reap_orphans(process.pid)
    assert process.reap() == Outcome(exit_status=3)
    process.close()
