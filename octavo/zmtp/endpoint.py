"""Sockets for endpoints as ZeroMQ writes them: `tcp://HOST:PORT`, `ipc://PATH`, `ipc://@NAME`."""

from __future__ import annotations

import os
import socket
import stat
from contextlib import suppress

_IPC = "ipc://"
_BACKLOG = 64


def dial(endpoint: str, attempt: int = 0) -> socket.socket:
    """Return a socket that connects to an endpoint, and that never waits.

    A name may have several addresses; each attempt takes the next one.
    """
    kind, address = _address(endpoint, attempt)
    made = _made(kind)
    try:
        with suppress(BlockingIOError):
            made.connect(address)
    except BaseException:
        made.close()
        raise
    return made


def listen(endpoint: str) -> socket.socket:
    """Return a socket that listens at an endpoint; a file of an earlier one is replaced."""
    kind, address = _address(endpoint.replace("tcp://*", "tcp://0.0.0.0"))
    made = _made(kind)
    try:
        if kind == socket.AF_UNIX and isinstance(address, str) and not address.startswith("\0"):
            with suppress(FileNotFoundError):
                if stat.S_ISSOCK(os.stat(address).st_mode):
                    os.unlink(address)
        elif kind != socket.AF_UNIX:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if kind == socket.AF_INET6:
                made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        made.bind(address)
        made.listen(_BACKLOG)
    except BaseException:
        made.close()
        raise
    return made


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
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _address(endpoint: str, attempt: int = 0) -> tuple[int, str | tuple[str, int]]:
    """Return the family and the address of an endpoint, whose name may be looked up."""
    if endpoint.startswith(_IPC):
        path = endpoint.removeprefix(_IPC)
        return socket.AF_UNIX, "\0" + path[1:] if path.startswith("@") else path
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    family, *_, address = found[attempt % len(found)]
    return family, (str(address[0]), int(address[1]))
