"""Publishers of KV events that send a router what it must not keep."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping

from octavo.zmtp.parser import command, frames, greeting

_HELLO = greeting(b"PUB")
_PORTION_BYTES = 1 << 16
MOST_SENT_BYTES = 64 << 20  # before a router that still listens keeps too much
_PING = command(b"\4PING\0\0" + b"x" * 16)
_DATA = frames((b"", bytes(8), b"\x93no batch"))
# What a publisher sends once, and then without an end.
ATTACKS: Mapping[str, tuple[bytes, bytes]] = {
    "endless parts": (_HELLO, b"\1\1x"),
    "empty parts": (_HELLO, b"\1\0"),
    "large parts": (_HELLO, b"\3" + (1 << 19).to_bytes(8, "big") + bytes(1 << 19)),
    "an endless part": (_HELLO + b"\3" + (1 << 62).to_bytes(8, "big"), bytes(_PORTION_BYTES)),
    "an endless command": (_HELLO + b"\6" + (1 << 40).to_bytes(8, "big"), bytes(_PORTION_BYTES)),
    "pings": (_HELLO, _PING),
    "another kind": (greeting(b"ROUTER"), b"".join(_DATA)),
    "no ZeroMQ": (b"HTTP/1.1 200 OK\r\n\r\n", b"x"),
}


class LyingPublisher:
    """A publisher in this process that carries out one attack on each that connects."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._once, self._endless = ATTACKS[name]
        self._server: asyncio.Server | None = None
        self.num_ended = 0  # connections that the router has ended
        self.num_taken = 0  # attacks of which the router took all
        self.endpoint = ""

    async def start(self) -> None:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._attack, "127.0.0.1", 0)
        self.endpoint = f"tcp://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def stop(self) -> None:
        """Accept no more connections."""
        assert self._server is not None, "it listens"
        self._server.close()

    async def _attack(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Send without an end and read nothing, until the router has had enough."""
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        portion = self._endless * max(1, _PORTION_BYTES // len(self._endless))
        with contextlib.suppress(ConnectionError):
            writer.write(self._once)
            for _ in range(MOST_SENT_BYTES // len(portion)):
                writer.write(portion)
                await writer.drain()
            self.num_taken += 1
            writer.close()
            return
        self.num_ended += 1
        writer.close()
