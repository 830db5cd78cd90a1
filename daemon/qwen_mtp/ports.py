"""Who listens on a TCP port, read from /proc/net and /proc/PID/fd (proc(5))."""

from __future__ import annotations

import errno
import os
import re
import socket
from collections.abc import Iterable

_LISTEN = "0A"  # TCP_LISTEN in include/net/tcp_states.h
_SOCKET = re.compile(r"socket:\[(\d+)\]")


def _listening_inodes(port: int) -> set[str]:
    found: set[str] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table, encoding="ascii") as lines:
                next(lines, None)
                for line in lines:
                    fields = line.split()
                    if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                        found.add(fields[9])
        except OSError:
            continue
    return found


def listener(port: int, pids: Iterable[int]) -> int | None:
    """Return the one of `pids` that listens on the port, or None."""
    inodes = _listening_inodes(port)
    if not inodes:
        return None
    for pid in pids:
        try:
            names = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue
        for name in names:
            try:
                link = _SOCKET.match(os.readlink(f"/proc/{pid}/fd/{name}"))
            except OSError:
                continue
            if link and link.group(1) in inodes:
                return pid
    return None


def bind_error(host: str, port: int) -> OSError | None:
    """Try to bind the address as SGLang's uvicorn will (SO_REUSEADDR), and return what stands in the way."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        return OSError(errno.EADDRNOTAVAIL, str(error))
    try:
        with socket.socket(family, kind, proto) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(address)
            trial.listen(1)  # with SO_REUSEADDR only listen() finds a listener on some addresses
    except OSError as error:
        return error
    return None
