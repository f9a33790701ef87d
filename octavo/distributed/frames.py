"""Messages between two processes as frames: four bytes of length, and so many bytes."""

from __future__ import annotations

import socket
import struct

_LENGTH = struct.Struct("<I")


class FrameError(ValueError):
    """A frame that is longer than the two processes have agreed on."""


class Frames:
    """One end of a connection between processes."""

    def __init__(self, connection: socket.socket, most_bytes: int) -> None:
        self.connection = connection
        self._most_bytes = most_bytes

    def send(self, data: bytes) -> None:
        """Send a message; raise OSError if the other process has ended."""
        self._check(len(data))
        self.connection.sendall(_LENGTH.pack(len(data)) + data)

    def receive(self) -> bytes | None:
        """Wait for the next message; return None if the other process has ended."""
        head = self.read(_LENGTH.size)
        if head is None:
            return None
        (size,) = _LENGTH.unpack(head)
        self._check(size)
        return self.read(size)

    def read(self, size: int) -> bytes | None:
        """Wait for so many bytes; return None if the other process has ended."""
        data = bytearray()
        while len(data) < size:
            try:
                part = self.connection.recv(size - len(data))
            except OSError:
                return None
            if not part:
                return None
            data += part
        return bytes(data)

    def _check(self, size: int) -> None:
        if size > self._most_bytes:
            raise FrameError(f"a message of {size} bytes; ranks take {self._most_bytes}")
