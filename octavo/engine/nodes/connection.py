"""A connection between two nodes: over TCP, sealed, and noticed when it is cut."""

from __future__ import annotations

import hashlib
import os
import socket
import struct

from msgspec import Struct

from octavo.backends.native import _native
from octavo.engine.nodes.handshake import FrameKeys
from octavo.engine.ranks.link import Link, Message
from octavo.wire.message_types import WireError, pack, unpack

# A cut connection is noticed after this time at most: by probes while nothing is sent, and
# otherwise because what was sent is not acknowledged.
CUT_SECONDS = 5
_PROBE_AFTER_SECONDS, _PROBE_SECONDS = 2, 1
HANDSHAKE_SECONDS = 5.0  # for each message of a handshake to come


def watch_for_cuts(connection: socket.socket) -> None:
    """Send small frames at once, and notice it when the other machine cannot be reached."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    probes = (CUT_SECONDS - _PROBE_AFTER_SECONDS) // _PROBE_SECONDS
    for name, value in (
        (socket.TCP_NODELAY, 1),
        (socket.TCP_KEEPIDLE, _PROBE_AFTER_SECONDS),
        (socket.TCP_KEEPINTVL, _PROBE_SECONDS),
        (socket.TCP_KEEPCNT, probes),
        (socket.TCP_USER_TIMEOUT, CUT_SECONDS * 1000),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, name, value)


def wait_for_reader(connection: socket.socket) -> None:
    """Let what is sent wait for as long as the process at the other end computes.

    The system would end a connection on which nothing is read for CUT_SECONDS once its buffers are
    full, although the other machine answers; and a long step takes longer. That the machine cannot
    be reached is noticed by another connection of the same process.
    """
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 0)


def bound_waiting(connection: socket.socket, seconds: float) -> None:
    """Let the system end each wait of a blocking connection after so long; 0: never."""
    connection.setblocking(True)
    limit = struct.pack("@ll", int(seconds), int(seconds % 1 * 1e6))
    for direction in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        connection.setsockopt(socket.SOL_SOCKET, direction, limit)


def _key_of_parts(key: bytes) -> bytes:
    return hashlib.blake2b(key=key, digest_size=32, person=b"octavo parts").digest()


class SealedLink(Link):
    """A link between machines, of sealed frames."""

    def __init__(self, connection: socket.socket, keys: FrameKeys) -> None:
        super().__init__(connection)
        self.descriptor = os.dup(connection.fileno())
        self.frames = _native.FrameLink(self.descriptor, *keys)
        self._keys: FrameKeys | None = keys  # until they are those of parts
        self.machine = ""  # of the other end, as texts name it
        self.end_reason = ""  # how the connection ended

    def send(self, message: Struct) -> None:
        self.frames.send(pack(message))

    def receive(self, kind: type[Message]) -> Message | None:
        try:
            data = self.frames.receive()
        except ConnectionError as error:
            self.end_reason = str(error)
            return None
        except RuntimeError as error:  # not sealed by the other end, or no frame
            raise WireError(str(error)) from None
        return unpack(data, kind)

    def part_link(self) -> tuple[_native.PartLink, int]:
        """Return the connection as one for the parts of sums, of which no frame comes any more.

        It has keys, and a descriptor, of its own. There is one: a second would seal with the same
        keys, and number its parts from zero again.
        """
        if self._keys is None:
            raise ValueError("a connection is one for parts already")
        keys, self._keys = self._keys, None
        descriptor = os.dup(self.connection.fileno())
        sending, receiving = map(_key_of_parts, keys)
        return _native.PartLink(descriptor, sending, receiving), descriptor

    def close(self) -> None:
        """End the connection, and wake who waits for its other end."""
        self.frames.close()
        self.connection.close()
