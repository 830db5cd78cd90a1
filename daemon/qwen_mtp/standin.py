"""A stand-in for SGLang without a GPU: replays a recorded launch with its timing and answers the HTTP API.

It takes SGLang's place in the configuration, to rehearse it or to work on the supervisor:

    [sglang]
    command = ["/usr/bin/python3", "-m", "qwen_mtp.standin", "--recording", "DIR"]

SGLang's own arguments follow; it heeds --host, --port, --model-path, --config (for api-key) and --api-key and
accepts all others. It prints the recorded bytes, refuses connections until the recorded server did, ends as
the recorded one did, and otherwise serves until it is stopped, as SGLang of that version would.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from qwen_mtp.recording import Recording, RecordingError, load
from qwen_mtp.standin_http import Server, log_line

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15  # linux/prctl.h
_BOUND = b"Uvicorn running on"
_READY = (b"The server is fired up and ready to roll!", b"Dummy health check server started")
"""Lines after which SGLang serves; the second is that of a node of rank above 0."""
FLOOD_LINE = b"[2026-12-01 00:00:00] flood of lines that say nothing".ljust(139, b".") + b"\n"
_GARBAGE = (
    b"<3>not an error\n\x00NUL \xff\xfe bad UTF-8 \x1b[31mred\x1b[0m\r\n"
    + b"x" * 10_000_000
    + b"\n\rbar 1/2\rbar 2/2\n"
)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="qwen_mtp.standin",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--recording", type=Path, required=True, metavar="DIR", help="the recording to replay")
    parser.add_argument(
        "--speed", type=float, default=1.0, help="factor on the recorded timing; 0 for no waiting at all"
    )
    parser.add_argument(
        "--children", action="store_true", help="start a scheduler and a detokenizer process, as SGLang does"
    )
    faults = parser.add_argument_group("faults")
    faults.add_argument("--hang-at", metavar="TEXT", help="stop printing, and go on living, at the line with this text")
    faults.add_argument("--ignore-sigterm", action="store_true", help="do not end on SIGTERM")
    faults.add_argument("--exit-at", nargs=2, metavar=("TEXT", "STATUS"), help="exit at the line with this text")
    faults.add_argument(
        "--flood", type=int, default=0, metavar="MIB", help="print so much as fast as possible, first of all"
    )
    faults.add_argument(
        "--garbage",
        action="store_true",
        help="print NUL, bad UTF-8, colours, a bar, a priority and a line of 10 MB first",
    )
    faults.add_argument(
        "--daemonize", action="store_true", help="leave a process behind that ignores signals, in its own session"
    )
    faults.add_argument(
        "--unhealthy-after", type=float, metavar="SECONDS", help="answer no health check so long after ready"
    )
    sglang = parser.add_argument_group("SGLang's own, of which all others are accepted and ignored")
    sglang.add_argument("--host", default="127.0.0.1", help=argparse.SUPPRESS)
    sglang.add_argument("--port", type=int, default=30000, help=argparse.SUPPRESS)
    sglang.add_argument("--model-path", default="standin", help=argparse.SUPPRESS)
    sglang.add_argument("--api-key", default="", help=argparse.SUPPRESS)
    sglang.add_argument("--config", type=Path, help=argparse.SUPPRESS)
    return parser


def _api_key(arguments: argparse.Namespace) -> str:
    """Return the key from --api-key or from the flat YAML (or JSON) file of --config."""
    if arguments.api_key or arguments.config is None:
        return str(arguments.api_key)
    text = arguments.config.read_text(encoding="utf-8")
    try:
        values = json.loads(text)
    except ValueError:
        values = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    return str(values.get("api-key") or values.get("api_key") or "")


class StandIn:
    """One run of the stand-in.

    Args:
        recording: what to replay.
        arguments: the parsed command line.
    """

    def __init__(self, recording: Recording, arguments: argparse.Namespace) -> None:
        self._recording = recording
        self._arguments = arguments
        self._server: Server | None = None
        self._stop = threading.Event()

    def run(self) -> int:
        """Replay, then end as recorded or serve; returns the exit status."""
        arguments = self._arguments
        if arguments.ignore_sigterm:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if arguments.children:
            for name in ("sglang::scheduler", "sglang::detokenizer"):
                _child(name)
        if arguments.daemonize:
            _orphan()
        if arguments.garbage:
            _write(2, _GARBAGE)
        if arguments.flood:
            _flood(arguments.flood)
        began, stopping = time.monotonic(), False
        for seconds, stream, data in self._recording.pieces():
            if arguments.speed:
                time.sleep(max(began + seconds / arguments.speed - time.monotonic(), 0.0))
            if _BOUND in data and not self._bind():
                return self._linger()
            _write(1 if stream == "stdout" else 2, self._with_port(data))
            if any(mark in data for mark in _READY):
                self._became_ready()
                if self._serves_on():
                    stopping = True
                    break
            if arguments.hang_at and arguments.hang_at.encode() in data:
                return self._linger()
            if arguments.exit_at and arguments.exit_at[0].encode() in data:
                return int(arguments.exit_at[1])
        if stopping:
            return self._serve()
        if self._recording.ended_by_recorder:
            return self._linger()
        return self._end(self._recording.returncode)

    def _serves_on(self) -> bool:
        """Whether what follows in the recording was the recorder's doing: then serve, rather than replay it."""
        log = self._recording.log
        rest = log[max(log.find(mark) for mark in _READY) :]
        return self._recording.ended_by_recorder or b"SIGTERM received" in rest or self._recording.returncode == 0

    def _with_port(self, data: bytes) -> bytes:
        if _BOUND not in data:
            return data
        head, _, tail = data.partition(b"http://")
        rest = tail.partition(b" (")[2]
        return head + f"http://{self._arguments.host}:{self._arguments.port} (".encode() + rest

    def _bind(self) -> bool:
        arguments = self._arguments
        try:
            self._server = Server(
                arguments.host,
                arguments.port,
                arguments.model_path,
                self._recording.version,
                _api_key(arguments),
                arguments.speed,
            )
        except OSError as error:
            log_line(
                f"ERROR:    [Errno {error.errno}] error while attempting to bind on address "
                f"('{arguments.host}', {arguments.port}): {os.strerror(error.errno or 0).lower()}"
            )
            log_line("INFO:     Waiting for application shutdown.")
            return False
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return True

    def _became_ready(self) -> None:
        if self._server is None and not self._bind():
            return
        assert self._server is not None  # noqa: S101
        self._server.ready = True
        if not self._arguments.ignore_sigterm:
            signal.signal(signal.SIGTERM, lambda *_: self._stop.set())
        signal.signal(signal.SIGINT, lambda *_: self._stop.set())
        if self._arguments.unhealthy_after is not None:
            server = self._server

            def stick() -> None:
                time.sleep(self._arguments.unhealthy_after)
                server.stuck = True

            threading.Thread(target=stick, daemon=True).start()

    def _serve(self) -> int:
        self._stop.wait()
        server, speed = self._server, self._arguments.speed
        assert server is not None  # noqa: S101
        server.draining = True
        log_line("SIGTERM received. signum=None frame=None. Draining requests and shutting down...")
        while True:
            # The real one looks every five seconds (managers/tokenizer_manager.py, sigterm_watchdog).
            time.sleep(1.0 / speed if speed else 0.0)
            log_line(f"Gracefully exiting... Remaining number of requests {server.running}. remaining_rids=[].")
            if server.running == 0:
                return self._end(self._recording.returncode)

    def _linger(self) -> int:
        while True:
            time.sleep(3600)

    def _end(self, returncode: int) -> int:
        sys.stdout.flush()
        if returncode < 0:
            signal.signal(-returncode, signal.SIG_DFL) if -returncode != signal.SIGKILL else None
            os.kill(os.getpid(), -returncode)
        return returncode


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _flood(mebibytes: int) -> None:
    block = FLOOD_LINE * (2**20 // len(FLOOD_LINE))
    for _ in range(mebibytes):
        _write(2, block)


def _child(name: str) -> None:
    if os.fork() == 0:
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        libc.prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)
        while True:
            time.sleep(3600)


def _orphan() -> None:
    if os.fork() == 0:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        if os.fork():
            os._exit(0)
        while True:
            time.sleep(3600)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the stand-in; returns the exit status."""
    arguments, _ = _parser().parse_known_args(argv)
    try:
        recording = load(arguments.recording)
    except RecordingError as error:
        print(f"qwen_mtp.standin: {error}", file=sys.stderr)
        return 2
    return StandIn(recording, arguments).run()


if __name__ == "__main__":
    sys.exit(main())
