"""Secrets, from systemd's credentials (systemd.exec(5), CREDENTIALS) and never from anywhere else.

SGLang takes its keys as options only, and options show in the process list. But every version reads
options from a file, too (`--config FILE`, a flat YAML map): the keys go there. The token for Hugging Face
is read by its library from a file that HF_TOKEN_PATH names, so it needs no copy.
"""

from __future__ import annotations

import json
import os
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from qwen_mtp import options
from qwen_mtp.config import ConfigError

OPTION_CREDENTIALS = options.SECRETS
"""Credentials that are options of SGLang of the same name."""
TOKEN_CREDENTIAL = "hf-token"  # noqa: S105
_IN_HEADERS = ("api-key", "admin-api-key", TOKEN_CREDENTIAL)
"""Those that travel in an HTTP header."""
MIN_LENGTH = 8
"""Shorter secrets are refused: masking them in the log would garble ordinary text."""
CONFIG_NAME = "sglang-secrets.yaml"


@dataclass(frozen=True)
class Secrets:
    """The credentials that the service was given.

    Attributes:
        options: secret options of SGLang by name.
        token: the Hugging Face token, empty for none.
        token_file: the file that holds it.
    """

    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    token: str = field(default="", repr=False)
    token_file: Path | None = None

    @property
    def api_key(self) -> str:
        """The key that ordinary endpoints ask for, empty for none."""
        return self.options.get("api-key", "")

    @property
    def masks(self) -> tuple[bytes, ...]:
        """Each secret in the spellings that a log may show: as it is, in Python's repr, in JSON, in a URL."""
        found: set[bytes] = set()
        for secret in [*self.options.values(), self.token]:
            if secret:
                spellings = {
                    secret,
                    repr(secret)[1:-1],
                    json.dumps(secret)[1:-1],
                    json.dumps(secret, ensure_ascii=False)[1:-1],
                    urllib.parse.quote(secret, safe=""),
                }
                found |= {spelling.encode() for spelling in spellings}
        return tuple(sorted(found, key=lambda spelling: (-len(spelling), spelling)))

    def write_config(self, directory: Path) -> Path | None:
        """Write the file for SGLang's --config, readable by our user alone.

        Args:
            directory: the runtime directory.

        Returns:
            The file, or None if there is no secret option.

        Raises:
            ConfigError: the file cannot be written.
        """
        path = directory / CONFIG_NAME
        try:
            path.unlink(missing_ok=True)
            if not self.options:
                return None
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with open(fd, "w", encoding="utf-8") as file:
                # JSON is YAML, but for its \\u escapes beyond U+FFFF: so none.
                json.dump(dict(self.options), file, ensure_ascii=False)
        except OSError as error:
            raise ConfigError(path, 0, "", f"cannot be written: {error.strerror}") from None
        return path


def load(directory: Path | None) -> Secrets:
    """Read the credentials.

    Args:
        directory: $CREDENTIALS_DIRECTORY, or None where there is none.

    Raises:
        ConfigError: a credential cannot be read, or is nothing that SGLang could use or we could mask.
    """
    if directory is None:
        return Secrets()
    options = {name: value for name in OPTION_CREDENTIALS if (value := _read(directory / name))}
    token = _read(directory / TOKEN_CREDENTIAL)
    return Secrets(options, token, directory / TOKEN_CREDENTIAL if token else None)


def _read(path: Path) -> str:
    """Return a credential without its last line end; empty if there is none."""
    try:
        text = path.read_bytes().decode()
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise ConfigError(path, 0, "", f"the credential cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(path, 0, "", "the credential is not UTF-8 text") from None
    text = text.removesuffix("\n").removesuffix("\r")
    if not text:
        raise ConfigError(path, 0, "", "the credential is empty; remove it, or store a key in it")
    if not text.isprintable():
        raise ConfigError(path, 0, "", "the credential must be one line without control characters")
    if text.startswith("-"):
        raise ConfigError(path, 0, "", "the credential begins with a dash, which SGLang would take for an option")
    if path.name in _IN_HEADERS and not (text.isascii() and " " not in text):
        raise ConfigError(path, 0, "", "the credential must be ASCII without spaces, for it travels in an HTTP header")
    if len(text) < MIN_LENGTH:
        raise ConfigError(
            path,
            0,
            "",
            f"the credential has {len(text)} characters and needs {MIN_LENGTH}: shorter ones cannot be masked",
        )
    return text
