"""The D-Bus side: org.qwenmtp.Supervisor1 on the system bus, by pydbus.

pydbus publishes the object. Around it, because pydbus cannot (seen with 0.6.0): the connection is our own,
so that losing the bus does not end the process and a new one can follow; it is opened on a thread, because
that blocks; the name is asked for without letting others take it over; and methods answer later, when polkit
has been asked. Nothing here raises into the caller or into GLib.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from importlib import resources
from typing import Any, Protocol

import structlog
from gi.repository import Gio, GLib
from pydbus.bus import Bus
from pydbus.generic import signal
from pydbus.registration import ObjectRegistration, ObjectWrapper

from qwen_mtp import loop
from qwen_mtp.bus_values import failure, properties
from qwen_mtp.diagnosis import Diagnosis
from qwen_mtp.reporter import BusyError
from qwen_mtp.snapshot import Snapshot
from qwen_mtp.states import Phase

NAME = "org.qwenmtp.Supervisor1"
PATH = "/org/qwenmtp/Supervisor1"
ERROR = "org.qwenmtp.Error"
MAX_REASON = 200

_INTERVAL = 0.5
_RETRY_FIRST, _RETRY_MAX = 0.5, 5.0
_CLOSE_SECONDS = 1.0
_DO_NOT_QUEUE = 4  # D-Bus specification, RequestName: no replacement, no queue
_PRIMARY_OWNER = (1, 4)
_ALLOW_INTERACTION = 1  # polkit, CheckAuthorization
_POLKIT_TIMEOUT_MS = 120_000
_POLKIT = "org.freedesktop.PolicyKit1"


class Controller(Protocol):
    """What the methods act on."""

    def restart(self, reason: str) -> None:
        """Restart SGLang; raises BusyError where that does not fit."""

    def diagnose(self) -> Diagnosis | None:
        """Return the last failure."""


class _Object:
    """What pydbus publishes: properties by name out of one ready dictionary, and the signals."""

    PropertiesChanged = signal()
    PhaseChanged = signal()
    FailureDiagnosed = signal()

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["values"][name]
        except KeyError:
            raise AttributeError(name) from None


class _Wrapper(ObjectWrapper):  # type: ignore[misc]
    """pydbus's dispatcher, with our methods answered asynchronously and proper error names."""

    __slots__ = ("methods",)

    def call_method(
        self,
        connection: Gio.DBusConnection,
        sender: str,
        path: str,
        interface: str,
        method: str,
        parameters: Any,
        invocation: Gio.DBusMethodInvocation,
    ) -> None:
        if interface == NAME:
            self.methods(sender, method, tuple(parameters), invocation)
        elif method == "Set":
            invocation.return_dbus_error("org.freedesktop.DBus.Error.PropertyReadOnly", "all properties are read-only")
        else:
            super().call_method(connection, sender, path, interface, method, parameters, invocation)


class Service:
    """The published object; reconnects for as long as it lives.

    Args:
        controller: what the methods act on.
        address: address of the bus, or None for the system bus.
    """

    def __init__(self, controller: Controller, address: str | None = None) -> None:
        self._controller = controller
        self._address = address
        self._log = structlog.get_logger()
        self._xml = (resources.files("qwen_mtp") / "supervisor1.xml").read_text(encoding="utf-8")
        self._object = _Object(properties(Snapshot()))
        self._pending: dict[str, Any] = {}
        self._emitted_at = float("-inf")
        self._emit_timer: loop.Source | None = None
        self._connection: Gio.DBusConnection | None = None
        self._registration: ObjectRegistration | None = None
        self._retry = _RETRY_FIRST
        self._said = ""
        self._closed = False
        # Its traceback for each refused call would go to the journal.
        logging.getLogger("pydbus.registration").setLevel(logging.CRITICAL)
        self._connect()

    # -- what the supervisor calls ----------------------------------------------------------------

    def update(self, snapshot: Snapshot) -> None:
        """Publish a state; properties that changed are announced together, twice a second at most."""
        for name, value in properties(snapshot).items():
            if self._object.values[name] != value:
                self._object.values[name] = value
                self._pending[name] = value
        if self._pending and self._emit_timer is None:
            self._emit_timer = loop.after(max(self._emitted_at + _INTERVAL - time.monotonic(), 0.0), self._emit)

    def phase_changed(self, phase: Phase, usec: int) -> None:
        """Emit PhaseChanged."""
        self._signal(lambda: self._object.PhaseChanged(phase.value, usec))

    def failure_diagnosed(self, diagnosis: Diagnosis) -> None:
        """Emit FailureDiagnosed."""
        self._signal(lambda: self._object.FailureDiagnosed(failure(diagnosis)))

    def close(self) -> None:
        """Send what is pending and leave the bus."""
        self._closed = True
        self._emit()
        connection = self._connection
        if connection is not None:
            # On a thread that may be left behind: a stopped dbus-daemon would keep both waiting.
            leaving = threading.Thread(target=self._leave, args=(connection,), name="bus", daemon=True)
            leaving.start()
            leaving.join(_CLOSE_SECONDS)
        self._drop()

    def _leave(self, connection: Gio.DBusConnection) -> None:
        try:
            connection.flush_sync(None)
            connection.close_sync(None)
        except GLib.Error as error:
            self._log.debug("bus-close", message=error.message)

    # -- announcing -------------------------------------------------------------------------------

    def _emit(self) -> None:
        if self._emit_timer:
            self._emit_timer.cancel()
            self._emit_timer = None
        pending, self._pending = self._pending, {}
        if pending:
            self._emitted_at = time.monotonic()
            self._signal(lambda: self._object.PropertiesChanged(NAME, pending, []))

    def _signal(self, emit: Callable[[], None]) -> None:
        if self._registration is None:
            return
        try:
            emit()
        except GLib.Error as error:
            self._log.debug("bus-signal", message=f"a signal could not be sent: {error.message}")

    # -- connecting -------------------------------------------------------------------------------

    def _connect(self) -> None:
        threading.Thread(target=self._open, name="bus", daemon=True).start()

    def _open(self) -> None:
        """Open the connection, on a thread: the handshake blocks for as long as the daemon is stopped."""
        try:
            address = self._address or Gio.dbus_address_get_for_bus_sync(Gio.BusType.SYSTEM, None)
            flags = Gio.DBusConnectionFlags.AUTHENTICATION_CLIENT | Gio.DBusConnectionFlags.MESSAGE_BUS_CONNECTION
            connection = Gio.DBusConnection.new_for_address_sync(address, flags, None, None)
            connection.set_exit_on_close(False)
        except GLib.Error as error:
            reason = error.message
            loop.post(lambda: self._try_later(f"no system bus: {reason}"))
            return
        loop.post(lambda: self._opened(connection))

    def _opened(self, connection: Gio.DBusConnection) -> None:
        if self._closed:
            return
        self._connection = connection
        connection.connect("closed", lambda *_: loop.post(lambda: self._lost(connection)))
        interfaces = Gio.DBusNodeInfo.new_for_xml(self._xml).interfaces
        wrapper = _Wrapper(self._object, interfaces)
        wrapper.methods = self._method
        self._registration = ObjectRegistration(Bus(connection), PATH, interfaces, wrapper, own_wrapper=True)
        connection.call(
            "org.freedesktop.DBus",
            "/org/freedesktop/DBus",
            "org.freedesktop.DBus",
            "RequestName",
            GLib.Variant("(su)", (NAME, _DO_NOT_QUEUE)),
            GLib.VariantType("(u)"),
            Gio.DBusCallFlags.NONE,
            -1,
            None,
            lambda source, result: self._named(source, result),
        )

    def _named(self, connection: Any, result: Gio.AsyncResult) -> None:
        if self._connection is None or connection is not self._connection:
            return
        try:
            (answer,) = connection.call_finish(result).unpack()
        except GLib.Error as error:
            reason = Gio.DBusError.get_remote_error(error) or error.message
            self._give_back(f"the name {NAME} was refused ({reason}); the D-Bus policy must allow it to this user")
            return
        if answer not in _PRIMARY_OWNER:
            self._give_back(f"the name {NAME} belongs to another process; is a second qwen-mtpd running?")
            return
        self._retry = _RETRY_FIRST
        self._said = ""
        self._log.info("bus-acquired", message=f"on the bus as {NAME}")

    def _give_back(self, reason: str) -> None:
        connection = self._connection
        self._drop()
        if connection is not None:
            connection.close(None, None)
        self._try_later(reason)

    def _lost(self, connection: Gio.DBusConnection) -> None:
        if connection is self._connection and not self._closed:
            self._drop()
            self._log.warning("bus-lost", message="the connection to the bus was lost; connecting again")
            self._try_later("")

    def _drop(self) -> None:
        registration, self._registration, self._connection = self._registration, None, None
        if registration is not None:
            registration.unregister()

    def _try_later(self, reason: str) -> None:
        if self._closed:
            return
        if reason and reason != self._said:
            self._said = reason
            self._log.warning("bus-unavailable", message=f"{reason}; the service goes on, and tries again")
        loop.after(self._retry, self._connect)
        self._retry = min(self._retry * 2, _RETRY_MAX)

    # -- methods ----------------------------------------------------------------------------------

    def _method(self, sender: str, method: str, parameters: tuple[Any, ...], call: Gio.DBusMethodInvocation) -> None:
        action = {"Restart": "restart", "Diagnose": "diagnose"}[method]
        self._authorize(sender, action, call, lambda: self._act(method, parameters, call))

    def _act(self, method: str, parameters: tuple[Any, ...], call: Gio.DBusMethodInvocation) -> None:
        if method == "Diagnose":
            diagnosis = self._controller.diagnose()
            if diagnosis is None:
                call.return_dbus_error(f"{ERROR}.NoFailure", "SGLang has not failed since the service was started")
            else:
                call.return_value(GLib.Variant("(a{sv})", (failure(diagnosis),)))
            return
        (reason,) = parameters
        if len(reason) > MAX_REASON or not reason.isprintable():
            call.return_dbus_error(
                f"{ERROR}.InvalidReason", f"the reason must be one line of at most {MAX_REASON} printable characters"
            )
            return
        try:
            self._controller.restart(reason)
        except BusyError as error:
            call.return_dbus_error(f"{ERROR}.Busy", str(error))
            return
        call.return_value(None)

    def _authorize(self, sender: str, action: str, call: Gio.DBusMethodInvocation, then: Callable[[], None]) -> None:
        """Go on if the caller is root, our own user, or allowed by polkit.

        Our own user is SGLang's, too: it gains nothing by a restart that it could not do by ending itself.
        """
        connection = call.get_connection()

        def refuse(why: str) -> None:
            call.return_dbus_error(f"{ERROR}.NotAuthorized", why)

        def guarded(answer: Callable[[], None]) -> None:
            try:
                answer()
            except Exception as error:
                self._log.error("internal-error", message="a D-Bus method failed", exc_info=True)
                call.return_dbus_error(f"{ERROR}.Internal", str(error))

        def user_known(source: Gio.DBusConnection, result: Gio.AsyncResult) -> None:
            try:
                (uid,) = source.call_finish(result).unpack()
            except GLib.Error:
                refuse("the caller has left the bus")
                return
            if uid in (0, os.getuid()):
                guarded(then)
                return
            interactive = call.get_message().get_flags() & Gio.DBusMessageFlags.ALLOW_INTERACTIVE_AUTHORIZATION
            connection.call(
                _POLKIT,
                "/org/freedesktop/PolicyKit1/Authority",
                f"{_POLKIT}.Authority",
                "CheckAuthorization",
                GLib.Variant(
                    "((sa{sv})sa{ss}us)",
                    (
                        ("system-bus-name", {"name": GLib.Variant("s", sender)}),
                        f"{NAME}.{action}",
                        {},
                        _ALLOW_INTERACTION if interactive else 0,
                        "",
                    ),
                ),
                GLib.VariantType("((bba{ss}))"),
                Gio.DBusCallFlags.NONE,
                _POLKIT_TIMEOUT_MS,
                None,
                polkit_answered,
            )

        def polkit_answered(source: Gio.DBusConnection, result: Gio.AsyncResult) -> None:
            try:
                ((allowed, challenge, _),) = source.call_finish(result).unpack()
            except GLib.Error as error:
                refuse(f"only root may do this: polkit cannot be asked ({error.message})")
                return
            if allowed:
                guarded(then)
            else:
                refuse(
                    f"not allowed to {action}"
                    + (
                        "; authentication is required, which busctl asks for with --allow-interactive-authorization=yes"
                        if challenge
                        else ""
                    )
                )

        connection.call(
            "org.freedesktop.DBus",
            "/org/freedesktop/DBus",
            "org.freedesktop.DBus",
            "GetConnectionUnixUser",
            GLib.Variant("(s)", (sender,)),
            GLib.VariantType("(u)"),
            Gio.DBusCallFlags.NONE,
            -1,
            None,
            user_known,
        )
