"""qwen-mtpd: reads the configuration, starts the supervisor, runs the main loop."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import structlog
from gi.repository import GLib

from qwen_mtp import __version__, credentials, journal, loop
from qwen_mtp.catalogue import Catalogue, load_with
from qwen_mtp.command import Directories
from qwen_mtp.config import DEFAULT_PATH, Config, ConfigError, load
from qwen_mtp.containment import contain
from qwen_mtp.history import History
from qwen_mtp.job import Job, prepare
from qwen_mtp.notify import Notifier
from qwen_mtp.relay import Sink
from qwen_mtp.supervisor import Supervisor

EX_SOFTWARE = 70
EX_CONFIG = 78

_DESCRIPTION = "Runs SGLang as a supervised service. Started by systemd as qwen-mtp.service."
_EPILOG = """\
exit status:
  0   stopped as asked
  69  SGLang failed in a way that cannot heal by itself; systemctl status names it
  70  internal error
  75  SGLang failed again and again, and the restart budget is used up
  78  the configuration was refused; the message names file, line and key

See qwen-mtpd(8) and qwen-mtp.toml(5)."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="qwen-mtpd",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--config",
        type=Path,
        default=DEFAULT_PATH,
        metavar="FILE",
        help="configuration file; drop-ins are read from FILE.d/ (default: %(default)s)",
    )
    parser.add_argument("--version", action="version", version=f"qwen-mtpd {__version__}")
    return parser


def _prepare(path: Path) -> tuple[Config, Job]:
    """Read all that can be wrong in what the administrator wrote.

    Raises:
        ConfigError: in one line, what is wrong where.
    """
    config = load(path, path.with_name(path.name + ".d"))
    directory = os.environ.get("CREDENTIALS_DIRECTORY")
    secrets = credentials.load(Path(directory) if directory else None)
    return config, prepare(config, secrets, Directories.from_environment(os.environ))


def _catalogue(directory: Path) -> Catalogue:
    catalogue, problems = load_with(directory)
    for problem in problems:
        structlog.get_logger().warning("rule-refused", message=f"{problem}; the rule is left out")
    return catalogue


def _serve(path: Path, config: Config, job: Job, notifier: Notifier) -> int:
    main_loop = GLib.MainLoop()
    sink = Sink(journal.sglang_sink())
    supervisor = Supervisor(
        job,
        config.supervisor,
        _catalogue(path.with_name("failures.d")),
        contain(),
        sink,
        notifier,
        History(Path(job.cwd)),
        main_loop.quit,
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.on_signal(number, supervisor.stop)
    loop.on_signal(signal.SIGHUP, _no_reload)
    loop.after(0, supervisor.start)
    # After the spawn: SGLang does not need the bus, and importing its library takes time.
    loop.after(0, lambda: _connect(supervisor))
    main_loop.run()
    if supervisor.reporter.bus:
        supervisor.reporter.bus.close()
    sink.close(2.0)
    return supervisor.exit_status


def _no_reload() -> None:
    structlog.get_logger().warning(
        "reload-refused",
        message="SIGHUP does nothing: a changed configuration takes effect with systemctl restart qwen-mtp",
    )


def _connect(supervisor: Supervisor) -> None:
    from qwen_mtp.bus import Service

    service = Service(supervisor)
    service.update(supervisor.snapshot())
    supervisor.reporter.bus = service


def main(argv: Sequence[str] | None = None) -> int:
    """Run the daemon; returns the exit status."""
    arguments = _parser().parse_args(argv)
    sender = journal.configure()
    log = structlog.get_logger()
    notifier = Notifier()
    try:
        config, job = _prepare(arguments.config)
        if config.supervisor.log_level != "info":
            if sender:
                sender.close()
            sender = journal.configure(config.supervisor.log_level)
        log.info("supervisor-started", message=f"qwen-mtpd {__version__}", version=__version__)
        return _serve(arguments.config, config, job, notifier)
    except ConfigError as error:
        log.error("configuration-refused", message=str(error), file=error.path, line=error.line, key=error.key)
        notifier.failed(str(error), "org.qwenmtp.Error.Configuration")
        return EX_CONFIG
    except Exception as error:
        log.critical("internal-error", message=f"internal error: {error}", exc_info=True)
        notifier.failed(f"internal error: {error}", "org.qwenmtp.Error.Internal")
        return EX_SOFTWARE
    finally:
        if sender:
            sender.close()


if __name__ == "__main__":
    sys.exit(main())
