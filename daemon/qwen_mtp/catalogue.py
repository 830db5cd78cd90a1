"""The failure catalogue: `failures.toml`, read and checked."""

from __future__ import annotations

import re
import signal
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from qwen_mtp.diagnosis import Outcome
from qwen_mtp.states import FailureClass, Restart
from qwen_mtp.tomlfile import TomlError, lines_of_items, read

RULES = Path("/etc/qwen-mtp/failures.d")
"""Where the administrator's rules are."""

_RULE_KEYS = {
    "id", "class", "exception", "frame", "header", "line", "needle", "when", "summary", "cause", "remedy",
    "restart", "tier", "confidence", "versions", "origin",
}  # fmt: skip
_COMMON = {
    "exception": {"type", "message", "place", "package"},
    "line": {"package"},
    "when": {"outcome", "signal", "status", "phase", "oom_kills"},
}
"""Facts that are always there, by what a rule looks at."""


class CatalogueError(Exception):
    """A catalogue cannot be used; the text names file, rule and what is wrong."""


@dataclass(frozen=True)
class ClassEntry:
    """One class: what follows it, and how the journal knows it."""

    failure_class: FailureClass
    restart: Restart
    message_id: str
    sentence: str


@dataclass(frozen=True)
class When:
    """What must hold of the end of SGLang; what is empty or None does not matter.

    Attributes:
        signals: it was ended by one of these.
        exit_status: it ended with one of these.
        ended_by: what the supervisor did.
        oom_killed: whether the kernel's OOM killer ended a process of it.
        silent: whether it printed nothing at all.
    """

    signals: frozenset[int] = frozenset()
    exit_status: frozenset[int] = frozenset()
    ended_by: frozenset[str] = frozenset()
    oom_killed: bool | None = None
    silent: bool | None = None

    def holds(self, outcome: Outcome, silent: bool) -> bool:
        """Tell whether it holds of an outcome."""
        return (
            (not self.signals or outcome.signal in self.signals)
            and (not self.exit_status or outcome.exit_status in self.exit_status)
            and (not self.ended_by or outcome.ended_by in self.ended_by)
            and self.oom_killed in (None, outcome.oom_kills > 0)
            and self.silent in (None, silent)
        )


@dataclass(frozen=True)
class Rule:
    """How a failure is recognised; the fields are explained at the top of failures.toml."""

    id: str
    failure_class: FailureClass
    summary: str
    cause: str
    remedy: str
    restart: Restart
    exception: re.Pattern[str] | None = None
    frame: re.Pattern[str] | None = None
    header: re.Pattern[str] | None = None
    line: re.Pattern[str] | None = None
    needle: str = ""
    when: When | None = None
    tier: int = 1
    confidence: float = 0.95
    versions: str = ""
    origin: str = ""


class Catalogue:
    """Classes and rules, in the order in which rules are tried.

    Args:
        classes: every class, once.
        rules: the rules.
    """

    def __init__(self, classes: Sequence[ClassEntry], rules: Sequence[Rule]) -> None:
        self.classes = tuple(classes)
        self.rules = tuple(rules)
        self.line_rules = tuple(rule for rule in rules if rule.line is not None)
        self.exception_rules = tuple(rule for rule in rules if rule.exception is not None)
        self.outcome_rules = tuple(rule for rule in rules if rule.when is not None)
        self._by_class = {entry.failure_class: entry for entry in classes}

    def restart(self, failure_class: FailureClass) -> Restart:
        """Tell what follows a failure of the class, unless its rule says otherwise."""
        return self._by_class[failure_class].restart

    def message_id(self, failure_class: FailureClass) -> str:
        """MESSAGE_ID= of journal entries about the class."""
        return self._by_class[failure_class].message_id


class _Facts(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return ""


_OPTIONAL = re.compile(r"\[\[(.*?)\]\]")


def fill(template: str, facts: Mapping[str, str]) -> str:
    """Fill facts into a template; a fact that was not captured leaves nothing behind."""

    def optional(part: re.Match[str]) -> str:
        used = [name for _, name, _, _ in string.Formatter().parse(part.group(1)) if name]
        return part.group(1) if all(facts.get(name) for name in used) else ""

    template = _OPTIONAL.sub(optional, template)
    return " ".join(string.Formatter().vformat(template, (), _Facts(facts)).split())


def load(path: Path | None = None) -> Catalogue:
    """Read a catalogue.

    Args:
        path: the file, or None for the one that belongs to this package.

    Raises:
        CatalogueError: the file cannot be read, or a class or rule in it is wrong.
    """
    if path is None:
        with resources.as_file(resources.files("qwen_mtp") / "failures.toml") as file:
            return load(file)
    try:
        tables, _ = read(path)
    except TomlError as error:
        raise CatalogueError(f"{path}: {error}") from None
    classes = [_class(path, entry) for entry in tables.get("class", [])]
    missing = set(FailureClass) - {entry.failure_class for entry in classes}
    if missing or len(classes) != len(FailureClass):
        raise CatalogueError(f"{path}: each class must be there once: {', '.join(sorted(missing))}")
    restarts = {entry.failure_class: entry.restart for entry in classes}
    rules = [_rule(path, entry, restarts) for entry in tables.get("rule", [])]
    twice = {rule.id for rule in rules if sum(other.id == rule.id for other in rules) > 1}
    if twice:
        raise CatalogueError(f"{path}: rule {sorted(twice)[0]} is there twice")
    return Catalogue(classes, rules)


def load_with(directory: Path) -> tuple[Catalogue, list[str]]:
    """Read the package's catalogue and the administrator's rules.

    Args:
        directory: `*.toml` in it hold `[[rule]]` tables, read in the order of their names. A rule of theirs is
            tried before the package's, and one with the id of another takes its place.

    Returns:
        The catalogue, and one line for each rule or file that was left out because it is wrong. A broken
        rule costs itself alone: it must not keep the service from starting.
    """
    base = load()
    restarts = {entry.failure_class: entry.restart for entry in base.classes}
    added: dict[str, Rule] = {}
    problems: list[str] = []
    try:
        files = sorted(file for file in directory.iterdir() if file.suffix == ".toml" and file.name[0] != ".")
    except FileNotFoundError:
        return base, problems
    except OSError as error:
        return base, [f"{directory}: cannot be read: {error.strerror}"]
    for file in files:
        try:
            tables, _ = read(file)
            lines = lines_of_items(file.read_text(encoding="utf-8-sig"), "rule")
        except TomlError as error:
            problems.append(f"{file}:{error.line}: {error}" if error.line else f"{file}: {error}")
            continue
        unknown = sorted(set(tables) - {"rule"})
        problems += [f"{file}: unknown table [{name}]; rules are [[rule]]" for name in unknown]
        entries = tables.get("rule", [])
        if not isinstance(entries, list):
            problems.append(f"{file}: write [[rule]] with two brackets")
            continue
        for number, entry in enumerate(entries):
            try:
                rule = _rule(file, entry, restarts)
            except CatalogueError as error:
                line = f":{lines[number]}" if number < len(lines) else ""
                problems.append(str(error).replace(str(file), f"{file}{line}", 1))
                continue
            added[rule.id] = rule
    rules = [*added.values(), *(rule for rule in base.rules if rule.id not in added)]
    return Catalogue(base.classes, rules), problems


def _class(path: Path, entry: Mapping[str, Any]) -> ClassEntry:
    try:
        return ClassEntry(
            FailureClass(entry["id"]), Restart(entry["restart"]), str(entry["message_id"]), str(entry["sentence"])
        )
    except (KeyError, ValueError) as error:
        raise CatalogueError(f"{path}: class {entry.get('id')}: {error}") from None


def _rule(path: Path, entry: Mapping[str, Any], restarts: Mapping[FailureClass, Restart]) -> Rule:
    name = entry.get("id", "without id")

    def fail(message: str) -> CatalogueError:
        return CatalogueError(f"{path}: rule {name}: {message}")

    if not isinstance(name, str) or "id" not in entry:
        raise fail("id must be a text")
    for key, value in entry.items():
        wanted = {"tier": (int,), "confidence": (int, float), "when": (dict,)}.get(key, (str,))
        if isinstance(value, bool) or not isinstance(value, wanted):
            raise fail(f"{key} must be {'a number' if int in wanted else 'a table' if dict in wanted else 'a text'}")

    if unknown := set(entry) - _RULE_KEYS:
        raise fail(f"unknown key {sorted(unknown)[0]}")
    patterns: dict[str, re.Pattern[str] | None] = {}
    looks_at = [kind for kind in ("exception", "line", "when") if kind in entry]
    if len(looks_at) != 1:
        raise fail("needs one of exception, line and when")
    groups = set(_COMMON[looks_at[0]])
    for kind in ("exception", "frame", "header", "line"):
        try:
            patterns[kind] = re.compile(entry[kind]) if kind in entry else None
        except re.error as error:
            raise fail(f"{kind} is no regular expression: {error}") from None
        groups |= set(patterns[kind].groupindex) if patterns[kind] else set()  # type: ignore[union-attr]
    needle = str(entry.get("needle", ""))
    if (patterns["line"] is None) == bool(needle):
        raise fail("a rule with line needs a needle, and no other does")
    try:
        failure_class = FailureClass(entry["class"])
        texts = {key: str(entry[key]) for key in ("summary", "cause", "remedy")}
        restart = Restart(entry["restart"]) if "restart" in entry else restarts[failure_class]
        when = _when(entry["when"]) if "when" in entry else None
    except (KeyError, ValueError, TypeError) as error:
        raise fail(f"{error} is missing or not known") from None
    for key, text in texts.items():
        try:
            used = {found for _, found, _, _ in string.Formatter().parse(text) if found}
        except ValueError as error:
            raise fail(f"{key} is no template: {error}; write {{{{ and }}}} for braces") from None
        if unknown := used - groups:
            raise fail(f"{key} uses {{{sorted(unknown)[0]}}}, which no pattern captures")
    return Rule(
        id=str(name),
        failure_class=failure_class,
        restart=restart,
        tier=int(entry.get("tier", 1)),
        confidence=float(entry.get("confidence", 0.95)),
        versions=str(entry.get("versions", "")),
        origin=str(entry.get("origin", "")),
        summary=texts["summary"],
        cause=texts["cause"],
        remedy=texts["remedy"],
        exception=patterns["exception"],
        frame=patterns["frame"],
        header=patterns["header"],
        line=patterns["line"],
        needle=needle,
        when=when,
    )


def _when(entry: Mapping[str, Any]) -> When:
    """Read a rule's conditions on the outcome.

    Raises:
        KeyError: a key or the name of a signal that does not exist.
    """
    for key in entry:
        if key not in ("signals", "exit-status", "ended-by", "oom-killed", "silent"):
            raise KeyError(key)
    return When(
        frozenset(signal.Signals[name].value for name in entry.get("signals", ())),
        frozenset(entry.get("exit-status", ())),
        frozenset(entry.get("ended-by", ())),
        entry.get("oom-killed"),
        entry.get("silent"),
    )
