"""Writing responses: only a write that must wait has a timer, which disconnects a slow client."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any, cast

import pytest

from octavo.dialects.common.dialect import OPENAI
from octavo.options.server import ServerSettings
from octavo.serving.exchange import Exchange
from octavo.serving.server import Server
from octavo.transport.answer import AsgiAnswer, RequestHead
from octavo.transport.connection import Connection
from octavo.transport.errors import ClientGoneError
from octavo.transport.exchange import ResponseStream
from octavo.transport.response import Response
from tests.server.engine import FakeEngine
from tests.server.make import until


@pytest.fixture
def server(directory: Path) -> Iterator[Server]:
    engine = FakeEngine(directory)
    yield Server(engine, ServerSettings(stall_seconds=0.01))
    engine.close()


class Watched(AsgiAnswer):
    """An answer that knows whether its connection has room."""

    def __init__(self, wire: Wire) -> None:
        super().__init__(wire.scope, wire.send)
        self._wire = wire

    def must_wait(self) -> bool:
        return not self._wire.accepts

    is_stalled = must_wait


class Wire:
    """A connection that accepts every write, or none; one that is watched knows which."""

    def __init__(self, extensions: dict[str, Any] | None, *, is_watched: bool = False) -> None:
        self.accepts = True
        self.is_watched = is_watched
        self.accepted: list[bytes] = []
        self.num_timers: list[int] = []  # at each write
        self.scope: dict[str, Any] = {"method": "GET", "path": "/", "headers": []}
        if extensions is not None:
            self.scope["extensions"] = extensions

    def exchange(self, server: Server) -> Exchange:
        """Return the exchange of a request over this connection."""
        answer = Watched(self) if self.is_watched else AsgiAnswer(self.scope, self.send)
        return Exchange(server, RequestHead.of(self.scope), answer, OPENAI, self.receive)

    async def receive(self) -> MutableMapping[str, Any]:
        raise AssertionError("the body is not read")

    async def send(self, message: MutableMapping[str, Any]) -> None:
        timers: Any = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
        self.num_timers.append(len([each for each in timers if not each.cancelled()]))
        if not self.accepts:
            await asyncio.Event().wait()
        self.accepted.append(message.get("body", b""))


def test_a_write_without_a_wait_sets_no_timer(server: Server) -> None:
    cuts: list[int] = []
    wire = Wire({"octavo.cut": {"call": lambda: cuts.append(1)}}, is_watched=True)

    async def main() -> None:
        exchange = wire.exchange(server)
        await exchange.write(b"one", more=True)
        assert wire.accepted == [b"one"]
        assert wire.num_timers == [0]
        wire.accepts = False
        with pytest.raises(ClientGoneError):
            await exchange.write(b"two", more=True)
        assert wire.num_timers == [0, 1]
        assert cuts == [1]
        assert server.metrics.slow_readers.value() == 1

    asyncio.run(main())


def test_no_ping_waits_beside_a_write(directory: Path) -> None:
    """A stalled reader is counted once, however short the time between pings."""
    wire = Wire({}, is_watched=True)
    engine = FakeEngine(directory)
    server = Server(engine, ServerSettings(stall_seconds=0.1, ping_seconds=0.01))

    async def main() -> None:
        exchange = wire.exchange(server)
        stream = ResponseStream(exchange, OPENAI.error_body)
        await stream.open()
        await until(lambda: len(wire.accepted) >= 3)  # pings, while the reader takes them
        wire.accepts = False
        num_writes = len(wire.num_timers)
        with pytest.raises(ClientGoneError):
            await stream.write([b"x"])
        await asyncio.sleep(0.05)
        assert len(wire.num_timers) == num_writes + 1
        assert server.metrics.slow_readers.value() == 1
        stream.stop_pinging()

    try:
        asyncio.run(main())
    finally:
        engine.close()


@pytest.mark.parametrize("extensions", [None, {}])
def test_every_write_has_a_timer_without_our_extensions(
    server: Server, extensions: dict[str, Any] | None
) -> None:
    wire = Wire(extensions)

    async def main() -> None:
        exchange = wire.exchange(server)
        await exchange.write(b"one", more=True)
        assert wire.num_timers == [1]
        wire.accepts = False
        with pytest.raises(ClientGoneError):
            await exchange.write(b"two")

    asyncio.run(main())


def test_a_token_for_a_client_that_left_before_the_status_line_is_dropped() -> None:
    """The status line was dropped, so that no response has begun."""

    async def main() -> None:
        connection = cast("Connection", None)  # nothing may be written
        head = RequestHead("GET", "/", {})
        response = Response(connection, head, keeps_alive=True, expects_continue=False)
        response.disconnect()
        response.write_now(b"token")

    asyncio.run(main())
