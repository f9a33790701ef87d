"""Hands the listening socket of a server over to the next one, which serves from then on.

The old server listens on a unix socket. The new one, when it is ready to serve, connects to it,
receives the listening socket itself, accepts connections on it, and says so; then the old one
accepts none any more. Both have the same queue of the kernel, so that no connection is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path

from octavo.options.transport import ServerStartError

log = logging.getLogger(__name__)

SECONDS = 10.0  # for each side to answer
_OFFER, _READY, _LEFT = b"octavo 1\n", b"ready\n", b"left\n"
_CREDENTIALS = struct.Struct("iII")  # of a peer: process, user, group


class Predecessor:
    """A server that offers its listening socket."""

    def __init__(self, connection: socket.socket, listening: socket.socket) -> None:
        self._connection = connection
        self.listening = listening

    def let_go(self) -> None:
        """Keep the socket, and let others ask: `take_over` ends what is begun here."""
        self._connection.close()

    def finish(self) -> None:
        """Let it accept no more connections; raise ServerStartError if it does not answer."""
        try:
            self._connection.sendall(_READY)
            answer = self._connection.recv(len(_LEFT))
        except OSError as error:
            raise ServerStartError(f"the server before this one did not answer: {error}") from error
        finally:
            self._connection.close()
        if answer != _LEFT:
            raise ServerStartError(
                "the server before this one has ended while its socket was handed over; start again"
            )

    def close(self) -> None:
        """Leave everything as it was."""
        self._connection.close()
        self.listening.close()


def find_predecessor(path: Path) -> Predecessor | None:
    """Return the server that listens at the path; None if there is none."""
    if path.exists() and not path.is_socket():
        raise ServerStartError(
            f"{path} is no socket, and stays as it is: choose another path for --handover"
        )
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(SECONDS)
    try:
        connection.connect(str(path))
        if not _is_ours(connection):
            raise ServerStartError(
                f"what listens at {path} is another user's, who could read what clients send: "
                "choose a path for --handover in a directory that only this user can write to"
            )
        offer, descriptors, _, _ = socket.recv_fds(connection, len(_OFFER), 1)
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        return None
    except ServerStartError:
        connection.close()
        raise
    except OSError as error:
        connection.close()
        raise ServerStartError(
            f"the socket {path} of the server before this one cannot be used: {error}"
        ) from error
    if offer != _OFFER or len(descriptors) != 1:
        connection.close()
        for each in descriptors:
            os.close(each)
        raise ServerStartError(
            f"what listens at {path} hands no socket over: choose another path for --handover"
        )
    return Predecessor(connection, socket.socket(fileno=descriptors[0]))


def take_over(path: Path) -> None:
    """Let the server at the path accept no more connections, unless it has ended meanwhile.

    It is asked anew: the time since its socket was passed on is as long as a start takes.
    """
    found = find_predecessor(path)
    if found is None:
        log.warning("the server before this one has ended before its socket was taken over")
        return
    found.listening.close()
    found.finish()


class Offer:
    """The unix socket at which a server offers its listening socket to the next one."""

    def __init__(self, listening: socket.socket, leave: Callable[[], None]) -> None:
        self._listening = listening
        self._leave = leave  # accept no more connections
        self._task: asyncio.Task[None] | None = None

    def start(self, offering: socket.socket) -> None:
        """Offer it from now on, to one server at a time."""
        offering.setblocking(False)
        offering.listen(1)
        self._task = asyncio.get_running_loop().create_task(self._run(offering))

    def stop(self) -> None:
        """Offer it no more."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self, offering: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with offering:
            is_over = False
            while not is_over:
                connection, _ = await loop.sock_accept(offering)
                connection.setblocking(False)
                with connection, contextlib.suppress(OSError, TimeoutError):
                    async with asyncio.timeout(SECONDS):
                        is_over = await self._hand_over(connection)

    async def _hand_over(self, connection: socket.socket) -> bool:
        """Pass the socket on; return whether the next server serves from now on."""
        loop = asyncio.get_running_loop()
        if not _is_ours(connection):
            return False
        socket.send_fds(connection, [_OFFER], [self._listening.fileno()])
        if await loop.sock_recv(connection, len(_READY)) != _READY:
            return False
        log.info("another server has taken the listening socket over")
        self._leave()
        await loop.sock_sendall(connection, _LEFT)
        return True


def _is_ours(connection: socket.socket) -> bool:
    """Return whether the other side is a process of this user, or of root."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return _CREDENTIALS.unpack(found)[1] in (os.geteuid(), 0)
