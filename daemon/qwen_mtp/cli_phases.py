"""`qwen-mtp phases`: the start-up phases of a saved log."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import Any

from qwen_mtp.launch import Facts
from qwen_mtp.savedlog import Reader, open_log
from qwen_mtp.snapshot import Span
from qwen_mtp.states import Phase

_EPILOG = """\
The log may come from a terminal, a file, journalctl, docker, kubectl or Ray, with their prefixes, coloured
or cut. If it holds several launches, the last one counts. Times are seconds since the first time stamp of
that launch, as SGLang prints them: to the second, unless SGLANG_LOG_MS=1 was set.

exit status:
  0  the log was read
  1  it cannot be read
  2  usage

examples:
  qwen-mtp phases sglang.log
  journalctl -u qwen-mtp -b | qwen-mtp phases -
  qwen-mtp phases --json sglang.log | jq .last_phase"""


def describe(parser: argparse.ArgumentParser) -> None:
    """Add arguments and help."""
    parser.description = "Read the start-up phases out of a saved SGLang log."
    parser.epilog = _EPILOG
    parser.add_argument("file", metavar="FILE|-", help="the log; - is standard input")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print the phases; returns the exit status."""
    try:
        reader = open_log(arguments.file)
    except OSError as error:
        print(f"qwen-mtp: {arguments.file}: {error.strerror}", file=sys.stderr)
        return 1
    if arguments.json:
        print(json.dumps(as_json(reader), indent=2))
    else:
        _print(reader)
    return 0


def _seconds(reader: Reader, value: float | None) -> float | None:
    return round(value, 3) if reader.timed and value is not None else None


def as_json(reader: Reader) -> dict[str, Any]:
    """Describe what was read; times are null in a log without time stamps."""
    launch = reader.launch
    return {
        "last_phase": launch.phase.value,
        "ready": launch.ready,
        "bind_error": launch.bind_error or None,
        "phases": [
            {
                "phase": span.phase.value,
                "role": span.role.value if span.role else None,
                "start": _seconds(reader, span.start),
                "end": _seconds(reader, span.end),
                "progress": {"done": span.progress.done, "total": span.progress.total} if span.progress.total else None,
            }
            for span in launch.timeline
        ],
        "facts": asdict(launch.facts),
        "serving": asdict(launch.serving),
    }


def _print(reader: Reader) -> None:
    launch = reader.launch
    for span in launch.timeline:
        print(_row(reader, span))
    print()
    print(f"last phase: {launch.phase.value}" + ("" if launch.ready else ", not ready"))
    if launch.bind_error:
        print(f"the port could not be bound: {launch.bind_error}")
    for name, value in asdict(launch.facts).items():
        if value != getattr(Facts(), name):
            text = (
                ", ".join(f"rank {rank}: {amount}" for rank, amount in value.items())
                if isinstance(value, dict)
                else value
            )
            print(f"{name.replace('_', '-')}: {text}")
    serving = launch.serving
    if serving.generation_throughput:
        print(f"last decode: {serving.generation_throughput} tokens/s, accept length {serving.accept_length}")


def _row(reader: Reader, span: Span) -> str:
    name = span.phase.value + (f" ({span.role.value})" if span.phase is Phase.CUDA_GRAPHS and span.role else "")
    steps = f"{span.progress.done}/{span.progress.total}" if span.progress.total else ""
    if not reader.timed:
        return f"{name:24}{steps:>9}".rstrip()
    took = f"{span.end - span.start:8.1f} s" if span.end is not None else ""
    return f"{span.start:8.1f} s  {name:24}{steps:>9}{took}".rstrip()
