"""Turns the bytes of a connection of ZMTP 3 (without encryption) into messages, within bounds.

libzmq bounds the size of a message's part, and nowhere the number of its parts or of a reader's
subscriptions: it keeps whatever the other end sends of a message that never ends.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

_MORE, _LONG, _COMMAND = 1, 2, 4
_GREETING_BYTES = 64
_MECHANISM = b"NULL"
_MOST_COMMAND_BYTES = 1024
_LENGTH = struct.Struct(">Q")
_CHANGES = {
    b"SUBSCRIBE": b"\1",
    b"CANCEL": b"\0",
}  # what a command is, and what a message began with

Message = list[bytes]


class BrokenError(Exception):
    """An error for an end that breaks the protocol or a bound; its connection must end."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The kinds and sizes that one end takes from the other."""

    kind: bytes  # of this end, such as SUB
    others: tuple[bytes, ...]  # the kinds of ends that it speaks with
    most_parts: int  # of a message
    most_bytes: int  # of all parts of a message


def greeting(kind: bytes) -> bytes:
    """Return what an end sends first: its version, that nothing is encrypted, and its kind."""
    first = b"\xff" + bytes(8) + b"\x7f\3\1" + _MECHANISM.ljust(20, b"\0") + bytes(32)
    ready = b"\5READY" + _property(b"Socket-Type", kind) + _property(b"Identity", b"")
    return first + command(ready)


def command(body: bytes) -> bytes:
    """Return the frame of a short command."""
    return bytes((_COMMAND, len(body))) + body


def subscription(topic: bytes, *, is_command: bool) -> tuple[bytes, ...]:
    """Return the frames of a subscription: a command from version 3.1 on, before it a message."""
    if is_command:
        return (command(b"\x09SUBSCRIBE" + topic),)
    return frames((b"\1" + topic,))


def frames(parts: Sequence[bytes]) -> tuple[bytes, bytes]:
    """Return the bytes of a message: those before its last part, and that part, which is shared."""
    head = bytearray()
    for index, part in enumerate(parts):
        is_last = index == len(parts) - 1
        flags = 0 if is_last else _MORE
        if len(part) > 255:
            head += bytes((flags | _LONG,)) + _LENGTH.pack(len(part))
        else:
            head += bytes((flags, len(part)))
        if not is_last:
            head += part
    return bytes(head), parts[-1]


class Parser:
    """The messages of one connection; it keeps no more than the bounds of one that is not whole."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._buffer = bytearray()
        self._parts: Message = []  # of a message that has not ended
        self._num_bytes = 0  # of those
        self._is_greeted = False
        self.takes_commands = False  # subscriptions, and questions whether this end lives
        self.is_ready = False  # whether the other end has named its kind
        self.replies = bytearray()  # to its questions whether this end lives

    def feed(self, data: bytes) -> list[Message]:
        """Take bytes, and return the messages that end in them; a subscription is one too."""
        self._buffer += data
        found: list[Message] = []
        at = 0
        if not self._is_greeted:
            if self._buffer[:1] != b"\xff":
                raise BrokenError("it is no ZeroMQ of version 4 or later")
            if len(self._buffer) < _GREETING_BYTES:
                return found
            self._greet(bytes(self._buffer[:_GREETING_BYTES]))
            at = _GREETING_BYTES
        while (frame := self._frame(at)) is not None:
            flags, body, at = frame
            if flags & _COMMAND:
                self._command(body, found)
            else:
                self._part(flags, body, found)
        del self._buffer[:at]
        return found

    def _greet(self, given: bytes) -> None:
        if not given[9] & 1 or given[10] < 3 or given[12:32].rstrip(b"\0") != _MECHANISM:
            raise BrokenError("it has an older version of the protocol, or encrypts")
        self._is_greeted = True
        self.takes_commands = given[10:12] >= b"\3\1"

    def _frame(self, at: int) -> tuple[int, bytes, int] | None:
        """Return flags, content and end of the frame at a place, or None until it is whole."""
        buffer = self._buffer
        if len(buffer) < at + 2:
            return None
        flags, size, start = buffer[at], buffer[at + 1], at + 2
        if flags & _LONG:
            start = at + 9
            if len(buffer) < start:
                return None
            (size,) = _LENGTH.unpack_from(buffer, at + 1)
        if flags & _COMMAND:
            if size > _MOST_COMMAND_BYTES:
                raise BrokenError(f"a command of {size} bytes; at most {_MOST_COMMAND_BYTES}")
        elif self._num_bytes + size > self._bounds.most_bytes:
            found, most = self._num_bytes + size, self._bounds.most_bytes
            raise BrokenError(f"a message of {found} bytes or more; at most {most}")
        elif len(self._parts) == self._bounds.most_parts:
            raise BrokenError(f"a message of more than {self._bounds.most_parts} parts")
        if len(buffer) < start + size:
            return None
        return flags, bytes(buffer[start : start + size]), start + size

    def _part(self, flags: int, body: bytes, found: list[Message]) -> None:
        if not self.is_ready:
            raise BrokenError("a message before the handshake's end")
        self._parts.append(body)
        self._num_bytes += len(body)
        if not flags & _MORE:
            found.append(self._parts)
            self._parts, self._num_bytes = [], 0

    def _command(self, body: bytes, found: list[Message]) -> None:
        name, rest = body[1 : 1 + body[0]] if body else b"", body[1 + body[0] :] if body else b""
        if name == b"READY" and not self.is_ready:
            kind = _properties(rest).get(b"socket-type")
            if kind not in self._bounds.others:
                raise BrokenError(f"it is no {b' or '.join(self._bounds.others).decode()}")
            self.is_ready = True
        elif name == b"ERROR" and not self.is_ready:
            raise BrokenError(
                f"it refuses this end: {rest[1:].decode('ascii', 'backslashreplace')!r}"
            )
        elif not self.is_ready:
            raise BrokenError("a command before the handshake's end")
        elif name == b"PING":
            self.replies += command(b"\4PONG" + rest[2:18])
        elif name in _CHANGES:
            found.append([_CHANGES[name] + rest])


def _property(name: bytes, value: bytes) -> bytes:
    return bytes((len(name),)) + name + len(value).to_bytes(4, "big") + value


def _properties(data: bytes) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    while data:
        end = 1 + data[0]
        start = end + 4
        size = int.from_bytes(data[end:start], "big")
        if len(data) < start + size:
            raise BrokenError("a property that is longer than its command")
        found[data[1:end].lower()] = data[start : start + size]
        data = data[start + size :]
    return found
