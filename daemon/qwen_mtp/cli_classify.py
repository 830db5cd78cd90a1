"""`qwen-mtp classify`: the diagnosis of a saved log, as the daemon would make it."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from typing import Any

from qwen_mtp.catalogue import RULES, load_with
from qwen_mtp.diagnosis import Diagnosis, Outcome
from qwen_mtp.savedlog import open_log
from qwen_mtp.states import Phase

_EPILOG = """\
The log may come from a terminal, a file, journalctl, docker, kubectl or Ray, with their prefixes, coloured
or cut. If it holds several launches, the last one counts. How SGLang ended helps where the log is silent.

exit status:
  0  a failure was found
  1  none was found, or the log cannot be read
  2  usage

examples:
  qwen-mtp classify sglang.log
  docker logs sglang 2>&1 | qwen-mtp classify --exit-status 137 -
  qwen-mtp classify --json sglang.log | jq -r .remedy"""


def _signal(text: str) -> int:
    name = text.upper()
    if name.isdigit() and int(name) in signal.valid_signals():
        return int(name)
    try:
        return signal.Signals[name if name.startswith("SIG") else f"SIG{name}"].value
    except KeyError:
        raise argparse.ArgumentTypeError(f"there is no signal {text}") from None


def describe(parser: argparse.ArgumentParser) -> None:
    """Add arguments and help."""
    parser.description = "Say why the SGLang of a saved log ended, and what to do about it."
    parser.epilog = _EPILOG
    parser.add_argument("file", metavar="FILE|-", help="the log; - is standard input")
    parser.add_argument("--json", action="store_true", help="print JSON")
    end = parser.add_mutually_exclusive_group()
    end.add_argument("--exit-status", type=int, metavar="N", help="exit status of SGLang's main process")
    end.add_argument("--signal", type=_signal, metavar="NAME", help="signal that ended it, such as KILL or 11")


def run(arguments: argparse.Namespace) -> int:
    """Print the diagnosis; returns the exit status."""
    catalogue, problems = load_with(RULES)
    for problem in problems:
        print(f"qwen-mtp: {problem}; the rule is left out", file=sys.stderr)
    try:
        reader = open_log(arguments.file, catalogue)
    except OSError as error:
        print(f"qwen-mtp: {arguments.file}: {error.strerror}", file=sys.stderr)
        return 1
    assert reader.collector is not None  # noqa: S101
    outcome = Outcome(exit_status=arguments.exit_status, signal=arguments.signal, phase=reader.launch.phase)
    # An end that nobody knows is no failure: a log may simply have been saved while SGLang ran.
    known = arguments.exit_status not in (None, 0) or arguments.signal is not None
    if not reader.collector.found_anything() and not known:
        if arguments.json:
            print(json.dumps({"class": None, "phase": reader.launch.phase.value}, indent=2))
        else:
            print(f"no failure was found; the launch reached phase {reader.launch.phase.value}")
        return 1
    diagnosis = reader.collector.conclude(outcome)
    if arguments.json:
        print(json.dumps(as_json(diagnosis), indent=2, ensure_ascii=False))
    else:
        _print(diagnosis)
    return 0


def as_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """Describe a diagnosis."""
    evidence = diagnosis.evidence
    return {
        "class": diagnosis.failure_class.value,
        "rule": diagnosis.rule,
        "summary": diagnosis.summary,
        "cause": diagnosis.cause,
        "remedy": diagnosis.remedy,
        "restart": diagnosis.restart.value,
        "confidence": diagnosis.confidence,
        "evidence": {"line": evidence.line, "text": evidence.text, "process": evidence.process},
        "facts": {name: value for name, value in diagnosis.facts.items() if value},
        "phase": (diagnosis.phase or Phase.SPAWN).value,
        "also": [{"class": kind.value, "summary": text} for kind, text in diagnosis.also],
    }


def _print(diagnosis: Diagnosis) -> None:
    evidence = diagnosis.evidence
    place = f"line {evidence.line}" + (f", {evidence.process}" if evidence.process else "")
    print(f"{diagnosis.failure_class.value}: {diagnosis.summary}")
    print(f"  cause:    {diagnosis.cause}")
    print(f"  remedy:   {diagnosis.remedy}")
    print(f"  evidence: {evidence.text}" + (f" ({place})" if evidence.line else ""))
    print(f"  phase:    {diagnosis.phase.value if diagnosis.phase else 'unknown'}")
    print(f"  restart:  {diagnosis.restart.value}; confidence {diagnosis.confidence:.2f}; rule {diagnosis.rule}")
    for kind, text in diagnosis.also:
        print(f"  also:     {kind.value}: {text}")
