"""SGLang's options that are checked before it is started.

Nearly every option is SGLang's own matter. Here are those that it does not check itself, or only after
minutes of loading, and those that the supervisor lives on.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

SECRETS = ("api-key", "admin-api-key", "ssl-keyfile-password")
"""Options that would show in the process list; each is a credential instead."""

MODEL = ("model-path", "model")
"""The two names of the option that names the model."""

_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")
_HTTP_LEVELS = ("critical", "error", "warning", "info", "debug", "trace")


class _Check(NamedTuple):
    """What a value must be, as a test and in words."""

    good: Callable[[object], bool]
    message: str


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_port(value: object) -> bool:
    return type(value) is int and 1 <= value <= 65535


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 1


def _is_fraction(value: object) -> bool:
    return isinstance(value, float) and 0 < value < 1


_CHECKS: Mapping[str, _Check] = {
    "model-path": _Check(_is_text, "must be text: a directory, or the name of a repository"),
    "model": _Check(_is_text, "must be text: a directory, or the name of a repository"),
    "host": _Check(_is_text, 'must be text, such as "127.0.0.1"'),
    # 0.5.23 binds 70000 modulo 65536 and says that it serves on 70000 (recording port-70000).
    "port": _Check(_is_port, "must be a whole number from 1 to 65535; SGLang itself does not check it"),
    "mem-fraction-static": _Check(_is_fraction, "must be a number between 0 and 1; SGLang itself does not check it"),
    "max-running-requests": _Check(_is_count, "must be a whole number of 1 or more; SGLang itself does not check it"),
    # Everything that is read from the log is of level info (recording serve-sglang-serve-cli).
    "log-level": _Check(
        lambda value: value in ("debug", "info"),
        'must be "info" or "debug": with less SGLang prints none of the lines that the phases are read from; '
        'log-level-http = "warning" silences the access log alone',
    ),
    "log-level-http": _Check(
        lambda value: value in _HTTP_LEVELS,
        f"must be one of {', '.join(_HTTP_LEVELS)}; SGLang finds out only after loading the model",
    ),
}

_GUARDED = (*SECRETS, *_CHECKS, "config")
_NOT_SHORT = ("ssl-keyfile",)
"""Options of their own, although they are the beginning of a guarded one."""


def name_problem(name: str) -> str:
    """Say what is wrong with an option's name; empty if nothing is."""
    if not _NAME.fullmatch(name):
        better = name.lstrip("-").lower().replace("_", "-")
        hint = f"; write {better}" if _NAME.fullmatch(better) else ""
        return f"must be one of SGLang's long option names without the dashes in front{hint}"
    full = _unabbreviated(name)
    if full != name:
        # SGLang's argparse takes any unique beginning, and so would let it past what is checked here.
        return f"is short for {full}; write the name in full"
    if name in SECRETS:
        return (
            "a secret must not stand here, where it would show in the process list; "
            f"store it as the credential /etc/credstore/qwen-mtp.{name} (see qwen-mtp.toml(5), SECRETS)"
        )
    return ""


def value_problem(name: str, value: object) -> str:
    """Say what is wrong with an option's value; empty if nothing is. False leaves any option out."""
    if not _is_value(value):
        return "must be true, false, a number, a text, a list of those, or a table for an option that takes JSON"
    if not _all(value, lambda item: not isinstance(item, float) or math.isfinite(item)):
        return "must be a finite number"
    if not _all(value, lambda item: not isinstance(item, str) or "\0" not in item):
        return "holds a NUL character"
    if isinstance(value, list) and any(isinstance(item, str) and item.startswith("-") for item in value):
        return "holds a text that begins with a dash, which SGLang would take for an option"
    check = _CHECKS.get(name)
    return check.message if check and value is not False and not check.good(value) else ""


def secret_in(word: str) -> str:
    """Return the secret option that a word of a command line gives, spelled out; empty if it gives none."""
    name = _unabbreviated(word[2:].partition("=")[0].replace("_", "-")) if word.startswith("--") else ""
    return name if name in SECRETS else ""


def _unabbreviated(name: str) -> str:
    if not name or name in _GUARDED or name in _NOT_SHORT:
        return name
    return next((full for full in _GUARDED if full.startswith(name)), name)


def _is_value(value: object) -> bool:
    if isinstance(value, list):
        return all(isinstance(item, (bool, int, float, str)) for item in value)
    # Dates and times are all that TOML has and JSON has not.
    return _all(value, lambda item: isinstance(item, (bool, int, float, str)))


def _all(value: object, good: Callable[[object], bool]) -> bool:
    """Whether a test holds for every scalar in a value, keys of tables included."""
    if isinstance(value, dict):
        return all(good(key) and _all(item, good) for key, item in value.items())
    if isinstance(value, list):
        return all(_all(item, good) for item in value)
    return good(value)
