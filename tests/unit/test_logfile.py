from __future__ import annotations

import io
from pathlib import Path

import pytest

from qwen_mtp.cli import main
from qwen_mtp.cli_phases import as_json
from qwen_mtp.logfile import read_lines, strip_ansi, without_prefixes
from qwen_mtp.savedlog import read

RECORDINGS = Path(__file__).parent.parent / "recordings"
LOG = list(read_lines(io.BytesIO((RECORDINGS / "0.5.11/90-27b-mtp-success/log").read_bytes())))
PHASES = as_json(read(LOG))

PREFIXES = {
    "docker compose": "sglang-1  | ",
    "docker -t": "2026-12-01T06:00:37.123456789Z ",
    "compose with times": "sglang-1  | 2026-12-01T06:00:37.123456789Z ",
    "kubectl --prefix": "[pod/qwen-0/sglang] ",
    "kubectl --prefix --timestamps": "[pod/qwen-0/sglang] 2026-12-01T06:00:37.123456789Z ",
    "journalctl": "Dec 01 06:00:37 gpu1 sglang[3641]: ",
    "journalctl short-precise": "Dec 01 06:00:37.123456 gpu1 sglang[3641]: ",
    "journalctl short-iso": "2026-12-01T06:00:37+00:00 gpu1 sglang[3641]: ",
    "journalctl short-iso-precise": "2026-12-01T06:00:37.123456+0100 gpu1 sglang[3641]: ",
    "journalctl short-full": "Tue 2026-12-01 06:00:37 UTC gpu1 sglang[3641]: ",
    "journalctl short-monotonic": "[  123.456789] gpu1 sglang[3641]: ",
    "journalctl short-unix": "1796104837.123456 gpu1 sglang[3641]: ",
    "ray": "(ServeReplica:qwen pid=3641, ip=10.0.0.1) ",
}


@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
def test_prefixes_of_other_tools_are_taken_off(prefix: str) -> None:
    assert list(without_prefixes(prefix + line for line in LOG)) == LOG


@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
def test_continuations_without_prefix_are_kept(prefix: str) -> None:
    # Only records get the prefix; the lines of a traceback do not.
    lines = [line if line.startswith((" ", "Trace")) else prefix + line for line in LOG]
    assert list(without_prefixes(lines)) == LOG


def test_a_plain_log_is_left_alone() -> None:
    assert list(without_prefixes(LOG)) == LOG


def test_colours_are_taken_off() -> None:
    assert strip_ansi("\x1b[32mINFO\x1b[0m: \x1b]8;;x\x07text\x1b[K") == "INFO: text"


def test_the_last_of_several_launches_counts() -> None:
    first = (RECORDINGS / "0.5.11/90-27b-mtp-success/log").read_bytes()
    second = (RECORDINGS / "0.5.11/92-27b-kill-scheduler-mid-load/log").read_bytes()
    reader = read(read_lines(io.BytesIO(first + second)))
    assert as_json(reader)["last_phase"] == "weights"
    assert reader.launch.progress == (3, 15)


def test_a_launch_that_fails_in_its_arguments_after_a_good_one_counts() -> None:
    first = (RECORDINGS / "0.5.11/90-27b-mtp-success/log").read_bytes()
    second = (RECORDINGS / "0.5.11/21-unknown-argument/log").read_bytes()
    assert as_json(read(read_lines(io.BytesIO(first + second))))["last_phase"] == "arguments"


def test_the_supervisors_own_lines_of_the_unit_are_told_apart() -> None:
    prefix = "Dec 01 06:00:37 gpu1 "
    lines = [prefix + "systemd[1]: Starting qwen-mtp.service..."]
    for _ in range(2):
        lines.append(prefix + "qwen-mtpd[700]: started SGLang as process 3641: /opt/sglang/bin/python")
        lines += [prefix + "sglang[700]: " + line for line in LOG]
        lines.append(prefix + "qwen-mtpd[700]: ready on http://127.0.0.1:30000 after 66.7 s")
    assert as_json(read(lines)) == PHASES


def test_json_has_the_documented_keys() -> None:
    assert PHASES["last_phase"] == "ready"
    assert PHASES["ready"] is True
    weights = next(phase for phase in PHASES["phases"] if phase["phase"] == "weights")
    assert weights == {
        "phase": "weights",
        "role": "target",
        "start": 10.0,
        "end": 17.0,
        "progress": {"done": 15, "total": 15},
    }
    assert PHASES["facts"]["weight_memory"] == {0: 51.05}


def test_a_log_without_time_stamps_has_no_times() -> None:
    phases = as_json(read(["Multi-thread loading shards:  20% Completed | 3/15 [00:02<00:08, 1.4it/s]"]))
    assert phases["phases"] == [{"phase": "spawn", "role": None, "start": None, "end": None, "progress": None}]


def test_lines_of_a_large_file_come_one_by_one() -> None:
    class Endless(io.RawIOBase):
        reads = 0

        def read(self, size: int = -1) -> bytes:
            self.reads += 1
            return b"x" * 1000 + b"\n" if self.reads < 10_000 else b""

    source = Endless()
    lines = read_lines(source)  # type: ignore[arg-type]
    assert len(next(lines)) == 1000
    assert source.reads == 1


def test_the_command_prints_phases_facts_and_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["phases", str(RECORDINGS / "0.5.11/90-27b-mtp-success/log")]) == 0
    text = capsys.readouterr().out
    assert "    10.0 s  weights                     15/15     7.0 s\n" in text
    assert "last phase: ready\n" in text
    assert "weight-memory: rank 0: 51.05\n" in text
    assert main(["phases", str(RECORDINGS / "0.5.11/53-port-in-use/log")]) == 0
    text = capsys.readouterr().out
    assert "last phase: http, not ready\n" in text
    assert "the port could not be bound: [Errno 98]" in text
    (tmp_path / "empty").touch()
    assert main(["phases", str(tmp_path / "empty")]) == 0
    assert capsys.readouterr().out == "spawn\n\nlast phase: spawn, not ready\n"


@pytest.mark.parametrize(("name", "words"), [("none", "No such file or directory"), ("", "Is a directory")])
def test_a_log_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, words: str) -> None:
    assert main(["phases", str(tmp_path / name)]) == 1
    captured = capsys.readouterr()
    assert captured.err.rstrip().endswith(words)
    assert captured.err.count("\n") == 1
