from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qwen_mtp import command, config, credentials
from qwen_mtp.cli import main
from qwen_mtp.command import ENVIRONMENT, Directories
from qwen_mtp.config import Config, ConfigError
from qwen_mtp.job import prepare
from qwen_mtp.states import Phase
from qwen_mtp.tomlfile import lines_of_keys

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "etc/qwen-mtp.toml"
OPTIONS = json.loads((Path(__file__).parent / "data/sglang_options.json").read_text())
MINIMAL = '[sglang]\ncommand = ["/opt/sglang/bin/python"]\n[args]\nmodel-path = "/m"\n'


def load(tmp_path: Path, text: str, **dropins: str) -> Config:
    file = tmp_path / "qwen-mtp.toml"
    file.write_text(text, encoding="utf-8")
    directory = tmp_path / "qwen-mtp.toml.d"
    directory.mkdir(exist_ok=True)
    for name, content in dropins.items():
        (directory / f"{name}.toml").write_text(content)
    return config.load(file, directory)


def directories(tmp_path: Path) -> Directories:
    return Directories(tmp_path / "state", tmp_path / "cache", tmp_path)


# -- the shipped file ------------------------------------------------------------------------------


def shipped(tmp_path: Path, *changes: tuple[str, str]) -> Config:
    text = SHIPPED.read_text().replace("#model-path", "model-path")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return load(tmp_path, text)


def test_the_shipped_file_starts_nothing_before_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\[args\] model-path: no model is named; write e\.g\. model-path = "):
        load(tmp_path, SHIPPED.read_text())


def test_the_shipped_file_is_the_launch_of_the_incident(tmp_path: Path) -> None:
    words = command.argv(shipped(tmp_path))
    assert " ".join(words[3:]) == (
        "--model-path /srv/models/Qwen3.6-27B --served-model-name Qwen3.6-27B --host 127.0.0.1 --port 30000 --tp-size 2"
        " --speculative-algorithm NEXTN --speculative-num-steps 1 --speculative-eagle-topk 1"
        " --speculative-num-draft-tokens 2 --mamba-radix-cache-strategy extra_buffer --enable-metrics"
    )


@pytest.mark.parametrize("version", ["0.5.16", "0.5.23"])
def test_every_shipped_option_exists_in_the_versions_that_the_file_names(tmp_path: Path, version: str) -> None:
    unknown = [name for name in shipped(tmp_path).args if name not in OPTIONS[version]]
    assert unknown == []


def test_the_commented_line_makes_it_fit_0_5_11(tmp_path: Path) -> None:
    made = shipped(
        tmp_path,
        ('\nmamba-radix-cache-strategy = "extra_buffer"', ""),
        ("#mamba-scheduler-strategy", "mamba-scheduler-strategy"),
    )
    assert [name for name in made.args if name not in OPTIONS["0.5.11"]] == []
    assert made.args["mamba-scheduler-strategy"] == "extra_buffer"
    assert made.env["SGLANG_ENABLE_SPEC_V2"] == "1"


def test_every_commented_setting_of_the_shipped_file_is_valid(tmp_path: Path) -> None:
    lines = [
        line[1:] if line.startswith("#") and " = " in line and line[1].isalpha() and "mamba-s" not in line else line
        for line in SHIPPED.read_text().splitlines()
    ]
    assert load(tmp_path, "\n".join(lines)).args["mem-fraction-static"] == 0.85


# -- reading ---------------------------------------------------------------------------------------


def test_dropins_win_key_by_key_in_the_order_of_their_names(tmp_path: Path) -> None:
    made = load(
        tmp_path,
        MINIMAL + 'port = 1000\nserved-model-name = "a"\n[supervisor]\nstop-timeout = 5\n',
        b="[args]\nport = 3000\n[env]\nX = '1'\n[supervisor.phase-timeout]\nweights = 7",
        a="[args]\nport = 2000\ntp-size = 2\nenable-metrics = true",
        z="[args]\nenable-metrics = false\n",
    )
    assert made.args == {
        "model-path": "/m",
        "port": 3000,
        "served-model-name": "a",
        "tp-size": 2,
        "enable-metrics": False,
    }
    assert made.env == {"X": "1"}
    assert made.supervisor.stop_timeout == 5.0
    assert made.supervisor.phase_timeout[Phase.WEIGHTS] == 7.0
    assert made.supervisor.phase_timeout[Phase.WARMUP] == 900.0
    assert made.sources[("args", "port")] == (tmp_path / "qwen-mtp.toml.d/b.toml", 2)
    assert "--enable-metrics" not in command.argv(made)


def test_hidden_files_and_other_files_are_no_dropins(tmp_path: Path) -> None:
    load(tmp_path, MINIMAL)
    (tmp_path / "qwen-mtp.toml.d/.x.toml").write_text("nonsense")
    (tmp_path / "qwen-mtp.toml.d/x.toml.dpkg-old").write_text("nonsense")
    assert load(tmp_path, MINIMAL).model_path == "/m"


ERRORS = {
    "empty file": ("", '{f}: [sglang] command: is not set; write e.g. command = ["/opt/sglang/bin/python", "-m", "sglang.launch_server"]'),
    "unknown table": ("[arg]\n", "{f}:1: [arg]: unknown table; there are [sglang], [args], [env], [supervisor]; did you mean args?"),
    "key outside": ("port = 1\n", "{f}:1: [port]: unknown table; there are [sglang], [args], [env], [supervisor]"),
    "table is a value": ("args = 1\n", "{f}:1: [args]: must be a table: write [args] on a line of its own"),
    "unknown key": ("[supervisor]\n\nstop-timout = 1\n", "{f}:3: [supervisor] stop-timout: unknown key; did you mean stop-timeout?; qwen-mtp.toml(5) lists all keys"),
    "unknown phase": ("[supervisor.phase-timeout]\nwheights = 1\n", "{f}:2: [supervisor.phase-timeout] wheights: unknown phase; there are spawn, arguments, distributed, weights, kv-cache, draft-weights, draft-kv-cache, cuda-graphs, http, warmup; did you mean weights?"),
    "phase no number": ("[supervisor]\nphase-timeout = {weights = '9'}\n", "{f}:2: [supervisor.phase-timeout] weights: must be a number"),
    "wrong type": ("[supervisor]\nstop-timeout = '90 s'\n", "{f}:2: [supervisor] stop-timeout: must be a number"),
    "bool is no number": ("[supervisor]\nhealth-failures = true\n", "{f}:2: [supervisor] health-failures: must be a whole number"),
    "number is no bool": ("[supervisor]\nready-generate = 1\n", "{f}:2: [supervisor] ready-generate: must be true or false"),
    "out of range": ("[supervisor]\nbackoff-jitter = 1.5\n", "{f}:2: [supervisor] backoff-jitter: must be from 0 to 1"),
    "not a choice": ("[supervisor]\nlog-level = 'loud'\n", "{f}:2: [supervisor] log-level: must be one of debug, info, warning, error"),
    "command a text": ("[sglang]\ncommand = '/opt/x'\n", '{f}:2: [sglang] command: must be a list of texts, e.g. ["/opt/sglang/bin/python", "-m", "sglang.launch_server"]'),
    "command relative": ("[sglang]\ncommand = ['python3']\n", "{f}:2: [sglang] command: must begin with an absolute path, and 'python3' is none"),
    "sglang key": ("[sglang]\ncomand = ['/x']\n", "{f}:2: [sglang] comand: unknown key; there is command; did you mean command?"),
    "dashes": ('[args]\n"--model_path" = "/m"\n', "{f}:2: [args] --model_path: must be one of SGLang's long option names without the dashes in front; write model-path"),
    "underscore": ("[args]\ntp_size = 2\n", "{f}:2: [args] tp_size: must be one of SGLang's long option names without the dashes in front; write tp-size"),
    "date": ("[args]\nx = 2026-01-01\n", "{f}:2: [args] x: must be true, false, a number, a text, a list of those, or a table for an option that takes JSON"),
    "list of lists": ("[args]\nx = [[1]]\n", "{f}:2: [args] x: must be true, false, a number, a text, a list of those, or a table for an option that takes JSON"),
    "infinite": ("[args]\nx = inf\n", "{f}:2: [args] x: must be a finite number"),
    "port": ("[args]\nport = 70000\n", "{f}:2: [args] port: must be a whole number from 1 to 65535; SGLang itself does not check it"),
    "port text": ("[args]\nport = '30000'\n", "{f}:2: [args] port: must be a whole number from 1 to 65535; SGLang itself does not check it"),
    "memory": ("[args]\nmem-fraction-static = 1.5\n", "{f}:2: [args] mem-fraction-static: must be a number between 0 and 1; SGLang itself does not check it"),
    "log level": ("[args]\nlog-level = 'warning'\n", '{f}:2: [args] log-level: must be "info" or "debug": with less SGLang prints none of the lines that the phases are read from; log-level-http = "warning" silences the access log alone'),
    "env number": ("[env]\nX = 1\n", '{f}:2: [env] X: must be text: write X = "1"'),
    "env name": ("[env]\n'A B' = '1'\n", "{f}:2: [env] A B: is no name of an environment variable"),
    "bad toml": ("[args]\nport = \n", "{f}:2: no valid TOML: Invalid value (column 8)"),
    "duplicate": ("[args]\nport = 1\nport = 2\n", "{f}:3: no valid TOML: Cannot overwrite a value (column 9)"),
    "open string": ("[args]\n\nx = '''abc\n", "{f}:4: no valid TOML: Expected \"'''\""),
    "token": ('[env]\nHF_TOKEN = "x"\n', "{f}:2: [env] HF_TOKEN: a secret must not stand here; store it as the credential /etc/credstore/qwen-mtp.hf-token (see qwen-mtp.toml(5), SECRETS)"),
    "nul": ('[env]\nX = "a\\u0000b"\n', "{f}:2: [env] X: holds a NUL character"),
}  # fmt: skip


@pytest.mark.parametrize("case", ERRORS)
def test_errors_are_one_line_with_file_line_key_and_remedy(tmp_path: Path, case: str) -> None:
    text, message = ERRORS[case]
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert str(caught.value) == message.replace("{f}", str(tmp_path / "qwen-mtp.toml"))


@pytest.mark.parametrize("name", credentials.OPTION_CREDENTIALS)
def test_a_secret_in_the_file_is_refused_with_the_way_to_do_it(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=f"^[^ ]*:5: \\[args\\] {name}: .*/etc/credstore/qwen-mtp.{name}"):
        load(tmp_path, MINIMAL + f'{name} = "secret-key"\n')


def test_an_error_names_the_dropin_that_holds_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, MINIMAL, x="\n[args]\nport = 0")
    assert str(caught.value).startswith(f"{tmp_path}/qwen-mtp.toml.d/x.toml:3: [args] port: ")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path, words in (
        (tmp_path / "none.toml", "cannot be read: No such file or directory; the package ships it as /etc/"),
        (tmp_path, "is a directory, not a file"),
    ):
        with pytest.raises(ConfigError) as caught:
            config.load(path, tmp_path / "none")
        assert str(caught.value).startswith(f"{path}: {words}")


def test_a_file_that_is_not_utf_8(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_bytes(b"[args]\n# \xff\n")
    with pytest.raises(ConfigError, match=r"x\.toml:2: is not UTF-8 text$"):
        config.load(tmp_path / "x.toml", tmp_path / "none")


def test_lines_are_found_behind_strings_and_brackets_of_several_lines() -> None:
    text = '''a.b = 1
"q.r"."s t" = """
x = 1
""""
[args] # comment [x]
'list' = [
  "]", # ]
  2,
]
last = {x = 1,
 y = 2}
[[many]]
[ a . "c" ]
k=1'''
    assert lines_of_keys(text) == {
        ("a",): 1,
        ("a", "b"): 1,
        ("q.r",): 2,
        ("q.r", "s t"): 2,
        ("args",): 5,
        ("args", "list"): 6,
        ("args", "last"): 10,
        ("many",): 12,
        ("a", "c"): 13,
        ("a", "c", "k"): 14,
    }


values = st.one_of(st.booleans(), st.integers(-(2**31), 2**31), st.text("a ü#\"'[]{}=\n\t\\,.模"))


@given(st.dictionaries(st.from_regex(r"x[a-z0-9-]{0,12}", fullmatch=True), values, max_size=8))
def test_lines_of_any_table_are_right(table: dict[str, object]) -> None:
    lines = [f"{name} = {json.dumps(value)}" for name, value in table.items()]
    found = lines_of_keys("\n".join(["# top", "[args]", *lines]))
    assert found == {("args",): 2, **{("args", name): n + 3 for n, name in enumerate(table)}}


# -- command line and environment --------------------------------------------------------------------


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


# -- credentials --------------------------------------------------------------------------------------


def secrets(tmp_path: Path, **files: str) -> credentials.Secrets:
    directory = tmp_path / "credentials"
    directory.mkdir(exist_ok=True)
    for name, text in files.items():
        (directory / name.replace("_", "-")).write_text(text)
    return credentials.load(directory)


def test_secrets_reach_sglang_by_a_file_of_ours_alone(tmp_path: Path) -> None:
    given_secrets = secrets(tmp_path, api_key="sk-very-secret\n", hf_token="hf_abcdefgh")  # noqa: S106
    job = prepare(load(tmp_path, MINIMAL), given_secrets, directories(tmp_path))
    file = tmp_path / credentials.CONFIG_NAME
    assert job.argv[-2:] == ("--config", str(file))
    assert json.loads(file.read_text()) == {"api-key": "sk-very-secret"}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert job.env["HF_TOKEN_PATH"] == str(tmp_path / "credentials/hf-token")
    assert job.api_key == "sk-very-secret"
    everything = " ".join([*job.argv, *job.env.values()])
    assert "sk-very-secret" not in everything
    assert "hf_abcdefgh" not in everything
    assert "sk-very-secret" not in repr(given_secrets)
    # The next start without a credential takes the file away.
    prepare(load(tmp_path, MINIMAL), credentials.Secrets(), directories(tmp_path))
    assert not file.exists()


def test_masks_are_all_spellings_longest_first(tmp_path: Path) -> None:
    masks = secrets(tmp_path, api_key="a\"b\\c'd é&").masks
    assert "a\"b\\c'd é&".encode() in masks
    assert b"a%22b%5Cc%27d%20%C3%A9%26" in masks
    assert list(masks) == sorted(masks, key=len, reverse=True) or len(set(map(len, masks))) < len(masks)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("short", "has 5 characters and needs 8"),
        ("", "is empty"),
        ("two\nlines-here", "must be one line without control characters"),
        ("bell\x07bell-bell", "must be one line without control characters"),
    ],
)
def test_secrets_that_cannot_be_used(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        secrets(tmp_path, api_key=text)


def test_a_config_file_of_the_administrator_excludes_secrets(tmp_path: Path) -> None:
    made = load(tmp_path, MINIMAL + 'config = "/etc/x.yaml"\n')
    with pytest.raises(ConfigError, match=r":5: \[args\] config: cannot be combined with the credential api-key"):
        prepare(made, secrets(tmp_path, api_key="12345678"), directories(tmp_path))
    prepare(made, credentials.Secrets(), directories(tmp_path))


# -- the command ---------------------------------------------------------------------------------------


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
