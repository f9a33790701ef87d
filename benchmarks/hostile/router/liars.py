"""Servers behind a router that are honest or lie, by the model that a request names."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator, Mapping

from benchmarks.hostile.attack import INJECTED

HONEST = "honest"
TEXT = " ".join(map(str, range(40)))  # what the honest model answers, a word an event
_INJECTED = f"HTTP/1.1 200 OK\r\n{INJECTED}: 1\r\nContent-Length: 2\r\n\r\nno".encode()
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
_EVENTS = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
# What a lying model sends, after which it closes the connection.
LIES: Mapping[str, bytes] = {
    "nothing": b"",
    "garbage": b"\x16\x03\x01 no HTTP at all\r\n\r\n" * 9,
    "short": _HEAD + b"Content-Length: 100\r\n\r\n{}",
    "long": _HEAD + b"Content-Length: 2\r\n\r\n{}" + _INJECTED,
    "two-lengths": _HEAD + b"Content-Length: 2\r\nContent-Length: 100\r\n\r\n{}" + _INJECTED,
    "length-and-chunks": _HEAD
    + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    + _INJECTED,
    "unknown-coding": _HEAD + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "wrong-chunk": _EVENTS + b"zz\r\ndata: 1\r\n",
    "huge-chunk": _EVENTS + b"ffffffffffffffffffff\r\nx",
    "cut-event": _EVENTS + b"4\r\ndata\r\n",
    "trailer": _EVENTS + f"0\r\n{INJECTED}: 1\r\n\r\n".encode(),
    "split-header": _HEAD + f"X: a\r {INJECTED}: 1\r\nContent-Length: 2\r\n\r\n{{}}".encode(),
    "hop": _HEAD
    + f"Connection: {INJECTED}\r\n{INJECTED}: 1\r\nContent-Length: 2\r\n\r\n{{}}".encode(),
    "interim": b"HTTP/1.1 100 Continue\r\n\r\n" * 100,
    "switching": b"HTTP/1.1 101 Switching\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n",
    "many-headers": _HEAD + b"a: b\r\n" * 10_000 + b"\r\n",
    "endless-header": _HEAD + b"a: " + b"b" * 2_000_000,
    "endless-status": b"HTTP/1.1 200 " + b"O" * 2_000_000,
    "tiny-chunks": _EVENTS + b"1\r\nx\r\n" * 20_000 + b"0\r\n\r\n",
}
SILENT, DRIPPING, FLOODING = "silent", "dripping", "flooding"
MODELS = (HONEST, *LIES, SILENT, DRIPPING, FLOODING)
_DRIP_SECONDS = 0.2


class Liar:
    """A server in this process."""

    def __init__(self, models: tuple[str, ...]) -> None:
        self._models = models
        self._server: asyncio.Server | None = None
        self.num_open = 0  # connections
        self.url = ""

    async def start(self) -> None:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def stop(self) -> None:
        """Accept no more connections."""
        assert self._server is not None, "it listens"
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_open += 1
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                while await self._answer(reader, writer):
                    await writer.drain()
                await writer.drain()
        finally:
            self.num_open -= 1
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; return whether there may be another."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        path = head.split(" ")[1]
        length = 0
        for line in head.split("\r\n"):
            if line.lower().startswith("content-length:"):
                length = int(line.partition(":")[2])
        body = await reader.readexactly(length)
        if path == "/health":
            writer.write(_whole({"status": "ready"}))
            return True
        if path == "/v1/models":
            writer.write(_whole({"data": [{"id": name} for name in self._models]}))
            return True
        asked = json.loads(body)
        model = asked.get("model") or HONEST
        if model == HONEST:
            writer.write(b"".join(_stream()) if asked.get("stream") else _whole({"text": TEXT}))
            return True
        await _lie(model, reader, writer)
        return False


async def _lie(model: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send what a lying model sends, until the router has had enough."""
    if model in LIES:
        writer.write(LIES[model])
        return
    if model == SILENT:
        await reader.read()  # until the router closes the connection
        return
    writer.write(_EVENTS)
    data, pause = (b"1\r\nx\r\n", _DRIP_SECONDS) if model == DRIPPING else (b"ffff\r\n", 0.0)
    while not writer.transport.is_closing():
        writer.write(data if model == DRIPPING else data + b"y" * 0xFFFF + b"\r\n")
        await writer.drain()
        await asyncio.sleep(pause)


def _whole(value: object) -> bytes:
    body = json.dumps(value).encode()
    return _HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body


def _stream() -> Iterator[bytes]:
    yield _EVENTS
    for word in TEXT.split():
        event = b"data: " + word.encode() + b"\n\n"
        yield b"%x\r\n%b\r\n" % (len(event), event)
    yield b"0\r\n\r\n"
