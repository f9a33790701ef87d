"""A client of HTTP/2 that sends what no library would, and reads the ends of its calls."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable

DATA, HEADERS, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION = 0, 1, 4, 6, 8, 9
END_STREAM, END_HEADERS, ACK = 1, 4, 1
_FRAME_BYTES = 1 << 14  # at most
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_TABLE_SIZE, _WINDOW = 1, 4  # settings
_STATUS = b"\x0bgrpc-status"  # as it stands in a head without a table and without Huffman's code
_HEAD = struct.Struct(">I")
Pairs = Iterable[tuple[bytes, bytes]]


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return a frame with its head of nine bytes."""
    length = _HEAD.pack(len(payload))[1:]
    return length + bytes([kind, flags]) + _HEAD.pack(stream) + payload


def head(path: bytes, more: Pairs = ()) -> bytes:
    """Return the head of a call: all of it literal."""
    pairs = [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path),
        (b":authority", b"localhost"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        *more,
    ]
    return b"".join(b"\0" + _text(name) + _text(value) for name, value in pairs)


def message(payload: bytes, announced: int | None = None) -> bytes:
    """Return a message as a call sends it; it may announce a length of its own."""
    return b"\0" + _HEAD.pack(len(payload) if announced is None else announced) + payload


def _text(text: bytes) -> bytes:
    """Return a text of a head with its length, the first byte of which has seven bits."""
    length = len(text)
    if length < 127:
        return bytes([length]) + text
    written, length = bytearray([127]), length - 127
    while length > 127:
        written.append(length & 127 | 128)
        length >>= 7
    return bytes([*written, length]) + text


class Http2:
    """One connection; `window` is how many bytes of an answer it takes."""

    def __init__(self, port: int, source: str = "127.0.0.1", window: int = 65_535) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), source_address=(source, 0))
        self.port = port
        self._next = 1
        self._rest = b""
        self.statuses: dict[int, int] = {}  # of calls that have ended, by stream
        self.num_bytes: dict[int, int] = {}  # of answers, by stream
        self.is_closed = False  # by the server
        self._window = 65_535  # the server's, of a new stream
        self._granted: dict[int, int] = {}  # bytes beyond it, by stream; 0 is the connection
        settings = struct.pack(">HIHI", _TABLE_SIZE, 0, _WINDOW, window)
        self.send(_PREFACE + frame(SETTINGS, 0, 0, settings))

    def __enter__(self) -> Http2:
        return self

    def __exit__(self, *exception: object) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        """Send bytes; a server that has closed the connection is noted."""
        try:
            self._socket.settimeout(60.0)
            self._socket.sendall(data)
        except OSError:
            self.is_closed = True

    def begin(self, path: str | bytes, key: str | None = None, more: Pairs = ()) -> int:
        """Send the head of a call; return its stream."""
        stream, self._next = self._next, self._next + 2
        named = [(b"authorization", b"Bearer " + key.encode())] if key else []
        whole = head(path.encode() if isinstance(path, str) else path, [*named, *more])
        parts = [whole[at : at + _FRAME_BYTES] for at in range(0, len(whole), _FRAME_BYTES)]
        for number, part in enumerate(parts, 1):
            kind = HEADERS if number == 1 else CONTINUATION
            self.send(frame(kind, END_HEADERS if number == len(parts) else 0, stream, part))
        return stream

    def call(self, path: str | bytes, payload: bytes = b"", key: str | None = None) -> int:
        """Send a whole call with a message that is not large; return its stream."""
        stream = self.begin(path, key)
        self.send(frame(DATA, END_STREAM, stream, message(payload)))
        return stream

    def send_data(self, stream: int, data: bytes, seconds: float) -> bool:
        """Send the first data of a call as far as the server lets it; return whether it was all."""
        num_sent = 0
        while num_sent < len(data) and stream not in self.statuses and not self.is_closed:
            whole = 65_000 + self._granted.get(0, 0)  # small messages have taken some of it
            own = self._window + self._granted.get(stream, 0)
            part = data[num_sent : min(whole, own, num_sent + _FRAME_BYTES)]
            if part:
                self.send(frame(DATA, 0, stream, part))
                num_sent += len(part)
            elif not self.read(seconds):
                break
        return num_sent == len(data)

    def read(self, seconds: float) -> bool:
        """Read what comes first; return whether there was anything within this time."""
        self._socket.settimeout(seconds)
        try:
            data = self._socket.recv(1 << 16)
        except TimeoutError:
            return False
        except OSError:
            data = b""
        if not data:
            self.is_closed = True
            return False
        self._rest += data
        while len(self._rest) >= 9:
            length = int.from_bytes(self._rest[:3])
            if len(self._rest) < 9 + length:
                break
            kind, flags, stream = self._rest[3], self._rest[4], _HEAD.unpack_from(self._rest, 5)[0]
            payload, self._rest = self._rest[9 : 9 + length], self._rest[9 + length :]
            self._take(kind, flags, stream, payload)
        return True

    def end_of(self, stream: int, seconds: float = 300.0) -> int | None:
        """Return the status that a call ends with; None if the server closes the connection."""
        while stream not in self.statuses and not self.is_closed and self.read(seconds):
            pass
        return self.statuses.get(stream)

    def wait_closed(self, seconds: float = 300.0) -> bool:
        """Read until the server closes the connection; return whether it has."""
        while not self.is_closed and self.read(seconds):
            pass
        return self.is_closed

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == SETTINGS and not flags & ACK:
            for name, value in struct.iter_unpack(">HI", payload):
                if name == _WINDOW:
                    self._window = value
        elif kind == WINDOW_UPDATE:
            (more,) = _HEAD.unpack(payload)
            self._granted[stream] = self._granted.get(stream, 0) + more
        if kind in (SETTINGS, PING) and not flags & ACK:
            self.send(frame(kind, ACK, 0, payload if kind == PING else b""))
        elif kind == DATA:
            self.num_bytes[stream] = self.num_bytes.get(stream, 0) + len(payload)
        elif kind == HEADERS and _STATUS in payload:
            at = payload.index(_STATUS) + len(_STATUS)
            self.statuses[stream] = int(payload[at + 1 : at + 1 + payload[at]])
