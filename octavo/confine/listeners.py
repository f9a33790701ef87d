"""Closes the ports at which libraries of this process listen, before it may accept no more.

A confined process is refused to accept a connection. A library that listens, as gloo does for ranks
with devices, takes that as an error of the system and ends the process, so that everyone who can
connect could end the engine. Its sockets must stay as they are, since it watches them; so the
kernel is given a filter for each that lets no packet in, and callers get no answer.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import stat
import struct
import time

from octavo.confine.filter import RETURN, SockFprog

log = logging.getLogger(__name__)

_ATTACH_FILTER = 26  # SO_ATTACH_FILTER
_WAIT_SECONDS = 1.0  # for a library to accept whom the kernel has let in already
_NETWORKS = (socket.AF_INET, socket.AF_INET6)


def close_ports() -> None:
    """Let no further connection in, and wait until those before have been accepted.

    A port that the kernel leaves open is named in the log.
    """
    with contextlib.ExitStack() as held:
        listening = [held.enter_context(each) for each in _listening()]
        nothing = struct.pack("<HBBI", RETURN, 0, 0, 0)  # of a packet is kept
        described = bytes(SockFprog(1, nothing))
        waiting = select.poll()
        for each in listening:
            try:
                each.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, described)
            except OSError as error:
                log.warning("port %d stays open: %s", each.getsockname()[1], error.strerror)
            waiting.register(each, select.POLLIN)
        end = time.monotonic() + _WAIT_SECONDS
        while listening and waiting.poll(0) and time.monotonic() < end:
            time.sleep(0.001)


def _listening() -> list[socket.socket]:
    """Return a socket for each port at which this process listens."""
    try:
        names = os.listdir("/proc/self/fd")
    except OSError:
        return []
    found = (_socket_of(int(name)) for name in names)
    return [each for each in found if each is not None]


def _socket_of(descriptor: int) -> socket.socket | None:
    """Return another socket of the same port; None for what is no port."""
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return None
    except OSError:  # it was the descriptor of the list itself
        return None
    found = socket.socket(fileno=os.dup(descriptor))
    is_listening = found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    if found.family in _NETWORKS and is_listening:
        return found
    found.close()
    return None
