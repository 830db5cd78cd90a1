"""`qwen-mtp explain`: what a failure class, a rule or a MESSAGE_ID= of the journal means."""

from __future__ import annotations

import argparse
import string
import sys
from inspect import cleandoc

from qwen_mtp.catalogue import RULES, Catalogue, fill, load_with
from qwen_mtp.messages import EVENTS
from qwen_mtp.states import FailureClass, Restart

_RESTART = {
    Restart.NEVER: "the service fails at once and stays down until someone acts",
    Restart.SLOW: "SGLang is started again after a long delay, within the restart budget",
    Restart.BACKOFF: "SGLang is started again after growing delays, within the restart budget",
}
_EPILOG = """\
exit status:
  0  it was explained
  1  there is no such class, rule or MESSAGE_ID

examples:
  qwen-mtp explain kv-cache-too-small
  qwen-mtp explain f5f9f6a2ed504613bc42eba5c9901151
  qwen-mtp explain"""


def describe(parser: argparse.ArgumentParser) -> None:
    """Add arguments and help."""
    parser.description = "Explain a failure class, a rule or a MESSAGE_ID; without one, list the classes."
    parser.epilog = _EPILOG
    parser.add_argument("what", nargs="?", metavar="CLASS|RULE|MESSAGE_ID", help="what to explain")


def run(arguments: argparse.Namespace) -> int:
    """Print the explanation; returns the exit status."""
    catalogue, problems = load_with(RULES)
    for problem in problems:
        print(f"qwen-mtp: {problem}; the rule is left out", file=sys.stderr)
    if arguments.what is None:
        for entry in catalogue.classes:
            print(f"{entry.failure_class.value:20} {entry.restart.value:8} {entry.sentence}")
        return 0
    what = arguments.what.lower()
    for entry in catalogue.classes:
        if what in (entry.failure_class.value, entry.message_id):
            _class(catalogue, entry.failure_class)
            return 0
    for kind in EVENTS:
        if what in (kind.name, kind.message_id):
            print(f"{kind.name}: {kind.subject}\n\n{cleandoc(kind.text)}\n\nMESSAGE_ID={kind.message_id}")
            return 0
    if any(rule.id == what for rule in catalogue.rules):
        _rules(catalogue, rule_id=what)
        return 0
    print(
        f"qwen-mtp: there is no class, rule or MESSAGE_ID {arguments.what}; qwen-mtp explain lists the classes",
        file=sys.stderr,
    )
    return 1


def _class(catalogue: Catalogue, failure_class: FailureClass) -> None:
    entry = next(entry for entry in catalogue.classes if entry.failure_class is failure_class)
    print(f"{failure_class.value}: {entry.sentence}")
    print(f"What follows: {_RESTART[entry.restart]}.")
    print(f"MESSAGE_ID={entry.message_id}")
    _rules(catalogue, failure_class=failure_class)


def _rules(catalogue: Catalogue, failure_class: FailureClass | None = None, rule_id: str = "") -> None:
    for rule in catalogue.rules:
        if rule.failure_class is failure_class or rule.id == rule_id:
            # Captured facts are shown by their names.
            names = {name: f"<{name}>" for name in _names(rule.summary + rule.cause + rule.remedy)}
            print(f"\n{rule.id}: {fill(rule.summary, names)}")
            print(f"  class:    {rule.failure_class.value}")
            print(f"  cause:    {fill(rule.cause, names)}")
            print(f"  remedy:   {fill(rule.remedy, names)}")
            print(f"  checked:  SGLang {rule.versions} ({rule.origin})")


def _names(template: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(template) if name}
