"""The real daemon, live, with the real SGLang serving a tiny model on the CPU. Run it by `./dev demo-sglang`.

The model has the architecture of Qwen3.6-27B, hybrid layers and MTP head included, and random weights: what it
says is noise, and how it is served is not.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.demo.demo import say, show
from tests.real import environment
from tests.real.launches import NEXTN, configuration


def agreed() -> bool:
    """Say what will be fetched, and ask."""
    say(f"SGLang {environment.VERSION} and what it needs will be fetched from the Python package registry:")
    say(
        f"  about {environment.DOWNLOAD_GB} GB to download, which take {environment.INSTALLED_GB} GB in {environment.cache()}"
    )
    say("  ($QWEN_MTP_CACHE) and are kept there for the next time. It takes minutes.")
    if not sys.stdin.isatty():
        say("Nothing was fetched: say --yes where nobody can be asked.")
        return False
    try:
        return input("Go on? [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--yes", action="store_true", help="fetch the packages without asking")
    arguments = parser.parse_args()
    if not (arguments.yes or environment.installed() or agreed()):
        return 1
    try:
        made = environment.ensure()
    except environment.EnvironmentUnavailableError as error:
        say(f"{error}")
        return 1
    launch = f"SGLang {environment.VERSION} on the CPU; most of the time goes into its imports"
    return show(lambda port: configuration(made, port, NEXTN), launch, 16)


if __name__ == "__main__":
    sys.exit(main())
