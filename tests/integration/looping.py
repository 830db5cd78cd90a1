"""Turn the main loop until something holds, with a limit that only a broken test reaches."""

from __future__ import annotations

import time
from collections.abc import Callable

from gi.repository import GLib


def turn_until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    context = GLib.MainContext.default()
    end = time.monotonic() + seconds
    # A timer, because a blocking iteration with no source would wait for ever.
    timer = GLib.timeout_add(10, lambda: True)
    try:
        while not condition():
            assert time.monotonic() < end, "the condition did not come true"
            context.iteration(True)
    finally:
        GLib.source_remove(timer)


def turn(seconds: float) -> None:
    end = time.monotonic() + seconds
    turn_until(lambda: time.monotonic() >= end, seconds + 20)
