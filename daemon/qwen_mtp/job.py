"""What is to be run: the configuration and the credentials, made ready."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qwen_mtp.command import Directories, Endpoint, argv, endpoint, environment
from qwen_mtp.config import Config
from qwen_mtp.credentials import Secrets

_DIST_INFO = re.compile(r"sglang-(?P<version>[^-]+)\.dist-info")


@dataclass(frozen=True)
class Job:
    """What is to be run, made of configuration and credentials.

    Attributes:
        argv: SGLang's command line.
        env: SGLang's environment.
        cwd: SGLang's working directory.
        endpoint: where it will serve.
        api_key: for probes; empty for none.
        secrets: byte strings to mask in its output.
        args: its options as configured, by long name.
        model_path: value of --model-path.
        speculative_algorithm: as configured, before SGLang has said it.
        sglang_version: version of the installed SGLang, empty if not known.
        checkpoint_gb: size of the model's files in units of 2**30 bytes, 0.0 if not known.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    endpoint: Endpoint
    api_key: str = ""
    secrets: tuple[bytes, ...] = ()
    args: Mapping[str, Any] = field(default_factory=dict)
    model_path: str = ""
    speculative_algorithm: str = ""
    sglang_version: str = ""
    checkpoint_gb: float = 0.0


def checkpoint_gb(model_path: str) -> float:
    """Size of a local model's weight files in units of 2**30 bytes, as SGLang counts; 0.0 if not local."""
    try:
        return sum(file.stat().st_size for file in Path(model_path).glob("*.safetensors")) / 2**30
    except OSError:
        return 0.0


def sglang_version(command: Sequence[str], env: Mapping[str, str]) -> str:
    """Find the version of the SGLang that a command would run; empty if it cannot be told.

    No process is started: the directories of PYTHONPATH and the site-packages beside the interpreter are
    searched for SGLang's metadata.
    """
    places = [Path(entry) for entry in env.get("PYTHONPATH", "").split(":") if entry]
    prefix = Path(command[0]).parent.parent
    places += sorted(prefix.glob("lib/python3*/site-packages")) + sorted(prefix.glob("lib/python3*/dist-packages"))
    for place in places:
        try:
            found = [_DIST_INFO.fullmatch(entry.name) for entry in place.iterdir()]
        except OSError:
            continue
        for match in found:
            if match:
                return match["version"]
    return ""


def _lacks_bytecode(command: Sequence[str]) -> bool:
    """Whether SGLang is installed without compiled modules where we cannot write them."""
    prefix = Path(command[0]).parent.parent
    for package in prefix.glob("lib/python3*/site-packages/sglang"):
        return not (package / "__pycache__").is_dir() and not os.access(package, os.W_OK)
    return False


def prepare(config: Config, secrets: Secrets, directories: Directories) -> Job:
    """Make the job of a configuration.

    Raises:
        ConfigError: the secrets cannot be handed over.
    """
    if secrets.options and "config" in config.args:
        names = ", ".join(secrets.options)
        raise config.error(
            ("args", "config"),
            f"cannot be combined with the credential {names}, which reaches SGLang by its only --config; "
            "move the file's keys to [args]",
        )
    secrets_file = secrets.write_config(directories.runtime)
    env = environment(config, directories, secrets.token_file, _lacks_bytecode(config.command))
    return Job(
        argv=argv(config, secrets_file),
        env=env,
        cwd=str(directories.state),
        endpoint=endpoint(config),
        api_key=secrets.api_key,
        secrets=secrets.masks,
        args=config.args,
        model_path=config.model_path,
        speculative_algorithm=str(config.args.get("speculative-algorithm", "")),
        sglang_version=sglang_version(config.command, env),
        checkpoint_gb=checkpoint_gb(config.model_path),
    )
