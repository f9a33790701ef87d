"""Reports to systemd how a service is: ready, ending, and alive (sd_notify)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable

from octavo import env

log = logging.getLogger(__name__)

_SECONDS = 2.0  # for room in the queue


class Notifier:
    """The socket to which the state of this process is sent, of systemd or another starter.

    Without one nothing is sent.
    """

    def __init__(self) -> None:
        self._address = env.notify_socket()
        self._seconds = env.watchdog_seconds()
        self._has_failed_before = False
        self._is_ready = False

    def say_ready(self) -> None:
        """Report that requests are served; signs of life follow from now on."""
        self.say("READY=1", seconds=_SECONDS)
        self._is_ready = True

    def say(self, line: str, seconds: float = 0.0) -> None:
        """Send a line such as WATCHDOG=1; a socket that does not take it in time changes nothing.

        Its queue is short, so that a line which matters must wait for room in it.
        """
        if not self._address:
            return
        address = self._address
        if address.startswith("@"):  # without a file
            address = "\0" + address[1:]
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.settimeout(seconds)
                sender.sendto(line.encode(), address)
        except OSError as error:
            log.debug("systemd could not be notified: %s", error)

    async def watch(self, has_failed: Callable[[], bool]) -> None:
        """Report signs of life from the event loop, as long as the service can still answer.

        A loop that is held sends none, and neither does a service that has given up its engine.
        """
        if not (self._address and self._seconds):
            return
        while True:
            if not has_failed():
                if self._is_ready:
                    self.say("WATCHDOG=1")
            elif not self._has_failed_before:
                self._has_failed_before = True
                log.error(
                    "the service cannot answer any more: systemd gets no further sign of life"
                )
            await asyncio.sleep(self._seconds / 2)


def passed_socket() -> socket.socket | None:
    """Return the socket that systemd has opened for this process (LISTEN_FDS), if there is one.

    Raise ValueError if there are several, or it cannot be listened on.
    """
    passed = env.passed_descriptors()
    if not passed:
        return None
    if len(passed) > 1:
        raise ValueError(
            f"systemd passes {len(passed)} sockets, and a server has one: let the .socket unit "
            "have a single ListenStream="
        )
    try:
        found = socket.socket(fileno=passed[0])
    except OSError as error:
        raise ValueError(f"what systemd passes is no socket: {error}") from error
    with contextlib.suppress(OSError):
        if found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            found.set_inheritable(False)
            return found
    found.detach()
    raise ValueError("the socket that systemd passes does not listen: use ListenStream=, Accept=no")
