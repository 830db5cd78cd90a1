"""From the configuration to SGLang's command line and environment. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from qwen_mtp.config import ArgValue, Config, Scalar

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 30000
"""What SGLang takes without --host and --port (server_args.py, 0.5.9 to 0.5.23)."""

_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104


@dataclass(frozen=True)
class Directories:
    """The service's directories (systemd.exec(5), StateDirectory= and the like)."""

    state: Path
    cache: Path
    runtime: Path

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Directories:
        """Take them from systemd's variables; each holds a list, of which ours is the first."""

        def first(name: str, default: str) -> Path:
            return Path(environ.get(name, "").split(":")[0] or default)

        return cls(
            first("STATE_DIRECTORY", "/var/lib/qwen-mtp"),
            first("CACHE_DIRECTORY", "/var/cache/qwen-mtp"),
            first("RUNTIME_DIRECTORY", "/run/qwen-mtp"),
        )


@dataclass(frozen=True)
class Endpoint:
    """Where SGLang serves.

    Attributes:
        bind_host: the address that it binds.
        host: the address to reach it at from this machine.
        port: TCP port.
        scheme: `"http"` or `"https"`.
    """

    bind_host: str
    host: str
    port: int
    scheme: str = "http"

    @property
    def url(self) -> str:
        """Base URL, without a slash at the end."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


def endpoint(config: Config) -> Endpoint:
    """Tell where SGLang will serve with this configuration."""
    host = str(config.args.get("host") or DEFAULT_HOST).strip("[]")
    port = config.args.get("port")
    return Endpoint(
        bind_host=host,
        host=_WILDCARDS.get(host, host),
        port=port if isinstance(port, int) and not isinstance(port, bool) else DEFAULT_PORT,
        scheme="https" if config.args.get("ssl-certfile") else "http",
    )


def argv(config: Config, secrets_file: Path | None = None) -> tuple[str, ...]:
    """Compose SGLang's command line.

    Args:
        config: the configuration.
        secrets_file: the file with secret options, for --config.
    """
    words = list(config.command)
    for name, value in config.args.items():
        words += _option(name, value)
    if secrets_file is not None:
        words += ["--config", str(secrets_file)]
    return tuple(words)


def _option(name: str, value: ArgValue) -> Sequence[str]:
    flag = f"--{name}"
    if value is True:
        return [flag]
    if value is False:
        return []
    if isinstance(value, list):
        return [flag, *map(_text, value)] if value else []
    text = json.dumps(value) if isinstance(value, dict) else _text(value)
    # argparse takes a value that begins with a dash for an option, unless it is joined to its own.
    return [f"{flag}={text}"] if text.startswith("-") else [flag, text]


def _text(value: Scalar) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class Variable(NamedTuple):
    """One variable of SGLang's environment.

    Attributes:
        name: its name.
        value: its value; `{state}`, `{cache}` and `{runtime}` stand for the service's directories.
        reason: who reads it, or why it is set.
    """

    name: str
    value: str
    reason: str


ENVIRONMENT: tuple[Variable, ...] = (
    Variable("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "nvidia-smi, gcc, ninja"),
    Variable("LANG", "C.UTF-8", "text is UTF-8, whatever the administrator's locale"),
    Variable("HOME", "{state}", "libraries that know no variable of their own"),
    Variable("TMPDIR", "/tmp", "ZeroMQ sockets, locks; the unit has a /tmp of its own"),  # noqa: S108
    Variable("XDG_CACHE_HOME", "{cache}", "outlines and others"),
    Variable("HF_HOME", "{cache}/huggingface", "Hugging Face: models and tokens"),
    Variable("SGLANG_CACHE_DIR", "{cache}/sglang", "SGLang 0.5.18 and later"),
    Variable("SGLANG_JIT_CACHE_DIR", "{cache}/sglang/jit", "SGLang 0.5.23: kernels compiled on first use"),
    Variable("SGLANG_DG_CACHE_DIR", "{cache}/deep_gemm", "DeepGEMM, up to SGLang 0.5.16"),
    Variable("TRITON_CACHE_DIR", "{cache}/triton", "Triton; SGLang 0.5.18 sets it itself, earlier ones do not"),
    Variable("TORCHINDUCTOR_CACHE_DIR", "{cache}/inductor", "torch.compile, likewise"),
    Variable("CUDA_CACHE_PATH", "{cache}/cuda", "CUDA's PTX compiler, likewise"),
    Variable("TILELANG_CACHE_DIR", "{cache}/tilelang", "TileLang, likewise"),
    Variable("FLASHINFER_WORKSPACE_BASE", "{cache}", "FlashInfer, which appends .cache/flashinfer, likewise"),
    Variable("TVM_FFI_CACHE_DIR", "{cache}/tvm-ffi", "TVM FFI"),
    Variable("CUTE_DSL_CACHE_DIR", "{cache}/cute-dsl", "CuTe DSL, else below TMPDIR and lost at every stop"),
    Variable("QUACK_CACHE_DIR", "{cache}/quack", "quack kernels, likewise"),
    Variable("TORCH_HOME", "{cache}/torch", "torch.hub"),
    Variable("TORCH_EXTENSIONS_DIR", "{cache}/torch-extensions", "torch's C++ extensions"),
    Variable("NUMBA_CACHE_DIR", "{cache}/numba", "Numba"),
    Variable("MPLCONFIGDIR", "{cache}/matplotlib", "Matplotlib"),
    Variable("PYTHONUNBUFFERED", "1", "lines reach the journal when they are printed"),
    Variable(
        "SGLANG_PYSPY_DUMP_BEFORE_CRASH",
        "0",
        "SGLang 0.5.13 and later: with this and the next a crashed server lingers 65 s and answers nobody",
    ),
    Variable("SGLANG_CUDA_COREDUMP_BEFORE_CRASH", "0", "see above"),
)
"""What SGLang is given besides [env]; nothing is inherited from the supervisor. Which cache variable each
version reads was taken from its source."""


def environment(
    config: Config, directories: Directories, token_file: Path | None = None, pycache: bool = False
) -> dict[str, str]:
    """Compose SGLang's whole environment; [env] wins over everything.

    Args:
        config: the configuration.
        directories: the service's directories.
        token_file: file with a token for Hugging Face.
        pycache: keep compiled Python modules in the cache directory, for an environment that is installed
            without them and that the service may not write: else every start compiles everything anew.
    """
    places = {
        "state": str(directories.state),
        "cache": str(directories.cache),
        "runtime": str(directories.runtime),
    }
    env = {variable.name: variable.value.format(**places) for variable in ENVIRONMENT}
    if token_file is not None:
        env["HF_TOKEN_PATH"] = str(token_file)
    if pycache:
        env["PYTHONPYCACHEPREFIX"] = f"{directories.cache}/pycache"
    env.update(config.env)
    return env
