"""The `qwen-mtp` command: one module per subcommand, imported only when it is used."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import NamedTuple

from qwen_mtp import __version__

EX_USAGE = 2

_EPILOG = """\
The service itself is controlled by systemctl: systemctl start qwen-mtp; its log is journalctl -u qwen-mtp.
See qwen-mtp(1)."""


class _Command(NamedTuple):
    name: str
    help: str
    module: str


COMMANDS = (
    _Command("phases", "read the start-up phases out of a saved SGLang log", "qwen_mtp.cli_phases"),
    _Command("classify", "say why the SGLang of a saved log ended, and what to do", "qwen_mtp.cli_classify"),
    _Command("explain", "explain a failure class, a rule or a MESSAGE_ID", "qwen_mtp.cli_explain"),
    _Command("config", "show the configuration as it is read, and what SGLang would be given", "qwen_mtp.cli_config"),
)
"""Each module has `describe(parser)`, which adds arguments and help, and `run(arguments) -> int`."""


def _parser(wanted: str | None) -> argparse.ArgumentParser:
    """Build the parser; only the subcommand that is wanted is imported and described."""
    parser = argparse.ArgumentParser(
        prog="qwen-mtp",
        description="Tools for the qwen-mtp service.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"qwen-mtp {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in COMMANDS:
        sub = subparsers.add_parser(
            command.name, help=command.help, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        if command.name == wanted:
            importlib.import_module(command.module).describe(sub)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    names = {command.name: command.module for command in COMMANDS}
    wanted = next((word for word in words if not word.startswith("-")), None)
    arguments = _parser(wanted).parse_args(words)
    try:
        status: int = importlib.import_module(names[arguments.command]).run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # head, less and the like have read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    return status
