"""Sockets for endpoints as ZeroMQ writes them: `tcp://HOST:PORT`, `ipc://PATH`, `ipc://@NAME`."""

from __future__ import annotations

import errno
import os
import socket
import stat
from contextlib import suppress

_IPC = "ipc://"
_BACKLOG = 64
# What the other end's system does not take for so long is lost with the connection.
_UNTAKEN_MS = 60_000

Place = tuple[int, str | tuple[str, int]]  # the family and the address of a socket


def new_socket(place: Place) -> socket.socket:
    """Return a socket that connects to a place, and that never waits."""
    kind, address = place
    made = _made(kind)
    try:
        with suppress(BlockingIOError):
            made.connect(address)
    except BaseException:
        made.close()
        raise
    return made


def listen(endpoint: str) -> socket.socket:
    """Return a socket that listens at an endpoint; the file of one that has ended is replaced."""
    endpoint = endpoint.replace("tcp://*", "tcp://0.0.0.0")
    kind, address = known_place(endpoint) or looked_up(endpoint)[0]
    made = _made(kind)
    try:
        if kind == socket.AF_UNIX and isinstance(address, str):
            _make_room(address)
        else:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if kind == socket.AF_INET6:
                made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        made.bind(address)
        made.listen(_BACKLOG)
    except BaseException:
        made.close()
        raise
    return made


def _make_room(path: str) -> None:
    """Remove the file of a socket of a process that has ended; raise OSError if one listens."""
    with suppress(FileNotFoundError):
        if path.startswith("\0") or not stat.S_ISSOCK(os.stat(path).st_mode):
            return
        with socket.socket(socket.AF_UNIX) as caller:
            caller.setblocking(False)
            try:
                caller.connect(path)
            except ConnectionRefusedError:
                os.unlink(path)
                return
            except BlockingIOError:  # one that listens, with many callers
                pass
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


def accept(listener: socket.socket) -> socket.socket | None:
    """Return the socket of the next caller, or None if there is none or it has left."""
    try:
        made, _ = listener.accept()
    except OSError:
        return None
    made.setblocking(False)
    _set_options(made)
    return made


def _made(kind: int) -> socket.socket:
    made = socket.socket(kind, socket.SOCK_STREAM)
    made.setblocking(False)
    _set_options(made)
    return made


def _set_options(made: socket.socket) -> None:
    """Let small messages go at once, and let the system find ends that are gone."""
    if made.family == socket.AF_UNIX:
        return
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # An end that is gone takes nothing: the system asks only where nothing is to be sent.
    wanted = {"KEEPIDLE": 30, "KEEPINTVL": 10, "KEEPCNT": 3, "USER_TIMEOUT": _UNTAKEN_MS}
    for name, value in wanted.items():
        number = getattr(socket, f"TCP_{name}", None)
        if number is not None:
            made.setsockopt(socket.IPPROTO_TCP, number, value)


def known_place(endpoint: str) -> Place | None:
    """Return the place of an endpoint that needs no search for a name; None: it does."""
    if endpoint.startswith(_IPC):
        path = endpoint.removeprefix(_IPC)
        return socket.AF_UNIX, "\0" + path[1:] if path.startswith("@") else path
    try:
        return _resolved(endpoint, socket.AI_NUMERICHOST)[0]
    except (OSError, UnicodeError):
        return None


def looked_up(endpoint: str) -> list[Place]:
    """Return the places of an endpoint of TCP, whose name may be searched for."""
    return _resolved(endpoint)


def _resolved(endpoint: str, flags: int = 0) -> list[Place]:
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM, flags=flags)
    return [(family, (str(address[0]), int(address[1]))) for family, *_, address in found]
