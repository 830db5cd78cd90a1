"""What can be known to fail before minutes are spent on a launch. Cheap checks only."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qwen_mtp import checkpoint
from qwen_mtp.command import Endpoint
from qwen_mtp.diagnosis import Diagnosis, Evidence
from qwen_mtp.ports import bind_error
from qwen_mtp.process import SpawnError, check_command
from qwen_mtp.states import FailureClass, Restart


def finding(
    failure_class: FailureClass,
    rule: str,
    summary: str,
    cause: str,
    remedy: str,
    restart: Restart = Restart.NEVER,
) -> Diagnosis:
    """Make a diagnosis that no launch was needed for."""
    return Diagnosis(failure_class, rule, summary, cause, remedy, restart, 1.0, Evidence(0, "", "preflight"))


def check(
    argv: Sequence[str],
    env: Mapping[str, str],
    model_path: str,
    endpoint: Endpoint,
    args: Mapping[str, Any],
) -> Diagnosis | None:
    """Return the first thing that would make this launch fail, or None.

    Args:
        argv: SGLang's command line.
        env: SGLang's environment.
        model_path: value of --model-path.
        endpoint: where SGLang will listen.
        args: SGLang's options, by long name.
    """
    return _command(argv, env) or _model(model_path, args) or _port(endpoint)


def _command(argv: Sequence[str], env: Mapping[str, str]) -> Diagnosis | None:
    try:
        check_command(argv, env)
    except SpawnError as error:
        return spawn_failed(error)
    return None


def spawn_failed(error: SpawnError) -> Diagnosis:
    """Make the diagnosis of a command that cannot be started."""
    return finding(
        FailureClass.BROKEN_ENVIRONMENT,
        "command-not-executable",
        str(error),
        "SGLang's launcher is not where the configuration says, or the service may not execute it.",
        "Set [sglang] command to the python of SGLang's virtual environment, readable for the user qwen-mtp.",
    )


def _model(model_path: str, args: Mapping[str, Any]) -> Diagnosis | None:
    # Only absolute paths: anything else may be the name of a repository. SGLang takes a missing path for
    # one too, and fails half a minute later: "Repo id must be in the form" (0.5.11/20-model-path-missing).
    if not os.path.isabs(model_path):
        return None
    try:
        os.stat(model_path)
        if os.path.isdir(model_path):
            os.listdir(model_path)
    except FileNotFoundError:
        return finding(
            FailureClass.MODEL_NOT_FOUND,
            "model-path-missing",
            f"{model_path} does not exist",
            "model-path names a directory that is not there.",
            "Correct model-path under [args], or put the model there.",
        )
    except PermissionError:
        return finding(
            FailureClass.PERMISSION_DENIED,
            "model-path-unreadable",
            f"{model_path} cannot be read by the service's user",
            "The user qwen-mtp may not read the directory or one above it.",
            f"Let others read it: chmod -R o+rX {model_path}; check the directories above it too.",
        )
    except OSError as error:
        return finding(
            FailureClass.MODEL_NOT_FOUND,
            "model-path-unusable",
            f"{model_path}: {error.strerror}",
            "The file system refuses access to the model.",
            "Check the mount that holds the model.",
            Restart.SLOW,
        )
    return checkpoint.check(Path(model_path), args) if os.path.isdir(model_path) else None


def _port(endpoint: Endpoint) -> Diagnosis | None:
    error = bind_error(endpoint.bind_host, endpoint.port)
    if error is None:
        return None
    address = f"{endpoint.bind_host}:{endpoint.port}"
    if error.errno == errno.EADDRINUSE:
        return finding(
            FailureClass.PORT_IN_USE,
            "port-taken",
            f"{address} is taken by another process",
            "Something else listens there. SGLang would find out only after loading the whole model.",
            f"Find it with: ss -ltnp 'sport = :{endpoint.port}'; end it, or set another port under [args].",
            Restart.SLOW,
        )
    if error.errno == errno.EACCES:
        return finding(
            FailureClass.PERMISSION_DENIED,
            "port-forbidden",
            f"{address} may not be bound by the service's user",
            "Ports below 1024 need a privilege that the service does not have.",
            "Set a port of 1024 or more under [args].",
        )
    return finding(
        FailureClass.BAD_ARGUMENT,
        "host-not-local",
        f"{address} cannot be bound: {error.strerror or error}",
        "host is not an address of this machine; SGLang would hang or linger instead of saying so.",
        'Set host under [args] to an address of this machine, or to "0.0.0.0" for all of them.',
    )
