from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qwen_mtp import command, config
from qwen_mtp.config import Config, ConfigError
from qwen_mtp.options import SECRETS
from qwen_mtp.states import Phase
from tests.unit.configuring import MINIMAL, OPTIONS, load

SHIPPED = Path(__file__).parents[2] / "etc/qwen-mtp.toml"


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
    "text model": (MINIMAL.replace('"/m"', "true"), "{f}:4: [args] model-path: must be text: a directory, or the name of a repository"),
    "empty model": (MINIMAL.replace("/m", ""), '{f}:4: [args] model-path: no model is named; write e.g. model-path = "/srv/models/Qwen3.6-27B" under [args]'),
    "abbreviation": ('[args]\napi-k = "secret-key"\n', "{f}:2: [args] api-k: is short for api-key; write the name in full"),
    "key in command": ('[sglang]\ncommand = ["/x", "--api-key=secret-key"]\n', "{f}:2: [sglang] command: a secret must not stand here, where it would show in the process list; store it as the credential /etc/credstore/qwen-mtp.api-key (see qwen-mtp.toml(5), SECRETS)"),
    "nul in command": ('[sglang]\ncommand = ["/x", "a\\u0000"]\n', "{f}:2: [sglang] command: holds a NUL character"),
    "line end in key": ('[env]\n"a\\nb" = "1"\n', '{f}:2: [env] "a\\nb": is no name of an environment variable'),
    "empty key": ('[args]\n"" = 1\n', "{f}:2: [args] \"\": must be one of SGLang's long option names without the dashes in front"),
    "line end in table": ('["a\\nb"]\n', '{f}:1: ["a\\nb"]: unknown table; there are [sglang], [args], [env], [supervisor]'),
    "digits": ("[args]\nx = " + "1" * 5000, "{f}: no valid TOML: a number has too many digits"),
    "nesting": ("x = " + "[" * 9999, "{f}: no valid TOML: nested too deeply"),
    "nul": ('[env]\nX = "a\\u0000b"\n', "{f}:2: [env] X: holds a NUL character"),
}  # fmt: skip


@pytest.mark.parametrize("case", ERRORS)
def test_errors_are_one_line_with_file_line_key_and_remedy(tmp_path: Path, case: str) -> None:
    text, message = ERRORS[case]
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert str(caught.value) == message.replace("{f}", str(tmp_path / "qwen-mtp.toml"))


@pytest.mark.parametrize("name", SECRETS)
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


@pytest.fixture
def nobody() -> Iterator[None]:
    """Let a test run without root's rights, where it has them."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    yield
    os.seteuid(user)


def test_a_file_that_the_user_may_not_read(tmp_path: Path, nobody: None) -> None:
    if os.geteuid() != 65534:  # else pytest's own directory is closed
        os.chmod(tmp_path, 0)
    with pytest.raises(ConfigError) as caught:
        config.load(tmp_path / "x.toml", tmp_path / "x.toml.d")
    assert str(caught.value).startswith(f"{tmp_path}/x.toml")
    assert str(caught.value).endswith(": cannot be read: Permission denied; the user qwen-mtp must be able to read it")


def test_dropins_that_cannot_be_read(tmp_path: Path) -> None:
    load(tmp_path, MINIMAL)
    directory = tmp_path / "qwen-mtp.toml.d"
    (directory / "x.toml").symlink_to("nowhere")
    with pytest.raises(ConfigError, match=r"/x\.toml: cannot be read: No such file .*; remove this link to nothing$"):
        load(tmp_path, MINIMAL)
    (directory / "x.toml").unlink()
    (directory / "x.toml").mkdir()
    with pytest.raises(ConfigError, match=r"/x\.toml: is a directory, not a file$"):
        load(tmp_path, MINIMAL)
    with pytest.raises(ConfigError, match=r"qwen-mtp\.toml: cannot be read: Not a directory$"):
        config.load(tmp_path / "qwen-mtp.toml", tmp_path / "qwen-mtp.toml")


def test_a_dropin_can_be_masked_as_those_of_units_can(tmp_path: Path) -> None:
    load(tmp_path, MINIMAL)
    (tmp_path / "qwen-mtp.toml.d/50-off.toml").symlink_to("/dev/null")
    assert load(tmp_path, MINIMAL, z="[args]\nmodel-path = '/模型/Qwen 3.6'\n").model_path == "/模型/Qwen 3.6"


def test_a_dropin_takes_an_option_away_and_messages_name_it(tmp_path: Path) -> None:
    made = load(tmp_path, MINIMAL + "port = 1000\n", x="[args]\nport = false\n")
    assert command.endpoint(made).port == command.DEFAULT_PORT
    assert "--port" not in command.argv(made)
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, MINIMAL, y="[args]\n\nmodel-path = false\n")
    assert str(caught.value).startswith(f"{tmp_path}/qwen-mtp.toml.d/y.toml:3: [args] model-path: no model is named")


def test_a_file_that_is_not_utf_8(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_bytes(b"[args]\n# \xff\n")
    with pytest.raises(ConfigError, match=r"x\.toml:2: is not UTF-8 text$"):
        config.load(tmp_path / "x.toml", tmp_path / "none")


def test_where_a_key_stands_makes_no_difference(tmp_path: Path) -> None:
    assert load(tmp_path, MINIMAL) == load(tmp_path, "# moved\n" + MINIMAL)
    assert load(tmp_path, MINIMAL) != load(tmp_path, MINIMAL + "port = 1\n")


names = st.from_regex(r"x[a-c]{1,2}", fullmatch=True)
values = st.one_of(st.booleans(), st.integers(-(2**31), 2**31), st.text("a ü#\"'[]{}=\n\t\\,.模"))


@given(st.lists(st.dictionaries(names, values, max_size=5), max_size=4))
def test_the_last_file_wins_key_by_key(tables: list[dict[str, Any]]) -> None:
    with TemporaryDirectory() as made:
        place = Path(made)
        expected: dict[str, Any] = {"model-path": "/m"}
        sources: dict[tuple[str, str], tuple[Path, int]] = {}
        dropins: dict[str, str] = {}
        for number, table in enumerate(tables):
            lines = [f"{name} = {json.dumps(value)}" for name, value in table.items()]
            dropins[f"{number}"] = "\n".join(["[args]", *lines])
            expected |= table
            file = place / f"qwen-mtp.toml.d/{number}.toml"
            sources |= {("args", name): (file, line) for line, name in enumerate(table, start=2)}
        loaded = load(place, MINIMAL, **dropins)
    assert loaded.args == expected
    assert {key: source for key, source in loaded.sources.items() if key[1].startswith("x")} == sources


pieces = st.sampled_from(
    [
        "[args]\n", "[env]\n", "[supervisor]\n", "[sglang]\n", "[supervisor.phase-timeout]\n", "[[args]]", '[x."\\n"]', "\n",
        "\n", "\n", "\r\n", " = ", "=", ".", ",", "port", "model-path", "command", "weights", "stop-timeout", "api-k", "X",
        "'", '"', "'/m'", "'''", '"""', "[", "]", "{", "}", "true", "1", "-1.5", "nan", "inf", "1e999", "2026-01-01", "07:30:00",
        "0x1f", "# ", "\\", '"a\\u0000"', '"\\n"', "\0", "\x7f", "é", "模", "x = 1\n", 'y = {"\\n" = [1]}\n', "z = ['-a']\n",
    ]
)  # fmt: skip


def error_of(place: Path, text: str) -> ConfigError | None:
    try:
        command.argv(load(place, text))
    except ConfigError as error:
        return error
    return None


@given(st.lists(pieces, max_size=40), st.sampled_from(["", MINIMAL]))
def test_no_text_brings_more_than_one_line_of_error(parts: list[str], start: str) -> None:
    text = start + "".join(parts)
    with TemporaryDirectory() as made:
        error = error_of(Path(made), text)
    if error is not None:
        assert str(error).startswith(f"{made}/qwen-mtp.toml")
        assert len(str(error).splitlines()) == 1
        assert 0 <= error.line <= text.count("\n") + 1
