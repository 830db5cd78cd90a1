"""Fills the manual pages with what is kept as data: settings, environment, failure classes, D-Bus members.

`python3 -m qwen_mtp.manual SOURCE TARGET` reads SOURCE/*.rst and writes TARGET/*.rst at build time. A line
that holds only `@NAME@` is replaced by the section of that name.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from xml.etree import ElementTree

from qwen_mtp.command import ENVIRONMENT
from qwen_mtp.failures import load_catalogue
from qwen_mtp.settings import PHASE_TIMEOUTS, SETTINGS

_MARK = re.compile(r"^@([A-Z_]+)@$", re.MULTILINE)
_SPECIAL = re.compile(r"([\\*`|_])")


def escape(text: str) -> str:
    """Protect what reStructuredText would take for markup."""
    return _SPECIAL.sub(r"\\\1", text)


def _settings() -> Iterator[str]:
    for setting in SETTINGS:
        default = str(setting.default).lower() if isinstance(setting.default, bool) else f"{setting.default}"
        default = default.removesuffix(".0")
        unit = f" {setting.unit}" if setting.unit else ""
        choices = f" One of {', '.join(setting.choices)}." if setting.choices else ""
        yield f"{setting.name}\n    {escape(setting.help)}{choices} Default: {escape(default)}{unit}."


def _phase_timeouts() -> Iterator[str]:
    for phase, limit in PHASE_TIMEOUTS.items():
        yield f"{phase.value}\n    Default: {limit:g} seconds."


def _environment() -> Iterator[str]:
    places = {"state": "/var/lib/qwen-mtp", "cache": "/var/cache/qwen-mtp", "runtime": "/run/qwen-mtp"}
    for variable in ENVIRONMENT:
        value = variable.value.format(**places)
        yield f"{escape(variable.name)}={escape(value)}\n    {escape(variable.reason.capitalize())}."


def _classes() -> Iterator[str]:
    for entry in load_catalogue().classes:
        yield f"{entry.failure_class.value} ({entry.restart.value})\n    {escape(entry.sentence)}"


def members() -> Iterator[tuple[str, str, str]]:
    """Yield kind, signature and description of each member of the D-Bus interface."""
    text = (resources.files("qwen_mtp") / "supervisor1.xml").read_text(encoding="utf-8")
    parser = ElementTree.XMLParser(target=ElementTree.TreeBuilder(insert_comments=True))  # noqa: S314 - our own file
    root = ElementTree.fromstring(text, parser)  # noqa: S314
    interface = root.find("interface")
    assert interface is not None  # noqa: S101
    comment = ""
    for element in interface:
        tag: object = element.tag
        if not isinstance(tag, str):
            comment = " ".join((element.text or "").split())
            continue
        name = element.attrib["name"]
        if tag == "property":
            signature = f"{name} {element.attrib['type']}"
        else:
            into = [a for a in element.findall("arg") if a.get("direction", "in") == "in"]
            out = [a for a in element.findall("arg") if a.get("direction") == "out"]
            signature = f"{name}({', '.join(a.attrib['type'] + ' ' + a.attrib['name'] for a in into)})"
            if out:
                signature += " → " + ", ".join(a.attrib["type"] + " " + a.attrib["name"] for a in out)
        yield tag, signature, comment
        comment = ""


def _members() -> Iterator[str]:
    kind = ""
    for tag, signature, text in members():
        if tag != kind:
            kind = tag
            title = {"property": "Properties", "signal": "Signals", "method": "Methods"}[tag]
            yield f"{title}\n{'-' * len(title)}"
        yield f"{escape(signature)}\n    {escape(text)}"


def dbus_markdown() -> str:
    """Render docs/dbus.md; a test keeps the file up to date."""
    rows = []
    kind = ""
    for tag, signature, text in members():
        if tag != kind:
            kind = tag
            title = {"property": "Properties", "signal": "Signals", "method": "Methods"}[tag]
            rows.append(f"\n## {title}\n\n| member | meaning |\n| --- | --- |")
        rows.append(f"| `{signature}` | {text} |")
    return f"{_DBUS_HEAD}{chr(10).join(rows)}\n"


_DBUS_HEAD = """\
# org.qwenmtp.Supervisor1

Made from `daemon/qwen_mtp/supervisor1.xml` by `python3 -m qwen_mtp.manual --dbus`; also a manual page,
org.qwenmtp.Supervisor1(5).

Bus name and interface `org.qwenmtp.Supervisor1`, object `/org/qwenmtp/Supervisor1`, on the system bus. Reading
is open to everyone. The methods need root, the service's own user, or the polkit action
`org.qwenmtp.Supervisor1.restart` or `….diagnose`. Names that end in USec are microseconds of CLOCK_REALTIME, 0
where unknown. Changes are announced by PropertiesChanged, several together, twice a second at most. The name is
not activatable: asking for the state must not start the service.
"""

SECTIONS: dict[str, Callable[[], Iterator[str]]] = {
    "SETTINGS": _settings,
    "PHASE_TIMEOUTS": _phase_timeouts,
    "ENVIRONMENT": _environment,
    "CLASSES": _classes,
    "MEMBERS": _members,
}


def render(source: str) -> str:
    """Fill the sections into a page.

    Raises:
        KeyError: the page names a section that does not exist.
    """
    return _MARK.sub(lambda mark: "\n\n".join(SECTIONS[mark.group(1)]()), source)


def main(source: Path, target: Path) -> None:
    """Render every page of a directory."""
    target.mkdir(parents=True, exist_ok=True)
    for page in sorted(source.glob("*.rst")):
        (target / page.name).write_text(render(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] == ["--dbus"]:
        sys.stdout.write(dbus_markdown())
        sys.exit()
    main(Path(sys.argv[1]), Path(sys.argv[2]))
