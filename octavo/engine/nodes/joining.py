"""How a member of another node joins the first: it tries again until it is taken or refused."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from octavo.engine.nodes.connection import (
    HANDSHAKE_SECONDS,
    SealedLink,
    bound_waiting,
    wait_for_reader,
    watch_for_cuts,
)
from octavo.engine.nodes.division import CONTROL
from octavo.engine.nodes.handshake import (
    GREETING_BYTES,
    VERDICT_BYTES,
    HandshakeError,
    OtherEnd,
)
from octavo.engine.nodes.messages import Join, Joined
from octavo.wire.message_types import WireError

log = logging.getLogger(__name__)

RETRY_SECONDS = 0.5
REMIND_SECONDS = 30.0  # between two lines of the log about the same reason
_ABSENT = "node 0 is not there, or is about to start its engine, or all of its nodes have joined"


class RefusedError(Exception):
    """An error for what the first node refuses now and later; its message says why."""


class _NotYetError(Exception):
    """An error for a connection that may be taken later."""


def join(
    host: str,
    port: int,
    secret: bytes,
    channels: Sequence[str],
    make_join: Callable[[str], Join],  # of the name of a connection
    sleep: Callable[[float], None] = time.sleep,
) -> list[SealedLink]:
    """Return the connections to the first node, once it takes all; raise RefusedError.

    It need not be there yet: this waits, and says so.
    """
    said, said_at = "", float("-inf")
    while True:
        links: list[SealedLink] = []
        try:
            for channel in channels:
                link = _connect(host, port, secret, make_join(channel))
                links.append(link)  # which is closed if the next one is not taken
        except (_NotYetError, HandshakeError, OSError, WireError) as error:
            for link in links:
                link.close()
            why = str(error)
            if why != said or time.monotonic() >= said_at + REMIND_SECONDS:
                log.warning("cannot join %s port %d yet: %s", host, port, why)
                said, said_at = why, time.monotonic()
            sleep(RETRY_SECONDS)
            continue
        return links


def say_failure(host: str, port: int, secret: bytes, message: Join) -> None:
    """Send the first node why this one can have no place, if it listens: it may not be there."""
    with suppress(RefusedError, _NotYetError, HandshakeError, OSError, WireError):
        _connect(host, port, secret, message).close()


def _connect(host: str, port: int, secret: bytes, message: Join) -> SealedLink:
    try:
        connection = socket.create_connection((host, port), HANDSHAKE_SECONDS)
    except ConnectionRefusedError as error:
        raise _NotYetError(_ABSENT) from error
    except TimeoutError as error:
        raise _NotYetError(f"nothing answers there within {HANDSHAKE_SECONDS:g} s") from error
    except OSError as error:
        raise _NotYetError((error.strerror or str(error)).lower()) from error
    try:
        watch_for_cuts(connection)
        bound_waiting(connection, HANDSHAKE_SECONDS)
        end = OtherEnd(secret, _read(connection, GREETING_BYTES))
        connection.sendall(end.answer)
        link = SealedLink(connection, end.check(_read(connection, VERDICT_BYTES)))
    except BaseException:
        connection.close()
        raise
    try:
        link.send(message)
        answer = link.receive(Joined)
        if answer is None:
            raise _NotYetError("node 0 has ended the connection")
        if answer.refusal:
            raise RefusedError(answer.refusal)
        if answer.occupied:
            raise _NotYetError(answer.occupied)
        bound_waiting(connection, 0)
        if message.channel != CONTROL:
            wait_for_reader(connection)
    except BaseException:
        link.close()
        raise
    return link


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        try:
            part = connection.recv(size - len(data))
        except BlockingIOError as error:
            raise _NotYetError(f"nothing came within {HANDSHAKE_SECONDS:g} s") from error
        if not part:
            raise _NotYetError("what listens there has ended the connection")
        data += part
    return data
