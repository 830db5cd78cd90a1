"""The GLib main loop's sources, as context-free functions with callbacks that cannot break the loop.

GLib drops a source whose callback raises, silently: a timer that threw once never fires again. Every
callback goes through `guarded`, which logs the error with its traceback and keeps the source.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import structlog
from gi.repository import GLib

IN = GLib.IOCondition.IN
OUT = GLib.IOCondition.OUT
HUP = GLib.IOCondition.HUP


def guarded(callback: Callable[[], bool | None], keep: bool) -> Callable[..., bool]:
    """Wrap a source's callback.

    Args:
        callback: its truth value says whether the source stays; None means `keep`.
        keep: whether the source stays after None or an exception.
    """

    @functools.wraps(callback)
    def call(*_: object) -> bool:
        try:
            result = callback()
        except Exception:
            structlog.get_logger().error("internal-error", message="internal error in a callback", exc_info=True)
            return keep
        return keep if result is None else result

    return call


class Source:
    """A source of the main loop; `cancel` may be called at any time and more than once."""

    def __init__(self, attach: Callable[[Callable[..., bool]], int], callback: Callable[[], bool | None], keep: bool):
        wrapped = guarded(callback, keep)

        def call(*_: object) -> bool:
            stays = wrapped()
            if not stays:
                self._id = 0
            return stays and self._id != 0

        self._id = attach(call)

    def cancel(self) -> None:
        """Remove the source; its callback is not called again."""
        number, self._id = self._id, 0
        if number:
            GLib.source_remove(number)


def every(seconds: float, callback: Callable[[], bool | None]) -> Source:
    """Call every so many seconds; whole seconds are grouped with other timers to save wake-ups."""
    if seconds == int(seconds):
        return Source(lambda call: GLib.timeout_add_seconds(int(seconds), call), callback, True)
    return Source(
        lambda call: GLib.timeout_add(max(int(seconds * 1000), 1), call),
        callback,
        True,
    )


def after(seconds: float, callback: Callable[[], bool | None]) -> Source:
    """Call once after so many seconds."""
    return Source(
        lambda call: GLib.timeout_add(max(int(seconds * 1000), 0), call),
        callback,
        False,
    )


def on_fd(fd: int, condition: GLib.IOCondition, callback: Callable[[], bool | None]) -> Source:
    """Call whenever the descriptor is ready."""
    return Source(lambda call: GLib.unix_fd_add_full(GLib.PRIORITY_DEFAULT, fd, condition, call), callback, True)


def on_signal(number: int, callback: Callable[[], bool | None]) -> Source:
    """Call on a Unix signal, from the loop and not from a signal handler."""
    return Source(lambda call: GLib.unix_signal_add(GLib.PRIORITY_HIGH, number, call), callback, True)


def post(callback: Callable[[], None]) -> None:
    """Call once from the main loop; the only function here that other threads may use."""
    GLib.idle_add(guarded(callback, False), priority=GLib.PRIORITY_DEFAULT)
