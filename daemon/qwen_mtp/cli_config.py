"""`qwen-mtp config`: the merged configuration, and what SGLang would be given."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

from qwen_mtp.command import Directories, argv, endpoint, environment
from qwen_mtp.config import DEFAULT_PATH, Config, ConfigError, load
from qwen_mtp.settings import SETTINGS

EX_CONFIG = 78

_EPILOG = """\
Secrets are not read and not shown; SGLang would get them by a file (see qwen-mtp.toml(5), SECRETS).

exit status:
  0   the configuration can be used
  78  it cannot; the message names file, line and key"""


def describe(parser: argparse.ArgumentParser) -> None:
    """Add arguments and help."""
    parser.description = "Show the configuration as it is read, with the file that set each key."
    parser.epilog = _EPILOG
    parser.add_argument("--config", type=Path, default=DEFAULT_PATH, metavar="FILE", help="default: %(default)s")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print it; returns the exit status."""
    path: Path = arguments.config
    try:
        config = load(path, path.with_name(path.name + ".d"))
    except ConfigError as error:
        print(f"qwen-mtp: {error}", file=sys.stderr)
        return EX_CONFIG
    env = environment(config, Directories.from_environment(os.environ))
    if arguments.json:
        print(json.dumps(_as_json(config, env), indent=2, ensure_ascii=False))
        return 0
    for table, values in _tables(config).items():
        print(f"[{table}]")
        for name, value in values.items():
            key = (*table.split("."), name)
            print(f"{name} = {_toml(value)}{_source(config, key)}")
        print()
    print(f"# SGLang serves on {endpoint(config).url} and is started as:")
    print(f"#   {_one_line(shlex.join(argv(config)))}")
    print("# in the environment:")
    for name, value in sorted(env.items()):
        print(f"#   {name}={_one_line(value)}")
    return 0


def _tables(config: Config) -> dict[str, dict[str, Any]]:
    supervisor = config.supervisor
    return {
        "sglang": {"command": list(config.command)},
        "args": dict(config.args),
        "env": dict(config.env),
        "supervisor": {s.name: getattr(supervisor, s.name.replace("-", "_")) for s in SETTINGS},
        "supervisor.phase-timeout": {phase.value: limit for phase, limit in supervisor.phase_timeout.items()},
    }


def _source(config: Config, key: tuple[str, ...]) -> str:
    if key not in config.sources:
        return "  # default"
    path, line = config.sources[key]
    return f"  # {_one_line(str(path))}" + (f":{line}" if line else "")


def _one_line(text: str) -> str:
    """Escape what would end a comment or must not stand in one."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def _toml(value: object) -> str:
    """Spell a value so that the output can be used as a configuration again."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml(key)} = {_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    # JSON's spelling of texts, numbers and booleans is TOML's too, but for one character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _as_json(config: Config, env: dict[str, str]) -> dict[str, Any]:
    return {
        "configuration": _tables(config),
        "sources": {
            ".".join(key): {"file": str(path), "line": line} for key, (path, line) in sorted(config.sources.items())
        },
        "endpoint": endpoint(config).url,
        "argv": list(argv(config)),
        "environment": env,
    }
