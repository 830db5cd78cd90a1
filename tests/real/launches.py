"""Launches of the real SGLang with the tiny model on the CPU: their configuration, and what is asked of them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

from tests.harness import BUS, Daemon

from .environment import Environment

Args = Mapping[str, object]

CPU: Args = {
    "host": "127.0.0.1",
    "device": "cpu",
    # Triton's interpreter keeps bfloat16 as integers and multiplies those (runtime/interpreter.py, 3.8.0).
    "dtype": "float16",
    "attention-backend": "triton",
    "cuda-graph-backend-decode": "disabled",
    "cuda-graph-backend-prefill": "disabled",
    "disable-radix-cache": True,
    "max-running-requests": 4,
    "max-total-tokens": 4096,
    "mem-fraction-static": 0.1,
    "decode-log-interval": 4,
}
"""What SGLang 0.5.23 needs to serve the tiny model without a GPU."""
NEXTN: Args = {
    "speculative-algorithm": "NEXTN",
    "speculative-num-steps": 3,
    "speculative-eagle-topk": 1,
    "speculative-num-draft-tokens": 4,
}
ENV = {
    "TRITON_INTERPRET": "1",
    "SGLANG_MAMBA_CONV_DTYPE": "float16",
    # Nothing is compiled: a machine without g++ will do.
    "TORCHDYNAMO_DISABLE": "1",
    # The interpreter's arithmetic warns on every other line.
    "PYTHONWARNINGS": "ignore::RuntimeWarning",
}


def configuration(
    environment: Environment,
    port: int,
    *options: Args,
    env: Mapping[str, str] | None = None,
    supervisor: Args | None = None,
) -> str:
    """Compose a qwen-mtp.toml.

    Args:
        environment: where SGLang and the model are.
        port: where SGLang is to serve.
        options: more of [args]; later ones win.
        env: more of [env].
        supervisor: [supervisor].
    """
    args: dict[str, object] = {"model-path": str(environment.model), "port": port, **CPU}
    for more in options:
        args.update(more)
    tables: dict[str, Args] = {
        "sglang": {"command": [str(environment.python), "-m", "sglang.launch_server"]},
        "args": args,
        "env": {**ENV, "PYTHONPATH": str(environment.shim), **(env or {})},
        "supervisor": supervisor or {},
    }
    lines = []
    for name, table in tables.items():
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def value(daemon: Daemon, name: str) -> Any:
    """Read a D-Bus property."""
    return json.loads(daemon.busctl("--json=short", "get-property", *BUS, name).stdout)["data"]


def processes(daemon: Daemon) -> list[int]:
    """SGLang's processes, wherever they went: those in the working directory that only this daemon gives.

    Not by their environment, which a process that changes its title, as SGLang's do, writes over.
    """
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.readlink(entry / "cwd") == str(daemon.directory / "state"):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def request(url: str, body: Mapping[str, object] | None = None, key: str = "", timeout: float = 180.0) -> Any:
    """Ask SGLang's HTTP API; returns the decoded answer.

    Args:
        url: what to ask.
        body: posted as JSON; without one it is a GET.
        key: API key.
        timeout: seconds.

    Raises:
        httpx.HTTPStatusError: the answer is an error.
    """
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    method = "GET" if body is None else "POST"
    answer = httpx.request(method, url, json=body, headers=headers, timeout=timeout, trust_env=False)
    answer.raise_for_status()
    return answer.json()


def completion(prompt: str, tokens: int) -> dict[str, object]:
    """Make the body of a completion of exactly so many tokens.

    Greedy, because the sampling kernel has no version for the CPU.
    """
    return {"model": "tiny", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
