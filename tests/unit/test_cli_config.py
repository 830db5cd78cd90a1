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
