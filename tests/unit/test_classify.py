from __future__ import annotations

import json
from pathlib import Path

import pytest

from qwen_mtp.cli import main
from qwen_mtp.failures import load_catalogue
from qwen_mtp.messages import EVENTS
from qwen_mtp.states import FailureClass

RECORDINGS = Path(__file__).parent.parent / "recordings"
Capture = pytest.CaptureFixture[str]


def classify(capsys: Capture, *words: str) -> tuple[int, dict[str, object]]:
    status = main(["classify", "--json", *words])
    return status, json.loads(capsys.readouterr().out)


def log(case: str) -> str:
    return str(RECORDINGS / case / "log")


def test_json_has_the_documented_keys(capsys: Capture) -> None:
    status, found = classify(capsys, "--signal", "KILL", log("0.5.11/51-oom-draft-kv-pool"))
    assert status == 0
    assert set(found) == {
        "class", "rule", "summary", "cause", "remedy", "restart", "confidence", "evidence", "facts", "phase", "also",
    }  # fmt: skip
    assert (found["class"], found["restart"], found["phase"]) == ("gpu-out-of-memory", "backoff", "draft-kv-cache")
    assert set(found["evidence"]) == {"line", "text", "process"}  # type: ignore[call-overload]
    assert found["facts"]["wanted"] == "15.96 GiB"  # type: ignore[index]


def test_a_log_without_failure(capsys: Capture, tmp_path: Path) -> None:
    serving = tmp_path / "log"
    serving.write_bytes(Path(log("0.5.16/90-27b-mtp-success")).read_bytes().partition(b"SIGTERM received")[0])
    assert classify(capsys, str(serving)) == (1, {"class": None, "phase": "ready"})
    assert main(["classify", str(serving)]) == 1
    assert capsys.readouterr().out == "no failure was found; the launch reached phase ready\n"
    status, found = classify(capsys, "--signal", "9", str(serving))
    assert (status, found["class"]) == (0, "killed")


@pytest.mark.parametrize(
    ("words", "failure_class"),
    [(("--exit-status", "127"), "broken-environment"), (("--exit-status", "137"), "killed"), (("--signal", "sigsegv"), "crash")],
)  # fmt: skip
def test_the_end_counts_where_the_log_is_silent(
    capsys: Capture, tmp_path: Path, words: tuple[str, ...], failure_class: str
) -> None:
    quiet = tmp_path / "log"
    quiet.write_text("[2026-12-01 06:00:37] nothing of note\n")
    assert classify(capsys, *words, str(quiet))[1]["class"] == failure_class


def test_the_last_launch_counts_and_lines_are_numbered_within_the_file(capsys: Capture, tmp_path: Path) -> None:
    first = Path(log("0.5.11/51-oom-draft-kv-pool")).read_bytes()
    second = Path(log("0.5.11/40-shard-truncated")).read_bytes()
    both = tmp_path / "log"
    both.write_bytes(first + second)
    found = classify(capsys, str(both))[1]
    assert found["class"] == "model-corrupt"
    evidence: dict[str, object] = found["evidence"]  # type: ignore[assignment]
    line = both.read_bytes().decode().split("\n")[int(str(evidence["line"])) - 1]
    assert str(evidence["text"]) in line


def test_prefixes_of_other_tools_change_nothing(capsys: Capture, tmp_path: Path) -> None:
    plain = classify(capsys, log("0.5.11/10-draft-tokens-1-only"))[1]
    prefixed = tmp_path / "log"
    text = Path(log("0.5.11/10-draft-tokens-1-only")).read_text()
    prefixed.write_text("".join(f"sglang-1  | {line}\n" for line in text.splitlines()))
    assert classify(capsys, str(prefixed))[1] == plain


def test_errors_of_use(capsys: Capture) -> None:
    assert main(["classify", "/no/such/log"]) == 1
    assert capsys.readouterr().err == "qwen-mtp: /no/such/log: No such file or directory\n"
    with pytest.raises(SystemExit) as caught:
        main(["classify", "--signal", "NOPE", "x"])
    assert caught.value.code == 2
    assert "there is no signal NOPE" in capsys.readouterr().err


def test_every_class_event_and_rule_is_explained(capsys: Capture) -> None:
    catalogue = load_catalogue()
    names = [member.value for member in FailureClass] + [entry.message_id for entry in catalogue.classes]
    names += [kind.message_id.upper() for kind in EVENTS] + [kind.name for kind in EVENTS]
    names += [rule.id for rule in catalogue.rules]
    for name in names:
        assert main(["explain", name]) == 0, name
        text = capsys.readouterr().out
        assert len(text) > 40
        assert "{" not in text
    assert main(["explain"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(FailureClass)
    assert main(["explain", "nonsense"]) == 1
    assert "there is no class, rule or MESSAGE_ID nonsense" in capsys.readouterr().err
