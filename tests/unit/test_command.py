from __future__ import annotations

from pathlib import Path

import pytest

from qwen_mtp import command
from qwen_mtp.command import ENVIRONMENT, Directories
from tests.unit.configuring import MINIMAL, directories, load


def test_values_become_words(tmp_path: Path) -> None:
    made = load(
        tmp_path,
        MINIMAL
        + 'flag = true\noff = false\nmany = ["a b", 2]\nnone = []\nratio = 0.5\nneg = -1\nopt = "--x"\n'
        + 'json = {a = 1, b = ["x"]}\nname = "/模型/Qwen 3.6"\n',
    )
    assert command.argv(made)[3:] == (
        "--flag", "--many", "a b", "2", "--ratio", "0.5", "--neg=-1", "--opt=--x",
        "--json", '{"a": 1, "b": ["x"]}', "--name", "/模型/Qwen 3.6",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("args", "url", "bind"),
    [
        ("", "http://127.0.0.1:30000", "127.0.0.1"),
        ('host = "0.0.0.0"\nport = 8000', "http://127.0.0.1:8000", "0.0.0.0"),
        ('host = "::"', "http://[::1]:30000", "::"),
        ('host = "gpu1.example"\nssl-certfile = "/c"', "https://gpu1.example:30000", "gpu1.example"),
    ],
)
def test_the_endpoint_can_be_reached_from_this_machine(tmp_path: Path, args: str, url: str, bind: str) -> None:
    endpoint = command.endpoint(load(tmp_path, MINIMAL + args))
    assert endpoint.url == url
    assert endpoint.bind_host == bind


def test_the_environment_is_made_anew_with_every_cache_below_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/x")
    env = command.environment(load(tmp_path, MINIMAL + '[env]\nHOME = "/other"\nX = "1"\n'), directories(tmp_path))
    assert set(env) == {variable.name for variable in ENVIRONMENT} | {"X"}
    assert (env["HOME"], env["X"]) == ("/other", "1")
    for name in env:
        if any(word in name for word in ("CACHE", "HF_HOME", "FLASHINFER", "EXTENSIONS", "MPL", "TORCH_HOME")):
            assert env[name].startswith(str(tmp_path / "cache")), name


def test_nothing_of_the_supervisor_reaches_sglang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "LISTEN_FDS", "INVOCATION_ID", "JOURNAL_STREAM", "CREDENTIALS_DIRECTORY")
    for name in ours:
        monkeypatch.setenv(name, "1")
    env = command.environment(load(tmp_path, MINIMAL), directories(tmp_path))
    assert not set(ours) & set(env)


def test_what_only_some_need(tmp_path: Path) -> None:
    made = load(tmp_path, MINIMAL)
    env = command.environment(made, directories(tmp_path), Path("/run/credentials/x/hf-token"), pycache=True)
    assert env["HF_TOKEN_PATH"] == "/run/credentials/x/hf-token"  # noqa: S105
    assert env["PYTHONPYCACHEPREFIX"] == f"{tmp_path}/cache/pycache"
    assert not {"HF_TOKEN_PATH", "PYTHONPYCACHEPREFIX"} & set(command.environment(made, directories(tmp_path)))


def test_every_variable_is_listed_once_with_a_reason() -> None:
    names = [variable.name for variable in ENVIRONMENT]
    assert len(names) == len(set(names))
    assert all(variable.reason for variable in ENVIRONMENT)


def test_directories_are_the_first_that_systemd_names() -> None:
    given = Directories.from_environment({"STATE_DIRECTORY": "/s/one:/s/two", "CACHE_DIRECTORY": "/c"})
    assert given == Directories(Path("/s/one"), Path("/c"), Path("/run/qwen-mtp"))
    none = Directories.from_environment({})
    assert none == Directories(Path("/var/lib/qwen-mtp"), Path("/var/cache/qwen-mtp"), Path("/run/qwen-mtp"))


def test_secrets_go_last_by_a_file(tmp_path: Path) -> None:
    words = command.argv(load(tmp_path, MINIMAL), Path("/run/qwen mtp/s.yaml"))
    assert words == ("/opt/sglang/bin/python", "--model-path", "/m", "--config", "/run/qwen mtp/s.yaml")
