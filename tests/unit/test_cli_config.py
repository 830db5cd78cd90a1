from __future__ import annotations

import json
from pathlib import Path

import pytest

from qwen_mtp.cli import main
from tests.unit.configuring import MINIMAL, load


def test_qwen_mtp_config_shows_what_is_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    load(tmp_path, MINIMAL, x="[args]\nport = 31000\n")
    assert main(["config", "--config", str(tmp_path / "qwen-mtp.toml")]) == 0
    text = capsys.readouterr().out
    assert f"port = 31000  # {tmp_path}/qwen-mtp.toml.d/x.toml:2" in text
    assert "stop-timeout = 90.0  # default" in text
    assert "/opt/sglang/bin/python --model-path /m --port 31000" in text
    assert main(["config", "--json", "--config", str(tmp_path / "qwen-mtp.toml")]) == 0
    assert json.loads(capsys.readouterr().out)["endpoint"] == "http://127.0.0.1:31000"


def test_qwen_mtp_config_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--config", str(tmp_path / "none.toml")]) == 78
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"qwen-mtp: {tmp_path}/none.toml: cannot be read")
    assert captured.err.count("\n") == 1


ODD = """[sglang]
command = ["/opt/a b/python"]
[args]
model-path = "/模型/Qwen \\"3.6\\" \\u007f\\n"
json = {a = 1, "b c" = [{x = "y"}, [1.5e300]]}
many = ["a", 1, true]
off = false
[env]
X = "# \\\\ '\\nport = 1"
[supervisor]
ready-generate = true
backoff-jitter = 1e-9
[supervisor.phase-timeout]
weights = 7
"""


def test_its_output_is_a_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = load(tmp_path, ODD)
    assert main(["config", "--config", str(tmp_path / "qwen-mtp.toml")]) == 0
    assert load(tmp_path, capsys.readouterr().out) == made


def test_the_environment_is_that_of_the_service(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    load(tmp_path, MINIMAL + '[env]\nX = "1"\n')
    monkeypatch.setenv("STATE_DIRECTORY", "/elsewhere/state")
    monkeypatch.setenv("UNRELATED", "1")
    assert main(["config", "--json", "--config", str(tmp_path / "qwen-mtp.toml")]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["environment"]["HOME"] == "/elsewhere/state"
    assert shown["environment"]["X"] == "1"
    assert "UNRELATED" not in shown["environment"]
    assert shown["argv"] == ["/opt/sglang/bin/python", "--model-path", "/m"]
    assert shown["sources"]["env.X"] == {"file": str(tmp_path / "qwen-mtp.toml"), "line": 6}
