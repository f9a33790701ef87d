"""A server that is measured and lies: in its names, its streams, its counts and its errors."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping

from benchmarks.hostile.router.liars import LIES as FRAMING

HONEST, ENDLESS = "honest", "endless"
# The name that it gives its model: markup, what a terminal obeys, and parts of a path.
NAME = "../</text><script>alert(1)</script>\x1b[2J\x00\r\n"
_DRIP_SECONDS = 0.05


def _event(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


_TEXT = _event({"choices": [{"index": 0, "text": "x"}]})
_DONE = b"data: [DONE]\n\n"
_GOOD = _TEXT + _event({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 1}})


def _usage(value: object) -> bytes:
    return _TEXT + _event({"choices": [], "usage": value}) + _DONE


# Bodies of streams, each of which must become an error of its request, and of nothing else.
STREAMS: Mapping[str, bytes] = {
    "no-text": _DONE,
    "no-end": _TEXT,
    "no-json": b"data: {\n\n" + _DONE,
    "deep": b"data: " + b"[" * 200_000 + b"\n\n" + _DONE,
    "bytes": b"data: \xff\x00\n\n" + _DONE,
    "list": _event([1]) + _DONE,
    "number": _event(1) + _DONE,
    "choices-object": _event({"choices": {"a": 1}}) + _DONE,
    "choices-numbers": _event({"choices": [1]}) + _DONE,
    "delta-number": _event({"choices": [{"delta": 5}]}) + _DONE,
    "usage-text": _usage("many"),
    "usage-empty-keys": _usage({"a": 1}),
    "usage-negative": _usage({"prompt_tokens": 1, "completion_tokens": -5}),
    "usage-huge": _usage({"prompt_tokens": 10**400, "completion_tokens": 1}),
    "usage-infinite": _TEXT
    + b'data: {"choices":[],"usage":{"prompt_tokens":1e999,"completion_tokens":1}}\n\n'
    + _DONE,
    "usage-nan": _TEXT
    + b'data: {"choices":[],"usage":{"prompt_tokens":NaN,"completion_tokens":1}}\n\n'
    + _DONE,
    "error-number": _event({"error": 5}) + _DONE,
    "error-for-terminals": _event({"error": {"message": "\x1b]0;owned\x07\x1b[2J" * 99}}) + _DONE,
    "one-long-event": b"data: " + b"x" * (9 << 20) + b"\n\n" + _DONE,
    "no-line": b"x" * (9 << 20),
}
MODELS = (HONEST, *STREAMS, *FRAMING)


class LyingServer:
    """A server in this process, whose lie is the model that a request names."""

    def __init__(self) -> None:
        self._server: asyncio.Server | None = None
        self.port = 0
        self.num_ended = 0  # requests whose answers were sent
        self.has_endless = asyncio.Event()  # whether one asks for an answer without an end

    async def start(self) -> None:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def stop(self) -> None:
        """Accept no more connections."""
        assert self._server is not None, "it listens"
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await self._answer(reader, writer)
                await writer.drain()
        finally:
            self.num_ended += 1
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request, after which the connection ends."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        path = head.split(" ")[1]
        fields = (line.partition(":") for line in head.lower().split("\r\n"))
        lengths = [int(value) for name, _, value in fields if name == "content-length"]
        body = await reader.readexactly(lengths[0] if lengths else 0)
        if path == "/v1/models":
            writer.write(_response(json.dumps({"data": [{"id": NAME}]}).encode()))
            return
        if path == "/tokenize":
            writer.write(_response(b'{"tokens": [1]}'))
            return
        model = json.loads(body)["model"]
        if model in FRAMING:
            writer.write(FRAMING[model])
        elif model == ENDLESS:
            self.has_endless.set()
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            while not writer.transport.is_closing():
                writer.write(_TEXT)
                await writer.drain()
                await asyncio.sleep(_DRIP_SECONDS)
        else:
            writer.write(_response(STREAMS.get(model, _GOOD + _DONE)))


def _response(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body) + body
