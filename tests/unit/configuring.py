"""Configurations for tests."""

from __future__ import annotations

import json
from pathlib import Path

from qwen_mtp import config
from qwen_mtp.command import Directories
from qwen_mtp.config import Config

OPTIONS: dict[str, list[str]] = json.loads((Path(__file__).parent / "data/sglang_options.json").read_text())
"""Names of SGLang's options by version, out of its own argument parsers."""

MINIMAL = '[sglang]\ncommand = ["/opt/sglang/bin/python"]\n[args]\nmodel-path = "/m"\n'


def load(tmp_path: Path, text: str, **dropins: str) -> Config:
    """Load a text as configuration, with drop-ins by name."""
    file = tmp_path / "qwen-mtp.toml"
    file.write_text(text, encoding="utf-8")
    directory = tmp_path / "qwen-mtp.toml.d"
    directory.mkdir(exist_ok=True)
    for name, content in dropins.items():
        (directory / f"{name}.toml").write_text(content, encoding="utf-8")
    return config.load(file, directory)


def directories(tmp_path: Path) -> Directories:
    return Directories(tmp_path / "state", tmp_path / "cache", tmp_path)
