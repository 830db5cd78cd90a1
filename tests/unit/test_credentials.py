from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from qwen_mtp import credentials
from qwen_mtp.config import ConfigError
from qwen_mtp.job import prepare
from tests.unit.configuring import MINIMAL, directories, load


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
    masks = secrets(tmp_path, ssl_keyfile_password="a\"b\\c'd é&").masks  # noqa: S106
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
        ("-dash-in-front", "begins with a dash, which SGLang would take for an option"),
        ("zwölf-zeichen", "must be ASCII without spaces, for it travels in an HTTP header"),
        ("two words here", "must be ASCII without spaces, for it travels in an HTTP header"),
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


def test_without_credentials_there_are_no_secrets(tmp_path: Path) -> None:
    assert credentials.load(None) == credentials.load(tmp_path) == credentials.Secrets()
    assert credentials.load(tmp_path).write_config(tmp_path) is None


def test_a_password_may_be_any_printable_line(tmp_path: Path) -> None:
    given_secrets = secrets(tmp_path, ssl_keyfile_password="pass wörd 🔑: #\n")  # noqa: S106
    file = given_secrets.write_config(tmp_path)
    assert file is not None
    # As YAML reads it, too: that knows no surrogate pairs.
    assert file.read_text(encoding="utf-8") == '{"ssl-keyfile-password": "pass wörd 🔑: #"}'


def test_a_file_in_the_way_of_ours_is_replaced_and_a_link_not_followed(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("mine")
    (tmp_path / credentials.CONFIG_NAME).symlink_to(other)
    secrets(tmp_path, api_key="12345678").write_config(tmp_path)
    assert other.read_text() == "mine"
    assert not (tmp_path / credentials.CONFIG_NAME).is_symlink()


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"sglang-secrets\.yaml: cannot be written: No such file or directory$"):
        secrets(tmp_path, api_key="12345678").write_config(tmp_path / "none")


def test_a_credential_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "api-key").write_bytes(b"\xff" * 10)
    with pytest.raises(ConfigError, match=r"/api-key: the credential is not UTF-8 text$"):
        credentials.load(tmp_path)
