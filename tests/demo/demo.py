"""The real daemon, live, with a stand-in for SGLang that replays a recorded launch. Run it by `./dev demo`.

Nothing is installed or left behind: the daemon runs from the checkout, on a bus of its own.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.harness import BUS, ROOT, Daemon, free_port, sglang_pids

RECORDING = "0.5.11/90-27b-mtp-success"
COLOUR = sys.stdout.isatty()


def say(text: str = "") -> None:
    print(text, flush=True)


def title(text: str) -> None:
    line = f"== {text}"
    say(f"\n\033[1m{line}\033[0m" if COLOUR else f"\n{line}")


def status_printer() -> tuple[threading.Event, object]:
    """Print each new STATUS= text with the time that has passed."""
    began = time.monotonic()
    quiet = threading.Event()
    last = [""]

    def show(text: str) -> None:
        if text != last[0] and not quiet.is_set():
            last[0] = text
            say(f"  {time.monotonic() - began:5.1f} s  {text}")

    return quiet, show


def configuration(port: int, speed: float) -> str:
    command = ["/usr/bin/python3", "-m", "qwen_mtp.standin"]
    command += ["--recording", str(ROOT / "tests/recordings" / RECORDING), "--speed", str(speed), "--children"]
    return f"""\
[sglang]
command = {json.dumps(command)}

[args]
model-path = "Qwen/Qwen3.6-27B"
port = {port}
speculative-algorithm = "NEXTN"
speculative-num-steps = 1
speculative-eagle-topk = 1
speculative-num-draft-tokens = 2

[env]
PYTHONPATH = {json.dumps(str(ROOT / "daemon"))}
"""


def complete(port: int, tokens: int) -> None:
    # Greedy, because SGLang cannot sample on the CPU.
    asked = {"prompt": "The capital of France is", "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions", json.dumps(asked).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=180) as answer:  # noqa: S310
        content = json.load(answer)
    say(f"  {content['choices'][0]['text'][:100]!r}…")
    say(f"  {content['usage']['completion_tokens']} tokens")


def show_bus(daemon: Daemon, names: tuple[str, ...]) -> None:
    say(f"  $ busctl get-property {BUS[0]} {BUS[1]} {BUS[2]} NAME")
    for name, value in zip(names, daemon.get(*names), strict=True):
        say(f"  {name:22} {value}")


def run(directory: Path, port: int, config: str, launch: str, tokens: int) -> bool:
    """Show a launch from its spawn to its end.

    Args:
        directory: for the daemon's files.
        port: where SGLang is to serve.
        config: text of the configuration.
        launch: what is launched, for people.
        tokens: length of the completion.

    Returns:
        Whether it ended as it should.
    """
    quiet, show = status_printer()
    title("The daemon starts SGLang; this is the unit's status as systemctl would show it, live")
    say(f"  ({launch})")
    with Daemon(directory, config, on_status=show) as daemon:  # type: ignore[arg-type]
        daemon.wait_state("ready", 600)
        time.sleep(0.3)
        quiet.set()
        title("READY=1 was sent: systemctl start would return now. A completion:")
        complete(port, tokens)
        daemon.wait(lambda: daemon.get("AcceptLength") not in ([], ["d 0"]), "the figures", 20)
        title("The same state on D-Bus, readable by everyone")
        show_bus(daemon, ("State", "Phase", "ModelPath", "Endpoint", "SpeculativeAlgorithm", "WeightMemory", "KVCacheTokens",
                          "AcceptLength", "GenerationThroughput", "MainPID"))  # fmt: skip
        title("The phases of this launch, read out of the forwarded log (qwen-mtp phases)")
        sys.path.insert(0, str(ROOT / "daemon"))
        from qwen_mtp.logfile import read_lines
        from qwen_mtp.savedlog import read

        with open(daemon.output, "rb") as file:
            for span in read(read_lines(file)).launch.timeline:
                steps = f"{span.progress.done}/{span.progress.total}" if span.progress.total else ""
                say(f"  {span.phase.value:16} {span.role.value if span.role else '':8}{steps}")
        title("SIGTERM: SGLang finishes its requests and ends")
        status = daemon.stop()
        for line in daemon.log().splitlines()[-2:]:
            say(f"  {line[:110]}")
        left = sglang_pids(directory)
        say(f"  exit status {status}, {len(left)} processes left")
    return status == 0 and not left


def show(make_config: Callable[[int], str], launch: str, tokens: int) -> int:
    """Run the demo in a directory of its own; returns the exit status."""
    directory = Path(tempfile.mkdtemp(prefix="qwen-mtp-demo-"))
    port = free_port()
    try:
        good = run(directory, port, make_config(port), launch, tokens)
    except AssertionError as error:
        say(f"\nthe demo failed: {error}")
        return 1
    except KeyboardInterrupt:
        say("\ninterrupted; everything is stopped")
        return 130
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    say("\nThat was the demo." if good else "\nSomething was left behind.")
    return 0 if good else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--speed", type=float, default=4.0, help="factor on the recorded timing (default: 4)")
    speed = parser.parse_args().speed
    if speed <= 0:
        parser.error("the speed must be more than 0")
    launch = f"a recorded launch of the true Qwen3.6-27B shape, {speed:g} times as fast"
    return show(lambda port: configuration(port, speed), launch, 48)


if __name__ == "__main__":
    sys.exit(main())
