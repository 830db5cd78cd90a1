"""The shipped configuration against SGLang's own argument parser."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from qwen_mtp.command import argv
from qwen_mtp.config import load
from tests.harness import ROOT

from .environment import Environment

_PARSE = """
import argparse, json, sys
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
print(json.dumps(vars(parser.parse_args(json.loads(sys.argv[1]))), default=str))
"""


def shipped(directory: Path, *, commented: bool) -> tuple[str, ...]:
    """SGLang's options of the shipped file with a model named, with or without the options it shows commented out."""
    text = (ROOT / "etc/qwen-mtp.toml").read_text().replace("#model-path", "model-path")
    if commented:
        text = text.replace("#mem-fraction-static", "mem-fraction-static")
    path = directory / "qwen-mtp.toml"
    path.write_text(text)
    config = load(path, directory / "qwen-mtp.toml.d")
    return argv(config)[len(config.command) :]


def parse(environment: Environment, options: tuple[str, ...], home: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [environment.python, "-c", _PARSE, json.dumps(options)],
        env={"PATH": "/usr/bin:/bin", "HOME": str(home), "LANG": "C.UTF-8", "PYTHONPATH": str(environment.shim)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("commented", [False, True])
def test_sglang_accepts_every_shipped_option_and_reads_it_as_meant(
    environment: Environment, tmp_path: Path, commented: bool
) -> None:
    done = parse(environment, shipped(tmp_path, commented=commented), tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    read = json.loads(done.stdout.splitlines()[-1])
    expected = {
        "model_path": "/srv/models/Qwen3.6-27B",
        "host": "127.0.0.1",
        "port": 30000,
        "tp_size": 2,
        "speculative_algorithm": "NEXTN",
        "speculative_num_steps": 1,
        "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": 2,
        "mamba_radix_cache_strategy": "extra_buffer",
        "enable_metrics": True,
        **({"mem_fraction_static": 0.85} if commented else {}),
    }
    assert {name: read[name] for name in expected} == expected


def test_the_old_name_that_the_shipped_file_shows_for_old_versions_is_refused(
    environment: Environment, tmp_path: Path
) -> None:
    done = parse(environment, ("--model-path", "/m", "--mamba-scheduler-strategy", "extra_buffer"), tmp_path)
    assert done.returncode == 2
    assert "unrecognized arguments: --mamba-scheduler-strategy" in done.stderr
