"""The configuration: qwen-mtp.toml and its drop-ins, read, merged and checked.

Everything an administrator can get wrong ends in a `ConfigError`, one line that names file, line and key.
"""

from __future__ import annotations

import difflib
import errno
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qwen_mtp import options, settings
from qwen_mtp.settings import PHASE_TIMEOUTS, SETTINGS, Setting, SupervisorSettings, Value
from qwen_mtp.states import Phase
from qwen_mtp.tomlfile import KeyPath, TomlError, read

DEFAULT_PATH = Path("/etc/qwen-mtp/qwen-mtp.toml")

Scalar = bool | int | float | str
ArgValue = Scalar | list[Scalar] | dict[str, Any]
"""Value of one of SGLang's options: true is a bare flag, false leaves it out, a list repeats values, a
table is passed as JSON."""

_TABLES = ("sglang", "args", "env", "supervisor")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET_ENV = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_HUB_TOKEN")
_HINTS = {errno.EACCES: "; the user qwen-mtp must be able to read it"}
_MISSING = "; the package ships it as /etc/qwen-mtp/qwen-mtp.toml"
_DANGLING = "; remove this link to nothing"


class ConfigError(Exception):
    """The configuration cannot be used.

    Attributes:
        path: the file, or the directory of credentials.
        line: line number, 0 where it is not about one line.
        key: the key with its table, such as `"[args] port"`; empty for a file as a whole.
    """

    def __init__(self, path: Path | str, line: int, key: str, message: str) -> None:
        self.path = str(path)
        self.line = line
        self.key = key
        where = self.path + (f":{line}" if line else "")
        super().__init__(f"{where}: {key}: {message}" if key else f"{where}: {message}")


_Fail = Callable[[KeyPath, str], ConfigError]
"""Makes the error about a key of the file that is being checked."""


@dataclass(frozen=True)
class Config:
    """A checked configuration.

    Attributes:
        command: SGLang's launcher.
        args: SGLang's options by their long names without dashes in front.
        env: additions to SGLang's environment.
        supervisor: the supervisor's own settings.
        sources: which file, and which line of it, set each key; the line is 0 inside inline tables. Two
            configurations that differ in nothing else are equal.
    """

    command: tuple[str, ...]
    args: Mapping[str, ArgValue]
    env: Mapping[str, str]
    supervisor: SupervisorSettings
    sources: Mapping[KeyPath, tuple[Path, int]] = field(default_factory=dict, compare=False)

    @property
    def model_path(self) -> str:
        """What --model-path will be."""
        return str(next((self.args[name] for name in options.MODEL if self.args.get(name)), ""))

    def error(self, key: KeyPath, message: str) -> ConfigError:
        """Make an error about a key, with the place that set it."""
        path, line = self.sources.get(key, (DEFAULT_PATH, 0))
        return ConfigError(path, line, _show(key), message)


def load(path: Path, dropins: Path) -> Config:
    """Read a configuration file and its drop-ins.

    Args:
        path: the main file.
        dropins: directory of drop-ins; its `*.toml` are read in the order of their names, the last wins
            key by key.

    Raises:
        ConfigError: the first thing that is wrong.
    """
    merged: dict[str, Any] = {}
    sources: dict[KeyPath, tuple[Path, int]] = {}
    for file in [path, *_dropins(dropins)]:
        try:
            tables, lines = read(file)
        except TomlError as error:
            hint = _hint(error.errno, _MISSING if file == path else _DANGLING)
            raise ConfigError(file, error.line, "", f"{error}{hint}") from None
        _check(file, tables, lines)
        _merge(merged, sources, file, tables, lines)
    config = Config(
        command=tuple(merged.get("sglang", {}).get("command", ())),
        args=merged.get("args", {}),
        env=merged.get("env", {}),
        supervisor=_supervisor(merged.get("supervisor", {})),
        sources=sources,
    )
    if not config.command:
        raise ConfigError(
            path,
            0,
            "[sglang] command",
            'is not set; write e.g. command = ["/opt/sglang/bin/python", "-m", "sglang.launch_server"]',
        )
    if not config.model_path:
        file, line = sources.get(("args", "model-path"), (path, 0))
        raise ConfigError(
            file,
            line,
            "[args] model-path",
            'no model is named; write e.g. model-path = "/srv/models/Qwen3.6-27B" under [args]',
        )
    return config


def _hint(number: int | None, missing: str = "") -> str:
    return missing if number == errno.ENOENT else _HINTS.get(number or 0, "")


def _dropins(directory: Path) -> list[Path]:
    try:
        names = sorted(entry.name for entry in directory.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ConfigError(directory, 0, "", f"cannot be read: {error.strerror}{_hint(error.errno)}") from None
    return [directory / name for name in names if name.endswith(".toml") and not name.startswith(".")]


def _show(key: KeyPath) -> str:
    """Spell a key as people read it, always in one line."""
    parts = [part if part and part.isprintable() else json.dumps(part) for part in key]
    if len(parts) == 1:
        return f"[{parts[0]}]"
    return f"[{'.'.join(parts[:-1])}] {parts[-1]}"


def _merge(
    merged: dict[str, Any],
    sources: dict[KeyPath, tuple[Path, int]],
    file: Path,
    tables: Mapping[str, Any],
    lines: Mapping[KeyPath, int],
    above: KeyPath = (),
) -> None:
    for name, value in tables.items():
        key = (*above, name)
        # The tables of the schema merge; a table that is an option's value is one value.
        if isinstance(value, dict) and (not above or key == ("supervisor", "phase-timeout")):
            _merge(merged.setdefault(name, {}), sources, file, value, lines, key)
        else:
            merged[name] = value
            sources[key] = (file, lines.get(key, 0))


def _guess(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {close[0]}?" if close else ""


def _check(file: Path, tables: Mapping[str, Any], lines: Mapping[KeyPath, int]) -> None:
    """Check one file alone, so that an error names the file that holds it."""

    def fail(key: KeyPath, message: str) -> ConfigError:
        line = next((lines[key[:n]] for n in range(len(key), 0, -1) if key[:n] in lines), 0)
        return ConfigError(file, line, _show(key), message)

    for name, table in tables.items():
        if name not in _TABLES:
            known = ", ".join(f"[{table}]" for table in _TABLES)
            raise fail((name,), f"unknown table; there are {known}{_guess(name, _TABLES)}")
        if not isinstance(table, dict):
            raise fail((name,), f"must be a table: write [{name}] on a line of its own")
    for name, value in tables.get("sglang", {}).items():
        if name != "command":
            raise fail(("sglang", name), f"unknown key; there is command{_guess(name, ['command'])}")
        _check_command(value, fail)
    for name, value in tables.get("args", {}).items():
        _check_arg(name, value, fail)
    for name, value in tables.get("env", {}).items():
        if not _ENV_NAME.fullmatch(name):
            raise fail(("env", name), "is no name of an environment variable")
        if name in _SECRET_ENV:
            raise fail(
                ("env", name),
                "a secret must not stand here; store it as the credential /etc/credstore/qwen-mtp.hf-token "
                "(see qwen-mtp.toml(5), SECRETS)",
            )
        if not isinstance(value, str):
            raise fail(("env", name), f'must be text: write {name} = "{_plain(value)}"')
        if "\0" in value:
            raise fail(("env", name), "holds a NUL character")
    _check_supervisor(tables.get("supervisor", {}), fail)


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check_command(value: object, fail: _Fail) -> None:
    key = ("sglang", "command")
    if not isinstance(value, list) or not value or not all(isinstance(part, str) and part for part in value):
        raise fail(key, 'must be a list of texts, e.g. ["/opt/sglang/bin/python", "-m", "sglang.launch_server"]')
    if not value[0].startswith("/"):
        raise fail(key, f"must begin with an absolute path, and {value[0]!r} is none")
    for part in value:
        if "\0" in part:
            raise fail(key, "holds a NUL character")
        secret = options.secret_in(part)
        if secret:
            raise fail(key, options.name_problem(secret))


def _check_arg(name: str, value: object, fail: _Fail) -> None:
    problem = options.name_problem(name) or options.value_problem(name, value)
    if problem:
        raise fail(("args", name), problem)


def _check_supervisor(table: Mapping[str, Any], fail: _Fail) -> None:
    known = {setting.name: setting for setting in SETTINGS}
    for name, value in table.items():
        key = ("supervisor", name)
        if name == "phase-timeout":
            if not isinstance(value, dict):
                raise fail(key, "must be a table: write [supervisor.phase-timeout] on a line of its own")
            phases = [phase.value for phase in PHASE_TIMEOUTS]
            for phase, limit in value.items():
                if phase not in phases:
                    raise fail((*key, phase), f"unknown phase; there are {', '.join(phases)}{_guess(phase, phases)}")
                problem = _number_problem(limit, 1, settings.DAY, whole=False)
                if problem:
                    raise fail((*key, phase), problem)
        elif name not in known:
            raise fail(key, f"unknown key{_guess(name, [*known, 'phase-timeout'])}; qwen-mtp.toml(5) lists all keys")
        else:
            problem = _setting_problem(known[name], value)
            if problem:
                raise fail(key, problem)


def _setting_problem(setting: Setting, value: object) -> str:
    if isinstance(setting.default, bool):
        return "" if isinstance(value, bool) else "must be true or false"
    if isinstance(setting.default, str):
        return "" if value in setting.choices else f"must be one of {', '.join(setting.choices)}"
    return _number_problem(value, setting.low, setting.high, whole=isinstance(setting.default, int))


def _number_problem(value: object, low: float, high: float, whole: bool) -> str:
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
        return "must be a whole number" if whole else "must be a number"
    if not low <= value <= high:
        return f"must be from {low:g} to {high:g}"
    return ""


def _supervisor(table: Mapping[str, Any]) -> SupervisorSettings:
    values: dict[str, Value] = {}
    for setting in SETTINGS:
        if setting.name in table:
            value = table[setting.name]
            values[setting.name] = float(value) if isinstance(setting.default, float) else value
    limits = {Phase(name): float(limit) for name, limit in table.get("phase-timeout", {}).items()}
    return settings.make(values, limits)
